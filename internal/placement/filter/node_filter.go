package filter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/slipway-dev/slipway/internal/placement"
)

// NodeFilter holds the needs of a pod that depend only on the node object. All classes with the same node name,
// selector, affinity and tolerations share it. It caches its verdict on every node until that node changes.
type NodeFilter struct {
	Key                    string
	AffinityKey            string
	TolerationKey          string
	nodeName               string
	hasNodeSelector        bool // the pod has a node selector or required node affinity
	affinity               nodeaffinity.RequiredNodeAffinity
	tolerations            []corev1.Toleration
	toleratesUnschedulable bool
	nameConflict           *placement.Reason // why no node has a requested name
	verdicts               []filterVerdict
}

// filterVerdict says which filter on the node object fails first.
type filterVerdict uint8

const (
	notJudged filterVerdict = iota
	admitted
	otherNodeName
	unschedulableNode
	untoleratedTaint
	affinityMismatch
)

// EncodeNodeNeeds writes the needs that a NodeFilter reads from a pod. It returns the keys of the affinity and of the
// tolerations.
func EncodeNodeNeeds(e *KeyEncoder, nodeName string, spec *corev1.PodSpec) (affinityKey, tolerationKey string) {
	var affinity, tolerations KeyEncoder
	affinity.WriteLabels(spec.NodeSelector)
	affinity.writeNodeSelector(requiredNodeSelector(spec.Affinity))
	tolerations.writeTolerations(spec.Tolerations)
	affinityKey, tolerationKey = affinity.Key(), tolerations.Key()
	e.WriteText(nodeName)
	e.WriteText(affinityKey)
	e.WriteText(tolerationKey)
	return affinityKey, tolerationKey
}

// NewNodeFilter compiles the needs of a pod that depend only on the node object.
func NewNodeFilter(nodeName string, spec *corev1.PodSpec) *NodeFilter {
	required := requiredNodeSelector(spec.Affinity)
	var all KeyEncoder
	affinity, tolerations := EncodeNodeNeeds(&all, nodeName, spec)
	f := &NodeFilter{
		Key: all.Key(), AffinityKey: affinity, TolerationKey: tolerations, nodeName: nodeName,
		hasNodeSelector: len(spec.NodeSelector) > 0 || required != nil, tolerations: spec.Tolerations,
		nameConflict: findNodeNameConflict(nodeName, required),
	}
	f.affinity = nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: spec.NodeSelector, Affinity: spec.Affinity,
	}})
	f.toleratesUnschedulable = f.tolerates(&corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	})
	return f
}

// cachedVerdictOn returns the verdict on a node. It computes the verdict at most once per change of the node.
func (f *NodeFilter) cachedVerdictOn(n *Node) filterVerdict {
	for int(n.ID) >= len(f.verdicts) {
		f.verdicts = append(f.verdicts, notJudged)
	}
	if f.verdicts[n.ID] == notJudged {
		f.verdicts[n.ID] = f.computeVerdict(n)
	}
	return f.verdicts[n.ID]
}

// computeVerdict runs the filters on the node object in the scheduler's order.
func (f *NodeFilter) computeVerdict(n *Node) filterVerdict {
	switch {
	case !f.matchesName(n):
		return otherNodeName
	case !f.passesUnschedulable(n):
		return unschedulableNode
	case f.findUntoleratedTaint(n) != nil:
		return untoleratedTaint
	case !f.matchesAffinity(n):
		return affinityMismatch
	default:
		return admitted
	}
}

// ForgetNode drops the cached verdict on a node.
func (f *NodeFilter) ForgetNode(n int32) {
	if int(n) < len(f.verdicts) {
		f.verdicts[n] = notJudged
	}
}

func (f *NodeFilter) toReason(v filterVerdict, n *Node) placement.Reason {
	switch v {
	case unschedulableNode:
		return reasonUnschedulable
	case otherNodeName:
		return reasonNodeName
	case untoleratedTaint:
		return newTaintReason(f.findUntoleratedTaint(n))
	default:
		return reasonNodeAffinity
	}
}
