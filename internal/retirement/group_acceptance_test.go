package retirement

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// setGroupAccepted sets the group's condition Accepted.
func (s *sim) setGroupAccepted(status metav1.ConditionStatus, reason string, generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[0].Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.GroupAccepted, Status: status, Reason: reason, Message: "so it is", ObservedGeneration: generation,
	}}
}

// TestI5NoNodeIsRetiredBeforeItsGroupIsAccepted uses a group without a current status, so that its cloud's minimum size
// is unknown. It covers a new group and a restarted process.
func TestI5NoNodeIsRetiredBeforeItsGroupIsAccepted(t *testing.T) {
	for name, tt := range map[string]struct {
		setUnaccepted func(*sim)
		code          string
	}{
		"it has no status yet": {func(s *sim) { s.groups[0].Status = v1alpha1.NodeGroupStatus{} }, GroupNotReady},
		"its status is outdated": {func(s *sim) {
			s.groups[0].Generation = 2
			s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, 1)
		}, GroupNotReady},
		"its cloud has not answered yet": {func(s *sim) { s.setGroupAccepted(metav1.ConditionUnknown, "CloudUnreadable", 0) }, GroupNotAccepted},
	} {
		for when, captured := range map[string]bool{"at first": false, "when it is captured": true} {
			t.Run(name+", "+when, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
				c := s.newController(t)
				if captured {
					s.makeNodeUnready("b") // it uses up the disruption budget
					s.reconcileUntilDone(ctx, c, "r", time.Minute)
					s.reviveNode("b")
					c = s.newController(t)
				}
				tt.setUnaccepted(s)
				rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Pending || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != tt.code {
					t.Fatalf("%s: %+v, want it to wait for %s", rt.Status.Phase, rt.Status.Reasons, tt.code)
				}
				s.checkNodeRestored(t, "a")
				s.groups[0].Status.CloudMinSize = 2
				s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, s.groups[0].Generation)
				if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "MinSize" {
					t.Fatalf("%s: %+v, want the cloud's minimum kept", rt.Status.Phase, rt.Status.Reasons)
				}
				s.groups[0].Status.CloudMinSize = 1
				requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
			}))
		}
	}
}

func TestGroupIsUnknownUntilAllSelectingGroupsAreObserved(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		younger := newGroup()
		younger.Name, younger.Status = "all", v1alpha1.NodeGroupStatus{}
		s.groups = append(s.groups, younger)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		emitted := make(chan string, 100)
		c.events = eventRecorder{&events.FakeRecorder{Events: emitted}}
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Minute), v1alpha1.Pending, GroupNotReady)
		if len(emitted) > 0 {
			t.Errorf("a temporary wait wrote an Event: %s", <-emitted)
		}
		s.groups[1].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.OverlapsGroup, Message: "overlaps ci",
		}}
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		check.Not(t, rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci", "%s: %s", rt.Status.Phase, rt.Status.Message)
	})
}

// TestRefusedGroupDelaysNoNodeOfOthers uses a refused group that selects another group's nodes.
func TestRefusedGroupDelaysNoNodeOfOthers(t *testing.T) {
	for _, reason := range []string{v1alpha1.OverlapsGroup, v1alpha1.SelectsControlPlane, v1alpha1.InvalidSpec} {
		t.Run(reason, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			other := newGroup()
			other.Name = "all"
			other.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: "is refused",
			}}
			s.groups = append(s.groups, other)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			s.createRetirement(t, "s", v1alpha1.NodeRetirementSpec{NodeName: "b", Group: "all"})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			check.Not(t, rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci", "%s: %s", rt.Status.Phase, rt.Status.Message)
			requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "s", time.Hour), v1alpha1.Refused)
		}))
	}
}

// TestI5NodeOfRefusedGroupIsNotUngrouped deletes the overlapping group, and the refused one has no new status yet.
func TestI5NodeOfRefusedGroupIsNotUngrouped(t *testing.T) {
	outcome{setup: func(s *sim) {
		s.groups[0].Spec.MinSize = 2
		s.setGroupAccepted(metav1.ConditionFalse, v1alpha1.OverlapsGroup, 0)
	}, phase: v1alpha1.Refused, code: GroupNotAccepted}.check(t)
}

// TestRetirementWaitsWhileCloudRefusesGroup lets a credential expire and be renewed.
func TestRetirementWaitsWhileCloudRefusesGroup(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.setGroupAccepted(metav1.ConditionFalse, v1alpha1.CloudRefused, 0)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Pending || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != CloudRefused {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.checkNodeRestored(t, "a")
		s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

// setGroupRefused makes the group's cloud refuse it and find none of its instances, as with a credential of another
// project.
func (s *sim) setGroupRefused(reason string, node string) *simInstance {
	s.setGroupAccepted(metav1.ConditionFalse, reason, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.instances["sim://"+node]
	delete(s.instances, "sim://"+node)
	return m
}

// TestI7NotFoundIsNotTrustedWhileGroupIsNotAccepted changes the credential to one of another project, which finds no
// instance. The Node is not Ready for a moment.
func TestI7NotFoundIsNotTrustedWhileGroupIsNotAccepted(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *sim){
		"while it waits for a limit": func(t *testing.T, s *sim) {
			s.groups[0].Spec.MinSize = 2
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		},
		"while it waits for its cloud": func(t *testing.T, s *sim) { retireOnNotice(t, s, "a") },
		"during the drain": func(t *testing.T, s *sim) {
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		},
	} {
		for _, reason := range []string{v1alpha1.CloudRefused, v1alpha1.CloudGroupNotFound} {
			t.Run(name+", "+reason, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
				s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
				begin(t, s)
				c := s.newController(t)
				s.reconcileUntilDone(ctx, c, "r", time.Minute)
				m := s.setGroupRefused(reason, "a")
				s.changeNode("a", func(n *corev1.Node) {
					for i := range n.Status.Conditions {
						if n.Status.Conditions[i].Type == corev1.NodeReady {
							n.Status.Conditions[i].Status = corev1.ConditionUnknown
						}
					}
				})
				rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute)
				if rt.Status.InstanceGone || rt.Status.Phase.IsFinal() || rt.Status.Reasons[0].Code != GroupNotAccepted {
					t.Fatalf("%s, instance gone: %t: %s, want it to wait for its group", rt.Status.Phase, rt.Status.InstanceGone, rt.Status.Message)
				}
				if n := s.getNode("a"); n == nil || hasOutOfServiceTaint(mustToKubeapi(n)) || len(s.listPodsOn("a")) != 1 {
					t.Fatalf("the Node is %v, with %d pods", n, len(s.listPodsOn("a")))
				}
				s.mu.Lock()
				s.instances["sim://a"] = m
				s.mu.Unlock()
				s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
				if rt := s.reconcileUntilDone(ctx, c, "r", 2*time.Minute); rt.Status.InstanceGone || rt.Status.Phase.IsFinal() {
					t.Fatalf("%s: %s, and its instance is there", rt.Status.Phase, rt.Status.Message)
				}
				s.removeInstance("a")
				requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
			}))
		}
	}
}

// TestI7NotFoundIsNotTrustedDuringDeletionIfGroupRefused changes the credential while the instance is being deleted.
func TestI7NotFoundIsNotTrustedDuringDeletionIfGroupRefused(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		var m *simInstance
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "cloud delete" && m == nil {
				m = s.setGroupRefused(v1alpha1.CloudRefused, "a")
			}
			return nil
		})
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.NodeDeleted, GroupNotAccepted)
		s.mu.Lock()
		s.instances["sim://a"] = m
		s.mu.Unlock()
		s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

// TestWaitingRetirementReadsInstanceRarely counts the reads during a zone outage.
func TestWaitingRetirementReadsInstanceRarely(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupAtMinSize(t)
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.makeNodeUnready("a")
		asked := 0
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" {
				asked++
			}
			return nil
		})
		if s.reconcileUntilDone(ctx, c, "r", time.Hour); asked < 50 || asked > 60 {
			t.Errorf("the cloud was read %d times in an hour", asked)
		}
	})
}

// noGroups is a manager without any NodeGroup, such as one with another file of NodeGroups.
type noGroups struct{}

func (noGroups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return nil, nil }

// TestI1RetirementWaitsForMissingGroup continues a retirement with a manager that does not know the group, at each
// stage. The retirement must not use defaults: not at the start of the drain, and not between the deletion of Node and
// instance.
func TestI1RetirementWaitsForMissingGroup(t *testing.T) {
	for name, tt := range map[string]struct {
		last  string // the last request of the first manager
		phase v1alpha1.Phase
	}{
		"when it is captured":                 {"update status of *v1alpha1.NodeRetirement", v1alpha1.Pending},
		"when it is cordoned":                 {"patch node", v1alpha1.Pending},
		"when the Node is deleted":            {"delete node", v1alpha1.Drained},
		"while the instance is being deleted": {"cloud delete", v1alpha1.NodeDeleted},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"job": "ci"}},
			}}
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle, Group: "ci"})
			var dead atomic.Bool
			s.interceptRequests(func(moment, request string) error {
				if moment == "after" && request == tt.last {
					dead.Store(true)
				}
				if dead.Load() {
					return errKilled
				}
				return nil
			})
			processCtx, killProcess := context.WithCancel(ctx)
			for first := s.newController(t); !dead.Load() && !s.isFinished("r"); time.Sleep(time.Millisecond) {
				s.reconcileOnce(processCtx, first, "r")
			}
			killProcess()
			synctest.Wait()
			s.interceptRequests(func(string, string) error { return nil })
			s.addPod("a", "job", func(p *simPod) { p.Labels = map[string]string{"job": "ci"} })
			blind := s.newController(t)
			blind.options.Groups = noGroups{}
			touched := s.deletionRequested["sim://a"]
			rt := s.reconcileUntilDone(ctx, blind, "r", 3*time.Hour)
			if rt.Status.Phase != tt.phase || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != GroupNotFound {
				t.Fatalf("%s %+v, want it to wait in %s for its NodeGroup", rt.Status.Phase, rt.Status.Reasons, tt.phase)
			}
			check.Contains(t, rt.Status.Message, "NodeGroup ci")
			if len(s.listPodsOn("a")) != 1 || s.deletionRequested["sim://a"] != touched {
				t.Errorf("pods %v, instance deleted: %t", s.listPodsOn("a"), s.deletionRequested["sim://a"])
			}
			s.removePod("uid-job")
			requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour), v1alpha1.Succeeded)
			s.checkRetired(t, "a")
		}))
	}
}

func TestRetirementWithMissingGroupCanBeCancelled(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.groups = nil
		if rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Draining || c.drains.isRunning("r") {
			t.Fatalf("%s: %s, its drain goes on: %t", rt.Status.Phase, rt.Status.Message, c.drains.isRunning("r"))
		}
		must.NoError(t, s.retirements.Delete(ctx, s.getRetirement("r")))
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}

// TestI5NextUngroupedNodeIsRetiredAfterNodeDeletion uses a cloud that never completes the deletion of the first
// instance.
func TestI5NextUngroupedNodeIsRetiredAfterNodeDeletion(t *testing.T) {
	for name, restarts := range map[string]bool{"in one process": false, "after a restart": true} {
		t.Run(name, inVirtualTime(func(t *testing.T, ctx context.Context) {
			s := newUngroupedSim(t)
			s.addNode("b", nil)
			s.addPod("a", "web", func(p *simPod) { p.stopsAfter = 2 * time.Minute })
			s.instances["sim://a"].failingDeletions = 1 << 20
			s.createRetirement(t, "first", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
			c := s.newController(t)
			s.reconcileUntilDone(ctx, c, "first", time.Minute)
			requirePhase(t, s.getRetirement("first"), v1alpha1.Draining)
			s.createRetirement(t, "second", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
			s.reconcileUntilDone(ctx, c, "second", 10*time.Minute)
			if rt := s.getRetirement("second"); IsInFlight(rt) || s.getNode("b").Spec.Unschedulable {
				t.Fatalf("I5: second is %s while the first one is drained", rt.Status.Phase)
			}
			s.reconcileUntilDone(ctx, c, "first", time.Hour)
			if rt := s.getRetirement("first"); rt.Status.Phase != v1alpha1.NodeDeleted || !s.deletionRequested["sim://a"] {
				t.Fatalf("first: %s: %s", rt.Status.Phase, rt.Status.Message)
			}
			if restarts {
				c = s.newController(t)
			}
			requirePhase(t, s.reconcileUntilDone(ctx, c, "second", time.Hour), v1alpha1.Succeeded)
			check.Not(t, s.instances["sim://a"] == nil || s.instances["sim://b"] != nil, "the instances left are %v", s.instances)
			for _, v := range s.violations {
				t.Error(v)
			}
		}))
	}
}

// TestOverrideIsAnnouncedOnce sets an override for the drain, and for an instance with a protected pod that arrived
// after the Node's deletion.
func TestOverrideIsAnnouncedOnce(t *testing.T) {
	for name, late := range map[string]bool{"in the drain": false, "once the Node is deleted": true} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			c := s.newController(t)
			recorder := events.NewFakeRecorder(1000)
			c.options.Events, c.events = recorder, eventRecorder{recorder}
			override := &v1alpha1.OverrideProtection{By: "ops", Until: metav1.NewTime(time.Now().Add(24 * time.Hour)), Why: "bad disk"}
			spec := v1alpha1.NodeRetirementSpec{NodeName: "a"}
			s.instances["sim://a"].failingDeletions = 2
			if late {
				s.afterNodeDeletion(func() {
					s.addPod("a", "p", protectedPod)
				})
			} else {
				s.addPod("a", "p", protectedPod)
				spec.OverrideProtection = override
			}
			s.createRetirement(t, "r", spec)
			if late {
				if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.NodeDeleted || s.deletionRequested["sim://a"] {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				rt := s.getRetirement("r")
				rt.Spec.OverrideProtection = override
				must.NoError(t, s.retirements.Update(ctx, rt))
			}
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
			emitted := 0
			for len(recorder.Events) > 0 {
				if strings.Contains(<-recorder.Events, string(eventOverridden)) {
					emitted++
				}
			}
			if emitted != 2 { // on the NodeRetirement and on the Node
				t.Errorf("%d Events %s, want one on each object", emitted, eventOverridden)
			}
		}))
	}
}
