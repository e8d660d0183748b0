package retirement

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
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
			t.Run(name+", "+when, func(t *testing.T) {
				runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
					s := newGroupOfTwo(t)
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
					if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
				})
			})
		}
	}
}

func TestGroupIsUnknownUntilAllSelectingGroupsAreObserved(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		younger := newGroup()
		younger.Name, younger.Status = "all", v1alpha1.NodeGroupStatus{}
		s.groups = append(s.groups, younger)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		emitted := make(chan string, 100)
		c.events = eventRecorder{&events.FakeRecorder{Events: emitted}}
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != GroupNotReady {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if len(emitted) > 0 {
			t.Errorf("a temporary wait wrote an Event: %s", <-emitted)
		}
		s.groups[1].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.OverlapsGroup, Message: "overlaps ci",
		}}
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci" {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestRefusedGroupDelaysNoNodeOfOthers uses a refused group that selects another group's nodes.
func TestRefusedGroupDelaysNoNodeOfOthers(t *testing.T) {
	for _, reason := range []string{v1alpha1.OverlapsGroup, v1alpha1.SelectsControlPlane, v1alpha1.InvalidSpec} {
		t.Run(reason, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				other := newGroup()
				other.Name = "all"
				other.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: "is refused",
				}}
				s.groups = append(s.groups, other)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci" {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
			})
		})
	}
}

// TestI5NodeOfRefusedGroupIsNotUngrouped deletes the overlapping group, and the refused one has no new status yet.
func TestI5NodeOfRefusedGroupIsNotUngrouped(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.groups[0].Spec.MinSize = 2
		s.setGroupAccepted(metav1.ConditionFalse, v1alpha1.OverlapsGroup, 0)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != GroupNotAccepted {
			t.Errorf("%s: %s, want it refused", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}

// TestRetirementWaitsWhileCloudRefusesGroup lets a credential expire and be renewed.
func TestRetirementWaitsWhileCloudRefusesGroup(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.setGroupAccepted(metav1.ConditionFalse, v1alpha1.CloudRefused, 0)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Pending || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != CloudRefused {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.checkNodeRestored(t, "a")
		s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
		if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
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
			t.Run(name+", "+reason, func(t *testing.T) {
				runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
					s := newGroupOfTwo(t)
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
					if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
						t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
				})
			})
		}
	}
}

// TestI7NotFoundIsNotTrustedDuringDeletionIfGroupRefused changes the credential while the instance is being deleted.
func TestI7NotFoundIsNotTrustedDuringDeletionIfGroupRefused(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		var m *simInstance
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "cloud delete" && m == nil {
				m = s.setGroupRefused(v1alpha1.CloudRefused, "a")
			}
			return nil
		})
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.NodeDeleted || rt.Status.Reasons[0].Code != GroupNotAccepted {
			t.Fatalf("%s: %s, want it to wait for its group", rt.Status.Phase, rt.Status.Message)
		}
		s.mu.Lock()
		s.instances["sim://a"] = m
		s.mu.Unlock()
		s.setGroupAccepted(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
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
