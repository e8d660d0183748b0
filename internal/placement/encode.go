package placement

import (
	"encoding/binary"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// encoder writes the parts of a specification that scheduling reads into one unambiguous key: every text is preceded by
// its length, every list by its count. Equal keys mean equal needs.
type encoder struct{ buf []byte }

func (e *encoder) reset()         { e.buf = e.buf[:0] }
func (e *encoder) number(n int64) { e.buf = binary.AppendVarint(e.buf, n) }
func (e *encoder) count(n int)    { e.buf = binary.AppendUvarint(e.buf, uint64(n)) }
func (e *encoder) key() string    { return string(e.buf) }

func (e *encoder) text(s string) {
	e.count(len(s))
	e.buf = append(e.buf, s...)
}

func (e *encoder) flag(b bool) {
	bit := byte(0)
	if b {
		bit = 1
	}
	e.buf = append(e.buf, bit)
}

func (e *encoder) texts(s []string) {
	e.count(len(s))
	for _, t := range s {
		e.text(t)
	}
}

// labels writes a map in the order of its keys, without allocating for maps of up to 16 entries.
func (e *encoder) labels(m map[string]string) {
	var room [16]string
	keys := room[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	e.count(len(keys))
	for _, k := range keys {
		e.text(k)
		e.text(m[k])
	}
}

func (e *encoder) amounts(list []amount) {
	e.count(len(list))
	for _, a := range list {
		e.number(int64(a.resource))
		e.number(a.value)
	}
}

func (e *encoder) labelSelector(s *metav1.LabelSelector) {
	e.flag(s != nil)
	if s == nil {
		return
	}
	e.labels(s.MatchLabels)
	e.count(len(s.MatchExpressions))
	for i := range s.MatchExpressions {
		r := &s.MatchExpressions[i]
		e.text(r.Key)
		e.text(string(r.Operator))
		e.texts(r.Values)
	}
}

func (e *encoder) nodeSelector(s *corev1.NodeSelector) {
	e.flag(s != nil)
	if s == nil {
		return
	}
	e.count(len(s.NodeSelectorTerms))
	for i := range s.NodeSelectorTerms {
		e.nodeRequirements(s.NodeSelectorTerms[i].MatchExpressions)
		e.nodeRequirements(s.NodeSelectorTerms[i].MatchFields)
	}
}

func (e *encoder) nodeRequirements(list []corev1.NodeSelectorRequirement) {
	e.count(len(list))
	for i := range list {
		e.text(list[i].Key)
		e.text(string(list[i].Operator))
		e.texts(list[i].Values)
	}
}

func (e *encoder) tolerations(list []corev1.Toleration) {
	e.count(len(list))
	for i := range list {
		e.text(list[i].Key)
		e.text(string(list[i].Operator))
		e.text(list[i].Value)
		e.text(string(list[i].Effect))
	}
}

func (e *encoder) podAffinityTerms(list []corev1.PodAffinityTerm) {
	e.count(len(list))
	for i := range list {
		t := &list[i]
		e.text(t.TopologyKey)
		e.texts(t.Namespaces)
		e.labelSelector(t.LabelSelector)
		e.labelSelector(t.NamespaceSelector)
	}
}

func (e *encoder) spreadConstraints(list []corev1.TopologySpreadConstraint) {
	hard := 0
	for i := range list {
		if list[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			hard++
		}
	}
	e.count(hard)
	for i := range list {
		c := &list[i]
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		e.text(c.TopologyKey)
		e.number(int64(c.MaxSkew))
		e.number(int64(valueOr(c.MinDomains, 1)))
		e.text(string(valueOr(c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor)))
		e.text(string(valueOr(c.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore)))
		e.labelSelector(c.LabelSelector)
		e.texts(c.MatchLabelKeys)
	}
}

// valueOr returns what p points to, or the default that the API gives to an absent field.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
