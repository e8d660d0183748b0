package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
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
				check.Not(t, p.Removal != Evicted || len(p.Delays) > 0, "%s: %q with delays %v, want it evicted without any", p.Name, p.Removal, p.Delays)
			}
			if took := lastEvictionAfter(s, r); took > c.soon {
				t.Errorf("the last eviction was sent after %s, want %s at most", took, c.soon)
			}
			check.Not(t, s.conflicts > c.conflicts, "%d conflicts, want %d at most", s.conflicts, c.conflicts)
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
		// The list of pods, evictions while the PDBs are read, then the others.
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
			check.Is(t, Evicted, p.Removal, p.Name)
		}
		check.Not(t, s.conflicts >= 96, "%d conflicts, want less than one for each pod", s.conflicts)
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

func TestConcurrencyFollowsAPIServerSpeed(t *testing.T) {
	const pods = 60
	for _, c := range []struct {
		latency     time.Duration
		least, most int
		left        time.Duration
	}{
		{5 * time.Millisecond, 16, pods, 10 * time.Minute},
		{2 * time.Second, 1, initialConcurrency, 10 * time.Minute},
		{2 * time.Second, 32, pods, nearDeadline / 2}, // near the deadline the limit is ignored
	} {
		simulate(t, func(t *testing.T, s *sim) {
			s.latency = c.latency
			for i := range pods {
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
		check.Not(t, errors.Is(step.err, uncalled) && w.failing, "after answer %d the API server counts as failing", i)
	}
	for range 20 {
		answer(7*time.Second, time.Millisecond, nil)
	}
	check.Is(t, 8, w.current)
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
		check.Not(t, !slices.Equal(asked, byUID), "evicted in the order %v, want the order of UIDs", asked)
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
			check.Not(t, long[q.removal.UID] != (i < len(long)), "eviction %d of %d is of a pod with long grace: %t", i, len(worked), long[q.removal.UID])
		}
		check.Not(t, refused != 6 || len(worked) != 16, "%d refused, %d accepted", refused, len(worked))
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
