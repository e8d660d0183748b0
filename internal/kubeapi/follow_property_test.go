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

// at returns the pods at a version, each with its own resourceVersion.
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

// events returns the lines of a watch from one version to another.
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

// step is a server's handling of one request: it moves to a version of the history, and may fail.
type step struct {
	upTo  int
	cut   int    // sent part of the body, in percent
	fault string // one of faults; empty for a good response
}

var faults = []string{"end", "break", "500", "410", "expired event", "garbage"}

// faultyServer is an API server with a history. It fails in the given steps, and works after them.
type faultyServer struct {
	history history
	steps   []step
}

func (f *faultyServer) next() step {
	if len(f.steps) == 0 {
		return step{upTo: len(f.history), cut: 100}
	}
	s := f.steps[0]
	f.steps = f.steps[1:]
	return s
}

func (f *faultyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

func (f *faultyServer) list(version int) string {
	var items []string
	for name, v := range f.history.at(version) {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q}}`, name, v))
	}
	return fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"items":[%s]}`, version, strings.Join(items, ","))
}

// The test draws a history and a list of faults. After the faults the handler's state must equal the server's. At no
// time may the handler have a state that never existed, because it must be safe to act on (I7).
func TestFollowReachesServerStateDespiteFaults(t *testing.T) {
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
		synctest.Test(t, func(t *testing.T) { wrong = followThroughFaults(t, &faultyServer{h, steps}) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// followThroughFaults runs Follow until the faults are over, and returns an error text if the handler had a wrong
// state.
func followThroughFaults(t *testing.T, f *faultyServer) string {
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
	_ = c.WatchPodsOnNode(ctx, "n1", Handler[Pod]{
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
