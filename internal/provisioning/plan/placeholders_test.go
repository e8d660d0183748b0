package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// holding is a group that knows its placeholders.
func holding() *v1alpha1.NodeGroup {
	return underused(func(g *v1alpha1.NodeGroup) {
		g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"holds": "room"}}
	})
}

// placeholder makes a pod one, that the cluster autoscaler is told to keep.
func placeholder(p *corev1.Pod) {
	priority := int32(-10)
	p.Labels, p.Spec.Priority = map[string]string{"holds": "room"}, &priority
	p.Annotations = map[string]string{drainability.SafeToEvict: "false"}
}

func TestAPlaceholderThatWaitsOrdersAMachine(t *testing.T) {
	g := holding()
	w := world(t, []Group{group(g, template(g, "m4", "4", "16Gi"))}, []*corev1.Node{web("a")},
		[]*corev1.Pod{pod("x", "a", "3", "1Gi"), pod("room", "", "3", "1Gi", placeholder)})
	if got := orders(up(t, w)); got["web/m4"] != 1 {
		t.Errorf("ordered is %v, want a machine for the placeholder", got)
	}
}

func TestWorkThatTakesThePlaceOfAPlaceholderOrdersNoMachineAndThePlaceholderDoes(t *testing.T) {
	g := holding()
	waits := []*corev1.Pod{pod("x", "", "3", "1Gi")}
	w := world(t, []Group{group(g, template(g, "m4", "4", "16Gi"))}, []*corev1.Node{web("a")},
		append(waits, pod("room", "a", "3", "1Gi", placeholder)))
	w.Pods[0].Nominated = "a"
	if got := orders(up(t, w)); len(got) != 0 {
		t.Errorf("ordered is %v while the scheduler makes room", got)
	}
	w = world(t, []Group{group(g, template(g, "m4", "4", "16Gi"))}, []*corev1.Node{web("a")},
		[]*corev1.Pod{pod("x", "a", "3", "1Gi"), pod("room", "", "3", "1Gi", placeholder)})
	d := up(t, w)
	if got := orders(d); got["web/m4"] != 1 || len(d.Orders[0].Pods) != 1 || d.Orders[0].Pods[0].Name != "room" {
		t.Errorf("ordered is %v, want a machine for the placeholder that has gone", d.Orders)
	}
}

// TestTheNodeOfPlaceholdersStaysAsHeadRoomUntilTheyHaveRoomElsewhere has them annotated as the chart does.
func TestTheNodeOfPlaceholdersStaysAsHeadRoomUntilTheyHaveRoomElsewhere(t *testing.T) {
	g := holding()
	nodes := []*corev1.Node{web("a", cooled), web("b")}
	pods := []*corev1.Pod{pod("room", "a", "3", "1Gi", placeholder), pod("x", "b", "3", "1Gi")}
	kinds := group(g, template(g, "m4", "4", "16Gi"))
	w := world(t, []Group{kinds}, nodes, pods)
	d := down(t, w)["a"]
	if d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != NoPlace {
		t.Errorf("the node with the spare room: %s, %v", d.Verdict, d.Reasons)
	}
	if got := orders(up(t, w)); len(got) != 0 {
		t.Errorf("ordered is %v while all is in its place", got)
	}
	if d := down(t, world(t, []Group{kinds}, append(nodes, web("c")), pods))["a"]; d.Verdict != nodegroup.Leaves {
		t.Errorf("with room elsewhere: %s, %v", d.Verdict, d.Reasons)
	}
	g.Spec.Drain.PlaceholderPods = nil
	if d := down(t, world(t, []Group{kinds}, append(nodes, web("c")), pods))["a"]; d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != Used {
		t.Errorf("as work that is held: %s, %v", d.Verdict, d.Reasons)
	}
	g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{}
	if d := down(t, world(t, []Group{kinds}, append(nodes, web("c")), pods))["a"]; d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != Used {
		t.Errorf("with a selector that says nothing: %s, %v", d.Verdict, d.Reasons)
	}
}
