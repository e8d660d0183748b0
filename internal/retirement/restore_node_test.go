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

func TestFailedRestoreIsReported(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		c := s.newController(t)
		s.cancelWhileDenied(ctx, t, c, "patch node")
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt == nil || !s.getNode("a").Spec.Unschedulable {
			t.Fatal("the record was deleted before its node was restored")
		}
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if blocked == nil || blocked.Status != "True" || blocked.Reason != RestoreFailed {
			t.Errorf("%+v, want %s", blocked, RestoreFailed)
		}
		for _, want := range []string{"admission webhook denied", "cancelled"} {
			if !strings.Contains(rt.Status.Message, want) {
				t.Errorf("message %q, want %q in it", rt.Status.Message, want)
			}
		}
		s.denyRequests("")
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}

// TestI3NodeIsRestoredAndItsConditionsRemovedLater removes the permission to write a Node's status during a
// cancellation, and grants it again.
func TestI3NodeIsRestoredAndItsConditionsRemovedLater(t *testing.T) {
	for name, deleted := range map[string]bool{"its record is deleted": true, "its record is kept": false} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				c := s.newController(t)
				if deleted {
					s.cancelWhileDenied(ctx, t, c, "patch node status")
				} else {
					s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
					s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
					s.reconcileUntilDone(ctx, c, "r", time.Minute)
					s.denyRequests("patch node status")
					s.addPod("a", "late", protectedPod)
				}
				if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); (rt == nil) != deleted || rt != nil && rt.Status.Phase != v1alpha1.Aborted {
					t.Fatalf("not restored: %+v", rt)
				}
				if s.getNode("a").Spec.Unschedulable {
					t.Error("the node is still cordoned")
				}
				s.denyRequests("")
				sweeper := &StaleClaimCleaner{Nodes: s.newClient(true), Retirements: s.newClient(false), API: s, Log: slog.New(slog.DiscardHandler)}
				if err := sweeper.RemoveStaleClaims(ctx); err != nil {
					t.Error(err)
				}
				s.checkNodeRestored(t, "a")
			})
		})
	}
}

// cancelWhileDenied retires the node a, and cancels that while requests of one kind are denied.
func (s *sim) cancelWhileDenied(ctx context.Context, t *testing.T, c *Controller, request string) {
	t.Helper()
	s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	s.reconcileUntilDone(ctx, c, "r", time.Minute)
	s.denyRequests(request)
	if err := s.retirements.Delete(ctx, s.getRetirement("r")); err != nil {
		t.Fatal(err)
	}
}

// denyRequests makes an admission webhook deny requests of one kind; "" denies none.
func (s *sim) denyRequests(denied string) {
	s.interceptRequests(func(moment, request string) error {
		if moment == "before" && request == denied {
			return newStatusError(403, "Forbidden", "admission webhook denied the request")
		}
		return nil
	})
}

// staleNodeAPI answers a few live reads of Nodes with an older state.
type staleNodeAPI struct {
	*sim
	old  *kubeapi.Node
	left int
}

func (o *staleNodeAPI) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	if o.left == 0 || o.getNode(name).Annotations == nil {
		return o.sim.GetNode(ctx, name)
	}
	o.left--
	return o.old, nil
}

func TestI3StaleReadLeavesNoCordon(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		c := s.newController(t)
		c.options.API = &staleNodeAPI{sim: s, old: mustToKubeapi(s.getNode("a")), left: 3}
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		once := sync.Once{}
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "patch node status" {
				once.Do(func() { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) })
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt == nil || rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != BeingRemoved {
			t.Fatalf("%+v, want it aborted as %s", rt, BeingRemoved)
		}
		if s.getNode("a").Spec.Unschedulable {
			t.Error("the node is still cordoned")
		}
	})
}

func TestI3UnreadableRetirementsRestoreNoNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.reconcileUntilDone(ctx, s.newController(t), "r", time.Minute)
		sweeper := &StaleClaimCleaner{Nodes: s.newClient(true), Retirements: s.newClient(false), API: s, Log: slog.New(slog.DiscardHandler)}
		s.interceptRequests(func(_, request string) error {
			if request == "list *v1alpha1.NodeRetirementList" {
				return errors.New("502 Bad Gateway")
			}
			return nil
		})
		if err := sweeper.RemoveStaleClaims(ctx); err == nil {
			t.Error("the sweep reports success")
		}
		if checkRestored(s.getNode("a")) == nil || !s.getNode("a").Spec.Unschedulable {
			t.Error("the node of a running retirement is restored")
		}
	})
}
