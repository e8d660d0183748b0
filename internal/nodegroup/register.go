package nodegroup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// maxConcurrentGroups is how many groups are reconciled at once, so that a slow cloud blocks few other groups.
const maxConcurrentGroups = 4

// filePollInterval is the time between two reads of the groups of a file.
const filePollInterval = 5 * time.Second

// Register adds the controller to a manager, and uses its caches.
func (c *Controller) Register(m manager.Manager) error {
	file := make(chan event.TypedGenericEvent[*v1alpha1.NodeGroup])
	err := builder.ControllerManagedBy(m).
		Named("nodegroup").
		For(&v1alpha1.NodeGroup{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&v1alpha1.NodeGroup{}, handler.EnqueueRequestsFromMapFunc(c.requestsForOtherGroups), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.requestsForGroupsOfNode), builder.WithPredicates(c.newNodePredicate())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.requestsForGroupsOfPod), builder.WithPredicates(newPodPredicate())).
		Watches(&v1alpha1.NodeRetirement{}, handler.EnqueueRequestsFromMapFunc(c.requestsForGroupsOfRetirement), builder.WithPredicates(newRetirementPredicate())).
		WatchesRawSource(source.Channel(file, &handler.TypedEnqueueRequestForObject[*v1alpha1.NodeGroup]{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentGroups}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("controller of NodeGroups: %w", err)
	}
	return m.Add(&fileWatcher{groups: c.options.Groups, events: file})
}

func toRequests(names map[string]bool) []reconcile.Request {
	var all []reconcile.Request
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return all
}

// listGroups returns the groups. It returns none on an error, because they are reconciled at an interval anyway.
func (c *Controller) listGroups(ctx context.Context) []v1alpha1.NodeGroup {
	groups, err := c.options.Groups.List(ctx)
	if err != nil {
		return nil
	}
	return groups
}

// requestsForOtherGroups returns all other groups: a changed group may have taken or released nodes.
func (c *Controller) requestsForOtherGroups(ctx context.Context, o client.Object) []reconcile.Request {
	names := map[string]bool{}
	for _, g := range c.listGroups(ctx) {
		if g.Name != o.GetName() {
			names[g.Name] = true
		}
	}
	return toRequests(names)
}

// requestsForGroupsOfNode returns the groups that select a Node, and the group with marks on it, which may be deleted.
func (c *Controller) requestsForGroupsOfNode(ctx context.Context, o client.Object) []reconcile.Request {
	names := map[string]bool{}
	if marked := o.GetAnnotations()[annotationGroup]; marked != "" {
		names[marked] = true
	}
	for _, g := range c.listGroups(ctx) {
		if retirement.SelectsNode(&g, o.GetLabels()) {
			names[g.Name] = true
		}
	}
	return toRequests(names)
}

// requestsForGroupsOfPod returns the groups with a rule that selects the Pod. It also sees pods that come and go between two
// reconciles: their cooldown starts now. While no group has such a rule, it returns none. Rules are known before the
// pods of a group are read.
func (c *Controller) requestsForGroupsOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	if !c.hasPodRule.Load() {
		return nil
	}
	names := map[string]bool{}
	for _, g := range c.listGroups(ctx) {
		if rule, err := newIdleRule(&g); err == nil && rule != nil && rule.KeepsNode(o.GetNamespace(), labels.Set(o.GetLabels())) {
			names[g.Name] = true
		}
	}
	if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" && len(names) > 0 {
		c.recordKeepingPod(p.Spec.NodeName)
	}
	return toRequests(names)
}

// requestsForGroupsOfRetirement returns the group of a retirement.
func (c *Controller) requestsForGroupsOfRetirement(_ context.Context, o client.Object) []reconcile.Request {
	names := map[string]bool{}
	if rt, ok := o.(*v1alpha1.NodeRetirement); ok {
		if rt.Spec.Group != "" {
			names[rt.Spec.Group] = true
		}
		if captured := rt.Status.Captured; captured != nil && captured.Group != "" {
			names[captured.Group] = true
		}
	}
	return toRequests(names)
}

// newNodePredicate passes the changes that affect decisions, without heartbeats.
func (c *Controller) newNodePredicate() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc: func(e event.DeleteEvent) bool { c.forgetNode(e.Object.GetName()); return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			return !ok || !also || before.UID != after.UID || disruptionbudget.IsReady(before) != disruptionbudget.IsReady(after) ||
				before.Spec.Unschedulable != after.Spec.Unschedulable || !maps.Equal(before.Labels, after.Labels) ||
				!maps.Equal(before.Annotations, after.Annotations) || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
				(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil)
		},
	}
}

// newPodPredicate passes the changes that affect whether a Pod keeps a node.
func newPodPredicate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Pod)
			after, also := e.ObjectNew.(*corev1.Pod)
			return !ok || !also || before.UID != after.UID || before.Spec.NodeName != after.Spec.NodeName ||
				isUnfinished(before.Status.Phase) != isUnfinished(after.Status.Phase) || !maps.Equal(before.Labels, after.Labels) ||
				len(before.Spec.SchedulingGates) != len(after.Spec.SchedulingGates)
		},
	}
}

// newRetirementPredicate passes retirements that begin, are admitted, reach a phase or are deleted.
func newRetirementPredicate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.NodeRetirement)
			after, also := e.ObjectNew.(*v1alpha1.NodeRetirement)
			is := func(rt *v1alpha1.NodeRetirement) bool {
				return meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted)
			}
			return !ok || !also || before.Status.Phase != after.Status.Phase || is(before) != is(after) ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
		},
	}
}

// fileWatcher sends the groups of a file to the controller when they are added, changed or removed.
type fileWatcher struct {
	groups Groups
	events chan event.TypedGenericEvent[*v1alpha1.NodeGroup]
}

func (*fileWatcher) NeedLeaderElection() bool { return true }

func (f *fileWatcher) Start(ctx context.Context) error {
	known := map[string]v1alpha1.NodeGroup{}
	for {
		now := map[string]v1alpha1.NodeGroup{}
		groups, err := f.groups.List(ctx)
		for _, g := range groups {
			if isFromFile(&g) {
				now[g.Name] = g
			}
		}
		if err == nil {
			for name, g := range now {
				if was, there := known[name]; !there || !equality.Semantic.DeepEqual(was.Spec, g.Spec) {
					f.enqueue(ctx, name)
				}
			}
			for name := range known {
				if _, there := now[name]; !there {
					f.enqueue(ctx, name)
				}
			}
			known = now
		}
		if !elapsed.Sleep(ctx, filePollInterval) {
			return nil
		}
	}
}

func (f *fileWatcher) enqueue(ctx context.Context, name string) {
	g := &v1alpha1.NodeGroup{}
	g.Name = name
	select {
	case f.events <- event.TypedGenericEvent[*v1alpha1.NodeGroup]{Object: g}:
	case <-ctx.Done():
	}
}
