package replacement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// order asks for the machine that is written down as being ordered. It is called once for each time that is written: who
// comes after a crash goes on with settle.
func (l *one) order(ctx context.Context) (time.Duration, error) {
	within, cancel := context.WithTimeout(ctx, cloud.ChangeTimeout)
	defer cancel()
	op, err := l.c.o.Launches.Launch(within, l.group, l.cloud, 1, v1alpha1.LaunchOwner{
		Kind: "NodeRetirement", Name: l.rt.Name, UID: l.rt.UID, NodeUID: l.rt.Spec.NodeUID,
	})
	var unasked *launch.NotRequestedError
	if errors.As(err, &unasked) {
		return l.notRequested(ctx, unasked)
	}
	l.c.o.Asked(l.cloud.Name(), "Grow", err)
	switch {
	case err == nil:
		l.record().OperationID = op.ID
		return l.ordered(ctx)
	case cloud.IsThrottled(err) && len(op.Machines) == 0: // not taken; what another has launched meanwhile is not this one's
		return l.again(ctx, because(OrderFailed, "group "+l.group.Spec.Cloud.Group, "%s", err))
	case cloud.RefusalOf(err) != "", cloud.IsThrottled(err):
		return l.refused(ctx, err)
	}
	l.log.Warn("the answer to an order did not come; its group will show what became of it", "err", err)
	return l.c.o.Pace.Cloud, nil
}

// notRequested notes that the cloud was not asked: the group is at its maximum since it was read, or the launch could not be written.
func (l *one) notRequested(ctx context.Context, why *launch.NotRequestedError) (time.Duration, error) {
	if !why.Full {
		err := l.write(ctx, v1alpha1.ReplacementWaiting, because(OrderFailed, "group "+l.group.Spec.Cloud.Group, "%s", why))
		return l.c.o.Pace.Cloud, errors.Join(err, why)
	}
	return l.c.o.Pace.Cloud, l.write(ctx, v1alpha1.ReplacementWaiting, because(AtMaximum, "", "%s", why))
}

// ordered notes that the cloud has taken the order.
func (l *one) ordered(ctx context.Context) (time.Duration, error) {
	if err := l.write(ctx, v1alpha1.ReplacementOrdered, l.record().Reasons...); err != nil {
		return 0, err
	}
	l.c.events.ordered(l.rt)
	return l.c.o.Pace.Cloud, nil
}

// refused notes that the cloud will not have it, and when it is asked again; but for an order that it has taken all the
// same.
func (l *one) refused(ctx context.Context, cause error) (time.Duration, error) {
	s, err := l.c.survey(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return 0, err // it is settled later
	}
	if Taken(l.record(), s) {
		return l.ordered(ctx)
	}
	code := string(cloud.RefusalOf(cause))
	if code == "" {
		code = OrderFailed
	}
	return l.again(ctx, because(code, "group "+l.group.Spec.Cloud.Group, "%s", cause))
}

// again notes that an order came to nothing, and when the next may be made.
func (l *one) again(ctx context.Context, why v1alpha1.RetirementReason) (time.Duration, error) {
	r := l.record()
	r.Attempts++
	pause := backoff(l.c.o.Pace.Retry, r.Attempts)
	at := metav1.NewTime(time.Now().Add(pause)).Rfc3339Copy()
	r.RetryAfter, r.Machines, r.Machine, r.OperationID = &at, nil, "", ""
	if err := l.write(ctx, v1alpha1.ReplacementWaiting, why); err != nil {
		return 0, err
	}
	l.c.o.Metrics.refused(l.rt.Spec.Group, why.Code)
	l.c.events.refused(l.rt, why, pause)
	return pause, nil
}

// settle finds out what became of an order whose answer is not known: the process that made it has ended, or the answer
// was lost. A request may be on its way still, so that a group that shows nothing is believed only after a while.
func (l *one) settle(ctx context.Context) (time.Duration, error) {
	s, err := l.c.survey(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return 0, err
	}
	if Taken(l.record(), s) {
		return l.ordered(ctx)
	}
	if left := l.c.o.Pace.Settle - time.Since(l.record().Since.Time); left > 0 {
		return min(left, l.c.o.Pace.Cloud), nil
	}
	return l.again(ctx, because(OrderLost, "group "+l.group.Spec.Cloud.Group,
		"the order did not reach the cloud: the group is meant to have %d machines, and was meant to have %d", s.Size, l.record().Size))
}

// follow waits for the machine.
func (l *one) follow(ctx context.Context) (time.Duration, error) {
	s, err := l.c.survey(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return 0, err
	}
	others, err := l.others(ctx)
	if err != nil {
		return 0, err
	}
	var claimed []string
	for _, o := range others {
		claimed = append(claimed, o.Status.Replacement.Machine)
	}
	r := l.record()
	machine, found := Newcomer(r, s, claimed)
	if found {
		r.Machine = machine.Name
		switch machine.State {
		case cloud.Running:
			return 0, l.arrived(ctx)
		case cloud.Failed:
			return l.c.o.Pace.Cloud, l.failed(ctx, fmt.Errorf("the cloud could not make %s: %s", machine.Name, machine.Message))
		}
	}
	over, err := l.operation(ctx, s)
	if err != nil || found || !over || l.isExpected(s) || time.Since(r.Since.Time) < l.c.o.Pace.Settle {
		return l.c.o.Pace.Cloud, err
	}
	return l.again(ctx, because(InstanceVanished, "group "+l.group.Spec.Cloud.Group,
		"the cloud has dropped %s before it ran: the group is meant to have %d instances, and another is launched", cmp.Or(r.Machine, "the new instance"), s.Size))
}

// isExpected reports whether the group's size counts an instance that is not there yet. It was launched, or the cloud brings it.
func (l *one) isExpected(s Survey) bool {
	if l.record().State == v1alpha1.ReplacementLeftToCloud {
		return s.Size > len(s.Machines)
	}
	return Taken(l.record(), s)
}

func (l *one) arrived(ctx context.Context) error {
	since := l.record().Since
	if err := l.write(ctx, v1alpha1.ReplacementArrived, l.record().Reasons...); err != nil {
		return err
	}
	l.c.o.Metrics.arrived(time.Since(since.Time))
	l.c.events.arrived(l.rt)
	return nil
}

// operation asks the cloud how the order goes. One that failed and has left the group as it was is made again; one that
// has left it larger is not, since the group would become too large. It reports whether the operation is over without an error: what
// the group has then is all that there will be.
func (l *one) operation(ctx context.Context, s Survey) (over bool, err error) {
	r := l.record()
	if r.OperationID == "" {
		return true, nil
	}
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	status, err := l.cloud.Status(within, cloud.Operation{ID: r.OperationID, Started: r.Since.Time})
	l.c.o.Asked(l.cloud.Name(), "Status", err)
	switch {
	case cloud.IsNotFound(err), cloud.RefusalOf(err) == cloud.Invalid: // the cloud has forgotten it, or it cannot be asked for
		return true, nil
	case err != nil:
		return false, fmt.Errorf("the order of a machine: %w", err)
	case !status.Done || status.Err == nil:
		return status.Done, nil
	}
	if !Taken(r, s) {
		_, err := l.refused(ctx, status.Err)
		return false, err
	}
	return false, l.failed(ctx, status.Err)
}

// failed notes once what went wrong with a machine that counts in its group all the same.
func (l *one) failed(ctx context.Context, cause error) error {
	r := l.record()
	for _, reason := range r.Reasons {
		if reason.Code == OrderFailed {
			return nil
		}
	}
	why := because(OrderFailed, "group "+l.group.Spec.Cloud.Group, "%s", cause)
	if err := l.write(ctx, r.State, append([]v1alpha1.RetirementReason{why}, r.Reasons...)...); err != nil {
		return err
	}
	l.c.o.Metrics.refused(l.rt.Spec.Group, why.Code)
	l.c.events.failed(l.rt, why)
	return nil
}
