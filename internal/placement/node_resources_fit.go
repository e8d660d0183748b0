package placement

import (
	"fmt"
)

const fitPredicate = "NodeResourcesFit"

var reasonTooManyPods = Reason{fitPredicate, "too many pods", "Too many pods"}

// resourcesFit is the plugin NodeResourcesFit: room for one more pod, and for each of its requests.
func (c *class) resourcesFit(n *node) bool {
	if int64(len(n.pods)) >= n.maxPods {
		return false
	}
	for _, r := range c.requests {
		if r.value > at(n.allocatable, r.resource)-at(n.used, r.resource) {
			return false
		}
	}
	return true
}

// resourceReasons names everything that the node has too little of.
func (s *Snapshot) resourceReasons(c *class, n *node) []Reason {
	var reasons []Reason
	if int64(len(n.pods)) >= n.maxPods {
		reasons = append(reasons, reasonTooManyPods)
	}
	for _, r := range c.requests {
		if r.value > at(n.allocatable, r.resource)-at(n.used, r.resource) && !s.allocatedByDevice(n, r.resource) {
			name := string(s.resources.names[r.resource])
			reasons = append(reasons, Reason{fitPredicate, "insufficient " + name, "Insufficient " + name})
		}
	}
	return reasons
}

// allocatedByDevice reports whether a device class offers the resource and the node itself does not: the request is then
// met by dynamic resource allocation, or not at all.
func (s *Snapshot) allocatedByDevice(n *node, r int32) bool {
	if r < firstScalar || len(s.storage.deviceClasses) == 0 || at(n.allocatable, r) > 0 {
		return false
	}
	return s.storage.deviceClassFor(string(s.resources.names[r])) != ""
}

// deviceReasons names the requests that a device class would have to meet.
func (s *Snapshot) deviceReasons(c *class, n *node) []Reason {
	var reasons []Reason
	for _, r := range c.requests {
		if s.allocatedByDevice(n, r.resource) {
			name := string(s.resources.names[r.resource])
			text := fmt.Sprintf("%s is offered by device class %s", name, s.storage.deviceClassFor(name))
			reasons = append(reasons, Reason{Predicate: "DynamicResources", Text: text})
		}
	}
	return reasons
}

// meanAllocatable is the mean of a resource over the nodes that have any.
func (s *Snapshot) meanAllocatable(resource int32) float64 {
	if s.capacity == nil {
		sums := make([]float64, len(s.resources.names))
		having := make([]float64, len(s.resources.names))
		for _, n := range s.nodes {
			for r, value := range n.allocatable {
				if value > 0 && n.present {
					sums[r] += float64(value)
					having[r]++
				}
			}
		}
		for r := range sums {
			if having[r] > 0 {
				sums[r] /= having[r]
			}
		}
		s.capacity = sums
	}
	if int(resource) < len(s.capacity) {
		return s.capacity[resource]
	}
	return 0
}

// sizeOf weighs a class for placing large pods first: the largest share, in millionths, that its requests have of a mean
// node. What no node offers counts as a whole node.
func (s *Snapshot) sizeOf(c *class) int64 {
	var largest int64
	for _, a := range c.requests {
		share := 1e6
		if mean := s.meanAllocatable(a.resource); mean > 0 {
			share = float64(a.value) / mean * 1e6
		}
		largest = max(largest, int64(min(share, 1e15)))
	}
	return largest
}
