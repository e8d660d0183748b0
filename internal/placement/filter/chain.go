// Package filter evaluates one pod against one node, like the filters of kube-scheduler. Each file holds one filter
// and has the name of the scheduler's plugin. Chain runs the filters in the scheduler's order.
//
// Pods with the same scheduling needs share one Class, which holds everything compiled from their specification. Pods
// that a selector matches are counted per topology domain. Only package snapshot writes the fields of a Class or a
// Node.
package filter

import "github.com/slipway-dev/slipway/internal/placement"

// Chain runs the filters of the scheduler's default profile in their order.
type Chain struct {
	Storage   *Storage
	Resources *ResourceTable
}

// RunFilters runs the filters on a node in the order of the scheduler's default profile. Like the scheduler, it stops at
// the first filter that refuses. A filter that cannot decide counts only if no later filter refuses.
func (h *Chain) RunFilters(c *PodClass, n *Node) placement.Verdict {
	if v := c.Filter.cachedVerdictOn(n); v != admitted {
		return newBlockedVerdict(c.Filter.toReason(v, n))
	}
	if !c.areHostPortsFree(n) {
		return newBlockedVerdict(reasonPorts)
	}
	if !c.fitsResourcesAndPodLimit(n) {
		if reasons := h.listInsufficientResourceReasons(c, n); len(reasons) > 0 {
			return newBlockedVerdict(reasons...)
		}
	}
	undecided := append(h.listDeviceClassReasons(c, n), c.undecidable...)
	if c.volumes != nil {
		refused, open := h.runVolumeFilters(c, n)
		if len(refused) > 0 {
			return newBlockedVerdict(refused...)
		}
		undecided = append(undecided, open...)
	}
	if r := c.checkTopologySpread(n.ID); r != nil {
		return newBlockedVerdict(*r)
	}
	if r := c.checkInterPodAffinity(n.ID); r != nil {
		return newBlockedVerdict(*r)
	}
	if !c.nodeHasNeededFeatures(n) {
		return newBlockedVerdict(reasonFeatures)
	}
	if len(undecided) > 0 {
		return placement.Verdict{Outcome: placement.Undecidable, Reasons: undecided}
	}
	return placement.Verdict{Outcome: placement.Fits}
}

func newBlockedVerdict(reasons ...placement.Reason) placement.Verdict {
	return placement.Verdict{Outcome: placement.Blocked, Reasons: reasons}
}

// PreFilterRefusal returns the reason why the scheduler's PreFilter rejects the pod for every node, or nil. The cause is the
// pod itself, or the claims that it names.
func (h *Chain) PreFilterRefusal(c *PodClass) *placement.Reason {
	if c.preFilterRefusal != nil && c.preFilterRefusal.Predicate == gatesPredicate {
		return c.preFilterRefusal
	}
	if c.Filter.nameConflict != nil {
		return c.Filter.nameConflict
	}
	if c.volumes != nil {
		if r := c.volumes.currentView(h.Storage).refusal; r != nil {
			return r
		}
	}
	return c.preFilterRefusal
}

func (h *Chain) runVolumeFilters(c *PodClass, n *Node) (refused, undecided []placement.Reason) {
	if r := h.checkVolumeRestrictions(c, n); r != nil {
		return []placement.Reason{*r}, nil
	}
	r, open := h.checkVolumeLimits(c, n)
	if r != nil {
		return []placement.Reason{*r}, nil
	}
	if open != nil {
		undecided = append(undecided, *open)
	}
	refused, open = h.checkVolumeBinding(c, n)
	if len(refused) > 0 {
		return refused, nil
	}
	if open != nil {
		undecided = append(undecided, *open)
	}
	if r := h.checkVolumeZone(c, n); r != nil {
		return []placement.Reason{*r}, nil
	}
	return nil, undecided
}

// IsPlaceable reports whether pods of a class can fit on any node at all.
func (h *Chain) IsPlaceable(c *PodClass) bool {
	return len(c.undecidable) == 0 && h.PreFilterRefusal(c) == nil
}

// HasRoomOn runs the filters that can only get worse when a node gains pods: the filters on the node object, resources
// and ports.
func (c *PodClass) HasRoomOn(n *Node) bool {
	return !n.RemovedByPlan && !n.ClosedByPlan && n.Present && c.Filter.cachedVerdictOn(n) == admitted && c.fitsResourcesAndPodLimit(n) && c.areHostPortsFree(n)
}
