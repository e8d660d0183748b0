package cloudpool

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// detachable is a pool that machines can be detached from as well.
type detachable struct{ *members }

func (d detachable) Detach(context.Context, api.Removal) error {
	d.asked = append(d.asked, "detach")
	return nil
}

// updating is a pool of three machines that is being brought to two, until that is said to be over.
func updating(t *testing.T, o ServerOptions) (s *Server, pool *members, over func()) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	counts := api.MembershipStatus{Active: true, Evictable: true}
	pool = pooled(3, counts, counts, counts)
	backend := detachable{pool}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	none := reader{from: clientfake.NewClientBuilder().WithScheme(scheme).Build()}
	u, err := NewUpdater(UpdaterOptions{
		Pool: "workers", Backend: backend, Cluster: &Cluster{Client: fake.NewClientset(), cache: none}, Slots: (&leases{}).of("a"),
		Namespace: "slipway", Holder: "a", Log: o.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	up := &Update{ID: "u", Kind: SetSize, Pool: "workers", DesiredSize: 2}
	u.current = &work{update: up, record: &record{Current: up}, over: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { u.Run(ctx) })
	t.Cleanup(func() { stop(); runs.Wait() })
	return NewServer(o, &Front{Name: "workers", Backend: backend, Updater: u}), pool, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.current = nil
	}
}

// send sends a request, and gives its answer once it is there.
func send(t *testing.T, s *Server, path, body string) <-chan *httptest.ResponseRecorder {
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
			s, pool, _ := updating(t, ServerOptions{})
			if w := <-send(t, s, request[0], request[1]); w.Code != http.StatusTooManyRequests || len(pool.asked) > 0 {
				t.Errorf("%s: %d %s, and was asked %q; want 429", asked, w.Code, w.Body, pool.asked)
			}
			s, pool, over := updating(t, ServerOptions{StrictCompat: true})
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
		`{"desiredSize": 2}`: {false, http.StatusServiceUnavailable, "the update u goes on"},
		`{"desiredSize": 4}`: {true, http.StatusInternalServerError, "this process is ending"},
		`{"desiredSize": 1}`: {true, http.StatusInternalServerError, "this process is ending"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, pool, _ := updating(t, ServerOptions{StrictCompat: want.strict})
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

func TestI10APoolWhoseNameNoLeaseCanHaveIsNotServed(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("p", maxPoolName):   "",
		strings.Repeat("p", maxPoolName+1): "has a name of 54 characters: want at most 53",
	} {
		if err := distinct([]*Front{{Name: name}}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if problems := validation.IsValidLabelValue(slotPurpose(name)); (len(problems) > 0) != (want != "") {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

func TestPoolsAreListedHoweverManyThereAre(t *testing.T) {
	for want, fronts := range map[string][]*Front{
		"[\n  \"http://example.com/cloudpools/a\"\n]":                                         {{Name: "a"}},
		"[\n  \"http://example.com/cloudpools/a\",\n  \"http://example.com/cloudpools/b\"\n]": {{Name: "a"}, {Name: "b"}},
	} {
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, fronts...)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/cloudpools", nil))
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%d %s, want %s", w.Code, w.Body, want)
		}
		w = httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/cloudpools", strings.NewReader("{}")))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST: %d, want 405: pools are made elsewhere", w.Code)
		}
	}
}

// TestAPageOfAnotherSiteChangesNoPool has what browsers send for pages of a stranger's, and what other clients send.
func TestAPageOfAnotherSiteChangesNoPool(t *testing.T) {
	type header = map[string]string
	for name, tt := range map[string]struct {
		method, host string
		header       header
		local        bool
		code         int
	}{
		"a client that is no browser":                {"POST", "pool.example", nil, true, 200},
		"a page's simple request":                    {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 403},
		"one of an older browser":                    {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example"}, true, 403},
		"of a page that may not say whose it is":     {"POST", "127.0.0.1:8080", header{"Origin": "null"}, true, 403},
		"of a neighbour's page, beyond this machine": {"PUT", "pool.example", header{"Sec-Fetch-Site": "same-site"}, false, 403},
		"a page's read, which it is not shown":       {"GET", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 200},
		"a page of its own":                          {"POST", "127.0.0.1:8080", header{"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}, true, 200},
		"a page of its own, by another name":         {"POST", "localhost:8080", header{"Origin": "http://localhost:8080"}, true, 200},
		"and in IPv6":                                {"POST", "[::1]:8080", header{"Origin": "http://[::1]:8080"}, true, 200},
		"a name that was made to lead here":          {"POST", "evil.example:8080", header{"Origin": "http://evil.example:8080"}, true, 403},
		"a name that does, beyond this machine":      {"POST", "pool.example", header{"Origin": "http://pool.example"}, false, 200},
		"what a proxy on this machine has let pass":  {"POST", "pool.example", header{"Origin": "https://pool.example", "Sec-Fetch-Site": "same-origin"}, true, 200},
	} {
		asked := 0
		_, f := origin(t, "", func(http.ResponseWriter, *http.Request) { asked++ })
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), Local: tt.local}, f)
		path := "/pool/attach"
		if tt.method == http.MethodPut {
			path = "/pool/other"
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest(tt.method, path, strings.NewReader("{}"))
		r.Host = tt.host
		for k, v := range tt.header {
			r.Header.Set(k, v)
		}
		s.ServeHTTP(w, r)
		var said api.ErrorMessage
		if w.Code != tt.code || (asked > 0) != (tt.code == http.StatusOK) {
			t.Errorf("%s: %d %s, and the pool's server was asked %d times; want %d", name, w.Code, w.Body, asked, tt.code)
		} else if tt.code == http.StatusForbidden && (json.Unmarshal(w.Body.Bytes(), &said) != nil || said.Message == "" || said.Detail == "") {
			t.Errorf("%s: answered %s", name, w.Body)
		}
	}
}
