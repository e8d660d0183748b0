// Package controller carries out the updates of cloudpools: it writes each down, has machines retired one after the other, and says
// how it went.
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
	"github.com/slipway-dev/slipway/internal/slots"
)

// UpdaterOptions are what an Updater works with.
type UpdaterOptions struct {
	Pool    string
	Backend Backend
	Cluster *Cluster
	// Slots is who keeps the Leases; Namespace is where they and the record are, Holder who works on a pool.
	Slots             slots.API
	Namespace, Holder string
	// Policy is which nodes go first.
	Policy planner.Policy
	// AtOnce is how many machines may be on their way out at once, at least 1.
	AtOnce int
	// RemoveLastWorker removes also the last node of the cluster that is Ready and takes pods.
	RemoveLastWorker bool
	// SystemLocalStorage retires nodes also if pods of kube-system lose their local storage.
	SystemLocalStorage bool
	// Labels are put on every NodeRetirement.
	Labels  map[string]string
	Pace    Pace
	Metrics *Metrics
	Log     *slog.Logger

	run func(context.Context, *Updater) // in place of a controller, in tests
}

// Pace says how often is looked at what does not announce itself, and how long is waited for it.
type Pace struct {
	// Poll is the time between two looks at an update: 2 s. What happens to NodeRetirements is heard of at once.
	Poll time.Duration
	// Take is how long a cancelled retirement may take to restore its node: 8 s.
	Take time.Duration
	// Trouble is how long the backend, its cloud or the API server may fail during an update before the client is told.
	// The update continues: 1 minute.
	Trouble time.Duration
	// Settle is how long an update that has taken machines away waits until others can go: their pods may be on the way to
	// their new places: 1 minute.
	Settle time.Duration
	// Admission is how long a retirement may take to begin, as for a budget of its NodeGroup, before another machine is tried: 5 minutes.
	Admission time.Duration
	// Termination is how long an update waits for the termination of a machine without a node, and for a retirement that makes no
	// progress: 10 minutes. A drain has the time of its group before.
	Termination time.Duration
	// Registration is how long a machine that runs may take to register its node: 15 minutes.
	Registration time.Duration
}

func (p Pace) complete() Pace {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Poll: 2 * time.Second, &p.Take: 8 * time.Second, &p.Trouble: time.Minute, &p.Settle: time.Minute,
		&p.Admission: 5 * time.Minute, &p.Termination: 10 * time.Minute, &p.Registration: 15 * time.Minute,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Updater takes the updates of one pool, as PoolUpdates. It carries them out while it has the pool's Lease. Run has to be running.
type Updater struct {
	o    UpdaterOptions
	slot *slots.Keeper
	log  *slog.Logger
	// progress is of the update with the UID known. Only Reconcile uses it.
	progress progress
	known    types.UID

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a PoolUpdate may have changed
}

// NewUpdater returns an Updater. It fails if the pool's name does not fit into a label.
func NewUpdater(o UpdaterOptions) (*Updater, error) {
	o.Pace = o.Pace.complete()
	o.AtOnce = max(1, o.AtOnce)
	o.Policy = cmp.Or(o.Policy, planner.LeastDisruption)
	u := &Updater{o: o, log: o.Log.With("pool", o.Pool), changed: make(chan struct{})}
	var err error
	u.slot, err = slots.New(slots.Options{
		API: o.Slots, Namespace: o.Namespace, Holder: o.Holder, Limit: 1, Purpose: poolKey(o.Pool, "cloudpool-"), Log: u.log,
	})
	return u, err
}

// PoolLabel is the label of a PoolUpdate with the key of its pool.
const PoolLabel = "slipway.dev/pool"

// RecordName is a name for an object of a pool's.
func RecordName(pool string) string { return poolKey(pool, "slipway-cloudpool-") }

// poolKey is a pool's name as objects and labels may have it, with a prefix.
func poolKey(pool, prefix string) string {
	return prefix + strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(pool))
}

// Run works until ctx ends. The next process continues what is unfinished.
func (u *Updater) Run(ctx context.Context) error {
	defer u.lead(ctx)()
	select {
	case <-ctx.Done():
		return nil
	case <-u.o.Cluster.Read(): // nothing can be decided before
	}
	if u.o.run != nil {
		u.o.run(ctx, u)
		return nil
	}
	c, err := runtimecontroller.NewUnmanaged("cloudpool-"+u.o.Pool, runtimecontroller.Options{
		Reconciler: u, SkipNameValidation: new(true), MaxConcurrentReconciles: 1,
	})
	if err != nil {
		return err
	}
	var pool reconcile.Request // the only one: the pool's updates are carried out one after the other
	update := func(_ context.Context, up *v1alpha1.PoolUpdate) []reconcile.Request {
		if !u.isOwn(up) {
			return nil
		}
		u.notify()
		return []reconcile.Request{pool}
	}
	retirement := func(context.Context, *v1alpha1.NodeRetirement) []reconcile.Request { return []reconcile.Request{pool} }
	for _, watch := range []source.Source{
		source.Kind(u.o.Cluster.cache, &v1alpha1.PoolUpdate{}, handler.TypedEnqueueRequestsFromMapFunc(update)),
		source.Kind(u.o.Cluster.cache, &v1alpha1.NodeRetirement{}, handler.TypedEnqueueRequestsFromMapFunc(retirement)),
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

// giveBackWithin is how long giving the Lease back may take at the end.
const giveBackWithin = 2 * time.Second

// lead contends for the pool's Lease. The result gives it back, so that another replica has it at once.
func (u *Updater) lead(ctx context.Context) (end func()) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var runs sync.WaitGroup
	u.slot.Want(true, time.Time{})
	runs.Go(func() { u.slot.Run(ctx, func() {}) })
	return func() {
		u.slot.Want(false, time.Time{})
		_ = wait.PollUntilContextTimeout(ctx, giveBackWithin/40, giveBackWithin, true, func(context.Context) (bool, error) { return u.slot.GivenBack(), nil })
		stop()
		runs.Wait()
	}
}

// notify wakes those who wait for an update.
func (u *Updater) notify() {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.changed)
	u.changed = make(chan struct{})
}

func (u *Updater) wakes() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.changed
}
