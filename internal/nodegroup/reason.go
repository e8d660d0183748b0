package nodegroup

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

// Rules that keep a node. Each is a word that metrics, Events and people use.
const (
	KeepingPod          = "MatchingPod"         // a pod that the rule selects is on it
	NeverUsed           = "NeverUsed"           // it never had such a pod
	CoolingDown         = "CoolingDown"         // its cooldown has not passed
	BeingRemoved        = "BeingRemoved"        // another tool is removing it
	HeldNode            = "ProtectedNode"       // an annotation keeps it
	PendingPod          = "PendingPod"          // a pending pod fits only on nodes of this group
	AfterScaleUp        = "AfterScaleUp"        // the group has just got a node
	AfterFailure        = "AfterFailure"        // a retirement of the node has just failed
	Minimum             = "MinSize"             // the group would fall below its minimum
	NotAccepted         = "NotAccepted"         // the group is not accepted
	UncachedMatchingPod = "MatchingPodUncached" // the API server knows a pod that is not in the cache yet
	UnderWay            = "Retiring"            // its retirement is in progress
	LongEnough          = "CooldownPassed"      // its cooldown has passed: it may be retired
	NoRule              = "NoRule"              // the group has no rule that retires nodes
)

// Reason is one rule that applies to a node, with a text.
type Reason struct {
	// Rule is one of the constants above.
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

func (r Reason) String() string { return r.Rule + ": " + r.Message }

// JoinReasons returns one line with all reasons.
func JoinReasons(reasons []Reason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// ToEventAction returns the rules of the reasons as the action of an Event. If only the notes of Events differed, client-go
// would keep the first.
func ToEventAction(reasons []Reason) string { return observe.ClipEventAction(joinRules(reasons)) }

func joinRules(reasons []Reason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.Rule)
	}
	return strings.Join(all, "-")
}

// Verdict says what happens to a node.
type Verdict string

// The verdicts.
const (
	VerdictKept        Verdict = "Kept"        // pods keep it
	VerdictCoolingDown Verdict = "CoolingDown" // it is idle, and its cooldown runs
	VerdictBlocked     Verdict = "Blocked"     // its cooldown has passed, and another rule keeps it
	VerdictDue         Verdict = "Due"         // its NodeRetirement is to be created now
	VerdictRetiring    Verdict = "Retiring"    // its NodeRetirement is in progress
)

// Decision is the decision on one node of a group. The controller carries it out; logs, Events, metrics and slipway
// status show it.
type Decision struct {
	Node    string   `json:"node"`
	Verdict Verdict  `json:"verdict"`
	Reasons []Reason `json:"reasons"`
	// IdleSince is when the node became idle, and RemovableAt when its cooldown ends. They are nil while it is not idle.
	IdleSince   *time.Time `json:"idleSince,omitempty"`
	RemovableAt *time.Time `json:"removableAt,omitempty"`

	// CancelledRetirement is the name of the node's NodeRetirement if it is cancelled. Otherwise it is empty.
	CancelledRetirement string `json:"cancel,omitempty"`

	node  *Node
	marks Marks
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
