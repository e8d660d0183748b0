package snapshot

// idPool allocates small numbers and reuses the released ones.
type idPool struct {
	free  []int32
	limit int32 // greater than all numbers
}

func (p *idPool) allocateID() int32 {
	if last := len(p.free) - 1; last >= 0 {
		id := p.free[last]
		p.free = p.free[:last]
		return id
	}
	p.limit++
	return p.limit - 1
}

func (p *idPool) releaseID(id int32) { p.free = append(p.free, id) }
