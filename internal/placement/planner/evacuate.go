package planner

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Move is the target node of one pod.
type Move struct {
	Pod placement.PodKey `json:"pod"`
	To  string           `json:"to"`
}

// DeletedPod is a pod that is deleted with its node.
type DeletedPod struct {
	Pod placement.PodKey `json:"pod"`
	// Rule is the rule that decided this, such as "daemonset".
	Rule string `json:"rule"`
}

// Evacuation says what would happen to the pods of a removed node.
type Evacuation struct {
	Node string `json:"node"`
	// Cost is the cost of the evacuation by the policy of the request.
	Cost float64 `json:"cost"`
	// Groups lists the groups of pods that lose their work together and would have to restart.
	Groups []PodGroup `json:"groups,omitempty"`
	// Moves lists the pods that would be recreated on other nodes, in the order of placement.
	Moves []Move `json:"moves,omitempty"`
	// DeletedPods lists the pods that are deleted with the node.
	DeletedPods []DeletedPod `json:"deletedPods,omitempty"`
	// Refusals lists every reason against the removal, by rule. It is empty if the node can be removed.
	Refusals []Refusal `json:"refusals,omitempty"`

	charges map[placement.PodKey]int32 // what its evictions charge, by PodDisruptionBudget
}

// IsFeasible reports whether the node can be removed.
func (e *Evacuation) IsFeasible() bool { return len(e.Refusals) == 0 }

// PlanEvacuation plans the removal of one node now. It returns a target for each pod, or every reason against the removal.
// It applies all rules and tries all pods, so that the answer is complete. Pods are placed one after the other, with
// the node and all its pods removed. The snapshot is unchanged afterwards.
func PlanEvacuation(s *snapshot.Snapshot, nodeName string, policy Policy, o Options) (*Evacuation, error) {
	n, err := s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return nil, err
	}
	s.Search.UseDefaultOrder()
	p := beginPlanRun(s, policy, &o)
	defer p.close()
	e := &Evacuation{Node: nodeName, Cost: p.computeRemovalCost(n), Groups: p.listPodGroups(n), Refusals: p.rules.listNodeRefusals(n)}
	movers, evicted := p.listMovingAndEvictedPods(n, e)
	e.charges = countCharges(&p.s.PDBs, evicted)
	e.Refusals = append(e.Refusals, p.groupLimits.listRefusals(n)...)
	e.Refusals = append(e.Refusals, p.listPDBRefusals(evicted)...)
	mark := p.fork.Mark()
	p.fork.RemoveNodeAndPods(n)
	e.Refusals = append(e.Refusals, p.placeOrRefuse(movers)...)
	for _, pod := range p.fork.PodsPlacedSince(mark) {
		e.Moves = append(e.Moves, Move{pod.Key, s.Nodes.ByID(pod.Node).Name()})
	}
	return e, nil
}

// planRun is one planning run: a fork, the rules, and what the plan has used so far.
type planRun struct {
	s               *snapshot.Snapshot
	rules           ruleEvaluation
	policy          Policy
	fork            snapshot.Fork
	pdbUsage        PDBUsage
	groupLimits     *removalLimits
	reasonsByClass  map[*filter.PodClass]placement.ReasonCounts // why a class fitted nowhere, at the first attempt
	meanAllocatable []float64                                   // by resource
	unplaced        []*filter.Pod
	sorted          []*filter.Pod // buffer of sortLargestFirst
	classes         []classGroup  // buffer of sortLargestFirst
	removalMark     int           // mark of the undo log before the current removal
}

func beginPlanRun(s *snapshot.Snapshot, policy Policy, o *Options) *planRun {
	p := &planRun{s: s, rules: newRuleEvaluation(s, o), policy: policy, fork: s.Fork(), pdbUsage: o.PDBUsage.clone(), reasonsByClass: map[*filter.PodClass]placement.ReasonCounts{}, meanAllocatable: s.Nodes.MeanAllocatable()}
	p.groupLimits = newRemovalLimits(s, o)
	s.Search.EnterPlanMode()
	return p
}

// close rolls the plan back.
func (p *planRun) close() {
	p.fork.Rollback()
	p.s.Search.LeavePlanMode()
}

// orderCandidatesLast sets the order in which nodes are tried as targets, so that pods land where they can stay. Nodes
// that cannot be removed come first. Then come the candidates in reverse order of removal.
func (p *planRun) orderCandidatesLast(candidates []candidate) {
	removable := make(map[int32]bool, len(candidates))
	for i := range candidates {
		removable[candidates[i].node.ID] = true
	}
	order := make([]int32, 0, p.s.Nodes.Len())
	for _, n := range p.s.Nodes.SortedByName() {
		if !removable[n.ID] && n.CanReceivePods() {
			order = append(order, n.ID)
		}
	}
	for i := len(candidates) - 1; i >= 0; i-- {
		if candidates[i].node.CanReceivePods() {
			order = append(order, candidates[i].node.ID)
		}
	}
	p.s.Search.SetOrder(order)
}

// listMovingAndEvictedPods lists the pods that must run elsewhere, and all pods that are evicted: the movers and the pods that
// nothing recreates. If out is not nil, it gets the refusals and the pods that stay.
func (p *planRun) listMovingAndEvictedPods(n *filter.Node, out *Evacuation) (movers, evicted []*filter.Pod) {
	movers = make([]*filter.Pod, 0, len(n.Pods))
	var ending []*filter.Pod
	for _, pod := range n.Pods {
		fate, verdict := p.rules.judgePod(pod)
		switch {
		case fate == podMoves || fate == podBlocks && pod.Facts.IsRecreated():
			movers = append(movers, pod)
		case fate == podEnds || fate == podBlocks:
			ending = append(ending, pod)
		}
		switch {
		case out == nil || fate == podMoves:
		case fate == podBlocks:
			out.Refusals = append(out.Refusals, p.rules.newPodRefusal(pod, verdict))
		default:
			out.DeletedPods = append(out.DeletedPods, DeletedPod{pod.Key, verdict.Rule.String()})
		}
	}
	p.sortLargestFirst(movers)
	return movers, concatPods(movers, ending)
}

// concatPods returns both lists as one. It does not copy the first list if the second is empty.
func concatPods(movers, ending []*filter.Pod) []*filter.Pod {
	if len(ending) == 0 {
		return movers
	}
	return slices.Concat(movers, ending)
}

// classGroup holds pods of one class for sorting.
type classGroup struct {
	pods []*filter.Pod // sorted by name
	size int64
}

// sortLargestFirst sorts pods by size, so that pods that are hard to place are placed first. Pods of one class stay
// together. Classes of equal size and strictness are sorted by their first pod name.
func (p *planRun) sortLargestFirst(pods []*filter.Pod) {
	slices.SortFunc(pods, func(a, b *filter.Pod) int {
		if a.Class != b.Class {
			return cmp.Compare(a.Class.ID, b.Class.ID)
		}
		return a.Key.Compare(b.Key)
	})
	p.sorted = append(p.sorted[:0], pods...)
	p.classes = p.classes[:0]
	for from, to := 0, 0; from < len(pods); from = to {
		c := pods[from].Class
		for to < len(pods) && pods[to].Class == c {
			to++
		}
		p.classes = append(p.classes, classGroup{p.sorted[from:to], p.computeLargestShare(c)})
	}
	slices.SortFunc(p.classes, func(a, b classGroup) int {
		x, y := a.pods[0], b.pods[0]
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(y.Class.ConstraintCount(), x.Class.ConstraintCount()), x.Key.Compare(y.Key))
	})
	pods = pods[:0]
	for _, c := range p.classes {
		pods = append(pods, c.pods...)
	}
}

// computeLargestShare returns the largest share of a mean node that one request of the class needs, in millionths. A resource
// that no node has counts as a whole node.
func (p *planRun) computeLargestShare(c *filter.PodClass) (millionths int64) {
	var largest int64
	for _, a := range c.Requests {
		share := 1e6
		if mean := p.meanAllocatableOf(a.Resource); mean > 0 {
			share = float64(a.Value) / mean * 1e6
		}
		largest = max(largest, int64(min(share, 1e15)))
	}
	return largest
}

func (p *planRun) meanAllocatableOf(resource int32) float64 {
	if int(resource) < len(p.meanAllocatable) {
		return p.meanAllocatable[resource]
	}
	return 0
}

// placePods finds a node for every pod and returns the pods without one. It tries these again as long as other pods
// are placed, because affinity can make a pod depend on another.
func (p *planRun) placePods(pods []*filter.Pod) (unplaced []*filter.Pod) {
	for len(pods) > 0 {
		left := p.unplaced[:0]
		for i := 0; i < len(pods); i++ {
			if run := countLeadingCoLocatedPods(pods[i:]); run > 1 && p.placeAllOnOneNode(pods[i:i+run]) {
				i += run - 1
			} else if n := p.findTarget(pods[i]); n != nil {
				p.fork.PlacePod(pods[i], n)
			} else {
				left = append(left, pods[i])
			}
		}
		p.unplaced = left[:0]
		if len(left) == 0 || len(left) == len(pods) {
			return left
		}
		pods = slices.Clone(left)
	}
	return nil
}

// countLeadingCoLocatedPods counts the pods at the head of the list that must share one node, and that no placed pod binds to a
// node yet.
func countLeadingCoLocatedPods(pods []*filter.Pod) int {
	c := pods[0].Class
	if !c.MustChooseCommonNode() {
		return 1
	}
	n := 1
	for n < len(pods) && pods[n].Class == c {
		n++
	}
	return n
}

// maxNodesTried is the largest number of nodes to try for pods that must share one.
const maxNodesTried = 16

// placeAllOnOneNode places all pods of one class on one node. It reports whether that succeeded.
func (p *planRun) placeAllOnOneNode(pods []*filter.Pod) (placed bool) {
	c, from := pods[0].Class, int32(0)
	for range maxNodesTried {
		n := p.s.FindFirstFittingNode(c, pods[0].UID, from)
		if n == nil {
			return false
		}
		if p.placeAllOn(n, pods) {
			return true
		}
		if from = p.s.Search.PositionOf(n) + 1; int(from) == len(p.s.Search.Order) {
			from = 0
		}
	}
	return false
}

// placeAllOn places all of the pods on a node, or none. It reports whether that succeeded.
func (p *planRun) placeAllOn(n *filter.Node, pods []*filter.Pod) (placed bool) {
	mark := p.fork.Mark()
	for _, pod := range pods {
		if !p.s.FitsOn(pod.Class, pod.UID, n) {
			p.fork.UndoToMark(mark)
			return false
		}
		p.fork.PlacePod(pod, n)
	}
	return true
}

// findTarget finds a node for one pod. Like the scheduler, it tries the nominated node first. A pod that needs an unknown claim
// has no target.
func (p *planRun) findTarget(pod *filter.Pod) *filter.Node {
	if pod.NeedsUnknownClaim() {
		return nil
	}
	if n := p.s.Nodes.Lookup(pod.NominatedTo); n != nil && n.CanReceivePods() && p.s.FitsOn(pod.Class, pod.UID, n) && p.s.Filters.IsPlaceable(pod.Class) {
		return n
	}
	return p.s.FindFirstFittingNode(pod.Class, pod.UID, 0)
}

// placeOrRefuse places the pods and returns a refusal for each pod without a node.
func (p *planRun) placeOrRefuse(pods []*filter.Pod) []Refusal {
	var refusals []Refusal
	for _, pod := range slices.Clone(p.placePods(pods)) {
		refusals = append(refusals, p.newUnplacedPodRefusal(pod))
	}
	return refusals
}

// newUnplacedPodRefusal says why a pod fits nowhere, and what would help.
func (p *planRun) newUnplacedPodRefusal(pod *filter.Pod) Refusal {
	r := Refusal{Rule: "no-room", Pod: pod.Key.String(), Message: "fits on no other node"}
	switch refusal := p.s.Filters.PreFilterRefusal(pod.Class); {
	case pod.NeedsUnknownClaim():
		r.Rule, r.Message = "undecidable", "uses a generic ephemeral volume, and where its new volume would be is not known"
		return r
	case refusal != nil:
		r.Message, r.Remedy = "fits nowhere: "+refusal.Message, filter.FindPreFilterRemedy(refusal)
		return r
	case len(p.s.Search.Order) == 0:
		r.Message, r.Remedy = "has no other node to run on", "add a node"
		return r
	}
	r.Nodes = p.countNodesByReason(pod.Class)
	r.Remedy = filter.FindRemedy(r.Nodes)
	return r
}

// countNodesByReason counts the targets by their reasons against a class. It does so once per class and plan.
func (p *planRun) countNodesByReason(c *filter.PodClass) placement.ReasonCounts {
	if t, ok := p.reasonsByClass[c]; ok {
		return t
	}
	counts := reasonCounts{}
	for _, id := range p.s.Search.Order {
		if n := p.s.Nodes.ByID(id); !n.RemovedByPlan {
			counts.addVerdict(p.s.JudgePodClass(c, "", n))
		}
	}
	p.reasonsByClass[c] = counts.sortByCount()
	return p.reasonsByClass[c]
}

// listPDBRefusals returns a refusal for each PodDisruptionBudget that forbids these evictions. It charges nothing.
func (p *planRun) listPDBRefusals(evicted []*filter.Pod) []Refusal {
	var refusals []Refusal
	needs := map[*snapshot.PDB]int32{}
	for _, pod := range evicted {
		b, refused := p.s.PDBs.FindPDBToCharge(pod)
		if refused != "" {
			refusals = append(refusals, Refusal{
				Rule: "disruption-budget", Pod: pod.Key.String(), Message: refused,
				Remedy: "correct the disruption budgets",
			})
		} else if b != nil {
			needs[b]++
		}
	}
	for _, key := range sortedPDBKeys(needs) {
		b := p.s.PDBs.Lookup(key)
		if left := b.Allowed - p.pdbUsage[b]; needs[b] > left {
			refusals = append(refusals, newPDBRefusal(b, needs[b], left))
		}
	}
	return refusals
}

func newPDBRefusal(b *snapshot.PDB, needed, allowed int32) Refusal {
	return Refusal{
		Rule:    "disruption-budget",
		Message: fmt.Sprintf("disruption budget %s allows %s, %d needed", b.Key, observe.FormatCount(int(max(allowed, 0)), "disruption"), needed),
		Remedy:  "wait until more of its pods are healthy, or raise the budget",
	}
}

func sortedPDBKeys(m map[*snapshot.PDB]int32) []placement.PodKey {
	keys := make([]placement.PodKey, 0, len(m))
	for b := range m {
		keys = append(keys, b.Key)
	}
	slices.SortFunc(keys, placement.PodKey.Compare)
	return keys
}
