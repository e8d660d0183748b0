package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI4InstanceWithOtherNamesMustKeepThem uses a cloud with other names for the instance. One of them changes once the
// Node is deleted: the instance was recreated under its provider ID.
func TestI4InstanceWithOtherNamesMustKeepThem(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *simInstance)
		want   v1alpha1.Phase
	}{
		"nothing changes":                      {func(*simInstance) {}, v1alpha1.Succeeded},
		"its computer name changes":            {func(m *simInstance) { m.ComputerName = "host-2" }, v1alpha1.Failed},
		"its name changes":                     {func(m *simInstance) { m.Name = "i-2" }, v1alpha1.Failed},
		"both change":                          {func(m *simInstance) { m.Name, m.ComputerName = "i-2", "host-2" }, v1alpha1.Failed},
		"only the case of one changes":         {func(m *simInstance) { m.ComputerName = "Host-1" }, v1alpha1.Succeeded},
		"it has the Node's name when captured": {func(m *simInstance) { m.ComputerName = "a" }, v1alpha1.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				m := s.instances["sim://a"]
				m.Name, m.ComputerName, m.NameMayDiffer = "i-1", "host-1", true
				s.afterNodeDeletion(func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					c.change(m)
				})
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != c.want || s.deletionRequested["sim://a"] != (c.want == v1alpha1.Succeeded) {
					t.Errorf("%s: %s; deletion requested: %t, want %s", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"], c.want)
				}
			})
		})
	}
}

// TestI4InstanceWithOtherNamesNeedsNodeProviderID sets the provider ID in the Node, in the spec only, or in another
// Node too.
func TestI4InstanceWithOtherNamesNeedsNodeProviderID(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *sim)
		spec   v1alpha1.NodeRetirementSpec
		want   v1alpha1.Phase
	}{
		"the Node has the provider ID": {func(*sim) {}, v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Succeeded},
		"only the spec has the provider ID": {
			func(s *sim) { s.nodes["a"].Spec.ProviderID = "" }, v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"}, v1alpha1.Refused,
		},
		"there is no Node": {
			func(s *sim) { s.deleteNodeAsUser("a") }, v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"}, v1alpha1.Refused,
		},
		"another Node has the same provider ID": {
			func(s *sim) { s.nodes["b"].Spec.ProviderID = "sim://a" }, v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Refused,
		},
		"it has the name of another Node": {
			func(s *sim) { s.instances["sim://a"].ComputerName, s.nodes["b"].Spec.ProviderID = "b", "" },
			v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Refused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				m := s.instances["sim://a"]
				m.Name, m.ComputerName, m.NameMayDiffer = "i-1", "host-1", true
				c.change(s)
				s.createRetirement(t, "r", c.spec)
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != c.want || s.deletionRequested["sim://a"] != (c.want == v1alpha1.Succeeded) {
					t.Errorf("%s: %s; deletion requested: %t, want %s", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"], c.want)
				}
			})
		})
	}
}
