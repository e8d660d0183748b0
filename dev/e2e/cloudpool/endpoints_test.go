package cloudpool_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// machines returns the machines of GET /pool that have not terminated.
func (f *fixture) machines() []api.Machine {
	f.t.Helper()
	var pool api.Pool
	a := f.get("/pool")
	f.check(json.Unmarshal([]byte(a.body), &pool))
	return slices.DeleteFunc(pool.Machines, func(m api.Machine) bool { return m.State.HasLeftPool() })
}

func (f *fixture) size() api.Size {
	f.t.Helper()
	var s api.Size
	f.check(json.Unmarshal([]byte(f.get("/pool/size").body), &s))
	return s
}

func (f *fixture) checkSize(n int) {
	f.t.Helper()
	if s := f.size(); len(f.machines()) != n || s.Desired != n || s.Active != n || s.Allocated != n {
		f.t.Errorf("%d machines, %+v; want %d of all", len(f.machines()), s, n)
	}
}

// TestEndpointsBehaveEquallyForServerAndNodeGroup sends the same requests to both kinds of pool.
func TestEndpointsBehaveEquallyForServerAndNodeGroup(t *testing.T) {
	t.Parallel()
	forBoth(t, "matrix", 4, options{}, checkEndpoints)
}

func checkEndpoints(f *fixture) {
	f.create(f.app("web", 3).Deployment())
	f.checkReads()
	f.checkDocuments()
	f.checkPoolList(f.name)
	f.checkInvalidInput()
	f.checkInvalidMachineInput()
	f.checkOtherPoolIsRefused()
	f.checkSize(4)
	f.checkMemberships()
	f.checkSize(4)
	f.checkChanges()
}

// checkReads sends requests that change nothing.
func (f *fixture) checkReads() {
	f.t.Helper()
	for _, m := range f.machines() {
		if m.State != api.Running || m.Membership == nil || !m.IsActive() || !m.IsEvictable() || m.ServiceState != api.UnknownState || m.Size == "" ||
			m.Provider == "" || m.ID == "" || len(m.PrivateIPs) == 0 {
			f.t.Errorf("machine %+v", m)
		}
	}
	f.checkSize(4)
	if a := f.get("/status"); a.code != http.StatusOK || !strings.Contains(a.body, `"started": true`) {
		f.t.Errorf("GET /status: %s", a)
	}
	config := f.get("/config")
	if config.code != http.StatusOK || !json.Valid([]byte(config.body)) {
		f.t.Errorf("GET /config: %s", config)
	}
	f.want(f.post("/config", config.body), http.StatusOK) // sets the current configuration
	for _, path := range []string{"/pool", "/pool/size", "/status", "/config"} {
		if a := f.get("/cloudpools/" + f.name + path); a.code != http.StatusOK {
			f.t.Errorf("GET %s among several pools: %s", path, a)
		}
	}
	if a := f.get("/nothing/here"); a.code != http.StatusNotFound {
		f.t.Errorf("GET of an unknown path: %s", a)
	}
}

// checkInvalidInput sends bodies that cannot be decoded. None may change anything, and above all none may count as size 0.
func (f *fixture) checkInvalidInput() {
	f.t.Helper()
	const sized, terminated = "failed to decode setDesiredSize message", "failed to decode terminateMachine message"
	const noSize, noMachine = "setDesiredSize message did not specify a desiredSize", "terminateMachine message did not specify a machineId"
	for _, tt := range []struct {
		path, body string
		code       int
		message    string
	}{
		{"/pool/size", ``, 400, sized},
		{"/pool/size", `{}`, 400, noSize},
		{"/pool/size", `null`, 400, noSize},
		{"/pool/size", `{"desiredSize":null}`, 400, noSize},
		{"/pool/size", `{"desired_size":3}`, 400, noSize},
		{"/pool/size", `{"desiredSize":"3"}`, 400, sized},
		{"/pool/size", `{"desiredSize":2.0}`, 400, sized},
		{"/pool/size", `{"desiredSize":2.5}`, 400, sized},
		{"/pool/size", `{"desiredSize":99999999999999999999}`, 400, sized},
		{"/pool/size", `{"desiredSize":2147483648}`, 400, "setDesiredSize message: desiredSize must be at most 2147483647"},
		{"/pool/size", `{"desiredSize":-1}`, 400, "setDesiredSize message: desiredSize must be non-negative"},
		{"/pool/size", `[1]`, 400, sized},
		{"/pool/size", `{"desiredSize":3}{}`, 400, sized},
		{"/pool/size", `{desiredSize:3}`, 400, sized},
		{"/pool/size", `{"desiredSize":3,"x":"` + strings.Repeat("y", 10<<20) + `"}`, 413, ""},
		{"/pool/terminate", `{}`, 400, noMachine},
		{"/pool/terminate", `{"machineId":""}`, 400, noMachine},
		{"/pool/terminate", `{"machineId":7}`, 400, terminated},
		{"/pool/terminate", `x`, 400, terminated},
		{"/pool/terminate", termination("no-such-machine", true), 404, "failed to terminate machine"},
		{"/pool/membershipStatus", `{"machineId":"m"}`, 400, "setMembershipStatus message did not specify a membershipStatus"},
		{"/pool/membershipStatus", `{"machineId":"no-such-machine","membershipStatus":{"active":false}}`, 404, ""},
		{"/pool/membershipStatus", `{"machineId":"no-such-machine","membershipStatus":{"active":true}}`, 404, ""},
		{"/pool/detach", `{"machineId":"no-such-machine"}`, 404, ""},
		{"/pool/attach", `{"machineId":"no-such-machine"}`, 404, ""},
		{"/pool/serviceState", `{"machineId":"no-such-machine","serviceState":"IN_SERVICE"}`, 404, ""},
		{"/config", `{"name":`, 400, ""},
		{"/config", `{"x":"` + strings.Repeat("y", 10<<20) + `"}`, 413, ""},
	} {
		a, err := f.ask(f.address, http.MethodPost, tt.path, tt.body)
		if tt.code == http.StatusRequestEntityTooLarge && err != nil {
			continue // the server closed the connection while the client was sending the body
		}
		f.check(err)
		if a.code != tt.code || tt.message != "" && a.message != tt.message {
			f.t.Errorf("POST %s %.60s: %s; want %d %q", tt.path, tt.body, a, tt.code, tt.message)
		}
		if a.header.Get("Content-Type") != "application/json" || !strings.HasPrefix(a.body, "{\n  \"message\": ") || strings.HasSuffix(a.body, "\n") {
			f.t.Errorf("POST %s %.60s: not an error document: %v, %q", tt.path, tt.body, a.header, a.body)
		}
	}
	f.want(f.post("/pool/size", `{"DESIREDSIZE": 4, "other": []}`, "Content-Type: text/plain"), http.StatusOK)
	f.want(f.post("/pool/size?x=y", size(4), "Content-Type: application/x-www-form-urlencoded"), http.StatusOK)
}

// checkMemberships changes the stored state of machines.
func (f *fixture) checkMemberships() {
	f.t.Helper()
	id := f.machines()[0].ID
	status := func(active, evictable bool) string { return membership(id, active, evictable) }
	f.want(f.post("/pool/membershipStatus", status(true, false)), http.StatusOK)
	f.want(f.post("/pool/terminate", termination(id, true)), http.StatusConflict, "failed to terminate machine", "not evictable")
	f.want(f.post("/pool/detach", termination(id, true)), f.protectedCode(), "evict")
	f.want(f.post("/pool/membershipStatus", status(true, true)), http.StatusOK)
	f.want(f.post("/pool/serviceState", `{"machineId":"`+id+`","serviceState":"IN_SERVICE"}`), http.StatusOK)
	for _, m := range f.machines() {
		if m.ID == id && (m.ServiceState != api.InService || !m.IsEvictable()) {
			f.t.Errorf("%+v", m)
		}
	}
}

// protectedCode returns the code for a machine that must not be detached. The reference server has no code of its own for it.
func (f *fixture) protectedCode() int {
	if f.pool != nil {
		return http.StatusBadGateway
	}
	return http.StatusConflict
}

// checkChanges adds and removes machines.
func (f *fixture) checkChanges() {
	f.t.Helper()
	all := f.machines()
	// Terminating a machine also reduces the desired size.
	f.want(f.post("/pool/terminate", termination(all[0].ID, true)), http.StatusOK)
	f.checkSize(3)
	f.want(f.post("/pool/terminate", termination(all[0].ID, true)), http.StatusOK) // repeated: the machine is already terminated
	f.checkSize(3)
	// A disposable machine is replaced.
	disposed := f.machines()[0].ID
	f.want(f.post("/pool/membershipStatus", `{"machineId":"`+disposed+`","membershipStatus":{"active":false}}`), http.StatusOK)
	f.await("a replacement runs", func() bool { return len(f.runningMachines()) == 3 && f.size().Desired == 3 })
	if slices.ContainsFunc(f.machines(), func(m api.Machine) bool { return m.ID == disposed }) {
		f.t.Error("the disposable machine still exists")
	}
	// The pool grows and shrinks, and the client does not wait.
	f.want(f.post("/pool/size", size(4)), http.StatusOK)
	f.await("the pool has grown", func() bool { return len(f.runningMachines()) == 4 && f.countNodes() == 4 })
	f.await("the plan removes two machines", func() bool { // the cloudpool process sees new nodes through its own watch
		var plan matching.Decision
		f.check(json.Unmarshal([]byte(f.get("/slipway/v1/pools/"+f.name+"/plan?desiredSize=2").body), &plan))
		return plan.Excess() == 2 && len(plan.Victims) == 2
	})
	a := f.post("/pool/size", size(2), "Prefer: respond-async, wait=1")
	f.want(a, http.StatusAccepted)
	if a.header.Get("Preference-Applied") != "respond-async" {
		f.t.Errorf("%v", a.header)
	}
	if up := f.awaitUpdate(a.header.Get("Location")); up.Outcome.Result != controller.Done || up.Outcome.Removed != 2 {
		f.t.Errorf("%+v", up.Outcome)
	}
	f.checkSize(2)
	// A machine is detached and continues to run. It is attached, and detached again.
	left := f.machines()[0].ID
	f.want(f.post("/pool/detach", termination(left, true)), http.StatusOK)
	f.checkSize(1)
	f.want(f.post("/pool/attach", `{"machineId":"`+left+`"}`), http.StatusOK)
	f.checkSize(2)
	f.want(f.post("/pool/detach", termination(left, true)), http.StatusOK)
	f.checkSize(1)
	if n := f.countNodes(); n != 2 {
		f.t.Errorf("%d nodes, want 2", n)
	}
	f.want(f.post("/stop", ""), http.StatusOK)
	f.want(f.post("/stop", ""), http.StatusOK)
	if a := f.post("/pool/size", size(1)); a.code < 500 {
		f.t.Errorf("a stopped pool: %s", a)
	}
	f.want(f.get("/pool"), http.StatusInternalServerError, "attempt to invoke cloudpool before being started")
	f.want(f.post("/start", ""), http.StatusOK)
	f.checkSize(1)
}

func (f *fixture) runningMachines() []api.Machine {
	return slices.DeleteFunc(f.machines(), func(m api.Machine) bool { return m.State != api.Running || !m.IsActive() })
}

// countNodes counts the pool's nodes.
func (f *fixture) countNodes() int {
	f.t.Helper()
	list, err := f.Client().CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: f.selector})})
	f.check(err)
	return len(list.Items)
}
