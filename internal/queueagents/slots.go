package queueagents

import (
	"context"
	"slices"
	"sync"
	"time"
)

// slotPool limits how many nodes are drained at once if their drains can wait.
type slotPool struct {
	limit int

	mu    sync.Mutex
	slots []*slot // that hold a slot or wait for one
}

func newSlotPool(limit int) *slotPool { return &slotPool{limit: limit} }

// slot is the drain slot of one agent. It implements agent.DrainSlots.
type slot struct {
	pool    *slotPool
	node    string
	changed chan struct{} // has a value if the state has changed

	// The fields below are protected by the mutex of the pool.
	wanted, held bool
	until        time.Time
}

func (p *slotPool) newSlot(node string) *slot {
	return &slot{pool: p, node: node, changed: make(chan struct{}, 1)}
}

// SetWanted implements agent.DrainSlots.
func (s *slot) SetWanted(wanted bool, until time.Time) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.until = until
	if s.wanted == wanted {
		return
	}
	s.wanted = wanted
	if wanted {
		s.pool.slots = append(s.pool.slots, s)
	} else {
		s.held = false
		s.pool.slots = slices.DeleteFunc(s.pool.slots, func(o *slot) bool { return o == s })
	}
	s.pool.grant()
}

// grant gives the free slots to those that wait, the most urgent first. The caller holds the mutex.
func (p *slotPool) grant() {
	for {
		held := 0
		var next *slot
		for _, s := range p.slots {
			switch {
			case s.held:
				held++
			case next == nil, !s.until.IsZero() && (next.until.IsZero() || s.until.Before(next.until)):
				next = s
			}
		}
		if next == nil || held >= p.limit {
			return
		}
		next.held = true
		select {
		case next.changed <- struct{}{}:
		default:
		}
	}
}

// IsHeld implements agent.DrainSlots.
func (s *slot) IsHeld() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.held
}

// IsReleased implements agent.DrainSlots.
func (s *slot) IsReleased() bool { return !s.IsHeld() }

// Holders implements agent.DrainSlots.
func (s *slot) Holders() []string {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	var all []string
	for _, o := range s.pool.slots {
		if o.held && o != s {
			all = append(all, o.node)
		}
	}
	return all
}

// Run implements agent.DrainSlots.
func (s *slot) Run(ctx context.Context, changed func()) {
	defer s.SetWanted(false, time.Time{})
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			changed()
		}
	}
}
