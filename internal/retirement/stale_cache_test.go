package retirement

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// freezeCachedNode keeps the current state of the Node a in the cache.
func (s *sim) freezeCachedNode() {
	was := s.getNode("a")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staleNode = func(n *corev1.Node) *corev1.Node {
		if n != nil && n.Name == "a" {
			return was
		}
		return n
	}
}

// unfreezeCache makes the cache up to date again.
func (s *sim) unfreezeCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staleNode = nil
}

func TestI6OtherToolMissingInCacheKeepsNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "evict" {
				s.freezeCachedNode()
				s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler"))
				time.AfterFunc(time.Minute, s.unfreezeCache)
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != BeingRemoved || len(s.violations) > 0 {
			t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
		}
	})
}

func TestI7UnreadyCachedNodeIsNoProof(t *testing.T) {
	for name, drains := range map[string]bool{"at first": false, "while it is drained": true} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", func(p *simPod) { p.evictionDenied = drains })
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.newController(t)
				if drains {
					s.reconcileUntilDone(ctx, c, "r", time.Minute)
				}
				s.makeNodeUnready("a")
				s.freezeCachedNode()
				s.reviveNode("a")
				lost := s.instances["sim://a"]
				s.removeInstance("a") // its cloud does not find it for a while
				s.reconcileUntilDone(ctx, c, "r", time.Minute)
				if rt := s.getRetirement("r"); rt.Status.InstanceGone {
					t.Errorf("counts as gone: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.mu.Lock()
				s.instances["sim://a"] = lost
				s.allowEvictions()
				s.mu.Unlock()
				s.unfreezeCache()
				if rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour); hasOutOfServiceTaint(mustToKubeapi(s.getNodeOrEmpty("a"))) || len(s.violations) > 0 {
					t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
				}
			})
		})
	}
}

func (s *sim) getNodeOrEmpty(name string) *corev1.Node {
	if n := s.getNode(name); n != nil {
		return n
	}
	return &corev1.Node{}
}

// TestI7NodeMissingInCacheIsNotGone uses an empty cache, and one with the Node's predecessor.
func TestI7NodeMissingInCacheIsNotGone(t *testing.T) {
	for name, stale := range map[string]func(*corev1.Node) *corev1.Node{
		"nothing": func(*corev1.Node) *corev1.Node { return nil },
		"another Node of the same name": func(n *corev1.Node) *corev1.Node {
			if n == nil {
				return nil
			}
			n = n.DeepCopy()
			n.UID, n.Spec.ProviderID = "earlier", "sim://earlier"
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", NodeUID: s.getNode("a").UID})
				s.staleNode = stale
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "a")
			})
		})
	}
}

// TestChangedRecordStopsIrreversibleSteps cancels a retirement while the cache lags.
func TestChangedRecordStopsIrreversibleSteps(t *testing.T) {
	s := newGroupOfTwo(t)
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	c := s.newController(t)
	read := s.getRetirement("r")
	if err := c.newScope(read).confirmRetirementUnchanged(t.Context()); err != nil {
		t.Errorf("it has not changed: %v", err)
	}
	changed := read.DeepCopy()
	changed.Annotations = map[string]string{"by": "user"}
	if err := s.retirements.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := c.newScope(read).confirmRetirementUnchanged(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it has changed: %v", err)
	}
	if err := s.retirements.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := c.newScope(changed).confirmRetirementUnchanged(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it is gone: %v", err)
	}
}

func TestI6OtherToolDuringCordonKeepsNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.removeInstance("a")
		s.makeNodeUnready("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var once sync.Once
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "patch node" {
				once.Do(func() { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) })
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != BeingRemoved || len(s.violations) > 0 {
			t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
		}
	})
}

// TestI3LateCancellationKeepsNode hides the cancellation in the cache right before the Node is deleted.
func TestI3LateCancellationKeepsNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		changed, cancelled := false, false
		s.interceptRequests(func(moment, request string) error {
			switch {
			case moment == "before" && request == "delete node" && !changed: // ends the reconcile that wrote Drained
				changed = true
				s.changeNode("a", addAnnotation("example.com/by", "user"))
			case moment == "after" && request == "cached get *v1alpha1.NodeRetirement" && changed && !cancelled:
				cancelled = true
				return s.retirements.Delete(ctx, s.getRetirement("r"))
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		n := s.getNode("a")
		if !cancelled || rt != nil || n == nil || n.Spec.Unschedulable {
			t.Fatalf("cancelled: %t, record %+v, Node %+v", cancelled, rt, n)
		}
		if err := checkRestored(n); err != nil {
			t.Error(err)
		}
	})
}

func TestI1ProtectedPodAfterDrainKeepsNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var once sync.Once
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "evict" { // the drain ends after 5 s, and its result is read 10 s after its start
				once.Do(func() { time.AfterFunc(7*time.Second, func() { s.addPod("a", "precious", protectedPod) }) })
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != ProtectedPod {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}

func TestI5DeletedNodeInCacheIsUnavailable(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.groups[0].Spec.MinSize = 1
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		c.expectations.recordNodeDeleted(string(s.getNode("b").UID)) // the list of Nodes still has it
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		if rt.Status.Phase != v1alpha1.Pending || IsInFlight(rt) {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
