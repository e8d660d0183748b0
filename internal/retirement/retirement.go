// Package retirement retires one node: it cordons and drains the node, deletes the Node object, and deletes the
// instance. Each step is verified.
//
// A NodeRetirement is the only record of the progress. Each reconcile runs the steps (steps.go) from the start. It
// reads the record and the cluster, does what is due, saves the progress, and stops at the first step that is not done.
// Before a change that cannot be observed later, the step saves that it starts. Every step can be repeated. So if a
// process ends at any instruction, the next process continues the retirement (invariant I8).
//
// The Node object is deleted before the instance: no pod may be bound to an instance in deletion. The record exists until
// both are deleted. So the instance is not forgotten after the deletion of its Node.
//
// Records and Nodes are read from caches. A request that cannot be undone is sent only after a write or an uncached read
// has shown that it is still right. A missing object in a cache, or an error, never counts as absence (invariant I7).
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
	"github.com/slipway-dev/slipway/internal/surge"
)

// API is the part of the API server that the package uses without caches. *kubeapi.Client implements it.
type API interface {
	cordon.API
	drain.API
	drain.VolumeAPI
	ListPodsOnNode(ctx context.Context, node string) ([]kubeapi.Pod, error)
	DeleteNode(ctx context.Context, name, uid, resourceVersion string) (gone bool, err error)
}

// GroupLister lists the valid NodeGroups.
type GroupLister interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Options configures a Controller. All fields but EvictionRequests, Intervals, Selector and NewSurger are required.
type Options struct {
	// Client writes. It reads NodeRetirements and Nodes from caches.
	Client client.Client
	// LiveReader reads from the API server.
	LiveReader client.Reader
	API        API
	// EvictionRequests asks the responders of a pod before its eviction; nil asks none.
	EvictionRequests drain.EvictionRequestAPI
	Groups           GroupLister
	// Selector selects the groups that this process observes and accepts, and the NodeRetirements in the cache of Client;
	// nil is all.
	Selector labels.Selector
	// Clouds has the providers by name.
	Clouds  map[string]cloud.Provider
	Events  events.EventRecorder
	Metrics *Metrics
	// NewSurger returns the Surger of a drain with a surge mode that is not Off. nil means that no pod surges.
	NewSurger func(surge.Mode) drain.Surger
	Log       *slog.Logger
	// TTL is how long the record of a finished retirement is kept, unless its spec sets that. 0 deletes it at once.
	TTL       time.Duration
	Intervals Intervals
	// SystemLocalStorage allows the eviction of kube-system pods with an emptyDir, also if the group's
	// drain.deleteLocalStorage does not.
	SystemLocalStorage bool
}

// Intervals configures polling periods. Zero values mean the defaults.
type Intervals struct {
	// Poll is the period for drains, Nodes and disruption budgets: 10 s. Changes of NodeRetirements and Nodes are
	// watched.
	Poll time.Duration
	// CloudPoll is the period for instances, unless the cloud requests another: 5 s.
	CloudPoll time.Duration
	// DeletionRetry is the pause before a failed deletion is repeated: 10 s, doubled each time up to 5 minutes.
	DeletionRetry time.Duration
	// PodRelease is how long the pods of an instance that is gone may take to be deleted: 2 minutes. After that the Node
	// is deleted, which deletes them all.
	PodRelease time.Duration
}

const (
	maxRetryPause       = 5 * time.Minute
	defaultDrainTimeout = time.Hour // of a drain; same as in the CRD
)

func (p Intervals) withDefaults() Intervals {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Poll: 10 * time.Second, &p.CloudPoll: 5 * time.Second, &p.DeletionRetry: 10 * time.Second, &p.PodRelease: 2 * time.Minute,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Finalizer is the finalizer that prevents the deletion of a NodeRetirement before it is finished.
const Finalizer = "slipway.dev/retirement"

// CordonOwner returns the owner of the retirement's cordon claim; see package cordon.
func CordonOwner(rt *v1alpha1.NodeRetirement) string { return ownerPrefix + string(rt.UID) }

const ownerPrefix = "retirement-"

// Controller runs NodeRetirements through their steps. Reconcile may run concurrently for different ones.
type Controller struct {
	options          Options
	events           eventRecorder
	drains           *drainRegistry
	expectations     *expectations
	nodes            *instances.NodeReader
	retirementReader *retirementReader
	providerSlots    *cloud.WorkerLimiter
	// admissionLock serializes reservations, so that each one counts those before it (I5).
	admissionLock sync.Mutex
}

// New returns a controller. Register adds it to a manager.
func New(o Options) *Controller {
	o.Intervals = o.Intervals.withDefaults()
	return &Controller{
		options: o, events: eventRecorder{o.Events}, drains: newDrainRegistry(o.Metrics), expectations: newExpectations(), nodes: instances.NewNodeReader(o.LiveReader), retirementReader: &retirementReader{reader: o.LiveReader},
		providerSlots: newProviderSlots(o.Clouds),
	}
}

// newProviderSlots returns a limiter that divides the workers among the cloud providers. A single provider gets all
// workers. Retirements with an unknown provider have their own share, because any of them may wait for a cloud that
// hangs.
func newProviderSlots(clouds map[string]cloud.Provider) *cloud.WorkerLimiter {
	shares := maps.Clone(clouds)
	if len(shares) > 1 {
		shares[""] = nil
	}
	return cloud.NewWorkerLimiter(maxConcurrentReconciles, shares)
}

// Reconcile runs the steps of one retirement until one is not done. It first waits for a free worker of the
// retirement's provider. It reads the NodeRetirement from the cache. If this is older than the last write of this
// process, it does nothing. If another client has changed the NodeRetirement, a write fails with a conflict.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	rt := &v1alpha1.NodeRetirement{}
	switch err := c.options.Client.Get(ctx, r.NamespacedName, rt); {
	case apierrors.IsNotFound(err):
		return c.forgetIfGone(ctx, r)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("NodeRetirement %s: %w", r.Name, err)
	}
	if !rt.Status.Phase.IsFinal() {
		provider, err := c.findProviderName(ctx, rt)
		if err != nil {
			return reconcile.Result{}, err
		}
		release, ok := c.providerSlots.TryAcquire(provider)
		if !ok {
			return reconcile.Result{RequeueAfter: cloud.WorkerRetryDelay}, nil
		}
		defer release()
	}
	if !c.expectations.recordReadUnlessStale(rt) {
		return reconcile.Result{RequeueAfter: c.countStaleReadAndPause(rt)}, nil
	}
	p := c.newScope(rt)
	switch {
	case rt.Status.Phase.IsFinal():
		return c.deleteAfterRetention(ctx, rt)
	case !rt.DeletionTimestamp.IsZero():
		return p.cancelOrContinue(ctx)
	case len(pendingRestoreReasons(rt)) > 0: // an earlier decision to restore is final
		return p.endEarly(ctx, pendingRestoreReasons(rt))
	}
	return p.runSteps(ctx)
}

// forgetIfGone ends the drain of a NodeRetirement that is missing in the cache, and drops what this process knows about it.
// Before that, the API server must confirm that it is deleted, or that it belongs to another manager by its labels
// (invariant I5).
func (c *Controller) forgetIfGone(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	live := &v1alpha1.NodeRetirement{}
	switch err := c.options.LiveReader.Get(ctx, r.NamespacedName, live); {
	case apierrors.IsNotFound(err), err == nil && c.options.Selector != nil && !c.options.Selector.Matches(labels.Set(live.Labels)):
		c.drains.stopAndWait(r.Name)
		c.expectations.forgetRetirement(r.Name)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("NodeRetirement %s: %w", r.Name, err)
	}
	return reconcile.Result{RequeueAfter: requeueSoon}, nil // the cache will get it
}

// findProviderName returns the name of the retirement's cloud. Before the capture it is the cloud of the group that the
// spec names. It returns "" if the cloud is not known.
func (c *Controller) findProviderName(ctx context.Context, rt *v1alpha1.NodeRetirement) (string, error) {
	if rt.Status.Captured != nil {
		return rt.Status.Captured.Provider, nil
	}
	groups, err := c.options.Groups.List(ctx)
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

// countStaleReadAndPause returns the pause before a NodeRetirement is read again, after a read that was older than an
// earlier one. An API server that lags behind catches up soon. If it does not, etcd was probably restored from a
// backup, and a warning is logged once.
func (c *Controller) countStaleReadAndPause(rt *v1alpha1.NodeRetirement) (pause time.Duration) {
	pause = requeueSoon << min(c.expectations.countStaleRead(rt.Name), 20)
	if pause < c.options.Intervals.Poll {
		return pause
	}
	if c.expectations.markStaleWarned(rt.Name) {
		c.options.Log.Warn("the API server returns an older version of the NodeRetirement than before, which is ignored: "+
			"restart the manager if etcd was restored from a backup", "retirement", rt.Name, "version", rt.ResourceVersion)
	}
	return c.options.Intervals.Poll
}

// deleteAfterRetention removes the finalizer of a finished NodeRetirement, and deletes the NodeRetirement after its
// time to live. It waits longer while a replacement is open, during the cooldown after a failure, or while the notice
// is on the Node.
func (c *Controller) deleteAfterRetention(ctx context.Context, rt *v1alpha1.NodeRetirement) (reconcile.Result, error) {
	c.drains.stopAndWait(rt.Name)
	if !rt.DeletionTimestamp.IsZero() && EarlyEndCode(rt) == Cancelled {
		if stands, err := c.isNoticeOnNode(ctx, rt); err != nil || stands {
			return reconcile.Result{RequeueAfter: c.options.Intervals.Poll}, err
		}
	}
	if err := c.removeFinalizer(ctx, rt); err != nil || !rt.DeletionTimestamp.IsZero() {
		return requeueOnConflict(err)
	}
	keep := c.options.TTL
	if rt.Spec.TTLAfterFinished != nil {
		keep = rt.Spec.TTLAfterFinished.Duration
	}
	if rt.Status.Times.Finished != nil {
		keep -= time.Since(rt.Status.Times.Finished.Time)
	}
	if keep > 0 {
		return reconcile.Result{RequeueAfter: keep}, nil
	}
	left, waits, err := c.replacementRetention(ctx, rt)
	if err != nil {
		return reconcile.Result{}, err
	}
	pause, err := c.cooldownRetention(ctx, rt)
	if err != nil {
		return reconcile.Result{}, err
	}
	stands, err := c.isNoticeOnNode(ctx, rt)
	if err != nil {
		return reconcile.Result{}, err
	}
	if stands && !waits {
		left = maxRetryPause
	}
	if left = max(left, pause); left > 0 {
		return reconcile.Result{RequeueAfter: min(left, maxRetryPause)}, nil // its group may be deleted meanwhile
	}
	err = c.options.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID, ResourceVersion: &rt.ResourceVersion})
	if err == nil && waits {
		c.options.Log.Warn("the replacement has not joined: no longer waiting for it", "retirement", rt.Name,
			"node", rt.Spec.NodeName, "group", rt.Spec.Group)
		c.events.recordReplacementAbandoned(rt)
	}
	return requeueOnConflict(client.IgnoreNotFound(err))
}

// requeueOnConflict turns a conflict into a requeue, because the reconcile only has to read the object again.
func requeueOnConflict(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: requeueSoon}, nil
	}
	return reconcile.Result{}, err
}

const requeueSoon = 50 * time.Millisecond
