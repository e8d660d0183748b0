package plan

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var start = time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)

const groupLabel = "pool"

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func machineResources(cpu, memory string) corev1.ResourceList {
	list := resources(cpu, memory)
	list[corev1.ResourcePods] = resource.MustParse("110")
	return list
}

// newKind returns a template with all of its capacity allocatable.
func newKind(g *v1alpha1.NodeGroup, name, cpu, memory string) Template {
	t := cloud.Template{Name: name, NodeShape: cloud.NodeShape{Capacity: machineResources(cpu, memory)}}
	return Template{Name: name, Cost: float64(t.Capacity.Cpu().MilliValue()), Node: NewTemplateNode(g, TemplateSource{Template: t, Declared: t.Capacity})}
}

func newNodeGroup(name string, maximum int32, change ...func(*v1alpha1.NodeGroup)) *v1alpha1.NodeGroup {
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}}
	g.Spec.NodeSelector.MatchLabels = map[string]string{groupLabel: name}
	g.Spec.MaxSize = &maximum
	g.Spec.ScaleUp = &v1alpha1.ScaleUp{}
	for _, c := range change {
		c(g)
	}
	return g
}

func newGroup(g *v1alpha1.NodeGroup, kinds ...Template) Group {
	return Group{GroupSnapshot: nodegroup.GroupSnapshot{Group: g, Now: start}, Templates: kinds}
}

// newNode returns a node of a group that is one day old.
func newNode(group, name string, allocatable corev1.ResourceList, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "uid-" + "1", CreationTimestamp: metav1.NewTime(start.Add(-24 * time.Hour)),
			Labels: map[string]string{groupLabel: group, corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
		},
		Status: corev1.NodeStatus{
			Allocatable: allocatable, Capacity: allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func newPod(name, nodeName, cpu, memory string, change ...func(*corev1.Pod)) *corev1.Pod {
	controlled := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "apps", Name: name, Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &controlled}},
		},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: resources(cpu, memory)},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if nodeName != "" {
		p.Status.Phase = corev1.PodRunning
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// newWorld returns a World of groups, nodes and pods. Pods without a node are unschedulable.
func newWorld(t testing.TB, groups []Group, nodes []*corev1.Node, pods []*corev1.Pod) *Input {
	t.Helper()
	w := &Input{Snapshot: snapshot.New(), Groups: groups, NodeCount: len(nodes), Now: start}
	for _, n := range nodes {
		must.NoError(t, w.Snapshot.SetNode(n))
		for i := range w.Groups {
			g := &w.Groups[i]
			if n.Labels[groupLabel] == g.name() {
				g.Nodes = append(g.Nodes, nodegroup.Node{Object: n, QuietFor: -1})
				g.Size++
			}
		}
	}
	for _, p := range pods {
		must.NoError(t, w.Snapshot.SetPod(p))
		if p.Spec.NodeName == "" {
			w.Pods = append(w.Pods, Pod{Key: placement.PodKey{Namespace: p.Namespace, Name: p.Name}})
		}
	}
	return w
}

func newPendingPods(n int, cpu, memory string, change ...func(*corev1.Pod)) []*corev1.Pod {
	list := make([]*corev1.Pod, n)
	for i := range list {
		list[i] = newPod(fmt.Sprintf("web-%d", i), "", cpu, memory, change...)
	}
	return list
}

func decideUp(t rapid.TB, w *Input) *Decision {
	t.Helper()
	d, err := DecideScaleUp(w)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// launchCounts returns the number of launched instances, by group and template.
func launchCounts(d *Decision) map[string]int {
	out := map[string]int{}
	for _, o := range d.Launches {
		out[o.Group+"/"+o.Template] += o.Count
	}
	return out
}

func outcomeCounts(d *Decision) map[Outcome]int {
	out := map[Outcome]int{}
	for _, p := range d.Pods {
		out[p.Outcome]++
	}
	return out
}

// ruleByTemplate returns the rules in a pod's verdict, by template.
func ruleByTemplate(v PodVerdict) map[string]string {
	out := map[string]string{}
	for _, r := range v.Reasons {
		out[r.Group+"/"+r.Template] = r.Rule
	}
	return out
}
