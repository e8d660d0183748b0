package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// createPendingRetirement creates a NodeRetirement that has not started, of a node outside the pool.
func (s *sim) createPendingRetirement(node string) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, NodeUID: types.UID("uid-" + node), ProviderID: "openstack:///" + newUUID(9)},
	}
	if err := s.objects.Create(s.t.Context(), rt); err != nil {
		s.t.Fatal(err)
	}
}

// TestLeavingNodeOfOtherPoolIsNoWorker: two pools that each count the other's leaving node would leave no worker.
func TestLeavingNodeOfOtherPoolIsNoWorker(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		s.createNode("other", 9)
		a := s.startReplica("a")
		d, err := a.PlanShrinkTo(t.Context(), 0)
		if err != nil || len(d.Victims) != 1 {
			t.Fatalf("%+v, %v; want a victim while another worker stays", d, err)
		}
		s.createPendingRetirement("other")
		s.advance(time.Second)
		d, err = a.PlanShrinkTo(t.Context(), 0)
		if err != nil || len(d.Victims) != 0 || len(d.Skipped) != 1 || d.Skipped[0].Rule != matching.RuleLastWorker {
			t.Errorf("size 0: %+v, %v; want the last worker to stay", d, err)
		}
		if _, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(1)}, a.CheckCanRemoveMachine); err == nil {
			t.Error("terminate was accepted; want the last worker to stay")
		}
	})
}
