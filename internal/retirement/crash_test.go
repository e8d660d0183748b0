package retirement

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

var errKilled = errors.New("the process was killed")

// requestKiller kills a process at one of its requests. Its later requests do not arrive.
type requestKiller struct {
	s      *sim
	moment string
	at, n  int
	armed  string // the counted request, while others run concurrently
	dead   bool
}

func (k *requestKiller) interceptRequest(moment, request string) error {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if k.dead {
		return errKilled
	}
	if moment == "before" {
		if k.n++; k.n == k.at {
			k.armed = request
		}
	}
	if k.armed == request && moment == k.moment {
		k.dead = true
		return errKilled
	}
	return nil
}

func (k *requestKiller) hasKilled() bool {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	return k.dead
}

// crashScenario is one course of a retirement.
type crashScenario struct {
	name  string
	setup func(*testing.T, *sim)
	end   v1alpha1.Phase
}

func crashScenarios() []crashScenario {
	return []crashScenario{
		{"succeeds", func(_ *testing.T, s *sim) { s.addPod("a", "web", nil) }, v1alpha1.Succeeded},
		{"fails in the cloud once", func(_ *testing.T, s *sim) { s.instances["sim://a"].failingDeletions = 1 }, v1alpha1.Succeeded},
		{"times out", func(_ *testing.T, s *sim) {
			s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 20 * time.Second}
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		}, v1alpha1.Aborted},
		{"is refused", func(_ *testing.T, s *sim) { s.addPod("a", "web", protectedPod) }, v1alpha1.Refused},
		{"finds the instance gone", func(_ *testing.T, s *sim) {
			delete(s.instances, "sim://a")
			s.changeNode("a", setUnready)
		}, v1alpha1.Succeeded},
		{"finds the instance gone, and it comes back", func(_ *testing.T, s *sim) {
			delete(s.instances, "sim://a")
			s.changeNode("a", setUnready)
			s.addPod("a", "web", func(p *simPod) { p.stopsAfter = -1 }) // so that there is time for the instance to come back
			time.AfterFunc(15*time.Second+time.Millisecond/2, func() { s.reviveNode("a") })
		}, v1alpha1.Aborted},
		{"is cancelled", func(t *testing.T, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
			time.AfterFunc(15*time.Second, func() {
				if err := s.retirements.Delete(context.Background(), s.getRetirement("r")); err != nil {
					t.Error(err)
				}
			})
		}, ""},
		{"yields to another tool", func(_ *testing.T, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
			time.AfterFunc(15*time.Second, func() { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) })
		}, v1alpha1.Aborted},
	}
}

// TestI8CrashAtAnyRequestReachesSameEnd kills the process at each request, once before it is served and once after, and
// continues with a new process. A run without a crash determines the requests. A drain and its reconcile send some
// requests at the same time, so that a run may end with one less. Few crashes are missed by that.
func TestI8CrashAtAnyRequestReachesSameEnd(t *testing.T) {
	for _, c := range crashScenarios() {
		t.Run(c.name, func(t *testing.T) {
			const few = 4
			total, missed := 0, 0
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) { total, _ = c.runWithCrash(ctx, t, 0, "") })
			t.Logf("%d requests", total)
			for at := 1; at <= total; at++ {
				for _, moment := range []string{"before", "after"} {
					t.Run(fmt.Sprintf("%d %s", at, moment), func(t *testing.T) {
						runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
							if _, struck := c.runWithCrash(ctx, t, at, moment); !struck {
								missed++
							}
						})
					})
				}
			}
			if missed > few {
				t.Errorf("%d of %d crashes were missed because the run had ended, want at most %d", missed, 2*total, few)
			}
		})
	}
}

// runWithCrash runs the scenario once. It returns the number of requests, and whether the process was killed.
func (c crashScenario) runWithCrash(ctx context.Context, t *testing.T, at int, moment string) (requests int, struck bool) {
	t.Helper()
	s := newGroupOfTwo(t)
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
	c.setup(t, s)
	k := &requestKiller{s: s, at: at, moment: moment}
	if at > 0 {
		s.interceptRequests(k.interceptRequest)
	}
	processCtx, killProcess := context.WithCancel(ctx)
	first := s.newController(t)
	for end := time.Now().Add(3 * time.Hour); time.Now().Before(end) && !k.hasKilled() && !s.isFinished("r"); time.Sleep(time.Millisecond) {
		s.reconcileOnce(processCtx, first, "r")
	}
	killProcess()
	s.interceptRequests(func(string, string) error { return nil })
	rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
	switch {
	case rt == nil && c.end != "":
		t.Fatal("the record is gone")
	case rt != nil && rt.Status.Phase != c.end:
		t.Fatalf("%s: %s, want %q", rt.Status.Phase, rt.Status.Message, c.end)
	case c.end == v1alpha1.Succeeded:
		s.checkRetired(t, "a")
	default:
		s.checkNodeRestored(t, "a")
	}
	if restoredErr := checkRestored(s.getNode("b")); restoredErr != nil {
		t.Error(restoredErr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests), k.dead
}

// isFinished reports whether the retirement has ended and nothing is left to do.
func (s *sim) isFinished(name string) bool {
	rt := s.getRetirement(name)
	return rt == nil || rt.Status.Phase.IsFinal() && len(rt.Finalizers) == 0
}

func setUnschedulable(n *corev1.Node) { n.Spec.Unschedulable = true }

func TestI3ExistingCordonStays(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.changeNode("a", setUnschedulable)
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || !s.getNode("a").Spec.Unschedulable {
			t.Errorf("%s, cordoned %t", rt.Status.Phase, s.getNode("a").Spec.Unschedulable)
		}
		if err := checkRestored(s.getNode("a")); err != nil {
			t.Error(err)
		}
	})
}
