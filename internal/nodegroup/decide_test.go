package nodegroup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const pool = "pool"

// newGroup returns a NodeGroup that retires nodes of a pool after 10 minutes without a CI pod.
func newGroup(name string) *v1alpha1.NodeGroup {
	return &v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(noon)},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{pool: name}},
			Cloud:        v1alpha1.CloudGroup{Provider: "sim", Group: name},
			ScaleDown: &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"ci": "true"}},
				Cooldown:    metav1.Duration{Duration: 10 * minute},
			}},
		},
	}
}

// ciKind is the hash of the pods that keep the nodes of such a group.
var ciKind = func() string {
	rule, err := newIdleRule(newGroup(""))
	if err != nil {
		panic(err)
	}
	return rule.podSelectorHash()
}()

// newNode returns a Ready node of a pool that is one day old.
func newNode(name, of string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{pool: of}, ResourceVersion: "1",
			CreationTimestamp: metav1.NewTime(noon.Add(-24 * time.Hour)),
		},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// newIdleNode returns a node that has been idle for a time.
func newIdleNode(name string, of string, ago time.Duration) Node {
	n := newNode(name, of)
	n.Annotations = map[string]string{
		annotationGroup: of, annotationUsed: annotationTrue, annotationSince: noon.Add(-ago).Format(time.RFC3339), annotationSelectorHash: ciKind,
	}
	return Node{Object: &n, QuietFor: -1}
}

func mustDecide(t must.T, w GroupSnapshot) map[string]Decision {
	all, err := DecideIdle(w)
	must.NoError(t, err)
	by := map[string]Decision{}
	for _, d := range all {
		by[d.Node] = d
	}
	return by
}

func newFailedRetirement(node string, phase v1alpha1.Phase, ago time.Duration) v1alpha1.NodeRetirement {
	over := metav1.NewTime(noon.Add(-ago))
	return v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-idle", UID: types.UID("failed-" + node)},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, Reason: v1alpha1.Idle, RequestedBy: IdleRequester},
		Status:     v1alpha1.NodeRetirementStatus{Phase: phase, Times: v1alpha1.PhaseTimes{Finished: &over}, Message: "no"},
	}
}

func newOpenRetirement(node string, phase v1alpha1.Phase, in bool) v1alpha1.NodeRetirement {
	rt := v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-idle", UID: types.UID("open-" + node)},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, Reason: v1alpha1.Idle, RequestedBy: IdleRequester},
		Status:     v1alpha1.NodeRetirementStatus{Phase: phase},
	}
	if in {
		rt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}}
	}
	return rt
}

// TestI5PredictionCountsTheMinimumOfTheCloud compares with the manager, which reads the minimum from the cloud.
func TestI5PredictionCountsTheMinimumOfTheCloud(t *testing.T) {
	for cloudMinSize, want := range map[int32]Verdict{0: VerdictDue, 1: VerdictBlocked} {
		g, idle := newGroup("ci"), newIdleNode("a", "ci", time.Hour)
		g.Status.CloudMinSize = cloudMinSize
		g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}}
		c := NewCluster(live.NewListingPodReader(newFixture(t)), []v1alpha1.NodeGroup{*g}, []corev1.Node{*idle.Object}, nil, noon)
		decisions := must.Get(c.PredictDecisionsByIdleRule(t.Context(), g))(t)
		if len(decisions) != 1 || decisions[0].Verdict != want || (want == VerdictBlocked) != (decisions[0].Reasons[0].Rule == Minimum) {
			t.Errorf("minimum %d of the cloud: %+v, want %s", cloudMinSize, decisions, want)
		}
	}
}

func TestIdleNodeVerdicts(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(*GroupSnapshot, *Node)
		verdict   Verdict
		rules     []string
		cancelled bool
	}{
		"leaves":                                {nil, VerdictDue, []string{LongEnough}, false},
		"stays for a Pending pod":               {func(w *GroupSnapshot, _ *Node) { w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why"}} }, VerdictBlocked, []string{PendingPod}, false},
		"stays in a group that is not accepted": {func(w *GroupSnapshot, _ *Node) { w.NotAccepted = "no" }, VerdictKept, []string{NotAccepted}, false},
		"stays when the group just got a node": {func(w *GroupSnapshot, _ *Node) {
			w.Group.Spec.Cooldowns.AfterScaleUp = &metav1.Duration{Duration: time.Hour}
			w.Group.Status.LastScaleUp = &metav1.Time{Time: noon.Add(-minute)}
		}, VerdictBlocked, []string{AfterScaleUp}, false},
		"leaves after that cooldown": {func(w *GroupSnapshot, _ *Node) {
			w.Group.Spec.Cooldowns.AfterScaleUp = &metav1.Duration{Duration: minute}
			w.Group.Status.LastScaleUp = &metav1.Time{Time: noon.Add(-minute)}
		}, VerdictDue, []string{LongEnough}, false},
		"stays when its retirement was just refused": {func(_ *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newFailedRetirement("a", v1alpha1.Refused, 4*minute)}
		}, VerdictBlocked, []string{AfterFailure}, false},
		"leaves after the failure cooldown": {func(_ *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newFailedRetirement("a", v1alpha1.Refused, 5*minute)}
		}, VerdictDue, []string{LongEnough}, false},
		"leaves after a cancelled retirement": {func(_ *GroupSnapshot, n *Node) {
			rt := newFailedRetirement("a", v1alpha1.Refused, minute)
			rt.Status.Reasons = []v1alpha1.RetirementReason{{Code: retirement.Cancelled}}
			n.Retirements = []v1alpha1.NodeRetirement{rt}
		}, VerdictDue, []string{LongEnough}, false},
		"leaves after a failure of an earlier Node": {func(_ *GroupSnapshot, n *Node) {
			rt := newFailedRetirement("a", v1alpha1.Aborted, minute)
			rt.Spec.NodeUID = "another"
			n.Retirements = []v1alpha1.NodeRetirement{rt}
		}, VerdictDue, []string{LongEnough}, false},
		"I6: stays when another tool removes it": {func(_ *GroupSnapshot, n *Node) {
			n.Object.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, VerdictBlocked, []string{BeingRemoved}, false},
		"stays with a keep annotation": {func(_ *GroupSnapshot, n *Node) { n.Object.Annotations["karpenter.sh/do-not-disrupt"] = annotationTrue }, VerdictBlocked, []string{HeldNode}, false},
		"stays when another keeps cluster-autoscaler off": {func(_ *GroupSnapshot, n *Node) {
			n.Object.Annotations[drainability.ScaleDownDisabled] = annotationTrue
		}, VerdictBlocked, []string{HeldNode}, false},
		"leaves when Slipway keeps cluster-autoscaler off": {func(_ *GroupSnapshot, n *Node) {
			n.Object.Annotations[drainability.ScaleDownDisabled], n.Object.Annotations[drainability.ScaleDownDisabledBySlipway] = annotationTrue, annotationTrue
		}, VerdictDue, []string{LongEnough}, false},
		"I5: stays at the minimum":         {func(w *GroupSnapshot, _ *Node) { w.Group.Spec.MinSize = 1 }, VerdictBlocked, []string{Minimum}, false},
		"I5: stays at the cloud's minimum": {func(w *GroupSnapshot, _ *Node) { w.CloudMinSize = 1 }, VerdictBlocked, []string{Minimum}, false},
		"stays for several reasons": {func(w *GroupSnapshot, n *Node) {
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why"}}
			n.Retirements = []v1alpha1.NodeRetirement{newFailedRetirement("a", v1alpha1.Refused, minute)}
		}, VerdictBlocked, []string{PendingPod, AfterFailure}, false},
		"is not retired twice": {func(_ *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Draining, true)}
		}, VerdictRetiring, []string{UnderWay}, false},
		"pending retirement is cancelled when the node stays": {func(w *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Pending, false)}
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why"}}
		}, VerdictBlocked, []string{PendingPod}, true},
		"drain continues for a pod that may still fit": {func(w *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Draining, true)}
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why"}}
		}, VerdictRetiring, []string{UnderWay, PendingPod}, false},
		"drain is cancelled by an unschedulable pod": {func(w *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Draining, true)}
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why", Unschedulable: true}}
		}, VerdictBlocked, []string{PendingPod}, true},
		"drain continues without keepForPending": {func(w *GroupSnapshot, n *Node) {
			no := false
			w.Group.Spec.ScaleDown.IdleByLabel.KeepForPending = &no
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Draining, true)}
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why", Unschedulable: true}}
		}, VerdictRetiring, []string{UnderWay}, false},
		"pending pod cannot cancel after Node deletion": {func(w *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Drained, true)}
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why", Unschedulable: true}}
		}, VerdictRetiring, []string{UnderWay, PendingPod}, false},
		"drain is cancelled by a pod on the node": {func(_ *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Draining, true)}
			n.KeepingPods = KeepingPods{types.NamespacedName{Namespace: "ci", Name: "x"}, 1}
		}, VerdictKept, []string{KeepingPod}, true},
		"cannot be cancelled after Node deletion": {func(_ *GroupSnapshot, n *Node) {
			n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement("a", v1alpha1.Drained, true)}
			n.KeepingPods = KeepingPods{types.NamespacedName{Namespace: "ci", Name: "x"}, 1}
		}, VerdictRetiring, []string{UnderWay, KeepingPod}, false},
		"another requester's idle retirement is not cancelled": {func(w *GroupSnapshot, n *Node) {
			rt := newOpenRetirement("a", v1alpha1.Pending, false)
			rt.Spec.RequestedBy = "somebody@example.com"
			n.Retirements = []v1alpha1.NodeRetirement{rt}
			w.PendingPods = []GroupOnlyPod{{Pod: "ci/x", Reason: "why"}}
			n.KeepingPods = KeepingPods{types.NamespacedName{Namespace: "ci", Name: "x"}, 1}
		}, VerdictRetiring, []string{UnderWay, KeepingPod, PendingPod}, false},
		"another requester's retirement is not cancelled": {func(_ *GroupSnapshot, n *Node) {
			rt := newOpenRetirement("a", v1alpha1.Draining, true)
			rt.Spec.Reason = v1alpha1.Requested
			n.Retirements = []v1alpha1.NodeRetirement{rt}
			n.KeepingPods = KeepingPods{types.NamespacedName{Namespace: "ci", Name: "x"}, 1}
		}, VerdictRetiring, []string{UnderWay, KeepingPod}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := GroupSnapshot{Group: newGroup("ci"), Nodes: []Node{newIdleNode("a", "ci", 10*minute)}, Now: noon}
			if tt.change != nil {
				tt.change(&w, &w.Nodes[0])
			}
			d := mustDecide(t, w)["a"]
			var rules []string
			for _, r := range d.Reasons {
				rules = append(rules, r.Rule)
			}
			if d.Verdict != tt.verdict || !slices.Equal(rules, tt.rules) || (d.CancelledRetirement != "") != tt.cancelled {
				t.Errorf("%s (%s), cancel %q; want %s %v, cancel %t", d.Verdict, JoinReasons(d.Reasons), d.CancelledRetirement, tt.verdict,
					tt.rules, tt.cancelled)
			}
		})
	}
}

func TestLongestIdleNodesRetireDownToMinSize(t *testing.T) {
	w := GroupSnapshot{Group: newGroup("ci"), Now: noon, Nodes: []Node{
		newIdleNode("a", "ci", 20*minute), newIdleNode("b", "ci", 40*minute), newIdleNode("c", "ci", 30*minute), newIdleNode("d", "ci", 5*minute),
	}}
	w.Group.Spec.MinSize = 2
	got := mustDecide(t, w)
	for name, want := range map[string]Verdict{"a": VerdictBlocked, "b": VerdictDue, "c": VerdictDue, "d": VerdictCoolingDown} {
		if got[name].Verdict != want {
			t.Errorf("%s: %s (%s), want %s", name, got[name].Verdict, JoinReasons(got[name].Reasons), want)
		}
	}
}

// TestI5MinSizeStaysHoweverManyAreIdle draws random groups of nodes in all states.
func TestI5MinSizeStaysHoweverManyAreIdle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := GroupSnapshot{Group: newGroup("ci"), Now: noon}
		w.Group.Spec.MinSize = int32(rapid.IntRange(0, 6).Draw(t, "minimum"))
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			name := fmt.Sprint("n", i)
			n := newIdleNode(name, "ci", time.Duration(rapid.IntRange(0, 20).Draw(t, "idle for, min"))*minute)
			switch rapid.IntRange(0, 5).Draw(t, "how it is") {
			case 0:
				n.KeepingPods = KeepingPods{types.NamespacedName{Namespace: "ci", Name: "x"}, 1}
			case 1:
				n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement(name, v1alpha1.Draining, true)}
			case 2:
				n.Retirements = []v1alpha1.NodeRetirement{newOpenRetirement(name, v1alpha1.Pending, false)}
			case 3:
				n.Object.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
			}
			w.Nodes = append(w.Nodes, n)
		}
		stay, leave := 0, 0
		for _, d := range mustDecide(t, w) {
			going := d.node.toBudgetNode().BeingRemoved
			waiting := d.Verdict == VerdictRetiring && !going
			switch {
			case going:
			case d.Verdict == VerdictDue || waiting:
				leave++
			default:
				stay++
			}
			if len(d.Reasons) == 0 {
				t.Fatalf("%s: %s without a reason", d.Node, d.Verdict)
			}
			if d.Verdict == VerdictDue && d.node.KeepingPods.Count > 0 {
				t.Fatalf("%s leaves with %v on it", d.Node, d.node.KeepingPods)
			}
		}
		if leave > 0 && stay < int(w.Group.Spec.MinSize) {
			t.Fatalf("%d leave, %d stay, and the minimum is %d", leave, stay, w.Group.Spec.MinSize)
		}
	})
}

func TestDecisionReasonsFormOneSentence(t *testing.T) {
	w := GroupSnapshot{Group: newGroup("ci"), Nodes: []Node{newIdleNode("a", "ci", 9*minute)}, PendingPods: []GroupOnlyPod{{Pod: "ci/x", Reason: "no other node takes it now"}}, Now: noon}
	got := JoinReasons(mustDecide(t, w)["a"].Reasons)
	want := "CoolingDown: idle since 2026-11-21T11:51:00Z; it may be retired at 2026-11-21T12:01:00Z; " +
		"PendingPod: pod ci/x is Pending and only this group could run it: no other node takes it now"
	check.Is(t, want, got)
}

func newKeptNode(name string) Node {
	n := newNode(name, "ci")
	return Node{Object: &n, KeepingPods: KeepingPods{types.NamespacedName{Namespace: "ci", Name: "runner"}, 1}}
}

func TestI5NodeTakenByItsCloudDoesNotCount(t *testing.T) {
	for kind, want := range map[string]Verdict{"Preempt": VerdictBlocked, "Terminate": VerdictBlocked, "Reboot": VerdictDue} {
		w := GroupSnapshot{Group: newGroup("ci"), Nodes: []Node{newIdleNode("a", "ci", 10*minute), newKeptNode("b"), newKeptNode("c")}, Now: noon}
		w.Group.Spec.MinSize = 2
		rt := newOpenRetirement("b", v1alpha1.Pending, false)
		rt.Spec.Reason, rt.Spec.Notice = v1alpha1.Notice, &v1alpha1.NoticeReference{Source: "azure", ID: "e1", Type: kind}
		w.Nodes[1].Retirements = []v1alpha1.NodeRetirement{rt}
		if d := mustDecide(t, w)["a"]; d.Verdict != want {
			t.Errorf("%s: %s: %s, want %s", kind, d.Verdict, JoinReasons(d.Reasons), want)
		}
	}
}
