// Package retirement takes one node out of service for good: cordoned, drained, its Node object deleted, its machine
// deleted, each verified.
//
// A NodeRetirement is the record of it, and all there is to be remembered: every walk through the steps (steps.go) reads
// the record and the world anew, does what is due, writes down how far it came, and stops at the first step that is not
// done. A step writes down that it begins before it does what cannot be told from the world afterwards, and can be done
// twice. So a process that ends at any instruction is continued by the next (invariant I8).
//
// The Node object goes before the machine, so that no pod is bound to a machine that is about to go, and the record
// outlives both, so that a machine is not forgotten between the two.
//
// The record and the Node are read from caches. What cannot be taken back is asked for only after a write, or a read past the
// caches, that has confirmed them, and an absence in a cache or an error is never taken for an absence (I7).
package retirement

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// API is what the package asks of the API server past all caches. *kubeapi.Client is one.
type API interface {
	cordon.API
	drain.API
	drain.VolumeAPI
	ListPodsOn(ctx context.Context, node string) ([]kubeapi.Pod, error)
	DeleteNode(ctx context.Context, name, uid, resourceVersion string) (gone bool, err error)
}

// Groups gives the NodeGroups that are in force.
type Groups interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Options are what a Controller works with. All fields but Pace and Selector are required.
type Options struct {
	// Client writes, and reads NodeRetirements and Nodes from caches.
	Client client.Client
	// Live reads past the caches.
	Live   client.Reader
	API    API
	Groups Groups
	// Selector is which groups this process looks at, and says of whether they are accepted; nil is all.
	Selector labels.Selector
	// Clouds are the providers by name.
	Clouds  map[string]cloud.Provider
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger
	// TTL is how long the record of a retirement that is over is kept where it does not say itself; 0 is not at all.
	TTL  time.Duration
	Pace Pace
	// SystemLocalStorage lets pods of kube-system with an emptyDir be evicted, also where the group's drain.deleteLocalStorage
	// does not.
	SystemLocalStorage bool
}

// Pace says how often is looked at what does not announce itself. Zero values are replaced by the defaults.
type Pace struct {
	// Poll is the pause between two looks at a drain, a Node or a budget: 10 s. What happens to NodeRetirements and Nodes
	// is heard of at once.
	Poll time.Duration
	// Cloud is the pause between two looks at a machine, unless its cloud wants another: 5 s.
	Cloud time.Duration
	// Retry is the pause before a deletion that failed is asked for again: 10 s, doubled each time up to 5 minutes.
	Retry time.Duration
	// Release is how long the pods of a machine that is gone may take to be released before the Node is deleted
	// regardless, which releases them all: 2 minutes.
	Release time.Duration
}

const (
	longestRetry   = 5 * time.Minute
	defaultTimeout = time.Hour // of a drain; the CRD has the same
)

func (p Pace) complete() Pace {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Poll: 10 * time.Second, &p.Cloud: 5 * time.Second, &p.Retry: 10 * time.Second, &p.Release: 2 * time.Minute,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Finalizer keeps the record of a retirement that is under way.
const Finalizer = "slipway.dev/retirement"

// Owner is the name under which a retirement holds its node; see package cordon.
func Owner(rt *v1alpha1.NodeRetirement) string { return ownerPrefix + string(rt.UID) }

const ownerPrefix = "retirement-"

// Controller walks NodeRetirements through their steps. Reconcile may be called concurrently for different ones.
type Controller struct {
	o       Options
	events  announcer
	drains  *drains
	known   *knowledge
	nodes   *instances.Nodes
	records *records
	slots   *cloud.Slots
	// admission lets one retirement at a time reserve its room, so that each sees those before it (I5).
	admission sync.Mutex
}

// New returns a controller. Register adds it to a manager.
func New(o Options) *Controller {
	o.Pace = o.Pace.complete()
	return &Controller{
		o: o, events: announcer{o.Events}, drains: newDrains(), known: newKnowledge(), nodes: instances.NewNodes(o.Live), records: &records{live: o.Live},
		slots: slotsOf(o.Clouds),
	}
}

// slotsOf shares the workers between the providers. Retirements without a known provider have a share too: a cloud that hangs may be behind
// all of them. One provider alone has all workers.
func slotsOf(clouds map[string]cloud.Provider) *cloud.Slots {
	shares := maps.Clone(clouds)
	if len(shares) > 1 {
		shares[""] = nil
	}
	return cloud.NewSlots(atOnce, shares)
}

// Reconcile walks one retirement as far as it comes, once its provider has a free slot. It reads the record from the cache: one that
// is older than what this process has written is not acted on, and a write of an outdated one is a conflict.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	rt := &v1alpha1.NodeRetirement{}
	switch err := c.o.Client.Get(ctx, r.NamespacedName, rt); {
	case apierrors.IsNotFound(err):
		return c.forget(ctx, r)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("NodeRetirement %s: %w", r.Name, err)
	}
	if !rt.Status.Phase.Finished() {
		provider, err := c.providerOf(ctx, rt)
		if err != nil {
			return reconcile.Result{}, err
		}
		release, ok := c.slots.TryAcquire(provider)
		if !ok {
			return reconcile.Result{RequeueAfter: cloud.SlotBusy}, nil
		}
		defer release()
	}
	if !c.known.read(rt) {
		return reconcile.Result{RequeueAfter: c.pauseBehind(rt)}, nil
	}
	p := c.passage(rt)
	switch {
	case rt.Status.Phase.Finished():
		return c.collect(ctx, rt)
	case !rt.DeletionTimestamp.IsZero():
		return p.callOff(ctx)
	case len(givingBack(rt)) > 0: // what was decided stands
		return p.end(ctx, givingBack(rt))
	}
	return p.walk(ctx)
}

// forget drops what is known of a record that the cache does not have, once the API server says that there is none (I5).
func (c *Controller) forget(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	switch err := c.o.Live.Get(ctx, r.NamespacedName, &v1alpha1.NodeRetirement{}); {
	case apierrors.IsNotFound(err):
		c.drains.stop(r.Name)
		c.known.forget(r.Name)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("NodeRetirement %s: %w", r.Name, err)
	}
	return reconcile.Result{RequeueAfter: freshLook}, nil // the cache will have it
}

// providerOf is the name of the cloud of a retirement's instance, also before that is captured if the retirement names its group; empty if
// it is not known.
func (c *Controller) providerOf(ctx context.Context, rt *v1alpha1.NodeRetirement) (string, error) {
	if rt.Status.Captured != nil {
		return rt.Status.Captured.Provider, nil
	}
	groups, err := c.o.Groups.List(ctx)
	if err != nil {
		return "", err
	}
	for i := range groups {
		if groups[i].Name == rt.Spec.Group {
			return groups[i].Spec.Cloud.Provider, nil
		}
	}
	return "", nil
}

// pauseBehind is when to look again at a record that the API server gives in an older version than before: soon, since one
// that lags behind catches up. One that does not has been set back, and that is said once.
func (c *Controller) pauseBehind(rt *v1alpha1.NodeRetirement) time.Duration {
	pause := freshLook << min(c.known.behind(rt.Name), 20)
	if pause < c.o.Pace.Poll {
		return pause
	}
	if c.known.warn(rt.Name) {
		c.o.Log.Warn("the API server gives an older version of the NodeRetirement than it did before, and nothing is done about it: "+
			"restart the manager if etcd was restored from a backup", "retirement", rt.Name, "version", rt.ResourceVersion)
	}
	return c.o.Pace.Poll
}

// collect lets go of a retirement that is over, and deletes its record in time: not before the machine in the place of its own
// has come, or there is to be none, nor while its node is left alone since it has failed, or its notice stands.
func (c *Controller) collect(ctx context.Context, rt *v1alpha1.NodeRetirement) (reconcile.Result, error) {
	c.drains.stop(rt.Name)
	if !rt.DeletionTimestamp.IsZero() && EndedBy(rt) == CalledOff {
		if stands, err := c.stands(ctx, rt); err != nil || stands {
			return reconcile.Result{RequeueAfter: c.o.Pace.Poll}, err
		}
	}
	if err := c.letGo(ctx, rt); err != nil || !rt.DeletionTimestamp.IsZero() {
		return again(err)
	}
	keep := c.o.TTL
	if rt.Spec.TTLAfterFinished != nil {
		keep = rt.Spec.TTLAfterFinished.Duration
	}
	if rt.Status.Times.Finished != nil {
		keep -= time.Since(rt.Status.Times.Finished.Time)
	}
	if keep > 0 {
		return reconcile.Result{RequeueAfter: keep}, nil
	}
	left, waits, err := c.owed(ctx, rt)
	if err != nil {
		return reconcile.Result{}, err
	}
	pause, err := c.cooling(ctx, rt)
	if err != nil {
		return reconcile.Result{}, err
	}
	stands, err := c.stands(ctx, rt)
	if err != nil {
		return reconcile.Result{}, err
	}
	if stands && !waits {
		left = longestRetry
	}
	if left = max(left, pause); left > 0 {
		return reconcile.Result{RequeueAfter: min(left, longestRetry)}, nil // its group may be deleted meanwhile
	}
	err = c.o.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID, ResourceVersion: &rt.ResourceVersion})
	if err == nil && waits {
		c.o.Log.Warn("the machine in the place of one that is gone has not come, and is not waited for any more", "retirement", rt.Name,
			"node", rt.Spec.NodeName, "group", rt.Spec.Group)
		c.events.replacementGivenUp(rt)
	}
	return again(client.IgnoreNotFound(err))
}

// again makes a conflict, which only asks for a fresh look, no failure.
func again(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: freshLook}, nil
	}
	return reconcile.Result{}, err
}

const freshLook = 50 * time.Millisecond
