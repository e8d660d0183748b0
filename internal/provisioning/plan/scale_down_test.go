package plan

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func newUnderutilizedGroup(change ...func(*v1alpha1.NodeGroup)) *v1alpha1.NodeGroup {
	g := newNodeGroup("web", 20, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
	})
	for _, c := range change {
		c(g)
	}
	return g
}

// withPassedCooldown makes a node underutilized for ten minutes.
func withPassedCooldown(n *corev1.Node) {
	n.Annotations = map[string]string{UnderutilizedSinceAnnotation: start.Add(-10 * time.Minute).Format(time.RFC3339)}
}

// notReadyYet makes a node one that has just joined.
func notReadyYet(n *corev1.Node) {
	n.CreationTimestamp, n.Status.Conditions[0].Status = metav1.NewTime(start), corev1.ConditionFalse
}

func newWebNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	return newNode("web", name, machineResources("4", "16Gi"), change...)
}

func ownedByDaemonSet(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }

func decideDown(t testing.TB, w *Input) map[string]NodeDecision {
	t.Helper()
	all := must.Get(DecideScaleDown(w))(t)
	out := map[string]NodeDecision{}
	for _, d := range all {
		out[d.Node] = d
	}
	return out
}

func TestNodeWithoutGroupIsNeverRetired(t *testing.T) {
	g := newUnderutilizedGroup()
	foreign := func(name string) *corev1.Node { return newNode("", name, machineResources("4", "16Gi")) }
	nodes := []*corev1.Node{foreign("a"), foreign("b"), newWebNode("c", withPassedCooldown), newWebNode("d", withPassedCooldown), foreign("e")}
	all := decideDown(t, newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nodes, nil))
	for _, name := range []string{"c", "d"} {
		check.Is(t, nodegroup.VerdictDue, all[name].Verdict, name, all[name].Reasons)
	}
	check.Is(t, 2, len(all), all)
}

func TestUnderutilizedNodeIsRetiredAfterTheCooldown(t *testing.T) {
	g := newUnderutilizedGroup()
	leaves := func(name string) map[string]nodegroup.Verdict {
		return map[string]nodegroup.Verdict{name: nodegroup.VerdictDue}
	}
	many := func(g *v1alpha1.NodeGroup) { g.Spec.ScaleDown.Underutilized.Consolidate = true }
	few := func(g *v1alpha1.NodeGroup) {
		one := int32(1)
		g.Spec.ScaleDown.Underutilized.PodsAtMost = &one
	}
	for name, c := range map[string]struct {
		group  *v1alpha1.NodeGroup
		nodes  []*corev1.Node
		pods   []*corev1.Pod
		change func(*Input)
		want   map[string]nodegroup.Verdict // the other nodes: Stays
		rule   map[string]string
	}{
		"little is requested": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "1", "1Gi"), newPod("y", "b", "3", "1Gi")},
			want:  leaves("a"), rule: map[string]string{"b": Used},
		},
		"pods of DaemonSets do not count": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "1", "1Gi"), newPod("d", "a", "2", "1Gi", ownedByDaemonSet), newPod("y", "b", "3", "1Gi")},
			want:  leaves("a"),
		},
		"the cooldown has not passed": {
			nodes: []*corev1.Node{newWebNode("a"), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "1", "1Gi"), newPod("y", "b", "3", "1Gi")},
			want:  map[string]nodegroup.Verdict{"a": nodegroup.VerdictCoolingDown}, rule: map[string]string{"a": nodegroup.CoolingDown},
		},
		"its pods fit nowhere else": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "1500m", "1Gi"), newPod("y", "b", "3", "1Gi")},
			rule:  map[string]string{"a": NoPlace},
		},
		"a pending pod needs the other place": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "500m", "1Gi"), newPod("y", "b", "3", "1Gi"), newPod("z", "", "3", "1Gi")},
			rule:  map[string]string{"a": NoPlace},
		},
		"a provisioning instance is no place yet": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown)},
			pods:  []*corev1.Pod{newPod("x", "a", "500m", "1Gi")},
			change: func(w *Input) {
				w.Groups[0].Provisioning, w.Groups[0].Size = []launch.ProvisioningInstance{{ID: "1"}}, 2
			},
			rule: map[string]string{"a": NoPlace},
		},
		"a starting node is no place yet": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", notReadyYet)},
			pods:  []*corev1.Pod{newPod("x", "a", "500m", "1Gi")},
			rule:  map[string]string{"a": NoPlace, "b": Arriving},
		},
		"a starting node takes a pending pod": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", notReadyYet), newWebNode("c")},
			pods:  []*corev1.Pod{newPod("x", "a", "500m", "1Gi"), newPod("y", "c", "3", "1Gi"), newPod("z", "", "3600m", "1Gi")},
			want:  leaves("a"), rule: map[string]string{"b": Arriving},
		},
		"one pod may need the provisioning instance": { // pod x takes the only room for pod y
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b"), newWebNode("c")},
			pods: []*corev1.Pod{
				newPod("x", "a", "900m", "1Gi"), newPod("y", "a", "900m", "6Gi"), newPod("v", "b", "3", "14Gi"), newPod("w", "c", "3", "1Gi"),
				newPod("z", "", "3", "1Gi"),
			},
			change: func(w *Input) {
				w.Groups[0].Provisioning, w.Groups[0].Size = []launch.ProvisioningInstance{{ID: "1"}}, 4
			},
			want: map[string]nodegroup.Verdict{"a": nodegroup.VerdictBlocked}, rule: map[string]string{"a": WouldComeBack},
		},
		"few pods": {
			group: newUnderutilizedGroup(few),
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "3", "1Gi"), newPod("y", "b", "500m", "1Gi"), newPod("z", "b", "500m", "1Gi")},
			want:  map[string]nodegroup.Verdict{"a": nodegroup.VerdictDue, "b": nodegroup.VerdictCoolingDown},
		},
		"two nodes onto one": {
			group: newUnderutilizedGroup(many),
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", withPassedCooldown)},
			pods:  []*corev1.Pod{newPod("x", "a", "2", "1Gi"), newPod("y", "b", "2", "1Gi")},
			want:  map[string]nodegroup.Verdict{"a": nodegroup.VerdictDue, "b": nodegroup.VerdictBlocked}, rule: map[string]string{"b": NotTogether},
		},
		"the minimum": {
			group: newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) { g.Spec.MinSize = 2 }),
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", withPassedCooldown)},
			want:  map[string]nodegroup.Verdict{"a": nodegroup.VerdictBlocked, "b": nodegroup.VerdictBlocked},
			rule:  map[string]string{"a": nodegroup.Minimum, "b": nodegroup.Minimum},
		},
		"the cloud's minimum": {
			nodes:  []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", withPassedCooldown)},
			change: func(w *Input) { w.Groups[0].CloudMinSize = 2 },
			want:   map[string]nodegroup.Verdict{"a": nodegroup.VerdictBlocked, "b": nodegroup.VerdictBlocked},
			rule:   map[string]string{"a": nodegroup.Minimum, "b": nodegroup.Minimum},
		},
		"one at a time without a budget": {
			group: newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) { g.Spec.DisruptionBudgets = nil }),
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", withPassedCooldown), newWebNode("c", withPassedCooldown)},
			want:  map[string]nodegroup.Verdict{"a": nodegroup.VerdictDue, "b": nodegroup.VerdictBlocked, "c": nodegroup.VerdictBlocked},
			rule:  map[string]string{"b": BudgetSpent, "c": BudgetSpent},
		},
		"a node with a keep annotation": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown, func(n *corev1.Node) { n.Annotations["karpenter.sh/do-not-disrupt"] = "true" }), newWebNode("b")},
			rule:  map[string]string{"a": nodegroup.HeldNode},
			want:  map[string]nodegroup.Verdict{"b": nodegroup.VerdictCoolingDown},
		},
		"a pod without a controller": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("x", "a", "1", "1Gi", func(p *corev1.Pod) { p.OwnerReferences = nil }), newPod("y", "b", "3", "1Gi")},
			rule:  map[string]string{"a": NoPlace},
		},
		"a node that is starting": {
			nodes: []*corev1.Node{newWebNode("a", notReadyYet), newWebNode("b")},
			pods:  []*corev1.Pod{newPod("y", "b", "3", "1Gi")},
			rule:  map[string]string{"a": Arriving},
		},
		"a group that is not accepted": {
			nodes: []*corev1.Node{newWebNode("a", withPassedCooldown)}, change: func(w *Input) { w.Groups[0].NotAccepted = "OverlapsGroup" },
			rule: map[string]string{"a": nodegroup.NotAccepted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			gr := g
			if c.group != nil {
				gr = c.group
			}
			w := newWorld(t, []Group{newGroup(gr, newKind(gr, "m4", "4", "16Gi"))}, c.nodes, c.pods)
			if c.change != nil {
				c.change(w)
			}
			got := decideDown(t, w)
			for _, n := range c.nodes {
				want := c.want[n.Name]
				if want == "" {
					want = nodegroup.VerdictKept
				}
				d := got[n.Name]
				if d.Verdict != want {
					t.Errorf("%s: %s (%v), want %s", n.Name, d.Verdict, d.Reasons, want)
				}
				if rule := c.rule[n.Name]; rule != "" && (len(d.Reasons) == 0 || d.Reasons[0].Rule != rule) {
					t.Errorf("%s: reasons are %v, want %s", n.Name, d.Reasons, rule)
				}
			}
			if again := decideDown(t, w); cmp.Diff(verdictByNode(got), verdictByNode(again)) != "" {
				t.Errorf("asked again: %v, then %v", verdictByNode(got), verdictByNode(again))
			}
		})
	}
}

func verdictByNode(all map[string]NodeDecision) map[string]nodegroup.Verdict {
	out := map[string]nodegroup.Verdict{}
	for name, d := range all {
		out[name] = d.Verdict
	}
	return out
}

func withHeadroom(slots int32) func(*v1alpha1.NodeGroup) {
	return func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleUp.Headroom = &v1alpha1.Headroom{Slots: slots, Requests: resources("1", "1Gi")}
	}
}

func TestHeadroomNodeStaysUntilHeadroomFitsElsewhere(t *testing.T) {
	g := newUnderutilizedGroup(withHeadroom(2))
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
		[]*corev1.Pod{newPod("x", "b", "2500m", "1Gi")})
	if d := decideDown(t, w)["a"]; d.Verdict == nodegroup.VerdictDue {
		t.Errorf("the node with the headroom leaves: %v", d.Reasons)
	}
	more := newWebNode("c")
	must.NoError(t, w.Snapshot.SetNode(more))
	w.Groups[0].Nodes = append(w.Groups[0].Nodes, nodegroup.Node{Object: more, QuietFor: -1})
	w.Groups[0].Size++
	if d := decideDown(t, w)["a"]; d.Verdict != nodegroup.VerdictDue {
		t.Errorf("with room elsewhere it is %s: %v", d.Verdict, d.Reasons)
	}
}

func TestAtMaxSizeUselessNodeIsRetiredForAUsefulOne(t *testing.T) {
	g := newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) { *g.Spec.MaxSize = 1 })
	kinds := []Template{newKind(g, "m4", "4", "16Gi"), newKind(g, "c8", "8", "16Gi")}
	for cpu, want := range map[string]bool{"3": false, "6": true, "100": true} {
		w := newWorld(t, []Group{newGroup(g, kinds...)}, []*corev1.Node{newWebNode("a", withPassedCooldown)}, []*corev1.Pod{newPod("x", "", cpu, "1Gi")})
		if d := decideDown(t, w)["a"]; (d.Verdict == nodegroup.VerdictDue) != want {
			t.Errorf("a pod of %s cores waits: %s (%v); it should leave: %t", cpu, d.Verdict, d.Reasons, want)
		}
	}
}

// TestI9RoomForPreemptedPodsIsNotFree has five pods of 1.5 cores, which need three instances of 4 cores.
func TestI9RoomForPreemptedPodsIsNotFree(t *testing.T) {
	g := newUnderutilizedGroup()
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		nodes = append(nodes, newWebNode(name, withPassedCooldown))
		pods = append(pods, newPod("p"+name, name, "1500m", "1Gi"))
	}
	nodes[4].Spec.Unschedulable = true // by its agent
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nodes, pods)
	w.Groups[0].Nodes[4].Retirements = []v1alpha1.NodeRetirement{{Spec: v1alpha1.NodeRetirementSpec{
		NodeName: "e", Reason: v1alpha1.Notice, Notice: &v1alpha1.NoticeReference{Source: "azure", ID: "e1", Type: "Preempt"},
	}}}
	leaves := 0
	got := decideDown(t, w)
	for _, d := range got {
		if d.Verdict == nodegroup.VerdictDue {
			leaves++
		}
	}
	if leaves != 1 {
		t.Errorf("%d leave beside e, want 1: %v", leaves, verdictByNode(got))
	}
}

func TestNodesRetiredTogetherAreFeasibleTogether(t *testing.T) { // I9
	g := newUnderutilizedGroup()
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "d"} {
		nodes = append(nodes, newWebNode(name, withPassedCooldown))
		pods = append(pods, newPod("p"+name, name, "1500m", "1Gi"))
	}
	// Node d is retiring: its pod moves to the free room, and the room is then not free for others.
	nodes[3].Spec.Unschedulable = true
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nodes, pods)
	drainNode(w, "d")
	got := decideDown(t, w)
	var leaves int
	for _, d := range got {
		if d.Verdict == nodegroup.VerdictDue {
			leaves++
		}
	}
	// Four pods of 1.5 cores need two instances of 4 cores.
	if leaves != 1 || got["d"].Verdict != nodegroup.VerdictRetiring {
		t.Errorf("%d leave beside d: %v", leaves, verdictByNode(got))
	}
}

// newDrainingRetirement returns a retirement that was admitted and drains the node.
func newDrainingRetirement(node string) v1alpha1.NodeRetirement {
	return v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeName: node}, Status: v1alpha1.NodeRetirementStatus{
		Phase: v1alpha1.Draining, Conditions: []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}},
	}}
}

// drainNode gives the named node an admitted retirement that drains it.
func drainNode(w *Input, name string) {
	for i := range w.Groups {
		for j := range w.Groups[i].Nodes {
			if n := &w.Groups[i].Nodes[j]; n.Object.Name == name {
				n.Retirements = []v1alpha1.NodeRetirement{newDrainingRetirement(name)}
			}
		}
	}
}

// TestI9RoomForPodsOfRetiringNodesOutsideTheGroupsIsNotFree has room for one of the pods of w and r on t.
func TestI9RoomForPodsOfRetiringNodesOutsideTheGroupsIsNotFree(t *testing.T) {
	w := newWorld(t, []Group{newGroup(newUnderutilizedGroup())}, []*corev1.Node{
		newWebNode("w", withPassedCooldown), newNode("", "r", machineResources("4", "16Gi"), cordoned), newNode("", "t", machineResources("4", "16Gi")),
	}, []*corev1.Pod{newPod("x", "w", "1", "1Gi"), newPod("y", "r", "2", "1Gi"), newPod("z", "t", "2", "1Gi")})
	d := decideDown(t, w)["w"]
	check.Is(t, nodegroup.VerdictDue, d.Verdict, "while r stays:", d.Reasons)
	w.OtherNodesBeingRemoved = []string{"r", "gone"}
	d = decideDown(t, w)["w"]
	check.Not(t, d.Verdict != nodegroup.VerdictKept || d.Reasons[0].Rule != NoPlace, "while r is retired: %s, %v", d.Verdict, d.Reasons)
}

// newPDB returns a PodDisruptionBudget for all pods that newPod makes.
func newPDB(allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}

// withName gives a group another name and label.
func withName(name string) func(*v1alpha1.NodeGroup) {
	return func(g *v1alpha1.NodeGroup) {
		g.Name, g.Spec.NodeSelector.MatchLabels = name, map[string]string{groupLabel: name}
	}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func protected(n *corev1.Node) {
	n.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
}

// TestI9NodesOfAllGroupsFindRoomForRetiringPods has room for 3 cores on t. Pod x of the retiring node r moves to b, and to t if b
// is retired. Then pod q of another group has no room.
func TestI9NodesOfAllGroupsFindRoomForRetiringPods(t *testing.T) {
	var groups []Group
	for _, name := range []string{"web", "more", "last"} {
		groups = append(groups, newGroup(newUnderutilizedGroup(withName(name), func(g *v1alpha1.NodeGroup) { g.Spec.ScaleDown.Underutilized.Consolidate = true })))
	}
	size := machineResources("4", "16Gi")
	for _, retiring := range []bool{true, false} { // else r is retired by the same decision
		w := newWorld(t, slices.Clone(groups), []*corev1.Node{
			newWebNode("r", withPassedCooldown), newNode("more", "b", size, withPassedCooldown), newNode("last", "c", size, withPassedCooldown), newNode("", "t", size),
		}, []*corev1.Pod{newPod("x", "r", "3", "1Gi"), newPod("q", "c", "3", "1Gi"), newPod("y", "t", "1", "1Gi")})
		if retiring {
			drainNode(w, "r")
		}
		got := decideDown(t, w)
		if got["r"].Verdict == nodegroup.VerdictKept || got["b"].Verdict != nodegroup.VerdictDue || got["c"].Verdict == nodegroup.VerdictDue {
			t.Errorf("retiring %t: %v, want b retired and c not: %v", retiring, verdictByNode(got), got["c"].Reasons)
		}
	}
}

// TestI9RoomIsNotFreeIfTheSchedulerMayGiveItToRetiringPods has pods x of 2 cores and q of 3. They fit on t and u only if x is
// placed on t. The scheduler prefers u.
func TestI9RoomIsNotFreeIfTheSchedulerMayGiveItToRetiringPods(t *testing.T) {
	g := newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) { g.Spec.ScaleDown.Underutilized.Consolidate = true })
	size := machineResources("4", "16Gi")
	w := newWorld(t, []Group{newGroup(g)}, []*corev1.Node{newWebNode("r", cordoned), newWebNode("c", withPassedCooldown), newNode("", "t", size), newNode("", "u", size)},
		[]*corev1.Pod{newPod("x", "r", "2", "1Gi"), newPod("q", "c", "3", "1Gi"), newPod("y", "t", "2", "1Gi"), newPod("z", "u", "1", "1Gi")})
	drainNode(w, "r")
	d := decideDown(t, w)["c"]
	check.Not(t, d.Verdict != nodegroup.VerdictBlocked || d.Reasons[0].Rule != WouldComeBack, "%s: %v", d.Verdict, d.Reasons)
}

// TestPodsOfRetiringNodesDoNotKeepTheNodesTheyWillMoveTo has pod x on a retiring node. It will move to b, or else to t.
func TestPodsOfRetiringNodesDoNotKeepTheNodesTheyWillMoveTo(t *testing.T) {
	g := newUnderutilizedGroup()
	for name, c := range map[string]struct {
		allowed int32
		change  func(*corev1.Pod)
	}{
		"it moves at once":     {1, func(*corev1.Pod) {}},
		"it waits for its PDB": {0, func(*corev1.Pod) {}},
		"it is protected":      {1, func(p *corev1.Pod) { p.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("r", cordoned), newWebNode("b", withPassedCooldown), newWebNode("t", protected)},
				[]*corev1.Pod{newPod("x", "r", "1", "1Gi", c.change)})
			must.NoError(t, w.Snapshot.PDBs.Set(newPDB(c.allowed)))
			drainNode(w, "r")
			d := decideDown(t, w)["b"]
			check.Is(t, nodegroup.VerdictDue, d.Verdict, d.Reasons)
		})
	}
}

// TestPDBIsSharedByAllGroupsAndRetirements has two nodes with one pod each. Both pods have the same PodDisruptionBudget.
func TestPDBIsSharedByAllGroupsAndRetirements(t *testing.T) {
	for name, c := range map[string]struct {
		retiring    bool // the first node
		terminating bool // the pod of the first node
		allowed     int32
		want        nodegroup.Verdict // of the second node
	}{
		"the budget allows one":             {allowed: 1, want: nodegroup.VerdictBlocked},
		"the budget allows both":            {allowed: 2, want: nodegroup.VerdictDue},
		"the first waits for its eviction":  {retiring: true, allowed: 1, want: nodegroup.VerdictBlocked},
		"the first is evicted already":      {retiring: true, terminating: true, allowed: 1, want: nodegroup.VerdictDue},
		"the first waits, both are allowed": {retiring: true, allowed: 2, want: nodegroup.VerdictDue},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, []Group{newGroup(newUnderutilizedGroup()), newGroup(newUnderutilizedGroup(withName("more")))}, []*corev1.Node{
				newWebNode("a", withPassedCooldown), newNode("more", "b", machineResources("4", "16Gi"), withPassedCooldown), newNode("", "t", machineResources("4", "16Gi")),
			}, []*corev1.Pod{newPod("x", "a", "500m", "1Gi", func(p *corev1.Pod) {
				if c.terminating {
					p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: start}, []string{"example.com/wait"}
				}
			}), newPod("y", "b", "500m", "1Gi")})
			must.NoError(t, w.Snapshot.PDBs.Set(newPDB(c.allowed)))
			if c.retiring {
				drainNode(w, "a")
			}
			got := decideDown(t, w)
			check.Is(t, c.want, got["b"].Verdict, got["b"].Reasons)
			check.Not(t, got["a"].Verdict == nodegroup.VerdictKept || got["a"].Verdict == nodegroup.VerdictBlocked, "a: %v", got["a"].Reasons)
			if c.want == nodegroup.VerdictBlocked && (got["b"].Reasons[0].Rule != NotTogether || got["b"].Since.IsZero()) {
				t.Errorf("since %s: %v, want %s, and the node keeps its time", got["b"].Since, got["b"].Reasons, NotTogether)
			}
		})
	}
}

func TestReasonOfAKeptNodeSaysWhatKeepsIt(t *testing.T) {
	starting := newWebNode("s", notReadyYet)
	for name, c := range map[string]struct {
		nodes   []*corev1.Node
		request string
		allowed int32
		change  func(*corev1.Pod)
		want    string
	}{
		"its PDB":         {nil, "1", 0, func(*corev1.Pod) {}, "pod apps/x cannot move: disruption-budget: disruption budget apps/web allows 0 disruptions, 1 needed"},
		"no controller":   {nil, "1", 1, func(p *corev1.Pod) { p.OwnerReferences = nil }, "pod apps/x cannot move: unmanaged: "},
		"no room":         {nil, "1500m", 1, func(*corev1.Pod) {}, "pod apps/x cannot move: no-room"},
		"a starting node": {[]*corev1.Node{starting}, "1500m", 1, func(*corev1.Pod) {}, "pod apps/x cannot move: no-room: starting nodes take no pods yet"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, []Group{newGroup(newUnderutilizedGroup())}, append(c.nodes, newWebNode("a", withPassedCooldown), newWebNode("b")),
				[]*corev1.Pod{newPod("x", "a", c.request, "1Gi", c.change), newPod("y", "b", "3", "1Gi")})
			must.NoError(t, w.Snapshot.PDBs.Set(newPDB(c.allowed)))
			d := decideDown(t, w)["a"]
			must.Not(t, len(d.Reasons) != 1 || d.Reasons[0].Rule != NoPlace, "%s: %v", d.Verdict, d.Reasons)
			got := d.Reasons[0].Message
			check.Not(t, got != c.want && !(strings.HasSuffix(c.want, ": ") && strings.HasPrefix(got, c.want)), "got %q, want %q", got, c.want)
		})
	}
}

func TestPendingRetirementIsCancelledWhenItsNodeIsNeeded(t *testing.T) {
	g := newUnderutilizedGroup()
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")},
		[]*corev1.Pod{newPod("x", "a", "3", "1Gi"), newPod("y", "b", "3", "1Gi")})
	w.Groups[0].Nodes[0].Retirements = []v1alpha1.NodeRetirement{{
		ObjectMeta: metav1.ObjectMeta{Name: "a-underused"},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: "a", RequestedBy: UnderutilizedRequester},
	}}
	d := decideDown(t, w)["a"]
	check.Not(t, d.CancelledRetirement != "a-underused" || d.Verdict != nodegroup.VerdictKept || !d.Since.IsZero(), "it is %+v", d)
	w.Groups[0].Nodes[0].Retirements[0].Spec.RequestedBy = "somebody else"
	if d := decideDown(t, w)["a"]; d.CancelledRetirement != "" || d.Verdict != nodegroup.VerdictRetiring {
		t.Errorf("another requester's is %+v", d)
	}
}

func TestI5AnothersPendingRetirementCountsInTheBudget(t *testing.T) {
	g := newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) { g.Spec.DisruptionBudgets[0].Nodes = intstr.FromInt32(1) })
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b", withPassedCooldown), newWebNode("c")}, nil)
	leave := func() (n int) {
		for _, d := range decideDown(t, w) {
			if d.Verdict == nodegroup.VerdictDue {
				n++
			}
		}
		return n
	}
	if n := leave(); n != 1 {
		t.Fatalf("%d nodes leave, and the budget is one", n)
	}
	w.Groups[0].Nodes[2].Retirements = []v1alpha1.NodeRetirement{{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "c", RequestedBy: "somebody"},
	}}
	check.Is(t, 0, leave())
}

// TestI5NodeCountsOnceInTheBudget has a third node, which stays. A pending node has the retirement of another
// requester, which is not admitted yet.
func TestI5NodeCountsOnceInTheBudget(t *testing.T) {
	for name, c := range map[string]struct {
		budget       int32
		cloudMinimum int
		first        *corev1.Node
		second       *corev1.Node
		waits        bool // the second node
		want         []string
	}{
		"a retirement is pending":                       {budget: 2, first: newWebNode("a", withPassedCooldown), second: newWebNode("b"), waits: true, want: []string{"a"}},
		"a retirement is pending and the budget is one": {budget: 1, first: newWebNode("a", withPassedCooldown), second: newWebNode("b"), waits: true},
		"a node is pending and cordoned":                {budget: 2, first: newWebNode("a", withPassedCooldown), second: newWebNode("b", cordoned), waits: true, want: []string{"a"}},
		"a node is pending and underutilized":           {budget: 2, first: newWebNode("a", withPassedCooldown), second: newWebNode("b", withPassedCooldown), waits: true, want: []string{"a"}},
		"a node is pending, cordoned and underutilized": {budget: 2, first: newWebNode("a", withPassedCooldown), second: newWebNode("b", withPassedCooldown, cordoned), waits: true, want: []string{"a"}},
		"an underutilized node is cordoned":             {budget: 1, first: newWebNode("a"), second: newWebNode("b", withPassedCooldown, cordoned), want: []string{"b"}},
		"another node is cordoned":                      {budget: 1, first: newWebNode("a", withPassedCooldown), second: newWebNode("b", cordoned)},
		"a retirement is pending and the cloud's minimum allows one": {
			budget: 2, cloudMinimum: 2, first: newWebNode("a", withPassedCooldown), second: newWebNode("b"), waits: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) { g.Spec.DisruptionBudgets[0].Nodes = intstr.FromInt32(c.budget) })
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{c.first, c.second, newWebNode("c")},
				[]*corev1.Pod{newPod("x", "c", "3", "1Gi")})
			w.Groups[0].CloudMinSize = c.cloudMinimum
			if c.waits {
				w.Groups[0].Nodes[1].Retirements = []v1alpha1.NodeRetirement{{
					ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "b", RequestedBy: "an operator"},
				}}
			}
			all := decideDown(t, w)
			var got []string
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if all[name].Verdict == nodegroup.VerdictDue {
					got = append(got, name)
				}
			}
			check.Not(t, !slices.Equal(got, c.want), "%v leave, want %v: a: %v, b: %v", got, c.want, all["a"].Reasons, all["b"].Reasons)
		})
	}
}
