package cloudpool_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/cloudpool"
)

// testBackend is an emulated backend in virtual time, called without a network.
type testBackend struct {
	*cloudpool.Pool
	t       *testing.T
	handler http.Handler
}

// runWithBackend runs do with a backend of n running machines in virtual time.
func runWithBackend(t *testing.T, n int, o cloudpool.Options, do func(b *testBackend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := cloudpool.New(o)
		defer p.Close()
		if _, err := p.AddMachines(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		do(&testBackend{p, t, p.Handler()})
	})
}

func (b *testBackend) sendRequest(method, path, body string) (code int, answer string) {
	b.t.Helper()
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, httptest.NewRequestWithContext(b.t.Context(), method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func (b *testBackend) expectPost(want int, path, body string) {
	b.t.Helper()
	if code, answer := b.sendRequest(http.MethodPost, path, body); code != want {
		b.t.Errorf("POST %s %s: %d %s, want %d", path, body, code, answer, want)
	}
}

// machineStates returns the machines' states in GET /pool, by ID.
func (b *testBackend) machineStates() map[string]cloudpool.State {
	b.t.Helper()
	_, answer := b.sendRequest(http.MethodGet, "/pool", "")
	var pool struct{ Machines []cloudpool.Machine }
	if err := json.Unmarshal([]byte(answer), &pool); err != nil {
		b.t.Fatalf("%s: %v", answer, err)
	}
	states := map[string]cloudpool.State{}
	for _, m := range pool.Machines {
		states[m.ID] = m.State
	}
	return states
}

func (b *testBackend) countInState(s cloudpool.State) int {
	n := 0
	for _, state := range b.machineStates() {
		if state == s {
			n++
		}
	}
	return n
}

func (b *testBackend) expectDesiredSize(n int) {
	b.t.Helper()
	if got := b.DesiredSize(); got != n {
		b.t.Errorf("the desired size is %d, want %d", got, n)
	}
}

// passTime lets virtual time pass until everything due has happened.
func passTime(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func machineBody(id string, decrement bool) string {
	return fmt.Sprintf(`{"machineId":%q,"decrementDesiredSize":%t}`, id, decrement)
}

func TestSizeIsRecordedAndReachedLater(t *testing.T) {
	runWithBackend(t, 1, cloudpool.Options{CallDelay: time.Second, LaunchTime: 10 * time.Second}, func(b *testBackend) {
		b.expectPost(http.StatusOK, "/pool/size", `{"desiredSize":3}`)
		b.expectDesiredSize(3)
		if n := len(b.machineStates()); n != 1 {
			t.Errorf("%d machines at once, want 1", n)
		}
		for _, step := range []struct {
			after time.Duration
			state cloudpool.State
			n     int
		}{
			{1100 * time.Millisecond, cloudpool.Requested, 2}, {10 * time.Second, cloudpool.Pending, 2}, {10 * time.Second, cloudpool.Running, 3},
		} {
			passTime(step.after)
			if n := b.countInState(step.state); n != step.n {
				t.Errorf("%d machines are %s, want %d: %v", n, step.state, step.n, b.machineStates())
			}
		}
	})
}

func TestReadsAndMemberCheckUseCache(t *testing.T) {
	runWithBackend(t, 3, cloudpool.Options{CacheAge: 30 * time.Second}, func(b *testBackend) {
		b.machineStates()
		id := b.Machines()[0].ID
		for range 2 { // the second termination finds no machine, but still lowers the desired size
			b.expectPost(http.StatusOK, "/pool/terminate", machineBody(id, true))
		}
		synctest.Wait()
		b.expectDesiredSize(1)
		if b.machineStates()[id] != cloudpool.Running {
			t.Errorf("%v, want the machine in its cached state", b.machineStates())
		}
		passTime(31 * time.Second)
		if _, listed := b.machineStates()[id]; listed {
			t.Error("the machine is listed after the refresh of the cache")
		}
	})
}

func TestTerminationWithoutDecrementIsReplaced(t *testing.T) {
	runWithBackend(t, 2, cloudpool.Options{LaunchTime: time.Second}, func(b *testBackend) {
		id := b.Machines()[0].ID
		b.expectPost(http.StatusOK, "/pool/terminate", machineBody(id, false))
		passTime(3 * time.Second)
		b.expectDesiredSize(2)
		if _, there := b.machineStates()[id]; there || b.countInState(cloudpool.Running) != 2 {
			t.Errorf("%v, want two running machines without the terminated one", b.machineStates())
		}
		b.expectPost(http.StatusNotFound, "/pool/terminate", machineBody(id, true))
		b.expectDesiredSize(2)
	})
}

func TestPoolShrinksByPolicyOnly(t *testing.T) {
	for policy, want := range map[cloudpool.Policy][]int{cloudpool.Newest: {0, 1}, cloudpool.Oldest: {1, 2}} {
		runWithBackend(t, 3, cloudpool.Options{Policy: policy}, func(b *testBackend) {
			b.AddMachineInState(cloudpool.Requested, nil)
			b.expectPost(http.StatusOK, "/pool/size", `{"desiredSize":3}`)
			synctest.Wait()
			if b.countInState(cloudpool.Requested) != 0 || b.countInState(cloudpool.Running) != 3 {
				t.Errorf("%s: %v, want the requested machine to end first", policy, b.machineStates())
			}
			b.expectPost(http.StatusOK, "/pool/size", `{"desiredSize":2}`)
			synctest.Wait()
			var left []int
			for _, m := range b.Machines() {
				left = append(left, m.Serial)
			}
			if !slices.Equal(left, want) {
				t.Errorf("%s: %v remain, want %v", policy, left, want)
			}
		})
	}
}

func TestRefusedMachineIsRejectedAndDoesNotCount(t *testing.T) {
	runWithBackend(t, 2, cloudpool.Options{Quota: 2}, func(b *testBackend) {
		b.expectPost(http.StatusOK, "/pool/size", `{"desiredSize":3}`)
		synctest.Wait()
		if b.countInState(cloudpool.Rejected) != 1 || b.countInState(cloudpool.Running) != 2 {
			t.Errorf("%v, want one rejected machine", b.machineStates())
		}
		if _, answer := b.sendRequest(http.MethodGet, "/pool/size", ""); !strings.Contains(answer, `"allocated": 2`) {
			t.Errorf("GET /pool/size: %s", answer)
		}
	})
}

func TestMembershipControlsCountAndTermination(t *testing.T) {
	runWithBackend(t, 3, cloudpool.Options{}, func(b *testBackend) {
		ids := b.Machines()
		status := func(id, membership string) string {
			return fmt.Sprintf(`{"machineId":%q,"membershipStatus":%s}`, id, membership)
		}
		// Not evictable: no termination, no detaching.
		b.expectPost(http.StatusOK, "/pool/membershipStatus", status(ids[0].ID, `{"evictable":false}`))
		b.expectPost(http.StatusBadGateway, "/pool/terminate", machineBody(ids[0].ID, true))
		b.expectPost(http.StatusBadGateway, "/pool/detach", machineBody(ids[0].ID, true))
		// Awaiting service: it does not count, and stays.
		b.expectPost(http.StatusOK, "/pool/membershipStatus", status(ids[1].ID, `{"active":false,"evictable":false}`))
		synctest.Wait()
		if b.countInState(cloudpool.Running) != 4 {
			t.Errorf("%v, want one more for the inactive machine", b.machineStates())
		}
		// Disposable: it is replaced and terminated.
		b.expectPost(http.StatusOK, "/pool/membershipStatus", status(ids[2].ID, `{"active":false}`))
		synctest.Wait()
		if _, there := b.machineStates()[ids[2].ID]; there || b.countInState(cloudpool.Running) != 4 {
			t.Errorf("%v, want the disposable machine replaced", b.machineStates())
		}
		b.expectDesiredSize(3)
	})
}

func TestDetachedMachineRunsAndCanBeAttached(t *testing.T) {
	runWithBackend(t, 2, cloudpool.Options{}, func(b *testBackend) {
		id := b.Machines()[0].ID
		b.expectPost(http.StatusNotFound, "/pool/attach", machineBody(id, false)) // it is a member
		b.expectPost(http.StatusOK, "/pool/detach", machineBody(id, true))
		synctest.Wait()
		b.expectDesiredSize(1)
		b.expectPost(http.StatusOK, "/pool/attach", machineBody(id, false))
		synctest.Wait()
		b.expectDesiredSize(2)
		if b.machineStates()[id] != cloudpool.Running {
			t.Errorf("%v", b.machineStates())
		}
	})
}

func TestBodiesAreParsedLikeReferenceServer(t *testing.T) {
	for body, desired := range map[string]int{
		`{}`: 0, `{"desiredSize":null}`: 0, `{"DesiredSize":1}`: 0, `{"desiredSize":"1"}`: 1, `{"desiredSize":1.9}`: 1,
	} {
		runWithBackend(t, 2, cloudpool.Options{}, func(b *testBackend) {
			b.expectPost(http.StatusOK, "/pool/size", body)
			b.expectDesiredSize(desired)
		})
	}
	for _, body := range []string{``, `x`, `[1]`, `{"desiredSize":-1}`, `{"desiredSize":"x"}`} {
		runWithBackend(t, 2, cloudpool.Options{}, func(b *testBackend) {
			b.expectPost(http.StatusBadRequest, "/pool/size", body)
			b.expectDesiredSize(2)
		})
	}
}

func TestStoppedPoolOnlyServesItsStatus(t *testing.T) {
	runWithBackend(t, 2, cloudpool.Options{}, func(b *testBackend) {
		for range 2 {
			b.expectPost(http.StatusOK, "/stop", "")
		}
		if code, answer := b.sendRequest(http.MethodGet, "/pool", ""); code != http.StatusInternalServerError || !strings.Contains(answer, "before being started") {
			t.Errorf("GET /pool: %d %s", code, answer)
		}
		if code, answer := b.sendRequest(http.MethodGet, "/status", ""); code != http.StatusOK || !strings.Contains(answer, `"started": false`) {
			t.Errorf("GET /status: %d %s", code, answer)
		}
		b.SetDesiredSize(1)
		b.expectPost(http.StatusOK, "/start", "")
		synctest.Wait()
		if n := len(b.Machines()); n != 1 {
			t.Errorf("%d machines, want the desired size after the start", n)
		}
	})
}

func TestPathsAreParsedLikeReferenceServer(t *testing.T) {
	one := cloudpool.New(cloudpool.Options{})
	defer one.Close()
	several := cloudpool.NewMultiPoolHandler(map[string]*cloudpool.Pool{"workers": one})
	for path, want := range map[string]int{
		"/pool/size": 200, "/pool/size/": 200, "//pool/size": 200, "/pool/%73ize": 200, "/pool;x/size;y=z": 200, "/pool%2Fsize": 200,
		"/pool/size;%2F..%2F..%2Fx": 200, "/pool/size/a%2F..%2F..%2Fb/..": 200, "/x/%2e%2e/pool/size": 200, "/x/..;a/pool/size": 200,
		"/pool/%2573ize": 404, "/pool/size%3Fx": 404, "/pool/size%3Bx": 404, "/Pool/Size": 404, "/pool/size%5C": 404,
	} {
		for prefix, handler := range map[string]http.Handler{"": one.Handler(), "/cloudpools/other/../workers": several} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, prefix+path, nil))
			if w.Code != want {
				t.Errorf("GET %s%s: %d, want %d", prefix, path, w.Code, want)
			}
		}
	}
}
