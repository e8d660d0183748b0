// Package notice defines a notice: an announcement that an instance will be interrupted. A notice comes from a cloud or
// from the node itself. The packages below this folder are the sources, and convert what they read to snapshots. This
// package does not depend on the sources, and does not act on notices.
package notice

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"
)

// Type is the kind of an interruption. The types are those of Azure Scheduled Events, Condition and Rebalance. Other
// sources convert their own types to these.
type Type string

// The five types of Azure Scheduled Events, api-version 2020-07-01.
const (
	// Freeze pauses the instance for some seconds; memory, disks and connections survive.
	Freeze Type = "Freeze"
	// Reboot restarts the instance; memory is lost.
	Reboot Type = "Reboot"
	// Redeploy moves the instance to other hardware; memory and ephemeral disks are lost.
	Redeploy Type = "Redeploy"
	// Preempt evicts a Spot instance.
	Preempt Type = "Preempt"
	// Terminate deletes the instance.
	Terminate Type = "Terminate"
)

// Condition is the type of a notice for a node condition that makes the node unfit for its pods. Such a notice has no
// deadline.
const Condition Type = "Condition"

// Rebalance is the type of a hint that a Spot instance is likely to be preempted. Such a notice has no deadline.
const Rebalance Type = "Rebalance"

// Interruptions returns the types of interruptions, the least severe first.
func Interruptions() []Type { return []Type{Freeze, Reboot, Redeploy, Preempt, Terminate} }

// Types returns all types of notices: the interruptions, Condition and Rebalance.
func Types() []Type { return append(Interruptions(), Condition, Rebalance) }

// HasDeadline reports whether notices of the type announce an interruption at some time.
func (t Type) HasDeadline() bool { return t != Condition && t != Rebalance }

// Status is the progress of the interruption that a notice announces.
type Status string

// The statuses of a notice. A notice is first Scheduled and then Started. Then its source no longer lists it. There is
// no status "completed".
const (
	Scheduled Status = "Scheduled"
	Started   Status = "Started"
)

// ErrApprovedTooEarly is the error of an approval that the platform does not await yet. The approval must be repeated later.
var ErrApprovedTooEarly = errors.New("the platform does not await the approval yet")

// AWSQueue is the Source of notices that the AWS queue mode reads. Only the agents of the queue mode handle their records.
const AWSQueue = "aws-queue"

// Notice is one announced interruption, as its source last reported it.
type Notice struct {
	// ID identifies the notice within its source, as long as it is listed.
	ID string
	// HasGeneratedID is true if the source gave no readable ID, so that ID was generated. Such a notice cannot be approved,
	// and may be the same as any earlier notice.
	HasGeneratedID bool `json:",omitempty"`
	// NotApprovable is true if the platform accepts no approval of this notice.
	NotApprovable bool `json:",omitempty"`
	// Source is the name of the source, such as "azure".
	Source string
	Type   Type
	// PodType is the type that applies to the pods, the taint and notifications, if it differs from Type.
	PodType Type `json:",omitempty"`
	Status  Status
	// Resources names the affected instances in the source's terms, exactly as read.
	Resources []string
	// InstanceCount and ResourcesHash are set by [Notice.TrimForRecord], which removes the other names. InstanceCount is the number
	// of instances in Resources, and ResourcesHash the hash of their sorted names.
	InstanceCount int    `json:",omitempty"`
	ResourcesHash string `json:",omitempty"`
	// NotBefore is the earliest time of the interruption; zero if the source does not say. Azure clears it once the
	// event has Started.
	NotBefore time.Time
	// HasBegun is true if the platform has begun with the interruption, perhaps before its announced time. Unlike a Started
	// notice, the instance still runs for NoticePeriod.
	HasBegun bool `json:",omitempty"`
	// NoticePeriod is how long after the first read the interruption is due if NotBefore is zero or has passed; 0 is the
	// minimum of the type. The interruption is also due this long after the first read with HasBegun.
	NoticePeriod time.Duration `json:",omitempty"`
	// ClockAhead is how far the instance's clock is ahead of the clock of NotBefore; negative is behind.
	ClockAhead time.Duration `json:",omitempty"`
	// Duration is the expected length of the interruption. Negative is unknown, zero is no impact.
	Duration time.Duration
	// WindowEnd is the end of the announced window of the interruption; zero if the source announces none.
	WindowEnd time.Time `json:",omitzero"`
	// LiveMigration is true for a Freeze that is a live migration, which keeps the memory.
	LiveMigration bool
	// UserInitiated is true if a user of the cloud requested the interruption, false if the platform did.
	UserInitiated bool
	Description   string
}

// ClaimOwner returns the owner name in the agent's cordon claim for a notice.
func ClaimOwner(source, id string) string { return source + "-" + id }

// EffectiveType returns PodType, or Type if PodType is empty. The agent uses it for the pods, the taint and
// notifications.
func (n Notice) EffectiveType() Type { return cmp.Or(n.PodType, n.Type) }

// maxDescriptionBytes limits the description of a notice in its record on the Node, in bytes.
const maxDescriptionBytes = 256

// TrimForRecord returns a shortened notice for its record on the Node. It removes the names of all instances except
// ownResource, but keeps their number and a hash. It also clips the description. An event may name thousands of
// instances, and an annotation has to stay small.
func (n Notice) TrimForRecord(ownResource string) Notice {
	if n.InstanceCount == 0 && len(n.Resources) > 0 {
		names := slices.Compact(slices.Sorted(slices.Values(n.Resources)))
		sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
		n.ResourcesHash = hex.EncodeToString(sum[:8])
		n.Resources = nil
		for _, name := range names {
			switch {
			case !strings.EqualFold(name, ownResource):
				n.InstanceCount++
			case len(n.Resources) == 0:
				n.InstanceCount++
				n.Resources = []string{name} // once, even if it is named several times
			}
		}
	}
	if len(n.Description) > maxDescriptionBytes {
		n.Description = strings.ToValidUTF8(n.Description[:maxDescriptionBytes], "") + "…"
	}
	return n
}

// CountOtherInstances returns how many instances the notice names besides own.
func (n Notice) CountOtherInstances(own string) int {
	mine := 0
	for _, name := range n.Resources {
		if strings.EqualFold(name, own) {
			mine++
		}
	}
	return max(len(n.Resources), n.InstanceCount) - mine
}

// Snapshot holds what one source reported at one time about the watched instance.
type Snapshot struct {
	// At is when the source read it.
	At time.Time
	// Notices names the watched instance, sorted by ID. Notices of other instances are left out.
	Notices []Notice
	// Planned lists notices of the watched instance that are not due yet. The agent does not act on them, and none of them
	// has ended.
	Planned []Notice
	// Incomplete is true if a part of the source was not read yet. No missing notice is then over (invariant I7).
	Incomplete bool
	// Ended lists the IDs of notices that have certainly ended, even if the snapshot is incomplete.
	Ended []string
	// Unreadable lists entries that could not be parsed. A notice with such an ID is neither updated nor over: its
	// last good state stays valid. An entry with an empty ID could be any notice, so with such an entry no missing
	// notice is over (invariant I7).
	Unreadable []Problem
	// Warnings lists problems of entries that are in Notices anyway, because the rest of them is enough to act on. A
	// Spot notice must not be lost because of a malformed time. The field has its zero value, or is unknown. Warnings
	// are only logged and counted.
	Warnings []Problem
}

// Problem describes an entry of a source's response that could not be parsed completely.
type Problem struct {
	// ID is the ID of the notice; empty if it is unreadable too.
	ID string
	// NamesInstance is true if the entry names the watched instance. Otherwise it may be for another one.
	NamesInstance bool
	// Err names the field, its value and what is allowed.
	Err error
}

// HasNotice reports whether the snapshot has a notice with this ID.
func (s Snapshot) HasNotice(id string) bool {
	return slices.ContainsFunc(s.Notices, func(n Notice) bool { return n.ID == id })
}

// HasEnded reports whether the snapshot proves that a notice has ended. Unless it is in Ended, it returns false if the snapshot lists the
// notice, also as planned. It also returns false if an unreadable entry, or a notice with a generated ID, may be this notice.
func (s Snapshot) HasEnded(id string) bool {
	if slices.Contains(s.Ended, id) {
		return true
	}
	if s.Incomplete {
		return false
	}
	for _, n := range s.Notices {
		if n.ID == id || n.HasGeneratedID {
			return false
		}
	}
	for _, n := range s.Planned {
		if n.ID == id {
			return false
		}
	}
	for _, u := range s.Unreadable {
		if u.ID == id || u.ID == "" {
			return false
		}
	}
	return true
}
