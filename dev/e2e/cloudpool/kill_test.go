package cloudpool_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// change is an update of a pool of three machines, and its required result.
type change struct {
	name string
	// ask returns the request that a client repeats until it succeeds.
	ask func(f *fixture) (path, body string)
	// machines is the number of machines at the end. retired is the number of retired machines.
	machines, retired int
}

var changes = []change{
	{
		name:     "smaller",
		ask:      func(*fixture) (string, string) { return "/pool/size", size(1) },
		machines: 1, retired: 2,
	},
	{
		name:     "replaced",
		ask:      func(f *fixture) (string, string) { return "/pool/terminate", termination(f.machine(0), false) },
		machines: 3, retired: 1,
	},
}

// TestI8KillAtAnyWriteReachesSameEnd kills slipway cloudpool with SIGKILL at each write to the API
// server or the pool's server. The kill comes after the server has carried out the write, and before the process receives
// the answer. Events between two writes leave the same state as the first write. These kill points therefore cover every
// moment. A first run without a kill records the requests.
func TestI8KillAtAnyWriteReachesSameEnd(t *testing.T) {
	t.Parallel()
	for i, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			seen := c.run(t, fmt.Sprintf("kill%d", i), faultproxy.RequestID{})
			writes := slices.DeleteFunc(seen, func(r faultproxy.Request) bool { return r.Method == http.MethodGet || isLeaseRenewal(r) })
			t.Logf("%d requests: %s", len(writes), faultproxy.FormatKinds(writes))
			if len(writes) == 0 {
				t.Fatal("no write was recorded")
			}
			var without atomic.Int32
			t.Cleanup(func() { // after all runs have ended
				t.Logf("%d of %d runs ended without their request", without.Load(), len(writes))
				if int(without.Load()) == len(writes) {
					t.Error("no process was killed")
				}
			})
			for n, r := range writes {
				t.Run(r.String(), func(t *testing.T) {
					t.Parallel()
					again := c.run(t, fmt.Sprintf("kill%dx%d", i, n), r.RequestID)
					if !slices.ContainsFunc(again, func(s faultproxy.Request) bool { return s.RequestID == r.RequestID }) {
						t.Log("the run ended without this request")
						without.Add(1)
					}
				})
			}
		})
	}
}

// isLeaseRenewal reports whether a request renews a Lease. Renewals depend on the clock, and continue after the update has
// ended.
func isLeaseRenewal(r faultproxy.Request) bool { return r.Kind == "api PUT leases" }

// run starts the change, kills the process at the given request if there is one, and checks the result. It returns the
// requests of all processes since the client's request.
func (c *change) run(t *testing.T, name string, at faultproxy.RequestID) []faultproxy.Request {
	t.Helper()
	f := newFixture(t, name, 3, options{})
	f.create(f.app("web", 2).Deployment())
	f.startManager()
	f.between = faultproxy.New(kindOf)
	t.Cleanup(func() { _ = f.between.Close() })
	launched := make(chan *controlplane.Process, 1)
	f.between.InterruptAt(at, faultproxy.After, func(r faultproxy.Request) {
		p := <-launched
		if err := p.Kill(); err != nil {
			t.Errorf("killing slipway cloudpool at %s: %v", r, err)
		}
		if err := p.Restart(context.WithoutCancel(f.ctx)); err != nil {
			t.Errorf("restarting slipway cloudpool after %s: %v", r, err)
		}
	})
	server, err := url.Parse(f.server.URL)
	f.check(err)
	server, err = f.between.Serve("server", server, nil)
	f.check(err)
	f.clouds = f.file(f.pools(server.String()))
	launched <- f.startCloudpool("a")
	before := len(f.between.Requests())
	path, body := c.ask(f)
	f.await("the client's request succeeds", func() bool {
		a, err := f.send(f.ctx, http.MethodPost, path, body)
		if err == nil && !slices.Contains([]int{http.StatusOK, http.StatusServiceUnavailable, http.StatusTooManyRequests}, a.code) {
			t.Fatalf("%s", a)
		}
		return err == nil && a.code == http.StatusOK
	})
	c.check(f)
	return f.between.Requests()[before:]
}

// check verifies the state after all work has ended.
func (c *change) check(f *fixture) {
	f.t.Helper()
	f.await("the pool has the expected machines", func() bool { return len(f.runningMachines()) == c.machines && f.countNodes() == c.machines })
	var serials []int
	for _, m := range f.pool.Machines() {
		serials = append(serials, m.Serial)
	}
	slices.Sort(serials)
	f.checkRemaining(serials...)
	if len(serials) != c.machines {
		f.t.Errorf("%d machines, want %d", len(serials), c.machines)
	}
	records := f.listRetirements()
	if len(records) != c.retired {
		f.t.Errorf("%d retirements, want %d", len(records), c.retired)
	}
	for _, rt := range records {
		if rt.Status.Phase != v1alpha1.Succeeded {
			f.t.Errorf("the retirement of %s: %s: %s", rt.Spec.NodeName, rt.Status.Phase, rt.Status.Message)
		}
	}
	for _, m := range f.machines() {
		if m.State != api.Running {
			f.t.Errorf("machine %s: %s", m.ID, m.State)
		}
	}
}
