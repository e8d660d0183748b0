package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// laggingCloud is a cloud with a size that does not count launches yet.
type laggingCloud struct {
	cloud.Provider
	mu       sync.Mutex
	size     int
	launched int
	err      error
}

func (l *laggingCloud) Group(context.Context, string) (cloud.Group, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cloud.Group{Size: l.size}, nil
}

func (l *laggingCloud) Grow(_ context.Context, _ string, o cloud.LaunchRequest) (cloud.Operation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.launched += o.Count
	return cloud.Operation{}, l.err
}

func newGroup(t *testing.T, uid types.UID, maximum int32) (*v1alpha1.NodeGroup, client.WithWatch) {
	t.Helper()
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: uid}, Spec: v1alpha1.NodeGroupSpec{MaxSize: &maximum}}
	return g, fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(g).WithObjects(g.DeepCopy()).Build()
}

// newTestRecord returns the record of one process.
func newTestRecord(c client.Client) *Record { return NewRecord(c, c).UseConfigMaps(c, "slipway") }

func TestI5ThreeRequestsAtMaxSizeLaunchOne(t *testing.T) {
	for name, uid := range map[string]types.UID{"an object": "uid", "a group of a file": ""} {
		t.Run(name, func(t *testing.T) {
			g, c := newGroup(t, uid, 3)
			p, r := &laggingCloud{size: 2}, newTestRecord(c)
			records := []*Record{r, r, newTestRecord(c)} // one in another process
			errs := make([]error, len(records))
			var all sync.WaitGroup
			for i, r := range records {
				all.Go(func() {
					_, errs[i] = r.RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{
						Kind: v1alpha1.LaunchForRetirement, Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("n", i)),
					}})
				})
			}
			all.Wait()
			refused := 0
			for _, err := range errs {
				var why *NotRequestedError
				if errors.As(err, &why) && why.AtMaximum && why.ResultPending {
					refused++
				}
			}
			check.Not(t, p.launched != 1 || refused != 2, "%d launched, %v; want one, and two refused until its result is known", p.launched, errs)
		})
	}
}

func TestI5LaunchCountsUntilTheSizeShowsIt(t *testing.T) {
	refused := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores")}
	for name, c := range map[string]struct {
		answer error
		after  time.Duration
		counts bool
	}{
		"it was accepted a moment ago":                {nil, time.Second, true},
		"it was accepted":                             {nil, time.Minute, false},
		"its answer is lost":                          {errors.New("connection reset"), 2 * time.Minute, true},
		"its answer is lost and no instance appeared": {errors.New("connection reset"), time.Hour, false},
		"it was refused":                              {refused, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, api := newGroup(t, "uid", 1)
			p, r := &laggingCloud{err: c.answer}, newTestRecord(api)
			if _, err := r.RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}}); !errors.Is(err, c.answer) {
				t.Fatal(err)
			}
			var is v1alpha1.NodeGroup
			must.NoError(t, api.Get(t.Context(), client.ObjectKey{Name: "web"}, &is))
			err := CheckSizeLimits(g, is.Status.Provisioning, cloud.Group{}, 1, time.Now().Add(c.after))
			if counts := err != nil; counts != c.counts {
				t.Errorf("it counts: %t (%v), want %t", counts, err, c.counts)
			}
		})
	}
}

// TestWriteThatAProxyRepeatsLaunchesOnce answers the first write of the record with a conflict, although it is applied.
func TestWriteThatAProxyRepeatsLaunchesOnce(t *testing.T) {
	for name, uid := range map[string]types.UID{"an object": "uid", "a group of a file": ""} {
		for _, kind := range []string{v1alpha1.LaunchForRetirement, "PoolUpdate"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				g, c := newGroup(t, uid, 1)
				repeated := false
				conflictOnce := func(err error) error {
					if err != nil || repeated {
						return err
					}
					repeated = true
					return apierrors.NewConflict(schema.GroupResource{}, g.Name, errors.New("written meanwhile"))
				}
				c = interceptor.NewClient(c, interceptor.Funcs{
					SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
						return conflictOnce(c.SubResource(sub).Patch(ctx, o, p, opts...))
					},
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						return conflictOnce(c.Create(ctx, o, opts...))
					},
				})
				p, r := &laggingCloud{}, newTestRecord(c)
				_, err := r.RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: kind, Name: "n", UID: "n"}})
				must.NoError(t, err)
				must.Not(t, !repeated, "no write was answered with a conflict")
				is := must.Get(r.ReadUncached(t.Context(), g))(t)
				if p.launched != 1 || len(is.Launches) != 1 || is.Launches[0].State != v1alpha1.LaunchProvisioning {
					t.Errorf("%d launched, recorded are %+v; want one with its answer", p.launched, is.Launches)
				}
			})
		}
	}
}

func TestI8UnrecordedLaunchIsNotRequested(t *testing.T) {
	g, c := newGroup(t, "uid", 9)
	again := g.DeepCopy()
	again.UID = "the one before"
	p := &laggingCloud{}
	_, err := newTestRecord(c).RequestInstances(t.Context(), again, p, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}})
	var why *NotRequestedError
	if !errors.As(err, &why) || why.AtMaximum || p.launched != 0 {
		t.Errorf("%v, %d launched", err, p.launched)
	}
}

// TestI5LateInstanceIsNotLaunchedAgain has another NodeRetirement of the same Node, before the first has recorded that
// its launch failed.
func TestI5LateInstanceIsNotLaunchedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		instances []v1alpha1.LaunchedInstance
		allowed   bool
	}{
		"its instance is late": {[]v1alpha1.LaunchedInstance{{ProviderID: "sim://vm-1"}}, false},
		"it has no instance":   {nil, true},
	} {
		s := &v1alpha1.ProvisioningStatus{Launches: []v1alpha1.Launch{{
			ID: "1", State: v1alpha1.LaunchFailed, Instances: c.instances,
			For: &v1alpha1.LaunchOwner{Kind: v1alpha1.LaunchForRetirement, UID: "first", NodeUID: "node"},
		}}}
		w := LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: v1alpha1.LaunchForRetirement, UID: "second", NodeUID: "node"}}
		if _, err := ChooseLaunchableTemplate(s, w, time.Now()); (err == nil) != c.allowed {
			t.Errorf("%s: %v, want allowed %t", name, err, c.allowed)
		}
	}
}

func TestI8FileGroupLaunchesSurviveARestart(t *testing.T) {
	g, c := newGroup(t, "", 3)
	p := &laggingCloud{size: 2, err: errors.New("connection reset")}
	owner := v1alpha1.LaunchOwner{Kind: "PoolUpdate"}
	if _, err := newTestRecord(c).RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: owner}); !errors.Is(err, p.err) {
		t.Fatal(err)
	}
	next := newTestRecord(c)
	is, err := next.ReadCached(t.Context(), g)
	if err != nil || len(is.Launches) != 1 || is.Launches[0].State != v1alpha1.LaunchRequested {
		t.Fatalf("%v: %+v, want the launch of the process before", err, is)
	}
	var why *NotRequestedError
	if _, err := next.RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: owner}); !errors.As(err, &why) || !why.ResultPending || p.launched != 1 {
		t.Errorf("%v, and %d launched; want none until the result of the first is known", err, p.launched)
	}
}

func TestStaleProcessKeepsFileGroupLaunches(t *testing.T) {
	g, c := newGroup(t, "", 9)
	one, two := newTestRecord(c), newTestRecord(c)
	for _, r := range []*Record{one, two} {
		must.NoError(t, check.Err(r.ReadCached(t.Context(), g)))
	}
	for _, r := range []*Record{one, two, one} {
		must.NoError(t, check.Err(r.RequestInstances(t.Context(), g, &laggingCloud{}, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}})))
	}
	if is, err := newTestRecord(c).ReadCached(t.Context(), g); err != nil || len(is.Launches) != 3 {
		t.Errorf("%v: %+v, want three launches", err, is)
	}
}

func TestI7UnreadableFileGroupRecordLaunchesNothing(t *testing.T) {
	g, c := newGroup(t, "", 9)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "slipway-launches-web"}, Data: map[string]string{"provisioning": "{"}}
	must.NoError(t, c.Create(t.Context(), m))
	p := &laggingCloud{}
	_, err := newTestRecord(c).RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}})
	if err == nil || p.launched != 0 || !strings.Contains(err.Error(), "slipway/slipway-launches-web") || !strings.Contains(err.Error(), "delete the ConfigMap") {
		t.Errorf("%v, and %d launched", err, p.launched)
	}
	check.ErrorContains(t, check.Err(NewRecord(c, c).ReadCached(t.Context(), g)))
}
