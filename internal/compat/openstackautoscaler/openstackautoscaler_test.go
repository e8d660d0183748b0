package openstackautoscaler

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
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
	d := c.planScaleDown()["a"]
	check.Not(t, d.Verdict == nodegroup.VerdictDue, "a node is removed although its pod fits nowhere else: %+v", d.Reasons)
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
			d := c.planScaleDown()["a"]
			check.Not(t, (d.Verdict == nodegroup.VerdictDue) != tc.leave, "%s: %v", d.Verdict, d.Reasons)
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
	decisions := c.planScaleDown()
	check.Is(t, 3, len(decisions))
	for name, d := range decisions {
		check.Not(t, d.Verdict != nodegroup.VerdictKept || d.Reasons[0].Rule != plan.Used, "%s: %s: %v, want it used", name, d.Verdict, d.Reasons)
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
	if d := all["daemons"]; d.Verdict != nodegroup.VerdictDue {
		t.Errorf("the node with only DaemonSet pods: %s: %v", d.Verdict, d.Reasons)
	}
	if d := all["busy"]; d.Verdict == nodegroup.VerdictDue || d.Reasons[0].Rule != plan.Used {
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
			if d.Verdict == nodegroup.VerdictDue {
				leaving++
			}
		}
		check.Not(t, leaving != want, "%d of %d idle nodes are removed, want %d", leaving, idle, want)
	}
}

// TestMinNodeCountLaunchesNoInstance: MinNodeCount only prevented the removal of nodes.
func TestMinNodeCountLaunchesNoInstance(t *testing.T) {
	c := newTestCluster(t) // a minimum of 2 without the control plane
	c.addNode("only")
	ordered, _ := c.planScaleUp()
	check.Not(t, len(ordered) != 0, "launched %v below MinNodeCount without pending pods, want none", ordered)
	d := c.planScaleDown()["only"]
	check.Not(t, d.Verdict != nodegroup.VerdictBlocked, "the idle node: %s: %v, want the minimum to protect it", d.Verdict, d.Reasons)
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
	ordered, _ := c.planScaleUp()
	check.Not(t, ordered["m1.large"] != 2, "launched %v for two pods with the same name, want 2", ordered)
}

func TestFaultServersAreLaunchedOneByOne(t *testing.T) {
	c := newTestCluster(t, removeMinimum)
	for i := range 20 {
		c.addPod("apps", fmt.Sprint("web-", i), "", "1500m", "1Gi")
	}
	ordered, _ := c.planScaleUp()
	check.Not(t, ordered["m1.large"] != 9, "launched %v, want 9 at once, up to MaxNodeCount", ordered)
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
	d := c.planScaleDown()["gone"]
	check.Not(t, d.Verdict == nodegroup.VerdictDue || len(d.Reasons) == 0, "an unknown node: %s: %v", d.Verdict, d.Reasons)
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
	ordered, _ := c.planScaleUp()
	check.Not(t, ordered["m1.small"] != 2 || len(ordered) != 1, "launched %v for three pods of half a core, want two servers of one core", ordered)
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
				check.Is(t, 1, len(ordered), ordered)
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
	d := c.planScaleDown()["idle"]
	check.Not(t, d.Verdict != nodegroup.VerdictDue || !strings.Contains(d.Reasons[0].Message, "2026-11-02T07:50:00Z"), "%s: %v", d.Verdict, d.Reasons)
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

// sampleConfig is a typical configuration of the tool.
const sampleConfig = `CloudType: OpenStack
AuthOptions:
  IdentityEndpoint: https://keystone.example.com:5000/v3
  Username: autoscaler
  Password: secret
  TenantID: 2dde0802689b472198312db6b368a63c
  DomainName: Default
WorkerImageName: kube-worker-image
CoolDownTime: 600
MinNodeCount: 3
MaxNodeCount: 10
PassConfigToPlugin: false
Network:
  SecurityGroupName: kube
  NetworkUUID: 6f7a3c1e-0000-4000-8000-000000000001
OpenStackFlavours:
  DefaultFlavour: m1.medium
  Flavours:
    - Name: m1.small
      VCPU: 1
      Memory: 2048
    - Name: m1.large
      VCPU: 4
      Memory: 8192
`

func mustParse(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse([]byte(text))
	must.NoError(t, err)
	return c
}

func TestSampleIsRead(t *testing.T) {
	c := mustParse(t, sampleConfig)
	if c.AuthOptions.Password != "secret" || *c.MinNodeCount != 3 || c.CoolDown() != 10*time.Minute || len(c.OpenStackFlavours.Flavours) != 2 ||
		c.OpenStackFlavours.Flavours[1].Memory != 8192 {
		t.Errorf("%+v", c)
	}
	check.Not(t, len(c.Warnings) != 1 || !strings.HasPrefix(c.Warnings[0], "PassConfigToPlugin"), "warnings %q", c.Warnings)
	path := filepath.Join(t.TempDir(), DefaultFile)
	check.ErrorContains(t, check.Err(Load(path)), path)
	must.NoError(t, os.WriteFile(path, []byte("CloudType: x\n"), 0o600))
	_, err := Load(path)
	check.Not(t, err == nil || !strings.HasPrefix(err.Error(), path), "an invalid file: %v", err)
}

func TestI10FileErrorsNameField(t *testing.T) {
	for _, tc := range []struct{ old, text, want string }{
		{"CloudType: OpenStack", "CloudType: Openstack", `CloudType: "Openstack": want one of OpenStack, GCP, AWS, libvirt, Other`},
		{"CloudType: OpenStack\n", "", "CloudType:"},
		{"https://keystone.example.com:5000/v3", "keystone", "AuthOptions.IdentityEndpoint"},
		{"  Username: autoscaler\n", "", "AuthOptions.Username"},
		{"  Password: secret\n", "", "AuthOptions.Password"},
		{"secret", "<password>", "AuthOptions.Password"},
		{"  TenantID: 2dde0802689b472198312db6b368a63c\n", "", "AuthOptions.TenantID"},
		{"  DomainName: Default\n", "", "AuthOptions.DomainName"},
		{"WorkerImageName: kube-worker-image\n", "", "WorkerImageName"},
		{"  SecurityGroupName: kube\n", "", "Network.SecurityGroupName"},
		{"  NetworkUUID: 6f7a3c1e-0000-4000-8000-000000000001\n", "", "Network.NetworkUUID"},
		{"MinNodeCount: 3\n", "", "MinNodeCount: is missing"},
		{"MaxNodeCount: 10\n", "", "MaxNodeCount: is missing"},
		{"MaxNodeCount: 10", "MaxNodeCount: 2", "MinNodeCount: 3: want at most MaxNodeCount (2)"},
		{"MinNodeCount: 3", "MinNodeCount: -1", "MinNodeCount: -1"},
		{"MinNodeCount: 3", "MinNodeCount: three", `line 10: MinNodeCount: "three": want a whole number`},
		{"VCPU: 1", "VCPU: [1]", `OpenStackFlavours.Flavours[0].VCPU: a list: want a whole number`},
		{"  Password: secret", "  Password: {secret: secret}", `AuthOptions.Password: keys with values: want text`},
		{"  SecurityGroupName: kube\n  NetworkUUID: 6f7a3c1e-0000-4000-8000-000000000001\n", "  - kube\n", `Network: a list: want keys with values`},
		{"MinNodeCount: 3", "MinNodeCount: 2147483648", "MinNodeCount: 2147483648: want 0 to 2147483647 nodes"},
		{"MaxNodeCount: 10", "MaxNodeCount: 99999999999", "MaxNodeCount: 99999999999: want 1 to 2147483647 nodes"},
		{"MaxNodeCount: 10", "MaxNodeCount: 99999999999999999999", `line 11: MaxNodeCount: "99999999999999999999": want a whole number`},
		{"CoolDownTime: 600", "CoolDownTime: -1", "CoolDownTime: -1: want 0 to 31536000 seconds"},
		{"CoolDownTime: 600", "CoolDownTime: 99999999999999", "CoolDownTime: 99999999999999: want 0 to 31536000 seconds"},
		{"VCPU: 1", "VCPU: 0", "OpenStackFlavours.Flavours[0].VCPU: 0"},
		{"Memory: 8192", "Memory: 8192\n      Allocatable: {cpu: much}", `OpenStackFlavours.Flavours[1].Allocatable.cpu: "much": want 0 or more`},
		{"DefaultFlavour: m1.medium", "Reserved: {memory: -1Mi}", `OpenStackFlavours.Reserved.memory: "-1Mi": want 0 or more`},
		{"Memory: 8192", "Memory: -5", "OpenStackFlavours.Flavours[1].Memory: -5"},
		{"Name: m1.large", "Name: m1.small", `OpenStackFlavours.Flavours[1].Name: "m1.small": is a duplicate`},
		{"Name: m1.large", "Name: ''", "OpenStackFlavours.Flavours[1].Name"},
		{"Memory: 8192", "Memroy: 8192", "OpenStackFlavours.Flavours[1].Memroy: unknown key; did you mean OpenStackFlavours.Flavours[1].Memory?"},
		{"MaxNodeCount", "MaxNodesCount", "line 11: MaxNodesCount: unknown key; did you mean MaxNodeCount?"},
		{sampleConfig, "", "want keys with values"},
		{sampleConfig, "- a\n", "want keys with values"},
		{sampleConfig, "a: b: c", "mapping values"},
		{sampleConfig, sampleConfig + "---\nMaxNodeCount: 11\n", "line 26: a second YAML document: want one"},
		{sampleConfig, sampleConfig + "---\n---\n- x\n", "a second YAML document: want one"},
		{sampleConfig, sampleConfig + "---\na: b: c\n", "mapping values"},
		{"MaxNodeCount: 10", "MaxNodeCount: 10\nMaxNodeCount: 11", "already defined"},
		{"CloudType: OpenStack", "CloudType: GCP", "AuthOptions.ProjectName"},
		{"CloudType: OpenStack", "CloudType: AWS", "AuthOptions.AWSRegion"},
	} {
		text := strings.Replace(sampleConfig, tc.old, tc.text, 1)
		must.Not(t, text == sampleConfig, "%q is not in the sample", tc.old)
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q for %q: %v, want %q", tc.text, tc.old, err, tc.want)
		}
	}
	// All faults are reported together.
	_, err := Parse([]byte("CloudType: OpenStack\nColour: red\nMinNodeCount: 5\nMaxNodeCount: 4\n"))
	check.ErrorContains(t, err, "Colour", "MinNodeCount", "AuthOptions.Username", "WorkerImageName", "OpenStackFlavours.Flavours")
}

func TestEmptySecondDocumentIsAccepted(t *testing.T) {
	for _, text := range []string{sampleConfig + "---\n", sampleConfig + "...\n", "---\n" + sampleConfig, sampleConfig + "---\n# nothing\n"} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestControlPlaneIsNotCountedInGroupBounds(t *testing.T) {
	c := mustParse(t, sampleConfig)
	for _, tc := range []struct{ controlPlane, minimum, maximum int32 }{{0, 3, 10}, {1, 2, 9}, {3, 0, 7}, {11, 0, 0}} {
		g := c.ToNodeGroup(int(tc.controlPlane))
		if g.Spec.MinSize != tc.minimum || *g.Spec.MaxSize != tc.maximum {
			t.Errorf("with %d control plane nodes: %d to %d, want %d to %d", tc.controlPlane, g.Spec.MinSize, *g.Spec.MaxSize,
				tc.minimum, tc.maximum)
		}
	}
}

func TestFullControlPlaneIsReported(t *testing.T) {
	c := mustParse(t, sampleConfig)
	for controlPlane, full := range map[int]bool{0: false, 9: false, 10: true, 11: true} {
		text := c.FullControlPlaneWarning(controlPlane)
		want := ""
		if full {
			want = fmt.Sprintf("MaxNodeCount: 10: the control plane alone has %d nodes, so no machine is launched: want %d or more",
				controlPlane, controlPlane+1)
		}
		noted := slices.Contains(c.migrationNotes(controlPlane), text)
		check.Not(t, text != want || noted != full, "with %d nodes: %q, among the notes: %t, want %q", controlPlane, text, noted, want)
	}
}

func TestGroupScalesLikeAutoscaler(t *testing.T) {
	c := mustParse(t, strings.Replace(sampleConfig, "CoolDownTime: 600", "CoolDownTime: 90", 1))
	g := c.ToNodeGroup(1)
	if g.Spec.ScaleUp == nil || g.Spec.ScaleUp.Policy != v1alpha1.FirstTemplate {
		t.Errorf("scaleUp is %+v, want the first flavour that helps", g.Spec.ScaleUp)
	}
	u := g.Spec.ScaleDown.Underutilized
	if *u.AllOf.CPUAtMost != 5 || u.AllOf.MemoryAtMost != nil || *u.AllOf.PodsAtMost != 5 || u.PodsAtMost != nil || u.Cooldown.Duration != 90*time.Second || u.Consolidate {
		t.Errorf("scaleDown.underutilized is %+v", u)
	}
	check.Len(t, 0, nodegroup.Validate(&g))
}

func TestCloudConfigComesFromFile(t *testing.T) {
	c := mustParse(t, sampleConfig)
	config := c.ToCloudConfig("prod")
	must.NoError(t, check.Err(openstack.New(config, openstack.Options{})))
	g := config.Groups[0]
	if a := config.Auth; a.URL != "https://keystone.example.com:5000/v3" || a.ProjectID != "2dde0802689b472198312db6b368a63c" || a.UserDomainName != "Default" {
		t.Errorf("%+v", a)
	}
	check.Is(t, "", config.Region)
	if !slices.Equal(g.Flavors, []string{"m1.small", "m1.large", "m1.medium"}) || g.AdoptNamePrefix != "kube-worker-" || g.NamePrefix != "kube-worker" ||
		g.Image.Name != "kube-worker-image" || g.SecurityGroups[0] != "kube" || g.Networks[0] != c.Network.NetworkUUID {
		t.Errorf("%+v", g)
	}
}

func TestMigratedFilesAreValidForManager(t *testing.T) {
	files, err := Migrate([]byte(sampleConfig), "prod", 1)
	must.NoError(t, err)
	byName := map[string]File{}
	directory := t.TempDir()
	for _, f := range files {
		byName[f.Name] = f
		must.NoError(t, os.WriteFile(filepath.Join(directory, f.Name), f.Content, 0o600))
		hasPassword := strings.Contains(string(f.Content), "password: secret")
		check.Not(t, hasPassword != f.Secret, "%s contains the password: %t, Secret: %t", f.Name, hasPassword, f.Secret)
	}
	groups, err := manager.ParseGroups(byName["nodegroups.yaml"].Content)
	if err != nil || len(groups) != 1 || groups[0].Spec.MinSize != 2 || *groups[0].Spec.MaxSize != 9 {
		t.Fatalf("%+v, %v in\n%s", groups, err, byName["nodegroups.yaml"].Content)
	}
	if len(groups[0].Labels) > 0 { // managers ignore objects with the label of the compatibility mode
		t.Errorf("the NodeGroup has the labels %v", groups[0].Labels)
	}
	var clouds struct {
		OpenStack openstack.Config `json:"openstack"`
	}
	must.NoError(t, yaml.UnmarshalStrict(byName["cloud-config.yaml"].Content, &clouds))
	check.Is(t, "clouds.yaml", clouds.OpenStack.CloudsFile)
	t.Chdir(directory)
	p, err := openstack.New(clouds.OpenStack, openstack.Options{})
	must.Not(t, err != nil, "%v with\n%s%s", err, byName["cloud-config.yaml"].Content, byName["clouds.yaml"].Content)
	if p.Name() != groups[0].Spec.Cloud.Provider || clouds.OpenStack.Groups[0].Name != groups[0].Spec.Cloud.Group {
		t.Errorf("the NodeGroup is of %+v", groups[0].Spec.Cloud)
	}
	printed := string(FormatFiles(files))
	check.Contains(t, printed, "# File nodegroups.yaml", "---\n# File clouds.yaml", "#  ")
	for _, text := range []string{strings.Replace(sampleConfig, "OpenStack", "libvirt", 1), "x"} {
		if files, err := Migrate([]byte(text), "prod", 1); err == nil {
			t.Errorf("%q makes %+v", text, files)
		}
	}
	if files, err = Migrate([]byte(sampleConfig), "", 1); err != nil {
		t.Fatal(err)
	}
	if text := string(files[1].Content); !strings.Contains(text, "# clusterName: enter a name") || !strings.Contains(text, `clusterName: ""`) {
		t.Errorf("without a name: %s", text) // slipway manager refuses it
	}
	check.ErrorContains(t, check.Err(Migrate([]byte(sampleConfig), "pro/d", 1)))
	check.ErrorContains(t, check.Err(Migrate([]byte(sampleConfig), "prod", -1)))
}

func TestEveryFaultHasMigrationNote(t *testing.T) {
	c := mustParse(t, strings.Replace(strings.Replace(sampleConfig, "CoolDownTime: 600\n", "", 1), "https:", "http:", 1))
	all := strings.Join(c.migrationNotes(1), "\n")
	check.Contains(t, all,
		"drained before their machine is deleted", "minSize now always holds", "restart does not reset", "DaemonSet", "one at a time", "in ERROR",
		"does not join", "500m", "1024·1000", "two namespaces", "taints", "LK built in", "with each call", "system UUID", "DefaultFlavour",
		"CoolDownTime", "in plain text", "when none with the label slipway.dev/openstack-autoscaler=kube-worker is in progress",
	)
	check.Is(t, 10*time.Minute, c.CoolDown())
}

func FuzzParse(f *testing.F) {
	f.Add(sampleConfig)
	f.Add("CloudType: *x")
	f.Add("OpenStackFlavours: {Flavours: [1, {Name: [x]}]}")
	f.Add(strings.Replace(sampleConfig, "MaxNodeCount: 10", "MaxNodeCount: 99999999999", 1))
	f.Add(strings.Replace(sampleConfig, "CoolDownTime: 600", "CoolDownTime: 99999999999999", 1))
	f.Add(sampleConfig + "---\nMaxNodeCount: 11\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if err != nil {
			return
		}
		check.Not(t, *c.MinNodeCount > *c.MaxNodeCount, "%+v passes", c)
		for _, controlPlane := range []int{0, 1, 3, math.MaxInt} {
			g := c.ToNodeGroup(controlPlane)
			if want := max(0, *c.MaxNodeCount-controlPlane); int(*g.Spec.MaxSize) != want || g.Spec.MinSize < 0 || g.Spec.MinSize > *g.Spec.MaxSize {
				t.Errorf("%d to %d with %d control plane nodes: %d to %d", *c.MinNodeCount, *c.MaxNodeCount, controlPlane,
					g.Spec.MinSize, *g.Spec.MaxSize)
			}
		}
		d := c.CoolDown()
		check.Not(t, d < 0 || c.CoolDownTime != nil && d.Seconds() != float64(*c.CoolDownTime), "a cooldown of %s", d)
		_ = c.ToCloudConfig(DefaultCluster)
	})
}

func TestI10WrongTypeHidesNoOtherError(t *testing.T) {
	text := strings.NewReplacer("MinNodeCount: 3", "MinNodeCount: three", "  Username: autoscaler\n", "",
		"MaxNodeCount: 10", "MaxNodeCount: 0", "VCPU: 1", "VCPU: one").Replace(sampleConfig)
	_, err := Parse([]byte(text))
	for _, want := range []string{
		`MinNodeCount: "three": want a whole number`, `AuthOptions.Username: "": want a value`, "MaxNodeCount: 0: want 1",
		`OpenStackFlavours.Flavours[0].VCPU: "one": want a whole number`,
	} {
		check.Not(t, err == nil || strings.Count(err.Error(), want) != 1, "no %q in %v", want, err)
	}
	if err != nil && (strings.Contains(err.Error(), "MinNodeCount: is missing") || strings.Contains(err.Error(), "VCPU: 0")) {
		t.Errorf("a reported value has a second error: %v", err)
	}
}

func TestNodesReserveKubeadmDefaults(t *testing.T) {
	const flavors = "  DefaultFlavour: m1.medium\n"
	for text, want := range map[string]map[corev1.ResourceName]string{
		flavors: {"memory": "100Mi"},
		flavors + "  Reserved: {cpu: 200m, memory: 1Gi}\n": {"cpu": "200m", "memory": "1Gi"},
		flavors + "  Reserved: {}\n":                       {},
	} {
		c := mustParse(t, strings.Replace(sampleConfig, flavors, text, 1))
		got := c.ToCloudConfig("prod").Groups[0].Nodes.Reserved
		must.Not(t, got == nil || len(got) != len(want), "%q: reserved are %v, want %v", text, got, want)
		for name, amount := range want {
			if q := got[name]; q.Cmp(resource.MustParse(amount)) != 0 {
				t.Errorf("%q: %s is %s, want %s", text, name, q.String(), amount)
			}
		}
		if templates := c.ToNodeGroup(1).Spec.ScaleUp.Templates; templates != nil {
			t.Errorf("%q: templates %+v, want none", text, templates)
		}
	}
	c := mustParse(t, strings.Replace(sampleConfig, "Memory: 2048", "Memory: 2048\n      Allocatable: {cpu: 900m, memory: 1800Mi}", 1))
	templates := c.ToNodeGroup(1).Spec.ScaleUp.Templates
	var names []string
	for _, template := range templates {
		names = append(names, template.Name)
	}
	if !slices.Equal(names, []string{"m1.small", "m1.large", "m1.medium"}) || templates[0].Allocatable.Cpu().MilliValue() != 900 ||
		templates[1].Allocatable != nil {
		t.Errorf("templates %+v", templates)
	}
}
