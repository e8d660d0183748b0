package snapshot

// idPool gives out small numbers, and again those that were returned.
type idPool struct {
	free  []int32
	limit int32 // all numbers are less
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
