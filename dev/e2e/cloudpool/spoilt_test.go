package cloudpool_test

import (
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
)

// TestI7AnAnswerToAChangeThatIsNoAnswerLosesNothing makes the server, or a proxy before it, answer changes with invalid
// responses. The client receives 502, and a retry succeeds.
func TestI7AnAnswerToAChangeThatIsNoAnswerLosesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]emulator.Fault{
		"page":     {Kind: emulator.HTML},
		"sorry":    {Kind: emulator.HTML, Status: http.StatusServiceUnavailable},
		"redirect": {Kind: emulator.Redirect, Location: "/login"},
		"half":     {Kind: emulator.Half},
		"reset":    {Kind: emulator.Reset},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "spoilt-"+name, 3, options{})
			f.create(f.app("web", 2).Deployment())
			f.manage()
			f.serve("a")
			fault.Method = http.MethodPost
			f.spoiltSize(fault)
			f.spoiltTermination(fault)
			f.spoiltScaleDown(fault)
		})
	}
}

// badGateway checks that the client receives the failed operation and its cause.
func (f *fixture) badGateway(a answer, message string) {
	f.t.Helper()
	if a.code != http.StatusBadGateway || a.message != message || a.detail == "" {
		f.t.Errorf("%s; want 502 %q, and why", a, message)
	}
}

const passing = "failed to forward request to backend: failed to complete backend cloudpool request"

// spoiltSize requests one more machine.
func (f *fixture) spoiltSize(fault emulator.Fault) {
	f.t.Helper()
	fault.Path = "/size"
	f.pool.InjectFaults(fault)
	f.badGateway(f.post("/pool/size", size(4)), passing)
	f.unchanged(3)
	f.pool.ClearFaults()
	f.want(f.post("/pool/size", size(4)), http.StatusOK)
	f.sized(4, 4, 4, 4)
	// If only the answer to a completed request is lost, the request is not carried out twice.
	f.pool.InjectFaults(emulator.Fault{Kind: emulator.LoseResponse, Method: http.MethodPost, Path: "/size", Times: 1})
	f.badGateway(f.post("/pool/size", size(5)), passing)
	f.want(f.post("/pool/size", size(5)), http.StatusOK)
	f.sized(5, 5, 5, 5)
}

// spoiltTermination terminates one machine by its ID. The node is already deleted when the server receives the request.
// Slipway repeats the request until the machine is gone, also without a waiting client.
func (f *fixture) spoiltTermination(fault emulator.Fault) {
	f.t.Helper()
	id := f.machine(0)
	fault.Path = "/terminate"
	f.pool.InjectFaults(fault)
	f.badGateway(f.post("/pool/terminate", termination(id, true)), "failed to terminate machine")
	f.badGateway(f.post("/pool/terminate", termination(id, true)), "failed to terminate machine") // Slipway still retries
	if m := f.listed(id); m == nil || m.State.HasLeftPool() || f.pool.DesiredSize() != 5 {
		f.t.Errorf("%+v, a desired size of %d; want it to be there, and 5", m, f.pool.DesiredSize())
	}
	f.pool.ClearFaults()
	f.await("the machine is gone", func() bool { m := f.listed(id); return m == nil || m.State.HasLeftPool() })
	f.want(f.post("/pool/terminate", termination(id, true)), http.StatusOK) // already done
	f.sized(4, 4, 4, 4)
	f.succeeded(1)
}

// spoiltScaleDown requests fewer machines.
func (f *fixture) spoiltScaleDown(fault emulator.Fault) {
	f.t.Helper()
	fault.Path = "/terminate"
	f.pool.InjectFaults(fault)
	f.badGateway(f.post("/pool/size", size(2)), "failed to set desired size")
	f.pool.ClearFaults()
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	f.sized(2, 2, 2, 2)
	f.succeeded(3)
}

// succeeded checks that n machines were retired, each once and completely.
func (f *fixture) succeeded(n int) {
	f.t.Helper()
	var records []v1alpha1.NodeRetirement
	f.await("the retirements are over", func() bool {
		records = f.records()
		for i := range records {
			if !records[i].Status.Phase.IsFinal() {
				return false
			}
		}
		return true
	})
	nodes := map[string]bool{}
	for i := range records {
		rt := &records[i]
		nodes[rt.Spec.NodeName] = true
		if rt.Status.Phase != v1alpha1.Succeeded {
			f.t.Errorf("the retirement of %s: %s: %s", rt.Spec.NodeName, rt.Status.Phase, rt.Status.Message)
		}
	}
	if len(records) != n || len(nodes) != n {
		f.t.Errorf("%d retirements of %d nodes, want %d", len(records), len(nodes), n)
	}
}
