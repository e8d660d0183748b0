package retirement

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// setProviderID sets the Node's provider ID; "" means a cluster without a cloud controller.
func setProviderID(providerID string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.ProviderID = providerID }
}

// TestI4NodeWithoutProviderIDUsesSpecProviderID, but only if the cloud confirms the instance.
func TestI4NodeWithoutProviderIDUsesSpecProviderID(t *testing.T) {
	for name, tt := range map[string]struct {
		names string // spec.providerID
		setup func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its own":              {"sim://a", nil, v1alpha1.Succeeded, ""},
		"none":                 {"", nil, v1alpha1.Refused, NoProviderID},
		"another one":          {"sim://b", func(s *sim) { s.changeNode("b", setProviderID("")) }, v1alpha1.Refused, NotConfirmed},
		"one of another Node":  {"sim://b", nil, v1alpha1.Refused, ProviderMismatch},
		"one of another cloud": {"aws:///x", nil, v1alpha1.Refused, ForeignMachine},
		"a missing one":        {"sim://z", nil, v1alpha1.Refused, NotConfirmed},
		"another missing one":  {"sim://z", func(s *sim) { s.changeNode("a", setUnready) }, v1alpha1.Refused, NotConfirmed},
		"one of another Node with its name": {
			"sim://b", func(s *sim) { s.instances["sim://b"].ComputerName = "a" }, v1alpha1.Refused, ProviderMismatch,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.changeNode("a", setProviderID(""))
				if tt.setup != nil {
					tt.setup(s)
				}
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: tt.names})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EarlyEndCode(rt) != tt.code {
					t.Errorf("%s %q: %s, want %s %q", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, tt.phase, tt.code)
				}
				if tt.phase != v1alpha1.Succeeded {
					s.checkNodeRestored(t, "a")
					return
				}
				s.checkRetired(t, "a")
				if c := rt.Status.Captured; c == nil || c.ProviderID != tt.names || c.InstanceName != "vm-a" {
					t.Errorf("captured %+v", c)
				}
			})
		})
	}
}

// TestI4LateProviderIDMustMatchCaptured starts a cloud controller right before each step that cannot be undone.
func TestI4LateProviderIDMustMatchCaptured(t *testing.T) {
	for _, at := range []string{"evict", "delete node"} {
		for said, phase := range map[string]v1alpha1.Phase{
			"sim://a": v1alpha1.Succeeded, "sim://b": v1alpha1.Aborted, "k3s://a": v1alpha1.Aborted,
		} {
			t.Run(at+", "+said, func(t *testing.T) {
				runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
					s := newGroupOfTwo(t)
					s.changeNode("a", setProviderID(""))
					s.addPod("a", "web", nil)
					s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
					var done atomic.Bool
					s.interceptRequests(func(moment, request string) error {
						if moment == "before" && request == at && done.CompareAndSwap(false, true) {
							s.changeNode("a", setProviderID(said))
						}
						return nil
					})
					rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
					if rt.Status.Phase != phase || !done.Load() {
						t.Errorf("%s %q: %s, want %s", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, phase)
					}
					if phase == v1alpha1.Succeeded {
						s.checkRetired(t, "a")
						return
					}
					if EarlyEndCode(rt) != ProviderMismatch {
						t.Errorf("ended by %q, want %s", EarlyEndCode(rt), ProviderMismatch)
					}
					s.checkNodeRestored(t, "a")
				})
			})
		}
	}
}

// setSystemUUID sets the system UUID that the kubelet has read.
func setSystemUUID(uuid string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = uuid }
}

// TestI4NodeWithoutProviderIDIsMatchedBySystemUUID covers clouds with the system UUID as instance ID.
func TestI4NodeWithoutProviderIDIsMatchedBySystemUUID(t *testing.T) {
	for name, tt := range map[string]struct {
		uuid  string
		setup func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its own":                         {"a", nil, v1alpha1.Succeeded, ""},
		"in capitals":                     {"A", nil, v1alpha1.Succeeded, ""},
		"another instance's":              {"b", func(s *sim) { s.changeNode("b", setProviderID("")) }, v1alpha1.Refused, NotConfirmed},
		"the ID of no instance":           {"z", nil, v1alpha1.Refused, NotConfirmed},
		"the provider ID of another Node": {"b", nil, v1alpha1.Refused, ProviderMismatch},
		"two Nodes have it":               {"a", func(s *sim) { s.changeNode("b", setProviderID("")); s.changeNode("b", setSystemUUID("a")) }, v1alpha1.Refused, NotConfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.changeNode("a", setProviderID(""))
				s.changeNode("a", setSystemUUID(tt.uuid))
				if tt.setup != nil {
					tt.setup(s)
				}
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EarlyEndCode(rt) != tt.code {
					t.Errorf("%s %q: %s, want %s %q", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, tt.phase, tt.code)
				}
				if tt.phase == v1alpha1.Succeeded {
					s.checkRetired(t, "a")
					return
				}
				s.checkNodeRestored(t, "a")
			})
		})
	}
}

// TestI4NameWithDomainNeedsIDOrUUID: kubelets use their host's full name, and clouds only the first label.
func TestI4NameWithDomainNeedsIDOrUUID(t *testing.T) {
	for name, tt := range map[string]struct {
		says, uuid, names string // provider ID and system UUID of the Node, and spec.providerID
		computer          string
		phase             v1alpha1.Phase
	}{
		"the ID agrees":             {"sim://a", "", "", "a.example.com", v1alpha1.Succeeded},
		"the UUID agrees":           {"", "a", "", "a.example.com", v1alpha1.Succeeded},
		"the UUID agrees with spec": {"", "a", "sim://a", "a.example.com", v1alpha1.Succeeded},
		"neither is set":            {"", "", "sim://a", "a.example.com", v1alpha1.Refused},
		"another host":              {"sim://a", "a", "", "c.example.com", v1alpha1.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.changeNode("a", setProviderID(tt.says))
				s.changeNode("a", setSystemUUID(tt.uuid))
				s.instances["sim://a"].Name, s.instances["sim://a"].ComputerName = "kube-worker-1", tt.computer
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: tt.names})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || tt.phase == v1alpha1.Refused && EarlyEndCode(rt) != NotConfirmed {
					t.Errorf("%s %q: %s, want %s", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, tt.phase)
				}
				if tt.phase == v1alpha1.Succeeded {
					s.checkRetired(t, "a")
				}
			})
		})
	}
}
