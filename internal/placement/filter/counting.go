package filter

import (
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
)

// AdjustCountersForNamespace adds (sign 1) or removes (sign -1) all placed pods of a namespace in every counter.
func AdjustCountersForNamespace(ns *Namespace, sign int32) {
	for _, l := range ns.LabelSets {
		for _, p := range l.Pods {
			if p.Node != None {
				AdjustCountersForPod(p, p.Node, sign)
			}
		}
	}
}

// AdjustCountersForPod adds (sign 1) or removes (sign -1) a pod on a node in every counter.
func AdjustCountersForPod(p *Pod, nodeID, sign int32) {
	l := p.Class.Labels
	for _, a := range l.AffinityCounters {
		a.AdjustPodCount(nodeID, sign)
	}
	if !p.Terminating {
		for _, sp := range l.SpreadCounters {
			sp.AdjustPodCountIfEligible(nodeID, sign)
		}
	}
	for _, r := range p.Class.ExistingAntiAffinityCounters {
		r.AdjustPodCount(nodeID, sign)
	}
}

// AdjustCountersForNode adds (sign 1) or removes (sign -1) all pods of a node in every counter.
func AdjustCountersForNode(n *Node, sign int32) {
	for _, p := range n.Pods {
		AdjustCountersForPod(p, n.ID, sign)
	}
}

// NominatedSuffix is the suffix of a reason that holds only while other pods are nominated to the node.
const NominatedSuffix = " beside nominated pods"

// NeedsPodAffinityCheck reports whether the pod affinity filter runs: the class has terms, or a term of another pod concerns
// it. The scheduler decides this before it counts nominated pods.
func (c *PodClass) NeedsPodAffinityCheck() bool {
	return len(c.AffinityCounters)+len(c.AntiAffinityCounters) > 0 ||
		slices.ContainsFunc(c.Labels.ExistingAntiAffinityCounters, func(r *ExistingAntiAffinityCounter) bool { return r.total > 0 })
}

// AdjustCountersForNominatedPod applies (sign 1) or undoes (sign -1) how the scheduler counts a nominated pod differently from a
// placed pod:
//   - Topology spreading counts it even if it is terminating or the selector is empty.
//   - A ReadWriteOncePod claim counts only if an inline disk is checked too. It then counts by its name in any
//     namespace.
func AdjustCountersForNominatedPod(st *Storage, c *PodClass, nominated *Pod, n *Node, affinityChecked bool, sign int32) {
	l := nominated.Class.Labels
	for i := range c.SpreadConstraints {
		sp := c.SpreadConstraints[i].Counter
		seen := slices.ContainsFunc(c.SpreadConstraints[:i], func(t SpreadConstraint) bool { return t.Counter == sp })
		if !seen && l.Namespace == sp.namespace && (nominated.Terminating || sp.selector.Empty()) && sp.selector.Matches(l.Labels) {
			sp.AdjustPodCountIfEligible(n.ID, sign)
		}
	}
	if !affinityChecked {
		for _, r := range nominated.Class.ExistingAntiAffinityCounters {
			r.AdjustPodCount(n.ID, -sign)
		}
	}
	switch {
	case c.volumes == nil || nominated.Class.volumes == nil:
	case len(c.volumes.disks) == 0:
		st.AdjustClaimUserCounts(nominated, -sign)
	case l.Namespace != c.Labels.Namespace:
		for _, r := range nominated.Class.volumes.claims {
			if !r.ephemeral {
				st.adjustClaimUserCount(placement.PodKey{Namespace: c.Labels.Namespace.Name, Name: r.key.Name}, sign)
			}
		}
	}
}
