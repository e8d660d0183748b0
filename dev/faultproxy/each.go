package faultproxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Kinds counts requests by kind, for people.
func Kinds(requests []Request) string {
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

// AtEach makes a subtest for each of the requests that a first run has made, and for each moment of it. The subtest calls
// run with a number of that request, and logs it when the requests that run returns have none such: how often something
// is asked is not the same in every run. Such a run was checked all the same, and how many they were is logged. t fails when
// none was ever met. Each kind whose first request was not, is told to missed: t.Errorf where each kind has to be in every run,
// and t.Logf where one may be left out.
func AtEach(t *testing.T, requests []Request, missed func(format string, args ...any),
	run func(t *testing.T, number int, at Point, moment Moment) []Request,
) {
	t.Helper()
	var met sync.Map // kinds and moments
	var without atomic.Int32
	t.Cleanup(func() { // when all the runs are over
		t.Logf("%d of %d runs came to their end without the request that they were for", without.Load(), len(requests)*len(Moments()))
		some := false
		for _, r := range requests {
			for _, moment := range Moments() {
				_, ok := met.Load(r.Kind + string(moment))
				some = some || ok
				if r.Nth == 1 && !ok {
					missed("nothing happened at %s, %s", r.Kind, moment)
				}
			}
		}
		if !some {
			t.Error("nothing happened at any request")
		}
	})
	for i, r := range requests {
		for _, moment := range Moments() {
			t.Run(fmt.Sprintf("%s,%s", r.Point, moment), func(t *testing.T) {
				seen := run(t, i, r.Point, moment)
				if !slices.ContainsFunc(seen, func(s Request) bool { return s.Point == r.Point }) {
					t.Log("this run came to its end without such a request")
					without.Add(1)
					return
				}
				met.Store(r.Kind+string(moment), true)
			})
		}
	}
}
