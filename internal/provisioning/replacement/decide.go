// Package replacement brings a machine in the place of one that its cloud takes away.
//
// The agents say on their Nodes which notices there are. For each Preempt and Terminate of a node in a NodeGroup there is
// one NodeRetirement, named after the two (notices.go), which waits until the machine is gone and then cleans up after
// it. It is also the record of the machine ordered in its place (controller.go): what is about to be ordered is written
// down before the cloud is asked, with the size of its group and the machines in it, from which whoever comes after a
// crash tells whether the cloud was asked (survey.go). What decides is pure, and returns its reasons (this file).
//
// A machine that a Reboot or Redeploy interrupts comes back in minutes, no later than a new one would come up. It is
// neither retired nor replaced, unless it turns out to be gone.
//
// # Who brings the next machine
//
// Of a scale set of Spot machines, what happens to its capacity when one is evicted depends on how it was made
// (https://learn.microsoft.com/azure/virtual-machine-scale-sets/use-spot):
//
//   - Eviction policy Delete: the machine is deleted and the capacity lowered by one. Nobody brings another.
//   - Eviction policy Deallocate: the machine stays, stopped, and counts in the capacity. Nobody starts it again. It is
//     not gone (I7), so that its Node stays; another is ordered beside it, if the group's maximum has room for both.
//   - With "try and restore" the capacity stays and the cloud itself brings a machine when it can.
//
// These are told apart by what is there, not by configuration: a group that is meant to have more machines than it has,
// those on order not counted, is being filled up by its cloud.
package replacement

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// Codes of the reasons for and against an order.
const (
	PolicyNever   = "PolicyNever"
	NoticeOver    = "NoticeOver"
	NoRoom        = "NoRoom"
	BelowMinimum  = "BelowMinimum"
	RoomElsewhere = "RoomElsewhere"
	NobodyNeedsIt = "NobodyNeedsIt"
	MachineGone   = "MachineGone"
	MachineKept   = "MachineKept"
	AtMaximum     = "AtMaximum"
	CloudReplaces = "CloudReplaces"
	OrderPending  = "OrderPending"
	OrderLost     = "OrderLost"
	OrderFailed   = "OrderFailed"
	// InstanceVanished: the cloud has dropped an instance before it ran, which was launched or which it was to bring.
	InstanceVanished = "InstanceVanished"
	UnknownGroup     = "UnknownGroup"
	RoomUnknown      = "RoomUnknown"

	AlreadyReplaced  = "AlreadyReplaced"
	GroupNotAccepted = retirement.GroupNotAccepted
	RetirementEnded  = "RetirementEnded"
)

// Outcome is what a decision comes to.
type Outcome string

// The outcomes.
const (
	Order Outcome = "Order" // a machine is to be ordered
	Wait  Outcome = "Wait"  // not now; the reasons may pass
	Leave Outcome = "Leave" // the cloud brings one by itself
	None  Outcome = "None"  // there will be none
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
		return Verdict{Order, wants}
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
		return verdict(Order, because(MachineKept, "", "the machine is stopped, and its group keeps it"))
	}
	return verdict(Order, because(MachineGone, "", "the machine is gone"))
}

// Bounds is what stands against one more machine.
type Bounds struct {
	Machine Machine
	// Size is how many machines the group is meant to have, and Present how many it has that are not being deleted.
	Size, Present int
	// Coming is how many of those that are not there yet are accounted for: ordered here, or left to the cloud before.
	Coming int
	// Full says at which maximum the group is; empty when it is at none.
	Full string
	// Unsettled names an order in the group of which it is not known yet whether it reached the cloud.
	Unsettled string
}

// Allowed decides whether a machine that is wanted may be ordered now (I5).
func Allowed(b Bounds) Verdict {
	switch missing := b.Size - b.Present - b.Coming; {
	case b.Unsettled != "":
		return verdict(Wait, because(OrderPending, "", "the order of NodeRetirement %s is not settled yet", b.Unsettled))
	case b.Machine == Gone && missing > 0:
		return verdict(Leave, because(CloudReplaces, "", "the group is meant to have %d machines and has %d, %d more on order: its cloud brings the rest",
			b.Size, b.Present, b.Coming))
	case b.Full != "":
		return verdict(Wait, because(AtMaximum, "", "%s", b.Full))
	}
	return verdict(Order)
}

// Replaced decides whether a machine that is wanted in the place of a Node is on its way or there already: a notice that comes
// and goes has a record each time, and so have two notices at once, while the machine goes but once. One that is on its way is
// waited for, since its order may come to nothing yet. One that has come counts for as long as it is in the group, and the group is
// of as many machines as it is to have at least (I5), those on order for other nodes counted: since it came, when the group was one too
// large, others may have left. The survey is without the node's own machine, and without others that leave and are replaced already.
func Replaced(node types.UID, others []v1alpha1.NodeRetirement, s Survey, least int) Verdict {
	useless := len(s.Machines) - s.Working()
	// One that has come, and that no order claims yet, is not counted twice. Some clouds' size is without the machines that are useless.
	stay := max(s.Working(), min(s.Working()+onOrder(others), s.Size-useless))
	for i := range others {
		o := &others[i]
		if node == "" || o.Spec.NodeUID != node {
			continue
		}
		r := o.Status.Replacement
		switch stateOf(o) {
		case v1alpha1.ReplacementOrdering, v1alpha1.ReplacementOrdered, v1alpha1.ReplacementLeftToCloud:
			return verdict(Wait, because(AlreadyReplaced, "", "the NodeRetirement %s of the same node has a machine on its way in its place", o.Name))
		case v1alpha1.ReplacementArrived:
			if s.Works(r.Machine) && stay >= least {
				return verdict(None, because(AlreadyReplaced, "", "the NodeRetirement %s of the same node has brought the machine %s in its place",
					o.Name, r.Machine))
			}
		}
	}
	return verdict(Order)
}

// onOrder counts the machines that are ordered and not there yet. What is left to a cloud may never come.
func onOrder(all []v1alpha1.NodeRetirement) (n int) {
	for i := range all {
		switch stateOf(&all[i]) {
		case v1alpha1.ReplacementOrdering, v1alpha1.ReplacementOrdered:
			if all[i].Status.Replacement.Machine == "" {
				n++
			}
		}
	}
	return n
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
func (s Survey) Works(name string) bool {
	return slices.ContainsFunc(s.Machines, func(m cloud.Instance) bool { return m.Name == name && works(m) })
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

// Taken reports whether an order reached the cloud: the group is meant to have one machine more than before, those that
// have left since not counted. Whoever else has made the group larger meanwhile makes it look so too, which is the better
// mistake.
func Taken(r *v1alpha1.Replacement, s Survey) bool {
	there := s.Names()
	left := 0
	for _, name := range r.Machines {
		if _, found := slices.BinarySearch(there, name); !found {
			left++
		}
	}
	return s.Size >= int(r.Size)+1-left
}

// Newcomer finds the machine that an order has brought: one that was not there before and that no other order claims.
func Newcomer(r *v1alpha1.Replacement, s Survey, claimed []string) (cloud.Instance, bool) {
	for _, m := range s.Machines {
		if !slices.Contains(r.Machines, m.Name) && !slices.Contains(claimed, m.Name) {
			return m, true
		}
	}
	return cloud.Instance{}, false
}

// backoff is the pause after so many refusals, from 1.
func backoff(first time.Duration, attempts int32) time.Duration {
	pause := first << min(attempts-1, 10)
	if pause > longestPause || pause <= 0 {
		return longestPause
	}
	return pause
}

// longestPause is that between two orders that a cloud refuses.
const longestPause = 10 * time.Minute

func verdict(o Outcome, reasons ...v1alpha1.RetirementReason) Verdict { return Verdict{o, reasons} }

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
