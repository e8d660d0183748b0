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

// killer ends a process at one of its requests: nothing that it sends after that arrives.
type killer struct {
	s      *sim
	moment string
	at, n  int
	armed  string // the request that was counted, while others are made beside it
	dead   bool
}

func (k *killer) step(moment, request string) error {
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

func (k *killer) hasStruck() bool {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	return k.dead
}

// course is one way through a retirement.
type course struct {
	name  string
	world func(*testing.T, *sim)
	end   v1alpha1.Phase
}

func courses() []course {
	return []course{
		{"succeeds", func(_ *testing.T, s *sim) { s.addPod("a", "web", nil) }, v1alpha1.Succeeded},
		{"fails at the cloud once", func(_ *testing.T, s *sim) { s.machines["sim://a"].fails = 1 }, v1alpha1.Succeeded},
		{"gives up", func(_ *testing.T, s *sim) {
			s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 20 * time.Second}
			s.addPod("a", "web", func(p *simPod) { p.denied = true })
		}, v1alpha1.Aborted},
		{"is refused", func(_ *testing.T, s *sim) { s.addPod("a", "web", protectedPod) }, v1alpha1.Refused},
		{"finds the machine gone", func(_ *testing.T, s *sim) {
			delete(s.machines, "sim://a")
			s.change("a", silent)
		}, v1alpha1.Succeeded},
		{"finds the machine gone, which comes back", func(_ *testing.T, s *sim) {
			delete(s.machines, "sim://a")
			s.change("a", silent)
			s.addPod("a", "web", func(p *simPod) { p.stops = -1 }) // so that there is time for it to come back
			time.AfterFunc(15*time.Second+time.Millisecond/2, func() { s.bringBack("a") })
		}, v1alpha1.Aborted},
		{"is called off", func(t *testing.T, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.denied = true })
			time.AfterFunc(15*time.Second, func() {
				if err := s.records.Delete(context.Background(), s.record("r")); err != nil {
					t.Error(err)
				}
			})
		}, ""},
		{"yields to another tool", func(_ *testing.T, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.denied = true })
			time.AfterFunc(15*time.Second, func() { s.change("a", tainted("ToBeDeletedByClusterAutoscaler")) })
		}, v1alpha1.Aborted},
	}
}

// TestI8AfterACrashAtAnyRequestTheEndIsTheSame ends the process at each request that it makes, once before the request
// is served and once after, and goes on with a new one. Which requests there are, a run without a crash shows. A drain and
// the walk beside it make some of theirs at one moment, so that a run may end with one less: few are missed so.
func TestI8AfterACrashAtAnyRequestTheEndIsTheSame(t *testing.T) {
	for _, c := range courses() {
		t.Run(c.name, func(t *testing.T) {
			const few = 4
			total, missed := 0, 0
			inBubble(t, func(t *testing.T, ctx context.Context) { total, _ = c.run(ctx, t, 0, "") })
			t.Logf("%d requests", total)
			for at := 1; at <= total; at++ {
				for _, moment := range []string{"before", "after"} {
					t.Run(fmt.Sprintf("%d %s", at, moment), func(t *testing.T) {
						inBubble(t, func(t *testing.T, ctx context.Context) {
							if _, struck := c.run(ctx, t, at, moment); !struck {
								missed++
							}
						})
					})
				}
			}
			if missed > few {
				t.Errorf("%d of %d crashes never came, since the run had ended: want %d at the most", missed, 2*total, few)
			}
		})
	}
}

// run goes the course once, and returns how many requests were made, and whether the process was ended at one of them.
func (c course) run(ctx context.Context, t *testing.T, at int, moment string) (requests int, struck bool) {
	t.Helper()
	s := ci(t)
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
	c.world(t, s)
	k := &killer{s: s, at: at, moment: moment}
	if at > 0 {
		s.atEach(k.step)
	}
	life, die := context.WithCancel(ctx)
	first := s.controller(t)
	for end := time.Now().Add(3 * time.Hour); time.Now().Before(end) && !k.hasStruck() && !s.over("r"); time.Sleep(time.Millisecond) {
		s.turn(life, first, "r")
	}
	die()
	s.atEach(func(string, string) error { return nil })
	rt := s.settled(ctx, s.controller(t), "r", 3*time.Hour)
	switch {
	case rt == nil && c.end != "":
		t.Fatal("the record is gone")
	case rt != nil && rt.Status.Phase != c.end:
		t.Fatalf("%s: %s, want %q", rt.Status.Phase, rt.Status.Message, c.end)
	case c.end == v1alpha1.Succeeded:
		s.hasLeft(t, "a")
	default:
		s.isAsItWas(t, "a")
	}
	if restoredErr := restored(s.node("b")); restoredErr != nil {
		t.Error(restoredErr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests), k.dead
}

// over reports that the retirement has ended and nothing is left to do.
func (s *sim) over(name string) bool {
	rt := s.record(name)
	return rt == nil || rt.Status.Phase.Finished() && len(rt.Finalizers) == 0
}

// cordonedBySomebody is a Node that was cordoned before.
func cordonedBySomebody(n *corev1.Node) { n.Spec.Unschedulable = true }

func TestI3ACordonThatWasThereBeforeStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.change("a", cordonedBySomebody)
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.settled(ctx, s.controller(t), "r", 3*time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || !s.node("a").Spec.Unschedulable {
			t.Errorf("%s, cordoned %t", rt.Status.Phase, s.node("a").Spec.Unschedulable)
		}
		if err := restored(s.node("a")); err != nil {
			t.Error(err)
		}
	})
}
