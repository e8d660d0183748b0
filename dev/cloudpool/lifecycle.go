package cloudpool

import (
	"context"
	"slices"
	"time"
)

// triggerResize wakes the loop.
func (p *Pool) triggerResize() {
	select {
	case p.resize <- struct{}{}:
	default:
	}
}

// runResizeLoop resizes the pool to its desired size until it is closed.
func (p *Pool) runResizeLoop() {
	var tick <-chan time.Time
	if p.opts.ResizeInterval > 0 {
		ticker := time.NewTicker(p.opts.ResizeInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick:
		case <-p.resize:
			if !sleep(p.ctx, p.opts.CallDelay) {
				return
			}
		}
		p.mu.Lock()
		if p.started {
			p.resizeOnceLocked()
		}
		p.mu.Unlock()
	}
}

// resizeOnceLocked launches missing machines, and terminates surplus or disposable ones.
func (p *Pool) resizeOnceLocked() {
	active := 0
	for _, m := range slices.Clone(p.machines) {
		switch {
		case m.State.IsAllocated() && !m.Membership.Active && m.Membership.Evictable:
			p.startTerminationLocked(m)
		case m.isActive() && !m.terminationAccepted:
			active++
		}
	}
	for ; active < p.desired; active++ {
		p.launchMachineLocked()
	}
	if active > p.desired {
		for _, m := range p.selectSurplusLocked(active - p.desired) {
			p.startTerminationLocked(m)
		}
	}
	p.notifyWaitersLocked()
}

// selectSurplusLocked returns up to n machines that the pool selects to shrink.
func (p *Pool) selectSurplusLocked(n int) []*Machine {
	var evictable []*Machine
	for _, m := range p.machines {
		if m.isActive() && !m.terminationAccepted && m.Membership.Evictable {
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
		if p.opts.Policy == Oldest {
			return a.Serial - b.Serial
		}
		return b.Serial - a.Serial
	})
	return evictable[:min(n, len(evictable))]
}

// launchMachineLocked requests one more machine from the cloud.
func (p *Pool) launchMachineLocked() {
	allocated := 0
	for _, m := range p.machines {
		if m.State.IsAllocated() {
			allocated++
		}
	}
	if p.opts.Quota > 0 && allocated >= p.opts.Quota {
		if !slices.ContainsFunc(p.machines, func(m *Machine) bool { return m.State == Rejected }) {
			p.newMachineLocked().State = Rejected
		}
		return
	}
	m := p.newMachineLocked()
	p.goLocked(func(ctx context.Context) {
		if !sleep(ctx, p.opts.LaunchTime) || !p.changeIfInState(m, Requested, func() { m.State = Pending }) {
			return
		}
		if !sleep(ctx, p.opts.LaunchTime) || !p.changeIfInState(m, Pending, func() { p.markRunningLocked(m) }) {
			return
		}
		p.joinNode(ctx, m)
	})
}

// changeIfInState changes a machine if it is still in a state, and reports whether it was.
func (p *Pool) changeIfInState(m *Machine, from State, change func()) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.State != from {
		return false
	}
	change()
	p.notifyWaitersLocked()
	return true
}

// joinNode adds the Node of a running machine. If the machine has ended meanwhile, its Node is powered off.
func (p *Pool) joinNode(ctx context.Context, m *Machine) {
	if p.opts.Nodes == nil || !sleep(ctx, p.opts.JoinTime) {
		return
	}
	now, runs := p.copyMachine(m)
	if !runs {
		return
	}
	err := p.opts.Nodes.AddNode(ctx, now)
	if now, runs = p.copyMachine(m); err == nil && !runs {
		err = p.opts.Nodes.PowerOffNode(ctx, now)
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error("the node of a machine did not join", "machine", now.ID, "err", err)
	}
}

// copyMachine returns a copy of a machine, and whether it runs.
func (p *Pool) copyMachine(m *Machine) (Machine, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *m, m.State == Running
}

// startTerminationLocked starts the termination of a machine, at once or when the call takes effect.
func (p *Pool) startTerminationLocked(m *Machine) {
	if !m.State.IsAllocated() || p.hasFaultLocked(TerminationFails, m.ID) {
		return
	}
	if p.opts.CallDelay <= 0 {
		m.State = Terminating
		p.goLocked(func(ctx context.Context) { p.finishTermination(ctx, m) })
		return
	}
	m.terminationAccepted = true // the server knows its own calls
	p.goLocked(func(ctx context.Context) {
		if !sleep(ctx, p.opts.CallDelay) {
			return
		}
		p.mu.Lock()
		begins := m.State.IsAllocated() // and no earlier call has begun it
		if begins {
			m.State = Terminating
			p.notifyWaitersLocked()
		}
		p.mu.Unlock()
		if begins {
			p.finishTermination(ctx, m)
		}
	})
}

// finishTermination runs a machine's termination to its end.
func (p *Pool) finishTermination(ctx context.Context, m *Machine) {
	p.mu.Lock()
	copied := *m
	p.mu.Unlock()
	if p.opts.Nodes != nil {
		if err := p.opts.Nodes.PowerOffNode(ctx, copied); err != nil && ctx.Err() == nil {
			p.log.Error("cannot switch off a machine", "machine", copied.ID, "err", err)
		}
	}
	if sleep(ctx, p.opts.TerminateTime) && p.awaitNoTerminationFault(ctx, m.ID) {
		p.markTerminated(ctx, m)
	}
}

// awaitNoTerminationFault waits until no fault blocks a machine's termination.
func (p *Pool) awaitNoTerminationFault(ctx context.Context, id string) (cleared bool) {
	for {
		p.mu.Lock()
		hangs, changed := p.hasFaultLocked(TerminationHangs, id), p.changed
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

// markTerminated marks a machine as TERMINATED, and lists it for a while.
func (p *Pool) markTerminated(ctx context.Context, m *Machine) {
	p.mu.Lock()
	m.State = Terminated
	p.notifyWaitersLocked()
	p.mu.Unlock()
	if p.opts.KeepTerminated > 0 && !sleep(ctx, p.opts.KeepTerminated) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeMachineLocked(m)
}
