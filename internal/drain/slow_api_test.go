package drain

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// failEvictionsFrom answers evictions of a namespace with the fault from a time on. An empty namespace means all.
func failEvictionsFrom(namespace string, from time.Duration, f fault) func(call) *fault {
	began := time.Now()
	return func(c call) *fault {
		if c.verb != "evict" || namespace != "" && c.Namespace != namespace || time.Since(began) < from {
			return nil
		}
		return &f
	}
}

// Each case has pods that a PDB or the API server blocks until only their time to stop is left.
func TestForcedDeletionsAreOnTimeDespiteFailingEvictions(t *testing.T) {
	const margin = 2 * time.Second
	for name, tt := range map[string]struct {
		window, latency time.Duration
		pods            int
		grace, stops    time.Duration
		blocked         bool // by their PDB
		beside          int  // pods of another namespace
		fault           func() func(call) *fault
	}{
		"another namespace's evictions fail": {
			2 * time.Minute, 300 * time.Millisecond, 100, 30 * time.Second, 28500 * time.Millisecond, true, 10,
			func() func(call) *fault {
				return failEvictionsFrom("office", 0, fault{err: &kubeapi.StatusError{Code: 503, Message: "unavailable"}})
			},
		},
		"evictions meet an API server that asks for patience": {
			time.Minute, time.Second, 100, 5 * time.Second, 2500 * time.Millisecond, false, 0,
			func() func(call) *fault {
				return failEvictionsFrom("", 0, fault{err: &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}})
			},
		},
		"evictions of other pods hang in every slot": {
			5 * time.Minute, 5 * time.Millisecond, 1, 2 * time.Minute, 119 * time.Second, true, 40,
			func() func(call) *fault { return failEvictionsFrom("office", 0, fault{hang: true}) },
		},
		"the API server is slow": {
			2 * time.Minute, time.Second, 96, time.Second, 250 * time.Millisecond, true, 0,
			func() func(call) *fault { return nil },
		},
		"the last eviction hangs": {
			30 * time.Second, 5 * time.Millisecond, 1, 10 * time.Second, 9500 * time.Millisecond, true, 0,
			func() func(call) *fault { return failEvictionsFrom("", 16*time.Second, fault{hang: true}) },
		},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.latency, s.fault = tt.latency, tt.fault()
			pods := s.addPods(tt.pods, "web-%d", withLabel("app", "web"), withGrace(tt.grace), withStopTime(tt.stops))
			s.addPods(tt.beside, "other-%d", inNamespace("office"), withGrace(5*time.Second))
			if tt.blocked {
				s.addPDB("web", 1000, 1000, map[string]string{"app": "web"})
			}
			terms := TimeLimits{Deadline: time.Now().Add(tt.window), Margin: margin}
			s.stopNodeAt(terms.Deadline)
			r, _ := runDrain(t, s, Options{TimeLimits: terms})
			lost := 0
			for _, p := range pods {
				if got := podReportOf(t, r, p); got.End != Stopped {
					if lost++; lost < 3 {
						t.Errorf("%s: %q after %s, end %q", p.Name, got.Removal, got.RemovalRequestedAt.Sub(r.StartedAt), got.End)
					}
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d pods did not stop in time", lost, tt.pods)
			}
		}))
	}
}
