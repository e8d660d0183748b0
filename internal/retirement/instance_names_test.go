package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI4AMachineUnderAnyNameKeepsItsOwn has a cloud that knows the machine of the Node a by other names, of which one changes once the
// Node is deleted: the machine was made anew under its provider ID.
func TestI4AMachineUnderAnyNameKeepsItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *machine)
		want   v1alpha1.Phase
	}{
		"nothing changes":                {func(*machine) {}, v1alpha1.Succeeded},
		"its computer name changes":      {func(m *machine) { m.ComputerName = "host-2" }, v1alpha1.Failed},
		"its name changes":               {func(m *machine) { m.Name = "i-2" }, v1alpha1.Failed},
		"both change":                    {func(m *machine) { m.Name, m.ComputerName = "i-2", "host-2" }, v1alpha1.Failed},
		"only the case of one changes":   {func(m *machine) { m.ComputerName = "Host-1" }, v1alpha1.Succeeded},
		"it has the Node's name by then": {func(m *machine) { m.ComputerName = "a" }, v1alpha1.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				m := s.machines["sim://a"]
				m.Name, m.ComputerName, m.AnyName = "i-1", "host-1", true
				s.onceNodeDeleted(func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					c.change(m)
				})
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != c.want || s.touched["sim://a"] != (c.want == v1alpha1.Succeeded) {
					t.Errorf("%s: %s; deletion asked for: %t, want %s", rt.Status.Phase, rt.Status.Message, s.touched["sim://a"], c.want)
				}
			})
		})
	}
}

// TestI4AMachineUnderAnyNameTakesTheNodesOwnWord has the machine's provider ID in the Node, in the spec alone, or in another Node too.
func TestI4AMachineUnderAnyNameTakesTheNodesOwnWord(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *sim)
		spec   v1alpha1.NodeRetirementSpec
		want   v1alpha1.Phase
	}{
		"the Node says it": {func(*sim) {}, v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Succeeded},
		"only the spec says it": {
			func(s *sim) { s.nodes["a"].Spec.ProviderID = "" }, v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"}, v1alpha1.Refused,
		},
		"there is no Node": {
			func(s *sim) { s.drop("a") }, v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"}, v1alpha1.Refused,
		},
		"another Node says it too": {
			func(s *sim) { s.nodes["b"].Spec.ProviderID = "sim://a" }, v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Refused,
		},
		"it has the name of another Node": {
			func(s *sim) { s.machines["sim://a"].ComputerName, s.nodes["b"].Spec.ProviderID = "b", "" },
			v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Refused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				m := s.machines["sim://a"]
				m.Name, m.ComputerName, m.AnyName = "i-1", "host-1", true
				c.change(s)
				s.retire(t, "r", c.spec)
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != c.want || s.touched["sim://a"] != (c.want == v1alpha1.Succeeded) {
					t.Errorf("%s: %s; deletion asked for: %t, want %s", rt.Status.Phase, rt.Status.Message, s.touched["sim://a"], c.want)
				}
			})
		})
	}
}
