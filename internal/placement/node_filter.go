package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// nodeFilter is the part of a pod's needs that is judged by the node object alone, shared by all classes with the same
// node name, selector, affinity and tolerations. It remembers its verdict on every node until that node changes.
type nodeFilter struct {
	key                    string
	affinityKey            string
	tolerationKey          string
	nodeName               string
	selects                bool // the pod has a node selector or required node affinity
	affinity               nodeaffinity.RequiredNodeAffinity
	tolerations            []corev1.Toleration
	toleratesUnschedulable bool
	conflict               bool // the terms name nodes that exclude one another
	verdicts               []filterVerdict
}

// filterVerdict is the first predicate on the node object that fails.
type filterVerdict uint8

const (
	notJudged filterVerdict = iota
	admitted
	unschedulableNode
	otherNodeName
	untoleratedTaint
	affinityMismatch
)

// internFilter returns the shared filter of a pod.
func (s *Snapshot) internFilter(nodeName string, spec *corev1.PodSpec) *nodeFilter {
	var affinity, tolerations, all encoder
	required := requiredNodeSelector(spec.Affinity)
	affinity.labels(spec.NodeSelector)
	affinity.nodeSelector(required)
	tolerations.tolerations(spec.Tolerations)
	all.text(nodeName)
	all.text(affinity.key())
	all.text(tolerations.key())
	if f, ok := s.filters[string(all.buf)]; ok {
		return f
	}
	f := &nodeFilter{
		key: all.key(), affinityKey: affinity.key(), tolerationKey: tolerations.key(), nodeName: nodeName,
		selects: len(spec.NodeSelector) > 0 || required != nil, tolerations: spec.Tolerations,
		conflict: namesConflict(required),
	}
	f.affinity = nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: spec.NodeSelector, Affinity: spec.Affinity,
	}})
	f.toleratesUnschedulable = f.tolerates(&corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	})
	s.filters[f.key] = f
	return f
}

// on returns the verdict on a node, judging it at most once per change of the node.
func (f *nodeFilter) on(n *node) filterVerdict {
	for int(n.id) >= len(f.verdicts) {
		f.verdicts = append(f.verdicts, notJudged)
	}
	if f.verdicts[n.id] == notJudged {
		f.verdicts[n.id] = f.judge(n)
	}
	return f.verdicts[n.id]
}

// judge applies the predicates on the node object in the scheduler's order.
func (f *nodeFilter) judge(n *node) filterVerdict {
	switch {
	case !f.schedulable(n):
		return unschedulableNode
	case !f.matchesName(n):
		return otherNodeName
	case f.untolerated(n) != nil:
		return untoleratedTaint
	case !f.matchesAffinity(n):
		return affinityMismatch
	default:
		return admitted
	}
}

func (f *nodeFilter) forget(n int32) {
	if int(n) < len(f.verdicts) {
		f.verdicts[n] = notJudged
	}
}

// reason puts a verdict in words.
func (f *nodeFilter) reason(v filterVerdict, n *node) Reason {
	switch v {
	case unschedulableNode:
		return reasonUnschedulable
	case otherNodeName:
		return reasonNodeName
	case untoleratedTaint:
		return reasonTaint(f.untolerated(n))
	default:
		return reasonNodeAffinity
	}
}
