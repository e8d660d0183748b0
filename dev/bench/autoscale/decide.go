package autoscale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

const (
	seed = 1
	runs = 9
)

// mix is the text that describes the pods of newPendingPods in the results.
const mix = "seed 1; 0.1 to 2 cores and 128 MiB to 6 GiB, in 25 sizes"

// newPendingPods adds n pending pods of different sizes to a snapshot. It returns the pods and the sums of their
// requests: CPU in millicores and memory in bytes.
func newPendingPods(s *snapshot.Snapshot, n int) (pods []plan.Pod, cpu, memory int64, err error) {
	dice := rand.New(rand.NewPCG(seed, 7))
	cpus, memories := []string{"100m", "250m", "500m", "1", "2"}, []string{"128Mi", "512Mi", "1Gi", "2Gi", "6Gi"}
	for i := range n {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: fmt.Sprintf("web-%d", i)}}
		requests := corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpus[dice.IntN(len(cpus))]),
			corev1.ResourceMemory: resource.MustParse(memories[dice.IntN(len(memories))]),
		}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
		if err := s.SetPod(p); err != nil {
			return nil, 0, 0, err
		}
		pods = append(pods, plan.Pod{Key: placement.PodKey{Namespace: p.Namespace, Name: p.Name}})
		cpu, memory = cpu+requests.Cpu().MilliValue(), memory+requests.Memory().Value()
	}
	return pods, cpu, memory, nil
}

// newMachineType returns a machine type of a NodeGroup. Pods can use all of its capacity.
func newMachineType(g *v1alpha1.NodeGroup, name, cpu, memory string) plan.Template {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110"),
	}
	t := cloud.Template{Name: name, NodeShape: cloud.NodeShape{Capacity: capacity}}
	return plan.Template{Name: name, Node: plan.NewTemplateNode(g, plan.TemplateSource{Template: t, Declared: capacity})}
}

func newSnapshot(pods int, kinds ...func(*v1alpha1.NodeGroup) plan.Template) (w *plan.Input, cpu, memory int64, err error) {
	maxSize := int32(5000)
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "web"}
	g.Spec.MaxSize, g.Spec.ScaleUp = &maxSize, &v1alpha1.ScaleUp{}
	group := plan.Group{GroupSnapshot: nodegroup.GroupSnapshot{Group: g, Now: time.Now()}}
	for _, k := range kinds {
		group.Templates = append(group.Templates, k(g))
	}
	w = &plan.Input{Snapshot: snapshot.New(), Groups: []plan.Group{group}, Now: time.Now()}
	w.Pods, cpu, memory, err = newPendingPods(w.Snapshot, pods)
	return w, cpu, memory, err
}

// countLaunched returns the number of machines that a decision launches. If the decision has no machine for some
// pod, it returns an error.
func countLaunched(d *plan.Decision, pods int) (n int, err error) {
	for _, p := range d.Pods {
		if p.Outcome != plan.Launching {
			return 0, fmt.Errorf("pod %s is %s: %v", p.Pod, p.Outcome, p.Reasons)
		}
	}
	if len(d.Pods) != pods {
		return 0, fmt.Errorf("the decision has %d of %d pods", len(d.Pods), pods)
	}
	for _, o := range d.Launches {
		n += o.Count
	}
	return n, nil
}

// measurePacking measures how many machines a decision launches compared with the minimum for the pods' requests.
func measurePacking() (result.Result, error) {
	const pods = 500
	m8 := func(g *v1alpha1.NodeGroup) plan.Template { return newMachineType(g, "m8", "8", "32Gi") }
	w, cpu, memory, err := newSnapshot(pods, m8)
	if err != nil {
		return result.Result{}, err
	}
	d, err := plan.DecideScaleUp(w)
	if err != nil {
		return result.Result{}, err
	}
	n, err := countLaunched(d, pods)
	if err != nil {
		return result.Result{}, err
	}
	minimum := int(math.Ceil(max(float64(cpu)/8000, float64(memory)/(32<<30))))
	return result.Result{
		Name: "machines for 500 pods, above the minimum", Value: 100 * float64(n-minimum) / float64(minimum), Unit: "%",
		Target: result.AtMost(5),
		Setup:  fmt.Sprintf("%s; machines of 8 cores and 32 GiB; %d launched by one decision, the minimum for the pods is %d", mix, n, minimum),
	}, nil
}

// measureDecision measures how long a decision on 10,000 pods takes.
func measureDecision() (result.Result, error) {
	const pods = 10_000
	kinds := []func(*v1alpha1.NodeGroup) plan.Template{
		func(g *v1alpha1.NodeGroup) plan.Template { return newMachineType(g, "m8", "8", "32Gi") },
		func(g *v1alpha1.NodeGroup) plan.Template { return newMachineType(g, "m16", "16", "64Gi") },
		func(g *v1alpha1.NodeGroup) plan.Template { return newMachineType(g, "c16", "16", "32Gi") },
	}
	w, _, _, err := newSnapshot(pods, kinds...)
	if err != nil {
		return result.Result{}, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var cpu, wall []time.Duration
	machines := 0
	for range runs {
		runtime.GC()
		start, used := time.Now(), placementtest.MeasureCPUTime()
		d, err := plan.DecideScaleUp(w)
		if err != nil {
			return result.Result{}, err
		}
		cpu, wall = append(cpu, placementtest.MeasureCPUTime()-used), append(wall, time.Since(start))
		if machines, err = countLaunched(d, pods); err != nil {
			return result.Result{}, err
		}
	}
	slices.Sort(cpu)
	slices.Sort(wall)
	return result.Result{
		Name: "decide on 10,000 pending pods", Value: cpu[runs/2].Seconds() * 1e3, Unit: "ms", Target: result.AtMost(500),
		Setup: fmt.Sprintf("%s; three machine types, %d launched; one core, processor time, p50 of %d; elapsed time %.0f ms", mix,
			machines, runs, wall[runs/2].Seconds()*1e3),
	}, nil
}
