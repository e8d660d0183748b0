// Package cloud defines what Slipway needs from a cloud: list the instances of a group, read one, delete one, launch
// more. Each package below it implements one cloud. None of them has a Kubernetes client.
//
// The most important rule is I7: unknown is not gone. A provider returns [*NotFoundError] only if the cloud itself
// said, with a valid credential, that the instance does not exist. Every other failure is another error. A list that
// was not read to its end is an error, never a shorter list.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State is the lifecycle phase of an instance, such as Running or Deleting.
type State string

// The states of an instance. A provider reports Unknown for a state that it does not know. No decision is based on
// Unknown.
const (
	Pending  State = "Pending"  // requested, or being created
	Running  State = "Running"  // created; the cloud does not know whether its Node has joined
	Stopped  State = "Stopped"  // allocated or not, but not running
	Deleting State = "Deleting" // deletion has started
	Failed   State = "Failed"   // the cloud failed to create or delete it
	Unknown  State = "Unknown"
)

// Instance describes a virtual machine with the data that its cloud reports.
type Instance struct {
	// ProviderID identifies the instance, in the form that [Provider.Normalize] returns.
	ProviderID string
	// PreviousProviderID is the ProviderID that the instance had before the cloud created it, for example an Amazon Spot request
	// ID. It is empty if the ID never changed.
	PreviousProviderID string
	// Name is the name in the cloud, such as aks-spot-12345678-vmss_3.
	Name string
	// ComputerName is the host name that the cloud gave the instance. In most clusters it is also the name of its Node.
	// It is empty if the cloud does not report it. I4: before an instance is deleted, Name or ComputerName has to
	// confirm its Node.
	ComputerName string
	// NameMayDiffer means that the cloud may name instances differently from their Nodes. A Node with the instance's
	// spec.providerID then needs no matching name.
	NameMayDiffer bool
	// UniqueID is never reused, not even by a new instance of the same name. It is empty if the cloud has no such ID,
	// or if ProviderID already is unique, as for an OpenStack server.
	UniqueID string
	// Group is the name for [Provider.Instances]; empty for an instance without a group.
	Group   string
	Zone    string
	Type    string // size or flavor
	State   State
	Created time.Time // zero when the cloud does not say
	Tags    map[string]string
	// OwnerUncertain means that the instance matches the group only by name or by an old tag. If it has no Node in this
	// cluster, it may belong to another cluster.
	OwnerUncertain bool
	// DeletionProtected means that a user protected the instance from deletion in the cloud, so that the cloud would refuse to
	// delete it. It is as of the last read. Some providers never report it. It is false for an instance that is being
	// deleted.
	DeletionProtected bool
	// DeletionProtectionReason says why the instance is protected, as a clause for a message. It is empty if the cloud does not say.
	DeletionProtectionReason string
	// Message is the cloud's own text for the state Failed. Refusal is its classification; empty if unclear.
	Message string
	Refusal Refusal
}

// Group is a named group of instances in a cloud, with its target size. Examples are a scale set and an agent pool.
type Group struct {
	Name string
	// Size is the target number of instances. It includes provisioning instances.
	Size int
	// CanRetryFailed means that no change of the group is in progress and that Grow can retry failed instances.
	CanRetryFailed bool
	// Min and Max are the cloud's own limits. Max 0 means unlimited.
	Min, Max int
}

// Template describes one kind of instance that a group can launch, and the Node that such an instance becomes.
type Template struct {
	// Name is the cloud's name of the size or flavor. Instance.Type and LaunchRequest.Template use the same name.
	Name string
	// Zone is the zone of all its instances; empty if the cloud chooses.
	Zone string
	// Shape is the known part of its Nodes. The rest has to be learned from a Node of the group.
	NodeShape
}

// NodeShape describes a Node that does not exist yet, as far as the cloud or the configuration says.
type NodeShape struct {
	// Capacity is the instance's total, including the system's share; empty if unknown.
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Reserved is the system's and the kubelet's share of the capacity. Each amount is at least 0. If it is empty, a
	// conservative estimate is used. It applies until a Node of the group has reported its allocatable resources.
	Reserved corev1.ResourceList `json:"reserved,omitzero"`
	// Labels and Taints are set when a Node joins. The labels and taints that the kubelet and the cloud set on every Node are not
	// included.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Cost is the price of one instance for one hour, at least 0, in a unit that the user chooses. 0 is unknown.
	Cost float64 `json:"cost,omitempty"`
}

// NegativeResources returns the sorted names of the resources with a negative amount.
func NegativeResources(list corev1.ResourceList) (names []string) {
	for name, amount := range list {
		if amount.Sign() < 0 {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// LaunchRequest is a request for new instances.
type LaunchRequest struct {
	// Count is the number of instances, at least 1.
	Count int
	// Template is the name of the template; empty is the group's first.
	Template string
	// RetryFailed is how many of Count replace instances that Group.Size includes but the cloud failed to create. It is at
	// most Count. Grow requests them again and increases Size only by the rest. Other groups ignore this field and
	// increase Size by Count.
	RetryFailed int
}

// Validate returns a [*RefusedError] if Count is below 1, or if RetryFailed is not between 0 and Count.
func (o LaunchRequest) Validate(group string) error {
	if o.Count < 1 {
		return &RefusedError{Reason: Invalid, Err: fmt.Errorf("growing %s by %d: want at least 1", group, o.Count)}
	}
	if o.RetryFailed < 0 || o.RetryFailed > o.Count {
		return &RefusedError{Reason: Invalid, Err: fmt.Errorf("growing %s by %d, retrying %d failed instances: want 0 to %d", group, o.Count, o.RetryFailed, o.Count)}
	}
	return nil
}

// OperationStatus is the progress of an operation.
type OperationStatus struct {
	Done bool
	// Err is why a finished operation failed; nil if it succeeded.
	Err error
	// RetryAfter is the retry delay that the cloud asks for; 0 if it does not.
	RetryAfter time.Duration
}

// RetryDelay returns how long to wait before the next status request. It returns RetryAfter, but at least least and at
// most one hour. The lower bound prevents polling in a tight loop.
func (s OperationStatus) RetryDelay(least time.Duration) time.Duration {
	return max(min(s.RetryAfter, maxRetryDelay), least)
}

// Provider is the interface to one cloud. Its methods are safe for concurrent use and return when ctx ends. If the
// cloud throttles a request, the method returns a [*ThrottledError] instead of a long wait.
type Provider interface {
	// Name returns the provider's name, such as "azure".
	Name() string
	// Normalize returns the canonical form of a provider ID, which Instance.ProviderID uses. Two canonical IDs can be
	// compared. For an ID of another cloud, subscription or project it returns an error that names the expected one. An
	// [*ProviderUnavailableError] comes only from a provider that runs as a plugin.
	Normalize(providerID string) (string, error)
	// Group reads a group without a cache.
	Group(ctx context.Context, name string) (Group, error)
	// Instances lists all instances of a group, or returns an error.
	Instances(ctx context.Context, group string) ([]Instance, error)
	// Instance reads one instance without a cache. It returns a [*NotFoundError] if the cloud says that the instance is
	// gone.
	Instance(ctx context.Context, providerID string) (Instance, error)
	// Delete starts the deletion of one instance and decreases the group's size by one, so that the cloud does not
	// replace it. If the deletion is already in progress, Delete returns an operation that follows it. If the instance
	// is gone, it returns a [*NotFoundError]. A provider may combine concurrent calls into one request.
	Delete(ctx context.Context, providerID string) (Operation, error)
	// Templates lists the templates of a group, the preferred one first. It returns at least one.
	Templates(ctx context.Context, group string) ([]Template, error)
	// Grow requests new instances and returns when the cloud has accepted the request. Group counts them at once,
	// Instances lists them later. It returns a [*RefusedError] if the group is at its maximum or the quota is used up.
	//
	// After any error, some or all of the instances may still be launched. The caller has to read Group before it
	// requests more. A provider never repeats a request that may have succeeded. Any error except a
	// [*RefusedError] or a [*ThrottledError] leaves the result unknown. If the group has changed since the provider
	// read it, the error is a [*ThrottledError]. The Operation names the instances that are known to exist, also next
	// to an error.
	Grow(ctx context.Context, group string, order LaunchRequest) (Operation, error)
	// Status returns the progress of an operation. If the cloud no longer knows the operation, it is Done without an
	// Err. The caller then has to read the object that the operation changes.
	Status(ctx context.Context, op Operation) (OperationStatus, error)
}

// NotFoundError means that the cloud itself reported that an object does not exist.
type NotFoundError struct {
	Kind string // "instance", "group"
	Name string // as requested
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s %s: the cloud says it does not exist", e.Kind, e.Name)
}

// IsNotFound reports whether err contains a [*NotFoundError].
func IsNotFound(err error) bool { return hasType[*NotFoundError](err) }

// ThrottledError means that the caller must wait for [RetryDelay] before the next request to the cloud. RetryAfter is
// what the cloud asks for, without a limit.
type ThrottledError struct {
	RetryAfter time.Duration
	Err        error
}

func (e *ThrottledError) Error() string {
	return fmt.Sprintf("the cloud asks to wait %s: %v", e.RetryAfter.Round(time.Second), e.Err)
}

func (e *ThrottledError) Unwrap() error { return e.Err }

// IsThrottled reports whether err contains a [*ThrottledError].
func IsThrottled(err error) bool { return hasType[*ThrottledError](err) }

// RetryDelay returns the RetryAfter of a [*ThrottledError] in err, at least 0 and at most one hour. It returns 0 for
// every other error.
func RetryDelay(err error) time.Duration {
	var throttled *ThrottledError
	if !errors.As(err, &throttled) {
		return 0
	}
	return min(max(0, throttled.RetryAfter), maxRetryDelay)
}

// ProviderUnavailableError means that a plugin did not answer a call that needs no cloud, such as [Provider.Normalize].
// The plugin was not running or did not reply. The caller has to retry.
type ProviderUnavailableError struct{ Err error }

func (e *ProviderUnavailableError) Error() string { return e.Err.Error() }

func (e *ProviderUnavailableError) Unwrap() error { return e.Err }

// IsProviderUnavailable reports whether err contains an [*ProviderUnavailableError].
func IsProviderUnavailable(err error) bool { return hasType[*ProviderUnavailableError](err) }

// Refusal is the reason why a cloud rejected a request. A retry does not help.
type Refusal string

// The kinds of refusals. Slipway reacts differently to each kind.
const (
	NoRight    Refusal = "NoRight"    // the credential lacks a permission, which the message names
	NoQuota    Refusal = "NoQuota"    // the quota of the project or subscription is used up
	NoCapacity Refusal = "NoCapacity" // the cloud has no capacity for this template now
	AtLimit    Refusal = "AtLimit"    // the group's own minimum or maximum in the cloud
	Protected  Refusal = "Protected"  // the instance is locked or protected in the cloud
	Invalid    Refusal = "Invalid"    // the request can never succeed in this form
)

// RefusedError means that a cloud rejected a request for the given Reason.
type RefusedError struct {
	Reason Refusal
	Err    error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused by the cloud (%s): %v", e.Reason, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// RefusalOf returns the Reason of a [*RefusedError] in err. It returns "" for every other error.
func RefusalOf(err error) Refusal {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

func hasType[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}
