package drain

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
)

// Outcome is how a drain ended.
type Outcome string

// The outcomes.
const (
	// Drained: nothing that had to leave is left.
	Drained Outcome = "drained"
	// RefusedOutcome: policy keeps a pod where it is; see Refused.
	RefusedOutcome Outcome = "refused"
	// DeadlinePassed: the machine's time is over.
	DeadlinePassed Outcome = "deadline-passed"
	// GaveUp: a voluntary drain's time is over.
	GaveUp Outcome = "gave-up"
	// Cancelled: the caller no longer wants it.
	Cancelled Outcome = "cancelled"
)

// Outcomes lists every outcome.
func Outcomes() []Outcome {
	return []Outcome{Drained, RefusedOutcome, DeadlinePassed, GaveUp, Cancelled}
}

// Asked is how a pod was asked to leave.
type Asked string

// The ways of asking.
const (
	NotAsked Asked = ""
	// Evicted: through the eviction API, budgets honoured.
	Evicted Asked = "evicted"
	// Forced: deleted past a budget or another obstacle, since the deadline left no more time to wait (I2).
	Forced Asked = "forced"
	// DeletedOnRequest: deleted because the user switched eviction off (I2).
	DeletedOnRequest Asked = "deleted"
	// Shortened: somebody else had deleted it, with more grace than was left.
	Shortened Asked = "shortened"
)

// End is how a pod ended.
type End string

// The ends.
const (
	StillThere End = ""
	// Stopped: every container ended by itself, within the grace.
	Stopped End = "stopped"
	// Killed: a container was killed when the grace was over.
	Killed End = "killed"
	// Vanished: the object went without saying how its containers ended (they never ran, or the grace was 0).
	Vanished End = "vanished"
)

// Receipt is what a drain did, pod by pod.
type Receipt struct {
	Node     string        `json:"node"`
	Outcome  Outcome       `json:"outcome"`
	Began    time.Time     `json:"began"`
	Ended    time.Time     `json:"ended"`
	Deadline time.Time     `json:"deadline,omitzero"`
	Pods     []PodReceipt  `json:"pods"`
	Volumes  VolumeReceipt `json:"volumes,omitzero"`
}

// Verdict is the rule that decided about a pod, and why, in words that can be printed.
type Verdict struct {
	Rule   podrules.Rule `json:"rule"`
	Detail string        `json:"detail,omitempty"`
}

// PodReceipt is one pod's part.
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
	// GraceWanted is the pod's own or the caller's; GraceGiven what it got, whoever asked. Seconds.
	GraceWanted int64     `json:"graceWantedSeconds"`
	GraceGiven  int64     `json:"graceGivenSeconds"`
	End         End       `json:"end,omitempty"`
	EndedAt     time.Time `json:"endedAt,omitzero"`
	// Delays say what it waited for before it was asked, and how often each said no.
	Delays []Delay `json:"delays,omitempty"`
	// Unanswered is the last request that got no clear answer and was not followed by the pod's going, so far.
	Unanswered Asked `json:"unanswered,omitempty"`
}

// Delay is one thing that a pod waited for.
type Delay struct {
	Reason Obstacle `json:"reason"`
	Detail string   `json:"detail"`
	Times  int      `json:"times"`
	// Seconds from the first refusal to the last.
	Seconds float64 `json:"seconds"`

	first time.Time
}

// CutShort reports that the pod was killed with less time than it wanted.
func (p PodReceipt) CutShort() bool { return p.End == Killed && p.GraceGiven < p.GraceWanted }

// Left reports a pod that had to leave and did not.
func (p PodReceipt) Left() bool { return p.Action != podrules.Leave && p.End == StillThere }

// Touched counts the pods that had to leave.
func (r Receipt) Touched() int {
	n := 0
	for _, p := range r.Pods {
		if p.Action != podrules.Leave {
			n++
		}
	}
	return n
}

// Summary is the receipt in one line.
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
	s := fmt.Sprintf("%s: %s after %.1fs: %d gone, %d left, %d not touched", r.Node, r.Outcome,
		r.Ended.Sub(r.Began).Seconds(), gone, left, stayed)
	if forced > 0 {
		s += fmt.Sprintf(", %d deleted past a disruption budget", forced)
	}
	if cut > 0 {
		s += fmt.Sprintf(", %d cut short", cut)
	}
	if !r.Deadline.IsZero() {
		s += fmt.Sprintf(", %.1fs before the deadline", r.Deadline.Sub(r.Ended).Seconds())
	}
	return s
}

// JSON is the receipt for machines.
func (r Receipt) JSON() []byte {
	raw, err := json.Marshal(r)
	if err != nil { // a time that RFC 3339 has no words for, such as a deadline in the year 10000
		raw, _ = json.Marshal(map[string]string{"node": r.Node, "error": err.Error()})
	}
	return raw
}

// Refused says that policy keeps pods where they are; nothing was evicted on account of this drain after it was found.
type Refused struct {
	Node string
	Pods []PodReceipt
}

func (e *Refused) Error() string {
	lines := make([]string, 0, len(e.Pods))
	for _, p := range e.Pods {
		lines = append(lines, fmt.Sprintf("%s/%s (%s: %s)", p.Namespace, p.Name, p.Verdict.Rule, p.Verdict.Detail))
	}
	return fmt.Sprintf("node %s: not drained, since policy keeps %d pods: %s", e.Node, len(e.Pods), strings.Join(lines, "; "))
}

// Unfinished says that time was over before the node was drained.
type Unfinished struct {
	Node    string
	Outcome Outcome
	Blocked []Blocked
	// Unknown is set when the pods could not even be listed: there may be any number of them (I7).
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

// Unwrap gives the error that kept the pods from being listed, if that is what happened.
func (e *Unfinished) Unwrap() error { return e.Unknown }
