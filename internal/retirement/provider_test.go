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

// otherCloud recognizes every ID of the sim, as a pool without a scope does, but has its own instances.
type otherCloud struct {
	simCloud
	name      string
	machines  map[string]cloud.Instance
	err       error // instead of any answer
	normalize error
	deleted   []string
}

func (c *otherCloud) Name() string { return c.name }

func (c *otherCloud) Normalize(id string) (string, error) { return id, c.normalize }

func (c *otherCloud) Instance(_ context.Context, id string) (cloud.Instance, error) {
	i, ok := c.machines[id]
	switch {
	case c.err != nil:
		return cloud.Instance{}, c.err
	case !ok:
		return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
	}
	return i, nil
}

func (c *otherCloud) Delete(ctx context.Context, id string) (cloud.Operation, error) {
	c.deleted = append(c.deleted, id)
	delete(c.machines, id)
	return c.simCloud.Delete(ctx, id)
}

// addOtherClouds adds two clouds that recognize the sim's IDs, one before it in the order of names and one after.
func addOtherClouds(s *sim, c *Controller) (before, after *otherCloud) {
	before = &otherCloud{simCloud: simCloud{s}, name: "pool"}
	after = &otherCloud{simCloud: simCloud{s}, name: "yonder"}
	c.options.Clouds[before.name], c.options.Clouds[after.name] = before, after
	return before, after
}

// newUngroupedSim returns a sim with node a in no group.
func newUngroupedSim(t *testing.T) *sim {
	t.Helper()
	s := newSim(t)
	s.addNode("a", nil)
	return s
}

func TestI7InstanceInOneCloudIsNotGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		s.changeNode("a", setUnready)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		addOtherClouds(s, c)
		rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour)
		if captured := rt.Status.Captured; captured == nil || captured.Provider != "sim" || captured.InstanceName != "vm-a" || rt.Status.InstanceGone {
			t.Fatalf("captured %+v, gone: %t", captured, rt.Status.InstanceGone)
		}
		if rt.Status.Phase != v1alpha1.Succeeded || !s.deletionRequested["sim://a"] {
			t.Errorf("%s: %s; instance deleted: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
	})
}

func TestI7InstanceIsGoneIfAllMatchingCloudsAgree(t *testing.T) {
	for name, tt := range map[string]struct {
		unsure func(before, after *otherCloud)
		gone   bool
	}{
		"all clouds agree":                        {func(_, _ *otherCloud) {}, true},
		"the first fails":                         {func(b, _ *otherCloud) { b.err = errors.New("502 Bad Gateway") }, false},
		"the last fails":                          {func(_, a *otherCloud) { a.err = errors.New("502 Bad Gateway") }, false},
		"one cloud may recognize the ID later":    {func(_, a *otherCloud) { a.normalize = &cloud.ProviderUnavailableError{Err: errors.New("does not run")} }, false},
		"another cloud does not recognize the ID": {func(_, a *otherCloud) { a.normalize = errors.New("want yonder://NAME") }, true},
		"the last cloud throttles":                {func(_, a *otherCloud) { a.err = &cloud.ThrottledError{RetryAfter: time.Minute, Err: errors.New("429")} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newUngroupedSim(t)
				s.addPod("a", "web-1", nil)
				s.changeNode("a", setUnready)
				delete(s.instances, "sim://a")
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
				c := s.newController(t)
				before, after := addOtherClouds(s, c)
				tt.unsure(before, after)
				rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
				if rt.Status.InstanceGone != tt.gone {
					t.Fatalf("gone: %t, %s: %s", rt.Status.InstanceGone, rt.Status.Phase, rt.Status.Message)
				}
				if !tt.gone && (s.nodes["a"] == nil || len(s.listPodsOn("a")) != 1) {
					t.Errorf("the Node or its pod was taken away: %s", rt.Status.Message)
				}
			})
		})
	}
}

// TestI7DetachedInstanceIsNotGone detaches the instance from its pool after it was captured.
func TestI7DetachedInstanceIsNotGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		s.addPod("a", "web-1", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		pool, _ := addOtherClouds(s, c)
		pool.machines = map[string]cloud.Instance{"sim://a": s.instances["sim://a"].Instance}
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		if rt.Status.Captured == nil || rt.Status.Captured.Provider != "pool" || rt.Status.Phase != v1alpha1.Draining {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, rt.Status.Captured)
		}
		pool.machines = nil
		s.changeNode("a", setUnready)
		rt = s.reconcileUntilDone(ctx, c, "r", 5*time.Minute)
		if rt.Status.InstanceGone || s.nodes["a"] == nil || len(s.listPodsOn("a")) != 1 {
			t.Fatalf("gone: %t, %s: %s", rt.Status.InstanceGone, rt.Status.Phase, rt.Status.Message)
		}
		if len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != Disagreement || !strings.Contains(rt.Status.Message, "the cloud sim has it") {
			t.Errorf("%s: %+v", rt.Status.Message, rt.Status.Reasons)
		}
	})
}

func TestOwningCloudIsPreferredToKeepingCloud(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		kept := s.instances["sim://a"].Instance
		s.instances["sim://a"].DeletionProtected = true
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		_, after := addOtherClouds(s, c)
		after.err = errors.New("502 Bad Gateway")
		if rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute); rt.Status.Captured != nil {
			t.Fatalf("captured %+v while it is not known whose it is", rt.Status.Captured)
		}
		after.err, after.machines = nil, map[string]cloud.Instance{"sim://a": kept}
		rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour)
		if rt.Status.Captured == nil || rt.Status.Captured.Provider != "yonder" || len(after.deleted) != 1 {
			t.Errorf("%s: %s, %+v, deleted %v", rt.Status.Phase, rt.Status.Message, rt.Status.Captured, after.deleted)
		}
	})
}

func TestI7UnreadableCloudsConfirmNoInstanceGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		s.addPod("a", "web-1", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		pool, last := addOtherClouds(s, c)
		pool.machines = map[string]cloud.Instance{"sim://a": s.instances["sim://a"].Instance}
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		pool.machines, last.err = nil, errors.New("502 Bad Gateway")
		s.removeInstance("a")
		s.makeNodeUnready("a")
		rt := s.reconcileUntilDone(ctx, c, "r", 5*time.Minute)
		if rt.Status.Phase != v1alpha1.Draining || rt.Status.InstanceGone || len(s.listPodsOn("a")) != 1 {
			t.Errorf("%s: %s, gone: %t", rt.Status.Phase, rt.Status.Message, rt.Status.InstanceGone)
		}
	})
}
