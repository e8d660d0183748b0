package cloudpool

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// heldUp looks at a retirement that is under way, and that may not come on. None is waited for without end.
func (u *Updater) heldUp(ctx context.Context, up *Update, t *Turn, rt *v1alpha1.NodeRetirement, save func() error) (*Outcome, error) {
	blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
	if blocked != nil && blocked.Status != metav1.ConditionTrue {
		blocked = nil
	}
	switch {
	case rt.Status.Phase == "":
		return u.unseen(ctx, up, t, rt)
	case waits(rt):
		return nil, u.notBegun(ctx, t, rt, blocked)
	}
	return u.begunOn(ctx, up, t, rt, blocked, save)
}

// notBegun looks at a retirement that does not begin, as for its group's budget. It is called off in the end, so that another
// machine can go; that of somebody else is not counted on any longer.
func (u *Updater) notBegun(ctx context.Context, t *Turn, rt *v1alpha1.NodeRetirement, blocked *metav1.Condition) error {
	code, message := codeNotBegun, rt.Status.Message
	if blocked != nil {
		code, message = blocked.Reason, blocked.Message
	}
	since := lasts(&t.stage, stage(rt)) // whatever it waits for meanwhile
	switch {
	case t.Adopted && time.Since(t.Since) > u.o.Pace.Admission:
		t.State, t.Why = Refused, fmt.Sprintf("NodeRetirement %s, which is not of this update, waits: %s", rt.Name, message)
	case !t.Adopted && since > u.o.Pace.Admission:
		if err := u.o.Cluster.callOff(ctx, rt.Name); err != nil {
			return clusterFailure("calling a retirement off", err)
		}
		t.State, t.Why = Refused, letsNotGo(code)+": "+message
	}
	return nil
}

// begunOn looks at a retirement that has begun. A machine whose node is gone and that has ended to its pool is gone, however long
// its cloud takes to delete it. While its cloud fails the client is told, and the retirement goes on; one that does not
// come on for too long, for whatever reason, is given up. A drain has its time first, in either case.
func (u *Updater) begunOn(ctx context.Context, up *Update, t *Turn, rt *v1alpha1.NodeRetirement, blocked *metav1.Condition,
	save func() error,
) (*Outcome, error) {
	code, message := "", rt.Status.Message
	if blocked != nil {
		code, message = blocked.Reason, blocked.Message
	}
	trouble := "" // one of the cloud's after the other is one
	if isOfCloud(code) {
		trouble = retirement.CloudFailed
	}
	failing, halted := lasts(&t.trouble, trouble), lasts(&t.stage, stage(rt))
	if pastReturn(rt) && halted > u.o.Pace.Trouble {
		pool, err := u.o.Backend.Pool(ctx)
		switch {
		case err != nil:
			return nil, backendFailure("reading the pool", err)
		case u.isGone(&pool, t):
			t.State, t.Why = Gone, ""
			return nil, nil
		}
	}
	end, tell := halted > u.o.Pace.Termination, trouble != "" && min(failing, halted) > u.o.Pace.Trouble
	if !end && !tell {
		return nil, nil
	}
	late, err := u.late(ctx, rt)
	switch {
	case err != nil:
		return nil, clusterFailure("reading the NodeGroups", err)
	case !late: // such as a drain that can wait for its cloud as it does for its pods
		return nil, nil
	case end:
		return u.giveUp(ctx, up, t, rt, code, message, save)
	}
	what := "its retirement does not come on"
	if pastReturn(rt) {
		what = "its node is drained and deleted"
	}
	return &Outcome{
		Result: BackendAway, Removed: up.removed(),
		Detail: fmt.Sprintf("failed to terminate machine %s: %s; %s, and NodeRetirement %s goes on trying", t.Machine, message, what, rt.Name),
	}, nil
}

// lasts notes what is so now, and says for how long it has been.
func lasts(is **trouble, code string) time.Duration {
	if *is == nil || (*is).code != code {
		*is = &trouble{code: code, since: time.Now()}
	}
	return time.Since((*is).since)
}

// stage is how far a retirement is: what changes when it comes on. Words do not count, nor attempts that are made again.
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

// nodeGoes reports a retirement whose Node was deleted, be it that finalizers hold it.
func nodeGoes(rt *v1alpha1.NodeRetirement) bool {
	return meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementNodeDeleted) != nil
}

// pastReturn reports a retirement whose Node is gone.
func pastReturn(rt *v1alpha1.NodeRetirement) bool {
	return rt.Status.Phase == v1alpha1.NodeDeleted || rt.Status.Phase == v1alpha1.InstanceDeleted
}

// late reports a retirement that has no more time: a drain has that of its group first, at the end of which its manager ends it.
func (u *Updater) late(ctx context.Context, rt *v1alpha1.NodeRetirement) (bool, error) {
	began := rt.Status.Times.Draining
	if rt.Status.Phase != v1alpha1.Draining || began == nil {
		return true, nil
	}
	group := ""
	if rt.Status.Captured != nil {
		group = rt.Status.Captured.Group
	}
	most, err := u.o.Cluster.drainTimeout(ctx, group)
	return time.Since(began.Time) > most+u.o.Pace.Termination, err
}

// giveUp ends an update for a retirement that does not come on. It is called off where its node can be given back, unless somebody
// else has made it, and goes on by itself otherwise. The desired size is as it is to be then: the termination that is still to
// come lowers it, of a machine that is to be replaced too, and one that was taken and has not begun has lowered it.
func (u *Updater) giveUp(ctx context.Context, up *Update, t *Turn, rt *v1alpha1.NodeRetirement, code, message string,
	save func() error,
) (*Outcome, error) {
	back, err := u.o.Cluster.canBeGivenBack(ctx, rt)
	if err != nil {
		return nil, clusterFailure("reading the nodes", err)
	}
	t.Why = fmt.Sprintf("NodeRetirement %s", rt.Name)
	if t.Adopted {
		t.Why += ", which is not of this update,"
	}
	t.Why += fmt.Sprintf(" of machine %s is in the phase %s and has not come on for %s: %s", t.Machine, rt.Status.Phase,
		u.o.Pace.Termination, message)
	outcome := &Outcome{Result: ClusterAway, Removed: up.removed()}
	if isOfCloud(code) || code == retirement.Disagreement || rt.Status.Operation != nil {
		outcome.Result = BackendAway
	}
	if back && !t.Adopted {
		if rt, back, err = u.takeBack(ctx, t, rt); err != nil {
			return nil, err
		}
		up.lowers(t, rt)
	}
	switch {
	case back && t.Adopted && up.Kind != SetSize:
		t.State = Refused
		t.Why += "; it is left to whoever has made it"
	case back && !t.Adopted:
		t.State = Refused
		t.Why += "; it was called off, and the machine stays"
	default:
		t.Why += "; it goes on by itself"
		if !back {
			noted := func() error { up.raisedAhead(t, rt); return save() }
			if err := u.putBack(ctx, up, up.owesFor(t, rt), noted); err != nil {
				return nil, err
			}
		}
		if up.RestoreTo > 0 {
			t.Why += fmt.Sprintf(", and the desired size was set to %d", up.RestoreTo)
		}
	}
	outcome.Detail = t.Why
	return outcome, nil
}

// takeBack calls a retirement off, and reports whether its machine stays: its manager may have come back meanwhile, and deleted its
// node. The retirement is returned as it is now.
func (u *Updater) takeBack(ctx context.Context, t *Turn, rt *v1alpha1.NodeRetirement) (*v1alpha1.NodeRetirement, bool, error) {
	if err := u.o.Cluster.callOff(ctx, rt.Name); err != nil {
		return rt, false, clusterFailure("calling a retirement off", err)
	}
	if err := u.givenBack(ctx, t.Machine, rt.Name); err != nil && resultOf(err) != NotPossible {
		return rt, false, err
	}
	is := &v1alpha1.NodeRetirement{}
	switch err := u.o.Cluster.objects.Get(ctx, client.ObjectKey{Name: rt.Name}, is); {
	case apierrors.IsNotFound(err):
		is = rt
	case err != nil:
		return rt, false, clusterFailure("reading a NodeRetirement", err)
	}
	back, err := u.o.Cluster.canBeGivenBack(ctx, is)
	if err != nil {
		return rt, false, clusterFailure("reading the nodes", err)
	}
	return is, back, nil
}

// owesFor says when the desired size is to be raised by one for a machine that is still on its way out: if it is to be replaced,
// unless the size was lowered for it before the update began; and otherwise if its termination was taken and has not begun, since
// the server would take another one away.
func (up *Update) owesFor(t *Turn, rt *v1alpha1.NodeRetirement) func(*api.Size) bool {
	asked := rt.Status.Operation != nil && rt.Status.Operation.RetryAfter == nil
	if up.Kind != SetSize && !up.Decrement && (t.Lowered || !asked) {
		return func(*api.Size) bool { return true }
	}
	return func(size *api.Size) bool { return t.Lowered && overfull(size) }
}

// raisedAhead notes that the desired size is raised for a machine that is still to lower it: its cloud was not asked for it since
// the update began, or need not have taken it, as the size is larger than it was then.
func (up *Update) raisedAhead(t *Turn, rt *v1alpha1.NodeRetirement) {
	if up.Kind != SetSize && !up.Decrement && (!t.Lowered || up.RestoreTo > up.SizeBefore) && !slices.Contains(up.Ahead, aheadOf(rt)) {
		up.Ahead = append(up.Ahead, aheadOf(rt))
	}
}

// isAhead reports that the desired size was raised, or was to be, for a machine that had not lowered it yet.
func (up *Update) isAhead(t *Turn) bool {
	return slices.ContainsFunc(up.Ahead, func(ahead string) bool { return strings.HasPrefix(ahead, t.Retirement+"/") })
}

// stillAhead are the retirements that the desired size was raised for ahead, by the update before and those before that, and
// that are under way.
func (u *Updater) stillAhead(ctx context.Context, before *Update) ([]string, error) {
	if before == nil || len(before.Ahead) == 0 {
		return nil, nil
	}
	retirements, err := u.o.Cluster.unfinished(ctx)
	if err != nil {
		return nil, clusterFailure("reading the NodeRetirements", err)
	}
	return slices.DeleteFunc(slices.Clone(before.Ahead), func(ahead string) bool {
		return !slices.ContainsFunc(retirements, func(rt v1alpha1.NodeRetirement) bool { return aheadOf(&rt) == ahead })
	}), nil
}

// aheadOf is what a retirement is remembered by, which tells it from one of the same name that came after it.
func aheadOf(rt *v1alpha1.NodeRetirement) string { return rt.Name + "/" + string(rt.UID) }

// drainTimeout is how long the drain of a NodeGroup's node may take; "" is a node of none.
func (c *Cluster) drainTimeout(ctx context.Context, group string) (time.Duration, error) {
	var list v1alpha1.NodeGroupList
	if err := c.cache.List(ctx, &list); err != nil {
		return 0, fmt.Errorf("NodeGroups: %w", err)
	}
	i := slices.IndexFunc(list.Items, func(g v1alpha1.NodeGroup) bool { return g.Name == group })
	if i < 0 {
		return retirement.DrainTime(nil), nil
	}
	return retirement.DrainTime(&list.Items[i]), nil
}

// canBeGivenBack reports that the node of a retirement is there, and that nobody has begun to delete it: called off, the
// retirement gives it back.
func (c *Cluster) canBeGivenBack(ctx context.Context, rt *v1alpha1.NodeRetirement) (bool, error) {
	if pastReturn(rt) || nodeGoes(rt) {
		return false, nil
	}
	nodes, err := c.NodesNow(ctx)
	if err != nil {
		return false, err
	}
	uid := rt.Spec.NodeUID
	if rt.Status.Captured != nil {
		uid = rt.Status.Captured.NodeUID
	}
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return n.Name == rt.Spec.NodeName && (uid == "" || n.UID == uid) && n.DeletionTimestamp == nil
	}), nil
}
