// Package plan decides which machines come and which underused ones go. It is pure: Up and Down read a World, ask
// placement, and answer with what is to be done and why, all reasons as data; nobody is called and nothing is kept.
//
// Up has placement pack the pods that find no room onto the nodes that are there, those on their way, and then onto new
// machines of the groups' kinds. What is on its way counts as if it were there, so that nothing is ordered twice. Down
// takes away nodes that are used little when placement finds other places for their pods, and only if Up, asked again
// without those nodes, orders nothing that it would not order with them: what goes does not come back.
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

// World is everything that is decided on.
type World struct {
	// Snapshot is the cluster as it is. Up and Down change it while they work, and leave it as it was.
	Snapshot *snapshot.Snapshot
	// Pods are those of which the scheduler has said that they find no room.
	Pods   []Pod
	Groups []Group
	// Wishes are for machines that nobody decides on here.
	Wishes  []Wish
	Daemons []*appsv1.DaemonSet
	// Nodes is how many nodes the cluster has without those of its control plane, and Maximum how many it may have; nil
	// sets no limit. Machines on their way count with them.
	Nodes   int
	Maximum *int
	// Unready is how many of them are neither Ready nor arriving nor being taken out of service, and Unreadiness how many may be.
	Unready     int
	Unreadiness Unreadiness
	Now         time.Time
}

// Pod is a pod that waits for room.
type Pod struct {
	Key placement.PodKey
	// Nominated is the node on which the scheduler is making room for it, by evicting others; empty for none.
	Nominated string
}

// Group is a NodeGroup with what its cloud says of it.
type Group struct {
	// World is the group as its other rules see it, its nodes with their retirements included.
	nodegroup.World
	// Kinds are the machines that it can have more of, the preferred one first.
	Kinds []Kind
	// Awaited are the machines that are on their way and have no Node yet.
	Awaited []launch.Expected
	// Launched are the machines of ours that have a Node which has not been usable yet.
	Launched []Launched
	// Observed is since when this process has observed each node, by the Node's name.
	Observed map[string]time.Time
	// Devices are those that a Node's template has, by the Node's name.
	Devices map[string]corev1.ResourceList
	// Size is how many machines the cloud means the group to have, those on their way included; Most is the cloud's own
	// maximum, and 0 none.
	Size, Most int
	// Unreplaced counts instances that are gone after a notice, and for which a replacement is still to be launched. They count for the
	// minimum, since the replacement keeps it.
	Unreplaced int
	// Closed says why nothing may be ordered now; nil when it may.
	Closed *Reason
}

func (g *Group) name() string { return g.Group.Name }

func (g *Group) scaleUp() *v1alpha1.ScaleUp { return g.Group.Spec.ScaleUp }

// joinTimeout is how long a machine may take until its Node is Ready.
func (g *Group) joinTimeout() time.Duration { return JoinTimeout(g.Group) }

// defaultJoinTimeout is that of the CRD.
const defaultJoinTimeout = 15 * time.Minute

// JoinTimeout is how long a machine of a group may take from the order until its Node is Ready.
func JoinTimeout(g *v1alpha1.NodeGroup) time.Duration {
	if up := g.Spec.ScaleUp; up != nil && up.JoinTimeout != nil {
		return up.JoinTimeout.Duration
	}
	return defaultJoinTimeout
}

// Kind is one kind of machine of a group.
type Kind struct {
	Name string
	Cost float64
	// Node is what a Node on such a machine is like, with everything allocatable that pods may take, those of DaemonSets
	// included; nil when that is not known. See NodeOf.
	Node *corev1.Node
	// Closed says why none may be ordered now; nil when one may.
	Closed *Reason
}

// Rules of this package, beside those of package nodegroup.
const (
	// Why a kind of machine, or a whole group, is not ordered.
	DoesNotFit       = "DoesNotFit"             // a new machine would not take the pod
	AtMaximum        = "AtMaxSize"              // the group's maximum, or its cloud's
	AtLimit          = "AtLimit"                // the group's limits of cores and memory
	AtClusterMaximum = "AtMaxNodes"             // the cluster's
	BackedOff        = "BackedOff"              // it has failed just now
	ShapeUnknown     = "ShapeUnknown"           // nobody has said what such a machine has
	CloudUnreadable  = "CloudUnreadable"        // the cloud does not say which machines the group has
	NoTemplate       = "NoTemplate"             // the cloud has no such kind, or none at all
	TooManyUnready   = "TooManyUnready"         // so many nodes are not Ready that the cluster or its network is to blame
	NodeNotSelected  = v1alpha1.NodeNotSelected //  the Node of one of its instances does not match its selector

	// Why machines are ordered.
	PodsWait     = "UnschedulablePods"
	BelowMinimum = "BelowMinSize"
	SpareRoom    = "Headroom"

	MachineOrdered = "LaunchRequested" // what a pod is told for which one is

	// What becomes of a pod without a machine being ordered for it.
	HasRoom    = "FitsExistingNode"     // a node that is there would take it
	OnItsWay   = "InstanceProvisioning" // a machine that is coming will take it
	Preempting = "Preempting"           // the scheduler is making room for it
	NoGroup    = "NoGroup"              // no group gets machines

	// Why an underused node stays, beside the rules of package nodegroup.
	Used          = "Used"          // it is used too much
	Arriving      = "Arriving"      // it has only just come, and is not ready
	NoPlace       = "NoPlace"       // its pods fit nowhere else
	WouldComeBack = "WouldComeBack" // a machine would be ordered in its place
	BudgetSpent   = "BudgetSpent"   // no more nodes of the group may be unavailable
	NotTogether   = "NotTogether"   // it can go, and not along with others that go first
)

// Reason is one rule's word, on a group or on a kind of machine in it.
type Reason struct {
	Rule     string `json:"rule"`
	Group    string `json:"group,omitempty"`
	Template string `json:"template,omitempty"`
	Message  string `json:"message"`
}

// String is the reason in one line.
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

// ClosedBy says why a kind of a group is left alone; nil when it is not any more.
func ClosedBy(b *v1alpha1.BackOff, group string, now time.Time) *Reason {
	if b == nil || !now.Before(b.Until.Time) {
		return nil
	}
	return &Reason{Rule: BackedOff, Group: group, Template: b.Template, Message: fmt.Sprintf("left alone until %s: %s: %s",
		b.Until.UTC().Format(time.RFC3339), b.Reason, b.Message)}
}
