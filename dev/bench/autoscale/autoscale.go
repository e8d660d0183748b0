// Package autoscale measures how fast and how well machines are ordered: the decision by itself, and the way from a pod
// that finds no room to the call that creates a machine, on a real control plane with the real manager.
package autoscale

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

// Options configure a run.
type Options struct {
	// Kubernetes is the minor version; empty is the control plane's default.
	Kubernetes string
	// Progress is told what is being done; nil is nobody.
	Progress io.Writer
}

const (
	pods       = 500
	cores      = 16
	perMachine = 15 // pods of one core, beside what the system keeps
	patience   = 5 * time.Minute
	namespace  = "autoscale"
)

// Run measures. It takes about a minute.
func Run(ctx context.Context, o Options) ([]result.Result, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	var results []result.Result
	for _, measure := range []func() (result.Result, error){packed, decided} {
		r, err := measure()
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	r, err := reach(ctx, o)
	if err != nil {
		return nil, err
	}
	return append(results, r), nil
}

// reach measures from the moment in which the API server tells that a pod finds no room to the moment in which Azure
// makes the machine that has room for it. Machines are not joined, so that no pod takes room that another was ordered
// for: the nth pod is helped by the machine with the nth place.
func reach(ctx context.Context, o Options) (_ result.Result, err error) {
	bed, err := testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{Version: o.Kubernetes}, ARM: azure.ARMOptions{BootTime: patience},
	})
	if err != nil {
		return result.Result{}, err
	}
	defer func() {
		if stopped := bed.Stop(); err == nil {
			err = stopped
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pool := controlplane.AKSPool{Name: "bench"}
	for _, prepare := range []func() error{
		func() error { return bed.AddPool(ctx, pool, 0) },
		func() error { return workload.Create(ctx, bed.Client(), workload.Namespace(namespace)) },
		func() error { return manage(ctx, bed, pool) },
		func() error { return settle(ctx, bed, pool) },
	} {
		if err := prepare(); err != nil {
			return result.Result{}, err
		}
	}
	fmt.Fprintf(o.Progress, "autoscale: %d pods find no room\n", pods)
	noRoom, err := watch(ctx, bed)
	if err != nil {
		return result.Result{}, err
	}
	objects := make([]runtime.Object, 0, pods)
	for i := range pods {
		objects = append(objects, app(fmt.Sprintf("web-%d", i), pool).Pod())
	}
	if err := workload.Create(ctx, bed.Client(), objects...); err != nil {
		return result.Result{}, err
	}
	machines := (pods + 1 + perMachine - 1) / perMachine // one pod has waited since before
	if err := testbed.Poll(ctx, fmt.Sprintf("%d machines are made", machines), func() bool { return len(made(bed, pool)) >= machines }); err != nil {
		return result.Result{}, fmt.Errorf("%w: there are %d", err, len(made(bed, pool)))
	}
	return latency(noRoom(), made(bed, pool)[1:])
}

// latency is the time between the nth pod and the machine with the nth place. The first machine is not among those given,
// which has room for all but the one pod that it was ordered for.
func latency(noRoom, made []time.Time) (result.Result, error) {
	noRoom = noRoom[min(len(noRoom), perMachine-1):]
	var took []time.Duration
	for i, at := range noRoom {
		if i/perMachine >= len(made) {
			return result.Result{}, fmt.Errorf("%d machines for %d pods", len(made), len(noRoom))
		}
		took = append(took, made[i/perMachine].Sub(at))
	}
	if len(took) == 0 {
		return result.Result{}, fmt.Errorf("no pod found no room")
	}
	slices.Sort(took)
	at := func(percent int) float64 { return took[(len(took)-1)*percent/100].Seconds() }
	return result.Result{
		Name: "pod without room to create call, p99", Value: at(99), Unit: "s", Reach: result.AtMost(2),
		Setup: fmt.Sprintf("%d pods of one core at once, and machines of %d from a scale set; debounce of 1 s included; from when a watch "+
			"tells of the pod to when the cloud makes the machine with room for it; median %.2f s, most %.2f s", pods, cores, at(50), at(100)),
	}, nil
}

func app(name string, pool controlplane.AKSPool) workload.App {
	return workload.App{
		Namespace: namespace, Name: name, CPU: resource.MustParse("1"),
		NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": pool.Name},
	}
}

// made is when the machines of a pool were made, the first one first.
func made(bed *testbed.Testbed, pool controlplane.AKSPool) (times []time.Time) {
	for _, vm := range bed.ARM.VMs() {
		if strings.EqualFold(vm.ScaleSet, pool.ScaleSet()) {
			times = append(times, vm.Created)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// settle has one machine ordered, so that the manager is known to be at work.
func settle(ctx context.Context, bed *testbed.Testbed, pool controlplane.AKSPool) error {
	if err := workload.Create(ctx, bed.Client(), app("first", pool).Pod()); err != nil {
		return err
	}
	return testbed.Poll(ctx, "a first machine is made", func() bool { return len(made(bed, pool)) == 1 })
}

// watch notes when each pod is first said to find no room. What it returns gives the times, the first one first.
func watch(ctx context.Context, bed *testbed.Testbed) (func() []time.Time, error) {
	events, err := bed.Client().CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	seen := map[string]time.Time{}
	go func() {
		for e := range events.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || p.Name == "first" {
				continue
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
					mu.Lock()
					if _, known := seen[p.Name]; !known {
						seen[p.Name] = time.Now()
					}
					mu.Unlock()
				}
			}
		}
	}()
	return func() (times []time.Time) {
		mu.Lock()
		defer mu.Unlock()
		for _, at := range seen {
			times = append(times, at)
		}
		slices.SortFunc(times, time.Time.Compare)
		return times
	}, nil
}

// manage installs what the manager needs, and starts it with the rights of its shipped manifests.
func manage(ctx context.Context, bed *testbed.Testbed, pool controlplane.AKSPool) error {
	root, err := testbed.Root()
	if err != nil {
		return err
	}
	for _, file := range []string{"rbac.yaml", "install-crds.yaml"} {
		if err := bed.Apply(ctx, filepath.Join(root, "deploy", "manager", file)); err != nil {
			return err
		}
	}
	if err := bed.ApplyTypes(ctx, filepath.Join(root, "api", "crds"), v1alpha1.GroupVersion, "nodegroups", "noderetirements"); err != nil {
		return err
	}
	if err := createGroup(ctx, bed, pool); err != nil {
		return err
	}
	config := bed.AzureConfig()
	config.Groups = append(config.Groups, provider.GroupConfig{Name: pool.ScaleSet(), ScaleSet: pool.ScaleSet(), Nodes: cloud.Shape{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cores, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("64Gi")},
	}})
	raw, err := yaml.Marshal(map[string]any{"azure": config})
	if err != nil {
		return err
	}
	clouds := filepath.Join(bed.Dir(), "clouds.yaml")
	if err := os.WriteFile(clouds, raw, 0o600); err != nil {
		return err
	}
	credentials, err := bed.ServiceAccountKubeconfig(ctx, "slipway", "slipway-manager", controlplane.TokenOptions{})
	if err != nil {
		return err
	}
	path, err := testbed.Binary("slipway")
	if err != nil {
		return err
	}
	_, err = bed.Run(ctx, controlplane.Command{Name: "manager", Path: path, Args: []string{
		"manager", "--kubeconfig", credentials, "--cloud-config", clouds, "--listen", "", "--leader-elect=false",
	}})
	return err
}

func createGroup(ctx context.Context, bed *testbed.Testbed, pool controlplane.AKSPool) error {
	g := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.azure.com/agentpool": pool.Name}},
		"cloud":        map[string]any{"provider": "azure", "group": pool.ScaleSet()},
		"maximum":      int64(1000), "scaleUp": map[string]any{"joinTimeout": "1h"},
	}}}
	g.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeGroup"))
	g.SetName("bench")
	_, err := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource("nodegroups")).
		Create(ctx, g, metav1.CreateOptions{})
	return err
}
