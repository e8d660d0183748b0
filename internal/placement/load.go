package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Load is what pods on a node request, and what the node has for them. Which pods those are is said by what returns it.
type Load struct {
	Pods int
	// CPU is in millicores, Memory in bytes; the allocatable amounts are those of the node.
	CPU, AllocatableCPU       int64
	Memory, AllocatableMemory int64
}

// share is a part of a whole in percent; 0 of nothing.
func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// CPUShare is the requested part of the cpu in percent.
func (l Load) CPUShare() float64 { return share(l.CPU, l.AllocatableCPU) }

// MemoryShare is the requested part of the memory in percent.
func (l Load) MemoryShare() float64 { return share(l.Memory, l.AllocatableMemory) }

// Load says how much a node is used by the pods that are there for their own sake: not those of DaemonSets, not static
// ones, and not those that are on their way out. Pods whose labels are passed over do not count; nil passes over none.
func (s *Snapshot) Load(nodeName string, passOver func(labels.Set) bool) (Load, error) {
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return Load{}, err
	}
	l := Load{AllocatableCPU: at(n.allocatable, resourceCPU), AllocatableMemory: at(n.allocatable, resourceMemory)}
	for _, p := range n.pods {
		if fate, _ := (&Options{}).fate(p); fate == fateStays || passOver != nil && passOver(p.class.labels.labels) {
			continue
		}
		l.Pods++
		for _, a := range p.class.requests {
			switch s.resources.names[a.resource] {
			case corev1.ResourceCPU:
				l.CPU += a.value
			case corev1.ResourceMemory:
				l.Memory += a.value
			}
		}
	}
	return l, nil
}
