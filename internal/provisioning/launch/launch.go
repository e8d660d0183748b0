package launch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// Settle is how long the instances of a launch without an answer may take to show in the cloud.
const Settle = time.Minute

// answerMargin is by how much the clocks of two processes may differ, and how much a written time is rounded down.
const answerMargin = 5 * time.Second

// Timeout is how long a cloud may take to answer a launch of so many instances.
func Timeout(count int) time.Duration {
	const least, each = 2 * time.Minute, 2 * time.Second
	return least + time.Duration(count)*each
}

// NotRequestedError says why the cloud was not asked for instances. The launch is not in the record.
type NotRequestedError struct {
	Err error
	// Full says that the group is at a maximum, and Pending that it is so only while the result of a launch is unknown.
	Full, Pending bool
}

func (e *NotRequestedError) Error() string { return e.Err.Error() }
func (e *NotRequestedError) Unwrap() error { return e.Err }

// Launch requests instances for an owner, within the group's limits (I5). It writes the launch before the request and the answer after it.
func (r *Record) Launch(ctx context.Context, g *v1alpha1.NodeGroup, p cloud.Provider, count int, owner v1alpha1.LaunchOwner) (cloud.Operation, error) {
	began := time.Now()
	reading, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	has, err := p.Group(reading, g.Spec.Cloud.Group)
	cancel()
	if err != nil {
		return cloud.Operation{}, &NotRequestedError{Err: err}
	}
	l := v1alpha1.Launch{
		ID: NewID(), State: v1alpha1.LaunchRequested, Count: int32(count), For: &owner, RequestedAt: metav1.NewTime(began).Rfc3339Copy(),
	}
	reserved, err := r.Reserve(ctx, g, []string{l.ID}, func(s *v1alpha1.ProvisioningStatus) error {
		prune(g, s, began)
		if err := hasRoom(g, s, has, count, began); err != nil {
			return err
		}
		s.Launches = append(s.Launches, l)
		return nil
	})
	if err != nil {
		if full, ok := err.(*NotRequestedError); ok { //nolint:errorlint // it is this function's own
			return cloud.Operation{}, full
		}
		return cloud.Operation{}, &NotRequestedError{Err: err}
	}
	op, err := reserved[0].Request(ctx, p, g.Spec.Cloud.Group, cloud.Order{Count: count})
	r.answer(ctx, g, l.ID, op, err)
	return op, err
}

// hasRoom checks a group's limits against its size in the cloud and the launches that this size may not show yet.
func hasRoom(g *v1alpha1.NodeGroup, s *v1alpha1.ProvisioningStatus, has cloud.Group, count int, began time.Time) error {
	pending := 0
	for i := range s.Launches {
		if l := &s.Launches[i]; !isShown(l, began) {
			pending += int(l.Count)
		}
	}
	for _, room := range Rooms(g, has.Size+pending, has.Max) {
		if room.Left < count {
			return &NotRequestedError{Err: fmt.Errorf("%s", room.Message), Full: true, Pending: room.Left+pending >= count}
		}
	}
	return nil
}

// isShown reports whether a size that was read after a time shows a launch, or the launch will show in none.
func isShown(l *v1alpha1.Launch, began time.Time) bool {
	switch {
	case l.State == v1alpha1.LaunchFailed, l.State == v1alpha1.LaunchReady:
		return true
	case l.State == v1alpha1.LaunchProvisioning && l.AnsweredAt != nil:
		return l.AnsweredAt.Add(answerMargin).Before(began)
	}
	return l.RequestedAt.Add(Timeout(int(l.Count)) + Settle).Before(began)
}

// prune removes the launches of a group without spec.scaleUp that its size shows: nothing else follows them.
func prune(g *v1alpha1.NodeGroup, s *v1alpha1.ProvisioningStatus, began time.Time) {
	if g.Spec.ScaleUp == nil {
		s.Launches = slices.DeleteFunc(s.Launches, func(l v1alpha1.Launch) bool { return isShown(&l, began) })
	}
}

// IsUnclear reports whether a cloud may have accepted a launch in spite of its error.
func IsUnclear(err error) bool {
	return err != nil && cloud.RefusalOf(err) == "" && !cloud.IsThrottled(err) && !cloud.IsNotFound(err)
}

// answer writes what the cloud has answered. If the answer is lost or cannot be written, the launch stays as it is and
// counts as provisioning until it would have been seen.
func (r *Record) answer(ctx context.Context, g *v1alpha1.NodeGroup, id string, op cloud.Operation, err error) {
	if IsUnclear(err) {
		return
	}
	_ = r.Change(context.WithoutCancel(ctx), g, func(s *v1alpha1.ProvisioningStatus) error {
		at := slices.IndexFunc(s.Launches, func(l v1alpha1.Launch) bool { return l.ID == id })
		switch {
		case at < 0:
		case err != nil && len(op.Machines) == 0:
			s.Launches = slices.Delete(s.Launches, at, at+1)
		default:
			l := &s.Launches[at]
			l.State, l.AnsweredAt, l.Named = v1alpha1.LaunchProvisioning, new(metav1.NewTime(time.Now()).Rfc3339Copy()), op.Machines
		}
		return nil
	})
}

// SameKind reports whether two names mean one kind of machine: clouds do not agree with themselves on the case.
func SameKind(a, b string) bool { return strings.EqualFold(a, b) }
