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

// undisputed is a Lease duration that a holder keeps on a busy host. disputed is a Lease duration that lets the other
// manager take over soon.
const (
	undisputed = 2 * time.Minute
	disputed   = 5 * time.Second
)

// electing returns the flags of managers that compete for a Lease in the fixture's own namespace.
func (f *fixture) electing(lease time.Duration) []string {
	return []string{
		"--leader-elect=true", "--leader-election-namespace", f.name, "--leader-election-lease-duration", lease.String(),
	}
}

// duel retires a node with two managers that compete for a Lease. The first manager leads. At the request at, it calls
// meet when the second manager runs, and then forwards the request. Without meet, the first manager must finish, and duel
// returns its requests. If the first manager did not make the request, duel still checks everything, and then skips the
// test. The requests differ slightly between runs, and on a busy host the first manager may lose the Lease earlier.
func duel(t *testing.T, name string, at faultproxy.RequestID, meet func(f *fixture, first *process, node string)) []faultproxy.Request {
	t.Helper()
	lease := disputed
	if meet == nil {
		lease = undisputed
	}
	f := newFixture(t, name, 2, "drain: {timeout: 30m}")
	f.secluded = true
	f.check(f.CopyRoleAndBinding(f.ctx, managerNamespace, managerAccount, f.name)) // both managers may write the Lease
	f.run(f.app("web", 0, 2).Deployment())
	proxy := faultproxy.New(kindOf)
	launched := make(chan *process, 1)
	standby := make(chan struct{})
	node := f.pool.NodeName(0)
	var meeting encounter
	proxy.OnWrite(func(_ context.Context, r faultproxy.Request, _ []byte) {
		if r.RequestID == at && meet != nil && meeting.begin() {
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

// encounter runs an action at a manager's request, unless the request comes after the end.
type encounter struct {
	sync.WaitGroup
	mu        sync.Mutex
	met, over bool
}

// begin reports whether the action may run. If it returns true, the caller must call Done.
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

// end waits until the action has ended, prevents later actions, and reports whether an action ran.
func (e *encounter) end() bool {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.Wait()
	return e.met
}

// leads waits until a manager leads. A leader watches the objects that it reconciles, and has requested the Lease before.
// The manager may also have exited, as it does after it loses its Lease.
func (f *fixture) leads(manager *process, proxy *faultproxy.Proxy) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the first manager leads", func() bool {
		return !manager.IsAlive() || made(proxy, "api POST /apis/coordination.k8s.io/v1/namespaces/*/leases") &&
			made(proxy, "api GET /apis/slipway.dev/v1alpha1/noderetirements (watch)")
	}))
}

// asked waits until a manager has made a request of a kind.
func (f *fixture) asked(proxy *faultproxy.Proxy, kind string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, kind, func() bool { return made(proxy, kind) }))
}

func made(proxy *faultproxy.Proxy, kind string) bool {
	return slices.ContainsFunc(proxy.Requests(), func(r faultproxy.Request) bool { return r.Kind == kind })
}

// changing reports whether a request changes part of a retirement.
func changing(r faultproxy.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.Kind, "/leases") && !strings.Contains(r.Kind, "/token") &&
		!strings.Contains(r.Kind, "/events")
}

// TestI8TheSecondManagerFinishesWhatTheLeaderCannot kills the leader with SIGKILL at a few requests. In other runs it
// stops the leader with SIGSTOP at each write, until the second manager has finished. The deposed leader then sends its
// write to a changed cluster, and must do no harm.
func TestI8TheSecondManagerFinishesWhatTheLeaderCannot(t *testing.T) {
	t.Parallel()
	seen := duel(t, "duel", faultproxy.RequestID{}, nil)
	tried := 0
	for n, r := range seen {
		if !changing(r) {
			continue
		}
		tried++
		t.Run(fmt.Sprintf("deposed at %s", r.RequestID), func(t *testing.T) {
			t.Parallel()
			duel(t, fmt.Sprintf("duelp%d", n), r.RequestID, func(f *fixture, first *process, node string) {
				err := first.Pause(f.ctx)
				if errors.Is(err, os.ErrProcessDone) { // a busy host was too slow to renew its Lease
					return
				}
				f.noError(err)
				f.over(node)
				f.noError(first.Resume())
			})
		})
		// The kill courses cover a kill at every request. Here another manager takes over.
		if !slices.Contains(courses[0].real, r.RequestID) {
			continue
		}
		t.Run(fmt.Sprintf("killed at %s", r.RequestID), func(t *testing.T) {
			t.Parallel()
			duel(t, fmt.Sprintf("duelk%d", n), r.RequestID, func(f *fixture, first *process, _ string) { f.noError(first.Kill()) })
		})
	}
	if tried < 8 {
		t.Errorf("the leader made %d requests that change something, of %d: want some more", tried, len(seen))
	}
}

// noError reports an error like check, for goroutines other than the test's own.
func (f *fixture) noError(err error) {
	if err != nil {
		f.t.Error(err)
	}
}
