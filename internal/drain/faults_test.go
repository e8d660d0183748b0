package drain

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestRefusedGraceShorteningIsRetriedWithPause(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable": &kubeapi.StatusError{Code: 503, Message: "unavailable"},
		"busy":        &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second},
		"no answer":   errors.New("connect: connection refused"),
		"denied":      newDenial("The disruption budget web needs 1 healthy pods and has 1 currently"),
		"several":     &kubeapi.StatusError{Code: 500, Message: "This pod has more than one PodDisruptionBudget"},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.latency = time.Millisecond
			pods := s.addPods(3, "job-%d", asDeleted(0, 10*time.Minute), withStopTime(never))
			s.failAll("delete", fault{err: err})
			_, _ = runDrain(t, s, Options{TimeLimits: TimeLimits{Deadline: time.Now().Add(20 * time.Second), Margin: 2 * time.Second}})
			for _, p := range pods { // 3 s of retries, 200 ms apart
				if n := len(s.findRequests("delete", p)); n > 16 {
					t.Errorf("%s: %d deletions in 3 s, want at most 16", p.Name, n)
				}
			}
			if n := len(s.findRequests("delete", nil)); n == 0 {
				t.Error("no deletion was tried")
			}
		}))
	}
}

func TestI2BrokenWebhookForcesNoOtherNamespace(t *testing.T) {
	for name, takes := range map[string]time.Duration{"refused": 0, "times out": 10 * time.Second} {
		for _, broken := range []string{"aaa", "zzz"} {
			t.Run(name+"/"+broken, simulateFunc(func(t *testing.T, s *sim) {
				for i := range 40 {
					s.addPod(fmt.Sprint(broken, i), inNamespace("broken"), withGrace(time.Minute))
				}
				s.fault = func(c call) *fault {
					if c.verb != "evict" || c.Namespace != "broken" {
						return nil
					}
					return &fault{delay: takes, err: &kubeapi.StatusError{Code: 500, Message: `Internal error occurred: ` +
						`failed calling webhook "keep.example.com": failed to call webhook: context deadline exceeded`}}
				}
				pods := s.addPods(8, "web-%d", withLabel("app", "web"), withGrace(30*time.Second))
				s.addPDB("web", 0, 8, map[string]string{"app": "web"})
				r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(5 * time.Minute)})
				for _, p := range pods {
					if got := podReportOf(t, r, p); got.Removal != Evicted || got.RemovalRequestedAt.Sub(r.StartedAt) > 10*time.Second {
						t.Errorf("%s: %s after %s, want it evicted within 10 s", p.Name, got.Removal, got.RemovalRequestedAt.Sub(r.StartedAt))
					}
				}
				check.Contains(t, r.Summary(), "0 remaining, 0 skipped, 40 deleted without an eviction, ")
			}))
		}
	}
}

// Each event of a PDB reviews the pods that wait.
func TestServerErrorsCountAsNoDenials(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		pods := s.addPods(minPodsToReadPDBs, "web-%d", withLabel("app", "web"))
		plain := s.addPod("plain")
		pdb := s.addPDB("web", 0, 10, map[string]string{"app": "web"})
		const fails = 10 * time.Second
		for at := 100 * time.Millisecond; at < fails; at += 100 * time.Millisecond {
			s.changeAfter(at, func() { pdb.expected++; s.wakeWatchers() })
		}
		began := time.Now()
		s.failWhen(fault{err: &kubeapi.StatusError{Code: 500, Message: "etcdserver: request timed out"}}, func(c call) bool {
			return c.verb == "evict" && time.Since(began) < fails
		})
		r := runDrainTo(t, s, Drained, Options{})
		for _, p := range append(pods, plain) {
			got := podReportOf(t, r, p)
			check.Not(t, slices.ContainsFunc(got.Delays, func(d Delay) bool { return d.Reason != ObstacleError }), "%s: delays %+v", p.Name, got.Delays)
		}
		// Each pod once, and then one request for each pause: 200 ms, 400 ms, 800 ms, 1.6 s and 2 s.
		n := 0
		for _, q := range s.findRequests("evict", nil) {
			if q.at.Sub(began) < fails {
				n++
			}
		}
		check.Not(t, n > len(pods)+1+9, "%d evictions in %s", n, fails)
	})
}

// The pods of the other namespace arrive when all requests in flight hang.
func TestI2HangingNamespaceForcesNoOtherNamespace(t *testing.T) {
	for _, stops := range []time.Duration{25 * time.Second, 55 * time.Second} {
		t.Run(stops.String(), simulateFunc(func(t *testing.T, s *sim) {
			s.addPods(40, "broken-%d", inNamespace("broken"), withGrace(time.Minute))
			s.fault = func(c call) *fault {
				if c.Namespace != "broken" || c.verb == "condition" {
					return nil
				}
				return &fault{hang: true}
			}
			var pods []*simPod
			time.AfterFunc(time.Minute, func() {
				for i := range 8 {
					pods = append(pods, s.addPod(fmt.Sprint("web-", i), withGrace(stops+5*time.Second), withStopTime(stops)))
				}
			})
			r := runDrainTo(t, s, DeadlinePassed, Options{TimeLimits: deadlineIn(5 * time.Minute)})
			for _, p := range pods {
				got := podReportOf(t, r, p)
				if waited := got.RemovalRequestedAt.Sub(p.CreationTimestamp); got.Removal != Evicted || got.End != Stopped || waited > 30*time.Second {
					t.Errorf("%s: %q after %s, end %q; want it evicted within 30 s", p.Name, got.Removal, waited, got.End)
				}
			}
		}))
	}
}

func TestI2NamespaceWithUnreadPDBsIsEvictedBesideAHangingOne(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(100, "broken-%d", inNamespace("broken"), withGrace(50*time.Second)) // more than all evictions in flight
		pods := s.addPods(8, "web-%d", withGrace(40*time.Second), withStopTime(time.Second))
		s.failWhen(fault{hang: true}, func(c call) bool {
			return c.verb == "evict" && c.Namespace == "broken" || c.verb == "budgets" && c.Namespace != "broken"
		})
		r, _ := runDrain(t, s, Options{TimeLimits: deadlineIn(time.Minute)}) // the others outlive the deadline, or not
		for _, p := range pods {
			if got := podReportOf(t, r, p); got.Removal != Evicted || got.RemovalRequestedAt.Sub(r.StartedAt) > 5*time.Second {
				t.Errorf("%s: %q after %s, want it evicted within 5 s", p.Name, got.Removal, got.RemovalRequestedAt.Sub(r.StartedAt))
			}
		}
	})
}

func TestI2403WithDisruptionBudgetCauseIsDenial(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("web")
		answer := &kubeapi.StatusError{
			Code: 403, Reason: "Forbidden", Message: `poddisruptionbudgets.policy "web" is forbidden: in other words`,
			Causes: []kubeapi.Cause{{Reason: pdbCause, Message: "The disruption budget web does not allow evicting pods currently"}},
		}
		s.failWhen(fault{err: answer}, func(c call) bool { return c.verb == "evict" && c.n < 3 })
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(5 * time.Minute)})
		got := podReportOf(t, r, p)
		if got.Removal != Evicted || len(got.Delays) != 1 || got.Delays[0].Reason != ObstaclePDB || got.RemovalRequestedAt.Sub(r.StartedAt) > 10*time.Second {
			t.Errorf("%s after %s, delays %+v; want it evicted once its PDB allows it", got.Removal, got.RemovalRequestedAt.Sub(r.StartedAt), got.Delays)
		}
	})
}

func TestEarlierDeadlineEndsHangingRequest(t *testing.T) {
	for name, before := range map[string]time.Duration{"voluntary": 0, "an hour": time.Hour} {
		for _, verb := range []string{"evict", "delete"} {
			t.Run(name+"/"+verb, simulateFunc(func(t *testing.T, s *sim) {
				p := s.addPod("web", withGrace(5*time.Second))
				s.failWhen(fault{hang: true}, func(c call) bool { return c.verb == verb && c.n == 0 })
				o := Options{DisableEviction: verb == "delete"}
				if before > 0 {
					o.TimeLimits = deadlineIn(before)
				}
				d, wait := startDrain(t.Context(), t, s, o)
				time.Sleep(2 * time.Second)
				d.SetTimeLimits(deadlineIn(15 * time.Second))
				r, err := wait()
				checkOutcome(t, r, err, Drained)
				if got := podReportOf(t, r, p); got.End != Stopped {
					t.Errorf("%s after %s, %s", got.Removal, got.RemovalRequestedAt.Sub(r.StartedAt), got.End)
				}
			}))
		}
	}
}

// A busy API server gets one request at a time until it accepts one.
func TestHangAfter429DelaysNoOtherPod(t *testing.T) {
	for name, terms := range map[string]func() TimeLimits{
		"notice": func() TimeLimits { return deadlineIn(30 * time.Second) }, "voluntary": func() TimeLimits { return TimeLimits{} },
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			pods := s.addPods(20, "web-%d", withGrace(25*time.Second), withStopTime(15*time.Second))
			began := time.Now()
			var hangs string
			s.fault = func(c call) *fault {
				switch {
				case c.verb != "evict":
				case time.Since(began) < 300*time.Millisecond:
					return &fault{err: &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}}
				case hangs == "":
					hangs = c.UID
					return &fault{hang: true}
				}
				return nil
			}
			r, _ := runDrain(t, s, Options{TimeLimits: terms()})
			for _, p := range pods {
				got := podReportOf(t, r, p)
				if waited := got.RemovalRequestedAt.Sub(began); p.UID != hangs && (got.Removal != Evicted || got.End != Stopped || waited > 10*time.Second) {
					t.Errorf("%s: %q after %s, end %q; want it evicted within 10 s", p.Name, got.Removal, waited, got.End)
				}
			}
		}))
	}
}

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
			check.Not(t, lost > 0, "%d of %d pods did not stop in time", lost, tt.pods)
		}))
	}
}

// findDisruptionTarget returns the last condition DisruptionTarget of a pod.
func findDisruptionTarget(s *sim, p *simPod) kubeapi.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p.Status.Conditions {
		if c.Type == disruptionTarget {
			return c
		}
	}
	return kubeapi.Condition{}
}

func TestI2ForcedDeletionSetsDisruptionTargetBefore(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		blocked := s.addPod("blocked", withGrace(10*time.Second), withLabel("app", "web"), withOwner("Job"))
		free := s.addPod("free", withGrace(10*time.Second))
		s.addPDB("web", 1, 1, map[string]string{"app": "web"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute)})
		if got := podReportOf(t, r, blocked); got.Removal != ForceDeleted {
			t.Fatalf("removed by %q, want %q", got.Removal, ForceDeleted)
		}
		writes, deletions := s.findRequests("condition", nil), s.findRequests("delete", blocked)
		if len(writes) != 1 || writes[0].removal.UID != blocked.UID || len(deletions) != 1 || !writes[0].at.Before(deletions[0].at) {
			t.Errorf("condition writes %+v, deletions %+v; want one write with the UID before the deletion", writes, deletions)
		}
		if c := findDisruptionTarget(s, blocked); c.Status != "True" || c.Reason != deletionByNodeTermination {
			t.Errorf("condition %+v, want True with reason %s", c, deletionByNodeTermination)
		}
		if c := findDisruptionTarget(s, free); c.Reason != "EvictionByEvictionAPI" {
			t.Errorf("the evicted pod has the condition %+v", c)
		}
	})
}

func TestDisabledEvictionSetsDisruptionTargetBefore(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("web")
		marked := s.addPod("marked")
		s.addOrUpdatePod(marked, func(p *simPod) {
			p.Status.Conditions = append(p.Status.Conditions, kubeapi.Condition{Type: disruptionTarget, Status: "True", Reason: "Other"})
		})
		finished := s.addPod("finished", withPhase("Succeeded"))
		runDrainTo(t, s, Drained, Options{DisableEviction: true})
		if c := findDisruptionTarget(s, p); c.Reason != deletionByNodeDrain {
			t.Errorf("condition %+v, want reason %s", c, deletionByNodeDrain)
		}
		if c := findDisruptionTarget(s, marked); c.Reason != "Other" {
			t.Errorf("an existing condition was overwritten: %+v", c)
		}
		if n := len(s.findRequests("condition", finished)); n > 0 {
			t.Errorf("%d writes for a finished pod", n)
		}
	})
}

func TestForcedDeletionDoesNotWaitForDisruptionTarget(t *testing.T) {
	for name, f := range map[string]fault{
		"fails":     {err: &kubeapi.StatusError{Code: 500, Message: "internal error"}},
		"forbidden": {err: newForbidden(`cannot patch resource "pods/status"`)},
		"lost":      {err: errors.New("connection reset")},
		"hangs":     {hang: true},
		"late":      {delay: 1500 * time.Millisecond},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.fault = func(c call) *fault {
				if c.verb != "condition" {
					return nil
				}
				answer := f
				answer.tookEffect = f.delay > 0
				return &answer
			}
			pods := s.addPods(50, "web-%d", withGrace(10*time.Second), withLabel("app", "web"))
			s.addPDB("web", 50, 50, map[string]string{"app": "web"})
			terms := deadlineIn(time.Minute)
			r := runDrainTo(t, s, Drained, Options{TimeLimits: terms})
			for _, p := range pods {
				got := podReportOf(t, r, p)
				if at := got.RemovalRequestedAt.Sub(forcedDeletionTime(p.wantedGrace(), terms, r.StartedAt)); at < 0 || at > 50*time.Millisecond || got.End != Stopped {
					t.Errorf("%s: deleted %s too late, %s", p.Name, at, got.End)
				}
				if c := findDisruptionTarget(s, p); name == "late" && c.Reason != deletionByNodeTermination {
					t.Errorf("%s: condition %+v, want the late one", p.Name, c)
				}
			}
			if n := len(s.findRequests("condition", nil)); name == "forbidden" && n > 32 {
				t.Errorf("%d writes without the permission", n)
			}
		}))
	}
}

// The permission to write the condition may come from a RoleBinding, which covers one namespace.
func TestDisruptionTargetIsSetWhereNamespacesAllowIt(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.failWhen(fault{err: newForbidden(`cannot patch resource "pods/status" in the namespace "closed"`)}, func(c call) bool {
			return c.verb == "condition" && c.Namespace == "closed"
		})
		var open []*simPod
		for i := range 50 {
			s.addPod(fmt.Sprint("a-", i), inNamespace("closed"), withGrace(20*time.Second))
			open = append(open, s.addPod(fmt.Sprint("b-", i), inNamespace("open"), withGrace(10*time.Second)))
		}
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute), DisableEviction: true})
		for _, p := range open {
			if c := findDisruptionTarget(s, p); c.Status != "True" {
				t.Errorf("%s: condition %+v, want True", p.Name, c)
			}
		}
		if n := len(s.findRequests("condition", nil)) - len(open); n > 32 {
			t.Errorf("%d writes without the permission", n)
		}
		for _, p := range r.Pods {
			if took := p.RemovalRequestedAt.Sub(r.StartedAt); took > maxConditionWait+100*time.Millisecond {
				t.Errorf("%s: deleted after %s", p.Name, took)
			}
		}
	})
}

func TestDisruptionTargetIsSetAgainAfterItsRemoval(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("web", withGrace(10*time.Second), withLabel("app", "web"), withOwner("Job"))
		s.addPDB("web", 1, 1, map[string]string{"app": "web"})
		terms := deadlineIn(30 * time.Second)
		d, wait := startDrain(t.Context(), t, s, Options{TimeLimits: terms})
		time.Sleep(time.Until(forcedDeletionTime(p.wantedGrace(), terms, time.Now()).Add(-conditionLead / 2)))
		d.SetTimeLimits(deadlineIn(10 * time.Minute))
		time.Sleep(2 * time.Minute)
		s.addOrUpdatePod(p, func(p *simPod) { // as the disruption controller does
			p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}, {Type: disruptionTarget, Status: "False"}}
		})
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		writes, deletions := s.findRequests("condition", p), s.findRequests("delete", p)
		if len(writes) != 2 || len(deletions) != 1 || !writes[1].at.Before(deletions[0].at) {
			t.Errorf("condition writes %+v, deletions %+v; want a second write before the deletion", writes, deletions)
		}
	})
}

// With evictions disabled no eviction is denied, so the condition cannot be written early.
func TestDeletionsWaitBrieflyForDisruptionTarget(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.failAll("condition", fault{hang: true})
		s.addPods(100, "web-%d", withGrace(10*time.Second))
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second), DisableEviction: true})
		for _, p := range r.Pods {
			if took := p.RemovalRequestedAt.Sub(r.StartedAt); took > maxConditionWait+100*time.Millisecond {
				t.Errorf("%s: deleted after %s, want %s and the requests before at most", p.Name, took, maxConditionWait)
			}
		}
	})
}

func (p *simPod) wantedGrace() time.Duration { return wantedGrace(&p.Pod, nil) }
