package faultproxy_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

func TestAtEachReportsMissedKindAtEachMoment(t *testing.T) {
	point := func(kind string, nth int) faultproxy.Request {
		return faultproxy.Request{RequestID: faultproxy.RequestID{Kind: kind, Nth: nth}}
	}
	always, never, rare := point("GET /always", 1), point("GET /never", 1), point("GET /always", 2)
	var mu sync.Mutex
	var missed []string
	t.Run("each", func(t *testing.T) {
		faultproxy.RunAtEachRequest(t, []faultproxy.Request{always, never, rare}, func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			missed = append(missed, fmt.Sprintf(format, args...))
		}, func(*testing.T, int, faultproxy.RequestID, faultproxy.Moment) []faultproxy.Request {
			return []faultproxy.Request{always}
		})
	})
	var want []string
	for _, moment := range faultproxy.Moments() {
		want = append(want, fmt.Sprintf("nothing happened at GET /never, %s", moment))
	}
	if !slices.Equal(missed, want) {
		t.Errorf("missed: %q, want %q", missed, want)
	}
}
