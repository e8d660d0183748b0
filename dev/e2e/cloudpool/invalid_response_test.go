package cloudpool_test

import (
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
)

// TestI7InvalidResponseToChangeIsRetried makes the server, or a proxy before it, answer changes with invalid
// responses. The client receives 502, and a retry succeeds.
func TestI7InvalidResponseToChangeIsRetried(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]emulator.Fault{
		"page": {Kind: emulator.HTML}, "half": {Kind: emulator.Half},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "invalid-"+name, 3, options{})
			f.create(f.app("web", 2).Deployment())
			f.startManager()
			f.startCloudpool("a")
			fault.Method = http.MethodPost
			f.checkInvalidSizeResponse(fault)
			f.checkInvalidTerminationResponse(fault)
			f.checkInvalidScaleDownResponse(fault)
		})
	}
}

// wantBadGateway checks that the client receives the failed operation and its cause.
func (f *fixture) wantBadGateway(a answer, message string) {
	f.t.Helper()
	if a.code != http.StatusBadGateway || a.message != message || a.detail == "" {
		f.t.Errorf("%s; want 502 %q, and a reason", a, message)
	}
}

const forwardError = "failed to forward request to backend: failed to complete backend cloudpool request"

// checkInvalidSizeResponse requests one more machine.
func (f *fixture) checkInvalidSizeResponse(fault emulator.Fault) {
	f.t.Helper()
	fault.Path = "/size"
	f.pool.InjectFaults(fault)
	f.wantBadGateway(f.post("/pool/size", size(4)), forwardError)
	f.checkSize(3)
	f.pool.ClearFaults()
	f.want(f.post("/pool/size", size(4)), http.StatusOK)
	f.awaitSize(4, 4, 4, 4)
	// If only the answer to a completed request is lost, the request is not carried out twice.
	f.pool.InjectFaults(emulator.Fault{Kind: emulator.LoseResponse, Method: http.MethodPost, Path: "/size", Times: 1})
	f.wantBadGateway(f.post("/pool/size", size(5)), forwardError)
	f.want(f.post("/pool/size", size(5)), http.StatusOK)
	f.awaitSize(5, 5, 5, 5)
}

// checkInvalidTerminationResponse terminates one machine by its ID. The node is already deleted when the server receives the
// request. Slipway repeats the request until the machine is gone, also without a waiting client.
func (f *fixture) checkInvalidTerminationResponse(fault emulator.Fault) {
	f.t.Helper()
	id := f.machine(0)
	fault.Path = "/terminate"
	f.pool.InjectFaults(fault)
	f.wantBadGateway(f.post("/pool/terminate", termination(id, true)), "failed to terminate machine")
	f.wantBadGateway(f.post("/pool/terminate", termination(id, true)), "failed to terminate machine") // Slipway still retries
	if m := f.findMachine(id); m == nil || m.State.HasLeftPool() || f.pool.DesiredSize() != 5 {
		f.t.Errorf("%+v, a desired size of %d; want it to exist, and 5", m, f.pool.DesiredSize())
	}
	f.pool.ClearFaults()
	f.await("the machine is deleted", func() bool { m := f.findMachine(id); return m == nil || m.State.HasLeftPool() })
	f.want(f.post("/pool/terminate", termination(id, true)), http.StatusOK) // already done
	f.awaitSize(4, 4, 4, 4)
	f.checkRetirements(1)
}

// checkInvalidScaleDownResponse requests fewer machines.
func (f *fixture) checkInvalidScaleDownResponse(fault emulator.Fault) {
	f.t.Helper()
	fault.Path = "/terminate"
	f.pool.InjectFaults(fault)
	f.wantBadGateway(f.post("/pool/size", size(2)), "failed to set desired size")
	f.pool.ClearFaults()
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	f.awaitSize(2, 2, 2, 2)
	f.checkRetirements(3)
}

// checkRetirements checks that n machines were retired, each once and completely.
func (f *fixture) checkRetirements(n int) {
	f.t.Helper()
	var records []v1alpha1.NodeRetirement
	f.await("the retirements have ended", func() bool {
		records = f.listRetirements()
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
