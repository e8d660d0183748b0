package planner

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// SetPod is SetPod of the snapshot, and brings the ranking up to date.
func (r *Ranking) SetPod(o *corev1.Pod) error {
	if o == nil {
		return r.s.SetPod(o)
	}
	return r.applyPodEvent(placement.PodKey{Namespace: o.Namespace, Name: o.Name}, func() error { return r.s.SetPod(o) })
}

// DeletePod is DeletePod of the snapshot, and brings the ranking up to date.
func (r *Ranking) DeletePod(key placement.PodKey) error {
	return r.applyPodEvent(key, func() error { return r.s.DeletePod(key) })
}

// SetPodDisruptionBudget is that of the snapshot, and brings the ranking up to date.
func (r *Ranking) SetPodDisruptionBudget(o *policyv1.PodDisruptionBudget) error {
	if o == nil {
		return r.s.Budgets.Set(o)
	}
	known, key := r.eventsSeen == r.s.Events(), placement.PodKey{Namespace: o.Namespace, Name: o.Name}
	before := r.s.Budgets.Named(key)
	if err := r.s.Budgets.Set(o); err != nil || !known {
		return err
	}
	after := r.s.Budgets.Named(key)
	stale := staleNodes{}
	for _, b := range []*snapshot.Budget{before, after} {
		for pods := range r.s.SelectedBy(b) {
			stale.addPods(pods, rankAgain)
		}
	}
	r.refreshEntries(stale)
	return nil
}

// staleNodes are the nodes whose entries an event may have made wrong, and how thoroughly they have to be looked at.
type staleNodes map[int32]staleness

type staleness uint8

const (
	recheckPlan staleness = iota // where its pods would go still has to fit
	rankAgain
)

func (s staleNodes) addNode(n int32, how staleness) {
	if n != filter.None {
		s[n] = max(s[n], how)
	}
}

func (s staleNodes) addPods(pods []*filter.Pod, how staleness) {
	for _, p := range pods {
		s.addNode(p.Node, how)
	}
}

// applyPodEvent lets the snapshot take an event about one pod and refreshes the nodes it may matter to.
func (r *Ranking) applyPodEvent(key placement.PodKey, event func() error) error {
	known := r.eventsSeen == r.s.Events() && !r.usesReadWriteOncePodClaim(r.s.Pod(key))
	stale := staleNodes{}
	r.addNodesAffectedByPod(r.s.Pod(key), stale)
	if err := event(); err != nil || !known || r.usesReadWriteOncePodClaim(r.s.Pod(key)) {
		return err
	}
	r.addNodesAffectedByPod(r.s.Pod(key), stale)
	r.refreshEntries(stale)
	return nil
}

// usesReadWriteOncePodClaim reports whether a pod uses a claim that one pod in the cluster can use, which matters wherever another
// pod with that claim might go: the next List starts over.
func (r *Ranking) usesReadWriteOncePodClaim(p *filter.Pod) bool {
	return p != nil && p.Class.HoldsExclusive(&r.s.Storage)
}

// addNodesAffectedByPod collects the nodes to which a pod matters: its own, those that plan to send pods there, those held by a pod
// that might fit there once it is gone, and those with pods that count it. A nominated pod matters to who goes to its node.
func (r *Ranking) addNodesAffectedByPod(p *filter.Pod, stale staleNodes) {
	if p == nil {
		return
	}
	if p.Node == filter.None {
		if n := r.s.Nodes.Named(p.NominatedTo); n != nil {
			r.addNodesAffectedByRoom(n, stale)
		}
		return
	}
	n := r.s.Nodes.At(p.Node)
	stale.addNode(n.ID, rankAgain)
	r.addNodesAffectedByRoom(n, stale)
	for _, c := range p.Readers() {
		for _, other := range c.Labels.Pods {
			if other.Class == c {
				stale.addNode(other.Node, recheckPlan)
			}
		}
		for e := range r.byBlocker[c] {
			r.addEntry(e, stale, rankAgain)
		}
	}
	for pods := range r.s.RepelledBy(p.Class) {
		stale.addPods(pods, recheckPlan)
	}
}

// addNodesAffectedByRoom collects the nodes that the room on a node matters to.
func (r *Ranking) addNodesAffectedByRoom(n *filter.Node, stale staleNodes) {
	for e := range r.byTarget[n.Name()] {
		r.addEntry(e, stale, recheckPlan)
	}
	for c, entries := range r.byBlocker {
		if !c.Admits(n) {
			continue
		}
		for e := range entries {
			r.addEntry(e, stale, rankAgain)
		}
	}
}

func (r *Ranking) addEntry(e *rankEntry, stale staleNodes, how staleness) {
	if n := r.s.Nodes.Named(e.Node); n != nil {
		stale.addNode(n.ID, how)
	}
}

// refreshEntries checks the plans that may still hold and judges the others anew.
func (r *Ranking) refreshEntries(stale staleNodes) {
	r.eventsSeen = r.s.Events()
	var anew []*filter.Node
	var check []*rankEntry
	for id, how := range stale {
		n := r.s.Nodes.At(id)
		e := r.entries[n.Name()]
		switch {
		case !n.Present:
		case how == rankAgain || e == nil || !e.Removable && e.Rule == "no-room":
			anew = append(anew, n)
		case e.Removable:
			check = append(check, e)
		}
	}
	r.rankNodes(append(anew, r.listInvalidPlans(check)...))
}

// listInvalidPlans lists the nodes of the plans that no longer hold.
func (r *Ranking) listInvalidPlans(check []*rankEntry) []*filter.Node {
	if len(check) == 0 {
		return nil
	}
	var list []*filter.Node
	r.s.Rooms.ArrangePlain()
	p := newPlanRun(r.s, r.policy, &r.o)
	defer p.close()
	for _, e := range check {
		if n := r.s.Nodes.Named(e.Node); !r.isPlanValid(p, n, e) {
			list = append(list, n)
		}
		p.fork.Reset()
	}
	return list
}

// isPlanValid carries out a plan as it was remembered.
func (r *Ranking) isPlanValid(p *planRun, n *filter.Node, e *rankEntry) bool {
	p.fork.Clear(n)
	for _, t := range e.targets {
		pod, to := r.s.Pod(t.pod), r.s.Nodes.Named(t.node)
		if pod == nil || to == nil || pod.Node != filter.None || !r.s.Fits(pod.Class, pod.UID, to) {
			return false
		}
		p.fork.Put(pod, to)
	}
	return true
}
