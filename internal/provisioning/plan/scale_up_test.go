package plan

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestSixtyPodsLaunchEnoughInstancesInAnEmptyGroup(t *testing.T) {
	g := newNodeGroup("web", 20)
	d := decideUp(t, newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nil, newPendingPods(60, "500m", "1Gi")))
	check.Equal(t, map[string]int{"web/m4": 8}, launchCounts(d))
	check.Is(t, 60, outcomeCounts(d)[Launching])
	check.Is(t, 60, len(d.Launches[0].Pods))
}

func TestNothingIsLaunchedTwice(t *testing.T) {
	g := newNodeGroup("web", 20)
	arriving := func(n *corev1.Node) {
		n.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute))
		n.Status.Conditions[0].Status = corev1.ConditionFalse
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}
	for name, c := range map[string]struct {
		awaited []launch.ProvisioningInstance
		nodes   []*corev1.Node
		want    int
		awaits  int
		fits    int
	}{
		"provisioning":               {awaited: []launch.ProvisioningInstance{{ID: "1", Template: "m4"}, {ID: "2"}}, awaits: 16},
		"one of two provisioning":    {awaited: []launch.ProvisioningInstance{{ID: "1", Template: "M4"}}, want: 1, awaits: 8},
		"a Node that is not Ready":   {nodes: []*corev1.Node{newNode("web", "a", machineResources("4", "16Gi"), arriving)}, want: 1, fits: 8},
		"a Node that is never Ready": {nodes: []*corev1.Node{newNode("web", "a", machineResources("4", "16Gi"), arriving, withOldAge)}, want: 2},
		"a node with room": {
			nodes: []*corev1.Node{newNode("web", "a", machineResources("4", "16Gi")), newNode("web", "b", machineResources("4", "16Gi"))}, fits: 16,
		},
	} {
		t.Run(name, func(t *testing.T) {
			gr := newGroup(g, newKind(g, "m4", "4", "16Gi"))
			gr.Provisioning, gr.Size = c.awaited, len(c.awaited)
			w := newWorld(t, []Group{gr}, c.nodes, newPendingPods(16, "500m", "1Gi"))
			d := decideUp(t, w)
			check.Is(t, c.want, d.countLaunchedInstances())
			got := outcomeCounts(d)
			check.Not(t, got[Provisioning] != c.awaits || got[Fits] != c.fits || got[Launching] != 16-c.awaits-c.fits, "outcomes are %v", got)
			if again := decideUp(t, w); gocmp.Diff(launchCounts(d), launchCounts(again)) != "" {
				t.Errorf("asked again: %v, then %v", launchCounts(d), launchCounts(again))
			}
		})
	}
}

func TestNodeMissingInTheSnapshotIsCounted(t *testing.T) {
	young := func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute)) }
	unready := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}
	for name, heard := range map[string]*corev1.Node{
		"it has not come":  nil,
		"it was not ready": newNode("web", "a", machineResources("4", "16Gi"), young, unready),
	} {
		t.Run(name, func(t *testing.T) {
			g := newNodeGroup("web", 10)
			now := newNode("web", "a", machineResources("4", "16Gi"), young)
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{now}, newPendingPods(2, "1", "1Gi"))
			err := w.Snapshot.DeleteNode("a")
			if heard != nil {
				err = w.Snapshot.SetNode(heard)
			}
			must.NoError(t, err)
			if got := launchCounts(decideUp(t, w)); len(got) != 0 {
				t.Errorf("launched %v, want none: both pods fit on the node", got)
			}
		})
	}
}

func withOldAge(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(start.Add(-16 * time.Minute)) }

func TestBackOffUsesTheNextTemplate(t *testing.T) {
	g := newNodeGroup("web", 20, func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Policy = v1alpha1.FirstTemplate })
	kinds := []Template{newKind(g, "spot", "4", "16Gi"), newKind(g, "m4", "4", "16Gi")}
	d := decideUp(t, newWorld(t, []Group{newGroup(g, kinds...)}, nil, newPendingPods(1, "2", "2Gi")))
	check.Equal(t, map[string]int{"web/spot": 1}, launchCounts(d))
	failed := launch.NextBackOff(nil, "spot", string(cloud.NoCapacity), "no valid host", start)
	kinds[0].ClosedReason = WhyBackedOff(&failed, "web", start)
	d = decideUp(t, newWorld(t, []Group{newGroup(g, kinds...)}, nil, newPendingPods(1, "2", "2Gi")))
	check.Equal(t, map[string]int{"web/m4": 1}, launchCounts(d))
	kinds = kinds[:1]
	d = decideUp(t, newWorld(t, []Group{newGroup(g, kinds...)}, nil, newPendingPods(1, "2", "2Gi")))
	if diff := gocmp.Diff(map[string]string{"web/spot": BackedOff}, ruleByTemplate(d.Pods[0])); diff != "" || len(d.Launches) > 0 {
		t.Errorf("%v %s", d.Launches, diff)
	}
	check.Contains(t, d.Pods[0].Reasons[0].Message, "NoCapacity", "no valid host")
}

func TestGroupsCompeteByPriorityAndPolicy(t *testing.T) {
	small := func(change ...func(*v1alpha1.NodeGroup)) Group {
		g := newNodeGroup("small", 20, change...)
		k := newKind(g, "m2", "2", "8Gi")
		k.Cost = 30
		return newGroup(g, k)
	}
	large := func(change ...func(*v1alpha1.NodeGroup)) Group {
		g := newNodeGroup("large", 20, change...)
		k := newKind(g, "m16", "16", "64Gi")
		k.Cost = 1
		return newGroup(g, k)
	}
	cheap := func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Policy = v1alpha1.LeastCost }
	first := func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Priority = 10 }
	none := func(g *v1alpha1.NodeGroup) { *g.Spec.MaxSize = 0 }
	for name, c := range map[string]struct {
		groups []Group
		want   map[string]int
	}{
		"least waste":                 {[]Group{large(), small()}, map[string]int{"small/m2": 1}},
		"least cost":                  {[]Group{large(cheap), small(cheap)}, map[string]int{"large/m16": 1}},
		"priority":                    {[]Group{small(), large(first)}, map[string]int{"large/m16": 1}},
		"the first is at its limit":   {[]Group{small(), large(first, none)}, map[string]int{"small/m2": 1}},
		"all are at their limit":      {[]Group{small(none), large(first, none)}, map[string]int{}},
		"only one group fits the pod": {[]Group{large()}, map[string]int{"large/m16": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideUp(t, newWorld(t, c.groups, nil, newPendingPods(3, "500m", "2Gi")))
			check.Equal(t, c.want, launchCounts(d))
		})
	}
}

func TestUnplaceablePodNamesEveryReason(t *testing.T) {
	g := newNodeGroup("web", 2, func(g *v1alpha1.NodeGroup) {
		cores := resource.MustParse("8")
		g.Spec.ScaleUp.Limits.CPU = &cores
	})
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	two := 2
	for name, c := range map[string]struct {
		pods   []*corev1.Pod
		change func(*Input)
		want   string
		orders int
	}{
		"too large for every template": {pods: newPendingPods(1, "5", "1Gi"), want: DoesNotFit},
		"another selector":             {pods: newPendingPods(1, "1", "1Gi", elsewhere), want: DoesNotFit},
		"the group's maximum":          {pods: newPendingPods(3, "1500m", "9Gi"), want: AtMaximum, orders: 2},
		"the group's maximum of cores": {pods: newPendingPods(3, "3", "1Gi"), change: withoutLimits, want: AtLimit, orders: 2},
		"the cloud's maximum":          {pods: newPendingPods(2, "3", "1Gi"), change: func(w *Input) { w.Groups[0].CloudMaxSize = 1 }, want: AtMaximum, orders: 1},
		"the cluster's maximum":        {pods: newPendingPods(2, "3", "1Gi"), change: func(w *Input) { w.MaxNodes, w.NodeCount = &two, 1 }, want: AtClusterMaximum, orders: 1},
		"unknown resources":            {pods: newPendingPods(1, "1", "1Gi"), change: func(w *Input) { w.Groups[0].Templates[0].Node = nil }, want: ShapeUnknown},
		"a cloud that cannot be read":  {pods: newPendingPods(1, "1", "1Gi"), change: func(w *Input) { w.Groups[0].ClosedReason = &Reason{Rule: CloudUnreadable} }, want: CloudUnreadable},
		"a group that is not accepted": {pods: newPendingPods(1, "1", "1Gi"), change: func(w *Input) { w.Groups[0].NotAccepted = "OverlapsGroup" }, want: "NotAccepted"},
		"a cloud without templates":    {pods: newPendingPods(1, "1", "1Gi"), change: func(w *Input) { w.Groups[0].Templates = nil }, want: NoTemplate},
		"no group that scales up":      {pods: newPendingPods(1, "1", "1Gi"), change: func(w *Input) { w.Groups = nil }, want: NoGroup},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nil, c.pods)
			if c.change != nil {
				c.change(w)
			}
			d := decideUp(t, w)
			if d.countLaunchedInstances() != c.orders {
				t.Errorf("launches are %v, want %d instances", launchCounts(d), c.orders)
			}
			last := d.Pods[len(d.Pods)-1]
			for _, p := range d.Pods {
				if p.Outcome == Unschedulable {
					last = p
				}
			}
			if last.Outcome != Unschedulable || len(last.Reasons) != 1 || last.Reasons[0].Rule != c.want || last.Reasons[0].String() == "" {
				t.Errorf("verdict is %+v, want Unschedulable for %s", last, c.want)
			}
		})
	}
}

func withoutLimits(w *Input) {
	ten := int32(10)
	g := w.Groups[0].Group.DeepCopy()
	g.Spec.MaxSize = &ten
	w.Groups[0].Group = g
}

func TestHeadroomAndMinSizeAreKept(t *testing.T) {
	g := newNodeGroup("web", 20, func(g *v1alpha1.NodeGroup) {
		g.Spec.MinSize = 2
		g.Spec.ScaleUp.Headroom = &v1alpha1.Headroom{Slots: 10, Requests: resources("1", "1Gi")}
	})
	gr := newGroup(g, newKind(g, "m4", "4", "16Gi"))
	d := decideUp(t, newWorld(t, []Group{gr}, nil, nil))
	check.Equal(t, map[string]int{"web/m4": 3}, launchCounts(d))
	var why []string
	for _, r := range d.Launches[0].Reasons {
		why = append(why, r.Rule)
	}
	check.Equal(t, []string{BelowMinimum, SpareRoom}, why)
	// Two nodes have four cores in use each. No headroom is left, and the unschedulable pods come first.
	nodes := []*corev1.Node{newNode("web", "a", machineResources("8", "16Gi")), newNode("web", "b", machineResources("8", "16Gi"))}
	pods := append(newPendingPods(4, "1", "1Gi"), newPod("x", "a", "4", "1Gi"), newPod("y", "b", "4", "1Gi"))
	d = decideUp(t, newWorld(t, []Group{gr}, nodes, pods))
	check.Equal(t, map[string]int{"web/m4": 2}, launchCounts(d))
	if got := outcomeCounts(d); got[Fits] != 4 || len(d.Pods) != 4 {
		t.Errorf("verdicts are %v", d.Pods)
	}
}

func TestDaemonSetRequestsAreDeductedFromTemplates(t *testing.T) {
	g := newNodeGroup("web", 20)
	daemon := func(name, cpu string, selector map[string]string) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
		d.Spec.Template.Spec = corev1.PodSpec{NodeSelector: selector, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: resources(cpu, "1Gi")},
		}}}
		return d
	}
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nil, newPendingPods(4, "2", "1Gi"))
	w.DaemonSets = []*appsv1.DaemonSet{daemon("logs", "500m", nil), daemon("gpu", "3", map[string]string{"gpu": "yes"})}
	check.Equal(t, map[string]int{"web/m4": 4}, launchCounts(decideUp(t, w)))
	w.DaemonSets = w.DaemonSets[1:]
	check.Equal(t, map[string]int{"web/m4": 2}, launchCounts(decideUp(t, w)))
}

// TestDaemonSetPodsRunOnTemplates has a pending pod of 2 cores, an instance type of 4 cores, and a DaemonSet with its pods on every
// node.
func TestDaemonSetPodsRunOnTemplates(t *testing.T) {
	logs := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "logs"}}
	apart := func(selector *metav1.LabelSelector, namespace string) *corev1.PodAntiAffinity {
		return &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: selector, Namespaces: []string{namespace}, TopologyKey: corev1.LabelHostname,
		}}}
	}
	port := func(host int32) []corev1.ContainerPort {
		return []corev1.ContainerPort{{ContainerPort: 80, HostPort: host}}
	}
	for name, c := range map[string]struct {
		daemon func(*corev1.PodSpec)
		pod    func(*corev1.PodSpec)
		want   int
	}{
		"it leaves room": {daemon: func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = resources("2", "1Gi") }, want: 1},
		"requests":       {daemon: func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = resources("3", "1Gi") }},
		"limits":         {daemon: func(s *corev1.PodSpec) { s.Containers[0].Resources.Limits = resources("3", "1Gi") }},
		"limits above the requests": {daemon: func(s *corev1.PodSpec) {
			s.Containers[0].Resources = corev1.ResourceRequirements{Limits: resources("3", "1Gi"), Requests: resources("1", "1Gi")}
		}, want: 1},
		"limits of an init container": {daemon: func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: resources("3", "1Gi")}}}
		}},
		"limits of the pod": {daemon: func(s *corev1.PodSpec) { s.Resources = &corev1.ResourceRequirements{Limits: resources("3", "1Gi")} }},
		"limits of the pod above the requests of its container": {daemon: func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests = resources("1", "1Gi")
			s.Resources = &corev1.ResourceRequirements{Limits: resources("3", "1Gi")}
		}, want: 1},
		"the same host port": {
			daemon: func(s *corev1.PodSpec) { s.Containers[0].Ports = port(80) }, pod: func(s *corev1.PodSpec) { s.Containers[0].Ports = port(80) },
		},
		"the same port of the host network": {
			daemon: func(s *corev1.PodSpec) { s.HostNetwork, s.Containers[0].Ports = true, port(0) },
			pod:    func(s *corev1.PodSpec) { s.Containers[0].Ports = port(80) },
		},
		"the same port of the pod network": {
			daemon: func(s *corev1.PodSpec) { s.Containers[0].Ports = port(0) }, pod: func(s *corev1.PodSpec) { s.Containers[0].Ports = port(80) }, want: 1,
		},
		"the pod must not be beside it": {pod: func(s *corev1.PodSpec) { s.Affinity = &corev1.Affinity{PodAntiAffinity: apart(logs, "kube-system")} }},
		"it must not be beside the pod": {daemon: func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: apart(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, "apps")}
		}},
		"the pod must be beside it": {pod: func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: apart(logs, "kube-system").RequiredDuringSchedulingIgnoredDuringExecution,
			}}
		}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "logs"}}
			d.Spec.Template.Labels, d.Spec.Template.Spec.Containers = logs.MatchLabels, []corev1.Container{{}}
			if c.daemon != nil {
				c.daemon(&d.Spec.Template.Spec)
			}
			g := newNodeGroup("web", 20)
			pods := newPendingPods(1, "2", "1Gi", func(p *corev1.Pod) {
				if c.pod != nil {
					c.pod(&p.Spec)
				}
			})
			for what, provisioning := range map[string][]launch.ProvisioningInstance{"launched": nil, "provisioning": {{ID: "1", Template: "m4"}}} {
				group := newGroup(g, newKind(g, "m4", "4", "16Gi"))
				group.Provisioning, group.Size = provisioning, len(provisioning)
				w := newWorld(t, []Group{group}, nil, pods)
				w.DaemonSets = []*appsv1.DaemonSet{d}
				got := outcomeCounts(decideUp(t, w))
				check.Is(t, c.want, got[Launching]+got[Provisioning], what, got)
			}
		})
	}
}

// TestStaticPodsOfASiblingRunOnTemplates has a node with a pod of 3 cores, a pending pod of 2 cores, and an instance type of 4 cores.
func TestStaticPodsOfASiblingRunOnTemplates(t *testing.T) {
	for name, c := range map[string]struct {
		annotation string
		kind       string
		age        time.Duration
		want       int
	}{
		"a static pod":                 {corev1.MirrorPodAnnotationKey, "m4", time.Hour, 0},
		"a static pod of a new node":   {corev1.MirrorPodAnnotationKey, "m4", time.Minute, 0},
		"a static pod of another type": {corev1.MirrorPodAnnotationKey, "m8", time.Hour, 1},
		"another pod":                  {"other", "m4", time.Hour, 1},
	} {
		g := newNodeGroup("web", 20)
		n := newNode("web", "a", machineResources("4", "16Gi"), func(n *corev1.Node) {
			n.Labels[corev1.LabelInstanceTypeStable], n.CreationTimestamp = c.kind, metav1.NewTime(start.Add(-c.age))
		})
		p := newPod("kube-proxy", "a", "3", "1Gi", func(p *corev1.Pod) { p.Annotations = map[string]string{c.annotation: "x"} })
		w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{n}, append(newPendingPods(1, "2", "1Gi"), p))
		check.Is(t, c.want, launchCounts(decideUp(t, w))["web/m4"], name)
	}
}

// TestNewInstancesHaveTheDriversOfASibling has a pod with two new claims, and a full node.
func TestNewInstancesHaveTheDriversOfASibling(t *testing.T) {
	const driver = "csi.example.com"
	withLimit := func(count int32) []storagev1.CSINodeDriver {
		return []storagev1.CSINodeDriver{{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &count}}}
	}
	for name, c := range map[string]struct {
		drivers    []storagev1.CSINodeDriver // of the node
		isRequired bool                      // the pod needs a node with the driver
		kind       string                    // of the node
		want       int
	}{
		"at the limit":                           {drivers: withLimit(2), want: 1},
		"above the limit":                        {drivers: withLimit(1)},
		"above the limit of another type":        {drivers: withLimit(1), kind: "m8", want: 1},
		"with the required driver":               {drivers: withLimit(2), isRequired: true, want: 1},
		"without the required driver":            {drivers: []storagev1.CSINodeDriver{{Name: "other"}}, isRequired: true},
		"the required driver is on another type": {drivers: withLimit(2), isRequired: true, kind: "m8", want: 1},
		"the required driver has not registered": {isRequired: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newNodeGroup("web", 20)
			full := newNode("web", "full", machineResources("0", "1Gi"), func(n *corev1.Node) { n.Labels[corev1.LabelInstanceTypeStable] = cmp.Or(c.kind, "m4") })
			pods := newPendingPods(1, "1", "1Gi")
			wait, class := storagev1.VolumeBindingWaitForFirstConsumer, "disk"
			for _, claim := range []string{"a", "b"} {
				pods[0].Spec.Volumes = append(pods[0].Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				}})
			}
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{full}, pods)
			st := &w.Snapshot.Storage
			for _, claim := range pods[0].Spec.Volumes {
				must.NoError(t, st.SetPersistentVolumeClaim(&corev1.PersistentVolumeClaim{
					ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: claim.Name}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
				}))
			}
			must.NoError(t, st.SetStorageClass(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driver, VolumeBindingMode: &wait}))
			must.NoError(t, st.SetCSIDriver(&storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: &c.isRequired},
			}))
			if c.drivers != nil {
				must.NoError(t, st.SetCSINode(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "full"}, Spec: storagev1.CSINodeSpec{Drivers: c.drivers}}))
			}
			check.Is(t, c.want, launchCounts(decideUp(t, w))["web/m4"])
		})
	}
}

// newPodWithClaim returns a pending pod with the claim "data".
func newPodWithClaim() *corev1.Pod {
	return newPendingPods(1, "1", "1Gi", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})[0]
}

// setClaim sets the claim "data" and its storage class. The claim is bound to the volume unless that is nil.
func setClaim(t *testing.T, w *Input, provisioner string, volume *corev1.PersistentVolume) {
	t.Helper()
	wait, class, st := storagev1.VolumeBindingWaitForFirstConsumer, "disk", &w.Snapshot.Storage
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "data"}}
	claim.Spec.StorageClassName = &class
	if volume != nil {
		claim.Annotations, claim.Spec.VolumeName = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}, volume.Name
		must.NoError(t, st.SetPersistentVolume(volume))
	}
	must.NoError(t, st.SetPersistentVolumeClaim(claim))
	must.NoError(t, st.SetStorageClass(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner, VolumeBindingMode: &wait}))
}

// newCSINode returns the CSINode of a node. Like every kubelet, it lists the in-tree plugins as migrated.
func newCSINode(node string, drivers ...storagev1.CSINodeDriver) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: "kubernetes.io/aws-ebs,kubernetes.io/azure-disk"}},
		Spec:       storagev1.CSINodeSpec{Drivers: drivers},
	}
}

// TestInstancesAreLaunchedForInTreeVolumes has a full node with a limit for volumes of the plugin aws-ebs.
func TestInstancesAreLaunchedForInTreeVolumes(t *testing.T) {
	limit := int32(25)
	volumeOf := func(pool string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
		v.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: groupLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}}},
		}}}
		return v
	}
	for name, c := range map[string]struct {
		volume *corev1.PersistentVolume
		want   int
	}{
		"not bound":              {want: 1},
		"bound":                  {volume: volumeOf("web"), want: 1},
		"bound to another group": {volume: volumeOf("other")},
	} {
		t.Run(name, func(t *testing.T) {
			g := newNodeGroup("web", 20)
			full := newNode("web", "full", machineResources("0", "1Gi"), func(n *corev1.Node) { n.Labels[corev1.LabelInstanceTypeStable] = "m4" })
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{full}, []*corev1.Pod{newPodWithClaim()})
			setClaim(t, w, "kubernetes.io/aws-ebs", c.volume)
			must.NoError(t, w.Snapshot.Storage.SetCSINode(newCSINode("full", storagev1.CSINodeDriver{
				Name: "ebs.csi.aws.com", Allocatable: &storagev1.VolumeNodeResources{Count: &limit},
			})))
			check.Is(t, c.want, launchCounts(decideUp(t, w))["web/m4"])
		})
	}
}

// TestNoInstanceIsLaunchedTwiceForAPodWithVolumes has a node with room for a pod that needs a CSI driver. The node has not registered the
// driver, or its CSINode lists the plugin of the pod's volume.
func TestNoInstanceIsLaunchedTwiceForAPodWithVolumes(t *testing.T) {
	const driver = "csi.example.com"
	inTree := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
	inTree.Spec.AzureDisk = &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/1/d"}
	for name, c := range map[string]struct {
		volume   *corev1.PersistentVolume
		age      time.Duration
		notReady bool
		alone    bool // there is no other node
		want     int
		nowhere  bool // the pod fits on no instance
	}{
		"in-tree volume, starting":                {volume: inTree, age: time.Minute, notReady: true},
		"in-tree volume, starting, alone":         {volume: inTree, age: time.Minute, notReady: true, alone: true},
		"in-tree volume, joined":                  {volume: inTree, age: time.Minute},
		"in-tree volume, joined long ago":         {volume: inTree, age: time.Hour, want: 1},
		"required driver, starting":               {age: time.Minute, notReady: true},
		"required driver, starting, alone":        {age: time.Minute, notReady: true, alone: true},
		"required driver, joined":                 {age: time.Minute},
		"required driver, joined, alone":          {age: time.Minute, alone: true},
		"required driver, joined long ago":        {age: time.Hour, want: 1},
		"required driver, joined long ago, alone": {age: time.Hour, alone: true, nowhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			isRequired, g := true, newNodeGroup("web", 20)
			ofType := func(n *corev1.Node) { n.Labels[corev1.LabelInstanceTypeStable] = "m4" }
			joined := newNode("web", "joined", machineResources("4", "16Gi"), ofType, func(n *corev1.Node) {
				n.CreationTimestamp = metav1.NewTime(start.Add(-c.age))
				if c.notReady {
					n.Status.Conditions[0].Status = corev1.ConditionFalse
				}
			})
			nodes := []*corev1.Node{joined}
			if !c.alone {
				nodes = append(nodes, newNode("web", "full", machineResources("0", "1Gi"), ofType))
			}
			w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nodes, []*corev1.Pod{newPodWithClaim()})
			st := &w.Snapshot.Storage
			setClaim(t, w, driver, c.volume)
			must.NoError(t, st.SetCSIDriver(&storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: &isRequired},
			}))
			must.NoError(t, st.SetCSINode(newCSINode("joined")))
			must.NoError(t, st.SetCSINode(newCSINode("full", storagev1.CSINodeDriver{Name: driver})))
			for range 2 { // the first decision changes nothing
				d := decideUp(t, w)
				check.Is(t, c.want, launchCounts(d)["web/m4"])
				check.Is(t, c.nowhere, outcomeCounts(d)[Unschedulable] == 1, d.Pods)
			}
			verdict, err := w.Snapshot.JudgeRecreatedPod(w.Pods[0].Key, "joined")
			check.Not(t, err != nil || verdict.Outcome == placement.Fits, "%v, %v: the Node has the drivers of another one after the decision", verdict, err)
		})
	}
}

// TestSiblingIsTheNodeWithMostDrivers has an old node without the driver that the pod requires, and a younger node with it. Both are
// full.
func TestSiblingIsTheNodeWithMostDrivers(t *testing.T) {
	const driver = "csi.example.com"
	for name, limit := range map[string]int32{"below the limit": 1, "above the limit": 0} {
		isRequired, g := true, newNodeGroup("web", 20)
		nodeOfAge := func(name string, age time.Duration) *corev1.Node {
			return newNode("web", name, machineResources("0", "1Gi"), func(n *corev1.Node) {
				n.Labels[corev1.LabelInstanceTypeStable], n.CreationTimestamp = "m4", metav1.NewTime(start.Add(-age))
			})
		}
		nodes := []*corev1.Node{nodeOfAge("old", 48*time.Hour), nodeOfAge("younger", 24*time.Hour)}
		w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, nodes, []*corev1.Pod{newPodWithClaim()})
		st := &w.Snapshot.Storage
		setClaim(t, w, driver, nil)
		must.NoError(t, st.SetCSIDriver(&storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: &isRequired},
		}))
		must.NoError(t, st.SetCSINode(newCSINode("old", storagev1.CSINodeDriver{Name: "other"})))
		must.NoError(t, st.SetCSINode(newCSINode("younger", storagev1.CSINodeDriver{Name: "other"}, storagev1.CSINodeDriver{
			Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &limit},
		})))
		check.Is(t, int(limit), launchCounts(decideUp(t, w))["web/m4"], name)
	}
}

func TestTemplateIsLearnedFromItsNodes(t *testing.T) {
	g := newNodeGroup("web", 20)
	taint := corev1.Taint{Key: "team", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	mark := func(zone, memory string, taints ...corev1.Taint) *corev1.Node {
		n := newNode("web", "n-"+zone, machineResources("4", memory))
		n.Labels[corev1.LabelTopologyZone] = zone
		n.Spec.Taints = slices.Concat(taints, []corev1.Taint{{Key: corev1.TaintNodeNotReady}, {Key: "starting"}})
		return n
	}
	learned := LearnTemplate("m4", []*corev1.Node{mark("1", "14Gi", taint), mark("2", "13Gi", taint, corev1.Taint{Key: "odd"})}, []string{"starting"})
	n := NewTemplateNode(g, TemplateSource{Template: cloud.Template{Name: "m4", NodeShape: cloud.NodeShape{Capacity: machineResources("4", "16Gi")}}, Learned: learned})
	check.Is(t, "13Gi", n.Status.Allocatable.Memory().String())
	check.Equal(t, map[string]string{groupLabel: "web", corev1.LabelOSStable: "linux"}, n.Labels)
	check.Equal(t, []corev1.Taint{taint}, n.Spec.Taints)
}

// TestChangedLabelsAndTaintsAreUsed changes the selector of a group and the configuration of its cloud.
func TestChangedLabelsAndTaintsAreUsed(t *testing.T) {
	taint := func(value string) corev1.Taint {
		return corev1.Taint{Key: "team", Value: value, Effect: corev1.TaintEffectNoSchedule}
	}
	s := TemplateSource{Template: cloud.Template{Name: "m4", NodeShape: cloud.NodeShape{Labels: map[string]string{"team": "b"}, Taints: []corev1.Taint{taint("b")}}}}
	s.Learned = LearnTemplate("m4", []*corev1.Node{newNode("before", "n", machineResources("4", "16Gi"), func(n *corev1.Node) {
		n.Labels["team"], n.Labels["disk"], n.Spec.Taints = "a", "ssd", []corev1.Taint{taint("a"), {Key: "disk", Effect: corev1.TaintEffectNoSchedule}}
	})}, nil)
	for isLongGone, team := range map[bool]string{false: "a", true: "b"} {
		s.NodesLongGone = isLongGone
		n := NewTemplateNode(newNodeGroup("web", 20), s)
		check.Equal(t, map[string]string{groupLabel: "web", "team": team, "disk": "ssd", corev1.LabelOSStable: "linux"}, n.Labels)
		check.Not(t, len(n.Spec.Taints) != 2 || !hasTaint(n, taint(team)), "long gone %t: the taints are %v", isLongGone, n.Spec.Taints)
	}
	check.Is(t, "a", s.Learned.Labels["team"])
	check.Equal(t, taint("a"), s.Learned.Taints[0])
}

// TestDeclaredFeaturesAreLearned has a pod that needs the feature RestartAllContainersOnContainerExits.
func TestDeclaredFeaturesAreLearned(t *testing.T) {
	const restart, other = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"
	learn := func(features ...[]string) *v1alpha1.LearnedTemplate {
		var nodes []*corev1.Node
		for _, f := range features {
			nodes = append(nodes, newNode("web", "n", machineResources("4", "16Gi"), func(n *corev1.Node) { n.Status.DeclaredFeatures = f }))
		}
		return LearnTemplate("m4", nodes, nil)
	}
	pods := newPendingPods(1, "1", "1Gi", func(p *corev1.Pod) {
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	})
	for name, c := range map[string]struct {
		learned, siblings *v1alpha1.LearnedTemplate
		want              int
	}{
		"no node was seen":                      {},
		"its nodes have it":                     {learned: learn([]string{restart, other}, []string{restart}), want: 1},
		"one of its nodes lacks it":             {learned: learn([]string{restart, other}, []string{other}), siblings: learn([]string{restart})},
		"other nodes of the group have it":      {siblings: learn([]string{restart}), want: 1},
		"its nodes were seen by an old version": {learned: learn(nil), siblings: learn([]string{restart}), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newNodeGroup("web", 20)
			source := TemplateSource{Template: cloud.Template{Name: "m4"}, Declared: machineResources("4", "16Gi"), Learned: c.learned, Siblings: c.siblings}
			w := newWorld(t, []Group{newGroup(g, Template{Name: "m4", Node: NewTemplateNode(g, source)})}, nil, pods)
			check.Is(t, c.want, launchCounts(decideUp(t, w))["web/m4"])
		})
	}
}

func TestReservedResourcesAreDeducted(t *testing.T) {
	shape := cloud.NodeShape{Capacity: machineResources("4", "16Gi")}
	for name, tc := range map[string]struct {
		reserved corev1.ResourceList
		want     corev1.ResourceList
	}{
		"a part":                      {resources("500m", "1Gi"), resources("3500m", "15Gi")},
		"memory alone":                {corev1.ResourceList{"memory": resource.MustParse("100Mi")}, resources("4", "16284Mi")},
		"nothing":                     {corev1.ResourceList{}, resources("4", "16Gi")},
		"more than all":               {resources("5", "1Gi"), resources("0", "15Gi")},
		"not reported":                {nil, resources("3920m", "13926Mi")}, // an estimate
		"of a resource that it lacks": {corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}, resources("4", "16Gi")},
	} {
		shape.Reserved = tc.reserved
		n := NewTemplateNode(newNodeGroup("web", 20), TemplateSource{Template: cloud.Template{Name: "m4", NodeShape: shape}})
		for resourceName, want := range tc.want {
			if got := n.Status.Allocatable[resourceName]; got.Cmp(want) > 0 || tc.reserved != nil && got.Cmp(want) != 0 {
				t.Errorf("%s: %s is %s, want %s", name, resourceName, got.String(), want.String())
			}
		}
	}
}

func TestLongGoneNodesDoNotOverrideDeclaredResources(t *testing.T) {
	const device = "nvidia.com/gpu"
	bad := newNode("web", "bad", machineResources("4", "13Gi"))
	bad.Status.Capacity = corev1.ResourceList{device: resource.MustParse("0")} // its plugin was removed again
	has := machineResources("4", "16Gi")
	has[device] = resource.MustParse("2")
	for name, s := range map[string]TemplateSource{
		"the NodeGroup": {Declared: has}, "the cloud": {Template: cloud.Template{Name: "m4", NodeShape: cloud.NodeShape{Capacity: has}}},
	} {
		s.Learned = LearnTemplate("m4", []*corev1.Node{bad}, nil)
		n := NewTemplateNode(newNodeGroup("web", 20), s)
		if _, ok := n.Status.Allocatable[device]; ok {
			t.Errorf("%s says so, and it is believed against a node of late", name)
		}
		s.NodesLongGone = true
		n = NewTemplateNode(newNodeGroup("web", 20), s)
		for _, list := range []corev1.ResourceList{n.Status.Allocatable, n.Status.Capacity} {
			if got := list[device]; got.Value() != 2 {
				t.Errorf("%s says that it has 2, and it is taken for one of %s", name, &got)
			}
		}
		check.Is(t, "13Gi", n.Status.Allocatable.Memory().String(), name)
		if _, ok := s.Learned.Allocatable[device]; ok {
			t.Errorf("%s: what was learned is changed", name)
		}
	}
}

func TestUnseenTemplateIsEstimatedConservatively(t *testing.T) {
	g := newNodeGroup("web", 20)
	n := NewTemplateNode(g, TemplateSource{Template: cloud.Template{Name: "m4", Zone: "z1", NodeShape: cloud.NodeShape{
		Capacity: resources("4", "16Gi"), Labels: map[string]string{"team": "a"}, Taints: []corev1.Taint{{Key: "spot", Effect: "NoSchedule"}},
	}}})
	check.Is(t, 3920, n.Status.Allocatable.Cpu().MilliValue())
	want := int64(16*gibi) - gibi - 2*(4*gibi*200/1000) - 100<<20
	check.Is(t, want, n.Status.Allocatable.Memory().Value())
	check.Is(t, 110, n.Status.Allocatable.Pods().Value())
	labels := map[string]string{
		groupLabel: "web", "team": "a", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: "z1",
		corev1.LabelInstanceType: "m4", corev1.LabelInstanceTypeStable: "m4",
	}
	check.Equal(t, labels, n.Labels)
	few := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("30")}
	if n := NewTemplateNode(g, TemplateSource{Template: cloud.Template{Name: "m4", NodeShape: cloud.NodeShape{Capacity: few}}}); n != nil {
		t.Errorf("of an instance of which only the pods are known: %+v, want none", n.Status)
	}
	n = NewTemplateNode(g, TemplateSource{Template: cloud.Template{Name: "m4", NodeShape: cloud.NodeShape{Capacity: few}}, Declared: resources("4", "16Gi")})
	if got := n.Status.Allocatable; got.Pods().Value() != 30 || got.Cpu().Value() != 4 || n.Status.Capacity.Cpu().Value() != 4 {
		t.Errorf("of an instance whose pods its cloud says, and the rest the group: %+v", n.Status)
	}
	if n := NewTemplateNode(g, TemplateSource{Template: cloud.Template{Name: "m4"}}); n != nil {
		t.Errorf("a template of which nothing is known is %+v", n)
	}
}

func TestBackOffsGrowAndExpire(t *testing.T) {
	now := start
	b := launch.NextBackOff(nil, "m4", string(cloud.NoQuota), "cores", now)
	var waits []time.Duration
	for range 6 {
		waits = append(waits, b.Until.Sub(now))
		now = b.Until.Time
		b = launch.NextBackOff(&b, "m4", string(cloud.NoQuota), "cores", now)
	}
	want := []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour}
	check.Equal(t, want, waits)
	if again := launch.NextBackOff(&b, "m4", string(cloud.NoCapacity), "host", now.Add(time.Second)); again.Failures != b.Failures || again.Until.Before(&b.Until) {
		t.Errorf("a failure within the back-off makes %+v of %+v", again, b)
	}
	check.Not(t, launch.IsBackOffExpired(&b, b.Until.Time) || !launch.IsBackOffExpired(&b, b.Until.Add(3*time.Hour)), "forgiven too early, or never")
	if launch.BackOffDuration(string(cloud.NoCapacity), 1) >= launch.BackOffDuration(string(cloud.NoQuota), 1) || launch.BackOffDuration(string(cloud.NoQuota), 1) >= launch.BackOffDuration(string(cloud.Invalid), 1) {
		t.Error("refusals are not recorded apart")
	}
}

// newMixedPods returns pods of random sizes, with few distinct sizes as in a real cluster.
func newMixedPods(seed uint64, n int) []*corev1.Pod {
	g := rand.New(rand.NewPCG(seed, 7))
	cpus, memories := []string{"100m", "250m", "500m", "1", "2"}, []string{"128Mi", "512Mi", "1Gi", "2Gi", "6Gi"}
	list := newPendingPods(n, "1", "1Gi")
	for _, p := range list {
		p.Spec.Containers[0].Resources.Requests = resources(cpus[g.IntN(len(cpus))], memories[g.IntN(len(memories))])
	}
	return list
}

// minInstances returns the minimum number of instances of one template.
func minInstances(pods []*corev1.Pod, cpu, memory string) int {
	var sums [2]float64
	for _, p := range pods {
		r := p.Spec.Containers[0].Resources.Requests
		sums[0] += float64(r.Cpu().MilliValue())
		sums[1] += float64(r.Memory().Value())
	}
	has := resources(cpu, memory)
	return int(math.Ceil(max(sums[0]/float64(has.Cpu().MilliValue()), sums[1]/float64(has.Memory().Value()))))
}

func TestFiveHundredPodsPackNearTheLowerBound(t *testing.T) {
	for seed := range uint64(5) {
		pods := newMixedPods(seed, 500)
		g := newNodeGroup("web", 1000)
		d := decideUp(t, newWorld(t, []Group{newGroup(g, newKind(g, "m8", "8", "32Gi"))}, nil, pods))
		least := minInstances(pods, "8", "32Gi")
		most := int(math.Ceil(1.05 * float64(least)))
		if n := d.countLaunchedInstances(); n < least || n > most || outcomeCounts(d)[Launching] != 500 {
			t.Errorf("seed %d: %d instances, want %d to %d: %v", seed, n, least, most, outcomeCounts(d))
		}
	}
}

// BenchmarkUpTenThousandPods has 10,000 pods of a hundred sizes and three templates.
func BenchmarkUpTenThousandPods(b *testing.B) {
	g := newNodeGroup("web", 5000)
	w := newWorld(b, []Group{newGroup(g, newKind(g, "m8", "8", "32Gi"), newKind(g, "m16", "16", "64Gi"), newKind(g, "c16", "16", "32Gi"))}, nil,
		newMixedPods(1, 10_000))
	b.ReportAllocs()
	var d *Decision
	for b.Loop() {
		d = decideUp(b, w)
	}
	if n := outcomeCounts(d)[Launching]; n != 10_000 {
		b.Fatalf("%d pods are ordered for: %v", n, outcomeCounts(d))
	}
	b.ReportMetric(float64(d.countLaunchedInstances()), "machines")
}

func TestLaunchRequestIsLimitedLikeEveryLaunch(t *testing.T) {
	for name, c := range map[string]struct {
		wish    LaunchRequest
		maximum int32
		most    int // of the cluster
		closed  bool
		want    map[string]int
		granted int
		missing int
		rule    string
	}{
		"in full":                   {wish: LaunchRequest{Count: 3}, maximum: 5, want: map[string]int{"web/m4": 3}, granted: 3},
		"of the requested template": {wish: LaunchRequest{Count: 1, Template: "M8"}, maximum: 5, want: map[string]int{"web/m8": 1}, granted: 1},
		"up to the maximum":         {wish: LaunchRequest{Count: 3}, maximum: 2, want: map[string]int{"web/m4": 2}, granted: 2, missing: 1, rule: AtMaximum},
		"up to the cluster's maximum": {
			wish: LaunchRequest{Count: 3}, maximum: 5, most: 1, want: map[string]int{"web/m4": 1}, granted: 1, missing: 2, rule: AtClusterMaximum,
		},
		"of the next template": {wish: LaunchRequest{Count: 1}, maximum: 5, closed: true, want: map[string]int{"web/m8": 1}, granted: 1},
		"not of a backed-off template": {
			wish: LaunchRequest{Count: 1, Template: "m4"}, maximum: 5, closed: true, want: map[string]int{}, missing: 1, rule: BackedOff,
		},
		"not of an unknown template": {wish: LaunchRequest{Count: 1, Template: "huge"}, maximum: 5, want: map[string]int{}, missing: 1, rule: NoTemplate},
		"not of an unknown group":    {wish: LaunchRequest{Count: 1, Group: "other"}, maximum: 5, want: map[string]int{}, missing: 1, rule: NoTemplate},
	} {
		t.Run(name, func(t *testing.T) {
			g := newNodeGroup("web", c.maximum)
			gr := newGroup(g, newKind(g, "m4", "4", "16Gi"), newKind(g, "m8", "8", "32Gi"))
			if c.closed {
				gr.Templates[0].ClosedReason = &Reason{Rule: BackedOff}
			}
			w := newWorld(t, []Group{gr}, nil, nil)
			if c.most > 0 {
				w.MaxNodes = &c.most
			}
			if c.wish.Group == "" {
				c.wish.Group = "web"
			}
			w.LaunchRequests = []LaunchRequest{c.wish}
			d := decideUp(t, w)
			check.Equal(t, c.want, launchCounts(d))
			v := d.LaunchRequests[0]
			check.Not(t, v.Launched != c.granted || v.Missing != c.missing || (len(v.Reasons) > 0) != (c.rule != ""), "the verdict is %+v", v)
			if c.rule != "" && v.Reasons[0].Rule != c.rule {
				t.Errorf("the reason is %s, want %s", v.Reasons[0], c.rule)
			}
		})
	}
}

func TestLaunchRequestForAServedPodLaunchesNothing(t *testing.T) {
	g := newNodeGroup("web", 5)
	wish := LaunchRequest{Group: "web", Count: 1, Pod: placement.PodKey{Namespace: "apps", Name: "web-0"}}
	for name, awaited := range map[string][]launch.ProvisioningInstance{"it is ordered now": nil, "it is on its way": {{ID: "1", Template: "m4"}}} {
		t.Run(name, func(t *testing.T) {
			gr := newGroup(g, newKind(g, "m4", "4", "16Gi"))
			gr.Provisioning, gr.Size = awaited, len(awaited)
			w := newWorld(t, []Group{gr}, nil, newPendingPods(1, "1", "1Gi"))
			w.LaunchRequests = []LaunchRequest{wish}
			d := decideUp(t, w)
			if v := d.LaunchRequests[0]; !v.PodServed || v.Launched != 0 || v.Missing != 0 {
				t.Errorf("the verdict is %+v", v)
			}
			check.Is(t, 1, launchCounts(d)["web/m4"]+len(awaited))
		})
	}
}

// newPlaceholderGroup returns a group with a selector of placeholder pods.
func newPlaceholderGroup() *v1alpha1.NodeGroup {
	return newUnderutilizedGroup(func(g *v1alpha1.NodeGroup) {
		g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"holds": "room"}}
	})
}

// asPlaceholder makes a pod a placeholder that the cluster autoscaler must keep.
func asPlaceholder(p *corev1.Pod) {
	priority := int32(-10)
	p.Labels, p.Spec.Priority = map[string]string{"holds": "room"}, &priority
	p.Annotations = map[string]string{drainability.SafeToEvict: "false"}
}

func TestPendingPlaceholderLaunchesAnInstance(t *testing.T) {
	g := newPlaceholderGroup()
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a")},
		[]*corev1.Pod{newPod("x", "a", "3", "1Gi"), newPod("room", "", "3", "1Gi", asPlaceholder)})
	if got := launchCounts(decideUp(t, w)); got["web/m4"] != 1 {
		t.Errorf("launches are %v, want an instance for the placeholder", got)
	}
}

func TestOnlyThePreemptedPlaceholderLaunchesAnInstance(t *testing.T) {
	g := newPlaceholderGroup()
	waits := []*corev1.Pod{newPod("x", "", "3", "1Gi")}
	w := newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a")},
		append(waits, newPod("room", "a", "3", "1Gi", asPlaceholder)))
	w.Pods[0].Nominated = "a"
	if got := launchCounts(decideUp(t, w)); len(got) != 0 {
		t.Errorf("launches are %v while the scheduler makes room", got)
	}
	w = newWorld(t, []Group{newGroup(g, newKind(g, "m4", "4", "16Gi"))}, []*corev1.Node{newWebNode("a")},
		[]*corev1.Pod{newPod("x", "a", "3", "1Gi"), newPod("room", "", "3", "1Gi", asPlaceholder)})
	d := decideUp(t, w)
	if got := launchCounts(d); got["web/m4"] != 1 || len(d.Launches[0].Pods) != 1 || d.Launches[0].Pods[0].Name != "room" {
		t.Errorf("launches are %v, want an instance for the placeholder that has gone", d.Launches)
	}
}

// TestPlaceholderNodeStaysUntilPlaceholdersFitElsewhere annotates the placeholders like the chart.
func TestPlaceholderNodeStaysUntilPlaceholdersFitElsewhere(t *testing.T) {
	g := newPlaceholderGroup()
	nodes := []*corev1.Node{newWebNode("a", withPassedCooldown), newWebNode("b")}
	pods := []*corev1.Pod{newPod("room", "a", "3", "1Gi", asPlaceholder), newPod("x", "b", "3", "1Gi")}
	kinds := newGroup(g, newKind(g, "m4", "4", "16Gi"))
	w := newWorld(t, []Group{kinds}, nodes, pods)
	d := decideDown(t, w)["a"]
	check.Not(t, d.Verdict != nodegroup.VerdictKept || d.Reasons[0].Rule != NoPlace, "the node with the headroom: %s, %v", d.Verdict, d.Reasons)
	if got := launchCounts(decideUp(t, w)); len(got) != 0 {
		t.Errorf("launches are %v while all placeholders run", got)
	}
	if d := decideDown(t, newWorld(t, []Group{kinds}, append(nodes, newWebNode("c")), pods))["a"]; d.Verdict != nodegroup.VerdictDue {
		t.Errorf("with room elsewhere: %s, %v", d.Verdict, d.Reasons)
	}
	g.Spec.Drain.PlaceholderPods = nil
	if d := decideDown(t, newWorld(t, []Group{kinds}, append(nodes, newWebNode("c")), pods))["a"]; d.Verdict != nodegroup.VerdictKept || d.Reasons[0].Rule != Used {
		t.Errorf("as work that is protected: %s, %v", d.Verdict, d.Reasons)
	}
	g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{}
	if d := decideDown(t, newWorld(t, []Group{kinds}, append(nodes, newWebNode("c")), pods))["a"]; d.Verdict != nodegroup.VerdictKept || d.Reasons[0].Rule != Used {
		t.Errorf("with a selector that says nothing: %s, %v", d.Verdict, d.Reasons)
	}
}

// TestPodsDoNotWaitForARetiringInstance has an instance within its join timeout with a Node that is not Ready.
func TestPodsDoNotWaitForARetiringInstance(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		launch int
	}{
		"it stays":                 {func(*corev1.Node) {}, 0},
		"a person has cordoned it": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, 0},
		"its notice has cordoned it": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations = map[string]string{"cordon.slipway.dev/azure-e": `{"owner":"azure-e","since":"2026-01-01T00:00:00Z"}`}
		}, 1},
		"it is being deleted": {func(n *corev1.Node) {
			n.DeletionTimestamp, n.Finalizers = &metav1.Time{Time: start}, []string{"example.com/wait"}
		}, 1},
		"another tool removes it": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, 1},
	} {
		for _, selected := range []bool{true, false} {
			of := newNodeGroup("web", 10)
			g := newGroup(of, newKind(of, "m4", "4", "16Gi"))
			n := newNode("web", "new", machineResources("4", "16Gi"), c.change)
			n.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute))
			n.Status.Conditions[0].Status = corev1.ConditionFalse
			if !selected {
				n.Labels[groupLabel] = "none"
			}
			g.LaunchedInstances = []LaunchedInstance{{ProvisioningInstance: launch.ProvisioningInstance{ID: "new", Template: "m4"}, Node: n}}
			d := decideUp(t, newWorld(t, []Group{g}, []*corev1.Node{n}, newPendingPods(1, "3", "1Gi")))
			if got := launchCounts(d)["web/m4"]; got != c.launch {
				t.Errorf("%s, selected: %t: %d launched, want %d: %+v", name, selected, got, c.launch, d.Pods)
			}
		}
	}
}

// TestInstanceOutsideTheSelectorTakesPodsOnce has an instance with a Node that does not match spec.nodeSelector.
func TestInstanceOutsideTheSelectorTakesPodsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   map[Outcome]int
	}{
		"it takes pods":   {func(*corev1.Node) {}, map[Outcome]int{Fits: 1, Unschedulable: 1}},
		"it is not Ready": {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, map[Outcome]int{Provisioning: 1, Launching: 1}},
		"it is cordoned":  {cordoned, map[Outcome]int{Provisioning: 1, Unschedulable: 1}},
		"it has just begun": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized", Effect: corev1.TaintEffectNoSchedule}}
		}, map[Outcome]int{Provisioning: 1, Unschedulable: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			of := newNodeGroup("web", 2)
			g := newGroup(of, newKind(of, "m4", "4", "16Gi"))
			n := newNode("none", "new", machineResources("4", "16Gi"), c.change)
			n.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute))
			g.LaunchedInstances = []LaunchedInstance{{ProvisioningInstance: launch.ProvisioningInstance{ID: "new", Template: "m4"}, Node: n}}
			w := newWorld(t, []Group{g}, []*corev1.Node{n}, newPendingPods(2, "3", "1Gi"))
			check.Equal(t, c.want, outcomeCounts(decideUp(t, w)))
			p := &scaleUp{forkedCluster: &forkedCluster{Input: w}}
			check.Is(t, 1, p.groupSize(&w.Groups[0]))
		})
	}
}

func TestManyUnreadyNodesPauseLaunches(t *testing.T) {
	for name, c := range map[string]struct {
		unready, nodes int
		limit          UnreadyLimit
		braked         bool
	}{
		"none":                       {0, 10, UnreadyLimit{45, 3}, false},
		"at the absolute limit":      {3, 4, UnreadyLimit{45, 3}, false},
		"above the absolute limit":   {4, 4, UnreadyLimit{45, 3}, true},
		"at the percentage":          {45, 100, UnreadyLimit{45, 3}, false},
		"above the percentage":       {46, 100, UnreadyLimit{45, 3}, true},
		"without a limit":            {100, 100, UnreadyLimit{}, false},
		"all, with a limit of 100 %": {100, 100, UnreadyLimit{100, 0}, false},
	} {
		g := newGroup(newNodeGroup("web", 10), newKind(newNodeGroup("web", 10), "m4", "4", "16Gi"))
		w := newWorld(t, []Group{g}, nil, newPendingPods(1, "1", "1Gi"))
		w.UnreadyNodes, w.NodeCount, w.UnreadyLimit = c.unready, c.nodes, c.limit
		d := decideUp(t, w)
		if braked := len(d.Launches) == 0; braked != c.braked {
			t.Errorf("%s: paused %t, want %t", name, braked, c.braked)
		}
		if r := d.Pods[0].Reasons; c.braked && (r[0].Rule != TooManyUnready || !strings.Contains(r[0].Message, "not Ready")) {
			t.Errorf("%s: the pod gets %v, want %s", name, r, TooManyUnready)
		}
	}
}

func TestAnotherProcessesSinceAnnotationDoesNotCount(t *testing.T) {
	for name, c := range map[string]struct {
		observed time.Duration // ago
		want     string
	}{
		"the node was observed before": {2 * time.Hour, "Due"},
		"it was observed since":        {time.Minute, "CoolingDown"},
	} {
		g := newNodeGroup("web", 10, func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
		})
		n := newNode("web", "a", machineResources("4", "16Gi"), func(n *corev1.Node) {
			n.Annotations = map[string]string{UnderutilizedSinceAnnotation: formatTime(start.Add(-time.Hour))}
		})
		other := newNode("web", "b", machineResources("4", "16Gi"), func(n *corev1.Node) { n.Labels[groupLabel] = "other" })
		group := newGroup(g)
		group.ObservedSince = map[string]time.Time{"a": start.Add(-c.observed)}
		all := must.Get(DecideScaleDown(newWorld(t, []Group{group}, []*corev1.Node{n, other}, nil)))(t)
		check.Not(t, len(all) != 1 || string(all[0].Verdict) != c.want, "%s: %+v, want %s", name, all, c.want)
		if c.want == "CoolingDown" && !all[0].Since.Equal(start) {
			t.Errorf("%s: it could go since %s, want now", name, all[0].Since)
		}
	}
}

// TestNodeFromTheFutureStopsStartingAfterJoinTimeout sets the clock back by a day after the Node was created.
func TestNodeFromTheFutureStopsStartingAfterJoinTimeout(t *testing.T) {
	for observed, arrives := range map[time.Duration]bool{time.Minute: true, time.Hour: false} {
		g := newGroup(newNodeGroup("web", 10))
		n := newNode("web", "a", machineResources("4", "16Gi"), func(n *corev1.Node) {
			n.CreationTimestamp = metav1.NewTime(start.Add(24 * time.Hour))
			n.Status.Conditions = nil
		})
		g.ObservedSince = map[string]time.Time{"a": start.Add(-observed)}
		if got := g.IsProvisioning(n, start); got != arrives {
			t.Errorf("observed %s ago: provisioning %t, want %t", observed, got, arrives)
		}
	}
}
