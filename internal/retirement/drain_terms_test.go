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

func (d *drainRegistry) isRunning(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[name] != nil
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
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
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
			})
		})
	}
}

// setOverride sets or removes the retirement's override.
func (s *sim) setOverride(ctx context.Context, t *testing.T, o *v1alpha1.OverrideProtection) {
	t.Helper()
	rt := s.getRetirement("r")
	rt.Spec.OverrideProtection = o
	if err := s.retirements.Update(ctx, rt); err != nil {
		t.Fatal(err)
	}
}

// TestNodeDeletionHeldByFinalizersIsNotUndone binds a pod that tolerates every taint when the Node's deletion cannot be
// undone.
func TestNodeDeletionHeldByFinalizersIsNotUndone(t *testing.T) {
	for name, tt := range map[string]struct {
		pod       func(*simPod)
		crashes   bool
		cancelled bool
		// blocking is the reason code while the retirement waits for the pod to end.
		blocking string
	}{
		"a pod that is evicted":                     {},
		"a pod that is evicted, after a crash":      {crashes: true},
		"a protected pod":                           {pod: protectedPod, blocking: ProtectedPod},
		"a pod whose PDB never allows its eviction": {pod: func(p *simPod) { p.evictionDenied = true }, blocking: DrainTimeout},
		"a pod, and the retirement is cancelled":    {cancelled: true},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.changeNode("a", setFinalizer)
				came := false
				s.afterNodeDeletion(func() {
					came = true
					s.addPod("a", "late", tt.pod)
				})
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.newController(t)
				for !came {
					s.reconcileOnce(ctx, c, "r")
				}
				if tt.crashes {
					c.drains.stopAndWait("r")
					c = s.newController(t)
				}
				if tt.cancelled {
					if err := s.retirements.Delete(ctx, s.getRetirement("r")); err != nil {
						t.Fatal(err)
					}
				}
				rt := s.reconcileUntilDone(ctx, c, "r", 2*time.Hour)
				if rt == nil || rt.Status.Phase.IsFinal() || s.deletionRequested["sim://a"] {
					t.Fatalf("over, or the instance is deleted, while the Node is there: %+v", rt)
				}
				if tt.blocking != "" && (len(rt.Status.Reasons) == 0 || rt.Status.Reasons[0].Code != tt.blocking) {
					t.Errorf("%s: %+v, want it held up by %s", rt.Status.Message, rt.Status.Reasons, tt.blocking)
				}
				s.removePod("uid-late")
				s.removeNodeFinalizers("a")
				if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); !tt.cancelled && rt.Status.Phase != v1alpha1.Succeeded || tt.cancelled && rt != nil {
					t.Errorf("%+v", rt)
				}
				s.checkRetired(t, "a")
			})
		})
	}
}

// TestI8ProtectedPodOnDeletedNodeKeepsInstance removes the finalizers while a protected pod runs on the node.
func TestI8ProtectedPodOnDeletedNodeKeepsInstance(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.changeNode("a", setFinalizer)
		s.afterNodeDeletion(func() {
			s.addPod("a", "late", protectedPod)
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Hour)
		s.removeNodeFinalizers("a")
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.NodeDeleted || s.deletionRequested["sim://a"] {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.removePod("uid-late")
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

// TestFailingCloudDelaysNoDrainOfUnreadyNode makes the cloud fail forever. The drain ends in time, and until then the
// failure is reported.
func TestFailingCloudDelaysNoDrainOfUnreadyNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
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
		if rt = s.reconcileUntilDone(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != DrainTimeout {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// setFinalizer adds a finalizer to the Node.
func setFinalizer(n *corev1.Node) { n.Finalizers = []string{"example.com/inventory"} }
