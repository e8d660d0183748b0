package drain

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// lastEvictionAfter returns how long after the start of the drain the last eviction was sent.
func lastEvictionAfter(s *sim, r Report) time.Duration {
	var last time.Duration
	for _, q := range s.findRequests("evict", nil) {
		last = max(last, q.at.Sub(r.StartedAt))
	}
	return last
}

func TestI2AllowedPodsAreEvictedSoonNotForced(t *testing.T) {
	for _, c := range []struct {
		name string
		// counted is how long the disruption controller takes to count an eviction.
		counted time.Duration
		// written is the interval of other writes to the PDB, as they happen when replacements become ready.
		written time.Duration
		soon    time.Duration
		// conflicts limits the evictions that meet another client's write.
		conflicts int
	}{
		{"a quick disruption controller", time.Millisecond, 0, 1500 * time.Millisecond, 0},
		{"a slow disruption controller", 30 * time.Millisecond, 0, 4200 * time.Millisecond, 0},
		{"replacements become ready meanwhile", 10 * time.Millisecond, 35 * time.Millisecond, 6 * time.Second, 96 / 2},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.pdbWriteDelay, s.controllerDelay = 5*time.Millisecond, c.counted
			s.addPods(96, "web-%02d", withLabel("app", "web"), withGrace(30*time.Second))
			budget := s.addPDB("web", 0, 96, map[string]string{"app": "web"})
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
			r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
			for _, p := range r.Pods {
				if p.Removal != Evicted || len(p.Delays) > 0 {
					t.Errorf("%s: %q with delays %v, want it evicted without any", p.Name, p.Removal, p.Delays)
				}
			}
			if took := lastEvictionAfter(s, r); took > c.soon {
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
		s.controllerDelay = time.Hour
		s.addPods(10, "web-%02d", withLabel("app", "web"))
		s.addPDB("web", 0, 10, map[string]string{"app": "web"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
		if took := lastEvictionAfter(s, r); took > 10*(maxCountWait+2*s.latency) {
			t.Errorf("the last eviction was sent after %s", took)
		}
	})
}

func TestPodsWithoutPDBAreEvictedAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.latency = 50 * time.Millisecond
		s.addPods(96, "web-%02d")
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
		// The list of pods, one eviction while the PDBs are read, then three batches of MaxInFlight.
		if took := lastEvictionAfter(s, r); took > 300*time.Millisecond {
			t.Errorf("the last eviction was sent after %s", took)
		}
	})
}

func TestHangingEvictionDelaysItsPDBQueueOnlyBriefly(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(3, "web-%d", withLabel("app", "web"), withStopTime(0))
		s.addPDB("web", 0, 3, map[string]string{"app": "web"})
		s.failWhen(fault{hang: true}, func(c call) bool { return c.verb == "evict" && c.n == 0 })
		r := runDrainTo(t, s, TimedOut, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(5 * time.Second)}})
		if took := lastEvictionAfter(s, r); took > 4*minHeadStart {
			t.Errorf("the last eviction was sent after %s, want about %s", took, minHeadStart)
		}
	})
}

func TestEvictionsOfAPDBNeverOverlapOnSlowServers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.latency, s.pdbWriteDelay = 20*time.Millisecond, 80*time.Millisecond
		s.addPods(96, "web-%02d", withLabel("app", "web"), withGrace(10*time.Second))
		s.addPDB("web", 0, 96, map[string]string{"app": "web"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
		for _, p := range r.Pods {
			if p.Removal != Evicted {
				t.Errorf("%s: %q, want it evicted", p.Name, p.Removal)
			}
		}
		if s.conflicts >= 96 {
			t.Errorf("%d conflicts, want less than one for each pod", s.conflicts)
		}
	})
}

// A storm of notices must not cause a storm of lists: each pod of a node may be in another namespace.
func TestPDBsAreReadOnlyWhenNeeded(t *testing.T) {
	for _, c := range []struct {
		name   string
		pods   int
		denied bool
		want   int
	}{
		{"few pods, evictions allowed", minPodsToReadPDBs - 1, false, 0},
		{"many pods, evictions allowed", minPodsToReadPDBs, false, 1},
		{"few pods, one eviction denied", minPodsToReadPDBs - 1, true, 1},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPods(c.pods, "web-%d", withLabel("app", "web"))
			if c.denied {
				s.addPDB("web", int32(c.pods), int32(c.pods), map[string]string{"app": "web"})
			}
			_, _ = runDrain(t, s, Options{TimeLimits: deadlineIn(5 * time.Second)})
			check.Is(t, c.want, s.calls["budgets"])
		}))
	}
}

// The notice is 30 s. 100 pods need 15 s to stop, behind a PDB that allows every eviction.
func TestPDBQueueEmptiesInTime(t *testing.T) {
	for _, c := range []struct {
		name                 string
		latency, controlling time.Duration
	}{
		{"slow API server and disruption controller", 300 * time.Millisecond, time.Second},
		{"slow API server", 300 * time.Millisecond, 10 * time.Millisecond},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.latency, s.controllerDelay = c.latency, c.controlling
			s.addPods(100, "web-%02d", withLabel("app", "web"), withGrace(30*time.Second), withStopTime(15*time.Second))
			s.addPDB("web", 0, 100, map[string]string{"app": "web"})
			terms := TimeLimits{Deadline: time.Now().Add(30 * time.Second), Margin: 2 * time.Second}
			s.stopNodeAt(terms.Deadline)
			r, err := runDrain(t, s, Options{TimeLimits: terms})
			var notAsked, left, killed int
			for _, p := range r.Pods {
				if p.Removal == NotRemoved {
					notAsked++
				}
				if p.IsNotRemoved() {
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
