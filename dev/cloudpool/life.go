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

// loop has the pool be as large as it is meant to, until it is closed.
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

// turnLocked launches what is missing, and terminates what is too much or disposable.
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

// surplusLocked are the machines that the pool itself takes to shrink by n; it may find fewer.
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

// launchLocked asks the cloud for one more machine.
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

// advance changes a machine that is still in a state.
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

// join adds the Node of a machine that runs. One that has ended meanwhile leaves a Node that is silent.
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
		p.log.Error("a machine's node did not join", "machine", now.ID, "err", err)
	}
}

// look gives a machine as it is, and whether it runs.
func (p *Pool) look(m *Machine) (Machine, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *m, m.State == Running
}

// terminateLocked begins to end a machine, at once or when the call takes effect.
func (p *Pool) terminateLocked(m *Machine) {
	if !m.State.Allocated() || p.faultLocked(TerminationFails, m.ID) {
		return
	}
	if p.o.Lag <= 0 {
		m.State = Terminating
		p.goLocked(func(ctx context.Context) { p.leave(ctx, m) })
		return
	}
	m.doomed = true // the server knows what it has done itself
	p.goLocked(func(ctx context.Context) {
		if !rest(ctx, p.o.Lag) {
			return
		}
		p.mu.Lock()
		begins := m.State.Allocated() // and not begun by an earlier call
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

// leave leads a machine to its end.
func (p *Pool) leave(ctx context.Context, m *Machine) {
	p.mu.Lock()
	gone := *m
	p.mu.Unlock()
	if p.o.Nodes != nil {
		if err := p.o.Nodes.Leave(ctx, gone); err != nil && ctx.Err() == nil {
			p.log.Error("a machine could not be switched off", "machine", gone.ID, "err", err)
		}
	}
	if rest(ctx, p.o.Terminate) && p.awaitHealed(ctx, m.ID) {
		p.end(ctx, m)
	}
}

// awaitHealed returns when no fault keeps a machine's termination from its end.
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

// end has a machine be TERMINATED, and listed as such for a while.
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
