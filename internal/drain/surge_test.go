package drain

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// fakeSurger answers as its functions say, and records the calls.
type fakeSurger struct {
	s *sim
	// decide and run replace the default answers: needed, and a successor that is ready after startup.
	decide func(ctx context.Context, c decideCall) (surge.Decision, error)
	run    func(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result

	startup time.Duration
	restore time.Duration // from the end of ctx until the size is restored

	mu        sync.Mutex
	decisions []decideCall
	runs      []runCall
	running   map[string]int // by owner
	atOnce    int            // most surges that ran at once
	raised    int            // sizes that are not restored
}

type decideCall struct {
	pod         string
	pdbs        int
	deniedSince time.Time
	at          time.Time
	until       time.Time
	n           int // number of this call for the pod, from 0
}

type runCall struct {
	surge.Request

	at time.Time
}

func newFakeSurger(s *sim) *fakeSurger {
	return &fakeSurger{s: s, startup: 10 * time.Second, restore: 3 * time.Second, running: map[string]int{}}
}

func needed(startup time.Duration) surge.Decision {
	return surge.Decision{Verdict: surge.Needed, Reason: "last-ready", Detail: "it is the last ready pod", StartupSeconds: startup.Seconds()}
}

func verdict(v surge.Verdict) surge.Decision {
	return surge.Decision{Verdict: v, Reason: "test", Detail: "the test says so"}
}

func (f *fakeSurger) Decide(
	ctx context.Context, pod kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, deniedSince, until time.Time,
) (surge.Decision, error) {
	f.mu.Lock()
	c := decideCall{pod: pod.Name, pdbs: len(pdbs), deniedSince: deniedSince, at: time.Now(), until: until, n: len(f.decisionsAbout(pod.Name))}
	f.decisions = append(f.decisions, c)
	f.mu.Unlock()
	if f.decide != nil {
		return f.decide(ctx, c)
	}
	return needed(f.startup), nil
}

func (f *fakeSurger) decisionsAbout(pod string) (found []decideCall) {
	for _, c := range f.decisions {
		if c.pod == pod {
			found = append(found, c)
		}
	}
	return found
}

func (f *fakeSurger) Run(ctx context.Context, r surge.Request) surge.Result {
	owner := r.Pod.OwnerReferences[0].UID
	f.mu.Lock()
	f.runs = append(f.runs, runCall{r, time.Now()})
	f.running[owner]++
	if f.running[owner] > 1 {
		panic("two surges of one owner at once")
	}
	f.raised++
	f.atOnce = max(f.atOnce, f.raised)
	f.mu.Unlock()
	run := f.run
	if run == nil {
		run = runOrdinary
	}
	for _, end := range []time.Time{r.Until, r.GiveUpAt} {
		if !end.IsZero() {
			limited, cancel := context.WithDeadline(ctx, end)
			defer cancel()
			ctx = limited
		}
	}
	began := time.Now()
	result := run(ctx, f, r)
	if result.StartedAt.IsZero() {
		result.StartedAt = began
	}
	result.EndedAt = time.Now()
	f.mu.Lock()
	f.running[owner]--
	f.raised--
	f.mu.Unlock()
	return result
}

// runOrdinary starts a successor, waits for it, and lets the ReplicaSet delete the pod.
func runOrdinary(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result {
	successor := r.Pod.Namespace + "/" + r.Pod.Name + "-next"
	r.OnProgress(surge.Progress{Step: surge.AwaitingReady, Since: time.Now(), Successor: successor, Detail: "starting"})
	if !elapsed.Sleep(ctx, f.startup) {
		return f.giveUp()
	}
	ready := time.Now()
	r.OnProgress(surge.Progress{Step: surge.Removing, Since: ready, Successor: successor, Detail: "lowered"})
	f.removePod(r.Pod)
	return surge.Result{PodLeft: true, Successor: successor, ReadyAt: ready}
}

// runUntilCancelled never gets a successor.
func runUntilCancelled(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result {
	r.OnProgress(surge.Progress{Step: surge.AwaitingReady, Since: time.Now(), Detail: "starting"})
	<-ctx.Done()
	return f.giveUp()
}

// countRaised returns how many surges have not restored the size yet.
func (f *fakeSurger) countRaised() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.raised
}

func (f *fakeSurger) giveUp() surge.Result {
	time.Sleep(f.restore)
	return surge.Result{Reason: "cancelled", Detail: "the context ended"}
}

// removePod deletes a pod as the ReplicaSet controller does.
func (f *fakeSurger) removePod(p kubeapi.Pod) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if was := f.s.pods[p.UID]; was != nil && !was.gone {
		was.deletedByOther = true
		_, _ = f.s.deletePod(was, kubeapi.PodRemoval{UID: p.UID})
	}
}

func withOwnerUID(uid string) podOption {
	return func(p *simPod) { p.OwnerReferences[0].UID = uid }
}

func TestPodLeavesAfterItsSuccessorIsReady(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web")
		f := newFakeSurger(s)
		var steps []string
		r := runDrainTo(t, s, Drained, Options{Surger: f, OnProgress: func(p Progress) {
			for _, b := range p.RemainingPods {
				if b.Reason == ObstacleSurge && !slices.Contains(steps, b.Detail) {
					steps = append(steps, b.Detail)
					check.Is(t, 1, p.Waiting)
					check.Len(t, 0, p.BlockedPods())
					check.Contains(t, p.String(), "surge: 1")
					check.Not(t, p.Surging != 1 && len(steps) <= 2, "no surge runs: %+v", p)
				}
			}
		}})
		checkTookAbout(t, r, f.startup+2*time.Second)
		s.checkRequestCount(t, "evict", 0)
		got := podReportOf(t, r, web)
		check.Is(t, Surged, got.Removal)
		check.Is(t, Stopped, got.End)
		check.Is(t, surge.Needed, got.Surge.Decision.Verdict)
		check.Is(t, surge.Removing, got.Surge.Progress.Step)
		check.Is(t, "shop/web-next", got.Surge.Result.Successor)
		check.Is(t, f.startup, got.RemovalRequestedAt.Sub(r.StartedAt).Round(time.Second))
		check.Is(t, Totals{Gone: 1, Surged: 1, SecondsGained: 10}, r.Totals())
		check.Contains(t, r.Summary(), "1 after their successor was ready (10s of service gained)")
		check.Is(t, "raising; awaiting-ready, successor shop/web-next: starting", strings.Join(steps[:2], "; "))
	})
}

func TestPodsThatCannotSurgeCostNothing(t *testing.T) {
	times := map[bool][]time.Duration{}
	for _, with := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			began := time.Now()
			s.addPod("job", withOwner("Job"))
			s.addPod("new", withPhase("Pending"))
			s.addPod("done", withPhase("Succeeded"))
			o := Options{}
			f := newFakeSurger(s)
			if with {
				o.Surger = f
			}
			runDrainTo(t, s, Drained, o)
			for _, q := range s.findRequests("evict", nil) {
				times[with] = append(times[with], q.at.Sub(began))
			}
			check.Is(t, 0, len(f.decisions))
		})
	}
	check.Is(t, 3, len(times[true]))
	check.Is(t, fmt.Sprint(times[false]), fmt.Sprint(times[true]))
}

func TestDrainAndPreviewSayWhyAnOwnerCannotSurge(t *testing.T) {
	for _, kind := range []string{"StatefulSet", "ReplicationController", "VirtualMachine"} {
		simulate(t, func(t *testing.T, s *sim) {
			pod := s.addPod("web", withOwner(kind))
			f := newFakeSurger(s)
			f.decide = func(context.Context, decideCall) (surge.Decision, error) { return verdict(surge.Refused), nil }
			preview := findPrediction(t, runPreview(t, s, Options{Surger: f}, false), pod)
			report := podReportOf(t, runDrainTo(t, s, Drained, Options{Surger: f}), pod)
			check.Is(t, "refused: the test says so", preview.Surge.String(), kind)
			check.Is(t, "refused: the test says so", report.Surge.String(), kind)
		})
	}
}

func TestUnsuccessfulSurgeLetsTheDrainGoOn(t *testing.T) {
	fails := func(context.Context, *fakeSurger, surge.Request) surge.Result {
		time.Sleep(4 * time.Second)
		return surge.Result{Reason: "unschedulable", Detail: "no node has room"}
	}
	lies := func(context.Context, *fakeSurger, surge.Request) surge.Result { return surge.Result{PodLeft: true} }
	for name, c := range map[string]struct {
		decision surge.Decision
		run      func(context.Context, *fakeSurger, surge.Request) surge.Result
		takes    time.Duration
		says     string
	}{
		"not needed": {decision: verdict(surge.NotNeeded)},
		"refused":    {decision: verdict(surge.Refused), says: "refused: the test says so"},
		"failed":     {decision: needed(0), run: fails, takes: 4 * time.Second, says: "unschedulable: no node has room"},
		"pod stays":  {decision: needed(0), run: lies, takes: maxLeaveWait, says: "left"},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			web := s.addPod("web")
			f := newFakeSurger(s)
			f.decide = func(context.Context, decideCall) (surge.Decision, error) { return c.decision, nil }
			f.run = c.run
			r := runDrainTo(t, s, Drained, Options{Surger: f})
			got := podReportOf(t, r, web)
			check.Is(t, Evicted, got.Removal)
			check.Is(t, c.takes, got.RemovalRequestedAt.Sub(r.StartedAt).Round(100*time.Millisecond))
			check.Is(t, c.says == "", got.Surge == nil)
			check.Contains(t, got.Surge.String(), c.says)
			check.Is(t, 0, r.Totals().Surged)
			check.Is(t, 1, len(f.decisions))
		}))
	}
}

func TestEvictableStepLetsTheEvictionGo(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web")
		f := newFakeSurger(s)
		f.run = func(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result {
			if !elapsed.Sleep(ctx, f.startup) {
				return f.giveUp()
			}
			ready := time.Now()
			r.OnProgress(surge.Progress{Step: surge.Evictable, Since: ready, Successor: "shop/next", Detail: "evict it"})
			for ctx.Err() == nil && s.countRemainingPods() > 0 {
				time.Sleep(100 * time.Millisecond)
			}
			return surge.Result{PodLeft: true, Successor: "shop/next", ReadyAt: ready}
		}
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		got := podReportOf(t, r, web)
		check.Is(t, Evicted, got.Removal)
		check.Is(t, f.startup, got.RemovalRequestedAt.Sub(r.StartedAt).Round(100*time.Millisecond))
		check.Is(t, 1, r.Totals().Surged)
	})
}

func TestDeniedEvictionIsDecidedAgainWithItsPDB(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web")
		f := newFakeSurger(s)
		f.decide = func(_ context.Context, c decideCall) (surge.Decision, error) {
			if c.pdbs == 0 {
				return verdict(surge.NotNeeded), nil
			}
			return needed(f.startup), nil
		}
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		check.Is(t, Surged, podReportOf(t, r, web).Removal)
		must.Not(t, len(f.decisions) != 2, "decisions: %+v", f.decisions)
		check.Is(t, 1, f.decisions[1].pdbs)
		waited := f.decisions[1].at.Sub(f.decisions[0].at)
		check.Not(t, waited > 100*time.Millisecond, "decided again after %s", waited)
	})
}

// decideDenied decides as a Surger with minDenial about a pod that only its PDB keeps from leaving.
func decideDenied(minDenial time.Duration) func(context.Context, decideCall) (surge.Decision, error) {
	return func(_ context.Context, c decideCall) (surge.Decision, error) {
		d := needed(10 * time.Second)
		d.Reason = surge.ReasonPDBDenies
		switch at := c.deniedSince.Add(minDenial); {
		case c.pdbs == 0 || c.deniedSince.IsZero():
			return verdict(surge.NotNeeded), nil
		case time.Now().Before(at):
			d.Verdict, d.Detail, d.DecideAgainAt = surge.NotYet, "the PDB denies the eviction", at
		}
		return d, nil
	}
}

// addDenyingPDB adds a pod with a PDB that would allow its eviction if another pod were healthy.
func (s *sim) addDenyingPDB(name string, changes ...podOption) (*simPod, *simPDB) {
	p := s.addPod(name, append([]podOption{withLabel("app", name)}, changes...)...)
	return p, s.addPDB(name, 1, 2, map[string]string{"app": name})
}

func TestPodGetsSuccessorOnceItsPDBHasDeniedForAWhile(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, _ := s.addDenyingPDB("web")
		f := newFakeSurger(s)
		f.decide = decideDenied(time.Minute)
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		got := podReportOf(t, r, web)
		check.Is(t, Surged, got.Removal)
		must.Not(t, len(f.runs) != 1, "surges: %+v", f.runs)
		check.Is(t, surge.ReasonPDBDenies, f.runs[0].Decision.Reason)
		waited := f.runs[0].at.Sub(r.StartedAt)
		check.Not(t, waited < time.Minute || waited > time.Minute+maxPDBPauseVoluntary+time.Second, "surge after %s", waited)
		denied := s.findRequests("evict", web)
		check.Not(t, len(denied) < 10, "only %d evictions were tried before", len(denied))
		for _, c := range f.decisions[1:] {
			check.Not(t, c.deniedSince.IsZero() || c.deniedSince.After(denied[0].at.Add(time.Second)), "denied since %s", c.deniedSince.Sub(r.StartedAt))
		}
	})
}

// TestOnlyDenialsWithoutABreakLeadToASuccessor has a PDB that allows an eviction for one second, which another client uses.
func TestOnlyDenialsWithoutABreakLeadToASuccessor(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, pdb := s.addDenyingPDB("web")
		s.failAll("evict", fault{err: newDenial("The disruption budget web needs 1 healthy pods and has 1 currently")})
		for at, healthy := range map[time.Duration]int32{40 * time.Second: 0, 41 * time.Second: 1} {
			s.changeAfter(at, func() { pdb.minHealthy = healthy; s.wakeWatchers() })
		}
		f := newFakeSurger(s)
		f.decide = decideDenied(time.Minute)
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		check.Is(t, Surged, podReportOf(t, r, web).Removal)
		must.Not(t, len(f.runs) != 1, "surges: %+v", f.runs)
		waited := f.runs[0].at.Sub(r.StartedAt)
		check.Not(t, waited < 100*time.Second || waited > 100*time.Second+maxPDBPauseVoluntary+time.Second, "surge after %s", waited)
	})
}

// TestDenialAfterADecisionWithoutOneIsDecidedAtOnce has a pod whose decision came between two denials. A pause could cost the last time
// for its surge.
func TestDenialAfterADecisionWithoutOneIsDecidedAtOnce(t *testing.T) {
	for denied, pause := range map[bool]time.Duration{false: 0, true: deniedDecisionPause} {
		now := time.Now()
		d := &Drain{options: Options{Logger: slog.New(slog.DiscardHandler)}}
		p := &podState{surge: &podSurge{phase: surgeDeciding, decided: 3, decidedDenied: denied}}
		d.recordSurgeDecision(p, verdict(surge.NotNeeded), nil, now)
		check.Is(t, pause, p.surge.nextAt.Sub(now), "denied", denied)
	}
}

// TestFailedDecisionAboutADeniedPodIsTriedAgainSoon has a Surger that cannot read the owner when the pod should get its successor.
func TestFailedDecisionAboutADeniedPodIsTriedAgainSoon(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, _ := s.addDenyingPDB("web", withGrace(5*time.Second))
		f := newFakeSurger(s)
		var failedAt time.Time
		f.decide = func(ctx context.Context, c decideCall) (surge.Decision, error) {
			d, err := decideDenied(20*time.Second)(ctx, c)
			if d.Verdict == surge.Needed && failedAt.IsZero() {
				failedAt = time.Now()
				return surge.Decision{}, errors.New("no answer")
			}
			return d, err
		}
		r := runDrainTo(t, s, Drained, Options{Surger: f, TimeLimits: deadlineIn(time.Minute)})
		check.Is(t, Surged, podReportOf(t, r, web).Removal)
		must.Not(t, len(f.runs) != 1, "surges: %+v", f.runs)
		paused := f.runs[0].at.Sub(failedAt)
		check.Not(t, paused < time.Second || paused > 4*time.Second, "tried again after %s", paused)
	})
}

// TestNearerDeadlineIsDecidedAgainAboutADeniedPod gets a deadline before the time of the next decision.
func TestNearerDeadlineIsDecidedAgainAboutADeniedPod(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addDenyingPDB("web", withGrace(5*time.Second))
		f := newFakeSurger(s)
		f.decide = decideDenied(time.Hour)
		d, wait := startDrain(t.Context(), t, s, Options{Surger: f})
		time.Sleep(15*time.Second + 500*time.Millisecond)
		changed := time.Now()
		d.SetTimeLimits(deadlineIn(30 * time.Second))
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		i := slices.IndexFunc(f.decisions, func(c decideCall) bool { return !c.until.IsZero() })
		must.Not(t, i < 0, "no decision with the deadline: %+v", f.decisions)
		check.Not(t, f.decisions[i].at.Sub(changed) > 100*time.Millisecond, "decided again after %s", f.decisions[i].at.Sub(changed))
	})
}

func TestDeniedPodLeavesAsSoonAsItsPDBAllowsIt(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, pdb := s.addDenyingPDB("web")
		f := newFakeSurger(s)
		f.decide = decideDenied(time.Minute)
		f.run = func(ctx context.Context, _ *fakeSurger, r surge.Request) surge.Result { // the successor is never ready
			r.OnProgress(surge.Progress{Step: surge.AwaitingReady, Since: time.Now(), Detail: "starting"})
			for s.countRemainingPods() > 0 && elapsed.Sleep(ctx, 100*time.Millisecond) {
			}
			return surge.Result{PodLeft: ctx.Err() == nil}
		}
		s.changeAfter(2*time.Minute, func() { pdb.minHealthy = 0; s.wakeWatchers() })
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		got := podReportOf(t, r, web)
		check.Is(t, Evicted, got.Removal)
		waited := got.RemovalRequestedAt.Sub(r.StartedAt)
		check.Not(t, waited < 2*time.Minute || waited > 2*time.Minute+100*time.Millisecond, "evicted after %s", waited)
		check.Is(t, 1, len(f.runs))
	})
}

func TestOnlyWaitingPodsAreReportedAsNotYetDecided(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, pdb := s.addDenyingPDB("web", withGrace(5*time.Second))
		stays, _ := s.addDenyingPDB("stays", withGrace(5*time.Second))
		s.changeAfter(20*time.Second, func() { pdb.minHealthy = 0; s.wakeWatchers() })
		f := newFakeSurger(s)
		f.decide = decideDenied(time.Minute)
		o := Options{Surger: f, TimeLimits: timeoutIn(30 * time.Second)}
		check.Is(t, "not-yet: the PDB denies the eviction", findPrediction(t, runPreview(t, s, o, false), web).Surge.String())
		r := runDrainTo(t, s, TimedOut, o)
		check.Is(t, Evicted, podReportOf(t, r, web).Removal)
		check.Is(t, "", podReportOf(t, r, web).Surge.String())
		check.Is(t, "not-yet: the PDB denies the eviction", podReportOf(t, r, stays).Surge.String())
	})
}

func TestForcedDeletionHasPriorityOverSurge(t *testing.T) {
	deletedAt := map[bool]time.Duration{}
	for _, with := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			began := time.Now()
			web := s.addBlockedPod("web", withGrace(10*time.Second))
			o := Options{TimeLimits: deadlineIn(time.Minute)}
			f := newFakeSurger(s)
			f.run = runUntilCancelled
			if with {
				o.Surger = f
			}
			r := runDrainTo(t, s, Drained, o)
			got := podReportOf(t, r, web)
			check.Is(t, ForceDeleted, got.Removal)
			check.Is(t, 10, got.GivenGraceSeconds)
			deletedAt[with] = got.RemovalRequestedAt.Sub(began).Round(100 * time.Millisecond)
			if with {
				check.Contains(t, got.Surge.String(), "no time was left")
				check.Not(t, f.runs[0].Until.After(got.RemovalRequestedAt.Add(-minSurgeLead)), "surge until %s", f.runs[0].Until.Sub(began))
				check.Is(t, 0, f.countRaised())
			}
		})
	}
	check.Is(t, deletedAt[false], deletedAt[true])
}

// TestUndecidedPodIsNotEvicted has an API server that answers late. The pod would go while a controller removes its successor.
func TestUndecidedPodIsNotEvicted(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web", withGrace(5*time.Second))
		f := newFakeSurger(s)
		decided := 0
		f.decide = func(context.Context, decideCall) (surge.Decision, error) {
			if decided++; decided <= 20 {
				return surge.Decision{}, errors.New("read ReplicaSet: context deadline exceeded")
			}
			return verdict(surge.Needed), nil
		}
		var log strings.Builder
		r := runDrainTo(t, s, Drained, Options{Surger: f, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		got := podReportOf(t, r, web)
		check.Is(t, Surged, got.Removal)
		check.Is(t, 21, decided)
		check.Is(t, 1, strings.Count(log.String(), "cannot decide yet"), log.String())
		check.Is(t, "", got.Surge.Problem)
		must.Not(t, len(got.Delays) == 0 || got.Delays[0].Reason != ObstacleSurge, "delays: %+v", got.Delays)
	})
}

// TestPodThatWaitedForAnotherSurgeIsDecidedWithTheWholeTime has no answer to the first decision about a pod. Then the surge of another pod
// of the owner takes longer than a pod may stay undecided, and fails.
func TestPodThatWaitedForAnotherSurgeIsDecidedWithTheWholeTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("first", withGrace(5*time.Second))
		second := s.addPod("second", withGrace(5*time.Second))
		f := newFakeSurger(s)
		f.decide = func(ctx context.Context, c decideCall) (surge.Decision, error) {
			if c.pod == "second" && c.n == 0 {
				return surge.Decision{}, errors.New("no answer")
			}
			return needed(f.startup), ctx.Err()
		}
		f.run = func(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result {
			if r.Pod.Name == "second" {
				return runOrdinary(ctx, f, r)
			}
			time.Sleep(maxUndecidedTime + time.Second)
			return surge.Result{Reason: "unschedulable", Detail: "no node has room"}
		}
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		check.Is(t, Surged, podReportOf(t, r, second).Removal)
	})
}

// TestPodThatWasGivenUpIsDecidedWithTheWholeTime has no time for a surge before the decision could be made. Its PDB denies the eviction, and
// then the drain gets more time.
func TestPodThatWasGivenUpIsDecidedWithTheWholeTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, _ := s.addDenyingPDB("web", withGrace(5*time.Second))
		f := newFakeSurger(s)
		began, ended := time.Now(), 0
		f.decide = func(ctx context.Context, c decideCall) (surge.Decision, error) {
			if c.at.Sub(began) < 5*time.Second {
				return surge.Decision{}, errors.New("no answer")
			}
			if ctx.Err() != nil {
				ended++
			}
			return needed(f.startup), ctx.Err()
		}
		d, wait := startDrain(t.Context(), t, s, Options{Surger: f, TimeLimits: timeoutIn(time.Minute)})
		for _, left := range []time.Duration{6 * time.Second, 10 * time.Minute} {
			time.Sleep(time.Second)
			d.SetTimeLimits(timeoutIn(left))
		}
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		check.Is(t, Surged, podReportOf(t, r, web).Removal)
		check.Is(t, 0, ended)
	})
}

func TestHangingDecisionDelaysEvictionOnlyForATime(t *testing.T) {
	for _, limits := range []TimeLimits{{}, {Deadline: time.Now().Add(time.Minute)}} {
		simulate(t, func(t *testing.T, s *sim) {
			web := s.addPod("web", withGrace(5*time.Second))
			f := newFakeSurger(s)
			f.decide = func(ctx context.Context, _ decideCall) (surge.Decision, error) {
				<-ctx.Done()
				return surge.Decision{}, ctx.Err()
			}
			if limits.HasDeadline() {
				limits.Deadline = time.Now().Add(time.Minute)
			}
			r := runDrainTo(t, s, Drained, Options{Surger: f, TimeLimits: limits})
			got := podReportOf(t, r, web)
			check.Is(t, Evicted, got.Removal)
			check.Contains(t, got.Surge.String(), "context deadline exceeded")
			waited := got.RemovalRequestedAt.Sub(r.StartedAt)
			longest := maxUndecidedTime
			if limits.HasDeadline() {
				longest = time.Minute / 4
			}
			check.Not(t, waited > longest+100*time.Millisecond, "evicted after %s", waited)
		})
	}
}

func TestNearerDeadlineIsDecidedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		startup  time.Duration
		runs     int
		decision int
		removal  RemovalMethod
	}{
		"surge fits":      {20 * time.Second, 1, 1, Surged},
		"it is unknown":   {0, 2, 2, Surged},
		"it fits no more": {50 * time.Second, 1, 2, Evicted},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			web := s.addPod("web", withGrace(5*time.Second))
			f := newFakeSurger(s)
			if c.startup > 0 {
				f.startup = c.startup
			}
			f.decide = func(_ context.Context, call decideCall) (surge.Decision, error) {
				d := needed(c.startup)
				if left := time.Until(call.until); !call.until.IsZero() && left < c.startup {
					d = verdict(surge.Refused)
				}
				return d, nil
			}
			d, wait := startDrain(t.Context(), t, s, Options{Surger: f})
			time.Sleep(5 * time.Second)
			near := deadlineIn(45 * time.Second)
			d.SetTimeLimits(near)
			r, err := wait()
			checkOutcome(t, r, err, Drained)
			check.Is(t, c.removal, podReportOf(t, r, web).Removal)
			check.Is(t, c.runs, len(f.runs))
			check.Is(t, c.decision, len(f.decisions))
			if c.decision > 1 {
				check.Not(t, !f.decisions[1].until.Before(near.Deadline), "until %s", f.decisions[1].until)
			}
			check.Not(t, r.EndedAt.After(near.Deadline), "late")
		}))
	}
}

func TestLaterDeadlineKeepsWaitingForSuccessor(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web", withGrace(5*time.Second))
		f := newFakeSurger(s)
		f.startup = 2 * time.Minute
		d, wait := startDrain(t.Context(), t, s, Options{Surger: f, TimeLimits: deadlineIn(time.Minute)})
		time.Sleep(5 * time.Second)
		d.SetTimeLimits(deadlineIn(10 * time.Minute))
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		check.Is(t, Surged, podReportOf(t, r, web).Removal)
		check.Is(t, 2, len(f.runs))
	})
}

func TestEndedDrainWaitsForRestores(t *testing.T) {
	for name, c := range map[string]struct {
		limits  TimeLimits
		cancel  time.Duration
		restore time.Duration
		outcome Outcome
		takes   time.Duration
	}{
		"cancelled":      {cancel: 5 * time.Second, restore: 3 * time.Second, outcome: Cancelled, takes: 8 * time.Second},
		"never restored": {cancel: 5 * time.Second, restore: time.Minute, outcome: Cancelled, takes: 5*time.Second + maxRestoreWait},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.addBlockedPod("web")
			f := newFakeSurger(s)
			f.run, f.restore = runUntilCancelled, c.restore
			ctx, cancel := context.WithTimeout(t.Context(), c.cancel)
			defer cancel()
			began := time.Now()
			_, wait := startDrain(ctx, t, s, Options{Surger: f, TimeLimits: c.limits})
			r, err := wait()
			checkOutcome(t, r, err, c.outcome)
			check.Is(t, c.takes, time.Since(began).Round(100*time.Millisecond))
			check.Is(t, c.cancel, r.EndedAt.Sub(began).Round(100*time.Millisecond))
			s.checkRequestCount(t, "evict", 0)
			if c.restore < maxRestoreWait {
				check.Is(t, 0, f.countRaised())
				check.Is(t, "cancelled", r.Pods[0].Surge.Result.Reason)
			}
			time.Sleep(2 * time.Minute)
		}))
	}
}

// TestDrainedNodeWaitsForRestores has a node that is empty after 12 s.
func TestDrainedNodeWaitsForRestores(t *testing.T) {
	for name, c := range map[string]struct {
		restore                    time.Duration
		timeout, deadline, changed time.Duration // from the start; changed is a timeout that is set after 15 s
		takes                      time.Duration
	}{
		"restored":         {restore: 7 * time.Second, takes: 17 * time.Second},
		"never restored":   {restore: time.Minute, takes: 12*time.Second + maxRestoreWait},
		"timeout comes":    {restore: time.Minute, timeout: 25 * time.Second, takes: 25 * time.Second},
		"deadline comes":   {restore: time.Minute, deadline: 25 * time.Second, takes: 25 * time.Second},
		"timeout is later": {restore: time.Minute, timeout: 50 * time.Second, takes: 12*time.Second + maxRestoreWait},
		"timeout is moved": {restore: time.Minute, timeout: time.Hour, changed: 20 * time.Second, takes: 20 * time.Second},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPod("web", withGrace(5*time.Second))
			f := newFakeSurger(s)
			f.run = func(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result {
				result := runOrdinary(ctx, f, r)
				time.Sleep(c.restore)
				return result
			}
			began := time.Now()
			var limits TimeLimits
			if c.timeout > 0 {
				limits.TimeoutAt = began.Add(c.timeout)
			}
			if c.deadline > 0 {
				limits.Deadline = began.Add(c.deadline)
			}
			d, wait := startDrain(t.Context(), t, s, Options{Surger: f, TimeLimits: limits})
			if c.changed > 0 {
				time.AfterFunc(15*time.Second, func() { d.SetTimeLimits(TimeLimits{TimeoutAt: began.Add(c.changed)}) })
			}
			r, err := wait()
			checkOutcome(t, r, err, Drained)
			checkTookAbout(t, r, c.takes)
			if limits == (TimeLimits{}) { // the drain has no limit
				check.Is(t, true, f.runs[0].Until.IsZero())
				check.Is(t, maxSurgeTime+2*f.startup, f.runs[0].GiveUpAt.Sub(f.runs[0].at))
			}
			time.Sleep(2 * time.Minute)
			check.Is(t, 0, f.countRaised())
		}))
	}
}

func TestSurgeHasTimeForANewInstanceAndTheStart(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addBlockedPod("web")
		f := newFakeSurger(s)
		f.startup = 25 * time.Minute
		f.decide = func(context.Context, decideCall) (surge.Decision, error) {
			d := needed(5 * time.Minute)
			d.LaunchSeconds = (15 * time.Minute).Seconds()
			return d, nil
		}
		r := runDrainTo(t, s, Drained, Options{Surger: f, TimeLimits: timeoutIn(2 * time.Hour)})
		check.Is(t, Surged, podReportOf(t, r, web).Removal)
		check.Contains(t, podReportOf(t, r, web).Surge.String(), "a start takes about 5m0s, a new instance takes up to 15m0s; successor shop/web-next is ready")
		check.Is(t, 1, len(f.runs))
		check.Is(t, maxSurgeTime+25*time.Minute, f.runs[0].GiveUpAt.Sub(f.runs[0].at))
	})
}

func TestTimedOutDrainEvictsSurgingPodsBefore(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		free, blocked := s.addPod("free", withOwnerUID("a"), withGrace(10*time.Second)), s.addBlockedPod("blocked", withOwnerUID("b"), withGrace(10*time.Second))
		f := newFakeSurger(s)
		f.run = runUntilCancelled
		r := runDrainTo(t, s, TimedOut, Options{Surger: f, TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(time.Minute)}})
		check.Is(t, Evicted, podReportOf(t, r, free).Removal)
		check.Is(t, Stopped, podReportOf(t, r, free).End)
		check.Is(t, NotRemoved, podReportOf(t, r, blocked).Removal)
		check.Is(t, 0, f.countRaised())
	})
}

func TestEndedDrainRefusesNewRules(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addBlockedPod("web", withGrace(time.Second))
		f := newFakeSurger(s)
		f.run, f.restore = runUntilCancelled, 15*time.Second // beyond the end of the drain
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		d, wait := startDrain(ctx, t, s, Options{Surger: f, TimeLimits: timeoutIn(time.Minute)})
		time.Sleep(59 * time.Second)
		check.Is(t, true, d.SetPodRules(PodRules{}, TimeLimits{TimeoutAt: began.Add(time.Minute)}))
		time.Sleep(2 * time.Second)
		check.Is(t, false, d.SetPodRules(PodRules{}, deadlineIn(time.Minute)))
		check.Is(t, false, d.SetTimeLimits(deadlineIn(time.Minute)))
		cancel(ErrContinued)
		r, err := wait()
		checkOutcome(t, r, err, TimedOut)
		check.Is(t, time.Minute+time.Second+maxContinuedWait, time.Since(began).Round(100*time.Millisecond))
		time.Sleep(time.Minute)
	})
}

func TestPodsOfOneOwnerSurgeInTurn(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(3, "web-%d")
		f := newFakeSurger(s)
		f.decide = func(_ context.Context, c decideCall) (surge.Decision, error) {
			if c.n > 0 { // the first successor is ready
				return verdict(surge.NotNeeded), nil
			}
			return needed(f.startup), nil
		}
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		check.Is(t, 1, len(f.runs))
		check.Is(t, 5, len(f.decisions))
		s.checkRequestCount(t, "evict", 2)
		for _, q := range s.findRequests("evict", nil) {
			check.Not(t, q.at.Before(r.StartedAt.Add(f.startup)), "evicted before a successor was ready")
		}
	})
}

func TestSurgesOfOneDrainRunAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		for i := range 110 {
			s.addPod(fmt.Sprintf("web-%d", i), withOwnerUID(fmt.Sprint(i)))
		}
		f := newFakeSurger(s)
		f.startup = 20 * time.Second
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		check.Is(t, 110, f.atOnce)
		check.Is(t, 110, r.Totals().Surged)
		checkTookUpTo(t, r, (f.startup+2*time.Second)*12/10)
	})
}

func TestLaterWaveWaitsForSurgingPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web")
		dns := s.addPod("dns", withPriority(2_000_000_000), withOwner("Job"))
		f := newFakeSurger(s)
		r := runDrainTo(t, s, Drained, Options{Surger: f})
		check.Not(t, podReportOf(t, r, dns).RemovalRequestedAt.Before(r.StartedAt.Add(f.startup+2*time.Second)), "evicted too early")
	})
}

func TestProtectedPodEndsItsSurge(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web")
		f := newFakeSurger(s)
		f.run = runUntilCancelled
		_, wait := startDrain(t.Context(), t, s, Options{Surger: f})
		time.Sleep(5 * time.Second)
		s.addOrUpdatePod(web, withAnnotation("karpenter.sh/do-not-disrupt", "true"))
		r, err := wait()
		checkOutcome(t, r, err, RefusedByPolicy)
		check.Is(t, 0, f.countRaised())
		s.checkRequestCount(t, "evict", 0)
	})
}

func TestPreviewSaysWhoWouldSurge(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, set := s.addBlockedPod("web"), s.addPod("set", withOwner("StatefulSet"))
		f := newFakeSurger(s)
		f.decide = func(_ context.Context, c decideCall) (surge.Decision, error) {
			if c.pod == "set" {
				return verdict(surge.Refused), nil
			}
			return needed(f.startup), nil
		}
		limits := deadlineIn(time.Minute)
		p := runPreview(t, s, Options{Surger: f, TimeLimits: limits}, false)
		got := findPrediction(t, p, web)
		check.Is(t, "needed: it is the last ready pod; a start takes about 10s", got.Surge.String())
		check.Is(t, ObstaclePDB, got.Obstacle.Reason)
		check.Is(t, "refused: the test says so", findPrediction(t, p, set).Surge.String())
		about := f.decisionsAbout("web")[0]
		check.Not(t, about.pdbs != 1 || about.deniedSince.IsZero() || !about.until.Before(limits.Deadline), "%+v", about)
		check.Is(t, true, f.decisionsAbout("set")[0].deniedSince.IsZero())
		check.Is(t, 0, len(f.runs))
	})
}

// newWildSurger returns a Surger with answers that depend on the seed and the pod alone: slow, wrong, or none until ctx
// ends.
func newWildSurger(s *sim, seed int) *fakeSurger {
	f := newFakeSurger(s)
	pick := func(what, pod string, n, of int) int {
		h := fnv.New32()
		fmt.Fprint(h, seed, what, pod, n)
		return int(h.Sum32()>>1) % of
	}
	pauses := []time.Duration{0, 50 * time.Millisecond, 2 * time.Second, 20 * time.Second, time.Hour}
	f.decide = func(ctx context.Context, c decideCall) (surge.Decision, error) {
		if !elapsed.Sleep(ctx, pauses[pick("decides", c.pod, c.n, len(pauses))]) {
			return surge.Decision{}, ctx.Err()
		}
		switch pick("verdict", c.pod, c.n, 8) {
		case 0:
			return verdict(surge.NotNeeded), nil
		case 1:
			return verdict(surge.Refused), nil
		case 2:
			return surge.Decision{}, errors.New("no answer")
		case 3:
			return needed(0), nil
		case 4:
			d := verdict(surge.NotYet)
			d.DecideAgainAt = time.Now().Add(pauses[pick("again", c.pod, c.n, len(pauses))] - time.Second)
			return d, nil
		case 5:
			d := needed(10 * time.Second)
			d.Reason = surge.ReasonPDBDenies
			return d, nil
		}
		return needed(10 * time.Second), nil
	}
	f.run = func(ctx context.Context, f *fakeSurger, r surge.Request) surge.Result {
		at := func(what string, of int) int { return pick(what, r.Pod.Name, 0, of) }
		for i, step := range []surge.Step{surge.AwaitingReady, surge.Evictable, surge.Removing, surge.Restoring, ""} {
			if pick("step", r.Pod.Name, i, 3) > 0 {
				continue
			}
			r.OnProgress(surge.Progress{Step: step, Since: time.Now(), Successor: "shop/next"})
			if !elapsed.Sleep(ctx, pauses[pick("takes", r.Pod.Name, i, len(pauses))]) {
				break
			}
		}
		removes, says := at("removes", 2) == 0, at("says", 2) == 0
		if removes && ctx.Err() == nil {
			f.removePod(r.Pod)
			time.Sleep([]time.Duration{0, time.Second, 15 * time.Second, 40 * time.Second}[at("lowers", 4)])
		}
		if ctx.Err() != nil {
			time.Sleep([]time.Duration{0, time.Second, 15 * time.Second}[at("restores", 3)])
		}
		return surge.Result{PodLeft: says, Reason: "wild", ReadyAt: time.Now()}
	}
	return f
}

// TestWildSurgerLosesNoPod compares drains with a Surger that answers arbitrarily with the same drains without one.
func TestWildSurgerLosesNoPod(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := rapid.SampledFrom([]func(*rapid.T) scenario{drawScenario, drawUrgentScenario, drawQuietScenario}).Draw(rt, "kind")
		w := draw(rt)
		for i := range w.pods {
			owner := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "owner")
			w.pods[i].changes = append(w.pods[i].changes, func(p *simPod) {
				for j := range p.OwnerReferences {
					p.OwnerReferences[j].UID = owner
				}
			})
		}
		seed := 1 + rapid.IntRange(0, 1_000_000).Draw(rt, "surger")
		removed := map[int]map[string]bool{}
		var broken []error
		for _, w.surgeSeed = range []int{0, seed} {
			removed[w.surgeSeed] = map[string]bool{}
			w.observe = func(s *sim, _ *Drain) {
				for _, p := range s.pods {
					if p.Spec.NodeName != node { // a replacement may have the same name
						continue
					}
					removed[w.surgeSeed][p.Name] = p.DeletionTimestamp != nil || p.gone
				}
			}
			synctest.Test(t, func(t *testing.T) { broken = append(broken, w.runAndCheck(t.Context())...) })
		}
		isUndisturbed := w.faultPercent+w.failingLists+w.listLag+len(w.apiFailures) == 0 && w.watchLifetime == 0 && w.watchLag < time.Second
		asking := 2 * w.latency * time.Duration(2+len(removed[0])/w.inFlight) // as in checkAllRequested
		if isUndisturbed && asking <= minRequestTimeout/2 && w.forced && w.limit >= 30*time.Second && w.changeTermsAt == 0 && w.cancelAt == 0 {
			for pod, is := range removed[0] {
				if is && !removed[seed][pod] {
					broken = append(broken, fmt.Errorf("pod %s is lost with the Surger", pod))
				}
			}
		}
		if len(broken) > 0 {
			rt.Fatal(errors.Join(broken...))
		}
	})
}
