package retirement_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// scene is what a seed decides, but for the faults.
type scene struct {
	seed uint64
	// failing is how many in a hundred requests of the manager go wrong.
	failing int
	// nodes are in the pool, of which the first so many are retired.
	nodes, retired int
	minimum        int
	// budget is how many nodes may be unavailable at once; 0 says nothing, which means 1.
	budget int
	// pods are on each of the nodes that are retired.
	pods int
	// budgeted adds a Deployment with a disruption budget over the whole pool.
	budgeted bool
	// agentPool has AKS delete the machines, and not the scale set.
	agentPool bool
	troubles  []trouble
}

// trouble is something that somebody does when the managers have made so many requests.
type trouble struct {
	kind string
	at   int
	// node is the instance that it is done to, one of those that are retired.
	node int
}

// What others do.
const (
	crash         = "crash"          // the manager ends, and is started again
	protect       = "protect"        // a pod is bound that asks not to be evicted
	claim         = "claim"          // another tool begins to remove the node
	callOff       = "call off"       // the NodeRetirement is deleted
	lose          = "lose"           // the machine is taken away
	deleteNode    = "delete node"    // the Node is deleted
	recreate      = "recreate"       // the Node is deleted, and comes back under its name
	uncordon      = "uncordon"       // the Node is uncordoned
	twin          = "twin"           // the node is retired once more
	deletionFails = "deletion fails" // the cloud takes a deletion, which fails
)

var troubles = []string{crash, crash, protect, claim, callOff, lose, deleteNode, recreate, uncordon, twin, deletionFails}

// requestsOfARetirement is about how many requests a manager makes from its start until it has retired a node.
const requestsOfARetirement = 50

func sceneOf(seed uint64) scene {
	random := rand.New(rand.NewPCG(seed, 0))
	s := scene{seed: seed, nodes: 2, retired: 1, pods: random.IntN(3), budgeted: random.IntN(8) == 0, failing: 5 + random.IntN(20)}
	if random.IntN(3) == 0 {
		s.nodes, s.retired, s.budget = 3, 2, random.IntN(3)
	}
	s.minimum = random.IntN(s.nodes - s.retired + 1)
	for range random.IntN(3) {
		s.troubles = append(s.troubles, trouble{
			kind: troubles[random.IntN(len(troubles))], at: 5 + random.IntN(requestsOfARetirement), node: random.IntN(s.retired),
		})
	}
	s.agentPool = random.IntN(3) == 0
	return s
}

func (s scene) String() string {
	var said []string
	for _, t := range s.troubles {
		said = append(said, fmt.Sprintf("%s of node %d at request %d", t.kind, t.node, t.at))
	}
	return fmt.Sprintf("%d %% of requests fail; %d of %d nodes are retired, minimum %d, budget %d, %d pods on each, budgeted app %t, agent pool %t; %s", s.failing, s.retired, s.nodes,
		s.minimum, s.budget, s.pods, s.budgeted, s.agentPool, strings.Join(said, "; "))
}

// has reports whether something of a kind is done to an instance.
func (s scene) has(node int, kinds ...string) bool {
	for _, t := range s.troubles {
		for _, kind := range kinds {
			if t.kind == kind && (t.node == node || node == anyNode) {
				return true
			}
		}
	}
	return false
}

const anyNode = -1

// disturbed reports whether something is done after which not every retirement has to succeed.
func (s scene) disturbed() bool {
	return s.has(anyNode, protect, claim, callOff, lose, deleteNode, recreate)
}
