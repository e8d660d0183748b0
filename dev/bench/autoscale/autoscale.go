// Package autoscale measures how fast and how well instances are launched. One measurement is of the decision alone.
// Another is of the time from an unschedulable pod to the call that creates a machine. It uses a real control plane
// and the real manager.
package autoscale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// Options configures RunBenchmarks and RunNovaBenchmark.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
}

const (
	pods        = 500
	perMachine  = 15 // pods, next to the system's own use
	waitTimeout = 5 * time.Minute
	namespace   = "autoscale"
	// debounce is the manager's default wait for more pods.
	debounce = time.Second
)

// testCloud describes the cloud of a measurement.
type testCloud struct {
	// cores is the size of its machines, and cpu the request of each pod.
	cores int
	cpu   string
	// labels are the labels of its nodes.
	labels map[string]string
	// config is the manager's configuration, and group the NodeGroup's spec.
	config map[string]any
	group  string
	// creationTimes returns the creation times of its machines, first to last. by describes their source.
	creationTimes func() []time.Time
	timesSource   string
	// awaitAllMachines waits until the cloud has machines for all pods, and fails if it has more.
	awaitAllMachines func(context.Context) error
}

// RunBenchmarks runs the measurements without OpenStack. It takes about a minute.
func RunBenchmarks(ctx context.Context, o Options) ([]result.Result, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	var results []result.Result
	for _, measure := range []func() (result.Result, error){measurePacking, measureDecision} {
		r, err := measure()
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	latency, err := measureLatency(ctx, o, newScaleSetCloud)
	if err != nil {
		return nil, err
	}
	return append(results, latency...), nil
}

// measureLatency measures how long the manager takes to launch machines for unschedulable pods. The time begins when
// the API server reports a pod as unschedulable. It ends with the call that creates the pod's machine. No machine
// joins the cluster, so no pod takes the place of another pod. So the nth pod belongs to the machine with the nth
// place.
func measureLatency(ctx context.Context, o Options, open func(context.Context, *testbed.Testbed) (testCloud, error)) (_ []result.Result, err error) {
	bed, err := testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{Version: o.Kubernetes}, ARM: azure.ARMOptions{BootTime: waitTimeout},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := bed.Stop(); err == nil {
			err = stopped
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	m, err := open(ctx, bed)
	if err != nil {
		return nil, err
	}
	for _, prepare := range []func() error{
		func() error { return workload.Create(ctx, bed.Client(), workload.NewNamespace(namespace)) },
		func() error { return startManager(ctx, bed, m) },
		func() error { return launchFirstMachine(ctx, bed, m) },
	} {
		if err := prepare(); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(o.Progress, "autoscale: %d unschedulable pods\n", pods)
	noRoom, err := watchUnschedulable(ctx, bed)
	if err != nil {
		return nil, err
	}
	objects := make([]runtime.Object, 0, pods)
	for i := range pods {
		objects = append(objects, m.newApp(fmt.Sprintf("web-%d", i)).Pod())
	}
	if err := workload.Create(ctx, bed.Client(), objects...); err != nil {
		return nil, err
	}
	if err := testbed.PollUntil(ctx, fmt.Sprintf("%d machines are created", machines), func() bool { return len(m.creationTimes()) >= machines }); err != nil {
		return nil, fmt.Errorf("%w: %d machines exist", err, len(m.creationTimes()))
	}
	if err := m.awaitAllMachines(ctx); err != nil {
		return nil, err
	}
	return m.computeLatency(noRoom(), m.creationTimes()[1:])
}

// machines is the minimum number of machines for all pods, including the pod that launchFirstMachine creates.
const machines = (pods + 1 + perMachine - 1) / perMachine

// computeLatency returns the percentiles of the time from the nth pod's report to the call that created the machine
// with the nth place. The list made lacks the first machine. That machine has room for the first perMachine-1 pods,
// so computeLatency leaves them out.
func (m testCloud) computeLatency(noRoom, made []time.Time) ([]result.Result, error) {
	noRoom = noRoom[min(len(noRoom), perMachine-1):]
	var took []time.Duration
	for i, at := range noRoom {
		if i/perMachine >= len(made) {
			return nil, fmt.Errorf("%d machines for %d pods", len(made), len(noRoom))
		}
		took = append(took, made[i/perMachine].Sub(at))
	}
	if len(took) == 0 {
		return nil, fmt.Errorf("no pod was unschedulable")
	}
	slices.Sort(took)
	at := func(percent int) float64 { return took[(len(took)-1)*percent/100].Seconds() }
	setup := fmt.Sprintf("%d pods of %s CPU at once, machines of %d cores; includes the debounce of %s; from the watch event of "+
		"the pod to the create call of its machine, %s; p50 %.2f s, maximum %.2f s", pods, m.cpu, m.cores, debounce, m.timesSource, at(50), at(100))
	return []result.Result{
		{Name: "unschedulable pod to create call, p99", Value: at(99), Unit: "s", Target: result.AtMost(2), Setup: setup},
		{
			Name: "the same, as a multiple of the debounce", Value: at(99) / debounce.Seconds(), Unit: "times",
			Setup: setup + "; the debounce is the floor for the first pods of a launch",
		},
	}, nil
}

func (m testCloud) newApp(name string) workload.App {
	return workload.App{Namespace: namespace, Name: name, CPU: resource.MustParse(m.cpu), NodeSelector: m.labels}
}

// checkMachineCount returns an error if count differs from the minimum number of machines for the pods.
func checkMachineCount(count int) error {
	if count != machines {
		return fmt.Errorf("there are %d machines, want %d for all pods", count, machines)
	}
	return nil
}

// launchFirstMachine creates one pod and waits for its machine, to make sure that the manager works.
func launchFirstMachine(ctx context.Context, bed *testbed.Testbed, m testCloud) error {
	if err := workload.Create(ctx, bed.Client(), m.newApp("first").Pod()); err != nil {
		return err
	}
	return testbed.PollUntil(ctx, "a first machine is created", func() bool { return len(m.creationTimes()) == 1 })
}

// watchUnschedulable records when each pod first becomes unschedulable. It returns a function that returns these
// times in ascending order.
func watchUnschedulable(ctx context.Context, bed *testbed.Testbed) (func() []time.Time, error) {
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

// startManager applies the manager's manifests, and starts the manager with the permissions from these manifests.
func startManager(ctx context.Context, bed *testbed.Testbed, m testCloud) error {
	if err := errors.Join(bed.ApplyManifests(ctx, testbed.ManagerManifests...), bed.InstallCRDs(ctx)); err != nil {
		return err
	}
	if err := bed.CreateNodeGroup(ctx, "bench", nil, m.group); err != nil {
		return err
	}
	_, err := bed.StartManager(ctx, "manager", m.config)
	return err
}
