package retirement

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const (
	heldNodes = 5_000
	heldPods  = 150_000
	// weight is how many bytes of annotations and environment each pod has, which makes it as large as pods with an
	// injected sidecar are.
	weight = 2 << 10
	// settle is for how long a manager is left alone before it is weighed, and quiet for how long after that its processor
	// time is measured.
	settleFor = time.Minute
	quietFor  = 3 * time.Minute
	holding   = 40 * time.Minute
)

// Hold measures a manager with many nodes and pods in its caches, in a cluster in which nothing happens. Its kubelets are
// not played: the objects are what is weighed.
func Hold(ctx context.Context, o Options) (_ []result.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	b := &bench{o: o, idle: controlplane.AKSPool{Name: "held"}}
	b.Testbed, err = testbed.Start(ctx, testbed.Options{Cluster: controlplane.Options{
		Version: o.Kubernetes, NodeMonitorGracePeriod: 2 * holding,
		Flags: map[string][]string{controlplane.Etcd: {"--quota-backend-bytes=8589934592"}},
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := b.Stop(); err == nil {
			err = stopped
		}
	}()
	fmt.Fprintf(o.Progress, "retirement: making %d nodes and %d pods\n", heldNodes, heldPods)
	if err := b.install(ctx); err != nil {
		return nil, err
	}
	if err := b.fill(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := b.startManager(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Progress, "retirement: weighing the manager\n")
	if err := b.awaitPodsCached(ctx, began); err != nil {
		return nil, err
	}
	return b.weigh(ctx)
}

// fill makes a group that is retired when idle, so that the manager has to know all pods, its nodes and their pods.
func (b *bench) fill(ctx context.Context) error {
	group := `{"spec":{"nodeSelector":{"matchLabels":{"kubernetes.azure.com/agentpool":%q}},` +
		`"cloud":{"provider":"azure","group":%q},"scaleDown":{"idleByLabel":{"podSelector":{"matchLabels":{%q:"held"}}}}}}`
	g := &v1alpha1.NodeGroup{}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, group, b.idle.Name, b.idle.ScaleSet(), workload.AppLabel), g); err != nil {
		return err
	}
	g.Name = b.idle.Name
	if err := b.client.Create(ctx, g); err != nil {
		return err
	}
	if err := b.AddPool(ctx, b.idle, 0); err != nil { // the scale set
		return err
	}
	if err := b.each(ctx, heldNodes, func(ctx context.Context, n int) error { return b.client.Create(ctx, b.heldNode(n)) }); err != nil {
		return err
	}
	return b.each(ctx, heldPods, func(ctx context.Context, n int) error { return workload.Create(ctx, b.Client(), b.heldPod(n)) })
}

// each does something n times, many at once.
func (b *bench) each(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func (b *bench) heldNode(n int) *corev1.Node {
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
	for i := range 50 { // the kubelet's default of how many it reports
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example/team-%d/service@sha256:%064d", i, i), fmt.Sprintf("registry.example/team-%d/service:v1.%d", i, i)},
		})
	}
	return node
}

func (b *bench) heldPod(n int) *corev1.Pod {
	app := workload.App{
		Namespace: work, Name: fmt.Sprintf("held-%d", n), CPU: resource.MustParse("100m"), EmptyDir: true,
		Labels: map[string]string{workload.AppLabel: "held", "pod-template-hash": fmt.Sprint(n / 30)},
		Annotations: map[string]string{
			"bench.slipway.dev/weight": strings.Repeat("slipway ", weight/2/8),
		},
	}
	pod := app.Pod()
	pod.Labels[workload.AppLabel] = "held"
	pod.Spec.NodeName = b.idle.NodeName(n % heldNodes)
	for i := range 16 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
			corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("slipway ", weight/2/8/16)})
	}
	sidecar := *pod.Spec.Containers[0].DeepCopy()
	sidecar.Name = "sidecar"
	pod.Spec.Containers = append(pod.Spec.Containers, sidecar)
	return pod
}

// awaitPodsCached waits until the manager watches the pods of the cluster, which is after it has read them all. One that
// never does holds less than what is to be weighed.
func (b *bench) awaitPodsCached(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return testbed.Poll(ctx, "the manager holds the pods of the cluster in its caches", func() bool {
		watches, err := b.Audit(controlplane.AuditFilter{
			Since: since, User: "system:serviceaccount:" + namespace + ":" + account, Verb: "watch", Resource: "pods",
		})
		if err != nil {
			return false
		}
		for _, w := range watches {
			if !strings.Contains(w.RequestURI, "spec.nodeName") {
				return true
			}
		}
		return false
	})
}

func (b *bench) weigh(ctx context.Context) ([]result.Result, error) {
	manager := testbed.Agent{Process: b.Process(managerProcess)}
	if err := testbed.Pause(ctx, settleFor); err != nil {
		return nil, err
	}
	before, err := manager.CPU()
	if err != nil {
		return nil, err
	}
	if err := testbed.Pause(ctx, quietFor); err != nil {
		return nil, err
	}
	after, err := manager.CPU()
	if err != nil {
		return nil, err
	}
	now, peak, err := manager.Resident()
	if err != nil {
		return nil, err
	}
	setup := fmt.Sprintf("%d nodes, %d pods of some %d KiB in two containers, a group of all of them that is watched for idle nodes; "+
		"Kubernetes %s, %d cores for everything; ", heldNodes, heldPods, (weight*3/2)>>10, b.Version(), runtime.NumCPU())
	const mebibyte = 1 << 20
	return []result.Result{
		{
			Name: "manager memory with its caches full, resident", Value: float64(now) / mebibyte, Unit: "MiB", Reach: result.AtMost(700),
			Setup: setup + fmt.Sprintf("%s after the pods were read; the peak was %.0f MiB", settleFor+quietFor, float64(peak)/mebibyte),
		},
		{
			Name: "manager CPU when nothing happens", Value: 100 * (after - before).Seconds() / quietFor.Seconds(), Unit: "%", Reach: result.AtMost(1),
			Setup: setup + fmt.Sprintf("over %s, of one core", quietFor),
		},
	}, nil
}
