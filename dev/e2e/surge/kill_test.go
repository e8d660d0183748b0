package surge_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// recordsReadTime is the longest time between two reads of the records by an agent. The reads come at random times, and a
// drain may end before the first.
const recordsReadTime = 30 * time.Second

// afterKill is what follows the kill of the draining agent.
type afterKill string

const (
	// restarted: the kubelet starts the agent again, and the drain has to end.
	restarted afterKill = "restarted"
	// dead: the agent never starts again, and the agent of another node has to restore the sizes.
	dead afterKill = "dead"
)

// TestI11KillsInVirtualTime kills the draining agent at each request that it makes. It kills once before the agent sends the
// request, and for a write once after the answer. A first run without a kill records the requests. Each request and each
// moment then gets its own run, once with and once without a restart.
func TestI11KillsInVirtualTime(t *testing.T) {
	testbed.UseOneThread(t)
	points, raises := 0, 0
	for _, then := range []afterKill{restarted, dead} {
		t.Run(string(then), func(t *testing.T) {
			run := func(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request) {
				synctest.Test(t, func(t *testing.T) {
					f := inMemory(t, "kill")
					sizes := f.checkSizes()
					seen = f.runKillCourse(then, at, moment)
					raises += sizes.countRaises()
				})
				return seen
			}
			seen, again := run(t, faultproxy.RequestID{}, ""), run(t, faultproxy.RequestID{}, "")
			chosen := chooseKills(seen, again, then)
			t.Logf("one drain takes %d requests, %d kills: %s", len(seen), faultproxy.CountKillPoints(chosen), faultproxy.FormatKinds(seen))
			points += faultproxy.CountKillPoints(chosen)
			faultproxy.RunAtEachRequest(t, chosen, t.Errorf, func(t *testing.T, _ int, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
				return run(t, at, moment)
			})
		})
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("surge: %d kills of a draining agent in virtual time, %d surges", points, raises))
}

// courseSizes are the sizes of the Deployments of a kill course.
var courseSizes = map[string]int32{"one": 1, "scaled": 1}

// runKillCourse drains the first instance and kills its agent at the request, if one is given. It checks that no size was
// below its user's wish, and that surges have left nothing (I11). It returns the requests of the draining agents.
func (f *fixture) runKillCourse(then afterKill, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
	f.t.Helper()
	all := objects(f.app("one", courseSizes["one"]))
	all = append(all, objects(f.app("scaled", courseSizes["scaled"]))...)
	all = append(all, f.autoscaler("scaled", new(int32(1)), 3))
	f.runAtHome(all...)
	f.startInProcess(1, faultproxy.New(kindOf))

	proxy := faultproxy.New(kindOf)
	launched := make(chan *testbed.InProcessAgent, 1)
	killed := make(chan struct{})
	proxy.InterruptAt(at, moment, func(r faultproxy.Request) {
		a := <-launched
		if err := a.KillIfAlive(); err != nil {
			f.t.Errorf("killing the agent at %s: %v", r, err)
		}
		if then == restarted {
			if err := a.RestartIfDead(context.WithoutCancel(f.ctx)); err != nil {
				f.t.Error(err)
			}
		}
		close(killed)
	})
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 30 * time.Minute})
	launched <- f.startInProcess(home, proxy)

	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	go func() {
		_, err := f.AwaitNotice(ctx, e.EventID, "ended", func(r azure.EventRecord) bool { return !r.IsListed() })
		ended <- err
	}()
	select {
	case err := <-ended:
		f.check(err)
		f.awaitNoTraces(restoreTime, courseSizes)
		select {
		case <-killed:
			f.awaitNoTraces(restoreTime, courseSizes)
		case <-time.After(recordsReadTime):
		}
	case <-killed:
		if then == dead {
			f.awaitNoTraces(restoreTime, courseSizes)
			break
		}
		f.check(<-ended)
		f.awaitNoTraces(restoreTime, courseSizes)
	}
	f.checkNoGaps()
	return proxy.Requests()
}

// killsPerKind limits the kills at requests of one kind, because the surges of several pods repeat the same requests.
var killsPerKind = flag.Int("surge.kills", 1, "at how many requests of each kind to kill an agent")

// chooseKills drops the later requests of each kind, and the kinds that another run without a kill did not have, such as the
// list of a broken watch. After a kill that nobody restarts, it also drops reads: a read changes nothing, so a kill at it leaves
// the same state as a kill at the writes around it.
func chooseKills(seen, again []faultproxy.Request, then afterKill) []faultproxy.Request {
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		isRare := !slices.ContainsFunc(again, func(o faultproxy.Request) bool { return o.Kind == r.Kind })
		return isRare || r.Nth > *killsPerKind || then == dead && r.Method == http.MethodGet
	})
}

// object matches the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|deployments|replicasets|horizontalpodautoscalers|leases|virtualMachines|scalesets)/[^/]+`)

// kindOf returns a request without its object names.
func kindOf(r faultproxy.Request) string {
	kind := r.Method + " " + strings.TrimPrefix(object.ReplaceAllString(r.Path, "/$1/*"), "/scalesets/*/virtualMachines/*")
	if strings.Contains(r.Query, "watch=true") {
		kind += " (watch)"
	}
	return kind
}

// TestI11NextAgentRestoresSizes kills the real process at a few writes of a surge, on a control plane. Another agent, or the
// next one of the node, restores the size.
func TestI11NextAgentRestoresSizes(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		kind   string
		moment faultproxy.Moment
		then   afterKill
	}{
		{"PUT /apis/apps/v1/namespaces/*/deployments/*/scale", faultproxy.After, dead},
		{"PATCH /api/v1/namespaces/*/pods/*", faultproxy.After, dead},
		{"PUT /apis/apps/v1/namespaces/*/deployments/*/scale", faultproxy.After, restarted},
	} {
		t.Run(fmt.Sprint(tt.kind, ", ", tt.then), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, fmt.Sprintf("i11-%d", i))
			f.checkSizes()
			f.runAtHome(objects(f.app("one", 1))...)
			f.agent(1)
			proxy := faultproxy.New(kindOf)
			t.Cleanup(func() { _ = proxy.Close() })
			launched, killed := make(chan *testbed.Agent, 1), make(chan struct{})
			proxy.InterruptAt(faultproxy.RequestID{Kind: tt.kind, Nth: 1}, tt.moment, func(faultproxy.Request) {
				a := <-launched
				if err := a.KillIfAlive(); err != nil {
					t.Error(err)
				}
				close(killed)
			})
			credentials, err := f.WriteAgentKubeconfig(f.ctx, f.node(home))
			f.check(err)
			a, err := f.StartAgentNoWait(f.ctx, f.pool, home, append(slices.Clone(surgeFlags), "--acknowledge=false",
				"--kubeconfig="+f.WriteProxyKubeconfig(t, proxy, credentials))...)
			f.check(err)
			testbed.KillAgentAfterTest(t, a)
			launched <- a
			f.announce(azure.Announcement{Type: azure.Reboot, Notice: 15 * time.Minute})
			select {
			case <-killed:
			case <-f.ctx.Done():
				t.Fatalf("the agent did not send %s", tt.kind)
			}
			if tt.then == restarted {
				f.check(a.RestartIfDead(f.ctx))
				f.awaitHomeEmpty()
			}
			f.awaitNoTraces(restoreTime, map[string]int32{"one": 1})
			f.checkNoGaps()
		})
	}
}
