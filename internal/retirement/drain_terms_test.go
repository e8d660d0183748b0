package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func (d *drains) underWay(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[name] != nil
}

// TestI1WhatProtectsAPodHoldsFromTheMomentItIsSaid has a protected pod wait for its budget when the leave to evict it is
// taken back.
func TestI1WhatProtectsAPodHoldsFromTheMomentItIsSaid(t *testing.T) {
	override := &v1alpha1.OverrideProtection{By: "ops", Until: metav1.NewTime(time.Now().Add(1000000 * time.Hour)), Why: "bad disk"}
	for name, tt := range map[string]struct {
		override *v1alpha1.OverrideProtection
		group    v1alpha1.DrainPolicy
		taken    func(context.Context, *testing.T, *sim)
	}{
		"an override that is withdrawn": {
			override: override,
			taken:    func(ctx context.Context, t *testing.T, s *sim) { s.overrideWith(ctx, t, nil) },
		},
		"an override that ends earlier now": {
			override: override,
			taken: func(ctx context.Context, t *testing.T, s *sim) {
				sooner := *override
				sooner.Until = metav1.NewTime(time.Now().Add(time.Second))
				s.overrideWith(ctx, t, &sooner)
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
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.groups[0].Spec.Drain = tt.group
				s.addPod("a", "p", func(p *simPod) { protectedPod(p); p.denied = true })
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", OverrideProtection: tt.override})
				c := s.controller(t)
				if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Draining || !c.drains.underWay("r") {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				tt.taken(ctx, t, s)
				time.AfterFunc(time.Minute, func() { s.mu.Lock(); defer s.mu.Unlock(); s.allow() })
				rt := s.settled(ctx, c, "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != ProtectedPod || len(s.podsOn("a")) != 1 {
					t.Errorf("%s: %s; pods on the node: %d", rt.Status.Phase, rt.Status.Message, len(s.podsOn("a")))
				}
				s.isAsItWas(t, "a")
			})
		})
	}
}

// overrideWith gives the retirement another override, or none.
func (s *sim) overrideWith(ctx context.Context, t *testing.T, o *v1alpha1.OverrideProtection) {
	t.Helper()
	rt := s.record("r")
	rt.Spec.OverrideProtection = o
	if err := s.records.Update(ctx, rt); err != nil {
		t.Fatal(err)
	}
}

// TestANodeWhoseDeletionIsHeldByFinalizersIsNotGivenBack has a pod come that stands any taint, when nobody can take the
// Node's deletion back any more.
func TestANodeWhoseDeletionIsHeldByFinalizersIsNotGivenBack(t *testing.T) {
	for name, tt := range map[string]struct {
		pod     func(*simPod)
		crashes bool
		off     bool
		// held is whether the pod has the retirement wait until it ends by itself.
		held string
	}{
		"a pod that is evicted":                   {},
		"a pod that is evicted, after a crash":    {crashes: true},
		"a protected pod":                         {pod: protectedPod, held: ProtectedPod},
		"a pod whose budget never lets it go":     {pod: func(p *simPod) { p.denied = true }, held: DrainTimeout},
		"a pod, and the retirement is called off": {off: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.change("a", finalized)
				came := false
				s.onceNodeDeleted(func() {
					came = true
					s.addPod("a", "late", tt.pod)
				})
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.controller(t)
				for !came {
					s.turn(ctx, c, "r")
				}
				if tt.crashes {
					c.drains.stop("r")
					c = s.controller(t)
				}
				if tt.off {
					if err := s.records.Delete(ctx, s.record("r")); err != nil {
						t.Fatal(err)
					}
				}
				rt := s.settled(ctx, c, "r", 2*time.Hour)
				if rt == nil || rt.Status.Phase.Finished() || s.touched["sim://a"] {
					t.Fatalf("over, or the machine is touched, while the Node is there: %+v", rt)
				}
				if tt.held != "" && (len(rt.Status.Reasons) == 0 || rt.Status.Reasons[0].Code != tt.held) {
					t.Errorf("%s: %+v, want it held up by %s", rt.Status.Message, rt.Status.Reasons, tt.held)
				}
				s.removePod("uid-late")
				s.unfinish("a")
				if rt = s.settled(ctx, c, "r", time.Hour); !tt.off && rt.Status.Phase != v1alpha1.Succeeded || tt.off && rt != nil {
					t.Errorf("%+v", rt)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}

// TestI8APodOnANodeThatGoesForGoodKeepsTheMachine has the finalizers taken off while a protected pod runs there.
func TestI8APodOnANodeThatGoesForGoodKeepsTheMachine(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.change("a", finalized)
		s.onceNodeDeleted(func() {
			s.addPod("a", "late", protectedPod)
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Hour)
		s.unfinish("a")
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.NodeDeleted || s.touched["sim://a"] {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.removePod("uid-late")
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

// TestACloudThatFailsWhileTheNodeIsSilentHoldsNoDrainUp has it fail for ever: the drain ends in its time, and until then
// what fails is said.
func TestACloudThatFailsWhileTheNodeIsSilentHoldsNoDrainUp(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.change("a", silent)
		s.atEach(func(_, request string) error {
			if request == "cloud instance" {
				return errors.New("503")
			}
			return nil
		})
		before := s.asks()
		rt := s.settled(ctx, c, "r", time.Minute)
		if asked := s.asks() - before; asked > 500 || rt.Status.Reasons[0].Code != ReadFailed {
			t.Errorf("%d requests in a minute; %s: %s", asked, rt.Status.Phase, rt.Status.Message)
		}
		if rt = s.settled(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != DrainTimeout {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// finalized is a Node that goes only when somebody lets it.
func finalized(n *corev1.Node) { n.Finalizers = []string{"example.com/inventory"} }
