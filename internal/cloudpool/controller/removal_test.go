package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestI8ReplicaLearnsOutcomeAfterLosingLease lets another replica finish the update and carry out the next one while the
// first replica cannot reach the Leases.
func TestI8ReplicaLearnsOutcomeAfterLosingLease(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 3}, a.CheckCanShrink)
		must.NoError(t, err)
		s.advance(5 * time.Second)
		if n := len(s.listRetirements()); n != 1 {
			t.Fatalf("%d retirements, want 1", n)
		}
		s.leases.setUnreachable("a", true)
		b := s.startReplica("b")
		s.advance(time.Minute)
		s.completeRetirements()
		s.advance(20 * time.Second)
		if busy, err := getUnfinishedUpdate(t.Context(), b); busy != nil || err != nil {
			t.Fatalf("b has not ended the update: %v, %v", busy, err)
		}
		next, err := b.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, b.CheckCanShrink)
		must.NoError(t, err)
		s.advance(5 * time.Second)
		s.completeRetirements()
		if result, err := next.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done {
			t.Fatalf("%+v, %v", result, err)
		}
		s.leases.setUnreachable("a", false)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		result, err := submitted.WaitForOutcome(ctx)
		must.Not(t, err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 1, "the client of a: %+v, %v", result, err)
		if found, err := a.FindUpdate(ctx, submitted.ID); err != nil || found == nil || found.Outcome == nil {
			t.Errorf("a's status of the update: %+v, %v", found, err)
		}
		if slices.Contains(s.pool.changeRequests(), "size 3") || s.pool.size != 2 {
			t.Errorf("the desired size is %d after %q; want 2, and never 3 again", s.pool.size, s.pool.changeRequests())
		}
		third, err := b.SubmitOrFindEqual(ctx, Update{Kind: SetSize, DesiredSize: 1}, b.CheckCanShrink)
		must.Not(t, err != nil, "the pool is not free: %v", err)
		s.advance(5 * time.Second)
		s.completeRetirements()
		if result, err := third.WaitForOutcome(ctx); err != nil || result.Outcome.Result != Done {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// TestI4StaleReplicaTerminatesNothing lets another process finish the update right before the machine without a node is
// deleted.
func TestI4StaleReplicaTerminatesNothing(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.addMachine(newMachine(3, api.Requested, ""))
		s.pool.size = 3
		a := s.startReplica("a")
		s.advance(0) // lets running requests finish before the reactor is added
		s.kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if up := s.listUpdatesLive()[0]; !up.IsFinished() {
				s.rewriteStatus(up, func(st *v1alpha1.PoolUpdateStatus) {
					st.CompletedAt = toMicroTime(time.Now())
					st.Conditions = []metav1.Condition{{
						Type: v1alpha1.PoolUpdateComplete, Status: metav1.ConditionTrue, Reason: string(Done), LastTransitionTime: metav1.Now(),
					}}
				})
			}
			return false, nil, nil
		})
		submitted := must.Get(a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.CheckCanShrink))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if result, err := submitted.WaitForOutcome(ctx); err != nil || result.Outcome.Result != Done {
			t.Errorf("%+v, %v", result, err)
		}
		if asked := s.pool.changeRequests(); len(asked) > 0 {
			t.Errorf("the pool's server was asked for %q", asked)
		}
	})
}

// submitUpdate submits an update with its check.
func submitUpdate(t *testing.T, u *Updater, up Update) (*Update, error) {
	t.Helper()
	judge := u.CheckCanRemoveMachine
	if up.Kind == SetSize {
		judge = u.CheckCanShrink
	}
	return u.SubmitOrFindEqual(t.Context(), up, judge)
}

// mustSubmit submits an update and fails the test on an error.
func mustSubmit(t *testing.T, u *Updater, up Update) *Update {
	t.Helper()
	submitted := must.Get(submitUpdate(t, u, up))(t)
	return submitted
}

// submitAndWait submits an update and waits for its outcome.
func submitAndWait(t *testing.T, u *Updater, up Update, timeout time.Duration) (*Update, error) {
	t.Helper()
	submitted, err := submitUpdate(t, u, up)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return submitted.WaitForOutcome(ctx)
}

// checkUpdateEnds checks the result of an update and words of its detail.
func checkUpdateEnds(t *testing.T, u *Updater, up Update, timeout time.Duration, want Result, words ...string) {
	t.Helper()
	result, err := submitAndWait(t, u, up, timeout)
	switch {
	case err != nil && ToResult(err) != want:
		t.Errorf("%s; want %s", err, want)
	case err == nil && result.Outcome.Result != want:
		t.Errorf("%+v; want %s", result.Outcome, want)
	}
	for _, w := range words {
		if text := fmt.Sprintf("%+v %v", result, err); result != nil && !strings.Contains(result.Outcome.Detail, w) || result == nil && !strings.Contains(text, w) {
			t.Errorf("%s; want %q in it", text, w)
		}
	}
}

func TestFailedTerminationIsReported(t *testing.T) {
	for name, tt := range map[string]struct {
		status  cloud.OperationStatus
		timeout time.Duration
		text    string
	}{
		"provider reports failure":  {cloud.OperationStatus{Done: true, Err: errors.New("the hypervisor is away")}, time.Minute, "the hypervisor is away"},
		"provider reports success":  {cloud.OperationStatus{Done: true}, 11 * time.Minute, "still exists 10m0s after"},
		"provider reports progress": {cloud.OperationStatus{RetryAfter: time.Second}, 11 * time.Minute, "still exists 10m0s after"},
	} {
		for _, up := range []Update{
			{Kind: SetSize, DesiredSize: 2},
		} {
			t.Run(fmt.Sprint(name, ", ", up.Kind, ", decrement: ", up.Decrement), func(t *testing.T) {
				simulate(t, 2, func(t *testing.T, s *sim) {
					s.pool.addMachine(newMachine(3, api.Requested, ""))
					s.pool.size, s.pool.ignoresDeletions, s.pool.deletionStatus = 3, true, tt.status
					a := s.startReplica("a")
					checkUpdateEnds(t, a, up, tt.timeout, BackendUnavailable, "failed to terminate machine "+newUUID(3), tt.text)
					if busy, err := getUnfinishedUpdate(t.Context(), a); busy != nil || err != nil {
						t.Errorf("the pool is still busy: %v, %v", busy, err)
					}
					if asked := s.pool.changeRequests(); !slices.Equal(asked, []string{"delete " + newUUID(3)}) {
						t.Errorf("the pool's server was asked for %q, and wants %d machines", asked, s.pool.size)
					}
				})
			})
		}
	}
}

func TestUpdateWaitsForPoolObservation(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.addMachine(newMachine(3, api.Requested, ""))
		s.pool.size = 3
		s.pool.failures["delete"] = &cloud.ThrottledError{RetryAfter: time.Second, Err: errors.New("has not been observed again")}
		a := s.startReplica("a")
		submitted := must.Get(a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.CheckCanShrink))(t)
		s.advance(5 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil || !strings.Contains(is.Message, "has not been observed again") {
			t.Fatalf("%+v, %v; want it to wait, and the reason", is, err)
		}
		s.pool.setFailure("delete", nil)
		if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done {
			t.Errorf("%+v, %v", result, err)
		}
		check.Is(t, "", s.listUpdatesLive()[0].Status.Message)
	})
}

func TestRetirementWithoutManagerIsCancelled(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Labels = map[string]string{"shard": "x"} })
		checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 2}, 2*time.Minute, ClusterUnavailable, "NodeRetirement n", "shard=x", "no manager has observed it")
		if message := s.listUpdatesLive()[0].Status.Message; !strings.Contains(message, "no manager has observed it") || len(message) > maxReasonBytes {
			t.Errorf("the message of the finished update is %q", message)
		}
		if left := s.listRetirements(); len(left) > 0 {
			t.Errorf("%d retirements are left", len(left))
		}
	})
}

func TestReasonOfBlockedRetirementIsReported(t *testing.T) {
	for code, says := range map[string]string{"GroupBudget": "its NodeGroup does not allow the removal", retirement.CloudRefused: "its cloud does not allow the removal"} {
		simulate(t, 1, func(t *testing.T, s *sim) {
			a := s.startReplica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
			submitted := must.Get(a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(1)}, a.CheckCanRemoveMachine))(t)
			s.advance(5 * time.Second)
			s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) {
				rt.Status.Phase = v1alpha1.Pending
				rt.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: code, Message: "not now", LastTransitionTime: metav1.Now(),
				}}
			})
			if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != NotPossible || !strings.Contains(result.Outcome.Detail, says) {
				t.Errorf("%s: %+v, %v", code, result, err)
			}
		})
	}
}

func TestKeptMachineKeepsItsMembership(t *testing.T) {
	for name, tt := range map[string]struct {
		phase v1alpha1.Phase
		want  Result
	}{
		"retirement is refused": {v1alpha1.Refused, NotPossible},
		"drain is aborted":      {v1alpha1.Aborted, NotPossible},
		"no manager":            {"", ClusterUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
				a := s.startReplica("a")
				submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Dispose, MachineID: newUUID(1)}, a.CheckCanRemoveMachine)
				must.NoError(t, err)
				s.advance(5 * time.Second)
				if tt.phase != "" {
					s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = tt.phase, "no room" })
				}
				result, err := submitted.WaitForOutcome(t.Context())
				check.Not(t, err != nil || result.Outcome.Result != tt.want, "%+v, %v", result, err)
				if is := s.pool.machines[0].Membership; !is.Active || is.Evictable {
					t.Errorf("the machine is %+v after %q; want it protected as before", is, s.pool.changeRequests())
				}
			})
		})
	}
}

func TestMachineWithoutNodeIsNotTerminatedByID(t *testing.T) {
	for _, state := range []api.MachineState{api.Requested, api.Pending, api.Running} {
		for _, up := range []Update{{Kind: Terminate, Decrement: true}, {Kind: Terminate}, {Kind: Dispose}} {
			simulate(t, 1, func(t *testing.T, s *sim) {
				m := newMachine(2, state, "")
				at := time.Now().Add(-24 * time.Hour)
				m.LaunchTime = &at
				s.pool.addMachine(m)
				s.pool.size = 2
				up.MachineID = newUUID(2)
				a := s.startReplica("a")
				checkUpdateEnds(t, a, up, time.Minute, NotPossible, "has no node")
				if asked := s.pool.changeRequests(); len(asked) > 0 {
					t.Errorf("%s, %s: the server was asked %q", state, up.Kind, asked)
				}
				checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 1}, time.Minute, Done) // removes machines without a node first
				if asked := s.pool.changeRequests(); !slices.Contains(asked, "delete "+newUUID(2)) || len(s.listRetirements()) > 0 {
					t.Errorf("%s: the server was asked %q, and there are %d retirements", state, asked, len(s.listRetirements()))
				}
			})
		}
	}
}

func TestNothingIsRemovedWhilePairingIsUnclear(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.createNode("twin", 1) // machine 1 then has two nodes
		a := s.startReplica("a")
		s.advance(time.Second)
		for _, up := range []Update{{Kind: SetSize, DesiredSize: 1}, {Kind: Terminate, MachineID: newUUID(3), Decrement: true}} {
			checkUpdateEnds(t, a, up, time.Minute, NotPossible, "not clear which machine is which node", "twin", newUUID(1))
		}
		if asked := s.pool.changeRequests(); len(asked) > 0 || len(s.listRetirements()) > 0 {
			t.Errorf("the pool was asked %q, and there are %d retirements; want nothing done", asked, len(s.listRetirements()))
		}
	})
}

// TestI7MachineOfUnidentifiedNodeIsNotTerminated has a node with a provider ID of no known cloud and an address of a network
// that the pool does not list.
func TestI7MachineOfUnidentifiedNodeIsNotTerminated(t *testing.T) {
	simulate(t, 0, func(t *testing.T, s *sim) {
		s.pool.addMachine(newMachine(3, api.Running, "192.168.7.3"))
		s.pool.size = 1
		unidentified := newNode("worker-3", "k3s://worker-3", "10.0.0.3")
		must.NoError(t, check.Err(s.kube.CoreV1().Nodes().Create(t.Context(), unidentified, metav1.CreateOptions{})))
		a := s.startReplica("a")
		s.advance(time.Second)
		why := `machine-may-be-a-node`
		checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 0}, time.Hour, NotPossible, why, "node worker-3", "k3s://worker-3")
		checkUpdateEnds(t, a, Update{Kind: Terminate, MachineID: newUUID(3), Decrement: true}, time.Hour, NotPossible, why, "node worker-3", "k3s://worker-3")
		checkUpdateEnds(t, a, Update{Kind: Dispose, MachineID: newUUID(3)}, time.Hour, NotPossible, why, "node worker-3")
		if asked := s.pool.changeRequests(); len(asked) > 0 || len(s.listRetirements()) > 0 {
			t.Errorf("the pool was asked %q, and there are %d retirements; want nothing done", asked, len(s.listRetirements()))
		}
	})
}

// TestI4NodeWithoutProviderIDRetiresWithPairedMachine has two such nodes. One has a name that differs from its machine's:
// its retirement would be refused, so none is created.
func TestI4NodeWithoutProviderIDRetiresWithPairedMachine(t *testing.T) {
	simulate(t, 0, func(t *testing.T, s *sim) {
		for i, name := range []string{"n1", "worker"} {
			s.pool.addMachine(newMachine(i+1, api.Running, fmt.Sprint("10.0.0.", i+1)))
			anonymous := newNode(name, "", fmt.Sprint("10.0.0.", i+1))
			anonymous.UID = types.UID(name)
			must.NoError(t, check.Err(s.kube.CoreV1().Nodes().Create(t.Context(), anonymous, metav1.CreateOptions{})))
		}
		s.pool.size = 2
		a := s.startReplica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
		s.advance(time.Second)
		for _, up := range []Update{{Kind: Terminate, MachineID: newUUID(2)}, {Kind: Dispose, MachineID: newUUID(2)}} {
			checkUpdateEnds(t, a, up, time.Minute, NotPossible, "machine-not-confirmed", `computer name "n2"`)
		}
		if n := len(s.listRetirements()); n != 0 {
			t.Fatalf("%d retirements, want none", n)
		}
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 0})
		s.advance(5 * time.Second)
		if rts := s.listRetirements(); len(rts) != 1 || rts[0].Spec.NodeName != "n1" || rts[0].Spec.ProviderID != "openstack:///"+newUUID(1) {
			t.Fatalf("%+v; want n1 only, with its machine", rts)
		}
		s.completeRetirements()
		result, err := submitted.WaitForOutcome(t.Context())
		if err != nil || result.Outcome.Result != Partial || result.Outcome.Removed != 1 || !strings.Contains(result.Outcome.Detail, "machine-not-confirmed") {
			t.Errorf("%+v, %v", result.Outcome, err)
		}
	})
}

// TestI1DisposableMachineIsRemovedOnlyIfSafe has a protected machine that may be a node, and one that may be about to
// register.
func TestI1DisposableMachineIsRemovedOnlyIfSafe(t *testing.T) {
	for rule, launched := range map[string]time.Duration{"machine-may-be-a-node": time.Hour, "machine-may-register": 0} {
		t.Run(rule, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, s *sim) {
				kept, at := newMachine(1, api.Running, ""), time.Now().Add(-launched)
				kept.Membership, kept.LaunchTime = &api.MembershipStatus{Active: true}, &at
				s.pool.addMachine(kept)
				s.pool.size = 1
				if rule == "machine-may-be-a-node" {
					s.createNode("worker", 0)
				}
				a := s.startReplica("a")
				s.advance(time.Second)
				checkUpdateEnds(t, a, Update{Kind: Dispose, MachineID: newUUID(1)}, time.Minute, NotPossible, rule)
				if asked := s.pool.changeRequests(); len(asked) > 0 {
					t.Errorf("the pool was asked %q", asked)
				}
			})
		})
	}
}

// createPendingRetirement creates a NodeRetirement that has not started, of a node outside the pool.
func (s *sim) createPendingRetirement(node string) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, NodeUID: types.UID("uid-" + node), ProviderID: "openstack:///" + newUUID(9)},
	}
	must.NoError(s.t, s.objects.Create(s.t.Context(), rt))
}

// TestLeavingNodeOfOtherPoolIsNoWorker: two pools that each count the other's leaving node would leave no worker.
func TestLeavingNodeOfOtherPoolIsNoWorker(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		s.createNode("other", 9)
		a := s.startReplica("a")
		d, err := a.PlanShrinkTo(t.Context(), 0)
		must.Not(t, err != nil || len(d.Victims) != 1, "%+v, %v; want a victim while another worker stays", d, err)
		s.createPendingRetirement("other")
		s.advance(time.Second)
		d, err = a.PlanShrinkTo(t.Context(), 0)
		if err != nil || len(d.Victims) != 0 || len(d.Skipped) != 1 || d.Skipped[0].Rule != matching.RuleLastWorker {
			t.Errorf("size 0: %+v, %v; want the last worker to stay", d, err)
		}
		check.ErrorContains(t, check.Err(a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(1)}, a.CheckCanRemoveMachine)))
	})
}

// TestControlPlaneNodeIsNoWorker has control plane nodes without the label, as some distributions have.
func TestControlPlaneNodeIsNoWorker(t *testing.T) {
	for name, mark := range map[string]func(s *sim, n *corev1.Node) error{
		"by taint": func(s *sim, n *corev1.Node) error {
			n.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
			return check.Err(s.kube.CoreV1().Nodes().Update(s.t.Context(), n, metav1.UpdateOptions{}))
		},
		"by API server pod": func(s *sim, n *corev1.Node) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-apiserver-" + n.Name}, Spec: corev1.PodSpec{NodeName: n.Name}}
			return check.Err(s.kube.CoreV1().Pods("kube-system").Create(s.t.Context(), pod, metav1.CreateOptions{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, func(t *testing.T, s *sim) {
				s.createNode("cp", 9)
				n, err := s.kube.CoreV1().Nodes().Get(t.Context(), "cp", metav1.GetOptions{})
				must.NoError(t, err)
				must.NoError(t, mark(s, n))
				a := s.startReplica("a")
				s.advance(time.Second)
				d, err := a.PlanShrinkTo(t.Context(), 0)
				if err != nil || len(d.Victims) != 0 || len(d.Skipped) != 1 || d.Skipped[0].Rule != matching.RuleLastWorker {
					t.Errorf("size 0: %+v, %v; want the last worker to stay", d, err)
				}
				want := Update{Kind: Terminate, MachineID: newUUID(1)}
				check.ErrorContains(t, a.CheckCanRemoveMachine(t.Context(), &want), matching.LastWorkerText)
			})
		})
	}
}

// failDeletion puts the first retirement into a state where the node is gone and the cloud does not delete the machine.
func (s *sim) failDeletion() {
	s.t.Helper()
	s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Phase = v1alpha1.NodeDeleted
		rt.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted", LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: retirement.CloudFailed, Message: "no", LastTransitionTime: metav1.Now()},
		}
	})
}

// sizeRequests returns the requests that set a desired size.
func (s *fakeServer) sizeRequests() []string {
	return slices.DeleteFunc(s.changeRequests(), func(r string) bool { return !strings.HasPrefix(r, "size ") })
}

// TestTerminationDoesNotSetSize lets the server keep or lower its size, as the client requests.
func TestTerminationDoesNotSetSize(t *testing.T) {
	for name, tt := range map[string]struct {
		update Update
		keep   bool
		size   int
	}{
		"with decrement":    {Update{Kind: Terminate, Decrement: true}, false, 2},
		"without decrement": {Update{Kind: Terminate}, true, 3},
		"disposable":        {Update{Kind: Dispose}, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				tt.update.MachineID = newUUID(1)
				submitted := mustSubmit(t, a, tt.update)
				s.advance(5 * time.Second)
				if rts := s.listRetirements(); len(rts) != 1 || rts[0].Spec.KeepSize != tt.keep {
					t.Fatalf("%+v; want one with keepSize %t", rts, tt.keep)
				}
				s.failDeletion()
				s.advance(2 * time.Minute)
				result, err := submitted.WaitForOutcome(t.Context())
				busy, busyErr := getUnfinishedUpdate(t.Context(), a)
				if err != nil || result.Outcome.Result != BackendUnavailable || busy != nil || busyErr != nil {
					t.Errorf("%+v, %v, busy with %+v; want an error for the client, and the pool free", result.Outcome, err, busy)
				}
				repeated := mustSubmit(t, a, tt.update) // the same request follows the retirement
				s.advance(5 * time.Second)
				s.completeRetirements()
				s.advance(10 * time.Second)
				is, err := a.FindUpdate(t.Context(), repeated.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || len(s.listRetirements()) != 1 {
					t.Errorf("%+v, %v; want the machine gone", is, err)
				}
				if asked := s.pool.sizeRequests(); len(asked) > 0 || s.pool.size != tt.size {
					t.Errorf("the desired size is %d after %q; want %d, changed by terminations only", s.pool.size, asked, tt.size)
				}
			})
		})
	}
}

func TestFailedTerminationDoesNotRaiseSize(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.pool.addMachine(newMachine(4, api.Requested, ""))
		s.pool.size, s.pool.ignoresDeletions = 4, true
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 3})
		s.advance(12 * time.Minute)
		result, err := submitted.WaitForOutcome(t.Context())
		if err != nil || result.Outcome.Result != BackendUnavailable {
			t.Errorf("%+v, %v; want an error for the client", result.Outcome, err)
		}
		if asked := s.pool.sizeRequests(); len(asked) > 0 {
			t.Errorf("the server was asked %q", asked)
		}
	})
}

func TestNodeGroupReplacesTerminatedMachineOnce(t *testing.T) {
	for name, fails := range map[string]bool{"at once": false, "after cloud failures": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = sizeLoweringPool{s.pool} })
				submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				if fails {
					s.pool.setFailure("desired", errors.New("away"))
				}
				s.completeRetirements()
				s.advance(5 * time.Minute)
				s.pool.setFailure("desired", nil)
				s.advance(time.Minute)
				is, err := a.FindUpdate(t.Context(), submitted.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d; want 3", is, err, s.pool.size)
				}
			})
		})
	}
}

// sizeLoweringPool is a pool that lowers its size with each deletion, as the clouds of NodeGroups do.
type sizeLoweringPool struct{ *fakeServer }

func (sizeLoweringPool) KeepsSize() bool { return false }

func TestLastReadyWorkerIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		removeLast bool
		up         Update
		want       Result
		left       int
	}{
		"size":              {false, Update{Kind: SetSize, DesiredSize: 0}, Partial, 1},
		"size, with option": {true, Update{Kind: SetSize, DesiredSize: 0}, Done, 0},
		"termination":       {false, Update{Kind: Terminate, MachineID: newUUID(1)}, NotPossible, 2},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				if tt.up.Kind == Terminate { // the other node is unschedulable
					n, err := s.kube.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
					if err == nil {
						n.Spec.Unschedulable = true
						_, err = s.kube.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
					}
					must.NoError(t, err)
				}
				a := s.startReplica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = tt.removeLast })
				s.advance(time.Second)
				done := make(chan struct{})
				go func() {
					defer close(done)
					checkUpdateEnds(t, a, tt.up, 10*time.Minute, tt.want)
				}()
				for range 90 {
					s.advance(2 * time.Second)
					s.completeRetirements()
				}
				<-done
				if n := len(s.pool.machines); n != tt.left {
					t.Errorf("%d machines are left, want %d", n, tt.left)
				}
			})
		})
	}
}
