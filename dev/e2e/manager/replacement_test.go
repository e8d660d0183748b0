package manager_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// shard is the label that each test's manager selects its own groups with.
const shard = "e2e.slipway.dev/shard"

// poolBed is a Spot pool for one test, with an agent on its first instance.
type poolBed struct {
	bed
	pool   controlplane.AKSPool
	name   string
	clouds string
}

func newPool(t *testing.T, name string, n int, spec string) *poolBed {
	t.Helper()
	b := &poolBed{bed: ready(t), pool: controlplane.AKSPool{Name: name, Spot: true}, name: name}
	b.check(b.AddPool(b.ctx, b.pool, n))
	b.check(workload.Create(b.ctx, b.Client(), workload.NewNamespace(name)))
	b.clouds = b.bed.clouds(nil)
	b.check(b.CreateNodeGroup(b.ctx, name, map[string]string{shard: name}, testbed.ScaleSetNodeGroupSpec(name, b.pool.ScaleSetName())+spec))
	_, err := b.StartAgent(b.ctx, b.pool, 0)
	b.check(err)
	return b
}

// manage starts the pool's manager.
func (b *poolBed) manage(flags ...string) *process {
	b.t.Helper()
	args := []string{
		"--kubeconfig", b.credentials(), "--cloud-config", b.clouds, "--leader-elect=false", "--selector", shard + "=" + b.name,
		"--poll-interval", "500ms", "--cloud-poll-interval", "500ms", "--launch-settle-time", "5s",
	}
	p := b.start("manager-"+b.name, append(args, flags...)...)
	p.awaitReady()
	return p
}

// fill runs one pod on each instance, and each pod fills its node. The pods stop slowly, which gives a replacement time
// to join before the old instance disappears.
func (b *poolBed) fill(machines int) workload.App {
	b.t.Helper()
	app := workload.App{
		Namespace: b.name, Name: "web", Replicas: int32(machines), StopSeconds: "12",
		NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": b.name},
	}
	d := app.Deployment()
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("12")}
	b.check(workload.CreateAndAwait(b.ctx, b.Client(), d))
	return app
}

// record returns the NodeRetirement of an instance's node, or nil if there is none.
func (b *poolBed) record(i int) *v1alpha1.NodeRetirement {
	b.t.Helper()
	list, err := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(retirements).List(b.ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + b.pool.NodeName(i),
	})
	b.check(err)
	if len(list.Items) > 1 {
		b.t.Fatalf("%d NodeRetirements of one notice", len(list.Items))
	}
	for _, o := range list.Items {
		rt := &v1alpha1.NodeRetirement{}
		b.check(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, rt))
		return rt
	}
	return nil
}

// awaitRecord waits for a state of the NodeRetirement.
func (b *poolBed) awaitRecord(i int, what string, is func(*v1alpha1.NodeRetirement) bool) *v1alpha1.NodeRetirement {
	b.t.Helper()
	var rt *v1alpha1.NodeRetirement
	if err := testbed.PollUntil(b.ctx, what, func() bool { rt = b.record(i); return rt != nil && is(rt) }); err != nil {
		if rt != nil {
			b.t.Fatalf("%v: %s (%s), replacement %+v", err, rt.Status.Phase, rt.Status.Message, rt.Status.Replacement)
		}
		b.t.Fatal(err)
	}
	return rt
}

func inState(state v1alpha1.ReplacementState) func(*v1alpha1.NodeRetirement) bool {
	return func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Replacement != nil && rt.Status.Replacement.State == state
	}
}

// markUnknown changes the node as the node lifecycle controller does when the node has been silent long enough.
func (b *poolBed) markUnknown(i int) {
	b.t.Helper()
	b.check(testbed.PollUntil(b.ctx, "the node is Unknown", func() bool {
		_, err := b.Client().CoreV1().Nodes().Patch(b.ctx, b.pool.NodeName(i), types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), metav1.PatchOptions{}, "status")
		return err == nil || apierrors.IsNotFound(err)
	}))
}

// capacities returns the capacities that clients requested for the scale set, in order.
func (b *poolBed) capacities() []string {
	var asked []string
	for _, r := range b.ARM.Requests() {
		if r.Action == "Microsoft.Compute/virtualMachineScaleSets/write" && strings.HasSuffix(r.Path, b.pool.ScaleSetName()) {
			_, rest, _ := strings.Cut(r.Body, `"capacity":`)
			n, _, _ := strings.Cut(rest, ",")
			asked = append(asked, strings.TrimRight(n, "}"))
		}
	}
	return asked
}

// TestEvictedSpotInstanceIsReplacedAndCleanedUp simulates an Azure eviction with slipway. All
// instances of the pool are full. The test kills the manager after it has written the launch record.
func TestEvictedSpotInstanceIsReplacedAndCleanedUp(t *testing.T) {
	t.Parallel()
	b := newPool(t, "evicted", 2, "maxSize: 3")
	app := b.fill(2)
	p := b.manage()
	said, err := b.RunSlipway(b.ctx, t, "simulate-eviction", b.pool.NodeName(0), "--cloud-config", b.clouds)
	if err != nil || !strings.Contains(said, "Azure will evict") {
		t.Fatalf("%v: %s", err, said)
	}
	launched := b.awaitRecord(0, "an instance is requested", func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Replacement != nil && rt.Status.Replacement.State != v1alpha1.ReplacementWaiting
	})
	b.check(p.Kill())
	if why := launched.Status.Replacement.Reasons; len(why) == 0 || why[0].Code != "PodsDoNotFit" || !strings.Contains(why[0].Object, app.Name) {
		t.Errorf("launched because of %+v, want an unschedulable pod of %s", why, app.Name)
	}
	b.check(p.Restart(b.ctx))
	ready := b.awaitRecord(0, "the replacement is usable", inState(v1alpha1.ReplacementReady))
	if is := ready.Status.Replacement.Instance; !strings.EqualFold(is, b.pool.ProviderID(2)) {
		t.Errorf("replaced by %s, want %s", is, b.pool.ProviderID(2))
	}
	b.check(testbed.PollUntil(b.ctx, "Azure has deleted the instance", func() bool { _, there := b.ARM.VM(b.pool.ResourceName(0)); return !there }))
	if rt := b.record(0); rt.Status.Phase.IsFinal() {
		t.Errorf("I7: the retirement ended before the Node was Unknown: %s", rt.Status.Message)
	}
	b.markUnknown(0)
	b.awaitRecord(0, "the retirement has ended", func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Succeeded })
	if _, err := b.Client().CoreV1().Nodes().Get(b.ctx, b.pool.NodeName(0), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node exists: %v", err)
	}
	if _, err := b.AwaitPods(b.ctx, b.pool.NodeName(2), "one of the app's", func(pods []corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Labels[workload.AppLabel] == app.Name })
	}); err != nil {
		t.Error(err)
	}
	if got := b.capacities(); len(got) != 1 || b.ARM.Capacity(b.pool.ScaleSetName()) != 2 {
		t.Errorf("I5: the requested capacities are %v and the capacity is %d; want one request, and the capacity 2",
			got, b.ARM.Capacity(b.pool.ScaleSetName()))
	}
	_, err = b.AwaitEventNote(b.ctx, "Node", b.pool.NodeName(0), "ReplacementReady", "")
	b.check(err)
}

// TestDeletionNudgesClusterAutoscaler retires a node beside an empty pool that is kept for
// cluster-autoscaler.
func TestDeletionNudgesClusterAutoscaler(t *testing.T) {
	t.Parallel()
	b := newPool(t, "autoscaled", 2, "maxSize: 3")
	const nudged = "nudged"
	b.check(b.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: testbed.ManagedClusterName, ResourceGroup: testbed.ManagedClusterGroup, Name: nudged, AutoScaling: true, Max: 5,
	}))
	b.clouds = b.bed.clouds(map[string]any{"casSync": map[string]any{
		"resourceGroup": testbed.ManagedClusterGroup, "cluster": testbed.ManagedClusterName, "agentPool": nudged, "gather": "1s",
	}})
	p := b.manage()
	b.retire(1)
	b.awaitRecord(1, "the instance is deleted", func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Times.InstanceDeleted != nil })
	b.check(p.Kill()) // it may have reported nothing yet
	b.check(p.Restart(b.ctx))
	var maxima []string
	b.check(testbed.PollUntil(b.ctx, "the maximum is changed and restored", func() bool {
		maxima = nil
		for _, r := range b.ARM.Requests() {
			if r.Action == "Microsoft.ContainerService/managedClusters/agentPools/write" && strings.HasSuffix(r.Path, nudged) {
				_, rest, _ := strings.Cut(r.Body, `"maxCount":`)
				most, _, _ := strings.Cut(rest, ",")
				maxima = append(maxima, most)
			}
		}
		return len(maxima) >= 2 && len(maxima)%2 == 0
	}))
	if maxima[0] != "6" || maxima[1] != "5" {
		t.Errorf("the requested maxima are %v, want 6 and then 5", maxima)
	}
	if pool, _ := b.ARM.AgentPool(testbed.ManagedClusterName, nudged); pool.Max != 5 || len(pool.Tags) > 0 {
		t.Errorf("the pool is %+v", pool)
	}
	b.check(testbed.PollUntil(b.ctx, "the metrics count the nudge", func() bool {
		_, metrics := p.get("/metrics")
		return strings.Contains(metrics, `slipway_cas_sync_nudges_total{outcome="done",pool="nudged",reason=""} `) &&
			!strings.Contains(metrics, `slipway_cas_sync_nudges_total{outcome="done",pool="nudged",reason=""} 0`) &&
			strings.Contains(metrics, `slipway_cas_sync_max_size_changed{pool="nudged"} 0`)
	}))
	// Azure does not mark instances as the cluster's. The manager therefore searches only for orphaned Nodes.
	p.await("/metrics", "counts orphaned Nodes", func(_ int, metrics string) bool {
		return strings.Contains(metrics, `slipway_orphans{cloud="azure",kind="Node",state="proven"} 0`) &&
			!strings.Contains(metrics, `slipway_orphans{cloud="azure",kind="Instance"`)
	})
}

// retire creates a NodeRetirement for the test's manager.
func (b *poolBed) retire(i int) {
	b.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": b.pool.NodeName(i)}}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeRetirement"))
	o.SetName(b.pool.NodeName(i))
	o.SetLabels(map[string]string{shard: b.name})
	_, err := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(retirements).Create(b.ctx, o, metav1.CreateOptions{})
	b.check(err)
}
