package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// inReplica makes the pod one of a replica of the LeaderWorkerSet "llm".
func inReplica(index string) podOption {
	return func(p *simPod) {
		p.Labels = maps.Clone(p.Labels)
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels["leaderworkerset.sigs.k8s.io/name"] = "llm"
		p.Labels["leaderworkerset.sigs.k8s.io/group-index"] = index
	}
}

func inPodGroup(name string) podOption {
	return func(p *simPod) { p.Spec.SchedulingGroup = &kubeapi.PodSchedulingGroup{PodGroupName: name} }
}

func timeoutIn(d time.Duration) TimeLimits { return TimeLimits{TimeoutAt: time.Now().Add(d)} }

// findRealRequests returns the requests for a pod that were no dry runs.
func (s *sim) findRealRequests(verb string, p *simPod) []sentRequest {
	return slices.DeleteFunc(s.findRequests(verb, p), func(r sentRequest) bool { return r.removal.DryRun })
}

func TestGroupIsEvictedTogetherAfterOtherPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		members := s.addPods(3, "llm-0-%d", inReplica("0"))
		late := s.addBlockedPod("late")
		s.changeAfter(7*time.Second, func() { s.pdbs[0].minHealthy = 0; s.wakeWatchers() })
		r, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		must.NoError(t, err)
		free := podReportOf(t, r, late).RemovalRequestedAt
		var at []time.Time
		for _, p := range members {
			report := podReportOf(t, r, p)
			check.Is(t, "LeaderWorkerSet/llm/0", report.Group)
			check.Is(t, 1, len(s.findRealRequests("evict", p)))
			at = append(at, report.RemovalRequestedAt)
			check.Not(t, !report.RemovalRequestedAt.After(free), "%s was requested before the blocked pod without a group", p.Name)
		}
		check.Not(t, !at[0].Equal(at[1]) || !at[1].Equal(at[2]), "not requested at once: %v", at)
		check.Is(t, "", podReportOf(t, r, late).Group)
		waited := podReportOf(t, r, members[0]).Delays[0]
		check.Not(t, waited.Reason != ObstacleQueued || !strings.Contains(waited.Detail, "shop/late"), "%+v", waited)
	})
}

func TestBlockedMemberKeepsWholeGroup(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		members := s.addPods(2, "llm-0-%d", inReplica("0"))
		blocked := s.addBlockedPod("llm-0-2", inReplica("0"))
		other := s.addPod("llm-1-0", inReplica("1"))
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		var unfinished *UnfinishedError
		must.Not(t, !errors.As(err, &unfinished) || unfinished.Outcome != TimedOut, "%v", err)
		for _, p := range append(members, blocked) {
			check.Is(t, 0, len(s.findRealRequests("", p)), p.Name)
		}
		check.Is(t, 1, len(s.findRealRequests("evict", other)))
		reasons := map[string]ObstacleKind{}
		for _, b := range unfinished.Blocked {
			reasons[b.Pod] = b.Reason
			check.Not(t, b.Reason == ObstacleGroup && (!strings.Contains(b.Detail, "LeaderWorkerSet/llm/0") || !strings.Contains(b.Detail, "shop/llm-0-2")), "%s", b)
		}
		check.Equal(t, map[string]ObstacleKind{"llm-0-0": ObstacleGroup, "llm-0-1": ObstacleGroup, "llm-0-2": ObstaclePDB}, reasons)
		s.checkMaxRequestCount(t, "evict", 3*12)
	})
}

func TestGroupGoesOnceItsPDBAllowsAll(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		members := s.addPods(3, "llm-0-%d", withLabel("app", "llm"), inReplica("0"))
		s.addPDB("llm", 1, 3, map[string]string{"app": "llm"}) // allows two evictions, and so each dry run
		s.changeAfter(25*time.Second, func() { s.pdbs[0].minHealthy = 0; s.wakeWatchers() })
		began := time.Now()
		r, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		must.NoError(t, err)
		for _, p := range members {
			report := podReportOf(t, r, p)
			after := report.RemovalRequestedAt.Sub(began)
			check.Not(t, after < 25*time.Second || after > 27*time.Second, "%s was requested after %s", p.Name, after)
			check.Not(t, !strings.Contains(report.Delays[0].Detail, "3 pods of LeaderWorkerSet/llm/0 need 3"), "%+v", report.Delays)
		}
	})
}

func TestGroupsOfOnePDBGoOneAfterTheOther(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		app := withLabel("app", "llm")
		first := s.addPod("llm-0-0", app, inReplica("0"))
		other := s.addPod("llm-1-0", app, inReplica("1")) // between the first group's pods in the order of UIDs
		second := s.addPod("llm-0-1", app, inReplica("0"))
		s.controllerDelay = time.Hour // the queue of the watched PDB waits after each eviction
		s.addPod("web", app)
		pdb := s.addPDB("llm", 4, 4, map[string]string{"app": "llm"})
		s.changeAfter(5*time.Second, func() { pdb.minHealthy = 1; s.wakeWatchers() })
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		check.ErrorContains(t, err, "llm-1-0")
		for p, want := range map[*simPod]int{first: 1, second: 1, other: 0} {
			check.Is(t, want, len(s.findRealRequests("evict", p)), p.Name)
		}
	})
}

func TestUnreadyGroupGoesIfItsPDBAlwaysAllowsThat(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(2, "llm-0-%d", withLabel("app", "llm"), inReplica("0"), asNotReady)
		s.addPDB("llm", 0, 2, map[string]string{"app": "llm"}).alwaysAllowUnhealthy = true
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		must.NoError(t, err)
	})
}

func TestUnreadablePDBsKeepGroupOfSeveralPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		members := s.addPods(2, "llm-0-%d", inReplica("0"))
		alone := s.addPod("llm-1-0", inReplica("1"))
		s.failAll("budgets", fault{err: newForbidden("cannot list poddisruptionbudgets")})
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		check.ErrorContains(t, err, "cannot list poddisruptionbudgets")
		for _, p := range members {
			check.Is(t, 0, len(s.findRealRequests("", p)), p.Name)
		}
		check.Is(t, 1, len(s.findRealRequests("evict", alone)))
	})
}

// revokedPDBs is an API that forbids to read PDBs for some time.
type revokedPDBs struct {
	*sim

	from, until time.Time
}

func (r revokedPDBs) WatchPodDisruptionBudgets(ctx context.Context, namespace string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
	if time.Now().Before(r.until) {
		allowed, cancel := context.WithDeadline(ctx, r.from)
		defer cancel()
		_ = r.sim.WatchPodDisruptionBudgets(allowed, namespace, h)
		if ctx.Err() == nil {
			h.Failed(newForbidden("cannot watch poddisruptionbudgets"))
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return r.sim.WatchPodDisruptionBudgets(ctx, namespace, h)
}

func TestGroupGoesAfterItsPDBCouldNotBeReadForSomeTime(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPods(2, "llm-0-%d", withLabel("app", "llm"), inReplica("0"))
		s.addPDB("llm", 2, 2, map[string]string{"app": "llm"})
		s.changeAfter(20*time.Second, func() { s.pdbs[0].minHealthy = 0; s.wakeWatchers() })
		api := revokedPDBs{s, time.Now().Add(10 * time.Second), time.Now().Add(30 * time.Second)}
		r, err := Run(t.Context(), api, Options{Node: node, TimeLimits: timeoutIn(2 * time.Minute)})
		must.NoError(t, err)
		checkTookUpTo(t, r, 55*time.Second)
	})
}

func TestDeadlineReleasesBlockedGroup(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		free := s.addPod("llm-0-0", inReplica("0"), withGrace(20*time.Second))
		blocked := s.addBlockedPod("llm-0-1", inReplica("0"), withGrace(20*time.Second))
		began := time.Now()
		r, err := runDrain(t, s, Options{TimeLimits: deadlineIn(2 * time.Minute)})
		must.NoError(t, err)
		check.Is(t, Evicted, podReportOf(t, r, free).Removal)
		check.Is(t, ForceDeleted, podReportOf(t, r, blocked).Removal)
		for _, p := range []*simPod{free, blocked} {
			check.Is(t, Stopped, p.end, p.Name)
			report := podReportOf(t, r, p)
			after := report.RemovalRequestedAt.Sub(began)
			check.Not(t, after < 95*time.Second || report.GivenGraceSeconds < 19, "%s: requested after %s, grace %d", p.Name, after, report.GivenGraceSeconds)
		}
	})
}

func TestGroupGoesInLastWaveOfItsPods(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		worker := s.addPod("llm-0-1", inReplica("0"))
		leader := s.addPod("llm-0-0", inReplica("0"), withPriority(2_000_000_000))
		web := s.addPod("web", withStopTime(5*time.Second))
		r, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		must.NoError(t, err)
		gone := podReportOf(t, r, web).EndedAt
		for _, p := range []*simPod{worker, leader} {
			report := podReportOf(t, r, p)
			check.Not(t, report.Wave != 1 || report.RemovalRequestedAt.Before(gone), "%s: wave %d, requested %s after the first wave",
				p.Name, report.Wave, report.RemovalRequestedAt.Sub(gone))
		}
	})
}

func TestGroupIsCheckedAgainAfterAnEarlierWave(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		critical := withPriority(2_000_000_000)
		free := s.addPod("llm-0-0", inReplica("0"), critical)
		denied := s.addPod("llm-0-1", withLabel("app", "llm"), inReplica("0"), critical)
		pdb := s.addPDB("llm", 0, 1, map[string]string{"app": "llm"})
		var arrival sync.Once
		s.fault = func(c call) *fault {
			if c.DryRun { // the first wave gets a pod while the dry runs are in flight
				arrival.Do(func() { time.AfterFunc(time.Second, func() { s.addPod("web", withStopTime(20*time.Second)) }) })
				return &fault{delay: 2 * time.Second}
			}
			return nil
		}
		s.changeAfter(10*time.Second, func() { pdb.minHealthy = 1; s.wakeWatchers() })
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		check.ErrorContains(t, err, "llm-0-1")
		for _, p := range []*simPod{free, denied} {
			check.Is(t, 0, len(s.findRealRequests("evict", p)), p.Name)
		}
	})
}

func TestPodGroupModeDecidesWhetherPodsWait(t *testing.T) {
	for name, c := range map[string]struct {
		mode   string
		fault  error
		held   bool
		detail string
	}{
		"all":            {mode: `{"all":{}}`, held: true, detail: "PodGroup/gang or for none"},
		"all, v1alpha2":  {mode: `"PodGroup"`, held: true, detail: "PodGroup/gang or for none"},
		"single":         {mode: `{"single":{}}`},
		"single, v1a2":   {mode: `"Pod"`},
		"default":        {mode: ""},
		"of the future":  {mode: `{"half":{}}`, held: true, detail: `its disruptionMode {"half":{}} is not known`},
		"does not exist": {mode: "-", held: true, detail: `counts as disruptionMode all, because it cannot be read: podgroups "gang" not found`},
		"forbidden":      {fault: newForbidden("cannot get podgroups"), held: true, detail: "cannot get podgroups"},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			if c.mode != "-" {
				s.podGroups = map[string]string{"shop/gang": c.mode}
			}
			if c.fault != nil {
				s.failAll("podgroup", fault{err: c.fault})
			}
			free := s.addPod("gang-0", inPodGroup("gang"))
			s.addBlockedPod("gang-1", inPodGroup("gang"))
			_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
			check.ErrorContains(t, err, c.detail)
			want := 1
			if c.held {
				want = 0
			}
			check.Is(t, want, len(s.findRealRequests("evict", free)))
		}))
	}
}

func TestSinglePodGroupStillBelongsToItsReplica(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.podGroups = map[string]string{"shop/gang": `{"single":{}}`}
		free := s.addPod("llm-0-0", inReplica("0"), inPodGroup("gang"))
		s.addBlockedPod("llm-0-1", inReplica("0"), inPodGroup("gang"))
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		check.ErrorContains(t, err, "LeaderWorkerSet/llm/0")
		check.Is(t, 0, len(s.findRealRequests("", free)))
	})
}

func TestFinishedMemberHoldsNoGroup(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		finished := s.addPod("llm-0-0", inReplica("0"), withPhase("Succeeded"))
		s.addBlockedPod("llm-0-1", inReplica("0"))
		_, err := runDrain(t, s, Options{TimeLimits: timeoutIn(time.Minute)})
		check.ErrorContains(t, err, "llm-0-1")
		check.Is(t, 1, len(s.findRealRequests("evict", finished)))
	})
}

func TestGroupAsksNoResponderAndDoesNotSurge(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		surger, responders := newFakeSurger(s), newLifecycleSim(s, nil)
		s.addPods(2, "llm-0-%d", inReplica("0"), withResponders("example.com/mover"))
		o := Options{TimeLimits: timeoutIn(time.Minute), Surger: surger, EvictionRequests: responders}
		r, err := runDrain(t, s, o)
		must.NoError(t, err)
		check.Is(t, 0, len(surger.decisionsAbout("llm-0-0")))
		check.Is(t, 0, responders.countCalls("create"))
		for _, p := range r.Pods {
			check.Not(t, p.Surge != nil || p.EvictionRequest != nil || p.Removal != Evicted, "%+v", p)
		}
	})
}

func TestPreviewShowsBlockedGroups(t *testing.T) {
	for _, server := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			members := s.addPods(2, "llm-0-%d", withLabel("app", "llm"), inReplica("0"))
			s.addPDB("llm", 1, 2, map[string]string{"app": "llm"})
			free := s.addPod("gang-0", inPodGroup("gang"))
			f := runPreview(t, s, Options{}, server)
			reasons := []ObstacleKind{}
			for _, p := range members {
				q := findPrediction(t, f, p)
				check.Is(t, "LeaderWorkerSet/llm/0", q.Group)
				reasons = append(reasons, q.Obstacle.Reason)
			}
			slices.Sort(reasons)
			check.Equal(t, []ObstacleKind{ObstaclePDB, ObstacleGroup}, reasons)
			check.Is(t, "PodGroup/gang", findPrediction(t, f, free).Group)
			check.Is(t, ObstacleKind(""), findPrediction(t, f, free).Obstacle.Reason)
			check.Not(t, len(f.Problems) != 1 || !strings.Contains(f.Problems[0], "counts as disruptionMode all"), "%q", f.Problems)
		})
	}
}

// isDenied reports whether the eviction of a pod would be denied now. s.mu must be locked.
func (s *sim) isDenied(p *simPod) bool {
	if isExemptFromPDBs(&p.Pod) {
		return false
	}
	var over []*simPDB
	for _, b := range s.pdbs {
		if b.selects(p) {
			over = append(over, b)
		}
	}
	return len(over) > 1 || len(over) == 1 && s.checkPDB(over[0], p, true) != nil
}

// TestNoMemberIsEvictedWhileAnotherIsDenied drains nodes with random groups and PDBs. The PDBs and a webhook only become
// milder, because nothing protects against an obstacle that appears between two evictions.
func TestNoMemberIsEvictedWhileAnotherIsDenied(t *testing.T) {
	groups := []string{"", "", "0", "0", "1"}
	rapid.Check(t, func(rt *rapid.T) {
		type podDraw struct {
			changes []podOption
			group   string
			webhook time.Duration // until then a webhook denies its eviction
			arrives time.Duration
		}
		var pods []podDraw
		for range rapid.IntRange(1, 9).Draw(rt, "pods") {
			p := podDraw{
				group:   rapid.SampledFrom(groups).Draw(rt, "group"),
				webhook: drawSeconds(rt, "webhook", 0, 0, 0, 0, 8, 600),
			}
			if p.group != "" { // another pod that arrives may take what a PDB allows a group
				p.arrives = drawSeconds(rt, "arrives", 0, 0, 0, 1, 8)
			}
			p.changes = []podOption{
				withLabel("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "app")),
				withPriority(rapid.SampledFrom([]int32{0, 0, 2_000_000_000}).Draw(rt, "priority")),
				withTwin(twinPolicy(rapid.IntRange(0, 2).Draw(rt, "twin")), drawSeconds(rt, "twinUp", 0, 2, 15)),
			}
			switch rapid.IntRange(0, 5).Draw(rt, "state") {
			case 0:
				p.changes = append(p.changes, asNotReady)
			case 1:
				p.changes = append(p.changes, withPhase("Pending"))
			}
			if p.group != "" {
				p.changes = append(p.changes, inReplica(p.group))
			}
			pods = append(pods, p)
		}
		type pdbDraw struct {
			app     string
			healthy int
			relaxed time.Duration
		}
		var pdbs []pdbDraw
		for range rapid.IntRange(0, 3).Draw(rt, "budgets") {
			pdbs = append(pdbs, pdbDraw{
				app: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "budgetApp"), healthy: rapid.IntRange(0, 3).Draw(rt, "healthy"),
				relaxed: drawSeconds(rt, "relaxed", 0, 0, 5, 30),
			})
		}
		latency := time.Duration(rapid.SampledFrom([]int{1, 5, 50}).Draw(rt, "latency")) * time.Millisecond
		lag := time.Duration(rapid.SampledFrom([]int{0, 10, 500}).Draw(rt, "lag")) * time.Millisecond
		controlling := time.Duration(rapid.SampledFrom([]int{10, 300, 3_600_000}).Draw(rt, "controlling")) * time.Millisecond
		inFlight := rapid.SampledFrom([]int{1, 2, 32}).Draw(rt, "inFlight")

		var broken []error
		synctest.Test(t, func(t *testing.T) {
			s := newSim()
			s.latency, s.watchLag, s.controllerDelay = latency, lag, controlling
			began := time.Now()
			webhooks := map[string]time.Duration{}
			for i, p := range pods {
				name := fmt.Sprintf("p%d", i)
				webhooks[name] = p.webhook
				if p.arrives == 0 {
					s.addPod(name, p.changes...)
				} else {
					time.AfterFunc(p.arrives, func() { s.addPod(name, p.changes...) })
				}
			}
			for i, b := range pdbs {
				var labels map[string]string
				if b.app != "" {
					labels = map[string]string{"app": b.app}
				}
				pdb := s.addPDB(fmt.Sprintf("b%d", i), int32(b.healthy), 9, labels)
				if b.relaxed > 0 {
					s.changeAfter(b.relaxed, func() { pdb.minHealthy = 0; s.wakeWatchers() })
				}
			}
			released := map[podrules.Group]time.Time{} // when the drain asked for the first pod of a group
			denies := func(p *simPod) bool { return time.Since(began) < webhooks[p.Name] || s.isDenied(p) }
			s.fault = func(c call) *fault {
				p := s.pods[c.UID]
				if c.verb != "evict" || p == nil || p.gone {
					return nil
				}
				if time.Since(began) < webhooks[p.Name] {
					return &fault{err: &kubeapi.StatusError{Code: 403, Message: `admission webhook "keep.example.com" denied the request: no`}}
				}
				if c.DryRun || denies(p) {
					return nil
				}
				group := podrules.FindGroup(p.Labels, "")
				if released[group].IsZero() {
					released[group] = time.Now()
				}
				for _, o := range s.pods {
					same := !group.IsZero() && podrules.FindGroup(o.Labels, "") == group
					known := o.CreationTimestamp.Before(released[group].Add(-2*(latency+lag) - 10*time.Millisecond))
					if same && known && o.Spec.NodeName == node && !o.gone && o.DeletionTimestamp == nil && denies(o) {
						broken = append(broken, fmt.Errorf("after %s %s is evicted while %s is denied", time.Since(began), p.Name, o.Name))
					}
				}
				return nil
			}
			_, _ = Run(t.Context(), s, Options{Node: node, MaxInFlight: inFlight, TimeLimits: timeoutIn(time.Minute)})
			if s.maxInFlight > inFlight {
				broken = append(broken, fmt.Errorf("%d requests of one verb at once, %d allowed", s.maxInFlight, inFlight))
			}
			if n := len(s.findRequests("evict", nil)); n > 400 {
				broken = append(broken, fmt.Errorf("%d requests", n))
			}
			time.Sleep(time.Hour)
		})
		if len(broken) > 0 {
			rt.Fatal(errors.Join(broken...))
		}
	})
}
