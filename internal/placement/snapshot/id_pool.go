package snapshot

// idPool gives out small numbers, and again those that were returned.
type idPool struct {
	free  []int32
	count int32 // all numbers are less
}

func (p *idPool) take() int32 {
	if last := len(p.free) - 1; last >= 0 {
		id := p.free[last]
		p.free = p.free[:last]
		return id
	}
	p.count++
	return p.count - 1
}

func (p *idPool) put(id int32) { p.free = append(p.free, id) }
