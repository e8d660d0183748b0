package nodegroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// World is everything that is decided on about one group. It is a value: to decide asks nobody.
type World struct {
	Group *v1alpha1.NodeGroup
	// Accepted says why the group is not acted on; empty when it is.
	NotAccepted string
	Nodes       []Node // those that the group owns
	// CloudMinimum is the cloud's own bound, such as the minimum of an agent pool, below which others would only make machines
	// anew; 0 is none.
	CloudMinimum int
	// Waiting are Pending pods that only this group could run.
	Waiting []Waiting
	Now     time.Time
}

// Node is one node of a group.
type Node struct {
	Object *corev1.Node
	// Keepers are the pods that keep it.
	Keepers Keepers
	// Quiet is for how long this process has seen no such pod on it; below zero when it has never seen one.
	Quiet time.Duration
	// Retirements are those of the node, finished ones included.
	Retirements []v1alpha1.NodeRetirement
}

// openRetirement is the node's retirement that is not over, or nil.
func (n *Node) openRetirement() *v1alpha1.NodeRetirement {
	for i := range n.Retirements {
		if rt := &n.Retirements[i]; !rt.Status.Phase.Finished() && n.isAbout(rt) {
			return rt
		}
	}
	return nil
}

// isAbout reports whether a retirement is about this Node and not about an earlier one of the same name.
func (n *Node) isAbout(rt *v1alpha1.NodeRetirement) bool {
	if c := rt.Status.Captured; c != nil {
		return c.NodeUID == n.Object.UID
	}
	return rt.Spec.NodeUID == "" || rt.Spec.NodeUID == n.Object.UID
}

// lastFailedRetirement is the node's latest retirement that ended early, other than by being called off, or nil.
func (n *Node) lastFailedRetirement() *v1alpha1.NodeRetirement {
	var last *v1alpha1.NodeRetirement
	for i := range n.Retirements {
		rt := &n.Retirements[i]
		if !n.isFailedRetirement(rt) {
			continue
		}
		if last == nil || last.Status.Times.Finished.Before(rt.Status.Times.Finished) {
			last = rt
		}
	}
	return last
}

// isFailedRetirement reports a retirement of the node that ended early, other than by being called off.
func (n *Node) isFailedRetirement(rt *v1alpha1.NodeRetirement) bool {
	failed := rt.Status.Phase == v1alpha1.Aborted || rt.Status.Phase == v1alpha1.Refused || rt.Status.Phase == v1alpha1.Failed
	return failed && n.isAbout(rt) && rt.Status.Times.Finished != nil && retirement.EndedBy(rt) != retirement.CalledOff
}

// toBudgetNode is the node as budgets count it.
func (n *Node) toBudgetNode() budget.Node {
	return budget.NodeOf(n.Object, slices.ContainsFunc(n.Retirements, func(rt v1alpha1.NodeRetirement) bool {
		return n.isAbout(&rt) && retirement.Leaving(&rt)
	}))
}

// isCancellable reports whether a retirement can be called off without a machine being forgotten.
func isCancellable(rt *v1alpha1.NodeRetirement) bool {
	switch rt.Status.Phase {
	case "", v1alpha1.Pending, v1alpha1.Cordoned, v1alpha1.Draining:
		return rt.DeletionTimestamp.IsZero()
	}
	return false
}

// Decide says of each node of a group what is to become of it, by the group's idle rule, and why: all reasons, not only
// the first. The order is that of the nodes' names.
func Decide(w World) ([]Decision, error) {
	var rule *idleRule
	if w.NotAccepted == "" {
		var err error
		if rule, err = newIdleRule(w.Group); err != nil {
			return nil, err
		}
	}
	decisions, kind := make([]Decision, len(w.Nodes)), rule.podSelectorHash()
	for i := range w.Nodes {
		decisions[i] = w.checkNode(rule, kind, &w.Nodes[i])
	}
	w.enforceMinSize(decisions)
	for i := range decisions {
		decisions[i].setVerdict(w.needsNodes(rule), w.Now)
	}
	slices.SortFunc(decisions, func(a, b Decision) int { return cmp.Compare(a.Node, b.Node) })
	return decisions, nil
}

// checkNode applies every rule that needs to know but one node. The kind of pods is that of the idle rule.
func (w *World) checkNode(rule *idleRule, kind string, n *Node) Decision {
	d := Decision{Node: n.Object.Name, node: n, marks: readMarks(n.Object, w.Group.Name, kind)}
	d.marks.Named = isFromFile(w.Group)
	add := func(code, format string, a ...any) {
		d.Reasons = append(d.Reasons, Reason{code, fmt.Sprintf(format, a...)})
	}
	found := Idleness{}
	switch {
	case w.NotAccepted != "":
		add(NotAccepted, "the NodeGroup %s is not acted on: %s", w.Group.Name, w.NotAccepted)
	case rule == nil:
		d.marks.Since, d.marks.Used = time.Time{}, false
		add(NoRule, "the NodeGroup %s has no rule by which nodes leave", w.Group.Name)
	default:
		d.marks, found = rule.assessIdleness(d.marks, podObservation{hasKeepingPod: n.Keepers.Count > 0, quietFor: n.Quiet, now: w.Now})
	}
	switch found.Stage {
	case Busy:
		add(KeepingPod, "%s", n.Keepers)
	case Unused:
		add(NeverUsed, "no pod of the kind has been on it yet")
	case Cooling:
		add(CoolingDown, "idle since %s, and may leave at %s", formatTime(found.Since), formatTime(found.Until))
	}
	if found.Stage == Cooling || found.Stage == Idle {
		d.IdleSince, d.MayLeaveAt = &found.Since, &found.Until
	}
	d.Reasons = append(d.Reasons, w.blockingReasons(rule, n)...)
	return d
}

// Keepers are pods that keep a node. There may be as many as pods in a cluster, every time that a group is looked at: they are
// counted, and one is named.
type Keepers struct {
	// First is the first of them by namespace and name.
	First types.NamespacedName
	Count int
}

// add counts one more.
func (k Keepers) add(p *corev1.Pod) Keepers {
	if k.Count == 0 || cmp.Or(strings.Compare(p.Namespace, k.First.Namespace), strings.Compare(p.Name, k.First.Name)) < 0 {
		k.First = types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	}
	k.Count++
	return k
}

func (k Keepers) String() string {
	if k.Count == 1 {
		return "pod " + k.First.String() + " keeps it"
	}
	return fmt.Sprintf("pod %s and %d more keep it", k.First, k.Count-1)
}

// blockingReasons are the reasons for which a node stays that is idle.
func (w *World) blockingReasons(rule *idleRule, n *Node) (reasons []Reason) {
	add := func(code, format string, a ...any) {
		reasons = append(reasons, Reason{code, fmt.Sprintf(format, a...)})
	}
	if others := budget.Others(n.Object); len(others) > 0 {
		add(BeingRemoved, "%s is removing it", formatNames(others))
	} else if n.Object.DeletionTimestamp != nil {
		add(BeingRemoved, "somebody is deleting the Node")
	}
	if by := HeldBy(n.Object, w.Now); by != "" {
		add(HeldNode, "the annotation %s asks to leave it alone", by)
	}
	if rule != nil && rule.keepForPending && len(w.Waiting) > 0 {
		add(PendingPod, "pod %s is Pending and only this group could run it: %s", w.Waiting[0].Pod, w.Waiting[0].Why)
	}
	if until := w.scaleUpCooldownEnd(); w.Now.Before(until) {
		add(AfterScaleUp, "the group got a node, and nobody leaves before %s", formatTime(until))
	}
	if failed := n.lastFailedRetirement(); failed != nil {
		if until := w.AfterFailure(n); w.Now.Before(until) {
			add(AfterFailure, "the NodeRetirement %s ended as %s (%s), and the next is not before %s", failed.Name, failed.Status.Phase,
				failed.Status.Message, formatTime(until))
		}
	}
	return reasons
}

// HeldBy is the annotation of a Node by which somebody asks for it to be left alone, or empty.
func HeldBy(n *corev1.Node, now time.Time) string {
	return retirement.HeldBy(n.Annotations, n.CreationTimestamp.Time, now)
}

// lastScaleUp is when the group last got a node, as far as the nodes that are there tell; zero without any.
func (w *World) lastScaleUp() time.Time {
	var last time.Time
	for i := range w.Nodes {
		made := w.Nodes[i].Object.CreationTimestamp.Time
		if made.After(last) && !elapsed.Future(made, w.Now) { // the clock was set back since
			last = made
		}
	}
	if s := w.Group.Status.LastScaleUp; s != nil && s.After(last) {
		last = elapsed.Clamp(s.Time, w.Now)
	}
	return last
}

func (w *World) scaleUpCooldownEnd() time.Time {
	d := w.Group.Spec.Cooldowns.AfterScaleUp
	if d == nil || d.Duration <= 0 || w.lastScaleUp().IsZero() {
		return time.Time{}
	}
	return w.lastScaleUp().Add(d.Duration)
}

// enforceMinSize lets as many nodes leave as the group can do without. Those whose retirement waits already come first, then
// those that have been idle for longest.
func (w *World) enforceMinSize(decisions []Decision) {
	stay := 0
	var candidates []*Decision
	for i := range decisions {
		d := &decisions[i]
		if d.node.toBudgetNode().Leaving {
			continue
		}
		stay++
		if len(d.Reasons) == 0 {
			candidates = append(candidates, d)
		}
	}
	slices.SortFunc(candidates, compareByIdleTime)
	for _, d := range candidates {
		if stay <= int(w.Least()) {
			d.Reasons = append(d.Reasons, Reason{Minimum, fmt.Sprintf("%s minimum is %d, and it has no more nodes that stay",
				w.describeMinSizeSource(), w.Least())})
			continue
		}
		stay--
	}
}

// compareByIdleTime orders nodes that may leave. Those whose retirement waits already come before all.
func compareByIdleTime(a, b *Decision) int {
	return cmp.Or(-compareBools(a.node.openRetirement() != nil, b.node.openRetirement() != nil), a.IdleSince.Compare(*b.IdleSince), cmp.Compare(a.Node, b.Node))
}

// sortForExecution gives the decisions in the order in which they are carried out. Of nodes that leave, those that have been idle for
// longest are asked for first, and all of them after what is called off.
func sortForExecution(decisions []Decision) []*Decision {
	all := make([]*Decision, len(decisions))
	for i := range decisions {
		all[i] = &decisions[i]
	}
	slices.SortStableFunc(all, func(a, b *Decision) int {
		if a.Verdict == Leaves && b.Verdict == Leaves {
			return compareByIdleTime(a, b)
		}
		return compareBools(a.Verdict == Leaves, b.Verdict == Leaves)
	})
	return all
}

// Least is how many nodes have to stay: the group's own minimum, or its cloud's where that is more.
func (w *World) Least() int32 { return max(w.Group.Spec.Minimum, int32(w.CloudMinimum)) }

func (w *World) describeMinSizeSource() string {
	if w.Least() > w.Group.Spec.Minimum {
		return "the cloud's own"
	}
	return "the group's"
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// needsNodes reports that a pod waits for just such nodes as the group lets go. It has to be one for which the scheduler has
// looked in vain: any other may be about to be bound to a node that stays.
func (w *World) needsNodes(rule *idleRule) bool {
	return rule != nil && rule.keepForPending && slices.ContainsFunc(w.Waiting, func(p Waiting) bool { return p.Unschedulable })
}

// setVerdict makes a verdict of the reasons, and says what is to become of a retirement that is open. One that waits to be
// admitted is called off when it would not be asked for now; one that is under way when a pod keeps the node, or when the
// group lacks nodes. Then the cooldown begins anew, so that a pod which goes elsewhere does not have nodes leave and stay by
// turns.
func (d *Decision) setVerdict(lacksNode bool, now time.Time) {
	rt := d.node.openRetirement()
	free := len(d.Reasons) == 0
	kept := d.node.Keepers.Count > 0
	switch {
	case free:
		d.Verdict = Leaves
		d.Reasons = []Reason{{LongEnough, fmt.Sprintf("idle since %s, which is long enough", formatTime(*d.IdleSince))}}
	case d.IdleSince == nil:
		d.Verdict = Stays
	case d.Reasons[0].Rule == CoolingDown:
		d.Verdict = Waits
	default:
		d.Verdict = Refused
	}
	if rt == nil {
		return
	}
	if isIdleRetirement(rt) && isCancellable(rt) && !free && (kept || lacksNode || !isAdmitted(rt)) {
		d.CallOff = rt.Name
		if isAdmitted(rt) && !d.marks.Since.IsZero() {
			d.marks.Since = roundUpToSecond(now)
		}
		return
	}
	d.Verdict = Retires
	d.Reasons = append([]Reason{{UnderWay, fmt.Sprintf("the NodeRetirement %s (%s) is %s", rt.Name, rt.Spec.Reason, retirementPhase(rt))}},
		d.Reasons...)
	if free {
		d.Reasons = d.Reasons[:1]
	}
}

func retirementPhase(rt *v1alpha1.NodeRetirement) v1alpha1.Phase {
	return cmp.Or(rt.Status.Phase, v1alpha1.Pending)
}

// isIdleRetirement reports whether a retirement is one that the idle rule asked for: it is for that rule to call it off. What somebody
// else asked for, whatever the reason given, is not.
func isIdleRetirement(rt *v1alpha1.NodeRetirement) bool {
	return rt.Spec.Reason == v1alpha1.Idle && rt.Spec.RequestedBy == RequestedBy
}

func isAdmitted(rt *v1alpha1.NodeRetirement) bool {
	return meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted)
}

// toStatus is how the group is found. The conditions are given; times that were known stay known.
func (w *World) toStatus(look cloudReading) v1alpha1.NodeGroupStatus {
	s := *w.Group.Status.DeepCopy()
	s.ObservedGeneration = w.Group.Generation
	s.Nodes, s.Ready, s.Leaving, s.Unavailable = int32(len(w.Nodes)), 0, 0, 0
	var counted []budget.Node
	for i := range w.Nodes {
		n := &w.Nodes[i]
		c := n.toBudgetNode()
		counted = append(counted, c)
		if c.Leaving {
			s.Leaving++
		}
		if c.Unavailable != "" {
			s.Unavailable++
		}
		if budget.Ready(n.Object) && !n.Object.Spec.Unschedulable {
			s.Ready++
		}
	}
	s.CloudMinimum = int32(w.CloudMinimum)
	spec := w.Group.Spec
	spec.Minimum = w.Least()
	s.AllowedDisruptions = int32(budget.Room(&spec, counted, v1alpha1.Requested, w.Now))
	if w.NotAccepted != "" {
		s.AllowedDisruptions = 0
	}
	if look.known && look.err == nil {
		size := int32(look.group.Size)
		s.CloudSize = &size
	}
	return s
}
