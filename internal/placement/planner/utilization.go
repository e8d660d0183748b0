package planner

import (
	"k8s.io/apimachinery/pkg/labels"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Utilization holds the requests of pods on a node and the allocatable amounts of the node. The function that returns it
// says which pods count.
type Utilization struct {
	Pods int
	// CPU is in millicores, Memory in bytes.
	CPU, AllocatableCPU       int64
	Memory, AllocatableMemory int64
}

// toPercent returns 0 if the whole is 0.
func toPercent(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// CPUPercent returns the requested part of the cpu in percent.
func (l Utilization) CPUPercent() float64 { return toPercent(l.CPU, l.AllocatableCPU) }

// MemoryPercent returns the requested part of the memory in percent.
func (l Utilization) MemoryPercent() float64 { return toPercent(l.Memory, l.AllocatableMemory) }

// MeasureWorkloadUtilization returns the load of a node from its workload pods. It ignores DaemonSet pods, static pods and
// terminating pods. If ignore is not nil, it also ignores pods with labels that ignore accepts. It fails if the
// node is unknown.
func MeasureWorkloadUtilization(s *snapshot.Snapshot, nodeName string, ignore func(labels.Set) bool) (Utilization, error) {
	n, err := s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return Utilization{}, err
	}
	l := newUtilization(n)
	for _, p := range n.Pods {
		f := p.Facts
		if f.Owner == podrules.OwnedByDaemonSet || f.HasFlag(podrules.Mirror) || f.HasFlag(podrules.Terminating) || ignore != nil && ignore(p.Class.Labels.Labels) {
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

// MeasureTotalUtilization returns the requests of all pods on a node, as kube-scheduler counts them. DaemonSet, static and
// terminating pods count, because they use resources until they are deleted. It fails if the node is unknown.
func MeasureTotalUtilization(s *snapshot.Snapshot, nodeName string) (Utilization, error) {
	n, err := s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return Utilization{}, err
	}
	l := newUtilization(n)
	l.Pods, l.CPU, l.Memory = len(n.Pods), filter.AmountAt(n.Used, filter.ResourceCPU), filter.AmountAt(n.Used, filter.ResourceMemory)
	return l, nil
}

func newUtilization(n *filter.Node) Utilization {
	return Utilization{AllocatableCPU: filter.AmountAt(n.Allocatable, filter.ResourceCPU), AllocatableMemory: filter.AmountAt(n.Allocatable, filter.ResourceMemory)}
}
