// Package placementtest builds clusters for tests and benchmarks of placement. The result depends only on the
// arguments.
package placementtest

import (
	"fmt"
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// Zones are the zones of the nodes.
var Zones = []string{"zone-a", "zone-b", "zone-c"}

// NewNode returns a ready node with the usual labels. cpuCores is in cores, memoryGiB in GiB.
func NewNode(name, zone string, cpuCores, memoryGiB, maxPods int64) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name),
			Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, corev1.LabelOSStable: "linux"},
		},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewQuantity(cpuCores, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(memoryGiB<<30, resource.BinarySI),
				corev1.ResourcePods:   *resource.NewQuantity(maxPods, resource.DecimalSI),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// NewPod returns a running, ready pod of a ReplicaSet. cpuMillicores is in millicores, memoryMiB in MiB. Without a node name it is
// pending.
func NewPod(app string, index int, node string, cpuMillicores, memoryMiB int64) *corev1.Pod {
	yes := true
	name := fmt.Sprintf("%s-%d", app, index)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: app, UID: types.UID(app), Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(cpuMillicores, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(memoryMiB<<20, resource.BinarySI),
			}},
		}}},
	}
	p.Status.Phase = corev1.PodPending
	if node != "" {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

// NewUniformCluster returns nodes with the same number of equal pods. Each pod requests 1 % of its node.
func NewUniformCluster(nodes, podsPerNode int) *Cluster {
	c := &Cluster{}
	for i := range nodes {
		c.Nodes = append(c.Nodes, NewNode(fmt.Sprintf("node-%04d", i), Zones[i%len(Zones)], 10, 100, 110))
		for j := range podsPerNode {
			c.Pods = append(c.Pods, NewPod("web", i*podsPerNode+j, c.Nodes[i].Name, 100, 1024))
		}
	}
	return c
}

// NewPendingPodCluster returns pending pods without nodes. Each pod requests 2 % of an instance of NewFlavour.
func NewPendingPodCluster(pods int) *Cluster {
	c := &Cluster{}
	for i := range pods {
		c.Pods = append(c.Pods, NewPod("web", i, "", 200, 2048))
	}
	return c
}

// NewTemplate returns a template with 10 cores and 100 GiB in each zone.
func NewTemplate() planner.Template {
	return planner.Template{Name: "standard", Node: NewNode("standard", "", 10, 100, 110), Cost: 1, Zones: Zones}
}

// constraintKind says how the pods of an application restrict their placement.
type constraintKind int

const (
	plain constraintKind = iota
	zoneSpread
	hostSpread
	hostAffinity
	zoneAffinity
	hostAntiAffinity
)

// addConstraints adds the constraints of a kind to a pod.
func addConstraints(p *corev1.Pod, k constraintKind) {
	selector := &metav1.LabelSelector{MatchLabels: p.Labels}
	term := func(key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: selector, TopologyKey: key}}
	}
	spread := func(key string) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: key,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector,
		}}
	}
	switch k {
	case zoneSpread:
		spread(corev1.LabelTopologyZone)
	case hostSpread:
		spread(corev1.LabelHostname)
	case hostAffinity:
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(corev1.LabelHostname)}}
	case zoneAffinity:
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(corev1.LabelTopologyZone)}}
	case hostAntiAffinity:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(corev1.LabelHostname)}}
	}
}

// pickConstraintKind returns a random kind: 1/3 plain, 1/3 spread, 1/3 pod affinity or anti-affinity.
func pickConstraintKind(g *rand.Rand) constraintKind {
	switch g.IntN(3) {
	case 0:
		return plain
	case 1:
		return zoneSpread + constraintKind(g.IntN(2))
	default:
		return hostAffinity + constraintKind(g.IntN(3))
	}
}

// NewDiversePendingPodCluster returns pending pods of applications with up to 40 replicas. There are three kinds of applications, a third each:
// plain ones, ones with a topology spread over zones or hosts, and ones with affinity or anti-affinity to their own pods. They request 0.1 to 1 core and 128 MiB to 2
// GiB.
func NewDiversePendingPodCluster(seed uint64, pods int) *Cluster {
	g := rand.New(rand.NewPCG(seed, 1))
	c := &Cluster{}
	for app := 0; len(c.Pods) < pods; app++ {
		k, cpu, memory := pickConstraintKind(g), int64(1+g.IntN(10))*100, int64(1+g.IntN(16))*128
		replicas := 1 + g.IntN(40)
		if k == hostAffinity {
			replicas = 1 + g.IntN(8)
		}
		for i := range min(replicas, pods-len(c.Pods)) {
			p := NewPod(fmt.Sprintf("app-%d", app), i, "", cpu, memory)
			addConstraints(p, k)
			c.Pods = append(c.Pods, p)
		}
	}
	return c
}

// NewDiverseCluster returns nodes in three zones with pods as in NewDiversePendingPodCluster. The pods are placed where their
// constraints allow. The first applications have a PodDisruptionBudget, with 1 to 3 disruptions allowed.
func NewDiverseCluster(seed uint64, nodes, pods, pdbs int) *Cluster {
	g := rand.New(rand.NewPCG(seed, 2))
	c := &Cluster{}
	for i := range nodes {
		c.Nodes = append(c.Nodes, NewNode(fmt.Sprintf("node-%04d", i), Zones[i%len(Zones)], 32, 128, 110))
	}
	next := 0
	place := func() string { next++; return c.Nodes[next*7919%nodes].Name }
	inZone := func(zone, i int) string {
		return c.Nodes[(zone%len(Zones)+i*len(Zones))%(nodes/len(Zones)*len(Zones))].Name
	}
	for app := 0; len(c.Pods) < pods; app++ {
		k, cpu, memory := pickConstraintKind(g), int64(1+g.IntN(10))*100, int64(1+g.IntN(16))*128
		replicas := min(1+g.IntN(80), nodes/len(Zones))
		if k == hostAffinity {
			replicas = 1 + g.IntN(8)
		}
		home, zone := place(), g.IntN(len(Zones))
		start := g.IntN(nodes)
		for i := range min(replicas, pods-len(c.Pods)) {
			node := ""
			switch k {
			case hostAffinity:
				node = home
			case zoneAffinity:
				node = inZone(zone, g.IntN(nodes/len(Zones)))
			case zoneSpread:
				node = inZone(i, g.IntN(nodes/len(Zones)))
			case hostSpread, hostAntiAffinity:
				node = c.Nodes[(start+i)%nodes].Name
			default:
				node = place()
			}
			p := NewPod(fmt.Sprintf("app-%d", app), i, node, cpu, memory)
			addConstraints(p, k)
			c.Pods = append(c.Pods, p)
		}
		if len(c.PDBs) < pdbs {
			c.PDBs = append(c.PDBs, NewPDB(fmt.Sprintf("app-%d", app), 1+g.IntN(3)))
		}
	}
	return c
}

// NewPDB returns a PodDisruptionBudget for the pods of an application.
func NewPDB(app string, disruptionsAllowed int) *policyv1.PodDisruptionBudget {
	unavailable := intstr.FromInt32(int32(disruptionsAllowed))
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &unavailable,
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(disruptionsAllowed), CurrentHealthy: 10, DesiredHealthy: 9},
	}
}
