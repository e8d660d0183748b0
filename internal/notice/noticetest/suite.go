// Package noticetest checks that a notice source follows the rules that the agent relies on. One suite runs against every
// source, in virtual time. A source gets an HTTP transport, and the suite plays the service behind it: healthy, broken,
// slow or hostile.
//
// The rules: an announcement becomes a notice of its type. A failed, partial or unreadable response ends no notice
// (invariant I7). A missing or wrong detail never hides an announcement (invariant I10). A restarted source finds the
// notice under the same ID.
package noticetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// Source is what the suite needs of a source. It is the interface of the agent's sources.
type Source interface {
	Name() string
	Run(ctx context.Context, emit func(notice.Snapshot))
	LastRead() time.Time
}

// Announcement is one interruption that the service announces.
type Announcement struct {
	// Name names the announcement in the names of tests.
	Name string
	// Type is the type of the notice that the agent must get.
	Type notice.Type
	// NotBefore is when the interruption is due on the service's clock. The suite sets it for a timed announcement.
	NotBefore time.Time
	// Timed means that the service tells the time, so the notice must have it.
	Timed bool
	// Path is the end of the URL path with the JSON document of the announcement; empty is any path.
	Path string
}

// Adapter connects a source and a service to the suite.
type Adapter struct {
	// New returns a source that sends its requests with the transport.
	New func(t testing.TB, transport http.RoundTripper) Source
	// Serve answers one request like the healthy service. It may wait for a change of the situation.
	Serve func(w http.ResponseWriter, r *http.Request, s Situation)
	// Announcements are the interruptions that the service can announce, one at a time.
	Announcements []Announcement
	// Several means that the service can list several announcements at once, in any order.
	Several bool
	// Essential lists the paths of JSON fields without which the service's document says nothing, such as "Events[0].Type".
	// If one is missing or wrong, the announcement must stay unknown. With any other damage it must become a notice.
	Essential []string
	// NoClock means that the service does not tell its time.
	NoClock bool
	// AbsentIsNone means that a 404 ends all announcements.
	AbsentIsNone bool
	// Within is the longest time from a change at the service to the source's snapshot; 0 means 15 s.
	Within time.Duration
}

// Situation is what the service has to announce at the time of a request.
type Situation struct {
	// Changed is closed when the situation changes.
	Changed <-chan struct{}

	service *service
}

// Active returns what the service announces now.
func (s Situation) Active() []Announcement {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	return slices.Clone(s.service.active)
}

// service is the service behind a source's transport.
type service struct {
	adapter Adapter

	mu       sync.Mutex
	active   []Announcement
	changed  chan struct{}
	fault    fault
	ahead    time.Duration // clock of the service, relative to the instance's
	followed int           // requests that followed a redirect
}

// fault replaces the service's responses. Nil is a healthy service.
type fault func(r *http.Request, healthy func() *http.Response) (*http.Response, error)

func (s *service) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *service) announce(all ...Announcement) { s.set(func() { s.active = all }) }
func (s *service) fail(f fault)                 { s.set(func() { s.fault = f }) }

const elsewhere = "/elsewhere-by-redirect"

// RoundTrip implements http.RoundTripper.
func (s *service) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	s.mu.Lock()
	situation := Situation{s.changed, s}
	f, ahead := s.fault, s.ahead
	if strings.Contains(r.URL.Path, elsewhere) {
		s.followed++
	}
	s.mu.Unlock()
	healthy := func() *http.Response {
		w := httptest.NewRecorder()
		s.adapter.Serve(w, r, situation)
		response := w.Result()
		response.Header.Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		response.Request = r
		return response
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if f != nil {
		return f(r, healthy)
	}
	response := healthy()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return response, nil
}

// run is one source that runs against a service.
type run struct {
	t       *testing.T
	adapter Adapter
	service *service
	source  Source
	stop    func()

	mu        sync.Mutex
	snapshots []notice.Snapshot
}

func (a Adapter) newService() *service { return &service{adapter: a, changed: make(chan struct{})} }

// resumer is a source that continues the notices of an earlier agent process.
type resumer interface {
	ResumeNotices(notices []notice.Notice)
}

// start starts a source. The records are the notices that an earlier agent process was acting on.
func (a Adapter) start(t *testing.T, s *service, records ...notice.Notice) *run {
	t.Helper()
	r := &run{t: t, adapter: a, service: s, source: a.New(t, s)}
	if source, can := r.source.(resumer); can && len(records) > 0 {
		source.ResumeNotices(records)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		r.source.Run(ctx, func(s notice.Snapshot) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.snapshots = append(r.snapshots, s)
		})
	})
	r.stop = func() { cancel(); group.Wait() }
	t.Cleanup(r.stop)
	return r
}

// restart ends the source and starts another one, with the records that the agent would find on the Node.
func (r *run) restart() *run {
	r.t.Helper()
	r.stop()
	r.checkSnapshots()
	last, _ := r.latest()
	records := make([]notice.Notice, len(last.Notices))
	for i, n := range last.Notices {
		record, err := json.Marshal(n.TrimForRecord(n.Resources[0]))
		if err == nil {
			err = json.Unmarshal(record, &records[i])
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return r.adapter.start(r.t, r.service, records...)
}

// settle lets the source read the service's present state.
func (r *run) settle() {
	time.Sleep(r.adapter.window())
	synctest.Wait()
}

// latest returns the latest snapshot; ok is false if the source has emitted none.
func (r *run) latest() (s notice.Snapshot, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.snapshots) == 0 {
		return notice.Snapshot{}, false
	}
	return r.snapshots[len(r.snapshots)-1], true
}

// announced returns the notices that the agent acts on or waits for.
func (r *run) announced() []notice.Notice {
	s, _ := r.latest()
	return slices.Concat(s.Notices, s.Planned)
}

// ended reports whether the agent would take a notice as ended.
func (r *run) ended(id string) bool { s, ok := r.latest(); return ok && s.HasEnded(id) }

// claimsNone reports whether the latest snapshot proves that every notice has ended.
func (r *run) claimsNone() bool { return r.ended("any-id") && len(r.announced()) == 0 }

// wantActive checks that the source gives exactly this announcement, and returns its notice.
func (r *run) wantActive(want Announcement) notice.Notice {
	r.t.Helper()
	all := r.announced()
	if len(all) != 1 {
		s, _ := r.latest()
		r.t.Fatalf("got %+v, want one notice of type %s", s, want.Type)
	}
	n := all[0]
	if n.Type != want.Type {
		r.t.Errorf("notice of type %s, want %s: %+v", n.Type, want.Type, n)
	}
	return n
}

// checkSnapshots checks the form of everything that the source has emitted.
func (r *run) checkSnapshots() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.snapshots {
		if s.At.IsZero() || s.At.After(time.Now()) {
			r.t.Errorf("snapshot %d was read at %v, which is not before now", i, s.At)
		}
		for _, n := range s.Notices {
			if n.ID == "" || len(n.ID) > 256 || n.Source != r.source.Name() || !slices.Contains(notice.Types(), n.Type) ||
				n.Status != notice.Scheduled && n.Status != notice.Started || len(n.Resources) == 0 {
				r.t.Errorf("snapshot %d has the malformed notice %+v", i, n)
			}
		}
		if !slices.IsSortedFunc(s.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) }) {
			r.t.Errorf("snapshot %d is not sorted by ID: %+v", i, s.Notices)
		}
		for _, p := range slices.Concat(s.Unreadable, s.Warnings) {
			if p.Err == nil {
				r.t.Errorf("snapshot %d has a problem without an error", i)
			}
		}
		if len(s.Unreadable)+len(s.Warnings) > 200 {
			r.t.Errorf("snapshot %d has %d problems, want a limit", i, len(s.Unreadable)+len(s.Warnings))
		}
	}
	if len(r.snapshots) > 0 && r.source.LastRead().IsZero() {
		r.t.Error("the source has read its notices, and LastRead is zero")
	}
}

// at returns the announcement with a time, if the service tells it.
func (a Announcement) at(t time.Time) Announcement {
	if a.Timed {
		a.NotBefore = t.Truncate(time.Second)
	}
	return a
}

// soon is how far ahead the suite's timed announcements are.
const soon = 10 * time.Minute

// Run runs the suite.
func Run(t *testing.T, a Adapter) {
	t.Helper()
	each := func(name string, test func(t *testing.T, what Announcement)) {
		t.Run(name, func(t *testing.T) {
			for _, what := range a.Announcements {
				t.Run(what.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { test(t, what.at(time.Now().Add(soon))) })
				})
			}
		})
	}
	t.Run("NoAnnouncement", func(t *testing.T) { synctest.Test(t, a.checkNone) })
	each("AnnouncedRepeatedAndCancelled", a.checkLifecycle)
	each("I7FailedReadsEndNothing", a.checkFailures)
	each("I10DamagedFieldsHideNothing", a.checkDamage)
	each("ServiceClockIsCorrected", a.checkClocks)
	each("RestartFindsTheSameNotice", a.checkRestart)
	if a.Several {
		t.Run("OrderMakesNoDifference", func(t *testing.T) { synctest.Test(t, a.checkOrder) })
	}
}

func (a Adapter) checkNone(t *testing.T) {
	r := a.start(t, a.newService())
	r.settle()
	if !r.claimsNone() {
		t.Errorf("snapshots %+v, want an empty one", r.snapshots)
	}
	first := len(r.snapshots)
	time.Sleep(time.Hour)
	if len(r.snapshots) != first {
		t.Errorf("%d snapshots in an hour without a change", len(r.snapshots)-first)
	}
	if age := time.Since(r.source.LastRead()); age > a.window() {
		t.Errorf("the last read is %v old, want continuous reads", age)
	}
	r.stop()
	r.checkSnapshots()
}

func (a Adapter) window() time.Duration {
	if a.Within == 0 {
		return 15 * time.Second
	}
	return a.Within
}

func (a Adapter) checkLifecycle(t *testing.T, what Announcement) {
	s := a.newService()
	r := a.start(t, s)
	r.settle()
	for range 3 { // the same announcement may come again after its end
		s.announce(what)
		r.settle()
		n := r.wantActive(what)
		if what.Timed && !n.NotBefore.Equal(what.NotBefore) {
			t.Errorf("NotBefore is %v, want %v", n.NotBefore, what.NotBefore)
		}
		count := len(r.snapshots)
		s.announce(what) // a repetition changes nothing
		r.settle()
		if len(r.snapshots) != count {
			t.Errorf("a repetition made a snapshot: %+v", r.snapshots[count:])
		}
		s.announce()
		r.settle()
		if !r.ended(n.ID) {
			t.Errorf("the cancelled notice has not ended: %+v", r.snapshots[len(r.snapshots)-1])
		}
	}
	r.stop()
	r.checkSnapshots()
}

func respond(r *http.Request, status int, contentType, body string) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.WriteString(body)
	response := w.Result()
	response.Request = r
	return response, nil
}

// endless is the body of a response that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, endlessPart), nil }

var endlessPart = strings.Repeat("  {}\n", 1<<12)

// cutBody is the body of a connection that ends early.
type cutBody struct{ io.Reader }

func (c cutBody) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (cutBody) Close() error { return nil }

// faults returns the failures of a service by their names.
func (a Adapter) faults() map[string]fault {
	status := func(code int, body string) fault {
		return func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			return respond(r, code, "text/html", body)
		}
	}
	all := map[string]fault{
		"slow": func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"reset": func(*http.Request, func() *http.Response) (*http.Response, error) {
			return nil, fmt.Errorf("read: connection reset by peer")
		},
		"huge": func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			response, err := respond(r, http.StatusOK, "application/json", "")
			response.Body, response.ContentLength = io.NopCloser(endless{}), -1
			return response, err
		},
		"half": func(_ *http.Request, healthy func() *http.Response) (*http.Response, error) {
			response := healthy()
			if response.StatusCode != http.StatusOK {
				return nil, io.ErrUnexpectedEOF
			}
			body, _ := io.ReadAll(response.Body)
			response.Body = cutBody{strings.NewReader(string(body[:len(body)/2]))}
			return response, nil
		},
		"redirect": func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			response, err := respond(r, http.StatusFound, "text/html", "")
			response.Header.Set("Location", "http://"+r.URL.Host+elsewhere)
			return response, err
		},
		"page":        status(http.StatusOK, "<html><body>Sign in to the network</body></html>"),
		"empty":       status(http.StatusOK, ""),
		"no content":  status(http.StatusNoContent, ""),
		"forbidden":   status(http.StatusForbidden, "no"),
		"gone":        status(http.StatusGone, ""),
		"many":        status(http.StatusTooManyRequests, "slow down"),
		"broken":      status(http.StatusInternalServerError, strings.Repeat("oops ", 1<<13)),
		"maintenance": status(http.StatusServiceUnavailable, ""),
	}
	if !a.AbsentIsNone {
		all["absent"] = status(http.StatusNotFound, "not found")
	}
	return all
}

func (a Adapter) checkFailures(t *testing.T, what Announcement) {
	faults := a.faults()
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		for _, restarted := range []bool{false, true} { // while the service fails
			a.checkFailure(t, what, name, faults[name], restarted)
		}
	}
}

// firstResponse is how long a source may wait for its first response. Azure may need two minutes for it.
const firstResponse = 2 * time.Minute

func (a Adapter) checkFailure(t *testing.T, what Announcement, name string, f fault, restarted bool) {
	s := a.newService()
	s.fail(f)
	r := a.start(t, s) // it starts while the service fails
	r.settle()
	if r.claimsNone() || r.ended("any-id") {
		t.Errorf("%s: without a good response the source claims that there is no notice", name)
	}
	r.stop()
	s.fail(nil)
	s.announce(what)
	r = a.start(t, s)
	r.settle()
	n := r.wantActive(what)
	s.fail(f)
	time.Sleep(3 * a.window())
	if restarted {
		r = r.restart()
	}
	s.announce() // the end is not readable either
	time.Sleep(3 * a.window())
	r.settle()
	if r.ended(n.ID) {
		t.Errorf("%s, restarted %t: the failure ended the notice: %+v", name, restarted, r.snapshots[len(r.snapshots)-1])
	}
	s.fail(nil)
	if restarted {
		time.Sleep(firstResponse)
	}
	r.settle()
	r.settle()
	if !r.ended(n.ID) {
		t.Errorf("%s, restarted %t: after the failure the end of the notice is not read", name, restarted)
	}
	r.stop()
	r.checkSnapshots()
	if s.followed > 0 {
		t.Errorf("%s: the source followed a redirect", name)
	}
}

// damages returns the document with each field, one after the other, missing and with each wrong type. The key names
// the field and the damage.
func damages(document any) map[string]any {
	all := map[string]any{}
	wrong := map[string]any{"null": nil, "number": 7.5, "text": "x\u0000\u202e", "list": []any{}, "object": map[string]any{}, "true": true}
	var walk func(path string, value any, rebuild func(any, bool) any)
	walk = func(path string, value any, rebuild func(v any, present bool) any) {
		if path != "" {
			if _, entry := value.(map[string]any); !entry { // a missing entry says that there is no announcement
				all[path+" missing"] = rebuild(nil, false)
			}
			for name, w := range wrong {
				if !sameKind(w, value) {
					all[path+" is "+name] = rebuild(w, true)
				}
			}
		}
		switch v := value.(type) {
		case map[string]any:
			for key := range v {
				walk(strings.TrimPrefix(path+"."+key, "."), v[key], func(w any, present bool) any {
					c := maps.Clone(v)
					if c[key] = w; !present {
						delete(c, key)
					}
					return rebuild(c, true)
				})
			}
		case []any:
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), v[i], func(w any, present bool) any {
					c := slices.Clone(v)
					if c[i] = w; !present {
						c = slices.Delete(c, i, i+1)
					}
					return rebuild(c, true)
				})
			}
		}
	}
	walk("", document, func(v any, _ bool) any { return v })
	return all
}

func sameKind(a, b any) bool { return reflect.TypeOf(a) == reflect.TypeOf(b) }

func (a Adapter) checkDamage(t *testing.T, what Announcement) {
	s := a.newService()
	s.announce(what)
	var document any
	s.fail(func(r *http.Request, healthy func() *http.Response) (*http.Response, error) {
		response := healthy()
		body, _ := io.ReadAll(response.Body)
		response.Body = io.NopCloser(strings.NewReader(string(body)))
		if response.StatusCode == http.StatusOK && document == nil && strings.HasSuffix(r.URL.Path, what.Path) {
			if json.Unmarshal(body, &document) != nil {
				document = nil
			}
		}
		return response, nil
	})
	r := a.start(t, s)
	r.settle()
	id := r.wantActive(what).ID
	r.stop()
	if _, structured := document.(map[string]any); !structured {
		if _, list := document.([]any); !list {
			return // a plain value has no fields
		}
	}
	variants := damages(document)
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		body, err := json.Marshal(variants[name])
		if err != nil {
			t.Fatal(err)
		}
		s.fail(replaceDocument(what.Path, string(body)))
		r := a.start(t, s)
		r.settle()
		path, _, _ := strings.Cut(name, " ")
		isHidden := !slices.ContainsFunc(r.announced(), func(n notice.Notice) bool { return n.Type == what.Type })
		switch got, _ := r.latest(); {
		case r.ended(id) && len(r.announced()) == 0:
			t.Errorf("%s: the source claims that there is no announcement in %s", name, body)
		case isHidden && !slices.Contains(a.Essential, path):
			t.Errorf("%s: no notice of type %s from %s: %+v", name, what.Type, body, got)
		}
		r.stop()
		r.checkSnapshots()
	}
}

// replaceDocument replaces the body of every good JSON response to a path.
func replaceDocument(path, body string) fault {
	return func(r *http.Request, healthy func() *http.Response) (*http.Response, error) {
		response := healthy()
		was, _ := io.ReadAll(response.Body)
		now := body
		if response.StatusCode != http.StatusOK || !json.Valid(was) || !strings.HasSuffix(r.URL.Path, path) {
			now = string(was)
		}
		response.Body, response.ContentLength = io.NopCloser(strings.NewReader(now)), int64(len(now))
		return response, nil
	}
}

func (a Adapter) checkClocks(t *testing.T, what Announcement) {
	if !what.Timed || a.NoClock {
		return
	}
	for _, ahead := range []time.Duration{-6 * time.Hour, -7 * time.Minute, 0, 7 * time.Minute, 6 * time.Hour} {
		s := a.newService()
		s.ahead = ahead
		due := time.Now().Add(soon).Truncate(time.Second) // on the instance's clock
		what.NotBefore = due.Add(ahead)
		s.announce(what)
		r := a.start(t, s)
		r.settle()
		n := r.wantActive(what)
		if got := n.NotBefore.Add(n.ClockAhead); got.Sub(due).Abs() > 3*time.Second {
			t.Errorf("service clock %v ahead: due at %v, want %v", ahead, got, due)
		}
		r.stop()
	}
}

func (a Adapter) checkRestart(t *testing.T, what Announcement) {
	s := a.newService()
	s.announce(what)
	first := a.start(t, s)
	first.settle()
	id := first.wantActive(what).ID
	first.stop()
	s.fail(a.faults()["reset"])
	second := a.start(t, s)
	second.settle()
	if second.ended(id) {
		t.Error("the restarted source ended the notice before it has read the service")
	}
	s.fail(nil)
	second.settle()
	if got := second.wantActive(what).ID; got != id {
		t.Errorf("the restarted source has the ID %q, want %q", got, id)
	}
	second.stop()
	s.announce() // it ends while no source runs
	third := a.start(t, s)
	third.settle()
	if !third.ended(id) {
		t.Error("the restarted source does not see that the notice has ended")
	}
	third.stop()
}

func (a Adapter) checkOrder(t *testing.T) {
	s := a.newService()
	var all []Announcement
	for _, what := range a.Announcements {
		all = append(all, what.at(time.Now().Add(soon)))
	}
	s.announce(all...)
	r := a.start(t, s)
	r.settle()
	if len(r.announced()) != len(all) {
		t.Fatalf("%d notices, want %d: %+v", len(r.announced()), len(all), r.announced())
	}
	before := r.announced()
	slices.Reverse(all)
	s.announce(all...)
	r.settle()
	if !reflect.DeepEqual(before, r.announced()) {
		t.Errorf("another order made other notices:\n%+v\n%+v", before, r.announced())
	}
	s.announce(all[1:]...)
	r.settle()
	if len(r.announced()) != len(all)-1 {
		t.Errorf("one of %d vanished, and there are %d", len(all), len(r.announced()))
	}
	r.stop()
	r.checkSnapshots()
}
