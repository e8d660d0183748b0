package nodegroup

import (
	"strings"
	"time"
)

// Rules by which a node stays. Each is one word that metrics, events and people tell reasons apart by.
const (
	KeepingPod   = "MatchingPod"         // a pod of the kind is on it
	NeverUsed    = "NeverUsed"           // it has not had one yet
	CoolingDown  = "CoolingDown"         // it has not been idle for long enough
	BeingRemoved = "BeingRemoved"        // somebody else takes it away
	HeldNode     = "ProtectedNode"       // an annotation asks to leave it alone
	PendingPod   = "PendingPod"          // a pod waits that only this group could run
	AfterScaleUp = "AfterScaleUp"        // the group has just got a node
	AfterFailure = "AfterFailure"        // a retirement of the node has just failed
	Minimum      = "MinSize"             // the group would be too small
	NotAccepted  = "NotAccepted"         // the group is not acted on
	LiveKeeper   = "MatchingPodUncached" // the API server knows of a pod that the caches do not know of yet
	UnderWay     = "Retiring"            // its retirement is under way already
	LongEnough   = "CooldownPassed"      // no pod has needed it for long enough: it may leave
	NoRule       = "NoRule"              // the group has no rule by which nodes leave
)

// Reason is one rule's word on a node.
type Reason struct {
	// Rule is one of the constants above.
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

func (r Reason) String() string { return r.Rule + ": " + r.Message }

// Sentence is all reasons in one line.
func Sentence(reasons []Reason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// Verdict is what is to become of a node.
type Verdict string

// The verdicts.
const (
	Stays   Verdict = "Kept"        // pods keep it
	Waits   Verdict = "CoolingDown" // it is idle, and not for long enough
	Refused Verdict = "Blocked"     // it has been idle for long enough, and something else keeps it
	Leaves  Verdict = "Due"         // a NodeRetirement is due for it
	Retires Verdict = "Retiring"    // its NodeRetirement is under way
)

// Decision is the whole word on one node of a group: what the controller acts on is what logs, Events, metrics and
// slipway status print.
type Decision struct {
	Node    string   `json:"node"`
	Verdict Verdict  `json:"verdict"`
	Reasons []Reason `json:"reasons"`
	// IdleSince is when the node was found idle, and MayLeaveAt when that is for long enough; nil while it is not idle.
	IdleSince  *time.Time `json:"idleSince,omitempty"`
	MayLeaveAt *time.Time `json:"removableAt,omitempty"`

	// CallOff names the node's NodeRetirement when it is to be called off; empty otherwise.
	CallOff string `json:"cancel,omitempty"`

	node  *Node
	marks Marks
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }
