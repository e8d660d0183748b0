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

// TestI8AReplicaThatLosesItsLeaseAndGetsItBackLearnsHowItsUpdateEnded has another one end the update, and begin and end the
// next one, while the first does not reach the Leases.
func TestI8AReplicaThatLosesItsLeaseAndGetsItBackLearnsHowItsUpdateEnded(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 3}, a.JudgeSize)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(5 * time.Second)
		if n := len(s.retirements()); n != 1 {
			t.Fatalf("%d retirements, want 1", n)
		}
		s.leases.cutOff("a", true)
		b := s.replica("b")
		s.passes(time.Minute)
		s.manage()
		s.passes(20 * time.Second)
		if busy, err := busy(t.Context(), b); busy != nil || err != nil {
			t.Fatalf("b has not ended the update: %v, %v", busy, err)
		}
		next, err := b.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, b.JudgeSize)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(5 * time.Second)
		s.manage()
		if over, err := next.Wait(t.Context()); err != nil || over.Outcome.Result != Done {
			t.Fatalf("%+v, %v", over, err)
		}
		s.leases.cutOff("a", false)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		over, err := ticket.Wait(ctx)
		if err != nil || over.Outcome.Result != Done || over.Outcome.Removed != 1 {
			t.Fatalf("the client of a: %+v, %v", over, err)
		}
		if found, err := a.Find(ctx, ticket.ID); err != nil || found == nil || found.Outcome == nil {
			t.Errorf("a's status of the update: %+v, %v", found, err)
		}
		if slices.Contains(s.pool.requests(), "size 3") || s.pool.size != 2 {
			t.Errorf("the desired size is %d after %q; want 2, and never 3 again", s.pool.size, s.pool.requests())
		}
		third, err := b.Submit(ctx, Update{Kind: SetSize, DesiredSize: 1}, b.JudgeSize)
		if err != nil {
			t.Fatalf("the pool is not free: %v", err)
		}
		s.passes(5 * time.Second)
		s.manage()
		if over, err := third.Wait(ctx); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v", over, err)
		}
	})
}

// TestI4AProcessThatHasFallenBehindTerminatesNothing has another process end the update right before the machine without a
// node would be taken away.
func TestI4AProcessThatHasFallenBehindTerminatesNothing(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.add(machine(3, api.Requested, ""))
		s.pool.size = 3
		a := s.replica("a")
		s.passes(0) // it asks meanwhile, of which a reactor must not come in the middle
		s.kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if up := s.updates()[0]; !up.Finished() {
				s.rewrite(up, func(st *v1alpha1.PoolUpdateStatus) {
					st.CompletedAt = toMicro(time.Now())
					st.Conditions = []metav1.Condition{{
						Type: v1alpha1.PoolUpdateComplete, Status: metav1.ConditionTrue, Reason: string(Done), LastTransitionTime: metav1.Now(),
					}}
				})
			}
			return false, nil, nil
		})
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.JudgeSize)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if over, err := ticket.Wait(ctx); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v", over, err)
		}
		if asked := s.pool.requests(); len(asked) > 0 {
			t.Errorf("the pool's server was asked for %q", asked)
		}
	})
}

// accepted asks for an update.
func accepted(t *testing.T, u *Updater, up Update) (*Update, error) {
	t.Helper()
	judge := u.JudgeMachine
	if up.Kind == SetSize {
		judge = u.JudgeSize
	}
	return u.Submit(t.Context(), up, judge)
}

// begun begins an update, of which nothing is to be said yet.
func begun(t *testing.T, u *Updater, up Update) *Update {
	t.Helper()
	ticket, err := accepted(t, u, up)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// submit has an update carried out for at most so long.
func submit(t *testing.T, u *Updater, up Update, most time.Duration) (*Update, error) {
	t.Helper()
	ticket, err := accepted(t, u, up)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	return ticket.Wait(ctx)
}

// ends checks how an update ends, and words of why.
func ends(t *testing.T, u *Updater, up Update, most time.Duration, want Result, words ...string) {
	t.Helper()
	over, err := submit(t, u, up, most)
	switch {
	case err != nil && ResultOf(err) != want:
		t.Errorf("%s; want %s", err, want)
	case err == nil && over.Outcome.Result != want:
		t.Errorf("%+v; want %s", over.Outcome, want)
	}
	for _, w := range words {
		if text := fmt.Sprintf("%+v %v", over, err); over != nil && !strings.Contains(over.Outcome.Detail, w) || over == nil && !strings.Contains(text, w) {
			t.Errorf("%s; want it to say %q", text, w)
		}
	}
}

func TestATerminationThatDoesNotHappenIsToldOf(t *testing.T) {
	for name, tt := range map[string]struct {
		status cloud.Status
		most   time.Duration
		says   string
	}{
		"the provider knows":  {cloud.Status{Done: true, Err: errors.New("the hypervisor is away")}, time.Minute, "the hypervisor is away"},
		"nobody knows":        {cloud.Status{Done: true}, 11 * time.Minute, "there still 10m0s after"},
		"it is said to go on": {cloud.Status{After: time.Second}, 11 * time.Minute, "there still 10m0s after"},
	} {
		for _, up := range []Update{
			{Kind: SetSize, DesiredSize: 2},
		} {
			t.Run(fmt.Sprint(name, ", ", up.Kind, ", decrement: ", up.Decrement), func(t *testing.T) {
				simulate(t, 2, func(t *testing.T, s *sim) {
					s.pool.add(machine(3, api.Requested, ""))
					s.pool.size, s.pool.stays, s.pool.status = 3, true, tt.status
					a := s.replica("a")
					ends(t, a, up, tt.most, BackendUnavailable, "failed to terminate machine "+uuid(3), tt.says)
					if busy, err := busy(t.Context(), a); busy != nil || err != nil {
						t.Errorf("the pool is locked still: %v, %v", busy, err)
					}
					if asked := s.pool.requests(); !slices.Equal(asked, []string{"delete " + uuid(3)}) {
						t.Errorf("the pool's server was asked for %q, and wants %d machines", asked, s.pool.size)
					}
				})
			})
		}
	}
}

func TestAPoolThatIsNotObservedYetIsWaitedForAndNotFailed(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.add(machine(3, api.Requested, ""))
		s.pool.size = 3
		s.pool.fails["delete"] = &cloud.ThrottledError{After: time.Second, Err: errors.New("has not been observed again")}
		a := s.replica("a")
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.JudgeSize)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(5 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome != nil || !strings.Contains(is.Message, "has not been observed again") {
			t.Fatalf("%+v, %v; want it to wait, and to say for what", is, err)
		}
		s.pool.fail("delete", nil)
		if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v", over, err)
		}
	})
}

func TestARetirementThatNoManagerTakesUpIsCalledOff(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a", func(o *UpdaterOptions) { o.Labels = map[string]string{"shard": "x"} })
		ends(t, a, Update{Kind: SetSize, DesiredSize: 2}, 2*time.Minute, ClusterUnavailable, "NodeRetirement n", "shard=x", "no manager has looked at it")
		if left := s.retirements(); len(left) > 0 {
			t.Errorf("%d retirements are left", len(left))
		}
	})
}

func TestWhatHoldsARetirementUpIsNamed(t *testing.T) {
	for code, says := range map[string]string{"GroupBudget": "its NodeGroup does not let it go", retirement.CloudRefused: "its cloud does not let it go"} {
		simulate(t, 1, func(t *testing.T, s *sim) {
			a := s.replica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
			ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1)}, a.JudgeMachine)
			if err != nil {
				t.Fatal(err)
			}
			s.passes(5 * time.Second)
			s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) {
				rt.Status.Phase = v1alpha1.Pending
				rt.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: code, Message: "not now", LastTransitionTime: metav1.Now(),
				}}
			})
			if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != NotPossible || !strings.Contains(over.Outcome.Detail, says) {
				t.Errorf("%s: %+v, %v", code, over, err)
			}
		})
	}
}

func TestAMachineThatIsNotToGoIsLeftAsItWas(t *testing.T) {
	for name, tt := range map[string]struct {
		phase v1alpha1.Phase
		want  Result
	}{
		"its retirement is refused": {v1alpha1.Refused, NotPossible},
		"its drain is given up":     {v1alpha1.Aborted, NotPossible},
		"nobody takes it up":        {"", ClusterUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
				a := s.replica("a")
				ticket, err := a.Submit(t.Context(), Update{Kind: Dispose, MachineID: uuid(1)}, a.JudgeMachine)
				if err != nil {
					t.Fatal(err)
				}
				s.passes(5 * time.Second)
				if tt.phase != "" {
					s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = tt.phase, "no room" })
				}
				over, err := ticket.Wait(t.Context())
				if err != nil || over.Outcome.Result != tt.want {
					t.Errorf("%+v, %v", over, err)
				}
				if is := s.pool.machines[0].Membership; !is.Active || is.Evictable {
					t.Errorf("the machine is %+v after %q; want it to be kept as before", is, s.pool.requests())
				}
			})
		})
	}
}

func TestAMachineWithoutANodeIsNotTerminatedByItsName(t *testing.T) {
	for _, state := range []api.MachineState{api.Requested, api.Pending, api.Running} {
		for _, up := range []Update{{Kind: Terminate, Decrement: true}, {Kind: Terminate}, {Kind: Dispose}} {
			simulate(t, 1, func(t *testing.T, s *sim) {
				m := machine(2, state, "")
				at := time.Now().Add(-24 * time.Hour)
				m.LaunchTime = &at
				s.pool.add(m)
				s.pool.size = 2
				up.MachineID = uuid(2)
				a := s.replica("a")
				ends(t, a, up, time.Minute, NotPossible, "has no node")
				if asked := s.pool.requests(); len(asked) > 0 {
					t.Errorf("%s, %s: the server was asked %q", state, up.Kind, asked)
				}
				ends(t, a, Update{Kind: SetSize, DesiredSize: 1}, time.Minute, Done) // demands it
				if asked := s.pool.requests(); !slices.Contains(asked, "delete "+uuid(2)) || len(s.retirements()) > 0 {
					t.Errorf("%s: the server was asked %q, and there are %d retirements", state, asked, len(s.retirements()))
				}
			})
		}
	}
}

func TestNothingIsRemovedWhilePairsAreUnclear(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.node("twin", 1) // so that machine 1 has two nodes
		a := s.replica("a")
		s.passes(time.Second)
		for _, up := range []Update{{Kind: SetSize, DesiredSize: 1}, {Kind: Terminate, MachineID: uuid(3), Decrement: true}} {
			ends(t, a, up, time.Minute, NotPossible, "not clear which machine is which node", "twin", uuid(1))
		}
		if asked := s.pool.requests(); len(asked) > 0 || len(s.retirements()) > 0 {
			t.Errorf("the pool was asked %q, and there are %d retirements; want nothing done", asked, len(s.retirements()))
		}
	})
}

// TestI7ARunningMachineOfANodeThatSaysNothingIsNotTerminated has a node whose provider ID is of no known cloud and whose
// address is of a network that the pool does not list.
func TestI7ARunningMachineOfANodeThatSaysNothingIsNotTerminated(t *testing.T) {
	simulate(t, 0, func(t *testing.T, s *sim) {
		s.pool.add(machine(3, api.Running, "192.168.7.3"))
		s.pool.size = 1
		silent := node("worker-3", "k3s://worker-3", "10.0.0.3")
		if _, err := s.kube.CoreV1().Nodes().Create(t.Context(), silent, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		a := s.replica("a")
		s.passes(time.Second)
		why := `machine-may-be-a-node`
		ends(t, a, Update{Kind: SetSize, DesiredSize: 0}, time.Hour, NotPossible, why, "node worker-3", "k3s://worker-3")
		ends(t, a, Update{Kind: Terminate, MachineID: uuid(3), Decrement: true}, time.Hour, NotPossible, why, "node worker-3", "k3s://worker-3")
		ends(t, a, Update{Kind: Dispose, MachineID: uuid(3)}, time.Hour, NotPossible, why, "node worker-3")
		if asked := s.pool.requests(); len(asked) > 0 || len(s.retirements()) > 0 {
			t.Errorf("the pool was asked %q, and there are %d retirements; want nothing done", asked, len(s.retirements()))
		}
	})
}

// TestI4ANodeThatDoesNotSayItsMachineGoesWithTheOneThatItIsPairedWith has one of two such nodes named like no machine: its
// retirement would be refused, and none is made.
func TestI4ANodeThatDoesNotSayItsMachineGoesWithTheOneThatItIsPairedWith(t *testing.T) {
	simulate(t, 0, func(t *testing.T, s *sim) {
		for i, name := range []string{"n1", "worker"} {
			s.pool.add(machine(i+1, api.Running, fmt.Sprint("10.0.0.", i+1)))
			anonymous := node(name, "", fmt.Sprint("10.0.0.", i+1))
			anonymous.UID = types.UID(name)
			if _, err := s.kube.CoreV1().Nodes().Create(t.Context(), anonymous, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.pool.size = 2
		a := s.replica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
		s.passes(time.Second)
		for _, up := range []Update{{Kind: Terminate, MachineID: uuid(2)}, {Kind: Dispose, MachineID: uuid(2)}} {
			ends(t, a, up, time.Minute, NotPossible, "machine-not-confirmed", `computer name "n2"`)
		}
		if n := len(s.retirements()); n != 0 {
			t.Fatalf("%d retirements, want none", n)
		}
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 0})
		s.passes(5 * time.Second)
		if rts := s.retirements(); len(rts) != 1 || rts[0].Spec.NodeName != "n1" || rts[0].Spec.ProviderID != "openstack:///"+uuid(1) {
			t.Fatalf("%+v; want n1 alone, and its machine", rts)
		}
		s.manage()
		over, err := ticket.Wait(t.Context())
		if err != nil || over.Outcome.Result != Partial || over.Outcome.Removed != 1 || !strings.Contains(over.Outcome.Detail, "machine-not-confirmed") {
			t.Errorf("%+v, %v", over.Outcome, err)
		}
	})
}

// TestI1WhoMakesAMachineDisposableHasItGoOnlyWhereItMay has one that may be a node, and one that may be about to register, which
// the pool keeps so far.
func TestI1WhoMakesAMachineDisposableHasItGoOnlyWhereItMay(t *testing.T) {
	for rule, launched := range map[string]time.Duration{"machine-may-be-a-node": time.Hour, "machine-may-register": 0} {
		t.Run(rule, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, s *sim) {
				kept, at := machine(1, api.Running, ""), time.Now().Add(-launched)
				kept.Membership, kept.LaunchTime = &api.MembershipStatus{Active: true}, &at
				s.pool.add(kept)
				s.pool.size = 1
				if rule == "machine-may-be-a-node" {
					s.node("worker", 0)
				}
				a := s.replica("a")
				s.passes(time.Second)
				ends(t, a, Update{Kind: Dispose, MachineID: uuid(1)}, time.Minute, NotPossible, rule)
				if asked := s.pool.requests(); len(asked) > 0 {
					t.Errorf("the pool was asked %q", asked)
				}
			})
		})
	}
}
