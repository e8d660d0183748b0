// Package top is the live view of slipway top: which nodes there are by NodeGroup, how full they are, what each is doing,
// and which notices stand against them.
//
// What is watched is made into a [State] by [Build], which asks nobody; a State is made into a screen by [Render] and into
// lines by [Changes], which ask nobody either. [Watch] keeps a State current, and [UI] puts it on a terminal and takes keys.
package top

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// State is what there is to show at one moment. Times are absolute, so that a countdown goes on without a new State.
type State struct {
	// Groups are sorted by name. The last one has no name when there are nodes that belong to no group.
	Groups []Group
	// Notices are those of all nodes, the one that is due first before the others; those without a time come last.
	Notices []Notice
	// Problems are what keeps parts of the cluster from being seen, such as a missing right.
	Problems []string
}

// Group is a NodeGroup, or the nodes that belong to none.
type Group struct {
	Name string
	// Cloud is provider/group.
	Cloud   string
	Minimum int32
	Maximum *int32
	// MayLeave is how many more nodes may leave now.
	MayLeave int
	// OnTheWay is how many machines were asked for and have no Ready node yet.
	OnTheWay int32
	// Remarks are what a person should know: why it is not acted on, which kinds of machines are left alone.
	Remarks []Doing
	Nodes   []Node
}

// Node is one line of a group: a Node, or a machine that has none yet or none any more.
type Node struct {
	Name string
	// There says that it has a Node object.
	There bool
	// Load is what its pods request of it; nil where that is not known.
	Load  *planner.Load
	Doing Doing
	// Retirement is the one that is not over, or has failed; nil without.
	Retirement *Retirement
}

// Retirement is a node's way out, as far as a person can do something about it.
type Retirement struct {
	Name    string
	UID     types.UID
	Phase   v1alpha1.Phase
	Reason  v1alpha1.Reason
	By      string
	Message string
	Reasons []v1alpha1.RetirementReason
}

// MayBeCalledOff reports whether there is a way back: until the Node is deleted.
func (r *Retirement) MayBeCalledOff() bool {
	switch r.Phase {
	case v1alpha1.Pending, v1alpha1.Cordoned, v1alpha1.Draining, v1alpha1.Drained:
		return true
	}
	return false
}

// Notice is an interruption of a node's machine that its agent knows of.
type Notice struct {
	Node, Source, ID, Type string
	// Due is when it begins at the earliest; zero when nobody says.
	Due     time.Time
	Started bool
	// Phase is how far the agent is, such as draining; empty at the start.
	Phase       string
	Description string
}

// Mood is what kind of thing a node is doing. A screen may colour by it, and never says anything by colour alone.
type Mood int

// The moods.
const (
	Calm    Mood = iota // nothing that anybody has to know
	Waiting             // idle or underused, until a time
	Moving              // on its way in or out, as it should be
	Held                // somebody wants it to stay as it is
	Trouble             // something holds it up, or it is broken
)

// Doing is what goes on, in a phrase that counts with the time.
type Doing struct {
	Mood Mood
	// Text is the phrase without any time.
	Text string
	// Since is when it began, and Until when it will be long enough; zero where that does not matter.
	Since, Until time.Time
	// Due is when a notice comes true; zero without one.
	Due time.Time
	// Detail says what it waits for, or why; it may be empty.
	Detail string
}
