// Package notice defines notices: announcements by a cloud, or by the node itself, that an instance will be
// interrupted. A source is a package below this folder and converts what it reads to snapshots. This package does not
// depend on the sources, and does not act on notices.
package notice

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// Type is the kind of interruption, in the terms of Azure Scheduled Events, or Condition. Other sources convert their
// own types to these.
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

// Condition is a state of the node that makes it unfit for its pods. It has no deadline.
const Condition Type = "Condition"

// Interruptions returns the types of interruptions, the least severe first.
func Interruptions() []Type { return []Type{Freeze, Reboot, Redeploy, Preempt, Terminate} }

// Types returns all types.
func Types() []Type { return append(Interruptions(), Condition) }

// Status is the progress of the interruption.
type Status string

// A notice is Scheduled, then Started, then not listed any more. There is no status "completed".
const (
	Scheduled Status = "Scheduled"
	Started   Status = "Started"
)

// Notice is one announced interruption, as its source last read it.
type Notice struct {
	// ID identifies the notice within its source, as long as it is listed.
	ID string
	// HasGeneratedID is true if the source gave no readable ID, so that ID was generated. Such a notice cannot be approved,
	// and may be the same as any earlier notice.
	HasGeneratedID bool `json:",omitempty"`
	// Source is the name of the source, such as "azure".
	Source string
	Type   Type
	// PodType is the type that applies to the pods, the taint and notifications, if it differs from Type.
	PodType Type `json:",omitempty"`
	Status  Status
	// Resources names the affected instances in the source's terms, exactly as read.
	Resources []string
	// InstanceCount and ResourcesHash are set by [Notice.TrimForRecord], which removes the other names. Machines is the number
	// of instances in Resources, and ResourcesHash the hash of their sorted names.
	InstanceCount int    `json:",omitempty"`
	ResourcesHash string `json:",omitempty"`
	// NotBefore is the earliest time of the interruption; zero if the source does not say. Azure clears it once the
	// event has Started.
	NotBefore time.Time
	// ClockAhead is how far the instance's clock is ahead of the clock of NotBefore; negative is behind.
	ClockAhead time.Duration `json:",omitempty"`
	// Duration is the expected length of the interruption. Negative is unknown, zero is no impact.
	Duration time.Duration
	// LiveMigration is true for a Freeze that is a live migration, which keeps the memory.
	LiveMigration bool
	// UserInitiated is true if a user of the cloud requested the interruption, false if the platform did.
	UserInitiated bool
	Description   string
}

// EffectiveType returns the type that applies to the pods, the taint and notifications.
func (n Notice) EffectiveType() Type { return cmp.Or(n.PodType, n.Type) }

// maxDescriptionBytes limits a description in a record.
const maxDescriptionBytes = 256

// TrimForRecord returns the notice as stored in its record on the Node. Of the instance names it keeps only ownResource, with
// their number and a hash, and it clips the description. An event may name thousands of instances, and an annotation
// has to stay small.
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

// CountOtherInstances returns the number of named instances other than own.
func (n Notice) CountOtherInstances(own string) int {
	mine := 0
	for _, name := range n.Resources {
		if strings.EqualFold(name, own) {
			mine++
		}
	}
	return max(len(n.Resources), n.InstanceCount) - mine
}

// Snapshot is what one source knew at one time about the watched instance.
type Snapshot struct {
	// At is when the source read it.
	At time.Time
	// Notices names the watched instance, sorted by ID. Notices of other instances are left out.
	Notices []Notice
	// Unreadable lists entries that could not be parsed. A notice with such an ID is neither updated nor over: its
	// last good state stays valid. An entry with an empty ID could be any notice, so with such an entry no missing
	// notice is over (invariant I7).
	Unreadable []Problem
	// Warnings lists problems of entries that are in Notices anyway, because the rest of them is enough to act on. A
	// Spot notice must not be lost because of a malformed time. The field has its zero value, or is unknown. Warnings
	// are only logged and counted.
	Warnings []Problem
}

// Problem is an unreadable part of a source's response.
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

// HasEnded reports whether a notice has ended according to the snapshot. It has ended if it is not listed, and no entry
// that is unreadable or has no ID may be it.
func (s Snapshot) HasEnded(id string) bool {
	for _, n := range s.Notices {
		if n.ID == id || n.HasGeneratedID {
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
