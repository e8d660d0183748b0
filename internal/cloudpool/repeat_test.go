package cloudpool

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// TestI5AMachineIsReplacedOnceHoweverOftenItIsGivenUp has the cloud of a machine that is to be replaced be away once its node is
// deleted, and its client repeat what was given up, here or in another process. The size is raised for the machine once.
func TestI5AMachineIsReplacedOnceHoweverOftenItIsGivenUp(t *testing.T) {
	terminate, dispose := Update{Kind: Terminate, MachineID: uuid(1)}, Update{Kind: Dispose, MachineID: uuid(1)}
	for name, tt := range map[string]struct {
		first, then Update
		times       int
		code        string
		asked       string // what its cloud says to each request for it, which does not lower the size
	}{
		"once":                      {terminate, terminate, 1, retirement.ReadFailed, ""},
		"four times":                {terminate, terminate, 4, retirement.ReadFailed, ""},
		"with no word of a cloud":   {terminate, terminate, 4, "", ""},
		"with a cloud that fails":   {terminate, terminate, 4, retirement.CloudFailed, "fails"},
		"with one that lies":        {terminate, terminate, 4, retirement.CloudFailed, "takes"},
		"disposed of":               {dispose, dispose, 4, retirement.ReadFailed, ""},
		"disposed of, by no cloud":  {dispose, dispose, 4, "", ""},
		"disposed of, and it fails": {dispose, dispose, 4, retirement.CloudRefused, "fails"},
		"terminated, disposed of":   {terminate, dispose, 4, retirement.ReadFailed, ""},
		"disposed of, terminated":   {dispose, terminate, 4, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true, Evictable: true}
				a, b := s.replica("a"), s.replica("b")
				begun(t, a, tt.first)
				s.passes(5 * time.Second)
				rt := s.retirements()[0]
				s.loses(rt.Spec.NodeName)
				s.comesTo(rt.Name, v1alpha1.NodeDeleted, tt.code)
				for i := range tt.times {
					for range 12 {
						s.passes(time.Minute)
						op := &v1alpha1.CloudOperation{Started: metav1.Now()}
						switch again := metav1.NewTime(time.Now().Add(time.Minute)); tt.asked {
						case "fails":
							op.RetryAfter = &again
						case "takes":
							op.ID = "o"
						default:
							continue
						}
						s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Operation = op })
					}
					begun(t, []*Updater{b, a}[i%2], tt.then)
				}
				s.passes(5 * time.Second)
				if s.pool.size != 4 {
					t.Errorf("a desired size of %d after %q; want 4 until the machine is taken", s.pool.size, s.pool.requests())
				}
				s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
					rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
				})
				s.pool.end(machineOf(&rt))
				s.passes(5 * time.Second)
				s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), a.mustLatest(t))
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d after %q; want it done, and 3", is, err, s.pool.size, s.pool.requests())
				}
			})
		})
	}
}

// TestARaiseAheadIsForgottenWithItsRetirement has one retirement end before the next update begins, whose record does not keep it.
func TestARaiseAheadIsForgottenWithItsRetirement(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		for i := 1; i <= 2; i++ {
			begun(t, a, Update{Kind: Terminate, MachineID: uuid(i)})
			s.passes(5 * time.Second)
			node := fmt.Sprint("n", i)
			s.loses(node)
			for _, rt := range s.retirements() {
				if rt.Spec.NodeName == node {
					s.comesTo(rt.Name, v1alpha1.NodeDeleted, "")
				}
			}
			s.passes(12 * time.Minute)
			is, err := a.Find(t.Context(), a.mustLatest(t))
			if err != nil || len(is.Ahead) != 1 {
				t.Errorf("%+v, %v; want one raise ahead", is, err)
			}
			for _, rt := range s.retirements() {
				if rt.Spec.NodeName == node {
					s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
				}
			}
			s.pool.end(uuid(i))
		}
	})
}

// TestI8ARaiseAheadIsMadeOnceWhenItsProcessEnds has another process go on with an update that was given up, of which it is not
// written down that the size was raised. The machine is taken then.
func TestI8ARaiseAheadIsMadeOnceWhenItsProcessEnds(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.kube.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			defer s.pool.locked()()
			return s.pool.size == 4, nil, errors.New("away")
		})
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
		s.passes(5 * time.Second)
		rt := s.retirements()[0]
		s.loses(rt.Spec.NodeName)
		s.comesTo(rt.Name, v1alpha1.NodeDeleted, "")
		s.passes(11 * time.Minute)
		s.leases.cutOff("a", true)
		b := s.replica("b")
		s.passes(3 * time.Minute)
		if s.pool.size != 4 {
			t.Fatalf("a desired size of %d, want 4", s.pool.size)
		}
		s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Operation = &v1alpha1.CloudOperation{ID: "o", Started: metav1.Now()}
		})
		s.pool.end(machineOf(&rt))
		s.passes(5 * time.Second)
		s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
		s.passes(time.Minute)
		is, err := b.Find(t.Context(), ticket.Update.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 {
			t.Errorf("%+v, %v, a desired size of %d after %q; want it done, and 3", is, err, s.pool.size, s.pool.requests())
		}
	})
}

// TestI5AMachineIsReplacedOnceThoughAnotherLowersTheSizeMeanwhile has the machine of an earlier update that was given up be taken
// during the next one, which is given up, too, and repeated.
func TestI5AMachineIsReplacedOnceThoughAnotherLowersTheSizeMeanwhile(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.replica("a")
		halts := func(i int) (retirement string) {
			begun(t, a, Update{Kind: Terminate, MachineID: uuid(i)})
			s.passes(5 * time.Second)
			for _, rt := range s.retirements() {
				if machineOf(&rt) == uuid(i) {
					retirement = rt.Name
				}
			}
			s.loses(fmt.Sprint("n", i))
			s.comesTo(retirement, v1alpha1.NodeDeleted, "")
			return retirement
		}
		first := halts(1)
		s.passes(12 * time.Minute)
		halts(2)
		s.pool.end(uuid(1))
		s.retired(first, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
		for range 3 {
			s.passes(12 * time.Minute)
			begun(t, a, Update{Kind: Terminate, MachineID: uuid(2)})
		}
		s.passes(5 * time.Second)
		if s.pool.size != 5 {
			t.Errorf("a desired size of %d after %q; want 5 until the second machine is taken", s.pool.size, s.pool.requests())
		}
	})
}

// TestAMachineThatStaysAfterARaiseAheadThatFailedHasNoneLaunched has a retirement fail while the size cannot be raised for it.
func TestAMachineThatStaysAfterARaiseAheadThatFailedHasNoneLaunched(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
		s.passes(5 * time.Second)
		rt := s.retirements()[0]
		s.loses(rt.Spec.NodeName)
		s.comesTo(rt.Name, v1alpha1.NodeDeleted, retirement.CloudFailed)
		s.pool.fail("desired", errors.New("502"))
		s.passes(12 * time.Minute)
		s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) {
			again := metav1.Now()
			rt.Status.Phase, rt.Status.Operation = v1alpha1.Failed, &v1alpha1.CloudOperation{Started: again, RetryAfter: &again}
		})
		s.passes(5 * time.Second)
		s.pool.fail("desired", nil)
		s.passes(time.Minute)
		is, err := a.Find(t.Context(), ticket.Update.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != BackendAway || s.pool.size != 3 {
			t.Errorf("%+v, %v, a desired size of %d after %q; want it given up, and 3", is, err, s.pool.size, s.pool.requests())
		}
	})
}
