package retirement

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/drainability/drainabilitytest"
	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// TestDrainPlanAndRetirementAgree: if placement allowed a node that a retirement refuses, the node would be cordoned
// and restored repeatedly. The only difference of slipway drain is that it keeps the instance, so that a hostPath is
// not lost.
func TestDrainPlanAndRetirementAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		pod := drainabilitytest.DrawPod(t, now)
		group := &v1alpha1.NodeGroup{}
		group.Spec.Drain = v1alpha1.DrainPolicy{
			EvictUnmanaged: rapid.Bool().Draw(t, "evict unmanaged"), DeleteLocalStorage: rapid.Bool().Draw(t, "delete local storage"),
		}
		if rapid.Bool().Draw(t, "evict protected") {
			group.Spec.Drain.Protection = v1alpha1.EvictProtected
		}
		if rapid.Bool().Draw(t, "placeholders") {
			group.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "placeholder"}}
		}
		api := onePodAPI{pod: *drainabilitytest.ConvertViaJSON[kubeapi.Pod](t, pod)}
		p := &retirementScope{group: group, rt: &v1alpha1.NodeRetirement{}, controller: &Controller{options: Options{
			API: api, SystemLocalStorage: rapid.Bool().Draw(t, "delete local storage of kube-system"),
		}}}
		on, err := p.listAndClassifyPods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		marks, err := p.newPodSelection()
		if err != nil {
			t.Fatal(err)
		}
		retired := "leaves"
		if len(on.protected) > 0 {
			retired = on.protected[0].Message
		}
		if planned := runPlanner(t, pod, planner.Options{Now: now, PodRules: p.podPolicy(now), AddPodFacts: marks.AddFacts}); planned != retired {
			t.Errorf("the plan: %s; the retirement: %s", planned, retired)
		}
		if drained := runDryRun(t, api, p.podPolicy(now), marks); drained != retired {
			t.Errorf("drain --dry-run: %s; the retirement: %s", drained, retired)
		}
		stays := p.podPolicy(now).WithAction(podrules.RuleHostPath, podrules.Evict)
		if drained := runDryRun(t, api, stays, marks); drained != retired && !strings.Contains(retired, podrules.RuleHostPath.String()) {
			t.Errorf("drain --dry-run, node kept: %s; the retirement: %s", drained, retired)
		}
	})
}

func runPlanner(t *rapid.T, pod *corev1.Pod, o planner.Options) string {
	e, err := planner.PlanEvacuation(newTwoNodeSnapshot(t, pod), "a", planner.LeastDisruption, o)
	if err != nil {
		t.Fatal(err)
	}
	if e.IsFeasible() {
		return "leaves"
	}
	return fmt.Sprintf("%s (%s)", e.Refusals[0].Message, e.Refusals[0].Rule)
}

func runDryRun(t *rapid.T, api drain.API, policy podrules.Policy, marks grouppolicy.PodSelection) string {
	f, err := drain.Predict(t.Context(), api, drain.Options{
		Node: "a", Policy: &policy, DisableEviction: true,
		AddFacts: func(f *podrules.Facts, pod *kubeapi.Pod) { marks.AddFacts(f, pod.Namespace, pod.Labels) },
	}, false)
	if err != nil || len(f.Pods) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	if f.Pods[0].Action != podrules.RefuseDrain {
		return "leaves"
	}
	return fmt.Sprintf("%s (%s)", f.Pods[0].Decision.Detail, f.Pods[0].Decision.Rule)
}

// onePodAPI is an API server with one pod on every node.
type onePodAPI struct {
	API
	pod kubeapi.Pod
}

func (o onePodAPI) ListPodsOnNode(context.Context, string) ([]kubeapi.Pod, error) {
	return []kubeapi.Pod{o.pod}, nil
}

func (o onePodAPI) WatchPodsOnNode(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.Pod]) error {
	h.Replaced([]kubeapi.Pod{o.pod})
	<-ctx.Done()
	return ctx.Err()
}

func readyNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	return n
}

// TestDrainAndPlannerDecisionsForEachPodKind compares the decision of a voluntary drain, as "action rule", with that of
// the planner, as "outcome rule".
func TestDrainAndPlannerDecisionsForEachPodKind(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	yes := true
	of := func(kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "x", UID: "x", Controller: &yes}}
		}
	}
	annotated := func(pairs ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				p.Annotations[pairs[i]] = pairs[i+1]
			}
		}
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}} }
	}
	unowned := func(p *corev1.Pod) { p.OwnerReferences = nil }
	for name, c := range map[string]struct {
		changes        []func(*corev1.Pod)
		drain, planner string
	}{
		"ordinary":                {nil, "evict ordinary", "moves"},
		"mirror":                  {[]func(*corev1.Pod){annotated(corev1.MirrorPodAnnotationKey, "x"), of("Node")}, "leave mirror", "stays mirror"},
		"owned by a Node":         {[]func(*corev1.Pod){of("Node")}, "refuse unmanaged", "refuses unmanaged"},
		"DaemonSet":               {[]func(*corev1.Pod){of("DaemonSet")}, "leave daemonset", "stays daemonset"},
		"terminating":             {[]func(*corev1.Pod){func(p *corev1.Pod) { p.DeletionTimestamp = &p.CreationTimestamp }}, "await terminating", "stays terminating"},
		"finished":                {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}, "evict finished", ""},
		"protected":               {[]func(*corev1.Pod){annotated(drainability.DoNotEvict, "2h")}, "refuse protected", "refuses protected"},
		"protected and unmanaged": {[]func(*corev1.Pod){annotated(drainability.DoNotEvict, "true"), unowned}, "refuse protected", "refuses protected"},
		"unmanaged":               {[]func(*corev1.Pod){unowned}, "refuse unmanaged", "refuses unmanaged"},
		"unmanaged, safe":         {[]func(*corev1.Pod){unowned, annotated(drainability.SafeToEvict, "true")}, "evict unmanaged", "stays unmanaged"},
		"unmanaged with emptyDir": {[]func(*corev1.Pod){unowned, volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})}, "refuse unmanaged", "refuses unmanaged"},
		"emptyDir":                {[]func(*corev1.Pod){volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})}, "refuse local-storage", "refuses local-storage"},
		"emptyDir, safe":          {[]func(*corev1.Pod){volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), annotated(drainability.SafeLocalVolumes, "data")}, "evict local-storage", "moves"},
		"hostPath":                {[]func(*corev1.Pod){volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}})}, "refuse host-path", "refuses host-path"},
		"hostPath, safe":          {[]func(*corev1.Pod){volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}), annotated(drainability.SafeLocalVolumes, "data")}, "evict host-path", "moves"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
		pod.Spec.NodeName, pod.Status.Phase = "a", corev1.PodRunning
		for _, change := range append([]func(*corev1.Pod){of("ReplicaSet")}, c.changes...) {
			change(pod)
		}
		facts := fromkubeapi.PodFacts(drainabilitytest.ConvertViaJSON[kubeapi.Pod](t, pod))
		verdict := podrules.VoluntaryPolicy().Decide(&facts, now)
		if got := fmt.Sprintf("%s %s", verdict.Action, verdict.Rule); got != c.drain {
			t.Errorf("%s: the drain decides %q, want %q", name, got, c.drain)
		}
		setup := newTwoNodeSnapshot(t, pod)
		e, err := planner.PlanEvacuation(setup, "a", planner.LeastDisruption, planner.Options{Now: now})
		got := ""
		switch {
		case err != nil:
			t.Fatal(err)
		case len(e.Refusals) > 0:
			got = "refuses " + e.Refusals[0].Rule
		case len(e.DeletedPods) > 0:
			got = "stays " + e.DeletedPods[0].Rule
		case len(e.Moves) > 0:
			got = "moves"
		}
		if got != c.planner {
			t.Errorf("%s: the planner decides %q, want %q", name, got, c.planner)
		}
	}
}

// newTwoNodeSnapshot returns a snapshot of two nodes, with the pod on one of them.
func newTwoNodeSnapshot(t interface{ Fatal(...any) }, pod *corev1.Pod) *snapshot.Snapshot {
	setup := snapshot.New()
	for _, name := range []string{"a", "b"} {
		if err := setup.SetNode(readyNode(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := setup.SetPod(pod); err != nil {
		t.Fatal(err)
	}
	return setup
}
