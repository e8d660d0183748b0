package launch

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// Pending is a launch with the instances that were not seen yet.
type Pending struct {
	ID    string
	Kind  string
	Count int
	At    time.Time
	// Answered is when the cloud answered. It is zero until then.
	Answered time.Time
	Answer   Answer
	// Running means that the cloud still works on it. Until it ends, the group's size need not count it.
	Running bool
	// Unrequested means that the cloud makes it without a request, whenever it can.
	Unrequested bool
	// Settled is when the instances are no longer expected after a Lost answer.
	Settled time.Time
	// Named are the instances that the cloud has named and that were not seen, by provider ID.
	Named []string
	// Seen are the instances that appeared before the answer. They count as part of the launch. They become ours only
	// when the answer confirms it.
	Seen []string
}

// PendingOf converts a recorded launch. A missing answer is lost after the request timeout (I8). An accepted launch
// need not show before it has settled.
func PendingOf(l *v1alpha1.Launch, settle time.Duration, now time.Time) Pending {
	p := Pending{ID: l.ID, Kind: l.Template, Count: int(l.Count), At: l.RequestedAt.Time, Named: slices.Clone(l.Named), Unrequested: l.Unrequested}
	p.Answered, p.Answer = p.At.Add(Timeout(p.Count)), Lost
	if l.AnsweredAt != nil {
		p.Answered = l.AnsweredAt.Time
	}
	p.Settled = p.Answered.Add(settle)
	switch {
	case l.State == v1alpha1.LaunchFailed:
		p.Answer = Refused
	case l.Reason != "":
		p.Answer = NotMade
	case l.State == v1alpha1.LaunchProvisioning && l.AnsweredAt != nil:
		p.Answer, p.Running = Accepted, l.OperationID != "" || now.Before(p.Settled)
	}
	return p
}

// Instance is an instance of a launch with no usable Node yet.
type Instance struct {
	ProviderID string
	// Template is the launched template, and Launch the launch's ID.
	Template, Launch string
	// Since is when the instance was first seen.
	Since metav1.Time
}

// Answer is a cloud's answer to a launch.
type Answer int

// The answers.
const (
	Accepted Answer = iota
	Refused         // some of the instances may exist
	Lost            // all of the instances may be provisioning
	NotMade         // it was accepted, and the cloud could not create the instances
)

// wasUnanswered reports whether the launch had no answer when a cloud read began.
func (a *Pending) wasUnanswered(readAt time.Time) bool {
	return a.Answered.IsZero() || a.Answered.After(readAt)
}

// clampTimes corrects times in the future. An answer is expected within the timeout.
func (a *Pending) clampTimes(now time.Time) {
	a.At = elapsed.Clamp(a.At, now)
	if elapsed.Future(a.Answered, now.Add(Timeout(a.Count))) {
		a.Answered, a.Settled = now, now.Add(Settle)
	}
}

// mayStillShow reports whether a launch that is unanswered, refused or lost may still show instances.
func (a *Pending) mayStillShow(readAt, now time.Time) bool {
	switch {
	case a.Answered.IsZero():
		return true
	case a.Count == 0:
		return false
	case a.wasUnanswered(readAt), a.Running:
		return true
	}
	return a.Answer == Lost && now.Before(a.Settled)
}

// Expected returns how many instances of the launch count as provisioning.
func (a *Pending) Expected() int {
	switch a.Answer {
	case Refused:
		return len(a.Named)
	case NotMade:
		return 0
	}
	return max(0, a.Count-len(a.Seen))
}

// Reply applies the cloud's answer. If the answer names instances, the launch has only these, unless the answer was
// lost. After a lost answer they are expected until the launch settles.
func (a *Pending) Reply(answer Answer, named []string, at time.Time, settle time.Duration) {
	a.Answered, a.Answer, a.Named, a.Settled = at, answer, slices.Clone(named), at.Add(settle)
	switch {
	case answer == Lost:
		a.Count = max(a.Count, len(named))
	case len(named) > 0:
		a.Count = len(named)
	}
}

// applyAnswers returns the launches after their answers. It adds instances that appeared before an answer to the
// record, unless the answer excludes them.
func (s *Observation) applyAnswers(record map[string]Instance) []Pending {
	pending := slices.Clone(s.Pending)
	for i := range pending {
		a := &pending[i]
		a.Named, a.Seen = slices.Clone(a.Named), slices.Clone(a.Seen)
		if a.Answered.IsZero() {
			continue
		}
		for _, id := range a.Seen {
			if a.claimInstance(id) {
				record[id] = s.newInstance(id, a.Kind, a.ID)
			}
		}
		a.Seen = nil
	}
	return pending
}

// claimInstance counts an instance of an answered launch as seen. It returns false if the instance is not part of the
// launch.
func (a *Pending) claimInstance(id string) bool {
	switch at := slices.Index(a.Named, id); {
	case at >= 0:
		a.Named = slices.Delete(a.Named, at, at+1)
	case a.Count <= len(a.Named):
		return false
	}
	a.Count--
	return true
}

// matchInstance finds the launch of a new instance, and reports whether the instance is ours. It returns the launched
// template, because not all clouds report the type, and some use other names. The type only excludes launches of other
// templates.
func (s *Observation) matchInstance(pending []Pending, i cloud.Instance) (r Instance, ours bool) {
	for k := range pending {
		a := &pending[k]
		switch {
		case slices.Contains(a.Named, i.ProviderID):
			return s.newInstance(i.ProviderID, cmp.Or(a.Kind, i.Type), a.ID), a.claimInstance(i.ProviderID)
		case slices.Contains(a.Seen, i.ProviderID):
			return r, false
		}
	}
	for k := range pending {
		a := &pending[k]
		if a.Kind != "" && i.Type != "" && !SameKind(a.Kind, i.Type) || a.Count <= len(a.Named)+len(a.Seen) || !s.appearedSince(i, a.At) {
			continue
		}
		if a.Answered.IsZero() {
			a.Seen = append(a.Seen, i.ProviderID)
			return r, false
		}
		return s.newInstance(i.ProviderID, cmp.Or(a.Kind, i.Type), a.ID), a.claimInstance(i.ProviderID)
	}
	return r, false
}

// maxClockSkew is how far a cloud's clock may be behind.
const maxClockSkew = 5 * time.Minute

// appearedSince reports whether an instance appeared after a launch. It was not known before, and its creation time is
// not earlier. In the first read of a process only the creation time counts, in whole seconds.
func (s *Observation) appearedSince(i cloud.Instance, launchedAt time.Time) bool {
	if s.Known == nil {
		return !i.Created.IsZero() && !i.Created.Before(launchedAt.Truncate(time.Second))
	}
	_, known := s.Known[i.ProviderID]
	_, requested := s.Known[i.FormerID]
	return !known && !requested && (i.Created.IsZero() || !i.Created.Before(launchedAt.Add(-maxClockSkew)))
}
