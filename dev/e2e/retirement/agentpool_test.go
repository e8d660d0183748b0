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

// An agent pool of so many machines, of which the first so many are retired, all at once.
const (
	poolMachines = 3
	poolLeaving  = 2
)

// gathering is how long a deletion waits for others of its pool: long enough for a busy machine to bring the second one.
const gathering = "10s"

// takenByAKS is the kind of the request by which AKS deletes machines of an agent pool.
const takenByAKS = "arm POST deleteMachines"

// agentPool is a fixture whose machines are AKS's to delete. Its managers' changes are kept in the order in which they
// were asked for.
type agentPool struct {
	*fixture
	proxy *faultproxy.Proxy
	// pods are on the nodes that leave, by node.
	pods map[string][]string

	// together is closed when all Nodes that leave are about to be deleted: none of them is before.
	together chan struct{}

	mu      sync.Mutex
	changes []change
	leaving map[string]bool // the Nodes whose deletion was asked for
}

// change is a request that changes something.
type change struct {
	faultproxy.Request
	body string
}

// newAgentPool makes the pool, and pods on the nodes that leave.
func newAgentPool(t *testing.T, name string) *agentPool {
	t.Helper()
	f := newMachines(t, name, poolMachines)
	f.secluded = true
	f.check(workload.Create(f.ctx, f.Client(), workload.Namespace(name)))
	f.ownedByAKS()
	f.nodeGroup(name, fmt.Sprintf("minSize: %d\ndisruptionBudgets: [{nodes: %d}]\ndrain: {timeout: 30m}",
		poolMachines-poolLeaving, poolLeaving))
	a := &agentPool{
		fixture: f, pods: map[string][]string{}, together: make(chan struct{}), leaving: map[string]bool{},
		proxy: faultproxy.New(func(r faultproxy.Request) string { return r.Server + " " + r.Method + " " + path.Base(r.Path) }),
	}
	a.proxy.Guard(a.asked)
	for i := range poolLeaving {
		a.populate(i)
	}
	return a
}

// ownedByAKS has the machines be those of an agent pool, named as the fixture is, which the fixture's managers know.
func (f *fixture) ownedByAKS() {
	f.t.Helper()
	f.check(f.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: testbed.ManagedCluster, ResourceGroup: testbed.ManagedClusterGroup, Name: f.name, ScaleSet: f.pool.ScaleSet(),
	}))
	f.cloudGroups = []provider.GroupConfig{{
		Name: f.name, ResourceGroup: testbed.ManagedClusterGroup, Cluster: testbed.ManagedCluster, AgentPool: f.name,
	}}
}

// populate runs pods on a node that is to leave.
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

// asked keeps a change, and holds the deletion of a Node until the others are about to be deleted too, so that the deletions
// of their machines come together.
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

// hang has the deletion of a machine not end, until that is relented.
func (a *agentPool) hang(i int) {
	a.t.Helper()
	a.check(a.ARM.Inject(azure.ARMFault{Kind: azure.ARMDeletionHangs, Resource: a.pool.Resource(i)}))
	a.t.Cleanup(func() { a.ARM.Relent(a.pool.Resource(i)) })
}

// retired waits until the nodes that leave are retired, and checks what is left, and how they left.
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
	pool, _ := a.ARM.AgentPool(testbed.ManagedCluster, a.name)
	if stay := poolMachines - poolLeaving; pool.Count != stay || pool.State != azure.Succeeded {
		a.t.Errorf("the agent pool is meant to have %d machines, and is %s: want %d of them", pool.Count, pool.State, stay)
	}
	a.byAKS()
	for i := range ends {
		a.inOrder(a.pool.NodeName(i))
	}
	return ends
}

// byAKS checks that nobody but AKS was asked to change the pool or its scale set.
func (a *agentPool) byAKS() {
	a.t.Helper()
	for _, r := range a.ARM.Requests() {
		segments := strings.Split(strings.ToLower(r.Path), "/")
		mine := slices.Contains(segments, strings.ToLower(a.pool.ScaleSet())) || slices.Contains(segments, a.name)
		if mine && r.Method != http.MethodGet && path.Base(r.Path) != "deleteMachines" {
			a.t.Errorf("%s %s: want AKS to delete its machines, and nothing else to be changed", r.Method, r.Path)
		}
	}
}

// inOrder checks that the pods of a node were evicted before its Node was deleted, and its machine after that.
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

// machineNames are those that a request has AKS delete, in their order by name.
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

// deleted checks which machines requests have AKS delete.
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

// deletions are the requests of AKS to delete machines of the pool.
func (a *agentPool) deletions() []azure.ARMRequest {
	return slices.DeleteFunc(a.ARM.Requests(), func(r azure.ARMRequest) bool {
		return !strings.HasSuffix(r.Path, "/agentPools/"+a.name+"/deleteMachines")
	})
}

// attempts checks how many deletions of its machine a retirement counts.
func (a *agentPool) attempts(rt *v1alpha1.NodeRetirement, want int32) {
	a.t.Helper()
	if op := rt.Status.Operation; op == nil || op.Attempts != want {
		a.t.Errorf("the deletion of the machine of %s: %+v, want %d attempts", rt.Spec.NodeName, op, want)
	}
}

// underWay waits until it is written down where AKS can be asked for a deletion.
func (a *agentPool) underWay(i int) {
	a.t.Helper()
	a.await(a.pool.NodeName(i), func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Operation != nil && rt.Status.Operation.ID != ""
	})
}

func TestAMachineThatAKSFailsToDeleteIsAskedForAgainWithoutTheOthersOfItsRequest(t *testing.T) {
	t.Parallel()
	a := newAgentPool(t, "aksfails")
	a.check(a.ARM.Inject(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: a.pool.Resource(0), Times: 1}))
	both := []string{a.retire(0), a.retire(1)}
	a.start()
	ends := a.retired()
	a.attempts(ends[0], 2)
	a.attempts(ends[1], 1)
	a.deleted(a.deletions(), both, both[:1])
}

// TestI8TheDeletionThatAKSHasTakenIsFollowedByTheNextManager kills a manager while AKS is deleting two machines.
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
		a.proxy.At(faultproxy.Point{Kind: takenByAKS, Nth: 1}, faultproxy.After, func(faultproxy.Request) {
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

// goesOn waits until the manager that was started last has asked ARM for something, and has AKS's deletion end then.
func (a *agentPool) goesOn(path string) {
	a.t.Helper()
	before := len(a.proxy.Requests())
	a.check(testbed.Poll(a.ctx, "the next manager asks for "+path, func() bool {
		return slices.ContainsFunc(a.proxy.Requests()[before:], func(r faultproxy.Request) bool {
			return r.Server == "arm" && strings.Contains(r.Path, path)
		})
	}))
	a.ARM.Relent(a.pool.Resource(0))
}
