package cloudpool

import (
	"context"
	"slices"
	"time"
)

// triggerResize makes the resize loop compare the pool with its desired size now.
func (p *Pool) triggerResize() {
	select {
	case p.resize <- struct{}{}:
	default:
	}
}

// runResizeLoop launches and terminates machines to reach the desired size, until the pool is closed.
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

// resizeOnceLocked launches the machines that the desired size requires, or terminates surplus machines. It also
// terminates all evictable machines that are not active.
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

// selectSurplusLocked returns up to n evictable machines to terminate. REQUESTED machines come first, then the order
// of the pool's Policy applies.
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

// launchMachineLocked starts the launch of one machine. If the quota is reached, it adds a REJECTED machine instead,
// unless the pool has one.
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

// changeIfInState calls change if the machine's state is from. It reports whether it called change.
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

// joinNode adds the Node of a running machine. If the machine ended before its Node was added, joinNode powers the
// Node off.
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

// copyMachine returns a copy of a machine, and reports whether the machine is running.
func (p *Pool) copyMachine(m *Machine) (Machine, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *m, m.State == Running
}

// startTerminationLocked starts the termination of a machine. With the option CallDelay, the machine changes to
// TERMINATING only after this delay. A fault of kind TerminationFails prevents the termination.
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

// finishTermination powers off the Node of a machine in TERMINATING. After TerminateTime it sets the machine to
// TERMINATED, unless an injected fault makes the termination hang.
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

// awaitNoTerminationFault waits until no injected fault makes the termination of a machine hang. It returns false if
// the pool was closed first.
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

// markTerminated sets a machine to TERMINATED. The pool lists the machine for some time, and then removes it.
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
