package planner

import (
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// ruleEvaluation applies the rules for one plan. It evaluates equal facts once.
type ruleEvaluation struct {
	*Options
	cache []cachedVerdict // by ID of the fact
}

type cachedVerdict struct {
	done    bool
	effect  podEffect
	verdict podrules.Decision
}

func newRuleEvaluation(s *snapshot.Snapshot, o *Options) ruleEvaluation {
	return ruleEvaluation{o, make([]cachedVerdict, s.FactsIDLimit())}
}

// podEffect is what happens to a pod when its node is removed.
type podEffect uint8

const (
	podMoves  podEffect = iota // is recreated elsewhere
	podEnds                    // is evicted and not recreated
	podStays                   // is deleted with the node; nothing has to run elsewhere
	podBlocks                  // blocks the removal
)

// judgePod returns what happens to a pod, and the verdict that decided it. No rule about evictions applies to a pod that a plan
// has moved: it does not run on the node yet.
func (q *ruleEvaluation) judgePod(p *filter.Pod) (effect podEffect, decision podrules.Decision) {
	if p.IsMovedByPlan() {
		return podMoves, podrules.Decision{}
	}
	j := &q.cache[p.Facts.ID]
	if !j.done {
		j.done, j.verdict = true, q.PodRules.Decide(&p.Facts.Facts, q.Now)
		j.effect = toPodEffect(&p.Facts.Facts, j.verdict)
	}
	if j.effect != podBlocks || q.AddPodFacts == nil {
		return j.effect, j.verdict
	}
	marked := p.Facts.Facts
	q.AddPodFacts(&marked, p.Key.Namespace, p.Class.Labels.Labels)
	v := q.PodRules.Decide(&marked, q.Now)
	return toPodEffect(&marked, v), v
}

// toPodEffect converts a decision of the eviction rules. A pod that a controller recreates needs capacity on another
// node, even if a drain would not evict it.
func toPodEffect(f *podrules.Facts, v podrules.Decision) podEffect {
	switch {
	case v.Action == podrules.RefuseDrain:
		return podBlocks
	case f.IsRecreated():
		return podMoves
	case v.Action == podrules.Evict:
		return podEnds
	}
	return podStays
}

func (q *ruleEvaluation) newPodRefusal(p *filter.Pod, v podrules.Decision) Refusal {
	return Refusal{Rule: v.Rule.String(), Pod: p.Key.String(), Message: v.Reason(&p.Facts.Facts), Remedy: v.Rule.Remedy()}
}

// listNodeRefusals applies every rule about the node itself.
func (q *ruleEvaluation) listNodeRefusals(n *filter.Node) []Refusal {
	var list []Refusal
	name, facts := n.Name(), &n.Facts
	if n.APIServerPods > 0 && facts.ControlPlane == "" {
		marked := *facts
		marked.ControlPlane, facts = noderules.APIServerMark, &marked
	}
	for _, v := range (noderules.Policy{IgnoredAnnotation: q.IgnoredAnnotations[name]}).FindRefusals(facts, q.Now) {
		list = append(list, Refusal{Rule: v.Rule, Message: v.Text, Remedy: v.Remedy})
	}
	if text := q.ExcludedNodes[name]; text != "" {
		list = append(list, Refusal{Rule: "excluded", Message: text, Remedy: "remove the cause of the exclusion"})
	}
	if pod, ok := q.ReservedNodes[name]; ok {
		list = append(list, Refusal{
			Rule: "reserved", Message: "has the room for pending pod " + pod.String(),
			Remedy: "add a node that the pending pod fits on, or delete the pod",
		})
	}
	return list
}
