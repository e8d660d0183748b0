package retirement

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// evictionCounter is an API that counts the accepted evictions of each pod.
type evictionCounter struct {
	*sim
	counting sync.Mutex
	accepted map[string]int
}

func (c *evictionCounter) EvictPod(ctx context.Context, r kubeapi.PodRemoval) error {
	err := c.sim.EvictPod(ctx, r)
	if err == nil {
		c.counting.Lock()
		c.accepted[r.Name]++
		c.counting.Unlock()
	}
	return err
}

// ownNodeRetirement retires the node of the leader. Its eviction ends the leader, and another replica continues.
type ownNodeRetirement struct {
	// survives is true if the eviction does not end the leader.
	survives bool
	// killed is true if the leader sends no further request. Otherwise its context ends.
	killed bool
	// takeover is the time until the other replica leads.
	takeover time.Duration
}

// run returns how often each change was made: of the Node, its instance and its pods.
func (o ownNodeRetirement) run(ctx context.Context, t *testing.T, s *sim) (changes map[string]int) {
	t.Helper()
	critical := func(p *simPod) { p.Spec.Priority = new(int32(2_000_000_000)) }
	s.addPod("a", "web", nil)
	s.addPod("a", "manager", critical)
	s.addPod("a", "dns", func(p *simPod) {
		critical(p)
		p.evictionDenied = true // so that it stays longer than the leader
	})
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	counter := &evictionCounter{sim: s, accepted: map[string]int{}}
	newReplica := func() *Controller {
		c := s.newController(t)
		c.options.API = counter
		return c
	}
	isEvicted := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pods["uid-manager"].DeletionTimestamp != nil
	}
	leading, stop := context.WithCancel(ctx)
	s.interceptRequests(func(moment, request string) error {
		switch {
		case o.killed && leading.Err() != nil:
			return errKilled
		case !o.survives && moment == "after" && request == "evict" && isEvicted():
			stop()
		}
		return nil
	})
	replica := newReplica()
	for !isEvicted() {
		_, _ = replica.Reconcile(leading, newRequest("r"))
		time.Sleep(100 * time.Millisecond)
	}
	before := s.getRetirement("r")
	must.Not(t, before.Status.Phase != v1alpha1.Draining, "%s: %s", before.Status.Phase, before.Status.Message)
	if !o.survives {
		stop()
		replica.drains.stopAndWait("r")
		replica = newReplica()
	}
	s.interceptRequests(func(string, string) error { return nil })
	time.Sleep(o.takeover)
	s.mu.Lock()
	s.allowEvictions()
	s.mu.Unlock()

	rt := s.reconcileUntilDone(ctx, replica, "r", time.Hour)
	requirePhase(t, rt, v1alpha1.Succeeded)
	s.checkRetired(t, "a")
	check.Equal(t, before.UID, rt.UID)
	check.Equal(t, before.Status.Captured, rt.Status.Captured)
	check.Equal(t, before.Status.Times.Cordoned, rt.Status.Times.Cordoned)
	check.Equal(t, before.Status.Times.Draining, rt.Status.Times.Draining)
	changes = counter.accepted
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, request := range s.requests {
		if strings.HasPrefix(request, "patch ") || request == "delete node" || request == "cloud delete" {
			changes[request]++
		}
	}
	return changes
}

func TestI8OtherReplicaContinuesRetirementOfLeadersNode(t *testing.T) {
	want := map[string]int{}
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		want = ownNodeRetirement{survives: true}.run(ctx, t, s)
	})
	for _, once := range []string{"web", "manager", "dns", "delete node", "cloud delete"} {
		check.Is(t, 1, want[once], once)
	}
	for name, o := range map[string]ownNodeRetirement{
		"the leader stops and releases its Lease":     {},
		"the leader is killed, and its Lease expires": {killed: true, takeover: 15 * time.Second},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) { check.Equal(t, want, o.run(ctx, t, s)) }))
	}
}
