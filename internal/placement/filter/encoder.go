package filter

import (
	"encoding/binary"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// KeyEncoder writes the parts of a specification that scheduling reads into one unambiguous key. Each text is preceded
// by its length, each list by its count. Equal keys mean equal needs.
type KeyEncoder struct{ buf []byte }

// Reset empties the key.
func (e *KeyEncoder) Reset() { e.buf = e.buf[:0] }

// Bytes returns the key. It is valid until the next write.
func (e *KeyEncoder) Bytes() []byte { return e.buf }

// Key returns the key as text. Unlike the result of Bytes, it stays valid after the next write.
func (e *KeyEncoder) Key() string { return string(e.buf) }

// WriteCount writes the length of a list.
func (e *KeyEncoder) WriteCount(n int) { e.buf = binary.AppendUvarint(e.buf, uint64(n)) }

func (e *KeyEncoder) writeNumber(n int64) { e.buf = binary.AppendVarint(e.buf, n) }

// WriteText writes the length of a text in bytes, and the text.
func (e *KeyEncoder) WriteText(s string) {
	e.WriteCount(len(s))
	e.buf = append(e.buf, s...)
}

// WriteBool writes one byte: 1 for true, 0 for false.
func (e *KeyEncoder) WriteBool(b bool) {
	bit := byte(0)
	if b {
		bit = 1
	}
	e.buf = append(e.buf, bit)
}

// WriteTexts writes the length of a list, and each text in the given order.
func (e *KeyEncoder) WriteTexts(s []string) {
	e.WriteCount(len(s))
	for _, t := range s {
		e.WriteText(t)
	}
}

// WriteLabels writes a map in the order of its keys. It does not allocate for maps of up to 16 entries.
func (e *KeyEncoder) WriteLabels(m map[string]string) {
	var room [16]string
	keys := room[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	e.WriteCount(len(keys))
	for _, k := range keys {
		e.WriteText(k)
		e.WriteText(m[k])
	}
}

func (e *KeyEncoder) writeAmounts(list []Amount) {
	e.WriteCount(len(list))
	for _, a := range list {
		e.writeNumber(int64(a.Resource))
		e.writeNumber(a.Value)
	}
}

// WriteLabelSelector writes a selector, which may be nil.
func (e *KeyEncoder) WriteLabelSelector(s *metav1.LabelSelector) {
	e.WriteBool(s != nil)
	if s == nil {
		return
	}
	e.WriteLabels(s.MatchLabels)
	e.WriteCount(len(s.MatchExpressions))
	for i := range s.MatchExpressions {
		r := &s.MatchExpressions[i]
		e.WriteText(r.Key)
		e.WriteText(string(r.Operator))
		e.WriteTexts(r.Values)
	}
}

func (e *KeyEncoder) writeNodeSelector(s *corev1.NodeSelector) {
	e.WriteBool(s != nil)
	if s == nil {
		return
	}
	e.WriteCount(len(s.NodeSelectorTerms))
	for i := range s.NodeSelectorTerms {
		e.writeNodeRequirements(s.NodeSelectorTerms[i].MatchExpressions)
		e.writeNodeRequirements(s.NodeSelectorTerms[i].MatchFields)
	}
}

func (e *KeyEncoder) writeNodeRequirements(list []corev1.NodeSelectorRequirement) {
	e.WriteCount(len(list))
	for i := range list {
		e.WriteText(list[i].Key)
		e.WriteText(string(list[i].Operator))
		e.WriteTexts(list[i].Values)
	}
}

func (e *KeyEncoder) writeTolerations(list []corev1.Toleration) {
	e.WriteCount(len(list))
	for i := range list {
		e.WriteText(list[i].Key)
		e.WriteText(string(list[i].Operator))
		e.WriteText(list[i].Value)
		e.WriteText(string(list[i].Effect))
	}
}

func (e *KeyEncoder) writePodAffinityTerms(list []corev1.PodAffinityTerm) {
	e.WriteCount(len(list))
	for i := range list {
		t := &list[i]
		e.WriteText(t.TopologyKey)
		e.WriteTexts(t.Namespaces)
		e.WriteLabelSelector(t.LabelSelector)
		e.WriteLabelSelector(t.NamespaceSelector)
	}
}

func (e *KeyEncoder) writeHardSpreadConstraints(list []corev1.TopologySpreadConstraint) {
	hard := 0
	for i := range list {
		if list[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			hard++
		}
	}
	e.WriteCount(hard)
	for i := range list {
		c := &list[i]
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		e.WriteText(c.TopologyKey)
		e.writeNumber(int64(c.MaxSkew))
		e.writeNumber(int64(ptr.Deref(c.MinDomains, 1)))
		e.WriteText(string(ptr.Deref(c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor)))
		e.WriteText(string(ptr.Deref(c.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore)))
		e.WriteLabelSelector(c.LabelSelector)
		e.WriteTexts(c.MatchLabelKeys)
	}
}
