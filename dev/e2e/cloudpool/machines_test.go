package cloudpool_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

const notStarted = "attempt to invoke cloudpool before being started"

// forBoth runs a test twice with a pool of n machines: in front of a server, and over a NodeGroup.
func forBoth(t *testing.T, name string, n int, o options, do func(f *fixture)) {
	t.Helper()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, name+"-server", n, o)
		f.startManager()
		f.startCloudpool("a")
		do(f)
	})
	t.Run("NodeGroup", func(t *testing.T) {
		t.Parallel()
		f := newNative(t, name+"native", n)
		f.startManager()
		f.startCloudpool("a", "--native", f.name, "--native-refresh", "0s")
		do(f)
	})
}

// These are the required and the optional keys of each API document. An optional key may be absent, but is never null.
var (
	poolKeys    = []string{"machines", "timestamp"}
	sizeKeys    = []string{"active", "allocated", "desiredSize", "timestamp"}
	statusKeys  = []string{"configured", "started"}
	machineKeys = []string{
		"cloudProvider", "id", "machineSize", "machineState", "membershipStatus", "privateIps", "publicIps", "region", "serviceState",
	}
	optionalKeys = []string{"launchTime", "metadata", "requestTime"}
)

// checkDocuments checks the raw documents, because each client parses the bytes in its own way.
func (f *fixture) checkDocuments() {
	f.t.Helper()
	pool := f.document("/pool", poolKeys)
	f.document("/pool/size", sizeKeys)
	status := f.document("/status", statusKeys)
	if string(status["started"]) != "true" || string(status["configured"]) != "true" {
		f.t.Errorf("GET /status: %s", status)
	}
	var machines []map[string]json.RawMessage
	f.check(json.Unmarshal(pool["machines"], &machines))
	for _, m := range machines {
		f.checkKeys("a machine", m, machineKeys, optionalKeys)
		var membership map[string]bool
		if json.Unmarshal(m["membershipStatus"], &membership) != nil || !maps.Equal(membership, map[string]bool{"active": true, "evictable": true}) {
			f.t.Errorf("a membership of %s", m["membershipStatus"])
		}
		for _, key := range []string{"publicIps", "privateIps"} {
			var addresses []string
			if json.Unmarshal(m[key], &addresses) != nil || addresses == nil {
				f.t.Errorf("%s of %s, want a list", key, m[key])
			}
		}
	}
	if f.pool != nil {
		f.checkUnchangedDocuments()
	}
}

// document reads an object. It checks that the object has exactly these keys, and times in the API's format.
func (f *fixture) document(path string, keys []string) map[string]json.RawMessage {
	f.t.Helper()
	a := f.get(path)
	var object map[string]json.RawMessage
	f.check(json.Unmarshal([]byte(a.body), &object))
	f.checkKeys("GET "+path, object, keys, nil)
	if a.header.Get("Content-Type") != "application/json" || !strings.HasPrefix(a.body, "{\n  \"") {
		f.t.Errorf("GET %s: %v, %.40q; want indented JSON", path, a.header, a.body)
	}
	if f.pool == nil { // a server chooses its own time format
		times := regexp.MustCompile(`"(timestamp|requestTime|launchTime)": "[^"]*"`).FindAllString(a.body, -1)
		form := regexp.MustCompile(`: "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"$`)
		if slices.ContainsFunc(times, func(text string) bool { return !form.MatchString(text) }) {
			f.t.Errorf("GET %s: the times are %s", path, times)
		}
	}
	return object
}

func (f *fixture) checkKeys(what string, object map[string]json.RawMessage, keys, optional []string) {
	f.t.Helper()
	for key, value := range object {
		if string(value) == "null" || !slices.Contains(keys, key) && !slices.Contains(optional, key) {
			f.t.Errorf("%s has %q: %s", what, key, value)
		}
	}
	for _, key := range keys {
		if object[key] == nil {
			f.t.Errorf("%s has no %q", what, key)
		}
	}
}

// checkUnchangedDocuments checks that Slipway returns a server's documents unchanged, byte by byte.
func (f *fixture) checkUnchangedDocuments() {
	f.t.Helper()
	f.pool.InjectFaults(emulator.Fault{Kind: emulator.Stale}) // all answers show the same moment
	defer f.pool.ClearFaults()
	for _, path := range []string{"/pool", "/pool/size", "/status", "/config"} {
		its, err := send(f.ctx, http.DefaultClient, f.server.URL, http.MethodGet, path, "")
		f.check(err)
		if a := f.get(path); a.body != its.body || a.header.Get("Content-Type") != its.header.Get("Content-Type") {
			f.t.Errorf("GET %s: %s; the server says %s", path, a, its)
		}
	}
}

// checkPoolList reads the list of pools.
func (f *fixture) checkPoolList(names ...string) {
	f.t.Helper()
	a := f.get("/cloudpools")
	var urls, want []string
	for _, name := range names {
		want = append(want, f.address+"/cloudpools/"+name)
	}
	err := json.Unmarshal([]byte(a.body), &urls)
	if err != nil || a.code != http.StatusOK || !slices.Equal(urls, want) {
		f.t.Errorf("GET /cloudpools: %s, %v", a, err)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		a, err := f.send(f.ctx, method, "/cloudpools", `{"name":"x"}`)
		if err != nil || a.code != http.StatusMethodNotAllowed || a.header.Get("Allow") == "" {
			f.t.Errorf("%s /cloudpools: %s, %v; want 405", method, a, err)
		}
	}
	if a := f.get("/cloudpools/other/pool"); a.code != http.StatusNotFound {
		f.t.Errorf("GET of another pool: %s", a)
	}
}

// checkInvalidMachineInput sends invalid input that Slipway forwards to a server unchanged. The reference server reports an
// unknown state as its own error. It treats a missing machine ID as a machine of that name.
func (f *fixture) checkInvalidMachineInput() {
	f.t.Helper()
	id := f.machines()[0].ID
	const noState, unknown = "setServiceState message did not specify a serviceState", "setServiceState message: serviceState is not known"
	with := func(more string) string { return `{"machineId":"` + id + `"` + more + `}` }
	for _, tt := range []struct {
		path, body string
		code       int // with a server
		message    string
		self       string // expected 400 message without a server; empty when it is the same
	}{
		{"/pool/serviceState", with(`,"serviceState":"SLEEPING"`), 500, "internal error", unknown},
		{"/pool/serviceState", with(`,"serviceState":"in_service"`), 500, "internal error", unknown},
		{"/pool/serviceState", with(``), 500, "internal error", noState},
		{"/pool/serviceState", with(`,"serviceState":null`), 500, "internal error", noState},
		{"/pool/serviceState", `{"serviceState":"IN_SERVICE"}`, 404, "machine null", "setServiceState message did not specify a machineId"},
		{"/pool/serviceState", `{`, 400, "illegal input", "failed to decode setServiceState message"},
		{"/pool/attach", `{}`, 404, "unrecognized machine", "attachMachine message did not specify a machineId"},
		{"/pool/attach", `[`, 400, "illegal input", "failed to decode attachMachine message"},
		{"/pool/detach", `{}`, 400, "detachMachine message did not specify a machineId", ""},
		{"/pool/detach", with(`,"decrementDesiredSize":"yes"`), 400, "failed to decode detachMachine message", ""},
		{"/pool/terminate", with(`,"decrementDesiredSize":1`), 400, "failed to decode terminateMachine message", ""},
		{"/pool/membershipStatus", `{"membershipStatus":{"active":false}}`, 400, "setMembershipStatus message did not specify a machineId", ""},
		{"/pool/membershipStatus", with(`,"membershipStatus":null`), 400, "setMembershipStatus message did not specify a membershipStatus", ""},
		{"/pool/membershipStatus", with(`,"membershipStatus":{"active":"no"}`), 400, "failed to decode setMembershipStatus message", ""},
		{"/pool/membershipStatus", with(`,"membershipStatus":[]`), 400, "failed to decode setMembershipStatus message", ""},
	} {
		if f.pool == nil && tt.self != "" {
			tt.code, tt.message = http.StatusBadRequest, tt.self
		}
		if a := f.post(tt.path, tt.body); a.code != tt.code || !strings.Contains(a.message, tt.message) {
			f.t.Errorf("POST %s %s: %s; want %d %q", tt.path, tt.body, a, tt.code, tt.message)
		}
	}
}

// checkOtherPoolIsRefused sends requests about a machine of another pool. Its Node is in the same cluster.
func (f *fixture) checkOtherPoolIsRefused() {
	f.t.Helper()
	id := f.createOtherPoolMachine()
	before := len(f.listRetirements())
	for path, body := range map[string]string{
		"/terminate": termination(id, true), "/detach": termination(id, false), "/membershipStatus": membership(id, false, true),
		"/serviceState": `{"machineId":"` + id + `","serviceState":"OUT_OF_SERVICE"}`,
	} {
		for _, at := range []string{"/pool", "/cloudpools/" + f.name} {
			if a := f.post(at+path, body); a.code != http.StatusNotFound || a.message == "" {
				f.t.Errorf("POST %s%s of another pool's machine: %s; want 404", at, path, a)
			}
		}
	}
	if n := len(f.listRetirements()); n != before {
		f.t.Errorf("%d retirements, want %d", n, before)
	}
	f.checkSize(4)
}

// createOtherPoolMachine creates another pool of one machine in the same cluster.
func (f *fixture) createOtherPoolMachine() string {
	f.t.Helper()
	name := f.name + "other"
	if f.pool != nil {
		return f.createPool(emulator.Options{Name: name}).Machines()[0].ID
	}
	pool := controlplane.AKSPool{Name: name}
	f.check(f.AddPool(f.ctx, pool, 1))
	own := f.machines()[0].ID
	return strings.Replace(own[:strings.LastIndex(own, "/")+1], f.cloud.Group, pool.ScaleSetName(), 1) + "0"
}

// createPool creates another pool of one machine on a server.
func (f *fixture) createPool(o emulator.Options) *emulator.Pool {
	f.t.Helper()
	o.Nodes = emulator.ClusterNodes{Cluster: f.Cluster, Pool: o.Name}
	pool := emulator.New(o)
	f.t.Cleanup(pool.Close)
	_, err := pool.AddMachines(f.ctx, 1)
	f.check(err)
	return pool
}

// findMachine returns a machine from GET /pool in any state. It returns nil if there is none.
func (f *fixture) findMachine(id string) *api.Machine {
	f.t.Helper()
	var pool api.Pool
	f.check(json.Unmarshal([]byte(f.get("/pool").body), &pool))
	if i := slices.IndexFunc(pool.Machines, func(m api.Machine) bool { return m.ID == id }); i >= 0 {
		return &pool.Machines[i]
	}
	return nil
}

// TestMembershipsReplacementsAndStop checks memberships, replacements and a stopped pool.
func TestMembershipsReplacementsAndStop(t *testing.T) {
	t.Parallel()
	// The size is raised for a machine that counts again. The pool must not launch another machine before that.
	slow := options{pool: emulator.Options{CallDelay: 2 * time.Second}, settle: time.Minute}
	forBoth(t, "one", 3, slow, func(f *fixture) {
		f.create(f.app("web", 2).Deployment())
		f.checkMembershipStates()
		f.checkReplacements()
		f.checkStopped()
		if f.pool != nil {
			f.checkUnconfigured()
		}
	})
}

// awaitSize waits for the given sizes of a pool, and the given number of nodes. Some machines may not count. A server may
// have launched one more machine, which registered while it terminated. The node of that machine stays.
func (f *fixture) awaitSize(desired, active, allocated, nodes int) {
	f.t.Helper()
	want := api.Size{Desired: desired, Active: active, Allocated: allocated}
	f.await(fmt.Sprintf("%d machines serve on %d nodes, %d desired, %d allocated", active, nodes, desired, allocated), func() bool {
		is := f.size()
		is.Timestamp = want.Timestamp
		n := f.countNodes()
		return is == want && len(f.runningMachines()) == active && (n == nodes || f.pool != nil && n > nodes)
	})
}

// checkMembershipStates sets every combination of membership states on one machine.
func (f *fixture) checkMembershipStates() {
	f.t.Helper()
	id := f.machines()[0].ID
	is := func(active, evictable bool) {
		f.t.Helper()
		if m := f.findMachine(id); m == nil || m.Membership == nil || *m.Membership != (api.MembershipStatus{Active: active, Evictable: evictable}) {
			f.t.Errorf("%+v; want active %t, evictable %t", m, active, evictable)
		}
	}
	say := func(status string) {
		f.t.Helper()
		f.want(f.post("/pool/membershipStatus", `{"machineId":"`+id+`","membershipStatus":`+status+`}`), http.StatusOK)
	}
	say(`{"evictable":false}`) // protectedCode: a missing field means true
	is(true, false)
	f.awaitSize(3, 3, 3, 3)
	say(`{"active":false,"evictable":false}`) // awaiting service: replaced, and kept
	is(false, false)
	f.awaitSize(3, 3, 4, 4)
	say(`{"active":false,"evictable":false}`) // checkSize, and replaced once
	f.awaitSize(3, 3, 4, 4)
	f.want(f.post("/pool/terminate", termination(id, true)), http.StatusConflict, "not evictable")
	f.want(f.post("/pool/detach", termination(id, true)), f.protectedCode(), "evict")
	f.want(f.post("/pool/size", size(3)), http.StatusOK) // does not count it
	f.awaitSize(3, 3, 4, 4)
	say(`{"active":true,"evictable":false}`) // counts again, and the size is not raised for it
	is(true, false)
	again := 4
	if f.pool != nil {
		again = 3 // the pool's server removes one of the others
	}
	f.awaitSize(again, again, again, again)
	say(`{}`)
	is(true, true)
	f.awaitSize(again, again, again, again)
	say(`{"active":true,"evictable":false}`)
	f.want(f.post("/pool/size", size(3)), http.StatusOK) // other machines are removed
	is(true, false)
	f.awaitSize(3, 3, 3, 3)
	say(`{"active":false,"evictable":true}`) // disposable, although it was not evictable
	f.awaitSize(3, 3, 3, 3)
	if m := f.findMachine(id); m != nil && !m.State.HasLeftPool() {
		f.t.Errorf("the disposable machine still exists: %+v", m)
	}
}

// checkReplacements terminates machines that must be replaced. decrementDesiredSize is false, or missing.
func (f *fixture) checkReplacements() {
	f.t.Helper()
	nodes := 3
	for _, decrement := range []string{``, `,"decrementDesiredSize":false`, `,"decrementDesiredSize":null`} {
		id := f.machines()[0].ID
		f.want(f.post("/pool/terminate", `{"machineId":"`+id+`"`+decrement+`}`), http.StatusOK)
		f.awaitSize(3, 3, 3, nodes)
		if m := f.findMachine(id); m != nil && !m.State.HasLeftPool() {
			f.t.Errorf("terminated with %q, but still exists: %+v", decrement, m)
		}
		if strings.Contains(decrement, "null") {
			continue
		}
		id = f.machines()[0].ID
		f.want(f.post("/pool/detach", `{"machineId":"`+id+`"`+decrement+`}`), http.StatusOK)
		nodes++ // the node keeps running
		f.awaitSize(3, 3, 3, nodes)
		if m := f.findMachine(id); m != nil {
			f.t.Errorf("detached with %q, but still a member: %+v", decrement, m)
		}
	}
}

// checkStopped sends every request that a stopped pool refuses.
func (f *fixture) checkStopped() {
	f.t.Helper()
	id := f.machines()[0].ID
	f.want(f.post("/stop", ""), http.StatusOK)
	for _, tt := range []struct {
		method, path, body string
		// judged requests first read the pool, and report that its server does not answer.
		judged bool
	}{
		{"GET", "/pool", "", false},
		{"GET", "/pool/size", "", false},
		{"POST", "/pool/size", size(2), true},
		{"POST", "/pool/size", size(4), true},
		{"POST", "/pool/terminate", termination(id, true), true},
		{"POST", "/pool/detach", termination(id, true), false},
		{"POST", "/pool/attach", `{"machineId":"` + id + `"}`, false},
		{"POST", "/pool/serviceState", `{"machineId":"` + id + `","serviceState":"IN_SERVICE"}`, false},
		{"POST", "/pool/membershipStatus", membership(id, false, false), false},
		{"POST", "/pool/membershipStatus", membership(id, true, false), false},
		{"POST", "/pool/membershipStatus", membership(id, false, true), true},
	} {
		a, err := f.ask(f.address, tt.method, tt.path, tt.body)
		f.check(err)
		if tt.judged && f.pool != nil {
			f.want(a, http.StatusBadGateway, notStarted)
		} else if a.code != http.StatusInternalServerError || a.message != notStarted || a.detail != "" {
			f.t.Errorf("%s %s %s: %s; want 500 %q", tt.method, tt.path, tt.body, a, notStarted)
		}
	}
	status := f.document("/status", statusKeys)
	if string(status["started"]) != "false" || string(status["configured"]) != "true" {
		f.t.Errorf("GET /status: %s", status)
	}
	if a := f.get("/config"); a.code != http.StatusOK {
		f.t.Errorf("GET /config: %s", a)
	}
	f.want(f.post("/start", ""), http.StatusOK)
	f.want(f.post("/start", ""), http.StatusOK)
	f.checkSize(3)
}

// checkUnconfigured queries a server without a configuration. A NodeGroup always has a configuration.
func (f *fixture) checkUnconfigured() {
	f.t.Helper()
	f.pool.Unconfigure()
	f.want(f.get("/config"), http.StatusNotFound, "no cloud pool configuration has been set")
	f.want(f.post("/start", ""), http.StatusBadRequest, "before being configured")
	status := f.document("/status", statusKeys)
	if string(status["started"]) != "false" || string(status["configured"]) != "false" {
		f.t.Errorf("GET /status: %s", status)
	}
	f.want(f.post("/config", `{"name":"again"}`), http.StatusOK)
	f.want(f.post("/start", ""), http.StatusOK)
	if a := f.get("/config"); a.code != http.StatusOK || a.body != `{"name":"again"}` {
		f.t.Errorf("GET /config: %s", a)
	}
	f.checkSize(3)
}
