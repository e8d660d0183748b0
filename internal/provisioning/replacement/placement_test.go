package replacement

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newRoom returns a Room of nodes with four CPUs each, in one pool.
func newRoom(t *testing.T, objects ...client.Object) ClusterPlacement {
	t.Helper()
	scheme := must.Get(kinds())(t)
	for _, name := range []string{"a", "b"} {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, "kubernetes.azure.com/agentpool": "ci",
			}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
				},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, live.NodeNameField, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
	return ClusterPlacement{Cached: c, Live: c, Pods: live.NewListingPodReader(c)}
}

// newPod returns a controlled pod, on a node or pending.
func newPod(name, node, cpu string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if node == "" {
		p.Status.Phase = corev1.PodPending
	}
	for _, change := range change {
		change(p)
	}
	return p
}

func TestPodsThatFitNoOtherNodeAreUnschedulable(t *testing.T) {
	bare := func(p *corev1.Pod) { p.OwnerReferences = nil }
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	held := func(p *corev1.Pod) { p.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"} }
	daemon := func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }
	for what, tt := range map[string]struct {
		pods []client.Object
		want string
	}{
		"there is room":                 {[]client.Object{newPod("web", "a", "2"), newPod("other", "b", "2")}, ""},
		"there is none":                 {[]client.Object{newPod("web", "a", "3"), newPod("other", "b", "2")}, "shop/web"},
		"there is room for one of two":  {[]client.Object{newPod("one", "a", "2"), newPod("two", "a", "2"), newPod("other", "b", "2")}, "shop/two"},
		"it has no controller":          {[]client.Object{newPod("web", "a", "3", bare), newPod("other", "b", "2")}, ""},
		"it is finished":                {[]client.Object{newPod("web", "a", "3", over), newPod("other", "b", "2")}, ""},
		"it belongs to a DaemonSet":     {[]client.Object{newPod("web", "a", "3", daemon), newPod("other", "b", "2")}, ""},
		"it is protected":               {[]client.Object{newPod("web", "a", "3", held), newPod("other", "b", "2")}, "shop/web"},
		"the drain has made it pending": {[]client.Object{newPod("web", "", "3"), newPod("mine", "a", "2"), newPod("other", "b", "2")}, "shop/web"},
		"a pending pod fits elsewhere":  {[]client.Object{newPod("web", "", "1"), newPod("other", "b", "2")}, ""},
		"a pending pod is too large":    {[]client.Object{newPod("web", "", "5"), newPod("other", "b", "2")}, ""},
	} {
		unschedulable, err := newRoom(t, tt.pods...).ListPodsNeedingNode(t.Context(), "a")
		must.Not(t, err != nil, "%s: %v", what, err)
		var names []string
		for _, h := range unschedulable {
			names = append(names, h.Pod)
		}
		check.Is(t, tt.want, strings.Join(names, " "), what, unschedulable)
	}
}

func TestUndecidablePodIsUnschedulable(t *testing.T) {
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			}},
		}}}}
	}
	unschedulable, err := newRoom(t, newPod("web", "a", "1", ephemeral)).ListPodsNeedingNode(t.Context(), "a")
	check.Not(t, err != nil || len(unschedulable) != 1, "%+v, %v", unschedulable, err)
}

func joinCodes(v Verdict) string {
	var all []string
	for _, r := range v.Reasons {
		all = append(all, r.Code)
	}
	return strings.Join(all, " ")
}

func TestReplacementIsWantedWhenTheInstanceIsMissed(t *testing.T) {
	always, needed := v1alpha1.ReplaceAlways, v1alpha1.ReplaceWhenNeeded
	unschedulable := []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
	for what, tt := range map[string]struct {
		need Need
		want Outcome
		why  string
	}{
		"it exists and its pods fit elsewhere":       {Need{Policy: always, Instance: InstanceExists}, Wait, RoomElsewhere},
		"it exists and a pod fits nowhere else":      {Need{Policy: always, Instance: InstanceExists, UnschedulablePods: unschedulable}, Launch, NoRoom},
		"it exists and the group would be too small": {Need{Policy: always, Instance: InstanceExists, StayingNodes: 1, MinSize: 2}, Launch, BelowMinimum},
		"it exists and placement is unknown":         {Need{Policy: always, Instance: InstanceExists, PlacementErr: errors.New("no")}, Wait, RoomUnknown},
		"it is gone":                                 {Need{Policy: always, Instance: InstanceGone}, Launch, MachineGone},
		"it is stopped and kept":                     {Need{Policy: always, Instance: InstanceStopped}, Launch, MachineKept},
		"it is gone and not needed":                  {Need{Policy: needed, Instance: InstanceGone, StayingNodes: 3, MinSize: 3}, None, NobodyNeedsIt},
		"it is gone and a pod needs a node":          {Need{Policy: needed, Instance: InstanceGone, UnschedulablePods: unschedulable}, Launch, NoRoom},
		"it is gone and placement is unknown":        {Need{Policy: needed, Instance: InstanceGone, PlacementErr: errors.New("no")}, Wait, RoomUnknown},
		"the policy is Never":                        {Need{Policy: v1alpha1.ReplaceNever, Instance: InstanceGone, UnschedulablePods: unschedulable}, None, PolicyNever},
		"the notice ended and it exists":             {Need{Policy: always, Instance: InstanceExists, NothingToReplace: "over", UnschedulablePods: unschedulable}, None, NoticeOver},
		"an older NodeGroup without a policy":        {Need{Instance: InstanceGone}, Launch, MachineGone},
	} {
		if got := DecideWanted(tt.need); got.Outcome != tt.want || joinCodes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, joinCodes(got), tt.want, tt.why)
		}
	}
}

func TestI5InstanceIsLaunchedOnlyIfTheCloudDoesNot(t *testing.T) {
	for what, tt := range map[string]struct {
		bounds LaunchBounds
		want   Outcome
		why    string
	}{
		"no bounds":                      {LaunchBounds{Instance: InstanceExists, Size: 3, Present: 3}, Launch, ""},
		"below the size once it is gone": {LaunchBounds{Instance: InstanceGone, Size: 2, Present: 2}, Launch, ""},
		"the cloud fills the group up":   {LaunchBounds{Instance: InstanceGone, Size: 3, Present: 2}, LeaveToCloud, CloudReplaces},
		"the missing one is launched":    {LaunchBounds{Instance: InstanceGone, Size: 3, Present: 2, Provisioning: 1}, Launch, ""},
		"another launch is unanswered":   {LaunchBounds{Instance: InstanceGone, Size: 2, Present: 2, UnansweredLaunch: "a"}, Wait, LaunchPending},
		"more instances than the size":   {LaunchBounds{Instance: InstanceGone, Size: 2, Present: 3}, Launch, ""},
	} {
		if got := DecideLaunchNow(tt.bounds); got.Outcome != tt.want || joinCodes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, joinCodes(got), tt.want, tt.why)
		}
	}
}

// TestI5OpenLaunchInstanceCountsOnce has a group with a minimum of two. The node's own instance is the third.
func TestI5OpenLaunchInstanceCountsOnce(t *testing.T) {
	came := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "n"}}
	came.Status.Replacement = &v1alpha1.Replacement{State: v1alpha1.ReplacementReady, Instance: "a"}
	others := []v1alpha1.NodeRetirement{came}
	a, b := cloud.Instance{Name: "a", ProviderID: "a"}, cloud.Instance{Name: "b", ProviderID: "b"}
	own := cloud.Instance{Name: "own", ProviderID: "own"}
	stopped := cloud.Instance{Name: "c", ProviderID: "c", State: cloud.Stopped}
	for what, tt := range map[string]struct {
		size          int
		machines      []cloud.Instance
		coming, least int
		want          Outcome
	}{
		"enough instances exist":          {3, []cloud.Instance{a, b, own}, 0, 2, None},
		"too few instances exist":         {2, []cloud.Instance{a, own}, 0, 2, Launch},
		"one is launched":                 {3, []cloud.Instance{a, own}, 1, 2, None},
		"the launched one exists already": {3, []cloud.Instance{a, b, own}, 1, 3, Launch},
		"one is stopped":                  {3, []cloud.Instance{a, stopped, own}, 0, 2, Launch},
		"the size excludes a failed one":  {3, []cloud.Instance{a, b, own, {Name: "d", ProviderID: "d", State: cloud.Failed}}, 0, 2, None},
		"the cloud may launch one itself": {3, []cloud.Instance{a, own}, 0, 2, Launch},
	} {
		s := GroupSnapshot{Group: cloud.Group{Size: tt.size}, Instances: tt.machines}
		got := DecideIfAlreadyReplaced("n", others, s.WithoutInstance("own"), tt.coming, tt.least)
		check.Not(t, got.Outcome != tt.want, "%s: %s, want %s", what, got.Outcome, tt.want)
	}
}

// TestI5RecordOfAnEarlierVersionIsFinal has states without the instance.
func TestI5RecordOfAnEarlierVersionIsFinal(t *testing.T) {
	for _, state := range []v1alpha1.ReplacementState{"Ordering", "Ordered", "LeftToCloud", "Arrived"} {
		before := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "n"}}
		before.Status.Replacement = &v1alpha1.Replacement{State: state}
		check.Not(t, !state.IsFinal(), "%s is not final: its launch would be repeated", state)
		got := DecideIfAlreadyReplaced("n", []v1alpha1.NodeRetirement{before}, GroupSnapshot{}, 0, 0)
		check.Not(t, got.Outcome != None, "%s: another notice of the node comes to %s, want none", state, got.Outcome)
	}
}
