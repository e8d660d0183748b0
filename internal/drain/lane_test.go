package drain

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// lastEviction is how long after the drain's beginning the last eviction was sent.
func lastEviction(s *sim, r Receipt) time.Duration {
	var last time.Duration
	for _, q := range s.asked("evict", nil) {
		last = max(last, q.at.Sub(r.Began))
	}
	return last
}

func TestI2AllowedPodsAreEvictedSoonNotForced(t *testing.T) {
	for _, c := range []struct {
		name string
		// counted is how long the disruption controller takes to count an eviction.
		counted time.Duration
		// written is how often the budget is written besides, as it is when replacements become ready.
		written time.Duration
		soon    time.Duration
		// conflicts is how often evictions may meet somebody else's write.
		conflicts int
	}{
		{"a quick disruption controller", time.Millisecond, 0, 1500 * time.Millisecond, 0},
		{"a slow disruption controller", 30 * time.Millisecond, 0, 4200 * time.Millisecond, 0},
		{"replacements become ready meanwhile", 10 * time.Millisecond, 35 * time.Millisecond, 6 * time.Second, 96 / 2},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.counting, s.controlling = 5*time.Millisecond, c.counted
			s.podsNamed(96, "web-%02d", label("app", "web"), grace(30*time.Second))
			budget := s.budget("web", 0, 96, map[string]string{"app": "web"})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.written > 0 {
				go func() {
					for elapsed.Sleep(ctx, c.written) {
						s.mu.Lock()
						budget.version++
						s.mu.Unlock()
					}
				}()
			}
			r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
			for _, p := range r.Pods {
				if p.Asked != Evicted || len(p.Delays) > 0 {
					t.Errorf("%s: %q with delays %v, want it evicted without any", p.Name, p.Asked, p.Delays)
				}
			}
			if took := lastEviction(s, r); took > c.soon {
				t.Errorf("the last eviction was sent after %s, want %s at most", took, c.soon)
			}
			if s.conflicts > c.conflicts {
				t.Errorf("%d conflicts, want %d at most", s.conflicts, c.conflicts)
			}
		}))
	}
}

func TestEvictionsContinueWithoutTheDisruptionController(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.controlling = time.Hour
		s.podsNamed(10, "web-%02d", label("app", "web"))
		s.budget("web", 0, 10, map[string]string{"app": "web"})
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
		if took := lastEviction(s, r); took > 10*(longestCount+2*s.latency) {
			t.Errorf("the last eviction was sent after %s", took)
		}
	})
}

func TestPodsWithoutPDBAreEvictedAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.latency = 50 * time.Millisecond
		s.podsNamed(96, "web-%02d")
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
		// The list of pods, one eviction while the budgets are read, then three batches of MaxInFlight.
		if took := lastEviction(s, r); took > 300*time.Millisecond {
			t.Errorf("the last eviction was sent after %s", took)
		}
	})
}

func TestHangingEvictionDelaysItsPDBQueueOnlyBriefly(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(3, "web-%d", label("app", "web"), stopsIn(0))
		s.budget("web", 0, 3, map[string]string{"app": "web"})
		s.failWhen(fault{hang: true}, func(c call) bool { return c.verb == "evict" && c.n == 0 })
		r := drainTo(t, s, GaveUp, Options{Terms: Terms{GiveUp: time.Now().Add(5 * time.Second)}})
		if took := lastEviction(s, r); took > 4*leastHeadStart {
			t.Errorf("the last eviction was sent after %s, want about %s", took, leastHeadStart)
		}
	})
}

func TestEvictionsOfAPDBNeverOverlapOnSlowServers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.latency, s.counting = 20*time.Millisecond, 80*time.Millisecond
		s.podsNamed(96, "web-%02d", label("app", "web"), grace(10*time.Second))
		s.budget("web", 0, 96, map[string]string{"app": "web"})
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
		for _, p := range r.Pods {
			if p.Asked != Evicted {
				t.Errorf("%s: %q, want it evicted", p.Name, p.Asked)
			}
		}
		if s.conflicts >= 96 {
			t.Errorf("%d evictions got in each other's way, want less than one for each pod", s.conflicts)
		}
	})
}

// A storm of notices must not become one of lists: the pods of a node may be of as many namespaces as there are pods.
func TestPDBsAreReadOnlyAfterTheFirstDenial(t *testing.T) {
	for _, c := range []struct {
		name   string
		pods   int
		denied bool
		want   int
	}{
		{"a few that may go", crowd - 1, false, 0},
		{"many that may go", crowd, false, 1},
		{"a few, of which one is denied", crowd - 1, true, 1},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.podsNamed(c.pods, "web-%d", label("app", "web"))
			if c.denied {
				s.budget("web", int32(c.pods), int32(c.pods), map[string]string{"app": "web"})
			}
			_, _ = drained(t, s, Options{Terms: within(5 * time.Second)})
			check.Is(t, c.want, s.calls["budgets"])
		}))
	}
}

// A notice of 30 s, and 100 pods of 15 s stop time behind a PodDisruptionBudget that allows every eviction.
func TestPDBQueueEmptiesBeforePodsRunLate(t *testing.T) {
	for _, c := range []struct {
		name                 string
		latency, controlling time.Duration
	}{
		{"slow API server and disruption controller", 300 * time.Millisecond, time.Second},
		{"slow API server", 300 * time.Millisecond, 10 * time.Millisecond},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.latency, s.controlling = c.latency, c.controlling
			s.podsNamed(100, "web-%02d", label("app", "web"), grace(30*time.Second), stopsIn(15*time.Second))
			s.budget("web", 0, 100, map[string]string{"app": "web"})
			terms := Terms{Deadline: time.Now().Add(30 * time.Second), Margin: 2 * time.Second}
			s.machineOff(terms.Deadline)
			r, err := drained(t, s, Options{Terms: terms})
			var notAsked, left, killed int
			for _, p := range r.Pods {
				if p.Asked == NotAsked {
					notAsked++
				}
				if p.Left() {
					left++
				}
				if p.End == Killed {
					killed++
				}
			}
			t.Logf("%d never asked, %d left, %d killed", notAsked, left, killed)
			if err != nil || notAsked > 0 || left > 0 || killed > 4 {
				t.Errorf("%d pods never asked, %d left, %d killed; want 0, 0 and at most 4; %v", notAsked, left, killed, err)
			}
		}))
	}
}
