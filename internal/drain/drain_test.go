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
)

// within is how long from now a drain has.
func within(d time.Duration) Terms { return Terms{Deadline: time.Now().Add(d)} }

// drained runs a drain, checks each progress it reports, and holds its receipt against what the API server did.
func drained(t *testing.T, s *sim, o Options) (Receipt, error) {
	t.Helper()
	_, wait := start(t.Context(), t, s, o)
	return wait()
}

// start runs a drain beside the test.
func start(ctx context.Context, t *testing.T, s *sim, o Options) (*Drain, func() (Receipt, error)) {
	t.Helper()
	o.Node = node
	seen := o.OnProgress
	check := checkProgress(t.Error)
	o.OnProgress = func(p Progress) {
		check(p)
		if seen != nil {
			seen(p)
		}
	}
	d := New(s, o)
	type result struct {
		r   Receipt
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := d.Run(ctx)
		done <- result{r, err}
	}()
	return d, func() (Receipt, error) {
		t.Helper()
		res := <-done
		if err := s.reconcile(res.r, true); err != nil {
			t.Error(err)
		}
		return res.r, res.err
	}
}

// checkProgress returns a check of each progress of one drain. It complains once, and stops an engine that spins: no
// virtual time would ever pass.
func checkProgress(complain func(...any)) func(Progress) {
	wrong := false
	var last time.Time
	times := 0
	return func(p Progress) {
		if err := addsUp(p); err != nil && !wrong {
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

// addsUp checks the promises of Progress.
func addsUp(p Progress) error {
	switch {
	case p.Gone+p.Asked+p.Waiting != p.Total:
		return fmt.Errorf("progress does not add up: %+v", p)
	case len(p.Blocked) != p.Asked+p.Waiting:
		return fmt.Errorf("progress explains %d of %d pods: %+v", len(p.Blocked), p.Asked+p.Waiting, p)
	case slices.ContainsFunc(p.Blocked, func(b Blocked) bool { return b.Reason == "" || b.Detail == "" || b.Since.IsZero() }):
		return fmt.Errorf("progress leaves a pod unexplained: %+v", p.Blocked)
	}
	return nil
}

// reconcile compares a receipt with what the API server and the kubelet recorded. Where the watch loses events, how a
// pod ended may have been lost with them.
func (s *sim) reconcile(r Receipt, watched bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	worked, accepted, sent := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, q := range s.requests {
		key := q.verb + " " + q.removal.UID
		sent[key] = true
		if q.worked || q.err == nil {
			worked[key]++
		}
		if q.err == nil {
			accepted[key]++
		}
	}
	var errs []error
	for _, p := range r.Pods {
		bad := func(format string, a ...any) {
			errs = append(errs, fmt.Errorf("receipt of %s: %s: %+v", p.Name, fmt.Sprintf(format, a...), p))
		}
		was := s.pods[p.UID]
		evictions, deletions := worked["evict "+p.UID], worked["delete "+p.UID]
		switch p.Asked {
		case Evicted:
			if evictions == 0 && (watched || !sent["evict "+p.UID]) { // unwatched, a lost answer may be credited to it
				bad("says evicted, and no eviction was accepted")
			}
		case Forced, DeletedOnRequest, Shortened:
			if deletions == 0 && (watched || !sent["delete "+p.UID]) {
				bad("says %s, and no deletion was accepted", p.Asked)
			}
		default:
			if evictions+deletions > 0 && p.Unanswered == NotAsked {
				bad("does not mention what was asked: %d evictions, %d deletions", evictions, deletions)
			}
		}
		if accepted["evict "+p.UID] > 1 {
			bad("evicted more than once")
		}
		if p.End == StillThere || p.Verdict.Rule == podrules.ByFinished {
			continue
		}
		if !was.gone || p.End != was.end && (watched || p.End != Vanished) {
			bad("the pod ended %q, gone: %t", was.end, was.gone)
		}
		if watched && p.Asked != NotAsked && p.GraceGiven != int64(was.given/time.Second) {
			bad("the pod was given %s", was.given)
		}
	}
	return errors.Join(errs...)
}

func receiptOf(t *testing.T, r Receipt, p *simPod) PodReceipt {
	t.Helper()
	i := slices.IndexFunc(r.Pods, func(q PodReceipt) bool { return q.UID == p.UID })
	if i < 0 {
		t.Fatalf("no receipt for pod %s", p.Name)
	}
	return r.Pods[i]
}

func receiptNamed(t *testing.T, r Receipt, name string) PodReceipt {
	t.Helper()
	i := slices.IndexFunc(r.Pods, func(q PodReceipt) bool { return q.Name == name })
	if i < 0 {
		t.Fatalf("no receipt for pod %s", name)
	}
	return r.Pods[i]
}

func wantOutcome(t *testing.T, r Receipt, err error, want Outcome) {
	t.Helper()
	if r.Outcome != want || (err == nil) != (want == Drained) {
		t.Fatalf("outcome %q, error %v, want %q; %s", r.Outcome, err, want, r.JSON())
	}
}

// drainTo runs a drain to the outcome that is wanted.
func drainTo(t *testing.T, s *sim, want Outcome, o Options) Receipt {
	t.Helper()
	r, err := drained(t, s, o)
	wantOutcome(t, r, err, want)
	return r
}

func tookUpTo(t *testing.T, r Receipt, most time.Duration) {
	t.Helper()
	if took := r.Ended.Sub(r.Began); took > most {
		t.Errorf("took %s, want up to %s", took, most)
	}
}

func tookAbout(t *testing.T, r Receipt, want time.Duration) {
	t.Helper()
	if took := r.Ended.Sub(r.Began); took < want-100*time.Millisecond || took > want+500*time.Millisecond {
		t.Errorf("took %s, want about %s", took, want)
	}
}

func TestPodsLeaveAtOnceAndAreWaitedFor(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		quick := s.pod("quick")
		stubborn := s.pod("stubborn", stopsIn(never), grace(20*time.Second))
		s.pod("agent", ownedBy("DaemonSet"))
		r := drainTo(t, s, Drained, Options{})
		tookAbout(t, r, 20*time.Second)
		if p := receiptOf(t, r, quick); p.End != Stopped || p.Asked != Evicted || p.Owner != "ReplicaSet/owner" {
			t.Errorf("quick: %+v", p)
		}
		if p := receiptOf(t, r, stubborn); p.End != Killed || p.CutShort() || p.GraceGiven != 20 {
			t.Errorf("stubborn: %+v", p)
		}
		if want := "2 gone, 0 left, 1 not touched"; !strings.Contains(r.Summary(), want) {
			t.Errorf("summary %q, want %q in it", r.Summary(), want)
		}
	})
}

func TestEmptyNodeIsDrainedAfterALastList(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		r := drainTo(t, s, Drained, Options{})
		tookAbout(t, r, settle)
	})
}

func TestI2AVoluntaryDrainNeverDeletes(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web")
		r, err := drained(t, s, Options{Terms: Terms{GiveUp: time.Now().Add(2 * time.Minute)}})
		wantOutcome(t, r, err, GaveUp)
		tookAbout(t, r, 2*time.Minute)
		s.wantRequests(t, "delete", 0)
		if p := receiptOf(t, r, web); p.Asked != NotAsked || p.End != StillThere || !p.Left() {
			t.Errorf("%+v", p)
		}
		var unfinished *Unfinished
		if !errors.As(err, &unfinished) || len(unfinished.Blocked) != 1 || unfinished.Blocked[0].Budget != "shop/web" ||
			!strings.Contains(err.Error(), "budget web allows 0 disruptions: 1 of 1 pods are healthy, 1 must be") {
			t.Errorf("the error does not name the budget and its numbers: %v", err)
		}
	})
}

func TestI2ForcedDeletionComesAtThePlannedTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web", grace(30*time.Second), stopsIn(10*time.Second))
		var log bytes.Buffer
		began := time.Now()
		r := drainTo(t, s, Drained, Options{
			Terms:  Terms{Deadline: began.Add(2 * time.Minute), Margin: 2 * time.Second},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		deletes := s.asked("delete", nil)
		if len(deletes) != 1 || deletes[0].at.Sub(began) != 87*time.Second {
			t.Fatalf("deletions %v, want one, 30 s, a second to round and the margin before the deadline", deletes)
		}
		p := receiptOf(t, r, web)
		if p.Asked != Forced || p.GraceGiven != 30 || p.End != Stopped || len(p.Delays) != 1 || p.Delays[0].Reason != Budget {
			t.Errorf("%+v", p)
		}
		if !strings.Contains(r.Summary(), "1 deleted past a disruption budget") {
			t.Errorf("summary: %s", r.Summary())
		}
		if !strings.Contains(log.String(), "pod=shop/web") || !strings.Contains(log.String(), "deleted past") {
			t.Errorf("log: %s", log.String())
		}
	})
}

func TestLateForcedDeletionGrantsTheFullGrace(t *testing.T) {
	since := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	terms := Terms{Deadline: since.Add(2 * time.Minute), Margin: 2 * time.Second}
	for _, wanted := range []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, 58 * time.Second} {
		for _, late := range []time.Duration{0, time.Millisecond, 700 * time.Millisecond} {
			now := forceAt(wanted, terms, since).Add(late)
			if got := grantedGrace(wanted, terms, now); got != wanted {
				t.Errorf("a pod that wants %s, deleted %s after its moment, gets %s", wanted, late, got)
			}
		}
	}
}

func TestI2ShortNoticeIsSharedByPDBAndGrace(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web", grace(30*time.Second), stopsIn(never))
		began := time.Now()
		r := drainTo(t, s, Drained, Options{Terms: Terms{Deadline: began.Add(30 * time.Second), Margin: 2 * time.Second}})
		if at := s.asked("delete", web)[0].at.Sub(began); at != 14*time.Second {
			t.Errorf("deleted after %s, want 14s", at)
		}
		if p := receiptOf(t, r, web); p.GraceGiven != 14 || !p.CutShort() {
			t.Errorf("%+v", p)
		}
	})
}

// TestW07M07ABlockedBudgetIsNotAskedHot is a fault of k8s.io/kubectl/pkg/drain: it asks again at once when denied, for every
// pod of the budget by itself.
func TestW07M07ABlockedBudgetIsNotAskedHot(t *testing.T) {
	for _, c := range []struct {
		name  string
		pods  int
		terms Terms
		most  int
	}{
		// 0, .2, .6, 1.4, 3, 6.2 s, then each 5 s; each pause begins with the answer.
		{"voluntary", 1, Terms{}, 16},
		// 0, .2, .6 s, then each second.
		{"forced", 1, Terms{Deadline: time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)}, 63},
		// Three batches of MaxInFlight leave before the first denial and then the list of budgets have been answered.
		{"voluntary, 1000 pods", 1000, Terms{}, 16 + 3*32},
		{"forced, 1000 pods", 1000, Terms{Deadline: time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)}, 63 + 3*32},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.podsNamed(c.pods, "web-%d", label("app", "web"))
			s.budget("web", int32(c.pods), int32(c.pods), map[string]string{"app": "web"})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, wait := start(ctx, t, s, Options{Terms: c.terms})
			r, err := wait()
			wantOutcome(t, r, err, Cancelled)
			n := len(s.asked("evict", nil))
			if n > c.most || n < 15 {
				t.Errorf("%d evictions in a minute, want 15 to %d", n, c.most)
			}
			if s.calls["budgets"] > 7 {
				t.Errorf("%d lists of budgets in a minute", s.calls["budgets"])
			}
		}))
	}
}

func TestUnblockedPodLeavesBesideAThousandBlockedOnes(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(1000, "a-blocked-%04d", label("app", "web"), grace(time.Minute))
		s.budget("web", 1000, 1000, map[string]string{"app": "web"})
		free := s.pod("z-free", grace(time.Second), stopsIn(time.Millisecond))
		r := drainTo(t, s, GaveUp, Options{Terms: Terms{GiveUp: time.Now().Add(10 * time.Second)}})
		if p := receiptOf(t, r, free); p.AskedAt.Sub(r.Began) > 500*time.Millisecond {
			t.Errorf("asked after %s", p.AskedAt.Sub(r.Began))
		}
		if s.most > 32 {
			t.Errorf("%d requests at once", s.most)
		}
	})
}

func TestUnreadyPodsPassReadyPodsOfTheirPDB(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("a-ready", label("app", "web"), grace(time.Minute))
		sick := s.pod("b-sick", label("app", "web"), notReady, stopsIn(0))
		pending := s.pod("c-pending", label("app", "web"), notReady, phase("Pending"), stopsIn(0))
		s.budget("web", 1, 3, map[string]string{"app": "web"})
		r := drainTo(t, s, GaveUp, Options{Terms: Terms{GiveUp: time.Now().Add(20 * time.Second)}})
		for _, p := range []*simPod{sick, pending} {
			if q := receiptOf(t, r, p); q.Asked != Evicted || q.AskedAt.Sub(r.Began) > time.Second {
				t.Errorf("%+v", q)
			}
		}
	})
}

func TestUnreadyPodArrivingBehindReadyOnesIsEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("ready", label("app", "web"))
		s.budget("web", 1, 1, map[string]string{"app": "web"}).always = true
		arrives := 27 * time.Second
		time.AfterFunc(arrives, func() { s.pod("sick", label("app", "web"), notReady, stopsIn(0)) })
		r := drainTo(t, s, GaveUp, Options{Terms: Terms{GiveUp: time.Now().Add(40 * time.Second)}})
		p := receiptNamed(t, r, "sick")
		if waited := p.AskedAt.Sub(r.Began) - arrives; p.Asked != Evicted || waited > 100*time.Millisecond {
			t.Errorf("asked after %s: %+v", waited, p)
		}
	})
}

func TestPodsOfAKnownPDBWaitWithoutEvictions(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("first", label("app", "a"))
		s.budget("a", 1, 1, map[string]string{"app": "a"})
		s.budget("b", 1000, 1000, map[string]string{"app": "b"})
		time.AfterFunc(2*time.Second, func() { // by then the namespace's budgets have been read
			s.podsNamed(500, "b-%d", label("app", "b"))
		})
		_, err := drained(t, s, Options{Terms: Terms{GiveUp: time.Now().Add(10 * time.Second)}})
		if n := len(s.asked("evict", nil)); n > 32+2*10 || err == nil {
			t.Errorf("%d evictions", n)
		}
	})
}

func TestPDBThatOpenedIsAskedAgainQuickly(t *testing.T) {
	for _, c := range []struct {
		name          string
		pods, healthy int // how many must be healthy once it opens
		most          time.Duration
	}{
		{"for all pods at once", 100, 0, 10 * time.Second},
		{"for one pod at a time", 10, 9, 25 * time.Second}, // not 5 s for each
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.podsNamed(c.pods, "web-%d", label("app", "web"), twinned(newName, time.Second))
			b := s.budget("web", int32(c.pods), int32(c.pods), map[string]string{"app": "web"})
			s.after(time.Minute, func() { b.healthy = int32(c.healthy) })
			tookUpTo(t, drainTo(t, s, Drained, Options{}), time.Minute+c.most)
		}))
	}
}

func TestI2NoPodQueuesAfterItsTimeToWait(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(200, "web-%d", label("app", "web"), grace(time.Second))
		s.budget("web", 200, 200, map[string]string{"app": "web"})
		r := drainTo(t, s, Drained, Options{Terms: within(time.Minute), MaxInFlight: 2})
		for _, p := range r.Pods {
			if p.Asked != Forced || len(p.Delays) == 0 {
				t.Fatalf("%+v", p)
			}
		}
	})
}

func TestFailingPodDoesNotStarveTheOthers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("a", grace(time.Hour))
		b := s.pod("b", stopsIn(0))
		// a webhook that never lets a go
		s.failWhen(fault{err: &kubeapi.StatusError{Code: 500, Reason: "InternalError", Message: "webhook failed"}}, func(c call) bool {
			return c.verb == "evict" && (c.Name == "a" || c.n < 4)
		})
		r, _ := drained(t, s, Options{Terms: Terms{GiveUp: time.Now().Add(30 * time.Second)}})
		if p := receiptOf(t, r, b); p.End != Stopped {
			t.Errorf("b never had its turn: %+v", p)
		}
	})
}

func TestReplacementOfTheSameNameIsNeverEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		db := s.pod("db-0", ownedBy("StatefulSet"), label("app", "db"), stopsIn(0), twinned(sameName, time.Second))
		s.budget("db", 1, 1, map[string]string{"app": "db"})
		s.lag = 3 * time.Second // the watch is slow to tell
		s.after(2*time.Second, func() {
			_, _ = s.remove(db, kubeapi.Removal{UID: db.UID})
			s.budgets = nil // nothing in the way of the replacement
		})
		drainTo(t, s, Drained, Options{})
		twin := s.named("shop", "db-0")
		if twin == nil || twin.UID == db.UID || twin.DeletionTimestamp != nil {
			t.Fatalf("the replacement was touched: %+v", twin)
		}
		for _, q := range s.asked("evict", nil) {
			if q.removal.UID != db.UID {
				t.Errorf("eviction of UID %s", q.removal.UID)
			}
		}
	})
}

func TestI7FailedOrShortListNeverDrainsANode(t *testing.T) {
	for _, c := range []struct {
		name  string
		terms func() Terms
		want  Outcome
	}{
		{"voluntary", func() Terms { return Terms{GiveUp: time.Now().Add(10 * time.Second)} }, GaveUp},
		{"forced", func() Terms { return within(10 * time.Second) }, DeadlinePassed},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.pod("web")
			cut := errors.New("answer ended early")
			s.failAll("list", fault{err: cut})
			r, err := drained(t, s, Options{Terms: c.terms()})
			wantOutcome(t, r, err, c.want)
			if !errors.Is(err, cut) || !strings.Contains(err.Error(), "before its pods could be listed") {
				t.Errorf("error: %v", err)
			}
		}))
	}
}

func TestI7LateOrBrokenWatchNeverDrainsANode(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.lag = 3 * time.Second
		s.pod("first", stopsIn(0))
		time.AfterFunc(400*time.Millisecond, func() { s.pod("late", stopsIn(5*time.Second)) })
		r := drainTo(t, s, Drained, Options{})
		if left := s.bound(); left != 0 || len(r.Pods) != 2 {
			t.Errorf("drained with %d pods left, receipt of %d", left, len(r.Pods))
		}
	})
	simulate(t, func(t *testing.T, s *sim) {
		var broken atomic.Bool
		s.watchLives = func(int) (time.Duration, bool) { return 200 * time.Millisecond, true }
		s.failWhen(fault{err: errors.New("no route to host")}, func(c call) bool { return c.verb == "list" && broken.Load() })
		time.AfterFunc(100*time.Millisecond, func() { broken.Store(true) })
		time.AfterFunc(250*time.Millisecond, func() { s.pod("unseen") })
		drainTo(t, s, GaveUp, Options{Terms: Terms{GiveUp: time.Now().Add(20 * time.Second)}})
	})
}

func TestI7PDBNotFoundDoesNotMeanPodGone(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web")
		// the budget was deleted while the API server asked it
		s.failWhen(fault{err: notFound("poddisruptionbudgets.policy", "web")}, func(c call) bool {
			return c.verb == "evict" && c.n == 0
		})
		r := drainTo(t, s, Drained, Options{})
		if p := receiptOf(t, r, web); p.Asked != Evicted || p.End != Stopped {
			t.Errorf("%+v", p)
		}
	})
}

func TestWavesAreStrictWhenThereIsTime(t *testing.T) {
	for _, forced := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			web := s.pod("web", stopsIn(20*time.Second))
			dns := s.pod("dns", priority(2_000_000_000), stopsIn(time.Second))
			var terms Terms
			if forced {
				terms = within(10 * time.Minute)
			}
			r := drainTo(t, s, Drained, Options{Terms: terms})
			if first, second := receiptOf(t, r, web), receiptOf(t, r, dns); second.AskedAt.Before(first.EndedAt) || second.Wave != 1 {
				t.Errorf("forced %t: dns asked at %s, web gone at %s", forced, second.AskedAt, first.EndedAt)
			}
		})
	}
}

func TestWavesOverlapWhenTimeIsShort(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web", stopsIn(never), grace(time.Minute))
		dns := s.pod("dns", priority(2_000_000_000), stopsIn(time.Second), grace(10*time.Second))
		r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
		// 10 s for dns to stop and a quarter of 30 s to wait for budgets in.
		if at := receiptOf(t, r, dns).AskedAt.Sub(r.Began); at != 12500*time.Millisecond {
			t.Errorf("dns asked after %s", at)
		}
		if p := receiptOf(t, r, web); p.End != Killed || p.EndedAt.After(r.Deadline) {
			t.Errorf("web: %+v", p)
		}
	})
}

func TestWaveBoundariesOfTheCaller(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		low, mid, high := s.pod("low", priority(-5)), s.pod("mid", priority(100)), s.pod("high", priority(2_000_001_000))
		r := drainTo(t, s, Drained, Options{WaveBoundaries: []int32{0, 1000}})
		for i, p := range []*simPod{low, mid, high} {
			if q := receiptOf(t, r, p); q.Wave != i || q.EndedAt.Sub(r.Began) < time.Duration(i+1)*2*time.Second {
				t.Errorf("%s: wave %d, gone after %s", p.Name, q.Wave, q.EndedAt.Sub(r.Began))
			}
		}
		one, _ := drained(t, newSim(), Options{WaveBoundaries: []int32{}})
		if one.Outcome != Drained {
			t.Error("no boundaries is one wave")
		}
	})
}

func TestLongestGraceGoesFirst(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		for i := range 10 {
			s.pod(fmt.Sprintf("p-%d", i), grace(time.Duration(10+i)*time.Second))
		}
		drainTo(t, s, Drained, Options{MaxInFlight: 1, Terms: within(time.Minute)})
		for i, q := range s.asked("evict", nil) {
			if want := fmt.Sprintf("p-%d", 9-i); q.removal.Name != want {
				t.Errorf("eviction %d is %s, want %s", i, q.removal.Name, want)
			}
		}
	})
}

func TestGraceOfCenturiesIsCapped(t *testing.T) {
	for _, seconds := range []int64{9_223_372_037, 9_999_999_999, math.MaxInt64} {
		simulate(t, func(t *testing.T, s *sim) {
			p := s.pod("web", stopsIn(10*time.Second), func(p *simPod) { p.Spec.TerminationGracePeriodSeconds = &seconds })
			r := drainTo(t, s, Drained, Options{Terms: within(30 * time.Second)})
			if got := receiptOf(t, r, p); got.End != Stopped || got.GraceGiven != 29 {
				t.Errorf("grace %d: %s, given %d s of 30", seconds, got.End, got.GraceGiven)
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
		{"the pod itself wants none", 0, 20 * time.Second, 0, -1},
		{"almost none left", 30 * time.Second, time.Second, 0, 1},
		{"margin longer than what is left", 30 * time.Second, 5 * time.Second, time.Minute, 1},
		{"deadline in the past margin", 30 * time.Second, 3 * time.Second, 3 * time.Second, 1},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			p := s.pod("web", grace(c.wanted), stopsIn(0))
			_, _ = drained(t, s, Options{Terms: Terms{Deadline: time.Now().Add(c.deadline), Margin: c.margin}})
			asked := s.asked("evict", p)
			if len(asked) != 1 {
				t.Fatalf("%d evictions", len(asked))
			}
			switch g := asked[0].removal.Grace; {
			case c.want < 0 && g != nil:
				t.Errorf("grace %d sent", *g)
			case c.want >= 0 && (g == nil || *g != c.want):
				t.Errorf("grace %v sent, want %d", g, c.want)
			}
		}))
	}
}

func TestTheUsersOwnGrace(t *testing.T) {
	for _, seconds := range []int64{0, 1, 90} {
		simulate(t, func(t *testing.T, s *sim) {
			p := s.pod("web", stopsIn(never))
			r := drainTo(t, s, Drained, Options{GraceSeconds: &seconds})
			if g := s.asked("evict", p)[0].removal.Grace; g == nil || *g != seconds {
				t.Errorf("grace %v, want %d", g, seconds)
			}
			if q := receiptOf(t, r, p); q.GraceWanted != seconds || (seconds == 0) != (q.End == Vanished) {
				t.Errorf("%+v", q)
			}
		})
	}
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("web")
		_, _ = drained(t, s, Options{GraceSeconds: ptr(int64(-1))})
		if g := s.asked("evict", p)[0].removal.Grace; g != nil && *g != 30 {
			t.Errorf("-1 keeps the pod's own grace; sent %d", *g)
		}
	})
}

func TestADeadlineAlreadyOverEndsAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web")
		r := drainTo(t, s, DeadlinePassed, Options{Terms: within(-time.Minute)})
		tookAbout(t, r, 0)
	})
}

func TestTermsSoonerCutOffPodsThatAreStopping(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		slow := s.pod("slow", grace(10*time.Minute), stopsIn(never))
		nice := s.pod("nice", grace(10*time.Minute), stopsIn(2*time.Minute+20*time.Second))
		d, wait := start(t.Context(), t, s, Options{Terms: within(15 * time.Minute)})
		time.Sleep(2 * time.Minute)
		end := time.Now().Add(30 * time.Second)
		d.SetTerms(Terms{Deadline: end.Add(2 * time.Second), Margin: 2 * time.Second})
		r, err := wait()
		wantOutcome(t, r, err, Drained)
		// A request for "25 seconds" would be counted from the deletion two minutes ago and kill both at once.
		if p := receiptOf(t, r, nice); p.End != Stopped {
			t.Errorf("nice was killed with time left: %+v", p)
		}
		p := receiptOf(t, r, slow)
		if p.End != Killed || p.EndedAt.Before(end.Add(-time.Second)) || p.EndedAt.After(end.Add(time.Second)) || !p.CutShort() {
			t.Errorf("slow: %+v, want it killed at %s", p, end)
		}
		s.wantRequests(t, "delete", 1)
	})
}

func TestTermsLaterWaitAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web", grace(30*time.Second))
		began := time.Now()
		d, wait := start(t.Context(), t, s, Options{Terms: within(time.Minute)})
		time.Sleep(25 * time.Second)
		d.SetTerms(Terms{Deadline: began.Add(10 * time.Minute)})
		r, err := wait()
		wantOutcome(t, r, err, Drained)
		if at := s.asked("delete", web)[0].at.Sub(began); at != 9*time.Minute+29*time.Second {
			t.Errorf("forced after %s", at)
		}
		if !r.Deadline.Equal(began.Add(10 * time.Minute)) {
			t.Errorf("receipt's deadline: %s", r.Deadline)
		}
	})
}

func TestTheSameTermsSetEverySecondChangeNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web", grace(30*time.Second), stopsIn(never))
		terms := within(30 * time.Second)
		began := time.Now()
		d, wait := start(t.Context(), t, s, Options{Terms: terms})
		go func() {
			for range 30 {
				time.Sleep(time.Second)
				d.SetTerms(terms)
			}
		}()
		_, _ = wait()
		if at := s.asked("delete", web)[0].at.Sub(began); at != 15*time.Second {
			t.Errorf("forced after %s", at)
		}
		time.Sleep(time.Minute)
	})
}

func TestVoluntaryDrainThatBecomesForcedEvictsEveryPod(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web")
		d, wait := start(t.Context(), t, s, Options{})
		time.Sleep(10 * time.Minute)
		d.SetTerms(within(time.Minute))
		synctest.Wait()
		bare := s.pod("bare", unowned)
		r, err := wait()
		wantOutcome(t, r, err, Drained)
		if p := receiptOf(t, r, web); p.Asked != Forced {
			t.Errorf("web: %+v", p)
		}
		if p := receiptOf(t, r, bare); p.Asked != Evicted {
			t.Errorf("bare: %+v", p)
		}
	})
}

func TestCancellationStopsAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.blockedPod("web")
		s.pod("slow", stopsIn(never), grace(time.Hour))
		reason := errors.New("the event was cancelled")
		ctx, cancel := context.WithCancelCause(t.Context())
		_, wait := start(ctx, t, s, Options{Terms: within(10 * time.Minute)})
		time.Sleep(5 * time.Second)
		cancel(reason)
		r, err := wait()
		wantOutcome(t, r, err, Cancelled)
		tookAbout(t, r, 5*time.Second)
		if !errors.Is(err, reason) {
			t.Errorf("error %v", err)
		}
		n := len(s.asked("", nil))
		time.Sleep(time.Hour)
		if len(s.asked("", nil)) != n {
			t.Error("requests after the cancellation")
		}
	})
}

func TestCancellationMentionsRequestsThatMayHaveWorked(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web")
		s.failAll("evict", fault{hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, wait := start(ctx, t, s, Options{})
		r, err := wait()
		wantOutcome(t, r, err, Cancelled)
		if p := receiptOf(t, r, web); p.Unanswered != Evicted || p.Asked != NotAsked || len(p.Delays) != 0 {
			t.Errorf("%+v", p)
		}
	})
}

func TestEvictionWhoseAnswerWasLostIsReported(t *testing.T) {
	for _, f := range []fault{
		{worked: true, err: errors.New("connection reset by peer")},
		{worked: true, err: &kubeapi.StatusError{Code: 504, Reason: "Timeout"}},
		{worked: true, hang: true},
	} {
		simulate(t, func(t *testing.T, s *sim) {
			web := s.pod("web", stopsIn(time.Minute), grace(2*time.Minute))
			s.failWhen(f, func(c call) bool { return c.verb == "evict" && c.n == 0 })
			r := drainTo(t, s, Drained, Options{})
			if p := receiptOf(t, r, web); p.Asked != Evicted || p.Unanswered != NotAsked {
				t.Errorf("%+v", p)
			}
			s.wantRequests(t, "evict", 1)
		})
	}
}

func TestPodEndingBeforeItsAnswerCountsAsEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web", stopsIn(0))
		s.fault = func(c call) *fault {
			if c.verb == "evict" {
				go func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					_, _ = s.removeEvicted(web, c.Removal)
				}()
				return &fault{hang: true}
			}
			return nil
		}
		d := New(s, Options{Node: node})
		r, err := d.Run(t.Context())
		wantOutcome(t, r, err, Drained)
		tookAbout(t, r, settle)
		if p := receiptOf(t, r, web); p.Asked != Evicted {
			t.Errorf("%+v", p)
		}
	})
}

func TestSeveralBudgetsOnAPodAreExplained(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(100, "web-%d", label("app", "web"))
		s.budget("all", 0, 1, nil)
		s.budget("web", 0, 1, map[string]string{"app": "web"})
		r, err := drained(t, s, Options{Terms: Terms{GiveUp: time.Now().Add(time.Minute)}})
		wantOutcome(t, r, err, GaveUp)
		if !strings.Contains(err.Error(), "selected by 2 disruption budgets (all, web)") ||
			!strings.Contains(err.Error(), "make their selectors disjoint") {
			t.Errorf("%.300v", err)
		}
		s.wantRequestsUpTo(t, "evict", 3*32+10)
	})
}

func TestPDBThatNeverAllowsEvictionsIsNamed(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.blockedPod("web")
		s.pod("db", label("app", "db"))
		s.budget("db", 1, 2, map[string]string{"app": "db"}) // one of two is down: waiting helps
		_, err := drained(t, s, Options{Terms: Terms{GiveUp: time.Now().Add(time.Minute)}})
		var u *Unfinished
		if !errors.As(err, &u) || len(u.Blocked) != 2 {
			t.Fatal(err)
		}
		if strings.Contains(u.Blocked[0].Detail, "never") || !strings.Contains(u.Blocked[1].Detail, "never will") {
			t.Errorf("db: %s; web: %s", u.Blocked[0].Detail, u.Blocked[1].Detail)
		}
	})
}

func TestUnlistedPDBIsNamedFromTheDenial(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(50, "web-%d", label("app", "web"))
		s.budget("web", 50, 50, map[string]string{"app": "web"})
		s.failAll("budgets", fault{err: forbidden("cannot list poddisruptionbudgets")})
		_, err := drained(t, s, Options{Terms: Terms{GiveUp: time.Now().Add(time.Minute)}})
		if !strings.Contains(err.Error(), "The disruption budget web needs 50 healthy pods and has 50 currently") {
			t.Errorf("%.300v", err)
		}
		s.wantRequestsUpTo(t, "evict", 50+16)
	})
}

func TestOpeningPDBIsUsedAtOnceWithoutForce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		const ready = 3700 * time.Millisecond
		s.podsNamed(5, "web-%d", label("app", "web"), stopsIn(0), twinned(newName, ready))
		s.budget("web", 4, 5, map[string]string{"app": "web"})
		r := drainTo(t, s, Drained, Options{Terms: within(5 * time.Minute)})
		s.wantRequests(t, "delete", 0)
		var at []time.Time
		for _, p := range r.Pods {
			at = append(at, p.AskedAt)
		}
		slices.SortFunc(at, time.Time.Compare)
		for i := 1; i < len(at); i++ {
			if waited := at[i].Sub(at[i-1]); waited > ready+100*time.Millisecond {
				t.Errorf("eviction %d came %s after the last, although its replacement was ready after %s", i, waited, ready)
			}
		}
	})
}

func TestDeletedPDBUnblocksItsPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(50, "web-%d", label("app", "web"))
		s.budget("web", 50, 50, map[string]string{"app": "web"})
		s.after(30*time.Second, func() {
			s.budgets = nil
			s.shout()
		})
		r := drainTo(t, s, Drained, Options{})
		tookUpTo(t, r, 35*time.Second)
	})
}

func TestPodsThatArriveDuringTheDrainLeaveToo(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web", stopsIn(20*time.Second))
		time.AfterFunc(10*time.Second, func() { s.pod("late", stopsIn(20*time.Second)) })
		r := drainTo(t, s, Drained, Options{})
		if p := receiptNamed(t, r, "late"); p.Asked != Evicted || p.End != Stopped {
			t.Errorf("%+v", p)
		}
		tookAbout(t, r, 30*time.Second)
	})
}

func TestDrainOnStandbyEvictsLateArrivals(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web", stopsIn(20*time.Second))
		s.pod("agent", ownedBy("DaemonSet"))
		var told []string
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{
			OnDrained: func(r Receipt) {
				told = append(told, fmt.Sprintf("%.0fs %s", time.Since(began).Seconds(), r.Summary()))
			},
			OnArrival: func() { told = append(told, fmt.Sprintf("%.0fs late", time.Since(began).Seconds())) },
		}
		time.AfterFunc(time.Minute, func() { s.pod("late", stopsIn(20*time.Second)) })
		time.AfterFunc(2*time.Minute, func() { s.pod("another-agent", ownedBy("DaemonSet")) })
		time.AfterFunc(time.Hour, cancel)
		_, wait := start(ctx, t, s, o)
		r, err := wait()
		if !errors.Is(err, context.Canceled) || r.Outcome != Cancelled {
			t.Errorf("outcome %q, error %v", r.Outcome, err)
		}
		want := []string{
			"20s node-1: drained after 20.0s: 1 gone, 0 left, 1 not touched", "60s late",
			"80s node-1: drained after 20.0s: 1 gone, 0 left, 1 not touched",
		}
		if !slices.Equal(told, want) {
			t.Errorf("it told %q, want %q", told, want)
		}
	})
}

func TestArrivingProtectedPodStopsAVoluntaryDrain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web", stopsIn(20*time.Second))
		time.AfterFunc(10*time.Second, func() { s.pod("late", annotation(drainability.DoNotEvict, "true")) })
		r, err := drained(t, s, Options{})
		wantOutcome(t, r, err, RefusedOutcome)
		tookAbout(t, r, 10*time.Second)
		var refused *Refused
		if !errors.As(err, &refused) || len(refused.Pods) != 1 || refused.Pods[0].Name != "late" {
			t.Errorf("%v", err)
		}
	})
}

func TestAVoluntaryDrainThatIsRefusedEvictsNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web")
		s.pod("bare", unowned)
		s.pod("cache", emptyDir)
		r, err := drained(t, s, Options{})
		wantOutcome(t, r, err, RefusedOutcome)
		s.wantRequests(t, "evict", 0)
		for _, want := range []string{"2 pods", "shop/bare (unmanaged: has no controller that would recreate it)", "shop/cache (local-storage: keeps data in emptyDir scratch)"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q, want %q in it", err, want)
			}
		}
	})
}

func TestExpiringProtectionIsAwaitedByPolicy(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		job := s.pod("job", annotation(drainability.DoNotDisrupt, "10m"))
		policy := podrules.Voluntary().With(podrules.ByProtected, podrules.Await)
		r := drainTo(t, s, Drained, Options{Policy: &policy})
		if p := receiptOf(t, r, job); p.Asked != Evicted || p.AskedAt.Sub(r.Began) < 10*time.Minute || p.AskedAt.Sub(r.Began) > 10*time.Minute+time.Second {
			t.Errorf("%+v", p)
		}
	})
}

func TestProtectionExpiringDuringItsEvictionChangesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		job := s.pod("job", annotation(drainability.DoNotDisrupt, "10s"), stopsIn(20*time.Second))
		s.latency = 8 * time.Second
		r := drainTo(t, s, Drained, Options{Terms: within(time.Minute)})
		if p := receiptOf(t, r, job); p.Verdict.Rule != podrules.ByProtected || p.End != Stopped {
			t.Errorf("%+v", p)
		}
	})
}

func TestAProtectionThatIsLiftedFreesThePod(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		job := s.pod("job", annotation(drainability.SafeToEvict, "false"))
		policy := podrules.Voluntary().With(podrules.ByProtected, podrules.Await)
		time.AfterFunc(time.Minute, func() { s.update(job, func(p *simPod) { p.Annotations = nil }) })
		r := drainTo(t, s, Drained, Options{Policy: &policy})
		tookAbout(t, r, time.Minute+2*time.Second)
	})
}

func TestTerminatingPodIsCutOffAtTheDeadline(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("slow", stopsIn(never), grace(time.Hour), deleted(10*time.Minute, time.Hour))
		r := drainTo(t, s, Drained, Options{Terms: Terms{Deadline: time.Now().Add(time.Minute), Margin: 2 * time.Second}})
		q := receiptOf(t, r, p)
		if q.Asked != Shortened || q.Verdict.Rule != podrules.ByTerminating || q.End != Killed {
			t.Errorf("%+v", q)
		}
		tookAbout(t, r, 58*time.Second)
	})
	simulate(t, func(t *testing.T, s *sim) { // in a voluntary drain it has all its time
		s.pod("slow", stopsIn(never), grace(time.Hour), deleted(10*time.Minute, time.Hour))
		r := drainTo(t, s, Drained, Options{})
		tookAbout(t, r, 50*time.Minute)
		if n := len(s.asked("", nil)); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestAMissingRightToDeleteLeavesTheEviction(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web", label("app", "web"), grace(30*time.Second), twinned(newName, time.Second))
		b := s.budget("web", 1, 1, map[string]string{"app": "web"})
		s.failAll("delete", fault{err: forbidden(`pods "web" is forbidden: User "agent" cannot delete resource "pods"`)})
		s.after(40*time.Second, func() { b.healthy = 0 })
		r := drainTo(t, s, Drained, Options{Terms: within(time.Minute)})
		p := receiptOf(t, r, web)
		if p.Asked != Evicted || !slices.ContainsFunc(p.Delays, func(d Delay) bool { return d.Reason == NoRight }) {
			t.Errorf("%+v", p)
		}
		s.wantRequests(t, "delete", 1)
	})
}

func TestForbiddenEvictionsAreRetriedSparingly(t *testing.T) {
	for _, disable := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			s.podsNamed(100, "web-%d")
			s.failWhen(fault{err: forbidden(`User "agent" cannot create resource "pods/eviction"`)}, func(c call) bool {
				return c.verb == "evict" || c.verb == "delete"
			})
			r, err := drained(t, s, Options{DisableEviction: disable, Terms: Terms{GiveUp: time.Now().Add(time.Minute)}})
			wantOutcome(t, r, err, GaveUp)
			if !strings.Contains(err.Error(), "forbidden: User") {
				t.Errorf("%.200v", err)
			}
			if n := len(s.asked("evict", nil)) + len(s.asked("delete", nil)); n > 100+6 {
				t.Errorf("%d evictions and deletions in a minute", n)
			}
		})
	}
}

func TestDisableEvictionDeletesPastBudgetsAndSaysSo(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.blockedPod("web")
		r := drainTo(t, s, Drained, Options{DisableEviction: true})
		if p := receiptOf(t, r, web); p.Asked != DeletedOnRequest || p.GraceGiven != 30 {
			t.Errorf("%+v", p)
		}
		if len(s.asked("evict", nil)) != 0 || !strings.Contains(r.Summary(), "1 deleted past a disruption budget") {
			t.Errorf("%s", r.Summary())
		}
	})
}

func TestSelectLeavesOthersAlone(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		mine := s.pod("mine", label("app", "mine"))
		other := s.pod("other", label("app", "other"), unowned)
		r := drainTo(t, s, Drained, Options{Select: func(p kubeapi.Pod) bool { return p.Labels["app"] == "mine" }})
		if p := receiptOf(t, r, other); p.Verdict.Rule != podrules.ByExcluded || p.Action != podrules.Leave || p.End != StillThere {
			t.Errorf("%+v", p)
		}
		if p := receiptOf(t, r, mine); p.End != Stopped {
			t.Errorf("%+v", p)
		}
	})
}

func TestSkipTerminatingForLeavesPodsPastTheirGrace(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		dead := s.pod("dead", stopsIn(never), deleted(10*time.Minute, 30*time.Second))
		web := s.pod("web", stopsIn(never), grace(10*time.Second))
		s.machineOff(time.Now()) // an unready node: nothing ever ends
		r := drainTo(t, s, Drained, Options{SkipTerminatingFor: time.Minute})
		tookAbout(t, r, time.Minute+10*time.Second)
		for _, p := range []*simPod{dead, web} {
			if q := receiptOf(t, r, p); q.Action != podrules.Leave || q.End != StillThere {
				t.Errorf("%+v", q)
			}
		}
	})
}

func TestFinishedPodsGoWhateverTheirBudget(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("job", phase("Failed"), unowned, label("app", "job"))
		p.exit(killedExitCode, time.Now().Add(-time.Hour))
		s.budget("job", 1, 1, map[string]string{"app": "job"})
		r := drainTo(t, s, Drained, Options{Terms: within(10 * time.Second)})
		if q := receiptOf(t, r, p); q.Verdict.Rule != podrules.ByFinished || q.End == Killed || q.CutShort() {
			t.Errorf("a kill of an hour ago is not this drain's: %+v", q)
		}
	})
}

func TestPodsOfATerminatingNamespaceAreAwaited(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		p := s.pod("web")
		s.failAll("evict", fault{err: &kubeapi.StatusError{Code: 403, Reason: "Forbidden", Causes: []kubeapi.Cause{{Reason: "NamespaceTerminating"}}}})
		s.after(5*time.Second, func() { _, _ = s.remove(p, kubeapi.Removal{UID: p.UID}) })
		r := drainTo(t, s, Drained, Options{})
		if q := receiptOf(t, r, p); q.Asked != NotAsked || q.Delays[0].Reason != Failing {
			t.Errorf("%+v", q)
		}
	})
}

func TestRetryAfterOfTheAPIServerIsRespected(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(250, "web-%d")
		began := time.Now()
		s.failWhen(fault{err: &kubeapi.StatusError{Code: 429, Reason: "TooManyRequests", Message: "too many requests", RetryAfter: time.Second}}, func(c call) bool {
			return c.verb == "evict" && time.Since(began) < 10*time.Second
		})
		r := drainTo(t, s, Drained, Options{})
		s.wantRequestsUpTo(t, "evict", 250+32+10)
		tookUpTo(t, r, 16*time.Second)
	})
}

func TestUnavailableAPIServerIsRetriedUntilItAnswers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podsNamed(250, "web-%d")
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
		drainTo(t, s, Drained, Options{Terms: within(time.Minute)})
		s.wantRequestsUpTo(t, "evict", 250+250+32)
		s.wantRequests(t, "delete", 0)
	})
}

func TestOnlyPodsCutShortCountAsCutShort(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("quick", stopsIn(time.Second), grace(time.Minute))
		s.pod("slow", stopsIn(never), grace(time.Minute))
		r := drainTo(t, s, Drained, Options{Terms: within(20 * time.Second)})
		if !strings.Contains(r.Summary(), "1 cut short") {
			t.Error(r.Summary())
		}
	})
}

func TestProgressSpeaksForItself(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("quick", stopsIn(0))
		s.pod("slow", stopsIn(never), grace(time.Minute))
		s.pod("held", label("app", "web"))
		s.pod("agent", ownedBy("DaemonSet"))
		s.budget("web", 1, 1, map[string]string{"app": "web"})
		var lines []string
		last := Progress{}
		_, err := Run(t.Context(), s, Options{
			Node: node, Terms: Terms{GiveUp: time.Now().Add(10 * time.Second)},
			OnProgress: func(p Progress) { lines, last = append(lines, p.String()), p },
		})
		if err == nil || lines[0] != "pods not known yet" {
			t.Errorf("%v, %q", err, lines[0])
		}
		if want := "1 of 3 gone, 1 stopping, 1 waiting (disruption-budget shop/web: 1)"; last.String() != want {
			t.Errorf("%q, want %q", last, want)
		}
		if last.Stayed != 1 || last.Node != node || len(last.Obstructed()) != 1 {
			t.Errorf("%+v", last)
		}
	})
}

func TestAReceiptIsJSONWhateverItsDeadline(t *testing.T) {
	for _, c := range []struct {
		deadline time.Time
		want     string
	}{
		{time.Time{}, `"outcome":"drained"`},
		{time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC), `"error"`},
	} {
		raw := Receipt{Node: node, Outcome: Drained, Deadline: c.deadline}.JSON()
		if !json.Valid(raw) || !strings.Contains(string(raw), c.want) {
			t.Errorf("%s, want %s in it", raw, c.want)
		}
	}
}

func TestAnAPIThatStopsFollowingIsReported(t *testing.T) {
	simulate(t, func(t *testing.T, _ *sim) {
		_, err := Run(t.Context(), silent{}, Options{Node: node, Terms: Terms{GiveUp: time.Now().Add(time.Second)}})
		if err == nil || !strings.Contains(err.Error(), "the watch ended for good: connection lost") {
			t.Error(err)
		}
	})
}

// silent is an API that breaks its promise to follow.
type silent struct{ still }

func (silent) FollowPodsOn(context.Context, string, kubeapi.Handler[kubeapi.Pod]) error {
	return errors.New("connection lost")
}

func TestPodsThatOutliveTheMachineAreLeft(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web", stopsIn(never))
		s.machineOff(time.Now().Add(5 * time.Second)) // sooner than announced
		r, err := drained(t, s, Options{Terms: within(20 * time.Second)})
		wantOutcome(t, r, err, DeadlinePassed)
		if p := receiptOf(t, r, web); !p.Left() || p.Asked != Evicted {
			t.Errorf("%+v", p)
		}
		if !strings.Contains(err.Error(), "deadline-passed with 1 pods left: shop/web: stopping") {
			t.Error(err)
		}
	})
}

// slowlyListed is a sim whose first list is overtaken by the watch: a pod is bound after it was read, and before it is
// answered.
type slowlyListed struct {
	*sim

	bind func()
}

func (s *slowlyListed) ListPodsOn(ctx context.Context, node string) ([]kubeapi.Pod, error) {
	pods, err := s.sim.ListPodsOn(ctx, node)
	if s.bind != nil {
		s.bind()
		s.bind = nil
		time.Sleep(time.Second)
	}
	return pods, err
}

func TestI7PodArrivingDuringTheLastListIsSeen(t *testing.T) {
	for _, c := range []struct {
		owner string
		asked Asked
		end   End
		bound int
	}{
		{"ReplicaSet", Evicted, Stopped, 0},
		{"DaemonSet", NotAsked, StillThere, 1},
	} {
		t.Run(c.owner, simulated(func(t *testing.T, s *sim) {
			s.pod("web")
			api := &slowlyListed{sim: s, bind: func() { s.pod("late", ownedBy(c.owner)) }}
			r, err := Run(t.Context(), api, Options{Node: node, Terms: within(time.Minute)})
			wantOutcome(t, r, err, Drained)
			if p := receiptNamed(t, r, "late"); p.Asked != c.asked || p.End != c.end || s.bound() != c.bound {
				t.Errorf("%d pods are on the node; of the late one: %+v", s.bound(), p)
			}
		}))
	}
}

func TestGonePodIsNotReviewedAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		pod := s.pod("batch", annotation(drainability.DoNotDisrupt, "4h")).snapshot()
		d := New(s, Options{Node: node, Policy: ptr(podrules.Voluntary().With(podrules.ByProtected, podrules.Leave))})
		d.see(pod, time.Now())
		if next := d.review(time.Now()); next != pod.CreationTimestamp.Add(4*time.Hour) {
			t.Errorf("while it is there it is reviewed at %s", next)
		}
		d.forget(pod, time.Now())
		for _, at := range []time.Duration{0, 5 * time.Hour} {
			if next := d.review(time.Now().Add(at)); !next.IsZero() {
				t.Errorf("after %s it is reviewed at %s", at, next)
			}
		}
	})
}
