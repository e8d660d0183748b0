package drain

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func TestShorteningAGracePausesAfterARefusal(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable": &kubeapi.StatusError{Code: 503, Message: "unavailable"},
		"busy":        &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second},
		"no answer":   errors.New("connect: connection refused"),
		"denied":      denial("The disruption budget web needs 1 healthy pods and has 1 currently"),
		"several":     &kubeapi.StatusError{Code: 500, Message: "This pod has more than one PodDisruptionBudget"},
	} {
		t.Run(name, simulated(func(t *testing.T, s *sim) {
			s.latency = time.Millisecond
			pods := s.podsNamed(3, "job-%d", deleted(0, 10*time.Minute), stopsIn(never))
			s.failAll("delete", fault{err: err})
			_, _ = drained(t, s, Options{Terms: Terms{Deadline: time.Now().Add(20 * time.Second), Margin: 2 * time.Second}})
			for _, p := range pods { // 3 s of tries, 200 ms apart
				if n := len(s.asked("delete", p)); n > 16 {
					t.Errorf("%s: %d deletions in 3 s, want at most 16", p.Name, n)
				}
			}
			if n := len(s.asked("delete", nil)); n == 0 {
				t.Error("no deletion was tried")
			}
		}))
	}
}

func TestI2BrokenWebhookOfANamespaceForcesNoOther(t *testing.T) {
	for name, takes := range map[string]time.Duration{"refused": 0, "times out": 10 * time.Second} {
		for _, broken := range []string{"aaa", "zzz"} {
			t.Run(name+"/"+broken, simulated(func(t *testing.T, s *sim) {
				for i := range 40 {
					s.pod(fmt.Sprint(broken, i), in("broken"), grace(time.Minute))
				}
				s.fault = func(c call) *fault {
					if c.verb != "evict" || c.Namespace != "broken" {
						return nil
					}
					return &fault{takes: takes, err: &kubeapi.StatusError{Code: 500, Message: `Internal error occurred: ` +
						`failed calling webhook "keep.example.com": failed to call webhook: context deadline exceeded`}}
				}
				pods := s.podsNamed(8, "web-%d", label("app", "web"), grace(30*time.Second))
				s.budget("web", 0, 8, map[string]string{"app": "web"})
				r := drainTo(t, s, Drained, Options{Terms: within(5 * time.Minute)})
				for _, p := range pods {
					if got := receiptOf(t, r, p); got.Asked != Evicted || got.AskedAt.Sub(r.Began) > 10*time.Second {
						t.Errorf("%s: asked %s after %s, want it evicted within 10 s", p.Name, got.Asked, got.AskedAt.Sub(r.Began))
					}
				}
			}))
		}
	}
}

// The pods of the other namespace come when all requests that are under way hang.
func TestI2HangingNamespaceForcesNoOtherNamespace(t *testing.T) {
	for _, stops := range []time.Duration{25 * time.Second, 55 * time.Second} {
		t.Run(stops.String(), simulated(func(t *testing.T, s *sim) {
			s.podsNamed(40, "broken-%d", in("broken"), grace(time.Minute))
			s.fault = func(c call) *fault {
				if c.Namespace != "broken" || c.verb == "condition" {
					return nil
				}
				return &fault{hang: true}
			}
			var pods []*simPod
			time.AfterFunc(time.Minute, func() {
				for i := range 8 {
					pods = append(pods, s.pod(fmt.Sprint("web-", i), grace(stops+5*time.Second), stopsIn(stops)))
				}
			})
			r := drainTo(t, s, DeadlinePassed, Options{Terms: within(5 * time.Minute)})
			for _, p := range pods {
				got := receiptOf(t, r, p)
				if waited := got.AskedAt.Sub(p.CreationTimestamp); got.Asked != Evicted || got.End != Stopped || waited > 30*time.Second {
					t.Errorf("%s: asked %q after %s, end %q; want it evicted within 30 s", p.Name, got.Asked, waited, got.End)
				}
			}
		}))
	}
}

func TestI2A403WithTheBudgetsCauseIsADenial(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("web")
		answer := &kubeapi.StatusError{
			Code: 403, Reason: "Forbidden", Message: `poddisruptionbudgets.policy "web" is forbidden: in other words`,
			Causes: []kubeapi.Cause{{Reason: budgetCause, Message: "The disruption budget web does not allow evicting pods currently"}},
		}
		s.failWhen(fault{err: answer}, func(c call) bool { return c.verb == "evict" && c.n < 3 })
		r := drainTo(t, s, Drained, Options{Terms: within(5 * time.Minute)})
		got := receiptOf(t, r, p)
		if got.Asked != Evicted || len(got.Delays) != 1 || got.Delays[0].Reason != Budget || got.AskedAt.Sub(r.Began) > 10*time.Second {
			t.Errorf("asked %s after %s, delays %+v; want it evicted once its budget allows it", got.Asked, got.AskedAt.Sub(r.Began), got.Delays)
		}
	})
}

func TestHangingRequestEndsWhenTheDeadlineMovesNearer(t *testing.T) {
	for name, before := range map[string]time.Duration{"voluntary": 0, "an hour": time.Hour} {
		for _, verb := range []string{"evict", "delete"} {
			t.Run(name+"/"+verb, simulated(func(t *testing.T, s *sim) {
				p := s.pod("web", grace(5*time.Second))
				s.failWhen(fault{hang: true}, func(c call) bool { return c.verb == verb && c.n == 0 })
				o := Options{DisableEviction: verb == "delete"}
				if before > 0 {
					o.Terms = within(before)
				}
				d, wait := start(t.Context(), t, s, o)
				time.Sleep(2 * time.Second)
				d.SetTerms(within(15 * time.Second))
				r, err := wait()
				wantOutcome(t, r, err, Drained)
				if got := receiptOf(t, r, p); got.End != Stopped {
					t.Errorf("asked %s after %s, %s", got.Asked, got.AskedAt.Sub(r.Began), got.End)
				}
			}))
		}
	}
}

// An API server that asks for patience lets one request at a time find out whether it can do more.
func TestHangAfterA429CostsNoOtherPod(t *testing.T) {
	for name, terms := range map[string]func() Terms{
		"notice": func() Terms { return within(30 * time.Second) }, "voluntary": func() Terms { return Terms{} },
	} {
		t.Run(name, simulated(func(t *testing.T, s *sim) {
			pods := s.podsNamed(20, "web-%d", grace(25*time.Second), stopsIn(15*time.Second))
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
			r, _ := drained(t, s, Options{Terms: terms()})
			for _, p := range pods {
				got := receiptOf(t, r, p)
				if waited := got.AskedAt.Sub(began); p.UID != hangs && (got.Asked != Evicted || got.End != Stopped || waited > 10*time.Second) {
					t.Errorf("%s: asked %q after %s, end %q; want it evicted within 10 s", p.Name, got.Asked, waited, got.End)
				}
			}
		}))
	}
}
