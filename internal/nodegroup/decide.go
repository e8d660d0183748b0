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
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// GroupSnapshot is the input of the decisions on one group. It holds all values that a decision needs, so a decision
// sends no request.
type GroupSnapshot struct {
	Group *v1alpha1.NodeGroup
	// NotAccepted is why the group is not accepted. It is empty for an accepted group.
	NotAccepted string
	Nodes       []Node // the nodes that the group owns
	// CloudMinSize is the cloud's own minimum, such as the minimum of an agent pool. Below it the cloud's autoscaler
	// would create instances again. 0 means none.
	CloudMinSize int
	// PendingPods are Pending pods that only this group could run.
	PendingPods []GroupOnlyPod
	Now         time.Time
}

// Node is a node of a group, with its pods and retirements.
type Node struct {
	Object *corev1.Node
	// KeepingPods are the pods that keep it.
	KeepingPods KeepingPods
	// QuietFor is for how long this process has seen no keeping pod on it. It is negative if it has never seen one.
	QuietFor time.Duration
	// Retirements are the node's retirements, including finished ones.
	Retirements []v1alpha1.NodeRetirement
}

// openRetirement returns the node's unfinished retirement, or nil.
func (n *Node) openRetirement() *v1alpha1.NodeRetirement {
	for i := range n.Retirements {
		if rt := &n.Retirements[i]; !rt.Status.Phase.IsFinal() && retirement.MayTargetNode(rt, n.Object.UID) {
			return rt
		}
	}
	return nil
}

// lastFailedRetirement returns the node's latest retirement that ended early, or nil. It ignores cancelled retirements.
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

// isFailedRetirement reports whether the retirement of the node ended early and was not cancelled.
func (n *Node) isFailedRetirement(rt *v1alpha1.NodeRetirement) bool {
	failed := rt.Status.Phase == v1alpha1.Aborted || rt.Status.Phase == v1alpha1.Refused || rt.Status.Phase == v1alpha1.Failed
	return failed && retirement.MayTargetNode(rt, n.Object.UID) && rt.Status.Times.Finished != nil && retirement.EarlyEndCode(rt) != retirement.Cancelled
}

// toBudgetNode returns the node as disruption budgets count it.
func (n *Node) toBudgetNode() disruptionbudget.Node {
	return disruptionbudget.NewNode(n.Object, slices.ContainsFunc(n.Retirements, func(rt v1alpha1.NodeRetirement) bool {
		return retirement.MayTargetNode(&rt, n.Object.UID) && retirement.WillRemoveNode(&rt)
	}))
}

// isCancellable reports whether the retirement can be cancelled now. After the drain it cannot, because the instance
// could then be forgotten.
func isCancellable(rt *v1alpha1.NodeRetirement) bool {
	switch rt.Status.Phase {
	case "", v1alpha1.Pending, v1alpha1.Cordoned, v1alpha1.Draining:
		return rt.DeletionTimestamp.IsZero()
	}
	return false
}

// DecideIdle makes the idle rule's decision on each node of a group. Each decision has all its reasons, not only the
// first. The result is sorted by node name.
func DecideIdle(w GroupSnapshot) ([]Decision, error) {
	var rule *idleRule
	if w.NotAccepted == "" {
		var err error
		if rule, err = newIdleRule(w.Group); err != nil {
			return nil, err
		}
	}
	decisions, selectorHash := make([]Decision, len(w.Nodes)), rule.podSelectorHash()
	for i := range w.Nodes {
		decisions[i] = w.newIdleDecision(rule, selectorHash, &w.Nodes[i])
	}
	w.addMinSizeReasons(decisions)
	for i := range decisions {
		decisions[i].setVerdictAndCancellation(w.needsNodes(rule))
	}
	slices.SortFunc(decisions, func(a, b Decision) int { return cmp.Compare(a.Node, b.Node) })
	return decisions, nil
}

// newIdleDecision returns the decision on one node, by the rules that depend only on this node. selectorHash is the
// result of idleRule.podSelectorHash.
func (w *GroupSnapshot) newIdleDecision(rule *idleRule, selectorHash string, n *Node) Decision {
	d := Decision{Node: n.Object.Name, node: n, marks: readMarks(n.Object, w.Group.Name, selectorHash)}
	d.marks.AlwaysNamed = isFromFile(w.Group)
	add := func(code, format string, a ...any) {
		d.Reasons = append(d.Reasons, Reason{code, fmt.Sprintf(format, a...)})
	}
	found := Idleness{}
	switch {
	case w.NotAccepted != "":
		add(NotAccepted, "the NodeGroup %s is not accepted: %s", w.Group.Name, w.NotAccepted)
	case rule == nil:
		d.marks.Since, d.marks.Used = time.Time{}, false
		add(NoRule, "the NodeGroup %s has no rule that retires nodes", w.Group.Name)
	default:
		d.marks, found = rule.assessIdleness(d.marks, podObservation{hasKeepingPod: n.KeepingPods.Count > 0, quietFor: n.QuietFor, now: w.Now})
	}
	switch found.Stage {
	case Busy:
		add(KeepingPod, "%s", n.KeepingPods)
	case Unused:
		add(NeverUsed, "no pod that spec.scaleDown.idleByLabel selects has run on it yet")
	case Cooling:
		add(CoolingDown, "idle since %s; it may be retired at %s", formatTime(found.Since), formatTime(found.Until))
	}
	if found.Stage == Cooling || found.Stage == Idle {
		d.IdleSince, d.RemovableAt = &found.Since, &found.Until
	}
	d.Reasons = append(d.Reasons, w.blockingReasons(rule, n)...)
	return d
}

// KeepingPods are the pods that keep a node from being idle. There may be very many, so it has their number and only
// the first name.
type KeepingPods struct {
	// First is the first of them by namespace and name.
	First types.NamespacedName
	Count int
}

// withPod returns k with one more pod.
func (k KeepingPods) withPod(p *corev1.Pod) KeepingPods {
	if k.Count == 0 || cmp.Or(strings.Compare(p.Namespace, k.First.Namespace), strings.Compare(p.Name, k.First.Name)) < 0 {
		k.First = types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	}
	k.Count++
	return k
}

func (k KeepingPods) String() string {
	if k.Count == 1 {
		return "pod " + k.First.String() + " keeps it"
	}
	return fmt.Sprintf("pod %s and %d more keep it", k.First, k.Count-1)
}

// blockingReasons returns the reasons why a node must not be retired although it is idle.
func (w *GroupSnapshot) blockingReasons(rule *idleRule, n *Node) (reasons []Reason) {
	add := func(code, format string, a ...any) {
		reasons = append(reasons, Reason{code, fmt.Sprintf(format, a...)})
	}
	if others := disruptionbudget.FindRemovingTools(n.Object); len(others) > 0 {
		add(BeingRemoved, "%s is removing it", formatNames(others))
	} else if n.Object.DeletionTimestamp != nil {
		add(BeingRemoved, "another client is deleting the Node")
	}
	if by := FindKeepAnnotation(n.Object, w.Now); by != "" {
		add(HeldNode, "the annotation %s keeps it", by)
	}
	if rule != nil && rule.keepForPending && len(w.PendingPods) > 0 {
		add(PendingPod, "pod %s is Pending and only this group could run it: %s", w.PendingPods[0].Pod, w.PendingPods[0].Reason)
	}
	if until := w.scaleUpCooldownEnd(); w.Now.Before(until) {
		add(AfterScaleUp, "the group got a node; no node is retired before %s", formatTime(until))
	}
	if failed := n.lastFailedRetirement(); failed != nil {
		if until := w.FailureCooldownEnd(n); w.Now.Before(until) {
			add(AfterFailure, "the NodeRetirement %s ended as %s (%s); the next is not before %s", failed.Name, failed.Status.Phase,
				failed.Status.Message, formatTime(until))
		}
	}
	return reasons
}

// FindKeepAnnotation returns the key of the annotation that forbids the retirement of a Node, or "" if there is none.
func FindKeepAnnotation(n *corev1.Node, now time.Time) string {
	return retirement.FindProtectingAnnotation(n.Annotations, n.CreationTimestamp.Time, now)
}

// lastScaleUp returns when the group last got a node, by the creation times of its nodes and by its status. It returns
// zero if that is unknown.
func (w *GroupSnapshot) lastScaleUp() time.Time {
	var last time.Time
	for i := range w.Nodes {
		made := w.Nodes[i].Object.CreationTimestamp.Time
		if made.After(last) && !elapsed.IsFuture(made, w.Now) { // the clock was set back since
			last = made
		}
	}
	if s := w.Group.Status.LastScaleUp; s != nil && s.After(last) {
		last = elapsed.ClampToNow(s.Time, w.Now)
	}
	return last
}

func (w *GroupSnapshot) scaleUpCooldownEnd() time.Time {
	d := w.Group.Spec.Cooldowns.AfterScaleUp
	if d == nil || d.Duration <= 0 || w.lastScaleUp().IsZero() {
		return time.Time{}
	}
	return w.lastScaleUp().Add(d.Duration)
}

// addMinSizeReasons adds a reason against the retirement to each node that the group needs for its minimum size. If the
// group needs only some nodes, it lets nodes with an open retirement go first, then the nodes that have been idle
// longest.
func (w *GroupSnapshot) addMinSizeReasons(decisions []Decision) {
	stay := 0
	var candidates []*Decision
	for i := range decisions {
		d := &decisions[i]
		if d.node.toBudgetNode().BeingRemoved {
			continue
		}
		stay++
		if len(d.Reasons) == 0 {
			candidates = append(candidates, d)
		}
	}
	slices.SortFunc(candidates, compareByIdleTime)
	for _, d := range candidates {
		if stay <= int(w.MinSize()) {
			d.Reasons = append(d.Reasons, Reason{Minimum, fmt.Sprintf("retiring it would leave %d of the %d nodes that %s minimum requires",
				stay-1, w.MinSize(), w.describeMinSizeSource())})
			continue
		}
		stay--
	}
}

// compareByIdleTime sorts nodes with an open retirement first, and then nodes by the time since they are idle, the
// longest first.
func compareByIdleTime(a, b *Decision) int {
	return cmp.Or(-compareBools(a.node.openRetirement() != nil, b.node.openRetirement() != nil), a.IdleSince.Compare(*b.IdleSince), cmp.Compare(a.Node, b.Node))
}

// sortForExecution returns the decisions in the order of execution: retirements last, and all others, such as
// cancellations, before. The node that has been idle longest is retired first.
func sortForExecution(decisions []Decision) []*Decision {
	all := make([]*Decision, len(decisions))
	for i := range decisions {
		all[i] = &decisions[i]
	}
	slices.SortStableFunc(all, func(a, b *Decision) int {
		if a.Verdict == VerdictDue && b.Verdict == VerdictDue {
			return compareByIdleTime(a, b)
		}
		return compareBools(a.Verdict == VerdictDue, b.Verdict == VerdictDue)
	})
	return all
}

// MinSize returns how many nodes the group must have at least. It is the greater of the minimum in the spec and the
// minimum of the cloud.
func (w *GroupSnapshot) MinSize() int32 { return max(w.Group.Spec.MinSize, int32(w.CloudMinSize)) }

func (w *GroupSnapshot) describeMinSizeSource() string {
	if w.MinSize() > w.Group.Spec.MinSize {
		return "the cloud's own"
	}
	return "the group's"
}

// CountAllowedDisruptions returns how many more nodes of the group may be retired now. nodes are all nodes of the group. It
// returns 0 for a group that is not accepted.
func (w *GroupSnapshot) CountAllowedDisruptions(nodes []disruptionbudget.Node) int {
	if w.NotAccepted != "" {
		return 0
	}
	spec := w.Group.Spec
	spec.MinSize = w.MinSize()
	return disruptionbudget.CountRemainingDisruptions(&spec, nodes, v1alpha1.Requested, w.Now)
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

// needsNodes reports whether an unschedulable pod exists that only nodes of this group can run. Other pending pods do
// not count, because a remaining node may still run them.
func (w *GroupSnapshot) needsNodes(rule *idleRule) bool {
	return rule != nil && rule.keepForPending && slices.ContainsFunc(w.PendingPods, func(p GroupOnlyPod) bool { return p.Unschedulable })
}

// setVerdictAndCancellation sets the verdict from the reasons, and decides whether an open retirement is cancelled. A
// retirement that is not admitted is cancelled if the rule would not request it now. An admitted one is cancelled if a
// pod keeps the node from being idle, or if the group needs nodes. Package retirement then restarts the cooldown.
func (d *Decision) setVerdictAndCancellation(lacksNode bool) {
	rt := d.node.openRetirement()
	free := len(d.Reasons) == 0
	kept := d.node.KeepingPods.Count > 0
	switch {
	case free:
		d.Verdict = VerdictDue
		d.Reasons = []Reason{{LongEnough, fmt.Sprintf("idle since %s: the cooldown has passed", formatTime(*d.IdleSince))}}
	case d.IdleSince == nil:
		d.Verdict = VerdictKept
	case d.Reasons[0].Rule == CoolingDown:
		d.Verdict = VerdictCoolingDown
	default:
		d.Verdict = VerdictBlocked
	}
	if rt == nil {
		return
	}
	if isIdleRetirement(rt) && isCancellable(rt) && !free && (kept || lacksNode || !isAdmitted(rt)) {
		d.CancelledRetirement = rt.Name
		return
	}
	d.Verdict = VerdictRetiring
	d.Reasons = append([]Reason{{UnderWay, fmt.Sprintf("the NodeRetirement %s (%s) is %s", rt.Name, rt.Spec.Reason, retirementPhase(rt))}},
		d.Reasons...)
	if free {
		d.Reasons = d.Reasons[:1]
	}
}

func retirementPhase(rt *v1alpha1.NodeRetirement) v1alpha1.Phase {
	return cmp.Or(rt.Status.Phase, v1alpha1.Pending)
}

// isIdleRetirement reports whether the idle rule has requested this retirement. The rule cancels only such retirements.
func isIdleRetirement(rt *v1alpha1.NodeRetirement) bool {
	return rt.Spec.Reason == v1alpha1.Idle && rt.Spec.RequestedBy == IdleRequester
}

func isAdmitted(rt *v1alpha1.NodeRetirement) bool {
	return meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted)
}

// toStatus returns the new status of the group, without changes of conditions. Values that are unknown now are taken
// from the old status.
func (w *GroupSnapshot) toStatus(reading cloudReading) v1alpha1.NodeGroupStatus {
	s := *w.Group.Status.DeepCopy()
	s.ObservedGeneration = w.Group.Generation
	s.Nodes, s.Ready, s.Retiring, s.Unavailable = int32(len(w.Nodes)), 0, 0, 0
	var counted []disruptionbudget.Node
	for i := range w.Nodes {
		n := &w.Nodes[i]
		c := n.toBudgetNode()
		counted = append(counted, c)
		if c.BeingRemoved {
			s.Retiring++
		}
		if c.UnavailableReason != "" {
			s.Unavailable++
		}
		if disruptionbudget.IsReady(n.Object) && !n.Object.Spec.Unschedulable {
			s.Ready++
		}
	}
	s.CloudMinSize = int32(w.CloudMinSize)
	s.AllowedDisruptions = int32(w.CountAllowedDisruptions(counted))
	if reading.known && reading.err == nil {
		size := int32(reading.group.Size)
		s.CloudSize = &size
	}
	return s
}
