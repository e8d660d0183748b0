package cloudpool

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
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
func (s *sim) terminating(id string) {
	defer s.pool.locked()()
	for i := range s.pool.machines {
		if s.pool.machines[i].ID == id {
			s.pool.machines[i].State = api.Terminating
		}
	}
	s.pool.size--
}

// free checks that a pool takes other changes, such as a raise.
func free(t *testing.T, u *Updater) {
	t.Helper()
	if err := u.Exclusively(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Errorf("a raise is refused: %v", err)
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
				s.terminating(machineOf(&rt))
				s.passes(30 * time.Second)
				if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome != nil {
					t.Errorf("%+v, %v; want it to wait for a while", is, err)
				}
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), ticket.Update.ID)
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
						s.pool.end(machineOf(&rt))
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
	r, err := u.written(t.Context())
	if err != nil || r.Current == nil {
		t.Fatal(r, err)
	}
	return r.Current.ID
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
		"its manager is gone":         {v1alpha1.Cordoned, "", false, false, 11 * time.Minute, ClusterAway, "was called off", true},
		"nobody knows why":            {v1alpha1.Drained, "", false, false, 11 * time.Minute, ClusterAway, "was called off", true},
		"they disagree":               {v1alpha1.Drained, retirement.Disagreement, false, false, 11 * time.Minute, BackendAway, "was called off", true},
		"its node is held":            {v1alpha1.Drained, "", true, false, 11 * time.Minute, ClusterAway, "goes on by itself", false},
		"its manager is gone too far": {v1alpha1.NodeDeleted, "", true, false, 11 * time.Minute, ClusterAway, "goes on by itself", false},
		"its cloud does not begin":    {v1alpha1.NodeDeleted, "", true, true, 11 * time.Minute, BackendAway, "goes on by itself", false},
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
						unlock := s.pool.locked()
						s.pool.size--
						unlock()
					}
					s.passes(9 * time.Minute)
					if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome != nil {
						t.Errorf("%+v, %v; want it to be waited for", is, err)
					}
					s.passes(tt.most - 9*time.Minute)
					is, err := a.Find(t.Context(), ticket.Update.ID)
					if err != nil || is.Outcome == nil || is.Outcome.Result != tt.want || !strings.Contains(is.Outcome.Detail, tt.says) {
						t.Fatalf("%+v, %v; want %s, and %q", is, err, tt.want, tt.says)
					}
					if off := len(s.retirements()) == 0; off != tt.off {
						t.Errorf("called off: %v, want %v", off, tt.off)
					}
					free(t, a)
					if !tt.off { // what goes on comes to its end
						if !tt.taken { // and only then is taken
							unlock := s.pool.locked()
							s.pool.size--
							unlock()
						}
						unlock := s.pool.locked()
						s.pool.size++ // which end lowers
						unlock()
						s.pool.end(machineOf(&rt))
						s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
						s.passes(time.Minute)
					}
					want := 3
					if !tt.off && (up.Kind == SetSize || up.Decrement) && !tt.taken {
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

// TestAMachineWhoseNodeIsDeletedAsItIsCalledOffIsReplaced has the manager come back at the moment that it is given up, or not.
func TestAMachineWhoseNodeIsDeletedAsItIsCalledOffIsReplaced(t *testing.T) {
	for name, tt := range map[string]struct {
		comes, asks bool
		says        string
		size        int
	}{
		"it comes too late to give the node back": {true, false, "goes on by itself, and the desired size was set to 4", 4},
		"and has the machine taken at once":       {true, true, "goes on by itself, and the desired size was set to 3", 3},
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
							s.terminating(machineOf(&rt))
						}
						break
					}
				}
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), ticket.Update.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != ClusterAway || !strings.Contains(is.Outcome.Detail, tt.says) || s.pool.size != tt.size {
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
					is, err := a.Find(t.Context(), ticket.Update.ID)
					told, ok := is.answered()
					if err != nil || !ok || told.Outcome.Result != BackendAway || !strings.Contains(told.Outcome.Detail, "goes on trying") {
						t.Fatalf("%+v, %v; want its client to be told", is, err)
					}
					if len(s.retirements()) != 1 {
						t.Error("the retirement was called off; want it to go on")
					}
					s.passes(10 * time.Minute)
					free(t, a)
					want := map[bool]int{false: 3, true: 4}[phase == v1alpha1.NodeDeleted && up.Kind == Terminate]
					if s.pool.size != want {
						t.Errorf("a desired size of %d after %q; want %d until the machine is taken", s.pool.size, s.pool.requests(), want)
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
					is, err := a.Find(t.Context(), ticket.Update.ID)
					if told, ok := is.answered(); err != nil || ok {
						t.Fatalf("%+v, %v; want the drain to have its hour, and its manager to be waited for", told.Outcome, err)
					}
					s.passes(10 * time.Minute)
					is, err = a.Find(t.Context(), ticket.Update.ID)
					if err != nil || is.Outcome == nil || is.Outcome.Result != BackendAway || len(s.retirements()) > 0 || s.pool.size != 3 {
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
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome != nil {
			t.Fatalf("%+v, %v; want the drain to have its hour, and its manager to be waited for", is, err)
		}
		s.passes(10 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome == nil || is.Outcome.Result != ClusterAway || len(s.retirements()) > 0 {
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
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome != nil {
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
			is, err := a.Find(t.Context(), ticket.Update.ID)
			if err != nil || is.Outcome == nil || is.Outcome.Result != ClusterAway || !strings.Contains(is.Outcome.Detail, "others-n2, which is not of this update") {
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
		ends(t, a, Update{Kind: SetSize, DesiredSize: 3}, 11*time.Minute, BackendAway, "has not been observed again")
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
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome != nil {
			t.Fatalf("%+v, %v; want it to wait for the pool to be observed again", is.Outcome, err)
		}
		s.passes(6 * time.Minute)
		is, err := a.Find(t.Context(), ticket.Update.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != BackendAway || !strings.Contains(is.Outcome.Detail, "has not been observed again") {
			t.Errorf("%+v, %v", is.Outcome, err)
		}
	})
}

// TestARetirementThatWaitsForNowThisNowThatIsNotWaitedForForEver has what keeps it from beginning change all the time.
func TestARetirementThatWaitsForNowThisNowThatIsNotWaitedForForEver(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		a := s.replica("a")
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
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.retirements()) != 0 {
			t.Errorf("%+v, %v; want it called off", is, err)
		}
	})
}

// TestAnUpdateOfAProcessThatIsCutOffIsToldOf has the process that works on an update reach neither the Leases nor its record.
func TestAnUpdateOfAProcessThatIsCutOffIsToldOf(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		var away atomic.Bool
		s.kube.PrependReactor("*", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return away.Load(), nil, errCut })
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.passes(5 * time.Second)
		s.leases.cutOff("a", true)
		away.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		over, err := ticket.Wait(ctx)
		if err != nil || over.Outcome.Result != ClusterAway || !strings.Contains(over.Outcome.Detail, "the update goes on") {
			t.Fatalf("%+v, %v; want the client to be told", over, err)
		}
		away.Store(false)
		s.leases.cutOff("a", false)
		s.passes(time.Minute)
		s.manage()
		if over, err := begun(t, a, Update{Kind: SetSize, DesiredSize: 2}).Wait(t.Context()); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v; want who asks again to be told how it ends", over, err)
		}
	})
}

// TestASizeThatWasLoweredBeforeAnUpdateIsNotRaisedWhenItIsGivenUp has the cloud hang with what somebody else asked it for before.
func TestASizeThatWasLoweredBeforeAnUpdateIsNotRaisedWhenItIsGivenUp(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		s.retire(2, "n2")
		s.loses("n2")
		s.comesTo("others-n2", v1alpha1.NodeDeleted, "")
		s.retired("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
		})
		s.pool.size = 2
		s.passes(time.Minute)
		ends(t, a, Update{Kind: Terminate, MachineID: uuid(2)}, 11*time.Minute, BackendAway, "goes on by itself")
		if asked := s.pool.requests(); len(asked) > 0 || s.pool.size != 2 {
			t.Errorf("a desired size of %d after %q; want 2", s.pool.size, asked)
		}
		free(t, a)
	})
}
