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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// These are more rows of the matrix: the format of answers, methods and paths, and requests about one machine.

const notStarted = "attempt to invoke cloudpool before being started"

// inBoth runs a test twice with a pool of n machines: in front of a server, and over a NodeGroup.
func inBoth(t *testing.T, name string, n int, o options, do func(f *fixture)) {
	t.Helper()
	t.Run("in front of a server", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, name+"-proxied", n, o)
		f.manage()
		f.serve("a")
		do(f)
	})
	t.Run("over a NodeGroup", func(t *testing.T) {
		t.Parallel()
		f := newNative(t, name+"native", n)
		f.manage()
		f.serve("a", "--native", f.name, "--native-refresh", "0s")
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

// forms checks the raw documents, because each client parses the bytes in its own way.
func (f *fixture) forms() {
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
		f.hasKeys("a machine", m, machineKeys, optionalKeys)
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
		f.unspoilt()
	}
}

// document reads an object. It checks that the object has exactly these keys, and times in the API's format.
func (f *fixture) document(path string, keys []string) map[string]json.RawMessage {
	f.t.Helper()
	a := f.get(path)
	var object map[string]json.RawMessage
	f.check(json.Unmarshal([]byte(a.body), &object))
	f.hasKeys("GET "+path, object, keys, nil)
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

func (f *fixture) hasKeys(what string, object map[string]json.RawMessage, keys, optional []string) {
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

// unspoilt checks that Slipway returns a server's documents unchanged, byte by byte.
func (f *fixture) unspoilt() {
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

// methods sends every method to every path.
func (f *fixture) methods() {
	f.t.Helper()
	paths := map[string][]string{"/pool": {"GET"}, "/status": {"GET"}, "/pool/size": {"GET", "POST"}, "/config": {"GET", "POST"}}
	for _, path := range []string{"/start", "/stop", "/pool/terminate", "/pool/detach", "/pool/attach", "/pool/serviceState", "/pool/membershipStatus"} {
		paths[path] = []string{"POST"}
	}
	for path, methods := range paths {
		options, err := f.send(f.ctx, http.MethodOptions, path, "")
		f.check(err)
		allow := strings.Split(options.header.Get("Allow"), ", ")
		head, err := f.send(f.ctx, http.MethodHead, path, "")
		f.check(err)
		for _, method := range []string{"GET", "POST"} {
			there := slices.Contains(methods, method)
			if slices.Contains(allow, method) != there {
				f.t.Errorf("OPTIONS %s: %d, %v; want %v allowed", path, options.code, allow, methods)
			}
			if there {
				continue
			}
			if a, err := f.send(f.ctx, method, path, ""); err != nil || a.code != http.StatusMethodNotAllowed || a.header.Get("Allow") == "" {
				f.t.Errorf("%s %s: %s, %v; want 405", method, path, a, err)
			}
		}
		code := http.StatusOK
		if !slices.Contains(methods, "GET") {
			code = http.StatusMethodNotAllowed
		}
		if head.code != code || head.body != "" || code == http.StatusOK && head.header.Get("Content-Type") != "application/json" {
			f.t.Errorf("HEAD %s: %s, %v; want %d without a body", path, head, head.header, code)
		}
	}
	f.list(f.name)
	f.unchanged(4)
}

// list reads the list of pools.
func (f *fixture) list(names ...string) {
	f.t.Helper()
	a := f.get("/cloudpools")
	var urls, want []string
	for _, name := range names {
		want = append(want, f.front+"/cloudpools/"+name)
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

// badMachineInput sends invalid input that Slipway forwards to a server unchanged. The reference server reports an
// unknown state as its own error. It treats a missing machine ID as a machine of that name.
func (f *fixture) badMachineInput() {
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

// shortPaths sends requests about one machine to the paths of a server of several pools, which have no /pool prefix.
func (f *fixture) shortPaths() {
	f.t.Helper()
	const nobody = "no-such-machine"
	status := membership(nobody, false, false)
	for _, at := range []string{"", "/pool", "/cloudpools/" + f.name, "/cloudpools/" + f.name + "/pool"} {
		for path, body := range map[string]string{
			"/terminate": termination(nobody, true), "/detach": termination(nobody, true), "/attach": `{"machineId":"` + nobody + `"}`,
			"/serviceState": `{"machineId":"` + nobody + `","serviceState":"IN_SERVICE"}`, "/membershipStatus": status,
		} {
			if a := f.post(at+path, body); a.code != http.StatusNotFound || a.message == "" {
				f.t.Errorf("POST %s%s: %s; want 404", at, path, a)
			}
		}
		id := f.machines()[1].ID
		for _, state := range []api.ServiceState{api.OutOfService, api.UnknownState} {
			f.want(f.post(at+"/serviceState", `{"machineId":"`+id+`","serviceState":"`+string(state)+`"}`), http.StatusOK)
			if m := f.listed(id); m == nil || m.ServiceState != state {
				f.t.Errorf("POST %s/serviceState: %+v, want %s", at, m, state)
			}
		}
	}
}

// othersMachines sends requests about a machine of another pool. Its Node is in the same cluster.
func (f *fixture) othersMachines() {
	f.t.Helper()
	id := f.othersMachine()
	before := len(f.records())
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
	if n := len(f.records()); n != before {
		f.t.Errorf("%d retirements, want %d", n, before)
	}
	f.unchanged(4)
}

// othersMachine creates another pool of one machine in the same cluster.
func (f *fixture) othersMachine() string {
	f.t.Helper()
	name := f.name + "other"
	if f.pool != nil {
		return f.another(emulator.Options{Name: name}).Machines()[0].ID
	}
	pool := controlplane.AKSPool{Name: name}
	f.check(f.AddPool(f.ctx, pool, 1))
	own := f.machines()[0].ID
	return strings.Replace(own[:strings.LastIndex(own, "/")+1], f.cloud.Group, pool.ScaleSetName(), 1) + "0"
}

// another creates another pool of one machine on a server.
func (f *fixture) another(o emulator.Options) *emulator.Pool {
	f.t.Helper()
	o.Nodes = emulator.ClusterNodes{Cluster: f.Cluster, Pool: o.Name}
	pool := emulator.New(o)
	f.t.Cleanup(pool.Close)
	_, err := pool.AddMachines(f.ctx, 1)
	f.check(err)
	return pool
}

// listed returns a machine from GET /pool in any state. It returns nil if there is none.
func (f *fixture) listed(id string) *api.Machine {
	f.t.Helper()
	var pool api.Pool
	f.check(json.Unmarshal([]byte(f.get("/pool").body), &pool))
	if i := slices.IndexFunc(pool.Machines, func(m api.Machine) bool { return m.ID == id }); i >= 0 {
		return &pool.Machines[i]
	}
	return nil
}

// TestOneMachineIsToldWhatToDoInEachWay checks memberships, replacements and a stopped pool.
func TestOneMachineIsToldWhatToDoInEachWay(t *testing.T) {
	t.Parallel()
	// The size is raised for a machine that counts again. The pool must not launch another machine before that.
	slow := options{pool: emulator.Options{CallDelay: 2 * time.Second}, settle: time.Minute}
	inBoth(t, "one", 3, slow, func(f *fixture) {
		f.create(f.app("web", 2).Deployment())
		f.memberships()
		f.replacements()
		f.stopped()
		if f.pool != nil {
			f.unconfigured()
		}
	})
}

// sized waits for the given sizes of a pool, and the given number of nodes. Some machines may not count. A server may
// have launched one more machine, which registered while it terminated. The node of that machine stays.
func (f *fixture) sized(desired, active, allocated, nodes int) {
	f.t.Helper()
	want := api.Size{Desired: desired, Active: active, Allocated: allocated}
	f.await(fmt.Sprintf("%d machines serve on %d nodes, %d desired, %d allocated", active, nodes, desired, allocated), func() bool {
		is := f.size()
		is.Timestamp = want.Timestamp
		n := f.nodes()
		return is == want && len(f.running()) == active && (n == nodes || f.pool != nil && n > nodes)
	})
}

// memberships sets every combination of membership states on one machine.
func (f *fixture) memberships() {
	f.t.Helper()
	id := f.machines()[0].ID
	is := func(active, evictable bool) {
		f.t.Helper()
		if m := f.listed(id); m == nil || m.Membership == nil || *m.Membership != (api.MembershipStatus{Active: active, Evictable: evictable}) {
			f.t.Errorf("%+v; want active %t, evictable %t", m, active, evictable)
		}
	}
	say := func(status string) {
		f.t.Helper()
		f.want(f.post("/pool/membershipStatus", `{"machineId":"`+id+`","membershipStatus":`+status+`}`), http.StatusOK)
	}
	say(`{"evictable":false}`) // blessed: a missing field means true
	is(true, false)
	f.sized(3, 3, 3, 3)
	say(`{"active":false,"evictable":false}`) // awaiting service: replaced, and kept
	is(false, false)
	f.sized(3, 3, 4, 4)
	say(`{"active":false,"evictable":false}`) // unchanged, and replaced once
	f.sized(3, 3, 4, 4)
	f.want(f.post("/pool/terminate", termination(id, true)), http.StatusConflict, "not evictable")
	f.want(f.post("/pool/detach", termination(id, true)), f.blessed(), "evict")
	f.want(f.post("/pool/size", size(3)), http.StatusOK) // does not count it
	f.sized(3, 3, 4, 4)
	say(`{"active":true,"evictable":false}`) // counts again, and the size is not raised for it
	is(true, false)
	again := 4
	if f.pool != nil {
		again = 3 // the pool's server removes one of the others
	}
	f.sized(again, again, again, again)
	say(`{}`)
	is(true, true)
	f.sized(again, again, again, again)
	say(`{"active":true,"evictable":false}`)
	f.want(f.post("/pool/size", size(3)), http.StatusOK) // other machines are removed
	is(true, false)
	f.sized(3, 3, 3, 3)
	say(`{"active":false,"evictable":true}`) // disposable, although it was blessed
	f.sized(3, 3, 3, 3)
	if m := f.listed(id); m != nil && !m.State.HasLeftPool() {
		f.t.Errorf("the machine that was made disposable is there: %+v", m)
	}
}

// replacements terminates machines that must be replaced. decrementDesiredSize is false, or missing.
func (f *fixture) replacements() {
	f.t.Helper()
	nodes := 3
	for _, decrement := range []string{``, `,"decrementDesiredSize":false`, `,"decrementDesiredSize":null`} {
		id := f.machines()[0].ID
		f.want(f.post("/pool/terminate", `{"machineId":"`+id+`"`+decrement+`}`), http.StatusOK)
		f.sized(3, 3, 3, nodes)
		if m := f.listed(id); m != nil && !m.State.HasLeftPool() {
			f.t.Errorf("terminated with %q, and there: %+v", decrement, m)
		}
		if strings.Contains(decrement, "null") {
			continue
		}
		id = f.machines()[0].ID
		f.want(f.post("/pool/detach", `{"machineId":"`+id+`"`+decrement+`}`), http.StatusOK)
		nodes++ // the node keeps running
		f.sized(3, 3, 3, nodes)
		if m := f.listed(id); m != nil {
			f.t.Errorf("detached with %q, and a member: %+v", decrement, m)
		}
	}
}

// stopped sends every request that a stopped pool refuses.
func (f *fixture) stopped() {
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
		a, err := f.ask(f.front, tt.method, tt.path, tt.body)
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
	f.unchanged(3)
}

// unconfigured queries a server without a configuration. A NodeGroup always has a configuration.
func (f *fixture) unconfigured() {
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
	f.unchanged(3)
}

// TestAMachineThatDoesNotRunIsTerminatedWhereItMay creates a machine in each state.
func TestAMachineThatDoesNotRunIsTerminatedWhereItMay(t *testing.T) {
	t.Parallel()
	inBoth(t, "state", 4, options{}, func(f *fixture) {
		if f.pool != nil {
			f.terminateInEachState()
		} else {
			f.terminateInEachAzureState()
		}
	})
}

func (f *fixture) terminateInEachState() {
	f.t.Helper()
	place := func(s emulator.State) string { return f.pool.AddMachineInState(s, nil).ID }
	for state, want := range map[emulator.State]int{
		emulator.Rejected: http.StatusNotFound, emulator.Terminated: http.StatusNotFound,
		emulator.Terminating: http.StatusOK, // already terminating
	} {
		a := f.post("/pool/terminate", termination(place(state), true))
		if a.code != want || want == http.StatusNotFound && a.message != "failed to terminate machine" {
			f.t.Errorf("a machine that is %s: %s; want %d", state, a, want)
		}
	}
	pending := place(emulator.Pending)
	f.want(f.post("/pool/terminate", termination(pending, true)), http.StatusConflict, pending, "(machine-may-register)")
	if n := f.pool.CountRequests(http.MethodPost, "/terminate"); n > 0 || f.pool.DesiredSize() != 5 {
		f.t.Errorf("%d terminations, a desired size of %d; want none, and 5", n, f.pool.DesiredSize())
	}
	requested := place(emulator.Requested)
	f.want(f.post("/pool/terminate", termination(requested, true)), http.StatusConflict, requested, "(machine-may-register)")
	if n := f.pool.CountRequests(http.MethodPost, "/terminate"); n > 0 || f.pool.DesiredSize() != 6 {
		f.t.Errorf("%d terminations, a desired size of %d; want none, and 6", n, f.pool.DesiredSize())
	}
	f.want(f.post("/pool/size", size(5)), http.StatusOK) // requests the machine
	f.await("the machine is gone", func() bool { m := f.listed(requested); return m == nil || m.State.HasLeftPool() })
	if n := f.pool.CountRequests(http.MethodPost, "/terminate"); n != 1 || f.pool.DesiredSize() != 5 {
		f.t.Errorf("%d terminations, a desired size of %d; want 1, and 5", n, f.pool.DesiredSize())
	}
	if n := len(f.records()); n > 0 {
		f.t.Errorf("%d retirements of machines without a node", n)
	}
}

// terminateInEachAzureState creates one machine without a node, and two unhealthy machines with a node.
func (f *fixture) terminateInEachAzureState() {
	f.t.Helper()
	var resources []string
	for _, vm := range f.ARM.VMs() {
		if strings.EqualFold(vm.ScaleSet, f.cloud.Group) {
			resources = append(resources, vm.Resource)
		}
	}
	become := func(i int, state azure.ProvisioningState, power azure.PowerState) {
		f.t.Helper()
		f.check(f.ARM.ModifyVM(resources[i], func(vm *azure.VM) { vm.State, vm.Power = state, power }))
	}
	id := func(i int) string {
		f.t.Helper()
		for _, m := range f.machines() {
			if strings.HasSuffix(m.ID, "/"+resources[i][strings.LastIndex(resources[i], "_")+1:]) {
				return m.ID
			}
		}
		f.t.Fatalf("%s is not in the pool", resources[i])
		return ""
	}
	is := func(machine string, state api.MachineState, service api.ServiceState) {
		f.t.Helper()
		f.await(fmt.Sprintf("machine %s is %s", machine, state), func() bool {
			m := f.listed(machine)
			return m != nil && m.State == state && m.ServiceState == service
		})
	}
	bare := id(0)
	vm, _ := f.ARM.VM(resources[0])
	f.check(f.Client().CoreV1().Nodes().Delete(f.ctx, vm.ComputerName, metav1.DeleteOptions{}))
	become(0, azure.Creating, azure.Stopped)
	f.await("the machine has no node", func() bool { m := f.listed(bare); return m != nil && len(m.PrivateIPs) == 0 })
	is(bare, api.Pending, api.UnknownState)
	f.want(f.post("/pool/terminate", termination(bare, true)), http.StatusConflict, bare, "(machine-may-register)")
	become(0, azure.Deleting, azure.Stopped)
	is(bare, api.Terminating, api.UnknownState)
	f.want(f.post("/pool/terminate", termination(bare, true)), http.StatusOK) // already terminating
	if _, there := f.ARM.VM(resources[0]); !there {
		f.t.Error("a machine was deleted that was on its way")
	}
	become(0, azure.Failed, azure.Stopped)
	is(bare, api.Rejected, api.UnknownState)
	f.want(f.post("/pool/terminate", termination(bare, true)), http.StatusOK)
	if n := len(f.records()); n > 0 {
		f.t.Errorf("%d retirements of a machine without a node", n)
	}
	for i, state := range map[int]azure.ProvisioningState{1: azure.Succeeded, 2: azure.Failed} {
		service := map[azure.ProvisioningState]api.ServiceState{azure.Succeeded: api.OutOfService, azure.Failed: api.Unhealthy}[state]
		machine := id(i)
		become(i, state, azure.Deallocated)
		is(machine, api.Running, service)
		f.want(f.post("/pool/terminate", termination(machine, true)), http.StatusOK)
	}
	f.unchanged(1)
	if n := len(f.records()); n != 2 {
		f.t.Errorf("%d retirements, want 2", n)
	}
}
