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
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// RequestedBy is who asks for the retirements of underused nodes.
const RequestedBy = nodegroup.UnderusedRequestedBy

// SinceAnnotation is on a Node that could go, and says since when. It counts for the process that observed the node at that time:
// what happened to the node while no manager ran is not known. It is taken off when the node is needed (I3).
const SinceAnnotation = "nodegroup.slipway.dev/underutilized-since"

// OldSinceAnnotation is the old name of SinceAnnotation. It is only removed: its time counts for the process that wrote it.
const OldSinceAnnotation = "nodegroup.slipway.dev/underused-since"

// NodeDecision is the word on one node of a group with the rule.
type NodeDecision struct {
	nodegroup.Decision
	Group string `json:"group"`
	// Since is what is to be written on the Node; zero is nothing.
	Since time.Time `json:"-"`
	// Subject is the node that the decision is about.
	Subject *nodegroup.Node `json:"-"`
}

// underusedRule is v1alpha1.UnderusedNodes with its defaults.
type underusedRule struct {
	cpuBelow, memoryBelow float64
	podsAtMost            int                       // below 0: none
	allOf                 *v1alpha1.UnderusedBounds // nil: those above count
	consolidate           bool
	cooldown              time.Duration
	placeholders          labels.Selector
}

// The defaults are those of the CRD.
const (
	defaultBelow    = 50
	defaultCooldown = 10 * time.Minute
)

// ruleOf gives the rule of a group; nil when it has none.
func ruleOf(g *v1alpha1.NodeGroup) *underusedRule {
	if g.Spec.ScaleDown == nil || g.Spec.ScaleDown.Underused == nil {
		return nil
	}
	spec := g.Spec.ScaleDown.Underused
	r := &underusedRule{
		allOf: spec.AllOf, cpuBelow: defaultBelow, memoryBelow: defaultBelow, podsAtMost: -1, consolidate: spec.Consolidate, cooldown: defaultCooldown,
		placeholders: placeholdersOf(g),
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

// placeholdersOf selects the pods of a group that only hold room. A selector that cannot be read selects nothing: what its pods
// say for themselves counts, and no other group waits for it.
func placeholdersOf(g *v1alpha1.NodeGroup) labels.Selector {
	s, _ := grouppolicy.Placeholders(g)
	return s.Placeholders
}

// used says for what a node counts as used; empty when it is used little.
func (r *underusedRule) used(l planner.Load) string {
	if r.allOf != nil && !r.consolidate {
		return exceeded(r.allOf, l)
	}
	switch {
	case r.consolidate, l.CPUShare() < r.cpuBelow && l.MemoryShare() < r.memoryBelow, l.Pods <= r.podsAtMost:
		return ""
	}
	return fmt.Sprintf("%d pods request %.0f %% of its cpu and %.0f %% of its memory, and one that is used little has less than %.0f %% and %.0f %%",
		l.Pods, l.CPUShare(), l.MemoryShare(), r.cpuBelow, r.memoryBelow)
}

// exceeded names the bounds that a node is above; empty when it is above none.
func exceeded(b *v1alpha1.UnderusedBounds, l planner.Load) string {
	var above []string
	if b.CPUAtMost != nil && l.CPUShare() > float64(*b.CPUAtMost) {
		above = append(above, fmt.Sprintf("its pods request %.1f %% of its cpu, and allOf.cpuAtMost is %d %%", l.CPUShare(), *b.CPUAtMost))
	}
	if b.MemoryAtMost != nil && l.MemoryShare() > float64(*b.MemoryAtMost) {
		above = append(above, fmt.Sprintf("its pods request %.1f %% of its memory, and allOf.memoryAtMost is %d %%", l.MemoryShare(), *b.MemoryAtMost))
	}
	if b.PodsAtMost != nil && l.Pods > int(*b.PodsAtMost) {
		above = append(above, fmt.Sprintf("it has %d pods, and allOf.podsAtMost is %d", l.Pods, *b.PodsAtMost))
	}
	return strings.Join(above, "; ")
}

func (r *underusedRule) placeholder(set labels.Set) bool {
	return r.placeholders.Matches(set)
}

// UnderusedCooldown is for how long a node of a group has to be one that could go; false when the group has no such rule.
func UnderusedCooldown(g *v1alpha1.NodeGroup) (time.Duration, bool) {
	rule := ruleOf(g)
	if rule == nil {
		return 0, false
	}
	return rule.cooldown, true
}

// Since reads when a Node was found to be one that could go; zero when it was not, or that cannot be read.
func Since(n *corev1.Node, now time.Time) time.Time {
	t, err := time.Parse(time.RFC3339, n.Annotations[SinceAnnotation])
	if err != nil || t.After(now.Add(time.Second)) {
		return time.Time{}
	}
	return t
}

// Down says of each node of the groups with the rule what is to become of it, sorted by name. Groups are looked at in
// their order, each with the nodes of those before it already gone (I9).
func Down(w *World) ([]NodeDecision, error) {
	var all []NodeDecision
	err := w.arranged(func(r *round) error {
		f := &fall{round: r}
		if err := f.begin(); err != nil {
			return err
		}
		for i := range w.Groups {
			decisions, err := f.group(&w.Groups[i])
			if err != nil {
				return err
			}
			all = append(all, decisions...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("deciding which underused nodes may go: %w", err)
	}
	slices.SortFunc(all, func(a, b NodeDecision) int { return cmp.Compare(a.Node, b.Node) })
	return all, nil
}

// fall is a decision on all groups in the making. What is gone in its fork stays gone.
type fall struct {
	*round
	waiting []placement.PodKey // pods that need a place, those of leaving nodes that have found none included
	waits   map[placement.PodKey]bool
	gone    int
	lost    []string // the groups of the nodes that have gone, one entry for each
	before  *Decision
}

// begin takes the nodes away that are leaving already, and asks what would be ordered if nobody else left.
func (f *fall) begin() (err error) {
	f.waiting, f.waits = f.keys(), map[placement.PodKey]bool{}
	for _, key := range f.waiting {
		f.waits[key] = true
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		for j := range g.Nodes {
			if n := &g.Nodes[j]; n.Counted().Leaving {
				if err := f.leave(g, n); err != nil {
					return err
				}
			}
		}
	}
	f.before, err = f.up(f.waiting, f.gone, f.lost...)
	return err
}

// leave takes a node away that is leaving, and its pods to where placement finds room.
func (f *fall) leave(g *Group, n *nodegroup.Node) error {
	e, err := planner.Evacuate(f.Snapshot, n.Object.Name, planner.LeastPods, optionsOf(g, f.Now))
	if err != nil {
		return nil //nolint:nilerr // the snapshot does not know it any more
	}
	for _, r := range e.Refusals {
		if r.Rule == "no-room" {
			key := placement.PodKey{}
			if key.UnmarshalText([]byte(r.Pod)) == nil {
				f.waiting = append(f.waiting, key)
				f.waits[key] = true
			}
		}
	}
	return f.take(g, e)
}

// take carries an evacuation out in the fork.
func (f *fall) take(g *Group, e *planner.Evacuation) error {
	if err := f.fork.Withdraw(e.Node); err != nil {
		return err
	}
	f.gone++
	f.lost = append(f.lost, g.name())
	for _, m := range e.Moves {
		if f.inThought(m.Pod) {
			continue
		}
		if err := f.fork.Move(m.Pod, m.To); err != nil {
			return err
		}
	}
	return nil
}

func optionsOf(g *Group, now time.Time) planner.Options {
	marks, _ := grouppolicy.Placeholders(g.Group) // one that cannot be read marks none
	return planner.Options{Now: now, Pods: grouppolicy.For(g.Group, false), Mark: marks.Mark}
}

// group decides on the nodes of one group.
func (f *fall) group(g *Group) ([]NodeDecision, error) {
	rule := ruleOf(g.Group)
	if rule == nil {
		return nil, nil
	}
	all := make([]NodeDecision, 0, len(g.Nodes))
	for i := range g.Nodes {
		all = append(all, f.judge(g, rule, &g.Nodes[i]))
	}
	if err := f.choose(g, rule, all); err != nil {
		return nil, err
	}
	for i := range all {
		all[i].conclude()
	}
	return all, nil
}

// judge applies the rules that need to know but one node.
func (f *fall) judge(g *Group, rule *underusedRule, n *nodegroup.Node) NodeDecision {
	d := NodeDecision{Decision: nodegroup.Decision{Node: n.Object.Name}, Group: g.name(), Subject: n}
	if n.Counted().Leaving {
		return d
	}
	if g.NotAccepted != "" {
		d.because(nodegroup.NotAccepted, "the NodeGroup %s is not acted on: %s", g.name(), g.NotAccepted)
	}
	if !budget.Ready(n.Object) || g.IsProvisioning(n.Object, f.Now) {
		d.because(Arriving, "it is not ready")
	}
	d.Reasons = append(d.Reasons, g.Holding(n)...)
	load, err := planner.MeasureLoad(f.Snapshot, n.Object.Name, rule.placeholder)
	if err != nil {
		d.because(Arriving, "it is not known to placement yet")
		return d
	}
	if why := rule.used(load); why != "" {
		d.because(Used, "%s", why)
	}
	return d
}

func (d *NodeDecision) because(rule, format string, a ...any) {
	d.Reasons = append(d.Reasons, nodegroup.Reason{Rule: rule, Message: fmt.Sprintf(format, a...)})
}

// choose lets those go of the nodes without a reason against it whose pods fit elsewhere, that could go for long enough,
// and that can go together.
func (f *fall) choose(g *Group, rule *underusedRule, all []NodeDecision) error {
	free := make([]*NodeDecision, 0, len(all))
	for i := range all {
		if len(all[i].Reasons) == 0 && !all[i].Subject.Counted().Leaving {
			free = append(free, &all[i])
		}
	}
	if len(free) == 0 {
		return nil
	}
	now, err := f.up(f.waiting, f.gone, f.lost...)
	if err != nil {
		return err
	}
	victims, err := f.candidates(g, rule, free, now.settled)
	if err != nil {
		return err
	}
	return f.confirm(g, victims)
}

// candidates finds the nodes that could go for long enough, and of those the ones that can go together, with what waits
// for room in its places.
func (f *fall) candidates(g *Group, rule *underusedRule, free []*NodeDecision, settled []planner.Move) ([]victim, error) {
	fork := f.Snapshot.Fork()
	defer fork.Rollback()
	for _, m := range settled { // what waits comes first, and takes the room
		if err := f.fork.Move(m.Pod, m.To); err != nil {
			return nil, err
		}
	}
	f.fitElsewhere(g, free)
	var due []*NodeDecision
	for _, d := range free {
		if len(d.Reasons) == 0 && d.cool(rule.cooldown, g.Observed[d.Node], f.Now) {
			due = append(due, d)
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	return f.together(g, due)
}

// fitElsewhere tells the nodes whose pods have another place.
func (f *fall) fitElsewhere(g *Group, free []*NodeDecision) {
	ranks := map[string]planner.Rank{}
	for _, r := range planner.NewRanking(f.Snapshot, planner.LeastDisruption, f.onlyOf(g, free)).List() {
		ranks[r.Node] = r
	}
	for _, d := range free {
		switch r := ranks[d.Node]; {
		case r.Removable:
		case r.Pod != "":
			d.because(NoPlace, "pod %s stays: %s", r.Pod, r.Rule)
		default:
			d.because(NoPlace, "%s", cmp.Or(r.Rule, "it is not known to placement yet"))
		}
	}
}

// onlyOf are the options by which none but some nodes may go.
func (f *fall) onlyOf(g *Group, only []*NodeDecision) planner.Options {
	o := optionsOf(g, f.Now)
	o.Excluded = map[string]string{}
	for name := range f.Snapshot.Nodes.Names() { // those of no group too
		o.Excluded[name] = "is not asked about"
	}
	for _, d := range only {
		delete(o.Excluded, d.Node)
	}
	return o
}

// cool says whether a node could go for the cooldown, and notes since when. What is written of a time before the process observed the
// node does not count.
func (d *NodeDecision) cool(cooldown time.Duration, observed, now time.Time) bool {
	d.Since = Since(d.Subject.Object, now)
	if d.Since.IsZero() || d.Since.Before(observed) {
		d.Since = wholeSecond(now)
	}
	until := d.Since.Add(cooldown)
	d.IdleSince, d.MayLeaveAt = &d.Since, &until
	if now.Before(until) {
		d.because(nodegroup.CoolingDown, "it could go since %s, and may at %s", at(d.Since), at(until))
		return false
	}
	return true
}

// wholeSecond is the time as annotations hold it, rounded up so that no cooldown is cut short.
func wholeSecond(t time.Time) time.Time {
	whole := t.UTC().Truncate(time.Second)
	if whole.Before(t) {
		return whole.Add(time.Second)
	}
	return whole
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// victim is a node that is to go, and where its pods would.
type victim struct {
	*NodeDecision
	evacuation planner.Evacuation
}

// together chooses nodes that can be retired together within the group's minimum and disruption budgets. Nodes with an open
// retirement come first, so that none of them is cancelled for another node that is no better.
func (f *fall) together(g *Group, due []*NodeDecision) ([]victim, error) {
	selection, err := planner.Victims(f.Snapshot, len(due), planner.LeastDisruption, f.onlyOf(g, due))
	if err != nil {
		return nil, err
	}
	byName := map[string]*NodeDecision{}
	for _, d := range due {
		byName[d.Node] = d
	}
	victims := make([]victim, 0, len(selection.Victims))
	for _, e := range selection.Victims {
		victims = append(victims, victim{byName[e.Node], e})
	}
	for _, p := range selection.Passed {
		if d := byName[p.Node]; d != nil && len(p.Refusals) > 0 {
			d.because(NotTogether, "%s", p.Refusals[0].String())
		}
	}
	slices.SortStableFunc(victims, func(a, b victim) int { return cmp.Compare(a.asked(), b.asked()) })
	return f.withinBudget(g, victims), nil
}

// withinBudget gives the victims whose retirements would be admitted one after the other.
func (f *fall) withinBudget(g *Group, victims []victim) []victim {
	q := budget.Question{
		Group: &g.Group.Spec, CloudMinimum: int32(g.CloudMinimum), Nodes: countedNodes(g), Reason: v1alpha1.Underused, Now: f.Now,
	}
	var kept []victim
	for _, v := range victims {
		q.Target = v.Node
		switch verdict := budget.Evaluate(q); verdict.Code {
		case budget.Allowed:
			kept = append(kept, v)
			at := slices.IndexFunc(q.Nodes, func(n budget.Node) bool { return n.Name == v.Node })
			q.Nodes[at].Leaving, q.Nodes[at].Unavailable = true, "is retired first"
		case budget.Minimum:
			v.because(nodegroup.Minimum, "%s", verdict.Message)
		default:
			v.because(BudgetSpent, "%s", verdict.Message)
		}
	}
	return kept
}

// countedNodes gives the nodes of a group as budgets count them. A node for which another requester's retirement waits counts as
// leaving, so that its turn is not taken. It counts once, even if it is unavailable or underutilized too.
func countedNodes(g *Group) []budget.Node {
	counted := make([]budget.Node, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		counted[i] = n.Counted()
		if rt := n.Open(); rt != nil && rt.Spec.RequestedBy != RequestedBy {
			counted[i].Leaving, counted[i].Unavailable = true, cmp.Or(counted[i].Unavailable, "waits to be retired")
		}
	}
	return counted
}

// asked sorts those first whose retirement is asked for.
func (v victim) asked() int {
	if v.Subject.Open() != nil {
		return 0
	}
	return 1
}

// confirm takes the victims away if their pods find room on nodes that are there, and no more machines are wanted without the victims than
// with them. Room on a machine without a Node does not count: it was ordered for other pods, which may then find none.
func (f *fall) confirm(g *Group, victims []victim) error {
	for len(victims) > 0 {
		after, err := f.worst(g, victims)
		if err != nil {
			return err
		}
		if len(after.unplaced) == 0 && after.wants() <= f.before.wants() {
			for i := range victims {
				if err := f.take(g, &victims[i].evacuation); err != nil {
					return err
				}
			}
			return nil
		}
		last := len(victims) - 1
		victims[last].because(WouldComeBack, "%s", f.instead(after))
		victims = victims[:last]
	}
	return nil
}

// shuffles is how many more orders are tried in which the scheduler may come to the pods of victims.
const shuffles = 2

// worst gives the worst decision for the victims of several orders of their pods. The worst is one with a pod that has no room on the other
// nodes, else the one that wants the most. The scheduler's real order is not known. So it is likely, but not certain, that each pod finds
// room.
func (f *fall) worst(g *Group, victims []victim) (*Decision, error) {
	inPlace := func([]placement.PodKey) ([]placement.PodKey, error) { return nil, nil }
	in := func(order func([]placement.PodKey)) func([]placement.PodKey) ([]placement.PodKey, error) {
		return func(pods []placement.PodKey) ([]placement.PodKey, error) {
			order(pods)
			return planner.Scatter(f.Snapshot, f.fork, pods)
		}
	}
	ways := []func([]placement.PodKey) ([]placement.PodKey, error){
		inPlace,
		in(func([]placement.PodKey) {}),
		in(slices.Reverse),
		in(func(pods []placement.PodKey) { slices.SortFunc(pods, compareKeys) }),
	}
	for seed := range uint64(shuffles) {
		dice := rand.New(rand.NewPCG(seed, uint64(len(victims)))) // the same each time, so that a decision can be told again
		ways = append(ways, in(func(pods []placement.PodKey) {
			dice.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		}))
	}
	var worst *Decision
	for _, arrange := range ways {
		d, err := f.without(g, victims, arrange)
		if err != nil {
			return nil, err
		}
		if worst == nil || d.wants() > worst.wants() {
			worst = d
		}
		if len(d.unplaced) > 0 {
			return d, nil
		}
	}
	return worst, nil
}

// without asks what would be ordered with the victims gone and their pods arranged anew.
func (f *fall) without(g *Group, victims []victim, arrange func([]placement.PodKey) ([]placement.PodKey, error)) (*Decision, error) {
	tried := f.Snapshot.Fork()
	defer tried.Rollback()
	gone, lost := f.gone, f.lost
	defer func() { f.gone, f.lost = gone, lost }()
	var pods []placement.PodKey
	for i := range victims {
		if err := f.take(g, &victims[i].evacuation); err != nil {
			return nil, err
		}
		for _, m := range victims[i].evacuation.Moves {
			if !f.inThought(m.Pod) {
				pods = append(pods, m.Pod)
			}
		}
	}
	left, err := arrange(pods)
	if err != nil {
		return nil, err
	}
	d, err := f.up(append(slices.Clone(f.waiting), left...), f.gone, f.lost...)
	if err != nil {
		return nil, err
	}
	d.unplaced = left
	return d, nil
}

// inThought reports whether a pod is on no node, but where it was put while this is decided.
func (f *fall) inThought(key placement.PodKey) bool {
	return f.waits[key] || key.Namespace == slotNamespace
}

// instead says what would follow if a victim went.
func (f *fall) instead(after *Decision) string {
	if more := after.machines() - f.before.machines(); more > 0 {
		for _, o := range after.Orders {
			return fmt.Sprintf("without it %d more machines would be ordered: %s", more, o.Reasons[0])
		}
	}
	if len(after.unplaced) > 0 {
		return fmt.Sprintf("without it the scheduler may find no room for pod %s on another node", after.unplaced[0])
	}
	return "without it pods or spare room would be without a place, and no machine can be ordered for them now"
}

// conclude makes a verdict of the reasons, and says what is to become of a retirement that is open.
func (d *NodeDecision) conclude() {
	rt := d.Subject.Open()
	switch {
	case d.Subject.Counted().Leaving:
		d.Verdict = nodegroup.Retires
		d.Reasons = []nodegroup.Reason{{Rule: nodegroup.UnderWay, Message: "it is leaving"}}
		return
	case len(d.Reasons) == 0:
		d.Verdict = nodegroup.Leaves
		d.Reasons = []nodegroup.Reason{{Rule: nodegroup.LongEnough, Message: "its pods have had another place since " + at(d.Since)}}
	case d.IdleSince == nil:
		d.Verdict = nodegroup.Stays
	case d.Reasons[0].Rule == nodegroup.CoolingDown:
		d.Verdict = nodegroup.Waits
	default:
		d.Verdict = nodegroup.Refused
	}
	if rt == nil {
		return
	}
	if rt.Spec.RequestedBy == RequestedBy && d.Verdict != nodegroup.Leaves && nodegroup.Rescuable(rt) {
		d.CallOff = rt.Name
		return
	}
	d.Verdict = nodegroup.Retires
}
