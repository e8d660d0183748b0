package retirement

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// markedCloud is a sim whose instances with the tag cluster are marked as the cluster's.
type markedCloud struct{ simCloud }

func (c markedCloud) Ours(context.Context) (all []cloud.Instance, err error) {
	err = c.ask("cloud ours", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range c.machines {
			if m.Tags["cluster"] == "this" {
				all = append(all, m.Instance)
			}
		}
		return nil
	})
	return all, err
}

func TestI4AnInstanceWithoutANodeIsDeletedOnlyIfAGroupOwnsIt(t *testing.T) {
	refused := func(s *sim) {
		s.groups[0].Status.Conditions[0].Status, s.groups[0].Status.Conditions[0].Reason = "False", v1alpha1.InvalidSpec
	}
	for name, c := range map[string]struct {
		change func(s *sim)
		group  string // of the spec
		marks  bool
		want   v1alpha1.Phase
		code   string
	}{
		"its group's cloud group owns it":            {func(*sim) {}, "ci", false, v1alpha1.Succeeded, ""},
		"a group owns it, and the spec names none":   {func(*sim) {}, "", false, v1alpha1.Succeeded, ""},
		"it is on its own":                           {func(s *sim) { s.machines["sim://a"].Group = "" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"it is on its own, and the spec names one":   {func(s *sim) { s.machines["sim://a"].Group = "" }, "ci", false, v1alpha1.Refused, InstanceNotOwned},
		"it is in a cloud group without a NodeGroup": {func(s *sim) { s.machines["sim://a"].Group = "db" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"there is no NodeGroup":                      {func(s *sim) { s.groups = nil }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its NodeGroup is refused":                   {refused, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its NodeGroup is in another cloud":          {func(s *sim) { s.groups[0].Spec.Cloud.Provider = "other" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its group has only adopted it":              {func(s *sim) { s.machines["sim://a"].Adopted = true }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"it has the cluster's mark": {func(s *sim) {
			s.machines["sim://a"].Group, s.machines["sim://a"].Tags = "", map[string]string{"cluster": "this"}
		}, "", true, v1alpha1.Succeeded, ""},
		"it has another cluster's mark": {func(s *sim) {
			s.machines["sim://a"].Group, s.machines["sim://a"].Tags = "", map[string]string{"cluster": "other"}
		}, "", true, v1alpha1.Refused, InstanceNotOwned},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.drop("a")
				c.change(s)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a", Group: c.group})
				controller := s.controller(t)
				if c.marks {
					controller.o.Clouds = map[string]cloud.Provider{"sim": markedCloud{simCloud{s}}}
				}
				rt := s.settled(ctx, controller, "r", time.Hour)
				if rt.Status.Phase != c.want || EndedBy(rt) != c.code {
					t.Errorf("%s, %s: %s; want %s, %s", rt.Status.Phase, EndedBy(rt), rt.Status.Message, c.want, c.code)
				}
				if touched := s.touched["sim://a"]; touched != (c.want == v1alpha1.Succeeded) {
					t.Errorf("the instance's deletion was asked for: %t", touched)
				}
				if c.code != "" && !strings.Contains(rt.Status.Message, "sim://a") {
					t.Errorf("the message is %q, want the instance in it", rt.Status.Message)
				}
			})
		})
	}
}

func TestI7AnInstanceWhoseOwnerIsUnreadableIsNotDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.drop("a")
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud instances" {
				return errors.New("503")
			}
			return nil
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		c := s.controller(t)
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending || s.touched["sim://a"] {
			t.Fatalf("%s: %s, want it to wait; deletion asked for: %t", rt.Status.Phase, rt.Status.Message, s.touched["sim://a"])
		}
		s.atEach(func(string, string) error { return nil })
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s, once its groups can be read", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestI4AnInstanceThatLeavesItsGroupMeanwhileIsNotDeleted has that happen after the retirement was admitted.
func TestI4AnInstanceThatLeavesItsGroupMeanwhileIsNotDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.drop("a")
		reads := 0
		s.atEach(func(moment, request string) error {
			if moment == "after" && request == "cloud instances" {
				s.mu.Lock()
				defer s.mu.Unlock()
				if reads++; reads == 1 {
					s.machines["sim://a"].Group = ""
				}
			}
			return nil
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Failed || EndedBy(rt) != InstanceNotOwned || s.touched["sim://a"] {
			t.Errorf("%s: %s, deletion asked for: %t", rt.Status.Phase, rt.Status.Message, s.touched["sim://a"])
		}
	})
}
