package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// newPlaceholderGroup returns a group with a selector of placeholder pods.
func newPlaceholderGroup() *v1alpha1.NodeGroup {
	return newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) {
		g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"holds": "room"}}
	})
}

// asPlaceholder makes a pod a placeholder that the cluster autoscaler must keep.
func asPlaceholder(p *corev1.Pod) {
	priority := int32(-10)
	p.Labels, p.Spec.Priority = map[string]string{"holds": "room"}, &priority
	p.Annotations = map[string]string{drainability.SafeToEvict: "false"}
}

func TestPendingPlaceholderLaunchesAnInstance(t *testing.T) {
	g := newPlaceholderGroup()
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a")},
		[]*corev1.Pod{newPod("x", "a", "3", "1Gi"), newPod("room", "", "3", "1Gi", asPlaceholder)})
	if got := launchCounts(decideUp(t, w)); got["web/m4"] != 1 {
		t.Errorf("launches are %v, want an instance for the placeholder", got)
	}
}

func TestOnlyThePreemptedPlaceholderLaunchesAnInstance(t *testing.T) {
	g := newPlaceholderGroup()
	waits := []*corev1.Pod{newPod("x", "", "3", "1Gi")}
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a")},
		append(waits, newPod("room", "a", "3", "1Gi", asPlaceholder)))
	w.Pods[0].Nominated = "a"
	if got := launchCounts(decideUp(t, w)); len(got) != 0 {
		t.Errorf("launches are %v while the scheduler makes room", got)
	}
	w = newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a")},
		[]*corev1.Pod{newPod("x", "a", "3", "1Gi"), newPod("room", "", "3", "1Gi", asPlaceholder)})
	d := decideUp(t, w)
	if got := launchCounts(d); got["web/m4"] != 1 || len(d.Launches[0].Pods) != 1 || d.Launches[0].Pods[0].Name != "room" {
		t.Errorf("launches are %v, want an instance for the placeholder that has gone", d.Launches)
	}
}

// TestPlaceholderNodeStaysUntilPlaceholdersFitElsewhere annotates the placeholders like the chart.
func TestPlaceholderNodeStaysUntilPlaceholdersFitElsewhere(t *testing.T) {
	g := newPlaceholderGroup()
	nodes := []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")}
	pods := []*corev1.Pod{newPod("room", "a", "3", "1Gi", asPlaceholder), newPod("x", "b", "3", "1Gi")}
	kinds := newGroup(g, newKind(g, "m4", "4", "16Gi"))
	w := newWorld(t, []Group{kinds}, nodes, pods)
	d := decideDown(t, w)["a"]
	if d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != NoPlace {
		t.Errorf("the node with the headroom: %s, %v", d.Verdict, d.Reasons)
	}
	if got := launchCounts(decideUp(t, w)); len(got) != 0 {
		t.Errorf("launches are %v while all placeholders run", got)
	}
	if d := decideDown(t, newWorld(t, []Group{kinds}, append(nodes, newWebNode("c")), pods))["a"]; d.Verdict != nodegroup.Leaves {
		t.Errorf("with room elsewhere: %s, %v", d.Verdict, d.Reasons)
	}
	g.Spec.Drain.PlaceholderPods = nil
	if d := decideDown(t, newWorld(t, []Group{kinds}, append(nodes, newWebNode("c")), pods))["a"]; d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != Used {
		t.Errorf("as work that is protected: %s, %v", d.Verdict, d.Reasons)
	}
	g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{}
	if d := decideDown(t, newWorld(t, []Group{kinds}, append(nodes, newWebNode("c")), pods))["a"]; d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != Used {
		t.Errorf("with a selector that says nothing: %s, %v", d.Verdict, d.Reasons)
	}
}
