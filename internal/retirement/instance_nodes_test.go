package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestI4InstanceOfAnotherNodeIsNotDeleted(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "vm-a", ProviderID: "sim://a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NodeReplaced {
			t.Errorf("%s: %s, want it refused", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}

// TestI4InstanceReregisteredUnderOtherNameIsNotDeleted registers it at every request of a retirement, before and after.
func TestI4InstanceReregisteredUnderOtherNameIsNotDeleted(t *testing.T) {
	for _, moment := range []string{"before", "after"} {
		for at, more := 1, true; more; at++ {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				n := 0
				s.interceptRequests(func(when, request string) error {
					s.mu.Lock()
					if when == moment {
						n++
					}
					now := when == moment && n == at
					s.mu.Unlock()
					switch when + " " + request {
					case "after list nodes", "before list pods", "after list pods", "before cloud delete": // the retirement does not check any more
					default:
						if now {
							s.reregisterAs("a", "a.example.org")
						}
					}
					return nil
				})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
				s.mu.Lock()
				defer s.mu.Unlock()
				more = n >= at
				if len(s.violations) > 0 {
					t.Errorf("%d %s: %v", at, moment, s.violations)
				}
				if s.nodes["a.example.org"] != nil && (s.deletionRequested["sim://a"] || !rt.Status.Phase.IsFinal() || rt.Status.Phase == v1alpha1.Succeeded) {
					t.Errorf("%d %s: %s: %s, its instance's deletion requested: %t", at, moment, rt.Status.Phase, rt.Status.Message,
						s.deletionRequested["sim://a"])
				}
			})
		}
	}
}

func TestI7InstanceWithUnknownNodeIsNotDeleted(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		fails := true
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "list nodes" && fails {
				return errors.New("etcdserver: request timed out")
			}
			return nil
		})
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.NodeDeleted || s.deletionRequested["sim://a"] {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		fails = false
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

// TestInstanceWithSimilarNameToOtherNodeIsRetired retires one of two hosts with the same name in different domains.
func TestInstanceWithSimilarNameToOtherNodeIsRetired(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		for _, name := range []string{"worker-1.east.example.org", "worker-1.west.example.org"} {
			s.addNode(name, map[string]string{pool: "ci"})
		}
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "worker-1.west.example.org"})
		if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "worker-1.west.example.org")
	})
}

// TestNodeSharingItsInstanceIsRefusedBeforeDrain retires a Node with a kubelet that had another name before.
func TestNodeSharingItsInstanceIsRefusedBeforeDrain(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", nil)
		s.mu.Lock()
		s.addReadyNode("a-before", "sim://a", nil)
		s.mu.Unlock()
		s.makeNodeUnready("a-before")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NotConfirmed {
			t.Errorf("%s: %s, want it refused", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
		s.deleteNodeAsUser("a-before")
		s.createRetirement(t, "again", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		if rt := s.reconcileUntilDone(ctx, s.newController(t), "again", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestHostInOtherDomainIsNotTheInstance uses hosts without a provider ID, or with that of another cloud.
func TestHostInOtherDomainIsNotTheInstance(t *testing.T) {
	for name, id := range map[string]string{"it says nothing": "", "it is another cloud's": "aws:///x"} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addNode("w1.rack-a", map[string]string{pool: "ci"})
				s.mu.Lock()
				s.instances["sim://w1.rack-a"].Name = "w1.rack-a"
				s.addReadyNode("w1.rack-b", id, nil)
				s.mu.Unlock()
				if id == "" {
					s.changeNode("w1.rack-a", func(n *corev1.Node) { n.Spec.ProviderID = "" })
				}
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "w1.rack-a", ProviderID: "sim://w1.rack-a"})
				if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "w1.rack-a")
			})
		})
	}
}

// TestI4PossibleHostCountsAsTheInstance uses Nodes without a provider ID of the cloud.
func TestI4PossibleHostCountsAsTheInstance(t *testing.T) {
	m := cloud.Instance{ProviderID: "sim://3f", Name: "vm-1", ComputerName: "w1.rack-a"}
	for _, tt := range []struct {
		host cloud.NodeIdentity
		is   bool
	}{
		{cloud.NodeIdentity{Name: "w1"}, true}, // of any domain
		{cloud.NodeIdentity{Name: "W1.Rack-A"}, true},
		{cloud.NodeIdentity{Name: "w1.rack-a", ProviderID: "aws:///x"}, true},
		{cloud.NodeIdentity{Name: "w1.rack-b", SystemUUID: "3F"}, true},
		{cloud.NodeIdentity{Name: "w1.rack-b"}, false},
		{cloud.NodeIdentity{Name: "w1.rack-b", ProviderID: "aws:///x"}, false},
		{cloud.NodeIdentity{Name: "w1", ProviderID: "k3s://w1"}, true}, // set by the kubelet from its host's name
	} {
		if is := !isOnOtherInstance(tt.host, m, simCloud{}.Normalize); is != tt.is {
			t.Errorf("%+v: counts as the instance: %t", tt.host, is)
		}
	}
	m.ComputerName = "w1"
	for _, id := range []string{"", "k3s://w1.rack-b"} {
		if isOnOtherInstance(cloud.NodeIdentity{Name: "w1.rack-b", ProviderID: id}, m, simCloud{}.Normalize) {
			t.Errorf("the instance does not say its domain, and the Node of ID %q counts as another's", id)
		}
	}
}

// TestI4InstanceOfNodeWithForeignIDIsNotDeleted registers the kubelet under its host's name, with an ID that its
// distribution derives from that name.
func TestI4InstanceOfNodeWithForeignIDIsNotDeleted(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.mu.Lock()
		delete(s.nodes, "a")
		s.addReadyNode("a.example.org", "k3s://a.example.org", map[string]string{pool: "ci"})
		s.mu.Unlock()
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NodeReplaced || s.deletionRequested["sim://a"] {
			t.Errorf("%s: %s, want it refused; its instance's deletion requested: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
	})
}

// TestI4NodeSharingItsInstanceDuringDrainIsRestored registers the other Node during the drain.
func TestI4NodeSharingItsInstanceDuringDrainIsRestored(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 30*time.Second)
		s.mu.Lock()
		s.addReadyNode("a.example.org", "sim://a", nil)
		s.mu.Unlock()
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != NotConfirmed {
			t.Errorf("%s: %s, want it aborted", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}
