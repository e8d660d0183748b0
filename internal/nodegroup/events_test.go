package nodegroup

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/keptevents"
)

func TestEventsNameEachFaultAndRule(t *testing.T) {
	c, k := newFixture(t).newController(), &keptevents.Recorder{}
	c.options.Events = k
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "ci", UID: "group"}}
	var was *metav1.Condition
	for _, fault := range []string{"spec.minSize: -1", `spec.cloud.group: ""`} {
		is := metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.InvalidSpec, Message: fault}
		c.emitAcceptanceIfChanged(g, was, is)
		was = &is
	}
	n := &Node{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "node"}}}
	pending, minimum := Reason{PendingPod, "pod x waits"}, Reason{Minimum, "1 node is the minimum"}
	for _, why := range [][]Reason{{pending}, {pending, minimum}, {minimum}} {
		c.emitChangedDecisions(&GroupSnapshot{Group: g}, []Decision{{Node: "a", Verdict: VerdictBlocked, Reasons: why, node: n}})
	}
	for _, want := range []string{
		"GroupRefused InvalidSpec: spec.minSize: -1", `GroupRefused InvalidSpec: spec.cloud.group: ""`,
		"IdleNodeKept PendingPod: pod x waits", "IdleNodeKept PendingPod: pod x waits; MinSize: 1 node is the minimum", "IdleNodeKept MinSize: 1 node is the minimum",
		"IdleNodeKept node a: PendingPod: pod x waits", "IdleNodeKept node a: PendingPod: pod x waits; MinSize: 1 node is the minimum",
		"IdleNodeKept node a: MinSize: 1 node is the minimum",
	} {
		if !slices.Contains(k.Kept, want) {
			t.Errorf("no Event %q in %q", want, k.Kept)
		}
	}
}
