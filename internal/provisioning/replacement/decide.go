// Package replacement wants an instance launched for one that its cloud takes away.
//
// The agents say on their Nodes which notices there are. For each Preempt and Terminate of a node in a NodeGroup there is one
// NodeRetirement, named after the two (notices.go). It waits until the instance is gone and then cleans up after it. What decides whether a
// replacement is wanted is pure, and returns its reasons (this file). The launch is in the record of the group (package launch), which is
// written before the cloud is asked. The state of the replacement follows from the launch (follow.go).
//
// An instance that a Reboot or Redeploy interrupts comes back in minutes, no later than a new one would come up. It is neither retired nor
// replaced, unless it turns out to be gone.
//
// # Who brings the next instance
//
// Of a scale set of Spot instances, what happens to its capacity when one is evicted depends on how it was made
// (https://learn.microsoft.com/azure/virtual-machine-scale-sets/use-spot):
//
//   - Eviction policy Delete: the instance is deleted and the capacity lowered by one. Azure brings no other.
//   - Eviction policy Deallocate: the instance stays, stopped, and counts in the capacity. Azure does not start it again. It is not gone
//     (I7), so that its Node stays; another is launched beside it, if the group's maximum has room for both.
//   - With "try and restore" the capacity stays and the cloud itself brings an instance when it can.
//
// These are told apart by what is there, not by configuration: a group whose size counts more instances than it has, those of open launches
// not counted, is being filled by its cloud. That is a launch without a request.
package replacement

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// Codes of the reasons for and against a launch. Those of a launch that failed are its own.
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

// Outcome is what a decision comes to.
type Outcome string

// The outcomes.
const (
	Launch Outcome = "Launch" // an instance is to be launched
	Wait   Outcome = "Wait"   // not now; the reasons may pass
	Leave  Outcome = "Leave"  // the cloud brings one by itself
	None   Outcome = "None"   // there will be none
)

// Verdict is a decision with its reasons: those for an order, or those against it.
type Verdict struct {
	Outcome Outcome
	Reasons []v1alpha1.RetirementReason
}

// Machine is what has become of a machine that its cloud takes away.
type Machine string

// What can become of it.
const (
	Lives Machine = "Lives" // it is there, or that is not known
	Kept  Machine = "Kept"  // it is stopped, and its group keeps it
	Gone  Machine = "Gone"  // its cloud says so, and its Node is not Ready
)

// Need is who would miss a machine.
type Need struct {
	Policy v1alpha1.ReplacementPolicy
	// Over is why there is nothing to replace any more; "" when there is.
	Over string
	// Ended is why the retirement ended early, for whatever reason, and Refused why the group is not accepted; "" when not so.
	Ended, Refused string
	Machine        Machine
	// Homeless are the pods that have nowhere else to go.
	Homeless []Homeless
	// RoomUnknown is why it is not known which those are.
	RoomUnknown error
	// Stay is how many nodes of the group stay, and Minimum how many should. Leaving are the machines of nodes that do not.
	Stay, Minimum int
	Leaving       []string
}

// Homeless is a pod that has nowhere else to go.
type Homeless struct {
	Pod string // namespace/name
	Why string
}

// Wanted decides whether a machine is wanted in the place of another, and whether now.
func Wanted(n Need) Verdict {
	switch {
	case n.Policy == v1alpha1.ReplaceNever:
		return verdict(None, because(PolicyNever, "", "spec.replacement of the NodeGroup is Never"))
	case n.Over != "":
		return verdict(None, because(NoticeOver, "", "%s", n.Over))
	case n.Refused != "":
		return verdict(Wait, because(GroupNotAccepted, "", "the NodeGroup is not accepted: %s", n.Refused))
	case n.Ended != "" && n.Machine != Gone:
		return verdict(Wait, because(RetirementEnded, "", "until the machine is gone: %s", n.Ended))
	}
	var wants []v1alpha1.RetirementReason
	for _, h := range n.Homeless {
		wants = append(wants, because(NoRoom, "pod "+h.Pod, "%s", h.Why))
	}
	if n.Stay < n.Minimum {
		wants = append(wants, because(BelowMinimum, "", "%d nodes stay, and the group's minimum is %d", n.Stay, n.Minimum))
	}
	switch {
	case len(wants) > 0:
		return Verdict{Launch, wants}
	case n.Machine == Lives && n.RoomUnknown != nil:
		return verdict(Wait, because(RoomUnknown, "", "until the machine is gone: %s", n.RoomUnknown))
	case n.Machine == Lives:
		return verdict(Wait, because(RoomElsewhere, "", "until the machine is gone: its pods have room elsewhere"))
	case n.Policy == v1alpha1.ReplaceWhenNeeded && n.RoomUnknown != nil:
		return verdict(Wait, because(RoomUnknown, "", "%s", n.RoomUnknown))
	case n.Policy == v1alpha1.ReplaceWhenNeeded:
		return verdict(None, because(NobodyNeedsIt, "", "all pods have room elsewhere, and the group has %d nodes of at least %d", n.Stay,
			n.Minimum))
	case n.Machine == Kept:
		return verdict(Launch, because(MachineKept, "", "the machine is stopped, and its group keeps it"))
	}
	return verdict(Launch, because(MachineGone, "", "the machine is gone"))
}

// Bounds is what stands against one more machine.
type Bounds struct {
	Machine Machine
	// Size is how many machines the group is meant to have, and Present how many it has that are not being deleted.
	Size, Present int
	// Coming is how many instances of open launches have not been seen.
	Coming int
	// Unsettled is the ID of a launch in the group whose answer is not known.
	Unsettled string
}

// Allowed decides whether an instance that is wanted is to be launched now, or its cloud brings it (I5). The limits are checked by the launch.
func Allowed(b Bounds) Verdict {
	switch missing := b.Size - b.Present - b.Coming; {
	case b.Unsettled != "":
		return verdict(Wait, because(LaunchPending, "", "the answer to the launch %s is not known yet", b.Unsettled))
	case b.Machine == Gone && missing > 0:
		return verdict(Leave, because(CloudReplaces, "", "the group is meant to have %d machines and has %d, %d more on order: its cloud brings the rest",
			b.Size, b.Present, b.Coming))
	}
	return verdict(Launch)
}

// Replaced decides whether a replacement that is wanted is there already: a notice that comes and goes has a record each time, and so have
// two notices at once, while the instance goes but once. It counts for as long as it is in the group, and the group has its minimum (I5),
// instances of open launches counted: others may have left since it came. The survey is without the node's own instance, and without others
// that leave and are replaced already.
func Replaced(node types.UID, others []v1alpha1.NodeRetirement, s Survey, coming, least int) Verdict {
	useless := len(s.Machines) - s.Working()
	// One that has come and was not seen yet is not counted twice. Some clouds' size is without the machines that are useless.
	stay := max(s.Working(), min(s.Working()+coming, s.Size-useless))
	for i := range others {
		o := &others[i]
		state := stateOf(o)
		if node == "" || o.Spec.NodeUID != node || !state.Final() || state == v1alpha1.ReplacementNotNeeded {
			continue
		}
		r := o.Status.Replacement
		id, unknown := r.Instance, state != v1alpha1.ReplacementFailed || hasCode(r.Reasons, LaunchUnknown)
		if id == "" && !unknown {
			continue
		}
		if (id == "" || s.Works(id)) && stay >= least { // an earlier version has not written which
			return verdict(None, because(AlreadyReplaced, "", "the NodeRetirement %s of the same node has brought the instance %s in its place",
				o.Name, id))
		}
	}
	return verdict(Launch)
}

// Survey is what a group is meant to have and has, at one moment.
type Survey struct {
	cloud.Group
	// Machines are those that are there and not being deleted.
	Machines []cloud.Instance
}

// Names are the machines' names in the cloud, sorted.
func (s Survey) Names() []string {
	names := make([]string, 0, len(s.Machines))
	for _, m := range s.Machines {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// Works reports a machine that is there, and is neither stopped nor has failed.
func (s Survey) Works(providerID string) bool {
	return slices.ContainsFunc(s.Machines, func(m cloud.Instance) bool { return m.ProviderID == providerID && works(m) })
}

// Working counts those.
func (s Survey) Working() (n int) {
	for _, m := range s.Machines {
		if works(m) {
			n++
		}
	}
	return n
}

func works(m cloud.Instance) bool { return m.State != cloud.Stopped && m.State != cloud.Failed }

// Without leaves out a machine, as if it had been deleted.
func (s Survey) Without(providerID string) Survey {
	rest := slices.DeleteFunc(slices.Clone(s.Machines), func(m cloud.Instance) bool { return m.ProviderID == providerID })
	s.Size -= len(s.Machines) - len(rest)
	s.Machines = rest
	return s
}

func verdict(o Outcome, reasons ...v1alpha1.RetirementReason) Verdict { return Verdict{o, reasons} }

func hasCode(reasons []v1alpha1.RetirementReason, code string) bool {
	return slices.ContainsFunc(reasons, func(r v1alpha1.RetirementReason) bool { return r.Code == code })
}

// because is one reason, within the bounds of the type.
func because(code, object, format string, a ...any) v1alpha1.RetirementReason {
	return v1alpha1.RetirementReason{Code: code, Object: observe.Cut(object, maxObject), Message: observe.Cut(fmt.Sprintf(format, a...), maxDetail)}
}

// Limits of the CRD.
const (
	maxReasons = 64
	maxObject  = 512
	maxDetail  = 1024
)
