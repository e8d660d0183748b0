package faultproxy

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// FormatKinds formats the number of requests of each kind.
func FormatKinds(requests []Request) string {
	count := map[string]int{}
	for _, r := range requests {
		count[r.Kind]++
	}
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		all = append(all, fmt.Sprintf("%d × %s", count[kind], kind))
	}
	return strings.Join(all, ", ")
}

// killMoments returns the moments at which a kill can leave different states. A read changes nothing, so a kill after it
// leaves the same state as a kill before it.
func killMoments(r Request) []Moment {
	if r.Method == http.MethodGet {
		return []Moment{Before}
	}
	return Moments()
}

// CountKillPoints returns the number of subtests of RunAtEachRequest.
func CountKillPoints(requests []Request) (n int) {
	for _, r := range requests {
		n += len(killMoments(r))
	}
	return n
}

// RunAtEachRequest runs a subtest for each request of an undisturbed run, before it and, unless it is a read, after it. The subtest calls run with
// one request and logs if run's requests do not include it, because the number of requests varies between runs. RunAtEachRequest
// logs the number of such runs, which are still checked. It fails if no request was met. It reports each kind to missed
// if its first request was not met. Pass t.Errorf if every run must have each kind, and t.Logf otherwise.
func RunAtEachRequest(t *testing.T, requests []Request, missed func(format string, args ...any),
	run func(t *testing.T, number int, at RequestID, moment Moment) []Request,
) {
	t.Helper()
	var seenPoints sync.Map // kinds and moments
	var notMet atomic.Int32
	t.Cleanup(func() { // after all runs
		t.Logf("%d of %d runs ended without the expected request", notMet.Load(), CountKillPoints(requests))
		anyMet := false
		for _, r := range requests {
			for _, moment := range killMoments(r) {
				_, ok := seenPoints.Load(r.Kind + string(moment))
				anyMet = anyMet || ok
				if r.Nth == 1 && !ok {
					missed("nothing happened at %s, %s", r.Kind, moment)
				}
			}
		}
		if !anyMet {
			t.Error("nothing happened at any request")
		}
	})
	for i, r := range requests {
		for _, moment := range killMoments(r) {
			t.Run(fmt.Sprintf("%s,%s", r.RequestID, moment), func(t *testing.T) {
				seen := run(t, i, r.RequestID, moment)
				if !slices.ContainsFunc(seen, func(s Request) bool { return s.RequestID == r.RequestID }) {
					t.Log("this run ended without the expected request")
					notMet.Add(1)
					return
				}
				seenPoints.Store(r.Kind+string(moment), true)
			})
		}
	}
}
