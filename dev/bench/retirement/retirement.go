// Package retirement measures how a manager retires 100 of 500 nodes. It compares the time with the minimum that
// grace periods and disruption budget require. It also counts the requests to the API server and to the cloud.
package retirement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// Options configures RunBenchmarks and MeasureIdleManager.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
}

const (
	idleNodes             = 100
	busyNodes             = 400
	podsEach              = 10
	inFlight              = 20
	podStop               = 10 * time.Second // stop time of a pod, within its grace period
	machineStop           = 10 * time.Second // deletion time of a machine
	maxConcurrentRequests = 32
	runTimeout            = 20 * time.Minute

	// minimumTime is the minimum time: the nodes are drained in rounds of inFlight, each as long as a pod stops. The machines
	// of the last round are deleted after that.
	minimumTime  = idleNodes / inFlight * podStop
	maxTimeRatio = 1.5

	account   = testbed.ManagerAccount
	namespace = testbed.ManagerNamespace
	work      = "work"

	managerProcess = "manager"
)

type retirementBench struct {
	*testbed.Testbed
	o          Options
	client     client.WithWatch
	idle, busy controlplane.AKSPool
	// The numbers of objects and the measuring time of MeasureIdleManager.
	cachedNodes, cachedPods int
	quietTime               time.Duration
}

// RunBenchmarks runs the measurement. It takes about five minutes.
func RunBenchmarks(ctx context.Context, o Options) (_ []result.Result, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	b := &retirementBench{o: o, idle: controlplane.AKSPool{Name: "idle"}, busy: controlplane.AKSPool{Name: "busy"}}
	b.Testbed, err = testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{Version: o.Kubernetes}, ARM: azure.ARMOptions{DeleteTime: machineStop},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := b.Stop(); err == nil {
			err = stopped
		}
	}()
	for _, prepare := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"installing", b.installManifests},
		{fmt.Sprintf("adding %d nodes", idleNodes+busyNodes), b.addNodes},
		{fmt.Sprintf("running %d pods", (idleNodes+busyNodes)*podsEach), b.addPods},
		{"starting the manager", b.startManager},
	} {
		fmt.Fprintf(o.Progress, "retirement: %s\n", prepare.what)
		if err := prepare.do(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", prepare.what, err)
		}
	}
	fmt.Fprintf(o.Progress, "retirement: retiring %d nodes, %d at a time\n", idleNodes, inFlight)
	return b.retireIdleNodes(ctx)
}

// installManifests installs Slipway's CRDs and the manager's permissions. It also creates the client of the
// benchmark.
func (b *retirementBench) installManifests(ctx context.Context) error {
	scheme := apiruntime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if err := errors.Join(b.InstallCRDs(ctx), b.ApplyManifests(ctx, "manager/rbac.yaml")); err != nil {
		return err
	}
	var err error
	if b.client, err = client.NewWithWatch(b.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	return workload.Create(ctx, b.Client(), workload.NewNamespace(work))
}

func (b *retirementBench) addNodes(ctx context.Context) error {
	if err := b.AddPool(ctx, b.idle, idleNodes); err != nil {
		return err
	}
	if err := b.AddPool(ctx, b.busy, busyNodes); err != nil {
		return err
	}
	return b.CreateNodeGroup(ctx, b.idle.Name, nil, testbed.ScaleSetNodeGroupSpec(b.idle.Name, b.idle.ScaleSetName())+
		fmt.Sprintf("disruptionBudgets: [{nodes: %d}]\ndrain: {evictUnmanaged: true}\n", inFlight))
}

// addPods creates pods without a controller, bound to each node.
func (b *retirementBench) addPods(ctx context.Context) error {
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentRequests)
	for pool, nodes := range map[controlplane.AKSPool]int{b.idle: idleNodes, b.busy: busyNodes} {
		for n := range nodes * podsEach {
			group.Go(func() error {
				app := workload.App{
					Namespace: work, Name: fmt.Sprintf("%s-%d", pool.Name, n), StartSeconds: "0", GracePeriod: 3 * podStop,
					StopSeconds: fmt.Sprint(podStop.Seconds()),
				}
				pod := app.Pod()
				pod.Spec.NodeName = pool.NodeName(n / podsEach)
				return workload.Create(each, b.Client(), pod)
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return testbed.PollUntil(ctx, "all pods run", func() bool {
		pods, err := b.Client().CoreV1().Pods(work).List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Running", Limit: 1})
		return err == nil && len(pods.Items) == 0
	})
}

// startManager starts the manager with the default values of its interval flags.
func (b *retirementBench) startManager(ctx context.Context) error {
	_, err := b.StartManager(ctx, managerProcess, map[string]any{"azure": b.AzureProviderConfig()})
	return err
}

// retireIdleNodes creates a NodeRetirement for each idle node, one directly after the other. It waits until the last
// retirement has finished, and returns the results.
func (b *retirementBench) retireIdleNodes(ctx context.Context) ([]result.Result, error) {
	began := time.Now()
	records, err := b.client.Watch(ctx, &v1alpha1.NodeRetirementList{})
	if err != nil {
		return nil, err
	}
	defer records.Stop()
	// Counts Nodes, not NodeRetirements. The record of a deleted Node is updated later, when another node may be retired
	// already.
	nodes, err := b.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{LabelSelector: "kubernetes.azure.com/agentpool=" + b.idle.Name})
	if err != nil {
		return nil, err
	}
	defer nodes.Stop()
	for i := range idleNodes {
		node := b.idle.NodeName(i)
		rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: node}}
		rt.Spec.NodeName, rt.Spec.Reason = node, v1alpha1.Idle
		if err := b.client.Create(ctx, rt); err != nil {
			return nil, err
		}
	}
	phases, leaving := map[string]v1alpha1.Phase{}, map[string]bool{}
	maxRetiring := 0
	for len(phases) < idleNodes || slices.ContainsFunc(slices.Collect(maps.Values(phases)), isUnfinished) {
		select {
		case e, ok := <-records.ResultChan():
			rt, is := e.Object.(*v1alpha1.NodeRetirement)
			if !ok || !is {
				return nil, fmt.Errorf("the watch of NodeRetirements ended: %v", e.Object)
			}
			phases[rt.Name] = rt.Status.Phase
		case e, ok := <-nodes.ResultChan():
			n, is := e.Object.(*corev1.Node)
			if !ok || !is {
				return nil, fmt.Errorf("the watch of Nodes ended: %v", e.Object)
			}
			if delete(leaving, n.Name); e.Type != watch.Deleted && n.Spec.Unschedulable {
				leaving[n.Name] = true
			}
			maxRetiring = max(maxRetiring, len(leaving))
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d retirements: %v: %w", len(phases), idleNodes, phases, context.Cause(ctx))
		}
	}
	took := time.Since(began)
	for name, phase := range phases {
		if phase != v1alpha1.Succeeded {
			return nil, fmt.Errorf("the retirement of %s ended as %s", name, phase)
		}
	}
	if left := len(b.ARM.VMs()); left != busyNodes {
		return nil, fmt.Errorf("%d machines remain, want %d", left, busyNodes)
	}
	return b.newResults(began, took, maxRetiring)
}

func isUnfinished(p v1alpha1.Phase) bool { return !p.IsFinal() }

func (b *retirementBench) newResults(began time.Time, took time.Duration, maxRetiring int) ([]result.Result, error) {
	requests, err := b.ReadAuditLog(controlplane.AuditFilter{Since: began, User: "system:serviceaccount:" + namespace + ":" + account})
	if err != nil {
		return nil, err
	}
	kinds := map[string]int{}
	for _, e := range requests {
		kinds[requestKind(e)]++
	}
	arm := map[string]int{}
	total := 0
	for _, r := range b.ARM.Requests() {
		if r.At.After(began) {
			arm[r.Action]++
			total++
		}
	}
	forced := minimumTime + machineStop
	return []result.Result{
		{
			Name: fmt.Sprintf("%d idle nodes retired, time as a multiple of the minimum", idleNodes), Unit: "times",
			Value: took.Seconds() / forced.Seconds(), Target: result.AtMost(maxTimeRatio),
			Setup: b.describeSetup("%.1f s; the minimum is %d rounds of %d nodes with a pod stop time of %s, and %s for the last machines: %s",
				took.Seconds(), idleNodes/inFlight, inFlight, podStop, machineStop, forced),
		},
		{
			Name: "nodes retired at the same time", Value: float64(maxRetiring), Unit: "nodes", Target: result.AtMost(inFlight),
			Setup: b.describeSetup("cordoned Nodes, from a watch"),
		},
		{
			Name: "API requests per retired node", Value: float64(len(requests)) / idleNodes, Unit: "requests", Target: result.AtMost(45),
			Setup: b.describeSetup("from the audit log; %d pods on each: %s", podsEach, formatPerNode(kinds)),
		},
		{
			Name: "ARM requests per retired node", Value: float64(total) / idleNodes, Unit: "requests", Target: result.AtMost(8),
			Setup: b.describeSetup("from the emulator: %s", formatPerNode(arm)),
		},
	}, nil
}

func requestKind(e auditv1.Event) string {
	if e.ObjectRef == nil {
		return e.Verb + " " + e.RequestURI
	}
	return strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
}

// formatPerNode returns text with the average number of requests per node for each kind of request. The most
// frequent kind comes first.
func formatPerNode(kinds map[string]int) string {
	names := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int { return kinds[b] - kinds[a] })
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%.2f %s", float64(kinds[name])/idleNodes, name))
	}
	return strings.Join(parts, ", ")
}

func (b *retirementBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf("%d nodes, %d pods, %d nodes retired by one manager process with its default intervals, disruption budget %d; Kubernetes %s, %d cores for everything; ",
		idleNodes+busyNodes, (idleNodes+busyNodes)*podsEach, idleNodes, inFlight, b.Version(), runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
