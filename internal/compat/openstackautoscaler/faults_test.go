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
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/placement"
)

// The tests of this file are named after the faults of the OpenStack cluster autoscaler. What they decide on is the group
// that its file makes, of whose control plane there is one node.

var today = time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)

// cluster is what is decided on.
type cluster struct {
	t *testing.T
	w *scaling.World
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
	group := scaling.Group{World: nodegroup.World{Group: &g, Now: today}}
	for _, f := range c.OpenStackFlavours.Flavours {
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(f.VCPU), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(f.Memory)<<20, resource.BinarySI),
			corev1.ResourcePods:   resource.MustParse("110"),
		}
		template := cloud.Template{Name: f.Name, Shape: cloud.Shape{Capacity: capacity}}
		group.Kinds = append(group.Kinds, scaling.Kind{
			Name: f.Name, Node: scaling.NodeOf(&g, scaling.Source{Template: template, Declared: capacity}),
		})
	}
	return &cluster{t, &scaling.World{Snapshot: placement.New(), Groups: []scaling.Group{group}, Now: today}}
}

// node adds a node of four cores, which could go for longer than the cooldown.
func (c *cluster) node(name string, change ...func(*corev1.Node)) {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(today.Add(-24 * time.Hour)),
		Labels:      map[string]string{corev1.LabelHostname: name},
		Annotations: map[string]string{scaling.SinceAnnotation: today.Add(-10 * time.Minute).Format(time.RFC3339)},
	}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, change := range change {
		change(n)
	}
	if err := c.w.Snapshot.SetNode(n); err != nil {
		c.t.Fatal(err)
	}
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
		c.w.Pods = append(c.w.Pods, scaling.Pod{Key: placement.PodKey{Namespace: namespace, Name: name}})
	}
	for _, change := range change {
		change(p)
	}
	if err := c.w.Snapshot.SetPod(p); err != nil {
		c.t.Fatal(err)
	}
}

// up is how many machines are ordered, by flavour.
func (c *cluster) up() (ordered map[string]int, d *scaling.Decision) {
	c.t.Helper()
	d, err := scaling.Up(c.w)
	if err != nil {
		c.t.Fatal(err)
	}
	ordered = map[string]int{}
	for _, o := range d.Orders {
		ordered[o.Template] += o.Count
	}
	return ordered, d
}

// down is what becomes of the nodes.
func (c *cluster) down() map[string]scaling.NodeDecision {
	c.t.Helper()
	all, err := scaling.Down(c.w)
	if err != nil {
		c.t.Fatal(err)
	}
	byName := map[string]scaling.NodeDecision{}
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

func TestFaultANodeWithOnlyDaemonSetsIsNeverIdleOrAlways(t *testing.T) {
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
	if d := all["busy"]; d.Verdict == nodegroup.Leaves || d.Reasons[0].Rule != scaling.Used {
		t.Errorf("the node with 8 pods of its own, which request 20 %% of its cpu, %s: %v", d.Verdict, d.Reasons)
	}
}

func TestFaultTheMinimumIsNotKeptWhenTheCPUIsLow(t *testing.T) {
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

func TestFaultPendingPodsAreKnownByTheirNameAlone(t *testing.T) {
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
func seen(i cloud.Instance) scaling.Survey {
	i.ProviderID, i.Type, i.Created = "openstack:///1", "m1.large", today.Add(-time.Hour)
	return scaling.Look(scaling.Sight{
		Group: cloud.Group{Size: 1}, Instances: []cloud.Instance{i}, Join: func(cloud.Instance) scaling.Join { return scaling.NoNode },
		Record:      []v1alpha1.AwaitedMachine{{ProviderID: i.ProviderID, Template: i.Type, Since: metav1.NewTime(i.Created)}},
		JoinTimeout: 15 * time.Minute, Watched: today.Add(-time.Hour), Now: today,
	})
}

func TestFaultAServerInErrorIsWaitedForForEver(t *testing.T) {
	s := seen(cloud.Instance{State: cloud.Failed, Refusal: cloud.NoCapacity, Message: "No valid host was found."})
	if len(s.Dead) != 1 || s.Dead[0].Reason != string(cloud.NoCapacity) || len(s.Awaited) != 0 {
		t.Errorf("it is %+v, want it given up", s)
	}
}

func TestFaultAServerThatNeverJoinsBlocksForEver(t *testing.T) {
	if s := seen(cloud.Instance{State: cloud.Running}); len(s.Dead) != 1 || s.Dead[0].Reason != scaling.NeverJoined || len(s.Awaited) != 0 {
		t.Errorf("it is %+v, want it given up", s)
	}
}

func TestFaultAMissingNodeAndAPodWithoutConditionsArePanics(t *testing.T) {
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

func TestFaultPodsThatAServerWouldNotHelpAreNotToldApart(t *testing.T) {
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
		}, "no pod it must be with"},
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
			if len(ordered) != 0 || len(d.Pods) != 1 || d.Pods[0].Outcome != scaling.Helpless || !strings.Contains(d.Pods[0].Reasons[0].Message, tc.why) {
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

func TestFaultTheRegionIsNeverThatOfTheUser(t *testing.T) {
	t.Setenv("OS_REGION_NAME", "south") // conf.yml has none
	c := parse(t, sample)
	p, err := openstack.New(c.Cloud(DefaultCluster), openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for region, ours := range map[string]bool{"south": true, "LK": false} {
		if id, err := p.Normalize("openstack://" + region + "/6f7a3c1e-0000-4000-8000-000000000001"); (err == nil) != ours {
			t.Errorf("a server of region %s is %q, %v, ours: want %t", region, id, err, ours)
		}
	}
}
