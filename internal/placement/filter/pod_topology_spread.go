package filter

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/placement"
)

const spreadPredicate = "PodTopologySpread"

var (
	reasonSkew = placement.Reason{
		Predicate: spreadPredicate, Message: "topology spread would exceed maxSkew",
		Scheduler: "node(s) didn't match pod topology spread constraints",
	}
	reasonSpreadLabel = placement.Reason{
		Predicate: spreadPredicate, Message: "node lacks the label of a topology spread constraint",
		Scheduler: "node(s) didn't match pod topology spread constraints (missing required label)",
	}
)

// SpreadConstraint is one DoNotSchedule constraint of a class.
type SpreadConstraint struct {
	Counter    *SpreadCounter
	maxSkew    int32
	minDomains int32
	selfMatch  int32 // 1 if the pod matches its own selector
}

// compileTopologySpread compiles the DoNotSchedule constraints. The other constraints only rank nodes.
func (c *PodClass) compileTopologySpread(pod *corev1.Pod, in Interner) {
	var hard []*corev1.TopologySpreadConstraint
	for i := range pod.Spec.TopologySpreadConstraints {
		if t := &pod.Spec.TopologySpreadConstraints[i]; t.WhenUnsatisfiable == corev1.DoNotSchedule {
			hard = append(hard, t)
		}
	}
	required := make([]*TopologyKey, len(hard))
	for i, t := range hard {
		required[i] = in.InternTopologyKey(t.TopologyKey)
	}
	for i, t := range hard {
		selector, key, err := buildSpreadSelector(t, pod.Labels)
		if err != nil {
			c.setRefusal(spreadPredicate, "topology spread: "+err.Error(), "")
			return
		}
		e := in.InternEligibleNodes(required[i], required, c.Filter,
			ptr.Deref(t.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor,
			ptr.Deref(t.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyHonor)
		constraint := SpreadConstraint{
			Counter: in.InternSpreadCounter(e, c.Labels.Namespace, selector, key), maxSkew: t.MaxSkew,
			minDomains: ptr.Deref(t.MinDomains, 1),
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			constraint.selfMatch = 1
		}
		c.SpreadConstraints = append(c.SpreadConstraints, constraint)
	}
}

// buildSpreadSelector returns the label selector of a constraint with the pod's own values for matchLabelKeys, and a
// key that identifies this selector.
func buildSpreadSelector(t *corev1.TopologySpreadConstraint, podLabels map[string]string) (selector labels.Selector, key string, err error) {
	selector, err = metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, "", err
	}
	match := labels.Set{}
	for _, labelKey := range t.MatchLabelKeys {
		if value, ok := podLabels[labelKey]; ok {
			match[labelKey] = value
		}
	}
	var e KeyEncoder
	e.WriteLabelSelector(t.LabelSelector)
	e.WriteLabels(match)
	requirements, selectable := selector.Requirements()
	if len(match) > 0 && selectable {
		selector = labels.SelectorFromSet(match).Add(requirements...)
	}
	return selector, e.Key(), nil
}

// checkTopologySpread implements the plugin PodTopologySpread. In each constraint, the node's domain with the new pod
// may exceed the smallest domain by at most maxSkew pods. If there are fewer domains than minDomains, the smallest
// count is 0.
func (c *PodClass) checkTopologySpread(nodeID int32) *placement.Reason {
	for i := range c.SpreadConstraints {
		t := &c.SpreadConstraints[i]
		sp := t.Counter
		d := sp.Key.DomainOf[nodeID]
		if d == None {
			return &reasonSpreadLabel
		}
		least := sp.histogram.min
		if sp.EligibleNodes.domains == 0 {
			least = math.MaxInt32
		}
		if sp.EligibleNodes.domains < t.minDomains {
			least = 0
		}
		if int64(sp.countInDomain(d))+int64(t.selfMatch)-int64(least) > int64(t.maxSkew) {
			return &reasonSkew
		}
	}
	return nil
}
