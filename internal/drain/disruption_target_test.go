package drain

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

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
		s.updatePod(marked, func(p *simPod) {
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
		s.updatePod(p, func(p *simPod) { // as the disruption controller does
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

// With evictions disabled there is no denial, so that the condition cannot be written early.
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
