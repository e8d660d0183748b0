// Package notice says what a notice is: word from a cloud or from the node itself that a machine is about to be
// interrupted. A source (a folder below this one) turns what it reads into snapshots of this package's types; nothing
// here knows where a notice came from, and nothing here acts on one.
package notice

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// Type is the kind of interruption, in the words of Azure Scheduled Events, which every source of such maps its own
// onto; or Condition.
type Type string

// The five types of Azure Scheduled Events, api-version 2020-07-01.
const (
	// Freeze pauses the machine for some seconds; memory, disks and connections survive.
	Freeze Type = "Freeze"
	// Reboot restarts the machine; memory is lost.
	Reboot Type = "Reboot"
	// Redeploy moves the machine to other hardware; memory and ephemeral disks are lost.
	Redeploy Type = "Redeploy"
	// Preempt takes a Spot machine away.
	Preempt Type = "Preempt"
	// Terminate deletes the machine.
	Terminate Type = "Terminate"
)

// Condition is a state of the node that makes it unfit for its pods. Nothing is due at any time.
const Condition Type = "Condition"

// Interruptions lists the types that announce an interruption, from the mildest to the gravest.
func Interruptions() []Type { return []Type{Freeze, Reboot, Redeploy, Preempt, Terminate} }

// Types lists every known type.
func Types() []Type { return append(Interruptions(), Condition) }

// Status is how far the interruption has come.
type Status string

// A notice is Scheduled, then Started, then gone: there is no "completed".
const (
	Scheduled Status = "Scheduled"
	Started   Status = "Started"
)

// Notice is one announced interruption, as its source last read it.
type Notice struct {
	// ID names the notice for as long as it lives; it is unique within its source.
	ID string
	// Unnamed is true when the source gave no ID that could be read, and ID was made for it. Such a notice cannot be
	// acknowledged, and may be any of the notices that were known before.
	Unnamed bool `json:",omitempty"`
	// Source is the name of the source that read it, such as "azure".
	Source string
	Type   Type
	// As is the type whose rules hold for the pods, and which the taint and receivers are told, where it is not Type itself.
	As     Type `json:",omitempty"`
	Status Status
	// Resources names the machines concerned, in the source's own terms, exactly as read.
	Resources []string
	// Machines is how many machines Resources named, and ResourcesHash the hash of their sorted names, after
	// [Notice.ForRecord] left out the others; 0 and empty before.
	Machines      int    `json:",omitempty"`
	ResourcesHash string `json:",omitempty"`
	// NotBefore is the earliest time the interruption may begin; zero when the source does not say (Azure blanks it
	// once the event has Started).
	NotBefore time.Time
	// ClockAhead is how far this machine's clock is ahead of the one that NotBefore was read off; negative is behind.
	ClockAhead time.Duration `json:",omitempty"`
	// Duration is how long the interruption is expected to last. Negative is unknown, zero is no impact.
	Duration time.Duration
	// LiveMigration is true for a Freeze that the source recognises as a memory-preserving live migration.
	LiveMigration bool
	// UserInitiated is true when a user of the cloud asked for the interruption, false when the platform did.
	UserInitiated bool
	Description   string
}

// Kind is the type whose rules hold for the notice's pods, and which others are told.
func (n Notice) Kind() Type { return cmp.Or(n.As, n.Type) }

// longestDescription is how much of a description is kept in a record, in bytes.
const longestDescription = 256

// ForRecord returns the notice as its record on the Node holds it. Of the machines it keeps only own, their number and a
// hash, and it clips the description: an event may name thousands, and an annotation has to stay small.
func (n Notice) ForRecord(own string) Notice {
	if n.Machines == 0 && len(n.Resources) > 0 {
		names := slices.Compact(slices.Sorted(slices.Values(n.Resources)))
		sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
		n.ResourcesHash = hex.EncodeToString(sum[:8])
		n.Resources = nil
		for _, name := range names {
			switch {
			case !strings.EqualFold(name, own):
				n.Machines++
			case len(n.Resources) == 0:
				n.Machines++
				n.Resources = []string{name} // once, however often it is named
			}
		}
	}
	if len(n.Description) > longestDescription {
		n.Description = strings.ToValidUTF8(n.Description[:longestDescription], "") + "…"
	}
	return n
}

// Others is how many machines other than own the notice names.
func (n Notice) Others(own string) int {
	mine := 0
	for _, name := range n.Resources {
		if strings.EqualFold(name, own) {
			mine++
		}
	}
	return max(len(n.Resources), n.Machines) - mine
}

// Snapshot is everything one source knows at one moment about the machine it watches.
type Snapshot struct {
	// At is when the source read it.
	At time.Time
	// Notices are those that name the watched machine, sorted by ID. Other machines' notices are left out.
	Notices []Notice
	// Unreadable lists entries that were present but could not be understood. A notice whose ID is here is neither
	// updated nor over: the last good state stands. An entry with an empty ID could be any notice, so that while one
	// is present no missing notice may be taken to be over (invariant I7).
	Unreadable []Problem
	// Warnings lists what was wrong with entries that are in Notices all the same, because what is left of them is
	// enough to act on: a Spot notice must not be lost to a misspelt time. The field concerned is at its zero value,
	// or unknown. Warnings are there to be logged and counted; no decision hangs on them.
	Warnings []Problem
}

// Problem is something in a source's answer that could not be understood.
type Problem struct {
	// ID is the notice concerned; empty when not even that could be read.
	ID string
	// Named is true when the entry names the watched machine; otherwise it may be another's.
	Named bool
	// Err names the field, its value and what is allowed.
	Err error
}

// Lists reports whether the snapshot has the notice known under id.
func (s Snapshot) Lists(id string) bool {
	return slices.ContainsFunc(s.Notices, func(n Notice) bool { return n.ID == id })
}

// Over reports whether a notice known under id is over according to the snapshot: not listed, and not hidden behind
// an entry that could not be read or has no ID.
func (s Snapshot) Over(id string) bool {
	for _, n := range s.Notices {
		if n.ID == id || n.Unnamed {
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
