package room_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/surge/room"
)

type cluster struct{ *snapshot.Snapshot }

func (c cluster) WithSnapshot(fn func(*snapshot.Snapshot) error) error { return fn(c.Snapshot) }

type groups []v1alpha1.NodeGroup

func (g groups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return g, nil }

// newGroup returns an accepted group of 2 instances, of at most 3, that has had nodes with 4 cores.
func newGroup() v1alpha1.NodeGroup {
	large := placementtest.NewNode("", "", 4, 8, 110)
	return v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "spot"},
		Spec:       v1alpha1.NodeGroupSpec{MaxSize: new(int32(3)), ScaleUp: &v1alpha1.ScaleUp{JoinTimeout: &metav1.Duration{Duration: 7 * time.Minute}}},
		Status: v1alpha1.NodeGroupStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}},
			CloudSize:  new(int32(2)),
			Provisioning: &v1alpha1.ProvisioningStatus{Learned: []v1alpha1.LearnedTemplate{{
				Name: "large", Allocatable: large.Status.Allocatable, Capacity: large.Status.Allocatable, Labels: map[string]string{corev1.LabelOSStable: "linux"},
			}}},
		},
	}
}

// TestSuccessorFitsLikeTheSchedulerSays has the leaving pod, which needs 2 cores, on node a with 8 cores. The other node b has 2
// cores.
func TestSuccessorFitsLikeTheSchedulerSays(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod, b *corev1.Node, g *v1alpha1.NodeGroup)
		want   surge.Room
		detail string
	}{
		"other node has room":     {want: surge.Room{Fits: true}},
		"needs a new instance":    {change: func(_ *corev1.Pod, b *corev1.Node, _ *v1alpha1.NodeGroup) { b.Spec.Unschedulable = true }, want: surge.Room{Fits: true, LaunchTime: 7 * time.Minute}, detail: "spot/large"},
		"anti-affinity to itself": {change: func(p *corev1.Pod, _ *corev1.Node, _ *v1alpha1.NodeGroup) { p.Spec.Affinity = keepApart() }, want: surge.Room{Fits: true}},
		"selects the leaving node": {change: func(p *corev1.Pod, _ *corev1.Node, _ *v1alpha1.NodeGroup) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"}
		}, detail: "fits on no other node"},
		"group is full":                {change: fillNode(func(g *v1alpha1.NodeGroup) { g.Status.CloudSize = new(int32(3)) }), detail: "insufficient cpu"},
		"group does not scale up":      {change: fillNode(func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp = nil }), detail: "insufficient cpu"},
		"group is not accepted":        {change: fillNode(func(g *v1alpha1.NodeGroup) { g.Status.Conditions = nil }), detail: "insufficient cpu"},
		"template is backed off":       {change: fillNode(backOff), detail: "insufficient cpu"},
		"template is not in the group": {change: fillNode(func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "small"}} }), detail: "insufficient cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			pod, b, g := placementtest.NewPod("web", 0, "a", 2000, 1024), placementtest.NewNode("b", "", 2, 8, 110), newGroup()
			if c.change != nil {
				c.change(pod, b, &g)
			}
			s := snapshot.New()
			for _, err := range []error{s.SetNode(placementtest.NewNode("a", "", 8, 8, 110)), s.SetNode(b), s.SetPod(pod)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			checker := room.Checker{Cluster: func(context.Context) (room.Cluster, error) { return cluster{s}, nil }, Groups: groups{g}}
			got, err := checker.FindRoom(t.Context(), pod.Namespace, pod.Name, "a")
			if err != nil {
				t.Fatal(err)
			}
			if got.Fits != c.want.Fits || got.LaunchTime != c.want.LaunchTime || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("%+v, want %+v with detail %q", got, c.want, c.detail)
			}
			if _, err := checker.FindRoom(t.Context(), pod.Namespace, "missing", "a"); err == nil {
				t.Error("no error for a pod that the snapshot does not have")
			}
		})
	}
}

// fillNode returns a change that leaves no room on node b, and changes the group.
func fillNode(change func(*v1alpha1.NodeGroup)) func(*corev1.Pod, *corev1.Node, *v1alpha1.NodeGroup) {
	return func(_ *corev1.Pod, b *corev1.Node, g *v1alpha1.NodeGroup) {
		b.Status.Allocatable = placementtest.NewNode("b", "", 1, 8, 110).Status.Allocatable
		change(g)
	}
}

func backOff(g *v1alpha1.NodeGroup) {
	g.Status.Provisioning.BackOffs = []v1alpha1.BackOff{{Template: "large", Until: metav1.NewTime(time.Now().Add(time.Hour))}}
}

func keepApart() *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: corev1.LabelHostname,
	}}}}
}
