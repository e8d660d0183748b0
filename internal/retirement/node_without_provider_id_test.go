package retirement

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// says has a Node say which machine it is; nothing is a cluster without a cloud controller.
func says(providerID string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.ProviderID = providerID }
}

// TestI4ANodeThatDoesNotSayItsMachineGoesWithTheOneThatIsNamed, and only with one that the cloud says is its.
func TestI4ANodeThatDoesNotSayItsMachineGoesWithTheOneThatIsNamed(t *testing.T) {
	for name, tt := range map[string]struct {
		names string // spec.providerID
		world func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its own":                      {"sim://a", nil, v1alpha1.Succeeded, ""},
		"none":                         {"", nil, v1alpha1.Refused, NoProviderID},
		"another one":                  {"sim://b", func(s *sim) { s.change("b", says("")) }, v1alpha1.Refused, NotConfirmed},
		"one of another Node":          {"sim://b", nil, v1alpha1.Refused, ProviderMismatch},
		"one of another cloud":         {"aws:///x", nil, v1alpha1.Refused, ForeignMachine},
		"one that is not there":        {"sim://z", nil, v1alpha1.Refused, NotConfirmed},
		"one that is not there either": {"sim://z", func(s *sim) { s.change("a", silent) }, v1alpha1.Refused, NotConfirmed},
		"one of another Node, and of its name": {
			"sim://b", func(s *sim) { s.machines["sim://b"].ComputerName = "a" }, v1alpha1.Refused, ProviderMismatch,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.change("a", says(""))
				if tt.world != nil {
					tt.world(s)
				}
				s.addPod("a", "web", nil)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: tt.names})
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EndedBy(rt) != tt.code {
					t.Errorf("%s %q: %s, want %s %q", rt.Status.Phase, EndedBy(rt), rt.Status.Message, tt.phase, tt.code)
				}
				if tt.phase != v1alpha1.Succeeded {
					s.isAsItWas(t, "a")
					return
				}
				s.hasLeft(t, "a")
				if c := rt.Status.Captured; c == nil || c.ProviderID != tt.names || c.InstanceName != "vm-a" {
					t.Errorf("captured %+v", c)
				}
			})
		})
	}
}

// TestI4ANodeThatSaysItsMachineLaterGoesOnlyIfItIsTheOneThatWasCaptured has a cloud controller come up at the last moment
// before each step that cannot be undone.
func TestI4ANodeThatSaysItsMachineLaterGoesOnlyIfItIsTheOneThatWasCaptured(t *testing.T) {
	for _, at := range []string{"evict", "delete node"} {
		for said, phase := range map[string]v1alpha1.Phase{
			"sim://a": v1alpha1.Succeeded, "sim://b": v1alpha1.Aborted, "k3s://a": v1alpha1.Aborted,
		} {
			t.Run(at+", "+said, func(t *testing.T) {
				inBubble(t, func(t *testing.T, ctx context.Context) {
					s := ci(t)
					s.change("a", says(""))
					s.addPod("a", "web", nil)
					s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
					var done atomic.Bool
					s.atEach(func(moment, request string) error {
						if moment == "before" && request == at && done.CompareAndSwap(false, true) {
							s.change("a", says(said))
						}
						return nil
					})
					rt := s.settled(ctx, s.controller(t), "r", time.Hour)
					if rt.Status.Phase != phase || !done.Load() {
						t.Errorf("%s %q: %s, want %s", rt.Status.Phase, EndedBy(rt), rt.Status.Message, phase)
					}
					if phase == v1alpha1.Succeeded {
						s.hasLeft(t, "a")
						return
					}
					if EndedBy(rt) != ProviderMismatch {
						t.Errorf("ended by %q, want %s", EndedBy(rt), ProviderMismatch)
					}
					s.isAsItWas(t, "a")
				})
			})
		}
	}
}

// hasUUID has a Node whose kubelet has read a system UUID.
func hasUUID(uuid string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = uuid }
}

// TestI4ANodeWithoutProviderIDIsPairedByItsSystemUUID where the cloud's machines have the UUID of their system as their ID.
func TestI4ANodeWithoutProviderIDIsPairedByItsSystemUUID(t *testing.T) {
	for name, tt := range map[string]struct {
		uuid  string
		world func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its own":             {"a", nil, v1alpha1.Succeeded, ""},
		"in capitals":         {"A", nil, v1alpha1.Succeeded, ""},
		"another machine's":   {"b", func(s *sim) { s.change("b", says("")) }, v1alpha1.Refused, NotConfirmed},
		"that of no machine":  {"z", nil, v1alpha1.Refused, NotConfirmed},
		"that another one is": {"b", nil, v1alpha1.Refused, ProviderMismatch},
		"two Nodes have it":   {"a", func(s *sim) { s.change("b", says("")); s.change("b", hasUUID("a")) }, v1alpha1.Refused, NotConfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.change("a", says(""))
				s.change("a", hasUUID(tt.uuid))
				if tt.world != nil {
					tt.world(s)
				}
				s.addPod("a", "web", nil)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EndedBy(rt) != tt.code {
					t.Errorf("%s %q: %s, want %s %q", rt.Status.Phase, EndedBy(rt), rt.Status.Message, tt.phase, tt.code)
				}
				if tt.phase == v1alpha1.Succeeded {
					s.hasLeft(t, "a")
					return
				}
				s.isAsItWas(t, "a")
			})
		})
	}
}

// TestI4ANameWithADomainConfirmsWithTheIDOrTheUUID: kubelets take the whole name of their host where clouds give the first label.
func TestI4ANameWithADomainConfirmsWithTheIDOrTheUUID(t *testing.T) {
	for name, tt := range map[string]struct {
		says, uuid, names string // the Node's provider ID and system UUID, and spec.providerID
		computer          string
		phase             v1alpha1.Phase
	}{
		"the ID agrees":             {"sim://a", "", "", "a.example.com", v1alpha1.Succeeded},
		"the UUID agrees":           {"", "a", "", "a.example.com", v1alpha1.Succeeded},
		"the UUID agrees with spec": {"", "a", "sim://a", "a.example.com", v1alpha1.Succeeded},
		"neither is said":           {"", "", "sim://a", "a.example.com", v1alpha1.Refused},
		"another host":              {"sim://a", "a", "", "c.example.com", v1alpha1.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.change("a", says(tt.says))
				s.change("a", hasUUID(tt.uuid))
				s.machines["sim://a"].Name, s.machines["sim://a"].ComputerName = "kube-worker-1", tt.computer
				s.addPod("a", "web", nil)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: tt.names})
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || tt.phase == v1alpha1.Refused && EndedBy(rt) != NotConfirmed {
					t.Errorf("%s %q: %s, want %s", rt.Status.Phase, EndedBy(rt), rt.Status.Message, tt.phase)
				}
				if tt.phase == v1alpha1.Succeeded {
					s.hasLeft(t, "a")
				}
			})
		})
	}
}
