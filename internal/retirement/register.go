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
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// maxConcurrentReconciles limits the reconciles that run at the same time. A reconcile takes a few requests and does
// not block.
const maxConcurrentReconciles = 16

// Register adds the controller to a manager and uses its caches.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	err := m.GetFieldIndexer().IndexField(ctx, &v1alpha1.NodeRetirement{}, NodeNameField, func(o client.Object) []string {
		return []string{o.(*v1alpha1.NodeRetirement).Spec.NodeName}
	})
	if err != nil {
		return fmt.Errorf("indexing NodeRetirements by node: %w", err)
	}
	if err := m.Add(manager.RunnableFunc(c.drains.waitForLastDrains)); err != nil {
		return fmt.Errorf("waiting for drains at the end: %w", err)
	}
	ended := handler.TypedEnqueueRequestForObject[*v1alpha1.NodeRetirement]{}
	return builder.ControllerManagedBy(m).
		Named("retirement").
		For(&v1alpha1.NodeRetirement{}, builder.WithPredicates(foreignRetirementChangePredicate())).
		Watches(&v1alpha1.NodeRetirement{}, handler.EnqueueRequestsFromMapFunc(c.requestsForPendingInGroup),
			builder.WithPredicates(budgetFreedPredicate())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.requestsForUnfinishedOnNode), builder.WithPredicates(relevantNodeChangePredicate())).
		WatchesRawSource(source.Channel(c.drains.endedRuns, &ended)).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles, RateLimiter: newRateLimiter()}).
		Complete(c)
}

func (c *Controller) requestsForUnfinishedOnNode(ctx context.Context, o client.Object) []reconcile.Request {
	var all v1alpha1.NodeRetirementList
	if err := c.options.Client.List(ctx, &all, client.MatchingFields{NodeNameField: o.GetName()}); err != nil {
		return nil // a later reconcile handles them
	}
	return toRequests(all.Items, func(rt *v1alpha1.NodeRetirement) bool { return !rt.Status.Phase.IsFinal() })
}

// requestsForPendingInGroup returns a request for each pending retirement of the group, after a retirement has
// finished. It may use the disruption budget that is free now.
func (c *Controller) requestsForPendingInGroup(ctx context.Context, o client.Object) []reconcile.Request {
	finished, ok := o.(*v1alpha1.NodeRetirement)
	if !ok || finished.Status.Captured == nil {
		return nil
	}
	var all v1alpha1.NodeRetirementList
	if err := c.options.Client.List(ctx, &all); err != nil {
		return nil
	}
	return toRequests(all.Items, func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Phase == v1alpha1.Pending && rt.Status.Captured != nil &&
			rt.Status.Captured.Group == finished.Status.Captured.Group
	})
}

func toRequests(all []v1alpha1.NodeRetirement, wanted func(*v1alpha1.NodeRetirement) bool) []reconcile.Request {
	var found []reconcile.Request
	for i := range all {
		if wanted(&all[i]) {
			found = append(found, reconcile.Request{NamespacedName: types.NamespacedName{Name: all[i].Name}})
		}
	}
	return found
}

// minFailurePause and maxFailurePause are the limits of the pause after a failed reconcile. The pause doubles with each
// failure. The maximum is short, so that an instance is deleted soon after an outage ends.
const (
	minFailurePause = 50 * time.Millisecond
	maxFailurePause = time.Minute
)

func newRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minFailurePause, maxFailurePause)
}

// foreignRetirementChangePredicate passes changes of a NodeRetirement by other clients, but not status writes of this process.
// These would start the next reconcile at once, despite the requested pause and the cloud's Retry-After. It also passes
// a finished NodeRetirement when its replacement is settled.
func foreignRetirementChangePredicate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld, e.ObjectNew
			was, ok := before.(*v1alpha1.NodeRetirement)
			is, also := after.(*v1alpha1.NodeRetirement)
			return ok && also && isAwaitingReplacement(was) && !isAwaitingReplacement(is) ||
				before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
				before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
				controllerutil.ContainsFinalizer(before, Finalizer) && !controllerutil.ContainsFinalizer(after, Finalizer)
		},
	}
}

// budgetFreedPredicate returns a filter for changes of a NodeRetirement. It passes the change that frees the group's
// disruption budgets from its node.
func budgetFreedPredicate() predicate.Predicate {
	counted := func(o client.Object) bool {
		rt, ok := o.(*v1alpha1.NodeRetirement)
		return ok && WillRemoveNode(rt) && rt.Status.Phase != v1alpha1.NodeDeleted && rt.Status.Phase != v1alpha1.InstanceDeleted
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return counted(e.ObjectOld) && !counted(e.ObjectNew) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return counted(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// relevantNodeChangePredicate returns a filter for changes of a Node. It passes the changes that can affect a
// retirement, and drops others such as heartbeats.
func relevantNodeChangePredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return true },
		DeleteFunc: func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			return !ok || !also || before.UID != after.UID || disruptionbudget.IsReady(before) != disruptionbudget.IsReady(after) ||
				before.Spec.Unschedulable != after.Spec.Unschedulable || protectingAnnotation(before) != protectingAnnotation(after) ||
				!slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, func(a, b corev1.Taint) bool {
					return equality.Semantic.DeepEqual(a, b)
				})
		},
	}
}

func protectingAnnotation(n *corev1.Node) string {
	return FindProtectingAnnotation(n.Annotations, n.CreationTimestamp.Time, time.Now())
}
