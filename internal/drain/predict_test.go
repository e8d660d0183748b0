package drain

import (
	"errors"
	"strings"
	"testing"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// runPreview runs a preview and checks that it changed nothing.
func runPreview(t *testing.T, s *sim, o Options, server bool) Prediction {
	t.Helper()
	o.Node = node
	f, err := Predict(t.Context(), s, o, server)
	must.NoError(t, err)
	for _, q := range s.requests {
		check.Not(t, !q.removal.DryRun || q.changedPod, "not a dry run: %+v", q)
	}
	check.Not(t, !server && len(s.requests) > 0, "%d requests", len(s.requests))
	check.Is(t, 1, s.calls["list"])
	return f
}

func findPrediction(t *testing.T, f Prediction, p *simPod) PodPrediction {
	t.Helper()
	for _, q := range f.Pods {
		if q.UID == p.UID {
			return q
		}
	}
	t.Fatalf("no prediction for %s", p.Name)
	return PodPrediction{}
}

func TestPreviewPredictsEachPod(t *testing.T) {
	for _, server := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			app := func(name string) podOption { return withLabel("app", name) }
			free := s.addPod("free", app("free"), withGrace(90*time.Second))
			blocked := s.addPod("blocked", app("blocked"))
			first, second := s.addPod("one-1", app("one")), s.addPod("one-2", app("one"))
			s.addPod("one-3", app("one"), onNode(otherNode))
			sick := s.addPod("sick", app("one"), asNotReady)
			twice := s.addPod("twice", app("twice"))
			exempt := s.addPod("exempt", app("exempt"), asNotReady)
			agent := s.addPod("agent", withOwner("DaemonSet"))
			bare := s.addPod("bare", withoutOwner)
			dns := s.addPod("dns", withPriority(2_000_000_000), inNamespace("kube-system"))
			going := s.addPod("going", asDeleted(0, time.Minute))
			s.addPDB("blocked", 1, 1, map[string]string{"app": "blocked"})
			s.addPDB("one", 2, 3, map[string]string{"app": "one"})
			s.addPDB("exempt", 1, 1, map[string]string{"app": "exempt"}).alwaysAllowUnhealthy = true
			s.addPDB("twice-a", 0, 1, map[string]string{"app": "twice"})
			s.addPDB("twice-b", 0, 1, map[string]string{"app": "twice"})

			f := runPreview(t, s, Options{}, server)
			for _, c := range []struct {
				pod      *simPod
				rule     podrules.Rule
				action   podrules.Action
				how      RemovalMethod
				wave     int
				obstacle ObstacleKind
				budget   string
				detail   string
			}{
				{free, podrules.NoRule, podrules.Evict, Evicted, 0, "", "", ""},
				{blocked, podrules.NoRule, podrules.Evict, Evicted, 0, ObstaclePDB, "shop/blocked", "never allows an eviction"},
				{first, podrules.NoRule, podrules.Evict, Evicted, 0, "", "", ""},
				{second, podrules.NoRule, podrules.Evict, Evicted, 0, ObstaclePDB, "shop/one", "allows 1 disruptions: 3 of 3 pods are healthy, 2 must be; 1 of this node's pods are evicted first"},
				{sick, podrules.NoRule, podrules.Evict, Evicted, 0, "", "", ""},
				{exempt, podrules.NoRule, podrules.Evict, Evicted, 0, "", "", ""},
				{twice, podrules.NoRule, podrules.Evict, Evicted, 0, ObstacleMultiplePDBs, "", "(twice-a, twice-b)"},
				{agent, podrules.RuleDaemonSet, podrules.Skip, NotRemoved, 0, "", "", ""},
				{bare, podrules.RuleUnmanaged, podrules.RefuseDrain, NotRemoved, 0, "", "", ""},
				{dns, podrules.NoRule, podrules.Evict, Evicted, 1, "", "", ""},
				{going, podrules.RuleTerminating, podrules.AwaitTermination, NotRemoved, 0, "", "", ""},
			} {
				p := findPrediction(t, f, c.pod)
				if p.Decision.Rule != c.rule || p.Action != c.action || p.Removal != c.how || p.Wave != c.wave ||
					p.Obstacle.Reason != c.obstacle || p.Obstacle.PDB != c.budget || !strings.Contains(p.Obstacle.Detail, c.detail) {
					t.Errorf("server %t: %s: %+v", server, c.pod.Name, p)
				}
			}
			if p := findPrediction(t, f, free); p.WantedGraceSeconds != 90 || p.GivenGraceSeconds != 90 {
				t.Errorf("%+v", p)
			}
			if len(f.PodsRefusingDrain()) != 1 || len(f.BlockedPods()) != 3 || len(f.Pods) != 11 || f.Pods[10].Name != "dns" {
				t.Errorf("refused %d, obstructed %d, pods %d", len(f.PodsRefusingDrain()), len(f.BlockedPods()), len(f.Pods))
			}
		})
	}
}

func TestServerPreviewReportsDryRunAnswers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		pods := map[ObstacleKind]*simPod{}
		answers := map[string]error{
			"denied": newDenial("The disruption budget web is still being processed by the server."),
			"right":  newForbidden("cannot create pods/eviction"),
			"away":   errors.New("connection refused"),
		}
		pods[ObstaclePDB], pods[ObstacleForbidden], pods[ObstacleError] = s.addPod("denied"), s.addPod("right"), s.addPod("away")
		s.fault = func(c call) *fault {
			if err := answers[c.Name]; err != nil {
				return &fault{err: err}
			}
			return nil
		}
		f := runPreview(t, s, Options{}, true)
		for reason, p := range pods {
			o := findPrediction(t, f, p).Obstacle
			if o.Reason != reason || o.Detail == "" {
				t.Errorf("%s: %+v", p.Name, o)
			}
		}
		if o := findPrediction(t, f, pods[ObstaclePDB]).Obstacle; o.PDB != "shop/web" {
			t.Errorf("%+v", o)
		}
	})
}

func TestPreviewCapsGraceToDeadline(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, bare := s.addPod("web", withGrace(time.Hour)), s.addPod("bare", withoutOwner)
		f := runPreview(t, s, Options{TimeLimits: deadlineIn(30 * time.Second)}, true)
		if p := findPrediction(t, f, web); p.GivenGraceSeconds != 29 || p.WantedGraceSeconds != 3600 {
			t.Errorf("%+v", p)
		}
		if p := findPrediction(t, f, bare); p.Action != podrules.Evict {
			t.Errorf("%+v", p)
		}
	})
}

func TestPreviewDecidesAboutSurgesWithTheTimeOfTheDrain(t *testing.T) {
	for name, limits := range map[string]func() TimeLimits{
		"no limit": func() TimeLimits { return TimeLimits{} },
		"deadline": func() TimeLimits { return deadlineIn(40 * time.Second) },
		"timeout":  func() TimeLimits { return TimeLimits{TimeoutAt: time.Now().Add(40 * time.Second)} },
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPod("web", withGrace(time.Second))
			preview, run := newFakeSurger(s), newFakeSurger(s)
			o := Options{TimeLimits: limits(), Surger: preview}
			runPreview(t, s, o, false)
			o.Surger = run
			runDrainTo(t, s, Drained, o)
			got, want := preview.decisions[0].until, run.decisions[0].until
			if got.Sub(want).Abs() > time.Second {
				t.Errorf("the preview decides until %s, the drain until %s", got, want)
			}
		}))
	}
}

func TestPreviewWithDisabledEvictionReadsNoPDBs(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web")
		s.addPDB("all", 1, 1, nil)
		f := runPreview(t, s, Options{DisableEviction: true}, true)
		if p := findPrediction(t, f, web); p.Removal != DeletedOnRequest || p.Obstacle.Reason != "" {
			t.Errorf("%+v", p)
		}
		check.Not(t, s.calls["budgets"] != 0 || s.calls["evict"] != 0 || s.calls["delete"] != 1, "%v", s.calls)
	})
}

func TestI7PreviewFailsIfPodListFails(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.fault = func(call) *fault { return &fault{err: errors.New("connection refused")} }
		f, err := Predict(t.Context(), s, Options{Node: node}, true)
		check.Not(t, err == nil || !strings.Contains(err.Error(), "node-1: listing its pods: connection refused") || f.Pods != nil, "%+v, %v", f, err)
	})
}

func TestPreviewReportsUnreadablePDBs(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web")
		s.failAll("budgets", fault{err: newForbidden("cannot list poddisruptionbudgets")})
		f := runPreview(t, s, Options{}, false)
		check.Not(t, len(f.Problems) != 1 || !strings.Contains(f.Problems[0], "namespace shop: reading its disruption budgets"), "%q", f.Problems)
	})
}
