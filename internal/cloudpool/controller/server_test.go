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
)

// detachable is a pool that machines can be detached from as well.
type detachable struct{ *members }

func (d detachable) Detach(context.Context, api.Removal) error {
	d.asked = append(d.asked, "detach")
	return nil
}

// updating is a pool of three machines that is being brought to two, until that is said to be over.
func updating(t *testing.T, strict bool) (s FrontServer, pool *members, over func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	counts := api.MembershipStatus{Active: true, Evictable: true}
	pool = pooled(3, counts, counts, counts)
	backend := detachable{pool}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	up := &v1alpha1.PoolUpdate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "workers-1", UID: "u", Labels: map[string]string{PoolLabel: "workers"}},
		Spec:       sized(2),
	}
	up.Status.StartedAt = toMicro(time.Now())
	objects := clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(up).WithObjects(up).Build()
	known := newCluster(fake.NewClientset(), objects, log)
	known.cache = reader{from: objects}
	close(known.read)
	released := make(chan struct{})
	u, err := NewUpdater(UpdaterOptions{
		Pool: "workers", Backend: backend, Cluster: known, Slots: (&leases{}).of("a"), Namespace: "slipway", Holder: "a", Log: log,
		run: func(ctx context.Context, u *Updater) {
			select {
			case <-ctx.Done():
			case <-released:
				drive(ctx, u)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = u.Run(ctx) })
	t.Cleanup(func() { stop(); runs.Wait() })
	return newServer("workers", backend, nil, u, strict), pool, func() {
		all, err := u.updates(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all[0].Status.CompletedAt = toMicro(time.Now())
		if err := (&step{Updater: u, up: &all[0]}).save(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(released)
	}
}

// send sends a request, and gives its answer once it is there.
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

// TestWhatTakesNoMachineAwayWaitsForItsTurnWhereThatIsTheContract asks for it while the pool is being made smaller.
func TestWhatTakesNoMachineAwayWaitsForItsTurnWhereThatIsTheContract(t *testing.T) {
	for asked, request := range map[string][2]string{
		"desired":    {"/pool/size", `{"desiredSize": 5}`},
		"detach":     {"/pool/detach", `{"machineId": "a"}`},
		"membership": {"/pool/membershipStatus", `{"machineId": "a", "membershipStatus": {"active": true, "evictable": false}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, pool, _ := updating(t, false)
			if w := <-send(t, s, request[0], request[1]); w.Code != http.StatusTooManyRequests || len(pool.asked) > 0 {
				t.Errorf("%s: %d %s, and was asked %q; want 429", asked, w.Code, w.Body, pool.asked)
			}
			s, pool, over := updating(t, true)
			answered := send(t, s, request[0], request[1])
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(answered) > 0 || len(pool.asked) > 0 {
				t.Errorf("%s, strict: %d answers, and was asked %q; want it to wait", asked, len(answered), pool.asked)
			}
			over()
			if w := <-answered; w.Code != http.StatusOK || !slices.Equal(pool.asked, []string{asked}) {
				t.Errorf("%s, strict: %d %s, and was asked %q", asked, w.Code, w.Body, pool.asked)
			}
		})
	}
}

// TestWhoWaitsForAnUpdateIsAnsweredWhenTheProcessEnds has one wait for the update that is under way, and one for its turn.
func TestWhoWaitsForAnUpdateIsAnsweredWhenTheProcessEnds(t *testing.T) {
	for body, want := range map[string]struct {
		strict bool
		code   int
		text   string
	}{
		`{"desiredSize": 2}`: {false, http.StatusServiceUnavailable, "the update workers-1 goes on"},
		`{"desiredSize": 4}`: {true, http.StatusInternalServerError, "this process is ending"},
		`{"desiredSize": 1}`: {true, http.StatusInternalServerError, "this process is ending"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, pool, _ := updating(t, want.strict)
			answered := send(t, s, "/pool/size", body)
			synctest.Wait()
			if len(answered) > 0 {
				t.Errorf("%s: is answered at once", body)
			}
			s.EndWaits()
			if w := <-answered; w.Code != want.code || !strings.Contains(w.Body.String(), want.text) || len(pool.asked) > 0 {
				t.Errorf("%s: %d %s, and was asked %q", body, w.Code, w.Body, pool.asked)
			}
		})
	}
}
