package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func TestConcurrencyFollowsTheSpeedOfTheAPIServer(t *testing.T) {
	for _, c := range []struct {
		latency     time.Duration
		least, most int
		left        time.Duration
	}{
		{5 * time.Millisecond, 16, 32, 10 * time.Minute},
		{2 * time.Second, 1, firstWindow, 10 * time.Minute},
		{2 * time.Second, 32, 32, pressing / 2}, // there is no time to be modest
	} {
		simulate(t, func(t *testing.T, s *sim) {
			s.latency = c.latency
			for i := range 60 {
				s.pod(fmt.Sprint("web-", i), ownedBy("ReplicaSet"), ofItsOwn(i))
			}
			drainTo(t, s, Drained, Options{Terms: within(c.left)})
			if s.most < c.least || s.most > c.most {
				t.Errorf("%d requests at once on an API server that takes %s, want %d to %d", s.most, c.latency, c.least, c.most)
			}
		})
	}
}

// ofItsOwn gives a pod a controller that no other has.
func ofItsOwn(i int) change {
	return func(p *simPod) { p.OwnerReferences[0].UID = fmt.Sprint("owner-", i) }
}

// TestPendingAnswerDelaysForcedDeletion has an API server that many machines ask at once.
func TestPendingAnswerDelaysForcedDeletion(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.queued = 16 * time.Second // when half of the time is over they would be deleted
		var pods []*simPod
		for i := range 20 {
			pods = append(pods, s.pod(fmt.Sprint("web-", i), grace(30*time.Second), stopsIn(time.Second), ofItsOwn(i)))
		}
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
		for _, p := range pods {
			if got := receiptOf(t, r, p); got.Asked != Evicted || got.End != Stopped {
				t.Errorf("%s: asked %s, %s; want it evicted in its time", got.Name, got.Asked, got.End)
			}
		}
	})
}

func TestTheWindowFollowsTheAnswers(t *testing.T) {
	start := time.Now()
	w := newWindow(8)
	answer := func(sent, took time.Duration, err error) int {
		w.heard(start.Add(sent), start.Add(sent+took), err)
		return w.size
	}
	busy := &kubeapi.StatusError{Code: 429}
	denied := &kubeapi.StatusError{Code: 429, Causes: []kubeapi.Cause{{Reason: budgetCause}}}
	webhook := &kubeapi.StatusError{Code: 429, Message: `admission webhook "a.b" denied the request: it moves`}
	uncalled := &kubeapi.StatusError{Code: 500, Message: `failed calling webhook "a.b": timeout`}
	for i, step := range []struct {
		sent, took time.Duration
		err        error
		want       int
	}{
		{0, time.Millisecond, nil, 5},
		{0, time.Millisecond, denied, 6},  // a budget's no is an answer like any other
		{0, time.Millisecond, webhook, 7}, // and so is a webhook's
		{0, 600 * time.Millisecond, nil, 7},
		{0, 10 * time.Second, uncalled, 7}, // and a webhook that cannot be called is not the API server's failure
		{0, 5 * time.Second, webhook, 7},
		{0, time.Second, context.DeadlineExceeded, 7}, // nor is an eviction that was given up for a deletion
		{time.Second, 2 * time.Second, nil, 3},
		{time.Second, 2 * time.Second, nil, 3}, // they were under way together
		{4 * time.Second, time.Millisecond, busy, 1},
		{5 * time.Second, time.Millisecond, errors.New("reset"), 1},
		{6 * time.Second, time.Millisecond, nil, 2},
	} {
		if got := answer(step.sent, step.took, step.err); got != step.want {
			t.Fatalf("after answer %d the window is %d, want %d", i, got, step.want)
		}
		if step.err == uncalled && w.failing {
			t.Errorf("after answer %d the API server is taken to fail", i)
		}
	}
	for range 20 {
		answer(7*time.Second, time.Millisecond, nil)
	}
	if w.size != 8 {
		t.Errorf("the window is %d, want it no larger than what was allowed", w.size)
	}
}

// TestDrainsOfSimilarNodesStartWithDifferentPDBs looks at the order of pods that are alike.
func TestDrainsOfSimilarNodesStartWithDifferentPDBs(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		var byUID []string
		for i := range 9 { // a later UID has an earlier name
			byUID = append(byUID, s.pod(fmt.Sprint("web-", 9-i)).UID)
		}
		drainTo(t, s, Drained, Options{Terms: within(time.Minute), MaxInFlight: 1})
		var asked []string
		for _, q := range s.asked("evict", nil) {
			asked = append(asked, q.removal.UID)
		}
		if !slices.Equal(asked, byUID) {
			t.Errorf("asked in the order %v, want that of the UIDs", asked)
		}
	})
}

func TestLongestGraceStaysFirstAfterRefusals(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		refused := 0
		s.fault = func(c call) *fault {
			if c.verb == "evict" && refused < 6 {
				refused++
				return &fault{err: &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}}
			}
			return nil
		}
		long := map[string]bool{}
		for i := range 8 {
			s.pod(fmt.Sprint("short-", i), grace(time.Second))
			long[s.pod(fmt.Sprint("long-", i), grace(time.Minute)).UID] = true
		}
		drainTo(t, s, Drained, Options{Terms: within(5 * time.Minute), MaxInFlight: 1})
		var worked []request
		for _, q := range s.asked("evict", nil) {
			if q.worked {
				worked = append(worked, q)
			}
		}
		for i, q := range worked {
			if long[q.removal.UID] != (i < len(long)) {
				t.Errorf("eviction %d of %d is of a pod with long grace: %t", i, len(worked), long[q.removal.UID])
			}
		}
		if refused != 6 || len(worked) != 16 {
			t.Errorf("%d refused, %d worked", refused, len(worked))
		}
	})
}

func TestUnaskedPodIsDeletedInTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.failAll("evict", fault{hang: true, err: errors.New("no answer")})
		pods := s.podsNamed(40, "web-%d", grace(5*time.Second), stopsIn(time.Second))
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
		for _, p := range pods {
			if got := receiptOf(t, r, p); got.Asked != Forced || len(got.Delays) == 0 || got.End != Stopped {
				t.Errorf("%s: asked %s, delays %v, %s; want it deleted with its time to stop, and why", got.Name, got.Asked, got.Delays, got.End)
			}
		}
	})
}

// TestWebhookDenialIsNoMissingRight: it may relent before the deadline.
func TestWebhookDenialIsNoMissingRight(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("web", grace(time.Minute), label("app", "web"))
		s.budget("web", 1, 1, map[string]string{"app": "web"})
		var first time.Time
		s.fault = func(c call) *fault {
			if c.verb != "delete" {
				return nil
			}
			if first.IsZero() {
				first = time.Now()
			}
			if time.Since(first) > 5*time.Second {
				return nil
			}
			return &fault{err: &kubeapi.StatusError{Code: 403, Message: `admission webhook "keep.example.com" denied the request: not now`}}
		}
		r := drainTo(t, s, Drained, Options{Terms: within(5 * time.Minute)})
		if got := receiptOf(t, r, p); got.Asked != Forced {
			t.Errorf("%s: asked %s; want it deleted once the webhook lets it", got.Name, got.Asked)
		}
	})
}

// TestPodDeniedByAWebhookDelaysNoOther has a webhook that denies every eviction of one pod, with a code of its choice:
// that of KubeVirt answers 429 for each pod with a virtual machine in it, which it moves by itself.
func TestPodDeniedByAWebhookDelaysNoOther(t *testing.T) {
	for _, code := range []int{429, 403, 500} {
		t.Run(fmt.Sprint(code), simulated(func(t *testing.T, s *sim) {
			vm := s.pod("virt-launcher", grace(3*time.Minute), unowned)
			s.fault = func(c call) *fault {
				if c.verb == "evict" && c.UID == vm.UID {
					return &fault{err: &kubeapi.StatusError{
						Code: code, Message: `admission webhook "evict.kubevirt.io" denied the request: it is being moved`,
					}}
				}
				return nil
			}
			held := s.pod("held", label("app", "held"))
			b := s.budget("held", 1, 1, map[string]string{"app": "held"})
			s.after(10*time.Second, func() {
				b.healthy = 0
				s.shout()
			})
			var free []*simPod
			for i := range 10 {
				free = append(free, s.pod(fmt.Sprint("web-", i), ofItsOwn(i)))
			}
			began := time.Now()
			var last Progress
			r, err := drained(t, s, Options{Terms: within(10 * time.Minute), OnProgress: func(p Progress) {
				if time.Since(began) < 5*time.Second {
					last = p
				}
			}})
			wantOutcome(t, r, err, Drained)
			for _, p := range free {
				if got := receiptOf(t, r, p); got.Asked != Evicted || got.AskedAt.Sub(began) > 3*time.Second {
					t.Errorf("%s: asked %s after %s", got.Name, got.Asked, got.AskedAt.Sub(began))
				}
			}
			if got := receiptOf(t, r, held); got.Asked != Evicted || got.AskedAt.Sub(began) > 12*time.Second {
				t.Errorf("%s: asked %s after %s", got.Name, got.Asked, got.AskedAt.Sub(began))
			}
			if got := receiptOf(t, r, vm); got.Asked != Forced || got.AskedAt.Sub(began) < 6*time.Minute {
				t.Errorf("%s: asked %s after %s", got.Name, got.Asked, got.AskedAt.Sub(began))
			}
			if n := len(s.asked("evict", vm)); n > 400 {
				t.Errorf("the webhook was asked %d times", n)
			}
			i := slices.IndexFunc(last.Blocked, func(b Blocked) bool { return b.Pod == "virt-launcher" })
			if i < 0 || !strings.Contains(last.Blocked[i].Detail, "evict.kubevirt.io") || last.Blocked[i].Reason != Webhook {
				t.Errorf("what it waits for is not said: %v", last.Blocked)
			}
		}))
	}
}
