package planner

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// SetPod calls SetPod of the snapshot, and updates the ranking.
func (r *Ranking) SetPod(o *corev1.Pod) error {
	if o == nil {
		return r.s.SetPod(o)
	}
	return r.applyPodEvent(placement.PodKey{Namespace: o.Namespace, Name: o.Name}, func() error { return r.s.SetPod(o) })
}

// DeletePod calls DeletePod of the snapshot, and updates the ranking.
func (r *Ranking) DeletePod(key placement.PodKey) error {
	return r.applyPodEvent(key, func() error { return r.s.DeletePod(key) })
}

// SetPodDisruptionBudget adds or updates a PodDisruptionBudget in the snapshot, and updates the ranking.
func (r *Ranking) SetPodDisruptionBudget(o *policyv1.PodDisruptionBudget) error {
	if o == nil {
		return r.s.PDBs.Set(o)
	}
	known, key := r.eventsSeen == r.s.EventCount(), placement.PodKey{Namespace: o.Namespace, Name: o.Name}
	before := r.s.PDBs.Lookup(key)
	if err := r.s.PDBs.Set(o); err != nil || !known {
		return err
	}
	after := r.s.PDBs.Lookup(key)
	stale := staleNodes{}
	for _, b := range []*snapshot.PDB{before, after} {
		for pods := range r.s.PodsSelectedBy(b) {
			stale.addPods(pods, rankAgain)
		}
	}
	r.refreshEntries(stale)
	return nil
}

// staleNodes holds the nodes with entries that an event can have invalidated, and what must be done about each.
type staleNodes map[int32]staleness

type staleness uint8

const (
	recheckPlan staleness = iota // check that the targets of its pods still fit
	rankAgain
)

func (s staleNodes) addNode(n int32, todo staleness) {
	if n != filter.None {
		s[n] = max(s[n], todo)
	}
}

func (s staleNodes) addPods(pods []*filter.Pod, todo staleness) {
	for _, p := range pods {
		s.addNode(p.Node, todo)
	}
}

// applyPodEvent passes an event about one pod to the snapshot, and updates the nodes that it affects.
func (r *Ranking) applyPodEvent(key placement.PodKey, event func() error) error {
	known := r.eventsSeen == r.s.EventCount() && !r.usesReadWriteOncePodClaim(r.s.Pod(key))
	stale := staleNodes{}
	r.addNodesAffectedByPod(r.s.Pod(key), stale)
	if err := event(); err != nil || !known || r.usesReadWriteOncePodClaim(r.s.Pod(key)) {
		return err
	}
	r.addNodesAffectedByPod(r.s.Pod(key), stale)
	r.refreshEntries(stale)
	return nil
}

// usesReadWriteOncePodClaim reports whether a pod uses a ReadWriteOncePod claim. It affects every possible target of
// another pod with that claim, so the next List evaluates all nodes again.
func (r *Ranking) usesReadWriteOncePodClaim(p *filter.Pod) bool {
	return p != nil && p.Class.UsesReadWriteOncePodClaim(&r.s.Storage)
}

// addNodesAffectedByPod adds the nodes that a pod affects:
// - its own node,
// - nodes with plans that use its node,
// - nodes blocked by a pod that might fit on its node without it,
// - nodes with pods that count it.
// A nominated pod affects the plans that use its nominated node.
func (r *Ranking) addNodesAffectedByPod(p *filter.Pod, stale staleNodes) {
	if p == nil {
		return
	}
	if p.Node == filter.None {
		if n := r.s.Nodes.Lookup(p.NominatedTo); n != nil {
			r.addNodesAffectedByRoom(n, stale)
		}
		return
	}
	n := r.s.Nodes.ByID(p.Node)
	stale.addNode(n.ID, rankAgain)
	r.addNodesAffectedByRoom(n, stale)
	for _, c := range p.DependentClasses() {
		for _, other := range c.Labels.Pods {
			if other.Class == c {
				stale.addNode(other.Node, recheckPlan)
			}
		}
		for e := range r.byBlocker[c] {
			r.addEntry(e, stale, rankAgain)
		}
	}
	for pods := range r.s.PodsExcludedBy(p.Class) {
		stale.addPods(pods, recheckPlan)
	}
}

// addNodesAffectedByRoom adds the nodes that the free capacity of a node affects.
func (r *Ranking) addNodesAffectedByRoom(n *filter.Node, stale staleNodes) {
	for e := range r.byTarget[n.Name()] {
		r.addEntry(e, stale, recheckPlan)
	}
	for c, entries := range r.byBlocker {
		if !c.MatchesNodeObject(n) {
			continue
		}
		for e := range entries {
			r.addEntry(e, stale, rankAgain)
		}
	}
}

func (r *Ranking) addEntry(e *rankEntry, stale staleNodes, todo staleness) {
	if n := r.s.Nodes.Lookup(e.Node); n != nil {
		stale.addNode(n.ID, todo)
	}
}

// refreshEntries checks the plans that may be valid, and evaluates the other nodes again.
func (r *Ranking) refreshEntries(stale staleNodes) {
	r.eventsSeen = r.s.EventCount()
	var anew []*filter.Node
	var check []*rankEntry
	for id, todo := range stale {
		n := r.s.Nodes.ByID(id)
		e := r.entries[n.Name()]
		switch {
		case !n.Present:
		case todo == rankAgain || e == nil || !e.Removable && e.Rule == "no-room":
			anew = append(anew, n)
		case e.Removable:
			check = append(check, e)
		}
	}
	r.rankNodes(append(anew, r.listInvalidPlans(check)...))
}

// listInvalidPlans returns the nodes with plans that are not valid any more.
func (r *Ranking) listInvalidPlans(check []*rankEntry) []*filter.Node {
	if len(check) == 0 {
		return nil
	}
	var list []*filter.Node
	r.s.Search.UseDefaultOrder()
	p := newPlanRun(r.s, r.policy, &r.o)
	defer p.close()
	for _, e := range check {
		if n := r.s.Nodes.Lookup(e.Node); !r.isPlanValid(p, n, e) {
			list = append(list, n)
		}
		p.fork.Reset()
	}
	return list
}

// isPlanValid executes a stored plan. The caller resets the fork.
func (r *Ranking) isPlanValid(p *planRun, n *filter.Node, e *rankEntry) bool {
	p.fork.RemoveNode(n)
	for _, t := range e.targets {
		pod, to := r.s.Pod(t.pod), r.s.Nodes.Lookup(t.node)
		if pod == nil || to == nil || pod.Node != filter.None || !r.s.FitsOn(pod.Class, pod.UID, to) {
			return false
		}
		p.fork.PlacePod(pod, to)
	}
	return true
}
