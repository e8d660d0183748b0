package retirement_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

// These are the number of instances in the agent pool, and the number of instances that are retired at once.
const (
	poolMachines = 3
	poolLeaving  = 2
)

// gathering is how long a deletion waits for other deletions of its pool. It is long enough for the second deletion on a
// busy host.
const gathering = "10s"

// takenByAKS is the kind of the request that makes AKS delete instances of an agent pool.
const takenByAKS = "arm POST deleteMachines"

// agentPool is a fixture with instances that AKS deletes. It records its managers' changes in the order of the requests.
type agentPool struct {
	*fixture
	proxy *faultproxy.Proxy
	// pods holds the pods on the retired nodes, by node.
	pods map[string][]string

	// together is closed when every retired Node is about to be deleted. Before that, no Node is deleted.
	together chan struct{}

	mu      sync.Mutex
	changes []change
	leaving map[string]bool // the Nodes with a requested deletion
}

// change is a write request with its body.
type change struct {
	faultproxy.Request
	body string
}

// newAgentPool creates the pool, and pods on the nodes to retire.
func newAgentPool(t *testing.T, name string) *agentPool {
	t.Helper()
	f := newMachines(t, name, poolMachines)
	f.secluded = true
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(name)))
	f.ownedByAKS()
	f.nodeGroup(name, fmt.Sprintf("minSize: %d\ndisruptionBudgets: [{nodes: %d}]\ndrain: {timeout: 30m}",
		poolMachines-poolLeaving, poolLeaving))
	a := &agentPool{
		fixture: f, pods: map[string][]string{}, together: make(chan struct{}), leaving: map[string]bool{},
		proxy: faultproxy.New(func(r faultproxy.Request) string { return r.Server + " " + r.Method + " " + path.Base(r.Path) }),
	}
	a.proxy.OnWrite(a.asked)
	for i := range poolLeaving {
		a.populate(i)
	}
	return a
}

// ownedByAKS makes the instances part of an agent pool with the fixture's name, which the fixture's managers are
// configured for.
func (f *fixture) ownedByAKS() {
	f.t.Helper()
	f.check(f.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: testbed.ManagedClusterName, ResourceGroup: testbed.ManagedClusterGroup, Name: f.name, ScaleSet: f.pool.ScaleSetName(),
	}))
	f.cloudGroups = []provider.GroupConfig{{
		Name: f.name, ResourceGroup: testbed.ManagedClusterGroup, Cluster: testbed.ManagedClusterName, AgentPool: f.name,
	}}
}

// populate runs pods on a node to retire.
func (a *agentPool) populate(i int) {
	a.t.Helper()
	a.run(a.app(fmt.Sprint("web", i), i, 2).Deployment())
	node := a.pool.NodeName(i)
	pods, err := a.Client().CoreV1().Pods(a.name).List(a.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	a.check(err)
	for _, p := range pods.Items {
		a.pods[node] = append(a.pods[node], p.Name)
	}
	if len(a.pods[node]) != 2 {
		a.t.Fatalf("node %s has the pods %q, want 2", node, a.pods[node])
	}
}

// asked records a change. It holds the deletion of a Node until the other Nodes are about to be deleted too. This makes
// the deletions of their instances coincide.
func (a *agentPool) asked(_ context.Context, r faultproxy.Request, body []byte) {
	a.mu.Lock()
	a.changes = append(a.changes, change{r, string(body)})
	if isNodeDeletion(r) && !a.leaving[path.Base(r.Path)] {
		a.leaving[path.Base(r.Path)] = true
		if len(a.leaving) == poolLeaving {
			close(a.together)
		}
	}
	a.mu.Unlock()
	if isNodeDeletion(r) {
		select {
		case <-a.together:
		case <-a.ctx.Done():
		}
	}
}

func isNodeDeletion(r faultproxy.Request) bool {
	return r.Method == http.MethodDelete && strings.HasPrefix(r.Path, "/api/v1/nodes/")
}

// start starts a manager of the pool.
func (a *agentPool) start() *process {
	a.t.Helper()
	return a.manage("", a.proxy, "--cloud-config", a.cloudConfig(a.proxy, gathering))
}

// hang makes the deletion of an instance hang until the fault is removed.
func (a *agentPool) hang(i int) {
	a.t.Helper()
	a.check(a.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionHangs, Resource: a.pool.ResourceName(i)}))
	a.t.Cleanup(func() { a.ARM.ClearResourceFaults(a.pool.ResourceName(i)) })
}

// retired waits until the nodes are retired. It checks the remaining objects, and how each retirement ended.
func (a *agentPool) retired() (ends [poolLeaving]*v1alpha1.NodeRetirement) {
	a.t.Helper()
	for i := range ends {
		rt := a.awaitPhase(a.pool.NodeName(i), v1alpha1.Succeeded)
		c := rt.Status.Captured
		if c == nil || !strings.EqualFold(c.ProviderID, a.pool.ProviderID(i)) || c.ComputerName != a.pool.NodeName(i) {
			a.t.Fatalf("I4: the retirement of %s captured %+v", rt.Spec.NodeName, c)
		}
		ends[i] = rt
	}
	a.left(poolMachines, 0, 1)
	pool, _ := a.ARM.AgentPool(testbed.ManagedClusterName, a.name)
	if stay := poolMachines - poolLeaving; pool.Count != stay || pool.State != azure.Succeeded {
		a.t.Errorf("the agent pool is meant to have %d machines, and is %s: want %d of them", pool.Count, pool.State, stay)
	}
	a.byAKS()
	for i := range ends {
		a.inOrder(a.pool.NodeName(i))
	}
	return ends
}

// byAKS checks that only AKS received requests to change the pool or its scale set.
func (a *agentPool) byAKS() {
	a.t.Helper()
	for _, r := range a.ARM.Requests() {
		segments := strings.Split(strings.ToLower(r.Path), "/")
		mine := slices.Contains(segments, strings.ToLower(a.pool.ScaleSetName())) || slices.Contains(segments, a.name)
		if mine && r.Method != http.MethodGet && path.Base(r.Path) != "deleteMachines" {
			a.t.Errorf("%s %s: want AKS to delete its machines, and nothing else to be changed", r.Method, r.Path)
		}
	}
}

// inOrder checks the order: first the evictions of a node's pods, then the deletion of its Node, then the deletion of its
// instance.
func (a *agentPool) inOrder(node string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	first := func(what string, is func(change) bool) int {
		i := slices.IndexFunc(a.changes, is)
		if i < 0 {
			a.t.Errorf("nobody asked for %s", what)
		}
		return i
	}
	nodeAt := first("the deletion of Node "+node, func(c change) bool {
		return isNodeDeletion(c.Request) && path.Base(c.Path) == node
	})
	machineAt := first("the deletion of machine "+node, func(c change) bool {
		return c.Kind == takenByAKS && slices.Contains(machineNames(a.t, c.body), node)
	})
	if machineAt < nodeAt {
		a.t.Errorf("the deletion of machine %s was asked for before that of its Node", node)
	}
	for _, pod := range a.pods[node] {
		at := "/namespaces/" + a.name + "/pods/" + pod
		evicted := func(c change) bool { return strings.HasSuffix(c.Path, at+"/eviction") }
		if first("the eviction of pod "+pod, evicted) > nodeAt {
			a.t.Errorf("pod %s was evicted after its Node was deleted", pod)
		}
		deleted := func(c change) bool { return c.Method == http.MethodDelete && strings.HasSuffix(c.Path, at) }
		if slices.ContainsFunc(a.changes, deleted) {
			a.t.Errorf("I2: pod %s was deleted, want it evicted", pod)
		}
	}
}

// machineNames returns the names that a request makes AKS delete, sorted.
func machineNames(t *testing.T, body string) []string {
	t.Helper()
	var request struct {
		MachineNames []string `json:"machineNames"`
	}
	if err := json.Unmarshal([]byte(body), &request); err != nil {
		t.Errorf("deleteMachines of %q: %v", body, err)
	}
	slices.Sort(request.MachineNames)
	return request.MachineNames
}

// deleted checks which instances the requests make AKS delete.
func (a *agentPool) deleted(requests []azure.ARMRequest, want ...[]string) {
	a.t.Helper()
	var got [][]string
	for _, r := range requests {
		got = append(got, machineNames(a.t, r.Body))
	}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		a.t.Errorf("AKS was asked to delete %q, want %q", got, want)
	}
}

// deletions returns the requests to AKS to delete instances of the pool.
func (a *agentPool) deletions() []azure.ARMRequest {
	return slices.DeleteFunc(a.ARM.Requests(), func(r azure.ARMRequest) bool {
		return !strings.HasSuffix(r.Path, "/agentPools/"+a.name+"/deleteMachines")
	})
}

// attempts checks how many deletions of its instance a retirement counts.
func (a *agentPool) attempts(rt *v1alpha1.NodeRetirement, want int32) {
	a.t.Helper()
	if op := rt.Status.Operation; op == nil || op.Attempts != want {
		a.t.Errorf("the deletion of the machine of %s: %+v, want %d attempts", rt.Spec.NodeName, op, want)
	}
}

// underWay waits until the status records that AKS can be asked about the deletion.
func (a *agentPool) underWay(i int) {
	a.t.Helper()
	a.await(a.pool.NodeName(i), func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Operation != nil && rt.Status.Operation.ID != ""
	})
}

func TestAMachineThatAKSFailsToDeleteIsAskedForAgainWithoutTheOthersOfItsRequest(t *testing.T) {
	t.Parallel()
	a := newAgentPool(t, "aksfails")
	a.check(a.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: a.pool.ResourceName(0), Times: 1}))
	both := []string{a.retire(0), a.retire(1)}
	a.start()
	ends := a.retired()
	a.attempts(ends[0], 2)
	a.attempts(ends[1], 1)
	a.deleted(a.deletions(), both, both[:1])
}

// TestI8TheDeletionThatAKSHasTakenIsFollowedByTheNextManager kills a manager while AKS is deleting two instances.
func TestI8TheDeletionThatAKSHasTakenIsFollowedByTheNextManager(t *testing.T) {
	t.Parallel()
	t.Run("written down", func(t *testing.T) {
		t.Parallel()
		a := newAgentPool(t, "akswritten")
		a.hang(0)
		both := []string{a.retire(0), a.retire(1)}
		p := a.start()
		a.underWay(0)
		a.underWay(1)
		a.check(p.revive(a.ctx))
		a.goesOn("/operations/")
		for _, rt := range a.retired() {
			a.attempts(rt, 1)
		}
		a.deleted(a.deletions(), both)
	})
	t.Run("not known yet", func(t *testing.T) {
		t.Parallel()
		a := newAgentPool(t, "aksunknown")
		a.hang(0)
		both := []string{a.retire(0), a.retire(1)}
		launched, killed := make(chan *process, 1), make(chan struct{})
		a.proxy.InterruptAt(faultproxy.RequestID{Kind: takenByAKS, Nth: 1}, faultproxy.After, func(faultproxy.Request) {
			defer close(killed)
			if err := (<-launched).revive(a.ctx); err != nil {
				t.Error(err)
			}
		})
		launched <- a.start()
		select {
		case <-killed:
		case <-a.ctx.Done():
			t.Fatal("AKS was not asked to delete anything")
		}
		a.goesOn("/virtualMachines/0")
		a.retired()
		a.deleted(a.deletions(), both)
	})
}

// goesOn waits until the last started manager has sent a request to ARM, and then ends AKS's deletion.
func (a *agentPool) goesOn(path string) {
	a.t.Helper()
	before := len(a.proxy.Requests())
	a.check(testbed.PollUntil(a.ctx, "the next manager asks for "+path, func() bool {
		return slices.ContainsFunc(a.proxy.Requests()[before:], func(r faultproxy.Request) bool {
			return r.Server == "arm" && strings.Contains(r.Path, path)
		})
	}))
	a.ARM.ClearResourceFaults(a.pool.ResourceName(0))
}
