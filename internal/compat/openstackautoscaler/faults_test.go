package openstackautoscaler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The tests of this file are named after the faults of the OpenStack cluster autoscaler. They plan for the group of its
// sample file, with one control plane node.

var testTime = time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)

// testCluster is the cluster that the tests plan for.
type testCluster struct {
	t     *testing.T
	world *plan.Input
}

// newTestCluster returns a cluster with the sample's group and its flavours as Nova has them.
func newTestCluster(t *testing.T, change ...func(*v1alpha1.NodeGroup)) *testCluster {
	t.Helper()
	c := mustParse(t, sampleConfig)
	g := c.ToNodeGroup(1)
	g.UID = "group"
	for _, change := range change {
		change(&g)
	}
	group := plan.Group{GroupSnapshot: nodegroup.GroupSnapshot{Group: &g, Now: testTime}}
	for _, f := range c.OpenStackFlavours.Flavours {
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(f.VCPU), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(f.Memory)<<20, resource.BinarySI),
			corev1.ResourcePods:   resource.MustParse("110"),
		}
		template := cloud.Template{Name: f.Name, NodeShape: cloud.NodeShape{Capacity: capacity}}
		group.Templates = append(group.Templates, plan.Template{
			Name: f.Name, Node: plan.NewTemplateNode(&g, plan.TemplateSource{Template: template, Declared: capacity}),
		})
	}
	return &testCluster{t, &plan.Input{Snapshot: snapshot.New(), Groups: []plan.Group{group}, Now: testTime}}
}

// addNode adds a node of four cores that has been idle for longer than the cooldown.
func (c *testCluster) addNode(name string, change ...func(*corev1.Node)) {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(testTime.Add(-24 * time.Hour)),
		Labels:      map[string]string{corev1.LabelHostname: name},
		Annotations: map[string]string{plan.UnderutilizedSinceAnnotation: testTime.Add(-10 * time.Minute).Format(time.RFC3339)},
	}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, change := range change {
		change(n)
	}
	must.NoError(c.t, c.world.Snapshot.SetNode(n))
	c.addToGroup(n)
}

// addToGroup adds a node to the group only.
func (c *testCluster) addToGroup(n *corev1.Node) {
	g := &c.world.Groups[0]
	g.Nodes = append(g.Nodes, nodegroup.Node{Object: n, QuietFor: -1})
	g.Size++
	c.world.NodeCount++
}

// addPod adds a pod with requests. Without a node it is pending.
func (c *testCluster) addPod(namespace, name, node, cpu, memory string, change ...func(*corev1.Pod)) {
	c.t.Helper()
	controlled := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &controlled}},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}}}
	p.Status.Phase = corev1.PodRunning
	if node == "" {
		p.Status.Phase = corev1.PodPending
		c.world.Pods = append(c.world.Pods, plan.Pod{Key: placement.PodKey{Namespace: namespace, Name: name}})
	}
	for _, change := range change {
		change(p)
	}
	must.NoError(c.t, c.world.Snapshot.SetPod(p))
}

// planScaleUp returns the number of launched machines by flavour.
func (c *testCluster) planScaleUp() (ordered map[string]int, d *plan.Decision) {
	c.t.Helper()
	d, err := plan.DecideScaleUp(c.world)
	must.NoError(c.t, err)
	ordered = map[string]int{}
	for _, o := range d.Launches {
		ordered[o.Template] += o.Count
	}
	return ordered, d
}

// planScaleDown returns the decisions by node name.
func (c *testCluster) planScaleDown() map[string]plan.NodeDecision {
	c.t.Helper()
	all, err := plan.DecideScaleDown(c.world)
	must.NoError(c.t, err)
	byName := map[string]plan.NodeDecision{}
	for _, d := range all {
		byName[d.Node] = d
	}
	return byName
}

func makeDaemonSetPod(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }

func removeMinimum(g *v1alpha1.NodeGroup) { g.Spec.MinSize = 0 }

func TestFaultPodsAreDeletedWithServer(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	c.addNode("a")
	c.addNode("full", func(n *corev1.Node) { n.Annotations = nil })
	c.addPod("apps", "web", "a", "100m", "128Mi") // 2.5 % of the CPU and one pod: the tool deleted the node
	c.addPod("apps", "big", "full", "3950m", "1Gi")
	for i := range 5 {
		c.addPod("apps", fmt.Sprint("small-", i), "full", "1m", "1Mi")
	}
	if d := c.planScaleDown()["a"]; d.Verdict == nodegroup.Leaves {
		t.Errorf("a node is removed although its pod fits nowhere else: %+v", d.Reasons)
	}
}

// TestNodeLeavesAtLowCPUAndFewPods: the autoscaler considered a node with idle CPU or with few pods. After its cooldown it
// kept a node with more than 5 % of its CPU requested or with more than 5 pods.
func TestNodeLeavesAtLowCPUAndFewPods(t *testing.T) {
	for name, tc := range map[string]struct {
		pods  int
		cpu   string
		leave bool
	}{
		"low cpu, few pods":  {1, "100m", true},
		"at both limits":     {5, "40m", true}, // 5 pods, and 200m of 4 cores
		"more cpu":           {5, "41m", false},
		"more pods":          {6, "10m", false},
		"one big pod":        {1, "1900m", false},
		"only memory":        {1, "0", true},
		"few pods, 50 % cpu": {4, "500m", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, removeMinimum)
			c.addNode("a")
			c.addNode("other", func(n *corev1.Node) { n.Annotations = nil })
			for i := range 6 {
				c.addPod("apps", fmt.Sprint("other-", i), "other", "50m", "64Mi")
			}
			for i := range tc.pods {
				c.addPod("apps", fmt.Sprint("web-", i), "a", tc.cpu, "512Mi")
			}
			if d := c.planScaleDown()["a"]; (d.Verdict == nodegroup.Leaves) != tc.leave {
				t.Errorf("%s: %v", d.Verdict, d.Reasons)
			}
		})
	}
}

func TestNodesWithOneBigPodStay(t *testing.T) {
	c := newTestCluster(t, removeMinimum, func(g *v1alpha1.NodeGroup) {
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
	})
	for _, name := range []string{"a", "b", "c"} {
		c.addNode(name)
		c.addPod("apps", "web-"+name, name, "1900m", "64Mi") // 47.5 %: two fit on one node
	}
	for name, d := range c.planScaleDown() {
		if d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != plan.Used {
			t.Errorf("%s: %s: %v, want it used", name, d.Verdict, d.Reasons)
		}
	}
}

func TestFaultDaemonSetPodsKeepNodesBusy(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	c.addNode("daemons")
	c.addNode("busy")
	for i := range 8 {
		c.addPod("kube-system", fmt.Sprint("daemon-", i), "daemons", "200m", "64Mi", makeDaemonSetPod)
		c.addPod("apps", fmt.Sprint("web-", i), "busy", "100m", "64Mi")
	}
	all := c.planScaleDown()
	if d := all["daemons"]; d.Verdict != nodegroup.Leaves {
		t.Errorf("the node with only DaemonSet pods: %s: %v", d.Verdict, d.Reasons)
	}
	if d := all["busy"]; d.Verdict == nodegroup.Leaves || d.Reasons[0].Rule != plan.Used {
		t.Errorf("the node with 8 pods that request 20 %% of its CPU: %s: %v", d.Verdict, d.Reasons)
	}
}

func TestFaultMinimumIsNotKeptAtLowCPU(t *testing.T) {
	for idle, want := range map[int]int{2: 0, 3: 1, 5: 3} { // MinNodeCount is 3, including the control plane node
		c := newTestCluster(t, func(g *v1alpha1.NodeGroup) { // no other rule protects a node
			g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
		})
		for i := range idle {
			c.addNode(fmt.Sprint("idle-", i))
		}
		leaving := 0
		for _, d := range c.planScaleDown() {
			if d.Verdict == nodegroup.Leaves {
				leaving++
			}
		}
		if leaving != want {
			t.Errorf("%d of %d idle nodes are removed, want %d", leaving, idle, want)
		}
	}
}

// TestMinNodeCountLaunchesNoInstance: MinNodeCount only prevented the removal of nodes.
func TestMinNodeCountLaunchesNoInstance(t *testing.T) {
	c := newTestCluster(t) // a minimum of 2 without the control plane
	c.addNode("only")
	if ordered, _ := c.planScaleUp(); len(ordered) != 0 {
		t.Errorf("launched %v below MinNodeCount without pending pods, want none", ordered)
	}
	if d := c.planScaleDown()["only"]; d.Verdict != nodegroup.Refused {
		t.Errorf("the idle node: %s: %v, want the minimum to protect it", d.Verdict, d.Reasons)
	}
	if g := c.world.Groups[0].Group; g.Spec.Replacement != v1alpha1.ReplaceNever {
		t.Errorf("replacement is %q, want Never: the autoscaler launched machines only for pending pods", g.Spec.Replacement)
	}
}

// TestLargestPossiblePodFitsItsFlavor: with the reservations of managed clusters, such a pod would need the next larger
// flavour.
func TestLargestPossiblePodFitsItsFlavor(t *testing.T) {
	c := mustParse(t, sampleConfig)
	g := c.ToNodeGroup(1)
	template := cloud.Template{Name: "m1.large", NodeShape: c.ToCloudConfig("prod").Groups[0].Nodes}
	template.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	has := plan.NewTemplateNode(&g, plan.TemplateSource{Template: template}).Status.Allocatable
	if has.Cpu().MilliValue() != 4000 || has.Memory().Value() != 8<<30-100<<20 {
		t.Errorf("allocatable %s CPU and %s memory, want 4 and 8092Mi", has.Cpu(), has.Memory())
	}
}

func TestFaultPendingPodsAreIdentifiedByName(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	c.addPod("shop", "web-0", "", "3", "1Gi")
	c.addPod("blog", "web-0", "", "3", "1Gi")
	if ordered, _ := c.planScaleUp(); ordered["m1.large"] != 2 {
		t.Errorf("launched %v for two pods with the same name, want 2", ordered)
	}
}

func TestFaultServersAreLaunchedOneByOne(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	for i := range 20 {
		c.addPod("apps", fmt.Sprint("web-", i), "", "1500m", "1Gi")
	}
	if ordered, _ := c.planScaleUp(); ordered["m1.large"] != 9 {
		t.Errorf("launched %v, want 9 at once, up to MaxNodeCount", ordered)
	}
}

// trackLaunchedInstance returns the tracking of one launched instance.
func trackLaunchedInstance(i cloud.Instance) launch.Tracking {
	i.ProviderID, i.Type, i.Created = "openstack:///1", "m1.large", testTime.Add(-time.Hour)
	return launch.TrackInstances(launch.Observation{
		Group: cloud.Group{Size: 1}, Instances: []cloud.Instance{i}, JoinState: func(cloud.Instance) launch.JoinState { return launch.NoNode },
		Unjoined:    []launch.Instance{{ProviderID: i.ProviderID, Template: i.Type, Since: metav1.NewTime(i.Created)}},
		JoinTimeout: 15 * time.Minute, WatchedSince: testTime.Add(-time.Hour), Now: testTime,
	})
}

func TestFaultServerInErrorIsAwaitedForever(t *testing.T) {
	s := trackLaunchedInstance(cloud.Instance{State: cloud.Failed, Refusal: cloud.NoCapacity, Message: "No valid host was found."})
	if len(s.FailedWithoutNode) != 1 || s.FailedWithoutNode[0].Reason != string(cloud.NoCapacity) || len(s.Provisioning) != 0 {
		t.Errorf("got %+v, want it dead", s)
	}
}

func TestFaultUnjoinedServerBlocksForever(t *testing.T) {
	if s := trackLaunchedInstance(cloud.Instance{State: cloud.Running}); len(s.FailedWithoutNode) != 1 || s.FailedWithoutNode[0].Reason != launch.NeverJoined || len(s.Provisioning) != 0 {
		t.Errorf("got %+v, want it dead", s)
	}
}

func TestFaultMissingNodeOrPodConditionsPanic(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	c.addToGroup(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}) // deleted according to the watch, but still listed
	c.addPod("apps", "orphan", "gone", "1", "1Gi", func(p *corev1.Pod) { p.Status = corev1.PodStatus{} })
	if d := c.planScaleDown()["gone"]; d.Verdict == nodegroup.Leaves || len(d.Reasons) == 0 {
		t.Errorf("an unknown node: %s: %v", d.Verdict, d.Reasons)
	}
	c.planScaleUp()
}

func TestFaultMemoryIsDividedBy1024And1000(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	c.addPod("apps", "exact", "", "100m", "2Gi") // 2048 MiB, all of m1.small; the tool computed 2097
	if ordered, _ := c.planScaleUp(); ordered["m1.small"] != 1 || len(ordered) != 1 {
		t.Errorf("launched %v, want one of m1.small", ordered)
	}
	c = newTestCluster(t, removeMinimum)
	c.addPod("apps", "more", "", "100m", "2049Mi")
	if ordered, _ := c.planScaleUp(); ordered["m1.large"] != 1 || len(ordered) != 1 {
		t.Errorf("launched %v, want one of m1.large", ordered)
	}
}

func TestFaultMilliCPUIsUnreadable(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	for i := range 3 { // as whole cores they would need three servers of one core, as nothing one server
		c.addPod("apps", fmt.Sprint("web-", i), "", "500m", "64Mi")
	}
	if ordered, _ := c.planScaleUp(); ordered["m1.small"] != 2 || len(ordered) != 1 {
		t.Errorf("launched %v for three pods of half a core, want two servers of one core", ordered)
	}
}

func TestFaultUnschedulablePodsLaunchServers(t *testing.T) {
	taint := corev1.Taint{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		reason string // empty if a server helps
	}{
		"no obstacle":   {func(*corev1.Pod) {}, ""},
		"taint":         {func(p *corev1.Pod) { p.Spec.Tolerations = nil }, "untolerated taint"},
		"node selector": {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} }, "node affinity or selector"},
		"node affinity": {func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "gpu", Operator: corev1.NodeSelectorOpExists}},
				}}},
			}}
		}, "node affinity or selector"},
		"pod affinity": {func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}}, TopologyKey: corev1.LabelHostname,
			}}}}
		}, "pod affinity does not match"},
		"missing volume claim": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"},
			}}}
		}, "claim"},
		"too large": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("64")
		}, "insufficient cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, removeMinimum)
			for i := range c.world.Groups[0].Templates {
				c.world.Groups[0].Templates[i].Node.Spec.Taints = []corev1.Taint{taint}
			}
			c.addPod("apps", "web", "", "1", "1Gi", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
				tc.change(p)
			})
			ordered, d := c.planScaleUp()
			if tc.reason == "" {
				if len(ordered) != 1 {
					t.Errorf("launched %v for a pod without obstacle, want one", ordered)
				}
				return
			}
			if len(ordered) != 0 || len(d.Pods) != 1 || d.Pods[0].Outcome != plan.Unschedulable || !strings.Contains(d.Pods[0].Reasons[0].Message, tc.reason) {
				t.Errorf("launched %v, pods %+v; want none, and %q", ordered, d.Pods, tc.reason)
			}
		})
	}
}

func TestFaultRestartResetsCooldown(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	c.addNode("idle") // only the annotation is known
	if d := c.planScaleDown()["idle"]; d.Verdict != nodegroup.Leaves || !strings.Contains(d.Reasons[0].Message, "2026-11-02T07:50:00Z") {
		t.Errorf("%s: %v", d.Verdict, d.Reasons)
	}
}

func TestFaultRegionIsHardcoded(t *testing.T) {
	t.Setenv("OS_REGION_NAME", "south") // conf.yml has none
	c := mustParse(t, sampleConfig)
	p, err := openstack.New(c.ToCloudConfig(DefaultCluster), openstack.Options{})
	must.NoError(t, err)
	for region, ours := range map[string]bool{"south": true, "LK": false} {
		if id, err := p.Normalize("openstack://" + region + "/6f7a3c1e-0000-4000-8000-000000000001"); (err == nil) != ours {
			t.Errorf("a server of region %s: %q, %v; want accepted: %t", region, id, err, ours)
		}
	}
}
