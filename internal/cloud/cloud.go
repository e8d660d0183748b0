// Package cloud says what Slipway asks of a cloud: which machines a group has, what became of one of them, take this one
// away, be so many. The folders below it answer for one cloud each; none of them knows a Kubernetes client.
//
// The rule above all others is I7: unknown is not gone. A provider returns [*NotFoundError] only when the cloud itself,
// asked with a working credential, said that there is no such machine. Everything else that goes wrong is another
// error, and a list that could not be read to its end is an error and never a shorter list.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State is how far a machine's life has come.
type State string

// The states of a machine. A provider that meets one it does not know says Unknown, which nothing may be decided on.
const (
	Pending  State = "Pending"  // asked for, or being made
	Running  State = "Running"  // made; whether its Node is there is not the cloud's to say
	Stopped  State = "Stopped"  // allocated or not, but not running
	Deleting State = "Deleting" // its deletion has begun
	Failed   State = "Failed"   // the cloud could not make it, or not delete it
	Unknown  State = "Unknown"
)

// Instance is one machine as its cloud knows it.
type Instance struct {
	// ProviderID is the machine's identity, spelt as the provider normalises it; see [Provider.Normalize].
	ProviderID string
	// FormerID is the ProviderID that it had until its cloud made it, as an Amazon spot request that was met; empty for one that
	// has always had the same.
	FormerID string
	// Name is the cloud's own name of the machine, such as aks-spot-12345678-vmss_3.
	Name string
	// ComputerName is the host name that the cloud gave the machine, which is its Node's name in most clusters. Empty
	// when the cloud does not say. I4: Name or ComputerName has to confirm a Node before its machine is deleted.
	ComputerName string
	// AnyName says that the cloud need not know its machines by the names of their Nodes: a Node whose own spec.providerID is
	// the machine's is confirmed by that.
	AnyName bool
	// UniqueID is one that no other machine ever has, not even one that is made anew under the same name. Empty where the
	// cloud has none beside the ProviderID, or where that is unique by itself, as an OpenStack server's is.
	UniqueID string
	// Group is the group's name as [Provider.Instances] takes it; empty for a machine on its own.
	Group   string
	Zone    string
	Type    string // size or flavour
	State   State
	Created time.Time // zero when the cloud does not say
	Tags    map[string]string
	// Adopted says that the group has the machine for its name or an old mark alone: it may be another cluster's, unless it
	// has a Node in this one.
	Adopted bool
	// Kept says that the cloud would refuse to delete the machine as it was last observed, since somebody has said there that
	// it must stay. False where the cloud does not say, which is all but a [Keeper], and of one that is being deleted.
	Kept bool
	// KeptReason is why it is Kept, as a clause for who is to have it let go; empty when the cloud does not say.
	KeptReason string
	// Message is the cloud's own word on a State of Failed, and Refusal what it amounts to; empty when that is not clear.
	Message string
	Refusal Refusal
}

// Group is a set of machines that the cloud counts: a scale set, an agent pool, a server group.
type Group struct {
	Name string
	// Size is how many machines the group is meant to have, those on their way counted.
	Size int
	// Refills says that nothing is changing the group, and that Grow heeds Order.Unmade.
	Refills bool
	// Min and Max are the cloud's own bounds; Max 0 is none.
	Min, Max int
}

// Template is one kind of machine that a group can have more of, and what a Node on it would be like.
type Template struct {
	// Name is the cloud's own, a size or a flavour, as Instance.Type gives it and Order.Template takes it.
	Name string
	// Zone is the one that its machines are all in; empty when the cloud chooses.
	Zone string
	// Shape is what is known of its Nodes. What is not has to be learned from a Node of the group.
	Shape
}

// Shape is what a Node will be like before there is one, as far as the cloud knows it or a configuration declares it.
type Shape struct {
	// Capacity is what a machine has, before the system's own share; none when nobody said.
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Reserved is what the system and the kubelet keep of the capacity, each 0 or more; without it a careful guess is made. It counts until
	// a Node has shown what it has.
	Reserved corev1.ResourceList `json:"reserved,omitzero"`
	// Labels and Taints are those that the Nodes join with, beside those that the kubelet and the cloud give every Node.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Cost is what an hour of a machine costs, in a unit of the user's choice, at least 0; 0 when nobody said.
	Cost float64 `json:"cost,omitempty"`
}

// Negative gives the sorted names of the amounts of a list that are below 0.
func Negative(list corev1.ResourceList) (names []string) {
	for name, amount := range list {
		if amount.Sign() < 0 {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// Order is a request for machines.
type Order struct {
	// Count is how many, at least 1.
	Count int
	// Template is the name of the kind that is wanted; empty is the group's first.
	Template string
	// Unmade is how many machines Group.Size counts that the cloud could not make, at most Count. Grow asks for them once
	// more and raises Size by the rest only. It is for groups that are said to be Refills; others add Count to Size.
	Unmade int
}

// Validate reports an order that no cloud can carry out, as a [*RefusedError].
func (o Order) Validate(group string) error {
	if o.Count < 1 {
		return &RefusedError{Reason: Invalid, Err: fmt.Errorf("growing %s by %d: want at least 1", group, o.Count)}
	}
	if o.Unmade < 0 || o.Unmade > o.Count {
		return &RefusedError{Reason: Invalid, Err: fmt.Errorf("growing %s by %d, %d of them unmade: want 0 to %d", group, o.Count, o.Unmade, o.Count)}
	}
	return nil
}

// Status is what became of an operation.
type Status struct {
	Done bool
	// Err is why a done operation did not succeed; nil when it did.
	Err error
	// After is how long the cloud wants to be left alone before it is asked again; 0 is no wish.
	After time.Duration
}

// Pause is how long to wait before an operation is asked for again: as long as the cloud wants, but at least this long, so that no
// cloud is asked in a tight loop, and at most an hour.
func (s Status) Pause(least time.Duration) time.Duration { return max(min(s.After, maxPause), least) }

// Provider is one cloud. Its methods may be called concurrently, are bounded by ctx, and honour the cloud's throttling
// by returning a [*ThrottledError] rather than by waiting for long.
type Provider interface {
	// Name is the provider's, such as "azure".
	Name() string
	// Normalize gives the one spelling of a provider ID that this provider uses in Instance.ProviderID, so that two can
	// be compared. An ID of another cloud, subscription or project is an error that says which is meant. Only a provider
	// that is a program of its own can fail to answer, by an [*UnansweredError].
	Normalize(providerID string) (string, error)
	// Group reads a group, past any cache.
	Group(ctx context.Context, name string) (Group, error)
	// Instances lists a group's machines, all of them or an error.
	Instances(ctx context.Context, group string) ([]Instance, error)
	// Instance reads one machine, past any cache: [*NotFoundError] when the cloud says that it is gone.
	Instance(ctx context.Context, providerID string) (Instance, error)
	// Delete begins to take one machine away, and lowers its group's size by one, so that the cloud does not replace it.
	// The deletion of one that is being deleted already is followed; of one that is gone it is [*NotFoundError]. Requests
	// that come close together may be sent to the cloud as one.
	Delete(ctx context.Context, providerID string) (Operation, error)
	// Templates lists the kinds of machines that a group can have more of, the preferred one first; one at the least.
	Templates(ctx context.Context, group string) ([]Template, error)
	// Grow asks for more machines, and returns once the cloud has taken the request: the machines appear in Instances
	// later, and count in Group at once. A group at its cloud's own maximum, or without quota, is a [*RefusedError].
	// After any error some of the machines may be on their way, or, when the answer was lost, all of them: Group is to be
	// read before more are asked for, and a provider never repeats a request that may have been carried out. An error that
	// is neither a [*RefusedError] nor a [*ThrottledError] says neither yes nor no. A group that has changed since the
	// provider read it is a [*ThrottledError]. The Operation names the machines that are known to be, also beside an error.
	Grow(ctx context.Context, group string, order Order) (Operation, error)
	// Status asks what became of an operation. An operation that the cloud has forgotten is Done without an Err: what it
	// was to change has to be looked at.
	Status(ctx context.Context, op Operation) (Status, error)
}

// NotFoundError is the cloud's own word that something does not exist.
type NotFoundError struct {
	Kind string // "instance", "group"
	Name string // as asked for
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s %s: the cloud says it does not exist", e.Kind, e.Name)
}

// IsNotFound reports whether the cloud said that what was asked for does not exist.
func IsNotFound(err error) bool { return as[*NotFoundError](err) }

// ThrottledError is the cloud's wish to be left alone for a while.
type ThrottledError struct {
	After time.Duration
	Err   error
}

func (e *ThrottledError) Error() string {
	return fmt.Sprintf("the cloud asks to wait %s: %v", e.After.Round(time.Second), e.Err)
}

func (e *ThrottledError) Unwrap() error { return e.Err }

// IsThrottled reports whether the cloud wants to be left alone for a while.
func IsThrottled(err error) bool { return as[*ThrottledError](err) }

// PauseOf is for how long a cloud wants to be left alone, by its error: an hour at most, and 0 when it has no such wish.
func PauseOf(err error) time.Duration {
	var throttled *ThrottledError
	if !errors.As(err, &throttled) {
		return 0
	}
	return min(max(0, throttled.After), maxPause)
}

// UnansweredError says that a question which takes no cloud, as [Provider.Normalize] asks it, could not be answered now,
// since the program that knows the answer did not run or did not reply. It is to be asked again.
type UnansweredError struct{ Err error }

func (e *UnansweredError) Error() string { return e.Err.Error() }

func (e *UnansweredError) Unwrap() error { return e.Err }

// IsUnanswered reports whether a question has to be asked again.
func IsUnanswered(err error) bool { return as[*UnansweredError](err) }

// Refusal is why a cloud will not do what it was asked, however often it is asked again.
type Refusal string

// The refusals that are told apart, since each wants another answer.
const (
	NoRight    Refusal = "NoRight"    // the credential lacks a right, which the message names
	NoQuota    Refusal = "NoQuota"    // the project's or subscription's quota is used up
	NoCapacity Refusal = "NoCapacity" // the cloud has no machine of this kind to give now
	AtLimit    Refusal = "AtLimit"    // the group's own minimum or maximum
	Protected  Refusal = "Protected"  // the machine is locked or protected in the cloud
	Invalid    Refusal = "Invalid"    // the request can never succeed as it stands
)

// RefusedError is a cloud's no.
type RefusedError struct {
	Reason Refusal
	Err    error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused by the cloud (%s): %v", e.Reason, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// RefusalOf gives the reason of a refusal, and "" for any other error.
func RefusalOf(err error) Refusal {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}
