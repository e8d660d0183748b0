package placement

import (
	"fmt"
	"strings"
)

// Outcome is the verdict on a pod and a node.
type Outcome uint8

const (
	// Fits means that all filters of the scheduler pass.
	Fits Outcome = iota
	// Blocked means that a filter of the scheduler refuses the node.
	Blocked
	// Undecidable means that a filter depends on something that the snapshot does not know.
	Undecidable
)

// String returns "fits", "blocked" or "undecidable".
func (o Outcome) String() string {
	switch o {
	case Fits:
		return "fits"
	case Blocked:
		return "blocked"
	default:
		return "undecidable"
	}
}

// MarshalText writes "fits", "blocked" or "undecidable".
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Reason says why a node is refused or cannot be evaluated.
type Reason struct {
	// Predicate is the name of the scheduler's plugin, or of the rule in this package.
	Predicate string `json:"predicate"`
	// Message is the message for people. It is short, so that nodes can be counted per text: "insufficient cpu",
	// "untolerated taint gpu=only".
	Message string `json:"message"`
	// Scheduler is the message of kube-scheduler. It is empty if the reason does not come from the scheduler.
	Scheduler string `json:"-"`
}

func (r Reason) String() string { return r.Message }

// Verdict is the result for one pod and one node.
type Verdict struct {
	Outcome Outcome  `json:"outcome"`
	Reasons []Reason `json:"reasons,omitempty"`
}

// String returns "fits", or the outcome and its reasons.
func (v Verdict) String() string {
	if v.Outcome == Fits {
		return v.Outcome.String()
	}
	texts := make([]string, len(v.Reasons))
	for i, r := range v.Reasons {
		texts[i] = r.Message
	}
	return v.Outcome.String() + ": " + strings.Join(texts, ", ")
}

// ReasonCount is the number of nodes that gave one reason.
type ReasonCount struct {
	Nodes  int    `json:"nodes"`
	Reason Reason `json:"reason"`
}

// ReasonCounts counts nodes per reason. Like kube-scheduler, it counts a node with several reasons once for each reason.
type ReasonCounts []ReasonCount

// String returns a text such as "12 nodes: insufficient cpu; 3 nodes: untolerated taint gpu=only".
func (t ReasonCounts) String() string {
	parts := make([]string, len(t))
	for i, tally := range t {
		noun := "nodes"
		if tally.Nodes == 1 {
			noun = "node"
		}
		parts[i] = fmt.Sprintf("%d %s: %s", tally.Nodes, noun, tally.Reason.Message)
	}
	return strings.Join(parts, "; ")
}
