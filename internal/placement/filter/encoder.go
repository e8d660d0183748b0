package filter

import (
	"encoding/binary"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Encoder writes the parts of a specification that scheduling reads into one unambiguous key. Each text is preceded
// by its length, each list by its count. Equal keys mean equal needs.
type Encoder struct{ buf []byte }

// Reset empties the key.
func (e *Encoder) Reset() { e.buf = e.buf[:0] }

// Bytes returns the key. It is valid until the next write.
func (e *Encoder) Bytes() []byte { return e.buf }

func (e *Encoder) Key() string { return string(e.buf) }

// Count writes the length of a list.
func (e *Encoder) Count(n int) { e.buf = binary.AppendUvarint(e.buf, uint64(n)) }

func (e *Encoder) writeNumber(n int64) { e.buf = binary.AppendVarint(e.buf, n) }

func (e *Encoder) Text(s string) {
	e.Count(len(s))
	e.buf = append(e.buf, s...)
}

func (e *Encoder) Flag(b bool) {
	bit := byte(0)
	if b {
		bit = 1
	}
	e.buf = append(e.buf, bit)
}

func (e *Encoder) Texts(s []string) {
	e.Count(len(s))
	for _, t := range s {
		e.Text(t)
	}
}

// Labels writes a map in the order of its keys. It does not allocate for maps of up to 16 entries.
func (e *Encoder) Labels(m map[string]string) {
	var room [16]string
	keys := room[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	e.Count(len(keys))
	for _, k := range keys {
		e.Text(k)
		e.Text(m[k])
	}
}

func (e *Encoder) writeAmounts(list []Amount) {
	e.Count(len(list))
	for _, a := range list {
		e.writeNumber(int64(a.Resource))
		e.writeNumber(a.Value)
	}
}

// LabelSelector writes a selector, which may be nil.
func (e *Encoder) LabelSelector(s *metav1.LabelSelector) {
	e.Flag(s != nil)
	if s == nil {
		return
	}
	e.Labels(s.MatchLabels)
	e.Count(len(s.MatchExpressions))
	for i := range s.MatchExpressions {
		r := &s.MatchExpressions[i]
		e.Text(r.Key)
		e.Text(string(r.Operator))
		e.Texts(r.Values)
	}
}

func (e *Encoder) writeNodeSelector(s *corev1.NodeSelector) {
	e.Flag(s != nil)
	if s == nil {
		return
	}
	e.Count(len(s.NodeSelectorTerms))
	for i := range s.NodeSelectorTerms {
		e.writeNodeRequirements(s.NodeSelectorTerms[i].MatchExpressions)
		e.writeNodeRequirements(s.NodeSelectorTerms[i].MatchFields)
	}
}

func (e *Encoder) writeNodeRequirements(list []corev1.NodeSelectorRequirement) {
	e.Count(len(list))
	for i := range list {
		e.Text(list[i].Key)
		e.Text(string(list[i].Operator))
		e.Texts(list[i].Values)
	}
}

func (e *Encoder) writeTolerations(list []corev1.Toleration) {
	e.Count(len(list))
	for i := range list {
		e.Text(list[i].Key)
		e.Text(string(list[i].Operator))
		e.Text(list[i].Value)
		e.Text(string(list[i].Effect))
	}
}

func (e *Encoder) writePodAffinityTerms(list []corev1.PodAffinityTerm) {
	e.Count(len(list))
	for i := range list {
		t := &list[i]
		e.Text(t.TopologyKey)
		e.Texts(t.Namespaces)
		e.LabelSelector(t.LabelSelector)
		e.LabelSelector(t.NamespaceSelector)
	}
}

func (e *Encoder) writeSpreadConstraints(list []corev1.TopologySpreadConstraint) {
	hard := 0
	for i := range list {
		if list[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			hard++
		}
	}
	e.Count(hard)
	for i := range list {
		c := &list[i]
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		e.Text(c.TopologyKey)
		e.writeNumber(int64(c.MaxSkew))
		e.writeNumber(int64(ptr.Deref(c.MinDomains, 1)))
		e.Text(string(ptr.Deref(c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor)))
		e.Text(string(ptr.Deref(c.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore)))
		e.LabelSelector(c.LabelSelector)
		e.Texts(c.MatchLabelKeys)
	}
}
