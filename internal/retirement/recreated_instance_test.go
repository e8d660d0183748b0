package retirement

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// makeAnew has another machine under the name of one, whose Node has not joined.
func (s *sim) makeAnew(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := newMachine(node)
	m.UniqueID = "second-" + node
	s.machines["sim://"+node] = m
}

// TestI4AMachineThatIsMadeAnewUnderItsNameIsNotTheOneThatWasCaptured makes it anew at the last moment before each step that
// could delete it.
func TestI4AMachineThatIsMadeAnewUnderItsNameIsNotTheOneThatWasCaptured(t *testing.T) {
	failed := func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Operation != nil && rt.Status.Operation.RetryAfter != nil
	}
	for name, tt := range map[string]struct {
		world func(*sim)
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
			world: func(s *sim) { s.machines["sim://a"].fails = 1 },
			when:  func(_, _ string, rt *v1alpha1.NodeRetirement) bool { return failed(rt) },
			phase: v1alpha1.Succeeded,
		},
		"when it was gone from the beginning": {
			world: func(s *sim) { s.lose("a"); s.change("a", silent) },
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Failed, code: MachineBack,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", nil)
				if tt.world != nil {
					tt.world(s)
				}
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				var made atomic.Bool
				s.atEach(func(moment, request string) error {
					if !made.Load() && tt.when(moment, request, s.record("r")) && made.CompareAndSwap(false, true) {
						s.makeAnew("a")
					}
					return nil
				})
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EndedBy(rt) != tt.code {
					t.Errorf("%s %q: %s, want %s %q", rt.Status.Phase, EndedBy(rt), rt.Status.Message, tt.phase, tt.code)
				}
				if m := s.machines["sim://a"]; !made.Load() || m == nil || m.op != nil {
					t.Errorf("made anew: %t; the machine that was is deleted: %+v", made.Load(), m)
				}
				if tt.phase == v1alpha1.Aborted {
					s.isAsItWas(t, "a")
				}
			})
		})
	}
}

// TestI4AMachineWithoutAUniqueIDIsConfirmedByItsNames is one of a cloud that has none, or was captured by an older Slipway.
func TestI4AMachineWithoutAUniqueIDIsConfirmedByItsNames(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.machines["sim://a"].UniqueID = ""
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

// TestI7AnAnswerThatLacksWhatTheMachineHadIsAskedForAgain cuts answers short once the Node is deleted.
func TestI7AnAnswerThatLacksWhatTheMachineHadIsAskedForAgain(t *testing.T) {
	for lacks, cut := range map[string]func(*machine){
		"computer name": func(m *machine) { m.ComputerName = "" },
		"unique ID":     func(m *machine) { m.UniqueID = "" },
	} {
		t.Run(lacks, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				s.onceNodeDeleted(func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					cut(s.machines["sim://a"])
				})
				c := s.controller(t)
				rt := s.settled(ctx, c, "r", 10*time.Minute)
				if rt.Status.Phase != v1alpha1.NodeDeleted || !strings.Contains(rt.Status.Message, lacks) || s.touched["sim://a"] {
					t.Fatalf("%s: %s, want it to ask again", rt.Status.Phase, rt.Status.Message)
				}
				s.machines["sim://a"].ComputerName, s.machines["sim://a"].UniqueID = "a", "first-a"
				if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}
