package room_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/surge/room"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

type cluster struct{ *snapshot.Snapshot }

func (c cluster) WithSnapshot(fn func(*snapshot.Snapshot) error) error { return fn(c.Snapshot) }

type groups []v1alpha1.NodeGroup

func (g groups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return g, nil }

// newGroup returns an accepted group of 2 instances, of at most 3.
func newGroup() v1alpha1.NodeGroup {
	return v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "spot"},
		Spec:       v1alpha1.NodeGroupSpec{MaxSize: new(int32(3)), ScaleUp: &v1alpha1.ScaleUp{JoinTimeout: &metav1.Duration{Duration: 7 * time.Minute}}},
		Status: v1alpha1.NodeGroupStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}},
			CloudSize:  new(int32(2)),
		},
	}
}

// fixture has the leaving pods, which need 2 cores each, on node a with 8 cores. The other node b has 2 cores. The group has a
// template with 4 cores.
type fixture struct {
	t       *testing.T
	pods    []*corev1.Pod
	a, b    *corev1.Node
	group   v1alpha1.NodeGroup
	large   plan.Template
	unknown bool // the cloud of the group was not read yet
}

func newFixture(t *testing.T, pods int) *fixture {
	f := &fixture{t: t, a: placementtest.NewNode("a", "", 8, 8, 110), b: placementtest.NewNode("b", "", 2, 8, 110), group: newGroup()}
	for i := range pods {
		f.pods = append(f.pods, placementtest.NewPod("web", i, "a", 2000, 1024))
	}
	f.large = plan.Template{Name: "large", Node: placementtest.NewNode("", "", 4, 8, 110)}
	return f
}

func (f *fixture) newChecker() *room.Checker {
	f.t.Helper()
	s := snapshot.New()
	errs := []error{s.SetNode(f.a), s.SetNode(f.b)}
	for _, p := range f.pods {
		errs = append(errs, s.SetPod(p))
	}
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
	return &room.Checker{
		Cluster: func(context.Context) (room.Cluster, error) { return cluster{s}, nil }, Groups: groups{f.group},
		Templates: func(string) ([]plan.Template, bool) { return []plan.Template{f.large}, !f.unknown },
	}
}

func keyOf(p *corev1.Pod) placement.PodKey {
	return placement.PodKey{Namespace: p.Namespace, Name: p.Name}
}

func TestSuccessorFitsLikeTheSchedulerSays(t *testing.T) {
	// fillNode returns a change that leaves no room on node b.
	fillNode := func(change func(f *fixture)) func(*fixture) {
		return func(f *fixture) {
			f.b = placementtest.NewNode("b", "", 1, 8, 110)
			change(f)
		}
	}
	onLarge := surge.Room{Fits: true, LaunchTime: 7 * time.Minute}
	for name, c := range map[string]struct {
		change func(f *fixture)
		want   surge.Room
		detail string
	}{
		"other node has room":          {want: surge.Room{Fits: true}},
		"needs a new instance":         {change: func(f *fixture) { f.b.Spec.Unschedulable = true }, want: onLarge, detail: "spot/large"},
		"anti-affinity to itself":      {change: func(f *fixture) { f.pods[0].Spec.Affinity = keepApart() }, want: surge.Room{Fits: true}},
		"selects the leaving node":     {change: func(f *fixture) { f.pods[0].Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"} }, detail: "fits on no other node"},
		"group is full":                {change: fillNode(func(f *fixture) { f.group.Status.CloudSize = new(int32(3)) }), detail: "insufficient cpu"},
		"size of the group is unknown": {change: fillNode(func(f *fixture) { f.group.Status.CloudSize = nil }), detail: "insufficient cpu"},
		"group does not scale up":      {change: fillNode(func(f *fixture) { f.group.Spec.ScaleUp = nil }), detail: "insufficient cpu"},
		"group is not accepted":        {change: fillNode(func(f *fixture) { f.group.Status.Conditions = nil }), detail: "insufficient cpu"},
		"template is backed off":       {change: fillNode(func(f *fixture) { f.large.ClosedReason = &plan.Reason{} }), detail: "insufficient cpu"},
		"template is too small":        {change: fillNode(func(f *fixture) { f.large.Node = placementtest.NewNode("", "", 1, 8, 110) }), detail: "insufficient cpu"},
		"shape is unknown":             {change: fillNode(func(f *fixture) { f.large.Node = nil }), detail: "insufficient cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 1)
			if c.change != nil {
				c.change(f)
			}
			got, err := f.newChecker().FindRoom(t.Context(), keyOf(f.pods[0]), "a", false)
			if err != nil {
				t.Fatal(err)
			}
			if got.Fits != c.want.Fits || got.LaunchTime != c.want.LaunchTime || !strings.Contains(got.Detail, c.detail) || got.Release != nil {
				t.Errorf("%+v, want %+v with detail %q", got, c.want, c.detail)
			}
		})
	}
}

func TestRoomIsUnknown(t *testing.T) {
	const ofNodes, ofGroup = "fits on no other node: ", "NodeGroup spot"
	for name, c := range map[string]struct {
		change func(f *fixture)
		says   []string
	}{
		"pod is not in the snapshot":  {func(f *fixture) { f.pods = nil }, []string{"not in the snapshot"}},
		"cloud was not read":          {func(f *fixture) { f.unknown, f.large = true, plan.Template{}; f.b.Spec.Unschedulable = true }, []string{ofNodes, ofGroup}},
		"group has no templates, yet": {func(f *fixture) { f.unknown, f.large.Node = true, nil; f.b.Spec.Unschedulable = true }, []string{ofNodes, ofGroup}},
		"another scheduler decides":   {func(f *fixture) { f.pods[0].Spec.SchedulerName = "other" }, []string{"the scheduler has to decide: ", "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 1)
			pod := keyOf(f.pods[0])
			c.change(f)
			got, err := f.newChecker().FindRoom(t.Context(), pod, "a", true)
			if err == nil {
				t.Fatalf("%+v, want an error", got)
			}
			check.Contains(t, err.Error(), c.says...)
		})
	}
}

// TestSuccessorsFitTogether has room for one successor on node b, and for two on the only further instance of the group.
func TestSuccessorsFitTogether(t *testing.T) {
	f := newFixture(t, 4)
	checker := f.newChecker()
	find := func(pod int, reserve bool) surge.Room {
		t.Helper()
		got, err := checker.FindRoom(t.Context(), keyOf(f.pods[pod]), "a", reserve)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	expect := func(got surge.Room, want string) {
		t.Helper()
		is := map[bool]string{true: "nowhere", false: "node"}[!got.Fits]
		if got.LaunchTime > 0 {
			is = "instance"
		}
		if is != want {
			t.Errorf("%s, want %s: %+v", is, want, got)
		}
	}
	for pod := range f.pods {
		expect(find(pod, false), "node") // nothing is reserved
	}
	onNode, first := find(0, true), find(1, true)
	expect(onNode, "node")
	expect(first, "instance")
	second := find(2, true)
	expect(second, "instance")
	expect(find(3, true), "nowhere")
	expect(find(0, true), "node") // its own reservation does not count
	onNode.Release()              // of an earlier reservation
	expect(find(3, false), "nowhere")
	first.Release()
	first.Release()
	expect(find(3, true), "instance")
	second.Release()
	expect(find(2, false), "instance")
}

func TestInstanceReservedForThePodItselfFits(t *testing.T) {
	f := newFixture(t, 1)
	f.b.Spec.Unschedulable = true
	checker := f.newChecker()
	for range 2 {
		got, err := checker.FindRoom(t.Context(), keyOf(f.pods[0]), "a", true)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Fits || got.LaunchTime == 0 {
			t.Errorf("%+v, want the last instance of the group", got)
		}
	}
}

func keepApart() *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: corev1.LabelHostname,
	}}}}
}
