package filter

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/placement"
)

const podAffinityPredicate = "InterPodAffinity"

var (
	reasonPodAffinity = placement.Reason{
		Predicate: podAffinityPredicate, Message: "pod affinity does not match",
		Scheduler: "node(s) didn't match pod affinity rules",
	}
	reasonPodAntiAffinity = placement.Reason{
		Predicate: podAffinityPredicate, Message: "pod anti-affinity does not match",
		Scheduler: "node(s) didn't match pod anti-affinity rules",
	}
	reasonExistingAntiAffinity = placement.Reason{
		Predicate: podAffinityPredicate, Message: "anti-affinity of an existing pod does not match",
		Scheduler: "node(s) didn't satisfy existing pods anti-affinity rules",
	}
)

// compileInterPodAffinity compiles the required terms. If any selector cannot be parsed, even in a preferred term, the
// scheduler refuses the pod. The terms of a placed pod count if all terms of their own list can be parsed.
func (c *PodClass) compileInterPodAffinity(pod *corev1.Pod, preferredSelectorError string, in Interner) {
	affinity, keys, err := internTermsAndKeys(in, pod.Namespace, requiredAffinityTerms(pod.Spec.Affinity))
	if err != nil {
		c.setRefusal(podAffinityPredicate, "pod affinity: "+err.Error(), "")
	}
	anti, antiKeys, err := internTermsAndKeys(in, pod.Namespace, requiredAntiAffinityTerms(pod.Spec.Affinity))
	if err != nil {
		c.setRefusal(podAffinityPredicate, "pod anti-affinity: "+err.Error(), "")
	}
	if preferredSelectorError != "" {
		c.setRefusal(podAffinityPredicate, preferredSelectorError, "")
	}
	c.ownLabelsMatch = len(affinity) > 0
	for i, t := range affinity {
		c.AffinityCounters = append(c.AffinityCounters, in.InternAffinityCounter(affinity, keys[i]))
		c.ownLabelsMatch = c.ownLabelsMatch && t.selector.Matches(c.Labels.Labels) && (t.FixedNamespaces == nil || t.includesNamespace(c.Labels.Namespace))
	}
	for i, t := range anti {
		c.AntiAffinityCounters = append(c.AntiAffinityCounters, in.InternAffinityCounter([]*PodTerm{t}, antiKeys[i]))
		c.ExistingAntiAffinityCounters = append(c.ExistingAntiAffinityCounters, in.InternExistingAntiAffinityCounter(t, antiKeys[i]))
	}
}

func internTermsAndKeys(in Interner, ns string, list []corev1.PodAffinityTerm) (terms []*PodTerm, topologyKeys []*TopologyKey, err error) {
	terms = make([]*PodTerm, 0, len(list))
	keys := make([]*TopologyKey, 0, len(list))
	for i := range list {
		t, err := in.InternPodTerm(ns, &list[i])
		if err != nil {
			return nil, nil, err
		}
		terms = append(terms, t)
		keys = append(keys, in.InternTopologyKey(list[i].TopologyKey))
	}
	return terms, keys, nil
}

func requiredAffinityTerms(a *corev1.Affinity) []corev1.PodAffinityTerm {
	if a == nil || a.PodAffinity == nil {
		return nil
	}
	return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func requiredAntiAffinityTerms(a *corev1.Affinity) []corev1.PodAffinityTerm {
	if a == nil || a.PodAntiAffinity == nil {
		return nil
	}
	return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// findPreferredSelectorError returns the first error in the selectors of preferred terms, or an empty string.
func findPreferredSelectorError(a *corev1.Affinity) string {
	if a == nil {
		return ""
	}
	with, apart := ptr.Deref(a.PodAffinity, corev1.PodAffinity{}), ptr.Deref(a.PodAntiAffinity, corev1.PodAntiAffinity{})
	for i, list := range [...][]corev1.WeightedPodAffinityTerm{
		with.PreferredDuringSchedulingIgnoredDuringExecution, apart.PreferredDuringSchedulingIgnoredDuringExecution,
	} {
		for j := range list {
			if err := validateSelectors(&list[j].PodAffinityTerm); err != nil {
				return fmt.Sprintf("preferred pod %s: %v", [...]string{"affinity", "anti-affinity"}[i], err)
			}
		}
	}
	return ""
}

func validateSelectors(t *corev1.PodAffinityTerm) error {
	if _, err := metav1.LabelSelectorAsSelector(t.LabelSelector); err != nil {
		return err
	}
	_, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	return err
}

// checkInterPodAffinity implements the plugin InterPodAffinity. It returns the reason for a refusal, or nil.
func (c *PodClass) checkInterPodAffinity(nodeID int32) *placement.Reason {
	if !c.satisfiesPodAffinity(nodeID) {
		return &reasonPodAffinity
	}
	for _, a := range c.AntiAffinityCounters {
		if d := a.Key.DomainOf[nodeID]; d != None && a.countInDomain(d) > 0 {
			return &reasonPodAntiAffinity
		}
	}
	for _, r := range c.Labels.ExistingAntiAffinityCounters {
		if r.total > 0 {
			if d := r.Key.DomainOf[nodeID]; d != None && r.countInDomain(d) > 0 {
				return &reasonExistingAntiAffinity
			}
		}
	}
	return nil
}

// satisfiesPodAffinity reports whether the node's domain has a matching pod for every term. The first pod of a group
// with affinity to itself may go to any node with all topology keys, if no pod matches anywhere.
func (c *PodClass) satisfiesPodAffinity(nodeID int32) bool {
	with, anywhere := true, false
	for _, a := range c.AffinityCounters {
		d := a.Key.DomainOf[nodeID]
		if d == None {
			return false
		}
		with = with && a.countInDomain(d) > 0
		anywhere = anywhere || a.total > 0
	}
	return with || !anywhere && c.affinitySelectsOwnPods()
}

// affinitySelectsOwnPods reports whether all affinity terms of the class select its own pods. A namespace selector is
// evaluated with the current labels of the namespace.
func (c *PodClass) affinitySelectsOwnPods() bool {
	if !c.ownLabelsMatch {
		return false
	}
	for _, t := range c.AffinityCounters[0].Terms {
		if t.FixedNamespaces == nil && !t.includesNamespace(c.Labels.Namespace) {
			return false
		}
	}
	return true
}
