package controller

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

func countLeaving(up *v1alpha1.PoolUpdate) int {
	return up.CountMachinesInState(v1alpha1.MachineRemoving)
}

func countRemoved(up *v1alpha1.PoolUpdate) int {
	return up.CountMachinesInState(v1alpha1.MachineRemoved)
}

// hasRoomFor reports whether the PoolUpdate can store one more machine, or has stored this machine already.
func (s *updateScope) hasRoomFor(machine string) bool {
	return len(s.update.Status.Machines) < v1alpha1.MaxPoolMachines || s.update.FindMachineExceptPlanned(machine) != nil
}

// advancePoolShrink takes the next step of an update to a smaller size.
func (s *updateScope) advancePoolShrink(ctx context.Context) error {
	if err := s.dropUncreatedRetirements(ctx); err != nil {
		return err
	}
	if countLeaving(s.update) > 0 {
		delete(s.timers, "unsettled")
	}
	if countLeaving(s.update) >= s.opts.MaxConcurrentRemovals || !s.areLeavingNodesCordoned() {
		return nil
	}
	w, err := s.observePool(ctx)
	if err != nil {
		return err
	}
	if adopted, err := s.adoptRetirements(ctx, w); adopted || err != nil {
		return err
	}
	d, err := s.chooseNextMachine(w)
	if err != nil {
		return err
	}
	if d.Excess() > 0 {
		delete(s.timers, "unsettled")
	}
	switch {
	case d.Excess() > 0 && len(d.Victims) > 0 && len(d.Unclear) == 0:
		if !s.hasRoomFor(d.Victims[0].Machine) {
			return s.newShortfallOutcome(d)
		}
		delete(s.timers, "stuck")
		return s.beginRemoval(ctx, w, d.Victims[0].Machine)
	case countLeaving(s.update) > 0:
		return nil
	case d.Excess() == 0:
		return s.lowerDesiredSizeWhenSafe(ctx, w)
	}
	s.update.Status.Message = d.ExplainShortfall()
	if stuck := s.timers.trackStateDuration("stuck", ""); countRemoved(s.update) > 0 && stuck < s.opts.Timeouts.PodSettle { // evicted pods may still be starting
		return nil
	}
	return s.newShortfallOutcome(d)
}

// chooseNextMachine chooses the next machine to remove. It considers only the planned machines first, and then all
// machines.
func (s *updateScope) chooseNextMachine(w *observation) (*matching.Decision, error) {
	planned := map[string]bool{}
	for _, m := range s.update.Status.Machines {
		if m.State == v1alpha1.MachinePlanned {
			planned[m.ID] = true
		}
	}
	d, err := s.chooseMachinesToRemove(w, s.update, planned)
	if err != nil || d.Excess() == 0 || len(d.Victims) > 0 {
		return d, err
	}
	return s.chooseMachinesToRemove(w, s.update, nil)
}

// areLeavingNodesCordoned reports whether all nodes that are being removed are cordoned. Until they are, no other node
// is chosen, because the planner would count their free capacity.
func (s *updateScope) areLeavingNodesCordoned() bool {
	return !slices.ContainsFunc(s.update.Status.Machines, func(m v1alpha1.PoolMachine) bool {
		return m.State == v1alpha1.MachineRemoving && m.Retirement != "" && (m.Phase == "" || m.Phase == v1alpha1.Pending)
	})
}

// newShortfallOutcome returns the outcome of an update that cannot remove enough machines.
func (s *updateScope) newShortfallOutcome(d *matching.Decision) error {
	if n := countRemoved(s.update); n > 0 {
		return newOutcome(Partial, "removed %d machines, %d more must be removed: %s", n, d.Excess(), d.ExplainShortfall())
	}
	return newOutcome(NotPossible, "%s", d.ExplainShortfall())
}

// lowerDesiredSizeWhenSafe sets the server's desired size to the requested size, and ends the update. It waits until
// the pool has no active machine more than requested, because the server would delete a machine of its choice. The pool
// must have been observed after the update's start to show that.
func (s *updateScope) lowerDesiredSizeWhenSafe(ctx context.Context, w *observation) error {
	want, active, newer := int(*s.update.Spec.DesiredSize), countActiveMachines(&w.pool), w.pool.Timestamp.After(s.update.Status.ObservedAt.Time)
	switch {
	case w.size.Desired == want && (countRemoved(s.update) > 0 || newer):
		return newOutcome(Done, "")
	case w.size.Desired > want && (active > want || !newer):
		s.update.Status.Message = "waiting for a new observation of the pool before its desired size is lowered"
		if s.timers.trackStateDuration("unsettled", "") <= s.opts.Timeouts.Termination {
			return nil
		}
		return newOutcome(BackendUnavailable, "the pool was not observed again within %s: its desired size is still %d, with %d active machines",
			s.opts.Timeouts.Termination, w.size.Desired, active)
	}
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	if err := s.opts.Backend.SetDesiredSize(ctx, want); err != nil {
		return NewBackendFailure(fmt.Sprintf("setting the desired size to %d", want), err)
	}
	size, err := s.opts.Backend.Size(ctx)
	switch {
	case err != nil:
		return NewBackendFailure("reading the pool's size", err)
	case size.Desired != want:
		return NewFailuref(BackendUnavailable, "the desired size was set to %d, but is %d", want, size.Desired)
	}
	return newOutcome(Done, "")
}

// advanceMachineRemoval takes the next step of an update that removes one machine.
func (s *updateScope) advanceMachineRemoval(ctx context.Context) error {
	if err := s.dropUncreatedRetirements(ctx); err != nil {
		return err
	}
	id := s.update.Spec.MachineID
	if m := s.update.FindMachineExceptPlanned(id); m != nil {
		return s.endIfRemovalFinished(ctx, m)
	}
	if reported := s.toUpdate(s.update).ReportedOutcome; s.update.Status.MadeEvictable && reported != nil { // its client already got an error, and no removal has started
		return reported
	}
	w, err := s.observePool(ctx)
	if err != nil {
		return err
	}
	m := w.pairing.FindMember(id)
	if m == nil || matching.HasEnded(m.Machine, s.opts.Backend) {
		return newOutcome(Done, "the machine is already gone")
	}
	if adopted, err := s.adoptRetirements(ctx, w); adopted || err != nil {
		return err
	}
	refused, err := s.findRemovalRefusal(w, m, s.update.IsDisposal())
	switch {
	case err != nil:
		return err
	case refused != nil:
		return newOutcome(NotPossible, "%s", refused)
	case s.update.IsDisposal() && !m.Machine.IsEvictable():
		if !m.Machine.IsActive() {
			return newOutcome(NotPossible, "machine %s is neither active nor evictable: make it active first", id)
		}
		s.update.Status.MadeEvictable = true
		if err := s.setMachineEvictable(ctx, true); err != nil {
			return err
		}
	}
	return s.beginRemoval(ctx, w, id)
}

// endIfRemovalFinished ends the update if its machine was removed or cannot be removed.
func (s *updateScope) endIfRemovalFinished(ctx context.Context, m *v1alpha1.PoolMachine) error {
	switch {
	case m.State == v1alpha1.MachineRefused && m.DeletionRequested:
		return newOutcome(BackendUnavailable, "%s", m.Reason)
	case m.State == v1alpha1.MachineRefused:
		return newOutcome(NotPossible, "%s", m.Reason)
	case m.State != v1alpha1.MachineRemoved:
		return nil
	}
	if err := s.launchReplacementOnce(ctx); err != nil {
		return err
	}
	return newOutcome(Done, "")
}

// launchReplacementOnce launches a replacement for the removed machine. It launches at most one. It launches only if
// the cloud lowers the size of its group with each deletion. A cloudpool server keeps its desired size and launches a
// replacement itself.
func (s *updateScope) launchReplacementOnce(ctx context.Context) error {
	st := &s.update.Status
	if !st.Launch {
		return nil
	}
	size, err := s.opts.Backend.Size(ctx)
	if err != nil {
		return NewBackendFailure("reading the pool's size", err)
	}
	if st.LaunchTo == 0 && size.Desired < int(st.SizeBefore) { // an inactive machine has lowered nothing
		st.LaunchTo = int32(size.Desired + 1)
		if err := s.saveStatus(ctx); err != nil {
			return err
		}
	}
	if size.Desired < int(st.LaunchTo) {
		if err := s.opts.Backend.SetDesiredSize(ctx, int(st.LaunchTo)); err != nil {
			return NewBackendFailure("launching a replacement for machine "+s.update.Spec.MachineID, err)
		}
	}
	st.Launch = false
	return nil
}

// dropUncreatedRetirements removes from the status each machine with a recorded retirement that was never created. The
// process may have ended between the record and the creation. Machines are then chosen again, because the cluster may
// have changed.
func (s *updateScope) dropUncreatedRetirements(ctx context.Context) error {
	return s.dropMachinesAndSave(ctx, func(m v1alpha1.PoolMachine) bool {
		return m.State == v1alpha1.MachineRemoving && m.Retirement != "" && !m.Created && !m.Adopted
	})
}

func (s *updateScope) dropMachinesAndSave(ctx context.Context, which func(v1alpha1.PoolMachine) bool) error {
	before := len(s.update.Status.Machines)
	if s.update.Status.Machines = slices.DeleteFunc(s.update.Status.Machines, which); len(s.update.Status.Machines) == before {
		return nil
	}
	return s.saveStatus(ctx)
}

// adoptRetirements records unfinished retirements of the pool's machines that another client has created. The update
// then waits for these too. It reports whether there were any.
func (s *updateScope) adoptRetirements(ctx context.Context, w *observation) (adopted bool, err error) {
	for i := range w.pairing.Members {
		m := w.pairing.Members[i].Machine
		rt := w.retiring[m.ID]
		if rt == nil || s.update.FindMachineExceptPlanned(m.ID) != nil || !s.hasRoomFor(m.ID) || s.update.Spec.MachineID != "" && s.update.Spec.MachineID != m.ID {
			continue
		}
		if isNodeGone(rt) && matching.HasEnded(m, s.opts.Backend) {
			continue // the machine no longer counts, and its node is gone
		}
		s.update.SetMachine(v1alpha1.PoolMachine{
			ID: m.ID, Node: rt.Spec.NodeName, NodeUID: rt.Spec.NodeUID, ProviderID: rt.Spec.ProviderID, Retirement: rt.Name,
			State: v1alpha1.MachineRemoving, Since: toMicroTime(time.Now()), Adopted: true,
		})
		adopted = true
		s.log.Info("following an existing NodeRetirement", "update", s.update.Name, "machine", m.ID, "node", rt.Spec.NodeName, "retirement", rt.Name)
	}
	if !adopted {
		return false, nil
	}
	return true, s.saveStatus(ctx)
}

func (s *updateScope) beginRemoval(ctx context.Context, w *observation, machine string) error {
	m := w.pairing.FindMember(machine)
	if m == nil {
		return nil // it is gone
	}
	is := v1alpha1.PoolMachine{ID: machine, State: v1alpha1.MachineRemoving, Since: toMicroTime(time.Now())}
	if m.Node == nil {
		s.update.SetMachine(is)
		return s.deleteMachineWithoutNode(ctx, s.update.FindMachineExceptPlanned(machine), &w.pool)
	}
	is.Node, is.NodeUID, is.ProviderID = m.Node.Name, m.Node.UID, m.ProviderID
	is.Retirement = retirementName(updateKey(s.update), is.Node)
	if m.OtherName != "" {
		s.log.Warn("the node's name differs from its machine's name; they are paired by provider ID only", "update", s.update.Name, "node", is.Node,
			"reason", m.OtherName)
	}
	s.update.SetMachine(is)
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	if err := s.createRetirement(ctx, s.update.FindMachineExceptPlanned(machine), w.groupName); err != nil {
		return err
	}
	return s.saveStatus(ctx) // records the creation: if the object disappears later, a user has cancelled it
}

// updateKey returns the part of a retirement's name that identifies the update. It contains the UID, because a later
// update may have the same name.
func updateKey(up *v1alpha1.PoolUpdate) string {
	uid := strings.ReplaceAll(string(up.UID), "-", "")
	return uid[:min(16, len(uid))]
}

// retirementName returns the name of the retirement of a node within an update. It is always the same for the same
// update and node.
func retirementName(update, node string) string {
	sum := fnv.New32a()
	sum.Write([]byte(node))
	name := strings.TrimRight(node[:min(len(node), 200)], ".-")
	return fmt.Sprintf("%s-%s-%08x", name, update, sum.Sum32())
}

func (s *updateScope) createRetirement(ctx context.Context, m *v1alpha1.PoolMachine, group string) error {
	requester := "cloudpool"
	if who := s.update.Spec.RequestedBy; who != "" {
		requester += ": " + who[:min(len(who), 200)]
	}
	rt := request.New(request.Request{
		Name: m.Retirement, Labels: map[string]string{UpdateLabel: s.update.Name},
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: m.Node, NodeUID: m.NodeUID, ProviderID: m.ProviderID, Group: group,
			Reason: v1alpha1.Surplus, RequestedBy: requester, KeepSize: s.deleteOptions().KeepSize,
		},
	})
	if s.update.Spec.Type != v1alpha1.SetPoolSize {
		rt.Spec.Reason = v1alpha1.Requested
	}
	maps.Copy(rt.Labels, s.opts.Labels)
	if err := s.opts.Cluster.objects.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return NewClusterFailure("creating NodeRetirement "+rt.Name, err)
	}
	m.Created = true
	s.log.Info("created NodeRetirement", "update", s.update.Name, "machine", m.ID, "node", m.Node, "retirement", m.Retirement)
	return nil
}

// deleteOptions returns the options for the deletion of machines by this update. KeepSize is true if the client has
// requested to keep the desired size and the cloud supports that.
func (s *updateScope) deleteOptions() cloud.DeleteOptions {
	return cloud.DeleteOptions{KeepSize: s.update.Spec.Type != v1alpha1.SetPoolSize && !s.update.Spec.Decrement && s.opts.Backend.KeepsSize()}
}

// deleteMachineWithoutNode deletes a machine that has no node. It stores in the status that it does so before it sends
// the request. If the machine may have a node by now, it deletes nothing and removes the machine from the status. The
// next step then decides again.
func (s *updateScope) deleteMachineWithoutNode(ctx context.Context, is *v1alpha1.PoolMachine, pool *api.Pool) error {
	has, err := s.mayHaveNode(ctx, pool, is.ID)
	m := s.findLiveMachine(pool, is.ID)
	switch {
	case err != nil:
		return err
	case has || m == nil:
		return s.dropMachinesAndSave(ctx, func(other v1alpha1.PoolMachine) bool { return other.ID == is.ID })
	}
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	operation, err := s.opts.Backend.Delete(ctx, m, s.deleteOptions())
	switch {
	case err == nil || cloud.IsNotFound(err):
		is.Operation = &v1alpha1.CloudOperation{ID: operation.ID, Started: metav1.NewTime(operation.Started)}
		is.DeletionRequested = err == nil
		s.log.Info("deleting a machine without a node", "update", s.update.Name, "machine", is.ID, "state", m.State)
	case cloud.RefusalOf(err) != "":
		is.State, is.Reason = v1alpha1.MachineRefused, err.Error()
	case cloud.IsThrottled(err) && time.Since(is.Since.Time) < s.opts.Timeouts.Termination: // for example until the pool was observed again
		s.update.Status.Message = "waiting: " + err.Error()
		return nil
	default:
		return NewBackendFailure("terminating machine "+is.ID, err)
	}
	return s.saveStatus(ctx)
}
