package placement

import (
	"fmt"
	"strings"
)

// Outcome is the verdict on a pod and a node.
type Outcome uint8

const (
	// Fits: the scheduler's filters all pass.
	Fits Outcome = iota
	// Blocked: a filter of the scheduler refuses the node.
	Blocked
	// Undecidable: what a filter would say depends on something the snapshot does not know.
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

// MarshalText writes the outcome in words.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Reason is why a node is refused or cannot be judged.
type Reason struct {
	// Predicate is the name of the scheduler's plugin, or of the rule of this package.
	Predicate string `json:"predicate"`
	// Text is for people, small enough to be counted: "insufficient cpu", "untolerated taint gpu=only".
	Text string `json:"text"`
	// Scheduler is the text that kube-scheduler gives; empty when the reason is not one of the scheduler's.
	Scheduler string `json:"-"`
}

// String returns Text.
func (r Reason) String() string { return r.Text }

// Verdict is what is said of one pod and one node.
type Verdict struct {
	Outcome Outcome  `json:"outcome"`
	Reasons []Reason `json:"reasons,omitempty"`
}

// String is "fits", or the outcome and its reasons.
func (v Verdict) String() string {
	if v.Outcome == Fits {
		return v.Outcome.String()
	}
	texts := make([]string, len(v.Reasons))
	for i, r := range v.Reasons {
		texts[i] = r.Text
	}
	return v.Outcome.String() + ": " + strings.Join(texts, ", ")
}

// Tally is how many nodes gave one reason.
type Tally struct {
	Nodes  int    `json:"nodes"`
	Reason Reason `json:"reason"`
}

// Tallies counts nodes per reason. A node with several reasons is counted once for each of them, as kube-scheduler does.
type Tallies []Tally

// String is such as "12 nodes: insufficient cpu; 3 nodes: untolerated taint gpu=only".
func (t Tallies) String() string {
	parts := make([]string, len(t))
	for i, tally := range t {
		noun := "nodes"
		if tally.Nodes == 1 {
			noun = "node"
		}
		parts[i] = fmt.Sprintf("%d %s: %s", tally.Nodes, noun, tally.Reason.Text)
	}
	return strings.Join(parts, "; ")
}
