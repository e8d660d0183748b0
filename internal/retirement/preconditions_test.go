package retirement

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// checkRefused checks that a retirement was refused for the reason, and that its node is unchanged.
func (s *sim) checkRefused(t *testing.T, rt *v1alpha1.NodeRetirement, code string) {
	t.Helper()
	requirePhase(t, rt, v1alpha1.Refused, code)
	s.checkNodeRestored(t, rt.Spec.NodeName)
	check.Is(t, 1, len(s.listPodsOn(rt.Spec.NodeName)))
}

func TestNodeReadyBeforeAdmissionIsNotRetired(t *testing.T) {
	for name, tt := range map[string]struct {
		last  string // the request at which the Node becomes Ready; empty is while the disruption budget is used up
		since func(s *sim) bool
	}{
		"while it waits for the budget": {},
		"during its admission":          {"list pods", func(*sim) bool { return true }},
		"while its instance is read":    {"cloud instance", func(s *sim) bool { return s.getRetirement("r").Status.Captured == nil }},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.makeNodeUnready("a")
			if tt.last == "" {
				s.makeNodeUnready("b")
			}
			s.interceptRequests(func(moment, request string) error {
				if moment == "before" && request == tt.last && tt.since(s) {
					s.reviveNode("a")
					if request == "cloud instance" {
						return errors.New("no answer")
					}
				}
				return nil
			})
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.NeverReady})
			c := s.newController(t)
			if tt.last == "" {
				requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Minute), v1alpha1.Pending)
				s.reviveNode("a")
			}
			s.addPod("a", "web", nil)
			time.AfterFunc(time.Minute, func() { s.reviveNode("b") })
			s.checkRefused(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), NodeReady)
		}))
	}
}

func TestNodeStillNotReadyIsRetired(t *testing.T) {
	outcome{
		setup: func(s *sim) { s.makeNodeUnready("a") }, spec: v1alpha1.NodeRetirementSpec{Reason: v1alpha1.NeverReady}, phase: v1alpha1.Succeeded,
	}.check(t)
}

func TestI7InstancePresentAtCaptureIsNotRetiredAsGone(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", nil)
		s.makeNodeUnready("a")
		away := true
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" && away {
				return errors.New("too many requests")
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.InstanceGone})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		must.Not(t, rt.Status.Captured != nil, "captured %+v", rt.Status.Captured)
		away = false
		s.checkRefused(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), InstanceRecovered)
	})
}

func TestNodeWithoutInstanceIsCleanedUp(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.makeNodeUnready("a")
		s.removeInstance("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.InstanceGone})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.InstanceGone || s.getNode("a") != nil {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestProtectingAnnotationAndItsDuration(t *testing.T) {
	made := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		annotations map[string]string
		age         time.Duration
		want        string
	}{
		{nil, 0, ""},
		{map[string]string{"slipway.dev/do-not-evict": "true"}, time.Hour, "slipway.dev/do-not-evict"},
		{map[string]string{"slipway.dev/do-not-evict": "false"}, 0, ""},
		{map[string]string{"slipway.dev/do-not-evict": ""}, 0, ""},
		{map[string]string{"karpenter.sh/do-not-disrupt": "1h"}, 59 * time.Minute, "karpenter.sh/do-not-disrupt"},
		{map[string]string{"karpenter.sh/do-not-disrupt": "1h"}, time.Hour, ""},
		{map[string]string{drainability.ScaleDownDisabled: "True"}, 0, drainability.ScaleDownDisabled},
		{map[string]string{drainability.ScaleDownDisabled: "1h"}, 0, ""},
		{map[string]string{drainability.ScaleDownDisabled: "true", drainability.ScaleDownDisabledBySlipway: "true"}, 0, ""},
		{map[string]string{drainability.ScaleDownDisabled: "true", drainability.ScaleDownDisabledBySlipway: "true", "slipway.dev/do-not-evict": "true"}, 0, "slipway.dev/do-not-evict"},
		{map[string]string{drainability.Membership: `{"active":true,"evictable":false}`}, 0, drainability.Membership},
		{map[string]string{drainability.Detached: "true"}, 0, drainability.Detached},
	} {
		check.Is(t, tt.want, FindProtectingAnnotation(tt.annotations, made, made.Add(tt.age)), tt.annotations, tt.age)
	}
}

// TestUnprotectedNodeIsRetired sets annotations that do not protect the node.
func TestUnprotectedNodeIsRetired(t *testing.T) {
	for name, tt := range map[string]struct {
		spec  v1alpha1.NodeRetirementSpec
		setup func(*sim)
	}{
		"Slipway disables scale-down by cluster-autoscaler": {setup: func(s *sim) {
			s.changeNode("a", withAnnotations(drainability.ScaleDownDisabled, "true", drainability.ScaleDownDisabledBySlipway, "true"))
		}},
		"the protection is overridden": {
			spec:  v1alpha1.NodeRetirementSpec{OverrideProtection: &v1alpha1.OverrideProtection{By: "ops", Why: "bad disk"}},
			setup: func(s *sim) { s.changeNode("a", withAnnotations("slipway.dev/do-not-evict", "true")) },
		},
		"the instance is gone": {setup: func(s *sim) {
			s.changeNode("a", withAnnotations("slipway.dev/do-not-evict", "true"))
			s.removeInstance("a")
			s.changeNode("a", setUnready)
		}},
	} {
		t.Run(name, outcome{setup: tt.setup, spec: tt.spec, phase: v1alpha1.Succeeded}.check)
	}
}

// TestI1NodeProtectedDuringRetirementIsRestored protects the node after its retirement was admitted.
func TestI1NodeProtectedDuringRetirementIsRestored(t *testing.T) {
	for key, value := range map[string]string{
		drainability.Detached: "true", drainability.Membership: `{"active":true,"evictable":false}`, "slipway.dev/do-not-evict": "true",
	} {
		for name, atLast := range map[string]bool{"while it is drained": false, "right before the Node is deleted": true} {
			t.Run(key+" "+name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
				s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
				s.addPod("a", "stuck", func(p *simPod) { p.evictionDenied = !atLast })
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				protect := sync.OnceFunc(func() { s.changeNode("a", addAnnotation(key, value)) })
				if atLast {
					s.interceptRequests(func(moment, request string) error {
						if moment == "before" && request == "delete node" {
							protect()
						}
						return nil
					})
				} else {
					time.AfterFunc(20*time.Second, protect)
				}
				began := time.Now()
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 2*time.Hour)
				if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != ProtectedNode || !strings.Contains(rt.Status.Message, key) {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				took := time.Since(began)
				check.Not(t, took > 2*time.Minute, "it took %s", took)
				s.checkNodeRestored(t, "a")
			}))
		}
	}
}

// TestNodeProtectedTooLateIsStillRetired protects the node when it cannot be kept any more.
func TestNodeProtectedTooLateIsStillRetired(t *testing.T) {
	for name, tt := range map[string]struct {
		spec  v1alpha1.NodeRetirementSpec
		setup func(s *sim, protect func())
	}{
		"the protection is overridden": {
			spec:  v1alpha1.NodeRetirementSpec{OverrideProtection: &v1alpha1.OverrideProtection{By: "ops", Why: "bad disk"}},
			setup: func(_ *sim, protect func()) { time.AfterFunc(20*time.Second, protect) },
		},
		"the instance is gone": {setup: func(s *sim, protect func()) {
			time.AfterFunc(20*time.Second, func() {
				s.removeInstance("a")
				s.changeNode("a", setUnready)
				protect()
			})
		}},
		"the Node is being deleted": {setup: func(s *sim, protect func()) {
			s.changeNode("a", func(n *corev1.Node) { n.Finalizers = []string{"example.com/slow"} })
			s.afterNodeDeletion(func() {
				protect()
				time.AfterFunc(time.Minute, func() { s.removeNodeFinalizers("a") })
			})
		}},
	} {
		setup := func(s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
			tt.setup(s, func() { s.changeNode("a", addAnnotation(drainability.Detached, "true")) })
		}
		t.Run(name, outcome{setup: setup, spec: tt.spec, phase: v1alpha1.Succeeded}.check)
	}
}

// addAnnotation adds an annotation and keeps the existing ones.
func addAnnotation(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = value
	}
}

// setIdleRule makes CI pods keep the nodes of the group.
func (s *sim) setIdleRule() {
	s.groups[0].Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"ci": "true"}}, Namespaces: []string{"ns"},
	}}
	s.groups[0].Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"placeholder": "true"}}
}

func setRunnerLabels(p *simPod) { p.Labels = map[string]string{"ci": "true"} }

func TestIdleRetirementIsRefusedIfPodKeepsNode(t *testing.T) {
	for name, tt := range map[string]struct {
		pod    func(*simPod)
		reason v1alpha1.Reason
		want   v1alpha1.Phase
	}{
		"a pod of the kind":            {setRunnerLabels, v1alpha1.Idle, v1alpha1.Refused},
		"a finished one":               {func(p *simPod) { setRunnerLabels(p); p.Status.Phase = "Succeeded" }, v1alpha1.Idle, v1alpha1.Succeeded},
		"one of another namespace":     {func(p *simPod) { setRunnerLabels(p); p.Namespace = "web" }, v1alpha1.Idle, v1alpha1.Succeeded},
		"a placeholder of the kind":    {func(p *simPod) { setRunnerLabels(p); p.Labels["placeholder"] = "true" }, v1alpha1.Idle, v1alpha1.Succeeded},
		"when another client wants it": {setRunnerLabels, v1alpha1.Requested, v1alpha1.Succeeded},
	} {
		setup := func(s *sim) {
			s.setIdleRule()
			s.addPod("a", "job", tt.pod)
		}
		t.Run(name, outcome{setup, v1alpha1.NodeRetirementSpec{Reason: tt.reason}, tt.want, KeepingPod}.check)
	}
}

func TestI1PodArrivingDuringIdleDrainKeepsNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.setIdleRule()
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		time.AfterFunc(20*time.Second, func() { s.addPod("a", "job", setRunnerLabels) })
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Aborted, KeepingPod)
		s.checkNodeRestored(t, "a")
		s.mu.Lock()
		defer s.mu.Unlock()
		check.Not(t, s.pods["uid-job"] == nil, "the pod was evicted")
	})
}

func TestInstanceGoneWhileWaitingIsCleanedUp(t *testing.T) {
	for name, bound := range map[string]func(*sim){
		"minimum":                             func(s *sim) { s.groups[0].Spec.MinSize = 2 },
		"budget":                              func(s *sim) { s.makeNodeUnready("b") },
		"the cloud protects it from deletion": func(s *sim) { s.instances["sim://a"].DeletionProtected = true },
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.stopsAfter = -1 })
			bound(s)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
			c := s.newController(t)
			s.reconcileUntilDone(ctx, c, "r", time.Minute)
			s.makeNodeUnready("a") // the cloud still has the instance
			if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.InstanceGone || IsInFlight(rt) {
				t.Fatalf("I7: %s: %s", rt.Status.Phase, rt.Status.Message)
			}
			s.removeInstance("a")
			rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
			check.Not(t, rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.InstanceGone, "%s: %s", rt.Status.Phase, rt.Status.Message)
			s.checkRetired(t, "a")
		}))
	}
}

// TestI7InstanceBackAfterRestartIsNotRetired kills the process after it saved that the instance is gone: before the
// admission, or right after it. The next process finds a Ready Node.
func TestI7InstanceBackAfterRestartIsNotRetired(t *testing.T) {
	for name, admitted := range map[string]bool{"before it is admitted": false, "once it is admitted": true} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
			s.makeNodeUnready("b") // it uses up the disruption budget, so that a is captured and waits
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			s.reconcileUntilDone(ctx, s.newController(t), "r", time.Minute)
			s.removeInstance("a")
			s.changeNode("a", setUnready)
			s.interceptRequests(func(_, _ string) error {
				if rt := s.getRetirement("r"); rt.Status.InstanceGone && (!admitted || IsInFlight(rt)) {
					return errKilled
				}
				return nil
			})
			processCtx, killProcess := context.WithCancel(ctx)
			s.reconcileOnce(processCtx, s.newController(t), "r")
			killProcess()
			synctest.Wait()
			s.interceptRequests(func(string, string) error { return nil })
			if rt := s.getRetirement("r"); !rt.Status.InstanceGone || IsInFlight(rt) != admitted {
				t.Fatalf("killed with the instance gone: %t, admitted: %t", rt.Status.InstanceGone, IsInFlight(rt))
			}
			s.reviveNode("a")
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			requirePhase(t, rt, v1alpha1.Aborted, InstanceRecovered)
			s.checkNodeRestored(t, "a")
		}))
	}
}
