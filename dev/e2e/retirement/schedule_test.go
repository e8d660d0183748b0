package retirement_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// schedule holds everything that a seed decides, except for the faults.
type schedule struct {
	seed uint64
	// failing is the percentage of the manager's requests that fail.
	failing int
	// nodes is the size of the pool. retired is how many of its nodes, from the first on, are retired.
	nodes, retired int
	minimum        int
	// budget is how many nodes may be unavailable at once. 0 means unset, and the default is 1.
	budget int
	// pods is the number of pods on each retired node.
	pods int
	// budgeted adds a Deployment with a PDB over the whole pool.
	budgeted bool
	// agentPool makes AKS delete the instances instead of the scale set.
	agentPool    bool
	disturbances []disturbance
}

// disturbance is an action of another client after the managers have made the given number of requests.
type disturbance struct {
	kind string
	at   int
	// node is the affected instance, among the retired ones.
	node int
}

// These are the actions of other clients.
const (
	crash         = "crash"           // the manager ends, and is started again
	protect       = "protect"         // a protected pod is bound
	claim         = "other tool"      // another tool begins to remove the node
	cancel        = "cancel"          // the NodeRetirement is deleted
	instanceLost  = "delete instance" // the instance is deleted
	deleteNode    = "delete node"     // the Node is deleted
	recreate      = "recreate"        // the Node is deleted, and created again under its name
	uncordon      = "uncordon"        // the Node is uncordoned
	duplicate     = "duplicate"       // a second NodeRetirement is created for the node
	deletionFails = "deletion fails"  // the cloud accepts a deletion, which fails
)

var disturbanceKinds = []string{crash, crash, protect, claim, cancel, instanceLost, deleteNode, recreate, uncordon, duplicate, deletionFails}

// typicalRequests is approximately how many requests a manager makes from its start until it has retired a node.
const typicalRequests = 50

func newSchedule(seed uint64) schedule {
	random := rand.New(rand.NewPCG(seed, 0))
	s := schedule{seed: seed, nodes: 2, retired: 1, pods: random.IntN(3), budgeted: random.IntN(8) == 0, failing: 5 + random.IntN(20)}
	if random.IntN(3) == 0 {
		s.nodes, s.retired, s.budget = 3, 2, random.IntN(3)
	}
	s.minimum = random.IntN(s.nodes - s.retired + 1)
	for range random.IntN(3) {
		s.disturbances = append(s.disturbances, disturbance{
			kind: disturbanceKinds[random.IntN(len(disturbanceKinds))], at: 5 + random.IntN(typicalRequests), node: random.IntN(s.retired),
		})
	}
	s.agentPool = random.IntN(3) == 0
	return s
}

func (s schedule) String() string {
	var said []string
	for _, t := range s.disturbances {
		said = append(said, fmt.Sprintf("%s of node %d at request %d", t.kind, t.node, t.at))
	}
	return fmt.Sprintf("%d %% of requests fail; %d of %d nodes are retired, minimum %d, budget %d, %d pods on each, app with PDB %t, agent pool %t; %s", s.failing, s.retired, s.nodes,
		s.minimum, s.budget, s.pods, s.budgeted, s.agentPool, strings.Join(said, "; "))
}

// has reports whether an action of one of the kinds affects an instance.
func (s schedule) has(node int, kinds ...string) bool {
	for _, t := range s.disturbances {
		for _, kind := range kinds {
			if t.kind == kind && (t.node == node || node == anyNode) {
				return true
			}
		}
	}
	return false
}

const anyNode = -1

// mayNotSucceed reports whether an action may prevent a retirement from succeeding.
func (s schedule) mayNotSucceed() bool {
	return s.has(anyNode, protect, claim, cancel, instanceLost, deleteNode, recreate)
}
