package plan

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// UnderutilizedRequester is the requester of the retirements of underutilized nodes.
const UnderutilizedRequester = nodegroup.UnderutilizedRequester

// UnderutilizedSinceAnnotation is an annotation that says since when a Node may be retired. A process uses this time
// only if it has observed the node since then, because it cannot know what happened while no manager ran. The
// annotation is removed when the node is needed (invariant I3).
const UnderutilizedSinceAnnotation = retirement.UnderutilizedSinceAnnotation

// OldSinceAnnotation is the old name of UnderutilizedSinceAnnotation. Slipway only removes it.
const OldSinceAnnotation = "nodegroup.slipway.dev/underused-since"

// NodeDecision is the decision on a node of a group with the underutilized rule.
type NodeDecision struct {
	nodegroup.Decision
	Group string `json:"group"`
	// Since is the time to write on the Node. Zero removes the annotation.
	Since time.Time `json:"-"`
	// Subject is the node of the decision.
	Subject *nodegroup.Node `json:"-"`
}

// underutilizedRule is the field scaleDown.underutilized of a NodeGroup with its defaults.
type underutilizedRule struct {
	cpuBelow, memoryBelow float64
	podsAtMost            int                           // below 0: no limit
	allOf                 *v1alpha1.UnderutilizedLimits // nil: the fields above count
	consolidate           bool
	cooldown              time.Duration
	placeholders          labels.Selector
}

// Defaults of the CRD.
const (
	defaultThresholdPercent = 50
	defaultCooldown         = 10 * time.Minute
)

// newUnderutilizedRule returns the rule of a group. It returns nil if the group has none.
func newUnderutilizedRule(g *v1alpha1.NodeGroup) *underutilizedRule {
	if g.Spec.ScaleDown == nil || g.Spec.ScaleDown.Underutilized == nil {
		return nil
	}
	spec := g.Spec.ScaleDown.Underutilized
	r := &underutilizedRule{
		allOf: spec.AllOf, cpuBelow: defaultThresholdPercent, memoryBelow: defaultThresholdPercent, podsAtMost: -1, consolidate: spec.Consolidate, cooldown: defaultCooldown,
		placeholders: placeholderSelector(g),
	}
	if spec.CPUBelow != nil {
		r.cpuBelow = float64(*spec.CPUBelow)
	}
	if spec.MemoryBelow != nil {
		r.memoryBelow = float64(*spec.MemoryBelow)
	}
	if spec.PodsAtMost != nil {
		r.podsAtMost = int(*spec.PodsAtMost)
	}
	if spec.Cooldown != nil {
		r.cooldown = spec.Cooldown.Duration
	}
	return r
}

// placeholderSelector selects the placeholder pods of a group. If the selector cannot be parsed, it selects nothing, so
// that an error in one group does not block other groups.
func placeholderSelector(g *v1alpha1.NodeGroup) labels.Selector {
	s, _ := grouppolicy.NewPlaceholderSelection(g)
	return s.Placeholders
}

// whyUtilized returns why a node is not underutilized. It returns "" for an underutilized node.
func (r *underutilizedRule) whyUtilized(l planner.Utilization) string {
	if r.allOf != nil && !r.consolidate {
		return describeExceededBounds(r.allOf, l)
	}
	switch {
	case r.consolidate, l.CPUPercent() < r.cpuBelow && l.MemoryPercent() < r.memoryBelow, l.Pods <= r.podsAtMost:
		return ""
	}
	return fmt.Sprintf("%d pods request %.0f %% of its cpu and %.0f %% of its memory; an underutilized node has less than %.0f %% and %.0f %%",
		l.Pods, l.CPUPercent(), l.MemoryPercent(), r.cpuBelow, r.memoryBelow)
}

// describeExceededBounds names the bounds that the node exceeds. It returns "" if there is none.
func describeExceededBounds(b *v1alpha1.UnderutilizedLimits, l planner.Utilization) string {
	var above []string
	if b.CPUAtMost != nil && l.CPUPercent() > float64(*b.CPUAtMost) {
		above = append(above, fmt.Sprintf("its pods request %.1f %% of its cpu; allOf.cpuAtMost is %d %%", l.CPUPercent(), *b.CPUAtMost))
	}
	if b.MemoryAtMost != nil && l.MemoryPercent() > float64(*b.MemoryAtMost) {
		above = append(above, fmt.Sprintf("its pods request %.1f %% of its memory; allOf.memoryAtMost is %d %%", l.MemoryPercent(), *b.MemoryAtMost))
	}
	if b.PodsAtMost != nil && l.Pods > int(*b.PodsAtMost) {
		above = append(above, fmt.Sprintf("it has %d pods; allOf.podsAtMost is %d", l.Pods, *b.PodsAtMost))
	}
	return strings.Join(above, "; ")
}

func (r *underutilizedRule) isPlaceholder(set labels.Set) bool {
	return r.placeholders.Matches(set)
}

// UnderutilizedCooldown returns how long a node of the group must be underutilized. It returns false if the group has no
// such rule.
func UnderutilizedCooldown(g *v1alpha1.NodeGroup) (cooldown time.Duration, hasRule bool) {
	rule := newUnderutilizedRule(g)
	if rule == nil {
		return 0, false
	}
	return rule.cooldown, true
}

// ReadUnderutilizedSince returns since when a Node may be retired. It returns zero if the time is missing or invalid.
func ReadUnderutilizedSince(n *corev1.Node, now time.Time) time.Time {
	t, err := time.Parse(time.RFC3339, n.Annotations[UnderutilizedSinceAnnotation])
	if err != nil || t.After(now.Add(time.Second)) {
		return time.Time{}
	}
	return t
}

// DecideScaleDown decides which nodes of the groups with the underutilized rule are retired. It returns a decision on
// each of their nodes, sorted by name. It decides group by group. A node that is retired in one group is missing in the
// decisions on later groups. So all retirements are possible together (invariant I9).
func DecideScaleDown(w *Input) ([]NodeDecision, error) {
	var all []NodeDecision
	err := w.simulateInFork(func(r *forkedCluster) error {
		f := &scaleDown{forkedCluster: r, pdbUsage: planner.PDBUsage{}, movedSet: map[placement.PodKey]bool{}}
		if err := f.planBaselineWithoutRetiring(); err != nil {
			return err
		}
		for i := range w.Groups {
			decisions, err := f.decideGroupNodes(&w.Groups[i])
			if err != nil {
				return err
			}
			all = append(all, decisions...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("decide which underutilized nodes to retire: %w", err)
	}
	slices.SortFunc(all, func(a, b NodeDecision) int { return cmp.Compare(a.Node, b.Node) })
	return all, nil
}

// scaleDown holds the state while DecideScaleDown decides on all groups. A node that it has removed from the fork stays
// removed.
type scaleDown struct {
	*forkedCluster
	pendingPods   []placement.PodKey // pods that need a node, including those of retiring nodes
	pendingSet    map[placement.PodKey]bool
	removedNodes  int
	removedGroups []string           // the groups of the removed nodes, one entry per node
	pdbUsage      planner.PDBUsage   // what the removed nodes charge
	movedPods     []placement.PodKey // the pods of the removed nodes that fit on other nodes
	movedSet      map[placement.PodKey]bool
	baseline      *Decision
}

// planBaselineWithoutRetiring removes the nodes that are being removed, in the groups and outside them. It decides what would be
// launched without any further retirement.
func (f *scaleDown) planBaselineWithoutRetiring() (err error) {
	f.pendingPods, f.pendingSet = f.podsWithoutNomination(), map[placement.PodKey]bool{}
	for _, key := range f.pendingPods {
		f.pendingSet[key] = true
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		for j := range g.Nodes {
			if n := &g.Nodes[j]; n.ToBudgetNode().BeingRemoved {
				if err := f.removeRetiringNode(g.name(), n.Object.Name, plannerOptions(g, f.Now)); err != nil {
					return err
				}
			}
		}
	}
	for _, name := range f.OtherNodesBeingRemoved {
		if err := f.removeRetiringNode("", name, planner.Options{Now: f.Now}); err != nil {
			return err
		}
	}
	f.baseline, err = f.planLaunches(f.pendingPods, f.removedNodes, f.removedGroups...)
	return err
}

// removeRetiringNode removes a node that is being removed, and moves its pods to the nodes that placement finds. group is its
// group, or "" for a node outside the groups.
func (f *scaleDown) removeRetiringNode(group, name string, options planner.Options) error {
	e, err := planner.PlanEvacuation(f.Snapshot, name, planner.LeastPods, options)
	if err != nil {
		return nil //nolint:nilerr // the snapshot does not know the node any more
	}
	for _, r := range e.Refusals {
		if r.Rule == "no-room" {
			key := placement.PodKey{}
			if key.UnmarshalText([]byte(r.Pod)) == nil {
				f.pendingPods = append(f.pendingPods, key)
				f.pendingSet[key] = true
			}
		}
	}
	return f.chargeAndApplyEvacuation(group, e)
}

// chargeAndApplyEvacuation applies the evacuation of a node that is being retired, or that this decision retires. Later
// decisions must leave its part of the PodDisruptionBudgets.
func (f *scaleDown) chargeAndApplyEvacuation(group string, e *planner.Evacuation) error {
	f.pdbUsage.ChargeEvacuation(&f.Snapshot.PDBs, e)
	for _, key := range f.listMovedPods(e) {
		f.movedPods, f.movedSet[key] = append(f.movedPods, key), true
	}
	return f.applyEvacuation(group, e)
}

// listMovedPods lists the pods of an evacuation that no earlier evacuation has moved, without the pods that only the fork places.
func (f *scaleDown) listMovedPods(e *planner.Evacuation) []placement.PodKey {
	var pods []placement.PodKey
	for _, m := range e.Moves {
		if !f.isOnlySimulated(m.Pod) && !f.movedSet[m.Pod] {
			pods = append(pods, m.Pod)
		}
	}
	return pods
}

// applyEvacuation applies an evacuation in the fork.
func (f *scaleDown) applyEvacuation(group string, e *planner.Evacuation) error {
	if err := f.fork.RemoveNamedNodeAndPods(e.Node); err != nil {
		return err
	}
	f.removedNodes++
	f.removedGroups = append(f.removedGroups, group)
	for _, m := range e.Moves {
		if f.isOnlySimulated(m.Pod) {
			continue
		}
		if err := f.fork.MovePod(m.Pod, m.To); err != nil {
			return err
		}
	}
	return nil
}

func plannerOptions(g *Group, now time.Time) planner.Options {
	marks, _ := grouppolicy.NewPlaceholderSelection(g.Group) // an unreadable selector marks no pod
	return planner.Options{Now: now, PodRules: grouppolicy.NewPodPolicy(g.Group, false), AddPodFacts: marks.AddFacts}
}

// decideGroupNodes decides on the nodes of one group.
func (f *scaleDown) decideGroupNodes(g *Group) ([]NodeDecision, error) {
	rule := newUnderutilizedRule(g.Group)
	if rule == nil {
		return nil, nil
	}
	all := make([]NodeDecision, 0, len(g.Nodes))
	for i := range g.Nodes {
		all = append(all, f.newDecisionWithNodeReasons(g, rule, &g.Nodes[i]))
	}
	if err := f.selectNodesToRetire(g, rule, all); err != nil {
		return nil, err
	}
	for i := range all {
		all[i].setVerdictFromReasons()
	}
	return all, nil
}

// newDecisionWithNodeReasons applies the rules that depend only on the node itself.
func (f *scaleDown) newDecisionWithNodeReasons(g *Group, rule *underutilizedRule, n *nodegroup.Node) NodeDecision {
	d := NodeDecision{Decision: nodegroup.Decision{Node: n.Object.Name}, Group: g.name(), Subject: n}
	if n.ToBudgetNode().BeingRemoved {
		return d
	}
	if g.NotAccepted != "" {
		d.addReason(nodegroup.NotAccepted, "the NodeGroup %s is not accepted: %s", g.name(), g.NotAccepted)
	}
	if !disruptionbudget.IsReady(n.Object) || g.IsProvisioning(n.Object, f.Now) {
		d.addReason(Arriving, "the node is not Ready, or is still starting")
	}
	d.Reasons = append(d.Reasons, g.BlockingReasons(n)...)
	load, err := planner.MeasureWorkloadUtilization(f.Snapshot, n.Object.Name, rule.isPlaceholder)
	if err != nil {
		d.addReason(Arriving, "the node is not in the scheduling snapshot yet")
		return d
	}
	if why := rule.whyUtilized(load); why != "" {
		d.addReason(Used, "%s", why)
	}
	return d
}

func (d *NodeDecision) addReason(rule, format string, a ...any) {
	d.Reasons = append(d.Reasons, nodegroup.Reason{Rule: rule, Message: fmt.Sprintf(format, a...)})
}

// selectNodesToRetire selects the nodes to retire. No rule may keep such a node, its pods must fit elsewhere, its cooldown must
// have passed, and all selected nodes must be removable together.
func (f *scaleDown) selectNodesToRetire(g *Group, rule *underutilizedRule, decisions []NodeDecision) error {
	free := make([]*NodeDecision, 0, len(decisions))
	for i := range decisions {
		if len(decisions[i].Reasons) == 0 && !decisions[i].Subject.ToBudgetNode().BeingRemoved {
			free = append(free, &decisions[i])
		}
	}
	if len(free) == 0 {
		return nil
	}
	now, err := f.planLaunches(f.pendingPods, f.removedNodes, f.removedGroups...)
	if err != nil {
		return err
	}
	candidates, err := f.findRetirementCandidates(g, rule, free, now.placedOnNodes)
	if err != nil {
		return err
	}
	return f.applyConfirmedCandidates(g, candidates)
}

// findRetirementCandidates finds the nodes whose cooldown has passed and that can be retired together. It first places the pending
// pods that fit on existing nodes.
func (f *scaleDown) findRetirementCandidates(g *Group, rule *underutilizedRule, free []*NodeDecision, placedPending []planner.Move) ([]candidate, error) {
	fork := f.Snapshot.Fork()
	defer fork.Rollback()
	for _, m := range placedPending { // pending pods take the room first
		if err := f.fork.MovePod(m.Pod, m.To); err != nil {
			return nil, err
		}
	}
	f.forStartingNodes(f.fork.CloseNode)
	f.checkPodsFitElsewhere(g, free)
	var due []*NodeDecision
	for _, d := range free {
		if len(d.Reasons) == 0 && d.startOrCheckCooldown(rule.cooldown, g.ObservedSince[d.Node], f.Now) {
			due = append(due, d)
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	return f.selectRetirableTogether(g, due)
}

// forStartingNodes calls change for each starting node. In the fork, such a Node takes pending pods as if it had started. It must
// be closed for the pods of retired nodes. They run now, and would wait until it has started.
func (f *scaleDown) forStartingNodes(change func(nodeName string)) {
	for _, name := range f.startingNodes {
		change(name)
	}
}

// checkPodsFitElsewhere adds a reason to each node with pods that fit nowhere else.
func (f *scaleDown) checkPodsFitElsewhere(g *Group, free []*NodeDecision) {
	ranks := map[string]planner.Rank{}
	for _, r := range planner.RankNodes(f.Snapshot, planner.LeastDisruption, f.plannerOptionsExcludingOthers(g, free)) {
		ranks[r.Node] = r
	}
	for _, d := range free {
		if r := ranks[d.Node]; !r.Removable {
			d.addReason(NoPlace, "%s", f.describeRank(r))
		}
	}
}

// describeRank says why a node cannot be removed.
func (f *scaleDown) describeRank(r planner.Rank) string {
	why := cmp.Or(r.Rule, "the node is not in the scheduling snapshot yet")
	switch {
	case r.Message != "":
		why += ": " + r.Message
	case r.Pod != "" && len(f.startingNodes) > 0:
		why += ": starting nodes take no pods yet"
	}
	if r.Pod != "" {
		return fmt.Sprintf("pod %s cannot move: %s", r.Pod, why)
	}
	return why
}

// plannerOptionsExcludingOthers returns planner options that exclude all nodes except the given ones.
func (f *scaleDown) plannerOptionsExcludingOthers(g *Group, candidates []*NodeDecision) planner.Options {
	o := plannerOptions(g, f.Now)
	o.ExcludedNodes = map[string]string{}
	for name := range f.Snapshot.Nodes.Names() { // also nodes without a group
		o.ExcludedNodes[name] = "is not a candidate"
	}
	for _, d := range candidates {
		delete(o.ExcludedNodes, d.Node)
	}
	return o
}

// startOrCheckCooldown reports whether the cooldown of a node has passed, and sets since when the node may be retired. If this
// process has observed the node only after the time that the Node has, the cooldown starts at its first observation.
func (d *NodeDecision) startOrCheckCooldown(cooldown time.Duration, observedSince, now time.Time) (passed bool) {
	d.Since = ReadUnderutilizedSince(d.Subject.Object, now)
	if d.Since.IsZero() || d.Since.Before(observedSince) {
		d.Since = roundUpToSecond(now)
	}
	until := d.Since.Add(cooldown)
	d.IdleSince, d.RemovableAt = &d.Since, &until
	if now.Before(until) {
		d.addReason(nodegroup.CoolingDown, "underutilized since %s; it may be retired at %s", formatTime(d.Since), formatTime(until))
		return false
	}
	return true
}

// roundUpToSecond returns the time with the precision of an annotation. It rounds up, so that no cooldown is too short.
func roundUpToSecond(t time.Time) time.Time {
	whole := t.UTC().Truncate(time.Second)
	if whole.Before(t) {
		return whole.Add(time.Second)
	}
	return whole
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// candidate is a node to retire, with the moves of its pods.
type candidate struct {
	*NodeDecision
	evacuation planner.Evacuation
}

// selectRetirableTogether selects nodes that can be retired together, and together with the nodes removed so far, within the
// group's minimum size and disruption budgets. Only here do other nodes charge the PodDisruptionBudgets, so that a node that
// waits for a PodDisruptionBudget keeps its time.
// Nodes with an open retirement come first. So no open retirement is cancelled in favour of a node that is equally good.
func (f *scaleDown) selectRetirableTogether(g *Group, due []*NodeDecision) ([]candidate, error) {
	options := f.plannerOptionsExcludingOthers(g, due)
	options.PDBUsage = f.pdbUsage
	selection, err := planner.SelectVictims(f.Snapshot, len(due), planner.LeastDisruption, options)
	if err != nil {
		return nil, err
	}
	byName := map[string]*NodeDecision{}
	for _, d := range due {
		byName[d.Node] = d
	}
	candidates := make([]candidate, 0, len(selection.Victims))
	for _, e := range selection.Victims {
		candidates = append(candidates, candidate{byName[e.Node], e})
	}
	for _, p := range selection.Skipped {
		if d := byName[p.Node]; d != nil && len(p.Refusals) > 0 {
			d.addReason(NotTogether, "%s", p.Refusals[0].String())
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.retirementRank(), b.retirementRank()) })
	return f.keepWithinBudget(g, candidates), nil
}

// keepWithinBudget returns the candidates that the disruption budgets would admit one after the other.
func (f *scaleDown) keepWithinBudget(g *Group, candidates []candidate) []candidate {
	q := disruptionbudget.Query{
		Group: &g.Group.Spec, CloudMinSize: int32(g.CloudMinSize), Nodes: toBudgetNodes(g), Reason: v1alpha1.Underutilized, Now: f.Now,
	}
	var kept []candidate
	for _, v := range candidates {
		q.Target = v.Node
		switch verdict := disruptionbudget.CheckDisruption(q); verdict.Code {
		case disruptionbudget.NoLimitReached:
			kept = append(kept, v)
			at := slices.IndexFunc(q.Nodes, func(n disruptionbudget.Node) bool { return n.Name == v.Node })
			q.Nodes[at].BeingRemoved, q.Nodes[at].UnavailableReason = true, "is retired first"
		case disruptionbudget.MinSizeReached:
			v.addReason(nodegroup.Minimum, "%s", verdict.Message)
		default:
			v.addReason(BudgetSpent, "%s", verdict.Message)
		}
	}
	return kept
}

// toBudgetNodes returns the nodes of a group as disruption budgets count them. A node with a pending retirement of
// another requester counts as being retired, so that the budget stays free for this retirement. It counts once, even if
// it is also unavailable or underutilized.
func toBudgetNodes(g *Group) []disruptionbudget.Node {
	counted := make([]disruptionbudget.Node, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		counted[i] = n.ToBudgetNode()
		if rt := n.OpenRetirement(); rt != nil && rt.Spec.RequestedBy != UnderutilizedRequester {
			counted[i].BeingRemoved, counted[i].UnavailableReason = true, cmp.Or(counted[i].UnavailableReason, "has a pending retirement")
		}
	}
	return counted
}

// retirementRank sorts nodes with an open retirement first.
func (v candidate) retirementRank() int {
	if v.Subject.OpenRetirement() != nil {
		return 0
	}
	return 1
}

// applyConfirmedCandidates retires the candidates if all their pods fit on existing nodes and no further instance has
// to be launched. Free capacity of a provisioning instance does not count. It was launched for other pods, which would
// then have no node.
func (f *scaleDown) applyConfirmedCandidates(g *Group, candidates []candidate) error {
	for len(candidates) > 0 {
		after, err := f.findWorstDecision(g, candidates)
		if err != nil {
			return err
		}
		if len(after.unplacedPods) == 0 && after.countLaunchedAndUnplaced() <= f.baseline.countLaunchedAndUnplaced() {
			for i := range candidates {
				if err := f.chargeAndApplyEvacuation(g.name(), &candidates[i].evacuation); err != nil {
					return err
				}
			}
			return nil
		}
		last := len(candidates) - 1
		candidates[last].addReason(WouldComeBack, "%s", f.describeConsequence(after))
		candidates = candidates[:last]
	}
	return nil
}

// shuffleCount is how many more random orders of pods are tried.
const shuffleCount = 2

// findWorstDecision decides what would be launched without the candidates, for several orders of their pods, and
// returns the worst decision. The worst is one with a pod that fits on no other node, or else the one with the highest
// demand. The order of the real scheduler is unknown. So a pod may still find no node, but that is unlikely.
func (f *scaleDown) findWorstDecision(g *Group, candidates []candidate) (*Decision, error) {
	inPlace := func([]placement.PodKey) ([]placement.PodKey, error) { return nil, nil }
	in := func(order func([]placement.PodKey)) func([]placement.PodKey) ([]placement.PodKey, error) {
		return func(pods []placement.PodKey) ([]placement.PodKey, error) {
			order(pods)
			return planner.PlaceLikeScheduler(f.Snapshot, f.fork, pods)
		}
	}
	arrangements := []func([]placement.PodKey) ([]placement.PodKey, error){
		inPlace,
		in(func([]placement.PodKey) {}),
		in(slices.Reverse),
		in(func(pods []placement.PodKey) { slices.SortFunc(pods, comparePodKeys) }),
	}
	for seed := range uint64(shuffleCount) {
		random := rand.New(rand.NewPCG(seed, uint64(len(candidates)))) // a fixed seed, so that a decision can be reproduced
		arrangements = append(arrangements, in(func(pods []placement.PodKey) {
			random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		}))
	}
	var worst *Decision
	for _, arrange := range arrangements {
		d, err := f.decideWithoutCandidates(g, candidates, arrange)
		if err != nil {
			return nil, err
		}
		if worst == nil || d.countLaunchedAndUnplaced() > worst.countLaunchedAndUnplaced() {
			worst = d
		}
		if len(d.unplacedPods) > 0 {
			return d, nil
		}
	}
	return worst, nil
}

// decideWithoutCandidates decides what would be launched without the candidates. arrange moves their pods, and the pods of the
// nodes removed so far, because the scheduler places all of them in an unknown order.
func (f *scaleDown) decideWithoutCandidates(g *Group, candidates []candidate, arrange func([]placement.PodKey) ([]placement.PodKey, error)) (*Decision, error) {
	tried := f.Snapshot.Fork()
	defer tried.Rollback()
	gone, lost := f.removedNodes, f.removedGroups
	defer func() { f.removedNodes, f.removedGroups = gone, lost }()
	pods := slices.Clone(f.movedPods)
	for i := range candidates {
		if err := f.applyEvacuation(g.name(), &candidates[i].evacuation); err != nil {
			return nil, err
		}
		pods = append(pods, f.listMovedPods(&candidates[i].evacuation)...)
	}
	f.forStartingNodes(f.fork.CloseNode)
	left, err := arrange(pods)
	if err != nil {
		return nil, err
	}
	f.forStartingNodes(f.fork.OpenNode)
	d, err := f.planLaunches(append(slices.Clone(f.pendingPods), left...), f.removedNodes, f.removedGroups...)
	if err != nil {
		return nil, err
	}
	d.unplacedPods = left
	return d, nil
}

// isOnlySimulated reports whether a pod is on a node only in the fork.
func (f *scaleDown) isOnlySimulated(key placement.PodKey) bool {
	return f.pendingSet[key] || key.Namespace == headroomNamespace
}

// describeConsequence says what would happen if the candidate were retired.
func (f *scaleDown) describeConsequence(after *Decision) string {
	if more := after.countLaunchedInstances() - f.baseline.countLaunchedInstances(); more > 0 {
		for _, o := range after.Launches {
			return fmt.Sprintf("without it %d more instances would be launched: %s", more, o.Reasons[0])
		}
	}
	if len(after.unplacedPods) > 0 {
		return fmt.Sprintf("without it the scheduler may find no room for pod %s on another node", after.unplacedPods[0])
	}
	return "without it pods or headroom would have no room, and no instance can be launched for them now"
}

// setVerdictFromReasons sets from the reasons whether the node is retired, and whether its open retirement is cancelled.
func (d *NodeDecision) setVerdictFromReasons() {
	rt := d.Subject.OpenRetirement()
	switch {
	case d.Subject.ToBudgetNode().BeingRemoved:
		d.Verdict = nodegroup.VerdictRetiring
		d.Reasons = []nodegroup.Reason{{Rule: nodegroup.UnderWay, Message: "it is being retired"}}
		return
	case len(d.Reasons) == 0:
		d.Verdict = nodegroup.VerdictDue
		d.Reasons = []nodegroup.Reason{{Rule: nodegroup.LongEnough, Message: "its pods fit on other nodes since " + formatTime(d.Since)}}
	case d.IdleSince == nil:
		d.Verdict = nodegroup.VerdictKept
	case d.Reasons[0].Rule == nodegroup.CoolingDown:
		d.Verdict = nodegroup.VerdictCoolingDown
	default:
		d.Verdict = nodegroup.VerdictBlocked
	}
	if rt == nil {
		return
	}
	if rt.Spec.RequestedBy == UnderutilizedRequester && d.Verdict != nodegroup.VerdictDue && nodegroup.CanCancel(rt) {
		d.CancelledRetirement = rt.Name
		return
	}
	d.Verdict = nodegroup.VerdictRetiring
}
