// Package controller carries out updates of cloudpools. It stores each update as a PoolUpdate, retires the machines one
// after the other, and reports the result.
package controller

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	runtimecontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/semaphore"
)

// UpdaterOptions configures an Updater.
type UpdaterOptions struct {
	Pool    string
	Backend Backend
	Cluster *Cluster
	// Leases stores the Leases. Namespace is the namespace of the Leases and PoolUpdates. Holder is this replica's name.
	Leases            semaphore.API
	Namespace, Holder string
	// Policy determines which nodes are removed first.
	Policy planner.Policy
	// MaxConcurrentRemovals is the maximum number of machines that are removed at the same time, at least 1.
	MaxConcurrentRemovals int
	// RemoveLastWorker allows removal of the cluster's last Ready and schedulable node.
	RemoveLastWorker bool
	// SystemLocalStorage allows removal of nodes where pods of kube-system lose their local storage.
	SystemLocalStorage bool
	// Labels are set on every NodeRetirement.
	Labels   map[string]string
	Timeouts Timeouts
	Metrics  *Metrics
	Log      *slog.Logger

	runForTest func(context.Context, *Updater) // replaces the controller in tests
}

// Timeouts has the intervals and timeouts of updates. The value 0 means the default.
type Timeouts struct {
	// PollInterval is the interval between reconciles of an update, by default 2 s. Changes of NodeRetirements are watched.
	PollInterval time.Duration
	// NodeRestore is the time a cancelled retirement has to restore its node, by default 8 s.
	NodeRestore time.Duration
	// FailureTolerance is the time that errors of the backend, its cloud or the API server are tolerated before the client gets an
	// error, by default 1 minute. The update continues.
	FailureTolerance time.Duration
	// PodSettle is the time an update that has removed machines waits for more removable machines, by default 1 minute. Evicted
	// pods may still be starting elsewhere.
	PodSettle time.Duration
	// RetirementStart is the time a retirement has to start before another machine is tried, by default 5 minutes. A disruption
	// budget of its NodeGroup may delay it.
	RetirementStart time.Duration
	// Termination is the time an update waits for the deletion of a machine without a node, or for a retirement that makes no
	// progress, by default 10 minutes. A drain gets the drain time of its group in addition.
	Termination time.Duration
	// NodeRegistration is the time a running machine has to register its node, by default 15 minutes.
	NodeRegistration time.Duration
}

func (p Timeouts) withDefaults() Timeouts {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.PollInterval: 2 * time.Second, &p.NodeRestore: 8 * time.Second, &p.FailureTolerance: time.Minute, &p.PodSettle: time.Minute,
		&p.RetirementStart: 5 * time.Minute, &p.Termination: 10 * time.Minute, &p.NodeRegistration: 15 * time.Minute,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Updater stores the updates of one pool as PoolUpdates. In the process that holds the pool's Lease, Run also carries
// them out.
type Updater struct {
	opts  UpdaterOptions
	lease *semaphore.Holder
	log   *slog.Logger
	// timers belong to the update with the UID timersUID. Only Reconcile uses them.
	timers    stateTimers
	timersUID types.UID

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a PoolUpdate may have changed
}

// NewUpdater returns an Updater. It returns an error if the pool's name does not fit into a label.
func NewUpdater(o UpdaterOptions) (*Updater, error) {
	o.Timeouts = o.Timeouts.withDefaults()
	o.MaxConcurrentRemovals = max(1, o.MaxConcurrentRemovals)
	o.Policy = cmp.Or(o.Policy, planner.LeastDisruption)
	u := &Updater{opts: o, log: o.Log.With("pool", o.Pool), changed: make(chan struct{})}
	var err error
	u.lease, err = semaphore.NewHolder(semaphore.Options{
		API: o.Leases, Namespace: o.Namespace, Identity: o.Holder, Limit: 1, Purpose: poolKey(o.Pool, "cloudpool-"), Log: u.log,
	})
	return u, err
}

// PoolLabel is a label of PoolUpdates. Its value is the normalized name of the pool.
const PoolLabel = "slipway.dev/pool"

// PoolObjectName returns the name of an object that belongs to the pool.
func PoolObjectName(pool string) string { return poolKey(pool, "slipway-cloudpool-") }

// poolKey returns the prefix and the pool's name, converted to a form that is valid in object names and labels.
func poolKey(pool, prefix string) string {
	return prefix + strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(pool))
}

// Run carries out updates until ctx ends. The next process that holds the Lease continues unfinished updates.
func (u *Updater) Run(ctx context.Context) error {
	defer u.contendForLease(ctx)()
	select {
	case <-ctx.Done():
		return nil
	case <-u.opts.Cluster.Synced(): // decisions need the caches
	}
	if u.opts.runForTest != nil {
		u.opts.runForTest(ctx, u)
		return nil
	}
	c, err := runtimecontroller.NewUnmanaged("cloudpool-"+u.opts.Pool, runtimecontroller.Options{
		Reconciler: u, SkipNameValidation: new(true), MaxConcurrentReconciles: 1,
	})
	if err != nil {
		return err
	}
	var pool reconcile.Request // a single key: the pool's updates are carried out one after the other
	update := func(_ context.Context, up *v1alpha1.PoolUpdate) []reconcile.Request {
		if !u.isOwnUpdate(up) {
			return nil
		}
		u.notifyWaiters()
		return []reconcile.Request{pool}
	}
	retirement := func(context.Context, *v1alpha1.NodeRetirement) []reconcile.Request { return []reconcile.Request{pool} }
	for _, watch := range []source.Source{
		source.Kind(u.opts.Cluster.cache, &v1alpha1.PoolUpdate{}, handler.TypedEnqueueRequestsFromMapFunc(update)),
		source.Kind(u.opts.Cluster.cache, &v1alpha1.NodeRetirement{}, handler.TypedEnqueueRequestsFromMapFunc(retirement)),
		source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.Add(pool)
			return nil
		}),
	} {
		if err := c.Watch(watch); err != nil {
			return err
		}
	}
	return c.Start(ctx)
}

// leaseReleaseTimeout is the time that the release of the Lease may take at shutdown.
const leaseReleaseTimeout = 2 * time.Second

// contendForLease starts to compete for the pool's Lease. The returned function ends that and releases the Lease, so
// that another replica can take it at once.
func (u *Updater) contendForLease(ctx context.Context) (release func()) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var runs sync.WaitGroup
	u.lease.SetWanted(true, time.Time{})
	runs.Go(func() { u.lease.Run(ctx, func() {}) })
	return func() {
		u.lease.SetWanted(false, time.Time{})
		_ = wait.PollUntilContextTimeout(ctx, leaseReleaseTimeout/40, leaseReleaseTimeout, true, func(context.Context) (bool, error) { return u.lease.IsReleased(), nil })
		stop()
		runs.Wait()
	}
}

// notifyWaiters wakes the goroutines that wait for a change of an update.
func (u *Updater) notifyWaiters() {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.changed)
	u.changed = make(chan struct{})
}

// changeSignal returns a channel that is closed at the next change of an update.
func (u *Updater) changeSignal() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.changed
}
