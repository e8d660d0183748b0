package provisioning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// addGroup adds another group that scales up.
func (f *fixture) addGroup(name string, change func(*v1alpha1.NodeGroup)) {
	f.t.Helper()
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "second", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	g.Spec = v1alpha1.NodeGroupSpec{
		Cloud: v1alpha1.CloudGroup{Provider: "pool", Group: name}, MaxSize: new(int32(10)), ScaleUp: &v1alpha1.ScaleUp{},
	}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": name}
	g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}}
	change(g)
	must.NoError(f.t, f.client.Create(f.t.Context(), g))
}

func TestI10UnreadableSelectorStopsNoOtherGroup(t *testing.T) {
	like := []metav1.LabelSelectorRequirement{{Key: "app", Operator: "in", Values: []string{"x"}}}
	for name, change := range map[string]func(*v1alpha1.NodeGroup){
		"selector of keeping pods": func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{}}
			g.Spec.ScaleDown.IdleByLabel.PodSelector.MatchExpressions = like
		},
		"selector of placeholders": func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
			g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchExpressions: like}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.addGroup("bad", change)
			f.addUnschedulable("a")
			for range 3 {
				f.reconcile()
			}
			if got := f.pool.launches(); len(got) != 1 || got[0] != (cloud.LaunchRequest{Count: 1, Template: "m4"}) {
				t.Errorf("launches are %v, want one for the other group", got)
			}
			if s := f.status(); s.Provisioning != 1 {
				t.Errorf("status is %+v, want the instance", s)
			}
		})
	}
}

func TestNodesOfAnotherTypeDoNotChangeTheOnlyTemplate(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		learn bool
	}{
		"the cloud reports another type": {"m2", false},
		"the cloud reports this type":    {"M4", true},
		"the cloud reports no type":      {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			small := newIdleNode("small", "")
			small.Labels["disk"] = "ssd"
			small.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("2")
			f := newFixture(t, nil, small)
			f.pool.add(cloud.Instance{ProviderID: "id-small", Name: "small", Type: c.says, State: cloud.Running})
			bound := newUnschedulablePod("apps", "a")
			bound.Spec.NodeSelector = map[string]string{"disk": "ssd"} // a label that the group's nodes have in common
			f.addUnschedulablePod(bound)
			f.reconcileTimes(2)
			if got := f.pool.launches(); (len(got) == 1) == c.learn {
				t.Errorf("launches are %v for a pod that a node of 2 cores does not take, learned is %+v", got, f.states["web"].learned)
			}
		})
	}
}

// newGPUFixture returns a fixture with a template that declares a device. The last nodes of the template did not show
// it. others are the other resources that they showed. nodes are the existing nodes.
func newGPUFixture(t *testing.T, declared bool, others corev1.ResourceList, nodes ...client.Object) *fixture {
	t.Helper()
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		has := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi")}
		if declared {
			all := has.DeepCopy()
			all["nvidia.com/gpu"] = resource.MustParse("1")
			g.Spec.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "m4", Allocatable: all}}
		}
		has[corev1.ResourcePods] = resource.MustParse("110")
		maps.Copy(has, others)
		g.Status.Provisioning = &v1alpha1.ProvisioningStatus{Learned: []v1alpha1.LearnedTemplate{{
			Name: "m4", Allocatable: has, Capacity: has, Labels: map[string]string{"pool": "web"},
		}}}
	}, nodes...)
	for _, n := range nodes {
		f.pool.add(cloud.Instance{ProviderID: "id-" + n.GetName(), Name: n.GetName(), Type: "m4", State: cloud.Running})
	}
	p := newUnschedulablePod("apps", "train")
	p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1")
	f.addUnschedulablePod(p)
	f.reconcile()
	if got := f.pool.launches(); len(got) != 0 {
		t.Fatalf("launches are %v for a template that showed no such device lately, as far as is known", got)
	}
	return f
}

func TestMissingDeclaredResourceIsTriedAgainAfterOneHour(t *testing.T) {
	zero := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
	arriving := newIdleNode("new", "")
	arriving.CreationTimestamp, arriving.Status.Conditions = metav1.Now(), nil
	for name, c := range map[string]struct {
		f      *fixture
		orders int
	}{
		"nodes lacked the device":          {newGPUFixture(t, true, nil), 1},
		"nodes had zero devices":           {newGPUFixture(t, true, zero), 1},
		"the device is not declared":       {newGPUFixture(t, false, nil), 0},
		"a node without the device exists": {newGPUFixture(t, true, nil, newIdleNode("bad", "")), 0},
		"a node with zero devices exists":  {newGPUFixture(t, true, zero, newIdleNode("bad", "")), 0},
		"a starting node lacks the device": {newGPUFixture(t, true, nil, arriving), 0},
	} {
		c.f.states["web"].watchedSince = time.Now().Add(-2 * time.Hour)
		c.f.reconcileTimes(2)
		if got := c.f.pool.launches(); len(got) != c.orders {
			t.Errorf("%s: launches are %v, want %d", name, got, c.orders)
		}
	}
}

func TestRecentlyRemovedNodeStillCountsAsLearned(t *testing.T) {
	bad := newIdleNode("bad", "")
	f := newGPUFixture(t, true, nil, bad)
	must.NoError(t, errors.Join(f.client.Delete(t.Context(), bad), f.kube.CoreV1().Nodes().Delete(t.Context(), "bad", metav1.DeleteOptions{})))
	f.pool.change(func() { f.pool.machines = nil })
	m := f.states["web"]
	m.watchedSince = time.Now().Add(-2 * time.Hour)
	f.reconcileTimes(2)
	if got := f.pool.launches(); len(got) != 0 {
		t.Errorf("launches are %v, as what was there a moment ago had no such device", got)
	}
	m.lastPresent["m4"] = time.Now().Add(-2 * time.Hour)
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v, want one more try", got)
	}
}

// validatingClient validates each status before it writes it, like the API server.
type validatingClient struct {
	client.Client
	validate func(group string, up *v1alpha1.ProvisioningStatus) error
}

func (j validatingClient) Status() client.SubResourceWriter {
	return validatingStatus{j.Client.Status(), j.validate}
}

type validatingStatus struct {
	client.SubResourceWriter
	validate func(group string, up *v1alpha1.ProvisioningStatus) error
}

func (j validatingStatus) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	raw, err := p.Data(o)
	if err != nil {
		return err
	}
	var patch struct{ Status v1alpha1.NodeGroupStatus }
	if err := json.Unmarshal(raw, &patch); err != nil {
		return err
	}
	if err := j.validate(o.GetName(), patch.Status.Provisioning); err != nil {
		return err
	}
	return j.SubResourceWriter.Patch(ctx, o, p, opts...)
}

func TestStatusKeepsTheTemplatesThatMatter(t *testing.T) {
	f := newFixture(t, nil)
	f.options.Launches = launch.NewRecord(f.client, validatingClient{f.client, func(_ string, up *v1alpha1.ProvisioningStatus) error {
		if up != nil && (len(up.BackOffs) > 64 || len(up.Learned) > 64) {
			return fmt.Errorf("status.provisioning: too many: %d back-offs, %d learned: must have at most 64 items", len(up.BackOffs), len(up.Learned))
		}
		return nil
	}})
	f.addUnschedulable("a")
	f.reconcile()
	m, now := f.states["web"], time.Now()
	for i := range 70 {
		kind := fmt.Sprintf("a-%02d", i)
		m.recordFailure(kind, launch.Failed, "", now.Add(time.Duration(i)*time.Second))
		m.learned[kind] = v1alpha1.LearnedTemplate{Name: kind}
	}
	m.learned["m4"] = v1alpha1.LearnedTemplate{Name: "m4"}
	f.reconcile()
	s := f.status()
	if len(s.Awaited) != 1 || len(s.BackOffs) != 64 || s.BackOffs[0].Template != "a-06" {
		t.Errorf("%d instances and %d back-offs from %s on, want one, and the last 64 that end", len(s.Awaited), len(s.BackOffs), s.BackOffs[0].Template)
	}
	if len(s.Learned) != 64 || !slices.ContainsFunc(s.Learned, func(l v1alpha1.LearnedTemplate) bool { return l.Name == "m4" }) {
		t.Errorf("%d templates are learned, want 64, with the one that the cloud has", len(s.Learned))
	}
}

func TestStatusHasThePriceOfEachTemplate(t *testing.T) {
	large := newIdleNode("large", "")
	large.Labels[corev1.LabelInstanceTypeStable] = "M8"
	f := newFixture(t, nil, newIdleNode("small", ""), large)
	f.pool.change(func() { f.pool.templates, f.pool.costs = []string{"m4", "m8"}, map[string]float64{"m8": 0.192} })
	f.pool.add(cloud.Instance{ProviderID: "id-small", Name: "small", Type: "m4", State: cloud.Running})
	f.pool.add(cloud.Instance{ProviderID: "id-large", Name: "large", Type: "m8", State: cloud.Running})
	f.reconcileTimes(2)
	costs := func() (list []string) {
		for _, l := range f.status().Learned {
			list = append(list, l.Name+" "+l.Cost)
		}
		return list
	}
	check.Equal(t, []string{"m4 ", "m8 0.192"}, costs())
	f.pool.change(func() { f.pool.costs["m8"] = 12 })
	f.reconcileTimes(2)
	check.Equal(t, []string{"m4 ", "m8 12"}, costs())
}

func TestUnwritableStatusBlocksNoOtherGroup(t *testing.T) {
	f := newFixture(t, nil)
	for _, name := range []string{"a", "z"} {
		f.addGroup(name, func(g *v1alpha1.NodeGroup) { g.UID = types.UID(name) })
	}
	f.options.Launches = launch.NewRecord(f.client, validatingClient{f.client, func(group string, _ *v1alpha1.ProvisioningStatus) error {
		if group == "web" {
			return errors.New("it is not valid")
		}
		return nil
	}})
	check.ErrorContains(t, check.Err(f.Controller.reconcile(t.Context(), f.sources, true)))
	for _, name := range []string{"a", "z"} {
		var g v1alpha1.NodeGroup
		if err := f.client.Get(t.Context(), types.NamespacedName{Name: name}, &g); err != nil || g.Status.Provisioning == nil {
			t.Errorf("status of group %s is %+v, %v", name, g.Status.Provisioning, err)
		}
	}
}

func TestTemplatesOfAGroupWithoutNodesAreKnown(t *testing.T) {
	f := newFixture(t, nil)
	if _, known := f.Templates("web"); known {
		t.Error("templates are known before the cloud was read")
	}
	f.reconcileTimes(2)
	got, known := f.Templates("web")
	if !known || len(got) != 1 || got[0].Name != "m4" || got[0].Node == nil || got[0].Node.Status.Allocatable.Cpu().IsZero() {
		t.Errorf("templates %+v, known %t, want m4 with its resources", got, known)
	}
	if _, known := f.Templates("other"); known {
		t.Error("the templates of another group are known")
	}
}

type countingGroups struct {
	nodegroup.Groups
	reads *int
}

func (c countingGroups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	*c.reads++
	return c.Groups.List(ctx)
}

func TestReconcileWithoutCloudReadReadsTheClusterOnce(t *testing.T) {
	f := newFixture(t, nil)
	reads := 0
	f.options.Groups = countingGroups{f.options.Groups, &reads}
	for _, c := range []struct {
		ask, waits bool
		want       int
	}{{true, false, 2}, {false, false, 1}, {false, true, 2}} {
		if c.waits {
			f.addUnschedulable("a")
		}
		reads = 0
		must.NoError(t, check.Err(f.Controller.reconcile(t.Context(), f.sources, c.ask)))
		check.Not(t, reads != c.want, "%+v: the groups are read %d times", c, reads)
	}
}

func TestReconcileWithoutCloudReadAppliesPendingReplies(t *testing.T) {
	f := newFixture(t, nil)
	answer := f.blockReads()
	f.reconcile()
	answer()
	must.NoError(t, check.Err(f.Controller.reconcile(t.Context(), f.sources, false)))
	check.Not(t, f.states["web"].cloudTemplates == nil, "what the cloud has said is not known")
}
