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

// markingCloud marks instances with the tag cluster as the cluster's.
type markingCloud struct{ simCloud }

func (c markingCloud) ClusterInstances(context.Context) (all []cloud.Instance, err error) {
	err = c.serveRequest("cloud ours", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range c.instances {
			if m.Tags["cluster"] == "this" {
				all = append(all, m.Instance)
			}
		}
		return nil
	})
	return all, err
}

func TestI4InstanceWithoutNodeIsDeletedOnlyIfOwned(t *testing.T) {
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
		"its group's cloud group owns it":                {func(*sim) {}, "ci", false, v1alpha1.Succeeded, ""},
		"a group owns it, and spec.group is empty":       {func(*sim) {}, "", false, v1alpha1.Succeeded, ""},
		"it is in no cloud group":                        {func(s *sim) { s.instances["sim://a"].Group = "" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"it is in no cloud group, and spec.group is set": {func(s *sim) { s.instances["sim://a"].Group = "" }, "ci", false, v1alpha1.Refused, InstanceNotOwned},
		"it is in a cloud group without a NodeGroup":     {func(s *sim) { s.instances["sim://a"].Group = "db" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"there is no NodeGroup":                          {func(s *sim) { s.groups = nil }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its NodeGroup is refused":                       {refused, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its NodeGroup is in another cloud":              {func(s *sim) { s.groups[0].Spec.Cloud.Provider = "other" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its group has only adopted it":                  {func(s *sim) { s.instances["sim://a"].OwnerUncertain = true }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"it has the cluster's mark": {func(s *sim) {
			s.instances["sim://a"].Group, s.instances["sim://a"].Tags = "", map[string]string{"cluster": "this"}
		}, "", true, v1alpha1.Succeeded, ""},
		"it has another cluster's mark": {func(s *sim) {
			s.instances["sim://a"].Group, s.instances["sim://a"].Tags = "", map[string]string{"cluster": "other"}
		}, "", true, v1alpha1.Refused, InstanceNotOwned},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.deleteNodeAsUser("a")
				c.change(s)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a", Group: c.group})
				controller := s.newController(t)
				if c.marks {
					controller.options.Clouds = map[string]cloud.Provider{"sim": markingCloud{simCloud{s}}}
				}
				rt := s.reconcileUntilDone(ctx, controller, "r", time.Hour)
				if rt.Status.Phase != c.want || EarlyEndCode(rt) != c.code {
					t.Errorf("%s, %s: %s; want %s, %s", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, c.want, c.code)
				}
				if touched := s.deletionRequested["sim://a"]; touched != (c.want == v1alpha1.Succeeded) {
					t.Errorf("the instance's deletion was requested: %t", touched)
				}
				if c.code != "" && !strings.Contains(rt.Status.Message, "sim://a") {
					t.Errorf("the message is %q, want it to name the instance", rt.Status.Message)
				}
			})
		})
	}
}

func TestI7InstanceWithUnreadableOwnerIsNotDeleted(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.deleteNodeAsUser("a")
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instances" {
				return errors.New("503")
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending || s.deletionRequested["sim://a"] {
			t.Fatalf("%s: %s, want it to wait; deletion requested: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
		s.interceptRequests(func(string, string) error { return nil })
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s, once its groups can be read", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestI4InstanceRemovedFromGroupIsNotDeleted removes it after the retirement was admitted.
func TestI4InstanceRemovedFromGroupIsNotDeleted(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.deleteNodeAsUser("a")
		reads := 0
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "cloud instances" {
				s.mu.Lock()
				defer s.mu.Unlock()
				if reads++; reads == 1 {
					s.instances["sim://a"].Group = ""
				}
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Failed || EarlyEndCode(rt) != InstanceNotOwned || s.deletionRequested["sim://a"] {
			t.Errorf("%s: %s, deletion requested: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
	})
}
