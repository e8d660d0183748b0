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

// Pending is a launch with as many of its instances as have not been seen.
type Pending struct {
	// ID is the launch's.
	ID    string
	Kind  string
	Count int
	At    time.Time
	// Answered is when the cloud had answered it; zero until then.
	Answered time.Time
	Answer   Answer
	// Running says that the cloud still works on it: until then it need not show it in the group's size.
	Running bool
	// Unrequested says that the cloud carries it out by itself, whenever it can.
	Unrequested bool
	// Settled is when machines of an order are not expected any more whose answer was Lost.
	Settled time.Time
	// Named are the machines of it that the cloud has named and that have not been seen, by provider ID.
	Named []string
	// Seen are the machines that have come since the order, as long as it has no answer. They count as its own, and are not
	// ours before the cloud has said so.
	Seen []string
}

// PendingOf returns a launch of the record as what is pending of it. The answer to one that has none is lost once no cloud takes so long
// (I8). What was accepted need not show before it has settled.
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

// Instance is an instance of a launch whose Node has not been usable yet.
type Instance struct {
	ProviderID string
	// Template is the one that was launched, and Launch the launch's ID.
	Template, Launch string
	// Since is when the instance was first seen.
	Since metav1.Time
}

// Answer is what a cloud has said to an order.
type Answer int

// The answers.
const (
	Accepted Answer = iota
	Refused         // some of the machines may have been made before
	Lost            // all of them may be on their way
	NotMade         // it was taken, and the cloud has said since that it could not make them
)

// wasUnanswered reports whether the cloud had not answered an order when it began to be asked what there is.
func (a *Pending) wasUnanswered(began time.Time) bool {
	return a.Answered.IsZero() || a.Answered.After(began)
}

// clampTimes replaces times that the clock cannot have shown yet. The answer is expected within the timeout.
func (a *Pending) clampTimes(now time.Time) {
	a.At = elapsed.Clamp(a.At, now)
	if elapsed.Future(a.Answered, now.Add(Timeout(a.Count))) {
		a.Answered, a.Settled = now, now.Add(Settle)
	}
}

// mayStillShow reports whether an order that is no more than open, refused or lost may still have machines to be seen.
func (a *Pending) mayStillShow(began, now time.Time) bool {
	switch {
	case a.Answered.IsZero():
		return true
	case a.Count == 0:
		return false
	case a.wasUnanswered(began), a.Running:
		return true
	}
	return a.Answer == Lost && now.Before(a.Settled)
}

// Expected is how many machines count as on their way for an order.
func (a *Pending) Expected() int {
	switch a.Answer {
	case Refused:
		return len(a.Named)
	case NotMade:
		return 0
	}
	return max(0, a.Count-len(a.Seen))
}

// Reply takes in what the cloud has answered. Where it names machines, the order is for those, and for others only when the
// answer to them was lost; they are expected for as long as it takes to settle then.
func (a *Pending) Reply(answer Answer, named []string, at time.Time, settle time.Duration) {
	a.Answered, a.Answer, a.Named, a.Settled = at, answer, slices.Clone(named), at.Add(settle)
	switch {
	case answer == Lost:
		a.Count = max(a.Count, len(named))
	case len(named) > 0:
		a.Count = len(named)
	}
}

// applyAnswers gives the orders as their answers leave them: of the machines that came before an answer those are ours that it
// does not exclude, and go into the record.
func (s *Observation) applyAnswers(record map[string]Instance) []Pending {
	asked := slices.Clone(s.Pending)
	for i := range asked {
		a := &asked[i]
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
	return asked
}

// claimInstance counts a machine off an order that has its answer; false when it is not one of the order's.
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

// matchInstance counts a machine off the order that it has come after, and reports whether that makes it one of ours, with the kind that
// was ordered: clouds do not all say it of a machine, nor in the words of their templates. By its kind it is told only from those
// that were there before.
func (s *Observation) matchInstance(asked []Pending, i cloud.Instance) (r Instance, ours bool) {
	for k := range asked {
		a := &asked[k]
		switch {
		case slices.Contains(a.Named, i.ProviderID):
			return s.newInstance(i.ProviderID, cmp.Or(a.Kind, i.Type), a.ID), a.claimInstance(i.ProviderID)
		case slices.Contains(a.Seen, i.ProviderID):
			return r, false
		}
	}
	for k := range asked {
		a := &asked[k]
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

// maxClockSkew is by how much a cloud's clock may be behind.
const maxClockSkew = 5 * time.Minute

// appearedSince reports whether a machine has come since an order: it was not there the last time, and its cloud does not say that
// it is older. At the first look of a process only the cloud knows, in whole seconds.
func (s *Observation) appearedSince(i cloud.Instance, ordered time.Time) bool {
	if s.Known == nil {
		return !i.Created.IsZero() && !i.Created.Before(ordered.Truncate(time.Second))
	}
	_, known := s.Known[i.ProviderID]
	_, requested := s.Known[i.FormerID]
	return !known && !requested && (i.Created.IsZero() || !i.Created.Before(ordered.Add(-maxClockSkew)))
}
