package drain

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// conditionOf returns the condition DisruptionTarget that a pod had in the end.
func conditionOf(s *sim, p *simPod) kubeapi.Condition {
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
		blocked := s.pod("blocked", grace(10*time.Second), label("app", "web"), ownedBy("Job"))
		free := s.pod("free", grace(10*time.Second))
		s.budget("web", 1, 1, map[string]string{"app": "web"})
		r := drainTo(t, s, Drained, Options{Terms: within(time.Minute)})
		if got := receiptOf(t, r, blocked); got.Asked != Forced {
			t.Fatalf("asked %s, want %s", got.Asked, Forced)
		}
		writes, deletions := s.asked("condition", nil), s.asked("delete", blocked)
		if len(writes) != 1 || writes[0].removal.UID != blocked.UID || len(deletions) != 1 || !writes[0].at.Before(deletions[0].at) {
			t.Errorf("condition writes %+v, deletions %+v; want one write with the UID before the deletion", writes, deletions)
		}
		if c := conditionOf(s, blocked); c.Status != "True" || c.Reason != deletionByNodeTermination {
			t.Errorf("condition %+v, want True with reason %s", c, deletionByNodeTermination)
		}
		if c := conditionOf(s, free); c.Reason != "EvictionByEvictionAPI" {
			t.Errorf("the evicted pod has the condition %+v", c)
		}
	})
}

func TestDisabledEvictionSetsDisruptionTargetBefore(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("web")
		marked := s.pod("marked")
		s.update(marked, func(p *simPod) {
			p.Status.Conditions = append(p.Status.Conditions, kubeapi.Condition{Type: disruptionTarget, Status: "True", Reason: "Other"})
		})
		finished := s.pod("finished", phase("Succeeded"))
		drainTo(t, s, Drained, Options{DisableEviction: true})
		if c := conditionOf(s, p); c.Reason != deletionByNodeDrain {
			t.Errorf("condition %+v, want reason %s", c, deletionByNodeDrain)
		}
		if c := conditionOf(s, marked); c.Reason != "Other" {
			t.Errorf("a condition that was there is overwritten: %+v", c)
		}
		if n := len(s.asked("condition", finished)); n > 0 {
			t.Errorf("%d writes for a finished pod", n)
		}
	})
}

func TestForcedDeletionDoesNotWaitForDisruptionTarget(t *testing.T) {
	for name, f := range map[string]fault{
		"fails":     {err: &kubeapi.StatusError{Code: 500, Message: "internal error"}},
		"forbidden": {err: forbidden(`cannot patch resource "pods/status"`)},
		"lost":      {err: errors.New("connection reset")},
		"hangs":     {hang: true},
		"late":      {takes: 1500 * time.Millisecond},
	} {
		t.Run(name, simulated(func(t *testing.T, s *sim) {
			s.fault = func(c call) *fault {
				if c.verb != "condition" {
					return nil
				}
				answer := f
				answer.worked = f.takes > 0
				return &answer
			}
			pods := s.podsNamed(50, "web-%d", grace(10*time.Second), label("app", "web"))
			s.budget("web", 50, 50, map[string]string{"app": "web"})
			terms := within(time.Minute)
			r := drainTo(t, s, Drained, Options{Terms: terms})
			for _, p := range pods {
				got := receiptOf(t, r, p)
				if at := got.AskedAt.Sub(forceAt(p.wantedGrace(), terms, r.Began)); at < 0 || at > 50*time.Millisecond || got.End != Stopped {
					t.Errorf("%s: deleted %s after its time, %s", p.Name, at, got.End)
				}
				if c := conditionOf(s, p); name == "late" && c.Reason != deletionByNodeTermination {
					t.Errorf("%s: condition %+v, want the late one", p.Name, c)
				}
			}
			if n := len(s.asked("condition", nil)); name == "forbidden" && n > 32 {
				t.Errorf("%d writes were tried without the right", n)
			}
		}))
	}
}

// The right to write the condition may come from a RoleBinding, which is of one namespace.
func TestDisruptionTargetIsSetWhereNamespacesAllowIt(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.failWhen(fault{err: forbidden(`cannot patch resource "pods/status" in the namespace "closed"`)}, func(c call) bool {
			return c.verb == "condition" && c.Namespace == "closed"
		})
		var open []*simPod
		for i := range 50 {
			s.pod(fmt.Sprint("a-", i), in("closed"), grace(20*time.Second))
			open = append(open, s.pod(fmt.Sprint("b-", i), in("open"), grace(10*time.Second)))
		}
		r := drainTo(t, s, Drained, Options{Terms: within(time.Minute), DisableEviction: true})
		for _, p := range open {
			if c := conditionOf(s, p); c.Status != "True" {
				t.Errorf("%s: condition %+v, want True", p.Name, c)
			}
		}
		if n := len(s.asked("condition", nil)) - len(open); n > 32 {
			t.Errorf("%d writes were tried without the right", n)
		}
		for _, p := range r.Pods {
			if took := p.AskedAt.Sub(r.Began); took > longestConditionWait+100*time.Millisecond {
				t.Errorf("%s: deleted after %s", p.Name, took)
			}
		}
	})
}

func TestDisruptionTargetIsSetAgainAfterItsRemoval(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("web", grace(10*time.Second), label("app", "web"), ownedBy("Job"))
		s.budget("web", 1, 1, map[string]string{"app": "web"})
		terms := within(30 * time.Second)
		d, wait := start(t.Context(), t, s, Options{Terms: terms})
		time.Sleep(time.Until(forceAt(p.wantedGrace(), terms, time.Now()).Add(-conditionLead / 2)))
		d.SetTerms(within(10 * time.Minute))
		time.Sleep(2 * time.Minute)
		s.update(p, func(p *simPod) { // the disruption controller
			p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}, {Type: disruptionTarget, Status: "False"}}
		})
		r, err := wait()
		wantOutcome(t, r, err, Drained)
		writes, deletions := s.asked("condition", p), s.asked("delete", p)
		if len(writes) != 2 || len(deletions) != 1 || !writes[1].at.Before(deletions[0].at) {
			t.Errorf("condition writes %+v, deletions %+v; want a second write before the deletion", writes, deletions)
		}
	})
}

// Nothing says no to an eviction that is disabled, so that the condition cannot be written early.
func TestDeletionsWaitBrieflyForDisruptionTarget(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.failAll("condition", fault{hang: true})
		s.podsNamed(100, "web-%d", grace(10*time.Second))
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second), DisableEviction: true})
		for _, p := range r.Pods {
			if took := p.AskedAt.Sub(r.Began); took > longestConditionWait+100*time.Millisecond {
				t.Errorf("%s: deleted after %s, want %s and the requests before at most", p.Name, took, longestConditionWait)
			}
		}
	})
}

func (p *simPod) wantedGrace() time.Duration { return wantedGrace(&p.Pod, nil) }
