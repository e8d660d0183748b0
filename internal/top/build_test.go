package top

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// only is what the one node of some facts is doing, as of noon.
func only(t *testing.T, f Facts) string {
	t.Helper()
	f.Now = noon
	var all []Node
	for _, g := range Build(f).Groups {
		all = append(all, g.Nodes...)
	}
	if len(all) != 1 {
		t.Fatalf("%d nodes, want one", len(all))
	}
	return all[0].Doing.Phrase(noon)
}

func TestWhatANodeIsDoingIsSaidInAPhrase(t *testing.T) {
	blocked := v1alpha1.RetirementReason{Code: "VolumesAttached", Object: "volume pv-1", Message: "is attached still"}
	two := reasons(blocked, blocked)
	minute := metav1.NewTime(noon.Add(time.Minute))
	for want, f := range map[string]Facts{
		"in service":                     {Nodes: []corev1.Node{node("n", "g")}},
		"in use":                         {Nodes: []corev1.Node{node("n", "g")}, Loads: map[string]planner.Load{"n": {Pods: 1}}},
		"empty":                          {Nodes: []corev1.Node{node("n", "g")}, Loads: map[string]planner.Load{"n": {}}},
		"held; slipway.dev/do-not-evict": {Nodes: []corev1.Node{node("n", "g", annotated("slipway.dev/do-not-evict", "true"))}},
		"cordoned":                       {Nodes: []corev1.Node{node("n", "g", unschedulable)}},
		"cordoned by kubectl-cordon":     {Nodes: []corev1.Node{node("n", "g", unschedulable, byManager("kubectl-cordon"))}},
		"cordoned by request-ann 2:00; disk swap": {Nodes: []corev1.Node{node("n", "g", unschedulable, annotated("cordon.slipway.dev/request-ann",
			`{"owner":"request-ann","reason":"disk swap","since":"2026-03-01T11:58:00Z","cordon":"own"}`))}},
		"not Ready 1:30": {Nodes: []corev1.Node{node("n", "g", unschedulable, notReady(90*time.Second))}},
		"draining for Preempt, due in 0:24; 3 pods on it": {
			Nodes: []corev1.Node{node("n", "g", unschedulable, reported("Preempt", "Scheduled", "draining", 24*time.Second))},
			Loads: map[string]planner.Load{"n": {Pods: 3}},
		},
		"draining 7 of 12, waiting for PDB shop/db, shop/web, due in 9:00; for Redeploy": {
			Nodes: []corev1.Node{node("n", "g", unschedulable, reported("Redeploy", "Scheduled", "draining", 9*time.Minute),
				drainBlocked("7 of 12 gone, 3 stopping, 2 waiting (disruption-budget shop/db: 1, disruption-budget shop/web: 1)"))},
			Loads: map[string]planner.Load{"n": {Pods: 5}},
		},
		"draining 7 of 12, blocked by forbidden: 5, due in 9:00; for Redeploy": {
			Nodes: []corev1.Node{node("n", "g", unschedulable, reported("Redeploy", "Scheduled", "draining", 9*time.Minute),
				drainBlocked("7 of 12 gone, 5 waiting (forbidden: 5)"))},
		},
		"not-drained for Reboot, due 0:05 ago":      {Nodes: []corev1.Node{node("n", "g", reported("Reboot", "Scheduled", "not-drained", -5*time.Second))}},
		"noticed for Freeze, due in 14:00":          {Nodes: []corev1.Node{node("n", "g", reported("Freeze", "Scheduled", "", 14*time.Minute))}},
		"acknowledged for Reboot; it is under way":  {Nodes: []corev1.Node{node("n", "g", reported("Reboot", "Started", "acknowledged", time.Minute))}},
		"to leave; no manager has looked at it yet": {Nodes: []corev1.Node{node("n", "g")}, Retirements: []v1alpha1.NodeRetirement{retire("n")}},
		"to leave; 1 others are unavailable": {
			Nodes: []corev1.Node{node("n", "g")}, Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.Pending, "1 others are unavailable"))},
		},
		"cordoned, to be drained": {
			Nodes: []corev1.Node{node("n", "g", unschedulable)}, Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.Cordoned, ""))},
		},
		"draining 7 of 12; waiting for PDB shop/db, shop/web": {
			Nodes: []corev1.Node{node("n", "g")}, Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.Draining, ""),
				drainOf(7, 3, 2, ", 3 stopping, 2 waiting (disruption-budget shop/db: 1, disruption-budget shop/web: 1, error: 1)"))},
		},
		"draining 9 of 12; 3 stopping": {
			Nodes: []corev1.Node{node("n", "g")}, Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.Draining, ""), drainOf(9, 3, 0, ", 3 stopping"))},
		},
		"drained 1:00; volume pv-1: is attached still (and 1 more)": {
			Nodes: []corev1.Node{node("n", "g")}, Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.Drained, ""), two)},
		},
		"VM deleting 0:12": {Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.NodeDeleted, ""), nodeDeleted(12*time.Second))}},
		"VM deleting 0:12; 3 attempts have failed": {Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.NodeDeleted, ""),
			nodeDeleted(12*time.Second), func(rt *v1alpha1.NodeRetirement) {
				rt.Status.Operation = &v1alpha1.CloudOperation{Attempts: 3, RetryAfter: &minute}
			})}},
		"VM deleted, last checks": {Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.InstanceDeleted, ""))}},
		"retirement Failed; delete machine 7 by hand": {
			Retirements: []v1alpha1.NodeRetirement{retire("n", phase(v1alpha1.Failed, "delete machine 7 by hand"))},
		},
		"being removed by cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler:NoSchedule)": {Nodes: []corev1.Node{node("n", "g", unschedulable,
			func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			})}},
		"idle 3:12 of 5:00": {
			Nodes: []corev1.Node{node("n", "g")},
			Idle:  map[string]nodegroup.Decision{"n": idle("n", 192*time.Second, 5*time.Minute, nodegroup.Waits, nodegroup.Reason{Rule: nodegroup.CoolingDown})},
		},
		"idle 9:00 of 5:00; stays: the group is small": {
			Nodes: []corev1.Node{node("n", "g")},
			Idle:  map[string]nodegroup.Decision{"n": idle("n", 9*time.Minute, 5*time.Minute, nodegroup.Refused, nodegroup.Reason{Rule: nodegroup.Minimum, Message: "the group is small"})},
		},
	} {
		t.Run(want, func(t *testing.T) {
			if got := only(t, f); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

func TestARetirementOfAnEarlierNodeOfTheNameIsNotThisNodes(t *testing.T) {
	rt := retire("n", phase(v1alpha1.Draining, ""), inGroup("g"))
	rt.Status.Captured.NodeUID = "another"
	if got := only(t, Facts{Nodes: []corev1.Node{node("n", "g")}, Retirements: []v1alpha1.NodeRetirement{rt}}); got != "in service" {
		t.Errorf("%q", got)
	}
}

func TestARetirementThatIsUnderWayIsShownBeforeOneThatHasFailed(t *testing.T) {
	failed, open := retire("n", phase(v1alpha1.Failed, "")), retire("n", phase(v1alpha1.Draining, ""))
	for _, order := range [][]v1alpha1.NodeRetirement{{failed, open}, {open, failed}} {
		if got := only(t, Facts{Nodes: []corev1.Node{node("n", "g")}, Retirements: order}); got != "draining" {
			t.Errorf("%q", got)
		}
	}
}

func TestTheNoticeThatIsDueFirstComesFirst(t *testing.T) {
	s := Build(Facts{Now: noon, Nodes: []corev1.Node{
		node("a", "g", annotated("cordon.slipway.dev/azure-E1", `{"owner":"azure-E1","state":{"notice":{"ID":"E1","Source":"azure","Type":"Freeze"}}}`)),
		node("b", "g", reported("Reboot", "Scheduled", "", time.Hour)), node("c", "g", reported("Preempt", "Scheduled", "", time.Minute)),
	}})
	var order []string
	for _, n := range s.Notices {
		order = append(order, n.Node)
	}
	if got := strings.Join(order, " "); got != "c b a" {
		t.Errorf("order %q, want that of the deadlines, and last what has none", got)
	}
}

func TestOnlyWhatChangesIsALine(t *testing.T) {
	f := scene()
	first := Build(f)
	if lines := Changes(State{}, first); len(lines) != 16 {
		t.Errorf("%d lines at the start, want one for each node, machine, group and notice:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	f.Now = noon.Add(time.Minute)
	if lines := Changes(first, Build(f)); len(lines) != 0 {
		t.Errorf("time that passes is told of as %q", lines)
	}
	f.Retirements[0].Status.Drain.Gone = 8
	f.Nodes = append(f.Nodes[:9:9], node("new", "system"))
	f.Nodes[6].Annotations = nil
	f.Problems = []string{"pods: a right is missing"}
	want := []string{
		"node " + pool + "2 (runners): draining 8 of 12; waiting for PDB shop/web",
		"node new: in service",
		"node spot-0 (spot): cordoned",
		"problem pods: a right is missing: part of the cluster cannot be seen",
		"node system-0: gone",
		"notice Preempt of spot-0 (azure E1): over",
	}
	if got := Changes(first, Build(f)); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
