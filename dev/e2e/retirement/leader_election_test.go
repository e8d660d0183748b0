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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// longLease is a Lease duration that a holder keeps on a busy host. shortLease is a Lease duration that lets the other
// manager take over soon. With a shorter one, most first managers lose their Lease on a busy host before they reach their request.
const (
	longLease  = 2 * time.Minute
	shortLease = 30 * time.Second
)

// leaderElectionFlags returns the flags of managers that compete for a Lease in the fixture's own namespace.
func (f *fixture) leaderElectionFlags(lease time.Duration) []string {
	return []string{
		"--leader-elect=true", "--leader-election-namespace", f.name, "--leader-election-lease-duration", lease.String(),
	}
}

// runTwoManagers retires a node with two managers that compete for a Lease. The first manager leads. At the request at,
// it calls atRequest when the second manager runs, and then forwards the request. Without atRequest, the first manager
// must finish, and runTwoManagers returns its requests. atRequest returns false if the first manager has exited. In this case, or
// if the first manager did not make the request, runTwoManagers still checks everything, and then skips the test. The requests differ
// slightly between runs, and on a busy host the first manager may lose the Lease earlier.
func runTwoManagers(t *testing.T, name string, lease time.Duration, at faultproxy.RequestID, atRequest func(f *fixture, first *process, node string) bool) []faultproxy.Request {
	t.Helper()
	f := newFixture(t, name, 2, "drain: {timeout: 30m}")
	f.isolated = true
	f.check(f.CopyRoleAndBinding(f.ctx, managerNamespace, managerAccount, f.name)) // both managers may write the Lease
	f.run(f.app("web", 0, 2).Deployment())
	proxy := faultproxy.New(kindOf)
	launched := make(chan *process, 1)
	secondRuns := make(chan struct{})
	node := f.pool.NodeName(0)
	var action pendingAction
	proxy.OnWrite(func(_ context.Context, r faultproxy.Request, _ []byte) {
		if r.RequestID == at && atRequest != nil && action.begin() {
			acted := false
			defer func() { action.finish(acted) }()
			<-secondRuns
			acted = atRequest(f, <-launched, node)
		}
	})
	first := f.manage("-1", proxy, f.leaderElectionFlags(lease)...)
	launched <- first
	f.awaitLeader(first, proxy)
	second := faultproxy.New(kindOf)
	f.restartOnExit(f.manage("-2", second, f.leaderElectionFlags(lease)...))
	f.awaitRequest(second, "api GET /apis/coordination.k8s.io/v1/namespaces/*/leases/*") // it competes
	close(secondRuns)
	f.retire(0)
	f.awaitPhase(node, v1alpha1.Succeeded)
	ran := action.end()
	f.checkRemaining(2, 0)
	if atRequest != nil && !ran {
		t.Skip("the first manager did not make this request in this run, or has exited before")
	}
	return proxy.Requests()
}

// pendingAction runs an action at a manager's request, unless the request comes after the end.
type pendingAction struct {
	sync.WaitGroup
	mu         sync.Mutex
	ran, ended bool
}

// begin reports whether the action may run. If it returns true, the caller must call finish.
func (e *pendingAction) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return false
	}
	e.Add(1)
	return true
}

// finish records whether the action ran.
func (e *pendingAction) finish(ran bool) {
	e.mu.Lock()
	e.ran = e.ran || ran
	e.mu.Unlock()
	e.Done()
}

// end waits until the action has ended, prevents later actions, and reports whether an action ran.
func (e *pendingAction) end() bool {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ran
}

// awaitLeader waits until a manager leads. A leader watches the objects that it reconciles, and has requested the Lease
// before. The manager may also have exited, as it does after it loses its Lease.
func (f *fixture) awaitLeader(manager *process, proxy *faultproxy.Proxy) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the first manager leads", func() bool {
		return !manager.IsAlive() || hasRequest(proxy, "api POST /apis/coordination.k8s.io/v1/namespaces/*/leases") &&
			hasRequest(proxy, "api GET /apis/slipway.dev/v1alpha1/noderetirements (watch)")
	}))
}

// awaitRequest waits until a manager has made a request of a kind.
func (f *fixture) awaitRequest(proxy *faultproxy.Proxy, kind string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, kind, func() bool { return hasRequest(proxy, kind) }))
}

func hasRequest(proxy *faultproxy.Proxy, kind string) bool {
	return slices.ContainsFunc(proxy.Requests(), func(r faultproxy.Request) bool { return r.Kind == kind })
}

// isChange reports whether a request changes part of a retirement. The status of a NodeGroup is no part of it.
func isChange(r faultproxy.Request) bool {
	other := func(part string) bool { return strings.Contains(r.Kind, part) }
	return r.Method != http.MethodGet && !slices.ContainsFunc([]string{"/leases", "/token", "/events", "/nodegroups/"}, other)
}

// TestI8SecondManagerFinishesRetirement kills the leader with SIGKILL at a few requests. In other runs it
// stops the leader with SIGSTOP at each write, until the second manager has finished. The paused leader then sends its
// write to a changed cluster, and must do no harm.
func TestI8SecondManagerFinishesRetirement(t *testing.T) {
	t.Parallel()
	seen := runTwoManagers(t, "two-managers", longLease, faultproxy.RequestID{}, nil)
	tried := 0
	var runs, stopped atomic.Int32
	t.Cleanup(func() { // after the subtests, because each of them may be skipped
		if n, all := stopped.Load(), runs.Load(); n < all/2 {
			t.Errorf("the leader was paused or killed in %d runs of %d, want at least half", n, all)
		}
	})
	for n, r := range seen {
		if !isChange(r) {
			continue
		}
		tried++
		t.Run(fmt.Sprintf("paused at %s", r.RequestID), func(t *testing.T) {
			t.Parallel()
			runs.Add(1)
			runTwoManagers(t, fmt.Sprintf("paused%d", n), shortLease, r.RequestID, func(f *fixture, first *process, node string) bool {
				err := first.Pause(f.ctx)
				if errors.Is(err, os.ErrProcessDone) { // a busy host was too slow to renew its Lease
					return false
				}
				f.noError(err)
				f.awaitFinalPhase(node)
				f.noError(first.Resume())
				return true
			})
			stopped.Add(1)
		})
		// The kill courses cover a kill at every request. Here another manager takes over.
		if !slices.Contains(courses[0].realKills, r.RequestID) {
			continue
		}
		t.Run(fmt.Sprintf("killed at %s", r.RequestID), func(t *testing.T) {
			t.Parallel()
			runs.Add(1)
			runTwoManagers(t, fmt.Sprintf("killed%d", n), shortLease, r.RequestID, func(f *fixture, first *process, _ string) bool {
				f.noError(first.Kill())
				return true
			})
			stopped.Add(1)
		})
	}
	if tried < 8 {
		t.Errorf("the leader sent %d write requests of %d, want at least 8", tried, len(seen))
	}
}

// TestI8LeaderThatEvictsItselfHandsOverAtOnce stops the leader at its first eviction, as the kubelet does if the leader's own pod is
// evicted.
func TestI8LeaderThatEvictsItselfHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	var stopped time.Time
	var f *fixture
	runTwoManagers(t, "own-node", shortLease, faultproxy.RequestID{Kind: evictionKind, Nth: 1}, func(of *fixture, first *process, _ string) bool {
		f, stopped = of, time.Now()
		f.noError(syscall.Kill(first.PID(), syscall.SIGTERM))
		<-first.Exited()
		f.noError(first.ExitError())
		return true
	})
	lease, err := f.Client().CoordinationV1().Leases(f.name).Get(f.ctx, managerAccount, metav1.GetOptions{})
	f.check(err)
	if after := lease.Spec.AcquireTime.Sub(stopped); after < 0 || after > shortLease/2 {
		t.Errorf("the other manager leads %s after the stop of the leader, want %s at most", after, shortLease/2)
	}
}

// noError reports an error like check, for goroutines other than the test's own.
func (f *fixture) noError(err error) {
	if err != nil {
		f.t.Error(err)
	}
}
