package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// recorder is a Handler that records its calls.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (d *recorder) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *recorder) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.lines...)
}

func (d *recorder) handler() Handler[Pod] {
	return Handler[Pod]{
		Replaced: func(pods []Pod) {
			var names []string
			for _, p := range pods {
				names = append(names, p.Name)
			}
			d.add("replaced [%s]", strings.Join(names, " "))
		},
		Changed: func(p Pod) { d.add("changed %s@%s", p.Name, p.ResourceVersion) },
		Deleted: func(p Pod) { d.add("deleted %s", p.Name) },
		Failed:  func(err error) { d.add("failed: %v", err) },
	}
}

// follow runs Follow for the pods of node n1 for the given time, and returns the calls of the handler.
func follow(t *testing.T, s *script, lasting time.Duration) []string {
	t.Helper()
	c := serveInBubble(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var d recorder
	done := make(chan error)
	go func() { done <- c.WatchPodsOnNode(ctx, "n1", d.handler()) }()
	time.Sleep(lasting)
	synctest.Wait()
	told := d.read()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Follow returned %v", err)
	}
	if after := d.read(); len(after) != len(told) {
		t.Errorf("handler was called for its own end: %v", after[len(told):])
	}
	return told
}

func TestFollowHandlesWatchEnds(t *testing.T) {
	tests := map[string]struct {
		steps []http.HandlerFunc
		asked []string // requests in order
		told  []string // a line that ends in … is a prefix
	}{
		"a list, then a watch from its version": {
			[]http.HandlerFunc{podList("5", "a", "b"), neverAnswer},
			[]string{"list", "watch from 5"},
			[]string{"replaced [a b]"},
		},
		"a normal end continues at the last event": {
			[]http.HandlerFunc{podList("5"), stream(event("ADDED", "a", "6"), event("MODIFIED", "a", "7"), event("DELETED", "a", "8"))},
			[]string{"list", "watch from 5", "watch from 8"},
			[]string{"replaced []", "changed a@6", "changed a@7", "deleted a"},
		},
		"a bookmark moves the version without a call": {
			[]http.HandlerFunc{podList("5", "a"), stream(event("BOOKMARK", "", "90"))},
			[]string{"list", "watch from 5", "watch from 90"},
			[]string{"replaced [a]"},
		},
		"a watch without events continues at the same version": {
			[]http.HandlerFunc{podList("5"), stream(), stream()},
			[]string{"list", "watch from 5", "watch from 5", "watch from 5"},
			[]string{"replaced []"},
		},
		"410 in the response lists again": {
			[]http.HandlerFunc{podList("5", "a"), answer(410, status(410, "Expired", "too old")), podList("9", "b")},
			[]string{"list", "watch from 5", "list", "watch from 9"},
			[]string{"replaced [a]", "failed: watch /api/v1/pods: too old (Expired)", "replaced [b]"},
		},
		"410 as an event lists again": {
			[]http.HandlerFunc{
				podList("5", "a"),
				stream(event("ADDED", "c", "6"), `{"type":"ERROR","object":`+status(410, "Expired", "too old")+"}\n"), podList("9", "b"),
			},
			[]string{"list", "watch from 5", "list", "watch from 9"},
			[]string{"replaced [a]", "changed c@6", "failed: watch /api/v1/pods: too old (Expired)", "replaced [b]"},
		},
		"a garbage line lists again": {
			[]http.HandlerFunc{podList("5"), stream(event("ADDED", "a", "6"), "<html>\n", event("ADDED", "b", "7")), podList("9", "b")},
			[]string{"list", "watch from 5", "list", "watch from 9"},
			[]string{"replaced []", "changed a@6", "failed: watch /api/v1/pods: event: invalid character…", "replaced [b]"},
		},
		"an event of unknown type lists again": {
			[]http.HandlerFunc{podList("5"), stream(event("MOVED", "a", "6")), podList("9")},
			[]string{"list", "watch from 5", "list", "watch from 9"},
			[]string{"replaced []", `failed: watch /api/v1/pods: event: type "MOVED": want ADDED…`, "replaced []"},
		},
		"an event without an object lists again": {
			[]http.HandlerFunc{podList("5"), stream(`{"type":"DELETED","object":null}` + "\n"), podList("9")},
			[]string{"list", "watch from 5", "list", "watch from 9"},
			[]string{"replaced []", "failed: watch /api/v1/pods: event DELETED: its object has no…", "replaced []"},
		},
		"an event larger than the limit lists again": {
			[]http.HandlerFunc{podList("5"), stream(event("ADDED", strings.Repeat("x", maxEventBytes), "6")), podList("9")},
			[]string{"list", "watch from 5", "list", "watch from 9"},
			[]string{"replaced []", "failed: watch /api/v1/pods: an event is larger than 4 MiB", "replaced []"},
		},
		"a connection that breaks in an event continues before it": {
			[]http.HandlerFunc{
				podList("5"), brokenStream(event("ADDED", "a", "6"), event("ADDED", "b", "7")[:30]),
				stream(event("ADDED", "b", "7")),
			},
			[]string{"list", "watch from 5", "watch from 6", "watch from 7"},
			[]string{"replaced []", "changed a@6", "failed: watch /api/v1/pods: unexpected EOF", "changed b@7"},
		},
		"a truncated event before a normal end is read again": {
			[]http.HandlerFunc{
				podList("5"), stream(event("ADDED", "a", "6"), strings.TrimSpace(event("ADDED", "b", "7"))),
				stream(event("ADDED", "b", "7")),
			},
			[]string{"list", "watch from 5", "watch from 6", "watch from 7"},
			[]string{"replaced []", "changed a@6", "changed b@7"},
		},
		"overload, missing permissions and server faults keep the version": {
			[]http.HandlerFunc{
				podList("5"), answer(429, "busy"), answer(403, "no"), answer(401, "who"), answer(500, "oh"),
				answer(503, "later"), stream(event("ADDED", "a", "6")),
			},
			[]string{"list", "watch from 5", "watch from 5", "watch from 5", "watch from 5", "watch from 5", "watch from 5", "watch from 6"},
			[]string{"replaced []", "failed: …", "failed: …", "failed: …", "failed: …", "failed: …", "changed a@6"},
		},
		"a version that the server refuses lists again": {
			[]http.HandlerFunc{
				podList("5"), answer(400, status(400, "BadRequest", "invalid")), podList("6"),
				answer(504, status(504, "Timeout", "Too large resource version")), podList("2"), answer(404, "?"), podList("3"),
			},
			[]string{"list", "watch from 5", "list", "watch from 6", "list", "watch from 2", "list", "watch from 3"},
			[]string{"replaced []", "failed: …", "replaced []", "failed: …", "replaced []", "failed: …", "replaced []"},
		},
		"a failed or truncated list is a failure, never a state (I7)": {
			[]http.HandlerFunc{
				answer(500, "oh"), answer(200, podPage("5", "", "a", "b")[:90]), brokenStream(podPage("5", "", "a")[:80]),
				answer(200, "{}"), answer(200, podPage("5", "p2", "a")), answer(410, status(410, "Expired", "")), podList("7", "a", "b"),
			},
			[]string{"list", "list", "list", "list", "list", "list", "list", "watch from 7"},
			[]string{"failed: …", "failed: …", "failed: …", "failed: …", "failed: …", "replaced [a b]"},
		},
		"all pages are one state": {
			[]http.HandlerFunc{answer(200, podPage("5", "p2", "a", "b")), podList("5", "c")},
			[]string{"list", "list", "watch from 5"},
			[]string{"replaced [a b c]"},
		},
	}
	for name, tt := range tests {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			s := &script{steps: tt.steps}
			told := follow(t, s, 30*time.Second)
			check.Equal(t, tt.asked, s.receivedRequests())
			check.Equal(t, tt.told, told, cmp.Comparer(matchesPrefix))
		}))
	}
}

// matchesPrefix compares two lines; a line that ends in … is a prefix.
func matchesPrefix(a, b string) bool {
	if short, ok := strings.CutSuffix(a, "…"); ok {
		return strings.HasPrefix(b, short)
	}
	if short, ok := strings.CutSuffix(b, "…"); ok {
		return strings.HasPrefix(a, short)
	}
	return a == b
}

func TestFollowSendsExactQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []http.HandlerFunc{podList("5")}}
		follow(t, s, time.Second)
		if got, want := s.asked[0].query.Encode(), "fieldSelector=spec.nodeName%3Dn1&limit=200&resourceVersion=0"; got != want {
			t.Errorf("list request %s, want %s", got, want)
		}
		q := s.asked[1].query
		if n, err := strconv.Atoi(q.Get("timeoutSeconds")); err != nil || n < 40*60 || n >= 60*60 {
			t.Errorf("timeoutSeconds=%s, want 40 to 60 minutes", q.Get("timeoutSeconds"))
		}
		q.Del("timeoutSeconds")
		want := "allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dn1&resourceVersion=5&watch=true"
		check.Is(t, want, q.Encode())
	})
}

func TestFollowNodeSelectsOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []http.HandlerFunc{podList("5", "n1")}}
		c := serveInBubble(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		err := c.WatchNode(ctx, "n1", "", Handler[Node]{Replaced: func(nodes []Node) {
			got = namesOf(nodes)
			cancel()
		}})
		if !errors.Is(err, context.Canceled) || !cmp.Equal(got, []string{"n1"}) {
			t.Errorf("got %v and %v", got, err)
		}
		check.Is(t, "metadata.name=n1", s.asked[0].query.Get("fieldSelector"))
	})
}

func TestKnownNodeIsFollowedWithoutAList(t *testing.T) {
	tests := map[string]struct {
		steps []http.HandlerFunc
		asked []string
	}{
		"the API server remembers": {[]http.HandlerFunc{neverAnswer}, []string{"watch from 7"}},
		"the version is too old": {
			[]http.HandlerFunc{answer(410, status(410, "Expired", "too old")), podList("9", "n1"), neverAnswer},
			[]string{"watch from 7", "list", "watch from 9"},
		},
	}
	for name, tt := range tests {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			s := &script{steps: tt.steps}
			c := serveInBubble(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_ = c.WatchNode(ctx, "n1", "7", Handler[Node]{})
			var asked []string
			for _, q := range s.asked[:len(tt.asked)] {
				asked = append(asked, q.String())
			}
			check.Equal(t, tt.asked, asked)
		}))
	}
}

func TestOnlyTheFirstPodListIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []http.HandlerFunc{
			podList("5", "a"), answer(410, status(410, "Expired", "too old")), podList("9", "b"), neverAnswer, podList("9", "b"),
		}}
		follow := func(c *Client) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_ = c.WatchPodsOnNode(ctx, "n1", Handler[Pod]{})
		}
		c := serveInBubble(t, s)
		follow(c)
		if _, err := c.ListPodsOnNode(t.Context(), "n1"); err != nil {
			t.Fatal(err)
		}
		var lists []string
		for _, q := range s.asked {
			if q.String() == "list" {
				lists = append(lists, q.query.Get("resourceVersion"))
			}
		}
		check.Equal(t, []string{"0", "", ""}, lists)
	})
}

func TestWatchesThatEndAtOnceAreRetriedSlowly(t *testing.T) {
	for name, end := range map[string]http.HandlerFunc{
		"normally": stream(), "with an error": answer(503, "later"), "by breaking": brokenStream(),
		"after an event": stream(event("MODIFIED", "a", "6")), "with 410": answer(410, status(410, "Expired", "")),
	} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			s := &script{steps: []http.HandlerFunc{podList("5", "a")}}
			for range 1000 {
				s.steps = append(s.steps, end)
				if name == "with 410" {
					s.steps = append(s.steps, podList("5", "a"))
				}
			}
			follow(t, s, time.Minute)
			watches := 0
			for _, q := range s.receivedRequests() {
				if q != "list" {
					watches++
				}
			}
			// The pause becomes 1 to 2 s, after five shorter ones.
			if watches < 60/2 || watches > 60+6 {
				t.Errorf("%d watches within a minute, want 30 to 66", watches)
			}
		}))
	}
}

func TestLongWatchResetsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lasts := func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Minute)
		}
		s := &script{}
		for range 20 {
			s.steps = append(s.steps, answer(503, "away"))
		}
		s.steps = append(s.steps, podList("5"), lasts)
		follow(t, s, 15*time.Minute)
		n := len(s.asked)
		if gap := s.asked[n-1].at.Sub(s.asked[n-2].at) - 10*time.Minute; gap < 0 || gap > firstBackoff {
			t.Errorf("next request %v after the end of a long watch, want at most %v", gap, firstBackoff)
		}
		if gap := s.asked[n-3].at.Sub(s.asked[n-4].at); gap > maxBackoff {
			t.Errorf("next request %v after a failed list, want at most %v", gap, maxBackoff)
		}
	})
}

func TestWatchThatNeverBeginsTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mute := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		s := &script{steps: []http.HandlerFunc{podList("5"), mute, stream(event("ADDED", "a", "6"))}}
		told := follow(t, s, headerTimeout+time.Second)
		want := []string{"replaced []", "failed: watch /api/v1/pods: GET /api/v1/pods: …", "changed a@6"}
		check.Equal(t, want, told, cmp.Comparer(matchesPrefix))
	})
}

// A notice may give 30 s, so that an unanswered list must not take 20 s of them.
func TestUnansweredPodListIsSentAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mute := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		lost := answer(410, status(410, "Expired", "too old"))
		s := &script{steps: []http.HandlerFunc{mute, mute, mute, mute, podList("5"), lost, mute, podList("6")}}
		told := follow(t, s, 90*time.Second)
		check.Equal(t, []string{"failed: …", "failed: …", "failed: …", "failed: …", "replaced []", "failed: …", "failed: …", "replaced []"}, told, cmp.Comparer(matchesPrefix))
		must.Not(t, len(s.asked) < 8, "%d requests, want at least 8", len(s.asked))
		for i, want := range map[int]time.Duration{1: podListTimeout, 2: DefaultTimeout, 3: DefaultTimeout, 4: DefaultTimeout, 7: podListTimeout} {
			if took := s.asked[i].at.Sub(s.asked[i-1].at); took < want || took > want+maxBackoff {
				t.Errorf("request %d came %s after the one before, want %s and a pause", i, took, want)
			}
		}
		for i, want := range map[int]string{0: "0", 1: "0", 4: "0", 6: "", 7: ""} {
			check.Is(t, want, s.asked[i].query.Get("resourceVersion"), "request ", i)
		}
	})
}

// A notice may give 30 s, so that a list that needs 12 s must not be sent a third time.
func TestSlowPodListIsSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(w http.ResponseWriter, r *http.Request) {
			if elapsed.Sleep(r.Context(), 12*time.Second) {
				podList("5", "a")(w, r)
			}
		}
		s := &script{steps: []http.HandlerFunc{slow, slow}}
		told := follow(t, s, podListTimeout+12*time.Second+maxBackoff)
		check.Equal(t, []string{"failed: …", "replaced [a]"}, told, cmp.Comparer(matchesPrefix))
	})
}

func TestPodListEndsAtTheTimeoutOfTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serveInBubble(t, http.HandlerFunc(neverAnswer))
		c.timeout = podListTimeout / 2
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var took time.Duration
		began := time.Now()
		_ = c.WatchPodsOnNode(ctx, "n1", Handler[Pod]{Failed: func(error) { took = time.Since(began); cancel() }})
		check.Is(t, c.timeout, took)
	})
}

func TestFollowOverTLSAndHTTP2(t *testing.T) {
	s := &script{steps: []http.HandlerFunc{
		podList("5", "a"), brokenStream(event("ADDED", "b", "6"), `{"type":"ADD`),
		stream(event("DELETED", "a", "7")),
	}}
	c := serve(t, s.ServeHTTP)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var d recorder
	h := d.handler()
	h.Deleted = func(p Pod) { d.add("deleted %s", p.Name); cancel() }
	if err := c.WatchPodsOnNode(ctx, "n1", h); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	want := []string{"replaced [a]", "changed b@6", "failed: watch /api/v1/pods: …", "deleted a"}
	check.Equal(t, want, d.read(), cmp.Comparer(matchesPrefix))
	check.Equal(t, []string{"list", "watch from 5", "watch from 6"}, s.receivedRequests())
}

func TestEmptyHandlerIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []http.HandlerFunc{answer(500, ""), podList("5"), stream(event("ADDED", "a", "6"), event("DELETED", "a", "7"))}}
		c := serveInBubble(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.WatchPodsOnNode(ctx, "n1", Handler[Pod]{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		check.Equal(t, []string{"list", "list", "watch from 5", "watch from 7"}, s.receivedRequests())
	})
}
