package placement

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const spreadPredicate = "PodTopologySpread"

var (
	reasonSpread = Reason{
		spreadPredicate, "topology spread would exceed its skew",
		"node(s) didn't match pod topology spread constraints",
	}
	reasonSpreadLabel = Reason{
		spreadPredicate, "node lacks a label that pods are spread over",
		"node(s) didn't match pod topology spread constraints (missing required label)",
	}
)

// compileSpread compiles the DoNotSchedule constraints; the others only rank nodes.
func (s *Snapshot) compileSpread(c *class, pod *corev1.Pod) {
	var hard []*corev1.TopologySpreadConstraint
	for i := range pod.Spec.TopologySpreadConstraints {
		if t := &pod.Spec.TopologySpreadConstraints[i]; t.WhenUnsatisfiable == corev1.DoNotSchedule {
			hard = append(hard, t)
		}
	}
	required := make([]*topologyKey, len(hard))
	for i, t := range hard {
		required[i] = s.internKey(t.TopologyKey)
	}
	for i, t := range hard {
		selector, key, err := spreadSelector(t, pod.Labels)
		if err != nil {
			c.refuse(spreadPredicate, "topology spread: "+err.Error(), "")
			return
		}
		e := s.internEligibility(required[i], required, c.filter,
			valueOr(t.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor,
			valueOr(t.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyHonor)
		constraint := spreadConstraint{
			spread: s.internSpread(e, c.labels.namespace, selector, key), maxSkew: t.MaxSkew,
			minDomains: valueOr(t.MinDomains, 1),
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			constraint.self = 1
		}
		c.spreads = append(c.spreads, constraint)
		constraint.spread.readers = append(constraint.spread.readers, c)
	}
}

// spreadSelector is the label selector of a constraint together with the values that the pod itself has for
// matchLabelKeys, and a key that stands for it.
func spreadSelector(t *corev1.TopologySpreadConstraint, own map[string]string) (labels.Selector, string, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, "", err
	}
	match := labels.Set{}
	for _, key := range t.MatchLabelKeys {
		if value, ok := own[key]; ok {
			match[key] = value
		}
	}
	var e encoder
	e.labelSelector(t.LabelSelector)
	e.labels(match)
	requirements, selectable := selector.Requirements()
	if len(match) > 0 && selectable {
		selector = labels.SelectorFromSet(match).Add(requirements...)
	}
	return selector, e.key(), nil
}

// spreadFits is the plugin PodTopologySpread: in every constraint, the pods of the node's domain, this one included, may
// exceed those of the emptiest domain by no more than maxSkew. With fewer domains than minDomains the emptiest counts
// as empty.
func (c *class) spreadFits(n int32) *Reason {
	for i := range c.spreads {
		t := &c.spreads[i]
		sp := t.spread
		d := sp.key.domainOf[n]
		if d == none {
			return &reasonSpreadLabel
		}
		least := sp.histogram.min
		if sp.eligibility.domains == 0 {
			least = math.MaxInt32
		}
		if sp.eligibility.domains < t.minDomains {
			least = 0
		}
		if int64(sp.in(d))+int64(t.self)-int64(least) > int64(t.maxSkew) {
			return &reasonSpread
		}
	}
	return nil
}
