package placement

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const podAffinityPredicate = "InterPodAffinity"

var (
	reasonPodAffinity = Reason{
		podAffinityPredicate, "no pod it must be with is there",
		"node(s) didn't match pod affinity rules",
	}
	reasonPodAntiAffinity = Reason{
		podAffinityPredicate, "a pod it must not be with is there",
		"node(s) didn't match pod anti-affinity rules",
	}
	reasonRepelled = Reason{
		podAffinityPredicate, "a pod that is there must not be with it",
		"node(s) didn't satisfy existing pods anti-affinity rules",
	}
)

// compilePodAffinity compiles the required terms. A selector that cannot be parsed, even of a preferred term, makes the
// scheduler refuse the pod. Once it is placed, its terms count as far as their own list can be parsed.
func (s *Snapshot) compilePodAffinity(c *class, pod *corev1.Pod, preferred string) {
	affinity, keys, err := s.internTerms(pod.Namespace, affinityTerms(pod.Spec.Affinity))
	if err != nil {
		c.refuse(podAffinityPredicate, "pod affinity: "+err.Error(), "")
	}
	anti, antiKeys, err := s.internTerms(pod.Namespace, antiAffinityTerms(pod.Spec.Affinity))
	if err != nil {
		c.refuse(podAffinityPredicate, "pod anti-affinity: "+err.Error(), "")
	}
	if preferred != "" {
		c.refuse(podAffinityPredicate, preferred, "")
	}
	c.selfAffine = len(affinity) > 0
	for i, t := range affinity {
		c.affinity = append(c.affinity, s.internAttraction(affinity, keys[i]))
		c.affinity[i].readers = append(c.affinity[i].readers, c)
		c.selfAffine = c.selfAffine && t.selects(c.labels)
	}
	for i, t := range anti {
		c.antiAffinity = append(c.antiAffinity, s.internAttraction([]*podTerm{t}, antiKeys[i]))
		c.antiAffinity[i].readers = append(c.antiAffinity[i].readers, c)
		c.repulsions = append(c.repulsions, s.internRepulsion(t, antiKeys[i]))
	}
}

func (s *Snapshot) internTerms(ns string, list []corev1.PodAffinityTerm) ([]*podTerm, []*topologyKey, error) {
	terms := make([]*podTerm, 0, len(list))
	keys := make([]*topologyKey, 0, len(list))
	for i := range list {
		t, err := s.internTerm(ns, &list[i])
		if err != nil {
			return nil, nil, err
		}
		terms = append(terms, t)
		keys = append(keys, s.internKey(list[i].TopologyKey))
	}
	return terms, keys, nil
}

// preferredSelectorProblem says what is wrong with the selectors of preferred terms, if anything.
func preferredSelectorProblem(a *corev1.Affinity) string {
	if a == nil {
		return ""
	}
	var preferred []corev1.WeightedPodAffinityTerm
	if a.PodAffinity != nil {
		preferred = a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	for i := range preferred {
		if err := selectorProblem(&preferred[i].PodAffinityTerm); err != nil {
			return fmt.Sprintf("preferred pod affinity: %v", err)
		}
	}
	preferred = nil
	if a.PodAntiAffinity != nil {
		preferred = a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	for i := range preferred {
		if err := selectorProblem(&preferred[i].PodAffinityTerm); err != nil {
			return fmt.Sprintf("preferred pod anti-affinity: %v", err)
		}
	}
	return ""
}

func selectorProblem(t *corev1.PodAffinityTerm) error {
	if _, err := metav1.LabelSelectorAsSelector(t.LabelSelector); err != nil {
		return err
	}
	_, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	return err
}

// podAffinityFits is the plugin InterPodAffinity.
func (c *class) podAffinityFits(n int32) *Reason {
	if !c.affinityFits(n) {
		return &reasonPodAffinity
	}
	for _, a := range c.antiAffinity {
		if d := a.key.domainOf[n]; d != none && a.in(d) > 0 {
			return &reasonPodAntiAffinity
		}
	}
	for _, r := range c.labels.repulsions {
		if r.total > 0 {
			if d := r.key.domainOf[n]; d != none && r.in(d) > 0 {
				return &reasonRepelled
			}
		}
	}
	return nil
}

// affinityFits asks for a pod that all terms select in the node's domain of every term. The first pod of a group that
// wants to be with itself goes to any node that has all the keys, provided no pod is selected anywhere.
func (c *class) affinityFits(n int32) bool {
	with, anywhere := true, false
	for _, a := range c.affinity {
		d := a.key.domainOf[n]
		if d == none {
			return false
		}
		with = with && a.in(d) > 0
		anywhere = anywhere || a.total > 0
	}
	return with || !anywhere && c.selfAffine
}
