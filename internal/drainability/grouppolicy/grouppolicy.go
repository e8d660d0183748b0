// Package grouppolicy derives the pod policy and the pod selection of a NodeGroup from its spec.
package grouppolicy

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
)

// NewPodPolicy returns the pod policy for a drain of the group's nodes. For a node without a group, g is nil. If
// override is true, the policy evicts protected pods too.
func NewPodPolicy(g *v1alpha1.NodeGroup, evictProtected bool) podrules.Policy {
	policy := podrules.VoluntaryPolicy()
	var d v1alpha1.DrainPolicy
	if g != nil {
		d = g.Spec.Drain
	}
	if d.DeleteLocalStorage {
		policy = policy.WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)
	}
	if d.EvictUnmanaged {
		policy = policy.WithAction(podrules.RuleUnmanaged, podrules.Evict)
	}
	if evictProtected || d.Protection == v1alpha1.EvictProtected {
		policy = policy.WithAction(podrules.RuleProtected, podrules.Evict)
	}
	return policy
}

// PodSelection selects the pods that the fields of a group name. The zero PodSelection selects none.
type PodSelection struct {
	// Placeholders selects the placeholder pods.
	Placeholders labels.Selector
	// NodeKeepingPods selects the pods that keep a node from being idle, in Namespaces. No Namespaces means all.
	NodeKeepingPods labels.Selector
	Namespaces      []string
	// SystemLocalStorage allows to lose the node-local data of kube-system pods.
	SystemLocalStorage bool
}

// NewPlaceholderSelection returns the selection of a group's placeholder pods. The error names the group and the field.
func NewPlaceholderSelection(g *v1alpha1.NodeGroup) (PodSelection, error) {
	none := PodSelection{Placeholders: labels.Nothing()}
	if g == nil {
		return none, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(g.Spec.Drain.PlaceholderPods)
	if err != nil {
		return none, fmt.Errorf("NodeGroup %s: spec.drain.placeholderPods: %w", g.Name, err)
	}
	if selector.Empty() {
		return none, nil
	}
	return PodSelection{Placeholders: selector}, nil
}

// NewIdleSelection returns the selection of the group's placeholder pods. If the group has the idle rule, the selection
// also has the pods that keep a node from being idle.
func NewIdleSelection(g *v1alpha1.NodeGroup) (PodSelection, error) {
	s, err := NewPlaceholderSelection(g)
	if err != nil || g == nil || g.Spec.ScaleDown == nil || g.Spec.ScaleDown.IdleByLabel == nil {
		return s, err
	}
	rule := g.Spec.ScaleDown.IdleByLabel
	s.Namespaces = rule.Namespaces
	if s.NodeKeepingPods, err = metav1.LabelSelectorAsSelector(&rule.PodSelector); err != nil {
		err = fmt.Errorf("NodeGroup %s: spec.scaleDown.idleByLabel.podSelector: %w", g.Name, err)
	}
	return s, err
}

// IsPlaceholder reports whether a pod is a placeholder pod.
func (s *PodSelection) IsPlaceholder(set labels.Labels) bool {
	return s.Placeholders != nil && s.Placeholders.Matches(set)
}

// KeepsNode reports whether a pod keeps its node from being idle, provided that the pod has not finished. A placeholder
// pod does not.
func (s *PodSelection) KeepsNode(namespace string, set labels.Labels) bool {
	return s.NodeKeepingPods != nil && (len(s.Namespaces) == 0 || slices.Contains(s.Namespaces, namespace)) &&
		s.NodeKeepingPods.Matches(set) && !s.IsPlaceholder(set)
}

// AddFacts sets the facts that depend on the group: whether the pod is a placeholder pod, and whether it keeps its node
// from being idle.
func (s *PodSelection) AddFacts(f *podrules.Facts, namespace string, set labels.Set) {
	if s.IsPlaceholder(set) {
		f.Flags |= podrules.Placeholder
	}
	if s.KeepsNode(namespace, set) && !f.HasFlag(podrules.Finished) {
		f.Flags |= podrules.KeepsNode
	}
	if s.SystemLocalStorage && namespace == metav1.NamespaceSystem {
		f.WaiveLocalStorage()
	}
}
