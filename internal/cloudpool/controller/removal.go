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

func leaving(up *v1alpha1.PoolUpdate) int { return up.CountMachines(v1alpha1.MachineLeaving) }

func removed(up *v1alpha1.PoolUpdate) int { return up.CountMachines(v1alpha1.MachineLeft) }

// holds reports whether the PoolUpdate has room for a machine, or has it already.
func (s *step) holds(machine string) bool {
	return len(s.up.Status.Machines) < v1alpha1.MaxPoolMachines || s.up.Machine(machine) != nil
}

// shrink brings the pool closer to a smaller size.
func (s *step) shrink(ctx context.Context) error {
	if err := s.dropUnmade(ctx); err != nil {
		return err
	}
	if leaving(s.up) > 0 {
		delete(s.progress, "unsettled")
	}
	if leaving(s.up) >= s.o.AtOnce || !s.areCordoned() {
		return nil
	}
	w, err := s.look(ctx)
	if err != nil {
		return err
	}
	if adopted, err := s.adopt(ctx, w); adopted || err != nil {
		return err
	}
	d, err := s.decideNext(w)
	if err != nil {
		return err
	}
	if d.Excess() > 0 {
		delete(s.progress, "unsettled")
	}
	switch {
	case d.Excess() > 0 && len(d.Victims) > 0 && len(d.Unclear) == 0:
		if !s.holds(d.Victims[0].Machine) {
			return s.shortfall(d)
		}
		delete(s.progress, "stuck")
		return s.take(ctx, w, d.Victims[0].Machine)
	case leaving(s.up) > 0:
		return nil
	case d.Excess() == 0:
		return s.settle(ctx, w)
	}
	s.up.Status.Message = d.Reasons()
	if stuck := s.progress.lasts("stuck", ""); removed(s.up) > 0 && stuck < s.o.Pace.Settle { // their pods have time to settle
		return nil
	}
	return s.shortfall(d)
}

// decideNext decides which machine goes next: first among the planned machines, then among all.
func (s *step) decideNext(w *world) (*matching.Decision, error) {
	planned := map[string]bool{}
	for _, m := range s.up.Status.Machines {
		if m.State == v1alpha1.MachinePlanned {
			planned[m.ID] = true
		}
	}
	d, err := s.decide(w, s.up, planned)
	if err != nil || d.Excess() == 0 || len(d.Victims) > 0 {
		return d, err
	}
	return s.decide(w, s.up, nil)
}

// areCordoned reports that every node that is leaving takes no pods any more, so that no other one is judged by its room.
func (s *step) areCordoned() bool {
	return !slices.ContainsFunc(s.up.Status.Machines, func(m v1alpha1.PoolMachine) bool {
		return m.State == v1alpha1.MachineLeaving && m.Retirement != "" && (m.Phase == "" || m.Phase == v1alpha1.Pending)
	})
}

// shortfall ends an update that cannot go on.
func (s *step) shortfall(d *matching.Decision) error {
	if n := removed(s.up); n > 0 {
		return end(Partial, "removed %d machines, and %d are too many still: %s", n, d.Excess(), d.Reasons())
	}
	return end(NotPossible, "%s", d.Reasons())
}

// settle sets the server's desired size to the requested one, once no machine is there that the server could take away for that. An
// observation that is newer than the beginning of the update has to show that.
func (s *step) settle(ctx context.Context, w *world) error {
	want, active, newer := int(*s.up.Spec.DesiredSize), countActive(&w.pool), w.pool.Timestamp.After(s.up.Status.ObservedAt.Time)
	switch {
	case w.size.Desired == want && (removed(s.up) > 0 || newer):
		return end(Done, "")
	case w.size.Desired > want && (active > want || !newer):
		s.up.Status.Message = "waiting for the pool to be observed again before its desired size is lowered"
		if s.progress.lasts("unsettled", "") <= s.o.Pace.Termination {
			return nil
		}
		return end(BackendUnavailable, "the pool has not been observed again within %s: its desired size is %d still, with %d active machines",
			s.o.Pace.Termination, w.size.Desired, active)
	}
	if err := s.save(ctx); err != nil {
		return err
	}
	if err := s.o.Backend.SetDesiredSize(ctx, want); err != nil {
		return BackendFailure(fmt.Sprintf("setting the desired size to %d", want), err)
	}
	size, err := s.o.Backend.Size(ctx)
	switch {
	case err != nil:
		return BackendFailure("reading the pool's size", err)
	case size.Desired != want:
		return Failuref(BackendUnavailable, "the desired size was set to %d, and is %d", want, size.Desired)
	}
	return end(Done, "")
}

// remove takes one machine out.
func (s *step) remove(ctx context.Context) error {
	if err := s.dropUnmade(ctx); err != nil {
		return err
	}
	id := s.up.Spec.MachineID
	if m := s.up.Machine(id); m != nil {
		return s.removed(ctx, m)
	}
	if told := s.view(s.up).Told; s.up.Status.MadeEvictable && told != nil { // its client does not count on it any more, and nothing was begun
		return told
	}
	w, err := s.look(ctx)
	if err != nil {
		return err
	}
	m := w.pairing.Find(id)
	if m == nil || matching.HasEnded(m.Machine, s.o.Backend) {
		return end(Done, "the machine has gone by itself")
	}
	if adopted, err := s.adopt(ctx, w); adopted || err != nil {
		return err
	}
	refused, err := s.refusalOf(w, m, s.up.Disposes())
	switch {
	case err != nil:
		return err
	case refused != nil:
		return end(NotPossible, "%s", refused)
	case s.up.Disposes() && !m.Machine.Evictable():
		if !m.Machine.Active() {
			return end(NotPossible, "machine %s is neither active nor evictable: make it active first", id)
		}
		s.up.Status.MadeEvictable = true
		if err := s.setEvictable(ctx, true); err != nil {
			return err
		}
	}
	return s.take(ctx, w, id)
}

// removed ends the update if its machine is gone or stays.
func (s *step) removed(ctx context.Context, m *v1alpha1.PoolMachine) error {
	switch {
	case m.State == v1alpha1.MachineRefused && m.DeletionRequested:
		return end(BackendUnavailable, "%s", m.Reason)
	case m.State == v1alpha1.MachineRefused:
		return end(NotPossible, "%s", m.Reason)
	case m.State != v1alpha1.MachineLeft:
		return nil
	}
	if err := s.launchReplacement(ctx); err != nil {
		return err
	}
	return end(Done, "")
}

// launchReplacement launches a machine in the place of the one that is gone, once, if the NodeGroup's cloud lowers its size with each
// deletion. A cloudpool server was asked to keep its size.
func (s *step) launchReplacement(ctx context.Context) error {
	st := &s.up.Status
	if !st.Launch {
		return nil
	}
	size, err := s.o.Backend.Size(ctx)
	if err != nil {
		return BackendFailure("reading the pool's size", err)
	}
	if st.LaunchTo == 0 && size.Desired < int(st.SizeBefore) { // one that did not count has lowered nothing
		st.LaunchTo = int32(size.Desired + 1)
		if err := s.save(ctx); err != nil {
			return err
		}
	}
	if size.Desired < int(st.LaunchTo) {
		if err := s.o.Backend.SetDesiredSize(ctx, int(st.LaunchTo)); err != nil {
			return BackendFailure("launching a machine in the place of "+s.up.Spec.MachineID, err)
		}
	}
	st.Launch = false
	return nil
}

// dropUnmade drops the machines that were written down without a NodeRetirement, as when the process ended in between. The cluster may
// have changed since: machines are chosen anew.
func (s *step) dropUnmade(ctx context.Context) error {
	return s.drop(ctx, func(m v1alpha1.PoolMachine) bool {
		return m.State == v1alpha1.MachineLeaving && m.Retirement != "" && !m.Created && !m.Adopted
	})
}

func (s *step) drop(ctx context.Context, which func(v1alpha1.PoolMachine) bool) error {
	before := len(s.up.Status.Machines)
	if s.up.Status.Machines = slices.DeleteFunc(s.up.Status.Machines, which); len(s.up.Status.Machines) == before {
		return nil
	}
	return s.save(ctx)
}

// adopt lets the update follow the unfinished retirements that it has not created.
func (s *step) adopt(ctx context.Context, w *world) (bool, error) {
	adopted := false
	for i := range w.pairing.Members {
		m := w.pairing.Members[i].Machine
		rt := w.retiring[m.ID]
		if rt == nil || s.up.Machine(m.ID) != nil || !s.holds(m.ID) || s.up.Spec.MachineID != "" && s.up.Spec.MachineID != m.ID {
			continue
		}
		if pastReturn(rt) && matching.HasEnded(m, s.o.Backend) {
			continue // it does not count any more, and nothing of it is left in the cluster
		}
		s.up.SetMachine(v1alpha1.PoolMachine{
			ID: m.ID, Node: rt.Spec.NodeName, NodeUID: rt.Spec.NodeUID, ProviderID: rt.Spec.ProviderID, Retirement: rt.Name,
			State: v1alpha1.MachineLeaving, Since: toMicro(time.Now()), Adopted: true,
		})
		adopted = true
		s.log.Info("a machine leaves already", "update", s.up.Name, "machine", m.ID, "node", rt.Spec.NodeName, "retirement", rt.Name)
	}
	if !adopted {
		return false, nil
	}
	return true, s.save(ctx)
}

// take begins a machine's removal.
func (s *step) take(ctx context.Context, w *world, machine string) error {
	m := w.pairing.Find(machine)
	if m == nil {
		return nil // it has just gone
	}
	is := v1alpha1.PoolMachine{ID: machine, State: v1alpha1.MachineLeaving, Since: toMicro(time.Now())}
	if m.Node == nil {
		s.up.SetMachine(is)
		return s.terminate(ctx, s.up.Machine(machine), &w.pool)
	}
	is.Node, is.NodeUID, is.ProviderID = m.Node.Name, m.Node.UID, m.ProviderID
	is.Retirement = retirementName(updateKey(s.up), is.Node)
	if m.OtherName != "" {
		s.log.Warn("a node has another name than its machine, and is its by the provider ID alone", "update", s.up.Name, "node", is.Node,
			"because", m.OtherName)
	}
	s.up.SetMachine(is)
	if err := s.save(ctx); err != nil {
		return err
	}
	if err := s.retire(ctx, s.up.Machine(machine), w.group); err != nil {
		return err
	}
	return s.save(ctx) // that it was made: if it is deleted, somebody has called it off
}

// updateKey is part of the names of an update's retirements. A deleted update's name may come again, its UID does not.
func updateKey(up *v1alpha1.PoolUpdate) string {
	uid := strings.ReplaceAll(string(up.UID), "-", "")
	return uid[:min(16, len(uid))]
}

// retirementName is the same however often it is made.
func retirementName(update, node string) string {
	sum := fnv.New32a()
	sum.Write([]byte(node))
	name := strings.TrimRight(node[:min(len(node), 200)], ".-")
	return fmt.Sprintf("%s-%s-%08x", name, update, sum.Sum32())
}

// retire creates the NodeRetirement of a machine.
func (s *step) retire(ctx context.Context, m *v1alpha1.PoolMachine, group string) error {
	requester := "cloudpool"
	if who := s.up.Spec.RequestedBy; who != "" {
		requester += ": " + who[:min(len(who), 200)]
	}
	rt := request.New(request.Request{
		Name: m.Retirement, Labels: map[string]string{UpdateLabel: s.up.Name},
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: m.Node, NodeUID: m.NodeUID, ProviderID: m.ProviderID, Group: group,
			Reason: v1alpha1.Surplus, RequestedBy: requester, KeepSize: s.deletion().KeepSize,
		},
	})
	if s.up.Spec.Type != v1alpha1.SetPoolSize {
		rt.Spec.Reason = v1alpha1.Requested
	}
	maps.Copy(rt.Labels, s.o.Labels)
	if err := s.o.Cluster.objects.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return ClusterFailure("creating NodeRetirement "+rt.Name, err)
	}
	m.Created = true
	s.log.Info("a machine begins to leave", "update", s.up.Name, "machine", m.ID, "node", m.Node, "retirement", m.Retirement)
	return nil
}

// deletion is how the machines of the update are deleted: as its client asks, where the pool's cloud can.
func (s *step) deletion() cloud.DeleteOptions {
	return cloud.DeleteOptions{KeepSize: s.up.Spec.Type != v1alpha1.SetPoolSize && !s.up.Spec.Decrement && s.o.Backend.KeepsSize()}
}

// terminate deletes a machine without a node, and writes that down before. A machine that may have a node by now is dropped and judged anew.
func (s *step) terminate(ctx context.Context, is *v1alpha1.PoolMachine, pool *api.Pool) error {
	has, err := s.hasNode(ctx, pool, is.ID)
	m := s.find(pool, is.ID)
	switch {
	case err != nil:
		return err
	case has || m == nil:
		return s.drop(ctx, func(other v1alpha1.PoolMachine) bool { return other.ID == is.ID })
	}
	if err := s.save(ctx); err != nil {
		return err
	}
	operation, err := s.o.Backend.Delete(ctx, m, s.deletion())
	switch {
	case err == nil || cloud.IsNotFound(err):
		is.Operation = &v1alpha1.CloudOperation{ID: operation.ID, Started: metav1.NewTime(operation.Started)}
		is.DeletionRequested = err == nil
		s.log.Info("a machine without a node leaves", "update", s.up.Name, "machine", is.ID, "state", m.State)
	case cloud.RefusalOf(err) != "":
		is.State, is.Reason = v1alpha1.MachineRefused, err.Error()
	case cloud.IsThrottled(err) && time.Since(is.Since.Time) < s.o.Pace.Termination: // such as until the pool was observed again
		s.up.Status.Message = "waiting: " + err.Error()
		return nil
	default:
		return BackendFailure("terminating machine "+is.ID, err)
	}
	return s.save(ctx)
}
