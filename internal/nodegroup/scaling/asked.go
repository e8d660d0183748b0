package scaling

import (
	"slices"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// Asked is an order, with as many of its machines as have not been seen.
type Asked struct {
	// ID tells it from others.
	ID    int
	Kind  string
	Count int
	At    time.Time
	// Answered is when the cloud had answered it; zero until then.
	Answered time.Time
	Answer   Answer
	// Settled is when machines of an order are not expected any more whose answer was Lost.
	Settled time.Time
	// Named are the machines of it that the cloud has named and that have not been seen, by provider ID.
	Named []string
	// Seen are the machines that have come since the order, as long as it has no answer. They count as its own, and are not
	// ours before the cloud has said so.
	Seen []string
}

// Answer is what a cloud has said to an order.
type Answer int

// The answers.
const (
	Taken   Answer = iota
	Refused        // some of the machines may have been made before
	Lost           // all of them may be on their way
)

// open reports whether the cloud had not answered an order when it began to be asked what there is.
func (a *Asked) open(began time.Time) bool { return a.Answered.IsZero() || a.Answered.After(began) }

// kept reports whether an order that is no more than open, refused or lost may still have machines to be seen.
func (a *Asked) kept(began, now time.Time) bool {
	switch {
	case a.Answered.IsZero():
		return true
	case a.Count == 0:
		return false
	case a.open(began):
		return true
	}
	return a.Answer == Lost && now.Before(a.Settled)
}

// Expected is how many machines count as on their way for an order.
func (a *Asked) Expected() int {
	if a.Answer == Refused {
		return len(a.Named)
	}
	return max(0, a.Count-len(a.Seen))
}

// Reply takes in what the cloud has answered. Where it names machines, the order is for those, and for others only when the
// answer to them was lost; they are expected for as long as it takes to settle then.
func (a *Asked) Reply(answer Answer, named []string, at time.Time, settle time.Duration) {
	a.Answered, a.Answer, a.Named, a.Settled = at, answer, slices.Clone(named), at.Add(settle)
	switch {
	case answer == Lost:
		a.Count = max(a.Count, len(named))
	case len(named) > 0:
		a.Count = len(named)
	}
}

// answered gives the orders as their answers leave them: of the machines that came before an answer those are ours that it
// does not exclude, and go into the record.
func (s *Sight) answered(record map[string]v1alpha1.AwaitedMachine) []Asked {
	asked := slices.Clone(s.Asked)
	for i := range asked {
		a := &asked[i]
		a.Named, a.Seen = slices.Clone(a.Named), slices.Clone(a.Seen)
		if a.Answered.IsZero() {
			continue
		}
		for _, id := range a.Seen {
			if a.take(id) {
				record[id] = s.recordOf(id, a.Kind)
			}
		}
		a.Seen = nil
	}
	return asked
}

// take counts a machine off an order that has its answer; false when it is not one of the order's.
func (a *Asked) take(id string) bool {
	switch at := slices.Index(a.Named, id); {
	case at >= 0:
		a.Named = slices.Delete(a.Named, at, at+1)
	case a.Count <= len(a.Named):
		return false
	}
	a.Count--
	return true
}

// fulfil counts a machine off the order that it has come after, and reports whether that makes it one of ours, with the kind that
// was ordered: clouds do not all say it of a machine, nor in the words of their templates. By its kind it is told only from those
// that were there before.
func (s *Sight) fulfil(asked []Asked, i cloud.Instance) (kind string, ours bool) {
	for k := range asked {
		a := &asked[k]
		switch {
		case slices.Contains(a.Named, i.ProviderID):
			return a.Kind, a.take(i.ProviderID)
		case slices.Contains(a.Seen, i.ProviderID):
			return "", false
		}
	}
	for k := range asked {
		a := &asked[k]
		if a.Kind != "" && i.Type != "" && !SameKind(a.Kind, i.Type) || a.Count <= len(a.Named)+len(a.Seen) || !s.since(i, a.At) {
			continue
		}
		if a.Answered.IsZero() {
			a.Seen = append(a.Seen, i.ProviderID)
			return "", false
		}
		return a.Kind, a.take(i.ProviderID)
	}
	return "", false
}

// skew is by how much a cloud's clock may be behind.
const skew = 5 * time.Minute

// since reports whether a machine has come since an order: it was not there the last time, and its cloud does not say that
// it is older. At the first look of a process only the cloud knows, in whole seconds.
func (s *Sight) since(i cloud.Instance, ordered time.Time) bool {
	if s.Known == nil {
		return !i.Created.IsZero() && !i.Created.Before(ordered.Truncate(time.Second))
	}
	_, known := s.Known[i.ProviderID]
	_, requested := s.Known[i.FormerID]
	return !known && !requested && (i.Created.IsZero() || !i.Created.Before(ordered.Add(-skew)))
}
