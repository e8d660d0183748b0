package cloudpool_test

import (
	"net/http"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
)

// TestTheDesiredSizeIsTheRequestedOneWhateverTheServerIsUpTo has a server that answers from a cache, whose calls take a
// while to have any effect, whose desired size is off, which launches machines meanwhile and shrinks by age. No machine may
// go by its choice that has a node.
func TestTheDesiredSizeIsTheRequestedOneWhateverTheServerIsUpTo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "drift", 4, options{pool: emulator.Options{
		Refresh: 700 * time.Millisecond, Lag: 100 * time.Millisecond, Launch: 500 * time.Millisecond, Terminate: 300 * time.Millisecond,
		Linger: 300 * time.Millisecond, Resize: 400 * time.Millisecond, Register: 500 * time.Millisecond, Policy: emulator.Oldest,
	}, settle: time.Minute}) // more than the lag, also on a busy machine
	f.create(f.app("web", 4).Deployment())
	f.manage()
	f.serve("a")
	f.pool.SetDesired(6) // behind everybody's back: two more are being launched when the request comes
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.awaitSettled(3)
	f.retiredAllThatWentWithANode()
	// Between what there is and what is meant to be: nothing has to go, and nothing does.
	before := len(f.records())
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.awaitSettled(3)
	if n := len(f.records()); n != before {
		t.Errorf("%d retirements more", n-before)
	}
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	f.awaitSettled(2)
	f.retiredAllThatWentWithANode()
}

// awaitSettled waits until the server has nothing to do any more, and checks that it is as large as it is meant to be.
func (f *fixture) awaitSettled(n int) {
	f.t.Helper()
	if d := f.pool.Desired(); d != n {
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
		return running == n && f.nodes() >= n // one may have registered while its machine was going
	})
	if d := f.pool.Desired(); d != n {
		f.t.Errorf("later the desired size is %d, want %d", d, n)
	}
}

// retiredAllThatWentWithANode checks that each machine that was there from the beginning and is not any more has gone by a
// retirement: the server has taken none by itself.
func (f *fixture) retiredAllThatWentWithANode() {
	f.t.Helper()
	retired := map[string]bool{}
	for _, rt := range f.records() {
		retired[rt.Spec.NodeName] = true
	}
	there := map[int]bool{}
	for _, m := range f.pool.Machines() {
		there[m.Serial] = true
	}
	for i := range 4 {
		if !there[i] && !retired[f.node(i)] {
			f.t.Errorf("machine %d went without a retirement", i)
		}
	}
}
