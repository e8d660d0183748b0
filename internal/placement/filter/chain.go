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
func (h *Chain) RunFilters(c *Class, n *Node) placement.Verdict {
	if v := c.Filter.verdictOn(n); v != admitted {
		return newBlockedVerdict(c.Filter.toReason(v, n))
	}
	if !c.areHostPortsFree(n) {
		return newBlockedVerdict(reasonPorts)
	}
	if !c.fitsResources(n) {
		if reasons := h.listResourceReasons(c, n); len(reasons) > 0 {
			return newBlockedVerdict(reasons...)
		}
	}
	undecided := append(h.listDeviceReasons(c, n), c.undecidable...)
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
	if r := c.checkPodAffinity(n.ID); r != nil {
		return newBlockedVerdict(*r)
	}
	if !c.hasNeededFeatures(n) {
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
func (h *Chain) PreFilterRefusal(c *Class) *placement.Reason {
	if c.preFilterRefusal != nil && c.preFilterRefusal.Predicate == gatesPredicate {
		return c.preFilterRefusal
	}
	if c.Filter.nameConflict != nil {
		return c.Filter.nameConflict
	}
	if c.volumes != nil {
		if r := c.volumes.resolveView(h.Storage).refusal; r != nil {
			return r
		}
	}
	return c.preFilterRefusal
}

func (h *Chain) runVolumeFilters(c *Class, n *Node) (refused, undecided []placement.Reason) {
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
func (h *Chain) IsPlaceable(c *Class) bool {
	return len(c.undecidable) == 0 && h.PreFilterRefusal(c) == nil
}

// HasRoomOn runs the filters that can only get worse when a node gains pods: those on the node object, resources and ports.
func (c *Class) HasRoomOn(n *Node) bool {
	return !n.RemovedByPlan && n.Present && c.Filter.verdictOn(n) == admitted && c.fitsResources(n) && c.areHostPortsFree(n)
}
