package retirement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const (
	defaultCachedNodes = 5_000
	// cachedPodsEach and maxCachedPods determine the number of pods if it is not given. Kubernetes supports at most 150,000
	// pods in a cluster.
	cachedPodsEach = 30
	maxCachedPods  = 150_000
	// podBytes is the size of each pod's annotations and environment in bytes. It makes the pod as large as a pod with a
	// sidecar.
	podBytes = 2 << 10
	// The measurement waits until the manager has written nothing for calmTime, and then for settleTime. After that it
	// measures processor time for quietTime.
	calmTime      = 20 * time.Second
	settleTime    = time.Minute
	quietTime     = 3 * time.Minute
	memoryTimeout = 40 * time.Minute
	// componentGCPercent is the GOGC value of the control plane's processes.
	componentGCPercent = "40"
)

// IdleOptions configures MeasureIdleManager.
type IdleOptions struct {
	Options
	// Nodes are the numbers of nodes, each of which is measured. Empty means 5,000.
	Nodes []int
	// Pods is the number of pods. 0 means 30 for each node, at most 150,000.
	Pods int
	// QuietTime shortens the measuring time for experiments. Zero means 3 minutes.
	QuietTime time.Duration
}

// MeasureIdleManager measures a manager that has nothing to do but caches many nodes and pods. It emulates no
// kubelets, because only the objects in the API matter. In the same run it measures a process that runs RunCache, which
// caches the same objects.
func MeasureIdleManager(ctx context.Context, o IdleOptions) ([]result.Result, error) {
	if len(o.Nodes) == 0 {
		o.Nodes = []int{defaultCachedNodes}
	}
	o.QuietTime = cmp.Or(o.QuietTime, quietTime)
	podCount := func(nodes int) int { return cmp.Or(o.Pods, min(nodes*cachedPodsEach, maxCachedPods)) }
	for _, nodes := range o.Nodes {
		if nodes < 1 {
			return nil, fmt.Errorf("nodes is %d: must be at least 1", nodes)
		}
		if pods := podCount(nodes); pods < nodes {
			return nil, fmt.Errorf("pods is %d: must be at least %d, one for each node", pods, nodes)
		}
	}
	var all []result.Result
	for _, nodes := range o.Nodes {
		pods := podCount(nodes)
		results, err := measureIdleManager(ctx, o, nodes, pods)
		if err != nil {
			return nil, fmt.Errorf("%d nodes: %w", nodes, err)
		}
		if len(o.Nodes) > 1 {
			for i := range results {
				results[i].Name = fmt.Sprintf("%d nodes, %d pods: %s", nodes, pods, results[i].Name)
			}
		}
		all = append(all, results...)
	}
	return all, nil
}

func measureIdleManager(ctx context.Context, o IdleOptions, nodes, pods int) (_ []result.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	// With the default, 100, the API server takes 12 GiB of memory for 150,000 pods.
	if os.Getenv(controlplane.GCPercentVariable) == "" {
		if err := os.Setenv(controlplane.GCPercentVariable, componentGCPercent); err != nil {
			return nil, err
		}
		defer func() { _ = os.Unsetenv(controlplane.GCPercentVariable) }() // a variable that exists
	}
	b := &retirementBench{o: o.Options, idle: controlplane.AKSPool{Name: "held"}, cachedNodes: nodes, cachedPods: pods, quietTime: o.QuietTime}
	b.Testbed, err = testbed.Start(ctx, testbed.Options{Cluster: controlplane.Options{
		Version: o.Kubernetes,
		Flags:   map[string][]string{controlplane.Etcd: {"--quota-backend-bytes=8589934592"}},
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := b.Stop(); err == nil {
			err = stopped
		}
	}()
	fmt.Fprintf(o.Progress, "manager: creating %d nodes and %d pods\n", nodes, pods)
	if err := b.installManifests(ctx); err != nil {
		return nil, err
	}
	if err := b.createObjects(ctx); err != nil {
		return nil, err
	}
	if err := b.startManager(ctx); err != nil {
		return nil, err
	}
	if err := b.awaitManagerIdle(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Progress, "manager: starting plain informers\n")
	if err := b.startCache(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Progress, "manager: measuring for %s\n", settleTime+b.quietTime)
	return b.measureManager(ctx)
}

// createObjects creates a NodeGroup, its nodes and its pods. The NodeGroup has an idle rule, so that the manager
// must cache all pods.
func (b *retirementBench) createObjects(ctx context.Context) error {
	err := b.CreateNodeGroup(ctx, b.idle.Name, nil, testbed.ScaleSetNodeGroupSpec(b.idle.Name, b.idle.ScaleSetName())+
		fmt.Sprintf("scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: held}}}}\n", workload.AppLabel))
	if err != nil {
		return err
	}
	if err := b.AddPool(ctx, b.idle, 0); err != nil { // only the scale set
		return err
	}
	node, err := b.Client().CoreV1().Nodes().Create(ctx, b.newCachedNode(0), dryRun)
	if err != nil {
		return err
	}
	pod, err := b.Client().CoreV1().Pods(work).Create(ctx, b.newCachedPod(0), dryRun)
	if err != nil {
		return err
	}
	if err := b.killCachingComponents(); err != nil {
		return err
	}
	if err := b.storeNodes(ctx, node); err != nil {
		return err
	}
	return b.storePods(ctx, pod)
}

// killCachingComponents kills kwok, the scheduler and the controller manager. They would also cache all pods, and
// their memory could exceed the machine's.
func (b *retirementBench) killCachingComponents() error {
	var errs []error
	for _, name := range []string{controlplane.Kwok, controlplane.Scheduler, controlplane.ControllerManager} {
		errs = append(errs, b.Process(name).Kill())
	}
	return errors.Join(errs...)
}

// storeNodes and storePods write the objects directly into etcd, as the API server stores them. Creating them with
// API requests would take a quarter of an hour.
func (b *retirementBench) storeNodes(ctx context.Context, made *corev1.Node) error {
	return b.WriteToEtcd(ctx, func(yield func(client.Object) bool) {
		for n := range b.cachedNodes {
			node := b.newCachedNode(n)
			node.Labels, node.Status = mergeLabels(made.Labels, node.Labels), made.Status
			if !yield(node) {
				return
			}
		}
	})
}

func (b *retirementBench) storePods(ctx context.Context, made *corev1.Pod) error {
	err := b.WriteToEtcd(ctx, func(yield func(client.Object) bool) {
		for n := range b.cachedPods {
			pod := b.newCachedPod(n)
			node := pod.Spec.NodeName
			pod.Spec, pod.Status, pod.ManagedFields = *made.Spec.DeepCopy(), made.Status, made.ManagedFields
			pod.Spec.NodeName = node
			renameTokenVolume(&pod.Spec, fmt.Sprintf("kube-api-access-%05x", n))
			if !yield(pod) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return b.awaitStored(ctx)
}

var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

func mergeLabels(labels ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, set := range labels {
		maps.Copy(all, set)
	}
	return all
}

// renameTokenVolume gives the volume of the ServiceAccount token a unique name. Real pods have a unique name for
// this volume too.
func renameTokenVolume(spec *corev1.PodSpec, name string) {
	const prefix = "kube-api-access-"
	for i := range spec.Volumes {
		if strings.HasPrefix(spec.Volumes[i].Name, prefix) {
			spec.Volumes[i].Name = name
		}
	}
	for i := range spec.Containers {
		for j := range spec.Containers[i].VolumeMounts {
			if m := &spec.Containers[i].VolumeMounts[j]; strings.HasPrefix(m.Name, prefix) {
				m.Name = name
			}
		}
	}
}

// awaitStored waits until the API server serves the objects that were written into etcd. To find out, it creates one
// more pod, and waits until the API server's cache has this pod.
func (b *retirementBench) awaitStored(ctx context.Context) error {
	last := workload.App{Namespace: work, Name: "last"}.Pod()
	last.Spec.NodeName = b.idle.NodeName(0)
	if err := workload.Create(ctx, b.Client(), last); err != nil {
		return err
	}
	return testbed.PollUntil(ctx, "the API server's cache has the stored pods", func() bool {
		_, err := b.Client().CoreV1().Pods(work).Get(ctx, last.Name, metav1.GetOptions{ResourceVersion: "0"})
		return err == nil
	})
}

func (b *retirementBench) newCachedNode(n int) *corev1.Node {
	spec := b.idle.Node(n)
	labels := map[string]string{"kubernetes.azure.com/agentpool": b.idle.Name, corev1.LabelHostname: spec.Name}
	for key, value := range spec.Labels {
		labels[key] = value
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: spec.ProviderID},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
		},
	}
	for i := range 50 { // the kubelet reports 50 images by default
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example/team-%d/service@sha256:%064d", i, i), fmt.Sprintf("registry.example/team-%d/service:v1.%d", i, i)},
		})
	}
	return node
}

func (b *retirementBench) newCachedPod(n int) *corev1.Pod {
	app := workload.App{
		Namespace: work, Name: fmt.Sprintf("held-%d", n), CPU: resource.MustParse("100m"), EmptyDir: true,
		Labels: map[string]string{workload.AppLabel: "held", "pod-template-hash": fmt.Sprint(n / 30)},
		Annotations: map[string]string{
			"bench.slipway.dev/weight": strings.Repeat("slipway ", podBytes/2/8),
		},
	}
	pod := app.Pod()
	pod.Labels[workload.AppLabel] = "held"
	pod.Spec.NodeName = b.idle.NodeName(n % b.cachedNodes)
	for i := range 16 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
			corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("slipway ", podBytes/2/8/16)})
	}
	sidecar := *pod.Spec.Containers[0].DeepCopy()
	sidecar.Name = "sidecar"
	pod.Spec.Containers = append(pod.Spec.Containers, sidecar)
	return pod
}

// awaitManagerIdle waits until the manager has nothing left to do. First the manager's status of the NodeGroup must
// count all nodes, which requires full caches. Then the manager must write its note on each node that the node's
// pods keep it in use. Last, it must write nothing for some time.
func (b *retirementBench) awaitManagerIdle(ctx context.Context) error {
	err := testbed.PollUntil(ctx, "the manager observes the group", func() bool {
		g := &v1alpha1.NodeGroup{}
		return b.client.Get(ctx, client.ObjectKey{Name: b.idle.Name}, g) == nil && int(g.Status.Nodes) == b.cachedNodes
	})
	if err != nil {
		return err
	}
	written := controlplane.AuditFilter{User: "system:serviceaccount:" + namespace + ":" + account, Verb: "patch"}
	err = testbed.PollUntil(ctx, "the manager has written to all nodes", func() bool {
		all, err := b.ReadAuditLog(written)
		return err == nil && len(all) >= b.cachedNodes
	})
	if err != nil {
		return err
	}
	err = testbed.PollUntil(ctx, "the manager writes nothing", func() bool {
		written.Since = time.Now().Add(-calmTime)
		lately, err := b.ReadAuditLog(written)
		return err == nil && len(lately) == 0
	})
	if err != nil {
		return err
	}
	return b.checkAllNodesInUse(ctx)
}

// checkAllNodesInUse returns an error if the manager has not found pods on every node. Its caches would then be
// incomplete.
func (b *retirementBench) checkAllNodesInUse(ctx context.Context) error {
	nodes, err := b.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	kept := 0
	for i := range nodes.Items {
		if nodes.Items[i].Annotations["nodegroup.slipway.dev/used"] != "" {
			kept++
		}
	}
	if kept != b.cachedNodes {
		return fmt.Errorf("the manager has found pods on %d of %d nodes", kept, b.cachedNodes)
	}
	return nil
}

// usage is what a process used in the measuring time.
type usage struct {
	now, peak  int64 // resident memory in bytes
	cpuPercent float64
}

func (b *retirementBench) measureManager(ctx context.Context) ([]result.Result, error) {
	if err := testbed.Sleep(ctx, settleTime); err != nil {
		return nil, err
	}
	names := []string{managerProcess, cacheProcess}
	before := map[string]time.Duration{}
	for _, name := range names {
		used, err := b.Process(name).CPUTime()
		if err != nil {
			return nil, err
		}
		before[name] = used
	}
	if err := testbed.Sleep(ctx, b.quietTime); err != nil {
		return nil, err
	}
	measured := map[string]usage{}
	for _, name := range names {
		process := testbed.Agent{Process: b.Process(name)}
		used, err := process.CPUTime()
		if err != nil {
			return nil, err
		}
		u := usage{cpuPercent: 100 * (used - before[name]).Seconds() / b.quietTime.Seconds()}
		if u.now, u.peak, err = process.ResidentMemory(); err != nil {
			return nil, err
		}
		measured[name] = u
	}
	return b.newManagerResults(measured[managerProcess], measured[cacheProcess]), nil
}

func (b *retirementBench) newManagerResults(manager, plain usage) []result.Result {
	setup := fmt.Sprintf("%d nodes, %d pods of about %d KiB with two containers, one group of all nodes with an idle rule; "+
		"written directly into etcd, scheduler and controllers stopped; Kubernetes %s, %d cores for everything; ", b.cachedNodes, b.cachedPods,
		(podBytes*3/2)>>10, b.Version(), runtime.NumCPU())
	quiet := b.quietTime.String()
	if b.quietTime != quietTime {
		quiet += " INSTEAD OF " + quietTime.String()
	}
	const mebibyte = 1 << 20
	memory := result.Bound{}
	if b.cachedNodes <= defaultCachedNodes && b.cachedPods <= maxCachedPods {
		memory = result.AtMost(700)
	}
	const plainSetup = "client-go's informers for pods and nodes without a transform, in a process of their own, in the same run"
	return []result.Result{
		{
			Name: "manager memory with its caches full, resident", Value: float64(manager.now) / mebibyte, Unit: "MiB", Target: memory,
			Setup: setup + fmt.Sprintf("at least %s after its last write; the peak was %.0f MiB", calmTime+settleTime+b.quietTime, float64(manager.peak)/mebibyte),
		},
		{
			Name: "peer: plain informers of the same objects, memory", Value: float64(plain.now) / mebibyte, Unit: "MiB",
			Setup: setup + plainSetup + fmt.Sprintf("; the peak was %.0f MiB", float64(plain.peak)/mebibyte),
		},
		{
			Name: "manager memory, as a part of the peer's", Value: float64(manager.now) / float64(plain.now), Unit: "times", Target: result.AtMost(0.5),
			Setup: setup + plainSetup,
		},
		{Name: "manager CPU when idle", Value: manager.cpuPercent, Unit: "%", Setup: setup + "over " + quiet + ", of one core"},
		{Name: "peer: plain informers, CPU when idle", Value: plain.cpuPercent, Unit: "%", Setup: setup + plainSetup + ", over " + quiet + ", of one core"},
		{
			// Both collect garbage every two minutes, which takes longer on a slower machine. So the target is the peer's time.
			Name: "manager CPU when idle, as a part of the peer's", Value: manager.cpuPercent / plain.cpuPercent, Unit: "times", Target: result.AtMost(1),
			Setup: setup + plainSetup + ", over " + quiet,
		},
	}
}
