package main

import (
	"fmt"
	"go/ast"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/observe"
)

// ownMetrics returns the definitions of all metrics of Slipway, by name.
func ownMetrics(t *testing.T) map[string]observe.Definition {
	t.Helper()
	all := map[string]observe.Definition{}
	for _, d := range slices.Concat(agentMetrics(), managerMetrics(), cloudpoolMetrics(), handlerMetrics(), awsHandlerMetrics(), queueMetrics()) {
		all[d.Name] = d
	}
	return all
}

func TestEveryMetricIsInReference(t *testing.T) {
	known := ownMetrics(t)
	// The functions that define metrics: those of Slipway's registry and of the Prometheus library.
	defining := []string{"Counter", "Gauge", "GaugeFunc", "Histogram", "readFrom", "fromRuntime", "NewDesc"}
	names := regexp.MustCompile(`^(slipway|aks_node_termination_handler|go|process)_[a-z_]+$`)
	found, in := 0, map[string]bool{}
	check := func(path string, e ast.Expr) {
		name, ok := stringValue(e)
		if !ok || !names.MatchString(name) {
			return
		}
		found++
		if _, ok := known[name]; !ok {
			t.Errorf("package %s defines %s, which is in no registry of the reference", path, name)
		}
	}
	for path, s := range allSources() {
		s.visitNodes(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CallExpr:
				if slices.Contains(defining, calledName(n)) && len(n.Args) > 1 {
					check(path, n.Args[0])
				}
				if of := formatCallee(n.Fun); strings.HasPrefix(of, "prometheus.New") && of != "prometheus.NewRegistry" {
					in[path] = true
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Name" {
					check(path, n.Value)
				}
			}
		})
	}
	if found < 50 {
		t.Errorf("only %d definitions were found in the code", found)
	}
	// Names may be composed. So every package that defines metrics with the library must be listed.
	for _, path := range []string{
		"internal/manager", "internal/orphans", "internal/retirement", "internal/provisioning/replacement", "internal/nodegroup", "internal/provisioning", "internal/provisioning/analyzers",
	} {
		if !in[path] {
			t.Errorf("package %s no longer defines metrics", path)
		}
		delete(in, path)
	}
	for path := range in {
		t.Errorf("package %s defines metrics that are not in the reference", path)
	}
}

func TestAgentCountersAreExportedFromStart(t *testing.T) {
	r := observe.NewRegistry()
	agent.NewMetrics(r)
	answer := httptest.NewRecorder()
	r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	known, series := labelValues(), 0
	for _, d := range r.Definitions() {
		if d.Type != "counter" {
			continue
		}
		want := []string{""}
		for _, name := range d.Labels {
			l, _ := findLabelDoc(known, d.Name, name)
			var longer []string
			for _, before := range want {
				for _, value := range l.values {
					longer = append(longer, strings.TrimPrefix(before+fmt.Sprintf(",%s=%q", name, value), ","))
				}
			}
			want = longer
		}
		for _, w := range want {
			line := d.Name + " 0\n"
			if w != "" {
				line = d.Name + "{" + w + "} 0\n"
			}
			series++
			if !strings.Contains(answer.Body.String(), line) {
				t.Errorf("not exported from the start: %s", line)
			}
		}
	}
	if series < 50 {
		t.Errorf("only %d series were checked", series)
	}
}

var (
	selection = regexp.MustCompile(`\b((?:slipway|aks_node_termination_handler)_\w+)\{([^}]*)\}`)
	matching  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"`)
)

// findImpossible returns errors for the parts of an expression that match nothing: unknown metrics, unknown labels, and
// label values that the code never sets. It also returns the number of checked values.
func findImpossible(expr string, known map[string]observe.Definition, of map[string]labelDoc) (errs []string, looked int) {
	for _, s := range selection.FindAllStringSubmatch(expr, -1) {
		d, ok := known[s[1]]
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if h, histogram := known[strings.TrimSuffix(s[1], suffix)]; !ok && histogram && h.Type == "histogram" {
				d, ok = h, true
			}
		}
		if !ok {
			errs = append(errs, "unknown metric "+s[1])
			continue
		}
		for _, m := range matching.FindAllStringSubmatch(s[2], -1) {
			name, operator, value := m[1], m[2], m[3]
			if slices.Contains([]string{"job", "instance", "cluster", "namespace", "le"}, name) {
				continue
			}
			if !slices.Contains(d.Labels, name) {
				errs = append(errs, fmt.Sprintf("%s has no label %s", s[1], name))
				continue
			}
			l, _ := findLabelDoc(of, d.Name, name)
			if l.values == nil || l.more != "" || strings.HasPrefix(value, "$") {
				continue
			}
			wants := []string{value}
			if strings.HasSuffix(operator, "~") {
				wants = strings.Split(value, "|")
			}
			for _, want := range wants {
				looked++
				of, err := regexp.Compile("^(?:" + want + ")$")
				if err != nil || !slices.ContainsFunc(l.values, of.MatchString) {
					errs = append(errs, fmt.Sprintf("%s never has %s=%q: must be one of %s", s[1], name, want, strings.Join(l.values, ", ")))
				}
			}
		}
	}
	return errs, looked
}

func TestPanelsAndRulesSelectExistingMetrics(t *testing.T) {
	known, of := ownMetrics(t), labelValues()
	looked := 0
	check := func(by, expr string) {
		errs, n := findImpossible(expr, known, of)
		looked += n
		for _, err := range errs {
			t.Errorf("%s: %s", by, err)
		}
	}
	for _, file := range []string{"dashboard.json", "slipway.rules.yaml", "slipway.rules.test.yaml"} {
		raw, err := os.ReadFile(repositoryPath("deploy/monitoring/" + file))
		if err != nil {
			t.Fatal(err)
		}
		var all any
		if err := yaml.Unmarshal(raw, &all); err != nil {
			t.Fatal(err)
		}
		visitStrings(all, func(text string) { check(file+": "+text, text) })
	}
	if looked < 20 {
		t.Errorf("only %d values were checked", looked)
	}
	for _, wrong := range []string{
		`slipway_retirements{phase="Gone"}`, `rate(slipway_drains_total{outcome=~"drained|lost"}[5m])`, `slipway_drain_seconds_bucket{phase="x"}`,
		`slipway_no_such_metric{a="b"}`, `slipway_retirement_phase_oldest_seconds{phase="Succeeded"}`,
	} {
		if errs, _ := findImpossible(wrong, known, of); len(errs) != 1 {
			t.Errorf("%s: %q, want one error", wrong, errs)
		}
	}
}

// visitStrings visits each string of a document.
func visitStrings(v any, visit func(string)) {
	switch v := v.(type) {
	case string:
		visit(v)
	case []any:
		for _, e := range v {
			visitStrings(e, visit)
		}
	case map[string]any:
		for _, e := range v {
			visitStrings(e, visit)
		}
	}
}
