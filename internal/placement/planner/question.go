package planner

import (
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// question is one use of the rules: each fact is judged once.
type question struct {
	*Options
	judged []judgedFact // by ID of the fact
}

type judgedFact struct {
	done    bool
	fate    podFate
	verdict podrules.Verdict
}

func newQuestion(s *snapshot.Snapshot, o *Options) question {
	return question{o, make([]judgedFact, s.FactIDs())}
}

// podFate is what happens to a pod when its node goes.
type podFate uint8

const (
	fateMoves   podFate = iota // is evicted, and created anew elsewhere
	fateEnds                   // is evicted, and not created anew
	fateStays                  // goes with the node; nothing of it has to run elsewhere
	fateBlocked                // blocks the node
)

// fate returns what happens to a pod, and the verdict that says so.
func (q *question) fate(p *filter.Pod) (podFate, podrules.Verdict) {
	j := &q.judged[p.Fact.ID]
	if !j.done {
		j.done, j.verdict = true, q.Pods.Judge(&p.Fact.Facts, q.Now)
		j.fate = fateOf(&p.Fact.Facts, j.verdict)
	}
	if j.fate != fateBlocked || q.Mark == nil {
		return j.fate, j.verdict
	}
	marked := p.Fact.Facts
	q.Mark(&marked, p.Key.Namespace, p.Class.Labels.Labels)
	v := q.Pods.Judge(&marked, q.Now)
	return fateOf(&marked, v), v
}

// fateOf plans with a verdict: a pod that is created anew needs room, also where a drain would leave it.
func fateOf(f *podrules.Facts, v podrules.Verdict) podFate {
	switch {
	case v.Action == podrules.Refuse:
		return fateBlocked
	case f.Recreated():
		return fateMoves
	case v.Action == podrules.Evict:
		return fateEnds
	}
	return fateStays
}

// podRefusal puts a verdict that blocks the node in words.
func (q *question) podRefusal(p *filter.Pod, v podrules.Verdict) Refusal {
	return Refusal{Rule: v.Rule.String(), Pod: p.Key.String(), Text: v.Text(&p.Fact.Facts), Remedy: v.Rule.Remedy()}
}

// nodeRefusals applies every rule about the node itself.
func (q *question) nodeRefusals(n *filter.Node) []Refusal {
	var list []Refusal
	name, facts := n.Name(), &n.Facts
	if n.APIServers > 0 && facts.ControlPlane == "" {
		marked := *facts
		marked.ControlPlane, facts = noderules.APIServer, &marked
	}
	for _, v := range (noderules.Policy{Lifted: q.Lifted[name]}).Judge(facts, q.Now) {
		list = append(list, Refusal{Rule: v.Rule, Text: v.Text, Remedy: v.Remedy})
	}
	if text := q.Excluded[name]; text != "" {
		list = append(list, Refusal{Rule: "excluded", Text: text, Remedy: "have it allowed where it was excluded"})
	}
	if pod, ok := q.Reserved[name]; ok {
		list = append(list, Refusal{
			Rule: "reserved", Text: "has the room for pending pod " + pod.String(),
			Remedy: "add a node that the pending pod fits on, or delete the pod",
		})
	}
	return list
}
