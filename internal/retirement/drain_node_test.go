package retirement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestI3StoppedDrainSendsNoRequests delays the API server's answer to an eviction.
func TestI3StoppedDrainSendsNoRequests(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		began, ended := make(chan struct{}), false
		s.interceptRequests(func(moment, request string) error {
			switch {
			case request != "evict":
			case moment == "before":
				close(began)
				time.Sleep(5 * time.Second)
			default:
				ended = true
			}
			return nil
		})
		c := s.newController(t)
		go s.reconcileUntilDone(ctx, c, "r", time.Second)
		<-began
		if c.drains.stopAndWait("r"); !ended {
			t.Error("stop returned before the eviction did")
		}
		time.Sleep(20 * time.Second)
	})
}

func (d *drainRegistry) isRunning(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[name] != nil
}

// TestRelabeledRetirementIsLeftToItsNewManager changes the labels during the drain. The cache then lacks the NodeRetirement.
func TestRelabeledRetirementIsLeftToItsNewManager(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		c.options.Selector = labels.SelectorFromSet(labels.Set{"team": "web"})
		setTeam := func(name string) {
			rt := s.getRetirement("r")
			rt.Labels = map[string]string{"team": name}
			must.NoError(t, s.retirements.Update(ctx, rt))
		}
		setTeam("web")
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Minute), v1alpha1.Draining)
		setTeam("db")
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cached get *v1alpha1.NodeRetirement" {
				return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("noderetirements").GroupResource(), "r")
			}
			return nil
		})
		result := must.Get(c.Reconcile(ctx, newRequest("r")))(t)
		check.Not(t, result.RequeueAfter != 0 || c.drains.isRunning("r"), "again after %s; the drain runs: %t", result.RequeueAfter, c.drains.isRunning("r"))
		setTeam("web")
		result = must.Get(c.Reconcile(ctx, newRequest("r")))(t)
		check.Not(t, result.RequeueAfter == 0, "its cache may lag behind, and it is forgotten")
	})
}

// TestI1WithdrawnOverrideProtectsPodAtOnce withdraws the override while a protected pod waits for its PDB.
func TestI1WithdrawnOverrideProtectsPodAtOnce(t *testing.T) {
	override := &v1alpha1.OverrideProtection{By: "ops", Until: metav1.NewTime(time.Now().Add(1000000 * time.Hour)), Why: "bad disk"}
	for name, tt := range map[string]struct {
		override *v1alpha1.OverrideProtection
		group    v1alpha1.DrainPolicy
		taken    func(context.Context, *testing.T, *sim)
	}{
		"a withdrawn override": {
			override: override,
			taken:    func(ctx context.Context, t *testing.T, s *sim) { s.setOverride(ctx, t, nil) },
		},
		"an override with an earlier end": {
			override: override,
			taken: func(ctx context.Context, t *testing.T, s *sim) {
				sooner := *override
				sooner.Until = metav1.NewTime(time.Now().Add(time.Second))
				s.setOverride(ctx, t, &sooner)
			},
		},
		"a group that let protected pods be evicted": {
			group: v1alpha1.DrainPolicy{Protection: v1alpha1.EvictProtected},
			taken: func(_ context.Context, _ *testing.T, s *sim) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.groups[0].Spec.Drain = v1alpha1.DrainPolicy{}
			},
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.Drain = tt.group
			s.addPod("a", "p", func(p *simPod) { protectedPod(p); p.evictionDenied = true })
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", OverrideProtection: tt.override})
			c := s.newController(t)
			if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Draining || !c.drains.isRunning("r") {
				t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
			}
			tt.taken(ctx, t, s)
			time.AfterFunc(time.Minute, func() { s.mu.Lock(); defer s.mu.Unlock(); s.allowEvictions() })
			rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
			if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != ProtectedPod || len(s.listPodsOn("a")) != 1 {
				t.Errorf("%s: %s; pods on the node: %d", rt.Status.Phase, rt.Status.Message, len(s.listPodsOn("a")))
			}
			s.checkNodeRestored(t, "a")
		}))
	}
}

// setOverride sets or removes the retirement's override.
func (s *sim) setOverride(ctx context.Context, t *testing.T, o *v1alpha1.OverrideProtection) {
	t.Helper()
	rt := s.getRetirement("r")
	rt.Spec.OverrideProtection = o
	must.NoError(t, s.retirements.Update(ctx, rt))
}

// TestNodeDeletionHeldByFinalizersIsNotUndone binds a pod that tolerates every taint when the Node's deletion cannot be
// undone.
func TestNodeDeletionHeldByFinalizersIsNotUndone(t *testing.T) {
	for name, tt := range map[string]struct {
		pod       func(*simPod)
		attached  bool // a volume of the pod stays attached
		crashes   bool
		cancelled bool
		reason    v1alpha1.Reason
		// blocking is the reason code while the retirement waits for the pod to end.
		blocking string
	}{
		"a pod that is evicted":                     {},
		"a pod that is evicted, after a crash":      {crashes: true},
		"a protected pod":                           {pod: protectedPod, blocking: ProtectedPod},
		"a pod whose PDB never allows its eviction": {pod: func(p *simPod) { p.evictionDenied = true }, blocking: DrainTimeout},
		"a pod that keeps the node":                 {pod: setRunnerLabels, reason: v1alpha1.Idle, blocking: KeepingPod},
		"a pod whose volume stays attached":         {attached: true, blocking: VolumesAttached},
		"a pod, and the retirement is cancelled":    {cancelled: true},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.changeNode("a", setFinalizer)
			s.setIdleRule()
			s.groups[0].Spec.Drain.WaitForDetach = tt.attached
			came := false
			s.afterNodeDeletion(func() {
				came = true
				s.addPod("a", "late", tt.pod)
				if tt.attached {
					s.setVolumes(newAttachments("a"))
				}
			})
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: tt.reason})
			c := s.newController(t)
			for !came {
				s.reconcileOnce(ctx, c, "r")
			}
			if tt.crashes {
				c.drains.stopAndWait("r")
				c = s.newController(t)
			}
			if tt.cancelled {
				must.NoError(t, s.retirements.Delete(ctx, s.getRetirement("r")))
			}
			rt := s.reconcileUntilDone(ctx, c, "r", 2*time.Hour)
			if rt == nil || rt.Status.Phase.IsFinal() || s.deletionRequested["sim://a"] {
				t.Fatalf("over, or the instance is deleted, while the Node is there: %+v", rt)
			}
			if tt.blocking != "" && (len(rt.Status.Reasons) == 0 || rt.Status.Reasons[0].Code != tt.blocking) {
				t.Errorf("%s: %+v, want it held up by %s", rt.Status.Message, rt.Status.Reasons, tt.blocking)
			}
			s.removePod("uid-late")
			s.setVolumes(nil)
			rt = s.reconcileUntilDone(ctx, c, "r", time.Minute)
			if tt.blocking != DrainTimeout { // the result of the drain stays
				check.Contains(t, rt.Status.Message, "waits for its finalizers (example.com/inventory)", "cannot be cancelled")
			}
			s.removeNodeFinalizers("a")
			if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); !tt.cancelled && rt.Status.Phase != v1alpha1.Succeeded || tt.cancelled && rt != nil {
				t.Errorf("%+v", rt)
			}
			s.checkRetired(t, "a")
		}))
	}
}

// TestI8ProtectedPodOnDeletedNodeKeepsInstance removes the finalizers while a protected pod runs on the node.
func TestI8ProtectedPodOnDeletedNodeKeepsInstance(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.changeNode("a", setFinalizer)
		s.afterNodeDeletion(func() {
			s.addPod("a", "late", protectedPod)
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Hour)
		s.removeNodeFinalizers("a")
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		must.Not(t, rt.Status.Phase != v1alpha1.NodeDeleted || s.deletionRequested["sim://a"], "%s: %s", rt.Status.Phase, rt.Status.Message)
		s.removePod("uid-late")
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
		s.checkRetired(t, "a")
	})
}

// TestFailingCloudDelaysNoDrainOfUnreadyNode makes the cloud fail forever. The drain ends in time, and until then the
// failure is reported.
func TestFailingCloudDelaysNoDrainOfUnreadyNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.changeNode("a", setUnready)
		s.interceptRequests(func(_, request string) error {
			if request == "cloud instance" {
				return errors.New("503")
			}
			return nil
		})
		before := s.countRequests()
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		if asked := s.countRequests() - before; asked > 500 || rt.Status.Reasons[0].Code != ReadFailed {
			t.Errorf("%d requests in a minute; %s: %s", asked, rt.Status.Phase, rt.Status.Message)
		}
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", 3*time.Hour), v1alpha1.Aborted, DrainTimeout)
	})
}

// setFinalizer adds a finalizer to the Node.
func setFinalizer(n *corev1.Node) { n.Finalizers = []string{"example.com/inventory"} }

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
		must.NoError(t, err)
		marks, err := p.newPodSelection()
		must.NoError(t, err)
		retired := "leaves"
		if len(on.protected) > 0 {
			retired = on.protected[0].Message
		}
		planned := runPlanner(t, pod, planner.Options{Now: now, PodRules: p.podPolicy(now), AddPodFacts: marks.AddFacts})
		check.Not(t, planned != retired, "the plan: %s; the retirement: %s", planned, retired)
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
	e := must.Get(planner.PlanEvacuation(newTwoNodeSnapshot(t, pod), "a", planner.LeastDisruption, o))(t)
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
	must.Not(t, err != nil || len(f.Pods) != 1, "%+v, %v", f, err)
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
		check.Not(t, got != c.planner, "%s: the planner decides %q, want %q", name, got, c.planner)
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

// withEmptyDir returns a change that puts the pod in a namespace and gives it an emptyDir.
func withEmptyDir(namespace string) func(*simPod) {
	return func(p *simPod) {
		p.Namespace = namespace
		p.Spec.Volumes = []kubeapi.Volume{{Name: "scratch", EmptyDir: &kubeapi.EmptyDirVolume{}}}
	}
}

func TestSystemLocalStorageDoesNotKeepNode(t *testing.T) {
	for name, tt := range map[string]struct {
		namespace string
		option    bool
		want      v1alpha1.Phase
	}{
		"kube-system":                    {metav1.NamespaceSystem, true, v1alpha1.Succeeded},
		"kube-system without the option": {metav1.NamespaceSystem, false, v1alpha1.Refused},
		"another namespace":              {"shop", true, v1alpha1.Refused},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", withEmptyDir(tt.namespace))
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			c.options.SystemLocalStorage = tt.option
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), tt.want)
		}))
	}
}

// TestVolumesOfSkippedPodsAreIgnoredAndUnknownVolumesTimeOut uses a DaemonSet pod with a claim.
func TestVolumesOfSkippedPodsAreIgnoredAndUnknownVolumesTimeOut(t *testing.T) {
	for name, tt := range map[string]struct {
		setup func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its volume is attached": {
			func(s *sim) { s.claims, s.volumes = map[string]string{"ns/data": "pv-1"}, newAttachments("a") }, v1alpha1.Succeeded, "",
		},
		"its claim is gone":                    {func(*sim) {}, v1alpha1.Succeeded, ""},
		"its claim is gone, the volume is not": {func(s *sim) { s.volumes = newAttachments("a") }, v1alpha1.Aborted, VolumesAttached},
		"its claim cannot be read": {func(s *sim) {
			s.interceptRequests(func(_, request string) error {
				if request == "get claim" {
					return errors.New("no answer")
				}
				return nil
			})
		}, v1alpha1.Aborted, DrainTimeout},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.Drain.WaitForDetach = true
			s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 10 * time.Minute}
			s.addPod("a", "agent", func(p *simPod) {
				p.OwnerReferences[0].Kind = "DaemonSet"
				volumes := `[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]`
				must.NoError(t, json.Unmarshal([]byte(volumes), &p.Spec.Volumes))
			})
			tt.setup(s)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			requirePhase(t, rt, tt.phase, tt.code)
			if tt.phase == v1alpha1.Aborted {
				s.checkNodeRestored(t, "a")
			}
		}))
	}
}
