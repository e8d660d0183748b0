package drain

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
)

type Outcome string

const (
	// Drained: no pod is left that has to be removed.
	Drained Outcome = "drained"
	// RefusedOutcome: the policy does not allow to remove a pod; see Refused.
	RefusedOutcome Outcome = "refused"
	// DeadlinePassed: the deadline passed before the node was drained.
	DeadlinePassed Outcome = "deadline-passed"
	// GaveUp: the timeout of a voluntary drain passed.
	GaveUp Outcome = "gave-up"
	// Cancelled: the caller cancelled the drain.
	Cancelled Outcome = "cancelled"
)

func Outcomes() []Outcome {
	return []Outcome{Drained, RefusedOutcome, DeadlinePassed, GaveUp, Cancelled}
}

// Asked is the kind of request that removed a pod.
type Asked string

const (
	NotAsked Asked = ""
	// Evicted: with the eviction API, which respects PDBs.
	Evicted Asked = "evicted"
	// Forced: deleted despite a PDB or another obstacle, because the deadline left no more time to wait (I2).
	Forced Asked = "forced"
	// DeletedOnRequest: deleted because the user disabled eviction (I2).
	DeletedOnRequest Asked = "deleted"
	// Shortened: another client had deleted the pod, and its grace was cut to the deadline.
	Shortened Asked = "shortened"
)

// End is how the containers of a pod ended.
type End string

const (
	StillThere End = ""
	// Stopped: every container ended within the grace.
	Stopped End = "stopped"
	// Killed: a container was killed at the end of the grace.
	Killed End = "killed"
	// Vanished: the object was removed without a record of how its containers ended. They never ran, or the grace was
	// 0.
	Vanished End = "vanished"
)

// Receipt is the drain report: what a drain did to each pod.
type Receipt struct {
	Node     string        `json:"node"`
	Outcome  Outcome       `json:"outcome"`
	Began    time.Time     `json:"began"`
	Ended    time.Time     `json:"ended"`
	Deadline time.Time     `json:"deadline,omitzero"`
	Pods     []PodReceipt  `json:"pods"`
	Volumes  VolumeReceipt `json:"volumes,omitzero"`
}

// Verdict is the rule that decided about a pod, and its reason as readable text.
type Verdict struct {
	Rule   podrules.Rule `json:"rule"`
	Detail string        `json:"detail,omitempty"`
}

type PodReceipt struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Owner     string          `json:"owner,omitempty"` // Kind/name of the controller
	Verdict   Verdict         `json:"verdict"`
	Action    podrules.Action `json:"action"`
	Wave      int             `json:"wave"`

	Asked   Asked     `json:"asked,omitempty"`
	AskedAt time.Time `json:"askedAt,omitzero"`
	// GraceWanted is the grace of the pod or of the caller. GraceGiven is what the pod got from any client. Both in
	// seconds.
	GraceWanted int64     `json:"graceWantedSeconds"`
	GraceGiven  int64     `json:"graceGivenSeconds"`
	End         End       `json:"end,omitempty"`
	EndedAt     time.Time `json:"endedAt,omitzero"`
	// Delays lists what the pod waited for before its request was accepted, and how often each obstacle refused it.
	Delays []Delay `json:"delays,omitempty"`
	// Unanswered is the last request without a clear answer, if the pod's removal did not confirm it.
	Unanswered Asked `json:"unanswered,omitempty"`
}

// Delay is one obstacle that a pod waited for.
type Delay struct {
	Reason Obstacle `json:"reason"`
	Detail string   `json:"detail"`
	Times  int      `json:"times"`
	// Seconds counts from the first refusal to the last.
	Seconds float64 `json:"seconds"`

	first time.Time
}

// CutShort reports whether the pod was killed with less grace than it wanted.
func (p PodReceipt) CutShort() bool { return p.End == Killed && p.GraceGiven < p.GraceWanted }

// Left reports whether the pod had to be removed and is still there.
func (p PodReceipt) Left() bool { return p.Action != podrules.Leave && p.End == StillThere }

// Touched returns the number of pods that had to be removed.
func (r Receipt) Touched() int {
	n := 0
	for _, p := range r.Pods {
		if p.Action != podrules.Leave {
			n++
		}
	}
	return n
}

// Summary returns the report in one line.
func (r Receipt) Summary() string {
	var gone, forced, cut, left, stayed int
	for _, p := range r.Pods {
		switch {
		case p.Action == podrules.Leave:
			stayed++
		case p.Left():
			left++
		default:
			gone++
		}
		if p.Asked == Forced || p.Asked == DeletedOnRequest {
			forced++
		}
		if p.CutShort() {
			cut++
		}
	}
	s := fmt.Sprintf("%s: %s after %.1fs: %d gone, %d remaining, %d skipped", r.Node, r.Outcome,
		r.Ended.Sub(r.Began).Seconds(), gone, left, stayed)
	if forced > 0 {
		s += fmt.Sprintf(", %d deleted despite a disruption budget", forced)
	}
	if cut > 0 {
		s += fmt.Sprintf(", %d cut short", cut)
	}
	if !r.Deadline.IsZero() {
		s += fmt.Sprintf(", %.1fs before the deadline", r.Deadline.Sub(r.Ended).Seconds())
	}
	return s
}

// JSON returns the report as JSON.
func (r Receipt) JSON() []byte {
	raw, err := json.Marshal(r)
	if err != nil { // RFC 3339 cannot express every time, such as a deadline in the year 10000
		raw, _ = json.Marshal(map[string]string{"node": r.Node, "error": err.Error()})
	}
	return raw
}

// Refused is the error of a drain if the policy does not allow to remove some pods. No pod was evicted after that was
// found.
type Refused struct {
	Node string
	Pods []PodReceipt
}

func (e *Refused) Error() string {
	lines := make([]string, 0, len(e.Pods))
	for _, p := range e.Pods {
		lines = append(lines, fmt.Sprintf("%s/%s (%s: %s)", p.Namespace, p.Name, p.Verdict.Rule, p.Verdict.Detail))
	}
	return fmt.Sprintf("node %s: not drained: the policy does not allow to remove %d pods: %s", e.Node, len(e.Pods), strings.Join(lines, "; "))
}

// Unfinished is the error of a drain that ran out of time.
type Unfinished struct {
	Node    string
	Outcome Outcome
	Blocked []Blocked
	// Unknown is set if the pods could not be listed, so that any number of them may be left (I7).
	Unknown error
}

func (e *Unfinished) Error() string {
	if e.Unknown != nil {
		return fmt.Sprintf("node %s: %s before its pods could be listed: %v", e.Node, e.Outcome, e.Unknown)
	}
	lines := make([]string, 0, len(e.Blocked))
	for _, b := range e.Blocked {
		lines = append(lines, b.String())
	}
	return fmt.Sprintf("node %s: %s with %d pods left: %s", e.Node, e.Outcome, len(e.Blocked), strings.Join(lines, "; "))
}

// Unwrap returns the error of the list of pods, if there was one.
func (e *Unfinished) Unwrap() error { return e.Unknown }
