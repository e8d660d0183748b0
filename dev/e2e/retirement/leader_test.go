package retirement_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// undisputed is a Lease that its holder does not lose to a busy machine, disputed one that the other takes over soon.
const (
	undisputed = 2 * time.Minute
	disputed   = 5 * time.Second
)

// electing are the flags of managers that compete for a Lease in the fixture's own namespace.
func (f *fixture) electing(lease time.Duration) []string {
	return []string{
		"--leader-elect=true", "--leader-election-namespace", f.name, "--leader-election-lease-duration", lease.String(),
	}
}

// duel retires a node under two managers that compete for a Lease: the first one leads. What meets it at a request is
// done before the request is forwarded, when the second is there; the request goes on after that. A first that meets
// nothing is to finish, and its requests are returned. The test is skipped, when all is checked, where the first did not
// make the request: no two runs make quite the same, and a busy machine may take the Lease from it before.
func duel(t *testing.T, name string, at faultproxy.Point, meet func(f *fixture, first *process, node string)) []faultproxy.Request {
	t.Helper()
	lease := disputed
	if meet == nil {
		lease = undisputed
	}
	f := newFixture(t, name, 2, "drain: {timeout: 30m}")
	f.secluded = true
	f.check(f.CopyRole(f.ctx, managerNamespace, managerAccount, f.name)) // so that they may write the Lease
	f.run(f.app("web", 0, 2).Deployment())
	proxy := faultproxy.New(kindOf)
	launched := make(chan *process, 1)
	standby := make(chan struct{})
	node := f.pool.NodeName(0)
	var meeting encounter
	proxy.Guard(func(_ context.Context, r faultproxy.Request, _ []byte) {
		if r.Point == at && meet != nil && meeting.begin() {
			defer meeting.Done()
			<-standby
			meet(f, <-launched, node)
		}
	})
	first := f.manage("-1", proxy, f.electing(lease)...)
	launched <- first
	f.leads(first, proxy)
	second := faultproxy.New(kindOf)
	f.keep(f.manage("-2", second, f.electing(lease)...))
	f.asked(second, "api GET /apis/coordination.k8s.io/v1/namespaces/*/leases/*") // it competes
	close(standby)
	f.retire(0)
	f.awaitPhase(node, v1alpha1.Succeeded)
	met := meeting.end()
	f.left(2, 0)
	if meet != nil && !met {
		t.Skip("the first manager did not make this request in this run")
	}
	return proxy.Requests()
}

// encounter is what meets a manager at a request, unless the request comes when all is over already.
type encounter struct {
	sync.WaitGroup
	mu        sync.Mutex
	met, over bool
}

// begin reports whether it takes place. Done has to be called when it has.
func (e *encounter) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	e.met = true
	e.Add(1)
	return true
}

// end waits until it is over, lets none begin any more, and reports whether it took place.
func (e *encounter) end() bool {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.Wait()
	return e.met
}

// leads waits until a manager leads: it watches what it is to reconcile, and has asked for the Lease before. It also may
// have ended, as one does that has lost its Lease again.
func (f *fixture) leads(manager *process, proxy *faultproxy.Proxy) {
	f.t.Helper()
	f.check(testbed.Poll(f.ctx, "the first manager leads", func() bool {
		return !manager.Alive() || made(proxy, "api POST /apis/coordination.k8s.io/v1/namespaces/*/leases") &&
			made(proxy, "api GET /apis/slipway.dev/v1alpha1/noderetirements (watch)")
	}))
}

// asked waits until a manager has made a request of a kind.
func (f *fixture) asked(proxy *faultproxy.Proxy, kind string) {
	f.t.Helper()
	f.check(testbed.Poll(f.ctx, kind, func() bool { return made(proxy, kind) }))
}

func made(proxy *faultproxy.Proxy, kind string) bool {
	return slices.ContainsFunc(proxy.Requests(), func(r faultproxy.Request) bool { return r.Kind == kind })
}

// changing are the requests that change something of a retirement.
func changing(r faultproxy.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.Kind, "/leases") && !strings.Contains(r.Kind, "/token") &&
		!strings.Contains(r.Kind, "/events")
}

// TestI8TheSecondManagerFinishesWhatTheLeaderCannot kills the leader with SIGKILL at a few requests, and in other runs
// stops it with SIGSTOP until the second has finished, at each request with which it changes something: what it was about to ask is asked then,
// by a manager that was deposed, of a world that has moved on, and must do no harm.
func TestI8TheSecondManagerFinishesWhatTheLeaderCannot(t *testing.T) {
	t.Parallel()
	seen := duel(t, "duel", faultproxy.Point{}, nil)
	tried := 0
	for n, r := range seen {
		if !changing(r) {
			continue
		}
		tried++
		t.Run(fmt.Sprintf("deposed at %s", r.Point), func(t *testing.T) {
			t.Parallel()
			duel(t, fmt.Sprintf("duelp%d", n), r.Point, func(f *fixture, first *process, node string) {
				err := first.Pause(f.ctx)
				if errors.Is(err, os.ErrProcessDone) { // a busy machine was too slow to renew its Lease
					return
				}
				f.noError(err)
				f.over(node)
				f.noError(first.Resume())
			})
		})
		// What a killed manager leaves behind, the kill courses have from every request. Here it is taken over by another one.
		if !slices.Contains(courses[0].real, r.Point) {
			continue
		}
		t.Run(fmt.Sprintf("killed at %s", r.Point), func(t *testing.T) {
			t.Parallel()
			duel(t, fmt.Sprintf("duelk%d", n), r.Point, func(f *fixture, first *process, _ string) { f.noError(first.Kill()) })
		})
	}
	if tried < 8 {
		t.Errorf("the leader made %d requests that change something, of %d: want some more", tried, len(seen))
	}
}

// noError is check for goroutines that are not the test's own.
func (f *fixture) noError(err error) {
	if err != nil {
		f.t.Error(err)
	}
}
