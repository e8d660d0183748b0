package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// keepingCloud keeps a machine whose deletion was asked for, until it is asked again, as Nova does where
// reclaim_instance_interval is set.
type keepingCloud struct{ simCloud }

func (c keepingCloud) Delete(_ context.Context, id string) (cloud.Operation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.touched[id] = true
	m := c.machines[id]
	if m.State == cloud.Deleting {
		delete(c.machines, id)
	}
	m.State = cloud.Deleting
	return cloud.Operation{ID: "op", Started: time.Now()}, nil
}

func (c keepingCloud) Status(context.Context, cloud.Operation) (cloud.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.machines["sim://a"] == nil {
		return cloud.Status{Done: true}, nil
	}
	return cloud.Status{Done: true, Err: errors.New("it is kept for a while although it is deleted")}, nil
}

func TestAMachineThatItsCloudKeepsAfterItsDeletionIsAskedForAgain(t *testing.T) {
	for name, byHand := range map[string]bool{"deleted by the retirement": false, "deleted by somebody else": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.controller(t)
				c.o.Clouds["sim"] = keepingCloud{simCloud{s}}
				s.onceNodeDeleted(func() {
					if byHand {
						s.mu.Lock()
						s.machines["sim://a"].State = cloud.Deleting
						s.mu.Unlock()
					}
				})
				rt := s.settled(ctx, c, "r", 15*time.Minute)
				if rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s; want the machine gone in 15 minutes", rt.Status.Phase, rt.Status.Message)
				}
			})
		})
	}
}

// TestAMachineThatItsCloudKeepsIsAskedForAgainWhereANewOneHasItsName has one of another provider ID join under the Node's name.
func TestAMachineThatItsCloudKeepsIsAskedForAgainWhereANewOneHasItsName(t *testing.T) {
	for name, uuid := range map[string]string{"another machine": "", "the machine, by its UUID": "A"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.controller(t)
				c.o.Clouds["sim"] = keepingCloud{simCloud{s}}
				s.atEach(func(string, string) error {
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.nodes["a"] == nil && s.machines["sim://a"].State == cloud.Deleting {
						s.machines["sim://a-new"] = newMachine("a")
						s.register("a", "sim://a-new", map[string]string{pool: "ci"}).Status.NodeInfo.SystemUUID = uuid
					}
					return nil
				})
				rt := s.settled(ctx, c, "r", 10*time.Minute)
				if uuid != "" {
					if rt.Status.Phase != v1alpha1.NodeDeleted || s.machines["sim://a"] == nil {
						t.Errorf("%s: %s, want the machine kept", rt.Status.Phase, rt.Status.Message)
					}
					return
				}
				if rt.Status.Phase != v1alpha1.Succeeded || s.machines["sim://a"] != nil || s.nodes["a"] == nil || s.touched["sim://a-new"] {
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
	c.touched[id] = true
	*c.deletions++
	time.AfterFunc(3*time.Second, func() { c.lose("a") })
	return cloud.Operation{ID: "op", Started: time.Now()}, nil
}

func (laggingCloud) Status(context.Context, cloud.Operation) (cloud.Status, error) {
	return cloud.Status{Done: true}, nil
}

// TestAStateThatLagsIsNoFailedDeletion has a second process ask for the operation at once.
func TestAStateThatLagsIsNoFailedDeletion(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		deletions := 0
		process := func() *Controller {
			c := s.controller(t)
			c.o.Clouds["sim"] = laggingCloud{simCloud{s}, &deletions}
			return c
		}
		first := process()
		for end := time.Now().Add(time.Minute); deletions == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := first.Reconcile(ctx, request("r")); err != nil {
				t.Fatal(err)
			}
		}
		second := process()
		s.turn(ctx, second, "r")
		if rt := s.record("r"); rt.Status.Operation == nil || rt.Status.Operation.RetryAfter != nil {
			t.Errorf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, rt.Status.Operation)
		}
		if rt := s.settled(ctx, second, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || deletions != 1 {
			t.Errorf("%s: %s, after %d deletions", rt.Status.Phase, rt.Status.Message, deletions)
		}
	})
}
