// Package replacement launches an instance for each instance that its cloud takes away.
//
// The agents write their notices on the Nodes. Each Preempt or Terminate of a node in a NodeGroup gets one
// NodeRetirement with a name derived from both (notices.go). The retirement waits until the instance is gone and then
// cleans up. The decision whether a replacement is wanted is pure, and returns its reasons (this file). The launch is
// in the record of the group (package launch), which is written before the cloud is asked. The state of the replacement
// follows from the launch (launch.go).
//
// An instance that a Reboot or Redeploy interrupts returns within minutes, as fast as a new one. It is not retired or
// replaced, unless it turns out to be gone.
//
// # Who launches the next instance
//
// For a scale set of Spot instances, the capacity after an eviction depends on the scale set
// (https://learn.microsoft.com/azure/virtual-machine-scale-sets/use-spot):
//
//   - Eviction policy Delete: Azure deletes the instance and lowers the capacity by one. It launches no other instance.
//   - Eviction policy Deallocate: the instance stays, stopped, and counts in the capacity. Azure does not start it again. It
//     is not gone, so its Node stays (invariant I7). Another instance is launched if the group's maximum has room for both.
//   - With "try and restore" the capacity stays, and Azure launches an instance when it can.
//
// These cases are detected from the group, not from configuration. If the size counts more instances than exist,
// without open launches, the cloud fills the group. That is a launch without a request.
package replacement

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// Codes of the reasons for and against a launch. The reasons of a failed launch are those of its back-off.
const (
	PolicyNever   = "PolicyNever"
	NoticeOver    = "NoticeEnded"
	NoRoom        = "PodsDoNotFit"
	BelowMinimum  = "BelowMinSize"
	RoomElsewhere = "FitsElsewhere"
	NobodyNeedsIt = "NotNeeded"
	MachineGone   = "InstanceGone"
	MachineKept   = "InstanceKept"
	AtMaximum     = "AtMaxSize"
	CloudReplaces = "CloudReplaces"
	LaunchPending = "LaunchPending"
	LaunchUnknown = "LaunchUnknown"
	NotRequested  = "NotRequested"
	UnknownGroup  = "UnknownGroup"
	RoomUnknown   = "FitUnknown"

	AlreadyReplaced  = "AlreadyReplaced"
	GroupNotAccepted = retirement.GroupNotAccepted
	RetirementEnded  = "RetirementEnded"
)

// Outcome is the result of a decision.
type Outcome string

const (
	Launch       Outcome = "Launch" // launch an instance
	Wait         Outcome = "Wait"   // decide again later
	LeaveToCloud Outcome = "Leave"  // the cloud launches an instance without a request
	None         Outcome = "None"   // launch nothing
)

// Verdict is a decision with its reasons, for or against a launch.
type Verdict struct {
	Outcome Outcome
	Reasons []v1alpha1.RetirementReason
}

// InstanceState is the state of an instance that its cloud takes away.
type InstanceState string

const (
	InstanceExists  InstanceState = "Lives" // it exists, or its state is unknown
	InstanceStopped InstanceState = "Kept"  // it is stopped, and its group keeps it
	InstanceGone    InstanceState = "Gone"  // its cloud does not know it, and its Node is not Ready
)

// Need is the input of the decision whether a replacement for an instance is wanted.
type Need struct {
	Policy v1alpha1.ReplacementPolicy
	// NothingToReplace is why nothing must be replaced any more. It is "" if it may be needed.
	NothingToReplace string
	// Ended is why the retirement ended early. Refused is why the group is not accepted. Each is "" if not.
	Ended, Refused string
	Instance       InstanceState
	// UnschedulablePods are the pods that would be unschedulable without the instance.
	UnschedulablePods []UnschedulablePod
	// PlacementErr is why placement could not find these pods.
	PlacementErr error
	// CheckedPods are the pod reasons of the last check, if the Node is gone. Its pods cannot be checked any more.
	CheckedPods []v1alpha1.RetirementReason
	// WithoutPods is why no pod needs the replacement, if the Node is gone. It is "" if the pods were checked.
	WithoutPods string
	// StayingNodes is how many nodes of the group stay. MinSize is the group's minimum. LeavingInstances are the provider
	// IDs of retiring instances.
	StayingNodes, MinSize int
	LeavingInstances      []string
}

// UnschedulablePod is a pod that fits on no other node.
type UnschedulablePod struct {
	Pod string // namespace/name
	Why string
}

// DecideWanted decides whether a replacement is wanted now.
func DecideWanted(n Need) Verdict {
	switch {
	case n.Policy == v1alpha1.ReplaceNever:
		return newVerdict(None, newReason(PolicyNever, "", "spec.replacement of the NodeGroup is Never"))
	case n.NothingToReplace != "":
		return newVerdict(None, newReason(NoticeOver, "", "%s", n.NothingToReplace))
	case n.Refused != "":
		return newVerdict(Wait, newReason(GroupNotAccepted, "", "the NodeGroup is not accepted: %s", n.Refused))
	case n.Ended != "" && n.Instance != InstanceGone:
		return newVerdict(Wait, newReason(RetirementEnded, "", "waiting until the instance is gone: %s", n.Ended))
	}
	wants := slices.Clone(n.CheckedPods)
	for _, h := range n.UnschedulablePods {
		wants = append(wants, newReason(NoRoom, "pod "+h.Pod, "%s", h.Why))
	}
	if n.StayingNodes < n.MinSize {
		wants = append(wants, newReason(BelowMinimum, "", "%d nodes stay; the group's minimum is %d", n.StayingNodes, n.MinSize))
	}
	withoutPods := cmp.Or(n.WithoutPods, "all pods of the Node fit on other nodes")
	switch {
	case len(wants) > 0:
		return Verdict{Launch, wants}
	case n.Instance == InstanceExists && n.PlacementErr != nil:
		return newVerdict(Wait, newReason(RoomUnknown, "", "waiting until the instance is gone: %s", n.PlacementErr))
	case n.Instance == InstanceExists:
		return newVerdict(Wait, newReason(RoomElsewhere, "", "waiting until the instance is gone: %s", withoutPods))
	case n.Policy == v1alpha1.ReplaceWhenNeeded && n.PlacementErr != nil:
		return newVerdict(Wait, newReason(RoomUnknown, "", "%s", n.PlacementErr))
	case n.Policy == v1alpha1.ReplaceWhenNeeded:
		return newVerdict(None, newReason(NobodyNeedsIt, "", "%s; %d nodes stay, and the group's minimum is %d", withoutPods, n.StayingNodes, n.MinSize))
	case n.Instance == InstanceStopped:
		return newVerdict(Launch, newReason(MachineKept, "", "the instance is stopped, and its group keeps it"))
	}
	return newVerdict(Launch, newReason(MachineGone, "", "the instance is gone"))
}

// LaunchBounds has the facts that may prevent a launch.
type LaunchBounds struct {
	Instance InstanceState
	// Size is the group's size in the cloud. Present is how many instances exist and are not being deleted.
	Size, Present int
	// Provisioning is how many instances of open launches were not seen yet.
	Provisioning int
	// UnansweredLaunch is the ID of a launch in the group without a known answer.
	UnansweredLaunch string
}

// DecideLaunchNow decides whether a wanted replacement is launched now, or whether the cloud launches it without a
// request. Both together would be one instance too many (invariant I5). The caller that launches checks the limits of
// the group.
func DecideLaunchNow(b LaunchBounds) Verdict {
	switch missing := b.Size - b.Present - b.Provisioning; {
	case b.UnansweredLaunch != "":
		return newVerdict(Wait, newReason(LaunchPending, "", "the answer to the launch %s is not known yet", b.UnansweredLaunch))
	case b.Instance == InstanceGone && missing > 0:
		return newVerdict(LeaveToCloud, newReason(CloudReplaces, "", "the cloud's size of the group is %d, and it has %d instances and %d provisioning: its cloud launches the rest",
			b.Size, b.Present, b.Provisioning))
	}
	return newVerdict(Launch)
}

// DecideIfAlreadyReplaced decides whether the lost instance is replaced already.
//
// If a notice returns, or two notices come at once, each has a NodeRetirement, but the node loses only one instance.
// The replacement of another NodeRetirement counts while it is in the group and the group has its minimum size
// (invariant I5), with the instances of open launches. s is the group without the node's own instance, and without
// retiring instances that are replaced already.
func DecideIfAlreadyReplaced(node types.UID, others []v1alpha1.NodeRetirement, s GroupSnapshot, provisioning, minSize int) Verdict {
	useless := len(s.Instances) - s.CountRunning()
	// An instance that exists but was not seen yet counts once. The size of some clouds excludes failed instances.
	stay := max(s.CountRunning(), min(s.CountRunning()+provisioning, s.Size-useless))
	for i := range others {
		o := &others[i]
		state := replacementState(o)
		if node == "" || o.Spec.NodeUID != node || !state.IsFinal() || state == v1alpha1.ReplacementNotNeeded {
			continue
		}
		r := o.Status.Replacement
		id, unknown := r.Instance, state != v1alpha1.ReplacementFailed || hasCode(r.Reasons, LaunchUnknown)
		if id == "" && !unknown {
			continue
		}
		if (id == "" || s.IsRunning(id)) && stay >= minSize { // an earlier version has not recorded the instance
			return newVerdict(None, newReason(AlreadyReplaced, "", "the NodeRetirement %s of the same node has launched the instance %s",
				o.Name, id))
		}
	}
	return newVerdict(Launch)
}

// GroupSnapshot is a group's size and instances at one moment.
type GroupSnapshot struct {
	cloud.Group
	// Instances are the existing instances that are not being deleted.
	Instances []cloud.Instance
}

// SortedInstanceNames returns the sorted names of the instances in the cloud.
func (s GroupSnapshot) SortedInstanceNames() []string {
	names := make([]string, 0, len(s.Instances))
	for _, m := range s.Instances {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// IsRunning reports whether an instance exists, is not stopped and has not failed.
func (s GroupSnapshot) IsRunning(providerID string) bool {
	return slices.ContainsFunc(s.Instances, func(m cloud.Instance) bool { return m.ProviderID == providerID && isRunning(m) })
}

// CountRunning counts the running instances.
func (s GroupSnapshot) CountRunning() (n int) {
	for _, m := range s.Instances {
		if isRunning(m) {
			n++
		}
	}
	return n
}

func isRunning(m cloud.Instance) bool { return m.State != cloud.Stopped && m.State != cloud.Failed }

// WithoutInstance removes an instance from the snapshot, as if it had been deleted.
func (s GroupSnapshot) WithoutInstance(providerID string) GroupSnapshot {
	rest := slices.DeleteFunc(slices.Clone(s.Instances), func(m cloud.Instance) bool { return m.ProviderID == providerID })
	s.Size -= len(s.Instances) - len(rest)
	s.Instances = rest
	return s
}

// selectPodReasons returns the reasons for a launch that a check of the node's pods has found. If the check has failed, the
// pods count as pods that fit on no other node.
func selectPodReasons(reasons []v1alpha1.RetirementReason) (selected []v1alpha1.RetirementReason) {
	for _, r := range reasons {
		if r.Code == NoRoom || r.Code == RoomUnknown {
			selected = append(selected, r)
		}
	}
	return selected
}

func newVerdict(o Outcome, reasons ...v1alpha1.RetirementReason) Verdict { return Verdict{o, reasons} }

func hasCode(reasons []v1alpha1.RetirementReason, code string) bool {
	return slices.ContainsFunc(reasons, func(r v1alpha1.RetirementReason) bool { return r.Code == code })
}

// newReason returns a reason within the limits of the CRD.
func newReason(code, object, format string, a ...any) v1alpha1.RetirementReason {
	return v1alpha1.RetirementReason{Code: code, Object: observe.ClipChars(object, maxObject), Message: observe.ClipChars(fmt.Sprintf(format, a...), maxDetail)}
}

// Limits of the CRD.
const (
	maxReasons = 64
	maxObject  = 512
	maxDetail  = 1024
)
