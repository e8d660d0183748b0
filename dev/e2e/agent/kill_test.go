package agent_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	// notice is how long before its NotBefore the Reboot of a kill test is announced.
	notice = 14 * time.Second
	// stubbornGrace is the grace of a pod that a budget holds back until the deadline forces it.
	stubbornGrace = 6 * time.Second
)

// TestI8AfterAKillAtAnyRequestARestartReachesTheSameEnd kills the agent at each request that it makes while it handles
// one notice: once before the request is sent, once after its answer. The requests are not chosen: a first run is left
// alone, and there is one run more for each request that it has made, and for each of the two moments.
func TestI8AfterAKillAtAnyRequestARestartReachesTheSameEnd(t *testing.T) {
	t.Parallel()
	undisturbed := run(t, "kill", faultproxy.Point{}, "")
	t.Logf("one notice takes %d requests: %s", len(undisturbed.requests), kinds(undisturbed.requests))
	var killed sync.Map // by kind and moment
	t.Run("at", func(t *testing.T) {
		for i, r := range undisturbed.requests {
			for _, moment := range faultproxy.Moments() {
				t.Run(fmt.Sprintf("%s,%s", r.Point, moment), func(t *testing.T) {
					t.Parallel()
					end := run(t, fmt.Sprintf("kill-%d-%s", i, moment), r.Point, moment)
					if !end.killed {
						t.Skip("this run came to its end without such a request")
					}
					killed.Store(r.Kind+", "+string(moment), true)
				})
			}
		}
	})
	for _, r := range undisturbed.requests {
		for _, moment := range faultproxy.Moments() {
			// How often it asks a budget, and the notices, is not the same in every run. That it does is.
			if _, ok := killed.Load(r.Kind + ", " + string(moment)); r.Nth == 1 && !ok {
				t.Errorf("no agent was killed at %s, %s", r.Kind, moment)
			}
		}
	}
}

// ended is what is known of a run at its end.
type ended struct {
	requests []faultproxy.Request
	killed   bool
}

// run takes a node of its own through a Reboot, kills its agent at a request, if there is one such, and checks that the
// end is the same.
func run(t *testing.T, name string, at faultproxy.Point, moment faultproxy.Moment) ended {
	t.Helper()
	f := newFixture(t, name, 1)
	stubborn := f.app("stubborn", 1)
	stubborn.MinAvailable, stubborn.Grace = "1", stubbornGrace
	web := f.app("web", 2)
	web.MinAvailable = "0"
	f.run(web.Deployment(), web.Budget(), f.app("db", 1).StatefulSet(), stubborn.Deployment(), stubborn.Budget())
	was := f.marksOf(0)

	proxy := faultproxy.New(kindOf)
	launched := make(chan *testbed.Agent, 1)
	killed := make(chan bool, 1)
	proxy.At(at, moment, func(r faultproxy.Request) {
		a := <-launched
		launched <- a
		if err := a.Crash(); err != nil {
			t.Errorf("killing the agent at %s: %v", r, err)
		}
		killed <- true
		if err := a.Revive(context.WithoutCancel(f.ctx)); err != nil {
			t.Errorf("restarting the agent after %s: %v", r, err)
		}
	})
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: notice})
	a, err := f.LaunchAgent(f.ctx, f.pool, 0, append(f.through(proxy), "--poll-interval=2s")...)
	f.check(err)
	launched <- a
	t.Cleanup(func() {
		_ = proxy.Close()
		f.end(a)
	})

	over := f.awaitOver(e.EventID)
	f.awaitAsItWas(0, was)
	f.awaitPods(0, 4)
	if moment == "" {
		f.awaitEvent(0, "Uncordoned")
	}
	if over.StartedBy != azure.ByApproval || len(over.Approvals) == 0 {
		t.Errorf("the Reboot was started %s and approved by %v, want it acknowledged", over.StartedBy, over.Approvals)
	}
	f.drainedInTime(e.EventID, 4)
	return ended{requests: proxy.Requests(), killed: len(killed) > 0}
}

// drainedInTime looks into the ledger: so many pods, each ended by itself before the machine went down.
func (f *fixture) drainedInTime(id string, pods int) {
	f.t.Helper()
	ledger, ok := f.Pods.Ledger(f.Azure.State()).Event(id)
	if !ok {
		f.t.Fatalf("the ledger has no event %s", id)
	}
	if ledger.Count(azure.OutcomeFinished) != pods || ledger.Count(azure.OutcomeLost) != 0 ||
		len(ledger.CutWithTimeLeft(testbed.CutTolerance)) != 0 {
		f.t.Errorf("ledger: %s, want %d finished", ledger.Summary(testbed.CutTolerance), pods)
	}
}

// through gives the flags of an agent whose every request goes through a proxy.
func (f *fixture) through(p *faultproxy.Proxy) []string {
	f.t.Helper()
	config := rest.AnonymousClientConfig(f.RESTConfig())
	transport, err := rest.TransportFor(config)
	f.check(err)
	server, err := url.Parse(config.Host)
	f.check(err)
	api, err := p.Serve("api", server, transport)
	f.check(err)
	credentials, err := f.ServiceAccountKubeconfig(f.ctx, testbed.AgentNamespace, testbed.AgentAccount,
		controlplane.TokenOptions{})
	f.check(err)
	kubeconfig := filepath.Join(f.t.TempDir(), "kubeconfig")
	f.check(faultproxy.Kubeconfig(credentials, kubeconfig, api))

	endpoint, err := url.Parse(f.Endpoint(f.pool, 0))
	f.check(err)
	front, err := p.Serve("metadata", endpoint, nil)
	f.check(err)
	endpoint.Host = front.Host
	return []string{"--kubeconfig", kubeconfig, "--endpoint", endpoint.String()}
}

// object is the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|virtualMachines|scalesets)/[^/]+`)

// kindOf is a request without the names in it.
func kindOf(r faultproxy.Request) string {
	kind := r.Method + " " + strings.TrimPrefix(object.ReplaceAllString(r.Path, "/$1/*"), "/scalesets/*/virtualMachines/*")
	if strings.Contains(r.Query, "watch=true") {
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
