package cloudpool

import (
	"context"
	"slices"
	"time"
)

// kick wakes the loop.
func (p *Pool) kick() {
	select {
	case p.resize <- struct{}{}:
	default:
	}
}

// loop resizes the pool to its desired size until it is closed.
func (p *Pool) loop() {
	var tick <-chan time.Time
	if p.o.Resize > 0 {
		ticker := time.NewTicker(p.o.Resize)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick:
		case <-p.resize:
			if !rest(p.ctx, p.o.Lag) {
				return
			}
		}
		p.mu.Lock()
		if p.started {
			p.turnLocked()
		}
		p.mu.Unlock()
	}
}

// turnLocked launches missing machines, and terminates surplus or disposable ones.
func (p *Pool) turnLocked() {
	active := 0
	for _, m := range slices.Clone(p.machines) {
		switch {
		case m.State.Allocated() && !m.Membership.Active && m.Membership.Evictable:
			p.terminateLocked(m)
		case m.active() && !m.doomed:
			active++
		}
	}
	for ; active < p.desired; active++ {
		p.launchLocked()
	}
	if active > p.desired {
		for _, m := range p.surplusLocked(active - p.desired) {
			p.terminateLocked(m)
		}
	}
	p.announceLocked()
}

// surplusLocked returns up to n machines that the pool selects to shrink.
func (p *Pool) surplusLocked(n int) []*Machine {
	var evictable []*Machine
	for _, m := range p.machines {
		if m.active() && !m.doomed && m.Membership.Evictable {
			evictable = append(evictable, m)
		}
	}
	slices.SortStableFunc(evictable, func(a, b *Machine) int {
		if (a.State == Requested) != (b.State == Requested) {
			if a.State == Requested {
				return -1
			}
			return 1
		}
		if p.o.Policy == Oldest {
			return a.Serial - b.Serial
		}
		return b.Serial - a.Serial
	})
	return evictable[:min(n, len(evictable))]
}

// launchLocked requests one more machine from the cloud.
func (p *Pool) launchLocked() {
	allocated := 0
	for _, m := range p.machines {
		if m.State.Allocated() {
			allocated++
		}
	}
	if p.o.Quota > 0 && allocated >= p.o.Quota {
		if !slices.ContainsFunc(p.machines, func(m *Machine) bool { return m.State == Rejected }) {
			p.makeLocked().State = Rejected
		}
		return
	}
	m := p.makeLocked()
	p.goLocked(func(ctx context.Context) {
		if !rest(ctx, p.o.Launch) || !p.advance(m, Requested, func() { m.State = Pending }) {
			return
		}
		if !rest(ctx, p.o.Launch) || !p.advance(m, Pending, func() { p.startLocked(m) }) {
			return
		}
		p.join(ctx, m)
	})
}

// advance changes a machine if it is still in a state, and reports whether it was.
func (p *Pool) advance(m *Machine, from State, change func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.State != from {
		return false
	}
	change()
	p.announceLocked()
	return true
}

// join adds the Node of a running machine. If the machine has ended meanwhile, its Node is powered off.
func (p *Pool) join(ctx context.Context, m *Machine) {
	if p.o.Nodes == nil || !rest(ctx, p.o.Register) {
		return
	}
	now, runs := p.look(m)
	if !runs {
		return
	}
	err := p.o.Nodes.Join(ctx, now)
	if now, runs = p.look(m); err == nil && !runs {
		err = p.o.Nodes.Leave(ctx, now)
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error("the node of a machine did not join", "machine", now.ID, "err", err)
	}
}

// look returns a copy of a machine, and whether it runs.
func (p *Pool) look(m *Machine) (Machine, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *m, m.State == Running
}

// terminateLocked starts the termination of a machine, at once or when the call takes effect.
func (p *Pool) terminateLocked(m *Machine) {
	if !m.State.Allocated() || p.faultLocked(TerminationFails, m.ID) {
		return
	}
	if p.o.Lag <= 0 {
		m.State = Terminating
		p.goLocked(func(ctx context.Context) { p.leave(ctx, m) })
		return
	}
	m.doomed = true // the server knows its own calls
	p.goLocked(func(ctx context.Context) {
		if !rest(ctx, p.o.Lag) {
			return
		}
		p.mu.Lock()
		begins := m.State.Allocated() // and no earlier call has begun it
		if begins {
			m.State = Terminating
			p.announceLocked()
		}
		p.mu.Unlock()
		if begins {
			p.leave(ctx, m)
		}
	})
}

// leave runs a machine's termination to its end.
func (p *Pool) leave(ctx context.Context, m *Machine) {
	p.mu.Lock()
	gone := *m
	p.mu.Unlock()
	if p.o.Nodes != nil {
		if err := p.o.Nodes.Leave(ctx, gone); err != nil && ctx.Err() == nil {
			p.log.Error("cannot switch off a machine", "machine", gone.ID, "err", err)
		}
	}
	if rest(ctx, p.o.Terminate) && p.awaitHealed(ctx, m.ID) {
		p.end(ctx, m)
	}
}

// awaitHealed waits until no fault blocks a machine's termination.
func (p *Pool) awaitHealed(ctx context.Context, id string) bool {
	for {
		p.mu.Lock()
		hangs, changed := p.faultLocked(TerminationHangs, id), p.changed
		p.mu.Unlock()
		if !hangs {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// end marks a machine as TERMINATED, and lists it for a while.
func (p *Pool) end(ctx context.Context, m *Machine) {
	p.mu.Lock()
	m.State = Terminated
	p.announceLocked()
	p.mu.Unlock()
	if p.o.Linger > 0 && !rest(ctx, p.o.Linger) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(m)
}
