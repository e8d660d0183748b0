package retirement

import (
	"context"
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
	"github.com/slipway-dev/slipway/internal/drainability"
)

const pool = "pool"

func group() v1alpha1.NodeGroup {
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

// ci is a group of two nodes.
func ci(t *testing.T) *sim {
	s := newSim(t)
	s.groups = []v1alpha1.NodeGroup{group()}
	s.addNode("a", map[string]string{pool: "ci"})
	s.addNode("b", map[string]string{pool: "ci"})
	return s
}

// inBubble runs a test in virtual time, and ends what it left running.
func inBubble(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f(t, ctx)
		cancel()
		synctest.Wait()
	})
}

func TestANodeThatMayLeaveIsGoneInTheEndWithItsMachine(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web-1", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
		evicted, deleted := slices.Index(s.requests, "evict"), slices.Index(s.requests, "cloud delete")
		if left := s.podsOn("a"); len(left) > 0 || evicted < 0 || deleted < evicted {
			t.Errorf("%d pods went with the machine: %v", len(left), s.requests)
		}
		times := rt.Status.Times
		for name, at := range map[string]*metav1.Time{
			"cordoned": times.Cordoned, "draining": times.Draining, "drained": times.Drained, "node deleted": times.NodeDeleted,
			"instance deleted": times.InstanceDeleted, "finished": times.Finished,
		} {
			if at == nil {
				t.Errorf("no time of %s", name)
			}
		}
		if c := rt.Status.Captured; c == nil || c.InstanceName != "vm-a" || c.Group != "ci" {
			t.Errorf("captured %+v", c)
		}
		t.Logf("%d requests: %s", len(s.requests), strings.Join(s.requests, ", "))
	})
}

// hasLeft checks that a node is gone with its machine, and no other is.
func (s *sim) hasLeft(t *testing.T, node string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		if name == node {
			t.Errorf("Node %s is there", node)
		}
	}
	if s.machines["sim://"+node] != nil {
		t.Errorf("the machine of %s is there", node)
	}
	for id := range s.touched {
		if id != "sim://"+node {
			t.Errorf("I4: the machine %s was deleted", id)
		}
	}
	for _, v := range s.violations {
		t.Error(v)
	}
}

// isAsItWas checks that a node was given back.
func (s *sim) isAsItWas(t *testing.T, node string) {
	t.Helper()
	n := s.node(node)
	if n == nil {
		t.Fatalf("Node %s is gone", node)
	}
	if err := restored(n); err != nil {
		t.Error(err)
	}
	if n.Spec.Unschedulable {
		t.Errorf("I3: %s is still cordoned", node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.touched["sim://"+node] {
		t.Errorf("the machine of %s was deleted", node)
	}
	for _, v := range s.violations {
		t.Error(v)
	}
}

// TestI10WhatCannotLeaveIsRefused also checks that nothing was half-applied.
func TestI10WhatCannotLeaveIsRefused(t *testing.T) {
	spec := v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested}
	with := func(change func(*v1alpha1.NodeRetirementSpec)) v1alpha1.NodeRetirementSpec {
		s := spec
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		spec  v1alpha1.NodeRetirementSpec
		world func(*sim)
		code  string
	}{
		"no such node":                {with(func(s *v1alpha1.NodeRetirementSpec) { s.NodeName = "x" }), nil, NodeNotFound},
		"another UID":                 {with(func(s *v1alpha1.NodeRetirementSpec) { s.NodeUID = "u" }), nil, NodeReplaced},
		"another machine":             {with(func(s *v1alpha1.NodeRetirementSpec) { s.ProviderID = "sim://b" }), nil, ProviderMismatch},
		"a foreign machine":           {with(func(s *v1alpha1.NodeRetirementSpec) { s.ProviderID = "aws:///x" }), nil, ForeignMachine},
		"no such group":               {with(func(s *v1alpha1.NodeRetirementSpec) { s.Group = "x" }), nil, GroupNotFound},
		"a protected pod":             {spec, func(s *sim) { s.addPod("a", "p", protectedPod) }, ProtectedPod},
		"a pod of nobody's":           {spec, func(s *sim) { s.addPod("a", "p", func(p *simPod) { p.OwnerReferences = nil }) }, ProtectedPod},
		"a control plane":             {spec, func(s *sim) { s.change("a", labelled("node-role.kubernetes.io/control-plane")) }, ControlPlane},
		"a protected node":            {spec, func(s *sim) { s.change("a", annotated("slipway.dev/do-not-evict", "true")) }, ProtectedNode},
		"held by Karpenter":           {spec, func(s *sim) { s.change("a", annotated("karpenter.sh/do-not-disrupt", "true")) }, ProtectedNode},
		"kept from being scaled down": {spec, func(s *sim) { s.change("a", annotated(drainability.ScaleDownDisabled, "true")) }, ProtectedNode},
		"no provider ID":              {spec, func(s *sim) { s.change("a", func(n *corev1.Node) { n.Spec.ProviderID = "" }) }, NoProviderID},
		"cluster-autoscaler":          {spec, func(s *sim) { s.change("a", tainted("ToBeDeletedByClusterAutoscaler")) }, BeingRemoved},
		"an unknown cloud":            {spec, func(s *sim) { s.groups[0].Spec.Cloud.Provider = "moon" }, UnknownCloud},
		"two groups":                  {spec, func(s *sim) { g := group(); g.Name = "twin"; s.groups = append(s.groups, g) }, SeveralGroups},
		"a group not in force": {spec, func(s *sim) {
			s.groups[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Message: "no"}}
		}, GroupNotAccepted},
		"a size that is not kept":   {v1alpha1.NodeRetirementSpec{NodeName: "a", KeepSize: true}, nil, CloudRefused},
		"a machine of another name": {spec, func(s *sim) { s.machines["sim://a"].ComputerName = "z" }, NotConfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				if tt.world != nil {
					tt.world(s)
				}
				s.retire(t, "r", tt.spec)
				before := s.node("a")
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Refused || len(rt.Status.Reasons) == 0 || rt.Status.Reasons[0].Code != tt.code {
					t.Errorf("%s %+v, want it refused with %s", rt.Status.Phase, rt.Status.Reasons, tt.code)
				}
				if rt.Status.Message == "" {
					t.Error("refused without a word")
				}
				if after := s.node("a"); after.ResourceVersion != before.ResourceVersion {
					t.Errorf("the Node was changed")
				}
				s.isAsItWas(t, "a")
			})
		})
	}
}

func annotated(keysAndValues ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations = map[string]string{}
		for i := 0; i < len(keysAndValues); i += 2 {
			n.Annotations[keysAndValues[i]] = keysAndValues[i+1]
		}
	}
}

func labelled(key string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = "" }
}

func tainted(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func TestI5AtTheMinimumANodeWaitsAndSaysWhichItIs(t *testing.T) {
	for whose, least := range map[string]struct{ group, cloud int32 }{
		"the group's minimum is 2":     {2, 1},
		"the cloud's own minimum is 2": {1, 2},
	} {
		t.Run(whose, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.groups[0].Spec.Minimum, s.groups[0].Status.CloudMinimum = least.group, least.cloud
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				rt := s.settled(ctx, s.controller(t), "r", 10*time.Minute)
				if rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "MinSize" || !strings.Contains(rt.Status.Message, whose) {
					t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
				}
				s.isAsItWas(t, "a")
				s.addNode("c", map[string]string{pool: "ci"})
				if rt = s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
			})
		})
	}
}

func TestI5OneBudgetLetsOneNodeLeaveAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		c := s.controller(t)
		for _, node := range []string{"a", "b"} {
			s.addPod(node, "web-"+node, nil)
			s.retire(t, node, v1alpha1.NodeRetirementSpec{NodeName: node})
		}
		for range 1000 {
			away := 0
			for _, node := range []string{"a", "b"} {
				s.turn(ctx, c, node)
				if n := s.node(node); n != nil && n.Spec.Unschedulable {
					away++
				}
			}
			if away > 1 {
				t.Fatal("both are cordoned at once")
			}
			time.Sleep(time.Millisecond)
		}
		for _, node := range []string{"a", "b"} {
			if rt := s.record(node); rt.Status.Phase != v1alpha1.Succeeded {
				t.Errorf("%s: %s %s", node, rt.Status.Phase, rt.Status.Message)
			}
		}
	})
}

func TestADrainThatTakesTooLongGivesTheNodeBack(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 10 * time.Minute}
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		began := time.Now()
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != DrainTimeout {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		if !slices.ContainsFunc(rt.Status.Reasons, func(r v1alpha1.RetirementReason) bool { return r.Object == "pod ns/web" }) {
			t.Errorf("the pod is not named: %+v", rt.Status.Reasons)
		}
		if took := time.Since(began); took > 12*time.Minute {
			t.Errorf("it took %s", took)
		}
		s.isAsItWas(t, "a")
	})
}

func TestI1AProtectedPodThatComesDuringTheDrainKeepsTheNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.stops = time.Minute })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.AfterFunc(20*time.Second, func() { s.addPod("a", "late", protectedPod) })
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != ProtectedPod {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.isAsItWas(t, "a")
	})
}

// TestI1AProtectedPodThatComesAfterTheNodeWentKeepsTheMachine binds it where only the very last look can find it.
func TestI1AProtectedPodThatComesAfterTheNodeWentKeepsTheMachine(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.onceNodeDeleted(func() {
			s.addPod("a", "late", protectedPod)
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		rt := s.settled(ctx, c, "r", 10*time.Minute)
		if rt.Status.Phase != v1alpha1.NodeDeleted || rt.Status.Reasons[0].Code != ProtectedPod || s.touched["sim://a"] {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.removePod("uid-late")
		if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

func TestAnOverrideEvictsProtectedPodsUntilItEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		until time.Duration
		want  v1alpha1.Phase
	}{"in time": {time.Hour, v1alpha1.Succeeded}, "too late": {20 * time.Second, v1alpha1.Aborted}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "p", func(p *simPod) { protectedPod(p); p.denied = true })
				time.AfterFunc(2*time.Minute, func() { s.mu.Lock(); defer s.mu.Unlock(); s.pods["uid-p"].denied = false })
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", OverrideProtection: &v1alpha1.OverrideProtection{
					By: "ops", Until: metav1.NewTime(time.Now().Add(tt.until)), Why: "bad disk",
				}})
				rt := s.settled(ctx, s.controller(t), "r", 3*time.Hour)
				if rt.Status.Phase != tt.want {
					t.Errorf("%s: %s, want %s", rt.Status.Phase, rt.Status.Message, tt.want)
				}
			})
		})
	}
}

func TestI6ANodeThatAnotherToolBeginsToRemoveIsLeftToIt(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.stops = time.Minute })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.AfterFunc(15*time.Second, func() { s.change("a", tainted("ToBeDeletedByClusterAutoscaler")) })
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != BeingRemoved {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.isAsItWas(t, "a")
		if taints := s.node("a").Spec.Taints; len(taints) != 1 {
			t.Errorf("taints %v, want the other tool's", taints)
		}
	})
}

func TestI4ANodeThatIsRegisteredAnewIsNotTheOneThatWasMeant(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.stops = time.Minute })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.AfterFunc(15*time.Second, func() { s.addNode("a", map[string]string{pool: "ci"}) })
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != NodeReplaced {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.isAsItWas(t, "a")
	})
}

func TestADeletionThatFailsIsAskedForAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.machines["sim://a"].fails = 3
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Operation.Attempts != 4 {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, rt.Status.Operation)
		}
		s.hasLeft(t, "a")
	})
}

func TestI7OneProofThatTheMachineIsGoneIsNotEnough(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		delete(s.machines, "sim://a")
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != Disagreement {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.isAsItWas(t, "a")
		s.change("a", silent)
		if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.MachineGone {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

// silent is a Node whose kubelet has not been heard of.
func silent(n *corev1.Node) { reports(corev1.ConditionUnknown)(n) }

// reports has a Node be Ready or not.
func reports(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == corev1.NodeReady {
				n.Status.Conditions[i].Status = status
			}
		}
	}
}

func TestAMachineThatGoesDuringTheDrainIsCleanedUpAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.stops = -1 })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		released := false
		time.AfterFunc(time.Minute, func() {
			s.mu.Lock()
			delete(s.machines, "sim://a")
			s.mu.Unlock()
			s.change("a", silent)
		})
		c := s.controller(t)
		for range 100 {
			s.turn(ctx, c, "r")
			if n := s.node("a"); n != nil && isOutOfService(small(n)) && !released {
				released = true
				time.AfterFunc(5*time.Second, func() { s.removePod("uid-web") })
			}
			time.Sleep(time.Millisecond)
		}
		rt := s.record("r")
		if rt.Status.Phase != v1alpha1.Succeeded || !released {
			t.Errorf("%s: %s; out of service: %t", rt.Status.Phase, rt.Status.Message, released)
		}
		s.hasLeft(t, "a")
	})
}

// TestAMachineThatGoesLateInTheDrainGivesItsPodsTimeToBeReleased has a pod that the control plane does not release: the
// Node goes when the time for that is over, counted from the taint and not from the beginning of the drain.
func TestAMachineThatGoesLateInTheDrainGivesItsPodsTimeToBeReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.stops = -1 })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		s.settled(ctx, c, "r", 10*time.Minute)
		s.lose("a")
		s.change("a", silent)
		var mu sync.Mutex // the drain makes requests too
		var tainted time.Time
		s.atEach(func(_, _ string) error {
			n := s.node("a")
			mu.Lock()
			defer mu.Unlock()
			if tainted.IsZero() && n != nil && isOutOfService(small(n)) {
				tainted = time.Now()
			}
			return nil
		})
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		// The record holds whole seconds.
		if had := rt.Status.Times.NodeDeleted.Sub(tainted); had < c.o.Pace.Release-time.Second || had > c.o.Pace.Release+time.Minute {
			t.Errorf("the pods had %s between the taint and the Node's deletion, want %s", had, c.o.Pace.Release)
		}
	})
}

func TestADeletedRetirementIsCalledOffWhileThereIsAWayBack(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.AfterFunc(time.Minute, func() {
			if err := s.records.Delete(context.Background(), s.record("r")); err != nil {
				t.Error(err)
			}
		})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}

func TestADeletedRetirementGoesOnWhenTheNodeIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.onceNodeDeleted(func() {
			if err := s.records.Delete(context.Background(), s.record("r")); err != nil {
				t.Error(err)
			}
		})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

func TestVolumesAreWaitedForAlsoByTheNextProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Drain.WaitForDetach = true
		s.volumes = attachments("a")
		s.addPod("a", "db", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.settled(ctx, s.controller(t), "r", 5*time.Minute)
		rt := s.settled(ctx, s.controller(t), "r", 5*time.Minute)
		if rt.Status.Phase != v1alpha1.Draining || rt.Status.Reasons[0].Code != VolumesAttached {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.mu.Lock() // the drain looks at them
		s.volumes = nil
		s.mu.Unlock()
		if rt = s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestARecordIsKeptForAWhileAndCollected(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: &metav1.Duration{Duration: 10 * time.Minute}})
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Hour)
		time.Sleep(9 * time.Minute)
		if s.turn(ctx, c, "r"); s.record("r") == nil {
			t.Error("collected too early")
		}
		time.Sleep(2 * time.Minute)
		if s.turn(ctx, c, "r"); s.record("r") != nil {
			t.Error("not collected")
		}
	})
}

// TestARecordIsNotKeptWhereNobodyWantsThat has the manager's own time be none, and the record's.
func TestARecordIsNotKeptWhereNobodyWantsThat(t *testing.T) {
	for name, tt := range map[string]struct {
		managers time.Duration
		own      *metav1.Duration
		kept     bool
	}{
		"by the manager":                     {0, nil, false},
		"by the record":                      {time.Hour, &metav1.Duration{}, false},
		"by the manager, but for the record": {0, &metav1.Duration{Duration: time.Hour}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: tt.own})
				o := s.controller(t).o
				o.TTL = tt.managers
				s.settled(ctx, New(o), "r", 10*time.Minute)
				if s.hasLeft(t, "a"); (s.record("r") != nil) != tt.kept {
					t.Errorf("the record is there: %t, want %t", !tt.kept, tt.kept)
				}
			})
		})
	}
}

func TestPlaceholdersKeepNoNode(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"is": "placeholder"}}
		s.addPod("a", "p", func(p *simPod) {
			p.Labels = map[string]string{"is": "placeholder"}
			p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
		})
		s.onceNodeDeleted(func() {
			s.removePod("uid-p") // as the pod garbage collector does
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestAThrottlingCloudIsLeftAloneForAsLongAsItWants(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		var asked []time.Time
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud delete" {
				if asked = append(asked, time.Now()); len(asked) == 1 {
					return &cloud.ThrottledError{After: 25 * time.Second}
				}
			}
			return nil
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		s.hasLeft(t, "a")
		if len(asked) < 2 || asked[1].Sub(asked[0]) < 25*time.Second || rt.Status.Operation.Attempts != 1 {
			t.Errorf("asked at %v, and %d attempts are counted; want 1: a refusal in passing is none", asked, rt.Status.Operation.Attempts)
		}
	})
}

func TestFailedDeletionsAreRetriedWithGrowingPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.machines["sim://a"].fails = 4
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var at []time.Time
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud delete" {
				at = append(at, time.Now())
			}
			return nil
		})
		c := s.controller(t)
		if rt := s.settled(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Succeeded || len(at) != 5 {
			t.Fatalf("%s: %s, after %d deletions", rt.Status.Phase, rt.Status.Message, len(at))
		}
		for i, least := 1, c.o.Pace.Retry; i < len(at); i, least = i+1, 2*least {
			if pause := at[i].Sub(at[i-1]); pause < least {
				t.Errorf("deletion %d was requested %s after the previous one, want at least %s", i+1, pause, least)
			}
		}
	})
}

func TestReconcilesInBetweenPollNoDeletion(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		polls := 0
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud status" {
				polls++
			}
			return nil
		})
		for range 600 { // in a minute
			if _, err := c.Reconcile(ctx, request("r")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if most := int(s.machines["sim://b"].takes / c.o.Pace.Cloud); polls == 0 || polls > most {
			t.Errorf("the operation was polled %d times, want at most %d", polls, most)
		}
	})
}

func TestARecordChangedMeanwhileIsNotCollected(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: &metav1.Duration{Duration: 10 * time.Minute}})
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Hour)
		time.Sleep(11 * time.Minute)
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "delete *v1alpha1.NodeRetirement" {
				rt := s.record("r")
				rt.Annotations = map[string]string{"example.com/keep": "true"}
				return s.records.Update(ctx, rt)
			}
			return nil
		})
		if s.turn(ctx, c, "r"); s.record("r") == nil {
			t.Error("a record that has changed since it was read is deleted")
		}
	})
}
