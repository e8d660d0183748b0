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

func TestANodeIsHeldByWhatSomebodyElseHasSetAndForAsLongAsItSays(t *testing.T) {
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
		{map[string]string{drainability.ScaleDownDisabled: "true", drainability.HoldsOff: "true"}, 0, ""},
		{map[string]string{drainability.ScaleDownDisabled: "true", drainability.HoldsOff: "true", "slipway.dev/do-not-evict": "true"}, 0, "slipway.dev/do-not-evict"},
		{map[string]string{drainability.Membership: `{"active":true,"evictable":false}`}, 0, drainability.Membership},
		{map[string]string{drainability.Detached: "true"}, 0, drainability.Detached},
	} {
		if got := HeldBy(tt.annotations, made, made.Add(tt.age)); got != tt.want {
			t.Errorf("%v at the age of %s: %q, want %q", tt.annotations, tt.age, got, tt.want)
		}
	}
}

// TestANodeThatIsNotHeldFromSlipwayLeaves has annotations on the node that do not keep it from leaving.
func TestANodeThatIsNotHeldFromSlipwayLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		spec  v1alpha1.NodeRetirementSpec
		world func(*sim)
	}{
		"Slipway keeps cluster-autoscaler off": {world: func(s *sim) {
			s.change("a", annotated(drainability.ScaleDownDisabled, "true", drainability.HoldsOff, "true"))
		}},
		"the protection is overridden": {
			spec:  v1alpha1.NodeRetirementSpec{OverrideProtection: &v1alpha1.OverrideProtection{By: "ops", Why: "bad disk"}},
			world: func(s *sim) { s.change("a", annotated("slipway.dev/do-not-evict", "true")) },
		},
		"the machine is gone": {world: func(s *sim) {
			s.change("a", annotated("slipway.dev/do-not-evict", "true"))
			s.lose("a")
			s.change("a", silent)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				tt.world(s)
				tt.spec.NodeName = "a"
				if tt.spec.OverrideProtection != nil {
					tt.spec.OverrideProtection.Until = metav1.NewTime(time.Now().Add(time.Hour))
				}
				s.retire(t, "r", tt.spec)
				if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}

// TestI1ANodeThatIsHeldOnceItHasBegunToLeaveIsGivenBack has somebody ask for a node after its retirement was admitted.
func TestI1ANodeThatIsHeldOnceItHasBegunToLeaveIsGivenBack(t *testing.T) {
	for key, value := range map[string]string{
		drainability.Detached: "true", drainability.Membership: `{"active":true,"evictable":false}`, "slipway.dev/do-not-evict": "true",
	} {
		for name, atLast := range map[string]bool{"while it is drained": false, "right before the Node is deleted": true} {
			t.Run(key+" "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, ctx context.Context) {
					s := ci(t)
					s.addPod("a", "web", func(p *simPod) { p.stops = time.Minute })
					s.addPod("a", "stuck", func(p *simPod) { p.denied = !atLast })
					s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
					hold := sync.OnceFunc(func() { s.change("a", alsoAnnotated(key, value)) })
					if atLast {
						s.atEach(func(moment, request string) error {
							if moment == "before" && request == "delete node" {
								hold()
							}
							return nil
						})
					} else {
						time.AfterFunc(20*time.Second, hold)
					}
					began := time.Now()
					rt := s.settled(ctx, s.controller(t), "r", 2*time.Hour)
					if rt.Status.Phase != v1alpha1.Aborted || EndedBy(rt) != ProtectedNode || !strings.Contains(rt.Status.Message, key) {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
					if took := time.Since(began); took > 2*time.Minute {
						t.Errorf("it took %s", took)
					}
					s.isAsItWas(t, "a")
				})
			})
		}
	}
}

// TestANodeThatIsHeldTooLateLeavesAllTheSame has somebody ask for a node that may not, or cannot, be kept any more.
func TestANodeThatIsHeldTooLateLeavesAllTheSame(t *testing.T) {
	for name, tt := range map[string]struct {
		spec  v1alpha1.NodeRetirementSpec
		world func(s *sim, hold func())
	}{
		"the protection is overridden": {
			spec:  v1alpha1.NodeRetirementSpec{OverrideProtection: &v1alpha1.OverrideProtection{By: "ops", Why: "bad disk"}},
			world: func(_ *sim, hold func()) { time.AfterFunc(20*time.Second, hold) },
		},
		"the machine is gone": {world: func(s *sim, hold func()) {
			time.AfterFunc(20*time.Second, func() {
				s.lose("a")
				s.change("a", silent)
				hold()
			})
		}},
		"the Node is being deleted": {world: func(s *sim, hold func()) {
			s.change("a", func(n *corev1.Node) { n.Finalizers = []string{"example.com/slow"} })
			s.onceNodeDeleted(func() {
				hold()
				time.AfterFunc(time.Minute, func() { s.unfinish("a") })
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", func(p *simPod) { p.stops = time.Minute })
				tt.world(s, func() { s.change("a", alsoAnnotated(drainability.Detached, "true")) })
				tt.spec.NodeName = "a"
				if tt.spec.OverrideProtection != nil {
					tt.spec.OverrideProtection.Until = metav1.NewTime(time.Now().Add(time.Hour))
				}
				s.retire(t, "r", tt.spec)
				if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}

// alsoAnnotated adds an annotation to those that a Node has.
func alsoAnnotated(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = value
	}
}
