package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// TestI8ReplicaLearnsOutcomeAfterLosingLease lets another replica finish the update and carry out the next one while the
// first replica cannot reach the Leases.
func TestI8ReplicaLearnsOutcomeAfterLosingLease(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 3}, a.CheckCanShrink)
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		s.advance(5 * time.Second)
		s.completeRetirements()
		if result, err := next.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done {
			t.Fatalf("%+v, %v", result, err)
		}
		s.leases.setUnreachable("a", false)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		result, err := submitted.WaitForOutcome(ctx)
		if err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 1 {
			t.Fatalf("the client of a: %+v, %v", result, err)
		}
		if found, err := a.FindUpdate(ctx, submitted.ID); err != nil || found == nil || found.Outcome == nil {
			t.Errorf("a's status of the update: %+v, %v", found, err)
		}
		if slices.Contains(s.pool.changeRequests(), "size 3") || s.pool.size != 2 {
			t.Errorf("the desired size is %d after %q; want 2, and never 3 again", s.pool.size, s.pool.changeRequests())
		}
		third, err := b.SubmitOrFindEqual(ctx, Update{Kind: SetSize, DesiredSize: 1}, b.CheckCanShrink)
		if err != nil {
			t.Fatalf("the pool is not free: %v", err)
		}
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
			if up := s.listUpdates()[0]; !up.IsFinished() {
				s.rewriteStatus(up, func(st *v1alpha1.PoolUpdateStatus) {
					st.CompletedAt = toMicroTime(time.Now())
					st.Conditions = []metav1.Condition{{
						Type: v1alpha1.PoolUpdateComplete, Status: metav1.ConditionTrue, Reason: string(Done), LastTransitionTime: metav1.Now(),
					}}
				})
			}
			return false, nil, nil
		})
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.CheckCanShrink)
		if err != nil {
			t.Fatal(err)
		}
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
	submitted, err := submitUpdate(t, u, up)
	if err != nil {
		t.Fatal(err)
	}
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
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.CheckCanShrink)
		if err != nil {
			t.Fatal(err)
		}
		s.advance(5 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil || !strings.Contains(is.Message, "has not been observed again") {
			t.Fatalf("%+v, %v; want it to wait, and the reason", is, err)
		}
		s.pool.setFailure("delete", nil)
		if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

func TestRetirementWithoutManagerIsCancelled(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Labels = map[string]string{"shard": "x"} })
		checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 2}, 2*time.Minute, ClusterUnavailable, "NodeRetirement n", "shard=x", "no manager has observed it")
		if left := s.listRetirements(); len(left) > 0 {
			t.Errorf("%d retirements are left", len(left))
		}
	})
}

func TestReasonOfBlockedRetirementIsReported(t *testing.T) {
	for code, says := range map[string]string{"GroupBudget": "its NodeGroup does not allow the removal", retirement.CloudRefused: "its cloud does not allow the removal"} {
		simulate(t, 1, func(t *testing.T, s *sim) {
			a := s.startReplica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
			submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(1)}, a.CheckCanRemoveMachine)
			if err != nil {
				t.Fatal(err)
			}
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
				if err != nil {
					t.Fatal(err)
				}
				s.advance(5 * time.Second)
				if tt.phase != "" {
					s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = tt.phase, "no room" })
				}
				result, err := submitted.WaitForOutcome(t.Context())
				if err != nil || result.Outcome.Result != tt.want {
					t.Errorf("%+v, %v", result, err)
				}
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
		if _, err := s.kube.CoreV1().Nodes().Create(t.Context(), unidentified, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
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
			if _, err := s.kube.CoreV1().Nodes().Create(t.Context(), anonymous, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
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
