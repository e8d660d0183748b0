package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloudpool"
	"github.com/slipway-dev/slipway/internal/compat/aksnth"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
)

// agentMetrics are those of an agent, registered as the agent does.
func agentMetrics(t *testing.T) []observe.Definition {
	t.Helper()
	r := observe.NewRegistry()
	if _, err := notify.New(nil, notify.Options{Metrics: r}); err != nil {
		t.Fatal(err)
	}
	r.Standard(observe.Build{})
	agent.NewMetrics(r)
	return r.Definitions()
}

func cloudpoolMetrics() []observe.Definition {
	r := observe.NewRegistry()
	r.Standard(observe.Build{})
	cloudpool.NewMetrics(r)
	return r.Definitions()
}

func handlerMetrics() []observe.Definition {
	r := observe.NewRegistry()
	aksnth.NewMetrics(r, "node")
	return r.Definitions()
}

// recorder notes what is registered, as a registry tells only of metrics that have values.
type recorder struct{ collectors []prometheus.Collector }

func (r *recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return nil
}

func (r *recorder) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
}
func (*recorder) Unregister(prometheus.Collector) bool { return false }

// oneOfEach is a cache that has a retirement, which has everything that metrics tell of.
type oneOfEach struct{ client.Reader }

func (oneOfEach) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	now := metav1.NewTime(time.Unix(1, 0))
	if all, is := list.(*v1alpha1.NodeRetirementList); is {
		all.Items = []v1alpha1.NodeRetirement{{
			Spec: v1alpha1.NodeRetirementSpec{Group: "group"},
			Status: v1alpha1.NodeRetirementStatus{
				Phase: v1alpha1.Draining, Reasons: []v1alpha1.RetirementReason{{Code: "code"}},
				Replacement: &v1alpha1.Replacement{State: v1alpha1.ReplacementOrdered, Since: now},
			},
		}}
	}
	return nil
}

// described is how the Prometheus library says what a metric is called and what for.
var described = regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: (".*"), constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

func definition(t *testing.T, d *prometheus.Desc, kind string) observe.Definition {
	t.Helper()
	m := described.FindStringSubmatch(d.String())
	var help string
	if m == nil || json.Unmarshal([]byte(m[2]), &help) != nil {
		t.Fatalf("what is this metric? %s", d)
	}
	is := observe.Definition{Name: m[1], Help: help, Type: kind}
	if m[3] != "" {
		is.Labels = strings.Split(m[3], ",")
	}
	return is
}

// managerMetrics are a manager's own.
func managerMetrics(t *testing.T) (all []observe.Definition) {
	t.Helper()
	var r recorder
	if err := manager.RegisterMetrics(&r, oneOfEach{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.collectors {
		kinds := map[string]string{}
		kind := ""
		switch c.(type) {
		case *prometheus.CounterVec:
			kind = "counter"
		case *prometheus.GaugeVec:
			kind = "gauge"
		case *prometheus.HistogramVec:
			kind = "histogram"
		default:
			kinds = collected(t, c)
		}
		for _, d := range descriptions(c) {
			of := definition(t, d, kind)
			if kind == "" {
				of.Type = kinds[of.Name]
			}
			if of.Type == "" {
				t.Errorf("%s: of which type is it?", of.Name)
			}
			all = append(all, of)
		}
	}
	return inOrder(all)
}

func inOrder(all []observe.Definition) []observe.Definition {
	slices.SortFunc(all, func(x, y observe.Definition) int { return strings.Compare(x.Name, y.Name) })
	return all
}

func descriptions(c prometheus.Collector) (all []*prometheus.Desc) {
	to := make(chan *prometheus.Desc)
	go func() {
		c.Describe(to)
		close(to)
	}()
	for d := range to {
		all = append(all, d)
	}
	return all
}

// collected are the types of what a collector gives now, by name.
func collected(t *testing.T, c prometheus.Collector) map[string]string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(dto.MetricType_name[int32(f.GetType())])
	}
	return kinds
}

// libraryMetrics are those of controller-runtime and client-go, which a manager tells too.
func libraryMetrics(t *testing.T) (all []observe.Definition) {
	t.Helper()
	registry, is := metrics.Registry.(prometheus.Collector)
	if !is {
		t.Fatal("controller-runtime's registry does not say what is in it")
	}
	for _, d := range descriptions(registry) {
		all = append(all, definition(t, d, ""))
	}
	return slices.CompactFunc(inOrder(all), func(x, y observe.Definition) bool { return x.Name == y.Name })
}

// labelSays is what a label can say: some values, or what they are of when there is no end to them.
type labelSays struct {
	values []string
	open   string
	// more says that others are possible beside values.
	more string
}

// labelValues say what the labels of the metrics can say, by metric and label, or by label alone where all mean the same. The
// values are read from the code that gives them.
func labelValues(t *testing.T) map[string]labelSays {
	t.Helper()
	const (
		agentPath, drainPath, poolPath = "internal/agent", "internal/drain", "internal/cloudpool"
		retirementPath, cloudPath      = "internal/retirement", "internal/cloud"
		scalingPath, groupPath         = "internal/nodegroup/scaling", "internal/nodegroup"
		advisedPath                    = "internal/nodegroup/advised"
	)
	outcome := labelSays{values: returned(t, cloudPath, "Outcome")}
	codes := labelSays{values: append([]string{""}, retirementCodes(t)...)}
	verdict := labelSays{values: constantsOf(t, groupPath, "Verdict")}
	var phases, last []string
	for _, p := range constantsOf(t, "api/v1alpha1", "Phase") {
		if v1alpha1.Phase(p).Finished() {
			last = append(last, p)
		} else {
			phases = append(phases, p)
		}
	}
	var waiting []string
	states := constantsOf(t, "api/v1alpha1", "ReplacementState")
	for _, s := range states {
		if !v1alpha1.ReplacementState(s).Final() {
			waiting = append(waiting, s)
		}
	}
	refusals := constantsOf(t, cloudPath, "Refusal")
	failures := namedConstants(t, scalingPath, "Throttled", "Unclear")
	keeps := valuesOf(blockOf(t, groupPath, "Rules"))
	return map[string]labelSays{
		"group": {open: "name of a NodeGroup"}, "provider": {open: "name of a cloud"}, "cloud": {open: "name of a cloud"},
		"template": {open: "kind of machine, as its cloud calls it"}, "plugin": {open: "name of a plugin"},
		"receiver": {open: "name of a receiver of notifications"}, "pool": {open: "name of a cloudpool"},
		"goversion": {open: "version of Go"}, "version": {open: "version"}, "revision": {open: "revision of the source"},
		"node": {open: "name of the Node"}, "resource": {open: "name of the machine in Azure's events"},
		"cluster": {open: "address of the API server"}, "endpoint": {open: "path, or the receiver's name"},
		"method": {open: "method of HTTP, in small letters"}, "code": {open: "status of HTTP"},
		"type": {values: texts(notice.Types())}, "result": outcome,

		"slipway_agent_notices_total.action":             {values: texts(agent.Actions())},
		"slipway_agent_polls_total.result":               {values: append(namedConstants(t, agentPath, "pollOK"), texts(azure.Classes())...)},
		"slipway_drain_pods.state":                       {values: given(t, agentPath, "pods.With", 0)},
		"slipway_drain_obstructed_pods.reason":           {values: elements(t, agentPath, "obstacles", drainPath)},
		"slipway_drains_total.outcome":                   {values: constantsOf(t, drainPath, "Outcome")},
		"slipway_drain_pod_ends_total.end":               {values: constantsOf(t, drainPath, "End")},
		"slipway_notifications_total.result":             {values: given(t, "internal/notify", "results.With", 1)},
		"slipway_cloudpool_requests_total.handling":      {values: returned(t, poolPath, "serve", "serveOwn", "handle", "pass")},
		"slipway_cloudpool_updates_total.kind":           {values: constantsOf(t, poolPath, "Kind")},
		"slipway_cloudpool_updates_total.result":         {values: constantsOf(t, poolPath, "Result")},
		"slipway_cloudpool_update_duration_seconds.kind": {values: constantsOf(t, poolPath, "Kind")},

		"slipway_replacements.state":                     {values: waiting},
		"slipway_replacement_state_oldest_seconds.state": {values: waiting},
		"slipway_replacements_total.state":               {values: states},
		"slipway_replacement_refusals_total.code":        {values: replacementCodes(t)},
		"slipway_retirements.phase":                      {values: phases},
		"slipway_retirement_phase_oldest_seconds.phase":  {values: phases},
		"slipway_retirement_phase_reached_seconds.phase": {values: append(slices.Clone(phases), last...)},
		"slipway_retirements_blocked.code":               codes,
		"slipway_retirements_finished_total.phase":       {values: last},
		"slipway_retirements_finished_total.code":        codes,
		"slipway_retirements_finished_total.reason":      {values: constantsOf(t, "api/v1alpha1", "Reason"), more: "the word of whoever asked for it"},
		"slipway_retirement_steps_total.step":            {values: stepNames(t)},
		"slipway_retirement_steps_total.result":          {values: assigned(t, retirementPath, "step", "result")},
		"slipway_cloud_requests_total.call":              {values: sorted(append(given(t, retirementPath, "Metrics.Cloud", 1), given(t, "internal/replacement", "Asked", 1)...))},

		"slipway_nodegroup_nodes.state":                     {values: mapKeys(t, groupPath, "see")},
		"slipway_nodegroup_accepted.reason":                 {values: append(valuesOf(blockOf(t, "api/v1alpha1", "Reasons of the condition Accepted")), namedConstants(t, groupPath, "CloudNotRead")...)},
		"slipway_nodegroup_idle_nodes.verdict":              verdict,
		"slipway_nodegroup_refused_nodes.rule":              {values: keeps, more: "the code of a budget"},
		"slipway_nodegroup_refusals_total.rule":             {values: keeps, more: "the code of a budget"},
		"slipway_autoscaler_pending_pods.outcome":           {values: constantsOf(t, scalingPath, "Outcome")},
		"slipway_autoscaler_underused_nodes.verdict":        verdict,
		"slipway_autoscaler_orders_failed_total.reason":     {values: slices.Concat(refusals, failures, namedConstants(t, scalingPath, "Failed"))},
		"slipway_autoscaler_machines_given_up_total.reason": {values: append(slices.Clone(refusals), namedConstants(t, scalingPath, "NeverJoined", "NeverReady", "Failed")...)},
		"slipway_autoscaler_decision_seconds.direction":     {values: given(t, "internal/nodegroup/autoscaler", "Metrics.decided", 0)},
		"slipway_plugin_events_total.event":                 {values: constantsOf(t, advisedPath, "eventKind")},
		"slipway_plugin_events_total.result":                {values: namedConstants(t, advisedPath, "answered", "failed", "dropped")},
		"slipway_plugin_wishes_total.wish":                  {values: assigned(t, advisedPath, "pass", "kind")},
		"slipway_plugin_wishes_total.result":                {values: assigned(t, advisedPath, "passed", "result")},
		"slipway_cas_sync_nudges_total.pool":                {open: "name of the agent pool"},
		"slipway_cas_sync_nudges_total.outcome":             {values: namedConstants(t, "internal/manager", "nudgeDone", "nudgeFailed")},
		"slipway_cas_sync_nudges_total.reason":              {values: slices.Concat([]string{""}, refusals, failures, namedConstants(t, "internal/manager", "poolNotFound"))},
		"slipway_cas_sync_maximum_changed.pool":             {open: "name of the agent pool"},
		"slipway_strays.kind":                               {values: constantsOf(t, "internal/cloud/strays", "Kind")},
		"slipway_strays.state":                              {values: namedConstants(t, "internal/manager", "suspected", "proven")},
		"slipway_strays_collected_total.kind":               {values: constantsOf(t, "internal/cloud/strays", "Kind")},
	}
}

func valuesOf(all []constant) (values []string) {
	for _, c := range all {
		values = append(values, c.value)
	}
	return values
}

// retirementCodes are those of what blocks a retirement or ends it early.
func retirementCodes(t *testing.T) []string {
	t.Helper()
	var codes []string
	for _, c := range blockOf(t, "internal/retirement", "Codes of what ends") {
		codes = append(codes, followed(t, c))
	}
	return sorted(append(codes, constantsOf(t, "internal/retirement/budget", "Code")...))
}

// followed is the value of a constant, which may be that of another in the API.
func followed(t *testing.T, c constant) string {
	t.Helper()
	if name, is := strings.CutPrefix(c.from, "v1alpha1."); is {
		return namedConstants(t, "api/v1alpha1", name)[0]
	}
	return c.value
}

// replacementCodes are those of the orders that came to nothing.
func replacementCodes(t *testing.T) []string {
	t.Helper()
	return sorted(append(constantsOf(t, "internal/cloud", "Refusal"), namedConstants(t, "internal/replacement", "OrderFailed", "OrderLost")...))
}

// stepNames are the names of the steps of a retirement.
func stepNames(t *testing.T) (names []string) {
	t.Helper()
	sourceOf(t, "internal/retirement").each(func(n ast.Node) {
		v, is := n.(*ast.ValueSpec)
		if !is || v.Names[0].Name != "steps" || len(v.Values) != 1 {
			return
		}
		list, is := v.Values[0].(*ast.CompositeLit)
		if !is {
			return
		}
		for _, e := range list.Elts {
			if step, is := e.(*ast.CompositeLit); is && len(step.Elts) > 0 {
				if name, is := textOf(step.Elts[0]); is {
					names = append(names, name)
				}
			}
		}
	})
	return wanted(t, "internal/retirement", names)
}

// elements are the values of the constants of another package that a variable lists.
func elements(t *testing.T, path, variable, of string) (values []string) {
	t.Helper()
	sourceOf(t, path).each(func(n ast.Node) {
		v, is := n.(*ast.ValueSpec)
		if !is || v.Names[0].Name != variable || len(v.Values) != 1 {
			return
		}
		if list, is := v.Values[0].(*ast.CompositeLit); is {
			for _, e := range list.Elts {
				if c, is := e.(*ast.SelectorExpr); is {
					values = append(values, namedConstants(t, of, c.Sel.Name)...)
				}
			}
		}
	})
	return wanted(t, path, values)
}

func labelOf(all map[string]labelSays, metric, name string) (labelSays, bool) {
	if l, is := all[metric+"."+name]; is {
		return l, true
	}
	l, is := all[name]
	return l, is
}

func metricTable(t *testing.T, all []observe.Definition, known map[string]labelSays) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n|---|---|---|---|\n")
	for _, d := range all {
		var of []string
		for _, name := range d.Labels {
			l, is := labelOf(known, d.Name, name)
			text := "`" + name + "`: " + l.open
			if l.values != nil {
				text += listed(l.values)
			}
			if l.more != "" {
				text += ", or " + l.more
			}
			if !is {
				t.Errorf("%s: the reference does not know what its label %s can say", d.Name, name)
			}
			of = append(of, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, inCell.Replace(strings.Join(of, "<br>")), inCell.Replace(d.Help))
	}
	return strings.ReplaceAll(b.String(), "&lt;br>", "; ")
}

func TestTheReferenceOfMetricsIsCurrent(t *testing.T) {
	known := labelValues(t)
	var b strings.Builder
	b.WriteString("# Metrics\n\nWhat each process tells under `/metrics`, as it registers it. A histogram has its three series under the name with `_bucket`, " +
		"`_count` and `_sum`.\n[alerts.md](../alerts.md) has a dashboard and alerts of these.\n")
	b.WriteString("\n## Agent\n\n`slipway agent` and `slipway-agent`, by default at `127.0.0.1:9818`.\n\n" + metricTable(t, agentMetrics(t), known))
	b.WriteString("\n## Manager\n\n`slipway manager`, by default at port 9819.\n\n" + metricTable(t, managerMetrics(t), known))
	b.WriteString("\nIt also tells those of the libraries that it is made of, and of its process:\n\n| metric | labels | |\n|---|---|---|\n")
	for _, d := range libraryMetrics(t) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Name, listed(d.Labels), inCell.Replace(d.Help))
	}
	b.WriteString("\n## Cloudpool\n\n`slipway cloudpool`, by default at port 9820.\n\n" + metricTable(t, cloudpoolMetrics(), known))
	b.WriteString("\n## aks-node-termination-handler\n\n`slipway aks-node-termination-handler` has the tool's own beside an agent's. " +
		"[moving-from-aks-node-termination-handler.md](../moving-from-aks-node-termination-handler.md) says more.\n\n" + metricTable(t, handlerMetrics(), known))
	current(t, "metrics.md", b.String())
}

// ownMetrics are the definitions of all metrics of ours, by name.
func ownMetrics(t *testing.T) map[string]observe.Definition {
	t.Helper()
	all := map[string]observe.Definition{}
	for _, d := range slices.Concat(agentMetrics(t), managerMetrics(t), cloudpoolMetrics(), handlerMetrics()) {
		all[d.Name] = d
	}
	return all
}

func TestNoMetricThatTheCodeDefinesIsMissingInTheReference(t *testing.T) {
	known := ownMetrics(t)
	// defining are the functions by which metrics come to be: those of our own registry and of the Prometheus library.
	defining := []string{"Counter", "Gauge", "GaugeFunc", "Histogram", "readFrom", "fromRuntime", "NewDesc"}
	names := regexp.MustCompile(`^(slipway|aks_node_termination_handler|go|process)_[a-z_]+$`)
	found, in := 0, map[string]bool{}
	check := func(path string, e ast.Expr) {
		name, is := textOf(e)
		if !is || !names.MatchString(name) {
			return
		}
		found++
		if _, is := known[name]; !is {
			t.Errorf("package %s defines %s, which is in no registry that the reference is made of", path, name)
		}
	}
	for path, s := range everySource(t) {
		s.each(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CallExpr:
				if slices.Contains(defining, calledName(n)) && len(n.Args) > 1 {
					check(path, n.Args[0])
				}
				if of := spelt(n.Fun); strings.HasPrefix(of, "prometheus.New") && of != "prometheus.NewRegistry" {
					in[path] = true
				}
			case *ast.KeyValueExpr:
				if key, is := n.Key.(*ast.Ident); is && key.Name == "Name" {
					check(path, n.Value)
				}
			}
		})
	}
	if found < 50 {
		t.Errorf("%d definitions were found in the code: there are more", found)
	}
	// Names may be put together. So every package that makes metrics with the library has to be one whose metrics are
	// gathered.
	for _, path := range []string{
		"internal/manager", "internal/retirement", "internal/replacement", "internal/nodegroup", "internal/nodegroup/autoscaler", "internal/nodegroup/advised",
	} {
		if !in[path] {
			t.Errorf("package %s makes no metrics any more", path)
		}
		delete(in, path)
	}
	for path := range in {
		t.Errorf("package %s makes metrics, and the reference does not gather them", path)
	}
}

func TestEveryCounterOfAnAgentIsToldBeforeItsFirstEvent(t *testing.T) {
	r := observe.NewRegistry()
	agent.NewMetrics(r)
	answer := httptest.NewRecorder()
	r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	known, series := labelValues(t), 0
	for _, d := range r.Definitions() {
		if d.Type != "counter" {
			continue
		}
		want := []string{""}
		for _, name := range d.Labels {
			l, _ := labelOf(known, d.Name, name)
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
				t.Errorf("not told from the start: %s", line)
			}
		}
	}
	if series < 50 {
		t.Errorf("%d series were looked for: there are more", series)
	}
}

var (
	selection = regexp.MustCompile(`\b((?:slipway|aks_node_termination_handler)_\w+)\{([^}]*)\}`)
	matching  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"`)
)

// impossible says what an expression selects that no process can tell: metrics that there are not, labels that they have not, and
// values that the code does not give them.
func impossible(expr string, known map[string]observe.Definition, of map[string]labelSays) (errs []string, looked int) {
	for _, s := range selection.FindAllStringSubmatch(expr, -1) {
		d, is := known[s[1]]
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if h, histogram := known[strings.TrimSuffix(s[1], suffix)]; !is && histogram && h.Type == "histogram" {
				d, is = h, true
			}
		}
		if !is {
			errs = append(errs, "there is no metric "+s[1])
			continue
		}
		for _, m := range matching.FindAllStringSubmatch(s[2], -1) {
			name, operator, value := m[1], m[2], m[3]
			if slices.Contains([]string{"job", "instance", "le"}, name) {
				continue
			}
			if !slices.Contains(d.Labels, name) {
				errs = append(errs, fmt.Sprintf("%s has no label %s", s[1], name))
				continue
			}
			l, _ := labelOf(of, d.Name, name)
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
					errs = append(errs, fmt.Sprintf("%s is never told with %s=%q: want one of %s", s[1], name, want, strings.Join(l.values, ", ")))
				}
			}
		}
	}
	return errs, looked
}

func TestNoPanelAndNoRuleSelectsWhatNoProcessTells(t *testing.T) {
	known, of := ownMetrics(t), labelValues(t)
	looked := 0
	check := func(by, expr string) {
		errs, n := impossible(expr, known, of)
		looked += n
		for _, err := range errs {
			t.Errorf("%s: %s", by, err)
		}
	}
	for _, file := range []string{"dashboard.json", "slipway.rules.yaml", "slipway.rules.test.yaml"} {
		raw, err := os.ReadFile(repository("deploy/monitoring/" + file))
		if err != nil {
			t.Fatal(err)
		}
		var all any
		if err := yaml.Unmarshal(raw, &all); err != nil {
			t.Fatal(err)
		}
		everyText(all, func(text string) { check(file+": "+text, text) })
	}
	if looked < 20 {
		t.Errorf("%d values were looked at: there are more", looked)
	}
	for _, wrong := range []string{
		`slipway_retirements{phase="Gone"}`, `rate(slipway_drains_total{outcome=~"drained|lost"}[5m])`, `slipway_drain_seconds_bucket{phase="x"}`,
		`slipway_no_such_metric{a="b"}`, `slipway_retirement_phase_oldest_seconds{phase="Succeeded"}`,
	} {
		if errs, _ := impossible(wrong, known, of); len(errs) != 1 {
			t.Errorf("%s: %q, want one error", wrong, errs)
		}
	}
}

// everyText visits each text of a document.
func everyText(v any, visit func(string)) {
	switch v := v.(type) {
	case string:
		visit(v)
	case []any:
		for _, e := range v {
			everyText(e, visit)
		}
	case map[string]any:
		for _, e := range v {
			everyText(e, visit)
		}
	}
}
