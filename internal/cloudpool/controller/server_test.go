package controller

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// detachablePool is a memoryPool that supports Detach.
type detachablePool struct{ *memoryPool }

func (d detachablePool) Detach(context.Context, api.Removal) error {
	d.changes = append(d.changes, "detach")
	return nil
}

// startShrinkingPool starts a server with a pool of three machines and an unfinished update to size two. finish ends the
// update.
func startShrinkingPool(t *testing.T, strict bool) (s FrontServer, pool *memoryPool, finish func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	counts := api.MembershipStatus{Active: true, Evictable: true}
	pool = newMemoryPool(3, counts, counts, counts)
	backend := detachablePool{pool}
	scheme := runtime.NewScheme()
	must.NoError(t, v1alpha1.AddToScheme(scheme))
	up := &v1alpha1.PoolUpdate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "workers-1", UID: "u", Labels: map[string]string{PoolLabel: "workers"}},
		Spec:       newSizeSpec(2),
	}
	up.Status.StartedAt = toMicroTime(time.Now())
	objects := clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(up).WithObjects(up).Build()
	known := newCluster(fake.NewClientset(), objects, log)
	known.cache = cacheReader{from: objects}
	close(known.synced)
	released := make(chan struct{})
	u := must.Get(NewUpdater(UpdaterOptions{
		Pool: "workers", Backend: backend, Cluster: known, Leases: (&fakeLeases{}).forHolder("a"), Namespace: "slipway", Holder: "a", Log: log,
		runForTest: func(ctx context.Context, u *Updater) {
			select {
			case <-ctx.Done():
			case <-released:
				reconcileUntilDone(ctx, u)
			}
		},
	}))(t)
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = u.Run(ctx) })
	t.Cleanup(func() { stop(); runs.Wait() })
	return newServer("workers", backend, nil, u, strict), pool, func() {
		all := must.Get(u.listUpdatesLive(t.Context()))(t)
		all[0].Status.CompletedAt = toMicroTime(time.Now())
		must.NoError(t, (&updateScope{Updater: u, update: &all[0]}).saveStatus(t.Context()))
		close(released)
	}
}

// send sends a request and returns a channel that receives the answer.
func send(t *testing.T, s FrontServer, path, body string) <-chan *httptest.ResponseRecorder {
	t.Helper()
	answered := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
		answered <- w
	}()
	return answered
}

// TestStrictModeQueuesHarmlessChanges sends changes while the pool shrinks.
func TestStrictModeQueuesHarmlessChanges(t *testing.T) {
	for asked, request := range map[string][2]string{
		"desired":    {"/pool/size", `{"desiredSize": 5}`},
		"detach":     {"/pool/detach", `{"machineId": "a"}`},
		"membership": {"/pool/membershipStatus", `{"machineId": "a", "membershipStatus": {"active": true, "evictable": false}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, pool, _ := startShrinkingPool(t, false)
			if w := <-send(t, s, request[0], request[1]); w.Code != http.StatusTooManyRequests || len(pool.changes) > 0 {
				t.Errorf("%s: %d %s, and was asked %q; want 429", asked, w.Code, w.Body, pool.changes)
			}
			s, pool, finish := startShrinkingPool(t, true)
			answered := send(t, s, request[0], request[1])
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(answered) > 0 || len(pool.changes) > 0 {
				t.Errorf("%s, strict: %d answers, and was asked %q; want the change to wait", asked, len(answered), pool.changes)
			}
			finish()
			if w := <-answered; w.Code != http.StatusOK || !slices.Equal(pool.changes, []string{asked}) {
				t.Errorf("%s, strict: %d %s, and was asked %q", asked, w.Code, w.Body, pool.changes)
			}
		})
	}
}

// TestWaitersAreAnsweredAtShutdown has one client wait for the unfinished update and others for a free pool.
func TestWaitersAreAnsweredAtShutdown(t *testing.T) {
	for body, want := range map[string]struct {
		strict bool
		code   int
		text   string
	}{
		`{"desiredSize": 2}`: {false, http.StatusServiceUnavailable, "update workers-1 continues"},
		`{"desiredSize":2}`:  {true, http.StatusInternalServerError, "update workers-1 continues"},
		`{"desiredSize": 4}`: {true, http.StatusInternalServerError, "this process is shutting down"},
		`{"desiredSize": 1}`: {true, http.StatusInternalServerError, "this process is shutting down"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, pool, _ := startShrinkingPool(t, want.strict)
			answered := send(t, s, "/pool/size", body)
			synctest.Wait()
			check.Not(t, len(answered) > 0, "%s: was answered at once", body)
			s.CancelWaits()
			if w := <-answered; w.Code != want.code || !strings.Contains(w.Body.String(), want.text) || len(pool.changes) > 0 {
				t.Errorf("%s: %d %s, and was asked %q", body, w.Code, w.Body, pool.changes)
			}
		})
	}
}
