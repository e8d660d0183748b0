// Package surge drains nodes with pods that must not be missing: each is the only pod of its Deployment, and has a PDB that
// allows no eviction. It measures for how long the pods' Services have no ready endpoint, and how long the drain takes.
package surge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/drain"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Options configures RunBenchmarks.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// Only selects the measurements with this text in their names. Empty selects all.
	Only string
	// Pods is the number of Deployments on each node. 0 means 50.
	Pods int
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
}

const (
	defaultPods = 50
	// home is the instance of each pool that is drained. The others take the successors.
	home      = 0
	instances = 4
	// startup is the time from binding to Ready, fastStartup that of owners that fit a short deadline.
	startup     = 20 * time.Second
	fastStartup = 5 * time.Second
	// grace is the grace period of the pods, and the time that they need to stop.
	grace = 5 * time.Second

	longDeadline, shortDeadline = 2 * time.Minute, 30 * time.Second

	// blockedTime is how long kubectl drain is observed. It would never end.
	blockedTime = time.Minute
	// idleTime is how long an idle agent's memory is observed.
	idleTime = 2 * time.Minute
	// stepTimeout is the time limit for each step of a measurement.
	stepTimeout = 5 * time.Minute
	// restoreTime is how long after a drain the sizes of owners may differ.
	restoreTime = time.Minute

	sampleInterval = 100 * time.Millisecond
	scrapeInterval = 15 * time.Second
)

type surgeBench struct {
	*testbed.Testbed
	o       Options
	clients controlplane.ClientBinaries
	// bare is the time that the bare client needed; 0 if it was not measured.
	bare time.Duration
}

// measurement is a function that measures on its own pool, and the name that Options.Only selects it by.
type measurement struct {
	name string
	pool string
	run  func(context.Context, *target) ([]result.Result, error)
}

// RunBenchmarks runs the measurements that Options.Only selects. All take about eight minutes.
func RunBenchmarks(ctx context.Context, o Options) (_ []result.Result, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Pods == 0 {
		o.Pods = defaultPods
	}
	if o.Pods < 2 || o.Pods > 100 {
		return nil, fmt.Errorf("pods is %d: must be 2 to 100", o.Pods)
	}
	b := &surgeBench{o: o}
	var chosen []measurement
	var names []string
	for _, m := range b.listMeasurements() {
		names = append(names, strconv.Quote(m.name))
		if strings.Contains(m.name, o.Only) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("only is %q: must be part of one of %s", o.Only, strings.Join(names, ", "))
	}
	if b.clients, err = controlplane.BuildClientBinaries(ctx, o.Progress); err != nil {
		return nil, err
	}
	b.Testbed, err = testbed.Start(ctx, testbed.Options{Cluster: controlplane.Options{Version: o.Kubernetes}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := b.Stop(); err == nil {
			err = stopped
		}
	}()
	if err := b.InstallSurgePermissions(ctx); err != nil {
		return nil, err
	}
	var results []result.Result
	for _, m := range chosen {
		fmt.Fprintf(o.Progress, "surge: %s\n", m.name)
		rows, err := b.measure(ctx, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		results = append(results, rows...)
	}
	return results, nil
}

func (b *surgeBench) listMeasurements() []measurement {
	return []measurement{
		{bareClient, "bare", b.measureBareClient}, // before those that are compared with it
		{"slipway drain", "voluntary", b.measureVoluntaryDrain},
		{"slipway-agent", "agent", b.measureAgent},
		{"deadline " + longDeadline.String(), "long", b.measureLongDeadline},
		{"deadline " + shortDeadline.String(), "short", b.measureShortDeadline},
		{"pods deleted", "deletion", b.measureDeletion},
		{"kubectl drain", "kubectl", b.measureKubectl},
		{"idle agent", "idle", b.measureIdleAgent},
	}
}

// target is a node that is drained, and the Services of its pods.
type target struct {
	pool  controlplane.AKSPool
	ns    string
	gaps  *testbed.ServiceGaps
	slow  []string // names of the Deployments that start in startup
	fast  []string // and in fastStartup
	sizes map[string]int32
}

// measure adds a pool for a measurement, runs it and removes the workload.
func (b *surgeBench) measure(ctx context.Context, m measurement) (_ []result.Result, err error) {
	t := &target{pool: controlplane.AKSPool{Name: m.pool}, ns: "surge-" + m.pool}
	b.Azure.EnsureScaleSet(t.pool.ScaleSetName())
	if err := b.AddNodes(ctx, t.pool.Nodes(home+1)...); err != nil {
		return nil, err
	}
	if err := workload.Create(ctx, b.Client(), workload.NewNamespace(t.ns)); err != nil {
		return nil, err
	}
	defer func() {
		if t.gaps != nil {
			t.gaps.Stop()
		}
		err = errors.Join(err, b.removeWorkload(ctx, t))
	}()
	return m.run(ctx, t)
}

// runWorkload runs the Deployments on the pool's first instance. fast of them start in fastStartup, and the rest in startup.
func (b *surgeBench) runWorkload(ctx context.Context, t *target, fast int) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	var objects []apiruntime.Object
	for i := range b.o.Pods {
		app := workload.App{
			Namespace: t.ns, Name: fmt.Sprintf("app-%d", i), NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": t.pool.Name},
			MinAvailable: "1", GracePeriod: grace, StopSeconds: formatSeconds(grace),
		}
		if i < fast {
			app.StartSeconds, t.fast = formatSeconds(fastStartup), append(t.fast, app.Name)
		} else {
			app.StartSeconds, t.slow = formatSeconds(startup), append(t.slow, app.Name)
		}
		objects = append(objects, app.Deployment(), app.PodDisruptionBudget(), app.Service())
	}
	if err := workload.CreateAndAwait(ctx, b.Client(), objects...); err != nil {
		return err
	}
	gaps, err := b.WatchServiceGaps(context.WithoutCancel(ctx), t.ns)
	if err != nil {
		return err
	}
	t.gaps = gaps
	if err := gaps.AwaitServed(ctx, b.o.Pods); err != nil {
		return err
	}
	if err := b.AddNodes(ctx, t.pool.Nodes(instances)[home+1:]...); err != nil {
		return err
	}
	gaps.Reset()
	return nil
}

func formatSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func (b *surgeBench) removeWorkload(ctx context.Context, t *target) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := b.Client().CoreV1().Namespaces().Delete(ctx, t.ns, metav1.DeleteOptions{}); err != nil {
		return err
	}
	now := int64(0)
	if err := b.Client().CoreV1().Pods(t.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	return testbed.PollUntil(ctx, "the pods of namespace "+t.ns+" are gone", func() bool {
		left, err := b.Client().CoreV1().Pods(t.ns).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0
	})
}

// runDrain runs `slipway drain` with surges to its end, and returns its report. At the deadline pods may be left.
func (b *surgeBench) runDrain(ctx context.Context, t *target, flags ...string) (report drain.Report, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		return report, 0, err
	}
	args := append([]string{"drain", t.pool.NodeName(home), "--kubeconfig", b.Kubeconfig(), surgeFlag, "-o", "json"}, flags...)
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // the path comes from EnsureBinary
	cmd.Env = controlplane.MinimalEnvironment(os.TempDir())
	began := time.Now()
	out, err := cmd.Output()
	took = time.Since(began)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return report, took, err
	}
	if parseErr := json.Unmarshal(out, &report); parseErr != nil {
		err = errors.Join(err, parseErr)
	} else if report.Outcome == drain.DeadlinePassed {
		err = nil
	}
	if err != nil && exit != nil {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return report, took, err
}

// surgeFlag turns surges on for slipway drain and for an agent.
const surgeFlag = "--surge=always"

// awaitRestored waits until every Deployment has its size of before.
func (b *surgeBench) awaitRestored(ctx context.Context, t *target) error {
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	wrong := -1
	err := testbed.PollUntil(ctx, "the sizes of all owners are restored", func() bool {
		list, err := b.Client().AppsV1().Deployments(t.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		wrong = 0
		for _, d := range list.Items {
			if *d.Spec.Replicas != 1 {
				wrong++
			}
		}
		return wrong == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %d are not", err, wrong)
	}
	return nil
}

// bareClient is the name of the measurement that is the floor of the others.
const bareClient = "bare client"

// measureBareClient sends only the requests without which a pod cannot leave after its successor is ready. It knows the pods in
// advance, and keeps no records. So its time is what the control plane itself needs.
func (b *surgeBench) measureBareClient(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, 0); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	pods, err := b.Client().CoreV1().Pods(t.ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + t.pool.NodeName(home)})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := b.Client().CoreV1().Nodes().Patch(ctx, t.pool.NodeName(home), types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`),
		metav1.PatchOptions{}); err != nil {
		return nil, err
	}
	var surges errgroup.Group
	for _, pod := range pods.Items {
		surges.Go(func() error { return b.surgeBare(ctx, t, pod) })
	}
	if err := surges.Wait(); err != nil {
		return nil, err
	}
	if _, err := b.AwaitPods(ctx, t.pool.NodeName(home), "gone", func(pods []corev1.Pod) bool { return len(pods) == 0 }); err != nil {
		return nil, err
	}
	return b.newDrainResults(ctx, t, bareClient, drainTime{drain: time.Since(began)}, result.Bound{}, fmt.Sprintf("%d pods, four requests for each", len(pods.Items)))
}

// surgeBare raises the size of the pod's Deployment, and lowers it when the successor is a ready endpoint.
func (b *surgeBench) surgeBare(ctx context.Context, t *target, pod corev1.Pod) error {
	app := pod.Labels[workload.AppLabel]
	scale := func(replicas int32) error {
		_, err := b.Client().AppsV1().Deployments(t.ns).UpdateScale(ctx, app, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.ns, Name: app}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
		}, metav1.UpdateOptions{})
		return err
	}
	if err := scale(2); err != nil {
		return err
	}
	if err := t.gaps.AwaitEndpoints(ctx, app, 2); err != nil {
		return err
	}
	lowest := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"-2147483648"}}}`, surge.DeletionCostAnnotation)
	if _, err := b.Client().CoreV1().Pods(t.ns).Patch(ctx, pod.Name, types.MergePatchType, lowest, metav1.PatchOptions{}); err != nil {
		return err
	}
	return scale(1)
}

func (b *surgeBench) measureVoluntaryDrain(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, 0); err != nil {
		return nil, err
	}
	report, took, err := b.runDrain(ctx, t)
	if err != nil {
		return nil, err
	}
	return b.newDrainResults(ctx, t, "slipway drain", drainTime{drain: took}, result.AtMost(1.2), fmt.Sprintf("%d of %d pods left after their successor was ready; time from the start of the command to its end",
		report.Totals().Surged, b.o.Pods))
}

// drainTime is how long a program needed.
type drainTime struct {
	drain time.Duration // from the start of the drain to the end of the last pod
	// notice is the time from the visible notice to the start of the drain, and poll how long this may take. Both are 0 for a
	// program that is started to drain.
	notice, poll time.Duration
}

// newDrainResults returns the results of a drain without deadline. limit is the target of its time as a multiple of start-up and grace.
func (b *surgeBench) newDrainResults(ctx context.Context, t *target, name string, took drainTime, limit result.Bound, setup string) ([]result.Result, error) {
	gap, err := t.gaps.Sum()
	if err != nil {
		return nil, err
	}
	if err := b.awaitRestored(ctx, t); err != nil {
		return nil, err
	}
	floor := startup + grace
	rows := []result.Result{
		b.newGapResult(name, gap, setup),
		{
			Name: name + ": time as a multiple of start-up and grace", Value: took.drain.Seconds() / floor.Seconds(), Unit: "times", Target: limit,
			Setup: b.describeSetup("%.1f s, the floor is %s; %s", took.drain.Seconds(), floor, setup),
		},
	}
	if name == bareClient {
		b.bare = took.drain
	} else if b.bare > 0 {
		all := took.notice + took.drain
		rows = append(rows, result.Result{
			Name: name + ": time with the wait for its notice, as a multiple of the bound", Value: all.Seconds() / (b.bare + took.poll).Seconds(), Unit: "times",
			Target: result.AtMost(1.1),
			Setup:  b.describeSetup("%.1f s, the bound is the bare client's %.1f s and %s until a notice is read; %s", all.Seconds(), b.bare.Seconds(), took.poll, setup),
		})
	}
	return rows, nil
}

func (b *surgeBench) newGapResult(name string, gap time.Duration, setup string) result.Result {
	return result.Result{
		Name: name + ": seconds without ready endpoint, all Services together", Value: gap.Seconds(), Unit: "s", Target: result.AtMost(0),
		Setup: b.describeSetup("%s", setup),
	}
}

// measureAgent measures an agent with a notice that leaves much time.
func (b *surgeBench) measureAgent(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, 0); err != nil {
		return nil, err
	}
	agent, err := b.StartAgent(ctx, t.pool, home, surgeFlag, "--namespace="+testbed.AgentNamespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.KillIfAlive() }()
	event, err := b.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives its announcer
		Type: azure.Terminate, ScaleSet: t.pool.ScaleSetName(), Resources: []string{t.pool.ResourceName(home)},
	})
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if _, err := b.AwaitPods(bounded, t.pool.NodeName(home), "gone", func(pods []corev1.Pod) bool { return len(pods) == 0 }); err != nil {
		return nil, err
	}
	ended := time.Now()
	_, peak, err := agent.ResidentMemory() // the agent ends soon, with its machine
	if err != nil {
		return nil, err
	}
	requests, err := b.ReadAuditLog(controlplane.AuditFilter{Since: event.VisibleAt})
	if err != nil {
		return nil, err
	}
	cordoned, found := audit.FirstCordon(requests, event.VisibleAt)
	if !found {
		return nil, errors.New("the audit log has no cordon by the agent after its notice")
	}
	took := drainTime{drain: ended.Sub(cordoned), notice: cordoned.Sub(event.VisibleAt), poll: source.DefaultInterval}
	rows, err := b.newDrainResults(ctx, t, "slipway-agent", took, result.AtMost(1.2),
		fmt.Sprintf("a Terminate notice; the node was cordoned %.1f s after it, and the drain took until the end of the last pod", took.notice.Seconds()))
	return append(rows, result.Result{
		Name: "agent memory while draining with surges, peak resident", Value: float64(peak) / (1 << 20), Unit: "MiB", Target: result.AtMost(22),
		Setup: b.describeSetup("VmHWM from the start of the process to the end of the last pod"),
	}), err
}

func (b *surgeBench) measureLongDeadline(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, 0); err != nil {
		return nil, err
	}
	report, took, err := b.runDrain(ctx, t, "--deadline", longDeadline.String())
	if err != nil {
		return nil, err
	}
	gap, err := t.gaps.Sum()
	if err != nil {
		return nil, err
	}
	return []result.Result{b.newGapResult("slipway drain --deadline "+longDeadline.String(), gap,
		fmt.Sprintf("%d of %d pods left after their successor was ready, in %.1f s", report.Totals().Surged, b.o.Pods, took.Seconds()))}, b.awaitRestored(ctx, t)
}

// measureShortDeadline has owners that start in time for the deadline, and owners that do not.
func (b *surgeBench) measureShortDeadline(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, b.o.Pods/2); err != nil {
		return nil, err
	}
	report, took, err := b.runDrain(ctx, t, "--deadline", shortDeadline.String())
	if err != nil {
		return nil, err
	}
	fast, err := t.gaps.Sum(t.fast...)
	if err != nil {
		return nil, err
	}
	slow, err := t.gaps.Sum(t.slow...)
	if err != nil {
		return nil, err
	}
	refused, reasons := 0, map[string]int{}
	for _, p := range report.Pods {
		if p.Namespace == t.ns && p.Surge != nil && p.Surge.Decision.Verdict == surge.Refused {
			refused++
			reasons[p.Surge.Decision.Reason]++
		}
	}
	name := "slipway drain --deadline " + shortDeadline.String()
	setup := fmt.Sprintf("%d owners start in %s, %d in %s; drained in %.1f s; refusals in the report: %v", len(t.fast), fastStartup, len(t.slow), startup,
		took.Seconds(), reasons)
	return []result.Result{
		b.newGapResult(name+", owners that fit", fast, setup),
		{Name: name + ", owners that do not fit: seconds without ready endpoint", Value: slow.Seconds(), Unit: "s", Setup: b.describeSetup("%s", setup)},
		{
			Name: name + ": owners that the report refuses with a reason", Value: float64(refused), Unit: "owners",
			Target: result.AtLeast(float64(len(t.slow))), Setup: b.describeSetup("%s", setup),
		},
		{Name: name + ": pods left at the deadline", Value: float64(report.Totals().Remaining), Unit: "pods", Target: result.AtMost(0), Setup: b.describeSetup("%s", setup)},
	}, b.awaitRestored(ctx, t)
}

// measureDeletion deletes the pods at once, past their PDBs, after a cordon.
func (b *surgeBench) measureDeletion(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, 0); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(bounded, path, "drain", t.pool.NodeName(home), "--kubeconfig", b.Kubeconfig(), "--disable-eviction").CombinedOutput() //nolint:gosec // see above
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if err := t.gaps.AwaitServed(bounded, b.o.Pods); err != nil {
		return nil, err
	}
	gap, err := t.gaps.Sum()
	return []result.Result{{
		Name: "pods deleted: seconds without ready endpoint, all Services together", Value: gap.Seconds(), Unit: "s",
		Setup: b.describeSetup("slipway drain --disable-eviction, for comparison"),
	}}, err
}

// measureKubectl runs kubectl drain for a while. It would never end.
func (b *surgeBench) measureKubectl(ctx context.Context, t *target) ([]result.Result, error) {
	if err := b.runWorkload(ctx, t, 0); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, blockedTime)
	defer cancel()
	cmd := exec.CommandContext(bounded, b.clients.Kubectl, "drain", t.pool.NodeName(home), "--kubeconfig", b.Kubeconfig(), "--ignore-daemonsets") //nolint:gosec // see above
	out, err := cmd.CombinedOutput()
	if bounded.Err() == nil {
		return nil, fmt.Errorf("kubectl drain ended: %w: %s", err, out)
	}
	pods, err := b.Client().CoreV1().Pods(t.ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + t.pool.NodeName(home)})
	if err != nil {
		return nil, err
	}
	return []result.Result{{
		Name: fmt.Sprintf("kubectl drain: pods still on the node after %s", blockedTime), Value: float64(len(pods.Items)), Unit: "pods",
		Setup: b.describeSetup("it is blocked for ever, for comparison"),
	}}, nil
}

// measureIdleAgent measures the memory of an agent with surges on and without a notice.
func (b *surgeBench) measureIdleAgent(ctx context.Context, t *target) ([]result.Result, error) {
	agent, err := b.StartAgent(ctx, t.pool, home, surgeFlag, "--namespace="+testbed.AgentNamespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.KillIfAlive() }()
	largest, scraped := int64(0), time.Now()
	for began := time.Now(); time.Since(began) < idleTime; {
		now, _, err := agent.ResidentMemory()
		if err != nil {
			return nil, err
		}
		largest = max(largest, now)
		if time.Since(scraped) >= scrapeInterval {
			scraped = time.Now()
			_ = agent.ReadMetrics(ctx) // only the scrape matters, not its result
		}
		if err := testbed.Sleep(ctx, sampleInterval); err != nil {
			return nil, err
		}
	}
	return []result.Result{{
		Name: "agent memory, idle with surges on, resident", Value: float64(largest) / (1 << 20), Unit: "MiB", Target: result.AtMost(16),
		Setup: b.describeSetup("the maximum in %s from the start of the process, metrics read every %s", idleTime, scrapeInterval),
	}}, nil
}

func (b *surgeBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf("%d Deployments of one pod on one node, each with a PDB of minAvailable 1 and a Service, start-up %s, grace period %s and as long to "+
		"stop; %d other nodes; Kubernetes %s, %d cores for everything; ", b.o.Pods, startup, grace, instances-1, b.Version(), runtime.NumCPU()) +
		fmt.Sprintf(format, args...)
}
