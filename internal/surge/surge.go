// Package surge starts the successor of a pod before the pod leaves its node. It raises the size of the pod's owner by
// one, waits until the successor is Ready and receives traffic, and lowers the size again so that exactly the leaving
// pod goes. It follows https://github.com/kubernetes/kubernetes/issues/66811.
//
// Each raise is recorded before it is made (record.go). So after a crash another process takes it back.
package surge

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Mode says which pods may surge. The drain of a node has one mode. The words are not off and on, because YAML reads
// these as booleans.
type Mode string

const (
	// Off is the default: no pod surges, with or without annotations. The empty Mode means the same.
	Off Mode = "never"
	// Annotated lets a pod surge if it or its owner has the annotation "true".
	Annotated Mode = "annotated"
	// On lets every pod surge that can, except for those with the annotation "false".
	On Mode = "always"
)

// ParseMode returns the mode with the given name, ignoring letter case: a NodeGroup has Never, Annotated and Always. The
// empty name is [Off].
func ParseMode(s string) (Mode, error) {
	switch m := Mode(strings.ToLower(s)); m {
	case Off, Annotated, On:
		return m, nil
	case "":
		return Off, nil
	}
	return Off, fmt.Errorf("%q is not a surge mode: use never, annotated or always", s)
}

// Enabled reports whether any pod may surge.
func (m Mode) Enabled() bool { return m == Annotated || m == On }

// Annotation is set on a pod or its owner, "true" or "false". The pod's annotation has priority. With [Off] it has no
// effect.
const Annotation = "slipway.dev/surge"

// Verdict is the result of a [Decision].
type Verdict string

const (
	// NotNeeded: the pod can be evicted without a successor, or surging was not asked for.
	NotNeeded Verdict = "not-needed"
	// NotYet: the pod gets a successor if its PodDisruptionBudget still denies the eviction at Decision.DecideAgainAt.
	NotYet Verdict = "not-yet"
	// Needed: the pod gets a successor first.
	Needed Verdict = "needed"
	// Refused: the pod needs a successor, but cannot get one. The drain continues as without surging.
	Refused Verdict = "refused"
)

// Owner is the object that gets a larger size: the pod's Deployment, ReplicaSet, ReplicationController, Rollout or CloneSet. If a
// HorizontalPodAutoscaler or ScaledObject sizes it, Scaler is that object, and its minimum is raised instead.
type Owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Scaler     string `json:"scaler,omitempty"` // Kind/name
}

// Decision says whether a pod gets a successor first, and why. The drain, its report, plan, why and a dry run print the
// same data.
type Decision struct {
	Verdict Verdict `json:"verdict"`
	// Reason is a fixed word for metrics and tests, and Detail one sentence for people.
	Reason string `json:"reason"`
	Detail string `json:"detail"`
	Owner  Owner  `json:"owner,omitzero"`
	// StartupSeconds is how long a pod of the owner takes from its assignment to a node until it is Ready. Zero is unknown.
	StartupSeconds float64 `json:"startupSeconds,omitempty"`
	// LaunchSeconds is how long a new instance may take, if the successor needs one. Zero means that it needs none, or that nothing
	// is known.
	LaunchSeconds float64 `json:"launchSeconds,omitempty"`
	// DecideAgainAt is when to decide again with the verdict NotYet; otherwise zero.
	DecideAgainAt time.Time `json:"decideAgainAt,omitzero"`

	// seen is what the decision is about, so that a surge that begins at once need not read it again; nil if none begins.
	seen *seenOwners
}

// ExpectedStartTime returns how long a successor takes from its creation until it is Ready, with a margin for a slower start.
func (d *Decision) ExpectedStartTime() time.Duration {
	return toDuration(d.LaunchSeconds + d.StartupSeconds*startupMargin)
}

// MaxStartTime returns how long a successor may take from its creation until it is Ready.
func (d *Decision) MaxStartTime() time.Duration {
	return toDuration(d.LaunchSeconds + 2*d.StartupSeconds)
}

func toDuration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// Step is the progress of one surge.
type Step string

const (
	Raising          Step = "raising"
	AwaitingReady    Step = "awaiting-ready"
	AwaitingEndpoint Step = "awaiting-endpoint"
	// Removing: the size was lowered again, and the controller of the pod deletes it.
	Removing Step = "removing"
	// Evictable: the successor is ready, but lowering the size might delete another pod. The caller has to evict the pod
	// now. The size is lowered when the pod is terminating.
	Evictable Step = "evictable"
	Restoring Step = "restoring"
)

// Progress is the state of one surge at one moment.
type Progress struct {
	Step      Step      `json:"step"`
	Since     time.Time `json:"since"`
	Successor string    `json:"successor,omitempty"` // namespace/name
	Detail    string    `json:"detail"`
}

// Request asks for the surge of one pod.
type Request struct {
	Pod      kubeapi.Pod
	Node     string
	Decision Decision // Verdict is Needed
	// Until is when the surge has to be given up: the latest time to evict or delete the pod. Zero means without limit.
	Until time.Time
	// GiveUpAt ends the surge as Until does, but no successor is refused because of it: the pod need not leave then. Zero means without limit.
	GiveUpAt time.Time
	// OnProgress, if set, is called after each change, from the goroutine of Run. It must not block.
	OnProgress func(Progress)
}

// earliestEnd returns the earlier of Until and GiveUpAt, or zero.
func (r *Request) earliestEnd() time.Time {
	if r.Until.IsZero() || !r.GiveUpAt.IsZero() && r.GiveUpAt.Before(r.Until) {
		return r.GiveUpAt
	}
	return r.Until
}

// Result is how a surge ended. The owner's size was restored, or RestoreErr says why not yet.
type Result struct {
	// PodLeft is true if the pod is terminating or gone.
	PodLeft bool `json:"podLeft"`
	// Successor is the pod that took over, as namespace/name; empty if none became Ready.
	Successor string `json:"successor,omitempty"`
	// Reason and Detail say why the pod has not left; empty if it has.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// StartedAt, ReadyAt and EndedAt are zero if that did not happen.
	StartedAt time.Time `json:"startedAt,omitzero"`
	ReadyAt   time.Time `json:"readyAt,omitzero"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
	// RestoreErr is set if the size could not be restored. The record stays, and another process restores it.
	RestoreErr error `json:"-"`
}
