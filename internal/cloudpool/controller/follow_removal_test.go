package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// setRetirementPhase sets the phase of a started retirement. If code is not empty, it blocks the retirement with that
// reason.
func (s *sim) setRetirementPhase(name string, phase v1alpha1.Phase, code string) {
	s.t.Helper()
	s.updateRetirementStatus(name, func(rt *v1alpha1.NodeRetirement) {
		now := metav1.Now()
		rt.Status.Phase, rt.Status.Message, rt.Status.Times.Draining = phase, "as it says", &now
		rt.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted", LastTransitionTime: now,
		}}
		if code != "" {
			rt.Status.Conditions = append(rt.Status.Conditions, metav1.Condition{
				Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: code, Message: "as it says", LastTransitionTime: now,
			})
		}
	})
}

func (s *sim) deleteNode(node string) {
	s.t.Helper()
	must.NoError(s.t, s.kube.CoreV1().Nodes().Delete(s.t.Context(), node, metav1.DeleteOptions{}))
}

// startTermination puts a machine into the state Terminating and lowers the desired size.
func (s *sim) startTermination(rt *v1alpha1.NodeRetirement) {
	s.pool.lowerSize(rt.Spec.KeepSize)
	defer s.pool.lock()()
	for i := range s.pool.machines {
		if s.pool.machines[i].ID == retiredMachineID(rt) {
			s.pool.machines[i].State = api.Terminating
		}
	}
}

// lowerSize lowers the desired size by one, unless it is kept.
func (s *fakeServer) lowerSize(keep bool) {
	defer s.lock()()
	if !keep {
		s.size--
	}
}

// checkPoolFree checks that the pool has no unfinished update.
func checkPoolFree(t *testing.T, u *Updater) {
	t.Helper()
	if busy, err := getUnfinishedUpdate(t.Context(), u); busy != nil || err != nil {
		t.Errorf("the pool is busy: %v, %v", busy, err)
	}
}

func retiredMachineID(rt *v1alpha1.NodeRetirement) string {
	return strings.TrimPrefix(rt.Spec.ProviderID, "openstack:///")
}

// TestHangingTerminationBlocksNoUpdate lets the cloud start a termination and never finish it. The machine no longer counts.
func TestHangingTerminationBlocksNoUpdate(t *testing.T) {
	for _, tt := range []struct {
		up   Update
		size int
	}{
		{Update{Kind: SetSize, DesiredSize: 2}, 2},
		{Update{Kind: Terminate, MachineID: newUUID(1), Decrement: true}, 2},
		{Update{Kind: Terminate, MachineID: newUUID(1)}, 3},
	} {
		t.Run(fmt.Sprint(tt.up.Kind, ", decrement: ", tt.up.Decrement), func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				submitted := mustSubmit(t, a, tt.up)
				s.advance(5 * time.Second)
				rt := s.listRetirements()[0]
				s.deleteNode(rt.Spec.NodeName)
				s.setRetirementPhase(rt.Name, v1alpha1.NodeDeleted, "")
				s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) {
					rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
				})
				s.startTermination(&rt)
				s.advance(30 * time.Second)
				if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil {
					t.Errorf("%+v, %v; want it unfinished after 30 s", is, err)
				}
				s.advance(time.Minute)
				is, err := a.FindUpdate(t.Context(), submitted.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || is.Outcome.Removed != 1 || s.pool.size != tt.size {
					t.Fatalf("%+v, %v, a desired size of %d after %q; want it done, and %d", is, err, s.pool.size, s.pool.changeRequests(), tt.size)
				}
				check.Is(t, 1, len(s.listRetirements()))
				checkPoolFree(t, a)
				// The next update does not wait for it and does not count it again.
				result, err := submitAndWait(t, a, Update{Kind: SetSize, DesiredSize: 1}, 10*time.Second)
				must.Not(t, err == nil, "%+v; want another machine to be leaving", result)
				for _, rt := range s.listRetirements() {
					if rt.Status.Phase == "" {
						s.deleteNode(rt.Spec.NodeName)
						s.pool.removeMachine(retiredMachineID(&rt), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
						s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
					}
				}
				s.advance(30 * time.Second)
				if is, err = a.FindUpdate(t.Context(), a.latestUpdateID(t)); err != nil || is.Outcome == nil || is.Outcome.Result != Done || is.Outcome.Removed != 1 {
					t.Errorf("%+v, %v; want one machine more removed", is, err)
				}
			})
		})
	}
}

// latestUpdateID returns the ID of the latest update.
func (u *Updater) latestUpdateID(t *testing.T) string {
	t.Helper()
	all, err := u.listUpdatesLive(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all[0].Name
}

// TestStalledRetirementEndsUpdate lets a retirement make no progress. It is cancelled if its node can be restored.
func TestStalledRetirementEndsUpdate(t *testing.T) {
	updates := []Update{
		{Kind: SetSize, DesiredSize: 2},
		{Kind: Terminate, MachineID: newUUID(1), Decrement: true},
		{Kind: Terminate, MachineID: newUUID(1)},
	}
	for name, tt := range map[string]struct {
		phase     v1alpha1.Phase
		code      string
		nodeGone  bool
		accepted  bool // the cloud has accepted the termination
		timeout   time.Duration
		want      Result
		text      string
		cancelled bool
	}{
		"manager is gone":            {v1alpha1.Cordoned, "", false, false, 11 * time.Minute, ClusterUnavailable, "was cancelled", true},
		"unknown reason":             {v1alpha1.Drained, "", false, false, 11 * time.Minute, ClusterUnavailable, "was cancelled", true},
		"disagreement":               {v1alpha1.Drained, retirement.Disagreement, false, false, 11 * time.Minute, BackendUnavailable, "was cancelled", true},
		"node has finalizer":         {v1alpha1.Drained, "", true, false, 11 * time.Minute, ClusterUnavailable, "continues without this update", false},
		"manager is gone after node": {v1alpha1.NodeDeleted, "", true, false, 11 * time.Minute, ClusterUnavailable, "continues without this update", false},
		"cloud does not start":       {v1alpha1.NodeDeleted, "", true, true, 11 * time.Minute, BackendUnavailable, "continues without this update", false},
		"cloud is busy":              {v1alpha1.NodeDeleted, retirement.CloudBusy, true, false, 11 * time.Minute, BackendUnavailable, "continues without this update", false},
	} {
		for _, up := range updates {
			t.Run(fmt.Sprint(name, ", ", up.Kind, ", decrement: ", up.Decrement), func(t *testing.T) {
				simulate(t, 3, func(t *testing.T, s *sim) {
					a := s.startReplica("a")
					submitted := mustSubmit(t, a, up)
					s.advance(5 * time.Second)
					rt := s.listRetirements()[0]
					if tt.nodeGone {
						s.deleteNode(rt.Spec.NodeName)
					}
					s.setRetirementPhase(rt.Name, tt.phase, tt.code)
					if tt.accepted {
						s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) {
							rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
						})
						s.pool.lowerSize(rt.Spec.KeepSize)
					}
					s.advance(9 * time.Minute)
					if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil {
						t.Errorf("%+v, %v; want it unfinished", is, err)
					}
					s.advance(tt.timeout - 9*time.Minute)
					is, err := a.FindUpdate(t.Context(), submitted.ID)
					if err != nil || is.Outcome == nil || is.Outcome.Result != tt.want || !strings.Contains(is.Outcome.Detail, tt.text) {
						t.Fatalf("%+v, %v; want %s, and %q", is, err, tt.want, tt.text)
					}
					if cancelled := len(s.listRetirements()) == 0; cancelled != tt.cancelled {
						t.Errorf("cancelled: %v, want %v", cancelled, tt.cancelled)
					}
					checkPoolFree(t, a)
					if !tt.cancelled { // the retirement finishes later
						s.pool.removeMachine(retiredMachineID(&rt), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize || tt.accepted})
						s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
						s.advance(time.Minute)
					}
					want := 3
					if !tt.cancelled && (up.Kind == SetSize || up.Decrement) {
						want = 2
					}
					if s.pool.size != want {
						t.Errorf("a desired size of %d after %q; want %d", s.pool.size, s.pool.changeRequests(), want)
					}
				})
			})
		}
	}
}

// TestRetirementContinuesIfCancelledTooLate lets the manager return, or not, when the update cancels the retirement.
func TestRetirementContinuesIfCancelledTooLate(t *testing.T) {
	for name, tt := range map[string]struct {
		returns, deletes bool
		text             string
		size             int
	}{
		"manager deletes the node":         {true, false, "continues without this update", 3},
		"manager deletes node and machine": {true, true, "continues without this update", 3},
		"manager does not return":          {false, false, "was cancelled, and the machine stays", 3},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				rt := s.listRetirements()[0]
				rt.Finalizers = []string{retirement.Finalizer}
				must.NoError(t, s.objects.Update(t.Context(), &rt))
				s.setRetirementPhase(rt.Name, v1alpha1.Drained, "")
				for range 12 * 60 {
					s.advance(time.Second)
					if tt.returns && s.listRetirements()[0].DeletionTimestamp != nil {
						s.deleteNode("n1")
						s.setRetirementPhase(rt.Name, v1alpha1.NodeDeleted, "")
						if tt.deletes {
							s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) {
								rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
							})
							s.startTermination(&rt)
						}
						break
					}
				}
				s.advance(time.Minute)
				is, err := a.FindUpdate(t.Context(), submitted.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != ClusterUnavailable || !strings.Contains(is.Outcome.Detail, tt.text) || s.pool.size != tt.size {
					t.Errorf("%+v, %v, a desired size of %d; want %q, and %d", is.Outcome, err, s.pool.size, tt.text, tt.size)
				}
				checkPoolFree(t, a)
			})
		})
	}
}

// TestCloudFailureAfterDrainIsReported lets the manager fail to reach the pool's server before and after the node is
// deleted.
func TestCloudFailureAfterDrainIsReported(t *testing.T) {
	for _, phase := range []v1alpha1.Phase{v1alpha1.Drained, v1alpha1.NodeDeleted} {
		t.Run(string(phase), func(t *testing.T) {
			for _, up := range []Update{{Kind: SetSize, DesiredSize: 2}, {Kind: Terminate, MachineID: newUUID(1)}} {
				simulate(t, 3, func(t *testing.T, s *sim) {
					a := s.startReplica("a")
					submitted := mustSubmit(t, a, up)
					s.advance(5 * time.Second)
					rt := s.listRetirements()[0]
					if phase == v1alpha1.NodeDeleted {
						s.deleteNode(rt.Spec.NodeName)
					}
					s.setRetirementPhase(rt.Name, phase, retirement.ReadFailed)
					s.advance(90 * time.Second)
					is, err := a.FindUpdate(t.Context(), submitted.ID)
					answer, ok := is.withClientOutcome()
					if err != nil || !ok || answer.Outcome.Result != BackendUnavailable || !strings.Contains(answer.Outcome.Detail, "keeps retrying") {
						t.Fatalf("%+v, %v; want an error for the client", is, err)
					}
					check.Is(t, 1, len(s.listRetirements()))
					s.advance(10 * time.Minute)
					checkPoolFree(t, a)
					if asked := s.pool.sizeRequests(); len(asked) > 0 {
						t.Errorf("the server was asked %q; want no change of its size", asked)
					}
				})
			}
		})
	}
}

// TestWaitForCloudDoesNotEndItsFailure has a termination without a valid answer. The retirement then waits for new
// observations of the pool, and sends the termination again without success.
func TestWaitForCloudDoesNotEndItsFailure(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.advance(5 * time.Second)
		rt := s.listRetirements()[0]
		s.deleteNode(rt.Spec.NodeName)
		for _, step := range []struct {
			code    string
			lasts   time.Duration
			reports bool
		}{{retirement.CloudFailed, 10 * time.Second, false}, {retirement.CloudBusy, 2 * time.Minute, false}, {retirement.CloudFailed, 10 * time.Second, true}} {
			s.setRetirementPhase(rt.Name, v1alpha1.NodeDeleted, step.code)
			s.advance(step.lasts)
			is, err := a.FindUpdate(t.Context(), submitted.ID)
			if answer, ok := is.withClientOutcome(); err != nil || ok != step.reports || ok && answer.Outcome.Result != BackendUnavailable {
				t.Fatalf("%s for %s: %+v, %v; want an error for the client: %t", step.code, step.lasts, answer.Outcome, err, step.reports)
			}
		}
	})
}

// TestDrainKeepsItsTimeWhileCloudFails has a drain in which no pod ends: a pod may need long, and the cloud may be asked
// rarely.
func TestDrainKeepsItsTimeWhileCloudFails(t *testing.T) {
	for _, code := range []string{retirement.CloudBusy, retirement.CloudRefused, retirement.ReadFailed} {
		for _, up := range []Update{{Kind: SetSize, DesiredSize: 2}, {Kind: Terminate, MachineID: newUUID(1)}} {
			t.Run(fmt.Sprint(code, ", ", up.Kind), func(t *testing.T) {
				simulate(t, 3, func(t *testing.T, s *sim) {
					a := s.startReplica("a")
					submitted := mustSubmit(t, a, up)
					s.advance(5 * time.Second)
					s.setRetirementPhase(s.listRetirements()[0].Name, v1alpha1.Draining, code)
					s.advance(65 * time.Minute)
					is, err := a.FindUpdate(t.Context(), submitted.ID)
					if answer, ok := is.withClientOutcome(); err != nil || ok {
						t.Fatalf("%+v, %v; want the drain to keep its hour", answer.Outcome, err)
					}
					s.advance(10 * time.Minute)
					is, err = a.FindUpdate(t.Context(), submitted.ID)
					if err != nil || is.Outcome == nil || is.Outcome.Result != BackendUnavailable || len(s.listRetirements()) > 0 || s.pool.size != 3 {
						t.Errorf("%+v, %v, a desired size of %d; want it finished, and the drain cancelled", is.Outcome, err, s.pool.size)
					}
				})
			})
		}
	}
}

// TestUpdateWaitsForDrainTime has a drain wait for a PDB, within the drain time of its group and beyond.
func TestUpdateWaitsForDrainTime(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.advance(5 * time.Second)
		name := s.listRetirements()[0].Name
		s.setRetirementPhase(name, v1alpha1.Draining, retirement.PodBlocked)
		s.advance(65 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil {
			t.Fatalf("%+v, %v; want the drain to keep its hour", is, err)
		}
		s.advance(10 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome == nil || is.Outcome.Result != ClusterUnavailable || len(s.listRetirements()) > 0 {
			t.Errorf("%+v, %v; want it finished, and the drain cancelled", is, err)
		}
	})
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.advance(5 * time.Second)
		name := s.listRetirements()[0].Name
		s.setRetirementPhase(name, v1alpha1.Draining, "")
		for i := range 12 {
			s.advance(9 * time.Minute)
			s.updateRetirementStatus(name, func(rt *v1alpha1.NodeRetirement) {
				rt.Status.Drain = &v1alpha1.DrainProgress{Total: 20, Gone: int32(i)}
			})
		}
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil {
			t.Errorf("%+v, %v; want it to wait for a drain that makes progress", is, err)
		}
	})
}

// TestStalledForeignRetirementIsNotCancelled has it stall in a phase in which it could be cancelled.
func TestStalledForeignRetirementIsNotCancelled(t *testing.T) {
	for _, up := range []Update{{Kind: SetSize, DesiredSize: 2}, {Kind: Terminate, MachineID: newUUID(2)}} {
		simulate(t, 3, func(t *testing.T, s *sim) {
			a := s.startReplica("a")
			s.createForeignRetirement(2, "n2")
			s.setRetirementPhase("others-n2", v1alpha1.Drained, "")
			submitted := mustSubmit(t, a, up)
			s.advance(11 * time.Minute)
			is, err := a.FindUpdate(t.Context(), submitted.ID)
			if err != nil || is.Outcome == nil || is.Outcome.Result != ClusterUnavailable || !strings.Contains(is.Outcome.Detail, "others-n2, which this update did not create") {
				t.Fatalf("%+v, %v", is, err)
			}
			if nodes := s.retiringNodes(); len(nodes) != 1 || s.pool.size != 3 {
				t.Errorf("%v are retired, and the desired size is %d; want n2 alone, and 3", nodes, s.pool.size)
			}
			checkPoolFree(t, a)
		})
	}
}

// stalePool is a pool that its server does not observe again.
type stalePool struct {
	*fakeServer
	observedAt time.Time
}

func (s stalePool) Pool(ctx context.Context) (api.Pool, error) {
	pool, err := s.fakeServer.Pool(ctx)
	pool.Timestamp = s.observedAt
	return pool, err
}

func TestStalePoolEndsUpdate(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.size = 4
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = stalePool{s.pool, time.Now()} })
		checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 3}, 11*time.Minute, BackendUnavailable, "was not observed again")
		checkPoolFree(t, a)
	})
}

// TestObservationTimeoutRestartsAfterRemoval adds machines while the update waits for an observation. One of them leaves
// before it waits again.
func TestObservationTimeoutRestartsAfterRemoval(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.size = 4
		b := &stalePool{s.pool, time.Now()}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = b })
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 3})
		s.advance(9 * time.Minute)
		for i := 3; i <= 4; i++ {
			s.pool.addMachine(newMachine(i, api.Running, ""))
			s.createNode(fmt.Sprint("n", i), i)
		}
		s.advance(30 * time.Second)
		if nodes := s.retiringNodes(); len(nodes) != 1 {
			t.Fatalf("%v are retired, want one", nodes)
		}
		s.completeRetirements()
		unlock := s.pool.lock()
		s.pool.size++ // another client raised it
		unlock()
		s.advance(5 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome != nil {
			t.Fatalf("%+v, %v; want it to wait for a new observation", is.Outcome, err)
		}
		s.advance(6 * time.Minute)
		is, err := a.FindUpdate(t.Context(), submitted.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != BackendUnavailable || !strings.Contains(is.Outcome.Detail, "was not observed again") {
			t.Errorf("%+v, %v", is.Outcome, err)
		}
	})
}

// TestPendingRetirementWithChangingReasonsIsCancelled changes the blocking reason all the time.
func TestPendingRetirementWithChangingReasonsIsCancelled(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		a := s.startReplica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
		submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
		s.advance(5 * time.Second)
		name := s.listRetirements()[0].Name
		for i := range 6 {
			code := []string{"GroupBudget", retirement.CloudBusy}[i%2]
			if len(s.listRetirements()) > 0 {
				s.setRetirementPhase(name, v1alpha1.Pending, code)
				s.updateRetirementStatus(name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Conditions = rt.Status.Conditions[1:] })
			}
			s.advance(time.Minute)
		}
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.listRetirements()) != 0 {
			t.Errorf("%+v, %v; want it cancelled", is, err)
		}
	})
}

// TestClientLearnsOfUnreachableReplica cuts the working process off from the Leases and PoolUpdates.
func TestClientLearnsOfUnreachableReplica(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.advance(5 * time.Second)
		s.leases.setUnreachable("a", true)
		s.updatesUnreadable.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		result, err := submitted.WaitForOutcome(ctx)
		if err != nil || result.Outcome.Result != ClusterUnavailable || !strings.Contains(result.Outcome.Detail, "the update continues") {
			t.Fatalf("%+v, %v; want an error for the client", result, err)
		}
		s.updatesUnreadable.Store(false)
		s.leases.setUnreachable("a", false)
		s.advance(time.Minute)
		s.completeRetirements()
		if result, err := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2}).WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done {
			t.Errorf("%+v, %v; want a repeated request to return the outcome", result, err)
		}
	})
}

func TestUnrecognizedMachineIsReportedAtOnce(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1), Decrement: true})
		s.advance(5 * time.Second)
		rt := s.listRetirements()[0]
		s.deleteNode(rt.Spec.NodeName)
		s.failDeletion()
		s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Conditions[1].Message = "deletion 1 failed: cloudpool workers: POST http://b/pool/terminate: 404 Not Found: unrecognized machine"
		})
		s.advance(5 * time.Second)
		is, err := a.FindUpdate(t.Context(), submitted.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != NotFound || !strings.Contains(is.Outcome.Detail, "unrecognized machine") {
			t.Errorf("%+v, %v; want 404 with the server's message", is, err)
		}
		checkPoolFree(t, a)
	})
}
