package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
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
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
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
				if rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s; want the instance gone in 15 minutes", rt.Status.Phase, rt.Status.Message)
				}
			})
		})
	}
}

// TestSoftDeletedInstanceIsDeletedAgainDespiteSameNamedNode adds a Node of the same name with another provider ID.
func TestSoftDeletedInstanceIsDeletedAgainDespiteSameNamedNode(t *testing.T) {
	for name, uuid := range map[string]string{"another instance": "", "the instance, by its UUID": "A"} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
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
			})
		})
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
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		deletions := 0
		process := func() *Controller {
			c := s.newController(t)
			c.options.Clouds["sim"] = laggingCloud{simCloud{s}, &deletions}
			return c
		}
		first := process()
		for end := time.Now().Add(time.Minute); deletions == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := first.Reconcile(ctx, newRequest("r")); err != nil {
				t.Fatal(err)
			}
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
