package retirement

import (
	"context"
	"sync"
	"time"

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

type drainRun struct {
	of     types.UID // of the retirement
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	progress drain.Progress

	// receipt and err are how it ended, once done is closed.
	receipt drain.Receipt
	err     error
}

func newDrains() *drains {
	return &drains{
		runs:  map[string]*drainRun{},
		ended: make(chan event.TypedGenericEvent[*v1alpha1.NodeRetirement], 1024),
	}
}

// of returns the drain of a retirement, or nil. One of an earlier retirement of the same name is stopped.
func (d *drains) of(rt *v1alpha1.NodeRetirement) *drainRun {
	d.mu.Lock()
	run := d.runs[rt.Name]
	d.mu.Unlock()
	if run != nil && run.of != rt.UID {
		d.stop(rt.Name)
		return nil
	}
	return run
}

// start begins a drain, which ends with ctx, at the latest at the time given unless that is zero.
func (d *drains) start(ctx context.Context, rt *v1alpha1.NodeRetirement, api drain.API, o drain.Options, until time.Time) *drainRun {
	run := &drainRun{of: rt.UID, done: make(chan struct{})}
	o.OnProgress = func(p drain.Progress) {
		run.mu.Lock()
		defer run.mu.Unlock()
		run.progress = p
	}
	var work context.Context
	if until.IsZero() {
		work, run.cancel = context.WithCancel(ctx)
	} else {
		work, run.cancel = context.WithDeadline(ctx, until)
	}
	d.mu.Lock()
	d.runs[rt.Name] = run
	d.mu.Unlock()
	name := rt.DeepCopy()
	go func() {
		defer run.cancel()
		run.receipt, run.err = drain.Run(work, api, o)
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
