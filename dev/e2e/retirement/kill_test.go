package retirement_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// TestI8AfterAKillAtAnyRequestTheNextManagerReachesTheSameEnd kills the manager with SIGKILL at each request that it
// makes to the API server and to the cloud while it retires one node: once before the request is served, once after. The
// requests are not chosen: a first run is left alone, and there is a run for each request that it made, and each moment.
func TestI8AfterAKillAtAnyRequestTheNextManagerReachesTheSameEnd(t *testing.T) {
	t.Parallel()
	seen := retireOnce(t, "kill", faultproxy.Point{}, "")
	t.Logf("%d requests: %s", len(seen), kinds(seen))
	for i, r := range seen {
		for _, moment := range faultproxy.Moments() {
			t.Run(fmt.Sprintf("%s,%s", r.Point, moment), func(t *testing.T) {
				t.Parallel()
				seen := retireOnce(t, fmt.Sprintf("kill%d%s", i, moment), r.Point, moment)
				if !slices.ContainsFunc(seen, func(s faultproxy.Request) bool { return s.Point == r.Point }) {
					t.Skip("this run came to its end without such a request")
				}
			})
		}
	}
}

// retireOnce retires the first of two nodes, kills the manager at a request, if there is one such, and checks the end.
// It returns the requests of all managers.
func retireOnce(t *testing.T, name string, at faultproxy.Point, moment faultproxy.Moment) []faultproxy.Request {
	t.Helper()
	f := newFixture(t, name, 2)
	f.run(f.app("web", 0, 2).Deployment())
	node := f.retire(0)
	proxy := faultproxy.New(kindOf)
	launched := make(chan *process, 1)
	proxy.At(at, moment, func(r faultproxy.Request) {
		if err := (<-launched).revive(context.WithoutCancel(f.ctx)); err != nil {
			t.Errorf("restarting the manager after %s: %v", r, err)
		}
	})
	launched <- f.manage(proxy)
	f.awaitPhase(node, v1alpha1.Succeeded)
	f.left(2, 0)
	return proxy.Requests()
}

// object is the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|noderetirements|virtualMachines|virtualMachineScaleSets|operations|` +
	`nodegroups|asyncOperations)/[^/]+`)

// kindOf is a request without the names in it.
func kindOf(r faultproxy.Request) string {
	kind := r.Server + " " + r.Method + " " + object.ReplaceAllString(r.Path, "/$1/*")
	if strings.Contains(r.Query, "watch=true") || strings.Contains(r.Query, "watch=1") {
		kind += " (watch)"
	}
	return kind
}

func kinds(requests []faultproxy.Request) string {
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
