package replacement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func inBubble(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, t.Context()) })
}

// withSim runs a test in virtual time with a group of n instances.
func withSim(t *testing.T, n int, f func(t *testing.T, ctx context.Context, s *sim)) {
	t.Helper()
	inBubble(t, func(t *testing.T, ctx context.Context) { f(t, ctx, newSim(t, n)) })
}

// simOf is withSim for [testing.T.Run].
func simOf(n int, f func(t *testing.T, ctx context.Context, s *sim)) func(t *testing.T) {
	return func(t *testing.T) { t.Helper(); withSim(t, n, f) }
}

// preemptInstance adds a notice to a node and takes its instance away.
func (s *sim) preemptInstance(t *testing.T, node string) {
	t.Helper()
	s.addNotice(t, node, "Preempt")
	s.evictInstance(t, node)
}

// expect checks the state of a replacement and the total number of launched instances.
func (s *sim) expect(t *testing.T, node string, state v1alpha1.ReplacementState, code string, grown int) {
	t.Helper()
	r := s.replacementOfNode(t, node)
	if r.State != state || code != "" && !hasReason(r, code) || s.grown != grown {
		t.Fatalf("%s (%s), %d launched; want %s (%s) and %d", r.State, joinMessages(r.Reasons), s.grown, state, code, grown)
	}
}

func TestInstanceIsReplacedWhenGoneIfPodsFitElsewhere(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, RoomElsewhere, 0)
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, MachineGone, 1)
		r := s.replacementOfNode(t, "vm-0")
		check.Not(t, r.Instance != "sim://vm-3" || r.Launch == "", "%+v", r)
	})
}

func TestUnschedulablePodsReplaceTheInstanceBeforeItGoes(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, NoRoom, 1)
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, NoRoom, 1)
		check.Is(t, 3, s.size)
	})
}

func TestReplaceWhenNeededDecidesByThePodsAndTheMinimumSize(t *testing.T) {
	for name, tt := range map[string]struct {
		unschedulable []UnschedulablePod
		minSize       int32
		state         v1alpha1.ReplacementState
		code          string
		grown         int
	}{
		"pods need it":         {[]UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}, 0, v1alpha1.ReplacementReady, NoRoom, 1},
		"the minimum needs it": {nil, 3, v1alpha1.ReplacementReady, BelowMinimum, 1},
		"nothing needs it":     {nil, 2, v1alpha1.ReplacementNotNeeded, NobodyNeedsIt, 0},
	} {
		t.Run(name, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			s.group.Spec.Replacement, s.group.Spec.MinSize, s.unschedulable = v1alpha1.ReplaceWhenNeeded, tt.minSize, tt.unschedulable
			s.preemptInstance(t, "vm-0")
			s.run(ctx, s.newController(t), time.Minute)
			s.expect(t, "vm-0", tt.state, tt.code, tt.grown)
		}))
	}
}

// TestPodsOfADeletedNodeStillNeedTheirReplacement has no launch before the Node is deleted. After that its pods cannot be
// checked.
func TestPodsOfADeletedNodeStillNeedTheirReplacement(t *testing.T) {
	refused := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("used up")}
	for name, tt := range map[string]struct {
		before       func(*sim)
		after        func(s *sim, run func(time.Duration)) // after the Node is deleted
		waits, needs string
	}{
		"the cloud refuses the first launch": {
			before: func(s *sim) { s.refuse = refused },
			after:  func(s *sim, _ func(time.Duration)) { s.refuse = nil },
			waits:  string(cloud.NoQuota), needs: NoRoom,
		},
		"the NodeGroup is missing for a while": {
			before: func(s *sim) { s.refuse = refused },
			after: func(s *sim, run func(time.Duration)) {
				s.group.Name = "renamed"
				run(time.Minute)
				s.group.Name, s.refuse = groupName, nil
			},
			waits: string(cloud.NoQuota), needs: NoRoom,
		},
		"the cloud does not replace it after all": {
			before: func(s *sim) { s.restores = true },
			after:  func(s *sim, _ func(time.Duration)) { s.size-- },
			waits:  CloudReplaces, needs: NoRoom,
		},
		"the pods could not be checked": {
			before: func(s *sim) { s.placementErr = errors.New("cannot list the Pods") },
			after:  func(*sim, func(time.Duration)) {},
			waits:  RoomUnknown, needs: RoomUnknown,
		},
	} {
		t.Run(name, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			s.group.Spec.Replacement = v1alpha1.ReplaceWhenNeeded
			if tt.before(s); s.placementErr == nil {
				s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
			}
			c := s.newController(t)
			s.preemptInstance(t, "vm-0")
			s.run(ctx, c, time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, tt.waits, 0)
			must.NoError(t, s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-0"}}))
			s.unschedulable, s.placementErr = nil, nil
			tt.after(s, func(d time.Duration) { s.run(ctx, c, d) })
			s.run(ctx, c, 20*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, tt.needs, 1)
		}))
	}
}

func TestAutoscalingServesThePodsOfADeletedNode(t *testing.T) {
	for name, tt := range map[string]struct {
		policy  v1alpha1.ReplacementPolicy
		evicted bool
		state   v1alpha1.ReplacementState
	}{
		"WhenNeeded, and the instance is gone": {v1alpha1.ReplaceWhenNeeded, true, v1alpha1.ReplacementNotNeeded},
		"Always, and the instance exists":      {v1alpha1.ReplaceAlways, false, v1alpha1.ReplacementWaiting},
	} {
		t.Run(name, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			three := int32(3)
			s.group.Spec.Replacement, s.group.Spec.ScaleUp, s.group.Spec.MaxSize = tt.policy, &v1alpha1.ScaleUp{}, &three
			s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
			c := s.newController(t)
			s.addNotice(t, "vm-0", "Preempt")
			s.run(ctx, c, time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, AtMaximum, 0)
			if tt.evicted {
				s.evictInstance(t, "vm-0")
			}
			must.NoError(t, s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-0"}}))
			s.run(ctx, c, 20*time.Minute)
			s.expect(t, "vm-0", tt.state, "", 0)
			check.Contains(t, joinMessages(s.replacementOfNode(t, "vm-0").Reasons), "scale-up launches what the pending pods need")
		}))
	}
}

// TestLastCheckOfThePodsDecides has pods that fit on another node before the instance is gone.
func TestLastCheckOfThePodsDecides(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		three := int32(3)
		s.group.Spec.Replacement, s.group.Spec.MaxSize = v1alpha1.ReplaceWhenNeeded, &three
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, NoRoom, 0)
		s.unschedulable = nil
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, RoomElsewhere, 0)
		s.evictInstance(t, "vm-0")
		must.NoError(t, s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-0"}}))
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementNotNeeded, NobodyNeedsIt, 0)
	})
}

func TestI5AtMaxSizeReplacementWaitsUntilInstanceIsGone(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		three := int32(3)
		s.group.Spec.MaxSize = &three
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Terminate")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, AtMaximum, 0)
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
	})
}

func TestInstanceRestoredByTheCloudIsNotReplaced(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.restores = true
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.addNotice(t, "vm-1", "Preempt")
		s.evictInstance(t, "vm-0")
		s.evictInstance(t, "vm-1")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, CloudReplaces, 0)
		s.expect(t, "vm-1", v1alpha1.ReplacementWaiting, CloudReplaces, 0)
		s.joinInstance()
		s.joinInstance()
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 0)
		s.expect(t, "vm-1", v1alpha1.ReplacementReady, "", 0)
	})
}

func TestStoppedInstanceIsReplacedAndNotTreatedAsGone(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		stopped := s.machines["vm-0"]
		stopped.State = cloud.Stopped
		s.machines["vm-0"] = stopped
		s.setNodeNotReady(t, "vm-0")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, MachineKept, 1)
		check.Is(t, 3, s.size)
	})
}

func TestRefusedLaunchIsRepeatedAfterItsBackOff(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.refuse = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 20 cores is used up")}
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
		for range 4 { // four processes, one after the other
			s.run(ctx, c, 4*time.Minute+30*time.Second)
			s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, string(cloud.NoQuota), 0)
			c = s.newController(t)
		}
		asked := 0
		for _, r := range s.requests {
			if r == "cloud grow" {
				asked++
			}
		}
		if asked != 3 { // at 0, 5 and 15 minutes
			t.Errorf("asked %d times in 18 minutes, want 3", asked)
		}
		check.Contains(t, <-s.events.Events, "ReplacementFailed", "NoQuota")
		s.mu.Lock()
		s.refuse = nil
		s.mu.Unlock()
		s.run(ctx, c, 30*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
	})
}

// TestLaunchIsRecordedDespiteAConcurrentStatusWrite has another write between a launch and its answer.
func TestLaunchIsRecordedDespiteAConcurrentStatusWrite(t *testing.T) {
	for name, c := range map[string]struct {
		refuse error
		state  v1alpha1.ReplacementState
		code   string
		grown  int
	}{
		"accepted": {nil, v1alpha1.ReplacementLaunched, MachineGone, 1},
		"refused":  {&cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("used up")}, v1alpha1.ReplacementWaiting, string(cloud.NoQuota), 0},
	} {
		t.Run(name, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			s.refuse, s.slow = c.refuse, time.Hour
			p := s.newController(t)
			s.addNotice(t, "vm-0", "Preempt")
			s.reconcileAll(ctx, p)
			s.at = func(moment, request string) error {
				if moment != "after" || request != "cloud grow" {
					return nil
				}
				rt := s.retirementByNode(t)["vm-0"]
				rt.Status.Phase = v1alpha1.Cordoned
				return s.records.Status().Update(ctx, &rt)
			}
			s.evictInstance(t, "vm-0")
			s.reconcileAll(ctx, p)
			s.reconcileAll(ctx, p)
			s.expect(t, "vm-0", c.state, c.code, c.grown)
			check.Is(t, v1alpha1.Cordoned, s.retirementByNode(t)["vm-0"].Status.Phase)
		}))
	}
}

// TestLaunchIsKeptWhileItsGroupIsMissing deletes the group while the answer is unknown, and creates it again.
func TestLaunchIsKeptWhileItsGroupIsMissing(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.slow = time.Hour
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		s.addNotice(t, "vm-0", "Preempt")
		s.at = func(moment, request string) error {
			if moment == "after" && request == "cloud grow" {
				return errors.New("the answer is lost")
			}
			return nil
		}
		s.run(ctx, s.newController(t), 2*turns)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
		s.at = func(string, string) error { return nil }
		s.group.Name = "renamed"
		var log bytes.Buffer
		c := s.newController(t)
		c.options.Log = slog.New(slog.NewTextHandler(&log, nil))
		s.run(ctx, c, time.Minute)
		check.Is(t, 1, strings.Count(log.String(), "cannot follow a launch"))
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
		s.group.Name = groupName
		s.run(ctx, s.newController(t), 5*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
	})
}

// TestRepeatedWarningIsLoggedOnce finds the same problem in every reconcile, then none, and then the same problem again.
func TestRepeatedWarningIsLoggedOnce(t *testing.T) {
	outage := errors.New("etcdserver: request timed out")
	for message, tt := range map[string]struct {
		begin func(*testing.T, *sim)
		end   func(*sim)
	}{
		"cannot tell whether the pods fit on other nodes": {
			func(t *testing.T, s *sim) { s.placementErr = outage; s.addNotice(t, "vm-0", "Preempt") },
			func(s *sim) { s.placementErr = nil },
		},
		"cannot list the templates; launching the group's first": {
			func(t *testing.T, s *sim) {
				s.group.Spec.ScaleUp = &v1alpha1.ScaleUp{}
				s.refuse = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("used up")}
				s.preemptInstance(t, "vm-0")
			},
			func(s *sim) { s.group.Spec.ScaleUp = nil },
		},
	} {
		t.Run(message, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			var log bytes.Buffer
			c := s.newController(t)
			c.options.Log = slog.New(slog.NewTextHandler(&log, nil))
			tt.begin(t, s)
			placementErr, scaleUp := s.placementErr, s.group.Spec.ScaleUp
			s.run(ctx, c, 4*time.Minute)
			check.Is(t, 1, strings.Count(log.String(), message))
			tt.end(s)
			s.run(ctx, c, 10*time.Second)
			s.placementErr, s.group.Spec.ScaleUp = placementErr, scaleUp
			s.run(ctx, c, 10*time.Second)
			check.Is(t, 2, strings.Count(log.String(), message), "after it had ended")
		}))
	}
}

func TestRebootingInstanceIsReplacedOnlyWhenGone(t *testing.T) {
	for _, kind := range []string{"Reboot", "Redeploy"} {
		withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
			s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
			c := s.newController(t)
			s.addNotice(t, "vm-0", kind)
			s.addNotice(t, "vm-1", kind)
			s.setNodeNotReady(t, "vm-0") // it reboots
			s.run(ctx, c, time.Minute)
			if all := s.retirementByNode(t); len(all) != 0 || s.grown != 0 {
				t.Fatalf("%s: %v, %d launched", kind, all, s.grown)
			}
			s.evictInstance(t, "vm-1")
			s.run(ctx, c, time.Minute)
			if all := s.retirementByNode(t); len(all) != 1 || all["vm-1"].Spec.Reason != v1alpha1.Notice {
				t.Fatalf("%s: %v", kind, all)
			}
			s.expect(t, "vm-1", v1alpha1.ReplacementReady, "", 1)
		})
	}
}

func TestNoRetirementIsCreatedWithoutAnInstanceToRetire(t *testing.T) {
	for what, how := range map[string]func(*testing.T, *sim){
		"a freeze": func(t *testing.T, s *sim) { s.addNotice(t, "vm-0", "Freeze") },
		"a node without a group": func(t *testing.T, s *sim) {
			s.addNotice(t, "vm-0", "Preempt")
			s.group.Spec.NodeSelector.MatchLabels["pool"] = "x"
		},
		"a node that is being retired": func(t *testing.T, s *sim) { s.addNotice(t, "vm-0", "Preempt"); s.addRetirement(t, "vm-0") },
		"a node without an instance": func(t *testing.T, s *sim) {
			s.addNotice(t, "vm-0", "Preempt")
			s.changeNode(t, "vm-0", func(n *corev1.Node) { n.Spec.ProviderID = "" })
		},
	} {
		withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
			how(t, s)
			s.run(ctx, s.newController(t), 10*time.Second)
			for _, rt := range s.retirementByNode(t) {
				check.Not(t, rt.Spec.Notice != nil, "%s: there is %s", what, rt.Name)
			}
		})
	}
}

// TestNodeWithNoticesIsRequeuedUntilItCanRetire adds what is missing without an event of the Node.
func TestNodeWithNoticesIsRequeuedUntilItCanRetire(t *testing.T) {
	for missing, c := range map[string]struct{ without, with func(*testing.T, *sim) }{
		"its group": {
			func(_ *testing.T, s *sim) { s.group.Spec.NodeSelector.MatchLabels["pool"] = "x" },
			func(_ *testing.T, s *sim) { s.group.Spec.NodeSelector.MatchLabels["pool"] = groupName },
		},
		"its labels": {
			func(t *testing.T, s *sim) { s.changeNode(t, "vm-0", func(n *corev1.Node) { n.Labels = nil }) },
			func(t *testing.T, s *sim) {
				s.changeNode(t, "vm-0", func(n *corev1.Node) { n.Labels = map[string]string{"pool": groupName} })
			},
		},
		"its provider ID": {
			func(t *testing.T, s *sim) { s.changeNode(t, "vm-0", func(n *corev1.Node) { n.Spec.ProviderID = "" }) },
			func(t *testing.T, s *sim) {
				s.changeNode(t, "vm-0", func(n *corev1.Node) { n.Spec.ProviderID = "sim://vm-0" })
			},
		},
	} {
		t.Run(missing, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			s.addNotice(t, "vm-0", "Preempt")
			c.without(t, s)
			p := s.newController(t)
			look := func() time.Duration {
				return must.Get(NoticeRetirementReconciler{p}.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}}))(t).RequeueAfter
			}
			if again := look(); again == 0 || again > time.Minute || s.countNoticeRetirements(t) != 0 {
				t.Fatalf("reconciled again after %s, with %d records", again, s.countNoticeRetirements(t))
			}
			c.with(t, s)
			if look(); s.countNoticeRetirements(t) != 1 {
				t.Errorf("%d records, want one", s.countNoticeRetirements(t))
			}
		}))
	}
}

// TestUnansweredNoticeDelaysNoOther has an instance with a Terminate in addition to a Reboot.
func TestUnansweredNoticeDelaysNoOther(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.addNotice(t, "vm-0", "Reboot")
		s.changeNode(t, "vm-0", func(n *corev1.Node) {
			n.Annotations["cordon.slipway.dev/azure-e2"] = `{"owner":"azure-e2","since":"2026-01-01T00:00:01Z",` +
				`"state":{"notice":{"ID":"e2","Source":"azure","Type":"Preempt"}}}`
		})
		s.setNodeNotReady(t, "vm-0")
		s.at = func(moment, request string) error {
			if moment == "before" && request == "cloud instance" {
				return errors.New("the cloud does not answer")
			}
			return nil
		}
		_, err := NoticeRetirementReconciler{s.newController(t)}.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}})
		if err == nil || s.countNoticeRetirements(t) != 1 {
			t.Errorf("%v, with %d records; want it to be tried again, and the record of the Preempt", err, s.countNoticeRetirements(t))
		}
	})
}

// TestRefusedOverlappingGroupBlocksNoNotice has a younger group that selects the nodes of an older one.
func TestRefusedOverlappingGroupBlocksNoNotice(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		younger := *s.group.DeepCopy()
		younger.Name = "younger"
		younger.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.OverlapsGroup, Message: "overlaps " + groupName,
		}}
		s.beside = []v1alpha1.NodeGroup{younger}
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		if rt, ok := s.retirementByNode(t)["vm-0"]; !ok || rt.Spec.Group != groupName || s.grown != 1 {
			t.Errorf("%d records, %d instances launched, want one of each; of group %q", s.countNoticeRetirements(t), s.grown, rt.Spec.Group)
		}
	})
}

// TestNoticeIsRetriedOnceItsGroupIsAccepted has a group that is observed only after the retirement was created.
func TestNoticeIsRetriedOnceItsGroupIsAccepted(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.reconcileAll(ctx, c)
		s.group.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.CloudGroupNotFound, Message: "there is no set",
		}}
		s.refuseRetirement(t, "vm-0", retirement.GroupNotAccepted)
		s.run(ctx, c, time.Minute)
		if n := s.countNoticeRetirements(t); n != 1 {
			t.Fatalf("%d records while the group is not accepted, want the one", n)
		}
		s.group.Status.Conditions = nil
		s.run(ctx, c, time.Minute)
		if n := s.countNoticeRetirements(t); n != 2 {
			t.Fatalf("%d records once it is, want another", n)
		}
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, 5*time.Minute)
		check.Is(t, 1, s.grown)
	})
}

// addRetirement adds a person's retirement of a node.
func (s *sim) addRetirement(t *testing.T, node string) {
	t.Helper()
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: node}}
	must.NoError(t, s.records.Create(t.Context(), rt))
	rt.Status.Phase = v1alpha1.Pending
	rt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}}
	must.NoError(t, s.records.Status().Update(t.Context(), rt))
}

// updateAddedRetirement changes the retirement that [sim.addRetirement] has added.
func (s *sim) updateAddedRetirement(t *testing.T, how func(*v1alpha1.NodeRetirementStatus)) {
	t.Helper()
	rt := &v1alpha1.NodeRetirement{}
	must.NoError(t, s.records.Get(t.Context(), client.ObjectKey{Name: "mine"}, rt))
	how(&rt.Status)
	must.NoError(t, s.records.Status().Update(t.Context(), rt))
}

// countNoticeRetirements counts the retirements for notices.
func (s *sim) countNoticeRetirements(t *testing.T) (n int) {
	t.Helper()
	var all v1alpha1.NodeRetirementList
	must.NoError(t, s.records.List(t.Context(), &all))
	for i := range all.Items {
		if all.Items[i].Spec.Notice != nil {
			n++
		}
	}
	return n
}

func TestNoticeIsHandledBesideAPendingRetirement(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.addRetirement(t, "vm-0")
		s.updateAddedRetirement(t, func(m *v1alpha1.NodeRetirementStatus) { m.Conditions = nil })
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, s.newController(t), 10*time.Second)
		check.Is(t, 1, s.countNoticeRetirements(t))
	})
}

func TestNoticeIsHandledBesideTheRetirementOfAnEarlierNode(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.addRetirement(t, "vm-0")
		s.updateAddedRetirement(t, func(m *v1alpha1.NodeRetirementStatus) {
			m.Phase, m.Captured = v1alpha1.NodeDeleted, &v1alpha1.Captured{NodeUID: "earlier"}
		})
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, s.newController(t), 10*time.Second)
		check.Is(t, 1, s.countNoticeRetirements(t))
	})
}

func TestNodeWithTheNameOfARetiringOneStays(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.Replacement, s.group.Spec.MinSize = v1alpha1.ReplaceWhenNeeded, 2
		s.addRetirement(t, "vm-0")
		s.updateAddedRetirement(t, func(m *v1alpha1.NodeRetirementStatus) {
			m.Phase, m.Captured = v1alpha1.NodeDeleted, &v1alpha1.Captured{NodeUID: "earlier", Group: groupName, ProviderID: "sim://earlier"}
		})
		s.addNotice(t, "vm-1", "Preempt")
		s.run(ctx, s.newController(t), 10*time.Second)
		s.expect(t, "vm-1", v1alpha1.ReplacementWaiting, RoomElsewhere, 0)
	})
}

// TestNodeIsRequeuedWhileItsRetirementIsOpen has a notice that returns before the end of its retirement is written,
// without an event of the Node. Two retirements end in the same second.
func TestNodeIsRequeuedWhileItsRetirementIsOpen(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		look := func() time.Duration {
			return must.Get(NoticeRetirementReconciler{c}.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}}))(t).RequeueAfter
		}
		for n := range 6 {
			if made, open := look(), look(); made == 0 || open == 0 || s.countNoticeRetirements(t) != n+1 {
				t.Fatalf("again after %s and %s, with %d records, want %d", made, open, s.countNoticeRetirements(t), n+1)
			}
			s.refuseRetirement(t, "vm-0", retirement.NoticeOver)
		}
	})
}

func TestNoticeThatOutlastsARetirementIsHandledAgain(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 10*time.Second)
		s.refuseRetirement(t, "vm-0", retirement.AlreadyRetiring)
		s.addRetirement(t, "vm-0")
		s.run(ctx, c, time.Minute)
		check.Is(t, 1, s.countNoticeRetirements(t))
		s.updateAddedRetirement(t, func(m *v1alpha1.NodeRetirementStatus) { m.Phase = v1alpha1.Aborted })
		s.run(ctx, c, time.Minute)
		check.Is(t, 2, s.countNoticeRetirements(t))
	})
}

func TestEndedNoticeReplacesNothing(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 10*time.Second)
		s.endNotice(t, "vm-0")
		s.run(ctx, c, 10*time.Second)
		s.expect(t, "vm-0", v1alpha1.ReplacementNotNeeded, NoticeOver, 0)
	})
}

// endNotice removes a notice from a node, and ends its retirement.
func (s *sim) endNotice(t *testing.T, node string) {
	t.Helper()
	s.changeNode(t, node, func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
	s.refuseRetirement(t, node, retirement.NoticeOver)
}

func TestReturningNoticeIsHandledAgain(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		names := map[string]bool{}
		for range 3 {
			s.addNotice(t, "vm-0", "Preempt")
			s.run(ctx, c, 10*time.Second)
			names[s.waitForOpenRetirement(t, "vm-0").Name] = true
			s.endNotice(t, "vm-0")
			s.run(ctx, c, 10*time.Second)
		}
		check.Is(t, 3, len(names), names)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 10*time.Second)
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		r := s.waitForOpenRetirement(t, "vm-0").Status.Replacement
		check.Not(t, r == nil || r.State != v1alpha1.ReplacementReady || s.grown != 1, "%+v, %d launched; want it replaced", r, s.grown)
	})
}

// TestI5FlappingNoticeLaunchesOnce has a node with pods that fit nowhere else.
func TestI5FlappingNoticeLaunchesOnce(t *testing.T) {
	for name, slow := range map[string]time.Duration{"and it is there at once": 0, "and it is provisioning for long": 10 * time.Minute} {
		t.Run(name, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			s.slow = slow
			c := s.newController(t)
			s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
			for range 5 {
				s.addNotice(t, "vm-0", "Preempt")
				s.run(ctx, c, 10*time.Second)
				s.endNotice(t, "vm-0")
				s.run(ctx, c, 10*time.Second)
			}
			s.addNotice(t, "vm-0", "Preempt")
			s.run(ctx, c, 10*time.Second)
			r := s.waitForOpenRetirement(t, "vm-0").Status.Replacement
			must.Not(t, s.grown != 1 || r == nil || !hasReason(*r, AlreadyReplaced), "%d instances launched, want 1; %+v", s.grown, r)
			s.evictInstance(t, "vm-0")
			s.run(ctx, c, 2*time.Hour)
			if s.grown != 1 || s.size != 2 || len(s.machines) != 2 {
				t.Errorf("%d launched, the group is of %d instances and has %d, want 2 as before", s.grown, s.size, len(s.machines))
			}
			if r := s.waitForOpenRetirement(t, "vm-0").Status.Replacement; r.State != v1alpha1.ReplacementNotNeeded {
				t.Errorf("%s: %s", r.State, joinMessages(r.Reasons))
			}
		}))
	}
}

func TestInstanceIsReplacedAgainWhenItsReplacementIsGone(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 30*time.Second)
		s.endNotice(t, "vm-0")
		s.evictInstance(t, "vm-2") // one more than needed
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 30*time.Second)
		r := s.waitForOpenRetirement(t, "vm-0").Status.Replacement
		check.Not(t, r == nil || r.State != v1alpha1.ReplacementReady || s.grown != 2, "%+v, %d launched; want one more", r, s.grown)
	})
}

// TestI5ShrunkGroupStaysAtMinSize loses another instance after a replacement of an instance that stayed, so that no
// instance is surplus.
func TestI5ShrunkGroupStaysAtMinSize(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.MinSize = 2
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 30*time.Second)
		s.endNotice(t, "vm-0")
		s.evictInstance(t, "vm-1")
		must.NoError(t, s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-1"}}))
		s.run(ctx, c, 30*time.Second)
		s.preemptInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		if s.grown != 2 || len(s.machines) != 2 {
			t.Errorf("%d launched, and the group has %d instances: %+v; want its minimum of 2", s.grown, len(s.machines),
				s.waitForOpenRetirement(t, "vm-0").Status.Replacement)
		}
	})
}

// TestI5InstancesLostTogetherAreReplacedSeparately has a group that has shrunk since two nodes were replaced. Both
// nodes leave at once: the first is replaced again, and its instance also serves the second.
func TestI5InstancesLostTogetherAreReplacedSeparately(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.MinSize = 3
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.addNotice(t, "vm-1", "Preempt")
		s.run(ctx, c, 30*time.Second)
		s.endNotice(t, "vm-0")
		s.endNotice(t, "vm-1")
		must.Not(t, s.grown != 2, "%d launched, want 2", s.grown)
		s.evictInstance(t, "vm-2")
		must.NoError(t, s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-2"}}))
		s.slow = time.Minute
		s.addNotice(t, "vm-0", "Preempt")
		s.addNotice(t, "vm-1", "Preempt")
		s.run(ctx, c, 30*time.Second)
		s.evictInstance(t, "vm-0")
		s.evictInstance(t, "vm-1")
		s.run(ctx, c, 5*time.Minute)
		if s.grown != 3 || len(s.machines) != 3 {
			t.Errorf("%d launched, and the group has %d instances, want its minimum of 3: %+v, %+v", s.grown, len(s.machines),
				s.waitForOpenRetirement(t, "vm-0").Status.Replacement, s.waitForOpenRetirement(t, "vm-1").Status.Replacement)
		}
	})
}

// TestUnreplacedInstanceIsNotCountedAsAReplacement has two nodes that leave together. One of them was replaced before.
func TestUnreplacedInstanceIsNotCountedAsAReplacement(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.MinSize = 3
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 30*time.Second)
		s.endNotice(t, "vm-0")
		s.run(ctx, c, 30*time.Second)
		must.Not(t, s.grown != 1, "%d launched, want 1", s.grown)
		s.addNotice(t, "vm-0", "Preempt")
		s.addNotice(t, "vm-1", "Preempt")
		s.run(ctx, c, time.Minute)
		s.evictInstance(t, "vm-0")
		s.evictInstance(t, "vm-1")
		s.run(ctx, c, 5*time.Minute)
		if s.grown != 2 || len(s.machines) != 3 {
			t.Errorf("%d launched, and the group has %d instances, want its minimum of 3: %+v, %+v", s.grown, len(s.machines),
				s.waitForOpenRetirement(t, "vm-0").Status.Replacement, s.waitForOpenRetirement(t, "vm-1").Status.Replacement)
		}
	})
}

func TestI5TwoNoticesOfOneNodeLaunchOnce(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		s.addNotice(t, "vm-0", "Preempt")
		s.changeNode(t, "vm-0", func(n *corev1.Node) {
			n.Annotations["cordon.slipway.dev/azure-e2"] = `{"owner":"azure-e2","since":"2026-01-01T00:00:00Z",` +
				`"state":{"notice":{"ID":"e2","Source":"azure","Type":"Terminate"}}}`
		})
		s.run(ctx, c, time.Minute)
		var all v1alpha1.NodeRetirementList
		if err := s.records.List(ctx, &all); err != nil || len(all.Items) != 2 || s.grown != 1 {
			t.Errorf("%d records, %v, %d instances launched; want 2 records and 1 instance", len(all.Items), err, s.grown)
		}
	})
}

// TestStaleCacheDoesNotReviveAnEndedNotice has a cache that returns the old Node.
func TestStaleCacheDoesNotReviveAnEndedNotice(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 10*time.Second)
		was := &corev1.Node{}
		must.NoError(t, s.records.Get(ctx, client.ObjectKey{Name: "vm-0"}, was))
		s.endNotice(t, "vm-0")
		c.options.Client = interceptor.NewClient(s.records, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if node, ok := o.(*corev1.Node); ok && key.Name == was.Name {
					*node = *was.DeepCopy()
					return nil
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		s.run(ctx, c, 10*time.Second)
		var all v1alpha1.NodeRetirementList
		err := s.records.List(ctx, &all)
		check.Not(t, err != nil || len(all.Items) != 1, "%d records, %v; want the one", len(all.Items), err)
	})
}

// waitForOpenRetirement returns the unfinished retirement of a node.
func (s *sim) waitForOpenRetirement(t *testing.T, node string) v1alpha1.NodeRetirement {
	t.Helper()
	var all v1alpha1.NodeRetirementList
	must.NoError(t, s.records.List(t.Context(), &all))
	for _, rt := range all.Items {
		if rt.Spec.NodeName == node && !rt.Status.Phase.IsFinal() {
			return rt
		}
	}
	t.Fatalf("no retirement of %s is open: %+v", node, all.Items)
	return v1alpha1.NodeRetirement{}
}

// errCut is the error of a request at which the process ends.
var errCut = errors.New("the process has ended")

// TestI8CrashAtAnyRequestLaunchesNothingTwice ends the manager before and after each write, for two instances that go
// one after the other, and starts the next manager. A crash at a read is the same as a crash before the next write.
func TestI8CrashAtAnyRequestLaunchesNothingTwice(t *testing.T) {
	for name, early := range map[string]bool{"once they are gone": false, "before they go": true} {
		t.Run(name, func(t *testing.T) {
			n := replaceTwo(t, early, 0, "")
			t.Logf("%d changes", n)
			if n < 8 { // two retirements created, launched, recorded as launched and as ready
				t.Fatalf("%d changes, want 8 or more", n)
			}
			for at := 1; at <= n; at++ {
				for _, moment := range []string{"before", "after"} {
					t.Run(fmt.Sprint(at, moment), func(t *testing.T) { replaceTwo(t, early, at, moment) })
				}
			}
		})
	}
}

// areReplacementsReady reports whether both replacements are ready.
func (s *sim) areReplacementsReady(t *testing.T) bool {
	n := 0
	for _, rt := range s.retirementByNode(t) {
		if r := rt.Status.Replacement; r != nil && r.State == v1alpha1.ReplacementReady {
			n++
		}
	}
	return n == 2
}

// isWrite reports whether a request changes something.
func isWrite(request string) bool {
	return request == "cloud grow" || strings.HasPrefix(request, "create ") || strings.HasPrefix(request, "update ")
}

// replaceTwo crashes at a write, counted from 1, and returns how many writes there were.
func replaceTwo(t *testing.T, early bool, at int, moment string) (made int) {
	t.Helper()
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		four := int32(4)
		s.group.Spec.MaxSize, s.slow = &four, 20*time.Second
		if early {
			s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		}
		c := s.newController(t)
		crashed := false
		s.at = func(m, request string) error {
			if crashed {
				return errCut // until the next one starts
			}
			if isWrite(request) && m == "before" {
				made++
			}
			if m == moment && isWrite(request) && made == at {
				crashed = true
				return errCut
			}
			return nil
		}
		live := func(during time.Duration) {
			for end := time.Now().Add(during); time.Now().Before(end) && !s.areReplacementsReady(t); time.Sleep(turns) {
				s.reconcileAll(ctx, c)
				if crashed {
					s.at, crashed = func(string, string) error { return nil }, false
					c = s.newController(t)
				}
				must.Not(t, s.size > int(four), "I5: the group is of %d instances", s.size)
			}
		}
		s.addNotice(t, "vm-0", "Preempt")
		live(5 * time.Second)
		s.addNotice(t, "vm-1", "Terminate")
		live(10 * time.Second)
		s.evictInstance(t, "vm-0")
		live(7 * time.Second)
		s.evictInstance(t, "vm-1")
		live(10 * time.Minute)
		for _, node := range []string{"vm-0", "vm-1"} {
			s.expect(t, node, v1alpha1.ReplacementReady, "", 2)
		}
		if one, two := s.replacementOfNode(t, "vm-0").Instance, s.replacementOfNode(t, "vm-1").Instance; one == two {
			t.Errorf("both are replaced by %s", one)
		}
		check.Not(t, s.size != 3 || len(s.machines) != 3, "the group is of %d instances and has %d, want 3", s.size, len(s.machines))
	})
	return made
}

func TestLostAnswerIsNotLaunchedTwice(t *testing.T) {
	for what, reached := range map[string]bool{"it reached the cloud": true, "it did not": false} {
		withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
			s.slow = 30 * time.Second
			c := s.newController(t)
			s.preemptInstance(t, "vm-0")
			lost := false
			s.at = func(moment, request string) error {
				if request == "cloud grow" && !lost && (moment == "after") == reached {
					lost = true
					return errors.New("connection reset")
				}
				return nil
			}
			s.run(ctx, c, 10*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
			asked := slices.DeleteFunc(slices.Clone(s.requests), func(r string) bool { return r != "cloud grow" })
			want := map[bool]int{true: 1, false: 2}[reached]
			check.Not(t, len(asked) != want, "%s: the cloud was asked %d times, want %d", what, len(asked), want)
		})
	}
}

// TestI5SizeConflictLaunchesOnce has a cloud that reports a changed size or asks for a pause. It has not accepted the
// launch, and an instance that appears meanwhile belongs to another client.
func TestI5SizeConflictLaunchesOnce(t *testing.T) {
	for what, others := range map[string]int{"nothing has come": 0, "another has launched a machine": 1} {
		t.Run(what, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			s.slow = 30 * time.Second
			c := s.newController(t)
			s.preemptInstance(t, "vm-0")
			told := false
			s.at = func(moment, request string) error {
				if request != "cloud grow" || moment != "before" || told {
					return nil
				}
				told = true
				s.mu.Lock()
				defer s.mu.Unlock()
				for range others {
					s.size++
					s.joinInstance()
				}
				return &cloud.ThrottledError{RetryAfter: time.Second, Err: errors.New("412 PreconditionFailed")}
			}
			s.run(ctx, c, 10*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
			want := 2 + others
			check.Not(t, s.size != want || len(s.machines) != want, "the group is of %d instances and has %d, want %d", s.size, len(s.machines), want)
		}))
	}
}

func TestThrottledReplacementIsRetriedWithinAnHour(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
		s.at = func(moment, request string) error {
			if request == "cloud group" && moment == "before" {
				return &cloud.ThrottledError{RetryAfter: 30 * 24 * time.Hour, Err: errors.New("429")}
			}
			return nil
		}
		s.run(ctx, c, 10*time.Second)
		rt := s.retirementByNode(t)["vm-0"]
		result, err := c.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}})
		check.NoError(t, err)
		check.Is(t, time.Hour, result.RequeueAfter)
	})
}

func (s *sim) refuseRetirement(t *testing.T, node, code string) {
	t.Helper()
	rt, now := s.waitForOpenRetirement(t, node), metav1.Now()
	rt.Status.Phase, rt.Status.Times.Finished = v1alpha1.Refused, &now
	rt.Status.Reasons = []v1alpha1.RetirementReason{{Code: code}}
	must.NoError(t, s.records.Status().Update(t.Context(), &rt))
}

func TestEndedRetirementReplacesOnlyAGoneInstance(t *testing.T) {
	for _, code := range []string{retirement.NotConfirmed, retirement.BeingRemoved, retirement.SeveralGroups} {
		t.Run(code, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			c := s.newController(t)
			s.addNotice(t, "vm-0", "Preempt")
			s.run(ctx, c, 10*time.Second)
			s.refuseRetirement(t, "vm-0", code)
			s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
			s.run(ctx, c, 10*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, RetirementEnded, 0)
			s.evictInstance(t, "vm-0")
			s.run(ctx, c, time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
		}))
	}
}

// TestReRegisteredNodeDoesNotStandForTheOldOne has a cluster without room for the node's pods.
func TestReRegisteredNodeDoesNotStandForTheOldOne(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 10*time.Second)
		node := &corev1.Node{}
		must.NoError(t, s.records.Get(ctx, client.ObjectKey{Name: "vm-0"}, node))
		must.NoError(t, s.records.Delete(ctx, node))
		node.UID, node.ResourceVersion, node.Annotations = "uid-anew", "", nil
		must.NoError(t, s.records.Create(ctx, node))
		s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, "", 0)
		s.refuseRetirement(t, "vm-0", retirement.NodeReplaced)
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementNotNeeded, "", 0)
	})
}

func TestUnacceptedGroupGetsNoReplacement(t *testing.T) {
	refused := []metav1.Condition{{
		Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.OverlapsGroup, Message: "overlaps with another",
	}}
	for name, before := range map[string]bool{"refused before the notice": true, "refused after it": false} {
		t.Run(name, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			c := s.newController(t)
			if before {
				s.group.Status.Conditions = refused
			}
			s.addNotice(t, "vm-0", "Preempt")
			s.run(ctx, c, 10*time.Second)
			s.group.Status.Conditions = refused
			s.unschedulable = []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
			s.run(ctx, c, time.Minute)
			if before {
				result, err := NoticeRetirementReconciler{c}.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}})
				if len(s.retirementByNode(t)) > 0 || err != nil || result.RequeueAfter == 0 || s.grown > 0 {
					t.Errorf("%+v, %v, retirements %+v, %d launched; want none, and another reconcile", result, err, s.retirementByNode(t), s.grown)
				}
			} else {
				s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, GroupNotAccepted, 0)
			}
			s.group.Status.Conditions = nil
			s.run(ctx, c, time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, NoRoom, 1)
		}))
	}
}

// TestReplaceNeverNeedsNoLaunchRecord has a process that cannot write the launches of a group of a file.
func TestReplaceNeverNeedsNoLaunchRecord(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.Replacement = v1alpha1.ReplaceNever
		c := s.newController(t)
		c.options.Launches = launch.NewRecord(s.newClient(), s.newClient())
		s.addNotice(t, "vm-0", "Preempt")
		s.run(ctx, c, 10*time.Second)
		s.expect(t, "vm-0", v1alpha1.ReplacementNotNeeded, PolicyNever, 0)
	})
}

// TestInstanceIsReplacedWithUnknownTemplates has a group with spec.scaleUp in a cloud that does not list its templates.
func TestInstanceIsReplacedWithUnknownTemplates(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.ScaleUp = &v1alpha1.ScaleUp{}
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
		s.run(ctx, c, time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, MachineGone, 1)
	})
}

// inBubbleRun is inBubble for [testing.T.Run].
func inBubbleRun(f func(t *testing.T, ctx context.Context)) func(t *testing.T) {
	return func(t *testing.T) { t.Helper(); inBubble(t, f) }
}
