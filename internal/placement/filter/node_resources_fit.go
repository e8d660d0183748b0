package filter

import "github.com/slipway-dev/slipway/internal/placement"

const fitPredicate = "NodeResourcesFit"

var reasonTooManyPods = placement.Reason{Predicate: fitPredicate, Message: "too many pods", Scheduler: "Too many pods"}

// fitsResourcesAndPodLimit implements the plugin NodeResourcesFit: the node has room for one more pod and for each of its
// requests.
func (c *PodClass) fitsResourcesAndPodLimit(n *Node) bool {
	if int64(len(n.Pods)) >= n.maxPods {
		return false
	}
	for _, r := range c.Requests {
		if r.Value > AmountAt(n.Allocatable, r.Resource)-AmountAt(n.Used, r.Resource) {
			return false
		}
	}
	return true
}

// listInsufficientResourceReasons returns a reason for each resource that the node has too little of.
func (h *Chain) listInsufficientResourceReasons(c *PodClass, n *Node) []placement.Reason {
	var reasons []placement.Reason
	if int64(len(n.Pods)) >= n.maxPods {
		reasons = append(reasons, reasonTooManyPods)
	}
	for _, r := range c.Requests {
		if r.Value > AmountAt(n.Allocatable, r.Resource)-AmountAt(n.Used, r.Resource) && !h.isOfferedOnlyByDeviceClass(n, r.Resource) {
			name := string(h.Resources.names[r.Resource])
			reasons = append(reasons, placement.Reason{Predicate: fitPredicate, Message: "insufficient " + name, Scheduler: "Insufficient " + name})
		}
	}
	return reasons
}
