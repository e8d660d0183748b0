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

// freeze has the cache keep the Node a as it is now.
func (s *sim) freeze() {
	was := s.node("a")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = func(n *corev1.Node) *corev1.Node {
		if n != nil && n.Name == "a" {
			return was
		}
		return n
	}
}

// thaw has the cache be up to date again.
func (s *sim) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = nil
}

func TestI6AnotherToolThatTheCacheDoesNotShowKeepsTheNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.atEach(func(moment, request string) error {
			if moment == "after" && request == "evict" {
				s.freeze()
				s.change("a", tainted("ToBeDeletedByClusterAutoscaler"))
				time.AfterFunc(time.Minute, s.thaw)
			}
			return nil
		})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EndedBy(rt) != BeingRemoved || len(s.violations) > 0 {
			t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
		}
	})
}

func TestI7ANodeSilentInTheCacheProvesNothing(t *testing.T) {
	for name, drains := range map[string]bool{"at first": false, "while it is drained": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", func(p *simPod) { p.denied = drains })
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.controller(t)
				if drains {
					s.settled(ctx, c, "r", time.Minute)
				}
				s.silence("a")
				s.freeze()
				s.bringBack("a")
				lost := s.machines["sim://a"]
				s.lose("a") // its cloud does not find it for a while
				s.settled(ctx, c, "r", time.Minute)
				if rt := s.record("r"); rt.Status.MachineGone {
					t.Errorf("taken for gone: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.mu.Lock()
				s.machines["sim://a"] = lost
				s.allow()
				s.mu.Unlock()
				s.thaw()
				if rt := s.settled(ctx, c, "r", 3*time.Hour); isOutOfService(small(s.nodeOrEmpty("a"))) || len(s.violations) > 0 {
					t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
				}
			})
		})
	}
}

func (s *sim) nodeOrEmpty(name string) *corev1.Node {
	if n := s.node(name); n != nil {
		return n
	}
	return &corev1.Node{}
}

// TestI7ANodeThatTheCacheDoesNotHaveYetIsNotTakenForGone has the cache be empty, and be of the Node's predecessor.
func TestI7ANodeThatTheCacheDoesNotHaveYetIsNotTakenForGone(t *testing.T) {
	for name, stale := range map[string]func(*corev1.Node) *corev1.Node{
		"nothing": func(*corev1.Node) *corev1.Node { return nil },
		"another of the name": func(n *corev1.Node) *corev1.Node {
			if n == nil {
				return nil
			}
			n = n.DeepCopy()
			n.UID, n.Spec.ProviderID = "earlier", "sim://earlier"
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", nil)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", NodeUID: s.node("a").UID})
				s.stale = stale
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}

// TestARecordThatHasChangedIsFoundOutBeforeWhatCannotBeTakenBack has somebody call a retirement off while the cache lags.
func TestARecordThatHasChangedIsFoundOutBeforeWhatCannotBeTakenBack(t *testing.T) {
	s := ci(t)
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	c := s.controller(t)
	read := s.record("r")
	if err := c.passage(read).confirmRecord(t.Context()); err != nil {
		t.Errorf("it has not changed: %v", err)
	}
	changed := read.DeepCopy()
	changed.Annotations = map[string]string{"by": "somebody"}
	if err := s.records.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := c.passage(read).confirmRecord(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it has changed: %v", err)
	}
	if err := s.records.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := c.passage(changed).confirmRecord(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it is gone: %v", err)
	}
}

func TestI6AnotherToolDuringTheCordonKeepsTheNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.lose("a")
		s.silence("a")
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var once sync.Once
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "patch node" {
				once.Do(func() { s.change("a", tainted("ToBeDeletedByClusterAutoscaler")) })
			}
			return nil
		})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EndedBy(rt) != BeingRemoved || len(s.violations) > 0 {
			t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
		}
	})
}

// TestI3ALateCancellationKeepsTheNode hides the cancellation in the cache right before the Node is deleted.
func TestI3ALateCancellationKeepsTheNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		changed, cancelled := false, false
		s.atEach(func(moment, request string) error {
			switch {
			case moment == "before" && request == "delete node" && !changed: // ends the reconcile that wrote Drained
				changed = true
				s.change("a", alsoAnnotated("example.com/by", "somebody"))
			case moment == "after" && request == "cached get *v1alpha1.NodeRetirement" && changed && !cancelled:
				cancelled = true
				return s.records.Delete(ctx, s.record("r"))
			}
			return nil
		})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		n := s.node("a")
		if !cancelled || rt != nil || n == nil || n.Spec.Unschedulable {
			t.Fatalf("cancelled: %t, record %+v, Node %+v", cancelled, rt, n)
		}
		if err := restored(n); err != nil {
			t.Error(err)
		}
	})
}

func TestI1AProtectedPodAfterTheDrainKeepsTheNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var once sync.Once
		s.atEach(func(moment, request string) error {
			if moment == "after" && request == "evict" { // the drain ends 5 s later, and is looked at 10 s after it began
				once.Do(func() { time.AfterFunc(7*time.Second, func() { s.addPod("a", "precious", protectedPod) }) })
			}
			return nil
		})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EndedBy(rt) != ProtectedPod {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}

func TestI5ADeletedNodeInTheCacheDoesNotStay(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Minimum = 1
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		c.known.depart(string(s.node("b").UID)) // the list of Nodes still has it
		rt := s.settled(ctx, c, "r", time.Minute)
		if rt.Status.Phase != v1alpha1.Pending || InFlight(rt) {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
