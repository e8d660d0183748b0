package cloudpool_test

import (
	"net/http"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
)

// TestSlowServerReachesRequestedSize uses a server that answers from a cache and carries out
// calls late. The server's desired size is wrong, it launches machines meanwhile, and it shrinks by age. The server must
// not choose to remove a machine that has a node.
func TestSlowServerReachesRequestedSize(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "drift", 4, options{pool: emulator.Options{
		CacheAge: 700 * time.Millisecond, CallDelay: 100 * time.Millisecond, LaunchTime: 500 * time.Millisecond, TerminateTime: 300 * time.Millisecond,
		KeepTerminated: 300 * time.Millisecond, ResizeInterval: 400 * time.Millisecond, JoinTime: 500 * time.Millisecond, Policy: emulator.Oldest,
	}, settle: time.Minute}) // longer than the lag, also on a busy host
	f.create(f.app("web", 4).Deployment())
	f.startManager()
	f.startCloudpool("a")
	f.pool.SetDesiredSize(6) // createPool client changes the size: the server is launching two more when the request comes
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.awaitSettled(3)
	f.checkRemovedMachinesRetired()
	// The requested size is between the current size and the desired size. Nothing must be retired, and nothing is.
	before := len(f.listRetirements())
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.awaitSettled(3)
	if n := len(f.listRetirements()); n != before {
		t.Errorf("%d additional retirements", n-before)
	}
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	f.awaitSettled(2)
	f.checkRemovedMachinesRetired()
}

// awaitSettled waits until the server has no more work, and checks the size.
func (f *fixture) awaitSettled(n int) {
	f.t.Helper()
	if d := f.pool.DesiredSize(); d != n {
		f.t.Errorf("the desired size is %d, want %d", d, n)
	}
	f.await("the pool is settled", func() bool {
		running := 0
		for _, m := range f.pool.Machines() {
			if m.State != emulator.Running {
				return false
			}
			running++
		}
		return running == n && f.countNodes() >= n // a node may have registered while its machine was terminating
	})
	if d := f.pool.DesiredSize(); d != n {
		f.t.Errorf("later the desired size is %d, want %d", d, n)
	}
}

// checkRemovedMachinesRetired checks that a retirement removed each original machine that is gone. The server must not
// remove any on its own.
func (f *fixture) checkRemovedMachinesRetired() {
	f.t.Helper()
	retired := map[string]bool{}
	for _, rt := range f.listRetirements() {
		retired[rt.Spec.NodeName] = true
	}
	there := map[int]bool{}
	for _, m := range f.pool.Machines() {
		there[m.Serial] = true
	}
	for i := range 4 {
		if !there[i] && !retired[f.node(i)] {
			f.t.Errorf("machine %d was removed without a retirement", i)
		}
	}
}
