package monitoring_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/manager"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// ns is the namespace of all workloads.
const ns = "monitoring"

// fixture is a cluster that produces as many kinds of events and metrics as possible.
type fixture struct {
	*testbed.Testbed
	t       *testing.T
	ctx     context.Context
	targets map[string][]string // addresses by job
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Testbed: testbed.StartShared(t), t: t, targets: map[string][]string{}}
	if _, err := testbed.EnsureBinary("slipway"); err != nil { // it may be slow the first time
		t.Fatal(err)
	}
	ctx := testbed.TestContext(t)
	f.ctx = ctx
	f.check(f.ApplyManifests(ctx, append(testbed.ManagerManifests, "cloudpool/rbac.yaml", "cloudpool/native.yaml")...))
	f.check(f.InstallCRDs(ctx))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(ns)))
	return f
}

// group creates a NodeGroup over a scale set.
func (f *fixture) group(name, scaleSet, spec string) {
	f.t.Helper()
	f.check(f.CreateNodeGroup(f.ctx, name, nil, testbed.ScaleSetNodeGroupSpec(name, scaleSet)+spec))
}

// pool creates a pool of n instances with a NodeGroup.
func (f *fixture) pool(name string, n int, spec string) controlplane.AKSPool {
	f.t.Helper()
	p := controlplane.AKSPool{Name: name}
	f.check(f.AddPool(f.ctx, p, n))
	f.group(name, p.ScaleSetName(), spec)
	return p
}

// on returns an App that runs its pods in a pool.
func on(pool, name, cpu string) workload.App {
	return workload.App{
		Namespace: ns, Name: name, CPU: resource.MustParse(cpu), StopSeconds: "0.1", NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": pool},
	}
}

// blockDrain runs a pod on an instance. The pod's PDB always denies the eviction.
func (f *fixture) blockDrain(p controlplane.AKSPool, instance int) {
	f.t.Helper()
	app := workload.App{Namespace: ns, Name: "blocked-" + p.Name, Node: p.NodeName(instance), MaxUnavailable: "0", StopSeconds: "0.1"}
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), app.Deployment(), app.PodDisruptionBudget()))
}

// start starts a process of the product that exposes metrics.
func (f *fixture) start(job, account string, args ...string) {
	f.t.Helper()
	address, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	credentials, err := f.ServiceAccountKubeconfig(f.ctx, "slipway", account, controlplane.TokenOptions{})
	f.check(err)
	path, err := testbed.EnsureBinary("slipway")
	f.check(err)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "ADDRESS", address)
	}
	f.run(controlplane.Command{
		Name: job, Path: path, Args: append(args, "--kubeconfig", credentials), ReadyURL: "http://" + address + "/readyz",
		Env: []string{"POD_NAMESPACE=slipway", "AWS_ACCESS_KEY_ID=none", "AWS_SECRET_ACCESS_KEY=none"},
	})
	f.targets[job] = append(f.targets[job], address)
}

func (f *fixture) run(c controlplane.Command) {
	f.t.Helper()
	p, err := f.StartProcess(f.ctx, c)
	f.t.Cleanup(func() {
		if p != nil {
			_ = p.Kill()
		}
		if f.t.Failed() {
			raw, _ := os.ReadFile(filepath.Join(f.Dir(), "logs", c.Name+".log"))
			f.t.Logf("log of %s:\n%s", c.Name, raw[max(len(raw)-20_000, 0):])
		}
	})
	f.check(err)
}

// restartedPool is the agent pool that the product changes the maximum of, for cluster-autoscaler.
const restartedPool = "restarted"

// clouds returns a file for --cloud-config. The file describes the instances of empty scale sets.
func (f *fixture) clouds(empty ...string) string {
	f.t.Helper()
	config := f.AzureProviderConfig()
	for _, set := range empty {
		config.Groups = append(config.Groups, testbed.EmptyGroupConfig(set))
	}
	sync := &provider.CASSyncConfig{ResourceGroup: testbed.ManagedClusterGroup, Cluster: testbed.ManagedClusterName, AgentPool: restartedPool}
	raw, err := yaml.Marshal(map[string]any{"azure": manager.AzureCloud{Config: config, CASSync: sync}, "openstack": noServers(f.t)})
	f.check(err)
	return testbed.WriteTempFile(f.t, "clouds.yaml", string(raw))
}

// agent starts the agent of an instance, with a receiver that does not answer.
func (f *fixture) agent(p controlplane.AKSPool, instance int) {
	f.t.Helper()
	config := testbed.WriteTempFile(f.t, fmt.Sprintf("agent-%s-%d.yaml", p.Name, instance),
		"pollInterval: 200ms\nnotifications:\n- name: unavailable\n  webhook: {url: 'http://127.0.0.1:1'}\n")
	a, err := f.StartAgent(f.ctx, p, instance, "--config="+config)
	f.check(err)
	f.t.Cleanup(func() { _ = a.KillIfAlive() })
	f.targets["slipway-agent"] = append(f.targets["slipway-agent"], a.MetricsAddress())
}

const write = "Microsoft.Compute/virtualMachineScaleSets/write"

// noQuota makes the cloud refuse launches for a scale set, the given number of times. 0 means always.
func (f *fixture) noQuota(scaleSet string, times int) {
	f.t.Helper()
	f.check(f.ARM.InjectFaults(azure.ARMFault{
		Kind: azure.ARMStatus, Status: http.StatusConflict, Code: "OperationNotAllowed", Times: times, Resource: scaleSet, Action: write,
		Message: "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.",
	}))
}

// scenario holds the pools and the addresses of the scenario.
type scenario struct {
	spot, leaving controlplane.AKSPool
	front         string // of the cloudpool process
}

// prepare starts the processes, and creates the groups, the instances and the pods.
func (f *fixture) prepare() scenario {
	f.t.Helper()
	const free = "disruptionBudgets: [{nodes: '100%'}]"
	// Azure deletes one instance with a pod that fits nowhere else, and refuses its replacement once. The drain of
	// another instance is blocked.
	spot := controlplane.AKSPool{Name: "spot", Spot: true}
	f.check(f.AddPool(f.ctx, spot, 2))
	full := on("spot", "full", "12")
	full.Replicas = 2
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), full.Deployment()))
	f.blockDrain(spot, 1)
	f.group("spot", spot.ScaleSetName(), "maxSize: 3")
	f.noQuota(spot.ScaleSetName(), 3)
	// One node is retired, and a PDB blocks the retirement of another.
	leaving := f.pool("leaving", 2, free)
	f.blockDrain(leaving, 1)
	// Of two idle nodes, one must stay.
	f.pool("idle", 2, "minSize: 1\n"+free+"\nscaleDown: {idleByLabel: {podSelector: {matchLabels: {work: it}}, cooldown: 1s}}")
	// For unschedulable pods, instances join, do not join, or are refused.
	grow := f.pool("grow", 0, "maxSize: 2\nscaleUp: {}\nscaleDown: {underutilized: {cooldown: 1h}}")
	f.ARM.AddScaleSet(azure.ScaleSetSpec{Name: "silent", Size: "Standard_D16ds_v5"}, 0)
	f.group("silent", "silent", "maxSize: 1\nscaleUp: {joinTimeout: 10s}")
	broke := f.pool("broke", 0, "maxSize: 1\nscaleUp: {}")
	f.noQuota(broke.ScaleSetName(), 0)
	for _, pool := range []string{"grow", "silent", "broke"} {
		f.check(workload.Create(f.ctx, f.Client(), on(pool, "wants-"+pool, "1").Pod()))
	}

	f.check(f.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: testbed.ManagedClusterName, ResourceGroup: testbed.ManagedClusterGroup, Name: restartedPool, AutoScaling: true, Max: 5,
	}))

	f.agent(spot, 0)
	f.agent(spot, 1)
	clouds := f.clouds(grow.ScaleSetName(), "silent", broke.ScaleSetName())
	// The file contains a group with the name of an existing group.
	groups := testbed.WriteTempFile(f.t, "groups.yaml", "apiVersion: slipway.dev/v1alpha1\nkind: NodeGroup\nmetadata: {name: grow}\n"+
		"spec: {nodeSelector: {matchLabels: {pool: other}}, cloud: {provider: azure, group: other}}\n")
	f.start("slipway-manager", "slipway-manager", "manager", "--listen", "ADDRESS", "--cloud-config", clouds, "--node-groups", groups, "--leader-elect=false",
		"--poll-interval", "1s", "--cloud-poll-interval", "500ms", "--retry-interval", "1s", "--group-poll-interval", "1s",
		"--scale-poll-interval", "1s", "--launch-settle-time", "5s",
		"--aws-queue-url", "http://127.0.0.1:9/1/notices", "--aws-queue-region", "eu-west-1") // a queue that does not answer
	front, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	f.start("slipway-cloudpool", "slipway-cloudpool", "cloudpool", "--listen", front, "--metrics-listen", "ADDRESS", "--cloud-config", clouds,
		"--namespace", "slipway", "--native", "leaving", "--native-refresh", "0s")
	return scenario{spot, leaving, front}
}

// triggerEvents triggers what does not happen on its own.
func (f *fixture) triggerEvents(s scenario) {
	f.t.Helper()
	for instance, kind := range map[int]azure.EventType{0: azure.Preempt, 1: azure.Redeploy} {
		_, err := f.Azure.Announce(azure.Announcement{Type: kind, Resources: []string{s.spot.ResourceName(instance)}})
		f.check(err)
	}
	for instance := range 2 {
		f.slipway("retire", s.leaving.NodeName(instance))
	}
	_, err := f.get("http://" + s.front + "/pool")
	f.check(err)
}

func (f *fixture) slipway(args ...string) {
	f.t.Helper()
	if out, err := testbed.NewCommand(f.ctx, f.t, "slipway", append(args, "--kubeconfig", f.Kubeconfig())...).CombinedOutput(); err != nil {
		f.t.Fatalf("slipway %v: %v: %s", args, err, out)
	}
}

func (f *fixture) get(from string) ([]byte, error) {
	r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // read only
	return io.ReadAll(answer.Body)
}

// prometheus is a Prometheus that scrapes all started processes every second.
type prometheus struct {
	*fixture
	url string
}

func (f *fixture) prometheus(program string) *prometheus {
	f.t.Helper()
	address, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	config := map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{shipped(f.t, "deploy", "monitoring", "slipway.rules.yaml")},
	}
	var jobs []any
	for job, addresses := range f.targets {
		// Prometheus gets these labels from its own configuration.
		labels := map[string]any{"cluster": "emulated", "namespace": "slipway"}
		jobs = append(jobs, map[string]any{"job_name": job, "static_configs": []any{map[string]any{"targets": addresses, "labels": labels}}})
	}
	config["scrape_configs"] = jobs
	raw, err := yaml.Marshal(config)
	f.check(err)
	f.run(controlplane.Command{
		Name: "prometheus", Path: program, ReadyURL: "http://" + address + "/-/ready",
		Args: []string{
			"--config.file=" + testbed.WriteTempFile(f.t, "prometheus.yaml", string(raw)), "--storage.tsdb.path=" + f.t.TempDir(),
			"--web.listen-address=" + address,
		},
	})
	return &prometheus{f, "http://" + address + "/api/v1/"}
}

// ask sends a request to the API, and decodes the answer's data.
func (p *prometheus) ask(path string, params url.Values, data any) error {
	raw, err := p.get(p.url + path + "?" + params.Encode())
	if err != nil {
		return err
	}
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

var (
	metricName = regexp.MustCompile(`\bslipway_\w+`)
	selector   = regexp.MustCompile(`\b(slipway_\w+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
)

// want is a label that a query expects in at least one of several metrics. A metric alone uses the label __name__,
// because every metric must exist.
type want struct {
	by, label string
	of        []string
}

// expectedLabels returns the labels that the queries expect.
func expectedLabels(all []query) (list []want) {
	for _, q := range all {
		names := metricName.FindAllString(q.expr, -1)
		for _, name := range names {
			list = append(list, want{q.by, "__name__", []string{name}})
		}
		for _, s := range selector.FindAllStringSubmatch(q.expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				list = append(list, want{q.by, m[1], []string{s[1]}})
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(q.expr, -1) {
			for _, label := range strings.Split(g[1], ",") {
				list = append(list, want{q.by, strings.TrimSpace(label), names})
			}
		}
	}
	return list
}

// labels returns all labels in any series of each metric.
func (p *prometheus) labels() (map[string][]string, error) {
	var series []map[string]string
	if err := p.ask("series", url.Values{"match[]": {`{__name__=~"slipway_.+"}`}}, &series); err != nil {
		return nil, err
	}
	known := map[string][]string{}
	for _, s := range series {
		for label := range s {
			known[s["__name__"]] = append(known[s["__name__"]], label)
		}
	}
	return known, nil
}

// missing lists the expected labels that do not exist.
func missing(list []want, known map[string][]string) (lines []string) {
	for _, w := range list {
		if !slices.ContainsFunc(w.of, func(name string) bool { return slices.Contains(known[name], w.label) }) {
			line := fmt.Sprintf("%s: no %s of %s", w.by, w.label, strings.Join(slices.Compact(slices.Sorted(slices.Values(w.of))), ", "))
			lines = append(lines, line)
		}
	}
	return lines
}

func TestProcessesExposeQueriedMetricsAndLabels(t *testing.T) {
	promtool, program := testbed.FindPeer(t, "promtool"), testbed.FindPeer(t, "prometheus")
	all := queries(t)
	list := expectedLabels(all)
	if len(list) < len(all) || len(missing(list, nil)) != len(list) {
		t.Fatalf("%d queries expect %d labels", len(all), len(list))
	}
	f := newFixture(t)
	set := f.prepare()
	p := f.prometheus(program) // before any short-lived state occurs
	f.triggerEvents(set)
	var lacks []string
	if err := testbed.PollUntil(f.ctx, "all metrics are exposed", func() bool {
		known, err := p.labels()
		if err != nil {
			return false
		}
		lacks = missing(list, known)
		return len(lacks) == 0
	}); err != nil {
		t.Fatalf("%v:\n%s", err, strings.Join(lacks, "\n"))
	}
	p.checkRules()
	for _, q := range all {
		var data any
		if err := p.ask("query", url.Values{"query": {q.expr}}, &data); err != nil {
			t.Errorf("%s: %v", q.by, err)
		}
	}
	f.lint(promtool)
	p.checkReference()
}

// checkReference checks that the reference lists each exposed metric of Slipway.
func (p *prometheus) checkReference() {
	p.t.Helper()
	known, err := p.labels()
	p.check(err)
	page := string(read(p.t, shipped(p.t, "docs", "reference", "metrics.md")))
	for name, labels := range known {
		if slices.Contains(labels, "le") {
			name = strings.TrimSuffix(name, "_bucket")
		}
		series := []string{name, strings.TrimSuffix(name, "_count"), strings.TrimSuffix(name, "_sum")}
		if !slices.ContainsFunc(series, func(name string) bool { return strings.Contains(page, "| `"+name+"` |") }) {
			p.t.Errorf("%s is exposed, but docs/reference/metrics.md does not list it", name)
		}
	}
	if len(known) < 50 {
		p.t.Errorf("%d metrics are exposed, want at least 50", len(known))
	}
}

// lint runs promtool on the metrics of one process of each kind.
func (f *fixture) lint(promtool string) {
	f.t.Helper()
	for job, addresses := range f.targets {
		exposed, err := f.get("http://" + addresses[len(addresses)-1] + "/metrics") // Azure does not delete the instance of this agent
		f.check(err)
		cmd := exec.CommandContext(f.ctx, promtool, "check", "metrics")
		cmd.Stdin = bytes.NewReader(exposed)
		if out, err := cmd.CombinedOutput(); err != nil {
			f.t.Errorf("metrics of %s: %v\n%s", job, err, out)
		}
	}
}

// checkRules waits until Prometheus has evaluated every rule, and checks that none has failed.
func (p *prometheus) checkRules() {
	p.t.Helper()
	type state struct{ Name, Health, LastError string }
	var states []state
	p.check(testbed.PollUntil(p.ctx, "every rule has been evaluated", func() bool {
		var data struct{ Groups []struct{ Rules []state } }
		p.check(p.ask("rules", nil, &data))
		states = nil
		for _, g := range data.Groups {
			states = append(states, g.Rules...)
		}
		return len(states) > 0 && !slices.ContainsFunc(states, func(s state) bool { return s.Health == "unknown" })
	}))
	for _, s := range states {
		if s.Health != "ok" {
			p.t.Errorf("rule %s: %s", s.Name, cmp.Or(s.LastError, s.Health))
		}
	}
	if want := len(rules(p.t)); len(states) != want {
		p.t.Errorf("Prometheus has %d rules, want %d", len(states), want)
	}
}
