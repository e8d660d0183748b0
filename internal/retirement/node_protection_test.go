package retirement

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability"
)

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
		if got := FindProtectingAnnotation(tt.annotations, made, made.Add(tt.age)); got != tt.want {
			t.Errorf("%v at the age of %s: %q, want %q", tt.annotations, tt.age, got, tt.want)
		}
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
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				tt.setup(s)
				tt.spec.NodeName = "a"
				if tt.spec.OverrideProtection != nil {
					tt.spec.OverrideProtection.Until = metav1.NewTime(time.Now().Add(time.Hour))
				}
				s.createRetirement(t, "r", tt.spec)
				if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "a")
			})
		})
	}
}

// TestI1NodeProtectedDuringRetirementIsRestored protects the node after its retirement was admitted.
func TestI1NodeProtectedDuringRetirementIsRestored(t *testing.T) {
	for key, value := range map[string]string{
		drainability.Detached: "true", drainability.Membership: `{"active":true,"evictable":false}`, "slipway.dev/do-not-evict": "true",
	} {
		for name, atLast := range map[string]bool{"while it is drained": false, "right before the Node is deleted": true} {
			t.Run(key+" "+name, func(t *testing.T) {
				runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
					s := newGroupOfTwo(t)
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
					if took := time.Since(began); took > 2*time.Minute {
						t.Errorf("it took %s", took)
					}
					s.checkNodeRestored(t, "a")
				})
			})
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
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
				tt.setup(s, func() { s.changeNode("a", addAnnotation(drainability.Detached, "true")) })
				tt.spec.NodeName = "a"
				if tt.spec.OverrideProtection != nil {
					tt.spec.OverrideProtection.Until = metav1.NewTime(time.Now().Add(time.Hour))
				}
				s.createRetirement(t, "r", tt.spec)
				if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "a")
			})
		})
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
