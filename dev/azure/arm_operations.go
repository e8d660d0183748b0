package azure

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// startOperationLocked starts a long-running operation. work runs concurrently and returns the error.
func (a *ARM) startOperationLocked(namespace, action string, work func(context.Context) *armError) *armOperation {
	op := &armOperation{id: uuid.NewString(), namespace: namespace, action: action, started: time.Now().UTC()}
	a.ops[op.id] = op
	a.runUntilClosedLocked(func(ctx context.Context) {
		err := work(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		op.err, op.ended = err, time.Now().UTC()
		a.notifyWaitersLocked()
	})
	return op
}

// runUntilClosedLocked runs work until the emulator is closed.
func (a *ARM) runUntilClosedLocked(work func(context.Context)) {
	e := a.emulator
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() == nil {
		e.eventRoutines.Go(func() { work(e.ctx) })
	}
}

// startDeletionLocked starts the deletion of machines: first their capacity decreases, then they lose power, finally they are
// removed. It waits for machines that are being deleted already.
func (a *ARM) startDeletionLocked(namespace, action string, machines []*armVM) *armOperation {
	mine := map[*armVM]bool{}
	for _, m := range machines {
		if m.State != Deleting {
			mine[m] = true
			m.State = Deleting
			a.reduceCapacityLocked(m, 1)
		}
	}
	a.notifyWaitersLocked()
	return a.startOperationLocked(namespace, action, func(ctx context.Context) *armError {
		var all sync.WaitGroup
		failed := make([]*armError, len(machines))
		for i, m := range machines {
			all.Go(func() {
				if mine[m] {
					failed[i] = a.deleteOneVM(ctx, m)
				} else {
					a.awaitOtherDeletion(ctx, m)
				}
			})
		}
		all.Wait()
		return cmp.Or(failed...)
	})
}

// deleteOneVM deletes one machine, or fails as a fault demands.
func (a *ARM) deleteOneVM(ctx context.Context, m *armVM) *armError {
	a.powerOffForDeletion(ctx, m)
	if err := a.applyDeletionFault(ctx, m.Resource); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		m.State, m.Failure = Failed, err.Code // it runs on, unless it was switched off
		a.reduceCapacityLocked(m, -1)
		a.notifyWaitersLocked()
		return err
	}
	a.finishDeletion(ctx, m)
	return nil
}

// powerOffForDeletion switches off a machine that is being deleted, and waits for DeleteTime.
func (a *ARM) powerOffForDeletion(ctx context.Context, m *armVM) {
	if power := a.emulator.opts.Machines; power != nil {
		err := power.PowerOff(ctx, m.Resource)
		if err != nil && ctx.Err() == nil {
			a.log.Error("cannot switch off a deleted machine", "resource", m.Resource, "err", err)
		}
		if err == nil {
			a.mu.Lock()
			m.Power = Stopped
			a.mu.Unlock()
		}
	}
	sleepUntilDone(ctx, a.opts.DeleteTime)
}

// finishDeletion removes a deleted machine.
func (a *ARM) finishDeletion(ctx context.Context, m *armVM) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() == nil && !m.removed {
		a.removeVMLocked(m)
	}
}

// awaitOtherDeletion waits for the end of another deletion of a machine.
func (a *ARM) awaitOtherDeletion(ctx context.Context, m *armVM) {
	for {
		a.mu.Lock()
		done, changed := m.removed || m.State != Deleting, a.changed
		a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// resizeLocked sets a scale set's capacity. It creates machines, or deletes the newest ones. It also creates machines
// that an earlier increase could not create.
func (a *ARM) resizeLocked(namespace, action string, set *armSet, capacity int) (*armOperation, *armError) {
	var live []*armVM
	for _, m := range a.listMembersLocked(set) {
		if m.State != Deleting {
			live = append(live, m)
		}
	}
	grow := max(capacity-set.capacity, capacity-len(live))
	if grow > 0 && a.opts.Quota > 0 && len(a.machines)+grow > a.opts.Quota {
		return nil, &armError{
			Status: http.StatusConflict, Code: "OperationNotAllowed",
			Message: "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.",
		}
	}
	if grow <= 0 {
		set.capacity = capacity - grow // the deletion lowers it
		return a.startDeletionLocked(namespace, action, live[max(0, len(live)+grow):]), nil
	}
	set.capacity = capacity
	set.etag++
	if fault := a.takeCreationFaultLocked(ARMAllocationFails, set.Name); fault != nil {
		a.notifyWaitersLocked()
		return a.startOperationLocked(namespace, action, func(ctx context.Context) *armError {
			sleepUntilDone(ctx, a.opts.BootTime)
			return fault.toAllocationError()
		}), nil
	}
	return a.createVMsLocked(namespace, action, set, grow), nil
}

// toAllocationError returns compute's error for machines that it cannot create.
func (f *armedARMFault) toAllocationError() *armError {
	return &armError{
		Code:    cmp.Or(f.Code, "AllocationFailed"),
		Message: cmp.Or(f.Message, "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."),
	}
}

// createVMsLocked starts the creation of machines of a scale set, and of one more if it overprovisions.
func (a *ARM) createVMsLocked(namespace, action string, set *armSet, count int) *armOperation {
	extra := 0
	if set.Overprovision {
		extra = 1
	}
	vms := make([]*armVM, count+extra)
	for i := range vms {
		vms[i] = a.newVMLocked(set, Creating, Stopped)
	}
	a.notifyWaitersLocked()
	return a.startOperationLocked(namespace, action, func(ctx context.Context) *armError {
		var all sync.WaitGroup
		failed := make([]*armError, len(vms))
		for i, m := range vms {
			all.Go(func() { failed[i] = a.bootAndJoinVM(ctx, m) })
		}
		all.Wait()
		a.deleteExtraVMs(ctx, vms[count:])
		return cmp.Or(failed[:count]...)
	})
}

// deleteExtraVMs deletes the machines beyond the capacity, which does not change.
func (a *ARM) deleteExtraVMs(ctx context.Context, machines []*armVM) {
	for _, m := range machines {
		a.mu.Lock()
		mine := !m.removed && m.State != Deleting
		if mine {
			m.State = Deleting
			a.notifyWaitersLocked()
		}
		a.mu.Unlock()
		if mine {
			a.powerOffForDeletion(ctx, m)
			a.finishDeletion(ctx, m)
		}
	}
}

// bootAndJoinVM starts a new machine and lets its node join. A fault may make it fail before it has power.
func (a *ARM) bootAndJoinVM(ctx context.Context, m *armVM) *armError {
	sleepUntilDone(ctx, a.opts.BootTime)
	a.mu.Lock()
	if fault := a.takeCreationFaultLocked(ARMCreationFails, m.Resource); fault != nil && !m.removed && m.State == Creating {
		defer a.mu.Unlock()
		failed := fault.toAllocationError()
		m.State, m.Power, m.Failure = Failed, "", failed.Code
		m.incrementETagsLocked()
		a.notifyWaitersLocked()
		return failed
	}
	description := m.VM
	removed := m.removed || m.State != Creating
	a.mu.Unlock()
	if removed || ctx.Err() != nil {
		return nil
	}
	var joined error
	if a.opts.Joiner != nil {
		joined = a.opts.Joiner.JoinNode(ctx, description)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if joined != nil && ctx.Err() == nil {
		a.log.Error("the node of a new machine did not join", "resource", m.Resource, "err", joined)
	}
	if m.State == Creating {
		m.State, m.Power = Succeeded, Running
		m.incrementETagsLocked()
		a.notifyWaitersLocked()
	}
	return nil
}

// endMachinesAfterEvent removes the machines that an event has ended for good.
func (a *ARM) endMachinesAfterEvent(t EventType, resources []string) {
	for _, resource := range resources {
		if t == Preempt {
			a.applyEvictionPolicy(resource)
			continue
		}
		a.removeVM(resource)
	}
}

// applyEvictionPolicy applies the eviction policy of its scale set to a machine.
func (a *ARM) applyEvictionPolicy(resource string) {
	a.mu.Lock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		a.mu.Unlock()
		return
	}
	set := m.set
	if set != nil && set.EvictionPolicy == EvictionDeallocate {
		m.Power = Deallocated
		a.notifyWaitersLocked()
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	if a.removeVM(resource) && set != nil && set.RestoreEvicted {
		a.replaceEvictedVM(set)
	}
}

// replaceEvictedVM creates a machine to replace an evicted one.
func (a *ARM) replaceEvictedVM(set *armSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set.capacity++
	set.etag++
	m := a.newVMLocked(set, Creating, Stopped)
	a.notifyWaitersLocked()
	a.runUntilClosedLocked(func(ctx context.Context) { _ = a.bootAndJoinVM(ctx, m) })
}

func (a *ARM) listMembersLocked(set *armSet) []*armVM {
	var members []*armVM
	for _, m := range a.listVMsLocked() {
		if strings.EqualFold(m.ScaleSet, set.Name) {
			members = append(members, a.machines[strings.ToLower(m.Resource)])
		}
	}
	return members
}

func sleepUntilDone(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
