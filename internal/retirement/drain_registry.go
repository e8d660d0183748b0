package retirement

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
)

// drains are the drains that this process has under way. They are nothing that has to be remembered: after a restart a
// drain is begun anew and finds what is left.
type drains struct {
	mu   sync.Mutex
	runs map[string]*drainRun // by the retirement's name
	// ended brings retirements whose drain is over back to the controller.
	ended chan event.TypedGenericEvent[*v1alpha1.NodeRetirement]
}

// drainTerms are what somebody may change while a drain is under way. It is begun anew then: an override that is withdrawn
// protects what has not gone yet.
type drainTerms struct {
	drain v1alpha1.DrainPolicy
	// idle is the rule that says which pods keep the node; nil where there is none.
	idle *v1alpha1.IdleByLabel
	// until is the end of an override that is in force; zero is none.
	until time.Time
}

type drainRun struct {
	of     types.UID // of the retirement
	terms  drainTerms
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	progress drain.Progress
	// reported is when its progress was last reported, and wasStuck whether something held it up then.
	reported time.Time
	wasStuck bool

	// receipt, err and ended are how and when it ended, once done is closed.
	receipt drain.Receipt
	err     error
	ended   time.Time
}

// isReportDue reports whether progress is to be written down, and notes that it is.
func (r *drainRun) isReportDue(every time.Duration, isStuck bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isStuck == r.wasStuck && time.Since(r.reported) < every {
		return false
	}
	r.reported, r.wasStuck = time.Now(), isStuck
	return true
}

func newDrains() *drains {
	return &drains{
		runs:  map[string]*drainRun{},
		ended: make(chan event.TypedGenericEvent[*v1alpha1.NodeRetirement], 1024),
	}
}

// of returns the drain of a retirement on such terms, or nil. One on other terms, or of an earlier retirement of the same
// name, is stopped.
func (d *drains) of(rt *v1alpha1.NodeRetirement, terms drainTerms) *drainRun {
	d.mu.Lock()
	run := d.runs[rt.Name]
	d.mu.Unlock()
	if run != nil && (run.of != rt.UID || !run.terms.equal(terms)) {
		d.stop(rt.Name)
		return nil
	}
	return run
}

func (t drainTerms) equal(o drainTerms) bool {
	return t.until.Equal(o.until) && equality.Semantic.DeepEqual(t.drain, o.drain) && equality.Semantic.DeepEqual(t.idle, o.idle)
}

// start begins a drain, which ends with ctx, at the latest with an override.
func (d *drains) start(ctx context.Context, rt *v1alpha1.NodeRetirement, api drain.API, o drain.Options, terms drainTerms) *drainRun {
	terms.drain, terms.idle = *terms.drain.DeepCopy(), terms.idle.DeepCopy()
	run := &drainRun{of: rt.UID, terms: terms, done: make(chan struct{}), reported: time.Now()}
	o.OnProgress = func(p drain.Progress) {
		run.mu.Lock()
		defer run.mu.Unlock()
		run.progress = p
	}
	var work context.Context
	if terms.until.IsZero() {
		work, run.cancel = context.WithCancel(ctx)
	} else {
		work, run.cancel = context.WithDeadline(ctx, terms.until)
	}
	d.mu.Lock()
	d.runs[rt.Name] = run
	d.mu.Unlock()
	name := rt.DeepCopy()
	go func() {
		defer run.cancel()
		run.receipt, run.err = drain.Run(work, api, o)
		run.ended = time.Now()
		close(run.done)
		select {
		case d.ended <- event.TypedGenericEvent[*v1alpha1.NodeRetirement]{Object: name}:
		default: // so many ended at once that the rest are found at the next poll
		}
	}()
	return run
}

// stop ends the drain of a retirement, if there is one, and waits until it sends nothing any more.
func (d *drains) stop(name string) {
	d.mu.Lock()
	run := d.runs[name]
	delete(d.runs, name)
	d.mu.Unlock()
	if run != nil {
		run.cancel()
		<-run.done
	}
}

func (r *drainRun) soFar() drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress
}

func (r *drainRun) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}
