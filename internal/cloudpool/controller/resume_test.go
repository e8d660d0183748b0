package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// createInterruptedUpdate creates an update as left by a process that ended before it created the retirement of n1.
func (s *sim) createInterruptedUpdate(want Update) {
	s.t.Helper()
	up := &v1alpha1.PoolUpdate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "workers-1", UID: "left", Labels: map[string]string{PoolLabel: "workers"}},
		Spec:       want.toSpec("workers"),
	}
	must.NoError(s.t, s.objects.Create(s.t.Context(), up))
	s.rewriteStatus(*up, func(st *v1alpha1.PoolUpdateStatus) {
		st.StartedAt, st.ObservedAt, st.SizeBefore = toMicroTime(time.Now()), toMicroTime(time.Now()), 3
		st.Machines = []v1alpha1.PoolMachine{{
			ID: newUUID(1), Node: "n1", NodeUID: "uid-n1", ProviderID: "openstack:///" + newUUID(1), Retirement: retirementName("left", "n1"),
			State: v1alpha1.MachineRemoving, Since: toMicroTime(time.Now()),
		}}
	})
}

// annotateNode sets an annotation of a node, as another client does.
func (s *sim) annotateNode(node, key, value string) {
	s.t.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.t.Context(), node, metav1.GetOptions{})
	if err == nil {
		n.Annotations = map[string]string{key: value}
		_, err = s.kube.CoreV1().Nodes().Update(s.t.Context(), n, metav1.UpdateOptions{})
	}
	must.NoError(s.t, err)
}

// retiringNodes returns the names of the nodes with a retirement.
func (s *sim) retiringNodes() []string {
	nodes := []string{}
	for _, rt := range s.listRetirements() {
		nodes = append(nodes, rt.Spec.NodeName)
	}
	slices.Sort(nodes)
	return nodes
}

// TestUncreatedRetirementIsChosenAgain ends a process after it recorded a removal and before it created the retirement.
func TestUncreatedRetirementIsChosenAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		update    Update
		protected bool
		want      []string
	}{
		"size, nothing changed":                {Update{Kind: SetSize, DesiredSize: 2}, false, []string{"n1"}},
		"size, first machine is now protected": {Update{Kind: SetSize, DesiredSize: 2}, true, []string{"n2"}},
		"one machine, nothing changed":         {Update{Kind: Terminate, MachineID: newUUID(1)}, false, []string{"n1"}},
		"one machine, now protected":           {Update{Kind: Terminate, MachineID: newUUID(1)}, true, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				if tt.protected {
					s.annotateNode("n1", drainability.DoNotEvict, "true")
				}
				s.createInterruptedUpdate(tt.update)
				a := s.startReplica("a")
				s.advance(30 * time.Second)
				if got := s.retiringNodes(); !slices.Equal(got, tt.want) {
					t.Errorf("%v are retired, want %v", got, tt.want)
				}
				up, err := a.FindUpdate(t.Context(), "workers-1")
				check.Not(t, err != nil || up == nil || len(tt.want) == 0 && (up.Outcome == nil || up.Outcome.Result != NotPossible), "%+v, %v", up, err)
			})
		})
	}
}

// TestCancelledRetirementIsNotCreatedAgain deletes the retirement between two processes.
func TestCancelledRetirementIsNotCreatedAgain(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(1)}, a.CheckCanRemoveMachine)
		must.NoError(t, err)
		s.advance(5 * time.Second)
		rts := s.listRetirements()
		must.Not(t, len(rts) != 1, "%d retirements, want 1", len(rts))
		s.leases.setUnreachable("a", true)
		s.advance(20 * time.Second) // until it knows that it lost the Lease
		must.NoError(t, s.objects.Delete(t.Context(), &rts[0]))
		b := s.startReplica("b")
		s.advance(time.Minute)
		up, err := b.FindUpdate(t.Context(), submitted.ID)
		if err != nil || up.Outcome == nil || up.Outcome.Result != NotPossible || len(s.listRetirements()) != 0 {
			t.Errorf("%+v, %v, %v; want it cancelled", up, err, s.retiringNodes())
		}
	})
}

// TestWaiterLearnsThatUpdateIsUnreadable waits in another process while the update is unreadable or deleted.
func TestWaiterLearnsThatUpdateIsUnreadable(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want Result
		text string
	}{
		"unreadable": {errors.New("away"), ClusterUnavailable, "continues as soon as it can be read"},
		"deleted":    {nil, Failed, "was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				up := Update{Kind: SetSize, DesiredSize: 2, Pool: "workers"}
				mustSubmit(t, s.startReplica("a"), up)
				submitted := mustSubmit(t, s.startReplica("b"), up)
				s.advance(5 * time.Second)
				s.updatesUnreadable.Store(tt.err != nil)
				if tt.err == nil {
					for _, up := range s.listUpdatesLive() {
						check.NoError(t, s.objects.Delete(t.Context(), &up))
					}
				}
				ctx, leave := context.WithTimeout(t.Context(), 5*time.Minute)
				defer leave()
				is, err := submitted.WaitForOutcome(ctx)
				if err != nil || is.Outcome.Result != tt.want || !strings.Contains(is.Outcome.Detail, tt.text) {
					t.Errorf("%+v, %v; want %s, and %q", is, err, tt.want, tt.text)
				}
			})
		})
	}
}

// unreliableGroup is a cloud group that loses its answers to launches.
type unreliableGroup struct {
	*fakeGroup
	carriesOut bool  // requests are carried out although the answer is lost
	err        error // returned to the caller
	launches   int
}

func (l *unreliableGroup) Grow(ctx context.Context, name string, o cloud.LaunchRequest) (cloud.Operation, error) {
	l.launches++
	if l.err == nil {
		return l.fakeGroup.Grow(ctx, name, o)
	}
	if l.carriesOut {
		_, _ = l.fakeGroup.Grow(ctx, name, o)
	}
	return cloud.Operation{}, l.err
}

func TestI5LaunchWithLostAnswerIsNotRepeated(t *testing.T) {
	const first = "openstack:///"
	changes := map[string]func(context.Context, *NativePool) error{
		"new size": func(ctx context.Context, p *NativePool) error { return p.SetDesiredSize(ctx, 4) },
		"detached machine": func(ctx context.Context, p *NativePool) error {
			return p.Detach(ctx, api.Removal{MachineID: first + newUUID(1)})
		},
	}
	for name, change := range changes {
		for what, lost := range map[string]unreliableGroup{
			"carried out":                   {carriesOut: true, err: errConnectionRefused},
			"not carried out":               {err: errConnectionRefused},
			"carried out, size changed":     {carriesOut: true, err: &cloud.ThrottledError{RetryAfter: time.Second, Err: errors.New("412")}},
			"not carried out, size changed": {err: &cloud.ThrottledError{RetryAfter: time.Second, Err: errors.New("412")}},
			"refused":                       {err: &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores")}},
		} {
			if lost.carriesOut && cloud.IsThrottled(lost.err) && name != "new size" {
				continue // a cloud that reports a changed size has not carried it out
			}
			t.Run(name+", "+what, func(t *testing.T) {
				simulateNative(t, 3, 10, func(t *testing.T, _ *sim, g *fakeGroup, pool *NativePool) {
					l := lost
					l.fakeGroup = g
					pool.provider = &l
					if err := change(t.Context(), pool); err == nil {
						t.Fatal("the answer was lost, and there is no error")
					}
					l.err = nil
					if launch.IsUnclearAnswer(lost.err) && !lost.carriesOut {
						if err := change(t.Context(), pool); ToResult(err) != BackendUnavailable || l.launches != 1 {
							t.Errorf("at once: %v after %d requests; want an error that asks for a retry", err, l.launches)
						}
						time.Sleep(launch.SettleTime)
					}
					if err := change(t.Context(), pool); err != nil || len(g.machines) != 4 {
						t.Errorf("repeated: %v, %d machines; want 4", err, len(g.machines))
					}
					if want := map[bool]int{true: 1, false: 2}[lost.carriesOut]; l.launches != want {
						t.Errorf("the cloud was asked %d times, want %d", l.launches, want)
					}
				})
			})
		}
	}
}

func TestI5LostLaunchIsDetectedAfterInstanceLeaves(t *testing.T) {
	simulateNative(t, 3, 10, func(t *testing.T, _ *sim, g *fakeGroup, pool *NativePool) {
		l := unreliableGroup{fakeGroup: g, carriesOut: true, err: errConnectionRefused}
		pool.provider = &l
		change := func() error {
			return pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + newUUID(1)})
		}
		if err := change(); err == nil {
			t.Fatal("the answer was lost, and there is no error")
		}
		g.machines = slices.Delete(g.machines, 2, 3)
		l.err = nil
		if err := change(); err != nil || l.launches != 1 {
			t.Errorf("%v after %d launches; want the new instance to be recognized", err, l.launches)
		}
	})
}

// TestI8StaleReplicaCancelsNoRetirement lets another process write the update after each read of the retirement.
func TestI8StaleReplicaCancelsNoRetirement(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		var behind atomic.Bool
		s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
				if _, retirement := into.(*v1alpha1.NodeRetirement); retirement && behind.Load() {
					s.rewriteStatus(s.listUpdatesLive()[0], func(st *v1alpha1.PoolUpdateStatus) { st.Message = time.Now().String() })
				}
				return c.Get(ctx, key, into, o...)
			},
		})
		a := s.startReplica("a")
		mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
		s.advance(5 * time.Second)
		behind.Store(true)
		s.advance(2 * a.opts.Timeouts.FailureTolerance)
		check.Is(t, 1, len(s.listRetirements()))
	})
}

// TestHarmlessChangesPassWhileUpdatesAreUnreadable makes PoolUpdates unreadable after the caches have synced.
func TestHarmlessChangesPassWhileUpdatesAreUnreadable(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		front := s.newFrontServer(s.startReplica("a"))
		s.advance(5 * time.Second)
		s.updatesUnreadable.Store(true)
		for _, tt := range []struct {
			path, body string
			want       int
		}{
			{"/pool/size", `{"desiredSize": 2}`, http.StatusServiceUnavailable},
			{"/pool/terminate", `{"machineId": "` + newUUID(1) + `"}`, http.StatusServiceUnavailable},
			{"/pool/detach", `{"machineId": "` + newUUID(1) + `"}`, http.StatusOK},
			{"/pool/size", `{"desiredSize": 4}`, http.StatusOK},
		} {
			if w := post(t, front, tt.path, tt.body); w.Code != tt.want {
				t.Errorf("%s %s: %d %s, want %d", tt.path, tt.body, w.Code, w.Body, tt.want)
			}
		}
		if asked := s.pool.changeRequests(); !slices.Equal(asked, []string{"detach 1", "size 4"}) || len(s.listRetirements()) > 0 {
			t.Errorf("the pool was asked %q, and %v are retired", asked, s.retiringNodes())
		}
		s.updatesUnreadable.Store(false)
		if w := post(t, front, "/pool/terminate", `{"machineId": "x"}`); w.Code != http.StatusNotFound {
			t.Errorf("%d %s once the API server answers again, want 404", w.Code, w.Body)
		}
		before := len(s.listUpdatesLive())
		if w := post(t, front, "/pool/size", `{"desiredSize": 5}`); w.Code != http.StatusOK || len(s.listUpdatesLive()) != before+1 {
			t.Errorf("%d %s and %d PoolUpdates once the API server answers again, want 200 and %d", w.Code, w.Body, len(s.listUpdatesLive()), before+1)
		}
	})
}

// TestI10InvalidPoolUpdateIsBadRequest lets the API server refuse the object, for example because of a too long ID.
func TestI10InvalidPoolUpdateIsBadRequest(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("PoolUpdate").GroupKind(), "workers-1", field.ErrorList{
					field.TooLong(field.NewPath("spec", "machineID"), "x", 4096),
				})
			},
		})
		w := post(t, s.newFrontServer(s.startReplica("a")), "/pool/detach", `{"machineId": "x"}`)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "spec.machineID") || len(s.pool.changeRequests()) > 0 {
			t.Errorf("%d %s after %q; want 400, and the field", w.Code, w.Body, s.pool.changeRequests())
		}
	})
}

func TestUnreadNodeGroupIsUnavailable(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		c := newCluster(s.kube, s.objects, slog.New(slog.DiscardHandler))
		pool := NewNativePool(c, "web", "slipway", 0)
		u := must.Get(NewUpdater(UpdaterOptions{
			Pool: "web", Backend: pool, Cluster: c, Leases: s.leases.forHolder("a"), Namespace: "slipway", Holder: "a", Log: slog.New(slog.DiscardHandler),
		}))(t)
		front := newServer("web", pool, pool, u, false)
		for _, path := range []string{"/pool", "/pool/size", "/cloudpools/web/pool", "/slipway/v1/pools/web/plan?desiredSize=0"} {
			answer := httptest.NewRecorder()
			front.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
				t.Errorf("%s: %d %s, want 503", path, answer.Code, answer.Body)
			}
		}
	})
}

// TestServerAnswerReachesClientOfOtherReplica lets another replica forward the change.
func TestServerAnswerReachesClientOfOtherReplica(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.startReplica("a")
		s.advance(5 * time.Second)
		s.pool.setFailure("desired", serverError(http.StatusUnprocessableEntity))
		w := post(t, s.newFrontServer(s.startReplica("b")), "/pool/size", `{"desiredSize": 5}`)
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"no"`) {
			t.Errorf("%d %s; want the server's message", w.Code, w.Body)
		}
		if asked := s.pool.changeRequests(); !slices.Equal(asked, []string{"size 5"}) {
			t.Errorf("the server was asked %q, want once", asked)
		}
	})
}

func TestOldFinishedUpdatesAreDeleted(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		front := s.newFrontServer(s.startReplica("a"))
		for range MaxFinishedUpdates + 5 {
			if w := post(t, front, "/pool/size", `{"desiredSize": 5}`); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		s.advance(5 * time.Second)
		names := map[string]bool{}
		for _, up := range s.listUpdatesLive() {
			names[up.Name] = true
		}
		if len(names) != MaxFinishedUpdates || !names["workers-25"] || names["workers-5"] {
			t.Errorf("%v are kept, want the latest %d", names, MaxFinishedUpdates)
		}
	})
}
