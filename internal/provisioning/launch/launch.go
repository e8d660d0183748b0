package launch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// SettleTime is how long the instances of a launch may take to appear in the cloud after the answer was lost.
const SettleTime = time.Minute

// answerMargin is added to timeouts, because the clocks of two processes may differ and recorded times are rounded down.
const answerMargin = 5 * time.Second

// RequestTimeout returns how long a cloud may take to answer a launch of count instances.
func RequestTimeout(count int) time.Duration {
	const least, each = 2 * time.Minute, 2 * time.Second
	return least + time.Duration(count)*each
}

// NotRequestedError says why the cloud was not asked for instances. In this case the launch record has no launch.
type NotRequestedError struct {
	Err error
	// AtMaximum means that the group is at a maximum. Pending means that this may change when the result of a launch is
	// known.
	AtMaximum, ResultPending bool
	// BackOff is the back-off of the templates. It is nil if none blocks the launch.
	BackOff *v1alpha1.BackOff
	// ExistingLaunch is a launch for the same Node. It is nil if there is none.
	ExistingLaunch *v1alpha1.Launch
}

func (e *NotRequestedError) Error() string { return e.Err.Error() }
func (e *NotRequestedError) Unwrap() error { return e.Err }

// LaunchRequest is a request for a launch.
type LaunchRequest struct {
	Count int
	// Templates are the allowed templates in order of preference. If there are none, it is the group's first.
	Templates []string
	Owner     v1alpha1.LaunchOwner
}

// RequestInstances requests instances for an owner, within the group's limits (invariant I5), and returns the launch's
// ID. It writes the launch before the request and the answer after it.
func (r *Record) RequestInstances(ctx context.Context, g *v1alpha1.NodeGroup, p cloud.Provider, w LaunchRequest) (id string, err error) {
	began := time.Now()
	reading, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	has, err := p.Group(reading, g.Spec.Cloud.Group)
	cancel()
	if err != nil {
		return "", &NotRequestedError{Err: err}
	}
	l := v1alpha1.Launch{State: v1alpha1.LaunchRequested}
	reserved, err := r.reserveForOwner(ctx, g, w, began, func(s *v1alpha1.ProvisioningStatus, template string) (v1alpha1.Launch, error) {
		l.Template = template
		return l, CheckSizeLimits(g, s, has, w.Count, began)
	})
	if err != nil {
		return "", err
	}
	op, err := reserved.Request(ctx, p, g.Spec.Cloud.Group, cloud.LaunchRequest{Count: w.Count, Template: l.Template})
	r.writeAnswer(ctx, g, reserved.ID, op, err)
	return reserved.ID, err
}

// RecordUnrequestedLaunch records a launch that the cloud makes itself: the size of the group counts an instance that does not
// exist yet.
func (r *Record) RecordUnrequestedLaunch(ctx context.Context, g *v1alpha1.NodeGroup, w LaunchRequest) error {
	now := time.Now()
	_, err := r.reserveForOwner(ctx, g, w, now, func(*v1alpha1.ProvisioningStatus, string) (v1alpha1.Launch, error) {
		return v1alpha1.Launch{State: v1alpha1.LaunchProvisioning, Unrequested: true, AnsweredAt: new(metav1.NewTime(now).Rfc3339Copy())}, nil
	})
	return err
}

// reserveForOwner records the launch that the function newLaunch returns. It records nothing if a back-off, a limit or
// another launch prevents it.
func (r *Record) reserveForOwner(ctx context.Context, g *v1alpha1.NodeGroup, w LaunchRequest, now time.Time,
	newLaunch func(s *v1alpha1.ProvisioningStatus, template string) (v1alpha1.Launch, error),
) (Reservation, error) {
	id := NewLaunchID()
	reserved, err := r.ReserveLaunches(ctx, g, []string{id}, func(s *v1alpha1.ProvisioningStatus) error {
		if slices.ContainsFunc(s.Launches, func(l v1alpha1.Launch) bool { return l.ID == id }) {
			return nil // a proxy has sent the write twice, and the answer to the second was a conflict with the first
		}
		pruneLaunches(g, s, now)
		template, err := ChooseLaunchableTemplate(s, w, now)
		if err != nil {
			return err
		}
		l, err := newLaunch(s, template)
		if err != nil {
			return err
		}
		l.ID, l.Count, l.For, l.RequestedAt = id, int32(w.Count), &w.Owner, metav1.NewTime(now).Rfc3339Copy()
		s.Launches = append(s.Launches, l)
		return nil
	})
	if err != nil {
		if why, ok := err.(*NotRequestedError); ok { //nolint:errorlint // an error of this package
			return Reservation{}, why
		}
		return Reservation{}, &NotRequestedError{Err: err}
	}
	return reserved[0], nil
}

// ChooseLaunchableTemplate returns the template to launch. It returns a NotRequestedError if there is a launch for the same Node already,
// or each template is in a back-off. Only replacements respect back-offs: a cloudpool returns the cloud's own error to
// its client.
func ChooseLaunchableTemplate(s *v1alpha1.ProvisioningStatus, w LaunchRequest, now time.Time) (template string, err error) {
	if len(w.Templates) == 0 {
		w.Templates = []string{""}
	}
	if w.Owner.Kind != v1alpha1.LaunchForRetirement {
		return w.Templates[0], nil
	}
	for i := range s.Launches {
		l := &s.Launches[i]
		mayWork := l.State != v1alpha1.LaunchFailed || len(l.Instances) > 0 // a late instance may still become usable
		if l.IsForRetirement() && (l.For.UID == w.Owner.UID || mayWork && l.For.NodeUID != "" && l.For.NodeUID == w.Owner.NodeUID) {
			return "", &NotRequestedError{Err: fmt.Errorf("the launch %s of NodeRetirement %s replaces the same node", l.ID, l.For.Name), ExistingLaunch: l}
		}
	}
	var first *v1alpha1.BackOff
	for _, template := range w.Templates {
		b := findBackOff(s, template)
		if b == nil || !now.Before(b.Until.Time) || ClampBackOff(*b, now) != *b { // the clock was set back
			return template, nil
		}
		first = cmp.Or(first, b)
	}
	return "", &NotRequestedError{Err: fmt.Errorf("backed off until %s: %s", first.Until.UTC().Format(time.RFC3339), first.Message), BackOff: first}
}

// ListReplacementTemplates returns the templates that may replace an instance of type preferred, in order of preference. For a group
// without spec.scaleUp it returns none, because its templates are unknown.
func ListReplacementTemplates(ctx context.Context, g *v1alpha1.NodeGroup, p cloud.Provider, preferred string) (names []string, err error) {
	if g.Spec.ScaleUp == nil {
		return nil, nil
	}
	list, err := p.Templates(ctx, g.Spec.Cloud.Group)
	if err != nil {
		return nil, fmt.Errorf("templates of group %s: %w", g.Spec.Cloud.Group, err)
	}
	wanted := g.Spec.ScaleUp.Templates
	for _, t := range list {
		if len(wanted) == 0 || slices.ContainsFunc(wanted, func(w v1alpha1.InstanceTemplate) bool { return IsSameTemplate(w.Name, t.Name) }) {
			names = append(names, t.Name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rankTemplate(a, preferred), rankTemplate(b, preferred)) })
	return names, nil
}

func rankTemplate(template, preferred string) int {
	if IsSameTemplate(template, preferred) {
		return 0
	}
	return 1
}

// CheckSizeLimits returns a NotRequestedError if count more instances would exceed a limit of the group. It adds the
// launches that the group's size in the cloud may not include yet.
func CheckSizeLimits(g *v1alpha1.NodeGroup, s *v1alpha1.ProvisioningStatus, current cloud.Group, count int, readAt time.Time) error {
	pending := 0
	for i := range s.Launches {
		if l := &s.Launches[i]; !isCountedInSize(l, readAt) {
			pending += int(l.Count)
		}
	}
	for _, room := range SizeLimits(g, current.Size+pending, current.Max) {
		if room.Left < count {
			return &NotRequestedError{Err: fmt.Errorf("%s", room.Message), AtMaximum: true, ResultPending: room.Left+pending >= count}
		}
	}
	return nil
}

// maxOperationAge is how long an operation counts as running if no manager polls it.
const maxOperationAge = time.Hour

// isCountedInSize reports whether the launch needs no addition to a size of the group that was read at readAt. Either
// the size includes its instances, or it never will.
func isCountedInSize(l *v1alpha1.Launch, readAt time.Time) bool {
	switch {
	case l.State == v1alpha1.LaunchFailed, l.State == v1alpha1.LaunchReady:
		return true
	case l.OperationID != "" && readAt.Before(l.RequestedAt.Add(maxOperationAge)):
		return false
	case l.State == v1alpha1.LaunchProvisioning && l.AnsweredAt != nil:
		return l.AnsweredAt.Add(answerMargin).Before(readAt)
	}
	return l.RequestedAt.Add(RequestTimeout(int(l.Count)) + SettleTime).Before(readAt)
}

// recordRetention is how long a launch with a result waits in the record for its NodeRetirement. The NodeRetirement may
// be deleted and never read the result.
const recordRetention = 8 * 24 * time.Hour

// pruneLaunches removes launches that nobody tracks: launches in groups without spec.scaleUp that the size counts, and
// launches whose NodeRetirement has not recorded the result within recordRetention.
func pruneLaunches(g *v1alpha1.NodeGroup, s *v1alpha1.ProvisioningStatus, now time.Time) {
	s.Launches = slices.DeleteFunc(s.Launches, func(l v1alpha1.Launch) bool {
		if l.IsForRetirement() {
			return IsLaunchForgotten(&l, now)
		}
		return g.Spec.ScaleUp == nil && isCountedInSize(&l, now)
	})
}

// IsLaunchForgotten reports whether a launch is so old that its NodeRetirement will never record the result.
func IsLaunchForgotten(l *v1alpha1.Launch, now time.Time) bool {
	return now.After(l.RequestedAt.Add(recordRetention))
}

// IsUnclearAnswer reports whether the cloud may have accepted a launch although it has returned this error.
func IsUnclearAnswer(err error) bool {
	return err != nil && cloud.RefusalOf(err) == "" && !cloud.IsThrottled(err) && !cloud.IsNotFound(err)
}

// writeAnswer records the cloud's answer to a launch. If the answer is lost or cannot be written, the instances of the
// launch count as provisioning until they would have appeared. After a refusal, the launch of a replacement stays until
// its NodeRetirement has recorded that. A launch of another owner is removed.
func (r *Record) writeAnswer(ctx context.Context, g *v1alpha1.NodeGroup, id string, op cloud.Operation, err error) {
	now := time.Now()
	_ = r.Update(context.WithoutCancel(ctx), g, func(s *v1alpha1.ProvisioningStatus) error {
		at := slices.IndexFunc(s.Launches, func(l v1alpha1.Launch) bool { return l.ID == id })
		if at < 0 {
			return nil
		}
		l := &s.Launches[at]
		refused := err != nil && !IsUnclearAnswer(err) && len(op.ProviderIDs) == 0
		if refused && !l.IsForRetirement() {
			s.Launches = slices.Delete(s.Launches, at, at+1)
			return nil
		}
		l.AnsweredAt = new(metav1.NewTime(now).Rfc3339Copy())
		switch {
		case refused:
			l.State, l.Count = v1alpha1.LaunchFailed, 0
			SetLaunchReason(l, err)
			recordBackOff(s, l.Template, l.Reason, l.Message, now.Add(cloud.RetryDelay(err)), now)
		case !IsUnclearAnswer(err):
			l.State, l.Named = v1alpha1.LaunchProvisioning, op.ProviderIDs
			if l.IsForRetirement() { // operations of other owners are not polled
				l.OperationID = op.ID
			}
		}
		return nil
	})
}

// IsSameTemplate reports whether two names mean the same template. It ignores upper and lower case, because clouds are
// not consistent in this.
func IsSameTemplate(a, b string) bool { return strings.EqualFold(a, b) }
