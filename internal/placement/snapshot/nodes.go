package snapshot

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// NodeSet holds the nodes of a snapshot.
type NodeSet struct {
	slots  []*filter.Node // by ID; slots of deleted nodes are empty until reused
	ids    idPool
	byName map[string]*filter.Node
	sorted []*filter.Node // sorted by name; nil after nodes were added or deleted
	means  []float64      // see MeanAllocatable; nil after nodes have changed
}

// addNode creates a node in a free slot.
func (t *NodeSet) addNode(name string) *filter.Node {
	id := t.ids.allocateID()
	if int(id) == len(t.slots) {
		t.slots = append(t.slots, nil)
	}
	n := &filter.Node{ID: id, Present: true}
	t.slots[id], t.byName[name] = n, n
	t.sorted, t.means = nil, nil
	return n
}

func (t *NodeSet) removeNode(n *filter.Node) {
	delete(t.byName, n.Name())
	t.slots[n.ID] = &filter.Node{ID: n.ID, Object: &corev1.Node{}}
	t.ids.releaseID(n.ID)
	t.sorted, t.means = nil, nil
}

// SortedByName lists the nodes sorted by name. The order of the slots depends on the order of events.
func (t *NodeSet) SortedByName() []*filter.Node {
	if t.sorted == nil {
		t.sorted = make([]*filter.Node, 0, len(t.byName))
		for _, n := range t.slots {
			if n.Present {
				t.sorted = append(t.sorted, n)
			}
		}
		slices.SortFunc(t.sorted, func(a, b *filter.Node) int { return cmp.Compare(a.Name(), b.Name()) })
	}
	return t.sorted
}

// MeanAllocatable returns, by resource, the mean allocatable amount of the nodes that have the resource.
func (t *NodeSet) MeanAllocatable() []float64 {
	if t.means != nil {
		return t.means
	}
	var having []float64
	t.means = []float64{}
	for _, n := range t.slots {
		for r, value := range n.Allocatable {
			for r >= len(t.means) {
				t.means, having = append(t.means, 0), append(having, 0)
			}
			if value > 0 && n.Present && !n.RemovedByPlan {
				t.means[r] += float64(value)
				having[r]++
			}
		}
	}
	for r := range t.means {
		if having[r] > 0 {
			t.means[r] /= having[r]
		}
	}
	return t.means
}

// FindUnlessRemoved returns a node. It fails if the node is unknown or a plan has removed it.
func (t *NodeSet) FindUnlessRemoved(name string) (*filter.Node, error) {
	n, ok := t.byName[name]
	if !ok || n.RemovedByPlan {
		return nil, fmt.Errorf("node %s is not in the snapshot", name)
	}
	return n, nil
}

// Lookup returns a node, or nil if it is unknown. A plan may have removed it.
func (t *NodeSet) Lookup(name string) *filter.Node { return t.byName[name] }

// ByID returns the node with an ID.
func (t *NodeSet) ByID(id int32) *filter.Node { return t.slots[id] }

func (t *NodeSet) Len() int { return len(t.byName) }

// Names returns the names of the nodes, in no order.
func (t *NodeSet) Names() iter.Seq[string] { return maps.Keys(t.byName) }
