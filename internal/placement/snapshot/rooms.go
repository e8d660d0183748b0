package snapshot

import (
	"math/bits"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// room remembers, per class, the nodes with room for one more of it by the predicates that only get worse as a node
// gains pods. A set bit may be stale the hopeful way: who finds it asks again. A clear bit is certain. While a plan runs,
// each word of bits is made when the search comes to it, since most searches end early.
type room struct {
	bits  []uint64 // by position in the order of search
	made  []bool   // by word of bits
	valid bool
	shape uint64
	seen  uint64
}

func (r *room) set(position int32) {
	if r.valid && int(position>>6) < len(r.bits) {
		r.bits[position>>6] |= 1 << (position & 63)
	}
}

func (r *room) clear(position int32) { r.bits[position>>6] &^= 1 << (position & 63) }

// Rooms is what all rooms have in common: the order in which nodes are searched, and which nodes have changed.
type Rooms struct {
	nodes   *NodeSet
	journal *journal
	byClass []room // by ID of the class

	Order    []int32 // node by position
	position []int32 // by node
	shape    uint64  // moves when nodes come or go, or the order changes
	touched  []int32 // nodes changed, in order
	dropped  uint64  // how many entries were cut off the front of touched
	plain    bool    // the order is that of ArrangePlain
	planning bool    // a plan is running: nodes it keeps only gain pods, and every change is taken back or kept as a whole
}

// reshape makes every room compute itself anew.
func (r *Rooms) reshape() {
	r.shape++
	r.plain = false
	r.Order = r.Order[:0]
	r.dropped += uint64(len(r.touched))
	r.touched = r.touched[:0]
}

// touch notes that a node has changed. While a plan runs, clear bits stay certain without it.
func (r *Rooms) touch(n int32) {
	if r.planning {
		return
	}
	if len(r.touched) > 4096 {
		r.dropped += uint64(len(r.touched))
		r.touched = r.touched[:0]
	}
	r.touched = append(r.touched, n)
}

// Arrange sets the order of search. Positions are those of the list.
func (r *Rooms) Arrange(order []int32) {
	r.reshape()
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
	if r.plain {
		return
	}
	r.ArrangeByName()
	r.plain = true
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

// of returns the room of a class as it was last.
func (r *Rooms) of(c *filter.Class) *room {
	for int(c.ID) >= len(r.byClass) {
		r.byClass = append(r.byClass, room{})
	}
	return &r.byClass[c.ID]
}

// forget drops the rooms of classes that are no more.
func (r *Rooms) forget(classes []int32) {
	for _, id := range classes {
		if int(id) < len(r.byClass) {
			r.byClass[id] = room{}
		}
	}
}

// StartPlan notes that a plan runs.
func (r *Rooms) StartPlan() { r.planning = true }

// EndPlan notes that the plan was taken back.
func (r *Rooms) EndPlan() {
	r.planning = false
	if !r.plain {
		r.reshape()
	}
}

// PositionOf returns the position of a node; none if it is not searched.
func (r *Rooms) PositionOf(n *filter.Node) int32 { return r.position[n.ID] }

// RoomFor returns the room of a class, brought up to date.
func (r *Rooms) RoomFor(c *filter.Class) *room {
	own := r.of(c)
	now := r.dropped + uint64(len(r.touched))
	if own.valid && own.shape == r.shape && own.seen == now {
		return own
	}
	if r.planning {
		r.journal.add(change{kind: roomMade, class: c})
	}
	if !own.valid || own.shape != r.shape || own.seen < r.dropped {
		own.reset((len(r.Order) + 63) / 64)
		for word := range own.bits {
			if !r.planning {
				r.makeWord(c, own, int32(word))
			}
		}
	} else {
		for _, n := range r.touched[own.seen-r.dropped:] {
			r.judgeAgain(c, own, n)
		}
	}
	own.valid, own.shape, own.seen = true, r.shape, now
	return own
}

// unmake takes back that a word was made; of a room that was begun anew since, nothing is left to take back.
func (r *room) unmake(word int32) {
	if int(word) < len(r.made) {
		r.made[word] = false
	}
}

// reset gives the room a number of words, none of them made.
func (r *room) reset(words int) {
	if cap(r.bits) < words {
		r.bits, r.made = make([]uint64, words), make([]bool, words)
	}
	r.bits, r.made = r.bits[:words], r.made[:words]
	clear(r.made)
}

// makeWord asks the 64 nodes of one word.
func (r *Rooms) makeWord(c *filter.Class, own *room, word int32) {
	var bits uint64
	first := int(word) << 6
	for i, n := range r.Order[first:min(first+64, len(r.Order))] {
		if c.Roomy(r.nodes.slots[n]) {
			bits |= 1 << i
		}
	}
	own.bits[word], own.made[word] = bits, true
	if r.planning {
		r.journal.add(change{kind: wordMade, node: word, class: c})
	}
}

// judgeAgain asks a node that has changed.
func (r *Rooms) judgeAgain(c *filter.Class, own *room, n int32) {
	position := r.position[n]
	if position == filter.None || !own.made[position>>6] {
		return
	}
	if c.Roomy(r.nodes.slots[n]) {
		own.bits[position>>6] |= 1 << (position & 63)
	} else {
		own.clear(position)
	}
}

// next returns the first position, from one to before another, of a node with room for the class; none if there is none.
func (r *Rooms) next(c *filter.Class, own *room, from, to int32) int32 {
	for position := from; position < to; position++ {
		if !own.made[position>>6] {
			r.makeWord(c, own, position>>6)
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
		own.clear(position)
		if r.journal.forks > 0 {
			r.journal.add(change{kind: bitClear, node: position, class: c})
		}
	}
	return filter.None
}
