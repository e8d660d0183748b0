package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// leaves creates a NodeRetirement, which is not begun, of a node that is none of the pool's.
func (s *sim) leaves(node string) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, NodeUID: types.UID("uid-" + node), ProviderID: "openstack:///" + uuid(9)},
	}
	if err := s.objects.Create(s.t.Context(), rt); err != nil {
		s.t.Fatal(err)
	}
}

// TestANodeOfAnotherPoolThatLeavesIsNoLastWorker: two pools that each count on the other's node would leave none.
func TestANodeOfAnotherPoolThatLeavesIsNoLastWorker(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		s.node("other", 9)
		a := s.replica("a")
		d, err := a.Decide(t.Context(), 0)
		if err != nil || len(d.Victims) != 1 {
			t.Fatalf("%+v, %v; want it to go while another worker stays", d, err)
		}
		s.leaves("other")
		s.passes(time.Second)
		d, err = a.Decide(t.Context(), 0)
		if err != nil || len(d.Victims) != 0 || len(d.Passed) != 1 || d.Passed[0].Rule != matching.RuleLastWorker {
			t.Errorf("size 0: %+v, %v; want the last worker to stay", d, err)
		}
		if _, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1)}, a.JudgeMachine); err == nil {
			t.Error("terminate: it began; want the last worker to stay")
		}
	})
}
