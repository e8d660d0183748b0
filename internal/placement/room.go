package placement

import (
	"cmp"
	"math/bits"
	"slices"
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

// rooms is what all rooms have in common: the order in which nodes are searched, and which nodes have changed.
type rooms struct {
	order    []int32 // node by position
	position []int32 // by node
	shape    uint64  // moves when nodes come or go, or the order changes
	touched  []int32 // nodes changed, in order
	dropped  uint64  // how many entries were cut off the front of touched
	plain    bool    // the order is that of arrangePlain
	planning bool    // a plan is running: nodes it keeps only gain pods, and every change is taken back or kept as a whole
}

// reshape makes every room compute itself anew.
func (r *rooms) reshape() {
	r.shape++
	r.plain = false
	r.order = r.order[:0]
	r.dropped += uint64(len(r.touched))
	r.touched = r.touched[:0]
}

// touch notes that a node has changed. While a plan runs, clear bits stay certain without it.
func (r *rooms) touch(n int32) {
	if r.planning {
		return
	}
	if len(r.touched) > 4096 {
		r.dropped += uint64(len(r.touched))
		r.touched = r.touched[:0]
	}
	r.touched = append(r.touched, n)
}

// arrange sets the order of search. Positions are those of the list.
func (s *Snapshot) arrange(order []int32) {
	r := &s.rooms
	r.reshape()
	r.order = append(r.order, order...)
	for len(r.position) < len(s.nodes) {
		r.position = append(r.position, none)
	}
	for i := range r.position {
		r.position[i] = none
	}
	for i, n := range r.order {
		r.position[n] = int32(i)
	}
}

// arrangePlain searches all nodes that can be targets, in the order of their names. It does nothing when that is the
// order already, so that rooms last from plan to plan.
func (s *Snapshot) arrangePlain() {
	if s.rooms.plain {
		return
	}
	s.arrangeByName()
	s.rooms.plain = true
}

// arrangeByName searches the nodes that can be targets in the order of their names.
func (s *Snapshot) arrangeByName() {
	order := make([]int32, 0, len(s.nodes))
	for _, n := range s.byName() {
		if s.target(n) {
			order = append(order, n.id)
		}
	}
	s.arrange(order)
}

// byName lists the nodes in the order of their names, which unlike that of their slots does not depend on the order in
// which they became known.
func (s *Snapshot) byName() []*node {
	if s.names == nil {
		s.names = make([]*node, 0, len(s.nodeByName))
		for _, n := range s.nodes {
			if n.present {
				s.names = append(s.names, n)
			}
		}
		slices.SortFunc(s.names, func(a, b *node) int { return cmp.Compare(a.name(), b.name()) })
	}
	return s.names
}

// roomFor returns the room of a class, brought up to date.
func (s *Snapshot) roomFor(c *class) *room {
	r, all := &c.room, &s.rooms
	now := all.dropped + uint64(len(all.touched))
	if r.valid && r.shape == all.shape && r.seen == now {
		return r
	}
	if all.planning {
		s.log = append(s.log, change{kind: roomMade, class: c})
	}
	if !r.valid || r.shape != all.shape || r.seen < all.dropped {
		r.reset((len(all.order) + 63) / 64)
		for word := range r.bits {
			if !all.planning {
				s.makeWord(c, int32(word))
			}
		}
	} else {
		for _, n := range all.touched[r.seen-all.dropped:] {
			s.judgeRoom(c, n)
		}
	}
	r.valid, r.shape, r.seen = true, all.shape, now
	return r
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
func (s *Snapshot) makeWord(c *class, word int32) {
	var bits uint64
	first := int(word) << 6
	for i, n := range s.rooms.order[first:min(first+64, len(s.rooms.order))] {
		if s.roomy(c, s.nodes[n]) {
			bits |= 1 << i
		}
	}
	c.room.bits[word], c.room.made[word] = bits, true
	if s.rooms.planning {
		s.log = append(s.log, change{kind: wordMade, node: word, class: c})
	}
}

func (s *Snapshot) judgeRoom(c *class, n int32) {
	position := s.rooms.position[n]
	if position == none || !c.room.made[position>>6] {
		return
	}
	if s.roomy(c, s.nodes[n]) {
		c.room.bits[position>>6] |= 1 << (position & 63)
	} else {
		c.room.clear(position)
	}
}

// find returns the first node, searching from a position and wrapping around, on which the class fits; nil if none.
func (s *Snapshot) find(c *class, from int32) *node {
	if !s.placeable(c) {
		return nil
	}
	r := s.roomFor(c)
	if n := s.findIn(c, r, from, int32(len(s.rooms.order))); n != nil {
		return n
	}
	return s.findIn(c, r, 0, from)
}

func (s *Snapshot) findIn(c *class, r *room, from, to int32) *node {
	for position := from; position < to; position++ {
		if !r.made[position>>6] {
			s.makeWord(c, position>>6)
		}
		word := r.bits[position>>6] >> (position & 63)
		if word == 0 {
			position |= 63
			continue
		}
		if position += int32(bits.TrailingZeros64(word)); position >= to {
			return nil
		}
		n := s.nodes[s.rooms.order[position]]
		if !s.roomy(c, n) {
			r.clear(position)
			if s.forks > 0 {
				s.log = append(s.log, change{kind: bitClear, node: position, class: c})
			}
			continue
		}
		if c.spreadFits(n.id) == nil && c.podAffinityFits(n.id) == nil && c.featuresDeclared(n) &&
			(c.volumes == nil || s.judge(c, n).Outcome == Fits) {
			return n
		}
	}
	return nil
}
