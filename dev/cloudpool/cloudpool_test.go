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

// backend is an emulated backend in virtual time, called without a network.
type backend struct {
	*cloudpool.Pool
	t       *testing.T
	handler http.Handler
}

// inBubble runs do with a backend of n running machines in virtual time.
func inBubble(t *testing.T, n int, o cloudpool.Options, do func(b *backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := cloudpool.New(o)
		defer p.Close()
		if _, err := p.Add(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		do(&backend{p, t, p.Handler()})
	})
}

func (b *backend) ask(method, path, body string) (code int, answer string) {
	b.t.Helper()
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, httptest.NewRequestWithContext(b.t.Context(), method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func (b *backend) post(want int, path, body string) {
	b.t.Helper()
	if code, answer := b.ask(http.MethodPost, path, body); code != want {
		b.t.Errorf("POST %s %s: %d %s, want %d", path, body, code, answer, want)
	}
}

// read returns the machines' states in GET /pool, by ID.
func (b *backend) read() map[string]cloudpool.State {
	b.t.Helper()
	_, answer := b.ask(http.MethodGet, "/pool", "")
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

func (b *backend) count(s cloudpool.State) int {
	n := 0
	for _, is := range b.read() {
		if is == s {
			n++
		}
	}
	return n
}

func (b *backend) wantDesired(n int) {
	b.t.Helper()
	if got := b.Desired(); got != n {
		b.t.Errorf("the desired size is %d, want %d", got, n)
	}
}

// pass lets virtual time pass until everything due has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func naming(id string, decrement bool) string {
	return fmt.Sprintf(`{"machineId":%q,"decrementDesiredSize":%t}`, id, decrement)
}

func TestASizeIsRecordedAndComeToLater(t *testing.T) {
	inBubble(t, 1, cloudpool.Options{Lag: time.Second, Launch: 10 * time.Second}, func(b *backend) {
		b.post(http.StatusOK, "/pool/size", `{"desiredSize":3}`)
		b.wantDesired(3)
		if n := len(b.read()); n != 1 {
			t.Errorf("%d machines at once, want 1", n)
		}
		for _, step := range []struct {
			after time.Duration
			state cloudpool.State
			n     int
		}{
			{1100 * time.Millisecond, cloudpool.Requested, 2}, {10 * time.Second, cloudpool.Pending, 2}, {10 * time.Second, cloudpool.Running, 3},
		} {
			pass(step.after)
			if n := b.count(step.state); n != step.n {
				t.Errorf("%d machines are %s, want %d: %v", n, step.state, step.n, b.read())
			}
		}
	})
}

func TestReadsAndTheCheckOfMembersAreAsOldAsTheCache(t *testing.T) {
	inBubble(t, 3, cloudpool.Options{Refresh: 30 * time.Second}, func(b *backend) {
		b.read()
		id := b.Machines()[0].ID
		for range 2 { // the second termination finds no machine, but still lowers the desired size
			b.post(http.StatusOK, "/pool/terminate", naming(id, true))
		}
		synctest.Wait()
		b.wantDesired(1)
		if b.read()[id] != cloudpool.Running {
			t.Errorf("%v, want the machine in its cached state", b.read())
		}
		pass(31 * time.Second)
		if _, there := b.read()[id]; there {
			t.Error("the machine is listed after the refresh of the cache")
		}
	})
}

func TestATerminationWithoutDecrementIsReplaced(t *testing.T) {
	inBubble(t, 2, cloudpool.Options{Launch: time.Second}, func(b *backend) {
		id := b.Machines()[0].ID
		b.post(http.StatusOK, "/pool/terminate", naming(id, false))
		pass(3 * time.Second)
		b.wantDesired(2)
		if _, there := b.read()[id]; there || b.count(cloudpool.Running) != 2 {
			t.Errorf("%v, want two running machines without the terminated one", b.read())
		}
		b.post(http.StatusNotFound, "/pool/terminate", naming(id, true))
		b.wantDesired(2)
	})
}

func TestThePoolShrinksByItsPolicyAndNotByWhatRunsThere(t *testing.T) {
	for policy, want := range map[cloudpool.Policy][]int{cloudpool.Newest: {0, 1}, cloudpool.Oldest: {1, 2}} {
		inBubble(t, 3, cloudpool.Options{Policy: policy}, func(b *backend) {
			b.Place(cloudpool.Requested, nil)
			b.post(http.StatusOK, "/pool/size", `{"desiredSize":3}`)
			synctest.Wait()
			if b.count(cloudpool.Requested) != 0 || b.count(cloudpool.Running) != 3 {
				t.Errorf("%s: %v, want the requested machine to end first", policy, b.read())
			}
			b.post(http.StatusOK, "/pool/size", `{"desiredSize":2}`)
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

func TestWhatTheCloudRefusesIsRejectedAndDoesNotCount(t *testing.T) {
	inBubble(t, 2, cloudpool.Options{Quota: 2}, func(b *backend) {
		b.post(http.StatusOK, "/pool/size", `{"desiredSize":3}`)
		synctest.Wait()
		if b.count(cloudpool.Rejected) != 1 || b.count(cloudpool.Running) != 2 {
			t.Errorf("%v, want one rejected machine", b.read())
		}
		if _, answer := b.ask(http.MethodGet, "/pool/size", ""); !strings.Contains(answer, `"allocated": 2`) {
			t.Errorf("GET /pool/size: %s", answer)
		}
	})
}

func TestMembershipSaysWhatCountsAndWhatGoes(t *testing.T) {
	inBubble(t, 3, cloudpool.Options{}, func(b *backend) {
		ids := b.Machines()
		status := func(id, membership string) string {
			return fmt.Sprintf(`{"machineId":%q,"membershipStatus":%s}`, id, membership)
		}
		// Not evictable: no termination, no detaching.
		b.post(http.StatusOK, "/pool/membershipStatus", status(ids[0].ID, `{"evictable":false}`))
		b.post(http.StatusBadGateway, "/pool/terminate", naming(ids[0].ID, true))
		b.post(http.StatusBadGateway, "/pool/detach", naming(ids[0].ID, true))
		// Awaiting service: it does not count, and stays.
		b.post(http.StatusOK, "/pool/membershipStatus", status(ids[1].ID, `{"active":false,"evictable":false}`))
		synctest.Wait()
		if b.count(cloudpool.Running) != 4 {
			t.Errorf("%v, want one more for the inactive machine", b.read())
		}
		// Disposable: it is replaced and terminated.
		b.post(http.StatusOK, "/pool/membershipStatus", status(ids[2].ID, `{"active":false}`))
		synctest.Wait()
		if _, there := b.read()[ids[2].ID]; there || b.count(cloudpool.Running) != 4 {
			t.Errorf("%v, want the disposable machine replaced", b.read())
		}
		b.wantDesired(3)
	})
}

func TestAMachineThatIsDetachedRunsOnAndMayBeAttached(t *testing.T) {
	inBubble(t, 2, cloudpool.Options{}, func(b *backend) {
		id := b.Machines()[0].ID
		b.post(http.StatusNotFound, "/pool/attach", naming(id, false)) // it is a member
		b.post(http.StatusOK, "/pool/detach", naming(id, true))
		synctest.Wait()
		b.wantDesired(1)
		b.post(http.StatusOK, "/pool/attach", naming(id, false))
		synctest.Wait()
		b.wantDesired(2)
		if b.read()[id] != cloudpool.Running {
			t.Errorf("%v", b.read())
		}
	})
}

func TestBodiesAreReadAsTheReferenceServerReadsThem(t *testing.T) {
	for body, desired := range map[string]int{
		`{}`: 0, `{"desiredSize":null}`: 0, `{"DesiredSize":1}`: 0, `{"desiredSize":"1"}`: 1, `{"desiredSize":1.9}`: 1,
	} {
		inBubble(t, 2, cloudpool.Options{}, func(b *backend) {
			b.post(http.StatusOK, "/pool/size", body)
			b.wantDesired(desired)
		})
	}
	for _, body := range []string{``, `x`, `[1]`, `{"desiredSize":-1}`, `{"desiredSize":"x"}`} {
		inBubble(t, 2, cloudpool.Options{}, func(b *backend) {
			b.post(http.StatusBadRequest, "/pool/size", body)
			b.wantDesired(2)
		})
	}
}

func TestAPoolThatIsStoppedAnswersForItselfAlone(t *testing.T) {
	inBubble(t, 2, cloudpool.Options{}, func(b *backend) {
		for range 2 {
			b.post(http.StatusOK, "/stop", "")
		}
		if code, answer := b.ask(http.MethodGet, "/pool", ""); code != http.StatusInternalServerError || !strings.Contains(answer, "before being started") {
			t.Errorf("GET /pool: %d %s", code, answer)
		}
		if code, answer := b.ask(http.MethodGet, "/status", ""); code != http.StatusOK || !strings.Contains(answer, `"started": false`) {
			t.Errorf("GET /status: %d %s", code, answer)
		}
		b.SetDesired(1)
		b.post(http.StatusOK, "/start", "")
		synctest.Wait()
		if n := len(b.Machines()); n != 1 {
			t.Errorf("%d machines, want the desired size after the start", n)
		}
	})
}

func TestPathsAreReadAsTheReferenceServerReadsThem(t *testing.T) {
	one := cloudpool.New(cloudpool.Options{})
	defer one.Close()
	several := cloudpool.Multi(map[string]*cloudpool.Pool{"workers": one})
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
