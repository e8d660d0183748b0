package snapshot

import (
	"math/bits"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// candidateBitmap remembers, per class, the nodes with room for one more of it by the predicates that only get worse as a node
// gains pods. A set bit may be stale the hopeful way: who finds it asks again. A clear bit is certain. While a plan runs,
// each word of bits is made when the search comes to it, since most searches end early.
type candidateBitmap struct {
	bits         []uint64 // by position in the order of search
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

// Rooms is what all rooms have in common: the order in which nodes are searched, and which nodes have changed.
type Rooms struct {
	nodes   *NodeSet
	journal *undoLog
	byClass []candidateBitmap // by ID of the class

	Order          []int32 // node by position
	position       []int32 // by node
	orderVersion   uint64  // moves when nodes come or go, or the order changes
	changedNodes   []int32 // nodes changed, in order
	droppedChanges uint64  // how many entries were cut off the front of touched
	isDefaultOrder bool    // the order is that of ArrangePlain
	planning       bool    // a plan is running: nodes it keeps only gain pods, and every change is taken back or kept as a whole
}

// invalidateOrder makes every room compute itself anew.
func (r *Rooms) invalidateOrder() {
	r.orderVersion++
	r.isDefaultOrder = false
	r.Order = r.Order[:0]
	r.droppedChanges += uint64(len(r.changedNodes))
	r.changedNodes = r.changedNodes[:0]
}

// markChanged notes that a node has changed. While a plan runs, clear bits stay certain without it.
func (r *Rooms) markChanged(n int32) {
	if r.planning {
		return
	}
	if len(r.changedNodes) > 4096 {
		r.droppedChanges += uint64(len(r.changedNodes))
		r.changedNodes = r.changedNodes[:0]
	}
	r.changedNodes = append(r.changedNodes, n)
}

// Arrange sets the order of search. Positions are those of the list.
func (r *Rooms) Arrange(order []int32) {
	r.invalidateOrder()
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

// ArrangePlain searches all nodes that can be targets, in the order of their names. It does nothing when that is the
// order already, so that rooms last from plan to plan.
func (r *Rooms) ArrangePlain() {
	if r.isDefaultOrder {
		return
	}
	r.ArrangeByName()
	r.isDefaultOrder = true
}

// ArrangeByName searches the nodes that can be targets in the order of their names.
func (r *Rooms) ArrangeByName() {
	order := make([]int32, 0, len(r.nodes.slots))
	for _, n := range r.nodes.InOrder() {
		if n.Target() {
			order = append(order, n.ID)
		}
	}
	r.Arrange(order)
}

// bitmapOf returns the room of a class as it was last.
func (r *Rooms) bitmapOf(c *filter.Class) *candidateBitmap {
	for int(c.ID) >= len(r.byClass) {
		r.byClass = append(r.byClass, candidateBitmap{})
	}
	return &r.byClass[c.ID]
}

// forgetClasses drops the rooms of classes that are no more.
func (r *Rooms) forgetClasses(classes []int32) {
	for _, id := range classes {
		if int(id) < len(r.byClass) {
			r.byClass[id] = candidateBitmap{}
		}
	}
}

// StartPlan notes that a plan runs.
func (r *Rooms) StartPlan() { r.planning = true }

// EndPlan notes that the plan was taken back.
func (r *Rooms) EndPlan() {
	r.planning = false
	if !r.isDefaultOrder {
		r.invalidateOrder()
	}
}

// PositionOf returns the position of a node; none if it is not searched.
func (r *Rooms) PositionOf(n *filter.Node) int32 { return r.position[n.ID] }

// RoomFor returns the room of a class, brought up to date.
func (r *Rooms) RoomFor(c *filter.Class) *candidateBitmap {
	own := r.bitmapOf(c)
	now := r.droppedChanges + uint64(len(r.changedNodes))
	if own.valid && own.orderVersion == r.orderVersion && own.changesSeen == now {
		return own
	}
	if r.planning {
		r.journal.addChange(change{kind: bitmapReset, class: c})
	}
	if !own.valid || own.orderVersion != r.orderVersion || own.changesSeen < r.droppedChanges {
		own.reset((len(r.Order) + 63) / 64)
		for word := range own.bits {
			if !r.planning {
				r.computeWord(c, own, int32(word))
			}
		}
	} else {
		for _, n := range r.changedNodes[own.changesSeen-r.droppedChanges:] {
			r.updateBit(c, own, n)
		}
	}
	own.valid, own.orderVersion, own.changesSeen = true, r.orderVersion, now
	return own
}

// markUncomputed takes back that a word was made; of a room that was begun anew since, nothing is left to take back.
func (r *candidateBitmap) markUncomputed(word int32) {
	if int(word) < len(r.computed) {
		r.computed[word] = false
	}
}

// reset gives the room a number of words, none of them made.
func (r *candidateBitmap) reset(words int) {
	if cap(r.bits) < words {
		r.bits, r.computed = make([]uint64, words), make([]bool, words)
	}
	r.bits, r.computed = r.bits[:words], r.computed[:words]
	clear(r.computed)
}

// computeWord asks the 64 nodes of one word.
func (r *Rooms) computeWord(c *filter.Class, own *candidateBitmap, word int32) {
	var bits uint64
	first := int(word) << 6
	for i, n := range r.Order[first:min(first+64, len(r.Order))] {
		if c.Roomy(r.nodes.slots[n]) {
			bits |= 1 << i
		}
	}
	own.bits[word], own.computed[word] = bits, true
	if r.planning {
		r.journal.addChange(change{kind: wordComputed, node: word, class: c})
	}
}

// updateBit asks a node that has changed.
func (r *Rooms) updateBit(c *filter.Class, own *candidateBitmap, n int32) {
	position := r.position[n]
	if position == filter.None || !own.computed[position>>6] {
		return
	}
	if c.Roomy(r.nodes.slots[n]) {
		own.bits[position>>6] |= 1 << (position & 63)
	} else {
		own.clearBit(position)
	}
}

// nextCandidate returns the first position, from one to before another, of a node with room for the class; none if there is none.
func (r *Rooms) nextCandidate(c *filter.Class, own *candidateBitmap, from, to int32) int32 {
	for position := from; position < to; position++ {
		if !own.computed[position>>6] {
			r.computeWord(c, own, position>>6)
		}
		word := own.bits[position>>6] >> (position & 63)
		if word == 0 {
			position |= 63
			continue
		}
		if position += int32(bits.TrailingZeros64(word)); position >= to {
			return filter.None
		}
		if c.Roomy(r.nodes.slots[r.Order[position]]) {
			return position
		}
		own.clearBit(position)
		if r.journal.forks > 0 {
			r.journal.addChange(change{kind: bitCleared, node: position, class: c})
		}
	}
	return filter.None
}
