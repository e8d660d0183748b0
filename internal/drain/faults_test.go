package drain

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
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
			}))
		}
	}
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
