package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// TerminationFailed begins the detail of a machine that its server does not terminate.
const TerminationFailed = "failed to terminate machine "

// follow updates the machines that are leaving.
func (s *step) follow(ctx context.Context) error {
	for i := 0; i < len(s.up.Status.Machines); i++ { // one may be dropped meanwhile
		m := &s.up.Status.Machines[i]
		if m.State != v1alpha1.MachineLeaving {
			continue
		}
		follow := s.followRetirement
		if m.Retirement == "" {
			follow = s.followMachine
		}
		if err := follow(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// refuse notes that a machine stays, and why.
func refuse(m *v1alpha1.PoolMachine, format string, a ...any) {
	m.State, m.Reason = v1alpha1.MachineRefused, fmt.Sprintf(format, a...)
}

// lookFor looks for a machine in the pool, and notes if it has left. The observation has to be newer than its removal, or the clock of
// the server is taken to be wrong after a while.
func (s *step) lookFor(ctx context.Context, m *v1alpha1.PoolMachine) (pool api.Pool, there bool, err error) {
	pool, err = s.o.Backend.Pool(ctx)
	if err != nil {
		return pool, false, BackendFailure("reading the pool", err)
	}
	there = s.find(&pool, m.ID) != nil
	if !there && (pool.Timestamp.After(m.Since.Time) || time.Since(m.Since.Time) > s.o.Pace.Trouble) {
		m.State, m.Reason = v1alpha1.MachineLeft, ""
	}
	return pool, there, nil
}

// followMachine follows a machine without a node. It requests a termination that was written down and not accepted. If an accepted
// termination has failed, or takes too long to begin, the client is told.
func (s *step) followMachine(ctx context.Context, m *v1alpha1.PoolMachine) error {
	pool, there, err := s.lookFor(ctx, m)
	switch {
	case err != nil || !there:
		return err
	case m.Operation == nil:
		return s.terminate(ctx, m, &pool)
	}
	s.up.Status.Message = fmt.Sprintf("machine %s: its termination was taken at %s, and has not begun", m.ID, m.Since.Format(time.RFC3339))
	provider, _ := s.o.Backend.Provider()
	status, err := provider.Status(ctx, cloud.Operation{ID: m.Operation.ID, Started: m.Operation.Started.Time})
	why := ""
	switch {
	case err == nil && status.Done && status.Err != nil:
		why = status.Err.Error()
	case time.Since(m.Since.Time) > s.o.Pace.Termination:
		why = fmt.Sprintf("it is there still %s after its termination was taken", s.o.Pace.Termination)
	case err != nil && !cloud.IsThrottled(err) && cloud.RefusalOf(err) == "": // a request that its cloud has not met cannot be followed
		return BackendFailure("asking for the termination of machine "+m.ID, err)
	default:
		return nil
	}
	if s.up.Spec.Type == v1alpha1.SetPoolSize {
		return end(BackendUnavailable, TerminationFailed+"%s: %s", m.ID, why)
	}
	refuse(m, TerminationFailed+"%s: %s", m.ID, why)
	return nil
}

// followRetirement follows a machine's NodeRetirement. Each wait has an end.
func (s *step) followRetirement(ctx context.Context, m *v1alpha1.PoolMachine) error {
	rt, err := s.o.Cluster.retirement(ctx, m.Retirement)
	switch {
	case err != nil:
		return err
	case rt == nil && !m.Created && !m.Adopted: // it was never made, and the machine is dropped
		return nil
	case rt == nil: // the record of a retirement that has succeeded need not be kept
		_, there, err := s.lookFor(ctx, m)
		if there {
			refuse(m, "its NodeRetirement was deleted: somebody has called it off")
		}
		return err
	}
	m.Created, m.Phase = true, rt.Status.Phase
	s.noteDeletion(m, rt)
	s.up.Status.Message = fmt.Sprintf("%s: %s", m.Node, rt.Status.Message)
	code, message := "", rt.Status.Message
	if blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked); blocked != nil && blocked.Status == metav1.ConditionTrue {
		code, message = blocked.Reason, blocked.Message
	}
	switch {
	case rt.Status.Phase == v1alpha1.Succeeded:
		m.State, m.Reason = v1alpha1.MachineLeft, ""
	case rt.Status.Phase.Finished():
		refuse(m, "NodeRetirement %s was %s: %s", rt.Name, strings.ToLower(string(rt.Status.Phase)), rt.Status.Message)
	case rt.Status.Phase == "":
		return s.awaitManager(ctx, m, rt)
	case waits(rt):
		return s.awaitStart(ctx, m, rt, code, message)
	default:
		return s.awaitEnd(ctx, m, rt, code, message)
	}
	return nil
}

// noteDeletion notes that a machine's cloud was asked to take it away since the update began.
func (s *step) noteDeletion(m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) {
	if asked := rt.Status.Operation; asked != nil && (!m.Adopted || asked.Started.After(s.up.Status.StartedAt.Time)) {
		m.DeletionRequested = true
	}
}

// awaitManager cancels a retirement that no manager handles for too long: none runs, or its selector does not select the retirement.
func (s *step) awaitManager(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) error {
	s.up.Status.Message = fmt.Sprintf("%s: NodeRetirement %s waits for a manager to take it up", m.Node, rt.Name)
	switch {
	case s.progress.lasts("trouble of "+m.ID, "no manager") <= s.o.Pace.Trouble:
		return nil
	case m.Adopted:
		refuse(m, "NodeRetirement %s, which is not of this update, waits for a manager to take it up", rt.Name)
		return nil
	}
	if err := s.callOff(ctx, rt.Name); err != nil {
		return err
	}
	refuse(m, "NodeRetirement %s with the labels %q was called off: within %s no manager has looked at it; want one that runs, and "+
		"whose --selector selects it", rt.Name, labels.FormatLabels(rt.Labels), s.o.Pace.Trouble)
	return end(ClusterUnavailable, "%s", m.Reason)
}

// callOff cancels a retirement after a write of the status: a process that has fallen behind another one conflicts, and cancels nothing.
func (s *step) callOff(ctx context.Context, name string) error {
	if err := s.save(ctx); err != nil {
		return err
	}
	return s.o.Cluster.callOff(ctx, name)
}

// awaitStart cancels a retirement that does not begin for too long, as for its group's budget, so that another machine can go. An
// adopted one continues, and the update no longer follows it.
func (s *step) awaitStart(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement, code, message string) error {
	waits := s.progress.lasts("stage of "+m.ID, stage(rt)) // whatever it waits for meanwhile
	why := "its NodeGroup does not let it go"
	switch {
	case m.Adopted && time.Since(m.Since.Time) > s.o.Pace.Admission:
		refuse(m, "NodeRetirement %s, which is not of this update, waits: %s", rt.Name, message)
		return nil
	case m.Adopted || waits <= s.o.Pace.Admission:
		return nil
	case code == "": // such as for a notice
		why = "its retirement has not begun"
	case isOfCloud(code):
		why = "its cloud does not let it go"
	}
	if err := s.callOff(ctx, rt.Name); err != nil {
		return err
	}
	refuse(m, "%s: %s", why, message)
	return nil
}

func isOfCloud(code string) bool {
	return code == retirement.CloudFailed || code == retirement.CloudRefused || code == retirement.CloudBusy || code == retirement.ReadFailed
}

// awaitEnd follows a retirement that has begun. A machine has left when its node is gone and its pool no longer has it, however long its
// cloud takes to delete it. The client is told when the cloud fails, and the retirement continues. The update gives up when nothing
// happens for too long. A drain has the time of its group first.
func (s *step) awaitEnd(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement, code, message string) error {
	trouble := "" // one of the cloud's after the other is one
	if isOfCloud(code) {
		trouble = retirement.CloudFailed
	}
	what := "its retirement does not come on"
	if pastReturn(rt) {
		what = "its node is drained and deleted"
	}
	tell := func(r Result) error {
		return end(r, TerminationFailed+"%s: %s; %s, and NodeRetirement %s goes on trying", m.ID, message, what, rt.Name)
	}
	// The server says that the machine is not in its pool, although it lists it. The retirement asks again.
	if s.up.Spec.Type != v1alpha1.SetPoolSize && pastReturn(rt) && trouble != "" && api.IsNotMember(message) {
		return tell(NotFound)
	}
	failing, halted := s.progress.lasts("trouble of "+m.ID, trouble), s.progress.lasts("stage of "+m.ID, stage(rt))
	if pastReturn(rt) && halted > s.o.Pace.Trouble {
		if _, _, err := s.lookFor(ctx, m); err != nil || m.State == v1alpha1.MachineLeft {
			return err
		}
	}
	ends, fails := halted > s.o.Pace.Termination, trouble != "" && min(failing, halted) > s.o.Pace.Trouble
	if !ends && !fails {
		return nil
	}
	late, err := s.isLate(ctx, rt)
	switch {
	case err != nil || !late: // such as a drain that can wait for its cloud as it does for its pods
		return err
	case ends:
		return s.giveUp(ctx, m, rt, code, message)
	}
	return tell(BackendUnavailable)
}

// stage returns what changes when a retirement makes progress. Messages and repeated attempts are not progress.
func stage(rt *v1alpha1.NodeRetirement) string {
	s := &rt.Status
	phase, gone, stopping := s.Phase, int32(0), int32(0)
	if pastReturn(rt) { // a machine that is gone may be there again
		phase = v1alpha1.NodeDeleted
	}
	if s.Drain != nil {
		gone, stopping = s.Drain.Gone, s.Drain.Stopping
	}
	return fmt.Sprint(phase, nodeGoes(rt), s.MachineGone, s.Operation != nil, gone, stopping)
}

// nodeGoes reports that a retirement has deleted its Node. Finalizers may still hold it.
func nodeGoes(rt *v1alpha1.NodeRetirement) bool {
	return meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementNodeDeleted) != nil
}

// pastReturn reports that the Node of a retirement is gone.
func pastReturn(rt *v1alpha1.NodeRetirement) bool {
	return rt.Status.Phase == v1alpha1.NodeDeleted || rt.Status.Phase == v1alpha1.InstanceDeleted
}

// isLate reports that a retirement has no time left. A drain has the time of its group; its manager ends it then.
func (s *step) isLate(ctx context.Context, rt *v1alpha1.NodeRetirement) (bool, error) {
	began := rt.Status.Times.Draining
	if rt.Status.Phase != v1alpha1.Draining || began == nil {
		return true, nil
	}
	var group *v1alpha1.NodeGroup
	if is := rt.Status.Captured; is != nil && is.Group != "" {
		group = &v1alpha1.NodeGroup{}
		err := s.o.Cluster.get(ctx, client.ObjectKey{Name: is.Group}, group)
		switch {
		case apierrors.IsNotFound(err):
			group = nil
		case err != nil:
			return false, ClusterFailure("reading NodeGroup "+is.Group, err)
		}
	}
	return time.Since(began.Time) > retirement.DrainTime(group)+s.o.Pace.Termination, nil
}

// giveUp ends an update because its retirement makes no progress. It cancels the retirement if its node can be restored, unless the update has
// adopted it.
func (s *step) giveUp(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement, code, message string) error {
	by, result := "", ClusterUnavailable
	if m.Adopted {
		by = ", which is not of this update,"
	}
	why := fmt.Sprintf("NodeRetirement %s%s of machine %s is in the phase %s and has not come on for %s: %s", rt.Name, by, m.ID, rt.Status.Phase,
		s.o.Pace.Termination, message)
	if isOfCloud(code) || code == retirement.Disagreement || rt.Status.Operation != nil {
		result = BackendUnavailable
	}
	back, err := s.o.Cluster.canBeGivenBack(ctx, rt)
	if back && !m.Adopted && err == nil {
		back, err = s.takeBack(ctx, m, rt)
	}
	switch {
	case err != nil:
		return err
	case back && m.Adopted && s.up.Spec.Type != v1alpha1.SetPoolSize:
		refuse(m, "%s; it is left to whoever has made it", why)
	case back && !m.Adopted:
		refuse(m, "%s; it was called off, and the machine stays", why)
	default:
		m.Reason = why + "; it goes on by itself"
		if s.up.Status.Launch {
			m.Reason += ", and no machine is launched in its place: ask for the size when it is gone"
			s.up.Status.Launch = false
		}
	}
	return end(result, "%s", m.Reason)
}

// takeBack cancels a retirement, and reports whether its machine stays: a manager may have deleted its node meanwhile.
func (s *step) takeBack(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) (bool, error) {
	if err := s.save(ctx); err != nil {
		return false, err
	}
	if err := s.cancel(ctx, m.ID, rt.Name); err != nil && ResultOf(err) != NotPossible {
		return false, err
	}
	is := &v1alpha1.NodeRetirement{}
	switch err := s.o.Cluster.objects.Get(ctx, client.ObjectKeyFromObject(rt), is); {
	case apierrors.IsNotFound(err):
		is = rt
	case err != nil:
		return false, ClusterFailure("reading a NodeRetirement", err)
	}
	s.noteDeletion(m, is)
	return s.o.Cluster.canBeGivenBack(ctx, is)
}

// canBeGivenBack reports that a cancelled retirement would restore its node: the node is there and is not being deleted.
func (c *Cluster) canBeGivenBack(ctx context.Context, rt *v1alpha1.NodeRetirement) (bool, error) {
	if pastReturn(rt) || nodeGoes(rt) {
		return false, nil
	}
	nodes, err := c.NodesNow(ctx)
	uid := rt.Spec.NodeUID
	if rt.Status.Captured != nil {
		uid = rt.Status.Captured.NodeUID
	}
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return n.Name == rt.Spec.NodeName && (uid == "" || n.UID == uid) && n.DeletionTimestamp == nil
	}), err
}
