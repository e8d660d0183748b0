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

func TestConcurrencyFollowsAPIServerSpeed(t *testing.T) {
	for _, c := range []struct {
		latency     time.Duration
		least, most int
		left        time.Duration
	}{
		{5 * time.Millisecond, 16, 32, 10 * time.Minute},
		{2 * time.Second, 1, initialConcurrency, 10 * time.Minute},
		{2 * time.Second, 32, 32, nearDeadline / 2}, // near the deadline the limit is ignored
	} {
		simulate(t, func(t *testing.T, s *sim) {
			s.latency = c.latency
			for i := range 60 {
				s.addPod(fmt.Sprint("web-", i), withOwner("ReplicaSet"), withOwnController(i))
			}
			runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(c.left)})
			if s.maxInFlight < c.least || s.maxInFlight > c.most {
				t.Errorf("%d requests at once on an API server that takes %s, want %d to %d", s.maxInFlight, c.latency, c.least, c.most)
			}
		})
	}
}

// withOwnController gives a pod a controller that no other pod has.
func withOwnController(i int) podOption {
	return func(p *simPod) { p.OwnerReferences[0].UID = fmt.Sprint("owner-", i) }
}

// TestPendingAnswerDelaysForcedDeletion uses an API server that is busy with the requests of many nodes.
func TestPendingAnswerDelaysForcedDeletion(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.evictionDelay = 16 * time.Second // the forced deletion would come at half of the time
		var pods []*simPod
		for i := range 20 {
			pods = append(pods, s.addPod(fmt.Sprint("web-", i), withGrace(30*time.Second), withStopTime(time.Second), withOwnController(i)))
		}
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
		for _, p := range pods {
			if got := podReportOf(t, r, p); got.Removal != Evicted || got.End != Stopped {
				t.Errorf("%s: %s, %s; want it evicted in time", got.Name, got.Removal, got.End)
			}
		}
	})
}

func TestConcurrencyLimitFollowsAnswers(t *testing.T) {
	start := time.Now()
	w := newConcurrencyLimit(8)
	answer := func(sent, took time.Duration, err error) int {
		w.adjustAfterResponse(start.Add(sent), start.Add(sent+took), err)
		return w.current
	}
	busy := &kubeapi.StatusError{Code: 429}
	denied := &kubeapi.StatusError{Code: 429, Causes: []kubeapi.Cause{{Reason: pdbCause}}}
	webhook := &kubeapi.StatusError{Code: 429, Message: `admission webhook "a.b" denied the request: it moves`}
	uncalled := &kubeapi.StatusError{Code: 500, Message: `failed calling webhook "a.b": timeout`}
	for i, step := range []struct {
		sent, took time.Duration
		err        error
		want       int
	}{
		{0, time.Millisecond, nil, 5},
		{0, time.Millisecond, denied, 6},  // the denial of a PDB is a normal answer
		{0, time.Millisecond, webhook, 7}, // so is that by a webhook
		{0, 600 * time.Millisecond, nil, 7},
		{0, 10 * time.Second, uncalled, 7}, // an unavailable webhook is not a failure of the API server
		{0, 5 * time.Second, webhook, 7},
		{0, time.Second, context.DeadlineExceeded, 7}, // an eviction cancelled for a forced deletion is no failure either
		{time.Second, 2 * time.Second, nil, 3},
		{time.Second, 2 * time.Second, nil, 3}, // they were in flight together
		{4 * time.Second, time.Millisecond, busy, 1},
		{5 * time.Second, time.Millisecond, errors.New("reset"), 1},
		{6 * time.Second, time.Millisecond, nil, 2},
	} {
		if got := answer(step.sent, step.took, step.err); got != step.want {
			t.Fatalf("after answer %d the limit is %d, want %d", i, got, step.want)
		}
		if step.err == uncalled && w.failing {
			t.Errorf("after answer %d the API server counts as failing", i)
		}
	}
	for range 20 {
		answer(7*time.Second, time.Millisecond, nil)
	}
	if w.current != 8 {
		t.Errorf("the limit is %d, want at most the configured maximum", w.current)
	}
}

func TestDrainsOfSimilarNodesStartWithDifferentPDBs(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		var byUID []string
		for i := range 9 { // a later UID has an earlier name
			byUID = append(byUID, s.addPod(fmt.Sprint("web-", 9-i)).UID)
		}
		runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute), MaxInFlight: 1})
		var asked []string
		for _, q := range s.findRequests("evict", nil) {
			asked = append(asked, q.removal.UID)
		}
		if !slices.Equal(asked, byUID) {
			t.Errorf("evicted in the order %v, want the order of UIDs", asked)
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
			s.addPod(fmt.Sprint("short-", i), withGrace(time.Second))
			long[s.addPod(fmt.Sprint("long-", i), withGrace(time.Minute)).UID] = true
		}
		runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(5 * time.Minute), MaxInFlight: 1})
		var worked []sentRequest
		for _, q := range s.findRequests("evict", nil) {
			if q.changedPod {
				worked = append(worked, q)
			}
		}
		for i, q := range worked {
			if long[q.removal.UID] != (i < len(long)) {
				t.Errorf("eviction %d of %d is of a pod with long grace: %t", i, len(worked), long[q.removal.UID])
			}
		}
		if refused != 6 || len(worked) != 16 {
			t.Errorf("%d refused, %d accepted", refused, len(worked))
		}
	})
}

func TestPodWithoutEvictionRequestIsDeletedInTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.failAll("evict", fault{hang: true, err: errors.New("no answer")})
		pods := s.addPods(40, "web-%d", withGrace(5*time.Second), withStopTime(time.Second))
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
		for _, p := range pods {
			if got := podReportOf(t, r, p); got.Removal != ForceDeleted || len(got.Delays) == 0 || got.End != Stopped {
				t.Errorf("%s: %s, delays %v, %s; want it deleted with its time to stop, and a reason", got.Name, got.Removal, got.Delays, got.End)
			}
		}
	})
}

// TestWebhookDenialIsNotForbidden: the webhook may allow the request before the deadline.
func TestWebhookDenialIsNotForbidden(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("web", withGrace(time.Minute), withLabel("app", "web"))
		s.addPDB("web", 1, 1, map[string]string{"app": "web"})
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
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(5 * time.Minute)})
		if got := podReportOf(t, r, p); got.Removal != ForceDeleted {
			t.Errorf("%s: %s; want it deleted once the webhook allows it", got.Name, got.Removal)
		}
	})
}

// TestWebhookDenialDelaysNoOtherPod uses a webhook that denies every eviction of one pod, with several codes.
// KubeVirt's webhook answers 429 for each pod with a virtual machine, which it migrates on its own.
func TestWebhookDenialDelaysNoOtherPod(t *testing.T) {
	for _, code := range []int{429, 403, 500} {
		t.Run(fmt.Sprint(code), simulateFunc(func(t *testing.T, s *sim) {
			vm := s.addPod("virt-launcher", withGrace(3*time.Minute), withoutOwner)
			s.fault = func(c call) *fault {
				if c.verb == "evict" && c.UID == vm.UID {
					return &fault{err: &kubeapi.StatusError{
						Code: code, Message: `admission webhook "evict.kubevirt.io" denied the request: it is being moved`,
					}}
				}
				return nil
			}
			held := s.addPod("held", withLabel("app", "held"))
			b := s.addPDB("held", 1, 1, map[string]string{"app": "held"})
			s.changeAfter(10*time.Second, func() {
				b.minHealthy = 0
				s.wakeWatchers()
			})
			var free []*simPod
			for i := range 10 {
				free = append(free, s.addPod(fmt.Sprint("web-", i), withOwnController(i)))
			}
			began := time.Now()
			var last Progress
			r, err := runDrain(t, s, Options{TimeLimits: deadlineIn(10 * time.Minute), OnProgress: func(p Progress) {
				if time.Since(began) < 5*time.Second {
					last = p
				}
			}})
			checkOutcome(t, r, err, Drained)
			for _, p := range free {
				if got := podReportOf(t, r, p); got.Removal != Evicted || got.RemovalRequestedAt.Sub(began) > 3*time.Second {
					t.Errorf("%s: %s after %s", got.Name, got.Removal, got.RemovalRequestedAt.Sub(began))
				}
			}
			if got := podReportOf(t, r, held); got.Removal != Evicted || got.RemovalRequestedAt.Sub(began) > 12*time.Second {
				t.Errorf("%s: %s after %s", got.Name, got.Removal, got.RemovalRequestedAt.Sub(began))
			}
			if got := podReportOf(t, r, vm); got.Removal != ForceDeleted || got.RemovalRequestedAt.Sub(began) < 6*time.Minute {
				t.Errorf("%s: %s after %s", got.Name, got.Removal, got.RemovalRequestedAt.Sub(began))
			}
			if n := len(s.findRequests("evict", vm)); n > 400 {
				t.Errorf("the webhook was called %d times", n)
			}
			i := slices.IndexFunc(last.RemainingPods, func(b BlockedPod) bool { return b.Pod == "virt-launcher" })
			if i < 0 || !strings.Contains(last.RemainingPods[i].Detail, "evict.kubevirt.io") || last.RemainingPods[i].Reason != ObstacleWebhook {
				t.Errorf("the obstacle is not reported: %v", last.RemainingPods)
			}
		}))
	}
}
