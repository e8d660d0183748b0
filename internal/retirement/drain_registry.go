package retirement

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
)

// drainRegistry holds the running drains of this process. They are not stored: after a restart of the manager, a new
// drain lists the pods that are left.
type drainRegistry struct {
	mu   sync.Mutex
	runs map[string]*drainRun // by name of the retirement
	// endedRuns passes retirements with a finished drain back to the controller.
	endedRuns chan event.TypedGenericEvent[*v1alpha1.NodeRetirement]
	metrics   *Metrics
}

// drainTerms holds the settings that users may change during a drain. After a change, a new drain starts. So if a user
// withdraws an override, for example, the remaining protected pods are protected again at once.
type drainTerms struct {
	policy v1alpha1.DrainPolicy
	// idleRule says which pods keep the node; nil is none.
	idleRule *v1alpha1.IdleByLabel
	// overrideUntil is the end of an active override; zero is none.
	overrideUntil time.Time
}

type drainRun struct {
	retirementUID types.UID
	terms         drainTerms
	cancel        context.CancelFunc
	done          chan struct{}

	mu       sync.Mutex
	progress drain.Progress
	// reportedAt is when the progress was last reported, and wasBlocked whether the drain was blocked then.
	reportedAt time.Time
	wasBlocked bool

	// report and err are the result. They are valid once done is closed.
	report drain.Report
	err    error
}

// markReportedIfDue reports whether the caller must record the progress of the drain now. It must after each interval,
// and when the drain becomes blocked or unblocked. A result of true starts a new interval, so the caller must then
// record the progress.
func (r *drainRun) markReportedIfDue(interval time.Duration, isBlocked bool) (due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isBlocked == r.wasBlocked && time.Since(r.reportedAt) < interval {
		return false
	}
	r.reportedAt, r.wasBlocked = time.Now(), isBlocked
	return true
}

func newDrainRegistry(m *Metrics) *drainRegistry {
	return &drainRegistry{
		metrics:   m,
		runs:      map[string]*drainRun{},
		endedRuns: make(chan event.TypedGenericEvent[*v1alpha1.NodeRetirement], 1024),
	}
}

// findMatchingOrStop returns the running drain of the retirement if it has these terms, or nil. If the running drain
// has other terms, or belongs to an earlier retirement of the same name, it stops that drain.
func (d *drainRegistry) findMatchingOrStop(rt *v1alpha1.NodeRetirement, terms drainTerms) *drainRun {
	d.mu.Lock()
	run := d.runs[rt.Name]
	d.mu.Unlock()
	if run != nil && (run.retirementUID != rt.UID || !run.terms.equals(terms)) {
		d.stopAndWait(rt.Name)
		return nil
	}
	return run
}

func (t drainTerms) equals(o drainTerms) bool {
	return t.overrideUntil.Equal(o.overrideUntil) && equality.Semantic.DeepEqual(t.policy, o.policy) && equality.Semantic.DeepEqual(t.idleRule, o.idleRule)
}

// startDrain starts a drain. The drain ends when ctx ends or when an override of protections ends. After the end of ctx, the next
// process continues it.
func (d *drainRegistry) startDrain(ctx context.Context, rt *v1alpha1.NodeRetirement, api drain.API, o drain.Options, terms drainTerms) *drainRun {
	terms.policy, terms.idleRule = *terms.policy.DeepCopy(), terms.idleRule.DeepCopy()
	run := &drainRun{retirementUID: rt.UID, terms: terms, done: make(chan struct{}), reportedAt: time.Now()}
	o.OnProgress = func(p drain.Progress) {
		run.mu.Lock()
		defer run.mu.Unlock()
		run.progress = p
	}
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { end(drain.ErrContinuedLater) })
	run.cancel = func() { end(nil) }
	release := func() {}
	if !terms.overrideUntil.IsZero() {
		work, release = context.WithDeadline(work, terms.overrideUntil)
	}
	d.mu.Lock()
	d.runs[rt.Name] = run
	d.mu.Unlock()
	name := rt.DeepCopy()
	go func() {
		defer forget()
		defer run.cancel()
		defer release()
		run.report, run.err = drain.Run(work, api, o)
		d.metrics.recordDrain(run.report)
		if o.Logger != nil {
			run.report.Log(o.Logger)
		}
		close(run.done)
		select {
		case d.endedRuns <- event.TypedGenericEvent[*v1alpha1.NodeRetirement]{Object: name}:
		default: // the channel is full: the next poll finds the rest
		}
	}()
	return run
}

// waitForLastDrains waits for the end of ctx, and then for the drains that end with it. Their surges restore sizes first.
// The manager limits the wait with its grace period.
func (d *drainRegistry) waitForLastDrains(ctx context.Context) error {
	<-ctx.Done()
	d.mu.Lock()
	last := slices.Collect(maps.Values(d.runs))
	d.mu.Unlock()
	for _, run := range last {
		<-run.done
	}
	return nil
}

// stopAndWait ends the drain of a retirement and waits until it sends no more requests.
func (d *drainRegistry) stopAndWait(name string) {
	d.mu.Lock()
	run := d.runs[name]
	delete(d.runs, name)
	d.mu.Unlock()
	if run != nil {
		run.cancel()
		<-run.done
	}
}

func (r *drainRun) currentProgress() drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress
}

func (r *drainRun) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}
