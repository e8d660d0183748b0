package planner

import (
	"k8s.io/apimachinery/pkg/labels"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Load is what pods on a node request, and what the node has for them. Which pods those are is said by what returns it.
type Load struct {
	Pods int
	// CPU is in millicores, Memory in bytes; the allocatable amounts are those of the node.
	CPU, AllocatableCPU       int64
	Memory, AllocatableMemory int64
}

// toPercent is a part of a whole in percent; 0 of nothing.
func toPercent(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// CPUShare is the requested part of the cpu in percent.
func (l Load) CPUShare() float64 { return toPercent(l.CPU, l.AllocatableCPU) }

// MemoryShare is the requested part of the memory in percent.
func (l Load) MemoryShare() float64 { return toPercent(l.Memory, l.AllocatableMemory) }

// MeasureLoad says how much a node is used by the pods that are there for their own sake: not those of DaemonSets, not static
// ones, and not those that are on their way out. Pods whose labels are passed over do not count; nil passes over none.
func MeasureLoad(s *snapshot.Snapshot, nodeName string, passOver func(labels.Set) bool) (Load, error) {
	n, err := s.Nodes.Find(nodeName)
	if err != nil {
		return Load{}, err
	}
	l := newUtilization(n)
	for _, p := range n.Pods {
		f := p.Fact
		if f.Owner == podrules.DaemonSet || f.Has(podrules.Mirror) || f.Has(podrules.Terminating) || passOver != nil && passOver(p.Class.Labels.Labels) {
			continue
		}
		l.Pods++
		for _, a := range p.Class.Requests {
			switch a.Resource {
			case filter.ResourceCPU:
				l.CPU += a.Value
			case filter.ResourceMemory:
				l.Memory += a.Value
			}
		}
	}
	return l, nil
}

// MeasureRequests returns what all pods on a node request together, as kube-scheduler counts it: those of
// DaemonSets, static ones and terminating ones too, since they hold their room until they are gone.
func MeasureRequests(s *snapshot.Snapshot, nodeName string) (Load, error) {
	n, err := s.Nodes.Find(nodeName)
	if err != nil {
		return Load{}, err
	}
	l := newUtilization(n)
	l.Pods, l.CPU, l.Memory = len(n.Pods), filter.At(n.Used, filter.ResourceCPU), filter.At(n.Used, filter.ResourceMemory)
	return l, nil
}

// newUtilization returns a load without pods.
func newUtilization(n *filter.Node) Load {
	return Load{AllocatableCPU: filter.At(n.Allocatable, filter.ResourceCPU), AllocatableMemory: filter.At(n.Allocatable, filter.ResourceMemory)}
}
