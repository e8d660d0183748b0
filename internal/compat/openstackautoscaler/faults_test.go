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

// The tests of this file are named after the faults of the OpenStack cluster autoscaler. What they decide on is the group
// that its file makes, of whose control plane there is one node.

var today = time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)

// cluster is what is decided on.
type cluster struct {
	t *testing.T
	w *plan.World
}

// clusterOf makes a cluster of the sample's group, with the flavours of its list as Nova has them.
func clusterOf(t *testing.T, change ...func(*v1alpha1.NodeGroup)) *cluster {
	t.Helper()
	c := parse(t, sample)
	g := c.NodeGroup(1)
	g.UID = "group"
	for _, change := range change {
		change(&g)
	}
	group := plan.Group{World: nodegroup.World{Group: &g, Now: today}}
	for _, f := range c.OpenStackFlavours.Flavours {
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(f.VCPU), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(f.Memory)<<20, resource.BinarySI),
			corev1.ResourcePods:   resource.MustParse("110"),
		}
		template := cloud.Template{Name: f.Name, Shape: cloud.Shape{Capacity: capacity}}
		group.Kinds = append(group.Kinds, plan.Kind{
			Name: f.Name, Node: plan.NodeOf(&g, plan.Source{Template: template, Declared: capacity}),
		})
	}
	return &cluster{t, &plan.World{Snapshot: snapshot.New(), Groups: []plan.Group{group}, Now: today}}
}

// node adds a node of four cores, which could go for longer than the cooldown.
func (c *cluster) node(name string, change ...func(*corev1.Node)) {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(today.Add(-24 * time.Hour)),
		Labels:      map[string]string{corev1.LabelHostname: name},
		Annotations: map[string]string{plan.SinceAnnotation: today.Add(-10 * time.Minute).Format(time.RFC3339)},
	}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, change := range change {
		change(n)
	}
	must.NoError(c.t, c.w.Snapshot.SetNode(n))
	c.add(n)
}

// add adds a node to the group alone.
func (c *cluster) add(n *corev1.Node) {
	g := &c.w.Groups[0]
	g.Nodes = append(g.Nodes, nodegroup.Node{Object: n, Quiet: -1})
	g.Size++
	c.w.Nodes++
}

// pod adds a pod with requests; without a node it waits.
func (c *cluster) pod(namespace, name, node, cpu, memory string, change ...func(*corev1.Pod)) {
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
		c.w.Pods = append(c.w.Pods, plan.Pod{Key: placement.PodKey{Namespace: namespace, Name: name}})
	}
	for _, change := range change {
		change(p)
	}
	must.NoError(c.t, c.w.Snapshot.SetPod(p))
}

// up is how many machines are ordered, by flavour.
func (c *cluster) up() (ordered map[string]int, d *plan.Decision) {
	c.t.Helper()
	d, err := plan.Up(c.w)
	must.NoError(c.t, err)
	ordered = map[string]int{}
	for _, o := range d.Orders {
		ordered[o.Template] += o.Count
	}
	return ordered, d
}

// down is what becomes of the nodes.
func (c *cluster) down() map[string]plan.NodeDecision {
	c.t.Helper()
	all, err := plan.Down(c.w)
	must.NoError(c.t, err)
	byName := map[string]plan.NodeDecision{}
	for _, d := range all {
		byName[d.Node] = d
	}
	return byName
}

func daemon(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }

func few(g *v1alpha1.NodeGroup) { g.Spec.Minimum = 0 }

func TestFaultPodsAreKilledWithTheirVM(t *testing.T) {
	c := clusterOf(t, few)
	c.node("a")
	c.node("full", func(n *corev1.Node) { n.Annotations = nil })
	c.pod("apps", "web", "a", "100m", "128Mi") // 2.5 % of the cpu, and one pod: it was killed
	c.pod("apps", "big", "full", "3950m", "1Gi")
	for i := range 5 {
		c.pod("apps", fmt.Sprint("small-", i), "full", "1m", "1Mi")
	}
	if d := c.down()["a"]; d.Verdict == nodegroup.Leaves {
		t.Errorf("a node leaves whose pod has no other place: %+v", d.Reasons)
	}
}

// TestNodeLeavesAtLowCPUAndFewPods: the autoscaler looked at a node whose CPU was idle or whose pods were few, and after its
// cooldown kept one with more than 5 % of its CPU requested or with more than 5 pods.
func TestNodeLeavesAtLowCPUAndFewPods(t *testing.T) {
	for name, tc := range map[string]struct {
		pods  int
		cpu   string
		leave bool
	}{
		"little, few":  {1, "100m", true},
		"both bounds":  {5, "40m", true}, // 5 pods, and 200m of 4 cores
		"more cpu":     {5, "41m", false},
		"more pods":    {6, "10m", false},
		"one big pod":  {1, "1900m", false},
		"only memory":  {1, "0", true},
		"few, 50 % of": {4, "500m", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, few)
			c.node("a")
			c.node("other", func(n *corev1.Node) { n.Annotations = nil })
			for i := range 6 {
				c.pod("apps", fmt.Sprint("other-", i), "other", "50m", "64Mi")
			}
			for i := range tc.pods {
				c.pod("apps", fmt.Sprint("web-", i), "a", tc.cpu, "512Mi")
			}
			if d := c.down()["a"]; (d.Verdict == nodegroup.Leaves) != tc.leave {
				t.Errorf("it %s: %v", d.Verdict, d.Reasons)
			}
		})
	}
}

func TestThreeNodesOfOneBigPodEachStay(t *testing.T) {
	c := clusterOf(t, few, func(g *v1alpha1.NodeGroup) {
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
	})
	for _, name := range []string{"a", "b", "c"} {
		c.node(name)
		c.pod("apps", "web-"+name, name, "1900m", "64Mi") // 47.5 %: two fit on one node
	}
	for name, d := range c.down() {
		if d.Verdict != nodegroup.Stays || d.Reasons[0].Rule != plan.Used {
			t.Errorf("%s %s: %v, want it used", name, d.Verdict, d.Reasons)
		}
	}
}

func TestFaultDaemonSetsMakeNodesNeverIdle(t *testing.T) {
	c := clusterOf(t, few)
	c.node("daemons")
	c.node("busy")
	for i := range 8 {
		c.pod("kube-system", fmt.Sprint("daemon-", i), "daemons", "200m", "64Mi", daemon)
		c.pod("apps", fmt.Sprint("web-", i), "busy", "100m", "64Mi")
	}
	all := c.down()
	if d := all["daemons"]; d.Verdict != nodegroup.Leaves {
		t.Errorf("the node with pods of DaemonSets alone %s: %v", d.Verdict, d.Reasons)
	}
	if d := all["busy"]; d.Verdict == nodegroup.Leaves || d.Reasons[0].Rule != plan.Used {
		t.Errorf("the node with 8 pods of its own, which request 20 %% of its cpu, %s: %v", d.Verdict, d.Reasons)
	}
}

func TestFaultMinimumIsNotKeptAtLowCPU(t *testing.T) {
	for idle, want := range map[int]int{2: 0, 3: 1, 5: 3} { // MinNodeCount is 3, the one of the control plane included
		c := clusterOf(t, func(g *v1alpha1.NodeGroup) { // nothing else is to hold a node
			g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
		})
		for i := range idle {
			c.node(fmt.Sprint("idle-", i))
		}
		leaving := 0
		for _, d := range c.down() {
			if d.Verdict == nodegroup.Leaves {
				leaving++
			}
		}
		if leaving != want {
			t.Errorf("%d of %d idle nodes leave, want %d", leaving, idle, want)
		}
	}
}

// TestMinNodeCountOrdersNoMachine: it kept nodes from leaving, and no more.
func TestMinNodeCountOrdersNoMachine(t *testing.T) {
	c := clusterOf(t) // a minimum of 2 beside the control plane
	c.node("only")
	if ordered, _ := c.up(); len(ordered) != 0 {
		t.Errorf("ordered are %v below MinNodeCount without a pod that waits, want none", ordered)
	}
	if d := c.down()["only"]; d.Verdict != nodegroup.Refused {
		t.Errorf("the idle node %s: %v, want the minimum to keep it", d.Verdict, d.Reasons)
	}
	if g := c.w.Groups[0].Group; g.Spec.Replacement != v1alpha1.ReplaceNever {
		t.Errorf("replacement is %q: the autoscaler made machines for pods that wait alone", g.Spec.Replacement)
	}
}

// TestLargestPossiblePodFitsItsFlavor: what managed clusters reserve would have it take the next larger flavour.
func TestLargestPossiblePodFitsItsFlavor(t *testing.T) {
	c := parse(t, sample)
	g := c.NodeGroup(1)
	template := cloud.Template{Name: "m1.large", Shape: c.Cloud("prod").Groups[0].Nodes}
	template.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	has := plan.NodeOf(&g, plan.Source{Template: template}).Status.Allocatable
	if has.Cpu().MilliValue() != 4000 || has.Memory().Value() != 8<<30-100<<20 {
		t.Errorf("pods may take %s cpu and %s of memory, want 4 and 8092Mi", has.Cpu(), has.Memory())
	}
}

func TestFaultPendingPodsAreKnownByNameOnly(t *testing.T) {
	c := clusterOf(t, few)
	c.pod("shop", "web-0", "", "3", "1Gi")
	c.pod("blog", "web-0", "", "3", "1Gi")
	if ordered, _ := c.up(); ordered["m1.large"] != 2 {
		t.Errorf("ordered are %v for two pods of one name in two namespaces, want 2", ordered)
	}
}

func TestFaultOneServerIsMadeAtATime(t *testing.T) {
	c := clusterOf(t, few)
	for i := range 20 {
		c.pod("apps", fmt.Sprint("web-", i), "", "1500m", "1Gi")
	}
	if ordered, _ := c.up(); ordered["m1.large"] != 9 {
		t.Errorf("ordered are %v, want the 9 that MaxNodeCount leaves, at once", ordered)
	}
}

// seen is what becomes of one machine that was ordered.
func seen(i cloud.Instance) launch.Tracking {
	i.ProviderID, i.Type, i.Created = "openstack:///1", "m1.large", today.Add(-time.Hour)
	return launch.Track(launch.Observation{
		Group: cloud.Group{Size: 1}, Instances: []cloud.Instance{i}, Join: func(cloud.Instance) launch.Join { return launch.NoNode },
		Record:      []launch.Instance{{ProviderID: i.ProviderID, Template: i.Type, Since: metav1.NewTime(i.Created)}},
		JoinTimeout: 15 * time.Minute, Watched: today.Add(-time.Hour), Now: today,
	})
}

func TestFaultServerInErrorIsAwaitedForever(t *testing.T) {
	s := seen(cloud.Instance{State: cloud.Failed, Refusal: cloud.NoCapacity, Message: "No valid host was found."})
	if len(s.Dead) != 1 || s.Dead[0].Reason != string(cloud.NoCapacity) || len(s.Awaited) != 0 {
		t.Errorf("it is %+v, want it given up", s)
	}
}

func TestFaultServerThatNeverJoinsBlocksForever(t *testing.T) {
	if s := seen(cloud.Instance{State: cloud.Running}); len(s.Dead) != 1 || s.Dead[0].Reason != launch.NeverJoined || len(s.Awaited) != 0 {
		t.Errorf("it is %+v, want it given up", s)
	}
}

func TestFaultMissingNodeOrPodConditionsPanic(t *testing.T) {
	c := clusterOf(t, few)
	c.add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}) // the watch has told of its end, the list has it
	c.pod("apps", "orphan", "gone", "1", "1Gi", func(p *corev1.Pod) { p.Status = corev1.PodStatus{} })
	if d := c.down()["gone"]; d.Verdict == nodegroup.Leaves || len(d.Reasons) == 0 {
		t.Errorf("a node that nobody knows %s: %v", d.Verdict, d.Reasons)
	}
	c.up()
}

func TestFaultMemoryIsDividedBy1024And1000(t *testing.T) {
	c := clusterOf(t, few)
	c.pod("apps", "exact", "", "100m", "2Gi") // 2048 MiB, all that m1.small has; it was taken for 2097
	if ordered, _ := c.up(); ordered["m1.small"] != 1 || len(ordered) != 1 {
		t.Errorf("ordered are %v, want one of m1.small", ordered)
	}
	c = clusterOf(t, few)
	c.pod("apps", "more", "", "100m", "2049Mi")
	if ordered, _ := c.up(); ordered["m1.large"] != 1 || len(ordered) != 1 {
		t.Errorf("ordered are %v, want one of m1.large", ordered)
	}
}

func TestFaultACPUOf500mCannotBeRead(t *testing.T) {
	c := clusterOf(t, few)
	for i := range 3 { // taken for a whole core each they would need three of one core, and taken for nothing one
		c.pod("apps", fmt.Sprint("web-", i), "", "500m", "64Mi")
	}
	if ordered, _ := c.up(); ordered["m1.small"] != 2 || len(ordered) != 1 {
		t.Errorf("ordered are %v for three pods of half a core, want two of one core", ordered)
	}
}

func TestFaultPodsThatNoServerHelpsAreCounted(t *testing.T) {
	taint := corev1.Taint{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		why    string // empty: a server helps
	}{
		"nothing":              {func(*corev1.Pod) {}, ""},
		"a taint":              {func(p *corev1.Pod) { p.Spec.Tolerations = nil }, "untolerated taint"},
		"another kind of node": {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} }, "node affinity or selector"},
		"an affinity": {func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "gpu", Operator: corev1.NodeSelectorOpExists}},
				}}},
			}}
		}, "node affinity or selector"},
		"an affinity to pods": {func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}}, TopologyKey: corev1.LabelHostname,
			}}}}
		}, "pod affinity does not match"},
		"a volume that nobody has": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"},
			}}}
		}, "claim"},
		"more than any flavour has": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("64")
		}, "insufficient cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, few)
			for i := range c.w.Groups[0].Kinds {
				c.w.Groups[0].Kinds[i].Node.Spec.Taints = []corev1.Taint{taint}
			}
			c.pod("apps", "web", "", "1", "1Gi", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
				tc.change(p)
			})
			ordered, d := c.up()
			if tc.why == "" {
				if len(ordered) != 1 {
					t.Errorf("ordered are %v for a pod in whose way is nothing", ordered)
				}
				return
			}
			if len(ordered) != 0 || len(d.Pods) != 1 || d.Pods[0].Outcome != plan.Helpless || !strings.Contains(d.Pods[0].Reasons[0].Message, tc.why) {
				t.Errorf("ordered are %v, and the word is %+v; want none, and %q", ordered, d.Pods, tc.why)
			}
		})
	}
}

func TestFaultARestartBeginsTheCooldownAnew(t *testing.T) {
	c := clusterOf(t, few)
	c.node("idle") // what is written on it is all that is known
	if d := c.down()["idle"]; d.Verdict != nodegroup.Leaves || !strings.Contains(d.Reasons[0].Message, "2026-11-02T07:50:00Z") {
		t.Errorf("it %s: %v", d.Verdict, d.Reasons)
	}
}

func TestFaultRegionNeverComesFromTheUser(t *testing.T) {
	t.Setenv("OS_REGION_NAME", "south") // conf.yml has none
	c := parse(t, sample)
	p, err := openstack.New(c.Cloud(DefaultCluster), openstack.Options{})
	must.NoError(t, err)
	for region, ours := range map[string]bool{"south": true, "LK": false} {
		if id, err := p.Normalize("openstack://" + region + "/6f7a3c1e-0000-4000-8000-000000000001"); (err == nil) != ours {
			t.Errorf("a server of region %s is %q, %v, ours: want %t", region, id, err, ours)
		}
	}
}
