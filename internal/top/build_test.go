package top

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// buildOnlyNode returns the activity of the only node at noon.
func buildOnlyNode(t *testing.T, f Facts) string {
	t.Helper()
	f.Now = noon
	var all []Node
	for _, g := range BuildState(f).Groups {
		all = append(all, g.Nodes...)
	}
	if len(all) != 1 {
		t.Fatalf("%d nodes, want one", len(all))
	}
	return all[0].Activity.Describe(noon)
}

func TestNodeActivityIsDescribed(t *testing.T) {
	blocked := v1alpha1.RetirementReason{Code: "VolumesAttached", Object: "volume pv-1", Message: "is attached still"}
	two := withReasons(blocked, blocked)
	minute := metav1.NewTime(noon.Add(time.Minute))
	for want, f := range map[string]Facts{
		"in service":                          {Nodes: []corev1.Node{newNode("n", "g")}},
		"in use":                              {Nodes: []corev1.Node{newNode("n", "g")}, Loads: map[string]planner.Utilization{"n": {Pods: 1}}},
		"empty":                               {Nodes: []corev1.Node{newNode("n", "g")}, Loads: map[string]planner.Utilization{"n": {}}},
		"protected; slipway.dev/do-not-evict": {Nodes: []corev1.Node{newNode("n", "g", withAnnotation("slipway.dev/do-not-evict", "true"))}},
		"cordoned":                            {Nodes: []corev1.Node{newNode("n", "g", setUnschedulable)}},
		"cordoned by kubectl-cordon":          {Nodes: []corev1.Node{newNode("n", "g", setUnschedulable, withManager("kubectl-cordon"))}},
		"cordoned by request-ann 2:00; disk swap": {Nodes: []corev1.Node{newNode("n", "g", setUnschedulable, withAnnotation("cordon.slipway.dev/request-ann",
			`{"owner":"request-ann","reason":"disk swap","since":"2026-03-01T11:58:00Z","cordon":"own"}`))}},
		"not Ready 1:30": {Nodes: []corev1.Node{newNode("n", "g", setUnschedulable, withNotReady(90*time.Second))}},
		"draining for Preempt, due in 0:24; 3 pods on it": {
			Nodes: []corev1.Node{newNode("n", "g", setUnschedulable, withNotice("Preempt", "Scheduled", "draining", 24*time.Second))},
			Loads: map[string]planner.Utilization{"n": {Pods: 3}},
		},
		"draining 7 of 12, waiting for PDB shop/db, shop/web, due in 9:00; for Redeploy": {
			Nodes: []corev1.Node{newNode("n", "g", setUnschedulable, withNotice("Redeploy", "Scheduled", "draining", 9*time.Minute),
				withBlockedDrain("7 of 12 gone, 3 stopping, 2 waiting (disruption-budget shop/db: 1, disruption-budget shop/web: 1)"))},
			Loads: map[string]planner.Utilization{"n": {Pods: 5}},
		},
		"draining 7 of 12, blocked by forbidden: 5, due in 9:00; for Redeploy": {
			Nodes: []corev1.Node{newNode("n", "g", setUnschedulable, withNotice("Redeploy", "Scheduled", "draining", 9*time.Minute),
				withBlockedDrain("7 of 12 gone, 5 waiting (forbidden: 5)"))},
		},
		"not-drained for Reboot, due 0:05 ago": {Nodes: []corev1.Node{newNode("n", "g", withNotice("Reboot", "Scheduled", "not-drained", -5*time.Second))}},
		"cordoned for Reboot, due in 9:00; waits for a drain slot": {Nodes: []corev1.Node{newNode("n", "g",
			withNotice("Reboot", "Scheduled", "cordoned", 9*time.Minute), withDrainDelay("a drain slot"))}},
		"noticed for Freeze, due in 14:00":                      {Nodes: []corev1.Node{newNode("n", "g", withNotice("Freeze", "Scheduled", "", 14*time.Minute))}},
		"acknowledged for Reboot; started":                      {Nodes: []corev1.Node{newNode("n", "g", withNotice("Reboot", "Started", "acknowledged", time.Minute))}},
		"retirement requested; no manager has processed it yet": {Nodes: []corev1.Node{newNode("n", "g")}, Retirements: []v1alpha1.NodeRetirement{newRetirement("n")}},
		"retirement pending; 1 others are unavailable": {
			Nodes: []corev1.Node{newNode("n", "g")}, Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.Pending, "1 others are unavailable"))},
		},
		"cordoned, drain pending": {
			Nodes: []corev1.Node{newNode("n", "g", setUnschedulable)}, Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.Cordoned, ""))},
		},
		"draining 7 of 12; waiting for PDB shop/db, shop/web": {
			Nodes: []corev1.Node{newNode("n", "g")}, Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.Draining, ""),
				withDrain(7, 3, 2, ", 3 stopping, 2 waiting (disruption-budget shop/db: 1, disruption-budget shop/web: 1, error: 1)"))},
		},
		"draining 9 of 12; 3 stopping": {
			Nodes: []corev1.Node{newNode("n", "g")}, Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.Draining, ""), withDrain(9, 3, 0, ", 3 stopping"))},
		},
		"drained 1:00; volume pv-1: is attached still (and 1 more)": {
			Nodes: []corev1.Node{newNode("n", "g")}, Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.Drained, ""), two)},
		},
		"VM deleting 0:12": {Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.NodeDeleted, ""), withNodeDeleted(12*time.Second))}},
		"VM deleting 0:12; 3 attempts have failed": {Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.NodeDeleted, ""),
			withNodeDeleted(12*time.Second), func(rt *v1alpha1.NodeRetirement) {
				rt.Status.Operation = &v1alpha1.CloudOperation{Attempts: 3, RetryAfter: &minute}
			})}},
		"VM deleted, last checks": {Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.InstanceDeleted, ""))}},
		"retirement Failed; delete machine 7 by hand": {
			Retirements: []v1alpha1.NodeRetirement{newRetirement("n", withPhase(v1alpha1.Failed, "delete machine 7 by hand"))},
		},
		"being removed by cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler:NoSchedule)": {Nodes: []corev1.Node{newNode("n", "g", setUnschedulable,
			func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			})}},
		"idle 3:12 of 5:00": {
			Nodes:     []corev1.Node{newNode("n", "g")},
			Decisions: map[string]nodegroup.Decision{"n": newDecision("n", 192*time.Second, 5*time.Minute, nodegroup.VerdictCoolingDown, nodegroup.Reason{Rule: nodegroup.CoolingDown})},
		},
		"idle 9:00 of 5:00; stays: the group is small": {
			Nodes:     []corev1.Node{newNode("n", "g")},
			Decisions: map[string]nodegroup.Decision{"n": newDecision("n", 9*time.Minute, 5*time.Minute, nodegroup.VerdictBlocked, nodegroup.Reason{Rule: nodegroup.Minimum, Message: "the group is small"})},
		},
	} {
		t.Run(want, func(t *testing.T) {
			if got := buildOnlyNode(t, f); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

func TestRetirementOfEarlierNodeIsIgnored(t *testing.T) {
	captured := newRetirement("n", withPhase(v1alpha1.Draining, ""), withGroup("g"))
	captured.Status.Captured.NodeUID = "another"
	requested := newRetirement("n")
	requested.Spec.NodeUID = "another"
	for _, rt := range []v1alpha1.NodeRetirement{captured, requested} {
		f := Facts{Groups: []v1alpha1.NodeGroup{newGroup("g", 5)}, Nodes: []corev1.Node{newNode("n", "g")}, Retirements: []v1alpha1.NodeRetirement{rt}}
		if got := buildOnlyNode(t, f); got != "in service" {
			t.Errorf("%q", got)
		}
		f.Nodes = append(f.Nodes, newNode("m", "g"))
		if got := BuildState(f).Groups[0].AllowedDisruptions; got != 1 {
			t.Errorf("%d nodes can be removed, want 1", got)
		}
	}
}

func TestI5GroupCountsTheMinimumOfTheCloud(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*v1alpha1.NodeGroup)
		minSize int32
		allowed int
	}{
		"minimum of the group": {func(*v1alpha1.NodeGroup) {}, 1, 1},
		"minimum of the cloud": {func(g *v1alpha1.NodeGroup) { g.Status.CloudMinSize = 2 }, 2, 0},
		"not accepted": {func(g *v1alpha1.NodeGroup) {
			g.Status.Conditions[0].Status, g.Status.Conditions[0].Message = metav1.ConditionFalse, "it overlaps"
		}, 1, 0},
	} {
		g := newGroup("g", 5)
		c.change(&g)
		got := BuildState(Facts{Groups: []v1alpha1.NodeGroup{g}, Nodes: []corev1.Node{newNode("n", "g"), newNode("m", "g")}}).Groups[0]
		if got.MinSize != c.minSize || got.AllowedDisruptions != c.allowed {
			t.Errorf("%s: %d can be removed, the minimum is %d; want %d and %d", name, got.AllowedDisruptions, got.MinSize, c.allowed, c.minSize)
		}
	}
}

func TestOneRetirementOfNodeIsShownInAnyOrder(t *testing.T) {
	ofNotice := func(rt *v1alpha1.NodeRetirement) {
		rt.Spec.Notice = &v1alpha1.NoticeReference{Source: "azure", ID: "E1"}
	}
	since := func(age time.Duration) func(*v1alpha1.NodeRetirement) {
		return func(rt *v1alpha1.NodeRetirement) { rt.CreationTimestamp = metaTimeAgo(age) }
	}
	withUID := func(uid types.UID) func(*v1alpha1.NodeRetirement) {
		return func(rt *v1alpha1.NodeRetirement) { rt.UID = uid }
	}
	ofEarlierNode := func(rt *v1alpha1.NodeRetirement) { rt.Status.Captured = &v1alpha1.Captured{NodeUID: "another"} }
	const pending, draining, deleted, failed = v1alpha1.Pending, v1alpha1.Draining, v1alpha1.NodeDeleted, v1alpha1.Failed
	for name, all := range map[string][2]v1alpha1.NodeRetirement{ // the first one is shown
		"active before failed":         {newRetirement("n", withPhase(draining, "")), newRetirement("n", withPhase(failed, ""))},
		"newest failed":                {newRetirement("n", withPhase(failed, "new")), newRetirement("n", withPhase(failed, "old"), since(time.Hour))},
		"oldest active":                {newRetirement("n", since(time.Hour)), newRetirement("n", withPhase(pending, ""))},
		"created in one second":        {newRetirement("n", withUID("1")), newRetirement("n", withUID("2"), withPhase(pending, ""))},
		"without a notice":             {newRetirement("n", withPhase(draining, "")), newRetirement("n", withPhase(pending, ""), ofNotice, since(time.Hour))},
		"not of an earlier Node":       {newRetirement("n", withPhase(draining, "")), newRetirement("n", withPhase(deleted, ""), ofEarlierNode, since(time.Hour))},
		"not failed of an earlier one": {newRetirement("n", withPhase(failed, "old"), since(time.Hour)), newRetirement("n", withPhase(failed, "new"), ofEarlierNode)},
	} {
		want := describeRetirement(&all[0]).Describe(noon)
		for _, order := range [][]v1alpha1.NodeRetirement{{all[0], all[1]}, {all[1], all[0]}} {
			if got := buildOnlyNode(t, Facts{Nodes: []corev1.Node{newNode("n", "g")}, Retirements: order}); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

func TestNoticesAreSortedByDueTime(t *testing.T) {
	s := BuildState(Facts{Now: noon, Nodes: []corev1.Node{
		newNode("a", "g", withAnnotation("cordon.slipway.dev/azure-E1", `{"owner":"azure-E1","state":{"notice":{"ID":"E1","Source":"azure","Type":"Freeze"}}}`)),
		newNode("b", "g", withNotice("Reboot", "Scheduled", "", time.Hour)), newNode("c", "g", withNotice("Preempt", "Scheduled", "", time.Minute)),
	}})
	var order []string
	for _, n := range s.Notices {
		order = append(order, n.Node)
	}
	if got := strings.Join(order, " "); got != "c b a" {
		t.Errorf("order %q, want by due time, without time last", got)
	}
}

func TestChangesListsOnlyDifferences(t *testing.T) {
	f := newSceneFacts()
	first := BuildState(f)
	if lines := ListChanges(State{}, first); len(lines) != 16 {
		t.Errorf("%d lines at the start, want one for each node, machine, group and notice:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	f.Now = noon.Add(time.Minute)
	if lines := ListChanges(first, BuildState(f)); len(lines) != 0 {
		t.Errorf("passing time is reported as %q", lines)
	}
	f.Retirements[0].Status.Drain.Gone = 8
	f.Nodes = append(f.Nodes[:9:9], newNode("new", "system"))
	f.Nodes[6].Annotations = nil
	f.Problems = []string{"pods: a right is missing"}
	want := []string{
		"node " + pool + "2 (runners): draining 8 of 12; waiting for PDB shop/web",
		"node new: in service",
		"node spot-0 (spot): cordoned",
		"problem pods: a right is missing: part of the cluster cannot be read",
		"node system-0: removed",
		"notice Preempt of spot-0 (azure E1): ended",
	}
	if got := ListChanges(first, BuildState(f)); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNoticeCannotControlTheTerminal(t *testing.T) {
	s := State{Notices: []Notice{{Node: "n", Source: "azure", ID: "E1\x1b]0;x\a\n", Type: "Preempt\u009b2J", Description: "\x1b[2J"}}}
	want := []string{"notice Preempt2J of n (azure E1]0;x ): announced; [2J"}
	if got := ListChanges(State{}, s); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPriceIsFromLabelElseFromRecordedCost(t *testing.T) {
	const small, large = "D4", "D8"
	costs := func(small, large string) []v1alpha1.LearnedTemplate {
		return []v1alpha1.LearnedTemplate{{Name: "d4", Cost: small}, {Name: "D8", Cost: large}}
	}
	for name, tt := range map[string]struct {
		instanceType, label string
		recorded            []v1alpha1.LearnedTemplate
		want                float64
	}{
		"cost of the type":                         {small, "", costs("0.2", "0.4"), 0.2},
		"cost of another type":                     {large, "", costs("0.2", "0.4"), 0.4},
		"label instead of the cost":                {small, "0.05", costs("0.2", "0.4"), 0.05},
		"label that is no price":                   {small, "free", costs("0.2", "0.4"), 0.2},
		"label that is NaN":                        {small, "NaN", nil, 0},
		"unknown type, and all have the same cost": {"", "", costs("0.2", "0.2"), 0.2},
		"unknown type, and costs differ":           {"", "", costs("0.2", "0.4"), 0},
		"unknown type, and one cost is unknown":    {"", "", costs("0.2", ""), 0},
		"unknown cost of the type":                 {small, "", costs("", "0.4"), 0},
		"nothing is recorded":                      {small, "", nil, 0},
	} {
		n, g := newNode("n", "g"), newGroup("g", 3)
		n.Labels[corev1.LabelInstanceTypeStable] = tt.instanceType
		if tt.label != "" {
			n.Labels[priceLabel] = tt.label
		}
		g.Status.Provisioning = &v1alpha1.ProvisioningStatus{Learned: tt.recorded}
		if got := FindPrice(&n, &g); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	outside := newNode("n", "")
	outside.Labels[priceLabel] = "0.05"
	if got := FindPrice(&outside, nil); got != 0.05 {
		t.Errorf("without group: %v", got)
	}
}
