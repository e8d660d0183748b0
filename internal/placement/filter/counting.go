package filter

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/placement"
)

// CountPlaced adds (sign 1) or removes (sign -1) all placed pods of a namespace in every counter.
func CountPlaced(ns *Namespace, sign int32) {
	for _, l := range ns.Pods {
		for _, p := range l.Pods {
			if p.Node != None {
				Count(p, p.Node, sign)
			}
		}
	}
}

// Count adds (sign 1) or removes (sign -1) a pod on a node in every counter.
func Count(p *Pod, n, sign int32) {
	l := p.Class.Labels
	for _, a := range l.Attractions {
		a.Add(n, sign)
	}
	if !p.Terminating {
		for _, sp := range l.Spreads {
			sp.Add(n, sign)
		}
	}
	for _, r := range p.Class.Repulsions {
		r.Add(n, sign)
	}
}

// CountAll adds (sign 1) or removes (sign -1) all pods of a node in every counter.
func CountAll(n *Node, sign int32) {
	for _, p := range n.Pods {
		Count(p, n.ID, sign)
	}
}

// BesideNominated is the suffix of a reason that holds only while other pods are nominated to the node.
const BesideNominated = " beside nominated pods"

// MeetsOthers reports whether the pod affinity filter runs: the class has terms, or a term of another pod concerns
// it. The scheduler decides this before it counts nominated pods.
func (c *Class) MeetsOthers() bool {
	return len(c.Affinity)+len(c.AntiAffinity) > 0 ||
		slices.ContainsFunc(c.Labels.Repulsions, func(r *Repulsion) bool { return r.total > 0 })
}

// CountNominated applies (sign 1) or undoes (sign -1) how the scheduler counts a nominated pod differently from a
// placed pod:
//   - Topology spreading counts it even if it is terminating or the selector is empty.
//   - A ReadWriteOncePod claim counts only if an inline disk is checked too. It then counts by its name in any
//     namespace.
func CountNominated(st *Storage, c *Class, q *Pod, n *Node, affinityChecked bool, sign int32) {
	l := q.Class.Labels
	for i := range c.Spreads {
		sp := c.Spreads[i].Spread
		seen := slices.ContainsFunc(c.Spreads[:i], func(t SpreadConstraint) bool { return t.Spread == sp })
		if !seen && l.Namespace == sp.namespace && (q.Terminating || sp.selector.Empty()) && sp.selector.Matches(labels.Set(l.Labels)) {
			sp.Add(n.ID, sign)
		}
	}
	if !affinityChecked {
		for _, r := range q.Class.Repulsions {
			r.Add(n.ID, -sign)
		}
	}
	switch {
	case c.volumes == nil || q.Class.volumes == nil:
	case len(c.volumes.disks) == 0:
		st.Use(q, -sign)
	case l.Namespace != c.Labels.Namespace:
		for _, r := range q.Class.volumes.claims {
			if !r.ephemeral {
				st.countClaim(placement.PodKey{Namespace: c.Labels.Namespace.Name, Name: r.key.Name}, sign)
			}
		}
	}
}
