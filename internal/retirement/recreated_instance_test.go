package retirement

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// recreateInstance replaces an instance by another one of the same name. Its Node has not joined.
func (s *sim) recreateInstance(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := newSimInstance(node)
	m.UniqueID = "second-" + node
	s.instances["sim://"+node] = m
}

// TestI4RecreatedInstanceIsNotDeleted recreates the instance right before each step that could delete it.
func TestI4RecreatedInstanceIsNotDeleted(t *testing.T) {
	failed := func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Operation != nil && rt.Status.Operation.RetryAfter != nil
	}
	for name, tt := range map[string]struct {
		setup func(*sim)
		when  func(moment, request string, rt *v1alpha1.NodeRetirement) bool
		phase v1alpha1.Phase
		code  string
	}{
		"during the drain": {
			when:  func(_, request string, _ *v1alpha1.NodeRetirement) bool { return request == "evict" },
			phase: v1alpha1.Aborted, code: NotConfirmed,
		},
		"once the Node is deleted": {
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Succeeded,
		},
		"after a deletion that failed": {
			setup: func(s *sim) { s.instances["sim://a"].failingDeletions = 1 },
			when:  func(_, _ string, rt *v1alpha1.NodeRetirement) bool { return failed(rt) },
			phase: v1alpha1.Succeeded,
		},
		"gone at capture": {
			setup: func(s *sim) { s.removeInstance("a"); s.changeNode("a", setUnready) },
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Failed, code: InstanceRecovered,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", nil)
				if tt.setup != nil {
					tt.setup(s)
				}
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				var made atomic.Bool
				s.interceptRequests(func(moment, request string) error {
					if !made.Load() && tt.when(moment, request, s.getRetirement("r")) && made.CompareAndSwap(false, true) {
						s.recreateInstance("a")
					}
					return nil
				})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EarlyEndCode(rt) != tt.code {
					t.Errorf("%s %q: %s, want %s %q", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, tt.phase, tt.code)
				}
				if m := s.instances["sim://a"]; !made.Load() || m == nil || m.op != nil {
					t.Errorf("recreated: %t; the captured instance was deleted: %+v", made.Load(), m)
				}
				if tt.phase == v1alpha1.Aborted {
					s.checkNodeRestored(t, "a")
				}
			})
		})
	}
}

// TestI4InstanceWithoutUniqueIDIsConfirmedByNames covers clouds without unique IDs, and instances captured by an older
// Slipway.
func TestI4InstanceWithoutUniqueIDIsConfirmedByNames(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.instances["sim://a"].UniqueID = ""
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

// TestI7IncompleteInstanceAnswerIsRetried returns incomplete answers once the Node is deleted.
func TestI7IncompleteInstanceAnswerIsRetried(t *testing.T) {
	for field, clear := range map[string]func(*simInstance){
		"computer name": func(m *simInstance) { m.ComputerName = "" },
		"unique ID":     func(m *simInstance) { m.UniqueID = "" },
	} {
		t.Run(field, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				s.afterNodeDeletion(func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					clear(s.instances["sim://a"])
				})
				c := s.newController(t)
				rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute)
				if rt.Status.Phase != v1alpha1.NodeDeleted || !strings.Contains(rt.Status.Message, field) || s.deletionRequested["sim://a"] {
					t.Fatalf("%s: %s, want it to retry", rt.Status.Phase, rt.Status.Message)
				}
				s.instances["sim://a"].ComputerName, s.instances["sim://a"].UniqueID = "a", "first-a"
				if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "a")
			})
		})
	}
}
