// Package monitoring_test checks the dashboard and the rules of deploy/monitoring. It compares them with the metrics that
// the real processes expose to a real Prometheus, and with their runbooks.
package monitoring_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/dev/testbed"
)

// shipped returns a path in the repository.
func shipped(t *testing.T, path ...string) string {
	t.Helper()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{root}, path...)...)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// query is an expression and its source.
type query struct{ by, expr string }

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(read(t, shipped(t, "deploy", "monitoring", "slipway.rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no rules")
	}
	return all
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ H, W, X, Y int }
	Targets []struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	} `json:"targets"`
}

// dashboard returns the panels, and the queries of the variables and annotations.
func dashboard(t *testing.T) (panels []panel, others []query) {
	t.Helper()
	var d struct {
		Panels      []panel `json:"panels"`
		Annotations struct {
			List []struct{ Name, Expr string }
		} `json:"annotations"`
		Templating struct {
			List []struct{ Name, Definition string }
		} `json:"templating"`
	}
	if err := json.Unmarshal(read(t, shipped(t, "deploy", "monitoring", "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	for _, v := range d.Templating.List {
		if of, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			series := of[:strings.LastIndex(of, ",")]
			others = append(others, query{"variable " + v.Name, series})
		}
	}
	for _, a := range d.Annotations.List {
		others = append(others, query{"annotation " + a.Name, a.Expr})
	}
	return d.Panels, others
}

// panelVariables replaces the variables as Grafana would.
var panelVariables = strings.NewReplacer("$__rate_interval", "1m", "$group", ".*", "$cluster", ".*", "$namespace", ".*")

// dashboardQueries returns the expressions of the dashboard with its variables.
func dashboardQueries(t *testing.T) []query {
	t.Helper()
	panels, all := dashboard(t)
	for _, p := range panels {
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, target.Expr})
		}
	}
	return all
}

// series matches a metric of Slipway with its matchers.
var series = regexp.MustCompile(`\bslipway_\w+(\{[^}]*\})?`)

func TestDashboardFiltersByClusterAndNamespace(t *testing.T) {
	checked := 0
	for _, q := range dashboardQueries(t) {
		want := `cluster=~"$cluster",namespace=~"$namespace"`
		switch q.by {
		case "variable cluster":
			want = ""
		case "variable namespace":
			want = `cluster=~"$cluster"`
		}
		for _, s := range series.FindAllStringSubmatch(q.expr, -1) {
			checked++
			if !strings.HasPrefix(strings.TrimPrefix(s[1], "{"), want) {
				t.Errorf("%s: %s does not begin with the matchers %s", q.by, s[0], want)
			}
		}
	}
	if checked < 60 {
		t.Errorf("%d series are checked, want all of the dashboard", checked)
	}
}

// queries returns all expressions of the rules and the dashboard.
func queries(t *testing.T) []query {
	t.Helper()
	var all []query
	for _, q := range dashboardQueries(t) {
		all = append(all, query{q.by, panelVariables.Replace(q.expr)})
	}
	for _, r := range rules(t) {
		all = append(all, query{"alert " + r.Alert, r.Expr})
	}
	return all
}

func TestAlertsAndRunbooksMatch(t *testing.T) {
	const base = "https://github.com/slipway-dev/slipway/blob/main/docs/alerts.md#"
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (Slipway\w+)\n\n(?s:.+?)\*\*What to do\.\*\* `).FindAllSubmatch(read(t, shipped(t, "docs", "alerts.md")), -1) {
		sections[string(m[1])] = true
	}
	for _, r := range rules(t) {
		if !sections[r.Alert] {
			t.Errorf("docs/alerts.md has no section %s with the words What to do", r.Alert)
		}
		delete(sections, r.Alert)
		if got, want := r.Annotations["runbook_url"], base+strings.ToLower(r.Alert); got != want {
			t.Errorf("%s points to the runbook %q, want %q", r.Alert, got, want)
		}
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks a severity, a summary or a description: %+v", r.Alert, r)
		}
	}
	for left := range maps.Keys(sections) {
		t.Errorf("docs/alerts.md has a section %s without an alert", left)
	}
}

// block matches the only block of shell commands in docs/alerts.md, with the prompts before its lines.
var block = regexp.MustCompile("(?s)```console\n(.*?)```")

var prompt = regexp.MustCompile(`(?m)^[$>] `)

func TestDocumentedCommandCreatesPrometheusRule(t *testing.T) {
	commands := block.FindAllSubmatch(read(t, shipped(t, "docs", "alerts.md")), -1)
	if len(commands) != 1 {
		t.Fatalf("docs/alerts.md has %d blocks of commands, want one", len(commands))
	}
	dir := t.TempDir()
	if err := os.Symlink(shipped(t, "deploy"), filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", prompt.ReplaceAllString(string(commands[0][1]), ""))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var made monitoringv1.PrometheusRule // as the operator reads it
	var want monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(read(t, shipped(t, "deploy", "monitoring", "slipway.rules.yaml")), &want); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(dir, "prometheusrule.yaml")), &made); err != nil {
		t.Fatal(err)
	}
	if made.APIVersion != "monitoring.coreos.com/v1" || made.Kind != "PrometheusRule" || len(want.Groups) == 0 || !reflect.DeepEqual(made.Spec, want) {
		t.Errorf("%s %s with %d groups, want a PrometheusRule with the %d of slipway.rules.yaml", made.APIVersion, made.Kind, len(made.Spec.Groups), len(want.Groups))
	}
}

func TestDashboardPanelsDoNotOverlap(t *testing.T) {
	panels, _ := dashboard(t)
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range panels {
		if ids[p.ID] || p.Title == "" || (p.Type != "row" && len(p.Targets) == 0) {
			t.Errorf("panel %d %q: the ID is a duplicate, or title or query is missing", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q overlaps %q, or exceeds the width", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		var refs []string
		for _, target := range p.Targets {
			refs = append(refs, target.RefID)
		}
		if slices.Sort(refs); len(slices.Compact(refs)) != len(p.Targets) {
			t.Errorf("panel %q has two queries with one refId", p.Title)
		}
	}
}

func TestPromtoolAcceptsRulesAndEachAlertFires(t *testing.T) {
	promtool := testbed.FindPeer(t, "promtool")
	tests := shipped(t, "deploy", "monitoring", "slipway.rules.test.yaml")
	for _, args := range [][]string{{"check", "rules", shipped(t, "deploy", "monitoring", "slipway.rules.yaml")}, {"test", "rules", tests}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	var file struct {
		Tests []struct {
			Checks []struct {
				Alertname string `json:"alertname"`
				Expected  []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(read(t, tests), &file); err != nil {
		t.Fatal(err)
	}
	fires := map[string]bool{}
	for _, test := range file.Tests {
		for _, check := range test.Checks {
			fires[check.Alertname] = fires[check.Alertname] || len(check.Expected) > 0
		}
	}
	for _, r := range rules(t) {
		if !fires[r.Alert] {
			t.Errorf("no test fires %s", r.Alert)
		}
	}
}
