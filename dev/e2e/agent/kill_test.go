package agent_test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// course is one way through a notice.
type course struct {
	name   string
	notice time.Duration
	// poll keeps the polls few that each are a request to be killed at.
	poll string
	// pods creates what is on the node, and returns how many pods that are.
	pods func(*fixture) int
}

var (
	// calm has all the time in the world, and no disruption budget: an eviction that is cut off between the budget and
	// the pod, as a kill may do, is held against the budget for two minutes (the disruption controller's DeletionTimeout).
	calm = course{name: "calm", notice: 10 * time.Minute, poll: "3s", pods: func(f *fixture) int {
		f.run(f.app("web", 2).Deployment(), f.app("db", 2).StatefulSet())
		return 4
	}}
	// pressed has a pod that a budget holds back until half of the time is over, and that is deleted then.
	pressed = course{name: "pressed", notice: 32 * time.Second, poll: "5s", pods: func(f *fixture) int {
		f.blocked(time.Minute)
		f.run(f.app("web", 1).Deployment())
		return 2
	}}
)

// TestI8AfterAKillAtAnyRequestARestartReachesTheSameEnd kills the agent at each request that it makes while it handles
// one notice: once before the request is sent, once after its answer. The requests are not chosen: a first run is left
// alone, and there is one run more for each request that it has made, and for each of the two moments. Where time
// presses the same is done for what such a run asks that a calm one does not.
func TestI8AfterAKillAtAnyRequestARestartReachesTheSameEnd(t *testing.T) {
	t.Parallel()
	seen := run(t, calm, "", faultproxy.Point{}, "")
	t.Logf("calm, one notice takes %d requests: %s", len(seen), faultproxy.Kinds(seen))
	counted := map[string]int{}
	for _, r := range seen {
		counted[r.Kind]++
	}
	t.Run("calm", func(t *testing.T) {
		t.Parallel()
		killAtEach(t, calm, seen)
	})
	t.Run("pressed", func(t *testing.T) {
		t.Parallel()
		seen := run(t, pressed, "", faultproxy.Point{}, "")
		t.Logf("pressed, one notice takes %d requests: %s", len(seen), faultproxy.Kinds(seen))
		killAtEach(t, pressed, slices.DeleteFunc(seen, func(r faultproxy.Request) bool { return r.Nth != counted[r.Kind]+1 }))
	})
}

// killAtEach makes a run for each request and moment. How often the notices and a budget are asked is not the same in every
// run. That they are is.
func killAtEach(t *testing.T, c course, requests []faultproxy.Request) {
	t.Helper()
	faultproxy.AtEach(t, requests, t.Errorf, func(t *testing.T, n int, at faultproxy.Point, moment faultproxy.Moment) []faultproxy.Request {
		return run(t, c, fmt.Sprintf("-%d-%s", n, moment), at, moment)
	})
}

// run takes a node of its own through a Reboot, kills its agent at a request, if there is one such, and checks that the
// end is the same. It returns the requests of all its agents.
func run(t *testing.T, c course, suffix string, at faultproxy.Point, moment faultproxy.Moment) []faultproxy.Request {
	t.Helper()
	f := newFixture(t, c.name+suffix, 1)
	pods := c.pods(f)
	was := f.marksOf(0)

	proxy := faultproxy.New(kindOf)
	launched := make(chan *testbed.Agent, 1)
	proxy.At(at, moment, func(r faultproxy.Request) {
		a := <-launched
		if err := a.Crash(); err != nil {
			t.Errorf("killing the agent at %s: %v", r, err)
		}
		if err := a.Revive(context.WithoutCancel(f.ctx)); err != nil {
			t.Errorf("restarting the agent after %s: %v", r, err)
		}
	})
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: c.notice})
	a, err := f.LaunchAgent(f.ctx, f.pool, 0, append(f.through(proxy), "--poll-interval="+c.poll)...)
	f.check(err)
	launched <- a
	t.Cleanup(func() {
		_ = proxy.Close()
		f.end(a)
	})

	over := f.awaitOver(e.EventID)
	f.awaitAsItWas(0, was)
	f.awaitPods(0, pods)
	if moment == "" {
		f.awaitEvent(0, "Uncordoned")
	}
	if over.StartedBy != azure.ByApproval || len(over.Approvals) == 0 {
		t.Errorf("the Reboot was started %s and approved by %v, want it acknowledged", over.StartedBy, over.Approvals)
	}
	f.drainedInTime(e.EventID, pods)
	return proxy.Requests()
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
		controlplane.TokenOptions{Node: f.node(0)})
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
