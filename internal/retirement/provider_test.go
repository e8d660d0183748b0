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

// otherCloud takes every ID of the sim for one of its own, as a pool without a scope does, and has machines of its own
// finding.
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

// between adds two clouds that know the sim's IDs too, one before it in the order of names and one after.
func between(s *sim, c *Controller) (before, after *otherCloud) {
	before = &otherCloud{simCloud: simCloud{s}, name: "pool"}
	after = &otherCloud{simCloud: simCloud{s}, name: "yonder"}
	c.o.Clouds[before.name], c.o.Clouds[after.name] = before, after
	return before, after
}

// ungrouped is a sim whose node a is of no group.
func ungrouped(t *testing.T) *sim {
	t.Helper()
	s := newSim(t)
	s.addNode("a", nil)
	return s
}

func TestI7AMachineThatOneOfSeveralCloudsHasIsNotGoneByTheWordOfAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ungrouped(t)
		s.change("a", silent)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		between(s, c)
		rt := s.settled(ctx, c, "r", 3*time.Hour)
		if captured := rt.Status.Captured; captured == nil || captured.Provider != "sim" || captured.InstanceName != "vm-a" || rt.Status.MachineGone {
			t.Fatalf("captured %+v, gone: %t", captured, rt.Status.MachineGone)
		}
		if rt.Status.Phase != v1alpha1.Succeeded || !s.touched["sim://a"] {
			t.Errorf("%s: %s; machine deleted: %t", rt.Status.Phase, rt.Status.Message, s.touched["sim://a"])
		}
	})
}

func TestI7AMachineIsGoneWhenAllCloudsThatKnowItsIDSaySo(t *testing.T) {
	for name, tt := range map[string]struct {
		unsure func(before, after *otherCloud)
		gone   bool
	}{
		"all say so":                   {func(_, _ *otherCloud) {}, true},
		"the first fails":              {func(b, _ *otherCloud) { b.err = errors.New("502 Bad Gateway") }, false},
		"the last fails":               {func(_, a *otherCloud) { a.err = errors.New("502 Bad Gateway") }, false},
		"one may yet know the ID":      {func(_, a *otherCloud) { a.normalize = &cloud.UnansweredError{Err: errors.New("does not run")} }, false},
		"another does not know them":   {func(_, a *otherCloud) { a.normalize = errors.New("want yonder://NAME") }, true},
		"the last one asks for a rest": {func(_, a *otherCloud) { a.err = &cloud.ThrottledError{After: time.Minute, Err: errors.New("429")} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ungrouped(t)
				s.addPod("a", "web-1", nil)
				s.change("a", silent)
				delete(s.machines, "sim://a")
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
				c := s.controller(t)
				before, after := between(s, c)
				tt.unsure(before, after)
				rt := s.settled(ctx, c, "r", time.Hour)
				if rt.Status.MachineGone != tt.gone {
					t.Fatalf("gone: %t, %s: %s", rt.Status.MachineGone, rt.Status.Phase, rt.Status.Message)
				}
				if !tt.gone && (s.nodes["a"] == nil || len(s.podsOn("a")) != 1) {
					t.Errorf("the Node or its pod was taken away: %s", rt.Status.Message)
				}
			})
		})
	}
}

// TestI7AMachineThatItsPoolHasLetGoIsNotGone detaches the machine from its pool after it was captured.
func TestI7AMachineThatItsPoolHasLetGoIsNotGone(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ungrouped(t)
		s.addPod("a", "web-1", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		pool, _ := between(s, c)
		pool.machines = map[string]cloud.Instance{"sim://a": s.machines["sim://a"].Instance}
		rt := s.settled(ctx, c, "r", time.Minute)
		if rt.Status.Captured == nil || rt.Status.Captured.Provider != "pool" || rt.Status.Phase != v1alpha1.Draining {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, rt.Status.Captured)
		}
		pool.machines = nil
		s.change("a", silent)
		rt = s.settled(ctx, c, "r", 5*time.Minute)
		if rt.Status.MachineGone || s.nodes["a"] == nil || len(s.podsOn("a")) != 1 {
			t.Fatalf("gone: %t, %s: %s", rt.Status.MachineGone, rt.Status.Phase, rt.Status.Message)
		}
		if len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != Disagreement || !strings.Contains(rt.Status.Message, "the cloud sim has it") {
			t.Errorf("%s: %+v", rt.Status.Message, rt.Status.Reasons)
		}
	})
}

func TestACloudThatKeepsAMachineGivesWayToTheOneWhoseItIs(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ungrouped(t)
		kept := s.machines["sim://a"].Instance
		s.machines["sim://a"].Kept = true
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		_, after := between(s, c)
		after.err = errors.New("502 Bad Gateway")
		if rt := s.settled(ctx, c, "r", 10*time.Minute); rt.Status.Captured != nil {
			t.Fatalf("captured %+v while it is not known whose it is", rt.Status.Captured)
		}
		after.err, after.machines = nil, map[string]cloud.Instance{"sim://a": kept}
		rt := s.settled(ctx, c, "r", 3*time.Hour)
		if rt.Status.Captured == nil || rt.Status.Captured.Provider != "yonder" || len(after.deleted) != 1 {
			t.Errorf("%s: %s, %+v, deleted %v", rt.Status.Phase, rt.Status.Message, rt.Status.Captured, after.deleted)
		}
	})
}

func TestI7UnreadableCloudsConfirmNoInstanceGone(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ungrouped(t)
		s.addPod("a", "web-1", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		pool, last := between(s, c)
		pool.machines = map[string]cloud.Instance{"sim://a": s.machines["sim://a"].Instance}
		s.settled(ctx, c, "r", time.Minute)
		pool.machines, last.err = nil, errors.New("502 Bad Gateway")
		s.lose("a")
		s.silence("a")
		rt := s.settled(ctx, c, "r", 5*time.Minute)
		if rt.Status.Phase != v1alpha1.Draining || rt.Status.MachineGone || len(s.podsOn("a")) != 1 {
			t.Errorf("%s: %s, gone: %t", rt.Status.Phase, rt.Status.Message, rt.Status.MachineGone)
		}
	})
}
