package controller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// createForeignRetirement creates a Draining retirement of a machine's node, as another client does.
func (s *sim) createForeignRetirement(i int, node string) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: "others-" + node},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, ProviderID: "openstack:///" + newUUID(i)},
	}
	must.NoError(s.t, s.objects.Create(s.t.Context(), rt))
	s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Draining })
}

func TestI5ForeignRetirementCountsTowardsSmallerSize(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		s.createForeignRetirement(2, "n2")
		d, err := a.PlanShrinkTo(t.Context(), 3)
		check.Not(t, err != nil || d.Active != 3 || len(d.Victims) > 0, "the plan is %+v, %v; want no more victims", d, err)
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.CheckCanShrink)
		must.NoError(t, err)
		s.advance(10 * time.Second)
		check.Is(t, 1, len(s.listRetirements()))
		s.completeRetirements()
		s.advance(10 * time.Second)
		s.completeRetirements()
		result, err := submitted.WaitForOutcome(t.Context())
		if err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 2 || s.pool.size != 2 || len(s.listRetirements()) != 2 {
			t.Errorf("%+v, %v; %d retirements and a desired size of %d, want 2 and 2", result.Outcome, err, len(s.listRetirements()), s.pool.size)
		}
		if asked := s.pool.changeRequests(); len(asked) > 0 {
			t.Errorf("the pool's server was asked for %q; want no change of its size", asked)
		}
	})
}

func TestTerminationFollowsExistingRetirement(t *testing.T) {
	for name, nodeGone := range map[string]bool{"node is draining": false, "node is gone": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				s.createForeignRetirement(2, "n2")
				if nodeGone {
					must.NoError(t, s.kube.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}))
					s.advance(time.Second)
				}
				submitted := must.Get(a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(2), Decrement: true}, a.CheckCanRemoveMachine))(t)
				s.advance(10 * time.Second)
				if nodeGone {
					s.createNode("n2", 0) // completeRetirements deletes it
				}
				s.completeRetirements()
				if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 1 || len(s.listRetirements()) != 1 {
					t.Errorf("%+v, %v, %d retirements", result, err, len(s.listRetirements()))
				}
			})
		})
	}
}

func TestForeignRetirementIsNotCancelled(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		s.createForeignRetirement(2, "n2")
		s.updateRetirementStatus("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Phase = v1alpha1.Pending
			rt.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: "GroupBudget", Message: "not now", LastTransitionTime: metav1.Now(),
			}}
		})
		result, err := submitAndWait(t, a, Update{Kind: Terminate, MachineID: newUUID(2)}, 10*time.Minute)
		if err != nil || result.Outcome.Result != NotPossible || !strings.Contains(result.Outcome.Detail, "others-n2, which this update did not create, waits: not now") {
			t.Errorf("%+v, %v", result, err)
		}
		check.Is(t, 1, len(s.listRetirements()))
	})
}

// TestForeignPoolUpdateBlocksNoUpdate creates an object by hand. The object is not carried out, and a new update starts
// after few requests.
func TestForeignPoolUpdateBlocksNoUpdate(t *testing.T) {
	ofPool := map[string]string{PoolLabel: "workers"}
	for name, tt := range map[string]struct {
		object string
		labels map[string]string
		pool   string
	}{
		"next name without label":  {"workers-1", nil, "workers"},
		"next name of other pool":  {"workers-1", ofPool, "other"},
		"name without number":      {"by-hand", ofPool, "workers"},
		"too large number":         {"workers-99999999999999999999", ofPool, "workers"},
		"number with leading zero": {"workers-01", ofPool, "workers"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				err := s.objects.Create(t.Context(), &v1alpha1.PoolUpdate{
					ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: tt.object, Labels: tt.labels},
					Spec:       v1alpha1.PoolUpdateSpec{Pool: tt.pool, Type: v1alpha1.SetPoolSize, DesiredSize: new(int32(1))},
				})
				must.NoError(t, err)
				creations := 0
				s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, more ...client.CreateOption) error {
						if creations++; creations > 20 {
							return errConnectionRefused
						}
						return c.Create(ctx, o, more...)
					},
				})
				a := s.startReplica("a")
				s.advance(5 * time.Second)
				submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, nil)
				if err != nil {
					t.Fatalf("%v after %d requests to create it, want the update created", err, creations)
				}
				for range 10 {
					s.advance(2 * time.Second)
					s.completeRetirements()
				}
				if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome == nil || is.Outcome.Result != Done || len(s.pool.machines) != 2 {
					t.Errorf("%+v, %v, and %d machines; want it done, and 2", is, err, len(s.pool.machines))
				}
			})
		})
	}
}

// changingPool is a pool that changes after its first read.
type changingPool struct {
	*fakeServer
	afterRead func() // called once, after the first read
}

func (s *changingPool) Pool(ctx context.Context) (api.Pool, error) {
	pool, err := s.fakeServer.Pool(ctx)
	if change := s.afterRead; change != nil {
		s.afterRead = nil
		change()
	}
	return pool, err
}

func TestI1SizeIsReadAgainBeforeForwardedRaise(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		pool := &changingPool{fakeServer: s.pool}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		pool.afterRead = func() { // another client raises the size in between
			s.pool.size = 10
			for i := 5; i <= 10; i++ {
				s.pool.addMachine(newMachine(i, api.Running, ""))
			}
		}
		front := newServer("workers", pool, nil, a, false)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/pool/size", strings.NewReader(`{"desiredSize":4}`))
		request.Header.Set("Prefer", "respond-async")
		answer := httptest.NewRecorder()
		front.ServeHTTP(answer, request)
		if asked := s.pool.changeRequests(); len(asked) == 0 || asked[0] == "size 4" {
			t.Errorf("answered %d %s after %q; want an update to remove the machines, not the server", answer.Code, answer.Body, s.pool.changeRequests())
		}
	})
}

// TestOneReplicaChangesPoolAtATime submits from two replicas at once, and then more from both while one update is
// unfinished.
func TestOneReplicaChangesPoolAtATime(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a, b := s.startReplica("a"), s.startReplica("b")
		s.advance(time.Second)
		accepted, refused := make(chan *Update, 2), make(chan error, 2)
		for size, u := range map[int]*Updater{3: a, 2: b} {
			go func() {
				submitted, err := u.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: size}, u.CheckCanShrink)
				if err != nil {
					refused <- err
					return
				}
				accepted <- submitted
			}()
		}
		s.advance(time.Second)
		must.Not(t, len(accepted) != 1 || len(refused) != 1, "%d are accepted, want 1", len(accepted))
		submitted := <-accepted
		var busy *BusyError
		if err := <-refused; !errors.As(err, &busy) || busy.Current.ID != submitted.ID {
			t.Errorf("%v; want it to be busy with %s", err, submitted)
		}
		for name, u := range map[string]*Updater{"a": a, "b": b} {
			_, err := u.SubmitOrFindEqual(t.Context(), Update{Kind: DetachMachine, MachineID: newUUID(1)}, nil)
			check.Not(t, !errors.As(err, &busy) || busy.Current.ID != submitted.ID, "%s: %v; want it to be busy with %s", name, err, submitted)
			if same, err := u.SubmitOrFindEqual(t.Context(), *submitted, u.CheckCanShrink); err != nil || same.ID != submitted.ID {
				t.Errorf("%s: %v, %v; want an equal request to return the same update", name, same, err)
			}
		}
		if asked := s.pool.changeRequests(); len(asked) > 0 {
			t.Errorf("the pool was asked %q", asked)
		}
	})
}
