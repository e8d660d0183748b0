package placement

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// SetPod is SetPod of the snapshot, and brings the ranking up to date.
func (r *Ranking) SetPod(o *corev1.Pod) error {
	if o == nil {
		return r.s.SetPod(o)
	}
	return r.follow(PodKey{Namespace: o.Namespace, Name: o.Name}, func() error { return r.s.SetPod(o) })
}

// DeletePod is DeletePod of the snapshot, and brings the ranking up to date.
func (r *Ranking) DeletePod(key PodKey) error {
	return r.follow(key, func() error { return r.s.DeletePod(key) })
}

// SetPodDisruptionBudget is that of the snapshot, and brings the ranking up to date.
func (r *Ranking) SetPodDisruptionBudget(o *policyv1.PodDisruptionBudget) error {
	if o == nil {
		return r.s.SetPodDisruptionBudget(o)
	}
	known, key := r.seen == r.s.events, PodKey{Namespace: o.Namespace, Name: o.Name}
	before := r.s.budgets[key]
	if err := r.s.SetPodDisruptionBudget(o); err != nil || !known {
		return err
	}
	after := r.s.budgets[key]
	stale := staleNodes{}
	for _, l := range r.s.namespace(o.Namespace).pods {
		if after.selector.Matches(l.labels) || before != nil && before.selector.Matches(l.labels) {
			stale.addPods(l.pods, judgeAnew)
		}
	}
	r.refresh(stale)
	return nil
}

// staleNodes are the nodes whose entries an event may have made wrong, and how thoroughly they have to be looked at.
type staleNodes map[int32]staleness

type staleness uint8

const (
	checkPlan staleness = iota // where its pods would go still has to fit
	judgeAnew
)

func (s staleNodes) add(n int32, how staleness) {
	if n != none {
		s[n] = max(s[n], how)
	}
}

func (s staleNodes) addPods(pods []*pod, how staleness) {
	for _, p := range pods {
		s.add(p.node, how)
	}
}

// follow lets the snapshot take an event about one pod and refreshes the nodes it may matter to.
func (r *Ranking) follow(key PodKey, event func() error) error {
	known := r.seen == r.s.events
	stale := staleNodes{}
	r.trace(r.s.pods[key], stale)
	if err := event(); err != nil || !known {
		return err
	}
	r.trace(r.s.pods[key], stale)
	r.refresh(stale)
	return nil
}

// trace collects the nodes to which a pod matters: its own, those that plan to send pods there, those held by a pod
// that might fit there once it is gone, and those with pods that count it.
func (r *Ranking) trace(p *pod, stale staleNodes) {
	if p == nil || p.node == none {
		return
	}
	n := r.s.nodes[p.node]
	stale.add(n.id, judgeAnew)
	for e := range r.usedBy[n.name()] {
		r.addEntry(e, stale, checkPlan)
	}
	for c, entries := range r.blocked {
		if c.filter.on(n) != admitted {
			continue
		}
		for e := range entries {
			r.addEntry(e, stale, judgeAnew)
		}
	}
	for _, c := range readers(p) {
		for _, other := range c.labels.pods {
			if other.class == c {
				stale.add(other.node, checkPlan)
			}
		}
		for e := range r.blocked[c] {
			r.addEntry(e, stale, judgeAnew)
		}
	}
	for _, repulsion := range p.class.repulsions {
		for _, l := range r.s.candidates(repulsion.term.reach, repulsion.term.anchor) {
			if repulsion.term.repels(l) {
				stale.addPods(l.pods, checkPlan)
			}
		}
	}
}

func (r *Ranking) addEntry(e *ranked, stale staleNodes, how staleness) {
	if n := r.s.nodeByName[e.Node]; n != nil {
		stale.add(n.id, how)
	}
}

// readers lists the classes whose verdicts count the pod.
func readers(p *pod) []*class {
	var list []*class
	for _, a := range p.class.labels.attractions {
		list = append(list, a.readers...)
	}
	for _, sp := range p.class.labels.spreads {
		list = append(list, sp.readers...)
	}
	return list
}

// refresh checks the plans that may still hold and judges the others anew.
func (r *Ranking) refresh(stale staleNodes) {
	r.seen = r.s.events
	var anew []*node
	var check []*ranked
	for id, how := range stale {
		n := r.s.nodes[id]
		e := r.entries[n.name()]
		switch {
		case !n.present:
		case how == judgeAnew || e == nil || !e.Removable && e.Rule == "no-room":
			anew = append(anew, n)
		case e.Removable:
			check = append(check, e)
		}
	}
	r.judge(append(anew, r.broken(check)...))
}

// broken lists the nodes of the plans that no longer hold.
func (r *Ranking) broken(check []*ranked) []*node {
	if len(check) == 0 {
		return nil
	}
	var list []*node
	r.s.arrangePlain()
	p := r.s.newPlanner(r.policy, &r.o)
	defer p.close()
	for _, e := range check {
		if n := r.s.nodeByName[e.Node]; !r.holds(p, n, e) {
			list = append(list, n)
		}
		r.s.undo(p.fork.mark)
	}
	return list
}

// holds carries out a plan as it was remembered.
func (r *Ranking) holds(p *planner, n *node, e *ranked) bool {
	p.clear(n)
	for _, t := range e.targets {
		pod, to := r.s.pods[t.pod], r.s.nodeByName[t.node]
		if pod == nil || to == nil || pod.node != none || !r.s.fits(pod.class, to) {
			return false
		}
		r.s.put(pod, to)
	}
	return true
}
