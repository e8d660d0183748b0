package retirement

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// atOnce is how many retirements are walked at the same time. A walk takes a few requests, and waits in no step.
const atOnce = 16

// Register adds the controller to a manager, whose caches it uses.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	err := m.GetFieldIndexer().IndexField(ctx, &v1alpha1.NodeRetirement{}, NodeNameField, func(o client.Object) []string {
		return []string{o.(*v1alpha1.NodeRetirement).Spec.NodeName}
	})
	if err != nil {
		return fmt.Errorf("indexing NodeRetirements by node: %w", err)
	}
	ended := handler.TypedEnqueueRequestForObject[*v1alpha1.NodeRetirement]{}
	return builder.ControllerManagedBy(m).
		Named("retirement").
		For(&v1alpha1.NodeRetirement{}, builder.WithPredicates(recordMatters())).
		Watches(&v1alpha1.NodeRetirement{}, handler.EnqueueRequestsFromMapFunc(c.waitingFor),
			builder.WithPredicates(roomMade())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.of), builder.WithPredicates(nodeMatters())).
		WatchesRawSource(source.Channel(c.drains.ended, &ended)).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce, RateLimiter: afterFailures()}).
		Complete(c)
}

// of finds the retirements of a node.
func (c *Controller) of(ctx context.Context, o client.Object) []reconcile.Request {
	var all v1alpha1.NodeRetirementList
	if err := c.o.Client.List(ctx, &all, client.MatchingFields{NodeNameField: o.GetName()}); err != nil {
		return nil // they are looked at again anyway
	}
	return requests(all.Items, func(rt *v1alpha1.NodeRetirement) bool { return !rt.Status.Phase.Finished() })
}

// waitingFor finds the retirements that wait for a budget, of which one that is over has given some back.
func (c *Controller) waitingFor(ctx context.Context, o client.Object) []reconcile.Request {
	over, ok := o.(*v1alpha1.NodeRetirement)
	if !ok || over.Status.Captured == nil {
		return nil
	}
	var all v1alpha1.NodeRetirementList
	if err := c.o.Client.List(ctx, &all); err != nil {
		return nil
	}
	return requests(all.Items, func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Phase == v1alpha1.Pending && rt.Status.Captured != nil &&
			rt.Status.Captured.Group == over.Status.Captured.Group
	})
}

func requests(all []v1alpha1.NodeRetirement, wanted func(*v1alpha1.NodeRetirement) bool) []reconcile.Request {
	var found []reconcile.Request
	for i := range all {
		if wanted(&all[i]) {
			found = append(found, reconcile.Request{NamespacedName: types.NamespacedName{Name: all[i].Name}})
		}
	}
	return found
}

// The pauses after walks that have failed: doubled each time. The longest is short enough that a machine is not left waiting,
// and paid for, long after a cloud or an API server has come back.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Minute
)

func afterFailures() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstPause, longestPause)
}

// recordMatters passes what others do to a record, and not what is written down of a walk: that would have the next walk
// begin at once, whatever the walk has asked for and the cloud wants (Retry-After). One that is over is kept for its
// replacement, and not any longer.
func recordMatters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld, e.ObjectNew
			was, ok := before.(*v1alpha1.NodeRetirement)
			is, also := after.(*v1alpha1.NodeRetirement)
			return ok && also && awaitsReplacement(was) && !awaitsReplacement(is) ||
				before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
				before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
				controllerutil.ContainsFinalizer(before, Finalizer) && !controllerutil.ContainsFinalizer(after, Finalizer)
		},
	}
}

// roomMade passes retirements whose node has stopped to count against the group's budgets.
func roomMade() predicate.Predicate {
	counted := func(o client.Object) bool {
		rt, ok := o.(*v1alpha1.NodeRetirement)
		return ok && Leaving(rt) && rt.Status.Phase != v1alpha1.NodeDeleted && rt.Status.Phase != v1alpha1.InstanceDeleted
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return counted(e.ObjectOld) && !counted(e.ObjectNew) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return counted(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// nodeMatters passes what a retirement decides on, and not the heartbeats.
func nodeMatters() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return true },
		DeleteFunc: func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			return !ok || !also || before.UID != after.UID || budget.Ready(before) != budget.Ready(after) ||
				before.Spec.Unschedulable != after.Spec.Unschedulable || heldBy(before) != heldBy(after) ||
				!slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, func(a, b corev1.Taint) bool {
					return equality.Semantic.DeepEqual(a, b)
				})
		},
	}
}

func heldBy(n *corev1.Node) string {
	return HeldBy(n.Annotations, n.CreationTimestamp.Time, time.Now())
}
