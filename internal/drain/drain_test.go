package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// deadlineIn returns terms with a deadline after d.
func deadlineIn(d time.Duration) TimeLimits { return TimeLimits{Deadline: time.Now().Add(d)} }

// runDrain runs a drain, checks each progress, and compares the report with what the API server did.
func runDrain(t *testing.T, s *sim, o Options) (Report, error) {
	t.Helper()
	_, wait := startDrain(t.Context(), t, s, o)
	return wait()
}

// startDrain starts a drain in the background and returns a function that waits for it.
func startDrain(ctx context.Context, t *testing.T, s *sim, o Options) (*Drain, func() (Report, error)) {
	t.Helper()
	o.Node = node
	seen := o.OnProgress
	checkProgress := newProgressChecker(t.Error)
	o.OnProgress = func(p Progress) {
		checkProgress(p)
		if seen != nil {
			seen(p)
		}
	}
	d := New(s, o)
	type result struct {
		r   Report
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := d.Run(ctx)
		done <- result{r, err}
	}()
	return d, func() (Report, error) {
		t.Helper()
		res := <-done
		check.NoError(t, s.compareReport(res.r, true))
		return res.r, res.err
	}
}

// newProgressChecker returns a function that checks each progress of one drain. It reports the first error only, and
// stops an engine that loops, because virtual time would not pass.
func newProgressChecker(complain func(...any)) func(Progress) {
	wrong := false
	var last time.Time
	times := 0
	return func(p Progress) {
		if err := checkProgressSums(p); err != nil && !wrong {
			wrong = true
			complain(err)
		}
		if now := time.Now(); now.Equal(last) {
			times++
		} else {
			last, times = now, 0
		}
		if times > 100_000 {
			panic(fmt.Sprintf("the engine spins: %s", p))
		}
	}
}

// checkProgressSums checks that the counts of a Progress are consistent.
func checkProgressSums(p Progress) error {
	switch {
	case p.Gone+p.Stopping+p.Waiting != p.Total:
		return fmt.Errorf("progress does not add up: %+v", p)
	case len(p.RemainingPods) != p.Stopping+p.Waiting:
		return fmt.Errorf("progress explains %d of %d pods: %+v", len(p.RemainingPods), p.Stopping+p.Waiting, p)
	case slices.ContainsFunc(p.RemainingPods, func(b BlockedPod) bool { return b.Reason == "" || b.Detail == "" || b.Since.IsZero() }):
		return fmt.Errorf("progress leaves a pod unexplained: %+v", p.RemainingPods)
	}
	return nil
}

// compareReport compares a report with what the API server and the kubelet recorded. If the watch loses events, the end
// of a pod may be unknown.
func (s *sim) compareReport(r Report, watched bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	worked, accepted, sent := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, q := range s.requests {
		if q.removal.DryRun {
			continue
		}
		key := q.verb + " " + q.removal.UID
		sent[key] = true
		if q.changedPod || q.err == nil {
			worked[key]++
		}
		if q.err == nil {
			accepted[key]++
		}
	}
	var errs []error
	for _, p := range r.Pods {
		bad := func(format string, a ...any) {
			errs = append(errs, fmt.Errorf("report of %s: %s: %+v", p.Name, fmt.Sprintf(format, a...), p))
		}
		was := s.pods[p.UID]
		evictions, deletions := worked["evict "+p.UID], worked["delete "+p.UID]
		seen := watched && !was.deletedByOther // otherwise a lost answer may be counted as an eviction
		switch p.Removal {
		case Evicted:
			if evictions == 0 && (seen || !sent["evict "+p.UID]) {
				bad("says evicted, and no eviction was accepted")
			}
		case ForceDeleted, DeletedOnRequest, GraceShortened:
			if deletions == 0 && (seen || !sent["delete "+p.UID]) {
				bad("says %s, and no deletion was accepted", p.Removal)
			}
		default:
			if evictions+deletions > 0 && p.UnansweredRequest == NotRemoved {
				bad("does not match the requests: %d evictions, %d deletions", evictions, deletions)
			}
		}
		if accepted["evict "+p.UID] > 1 {
			bad("evicted more than once")
		}
		if p.End == StillPresent || p.Decision.Rule == podrules.RuleFinished {
			continue
		}
		if !was.gone || p.End != was.end && (watched || p.End != Vanished) {
			bad("the pod ended %q, gone: %t", was.end, was.gone)
		}
		if watched && p.Removal != NotRemoved && p.GivenGraceSeconds != int64(was.givenGrace/time.Second) {
			bad("the pod was given %s", was.givenGrace)
		}
	}
	return errors.Join(errs...)
}

func podReportOf(t *testing.T, r Report, p *simPod) PodReport {
	t.Helper()
	i := slices.IndexFunc(r.Pods, func(q PodReport) bool { return q.UID == p.UID })
	if i < 0 {
		t.Fatalf("no report for pod %s", p.Name)
	}
	return r.Pods[i]
}

func podReportNamed(t *testing.T, r Report, name string) PodReport {
	t.Helper()
	i := slices.IndexFunc(r.Pods, func(q PodReport) bool { return q.Name == name })
	must.Not(t, i < 0, "no report for pod %s", name)
	return r.Pods[i]
}

func checkOutcome(t *testing.T, r Report, err error, want Outcome) {
	t.Helper()
	if r.Outcome != want || (err == nil) != (want == Drained) {
		t.Fatalf("outcome %q, error %v, want %q; %s", r.Outcome, err, want, r.JSON())
	}
}

// runDrainTo runs a drain and checks its outcome.
func runDrainTo(t *testing.T, s *sim, want Outcome, o Options) Report {
	t.Helper()
	r, err := runDrain(t, s, o)
	checkOutcome(t, r, err, want)
	return r
}

func checkTookUpTo(t *testing.T, r Report, most time.Duration) {
	t.Helper()
	if took := r.EndedAt.Sub(r.StartedAt); took > most {
		t.Errorf("took %s, want up to %s", took, most)
	}
}

func checkTookAbout(t *testing.T, r Report, want time.Duration) {
	t.Helper()
	if took := r.EndedAt.Sub(r.StartedAt); took < want-100*time.Millisecond || took > want+500*time.Millisecond {
		t.Errorf("took %s, want about %s", took, want)
	}
}

func TestPodsAreEvictedAtOnceAndAwaited(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		quick := s.addPod("quick")
		stubborn := s.addPod("stubborn", withStopTime(never), withGrace(20*time.Second))
		s.addPod("agent", withOwner("DaemonSet"))
		r := runDrainTo(t, s, Drained, Options{})
		checkTookAbout(t, r, 20*time.Second)
		if p := podReportOf(t, r, quick); p.End != Stopped || p.Removal != Evicted || p.Owner != "ReplicaSet/owner" {
			t.Errorf("quick: %+v", p)
		}
		if p := podReportOf(t, r, stubborn); p.End != Killed || p.WasCutShort() || p.GivenGraceSeconds != 20 {
			t.Errorf("stubborn: %+v", p)
		}
		if want := "2 gone, 0 remaining, 1 skipped"; !strings.Contains(r.Summary(), want) {
			t.Errorf("summary %q, want %q in it", r.Summary(), want)
		}
	})
}

func TestEmptyNodeIsDrainedAfterFinalList(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		r := runDrainTo(t, s, Drained, Options{})
		checkTookAbout(t, r, lateBindWait)
	})
}

func TestI2VoluntaryDrainNeverForcesDeletion(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web")
		r, err := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(2 * time.Minute)}})
		checkOutcome(t, r, err, TimedOut)
		checkTookAbout(t, r, 2*time.Minute)
		s.checkRequestCount(t, "delete", 0)
		if p := podReportOf(t, r, web); p.Removal != NotRemoved || p.End != StillPresent || !p.IsNotRemoved() {
			t.Errorf("%+v", p)
		}
		var unfinished *UnfinishedError
		if !errors.As(err, &unfinished) || len(unfinished.Blocked) != 1 || unfinished.Blocked[0].PDB != "shop/web" ||
			!strings.Contains(err.Error(), "budget web allows 0 disruptions: 1 of 1 pods are healthy, 1 must be") {
			t.Errorf("the error does not name the PDB and its numbers: %v", err)
		}
	})
}

func TestI2ForcedDeletionComesAtThePlannedTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web", withGrace(30*time.Second), withStopTime(10*time.Second))
		var log bytes.Buffer
		began := time.Now()
		r := runDrainTo(t, s, Drained, Options{
			TimeLimits: TimeLimits{Deadline: began.Add(2 * time.Minute), Margin: 2 * time.Second},
			Logger:     slog.New(slog.NewTextHandler(&log, nil)),
		})
		deletes := s.findRequests("delete", nil)
		if len(deletes) != 1 || deletes[0].at.Sub(began) != 87*time.Second {
			t.Fatalf("deletions %v, want one, 30 s plus 1 s of rounding plus the margin before the deadline", deletes)
		}
		p := podReportOf(t, r, web)
		if p.Removal != ForceDeleted || p.GivenGraceSeconds != 30 || p.End != Stopped || len(p.Delays) != 1 || p.Delays[0].Reason != ObstaclePDB {
			t.Errorf("%+v", p)
		}
		check.Contains(t, r.Summary(), "1 deleted despite a disruption budget")
		check.Contains(t, log.String(), "pod=shop/web", "deleted although its eviction is blocked")
	})
}

func TestLateForcedDeletionGrantsTheFullGrace(t *testing.T) {
	since := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	terms := TimeLimits{Deadline: since.Add(2 * time.Minute), Margin: 2 * time.Second}
	for _, wanted := range []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, 58 * time.Second} {
		for _, late := range []time.Duration{0, time.Millisecond, 700 * time.Millisecond} {
			now := forcedDeletionTime(wanted, terms, since).Add(late)
			check.Is(t, wanted, capGrace(wanted, terms, now), late)
		}
	}
}

func TestI2ShortNoticeIsSharedByPDBAndGrace(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web", withGrace(30*time.Second), withStopTime(never))
		began := time.Now()
		r := runDrainTo(t, s, Drained, Options{TimeLimits: TimeLimits{Deadline: began.Add(30 * time.Second), Margin: 2 * time.Second}})
		check.Is(t, 14*time.Second, s.findRequests("delete", web)[0].at.Sub(began))
		if p := podReportOf(t, r, web); p.GivenGraceSeconds != 14 || !p.WasCutShort() {
			t.Errorf("%+v", p)
		}
	})
}

// TestW07M07BlockedPDBIsRetriedWithBackoff covers a fault of k8s.io/kubectl/pkg/drain: after a denial it retries at
// once, and for every pod separately.
func TestW07M07BlockedPDBIsRetriedWithBackoff(t *testing.T) {
	for _, c := range []struct {
		name  string
		pods  int
		terms TimeLimits
		most  int
	}{
		// 0, .2, .6, 1.4, 3, 6.2 s, then each 5 s; each pause starts with the answer.
		{"voluntary", 1, TimeLimits{}, 16},
		// 0, .2, .6 s, then each second.
		{"forced", 1, TimeLimits{Deadline: time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)}, 63},
		// At most these are sent before the first denial and the list of PDBs are answered.
		{"voluntary, 1000 pods", 1000, TimeLimits{}, 16 + 3*32},
		{"forced, 1000 pods", 1000, TimeLimits{Deadline: time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)}, 63 + 3*32},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPods(c.pods, "web-%d", withLabel("app", "web"))
			s.addPDB("web", int32(c.pods), int32(c.pods), map[string]string{"app": "web"})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, wait := startDrain(ctx, t, s, Options{TimeLimits: c.terms})
			r, err := wait()
			checkOutcome(t, r, err, Cancelled)
			n := len(s.findRequests("evict", nil))
			check.Not(t, n > c.most || n < 15, "%d evictions in a minute, want 15 to %d", n, c.most)
			check.Not(t, s.calls["budgets"] > 7, "%d lists of budgets in a minute", s.calls["budgets"])
		}))
	}
}

func TestUnblockedPodIsEvictedBesideAThousandBlocked(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(1000, "a-blocked-%04d", withLabel("app", "web"), withGrace(time.Minute))
		s.addPDB("web", 1000, 1000, map[string]string{"app": "web"})
		free := s.addPod("z-free", withGrace(time.Second), withStopTime(time.Millisecond))
		r := runDrainTo(t, s, TimedOut, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(10 * time.Second)}})
		if p := podReportOf(t, r, free); p.RemovalRequestedAt.Sub(r.StartedAt) > 500*time.Millisecond {
			t.Errorf("evicted after %s", p.RemovalRequestedAt.Sub(r.StartedAt))
		}
		check.Not(t, s.maxInFlight > 32, "%d requests at once", s.maxInFlight)
	})
}

func TestUnreadyPodsAreEvictedWhileReadyPodsAreBlocked(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("a-ready", withLabel("app", "web"), withGrace(time.Minute))
		sick := s.addPod("b-sick", withLabel("app", "web"), asNotReady, withStopTime(0))
		pending := s.addPod("c-pending", withLabel("app", "web"), asNotReady, withPhase("Pending"), withStopTime(0))
		s.addPDB("web", 1, 3, map[string]string{"app": "web"})
		r := runDrainTo(t, s, TimedOut, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(20 * time.Second)}})
		for _, p := range []*simPod{sick, pending} {
			if q := podReportOf(t, r, p); q.Removal != Evicted || q.RemovalRequestedAt.Sub(r.StartedAt) > time.Second {
				t.Errorf("%+v", q)
			}
		}
	})
}

func TestArrivingUnreadyPodIsEvictedWhileReadyPodsBlocked(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("ready", withLabel("app", "web"))
		s.addPDB("web", 1, 1, map[string]string{"app": "web"}).alwaysAllowUnhealthy = true
		arrives := 27 * time.Second
		time.AfterFunc(arrives, func() { s.addPod("sick", withLabel("app", "web"), asNotReady, withStopTime(0)) })
		r := runDrainTo(t, s, TimedOut, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(40 * time.Second)}})
		p := podReportNamed(t, r, "sick")
		if waited := p.RemovalRequestedAt.Sub(r.StartedAt) - arrives; p.Removal != Evicted || waited > 100*time.Millisecond {
			t.Errorf("evicted after %s: %+v", waited, p)
		}
	})
}

func TestPodsOfBlockedPDBSendNoEvictions(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("first", withLabel("app", "a"))
		s.addPDB("a", 1, 1, map[string]string{"app": "a"})
		s.addPDB("b", 1000, 1000, map[string]string{"app": "b"})
		time.AfterFunc(2*time.Second, func() { // by then the namespace's PDBs are known
			s.addPods(500, "b-%d", withLabel("app", "b"))
		})
		_, err := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(10 * time.Second)}})
		if n := len(s.findRequests("evict", nil)); n > 32+2*10 || err == nil {
			t.Errorf("%d evictions", n)
		}
	})
}

func TestOpenedPDBIsRetriedQuickly(t *testing.T) {
	for _, c := range []struct {
		name          string
		pods, healthy int // minimum of healthy pods after the change
		most          time.Duration
	}{
		{"for all pods at once", 100, 0, 10 * time.Second},
		{"for one pod at a time", 10, 9, 25 * time.Second}, // not 5 s for each pod
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPods(c.pods, "web-%d", withLabel("app", "web"), withTwin(twinNewName, time.Second))
			b := s.addPDB("web", int32(c.pods), int32(c.pods), map[string]string{"app": "web"})
			s.changeAfter(time.Minute, func() { b.minHealthy = int32(c.healthy) })
			checkTookUpTo(t, runDrainTo(t, s, Drained, Options{}), time.Minute+c.most)
		}))
	}
}

func TestI2DueForcedDeletionWaitsForNoOtherPod(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(200, "web-%d", withLabel("app", "web"), withGrace(time.Second))
		s.addPDB("web", 200, 200, map[string]string{"app": "web"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute), MaxInFlight: 2})
		for _, p := range r.Pods {
			must.Not(t, p.Removal != ForceDeleted || len(p.Delays) == 0, "%+v", p)
		}
	})
}

func TestFailingPodDoesNotDelayOthers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("a", withGrace(time.Hour))
		b := s.addPod("b", withStopTime(0))
		// a webhook that always denies the eviction of a
		s.failWhen(fault{err: &kubeapi.StatusError{Code: 500, Reason: "InternalError", Message: "webhook failed"}}, func(c call) bool {
			return c.verb == "evict" && (c.Name == "a" || c.n < 4)
		})
		r, _ := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(30 * time.Second)}})
		if p := podReportOf(t, r, b); p.End != Stopped {
			t.Errorf("b was never evicted: %+v", p)
		}
	})
}

func TestSameNamedReplacementIsNeverEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		db := s.addPod("db-0", withOwner("StatefulSet"), withLabel("app", "db"), withStopTime(0), withTwin(twinSameName, time.Second))
		s.addPDB("db", 1, 1, map[string]string{"app": "db"})
		s.watchLag = 3 * time.Second // the watch is late
		s.changeAfter(2*time.Second, func() {
			_, _ = s.deletePod(db, kubeapi.PodRemoval{UID: db.UID})
			s.pdbs = nil // the replacement is not blocked
		})
		runDrainTo(t, s, Drained, Options{})
		twin := s.findPod("shop", "db-0")
		must.Not(t, twin == nil || twin.UID == db.UID || twin.DeletionTimestamp != nil, "the replacement was evicted: %+v", twin)
		for _, q := range s.findRequests("evict", nil) {
			check.Not(t, q.removal.UID != db.UID, "eviction of UID %s", q.removal.UID)
		}
	})
}

func TestI7FailedOrShortListNeverDrainsANode(t *testing.T) {
	for _, c := range []struct {
		name  string
		terms func() TimeLimits
		want  Outcome
	}{
		{"voluntary", func() TimeLimits { return TimeLimits{TimeoutAt: time.Now().Add(10 * time.Second)} }, TimedOut},
		{"forced", func() TimeLimits { return deadlineIn(10 * time.Second) }, DeadlinePassed},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPod("web")
			cut := errors.New("answer ended early")
			s.failAll("list", fault{err: cut})
			r, err := runDrain(t, s, Options{TimeLimits: c.terms()})
			checkOutcome(t, r, err, c.want)
			check.Not(t, !errors.Is(err, cut) || !strings.Contains(err.Error(), "before its pods could be listed"), "error: %v", err)
		}))
	}
}

func TestI7LateOrBrokenWatchNeverDrainsANode(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.watchLag = 3 * time.Second
		s.addPod("first", withStopTime(0))
		time.AfterFunc(400*time.Millisecond, func() { s.addPod("late", withStopTime(5*time.Second)) })
		r := runDrainTo(t, s, Drained, Options{})
		if left := s.countRemainingPods(); left != 0 || len(r.Pods) != 2 {
			t.Errorf("drained with %d pods left, report of %d", left, len(r.Pods))
		}
	})
	simulate(t, func(t *testing.T, s *sim) {
		var broken atomic.Bool
		s.watchLifetime = func(int) (time.Duration, bool) { return 200 * time.Millisecond, true }
		s.failWhen(fault{err: errors.New("no route to host")}, func(c call) bool { return c.verb == "list" && broken.Load() })
		time.AfterFunc(100*time.Millisecond, func() { broken.Store(true) })
		time.AfterFunc(250*time.Millisecond, func() { s.addPod("unseen") })
		runDrainTo(t, s, TimedOut, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(20 * time.Second)}})
	})
}

func TestI7PDBNotFoundDoesNotMeanPodGone(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web")
		// the PDB was deleted during the request
		s.failWhen(fault{err: newNotFound("poddisruptionbudgets.policy", "web")}, func(c call) bool {
			return c.verb == "evict" && c.n == 0
		})
		r := runDrainTo(t, s, Drained, Options{})
		if p := podReportOf(t, r, web); p.Removal != Evicted || p.End != Stopped {
			t.Errorf("%+v", p)
		}
	})
}

func TestWavesAreStrictWhenThereIsTime(t *testing.T) {
	for _, forced := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			web := s.addPod("web", withStopTime(20*time.Second))
			dns := s.addPod("dns", withPriority(2_000_000_000), withStopTime(time.Second))
			var terms TimeLimits
			if forced {
				terms = deadlineIn(10 * time.Minute)
			}
			r := runDrainTo(t, s, Drained, Options{TimeLimits: terms})
			if first, second := podReportOf(t, r, web), podReportOf(t, r, dns); second.RemovalRequestedAt.Before(first.EndedAt) || second.Wave != 1 {
				t.Errorf("forced %t: dns evicted at %s, web gone at %s", forced, second.RemovalRequestedAt, first.EndedAt)
			}
		})
	}
}

func TestWavesOverlapWhenTimeIsShort(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web", withStopTime(never), withGrace(time.Minute))
		dns := s.addPod("dns", withPriority(2_000_000_000), withStopTime(time.Second), withGrace(10*time.Second))
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
		// 10 s for dns to stop, and a quarter of 30 s for PDBs.
		check.Is(t, 12500*time.Millisecond, podReportOf(t, r, dns).RemovalRequestedAt.Sub(r.StartedAt))
		if p := podReportOf(t, r, web); p.End != Killed || p.EndedAt.After(r.Deadline) {
			t.Errorf("web: %+v", p)
		}
	})
}

func TestCallerCanSetWaveBoundaries(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		low, mid, high := s.addPod("low", withPriority(-5)), s.addPod("mid", withPriority(100)), s.addPod("high", withPriority(2_000_001_000))
		r := runDrainTo(t, s, Drained, Options{WaveBoundaries: []int32{0, 1000}})
		for i, p := range []*simPod{low, mid, high} {
			if q := podReportOf(t, r, p); q.Wave != i || q.EndedAt.Sub(r.StartedAt) < time.Duration(i+1)*2*time.Second {
				t.Errorf("%s: wave %d, gone after %s", p.Name, q.Wave, q.EndedAt.Sub(r.StartedAt))
			}
		}
		one, _ := runDrain(t, newSim(), Options{WaveBoundaries: []int32{}})
		check.Is(t, Drained, one.Outcome)
	})
}

func TestLongestGraceIsEvictedFirst(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		for i := range 10 {
			s.addPod(fmt.Sprintf("p-%d", i), withGrace(time.Duration(10+i)*time.Second))
		}
		runDrainTo(t, s, Drained, Options{MaxInFlight: 1, TimeLimits: deadlineIn(time.Minute)})
		for i, q := range s.findRequests("evict", nil) {
			if want := fmt.Sprintf("p-%d", 9-i); q.removal.Name != want {
				t.Errorf("eviction %d is %s, want %s", i, q.removal.Name, want)
			}
		}
	})
}

func TestGraceOfCenturiesIsCapped(t *testing.T) {
	for _, seconds := range []int64{9_223_372_037, 9_999_999_999, math.MaxInt64} {
		simulate(t, func(t *testing.T, s *sim) {
			p := s.addPod("web", withStopTime(10*time.Second), func(p *simPod) { p.Spec.TerminationGracePeriodSeconds = &seconds })
			r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(30 * time.Second)})
			if got := podReportOf(t, r, p); got.End != Stopped || got.GivenGraceSeconds != 29 {
				t.Errorf("grace %d: %s, given %d s of 30", seconds, got.End, got.GivenGraceSeconds)
			}
		})
	}
}

func TestGraceIsCappedToTheTimeLeft(t *testing.T) {
	for _, c := range []struct {
		name                     string
		wanted, deadline, margin time.Duration
		want                     int64 // -1: not sent
	}{
		{"there is time", 30 * time.Second, time.Minute, 0, -1},
		{"less time than wanted", 30 * time.Second, 20 * time.Second, 2 * time.Second, 17},
		{"the pod wants no grace", 0, 20 * time.Second, 0, -1},
		{"almost none left", 30 * time.Second, time.Second, 0, 1},
		{"margin longer than what is left", 30 * time.Second, 5 * time.Second, time.Minute, 1},
		{"deadline in the past margin", 30 * time.Second, 3 * time.Second, 3 * time.Second, 1},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			p := s.addPod("web", withGrace(c.wanted), withStopTime(0))
			_, _ = runDrain(t, s, Options{TimeLimits: TimeLimits{Deadline: time.Now().Add(c.deadline), Margin: c.margin}})
			asked := s.findRequests("evict", p)
			must.Not(t, len(asked) != 1, "%d evictions", len(asked))
			switch g := asked[0].removal.GracePeriodSeconds; {
			case c.want < 0 && g != nil:
				t.Errorf("grace %d sent", *g)
			case c.want >= 0 && (g == nil || *g != c.want):
				t.Errorf("grace %v sent, want %d", g, c.want)
			}
		}))
	}
}

func TestUserGraceReplacesPodGrace(t *testing.T) {
	for _, seconds := range []int64{0, 1, 90} {
		simulate(t, func(t *testing.T, s *sim) {
			p := s.addPod("web", withStopTime(never))
			r := runDrainTo(t, s, Drained, Options{GraceSeconds: &seconds})
			if g := s.findRequests("evict", p)[0].removal.GracePeriodSeconds; g == nil || *g != seconds {
				t.Errorf("grace %v, want %d", g, seconds)
			}
			if q := podReportOf(t, r, p); q.WantedGraceSeconds != seconds || (seconds == 0) != (q.End == Vanished) {
				t.Errorf("%+v", q)
			}
		})
	}
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("web")
		_, _ = runDrain(t, s, Options{GraceSeconds: ptr(int64(-1))})
		if g := s.findRequests("evict", p)[0].removal.GracePeriodSeconds; g != nil && *g != 30 {
			t.Errorf("-1 keeps the pod's own grace; sent %d", *g)
		}
	})
}

func TestI8DrainStartedAfterItsTimeoutFindsNodeEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		pods    int
		list    *fault
		outcome Outcome
		takes   time.Duration
		detail  string
	}{
		"empty node":  {outcome: Drained, takes: lateBindWait},
		"pods remain": {pods: 2, outcome: TimedOut, detail: "gave-up with 2 pods left: shop/web-0"},
		"no answer":   {list: &fault{hang: true}, outcome: TimedOut, takes: emptyCheckTime, detail: "no answer from the API server"},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPods(c.pods, "web-%d")
			s.fault = func(r call) *fault {
				if r.verb == "list" {
					return c.list
				}
				return nil
			}
			r, err := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(-time.Minute)}})
			checkOutcome(t, r, err, c.outcome)
			checkTookAbout(t, r, c.takes)
			s.checkRequestCount(t, "evict", 0)
			if c.detail != "" {
				check.ErrorContains(t, err, c.detail)
			}
		}))
	}
}

func TestPassedDeadlineEndsDrainAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web")
		r := runDrainTo(t, s, DeadlinePassed, Options{TimeLimits: deadlineIn(-time.Minute)})
		checkTookAbout(t, r, 0)
	})
}

func TestEarlierDeadlineShortensStoppingPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		slow := s.addPod("slow", withGrace(10*time.Minute), withStopTime(never))
		nice := s.addPod("nice", withGrace(10*time.Minute), withStopTime(2*time.Minute+20*time.Second))
		d, wait := startDrain(t.Context(), t, s, Options{TimeLimits: deadlineIn(15 * time.Minute)})
		time.Sleep(2 * time.Minute)
		end := time.Now().Add(30 * time.Second)
		d.SetTimeLimits(TimeLimits{Deadline: end.Add(2 * time.Second), Margin: 2 * time.Second})
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		// A request for "25 seconds" would count from the deletion 2 minutes ago and kill both pods at once.
		if p := podReportOf(t, r, nice); p.End != Stopped {
			t.Errorf("nice was killed with time left: %+v", p)
		}
		p := podReportOf(t, r, slow)
		if p.End != Killed || p.EndedAt.Before(end.Add(-time.Second)) || p.EndedAt.After(end.Add(time.Second)) || !p.WasCutShort() {
			t.Errorf("slow: %+v, want it killed at %s", p, end)
		}
		s.checkRequestCount(t, "delete", 1)
	})
}

func TestLaterDeadlineLetsPodsWaitAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web", withGrace(30*time.Second))
		began := time.Now()
		d, wait := startDrain(t.Context(), t, s, Options{TimeLimits: deadlineIn(time.Minute)})
		time.Sleep(25 * time.Second)
		d.SetTimeLimits(TimeLimits{Deadline: began.Add(10 * time.Minute)})
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		check.Is(t, 9*time.Minute+29*time.Second, s.findRequests("delete", web)[0].at.Sub(began))
		check.Not(t, !r.Deadline.Equal(began.Add(10*time.Minute)), "report's deadline: %s", r.Deadline)
	})
}

func TestSettingSameTermsChangesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web", withGrace(30*time.Second), withStopTime(never))
		terms := deadlineIn(30 * time.Second)
		began := time.Now()
		d, wait := startDrain(t.Context(), t, s, Options{TimeLimits: terms})
		go func() {
			for range 30 {
				time.Sleep(time.Second)
				d.SetTimeLimits(terms)
			}
		}()
		_, _ = wait()
		check.Is(t, 15*time.Second, s.findRequests("delete", web)[0].at.Sub(began))
		time.Sleep(time.Minute)
	})
}

func TestVoluntaryDrainThatBecomesForcedEvictsEveryPod(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web")
		d, wait := startDrain(t.Context(), t, s, Options{})
		time.Sleep(10 * time.Minute)
		d.SetTimeLimits(deadlineIn(time.Minute))
		synctest.Wait()
		bare := s.addPod("bare", withoutOwner)
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		if p := podReportOf(t, r, web); p.Removal != ForceDeleted {
			t.Errorf("web: %+v", p)
		}
		if p := podReportOf(t, r, bare); p.Removal != Evicted {
			t.Errorf("bare: %+v", p)
		}
	})
}

func TestCancellationStopsAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addBlockedPod("web")
		s.addPod("slow", withStopTime(never), withGrace(time.Hour))
		reason := errors.New("the event was cancelled")
		ctx, cancel := context.WithCancelCause(t.Context())
		_, wait := startDrain(ctx, t, s, Options{TimeLimits: deadlineIn(10 * time.Minute)})
		time.Sleep(5 * time.Second)
		cancel(reason)
		r, err := wait()
		checkOutcome(t, r, err, Cancelled)
		checkTookAbout(t, r, 5*time.Second)
		check.Not(t, !errors.Is(err, reason), "error %v", err)
		n := len(s.findRequests("", nil))
		time.Sleep(time.Hour)
		check.Not(t, len(s.findRequests("", nil)) != n, "requests after the cancellation")
	})
}

func TestCancelledDrainReportsUnansweredRequests(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web")
		s.failAll("evict", fault{hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, wait := startDrain(ctx, t, s, Options{})
		r, err := wait()
		checkOutcome(t, r, err, Cancelled)
		if p := podReportOf(t, r, web); p.UnansweredRequest != Evicted || p.Removal != NotRemoved || len(p.Delays) != 0 {
			t.Errorf("%+v", p)
		}
	})
}

func TestEvictionWithLostAnswerIsReported(t *testing.T) {
	for _, f := range []fault{
		{tookEffect: true, err: errors.New("connection reset by peer")},
		{tookEffect: true, err: &kubeapi.StatusError{Code: 504, Reason: "Timeout"}},
		{tookEffect: true, hang: true},
	} {
		simulate(t, func(t *testing.T, s *sim) {
			web := s.addPod("web", withStopTime(time.Minute), withGrace(2*time.Minute))
			s.failWhen(f, func(c call) bool { return c.verb == "evict" && c.n == 0 })
			r := runDrainTo(t, s, Drained, Options{})
			if p := podReportOf(t, r, web); p.Removal != Evicted || p.UnansweredRequest != NotRemoved {
				t.Errorf("%+v", p)
			}
			s.checkRequestCount(t, "evict", 1)
		})
	}
}

func TestPodGoneBeforeAnswerCountsAsEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web", withStopTime(0))
		s.fault = func(c call) *fault {
			if c.verb == "evict" {
				go func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					_, _ = s.deleteEvicted(web, c.PodRemoval)
				}()
				return &fault{hang: true}
			}
			return nil
		}
		d := New(s, Options{Node: node})
		r, err := d.Run(t.Context())
		checkOutcome(t, r, err, Drained)
		checkTookAbout(t, r, lateBindWait)
		if p := podReportOf(t, r, web); p.Removal != Evicted {
			t.Errorf("%+v", p)
		}
	})
}

func TestMultiplePDBsOnPodAreExplained(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(100, "web-%d", withLabel("app", "web"))
		s.addPDB("all", 0, 1, nil)
		s.addPDB("web", 0, 1, map[string]string{"app": "web"})
		r, err := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(time.Minute)}})
		checkOutcome(t, r, err, TimedOut)
		check.ErrorContains(t, err, "selected by 2 disruption budgets (all, web)", "make their selectors disjoint")
		s.checkMaxRequestCount(t, "evict", 3*32+10)
	})
}

func TestPDBThatNeverAllowsEvictionsIsNamed(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addBlockedPod("web")
		s.addPod("db", withLabel("app", "db"))
		s.addPDB("db", 1, 2, map[string]string{"app": "db"}) // one of two pods is down: waiting helps
		_, err := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(time.Minute)}})
		var u *UnfinishedError
		if !errors.As(err, &u) || len(u.Blocked) != 2 {
			t.Fatal(err)
		}
		if strings.Contains(u.Blocked[0].Detail, "never") || !strings.Contains(u.Blocked[1].Detail, "never allows an eviction") {
			t.Errorf("db: %s; web: %s", u.Blocked[0].Detail, u.Blocked[1].Detail)
		}
	})
}

func TestUnreadPDBIsNamedFromDenial(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(50, "web-%d", withLabel("app", "web"))
		s.addPDB("web", 50, 50, map[string]string{"app": "web"})
		s.failAll("budgets", fault{err: newForbidden("cannot list poddisruptionbudgets")})
		_, err := runDrain(t, s, Options{TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(time.Minute)}})
		check.ErrorContains(t, err, "The disruption budget web needs 50 healthy pods and has 50 currently")
		s.checkMaxRequestCount(t, "evict", 50+16)
	})
}

func TestOpeningPDBIsUsedAtOnceWithoutForce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		const ready = 3700 * time.Millisecond
		s.addPods(5, "web-%d", withLabel("app", "web"), withStopTime(0), withTwin(twinNewName, ready))
		s.addPDB("web", 4, 5, map[string]string{"app": "web"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(5 * time.Minute)})
		s.checkRequestCount(t, "delete", 0)
		var at []time.Time
		for _, p := range r.Pods {
			at = append(at, p.RemovalRequestedAt)
		}
		slices.SortFunc(at, time.Time.Compare)
		for i := 1; i < len(at); i++ {
			if waited := at[i].Sub(at[i-1]); waited > ready+100*time.Millisecond {
				t.Errorf("eviction %d was sent %s after the last, although its replacement was ready after %s", i, waited, ready)
			}
		}
	})
}

func TestDeletedPDBUnblocksItsPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(50, "web-%d", withLabel("app", "web"))
		s.addPDB("web", 50, 50, map[string]string{"app": "web"})
		s.changeAfter(30*time.Second, func() {
			s.pdbs = nil
			s.wakeWatchers()
		})
		r := runDrainTo(t, s, Drained, Options{})
		checkTookUpTo(t, r, 35*time.Second)
	})
}

func TestPodsArrivingDuringDrainAreEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web", withStopTime(20*time.Second))
		time.AfterFunc(10*time.Second, func() { s.addPod("late", withStopTime(20*time.Second)) })
		r := runDrainTo(t, s, Drained, Options{})
		if p := podReportNamed(t, r, "late"); p.Removal != Evicted || p.End != Stopped {
			t.Errorf("%+v", p)
		}
		checkTookAbout(t, r, 30*time.Second)
	})
}

func TestDrainedNodeEvictsLateArrivals(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web", withStopTime(20*time.Second))
		s.addPod("agent", withOwner("DaemonSet"))
		var told []string
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{
			OnDrained: func(r Report) {
				told = append(told, fmt.Sprintf("%.0fs %s", time.Since(began).Seconds(), r.Summary()))
			},
			OnPodArrived: func() { told = append(told, fmt.Sprintf("%.0fs late", time.Since(began).Seconds())) },
		}
		time.AfterFunc(time.Minute, func() { s.addPod("late", withStopTime(20*time.Second)) })
		time.AfterFunc(2*time.Minute, func() { s.addPod("another-agent", withOwner("DaemonSet")) })
		time.AfterFunc(time.Hour, cancel)
		_, wait := startDrain(ctx, t, s, o)
		r, err := wait()
		check.Not(t, !errors.Is(err, context.Canceled) || r.Outcome != Cancelled, "outcome %q, error %v", r.Outcome, err)
		want := []string{
			"20s node-1: drained after 20.0s: 1 gone, 0 remaining, 1 skipped", "60s late",
			"80s node-1: drained after 20.0s: 1 gone, 0 remaining, 1 skipped",
		}
		check.Not(t, !slices.Equal(told, want), "reported %q, want %q", told, want)
	})
}

func TestArrivingProtectedPodStopsAVoluntaryDrain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web", withStopTime(20*time.Second))
		time.AfterFunc(10*time.Second, func() { s.addPod("late", withAnnotation(drainability.DoNotEvict, "true")) })
		r, err := runDrain(t, s, Options{})
		checkOutcome(t, r, err, RefusedByPolicy)
		checkTookAbout(t, r, 10*time.Second)
		var refused *RefusedError
		check.Not(t, !errors.As(err, &refused) || len(refused.Pods) != 1 || refused.Pods[0].Name != "late", "%v", err)
	})
}

func TestRefusedVoluntaryDrainEvictsNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web")
		s.addPod("bare", withoutOwner)
		s.addPod("cache", withEmptyDir)
		r, err := runDrain(t, s, Options{})
		checkOutcome(t, r, err, RefusedByPolicy)
		s.checkRequestCount(t, "evict", 0)
		for _, want := range []string{"2 pods", "shop/bare (unmanaged: has no controller that would recreate it)", "shop/cache (local-storage: keeps data in emptyDir scratch)"} {
			check.ErrorContains(t, err, want)
		}
	})
}

func TestExpiringProtectionIsAwaitedByPolicy(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		job := s.addPod("job", withAnnotation(drainability.DoNotDisrupt, "10m"))
		policy := podrules.VoluntaryPolicy().WithAction(podrules.RuleProtected, podrules.AwaitTermination)
		r := runDrainTo(t, s, Drained, Options{Policy: &policy})
		if p := podReportOf(t, r, job); p.Removal != Evicted || p.RemovalRequestedAt.Sub(r.StartedAt) < 10*time.Minute || p.RemovalRequestedAt.Sub(r.StartedAt) > 10*time.Minute+time.Second {
			t.Errorf("%+v", p)
		}
	})
}

func TestProtectionExpiringDuringEvictionChangesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		job := s.addPod("job", withAnnotation(drainability.DoNotDisrupt, "10s"), withStopTime(20*time.Second))
		s.latency = 8 * time.Second
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute)})
		if p := podReportOf(t, r, job); p.Decision.Rule != podrules.RuleProtected || p.End != Stopped {
			t.Errorf("%+v", p)
		}
	})
}

func TestUnprotectedPodIsEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		job := s.addPod("job", withAnnotation(drainability.SafeToEvict, "false"))
		policy := podrules.VoluntaryPolicy().WithAction(podrules.RuleProtected, podrules.AwaitTermination)
		time.AfterFunc(time.Minute, func() { s.addOrUpdatePod(job, func(p *simPod) { p.Annotations = nil }) })
		r := runDrainTo(t, s, Drained, Options{Policy: &policy})
		checkTookAbout(t, r, time.Minute+2*time.Second)
	})
}

func TestTerminatingPodGraceEndsAtDeadline(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("slow", withStopTime(never), withGrace(time.Hour), asDeleted(10*time.Minute, time.Hour))
		r := runDrainTo(t, s, Drained, Options{TimeLimits: TimeLimits{Deadline: time.Now().Add(time.Minute), Margin: 2 * time.Second}})
		q := podReportOf(t, r, p)
		check.Not(t, q.Removal != GraceShortened || q.Decision.Rule != podrules.RuleTerminating || q.End != Killed, "%+v", q)
		checkTookAbout(t, r, 58*time.Second)
	})
	simulate(t, func(t *testing.T, s *sim) { // a voluntary drain does not shorten the grace
		s.addPod("slow", withStopTime(never), withGrace(time.Hour), asDeleted(10*time.Minute, time.Hour))
		r := runDrainTo(t, s, Drained, Options{})
		checkTookAbout(t, r, 50*time.Minute)
		check.Is(t, 0, len(s.findRequests("", nil)))
	})
}

func TestForbiddenDeletionFallsBackToEviction(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web", withLabel("app", "web"), withGrace(30*time.Second), withTwin(twinNewName, time.Second))
		b := s.addPDB("web", 1, 1, map[string]string{"app": "web"})
		s.failAll("delete", fault{err: newForbidden(`pods "web" is forbidden: User "agent" cannot delete resource "pods"`)})
		s.changeAfter(40*time.Second, func() { b.minHealthy = 0 })
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute)})
		p := podReportOf(t, r, web)
		check.Not(t, p.Removal != Evicted || !slices.ContainsFunc(p.Delays, func(d Delay) bool { return d.Reason == ObstacleForbidden }), "%+v", p)
		s.checkMaxRequestCount(t, "delete", 5)
	})
}

// A starting API server has not read its RBAC rules, and a recreated RoleBinding is missing for a moment.
func TestForbiddenForcedDeletionIsTriedAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web", withGrace(30*time.Second), withOwner("Job"))
		s.failWhen(fault{err: newForbidden(`pods "web" is forbidden: User "agent" cannot patch or delete it`)}, func(c call) bool {
			return c.n == 0 && (c.verb == "delete" || c.verb == "condition")
		})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute)})
		if p := podReportOf(t, r, web); p.Removal != ForceDeleted || p.End != Stopped {
			t.Errorf("%+v", p)
		}
		writes, deletions := s.findRequests("condition", web), s.findRequests("delete", web)
		if len(writes) != 2 || len(deletions) != 2 || !writes[1].at.Before(deletions[1].at) {
			t.Errorf("condition writes %+v, deletions %+v; want two of each, and the last write before the last deletion", writes, deletions)
		}
	})
}

func TestForbiddenGraceShorteningIsTriedAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		slow := s.addPod("slow", withStopTime(never), withGrace(time.Hour), asDeleted(0, time.Hour))
		s.failWhen(fault{err: newForbidden(`User "agent" cannot delete resource "pods"`)}, func(c call) bool { return c.verb == "delete" && c.n == 0 })
		r := runDrainTo(t, s, Drained, Options{TimeLimits: TimeLimits{Deadline: time.Now().Add(time.Minute), Margin: 2 * time.Second}})
		if p := podReportOf(t, r, slow); p.Removal != GraceShortened || p.End != Killed {
			t.Errorf("%+v", p)
		}
	})
}

func TestForbiddenEvictionsAreRetriedRarely(t *testing.T) {
	for _, disable := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			s.addPods(100, "web-%d")
			s.failWhen(fault{err: newForbidden(`User "agent" cannot create resource "pods/eviction"`)}, func(c call) bool {
				return c.verb == "evict" || c.verb == "delete"
			})
			r, err := runDrain(t, s, Options{DisableEviction: disable, TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(time.Minute)}})
			checkOutcome(t, r, err, TimedOut)
			check.ErrorContains(t, err, "forbidden: User")
			if n := len(s.findRequests("evict", nil)) + len(s.findRequests("delete", nil)); n > 100+6 {
				t.Errorf("%d evictions and deletions in a minute", n)
			}
		})
	}
}

func TestDisableEvictionDeletesWithoutAskingPDBs(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web")
		r := runDrainTo(t, s, Drained, Options{DisableEviction: true})
		if p := podReportOf(t, r, web); p.Removal != DeletedOnRequest || p.GivenGraceSeconds != 30 {
			t.Errorf("%+v", p)
		}
		if len(s.findRequests("evict", nil)) != 0 || !strings.Contains(r.Summary(), ", 1 deleted without an eviction") {
			t.Errorf("%s", r.Summary())
		}
	})
}

func TestSummaryHasTimeToTheDeadline(t *testing.T) {
	deadline := time.Unix(100, 0)
	for ended, want := range map[time.Duration]string{-2 * time.Second: "0 skipped, 2.0s before the deadline", 100 * time.Millisecond: "0 skipped, 0.1s after the deadline"} {
		check.Contains(t, Report{StartedAt: deadline.Add(-time.Minute), EndedAt: deadline.Add(ended), Deadline: deadline}.Summary(), want)
	}
}

func TestSelectSkipsOtherPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		mine := s.addPod("mine", withLabel("app", "mine"))
		other := s.addPod("other", withLabel("app", "other"), withoutOwner)
		r := runDrainTo(t, s, Drained, Options{ShouldDrainPod: func(p kubeapi.Pod) bool { return p.Labels["app"] == "mine" }})
		if p := podReportOf(t, r, other); p.Decision.Rule != podrules.RuleExcluded || p.Action != podrules.Skip || p.End != StillPresent {
			t.Errorf("%+v", p)
		}
		if p := podReportOf(t, r, mine); p.End != Stopped {
			t.Errorf("%+v", p)
		}
	})
}

func TestSkipTerminatingForSkipsPodsPastGrace(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		dead := s.addPod("dead", withStopTime(never), asDeleted(10*time.Minute, 30*time.Second))
		web := s.addPod("web", withStopTime(never), withGrace(10*time.Second))
		s.stopNodeAt(time.Now()) // the node is not ready: no container ends
		r := runDrainTo(t, s, Drained, Options{SkipTerminatingAfter: time.Minute})
		checkTookAbout(t, r, time.Minute+10*time.Second)
		for _, p := range []*simPod{dead, web} {
			if q := podReportOf(t, r, p); q.Action != podrules.Skip || q.End != StillPresent {
				t.Errorf("%+v", q)
			}
		}
	})
}

func TestFinishedPodsIgnorePDBs(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("job", withPhase("Failed"), withoutOwner, withLabel("app", "job"))
		p.setTerminated(killedExitCode, time.Now().Add(-time.Hour))
		s.addPDB("job", 1, 1, map[string]string{"app": "job"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(10 * time.Second)})
		if q := podReportOf(t, r, p); q.Decision.Rule != podrules.RuleFinished || q.End == Killed || q.WasCutShort() {
			t.Errorf("a kill an hour ago does not belong to this drain: %+v", q)
		}
	})
}

func TestPodsOfATerminatingNamespaceAreAwaited(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.addPod("web")
		s.failAll("evict", fault{err: &kubeapi.StatusError{Code: 403, Reason: "Forbidden", Causes: []kubeapi.Cause{{Reason: "NamespaceTerminating"}}}})
		s.changeAfter(5*time.Second, func() { _, _ = s.deletePod(p, kubeapi.PodRemoval{UID: p.UID}) })
		r := runDrainTo(t, s, Drained, Options{})
		if q := podReportOf(t, r, p); q.Removal != NotRemoved || q.Delays[0].Reason != ObstacleError {
			t.Errorf("%+v", q)
		}
	})
}

func TestRetryAfterHeaderIsRespected(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(250, "web-%d")
		began := time.Now()
		s.failWhen(fault{err: &kubeapi.StatusError{Code: 429, Reason: "TooManyRequests", Message: "too many requests", RetryAfter: time.Second}}, func(c call) bool {
			return c.verb == "evict" && time.Since(began) < 10*time.Second
		})
		r := runDrainTo(t, s, Drained, Options{})
		s.checkMaxRequestCount(t, "evict", 250+32+10)
		checkTookUpTo(t, r, 16*time.Second)
	})
}

func TestUnavailableAPIServerIsRetried(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(250, "web-%d")
		began := time.Now()
		s.fault = func(c call) *fault {
			if c.verb == "evict" && time.Since(began) < 20*time.Second {
				if c.n%2 == 0 {
					return &fault{err: errors.New("connection refused")}
				}
				return &fault{err: &kubeapi.StatusError{Code: 503, Reason: "ServiceUnavailable"}}
			}
			return nil
		}
		runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(time.Minute)})
		s.checkMaxRequestCount(t, "evict", 250+250+defaultMaxInFlight)
		s.checkRequestCount(t, "delete", 0)
	})
}

func TestOnlyPodsKilledEarlyCountAsCutShort(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("quick", withStopTime(time.Second), withGrace(time.Minute))
		s.addPod("slow", withStopTime(never), withGrace(time.Minute))
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(20 * time.Second)})
		check.Contains(t, r.Summary(), "1 cut short")
	})
}

func TestProgressStringNamesObstacles(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("quick", withStopTime(0))
		s.addPod("slow", withStopTime(never), withGrace(time.Minute))
		s.addPod("held", withLabel("app", "web"))
		s.addPod("agent", withOwner("DaemonSet"))
		s.addPDB("web", 1, 1, map[string]string{"app": "web"})
		var lines []string
		last := Progress{}
		_, err := Run(t.Context(), s, Options{
			Node: node, TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(10 * time.Second)},
			OnProgress: func(p Progress) { lines, last = append(lines, p.String()), p },
		})
		if err == nil || lines[0] != "pods not listed yet" {
			t.Errorf("%v, %q", err, lines[0])
		}
		if want := "1 of 3 gone, 1 stopping, 1 waiting (disruption-budget shop/web: 1)"; last.String() != want {
			t.Errorf("%q, want %q", last, want)
		}
		check.Not(t, last.Skipped != 1 || last.Node != node || len(last.BlockedPods()) != 1, "%+v", last)
	})
}

func TestReportWithAnyDeadlineMarshalsToJSON(t *testing.T) {
	for _, c := range []struct {
		deadline time.Time
		want     string
	}{
		{time.Time{}, `"outcome":"drained"`},
		{time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC), `"error"`},
	} {
		raw := Report{Node: node, Outcome: Drained, Deadline: c.deadline}.JSON()
		check.Not(t, !json.Valid(raw) || !strings.Contains(string(raw), c.want), "%s, want %s in it", raw, c.want)
	}
}

func TestEndedPodWatchIsReported(t *testing.T) {
	simulate(t, func(t *testing.T, _ *sim) {
		_, err := Run(t.Context(), returningWatchAPI{}, Options{Node: node, TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(time.Second)}})
		check.ErrorContains(t, err, "the watch of its pods ended: connection lost")
	})
}

// returningWatchAPI is an API that wrongly returns from its watch.
type returningWatchAPI struct{ hangingAPI }

func (returningWatchAPI) WatchPodsOnNode(context.Context, string, kubeapi.Handler[kubeapi.Pod]) error {
	return errors.New("connection lost")
}

func TestPodsOutlivingTheInstanceAreReported(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web", withStopTime(never))
		s.stopNodeAt(time.Now().Add(5 * time.Second)) // earlier than announced
		r, err := runDrain(t, s, Options{TimeLimits: deadlineIn(20 * time.Second)})
		checkOutcome(t, r, err, DeadlinePassed)
		if p := podReportOf(t, r, web); !p.IsNotRemoved() || p.Removal != Evicted {
			t.Errorf("%+v", p)
		}
		check.ErrorContains(t, err, "deadline-passed with 1 pods left: shop/web: stopping")
	})
}

// slowListSim is a sim with a slow first list: a pod is bound after the list is read and before it is answered.
type slowListSim struct {
	*sim

	bind func()
}

func (s *slowListSim) ListPodsOnNode(ctx context.Context, node string) ([]kubeapi.Pod, error) {
	pods, err := s.sim.ListPodsOnNode(ctx, node)
	if s.bind != nil {
		s.bind()
		s.bind = nil
		time.Sleep(time.Second)
	}
	return pods, err
}

func TestI7PodArrivingDuringFinalListIsEvicted(t *testing.T) {
	for _, c := range []struct {
		owner string
		asked RemovalMethod
		end   PodEnd
		bound int
	}{
		{"ReplicaSet", Evicted, Stopped, 0},
		{"DaemonSet", NotRemoved, StillPresent, 1},
	} {
		t.Run(c.owner, simulateFunc(func(t *testing.T, s *sim) {
			s.addPod("web")
			api := &slowListSim{sim: s, bind: func() { s.addPod("late", withOwner(c.owner)) }}
			r, err := Run(t.Context(), api, Options{Node: node, TimeLimits: deadlineIn(time.Minute)})
			checkOutcome(t, r, err, Drained)
			if p := podReportNamed(t, r, "late"); p.Removal != c.asked || p.End != c.end || s.countRemainingPods() != c.bound {
				t.Errorf("%d pods are on the node; the late one: %+v", s.countRemainingPods(), p)
			}
		}))
	}
}

// The list of the broken watch is read before a pod is bound, and answered after the final list that has shown the pod.
func TestI7SlowListEndsNoPodOfALaterList(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.watchLifetime = func(n int) (time.Duration, bool) { return time.Duration(max(0, 1-n)) * 100 * time.Millisecond, true }
		s.listAnswerTime = func(n int) time.Duration { return time.Duration(n%2) * time.Second }
		time.AfterFunc(lateBindWait-100*time.Millisecond, func() { s.addPod("late", withStopTime(5*time.Second)) })
		r := runDrainTo(t, s, Drained, Options{})
		if p := podReportNamed(t, r, "late"); p.Removal != Evicted || p.End != Stopped || s.countRemainingPods() != 0 {
			t.Errorf("%d pods are on the node; the late one: %+v", s.countRemainingPods(), p)
		}
	})
}

// Only a final list shows the pod, which is gone before the watch lists again.
func TestPodThatNoWatchHasShownIsReportedAsGone(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.watchSilentUntil = time.Now().Add(time.Hour)
		s.watchLifetime = func(n int) (time.Duration, bool) { return time.Duration(max(0, 1-n)) * 2 * lateBindWait, true }
		time.AfterFunc(lateBindWait/2, func() { s.addPod("late", withStopTime(0)) })
		r, err := Run(t.Context(), s, Options{Node: node})
		checkOutcome(t, r, err, Drained)
		if p := podReportNamed(t, r, "late"); p.Removal != Evicted || p.End != Vanished {
			t.Errorf("%+v", p)
		}
	})
}

func TestGonePodSetsNoTimer(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		pod := s.addPod("batch", withAnnotation(drainability.DoNotDisrupt, "4h")).snapshot()
		d := New(s, Options{Node: node, Policy: ptr(podrules.VoluntaryPolicy().WithAction(podrules.RuleProtected, podrules.Skip))})
		d.addOrUpdatePod(pod, time.Now())
		if next := d.applyDueTimers(time.Now()); next != pod.CreationTimestamp.Add(4*time.Hour) {
			t.Errorf("before it is gone its timer is %s", next)
		}
		d.markPodGone(pod, time.Now())
		for _, at := range []time.Duration{0, 5 * time.Hour} {
			if next := d.applyDueTimers(time.Now().Add(at)); !next.IsZero() {
				t.Errorf("after %s its timer is %s", at, next)
			}
		}
	})
}
