// Package top implements the live view of slipway top. The view shows the nodes by NodeGroup, their utilization, their
// activities, and their notices.
//
// [BuildState] computes a [State] from the watched objects. [RenderState] draws a State on a screen, and [ListChanges]
// lists the differences between two States. All three do no I/O. [Watcher] keeps a State current. [UI] shows a State on
// a terminal and handles keys.
package top

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// State is what the view shows at one moment. Its times are absolute, so that countdowns continue without a new State.
type State struct {
	// Groups are sorted by name. Nodes without a group are in a last group without a name.
	Groups []Group
	// Notices are the notices of all nodes, sorted by due time. Notices without a time come last.
	Notices []Notice
	// Problems say which parts of the cluster cannot be read, for example because of a missing permission.
	Problems []string
	// Events are the latest Events about nodes, NodeGroups and NodeRetirements, the newest first.
	Events []Event
	// EventProblem says why Events are missing, or "".
	EventProblem string
	// Evictions counts the evictions of pods in each eviction interval, the oldest first.
	Evictions []int
}

// Event is a Kubernetes Event.
type Event struct {
	At      time.Time
	Warning bool
	// Object is kind/name.
	Object, Reason, Message string
	Count                   int
}

// Group is a NodeGroup with its nodes. The Group without a name has the nodes that no NodeGroup selects.
type Group struct {
	Name string
	// Cloud is provider/group.
	Cloud string
	// MinSize is the larger one of the group's own minimum and the cloud's.
	MinSize int32
	MaxSize *int32
	// AllowedDisruptions is how many more nodes may be removed now.
	AllowedDisruptions int
	// Provisioning is how many instances were requested and have no Ready node yet.
	Provisioning int32
	// Remarks say what is wrong with the group, such as why the manager does not act on it.
	Remarks []Activity
	Nodes   []Node
	// unfiltered are all nodes if a filter hides some of them, or nil.
	unfiltered []Node
}

// allNodes returns the nodes of the group, also those that a filter hides.
func (g *Group) allNodes() []Node {
	if g.unfiltered != nil {
		return g.unfiltered
	}
	return g.Nodes
}

// Node is one line of a group. It shows a Node, or an instance without a Node.
type Node struct {
	Name string
	// HasNode reports whether a Node object exists.
	HasNode bool
	// InstanceType and Zone are from the labels of the Node. They are empty if unknown.
	InstanceType, Zone string
	// Price is the price of the instance for one hour. It is 0 if unknown.
	Price float64
	// CreatedAt is when the Node was created. It is zero without a Node.
	CreatedAt time.Time
	// Load is the requests of its pods. It is nil if unknown.
	Load     *planner.Utilization
	Activity Activity
	// Retirement is the active or failed retirement, or nil.
	Retirement *Retirement
}

// Retirement is the retirement of a node.
type Retirement struct {
	Name        string
	UID         types.UID
	Phase       v1alpha1.Phase
	Reason      v1alpha1.Reason
	RequestedBy string
	Message     string
	Reasons     []v1alpha1.RetirementReason
}

// IsCancellable reports whether the retirement can still be cancelled. A retirement can be cancelled until its Node is
// deleted.
func (r *Retirement) IsCancellable() bool {
	switch r.Phase {
	case v1alpha1.Pending, v1alpha1.Cordoned, v1alpha1.Draining, v1alpha1.Drained:
		return true
	}
	return false
}

// describeUncancellable says why the retirement cannot be cancelled.
func (r *Retirement) describeUncancellable() string {
	return fmt.Sprintf("%s cannot be cancelled: it is %s, and its Node is deleted or it has ended", r.Name, r.Phase)
}

// findRetirement returns the retirement with a UID, or nil.
func (s State) findRetirement(uid types.UID) *Retirement {
	for i := range s.Groups {
		for _, n := range s.Groups[i].allNodes() {
			if n.Retirement != nil && n.Retirement.UID == uid {
				return n.Retirement
			}
		}
	}
	return nil
}

// Notice is an interruption of a node's instance that the node's agent has reported.
type Notice struct {
	Node, Source, ID, Type string
	// Due is the earliest start. It is zero if unknown.
	Due     time.Time
	Started bool
	// Phase is the progress of the agent, such as draining. It is empty at the start.
	Phase string
	// WaitsFor is what delays the start of the drain. It is empty if nothing does.
	WaitsFor    string
	Description string
}

// Severity classifies an activity. A screen can choose a color by severity, but the text says the same.
type Severity int

const (
	Normal    Severity = iota // nothing to report
	Waiting                   // idle or underutilized, until a time
	Changing                  // being added or removed as planned
	Protected                 // protected from removal
	Trouble                   // blocked or broken
)

// Activity describes what happens to a node, as text with times.
type Activity struct {
	Severity Severity
	// Text is the activity without times.
	Text string
	// Since is the start, and Until the end of the waiting time. Both are zero if they do not apply.
	Since, Until time.Time
	// Due is when the notice takes effect, or zero.
	Due time.Time
	// Detail says what it waits for, or why. It can be empty.
	Detail string
}
