package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// course is one way to handle a notice.
type course struct {
	name   string
	notice time.Duration
	// poll is an interval that keeps the polls few. The test kills the agent at each of these requests.
	poll string
	// pods creates what is on the node, and returns how many pods that are.
	pods func(*fixture) int
}

var (
	// normalCourse has ample time and no PDB. A kill can interrupt an eviction after the API server updated the PDB and
	// before it deletes the pod. The PDB then counts that eviction for two minutes (the disruption controller's
	// DeletionTimeout).
	normalCourse = course{name: "normal", notice: 10 * time.Minute, poll: "3s", pods: func(f *fixture) int {
		f.run(f.app("web", 2).Deployment(), f.app("db", 2).StatefulSet())
		return 4
	}}
	// urgentCourse has a pod that a PDB blocks until half of the time is over. Then the agent deletes it. An agent that
	// restarts at that moment waits for half of the rest. The remaining time must suffice for a slow host.
	urgentCourse = course{name: "urgent", notice: 64 * time.Second, poll: "5s", pods: func(f *fixture) int {
		f.runBlockedPod(2 * time.Minute)
		f.run(f.app("web", 1).Deployment())
		return 2
	}}
)

// TestI8KillCoursesInVirtualTime kills the agent at each request that it makes while it handles one notice. It kills once
// before the agent sends the request, and for a write once after the answer. A first run without a kill records the
// requests. Each request and each moment then gets its own run.
func TestI8KillCoursesInVirtualTime(t *testing.T) {
	testbed.UseOneThread(t)
	points := 0
	for _, c := range []course{normalCourse, urgentCourse} {
		t.Run(c.name, func(t *testing.T) {
			run := func(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request) {
				synctest.Test(t, func(t *testing.T) { seen = c.run(inMemory(t, c.name), at, moment) })
				return seen
			}
			seen := run(t, faultproxy.RequestID{}, "")
			t.Logf("one notice takes %d requests: %s", len(seen), faultproxy.FormatKinds(seen))
			chosen := dropDeniedEvictions(seen)
			points += faultproxy.CountKillPoints(chosen)
			faultproxy.RunAtEachRequest(t, chosen, t.Errorf, func(t *testing.T, _ int, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
				return run(t, at, moment)
			})
		})
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("agent: %d kill points of 2 courses in virtual time", points))
}

// dropDeniedEvictions drops all but six evictions. A PDB denies the later ones until the deadline, which changes nothing.
func dropDeniedEvictions(seen []faultproxy.Request) []faultproxy.Request {
	evictions := 0
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		if strings.HasSuffix(r.Kind, "/eviction") {
			evictions++
		}
		return strings.HasSuffix(r.Kind, "/eviction") && evictions > 6
	})
}

// TestI8RestartAfterAKillReachesSameEnd kills the real process at a few requests, on a control plane. It checks
// that the results in virtual time also hold there.
func TestI8RestartAfterAKillReachesSameEnd(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		course
		kind   string
		moment faultproxy.Moment
	}{
		{normalCourse, "PATCH /api/v1/nodes/*", faultproxy.After},
		{normalCourse, "POST /api/v1/namespaces/*/pods/*/eviction", faultproxy.After},
		{normalCourse, "POST /metadata/scheduledevents", faultproxy.Before},
		{urgentCourse, "DELETE /api/v1/namespaces/*/pods/*", faultproxy.After},
	} {
		t.Run(tt.name+" "+tt.kind, func(t *testing.T) {
			t.Parallel()
			at := faultproxy.RequestID{Kind: tt.kind, Nth: 1}
			f := newFixture(t, fmt.Sprintf("%s-%d", tt.name, i), 1)
			if !slices.ContainsFunc(tt.run(f, at, tt.moment), func(r faultproxy.Request) bool { return r.RequestID == at }) {
				t.Errorf("the agent did not send %s", at)
			}
		})
	}
}

// run takes the node through a Reboot and kills its agent at the request, if one is given. It checks that the end
// is the same. It returns the requests of all agents.
func (c course) run(f *fixture, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
	f.t.Helper()
	pods := c.pods(f)
	was := f.marksOf(0)

	proxy := faultproxy.New(kindOf)
	launched := make(chan killable, 1)
	proxy.InterruptAt(at, moment, func(r faultproxy.Request) {
		a := <-launched
		if err := errors.Join(a.KillIfAlive(), a.RestartIfDead(context.WithoutCancel(f.ctx))); err != nil {
			f.t.Errorf("killing the agent at %s: %v", r, err)
		}
	})
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: c.notice})
	launched <- f.startKillable(proxy, "--poll-interval="+c.poll)

	over := f.awaitEnd(e.EventID)
	f.awaitRestored(0, was)
	f.awaitPods(0, pods)
	if moment == "" {
		f.awaitEvent(0, "Uncordoned")
	}
	if over.StartedBy != azure.ByApproval || len(over.Approvals) == 0 {
		f.t.Errorf("the Reboot was started %s and approved by %v, want it acknowledged", over.StartedBy, over.Approvals)
	}
	f.checkDrainedInTime(e.EventID, pods)
	return proxy.Requests()
}

// killable is an agent that a test can kill and restart.
type killable interface {
	KillIfAlive() error
	RestartIfDead(ctx context.Context) error
}

// startKillable starts the agent of the first instance.
func (f *fixture) startKillable(proxy *faultproxy.Proxy, flags ...string) killable {
	f.t.Helper()
	if f.virtual {
		return f.startInProcess(proxy, flags...)
	}
	a, err := f.StartAgentNoWait(f.ctx, f.pool, 0, append(f.proxyFlags(proxy), flags...)...)
	f.check(err)
	testbed.KillAgentAfterTest(f.t, a)
	f.t.Cleanup(func() { _ = proxy.Close() })
	return a
}

// checkDrainedInTime checks the ledger. It wants this many pods, and each ended before the instance went down.
func (f *fixture) checkDrainedInTime(id string, pods int) {
	f.t.Helper()
	var ledger azure.EventLedger
	ctx, cancel := context.WithTimeout(f.ctx, 30*time.Second)
	defer cancel()
	err := testbed.PollUntil(ctx, "the ledger has seen the end of the pods", func() (done bool) { // its watch may lag behind the agent's
		ledger, done = f.Pods.Ledger(f.Azure.State()).Event(id)
		return done && ledger.CountOutcome(azure.OutcomeFinished) == pods
	})
	if err != nil {
		f.t.Error(err)
	}
	if ledger.CountOutcome(azure.OutcomeFinished) != pods || ledger.CountOutcome(azure.OutcomeLost) != 0 ||
		len(ledger.PodsKilledWithTimeLeft(testbed.CutTolerance)) != 0 {
		f.t.Errorf("ledger: %s, want %d finished", ledger.Summary(testbed.CutTolerance), pods)
	}
}

// proxyFlags returns flags that send all requests of an agent through a proxy.
func (f *fixture) proxyFlags(p *faultproxy.Proxy) []string {
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
	f.check(faultproxy.WriteKubeconfig(credentials, kubeconfig, api))

	endpoint, err := url.Parse(f.ScheduledEventsURL(f.pool, 0))
	f.check(err)
	front, err := p.Serve("metadata", endpoint, nil)
	f.check(err)
	endpoint.Host = front.Host
	return []string{"--kubeconfig", kubeconfig, "--endpoint", endpoint.String()}
}

// object matches the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|virtualMachines|scalesets)/[^/]+`)

// kindOf returns a request without its object names.
func kindOf(r faultproxy.Request) string {
	kind := r.Method + " " + strings.TrimPrefix(object.ReplaceAllString(r.Path, "/$1/*"), "/scalesets/*/virtualMachines/*")
	if strings.Contains(r.Query, "watch=true") {
		kind += " (watch)"
	}
	return kind
}
