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

// previewed runs a preview and checks that it changed nothing.
func previewed(t *testing.T, s *sim, o Options, server bool) Forecast {
	t.Helper()
	o.Node = node
	f, err := Preview(t.Context(), s, o, server)
	must.NoError(t, err)
	for _, q := range s.requests {
		if !q.removal.DryRun || q.worked {
			t.Errorf("not a dry run: %+v", q)
		}
	}
	if !server && len(s.requests) > 0 {
		t.Errorf("%d requests", len(s.requests))
	}
	check.Is(t, 1, s.calls["list"])
	return f
}

func forecastOf(t *testing.T, f Forecast, p *simPod) PodForecast {
	t.Helper()
	for _, q := range f.Pods {
		if q.UID == p.UID {
			return q
		}
	}
	t.Fatalf("no forecast for %s", p.Name)
	return PodForecast{}
}

func TestPreviewPredictsEachPod(t *testing.T) {
	for _, server := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			app := func(name string) change { return label("app", name) }
			free := s.pod("free", app("free"), grace(90*time.Second))
			held := s.pod("held", app("held"))
			first, second := s.pod("one-1", app("one")), s.pod("one-2", app("one"))
			s.pod("one-3", app("one"), on(elsewhere))
			sick := s.pod("sick", app("one"), notReady)
			twice := s.pod("twice", app("twice"))
			agent := s.pod("agent", ownedBy("DaemonSet"))
			bare := s.pod("bare", unowned)
			dns := s.pod("dns", priority(2_000_000_000), in("kube-system"))
			going := s.pod("going", deleted(0, time.Minute))
			s.budget("held", 1, 1, map[string]string{"app": "held"})
			s.budget("one", 2, 3, map[string]string{"app": "one"})
			s.budget("twice-a", 0, 1, map[string]string{"app": "twice"})
			s.budget("twice-b", 0, 1, map[string]string{"app": "twice"})

			f := previewed(t, s, Options{}, server)
			for _, c := range []struct {
				pod      *simPod
				rule     podrules.Rule
				action   podrules.Action
				how      Asked
				wave     int
				obstacle Obstacle
				budget   string
				detail   string
			}{
				{free, podrules.Ordinary, podrules.Evict, Evicted, 0, "", "", ""},
				{held, podrules.Ordinary, podrules.Evict, Evicted, 0, Budget, "shop/held", "never will"},
				{first, podrules.Ordinary, podrules.Evict, Evicted, 0, "", "", ""},
				{second, podrules.Ordinary, podrules.Evict, Evicted, 0, Budget, "shop/one", "allows 1 disruptions: 3 of 3 pods are healthy, 2 must be; 1 of this node's pods go first"},
				{sick, podrules.Ordinary, podrules.Evict, Evicted, 0, "", "", ""},
				{twice, podrules.Ordinary, podrules.Evict, Evicted, 0, SeveralBudgets, "", "(twice-a, twice-b)"},
				{agent, podrules.ByDaemonSet, podrules.Leave, NotAsked, 0, "", "", ""},
				{bare, podrules.ByUnmanaged, podrules.Refuse, NotAsked, 0, "", "", ""},
				{dns, podrules.Ordinary, podrules.Evict, Evicted, 1, "", "", ""},
				{going, podrules.ByTerminating, podrules.Await, NotAsked, 0, "", "", ""},
			} {
				p := forecastOf(t, f, c.pod)
				if p.Verdict.Rule != c.rule || p.Action != c.action || p.How != c.how || p.Wave != c.wave ||
					p.Obstacle.Reason != c.obstacle || p.Obstacle.Budget != c.budget || !strings.Contains(p.Obstacle.Detail, c.detail) {
					t.Errorf("server %t: %s: %+v", server, c.pod.Name, p)
				}
			}
			if p := forecastOf(t, f, free); p.GraceWanted != 90 || p.GraceGiven != 90 {
				t.Errorf("%+v", p)
			}
			if len(f.Refused()) != 1 || len(f.Obstructed()) != 3 || len(f.Pods) != 10 || f.Pods[9].Name != "dns" {
				t.Errorf("refused %d, obstructed %d, pods %d", len(f.Refused()), len(f.Obstructed()), len(f.Pods))
			}
		})
	}
}

func TestServerPreviewLearnsTheServersAnswers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		pods := map[Obstacle]*simPod{}
		answers := map[string]error{
			"denied": denial("The disruption budget web is still being processed by the server."),
			"right":  forbidden("cannot create pods/eviction"),
			"away":   errors.New("connection refused"),
		}
		pods[Budget], pods[NoRight], pods[Failing] = s.pod("denied"), s.pod("right"), s.pod("away")
		s.fault = func(c call) *fault {
			if err := answers[c.Name]; err != nil {
				return &fault{err: err}
			}
			return nil
		}
		f := previewed(t, s, Options{}, true)
		for reason, p := range pods {
			o := forecastOf(t, f, p).Obstacle
			if o.Reason != reason || o.Detail == "" {
				t.Errorf("%s: %+v", p.Name, o)
			}
		}
		if o := forecastOf(t, f, pods[Budget]).Obstacle; o.Budget != "shop/web" {
			t.Errorf("%+v", o)
		}
	})
}

func TestAPreviewUnderADeadlineCapsTheGrace(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web, bare := s.pod("web", grace(time.Hour)), s.pod("bare", unowned)
		f := previewed(t, s, Options{Terms: within(30 * time.Second)}, true)
		if p := forecastOf(t, f, web); p.GraceGiven != 29 || p.GraceWanted != 3600 {
			t.Errorf("%+v", p)
		}
		if p := forecastOf(t, f, bare); p.Action != podrules.Evict {
			t.Errorf("%+v", p)
		}
	})
}

func TestAPreviewWithoutEvictionAsksNoBudget(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.pod("web")
		s.budget("all", 1, 1, nil)
		f := previewed(t, s, Options{DisableEviction: true}, true)
		if p := forecastOf(t, f, web); p.How != DeletedOnRequest || p.Obstacle.Reason != "" {
			t.Errorf("%+v", p)
		}
		if s.calls["budgets"] != 0 || s.calls["evict"] != 0 || s.calls["delete"] != 1 {
			t.Errorf("%v", s.calls)
		}
	})
}

func TestI7APreviewThatCannotListSaysNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.fault = func(call) *fault { return &fault{err: errors.New("connection refused")} }
		f, err := Preview(t.Context(), s, Options{Node: node}, true)
		if err == nil || !strings.Contains(err.Error(), "node-1: listing its pods: connection refused") || f.Pods != nil {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

func TestAPreviewThatCannotReadBudgetsSaysSo(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web")
		s.failAll("budgets", fault{err: forbidden("cannot list poddisruptionbudgets")})
		f := previewed(t, s, Options{}, false)
		if len(f.Problems) != 1 || !strings.Contains(f.Problems[0], "namespace shop: reading its disruption budgets") {
			t.Errorf("%q", f.Problems)
		}
	})
}
