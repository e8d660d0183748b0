package retirement

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const pool = "pool"

func newGroup() v1alpha1.NodeGroup {
	return v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "ci"},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector:      metav1.LabelSelector{MatchLabels: map[string]string{pool: "ci"}},
			Cloud:             v1alpha1.CloudGroup{Provider: "sim", Group: "ci"},
			DisruptionBudgets: []v1alpha1.DisruptionBudget{{Nodes: intstr.FromInt32(1)}},
		},
		Status: v1alpha1.NodeGroupStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason,
		}}},
	}
}

// newGroupOfTwo returns a sim with a group of two nodes.
func newGroupOfTwo(t *testing.T) *sim {
	s := newSim(t)
	s.groups = []v1alpha1.NodeGroup{newGroup()}
	s.addNode("a", map[string]string{pool: "ci"})
	s.addNode("b", map[string]string{pool: "ci"})
	return s
}

// runInVirtualTime runs a test in virtual time and stops its remaining goroutines.
func runInVirtualTime(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f(t, ctx)
		cancel()
		synctest.Wait()
	})
}

// withGroupOfTwo runs a test in virtual time with a group of the nodes a and b.
func withGroupOfTwo(t *testing.T, f func(t *testing.T, ctx context.Context, s *sim)) {
	t.Helper()
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) { f(t, ctx, newGroupOfTwo(t)) })
}

// groupOfTwo is withGroupOfTwo for [testing.T.Run].
func groupOfTwo(f func(t *testing.T, ctx context.Context, s *sim)) func(t *testing.T) {
	return func(t *testing.T) { t.Helper(); withGroupOfTwo(t, f) }
}

// requirePhase ends the test if the retirement has another phase, or another code as its first reason.
func requirePhase(t *testing.T, rt *v1alpha1.NodeRetirement, phase v1alpha1.Phase, code ...string) {
	t.Helper()
	must.Not(t, rt == nil, "the record is gone, want %s", phase)
	got := EarlyEndCode(rt)
	if !rt.Status.Phase.IsFinal() && len(rt.Status.Reasons) > 0 {
		got = rt.Status.Reasons[0].Code
	}
	must.Not(t, rt.Status.Phase != phase || len(code) > 0 && got != code[0], "%s %q: %s, want %s %q", rt.Status.Phase, got, rt.Status.Message, phase, code)
}

// outcome is how the retirement of a node ends. A node that is not retired must be as before.
type outcome struct {
	setup func(*sim)
	spec  v1alpha1.NodeRetirementSpec // of node a if it names none; an override without an end lasts an hour
	phase v1alpha1.Phase
	code  string
}

func (o outcome) check(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		if o.setup != nil {
			o.setup(s)
		}
		if o.spec.NodeName == "" {
			o.spec.NodeName = "a"
		}
		if p := o.spec.OverrideProtection; p != nil && p.Until.IsZero() {
			p.Until = metav1.NewTime(time.Now().Add(time.Hour))
		}
		s.createRetirement(t, "r", o.spec)
		before := s.getNode("a")
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
		requirePhase(t, rt, o.phase)
		if o.phase == v1alpha1.Succeeded {
			s.checkRetired(t, o.spec.NodeName)
			c := rt.Status.Captured
			check.Not(t, c == nil || c.ProviderID != "sim://"+o.spec.NodeName, "captured %+v", c)
			return
		}
		check.Is(t, o.code, EarlyEndCode(rt), rt.Status.Message)
		check.Not(t, s.deletionRequested["sim://a"], "the instance was deleted")
		if before == nil {
			return
		}
		s.checkNodeRestored(t, "a")
		if o.phase == v1alpha1.Refused {
			check.Is(t, before.ResourceVersion, s.getNode("a").ResourceVersion, "the Node was changed")
			check.Not(t, rt.Status.Message == "", "refused without a word")
		}
	})
}

func TestRetirementDeletesNodeAndInstance(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web-1", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Succeeded)
		s.checkRetired(t, "a")
		evicted, deleted := slices.Index(s.requests, "evict"), slices.Index(s.requests, "cloud delete")
		left := s.listPodsOn("a")
		check.Not(t, len(left) > 0 || evicted < 0 || deleted < evicted, "%d pods were deleted with the instance: %v", len(left), s.requests)
		times := rt.Status.Times
		for name, at := range map[string]*metav1.Time{
			"cordoned": times.Cordoned, "draining": times.Draining, "drained": times.Drained, "node deleted": times.NodeDeleted,
			"instance deleted": times.InstanceDeleted, "finished": times.Finished,
		} {
			check.Not(t, at == nil, "no time of %s", name)
		}
		c := rt.Status.Captured
		check.Not(t, c == nil || c.InstanceName != "vm-a" || c.Group != "ci", "captured %+v", c)
		t.Logf("%d requests: %s", len(s.requests), strings.Join(s.requests, ", "))
	})
}

// checkRetired checks that only this node and its instance are deleted.
func (s *sim) checkRetired(t *testing.T, node string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		check.Not(t, name == node, "Node %s is there", node)
	}
	check.Not(t, s.instances["sim://"+node] != nil, "the instance of %s exists", node)
	for id := range s.deletionRequested {
		check.Not(t, id != "sim://"+node, "I4: the instance %s was deleted", id)
	}
	for _, v := range s.violations {
		t.Error(v)
	}
}

// checkNodeRestored checks that a node is as it was before.
func (s *sim) checkNodeRestored(t *testing.T, node string) {
	t.Helper()
	n := s.getNode(node)
	must.Not(t, n == nil, "Node %s is gone", node)
	check.NoError(t, checkRestored(n))
	check.Not(t, n.Spec.Unschedulable, "I3: %s is still cordoned", node)
	s.mu.Lock()
	defer s.mu.Unlock()
	check.Not(t, s.deletionRequested["sim://"+node], "the instance of %s was deleted", node)
	for _, v := range s.violations {
		t.Error(v)
	}
}

func TestI10UnretirableNodeIsRefused(t *testing.T) {
	spec := v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested}
	with := func(change func(*v1alpha1.NodeRetirementSpec)) v1alpha1.NodeRetirementSpec {
		s := spec
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		spec  v1alpha1.NodeRetirementSpec
		setup func(*sim)
		code  string
	}{
		"no such node":               {with(func(s *v1alpha1.NodeRetirementSpec) { s.NodeName = "x" }), nil, NodeNotFound},
		"another UID":                {with(func(s *v1alpha1.NodeRetirementSpec) { s.NodeUID = "u" }), nil, NodeReplaced},
		"another instance":           {with(func(s *v1alpha1.NodeRetirementSpec) { s.ProviderID = "sim://b" }), nil, ProviderMismatch},
		"a foreign instance":         {with(func(s *v1alpha1.NodeRetirementSpec) { s.ProviderID = "aws:///x" }), nil, ForeignMachine},
		"no such group":              {with(func(s *v1alpha1.NodeRetirementSpec) { s.Group = "x" }), nil, GroupNotFound},
		"a protected pod":            {spec, func(s *sim) { s.addPod("a", "p", protectedPod) }, ProtectedPod},
		"a pod without a controller": {spec, func(s *sim) { s.addPod("a", "p", func(p *simPod) { p.OwnerReferences = nil }) }, ProtectedPod},
		"a control plane":            {spec, func(s *sim) { s.changeNode("a", withLabel("node-role.kubernetes.io/control-plane")) }, ControlPlane},
		"a control plane, by taint":  {spec, func(s *sim) { s.changeNode("a", withTaint("node-role.kubernetes.io/control-plane")) }, ControlPlane},
		"a protected node":           {spec, func(s *sim) { s.changeNode("a", withAnnotations("slipway.dev/do-not-evict", "true")) }, ProtectedNode},
		"protected for Karpenter":    {spec, func(s *sim) { s.changeNode("a", withAnnotations("karpenter.sh/do-not-disrupt", "true")) }, ProtectedNode},
		"protected from scale-down":  {spec, func(s *sim) { s.changeNode("a", withAnnotations(drainability.ScaleDownDisabled, "true")) }, ProtectedNode},
		"no provider ID":             {spec, func(s *sim) { s.changeNode("a", func(n *corev1.Node) { n.Spec.ProviderID = "" }) }, NoProviderID},
		"cluster-autoscaler":         {spec, func(s *sim) { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) }, BeingRemoved},
		"an unknown cloud":           {spec, func(s *sim) { s.groups[0].Spec.Cloud.Provider = "moon" }, UnknownCloud},
		"two groups":                 {spec, func(s *sim) { g := newGroup(); g.Name = "twin"; s.groups = append(s.groups, g) }, SeveralGroups},
		"a group not in force": {spec, func(s *sim) {
			s.groups[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Message: "no"}}
		}, GroupNotAccepted},
		"keepSize without support by the cloud": {v1alpha1.NodeRetirementSpec{NodeName: "a", KeepSize: true}, nil, CloudRefused},
		"an instance with another name":         {spec, func(s *sim) { s.instances["sim://a"].ComputerName = "z" }, NotConfirmed},
	} {
		t.Run(name, outcome{tt.setup, tt.spec, v1alpha1.Refused, tt.code}.check)
	}
}

// TestRefusalIsShownOnTheNode refuses before the capture, when the UID of the Node is known only from the spec.
func TestRefusalIsShownOnTheNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.changeNode("a", withLabel("node-role.kubernetes.io/control-plane"))
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", NodeUID: s.getNode("a").UID})
		c, emitted := s.newRecordedController(t)
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Minute), v1alpha1.Refused, ControlPlane)
		all := emitted()
		check.Len(t, 2, all) // on the NodeRetirement and on the Node
		for _, e := range all {
			check.Contains(t, e, "Warning RetirementRefused ControlPlane")
		}
	})
}

func withAnnotations(keysAndValues ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations = map[string]string{}
		for i := 0; i < len(keysAndValues); i += 2 {
			n.Annotations[keysAndValues[i]] = keysAndValues[i+1]
		}
	}
}

func withLabel(key string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = "" }
}

func withTaint(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func TestI5NodeWaitsAtMinSize(t *testing.T) {
	for message, least := range map[string]struct{ group, cloud int32 }{
		"the group's minSize is 2":      {2, 1},
		"the cloud's minimum size is 2": {1, 2},
	} {
		t.Run(message, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.MinSize, s.groups[0].Status.CloudMinSize = least.group, least.cloud
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 10*time.Minute)
			if rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "MinSize" || !strings.Contains(rt.Status.Message, message) {
				t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
			}
			s.checkNodeRestored(t, "a")
			s.addNode("c", map[string]string{pool: "ci"})
			requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour), v1alpha1.Succeeded)
		}))
	}
}

func TestI5BudgetOfOneRetiresOneNodeAtATime(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		for _, node := range []string{"a", "b"} {
			s.addPod(node, "web-"+node, nil)
			s.createRetirement(t, node, v1alpha1.NodeRetirementSpec{NodeName: node})
		}
		for range 1000 {
			away := 0
			for _, node := range []string{"a", "b"} {
				s.reconcileOnce(ctx, c, node)
				if n := s.getNode(node); n != nil && n.Spec.Unschedulable {
					away++
				}
			}
			if away > 1 {
				t.Fatal("both are cordoned at once")
			}
			time.Sleep(time.Millisecond)
		}
		for _, node := range []string{"a", "b"} {
			rt := s.getRetirement(node)
			check.Not(t, rt.Status.Phase != v1alpha1.Succeeded, "%s: %s %s", node, rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestDrainTimeoutRestoresNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 10 * time.Minute}
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		began := time.Now()
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Aborted, DrainTimeout)
		if !slices.ContainsFunc(rt.Status.Reasons, func(r v1alpha1.RetirementReason) bool { return r.Object == "pod ns/web" }) {
			t.Errorf("the pod is not named: %+v", rt.Status.Reasons)
		}
		took := time.Since(began)
		check.Not(t, took > 12*time.Minute, "it took %s", took)
		s.checkNodeRestored(t, "a")
	})
}

func TestI1ProtectedPodArrivingDuringDrainKeepsNode(t *testing.T) {
	outcome{setup: func(s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		time.AfterFunc(20*time.Second, func() { s.addPod("a", "late", protectedPod) })
	}, phase: v1alpha1.Aborted, code: ProtectedPod}.check(t)
}

// TestI1ProtectedPodAfterNodeDeletionKeepsInstance binds the pod where only the last check can find it.
func TestI1ProtectedPodAfterNodeDeletionKeepsInstance(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.afterNodeDeletion(func() {
			s.addPod("a", "late", protectedPod)
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute)
		if rt.Status.Phase != v1alpha1.NodeDeleted || rt.Status.Reasons[0].Code != ProtectedPod || s.deletionRequested["sim://a"] {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.removePod("uid-late")
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
		s.checkRetired(t, "a")
	})
}

func TestAnOverrideEvictsProtectedPodsUntilItEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		until time.Duration
		want  v1alpha1.Phase
	}{"in time": {time.Hour, v1alpha1.Succeeded}, "too late": {20 * time.Second, v1alpha1.Aborted}} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "p", func(p *simPod) { protectedPod(p); p.evictionDenied = true })
			time.AfterFunc(2*time.Minute, func() { s.mu.Lock(); defer s.mu.Unlock(); s.pods["uid-p"].evictionDenied = false })
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", OverrideProtection: &v1alpha1.OverrideProtection{
				By: "ops", Until: metav1.NewTime(time.Now().Add(tt.until)), Why: "bad disk",
			}})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
			requirePhase(t, rt, tt.want)
		}))
	}
}

func TestI6NodeRemovedByAnotherToolIsLeftAlone(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.AfterFunc(15*time.Second, func() { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) })
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Aborted, BeingRemoved)
		s.checkNodeRestored(t, "a")
		check.Len(t, 1, s.getNode("a").Spec.Taints)
	})
}

func TestI4ReregisteredNodeIsNotRetired(t *testing.T) {
	outcome{setup: func(s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		time.AfterFunc(15*time.Second, func() { s.addNode("a", map[string]string{pool: "ci"}) })
	}, phase: v1alpha1.Aborted, code: NodeReplaced}.check(t)
}

func TestI7InstanceGoneNeedsTwoProofs(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		delete(s.instances, "sim://a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Pending, Disagreement)
		check.Contains(t, rt.Status.Message, "instance sim://a: the cloud sim does not find it")
		s.checkNodeRestored(t, "a")
		s.changeNode("a", setUnready)
		if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.InstanceGone {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

// setUnready makes the Node's Ready condition Unknown.
func setUnready(n *corev1.Node) { setReadyStatus(corev1.ConditionUnknown)(n) }

// setReadyStatus sets the Node's Ready condition.
func setReadyStatus(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == corev1.NodeReady {
				n.Status.Conditions[i].Status = status
			}
		}
	}
}

func TestInstanceGoneDuringDrainIsCleanedUp(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = -1 })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		released := false
		time.AfterFunc(time.Minute, func() {
			s.mu.Lock()
			delete(s.instances, "sim://a")
			s.mu.Unlock()
			s.changeNode("a", setUnready)
		})
		c := s.newController(t)
		for range 100 {
			s.reconcileOnce(ctx, c, "r")
			if n := s.getNode("a"); n != nil && hasOutOfServiceTaint(mustToKubeapi(n)) && !released {
				released = true
				time.AfterFunc(5*time.Second, func() { s.removePod("uid-web") })
			}
			time.Sleep(time.Millisecond)
		}
		rt := s.getRetirement("r")
		check.Not(t, rt.Status.Phase != v1alpha1.Succeeded || !released, "%s: %s; out of service: %t", rt.Status.Phase, rt.Status.Message, released)
		s.checkRetired(t, "a")
	})
}

// TestInstanceGoneLateInDrainWaitsForPodRelease has a pod that the control plane does not delete. The Node is deleted
// after the release period, counted from the taint and not from the start of the drain.
func TestInstanceGoneLateInDrainWaitsForPodRelease(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = -1 })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 10*time.Minute)
		s.removeInstance("a")
		s.changeNode("a", setUnready)
		var mu sync.Mutex // the drain sends requests too
		var tainted time.Time
		s.interceptRequests(func(_, _ string) error {
			n := s.getNode("a")
			mu.Lock()
			defer mu.Unlock()
			if tainted.IsZero() && n != nil && hasOutOfServiceTaint(mustToKubeapi(n)) {
				tainted = time.Now()
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Succeeded)
		// The record has whole seconds.
		if had := rt.Status.Times.NodeDeleted.Sub(tainted); had < c.options.Intervals.PodRelease-time.Second || had > c.options.Intervals.PodRelease+time.Minute {
			t.Errorf("the pods had %s between the taint and the Node's deletion, want %s", had, c.options.Intervals.PodRelease)
		}
	})
}

func TestDeletedRetirementIsCancelledOnlyBeforeNodeDeletion(t *testing.T) {
	for name, late := range map[string]bool{"during the drain": false, "after the Node's deletion": true} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = !late })
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			cancelRetirement := func() { check.NoError(t, s.retirements.Delete(context.Background(), s.getRetirement("r"))) }
			if late {
				s.afterNodeDeletion(cancelRetirement)
			} else {
				time.AfterFunc(time.Minute, cancelRetirement)
			}
			must.Not(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour) != nil, "the record is still there")
			if late {
				s.checkRetired(t, "a")
			} else {
				s.checkNodeRestored(t, "a")
			}
		}))
	}
}

// TestCancelledRetirementRestartsCooldowns cancels a retirement that has begun, and one that waits.
func TestCancelledRetirementRestartsCooldowns(t *testing.T) {
	for name, tt := range map[string]struct {
		minSize int32
		want    []string
	}{
		"it has begun": {0, []string{"example.com/team"}},
		"it waits":     {2, []string{"example.com/team", IdleSinceAnnotation, UnderutilizedSinceAnnotation}},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.MinSize = tt.minSize
			s.changeNode("a", withAnnotations(IdleSinceAnnotation, "2026-01-01T00:00:00Z", UnderutilizedSinceAnnotation, "2026-01-01T00:00:00Z", "example.com/team", "ci"))
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
			s.reconcileUntilDone(ctx, s.newController(t), "r", time.Minute)
			must.NoError(t, s.retirements.Delete(ctx, s.getRetirement("r")))
			next := s.newController(t) // the first manager ends before it sees the deletion
			must.Not(t, s.reconcileUntilDone(ctx, next, "r", time.Minute) != nil, "the record is still there")
			s.checkNodeRestored(t, "a")
			check.Equal(t, tt.want, slices.Sorted(maps.Keys(s.getNode("a").Annotations)))
		}))
	}
}

// leftRequests is an API with the EvictionRequests of a crashed drain. Only their deletion is expected.
type leftRequests struct {
	drain.EvictionRequestAPI

	names []string
}

func (l *leftRequests) ListEvictionRequests(context.Context, string) (all []kubeapi.EvictionRequest, err error) {
	for _, name := range l.names {
		all = append(all, kubeapi.EvictionRequest{ObjectMeta: kubeapi.ObjectMeta{Name: name}})
	}
	return all, nil
}

func (l *leftRequests) DeleteEvictionRequest(_ context.Context, _, name string) error {
	l.names = slices.DeleteFunc(l.names, func(n string) bool { return n == name })
	return nil
}

func TestCancelledRetirementDeletesEvictionRequestsOfCrashedDrain(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "r", 5*time.Minute), v1alpha1.Draining)
		must.NoError(t, s.retirements.Delete(ctx, s.getRetirement("r")))
		left, next := &leftRequests{names: []string{"slipway-1", "slipway-2"}}, s.newController(t)
		next.options.EvictionRequests = left
		s.reconcileUntilDone(ctx, next, "r", time.Hour)
		s.checkNodeRestored(t, "a")
		check.Len(t, 0, left.names)
	})
}

func TestVolumeDetachWaitSurvivesRestart(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.Drain.WaitForDetach = true
		s.volumes = newAttachments("a")
		s.addPod("a", "db", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.reconcileUntilDone(ctx, s.newController(t), "r", 5*time.Minute)
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 5*time.Minute)
		requirePhase(t, rt, v1alpha1.Draining, VolumesAttached)
		s.mu.Lock() // the drain reads them
		s.volumes = nil
		s.mu.Unlock()
		requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour), v1alpha1.Succeeded)
	})
}

func TestFinishedRecordIsDeletedAfterTTL(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: &metav1.Duration{Duration: 10 * time.Minute}})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Hour)
		time.Sleep(9 * time.Minute)
		if s.reconcileOnce(ctx, c, "r"); s.getRetirement("r") == nil {
			t.Error("collected too early")
		}
		time.Sleep(2 * time.Minute)
		if s.reconcileOnce(ctx, c, "r"); s.getRetirement("r") != nil {
			t.Error("not collected")
		}
	})
}

// TestFinishedRecordIsDeletedAtOnceWithoutTTL sets the TTL to 0 in the manager or in the record.
func TestFinishedRecordIsDeletedAtOnceWithoutTTL(t *testing.T) {
	for name, tt := range map[string]struct {
		managers time.Duration
		own      *metav1.Duration
		kept     bool
	}{
		"by the manager":                     {0, nil, false},
		"by the record":                      {time.Hour, &metav1.Duration{}, false},
		"by the manager, but for the record": {0, &metav1.Duration{Duration: time.Hour}, true},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: tt.own})
			o := s.newController(t).options
			o.TTL = tt.managers
			s.reconcileUntilDone(ctx, New(o), "r", 10*time.Minute)
			if s.checkRetired(t, "a"); (s.getRetirement("r") != nil) != tt.kept {
				t.Errorf("the record is there: %t, want %t", !tt.kept, tt.kept)
			}
		}))
	}
}

func TestPlaceholderPodsDoNotKeepNode(t *testing.T) {
	outcome{setup: func(s *sim) {
		s.groups[0].Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"is": "placeholder"}}
		s.addPod("a", "p", func(p *simPod) {
			p.Labels = map[string]string{"is": "placeholder"}
			p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
		})
		s.afterNodeDeletion(func() { s.removePod("uid-p") }) // as the pod garbage collector does
	}, phase: v1alpha1.Succeeded}.check(t)
}

func TestThrottlingCloudIsNotCalledBeforeRetryAfter(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		var asked []time.Time
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud delete" {
				if asked = append(asked, time.Now()); len(asked) == 1 {
					return &cloud.ThrottledError{RetryAfter: 25 * time.Second}
				}
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c, emitted := s.newRecordedController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		s.checkRetired(t, "a")
		for _, e := range emitted() {
			check.Not(t, strings.Contains(e, CloudBusy), "throttling ends on its own, and wrote an Event: %s", e)
		}
		if len(asked) < 2 || asked[1].Sub(asked[0]) < 25*time.Second || rt.Status.Operation.Attempts != 1 {
			t.Errorf("asked at %v, and %d attempts are counted; want 1: a refusal in passing is none", asked, rt.Status.Operation.Attempts)
		}
	})
}

func TestThrottlingCloudIsCalledAgainWithinAnHour(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		throttled := false
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud delete" && !throttled {
				throttled = true
				return &cloud.ThrottledError{RetryAfter: 30 * 24 * time.Hour}
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "r", 2*time.Hour), v1alpha1.Succeeded)
		s.checkRetired(t, "a")
	})
}

func TestFailedDeletionsAreRetriedWithGrowingPauses(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.instances["sim://a"].failingDeletions = 4
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var at []time.Time
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud delete" {
				at = append(at, time.Now())
			}
			return nil
		})
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Succeeded || len(at) != 5 || rt.Status.Operation.Attempts != 5 {
			t.Fatalf("%s: %s, after %d deletions", rt.Status.Phase, rt.Status.Message, len(at))
		}
		for i, least := 1, c.options.Intervals.DeletionRetry; i < len(at); i, least = i+1, 2*least {
			pause := at[i].Sub(at[i-1])
			check.Not(t, pause < least, "deletion %d was requested %s after the previous one, want at least %s", i+1, pause, least)
		}
		s.checkRetired(t, "a")
	})
}

func TestEarlyReconcileDoesNotPollDeletion(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		polls := 0
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud status" {
				polls++
			}
			return nil
		})
		for range 600 { // in a minute
			must.NoError(t, check.Err(c.Reconcile(ctx, newRequest("r"))))
			time.Sleep(100 * time.Millisecond)
		}
		most := int(s.instances["sim://b"].deletionTakes / c.options.Intervals.CloudPoll)
		check.Not(t, polls == 0 || polls > most, "the operation was polled %d times, want at most %d", polls, most)
	})
}

func TestRecordChangedConcurrentlyIsNotDeleted(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: &metav1.Duration{Duration: 10 * time.Minute}})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Hour)
		time.Sleep(11 * time.Minute)
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "delete *v1alpha1.NodeRetirement" {
				rt := s.getRetirement("r")
				rt.Annotations = map[string]string{"example.com/keep": "true"}
				return s.retirements.Update(ctx, rt)
			}
			return nil
		})
		if s.reconcileOnce(ctx, c, "r"); s.getRetirement("r") == nil {
			t.Error("a record that has changed since it was read is deleted")
		}
	})
}

// inVirtualTime is runInVirtualTime for [testing.T.Run].
func inVirtualTime(f func(t *testing.T, ctx context.Context)) func(t *testing.T) {
	return func(t *testing.T) { t.Helper(); runInVirtualTime(t, f) }
}
