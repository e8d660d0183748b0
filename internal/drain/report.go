package drain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
)

// Outcome is how a drain ended.
type Outcome string

const (
	// Drained: no pod is left that has to be removed.
	Drained Outcome = "drained"
	// RefusedByPolicy: the policy forbids to remove a pod; see RefusedError.
	RefusedByPolicy Outcome = "refused"
	// DeadlinePassed: the deadline passed before the node was drained.
	DeadlinePassed Outcome = "deadline-passed"
	// TimedOut: the timeout of a voluntary drain passed.
	TimedOut Outcome = "gave-up"
	// Cancelled: the caller cancelled the drain.
	Cancelled Outcome = "cancelled"
)

// Outcomes returns all outcomes of a drain.
func Outcomes() []Outcome {
	return []Outcome{Drained, RefusedByPolicy, DeadlinePassed, TimedOut, Cancelled}
}

// RemovalMethod is the kind of request that the drain sent to remove a pod.
type RemovalMethod string

const (
	NotRemoved RemovalMethod = ""
	// Evicted: with the eviction API, which respects PDBs.
	Evicted RemovalMethod = "evicted"
	// ForceDeleted: deleted despite a PDB or another obstacle, because the deadline left no more time to wait
	// (invariant I2).
	ForceDeleted RemovalMethod = "forced"
	// DeletedOnRequest: deleted without an eviction, because the user has disabled eviction (invariant I2).
	DeletedOnRequest RemovalMethod = "deleted"
	// GraceShortened: another client had deleted the pod, and its grace was cut to the deadline.
	GraceShortened RemovalMethod = "shortened"
	// Surged: its controller deleted it after its successor was ready.
	Surged RemovalMethod = "surged"
)

// PodEnd is how the containers of a pod ended.
type PodEnd string

const (
	StillPresent PodEnd = ""
	// Stopped: every container ended within the grace.
	Stopped PodEnd = "stopped"
	// Killed: a container was killed at the end of the grace.
	Killed PodEnd = "killed"
	// Vanished: the object was removed without a record of how its containers ended. They never ran, or the grace was
	// 0.
	Vanished PodEnd = "vanished"
)

// Report is the drain report: what a drain did to each pod.
type Report struct {
	Node      string       `json:"node"`
	Outcome   Outcome      `json:"outcome"`
	StartedAt time.Time    `json:"startedAt"`
	EndedAt   time.Time    `json:"endedAt"`
	Deadline  time.Time    `json:"deadline,omitzero"`
	Pods      []PodReport  `json:"pods"`
	Volumes   VolumeReport `json:"volumes,omitzero"`
	// PodsListedAt is when the drain requested the list that proved that the node was empty. It is zero unless the node is
	// drained. The drain may end much later, because its surges restore sizes.
	PodsListedAt time.Time `json:"-"`
}

// Decision is the rule that decided what to do with a pod, and a text with the reason.
type Decision struct {
	Rule   podrules.Rule `json:"rule"`
	Detail string        `json:"detail,omitempty"`
}

// PodReport is what a drain did to one pod.
type PodReport struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Owner     string          `json:"owner,omitempty"` // Kind/name of the controller
	Decision  Decision        `json:"decision"`
	Action    podrules.Action `json:"action"`
	Wave      int             `json:"wave"`
	// Group names the pods that the drain evicts together with this one, such as JobSet/train/workers/0. It is empty for
	// most pods.
	Group string `json:"group,omitempty"`

	// FirstRequestedAt is when the drain sent its first request for the pod. RemovalRequestedAt is when it sent the
	// request that was accepted.
	FirstRequestedAt   time.Time     `json:"firstRequestedAt,omitzero"`
	Removal            RemovalMethod `json:"removal,omitempty"`
	RemovalRequestedAt time.Time     `json:"removalRequestedAt,omitzero"`
	// TerminatingSince is when the pod's deletion by any client took effect, by the clock of the API server and in whole
	// seconds.
	TerminatingSince time.Time `json:"terminatingSince,omitzero"`
	// WantedGraceSeconds is the grace of the pod or of the caller. GivenGraceSeconds is what the pod got from any client. Both in
	// seconds.
	WantedGraceSeconds int64     `json:"graceWantedSeconds"`
	GivenGraceSeconds  int64     `json:"graceGivenSeconds"`
	End                PodEnd    `json:"end,omitempty"`
	EndedAt            time.Time `json:"endedAt,omitzero"`
	// Delays lists what the pod waited for before its request was accepted, and how often each obstacle refused it. They
	// are in the order of their start.
	Delays []Delay `json:"delays,omitempty"`
	// UnansweredRequest is the last request without a clear answer, if the pod's removal did not confirm it.
	UnansweredRequest RemovalMethod `json:"unansweredRequest,omitempty"`
	// Surge is nil if the pod needed no successor before it left.
	Surge *SurgeReport `json:"surge,omitempty"`
	// EvictionRequest is set if the pod has responders (spec.evictionResponders).
	EvictionRequest *EvictionRequestReport `json:"evictionRequest,omitempty"`
}

// Delay is one kind of obstacle that a pod had to wait for.
type Delay struct {
	Reason ObstacleKind `json:"reason"`
	PDB    string       `json:"pdb,omitempty"` // namespace/name of the last PDB
	Detail string       `json:"detail"`
	// Count is how many requests of the pod were refused. It is 0 if the pod waited without a request, for example
	// because the PDB had just refused another pod.
	Count int `json:"count"`
	// StartedAt is when the pod first waited for an obstacle of this kind. The pod may have waited for others in between.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Seconds counts from the first refusal to the last.
	Seconds float64 `json:"durationSeconds"`

	firstRefusal time.Time
}

// IsPDB reports whether the delay is a wait for a PDB.
func (d Delay) IsPDB() bool { return d.Reason == ObstaclePDB || d.Reason == ObstacleMultiplePDBs }

// WasCutShort reports whether a container of the pod was killed after less grace than the pod wanted.
func (p PodReport) WasCutShort() bool {
	return p.End == Killed && p.GivenGraceSeconds < p.WantedGraceSeconds
}

// HasBypassedPDB reports whether the deadline forced the deletion of the pod although a PDB denied its eviction (invariant I2).
func (p PodReport) HasBypassedPDB() bool {
	return p.Removal == ForceDeleted && slices.ContainsFunc(p.Delays, Delay.IsPDB)
}

// IsNotRemoved reports whether the pod had to be removed and is still on the node.
func (p PodReport) IsNotRemoved() bool { return p.Action != podrules.Skip && p.End == StillPresent }

// CountPodsToRemove returns the number of pods that had to be removed.
func (r Report) CountPodsToRemove() int {
	n := 0
	for _, p := range r.Pods {
		if p.Action != podrules.Skip {
			n++
		}
	}
	return n
}

// Totals counts the pods of a drain.
type Totals struct {
	Gone      int `json:"gone"`
	Remaining int `json:"remaining"`
	Skipped   int `json:"skipped"`
	// Forced are the pods that were deleted without an eviction. CutShort are the pods that were killed after less
	// grace than they wanted.
	Forced   int `json:"forced"`
	CutShort int `json:"cutShort"`
	// Surged are the pods that left after their successor was ready. SecondsGained is how long they kept running while their
	// successors started, in total.
	Surged        int     `json:"surged,omitempty"`
	SecondsGained float64 `json:"secondsGained,omitempty"`
}

// Totals counts the pods by what the drain did to them. A pod can be in several counts.
func (r Report) Totals() Totals {
	var t Totals
	for _, p := range r.Pods {
		switch {
		case p.Action == podrules.Skip:
			t.Skipped++
		case p.IsNotRemoved():
			t.Remaining++
		default:
			t.Gone++
		}
		if p.Removal == ForceDeleted || p.Removal == DeletedOnRequest {
			t.Forced++
		}
		if p.WasCutShort() {
			t.CutShort++
		}
		if p.Surge.hasSucceeded() {
			t.Surged++
			t.SecondsGained += p.Surge.SecondsGained()
		}
	}
	return t
}

// Summary returns one line of text about the drain.
func (r Report) Summary() string {
	t := r.Totals()
	s := fmt.Sprintf("%s: %s after %.1fs: %d gone, %d remaining, %d skipped", r.Node, r.Outcome,
		r.EndedAt.Sub(r.StartedAt).Seconds(), t.Gone, t.Remaining, t.Skipped)
	bypassedPDBs := 0
	for _, p := range r.Pods {
		if p.HasBypassedPDB() {
			bypassedPDBs++
		}
	}
	if bypassedPDBs > 0 {
		s += fmt.Sprintf(", %d deleted despite a disruption budget", bypassedPDBs)
	}
	if other := t.Forced - bypassedPDBs; other > 0 {
		s += fmt.Sprintf(", %d deleted without an eviction", other)
	}
	if t.CutShort > 0 {
		s += fmt.Sprintf(", %d cut short", t.CutShort)
	}
	if t.Surged > 0 {
		s += fmt.Sprintf(", %d after their successor was ready (%.0fs of service gained)", t.Surged, t.SecondsGained)
	}
	switch left := r.Deadline.Sub(r.EndedAt).Seconds(); {
	case r.Deadline.IsZero():
	case left < 0:
		s += fmt.Sprintf(", %.1fs after the deadline", -left)
	default:
		s += fmt.Sprintf(", %.1fs before the deadline", left)
	}
	return s
}

// JSON returns the report as JSON.
func (r Report) JSON() []byte {
	raw, err := json.Marshal(r)
	if err != nil { // RFC 3339 cannot express every time, such as a deadline in the year 10000
		raw, _ = json.Marshal(map[string]string{"node": r.Node, "error": err.Error()})
	}
	return raw
}

// RefusedError is the error of a drain if the policy forbids to remove some pods. The drain evicts no further pod once
// it has found such a pod.
type RefusedError struct {
	Node string
	Pods []PodReport
}

func (e *RefusedError) Error() string {
	lines := make([]string, 0, len(e.Pods))
	for _, p := range e.Pods {
		lines = append(lines, fmt.Sprintf("%s/%s (%s: %s)", p.Namespace, p.Name, p.Decision.Rule, p.Decision.Detail))
	}
	return fmt.Sprintf("node %s: not drained: %d pods must not be evicted: %s", e.Node, len(e.Pods), strings.Join(lines, "; "))
}

// UnfinishedError is the error of a drain if the deadline or a timeout passed before the node was drained.
type UnfinishedError struct {
	Node    string
	Outcome Outcome
	Blocked []BlockedPod
	// ListErr is set if the pods could not be listed, so that any number of them may be left (I7).
	ListErr error
}

func (e *UnfinishedError) Error() string {
	if e.ListErr != nil {
		return fmt.Sprintf("node %s: %s before its pods could be listed: %v", e.Node, e.Outcome, e.ListErr)
	}
	lines := make([]string, 0, len(e.Blocked))
	for _, b := range e.Blocked {
		lines = append(lines, b.String())
	}
	return fmt.Sprintf("node %s: %s with %d pods left: %s", e.Node, e.Outcome, len(e.Blocked), strings.Join(lines, "; "))
}

// Unwrap returns the error of the last list of pods, or nil if the list succeeded.
func (e *UnfinishedError) Unwrap() error { return e.ListErr }
