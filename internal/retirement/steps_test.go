package retirement

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// softDeletingCloud keeps an instance until its deletion is requested twice, as Nova does with
// reclaim_instance_interval.
type softDeletingCloud struct{ simCloud }

func (c softDeletingCloud) Delete(_ context.Context, id string) (cloud.Operation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deletionRequested[id] = true
	m := c.instances[id]
	if m.State == cloud.Deleting {
		delete(c.instances, id)
	}
	m.State = cloud.Deleting
	return cloud.Operation{ID: "op", Started: time.Now()}, nil
}

func (c softDeletingCloud) Status(context.Context, cloud.Operation) (cloud.OperationStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instances["sim://a"] == nil {
		return cloud.OperationStatus{Done: true}, nil
	}
	return cloud.OperationStatus{Done: true, Err: errors.New("it is kept for a while although it is deleted")}, nil
}

func TestSoftDeletedInstanceIsDeletedAgain(t *testing.T) {
	for name, byHand := range map[string]bool{"deleted by the retirement": false, "deleted by another client": true} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			c.options.Clouds["sim"] = softDeletingCloud{simCloud{s}}
			s.afterNodeDeletion(func() {
				if byHand {
					s.mu.Lock()
					s.instances["sim://a"].State = cloud.Deleting
					s.mu.Unlock()
				}
			})
			rt := s.reconcileUntilDone(ctx, c, "r", 15*time.Minute)
			requirePhase(t, rt, v1alpha1.Succeeded)
		}))
	}
}

// TestSoftDeletedInstanceIsDeletedAgainDespiteSameNamedNode adds a Node of the same name with another provider ID.
func TestSoftDeletedInstanceIsDeletedAgainDespiteSameNamedNode(t *testing.T) {
	for name, uuid := range map[string]string{"another instance": "", "the instance, by its UUID": "A"} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			c.options.Clouds["sim"] = softDeletingCloud{simCloud{s}}
			s.interceptRequests(func(string, string) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.nodes["a"] == nil && s.instances["sim://a"].State == cloud.Deleting {
					s.instances["sim://a-new"] = newSimInstance("a")
					s.addReadyNode("a", "sim://a-new", map[string]string{pool: "ci"}).Status.NodeInfo.SystemUUID = uuid
				}
				return nil
			})
			rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute)
			if uuid != "" {
				if rt.Status.Phase != v1alpha1.NodeDeleted || s.instances["sim://a"] == nil {
					t.Errorf("%s: %s, want the instance kept", rt.Status.Phase, rt.Status.Message)
				}
				return
			}
			if rt.Status.Phase != v1alpha1.Succeeded || s.instances["sim://a"] != nil || s.nodes["a"] == nil || s.deletionRequested["sim://a-new"] {
				t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
			}
		}))
	}
}

// TestInstanceIsDeletedDespiteNewNodeOfSameName adds the Node, with a protected pod, after a deletion of the instance has
// failed.
func TestInstanceIsDeletedDespiteNewNodeOfSameName(t *testing.T) {
	for name, tt := range map[string]struct {
		providerID, uuid string
		phase            v1alpha1.Phase
	}{
		"another instance":                    {"sim://a-new", "", v1alpha1.Succeeded},
		"another instance, by its UUID":       {"", "A-New", v1alpha1.Succeeded},
		"the same instance":                   {"sim://a", "", v1alpha1.Failed},
		"an unknown instance":                 {"", "", v1alpha1.Failed},
		"the same instance, only by its UUID": {"sim://a-new", "A", v1alpha1.Failed},
		"an instance of an unknown cloud":     {"k3s://a", "", v1alpha1.Failed},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			refused := false
			s.interceptRequests(func(moment, request string) error {
				if moment != "before" || request != "cloud delete" || refused {
					return nil
				}
				refused = true
				s.addPod("a", "job", func(p *simPod) { protectedPod(p); p.onNewNode = true })
				s.mu.Lock()
				defer s.mu.Unlock()
				s.addReadyNode("a", tt.providerID, map[string]string{pool: "ci"}).Status.NodeInfo.SystemUUID = tt.uuid
				return errors.New("the instance is locked")
			})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			requirePhase(t, rt, tt.phase)
			check.Is(t, tt.phase == v1alpha1.Succeeded, s.deletionRequested["sim://a"], "deletion requested")
			check.Len(t, 0, s.violations)
		}))
	}
}

func TestFailedRetirementSaysWhatIsLeft(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after func(*sim)
		want          string
	}{
		"the instance belongs to a new Node": {
			func(*sim) {}, func(s *sim) { s.reregisterAs("a", "c") },
			"the Node is deleted, and Slipway does not delete the instance sim://a in the cloud sim: the instance sim://a belongs to the Node c",
		},
		"another tool removes the Node during its deletion": {
			func(s *sim) { s.changeNode("a", setFinalizer) }, func(s *sim) { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) },
			"the Node is being deleted, and Slipway does not delete the instance sim://a in the cloud sim: the node is being removed by",
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			tt.before(s)
			s.afterNodeDeletion(func() { tt.after(s) })
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			requirePhase(t, rt, v1alpha1.Failed)
			check.Contains(t, rt.Status.Message, tt.want)
			check.Not(t, s.deletionRequested["sim://a"], "the instance is deleted")
		}))
	}
}

// laggingCloud shows an instance as running for 3 s after its operation has ended.
type laggingCloud struct {
	simCloud
	deletions *int
}

func (c laggingCloud) Delete(_ context.Context, id string) (cloud.Operation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deletionRequested[id] = true
	*c.deletions++
	time.AfterFunc(3*time.Second, func() { c.removeInstance("a") })
	return cloud.Operation{ID: "op", Started: time.Now()}, nil
}

func (laggingCloud) Status(context.Context, cloud.Operation) (cloud.OperationStatus, error) {
	return cloud.OperationStatus{Done: true}, nil
}

// TestLaggingInstanceStateIsNoFailedDeletion has a second process poll the operation at once.
func TestLaggingInstanceStateIsNoFailedDeletion(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		deletions := 0
		process := func() *Controller {
			c := s.newController(t)
			c.options.Clouds["sim"] = laggingCloud{simCloud{s}, &deletions}
			return c
		}
		first := process()
		for end := time.Now().Add(time.Minute); deletions == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			must.NoError(t, check.Err(first.Reconcile(ctx, newRequest("r"))))
		}
		second := process()
		s.reconcileOnce(ctx, second, "r")
		if rt := s.getRetirement("r"); rt.Status.Operation == nil || rt.Status.Operation.RetryAfter != nil {
			t.Errorf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, rt.Status.Operation)
		}
		if rt := s.reconcileUntilDone(ctx, second, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || deletions != 1 {
			t.Errorf("%s: %s, after %d deletions", rt.Status.Phase, rt.Status.Message, deletions)
		}
	})
}

func TestFailedRestoreIsReported(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.cancelWhileDenied(ctx, t, c, "patch node")
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt == nil || !s.getNode("a").Spec.Unschedulable {
			t.Fatal("the record was deleted before its node was restored")
		}
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		check.Not(t, blocked == nil || blocked.Status != "True" || blocked.Reason != RestoreFailed, "%+v, want %s", blocked, RestoreFailed)
		for _, want := range []string{"admission webhook denied", "cancelled"} {
			check.Contains(t, rt.Status.Message, want)
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
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
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
			rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
			must.Not(t, (rt == nil) != deleted || rt != nil && rt.Status.Phase != v1alpha1.Aborted, "not restored: %+v", rt)
			check.Not(t, s.getNode("a").Spec.Unschedulable, "the node is still cordoned")
			s.denyRequests("")
			sweeper := &StaleCordonCleaner{Nodes: s.newClient(true), Retirements: s.newClient(false), API: s, Log: slog.New(slog.DiscardHandler)}
			check.NoError(t, sweeper.RestoreNodes(ctx))
			s.checkNodeRestored(t, "a")
		}))
	}
}

// cancelWhileDenied retires the node a, and cancels that while requests of one kind are denied.
func (s *sim) cancelWhileDenied(ctx context.Context, t *testing.T, c *Controller, request string) {
	t.Helper()
	s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	s.reconcileUntilDone(ctx, c, "r", time.Minute)
	s.denyRequests(request)
	must.NoError(t, s.retirements.Delete(ctx, s.getRetirement("r")))
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
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
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
		must.Not(t, rt == nil || rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != BeingRemoved, "%+v, want it aborted as %s", rt, BeingRemoved)
		check.Not(t, s.getNode("a").Spec.Unschedulable, "the node is still cordoned")
	})
}

func TestI3UnreadableRetirementsRestoreNoNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.reconcileUntilDone(ctx, s.newController(t), "r", time.Minute)
		sweeper := &StaleCordonCleaner{Nodes: s.newClient(true), Retirements: s.newClient(false), API: s, Log: slog.New(slog.DiscardHandler)}
		s.interceptRequests(func(_, request string) error {
			if request == "list *v1alpha1.NodeRetirementList" {
				return errors.New("502 Bad Gateway")
			}
			return nil
		})
		check.ErrorContains(t, sweeper.RestoreNodes(ctx))
		check.Not(t, checkRestored(s.getNode("a")) == nil || !s.getNode("a").Spec.Unschedulable, "the node of a running retirement is restored")
	})
}
