// Package plan decides which instances to launch and which underutilized nodes to retire. It is pure: DecideScaleUp and
// DecideScaleDown read an Input, ask placement, and return the decision with all its reasons. They send no requests and
// store no state.
//
// DecideScaleUp lets placement pack the unschedulable pods onto existing nodes, then onto provisioning instances, and
// then onto new instances of the groups' templates. Provisioning instances count as if they existed, so that nothing is
// launched twice. DecideScaleDown retires underutilized nodes if placement finds other nodes for their pods. It also
// requires that scale-up without those nodes launches no more than with them. Otherwise a retired node would be
// launched again.
package plan

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// Input is the input of a decision.
type Input struct {
	// Snapshot is the current state of the cluster. Up and Down change it temporarily.
	Snapshot *snapshot.Snapshot
	// Pods are the unschedulable pods.
	Pods   []Pod
	Groups []Group
	// OtherNodesBeingRemoved are the names of the nodes outside Groups that are being removed. Their pods need room elsewhere.
	OtherNodesBeingRemoved []string
	// LaunchRequests are launch requests from outside.
	LaunchRequests []LaunchRequest
	DaemonSets     []*appsv1.DaemonSet
	// NodeCount is the number of nodes without the control plane. Maximum is how many the cluster may have, including
	// provisioning instances. nil sets no limit.
	NodeCount int
	MaxNodes  *int
	// UnreadyNodes is how many of these nodes are not Ready, not starting and not retiring. Unreadiness limits them.
	UnreadyNodes int
	UnreadyLimit UnreadyLimit
	Now          time.Time
}

// Pod is an unschedulable pod.
type Pod struct {
	Key placement.PodKey
	// Nominated is the node on which the scheduler preempts other pods for it. It is empty if there is none.
	Nominated string
}

// Group is a NodeGroup with the state in its cloud.
type Group struct {
	// World is the group's state as its other rules see it, with its nodes and their retirements.
	nodegroup.GroupSnapshot
	// Templates are the templates that can be launched, in order of preference.
	Templates []Template
	// Provisioning are the provisioning instances without a Node.
	Provisioning []launch.ProvisioningInstance
	// LaunchedInstances are our instances with a Node that was not usable yet.
	LaunchedInstances []LaunchedInstance
	// ObservedSince is since when this process has observed each node, by the Node's name.
	ObservedSince map[string]time.Time
	// DevicesByNode are the devices of each node's template, by the Node's name.
	DevicesByNode map[string]corev1.ResourceList
	// Size is the group's size in the cloud, including provisioning instances. Most is the cloud's own maximum; 0 means
	// none.
	Size, CloudMaxSize int
	// Unreplaced counts the instances that are gone after a notice and will be replaced. They count towards the
	// minimum, because the replacement keeps it.
	Unreplaced int
	// ClosedReason is why nothing may be launched now. It is nil if launches are allowed.
	ClosedReason *Reason
}

func (g *Group) name() string { return g.Group.Name }

func (g *Group) scaleUpSpec() *v1alpha1.ScaleUp { return g.Group.Spec.ScaleUp }

// joinTimeout is how long an instance may take until its Node is Ready.
func (g *Group) joinTimeout() time.Duration { return JoinTimeout(g.Group) }

// defaultJoinTimeout is the default of the CRD.
const defaultJoinTimeout = 15 * time.Minute

// JoinTimeout returns how long an instance of the group may take from its launch until its Node is Ready.
func JoinTimeout(g *v1alpha1.NodeGroup) time.Duration {
	if up := g.Spec.ScaleUp; up != nil && up.JoinTimeout != nil {
		return up.JoinTimeout.Duration
	}
	return defaultJoinTimeout
}

// Template is an instance template of a group.
type Template struct {
	Name string
	Cost float64
	// Node is an example Node of this template, with all of its allocatable resources, before the pods of DaemonSets.
	// It is nil if the resources are unknown. See NewTemplateNode.
	Node *corev1.Node
	// ClosedReason is why the template may not be launched now. It is nil if it may.
	ClosedReason *Reason
}

// Rules of this package. Package nodegroup has more.
const (
	// Why a template or a group is not launched.
	DoesNotFit       = "DoesNotFit"             // the pod does not fit on a new instance
	AtMaximum        = "AtMaxSize"              // the maximum of the group, or of its cloud
	AtLimit          = "AtLimit"                // the group's limits of CPU and memory
	AtClusterMaximum = "AtMaxNodes"             // the maximum of the cluster
	BackedOff        = "BackedOff"              // it has failed recently
	ShapeUnknown     = "ShapeUnknown"           // the resources of the template are unknown
	CloudUnreadable  = "CloudUnreadable"        // the cloud does not list the group's instances
	NoTemplate       = "NoTemplate"             // the cloud has no such template
	TooManyUnready   = "TooManyUnready"         // so many nodes are not Ready that the cluster or its network is the cause
	NodeNotSelected  = v1alpha1.NodeNotSelected // the Node of an instance does not match the group's selector

	// Why instances are launched.
	PodsWait     = "UnschedulablePods"
	BelowMinimum = "BelowMinSize"
	SpareRoom    = "Headroom"

	MachineOrdered = "LaunchRequested" // the reason in the Event of the pod

	// The outcome of a pod that needs no launch.
	HasRoom    = "FitsExistingNode"     // an existing node would take it
	OnItsWay   = "InstanceProvisioning" // a provisioning instance will take it
	Preempting = "Preempting"           // the scheduler preempts other pods for it
	NoGroup    = "NoGroup"              // no group launches instances

	// Why an underutilized node stays. Package nodegroup has more rules.
	Used          = "Used"          // its pods request too much
	Arriving      = "Arriving"      // it is new and not ready
	NoPlace       = "NoPlace"       // its pods fit nowhere else
	WouldComeBack = "WouldComeBack" // another instance would be launched for it
	BudgetSpent   = "BudgetSpent"   // no more nodes of the group may be unavailable
	NotTogether   = "NotTogether"   // it cannot be retired together with the nodes before it
)

// Reason is the result of one rule for a group or a template.
type Reason struct {
	Rule     string `json:"rule"`
	Group    string `json:"group,omitempty"`
	Template string `json:"template,omitempty"`
	Message  string `json:"message"`
}

// String returns the reason in one line.
func (r Reason) String() string {
	at := r.Group
	if r.Template != "" {
		at += "/" + r.Template
	}
	if at != "" {
		at += ": "
	}
	return at + r.Rule + ": " + r.Message
}

// WhyBackedOff returns why a template is in a back-off. It returns nil if the back-off is over.
func WhyBackedOff(b *v1alpha1.BackOff, group string, now time.Time) *Reason {
	if b == nil || !now.Before(b.Until.Time) {
		return nil
	}
	return &Reason{Rule: BackedOff, Group: group, Template: b.Template, Message: fmt.Sprintf("backed off until %s: %s: %s",
		b.Until.UTC().Format(time.RFC3339), b.Reason, b.Message)}
}
