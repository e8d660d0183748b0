package filter

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/placement"
)

// CountPlaced counts the pods of a namespace that are on nodes.
func CountPlaced(ns *Namespace, sign int32) {
	for _, l := range ns.Pods {
		for _, p := range l.Pods {
			if p.Node != None {
				Count(p, p.Node, sign)
			}
		}
	}
}

// Count adds a pod on a node to every counter (1), or takes it off (-1).
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

// CountAll counts all pods of a node.
func CountAll(n *Node, sign int32) {
	for _, p := range n.Pods {
		Count(p, n.ID, sign)
	}
}

// BesideNominated ends the text of a reason that holds only while pods are nominated to the node.
const BesideNominated = " beside nominated pods"

// MeetsOthers reports whether pod affinity is judged at all: the class has terms of its own, or a term of some pod concerns
// it. The scheduler decides that before it counts nominated pods.
func (c *Class) MeetsOthers() bool {
	return len(c.Affinity)+len(c.AntiAffinity) > 0 ||
		slices.ContainsFunc(c.Labels.Repulsions, func(r *Repulsion) bool { return r.total > 0 })
}

// CountNominated corrects (sign 1) what the scheduler counts otherwise of a nominated pod than of a placed pod, and takes
// that back (sign -1). Topology spreading counts it even if it is terminating or the selector is empty. A claim of
// one pod counts only beside a disk that is checked as well, and then by its name in any namespace.
func CountNominated(st *Storage, c *Class, q *Pod, n *Node, met bool, sign int32) {
	l := q.Class.Labels
	for i := range c.Spreads {
		sp := c.Spreads[i].Spread
		seen := slices.ContainsFunc(c.Spreads[:i], func(t SpreadConstraint) bool { return t.Spread == sp })
		if !seen && l.Namespace == sp.namespace && (q.Terminating || sp.selector.Empty()) && sp.selector.Matches(labels.Set(l.Labels)) {
			sp.Add(n.ID, sign)
		}
	}
	if !met {
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
