package retirement

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func TestANodeThatCannotBeGivenBackIsToldOf(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		c := s.controller(t)
		s.calledOffWhile(ctx, t, c, "patch node")
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt == nil || !s.node("a").Spec.Unschedulable {
			t.Fatal("the record went before its node was given back")
		}
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if blocked == nil || blocked.Status != "True" || blocked.Reason != NotGivenBack {
			t.Errorf("%+v, want %s", blocked, NotGivenBack)
		}
		for _, want := range []string{"admission webhook denied", "called off"} {
			if !strings.Contains(rt.Status.Message, want) {
				t.Errorf("it says %q, want it to say %q", rt.Status.Message, want)
			}
		}
		s.deny("")
		if rt := s.settled(ctx, c, "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}

// TestI3ANodeWhoseConditionsCannotBeWrittenIsGivenBackAndTheRestTakenAwayLater has the right to write a Node's status taken
// away from a retirement that is called off, and given again.
func TestI3ANodeWhoseConditionsCannotBeWrittenIsGivenBackAndTheRestTakenAwayLater(t *testing.T) {
	for name, deleted := range map[string]bool{"its record is deleted": true, "its record is kept": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				c := s.controller(t)
				if deleted {
					s.calledOffWhile(ctx, t, c, "patch node status")
				} else {
					s.addPod("a", "web", func(p *simPod) { p.denied = true })
					s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
					s.settled(ctx, c, "r", time.Minute)
					s.deny("patch node status")
					s.addPod("a", "late", protectedPod)
				}
				if rt := s.settled(ctx, c, "r", time.Hour); (rt == nil) != deleted || rt != nil && rt.Status.Phase != v1alpha1.Aborted {
					t.Fatalf("not given back: %+v", rt)
				}
				if s.node("a").Spec.Unschedulable {
					t.Error("the node is still cordoned")
				}
				s.deny("")
				sweeper := &Sweeper{Nodes: s.client(true), Records: s.client(false), API: s, Log: slog.New(slog.DiscardHandler)}
				if err := sweeper.Sweep(ctx); err != nil {
					t.Error(err)
				}
				s.isAsItWas(t, "a")
			})
		})
	}
}

// calledOffWhile retires the node a, and calls that off when requests of one kind are denied.
func (s *sim) calledOffWhile(ctx context.Context, t *testing.T, c *Controller, request string) {
	t.Helper()
	s.addPod("a", "web", func(p *simPod) { p.denied = true })
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	s.settled(ctx, c, "r", time.Minute)
	s.deny(request)
	if err := s.records.Delete(ctx, s.record("r")); err != nil {
		t.Fatal(err)
	}
}

// deny has an admission webhook deny requests of one kind, or with "" none any more.
func (s *sim) deny(denied string) {
	s.atEach(func(moment, request string) error {
		if moment == "before" && request == denied {
			return status(403, "Forbidden", "admission webhook denied the request")
		}
		return nil
	})
}

// oldReads answers a few reads of Nodes past the cache with what the Node was before.
type oldReads struct {
	*sim
	old  *kubeapi.Node
	left int
}

func (o *oldReads) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	if o.left == 0 || o.node(name).Annotations == nil {
		return o.sim.GetNode(ctx, name)
	}
	o.left--
	return o.old, nil
}

func TestI3AnOldReadLeavesNoCordonBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		c := s.controller(t)
		c.o.API = &oldReads{sim: s, old: small(s.node("a")), left: 3}
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		once := sync.Once{}
		s.atEach(func(moment, request string) error {
			if moment == "after" && request == "patch node status" {
				once.Do(func() { s.change("a", tainted("ToBeDeletedByClusterAutoscaler")) })
			}
			return nil
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt == nil || rt.Status.Phase != v1alpha1.Aborted || EndedBy(rt) != BeingRemoved {
			t.Fatalf("%+v, want it aborted as %s", rt, BeingRemoved)
		}
		if s.node("a").Spec.Unschedulable {
			t.Error("the node is still cordoned")
		}
	})
}

func TestI3UnreadableRetirementsReleaseNoNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.settled(ctx, s.controller(t), "r", time.Minute)
		sweeper := &Sweeper{Nodes: s.client(true), Records: s.client(false), API: s, Log: slog.New(slog.DiscardHandler)}
		s.atEach(func(_, request string) error {
			if request == "list *v1alpha1.NodeRetirementList" {
				return errors.New("502 Bad Gateway")
			}
			return nil
		})
		if err := sweeper.Sweep(ctx); err == nil {
			t.Error("the sweep is said to have succeeded")
		}
		if restored(s.node("a")) == nil || !s.node("a").Spec.Unschedulable {
			t.Error("the node of a running retirement is restored")
		}
	})
}
