package cloudpool_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// TestRefusedRequestsReportReasonAndChangeNothing sends every request that must be refused, to a server's pool
// and to a NodeGroup's pool. It checks Slipway's own answers and those in the format of kubeaware-cloudpool-proxy.
func TestRefusedRequestsReportReasonAndChangeNothing(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		checkRefusals(newFixture(t, "refused", 4, options{}))
	})
	t.Run("NodeGroup", func(t *testing.T) {
		t.Parallel()
		checkRefusals(newNative(t, "refusal", 4), "--native", "refusal", "--native-refresh", "0s")
	})
}

// twoModes sends the same request to two processes. One of them answers as kubeaware-cloudpool-proxy did.
type twoModes struct {
	*fixture
	addresses map[bool]string // by whether the process is strict
}

// checkRefused sends a request to both processes. The strict process answers 500, with a detail that begins like the old
// tool's.
func (a *twoModes) checkRefused(path, body string, code int, strict string, words ...string) {
	a.t.Helper()
	for _, isStrict := range []bool{false, true} {
		got, err := a.ask(a.addresses[isStrict], http.MethodPost, path, body)
		a.check(err)
		want, begins := code, ""
		if isStrict {
			want, begins = http.StatusInternalServerError, strict
		}
		message := "failed to terminate machine"
		if strings.HasSuffix(path, "size") {
			message = "failed to set desired size"
		}
		if got.code != want || got.message != message || !strings.HasPrefix(got.detail, begins) {
			a.t.Errorf("POST %s %s, strict %t: %s; want %d %q %q", path, body, isStrict, got, want, message, begins)
		}
		for _, w := range words {
			if !strings.Contains(got.detail, w) {
				a.t.Errorf("POST %s %s, strict %t: %s; want it to contain %q", path, body, isStrict, got, w)
			}
		}
	}
}

func checkRefusals(f *fixture, flags ...string) {
	var away atomic.Bool
	f.between = faultproxy.New(kindOf)
	f.between.SetFaults(func(r faultproxy.Request) faultproxy.Fault {
		if away.Load() && !strings.Contains(r.Query, "watch=") {
			return faultproxy.Fault{Status: http.StatusServiceUnavailable}
		}
		return faultproxy.Fault{}
	})
	f.t.Cleanup(func() { _ = f.between.Close() })
	a := &twoModes{f, map[bool]string{}}
	f.startCloudpool("b", append(slices.Clone(flags), "--strict-compat")...)
	a.addresses[true] = f.address
	f.startCloudpool("a", flags...)
	a.addresses[false] = f.address
	nodes := a.protectNodes()
	a.refuseByReason(nodes)
	a.refuseWithoutServer(a.machineOf(&nodes[0]))
	away.Store(true)
	a.refuseWithoutKubernetes(a.machineOf(&nodes[0]))
	away.Store(false)
	f.await("the API server answers again", func() bool { return f.get("/pool").code == http.StatusOK })
	f.checkSize(4)
	if n := len(f.listRetirements()); n > 0 {
		f.t.Errorf("%d NodeRetirements", n)
	}
	if f.server != nil {
		f.refuseAfterServerStopped(a)
	}
}

// protectNodes gives each of four nodes its own reason to stay, and returns the nodes in that order.
func (a *twoModes) protectNodes() []corev1.Node {
	a.t.Helper()
	list, err := a.Client().CoreV1().Nodes().List(a.ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: a.selector}),
	})
	a.check(err)
	nodes := list.Items
	slices.SortFunc(nodes, func(x, y corev1.Node) int { return strings.Compare(x.Name, y.Name) })
	patch := []byte(`{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}`)
	_, err = a.Client().CoreV1().Nodes().Patch(a.ctx, nodes[0].Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	a.check(err)
	alone, storing, budgeted := a.app("alone", 1), a.app("storing", 1), a.app("budgeted", 2)
	alone.Node, storing.Node, budgeted.Node = nodes[1].Name, nodes[2].Name, nodes[3].Name
	storing.EmptyDir, budgeted.MinAvailable = true, "2"
	a.create(alone.Pod(), storing.Deployment(), budgeted.Deployment(), budgeted.PodDisruptionBudget())
	return nodes
}

// machineOf returns the ID of a node's machine.
func (a *twoModes) machineOf(node *corev1.Node) string {
	a.t.Helper()
	for _, m := range a.machines() {
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP && slices.Contains(m.PrivateIPs, address.Address) {
				return m.ID
			}
		}
	}
	a.t.Fatalf("node %s has no machine in the pool", node.Name)
	return ""
}

// refuseByReason sends requests that the nodes, their pods or the machines do not allow.
func (a *twoModes) refuseByReason(nodes []corev1.Node) {
	a.t.Helper()
	const unsafe, none = "TerminateMachine: machine is not deemed safe to scale down: ", "found no viable candidates for scaling down: "
	reasons := []string{"(protected)", "(unmanaged)", "(local-storage)", "(disruption-budget)"}
	a.await("the reasons that protect the nodes are known", func() bool {
		got := a.get("/slipway/v1/pools/" + a.name + "/plan?desiredSize=0")
		return !slices.ContainsFunc(reasons, func(r string) bool { return !strings.Contains(got.body, strings.Trim(r, "()")) })
	})
	viable := func(i int) string { return nodes[i].Name + " is not a viable scale-down candidate: " }
	every := append([]string{"pod " + a.name + "/alone", "pod " + a.name + "/storing-", a.name + "/budgeted allows 0"}, reasons...)
	for i := range nodes {
		every = append(every, viable(i))
		a.checkRefused("/pool/terminate", termination(a.machineOf(&nodes[i]), true), http.StatusConflict, unsafe+viable(i), viable(i), reasons[i])
	}
	for _, n := range []int{3, 0} {
		a.checkRefused("/pool/size", size(n), http.StatusConflict, none, every...)
	}
	// The membership protects the machine, regardless of its node.
	id := a.machineOf(&nodes[0])
	a.want(a.post("/pool/membershipStatus", membership(id, true, false)), http.StatusOK)
	a.checkRefused("/pool/terminate", termination(id, true), http.StatusConflict, unsafe+viable(0), "not evictable")
	a.want(a.post("/pool/membershipStatus", membership(id, true, true)), http.StatusOK)
	a.checkRefused("/pool/terminate", termination("x", true), http.StatusNotFound, "no kubernetes node with external ID x exists")
	if a.pool == nil {
		return
	}
	// The machine runs, and its node may register at any moment.
	young := a.pool.AddMachineInState(emulator.Running, nil)
	a.checkRefused("/pool/terminate", termination(young.ID, true), http.StatusConflict, "no kubernetes node with external ID "+young.ID+" exists")
	a.checkRefused("/pool/size", size(4), http.StatusConflict, none, "(machine-may-register)")
	a.pool.EndMachine(young.ID)
	// The refusal comes from the server itself.
	a.pool.InjectFaults(emulator.Fault{Kind: emulator.Status, Status: http.StatusBadRequest, Method: http.MethodPost, Path: "/size", Message: "illegal input: 100%d"})
	for strict, code := range map[bool]int{false: http.StatusBadRequest, true: http.StatusInternalServerError} {
		got, err := send(a.ctx, http.DefaultClient, a.addresses[strict], http.MethodPost, "/pool/size", size(9))
		a.check(err)
		if got.code != code || !strings.Contains(got.message+got.detail, "illegal input: 100%d") ||
			strict && !strings.HasPrefix(got.detail, "failed to request desiredSize against backend cloudpool: setDesiredSize 9: ") {
			a.t.Errorf("strict %t: %s", strict, got)
		}
	}
	a.pool.ClearFaults()
}

// refuseWithoutServer sends requests while the machines cannot be read, for each possible cause.
func (a *twoModes) refuseWithoutServer(id string) {
	a.t.Helper()
	refused := func() {
		a.t.Helper()
		a.checkRefused("/pool/size", size(3), http.StatusBadGateway, "failed to retrieve cloudpool: getMachinePool: ")
		a.checkRefused("/pool/terminate", termination(id, true), http.StatusBadGateway, "")
	}
	if a.pool == nil {
		a.check(a.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDenied, Resource: a.cloud.Group}))
		refused()
		a.want(a.get("/pool"), http.StatusBadGateway, "failure to process GET /pool")
		a.ARM.ClearFaults()
		return
	}
	for _, fault := range []emulator.Fault{
		{Kind: emulator.Status, Status: http.StatusInternalServerError, Message: "attempt to invoke cloudpool before being started"},
		{Kind: emulator.HTML},
		{Kind: emulator.Redirect, Location: "/status"},
		{Kind: emulator.Half},
		{Kind: emulator.Reset},
	} {
		fault.Method = http.MethodGet
		a.pool.InjectFaults(fault)
		refused()
		a.pool.ClearFaults()
	}
	// Slipway forwards none of these requests later.
	for _, r := range a.pool.Requests() {
		if r.Method == http.MethodPost && !strings.HasSuffix(r.Path, "/membershipStatus") && r.Body != size(9) {
			a.t.Errorf("the server received %s %s", r.Path, r.Body)
		}
	}
}

// refuseWithoutKubernetes sends requests while the API server does not answer. Requests that do not need the API server
// still work.
func (a *twoModes) refuseWithoutKubernetes(id string) {
	a.t.Helper()
	a.checkRefused("/pool/size", size(3), http.StatusServiceUnavailable, "failed to retrieve kubernetes worker nodes: ")
	a.checkRefused("/pool/terminate", termination(id, true), http.StatusServiceUnavailable, "failed to get nodes: ")
	a.want(a.post("/pool/size", size(4)), http.StatusOK)
	for _, path := range []string{"/pool", "/pool/size", "/status"} {
		if got := a.get(path); got.code != http.StatusOK {
			a.t.Errorf("GET %s: %s", path, got)
		}
	}
}

// refuseAfterServerStopped sends requests after the server has stopped listening.
func (f *fixture) refuseAfterServerStopped(a *twoModes) {
	f.t.Helper()
	f.server.Close()
	const forwardError = "failed to forward request to backend: failed to complete backend cloudpool request"
	for _, front := range a.addresses {
		got, err := send(f.ctx, http.DefaultClient, front, http.MethodGet, "/pool", "")
		f.check(err)
		if got.code != http.StatusBadGateway || got.message != forwardError {
			f.t.Errorf("GET /pool: %s, want 502 %q", got, forwardError)
		}
	}
	a.checkRefused("/pool/size", size(3), http.StatusBadGateway, "failed to retrieve cloudpool: getMachinePool: ")
}

func membership(id string, active, evictable bool) string {
	raw, _ := json.Marshal(map[string]any{"machineId": id, "membershipStatus": map[string]bool{"active": active, "evictable": evictable}})
	return string(raw)
}

// kindOf returns a request without the names in it.
func kindOf(r faultproxy.Request) string {
	segments := strings.Split(strings.Trim(r.Path, "/"), "/")
	resource := segments[len(segments)-1]
	for i, s := range segments {
		if slices.Contains([]string{"configmaps", "leases", "noderetirements", "nodes", "pods"}, s) {
			resource = strings.Join(append([]string{s}, segments[min(len(segments), i+2):]...), "/")
		}
	}
	return fmt.Sprintf("%s %s %s", r.Server, r.Method, resource)
}
