package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/compat/aksnth"
	"github.com/slipway-dev/slipway/internal/compat/awsnth"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

// agentMetrics returns the metrics that an agent registers.
func agentMetrics() []observe.Definition {
	r := observe.NewRegistry()
	if _, err := notify.NewNotifier(nil, notify.Options{Metrics: r}); err != nil {
		failf("%v", err)
	}
	r.AddStandardMetrics(observe.Build{})
	agent.NewMetrics(r)
	return r.Definitions()
}

func cloudpoolMetrics() []observe.Definition {
	r := observe.NewRegistry()
	r.AddStandardMetrics(observe.Build{})
	controller.NewMetrics(r)
	return r.Definitions()
}

func queueMetrics() []observe.Definition {
	r := observe.NewRegistry()
	queue.NewMetrics(r)
	return r.Definitions()
}

func handlerMetrics() []observe.Definition {
	r := observe.NewRegistry()
	aksnth.NewMetrics(r, "node")
	return r.Definitions()
}

func awsHandlerMetrics() []observe.Definition {
	r := observe.NewRegistry()
	awsnth.NewMetrics(r)
	return r.Definitions()
}

// collectorRecorder is a Registerer that records the registered collectors. A normal registry lists only metrics
// that already have values.
type collectorRecorder struct{ collectors []prometheus.Collector }

func (r *collectorRecorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return nil
}

func (r *collectorRecorder) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
}
func (*collectorRecorder) Unregister(prometheus.Collector) bool { return false }

// sampleCache is a cache with one NodeRetirement. With this NodeRetirement, every metric that is computed from the
// cache has a value.
type sampleCache struct{ client.Reader }

func (sampleCache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	now := metav1.NewTime(time.Unix(1, 0))
	if all, ok := list.(*v1alpha1.NodeRetirementList); ok {
		all.Items = []v1alpha1.NodeRetirement{{
			Spec: v1alpha1.NodeRetirementSpec{Group: "group"},
			Status: v1alpha1.NodeRetirementStatus{
				Phase: v1alpha1.Draining, Reasons: []v1alpha1.RetirementReason{{Code: "code"}},
				Replacement: &v1alpha1.Replacement{State: v1alpha1.ReplacementLaunched, Since: now},
			},
		}}
	}
	return nil
}

// descriptionPattern matches the text form of a prometheus.Desc.
var descriptionPattern = regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: (".*?"), (?:unit: ".*?", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

func toDefinition(d *prometheus.Desc, kind string) observe.Definition {
	m := descriptionPattern.FindStringSubmatch(d.String())
	var help string
	if m == nil || json.Unmarshal([]byte(m[2]), &help) != nil {
		failf("cannot parse the metric description %s", d)
	}
	is := observe.Definition{Name: m[1], Help: help, Type: kind}
	if m[3] != "" {
		is.Labels = strings.Split(m[3], ",")
	}
	return is
}

// managerMetrics returns the metrics that Slipway's own code registers in a manager.
func managerMetrics() (all []observe.Definition) {
	var r collectorRecorder
	must(manager.RegisterMetrics(&r, sampleCache{}))
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
			kinds = metricTypesByName(c)
		}
		for _, d := range listDescriptions(c) {
			of := toDefinition(d, kind)
			if kind == "" {
				of.Type = kinds[of.Name]
			}
			if of.Type == "" {
				failf("%s: unknown metric type", of.Name)
			}
			all = append(all, of)
		}
	}
	return sortByName(all)
}

func sortByName(all []observe.Definition) []observe.Definition {
	slices.SortFunc(all, func(x, y observe.Definition) int { return strings.Compare(x.Name, y.Name) })
	return all
}

func listDescriptions(c prometheus.Collector) (all []*prometheus.Desc) {
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

// metricTypesByName returns the types of a collector's metrics that currently have values, by the name of the
// metric.
func metricTypesByName(c prometheus.Collector) map[string]string {
	r := prometheus.NewPedanticRegistry()
	must(r.Register(c))
	families, err := r.Gather()
	must(err)
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(dto.MetricType_name[int32(f.GetType())])
	}
	return kinds
}

// libraryMetrics returns the metrics of controller-runtime and client-go. A manager exports them too.
func libraryMetrics() (all []observe.Definition) {
	registry, ok := metrics.Registry.(prometheus.Collector)
	if !ok {
		failf("controller-runtime's registry cannot list its metrics")
	}
	for _, d := range listDescriptions(registry) {
		all = append(all, toDefinition(d, ""))
	}
	return slices.CompactFunc(sortByName(all), func(x, y observe.Definition) bool { return x.Name == y.Name })
}

// labelDoc describes the values of a label. It has a list of the values, or a description if any value is possible.
type labelDoc struct {
	values []string
	open   string
	// more describes further possible values.
	more string
}

// labelValues returns the possible values of metric labels, most of them read from the code. A key is METRIC and
// LABEL, or only LABEL if the label means the same for all metrics.
func labelValues() map[string]labelDoc {
	all := map[string]labelDoc{
		"group": {open: "name of a NodeGroup"}, "provider": {open: "name of a cloud"}, "cloud": {open: "name of a cloud"},
		"template": {open: "machine type, with its cloud's name"}, "plugin": {open: "name of a plugin"},
		"receiver": {open: "name of a receiver of notifications"}, "pool": {open: "name of a cloudpool"},
		"goversion": {open: "version of Go"}, "version": {open: "version"}, "revision": {open: "revision of the source"},
		"node_action": {values: []string{"pre-drain", "cordon", "cordon-and-drain", "post-drain", "uncordon"}}, "node_status": {values: []string{"success", "error"}},
		"node_event_id": {open: "ID of the event"}, "node_name": {open: "name of the Node"}, "event_error_where": {open: "monitor of the tool, such as `SPOT_ITN_MONITOR`"},
		"otel_scope_name": {open: "always `aws.node.termination.handler`"}, "otel_scope_version": {open: "always empty"},
		"node": {open: "name of the Node"}, "resource": {open: "name of the machine in Azure's events"},
		"cluster": {open: "address of the API server"}, "endpoint": {open: "path, or the receiver's name"},
		"method": {open: "HTTP method in lower case"}, "code": {open: "HTTP status"},
		"type": {values: toStrings(notice.Types())}, "result": {values: returnedStrings("internal/cloud", "OutcomeLabel")},
	}
	maps.Copy(all, agentLabels())
	maps.Copy(all, retirementLabels())
	maps.Copy(all, groupLabels())
	return all
}

// agentLabels returns the possible label values of the metrics of agents and of slipway cloudpool.
func agentLabels() map[string]labelDoc {
	kinds := labelDoc{values: append(toStrings(queue.Kinds()), string(queue.ASGTest), string(queue.Other), queue.Unreadable)}
	return map[string]labelDoc{
		"slipway_queue_messages_received_total.kind": kinds, "slipway_queue_messages_deleted_total.kind": kinds, "slipway_queue_messages_parked_total.kind": kinds,
		"slipway_queue_hook_failures_total.request":        {values: namedConstants("internal/notice/aws/queue", "heartbeatRequest", "completionRequest")},
		"slipway_agent_notices_total.action":               {values: toStrings(agent.Actions())},
		"slipway_agent_last_read_timestamp_seconds.source": {open: "name of a source of notices, such as `azure`, `aws-events` or `gce-spot`"},
		"slipway_agent_polls_total.result":                 {values: append(namedConstants("internal/agent", "pollOK"), toStrings(poll.Classes())...)},
		"slipway_drain_pods.state":                         {values: argumentStrings("internal/agent", "drainPods.With", 0)},
		"slipway_drain_blocked_pods.reason":                {values: listedConstants("internal/agent", "obstacleLabels", "internal/drain")},
		"slipway_drains_total.outcome":                     {values: constantsOfType("internal/drain", "Outcome")},
		"slipway_drain_pod_ends_total.end":                 {values: constantsOfType("internal/drain", "PodEnd")},
		"slipway_surges_total.result":                      {values: append(namedConstants("internal/agent", "surgeSucceeded"), surge.FailureReasons...)},
		"slipway_surge_refusals_total.reason":              {values: surge.RefusalReasons},
		"slipway_notifications_total.result":               {values: argumentStrings("internal/notify", "results.With", 1)},
		"slipway_cloudpool_requests_total.handling":        {values: returnedStrings("internal/cloudpool/httpserver", "serveRequest", "serveSlipwayAPI", "servePoolRequest", "forwardOrServeNative")},
		"slipway_cloudpool_updates_total.kind":             {values: constantsOfType("internal/cloudpool/controller", "Kind")},
		"slipway_cloudpool_updates_total.result":           {values: constantsOfType("api/v1alpha1", "PoolUpdateResult")},
		"slipway_cloudpool_update_duration_seconds.kind":   {values: constantsOfType("internal/cloudpool/controller", "Kind")},
	}
}

// retirementLabels returns the possible label values of a manager's metrics for retirements and replacements.
func retirementLabels() map[string]labelDoc {
	codes := labelDoc{values: append([]string{""}, retirementCodes()...)}
	var phases, last []string
	for _, p := range constantsOfType("api/v1alpha1", "Phase") {
		if v1alpha1.Phase(p).IsFinal() {
			last = append(last, p)
		} else {
			phases = append(phases, p)
		}
	}
	states := constantsOfType("api/v1alpha1", "ReplacementState")
	waiting := slices.DeleteFunc(slices.Clone(states), func(s string) bool { return v1alpha1.ReplacementState(s).IsFinal() })
	return map[string]labelDoc{
		"slipway_replacements.state":                     {values: waiting},
		"slipway_replacement_state_oldest_seconds.state": {values: waiting},
		"slipway_replacements_total.state":               {values: states},
		"slipway_replacement_failed_launches_total.code": {values: replacementCodes()},
		"slipway_retirements.phase":                      {values: phases},
		"slipway_retirement_phase_oldest_seconds.phase":  {values: phases},
		"slipway_retirement_phase_reached_seconds.phase": {values: append(slices.Clone(phases), last...)},
		"slipway_retirements_blocked.code":               codes,
		"slipway_retirements_finished_total.phase":       {values: last},
		"slipway_retirements_finished_total.code":        codes,
		"slipway_retirements_finished_total.reason":      {values: constantsOfType("api/v1alpha1", "Reason"), more: "the reason of the requester"},
		"slipway_retirement_steps_total.step":            {values: retirementStepNames()},
		"slipway_retirement_steps_total.result":          {values: assignedStrings("internal/retirement", "recordStepResult", "result")},
		"slipway_cloud_requests_total.call":              {values: sortUnique(append(argumentStrings("internal/retirement", "Metrics.RecordCloudRequest", 1), argumentStrings("internal/provisioning/replacement", "ReportCall", 1)...))},
	}
}

// groupLabels returns the possible label values of a manager's metrics for NodeGroups and launches.
func groupLabels() map[string]labelDoc {
	const groupPath, planPath, launchPath = "internal/nodegroup", "internal/provisioning/plan", "internal/provisioning/launch"
	verdict := labelDoc{values: constantsOfType(groupPath, "Verdict")}
	refusals := constantsOfType("internal/cloud", "Refusal")
	failures := namedConstants(launchPath, "Throttled", "Unclear")
	rule := labelDoc{values: constantValues(constantBlock(groupPath, "Rules")), more: "the code of a disruption budget"}
	return map[string]labelDoc{
		"slipway_nodegroup_nodes.state":                              {values: stringMapKeys(groupPath, "setGroupGauges")},
		"slipway_nodegroup_accepted.reason":                          {values: append(constantValues(constantBlock("api/v1alpha1", "Reasons of the condition Accepted")), namedConstants(groupPath, "CloudUnreadable")...)},
		"slipway_nodegroup_idle_nodes.verdict":                       verdict,
		"slipway_nodegroup_refused_nodes.rule":                       rule,
		"slipway_nodegroup_refusals_total.rule":                      rule,
		"slipway_autoscaler_unschedulable_pods.outcome":              {values: constantsOfType(planPath, "Outcome")},
		"slipway_autoscaler_underutilized_nodes.verdict":             verdict,
		"slipway_autoscaler_failed_launches_total.reason":            {values: slices.Concat(refusals, failures, namedConstants(launchPath, "Failed"))},
		"slipway_autoscaler_unjoined_instances_deleted_total.reason": {values: append(slices.Clone(refusals), namedConstants(launchPath, "NeverJoined", "NeverReady", "Failed")...)},
		"slipway_autoscaler_decision_seconds.direction":              {values: argumentStrings("internal/provisioning", "Metrics.observeDecision", 0)},
		"slipway_plugin_events_total.event":                          {values: constantsOfType("internal/provisioning/analyzers", "eventKind")},
		"slipway_plugin_events_total.result":                         {values: namedConstants("internal/provisioning/analyzers", "resultAnswered", "resultFailed", "resultDropped")},
		"slipway_plugin_requests_total.request":                      {values: assignedStrings("internal/provisioning/analyzers", "applyRecommendation", "kind")},
		"slipway_plugin_requests_total.result":                       {values: assignedStrings("internal/provisioning/analyzers", "countRequest", "result")},
		"slipway_cas_sync_nudges_total.pool":                         {open: "name of the agent pool"},
		"slipway_cas_sync_nudges_total.outcome":                      {values: namedConstants("internal/manager", "nudgeDone", "nudgeFailed")},
		"slipway_cas_sync_nudges_total.reason":                       {values: slices.Concat([]string{""}, refusals, failures, namedConstants("internal/manager", "poolNotFound"))},
		"slipway_cas_sync_max_size_changed.pool":                     {open: "name of the agent pool"},
		"slipway_orphans.kind":                                       {values: constantsOfType("internal/orphans", "OrphanKind")},
		"slipway_orphans.state":                                      {values: namedConstants("internal/orphans", "suspected", "proven")},
		"slipway_orphans_removed_total.kind":                         {values: constantsOfType("internal/orphans", "OrphanKind")},
	}
}

func constantValues(all []constant) (values []string) {
	for _, c := range all {
		values = append(values, c.value)
	}
	return values
}

// retirementCodes returns the codes that can block a retirement or end it early.
func retirementCodes() []string {
	var codes []string
	for _, c := range constantBlock("internal/retirement", "Codes for status.reasons") {
		codes = append(codes, resolveValue(c))
	}
	return sortUnique(append(codes, constantsOfType("internal/retirement/disruptionbudget", "Code")...))
}

// resolveValue returns the value of a constant. If a constant of the API package defines the value, it looks up this
// constant.
func resolveValue(c constant) string {
	if name, ok := strings.CutPrefix(c.from, "v1alpha1."); ok {
		return namedConstants("api/v1alpha1", name)[0]
	}
	return c.value
}

// replacementCodes returns the codes of failed launches.
func replacementCodes() []string {
	return sortUnique(append(constantsOfType("internal/cloud", "Refusal"), namedConstants("internal/provisioning/launch", "NeverJoined", "NeverReady", "NeverUsable", "Failed", "Throttled", "Unclear", "InstanceVanished")...))
}

// retirementStepNames returns the names of the steps of a retirement.
func retirementStepNames() (names []string) {
	for _, e := range listElements("internal/retirement", "steps") {
		if step, ok := e.(*ast.CompositeLit); ok {
			name, _ := stringValue(step.Elts[0])
			names = append(names, name)
		}
	}
	return sortUnique(names)
}

// listedConstants returns the values of constants in another package. A variable's list names these constants.
func listedConstants(path, variable, of string) (values []string) {
	for _, e := range listElements(path, variable) {
		if c, ok := e.(*ast.SelectorExpr); ok {
			values = append(values, namedConstants(of, c.Sel.Name)...)
		}
	}
	return sortUnique(values)
}

func findLabelDoc(all map[string]labelDoc, metric, name string) (doc labelDoc, found bool) {
	if l, ok := all[metric+"."+name]; ok {
		return l, true
	}
	l, ok := all[name]
	return l, ok
}

func newMetricTable(all []observe.Definition, known map[string]labelDoc) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n|---|---|---|---|\n")
	for _, d := range all {
		var of []string
		for _, name := range d.Labels {
			l, ok := findLabelDoc(known, d.Name, name)
			text := "`" + name + "`: " + l.open
			if l.values != nil {
				text += formatList(l.values)
			}
			if l.more != "" {
				text += ", or " + l.more
			}
			if !ok {
				failf("%s: the reference does not know the values of its label %s: add them in tools/docgen", d.Name, name)
			}
			of = append(of, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, cellEscaper.Replace(strings.Join(of, "<br>")), cellEscaper.Replace(d.Help))
	}
	return strings.ReplaceAll(b.String(), "&lt;br>", "; ")
}

func metricsPage() string {
	known := labelValues()
	var b strings.Builder
	b.WriteString("# Metrics\n\nThe metrics of each process at `/metrics`, generated from their registration. A histogram has three series with the suffixes `_bucket`, " +
		"`_count` and `_sum`.\nSee [alerts.md](../alerts.md) for a dashboard and alerts.\n")
	b.WriteString("\n## Agent\n\n`slipway agent` and `slipway-agent`, by default at `127.0.0.1:9818`.\n\n" + newMetricTable(agentMetrics(), known))
	b.WriteString("\n## Manager\n\n`slipway manager`, by default at port 9819.\n\n" + newMetricTable(managerMetrics(), known))
	b.WriteString("\nIt also exports metrics of its libraries and its process:\n\n| metric | labels | |\n|---|---|---|\n")
	for _, d := range libraryMetrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Name, formatList(d.Labels), cellEscaper.Replace(d.Help))
	}
	b.WriteString("\n## AWS queue mode\n\n`slipway manager --aws-queue-url` and `slipway aws-node-termination-handler` with a queue, in addition to an agent's metrics.\n\n" + newMetricTable(queueMetrics(), known))
	b.WriteString("\n## Cloudpool\n\n`slipway cloudpool`, by default at port 9820.\n\n" + newMetricTable(cloudpoolMetrics(), known))
	b.WriteString("\n## aks-node-termination-handler\n\n`slipway aks-node-termination-handler` has the replaced tool's metrics in addition to an agent's. " +
		"See [moving-from-aks-node-termination-handler.md](../moving-from-aks-node-termination-handler.md).\n\n" + newMetricTable(handlerMetrics(), known))
	b.WriteString("\n## aws-node-termination-handler\n\n`slipway aws-node-termination-handler` has the replaced tool's metrics in addition to an agent's, if its metrics server is enabled.\n\n" +
		newMetricTable(awsHandlerMetrics(), known))
	return b.String()
}
