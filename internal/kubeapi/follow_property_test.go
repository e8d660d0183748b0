package kubeapi

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// history is what happened to the pods of a node: change i made version i+1.
type history []change

type change struct {
	name string
	gone bool
}

// at is the state at a version: which pods are there, each with the version that it has.
func (h history) at(version int) map[string]string {
	state := map[string]string{}
	for i, c := range h[:version] {
		state[c.name] = strconv.Itoa(i + 1)
		if c.gone {
			delete(state, c.name)
		}
	}
	return state
}

// events are the lines of a watch from one version to another.
func (h history) events(from, to int) string {
	var lines strings.Builder
	for i := from; i < to; i++ {
		kind := "MODIFIED"
		if h[i].gone {
			kind = "DELETED"
		}
		lines.WriteString(event(kind, h[i].name, strconv.Itoa(i+1)))
	}
	return lines.String()
}

// step is what a server does with one request: it goes on to a version of the history, and fails in some way.
type step struct {
	upTo  int
	cut   int    // how much of the body is sent, in percent
	fault string // one of faults, or empty for a request that is answered well
}

var faults = []string{"end", "break", "500", "410", "expired event", "garbage"}

// faulty is an API server with a history, which fails as told and is in good health after that.
type faulty struct {
	history history
	steps   []step
}

func (f *faulty) next() step {
	if len(f.steps) == 0 {
		return step{upTo: len(f.history), cut: 100}
	}
	s := f.steps[0]
	f.steps = f.steps[1:]
	return s
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := f.next()
	switch s.fault {
	case "500":
		answer(500, "oh")(w, r)
		return
	case "410":
		answer(410, status(410, "Expired", "too old"))(w, r)
		return
	}
	body, watch := f.list(s.upTo), r.URL.Query().Has("watch")
	if watch {
		from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
		body = f.history.events(from, max(from, s.upTo))
	}
	if s.fault != "" {
		body = body[:len(body)*s.cut/100]
	}
	switch s.fault {
	case "expired event":
		body = body[:strings.LastIndexByte(body, '\n')+1] + `{"type":"ERROR","object":` + status(410, "Expired", "") + "}\n"
	case "garbage":
		body += "garbage\n"
	}
	_, _ = io.WriteString(w, body)
	_ = http.NewResponseController(w).Flush()
	switch {
	case s.fault == "break":
		panic(http.ErrAbortHandler)
	case s.fault == "" && watch:
		<-r.Context().Done()
	}
}

func (f *faulty) list(version int) string {
	var items []string
	for name, v := range f.history.at(version) {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q}}`, name, v))
	}
	return fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"items":[%s]}`, version, strings.Join(items, ","))
}

// TestFollowKnowsTheStateHoweverConnectionsFail draws a history and a row of faults, and compares what the
// handler was told with the server's own state once the faults are over. At no time may the handler believe in a state
// that never was, which is what makes it safe to act on (I7).
func TestFollowKnowsTheStateHoweverConnectionsFail(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) change {
			return change{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "pod"), rapid.Bool().Draw(rt, "gone")}
		}), 1, 12).Draw(rt, "history")
		var steps []step
		for at := 0; len(steps) < 12; {
			s := step{fault: rapid.SampledFrom(faults).Draw(rt, "fault"), cut: rapid.IntRange(0, 100).Draw(rt, "cut")}
			at = rapid.IntRange(at, len(h)).Draw(rt, "up to")
			s.upTo = max(at, 1)
			steps = append(steps, s)
		}
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = followThrough(t, &faulty{h, steps}) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// followThrough follows f until its faults are over, and says what was wrong with the states it was told.
func followThrough(t *testing.T, f *faulty) string {
	var states []map[string]string
	for v := range len(f.history) + 1 {
		states = append(states, f.history.at(v))
	}
	known, wrong := map[string]string{}, ""
	check := func(told string) {
		if wrong == "" && !slices.ContainsFunc(states, func(s map[string]string) bool { return maps.Equal(s, known) }) {
			wrong = fmt.Sprintf("after %s the state is %v, which never was", told, known)
		}
	}
	c := serveInBubble(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = c.FollowPodsOn(ctx, "n1", Handler[Pod]{
		Replaced: func(pods []Pod) {
			clear(known)
			for _, p := range pods {
				known[p.Name] = p.ResourceVersion
			}
			check("a list")
		},
		Changed: func(p Pod) { known[p.Name] = p.ResourceVersion; check("a change of " + p.Name) },
		Deleted: func(p Pod) { delete(known, p.Name); check("the deletion of " + p.Name) },
	})
	if len(f.steps) > 0 {
		return fmt.Sprintf("%d steps were never asked for", len(f.steps))
	}
	if diff := cmp.Diff(states[len(f.history)], known); wrong == "" && diff != "" {
		wrong = "the state in the end: " + diff
	}
	return wrong
}
