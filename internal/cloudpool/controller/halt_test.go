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
)

// comesTo has a retirement that has begun come to a phase, be held up there by a code, if any, and stay so.
func (s *sim) comesTo(name string, phase v1alpha1.Phase, code string) {
	s.t.Helper()
	s.retired(name, func(rt *v1alpha1.NodeRetirement) {
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

// loses has a node be deleted.
func (s *sim) loses(node string) {
	s.t.Helper()
	if err := s.kube.CoreV1().Nodes().Delete(s.t.Context(), node, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// terminating has a machine's termination be taken and begun, and lower the desired size.
func (s *sim) terminating(rt *v1alpha1.NodeRetirement) {
	s.pool.lower(rt.Spec.KeepSize)
	defer s.pool.locked()()
	for i := range s.pool.machines {
		if s.pool.machines[i].ID == machineOf(rt) {
			s.pool.machines[i].State = api.Terminating
		}
	}
}

// lower has the desired size be one less, unless it is kept.
func (s *server) lower(keep bool) {
	defer s.locked()()
	if !keep {
		s.size--
	}
}

// free checks that a pool takes other changes, such as a raise.
func free(t *testing.T, u *Updater) {
	t.Helper()
	if busy, err := busy(t.Context(), u); busy != nil || err != nil {
		t.Errorf("a raise is refused: %v, %v", busy, err)
	}
}

func machineOf(rt *v1alpha1.NodeRetirement) string {
	return strings.TrimPrefix(rt.Spec.ProviderID, "openstack:///")
}

// TestAMachineThatHangsInItsTerminationHoldsNoUpdateUp has the cloud begin with a termination and never end it: to its pool
// the machine does not count any more.
func TestAMachineThatHangsInItsTerminationHoldsNoUpdateUp(t *testing.T) {
	for _, tt := range []struct {
		up   Update
		size int
	}{
		{Update{Kind: SetSize, DesiredSize: 2}, 2},
		{Update{Kind: Terminate, MachineID: uuid(1), Decrement: true}, 2},
		{Update{Kind: Terminate, MachineID: uuid(1)}, 3},
	} {
		t.Run(fmt.Sprint(tt.up.Kind, ", decrement: ", tt.up.Decrement), func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				ticket := begun(t, a, tt.up)
				s.passes(5 * time.Second)
				rt := s.retirements()[0]
				s.loses(rt.Spec.NodeName)
				s.comesTo(rt.Name, v1alpha1.NodeDeleted, "")
				s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
					rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
				})
				s.terminating(&rt)
				s.passes(30 * time.Second)
				if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome != nil {
					t.Errorf("%+v, %v; want it to wait for a while", is, err)
				}
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), ticket.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || is.Outcome.Removed != 1 || s.pool.size != tt.size {
					t.Fatalf("%+v, %v, a desired size of %d after %q; want it done, and %d", is, err, s.pool.size, s.pool.requests(), tt.size)
				}
				if len(s.retirements()) != 1 {
					t.Error("the retirement was called off; want the machine to be followed to its end")
				}
				free(t, a)
				// The next update does not wait for it, nor counts it again.
				over, err := submit(t, a, Update{Kind: SetSize, DesiredSize: 1}, 10*time.Second)
				if err == nil {
					t.Fatalf("%+v; want another machine to be under way", over)
				}
				for _, rt := range s.retirements() {
					if rt.Status.Phase == "" {
						s.loses(rt.Spec.NodeName)
						s.pool.end(machineOf(&rt), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
						s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
					}
				}
				s.passes(30 * time.Second)
				if is, err = a.Find(t.Context(), a.mustLatest(t)); err != nil || is.Outcome == nil || is.Outcome.Result != Done || is.Outcome.Removed != 1 {
					t.Errorf("%+v, %v; want one machine more removed", is, err)
				}
			})
		})
	}
}

// mustLatest is the ID of the latest update.
func (u *Updater) mustLatest(t *testing.T) string {
	t.Helper()
	all, err := u.updates(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all[0].Name
}

// TestARetirementThatHaltsHoldsNoUpdateUp has the retirement of an update halt where it is. It is called off where its node
// can be given back.
func TestARetirementThatHaltsHoldsNoUpdateUp(t *testing.T) {
	updates := []Update{
		{Kind: SetSize, DesiredSize: 2},
		{Kind: Terminate, MachineID: uuid(1), Decrement: true},
		{Kind: Terminate, MachineID: uuid(1)},
	}
	for name, tt := range map[string]struct {
		phase    v1alpha1.Phase
		code     string
		nodeGone bool
		taken    bool // the cloud has taken the termination
		most     time.Duration
		want     Result
		says     string
		off      bool // it is called off
	}{
		"its manager is gone":         {v1alpha1.Cordoned, "", false, false, 11 * time.Minute, ClusterUnavailable, "was called off", true},
		"nobody knows why":            {v1alpha1.Drained, "", false, false, 11 * time.Minute, ClusterUnavailable, "was called off", true},
		"they disagree":               {v1alpha1.Drained, retirement.Disagreement, false, false, 11 * time.Minute, BackendUnavailable, "was called off", true},
		"its node is held":            {v1alpha1.Drained, "", true, false, 11 * time.Minute, ClusterUnavailable, "goes on by itself", false},
		"its manager is gone too far": {v1alpha1.NodeDeleted, "", true, false, 11 * time.Minute, ClusterUnavailable, "goes on by itself", false},
		"its cloud does not begin":    {v1alpha1.NodeDeleted, "", true, true, 11 * time.Minute, BackendUnavailable, "goes on by itself", false},
	} {
		for _, up := range updates {
			t.Run(fmt.Sprint(name, ", ", up.Kind, ", decrement: ", up.Decrement), func(t *testing.T) {
				simulate(t, 3, func(t *testing.T, s *sim) {
					a := s.replica("a")
					ticket := begun(t, a, up)
					s.passes(5 * time.Second)
					rt := s.retirements()[0]
					if tt.nodeGone {
						s.loses(rt.Spec.NodeName)
					}
					s.comesTo(rt.Name, tt.phase, tt.code)
					if tt.taken {
						s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
							rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
						})
						s.pool.lower(rt.Spec.KeepSize)
					}
					s.passes(9 * time.Minute)
					if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome != nil {
						t.Errorf("%+v, %v; want it to be waited for", is, err)
					}
					s.passes(tt.most - 9*time.Minute)
					is, err := a.Find(t.Context(), ticket.ID)
					if err != nil || is.Outcome == nil || is.Outcome.Result != tt.want || !strings.Contains(is.Outcome.Detail, tt.says) {
						t.Fatalf("%+v, %v; want %s, and %q", is, err, tt.want, tt.says)
					}
					if off := len(s.retirements()) == 0; off != tt.off {
						t.Errorf("called off: %v, want %v", off, tt.off)
					}
					free(t, a)
					if !tt.off { // what goes on comes to its end
						s.pool.end(machineOf(&rt), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize || tt.taken})
						s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
						s.passes(time.Minute)
					}
					want := 3
					if !tt.off && (up.Kind == SetSize || up.Decrement) {
						want = 2
					}
					if s.pool.size != want {
						t.Errorf("a desired size of %d after %q; want %d", s.pool.size, s.pool.requests(), want)
					}
				})
			})
		}
	}
}

// TestAMachineWhoseNodeIsDeletedAsItIsCalledOffGoesOn has the manager come back at the moment that it is given up, or not.
func TestAMachineWhoseNodeIsDeletedAsItIsCalledOffGoesOn(t *testing.T) {
	for name, tt := range map[string]struct {
		comes, asks bool
		says        string
		size        int
	}{
		"it comes too late to give the node back": {true, false, "goes on by itself", 3},
		"and has the machine taken at once":       {true, true, "goes on by itself", 3},
		"it does not come":                        {false, false, "was called off, and the machine stays", 3},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
				s.passes(5 * time.Second)
				rt := s.retirements()[0]
				rt.Finalizers = []string{retirement.Finalizer}
				if err := s.objects.Update(t.Context(), &rt); err != nil {
					t.Fatal(err)
				}
				s.comesTo(rt.Name, v1alpha1.Drained, "")
				for range 12 * 60 {
					s.passes(time.Second)
					if tt.comes && s.retirements()[0].DeletionTimestamp != nil {
						s.loses("n1")
						s.comesTo(rt.Name, v1alpha1.NodeDeleted, "")
						if tt.asks {
							s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
								rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
							})
							s.terminating(&rt)
						}
						break
					}
				}
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), ticket.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != ClusterUnavailable || !strings.Contains(is.Outcome.Detail, tt.says) || s.pool.size != tt.size {
					t.Errorf("%+v, %v, a desired size of %d; want %q, and %d", is.Outcome, err, s.pool.size, tt.says, tt.size)
				}
				free(t, a)
			})
		})
	}
}

// TestACloudThatFailsAfterTheDrainIsToldOf has the manager fail to reach the pool's server, before and after the node is deleted.
func TestACloudThatFailsAfterTheDrainIsToldOf(t *testing.T) {
	for _, phase := range []v1alpha1.Phase{v1alpha1.Drained, v1alpha1.NodeDeleted} {
		t.Run(string(phase), func(t *testing.T) {
			for _, up := range []Update{{Kind: SetSize, DesiredSize: 2}, {Kind: Terminate, MachineID: uuid(1)}} {
				simulate(t, 3, func(t *testing.T, s *sim) {
					a := s.replica("a")
					ticket := begun(t, a, up)
					s.passes(5 * time.Second)
					rt := s.retirements()[0]
					if phase == v1alpha1.NodeDeleted {
						s.loses(rt.Spec.NodeName)
					}
					s.comesTo(rt.Name, phase, retirement.ReadFailed)
					s.passes(90 * time.Second)
					is, err := a.Find(t.Context(), ticket.ID)
					told, ok := is.answered()
					if err != nil || !ok || told.Outcome.Result != BackendUnavailable || !strings.Contains(told.Outcome.Detail, "goes on trying") {
						t.Fatalf("%+v, %v; want its client to be told", is, err)
					}
					if len(s.retirements()) != 1 {
						t.Error("the retirement was called off; want it to go on")
					}
					s.passes(10 * time.Minute)
					free(t, a)
					if asked := s.pool.sizes(); len(asked) > 0 {
						t.Errorf("the server was asked %q; want its size not to be touched", asked)
					}
				})
			}
		})
	}
}

// TestADrainThatIsInItsTimeIsWaitedForWhileItsCloudFails has no pod go meanwhile: one may take long to end, and the cloud may be
// asked seldom.
func TestADrainThatIsInItsTimeIsWaitedForWhileItsCloudFails(t *testing.T) {
	for _, code := range []string{retirement.CloudBusy, retirement.CloudRefused, retirement.ReadFailed} {
		for _, up := range []Update{{Kind: SetSize, DesiredSize: 2}, {Kind: Terminate, MachineID: uuid(1)}} {
			t.Run(fmt.Sprint(code, ", ", up.Kind), func(t *testing.T) {
				simulate(t, 3, func(t *testing.T, s *sim) {
					a := s.replica("a")
					ticket := begun(t, a, up)
					s.passes(5 * time.Second)
					s.comesTo(s.retirements()[0].Name, v1alpha1.Draining, code)
					s.passes(65 * time.Minute)
					is, err := a.Find(t.Context(), ticket.ID)
					if told, ok := is.answered(); err != nil || ok {
						t.Fatalf("%+v, %v; want the drain to have its hour, and its manager to be waited for", told.Outcome, err)
					}
					s.passes(10 * time.Minute)
					is, err = a.Find(t.Context(), ticket.ID)
					if err != nil || is.Outcome == nil || is.Outcome.Result != BackendUnavailable || len(s.retirements()) > 0 || s.pool.size != 3 {
						t.Errorf("%+v, %v, a desired size of %d; want it to be over, and the drain called off", is.Outcome, err, s.pool.size)
					}
				})
			})
		}
	}
}

// TestADrainThatIsInItsTimeIsWaitedFor has a drain wait for a disruption budget, within what its group gives it and beyond.
func TestADrainThatIsInItsTimeIsWaitedFor(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.passes(5 * time.Second)
		name := s.retirements()[0].Name
		s.comesTo(name, v1alpha1.Draining, retirement.PodBlocked)
		s.passes(65 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome != nil {
			t.Fatalf("%+v, %v; want the drain to have its hour, and its manager to be waited for", is, err)
		}
		s.passes(10 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome == nil || is.Outcome.Result != ClusterUnavailable || len(s.retirements()) > 0 {
			t.Errorf("%+v, %v; want it to be over, and the drain called off", is, err)
		}
	})
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.passes(5 * time.Second)
		name := s.retirements()[0].Name
		s.comesTo(name, v1alpha1.Draining, "")
		for i := range 12 {
			s.passes(9 * time.Minute)
			s.retired(name, func(rt *v1alpha1.NodeRetirement) {
				rt.Status.Drain = &v1alpha1.DrainProgress{Total: 20, Gone: int32(i)}
			})
		}
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome != nil {
			t.Errorf("%+v, %v; want a drain that comes on to be waited for", is, err)
		}
	})
}

// TestTheRetirementOfSomebodyElseThatHaltsIsLeftToThem has it halt where it could be called off.
func TestTheRetirementOfSomebodyElseThatHaltsIsLeftToThem(t *testing.T) {
	for _, up := range []Update{{Kind: SetSize, DesiredSize: 2}, {Kind: Terminate, MachineID: uuid(2)}} {
		simulate(t, 3, func(t *testing.T, s *sim) {
			a := s.replica("a")
			s.retire(2, "n2")
			s.comesTo("others-n2", v1alpha1.Drained, "")
			ticket := begun(t, a, up)
			s.passes(11 * time.Minute)
			is, err := a.Find(t.Context(), ticket.ID)
			if err != nil || is.Outcome == nil || is.Outcome.Result != ClusterUnavailable || !strings.Contains(is.Outcome.Detail, "others-n2, which is not of this update") {
				t.Fatalf("%+v, %v", is, err)
			}
			if nodes := s.retiring(); len(nodes) != 1 || s.pool.size != 3 {
				t.Errorf("%v are retired, and the desired size is %d; want n2 alone, and 3", nodes, s.pool.size)
			}
			free(t, a)
		})
	}
}

// stopped is a pool whose server does not observe it again.
type stopped struct {
	*server
	at time.Time
}

func (s stopped) Pool(ctx context.Context) (api.Pool, error) {
	pool, err := s.server.Pool(ctx)
	pool.Timestamp = s.at
	return pool, err
}

func TestAPoolThatIsNotObservedAgainHoldsNoUpdateUp(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.size = 4
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = stopped{s.pool, time.Now()} })
		ends(t, a, Update{Kind: SetSize, DesiredSize: 3}, 11*time.Minute, BackendUnavailable, "has not been observed again")
		free(t, a)
	})
}

// TestAnUpdateWaitsAnewForItsPoolToBeObserved has machines come while it waits for that, one of which leaves before it waits again.
func TestAnUpdateWaitsAnewForItsPoolToBeObserved(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.size = 4
		b := &stopped{s.pool, time.Now()}
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = b })
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 3})
		s.passes(9 * time.Minute)
		for i := 3; i <= 4; i++ {
			s.pool.add(machine(i, api.Running, ""))
			s.node(fmt.Sprint("n", i), i)
		}
		s.passes(30 * time.Second)
		if nodes := s.retiring(); len(nodes) != 1 {
			t.Fatalf("%v are retired, want one", nodes)
		}
		s.manage()
		unlock := s.pool.locked()
		s.pool.size++ // which somebody else has raised
		unlock()
		s.passes(5 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome != nil {
			t.Fatalf("%+v, %v; want it to wait for the pool to be observed again", is.Outcome, err)
		}
		s.passes(6 * time.Minute)
		is, err := a.Find(t.Context(), ticket.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != BackendUnavailable || !strings.Contains(is.Outcome.Detail, "has not been observed again") {
			t.Errorf("%+v, %v", is.Outcome, err)
		}
	})
}

// TestARetirementThatWaitsForNowThisNowThatIsNotWaitedForForEver has what keeps it from beginning change all the time.
func TestARetirementThatWaitsForNowThisNowThatIsNotWaitedForForEver(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		a := s.replica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = true })
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
		s.passes(5 * time.Second)
		name := s.retirements()[0].Name
		for i := range 6 {
			code := []string{"GroupBudget", retirement.CloudBusy}[i%2]
			if len(s.retirements()) > 0 {
				s.comesTo(name, v1alpha1.Pending, code)
				s.retired(name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Conditions = rt.Status.Conditions[1:] })
			}
			s.passes(time.Minute)
		}
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.retirements()) != 0 {
			t.Errorf("%+v, %v; want it called off", is, err)
		}
	})
}

// TestAnUpdateOfAProcessThatIsCutOffIsToldOf has the process that works on an update reach neither the Leases nor its record.
func TestAnUpdateOfAProcessThatIsCutOffIsToldOf(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.passes(5 * time.Second)
		s.leases.cutOff("a", true)
		s.away.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		over, err := ticket.Wait(ctx)
		if err != nil || over.Outcome.Result != ClusterUnavailable || !strings.Contains(over.Outcome.Detail, "the update goes on") {
			t.Fatalf("%+v, %v; want the client to be told", over, err)
		}
		s.away.Store(false)
		s.leases.cutOff("a", false)
		s.passes(time.Minute)
		s.manage()
		if over, err := begun(t, a, Update{Kind: SetSize, DesiredSize: 2}).Wait(t.Context()); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v; want who asks again to be told how it ends", over, err)
		}
	})
}

func TestAServerThatKnowsNoSuchMachineIsToldAtOnce(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1), Decrement: true})
		s.passes(5 * time.Second)
		rt := s.retirements()[0]
		s.loses(rt.Spec.NodeName)
		s.undeletable()
		s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Conditions[1].Message = "deletion 1 failed: cloudpool workers: POST http://b/pool/terminate: 404 Not Found: unrecognized machine"
		})
		s.passes(5 * time.Second)
		is, err := a.Find(t.Context(), ticket.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != NotFound || !strings.Contains(is.Outcome.Detail, "unrecognized machine") {
			t.Errorf("%+v, %v; want 404 with the server's words", is, err)
		}
		free(t, a)
	})
}
