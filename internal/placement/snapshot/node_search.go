package snapshot

import (
	"math/bits"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// candidateBitmap holds, for one class, a bit for each node. A set bit means that one more pod may fit, by the filters
// that can only get worse when a node gains pods. It must be checked again. A clear bit means that no pod fits. During
// a plan each word is computed on first use, because most searches end early.
type candidateBitmap struct {
	bits         []uint64 // by position in the search order
	computed     []bool   // by word of bits
	valid        bool
	orderVersion uint64
	changesSeen  uint64
}

func (r *candidateBitmap) setBit(position int32) {
	if r.valid && int(position>>6) < len(r.bits) {
		r.bits[position>>6] |= 1 << (position & 63)
	}
}

func (r *candidateBitmap) clearBit(position int32) { r.bits[position>>6] &^= 1 << (position & 63) }

// NodeSearch holds the search order of the nodes, the changed nodes, and the bitmap of each class.
type NodeSearch struct {
	nodes   *NodeSet
	journal *undoLog
	byClass []candidateBitmap // by ID of the class

	Order          []int32 // node by position
	position       []int32 // by node
	orderVersion   uint64  // increases when nodes are added or deleted, or the order changes
	changedNodes   []int32 // in the order of the changes
	droppedChanges uint64  // number of entries that were cut off the front of changedNodes
	isDefaultOrder bool    // the order was set by UseDefaultOrder
	planning       bool    // a plan runs: its nodes only gain pods, and all changes are undone or kept together
}

// discardOrder discards the order, so that every bitmap is computed again.
func (r *NodeSearch) discardOrder() {
	r.orderVersion++
	r.isDefaultOrder = false
	r.Order = r.Order[:0]
	r.droppedChanges += uint64(len(r.changedNodes))
	r.changedNodes = r.changedNodes[:0]
}

// markChangedUnlessPlanning records a changed node. It does nothing during a plan, because clear bits stay certain then.
func (r *NodeSearch) markChangedUnlessPlanning(nodeID int32) {
	if r.planning {
		return
	}
	if len(r.changedNodes) > 4096 {
		r.droppedChanges += uint64(len(r.changedNodes))
		r.changedNodes = r.changedNodes[:0]
	}
	r.changedNodes = append(r.changedNodes, nodeID)
}

// SetOrder sets the search order. A position is an index in this list.
func (r *NodeSearch) SetOrder(order []int32) {
	r.discardOrder()
	r.Order = append(r.Order, order...)
	for len(r.position) < len(r.nodes.slots) {
		r.position = append(r.position, filter.None)
	}
	for i := range r.position {
		r.position[i] = filter.None
	}
	for i, n := range r.Order {
		r.position[n] = int32(i)
	}
}

// UseDefaultOrder sets the default order: all nodes that can receive pods, by name. It does nothing if that is the order
// already, so that bitmaps stay valid from plan to plan.
func (r *NodeSearch) UseDefaultOrder() {
	if r.isDefaultOrder {
		return
	}
	r.OrderTargetsByName()
	r.isDefaultOrder = true
}

// OrderTargetsByName sets the order of all nodes that can receive pods, by name.
func (r *NodeSearch) OrderTargetsByName() {
	order := make([]int32, 0, len(r.nodes.slots))
	for _, n := range r.nodes.SortedByName() {
		if n.CanReceivePods() {
			order = append(order, n.ID)
		}
	}
	r.SetOrder(order)
}

// storedBitmapOf returns the bitmap of a class without an update.
func (r *NodeSearch) storedBitmapOf(c *filter.PodClass) *candidateBitmap {
	for int(c.ID) >= len(r.byClass) {
		r.byClass = append(r.byClass, candidateBitmap{})
	}
	return &r.byClass[c.ID]
}

// dropClassBitmaps drops the bitmaps of dropped classes.
func (r *NodeSearch) dropClassBitmaps(classIDs []int32) {
	for _, id := range classIDs {
		if int(id) < len(r.byClass) {
			r.byClass[id] = candidateBitmap{}
		}
	}
}

// EnterPlanMode must be called before a plan changes the snapshot.
func (r *NodeSearch) EnterPlanMode() { r.planning = true }

// LeavePlanMode must be called after the plan was rolled back.
func (r *NodeSearch) LeavePlanMode() {
	r.planning = false
	if !r.isDefaultOrder {
		r.discardOrder()
	}
}

// PositionOf returns the position of a node, or None if it is not searched.
func (r *NodeSearch) PositionOf(n *filter.Node) int32 { return r.position[n.ID] }

// UpdateCandidateBitmap returns the updated bitmap of a class.
func (r *NodeSearch) UpdateCandidateBitmap(c *filter.PodClass) *candidateBitmap {
	bitmap := r.storedBitmapOf(c)
	now := r.droppedChanges + uint64(len(r.changedNodes))
	if bitmap.valid && bitmap.orderVersion == r.orderVersion && bitmap.changesSeen == now {
		return bitmap
	}
	if r.planning {
		r.journal.addChange(change{kind: bitmapReset, class: c})
	}
	if !bitmap.valid || bitmap.orderVersion != r.orderVersion || bitmap.changesSeen < r.droppedChanges {
		bitmap.resizeUncomputed((len(r.Order) + 63) / 64)
		for word := range bitmap.bits {
			if !r.planning {
				r.computeWord(c, bitmap, int32(word))
			}
		}
	} else {
		for _, n := range r.changedNodes[bitmap.changesSeen-r.droppedChanges:] {
			r.updateBit(c, bitmap, n)
		}
	}
	bitmap.valid, bitmap.orderVersion, bitmap.changesSeen = true, r.orderVersion, now
	return bitmap
}

// markUncomputed undoes computeWord. If the bitmap was reset since, there is nothing to undo.
func (r *candidateBitmap) markUncomputed(word int32) {
	if int(word) < len(r.computed) {
		r.computed[word] = false
	}
}

func (r *candidateBitmap) resizeUncomputed(words int) {
	if cap(r.bits) < words {
		r.bits, r.computed = make([]uint64, words), make([]bool, words)
	}
	r.bits, r.computed = r.bits[:words], r.computed[:words]
	clear(r.computed)
}

// computeWord evaluates the 64 nodes of one word.
func (r *NodeSearch) computeWord(c *filter.PodClass, bitmap *candidateBitmap, word int32) {
	var bits uint64
	first := int(word) << 6
	for i, n := range r.Order[first:min(first+64, len(r.Order))] {
		if c.HasRoomOn(r.nodes.slots[n]) {
			bits |= 1 << i
		}
	}
	bitmap.bits[word], bitmap.computed[word] = bits, true
	if r.planning {
		r.journal.addChange(change{kind: wordComputed, node: word, class: c})
	}
}

// updateBit evaluates a changed node again.
func (r *NodeSearch) updateBit(c *filter.PodClass, bitmap *candidateBitmap, n int32) {
	position := r.position[n]
	if position == filter.None || !bitmap.computed[position>>6] {
		return
	}
	if c.HasRoomOn(r.nodes.slots[n]) {
		bitmap.bits[position>>6] |= 1 << (position & 63)
	} else {
		bitmap.clearBit(position)
	}
}

// nextCandidate returns the first position in [from, to) of a node with room for the class, or None.
func (r *NodeSearch) nextCandidate(c *filter.PodClass, bitmap *candidateBitmap, from, to int32) (position int32) {
	for position = from; position < to; position++ {
		if !bitmap.computed[position>>6] {
			r.computeWord(c, bitmap, position>>6)
		}
		word := bitmap.bits[position>>6] >> (position & 63)
		if word == 0 {
			position |= 63
			continue
		}
		if position += int32(bits.TrailingZeros64(word)); position >= to {
			return filter.None
		}
		if c.HasRoomOn(r.nodes.slots[r.Order[position]]) {
			return position
		}
		bitmap.clearBit(position)
		if r.journal.forks > 0 {
			r.journal.addChange(change{kind: bitCleared, node: position, class: c})
		}
	}
	return filter.None
}
