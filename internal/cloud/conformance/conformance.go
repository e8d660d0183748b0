// Package conformance checks that a provider keeps what [cloud.Provider] promises, whatever its cloud: above all that
// what it could not read is never "gone" and never a shorter list (I7), that a deletion can be asked for again and
// again, and that another process finds an operation again.
//
// A provider joins by a test that gives [Run] the emulator of its cloud, through the very protocol that the cloud speaks.
package conformance

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Cloud is an emulated cloud with machines that run, [Machines] of them at the least, all of one group unless Group
// says that there is none. Each test is given one of its own.
type Cloud interface {
	// Provider makes one more provider for this cloud, as another process would.
	Provider(t *testing.T) cloud.Provider
	// Group is the name of the machines' group; empty for machines that are each on their own.
	Group() string
	// Machines gives the provider IDs of the machines that there are, by the cloud's own account.
	Machines() []string
	// Size is how many machines the group is meant to have, by the cloud's own account.
	Size() int
	// Missing is the ID of a machine that the cloud never had, Foreign one of another account of the same cloud.
	Missing() string
	Foreign() string
	// Lose takes a machine away without anybody's request.
	Lose(t *testing.T, machine string)
	// AwaitGone returns when the cloud does not have the machine any more.
	AwaitGone(t *testing.T, machine string)
	// Inject has the cloud misbehave until Heal.
	Inject(t *testing.T, f Fault)
	Heal(t *testing.T)
	// Deletions counts the requests so far that asked for deletions.
	Deletions() int
}

// Batching is a Cloud whose providers ask for several deletions in one request.
type Batching interface {
	Cloud
	// BatchingProvider makes a provider that waits several seconds for more deletions, so that those of a busy machine come in
	// time. It is nil for machines that are deleted one by one.
	BatchingProvider(t *testing.T) cloud.Provider
}

// Limited is a Cloud that cannot misbehave in every way, such as a real one.
type Limited interface {
	Cloud
	// Cannot gives the ways in which this cloud cannot misbehave, each with the reason. The tests that need one of them
	// are skipped, and say so.
	Cannot() map[Misbehaviour]string
}

// can says whether a cloud has no reason why it cannot behave so.
func can(c Cloud, m Misbehaviour) bool {
	limited, ok := c.(Limited)
	return !ok || limited.Cannot()[m] == ""
}

// needs skips a test for a cloud that cannot misbehave so.
func needs(t *testing.T, c Cloud, m Misbehaviour) {
	t.Helper()
	if limited, ok := c.(Limited); ok {
		if why, cannot := limited.Cannot()[m]; cannot {
			t.Skipf("no cloud of this kind %s: %s", m, why)
		}
	}
}

// Machines is how many machines a Cloud has at the start, at least: more than one page of a list.
const Machines = 6

// Misbehaviour is a way in which a cloud fails.
type Misbehaviour string

// The ways in which a cloud fails. The first six are those of every request.
const (
	Unavailable Misbehaviour = "is unavailable"            // it answers that it cannot answer
	Reset       Misbehaviour = "closes connections"        // without an answer
	Truncated   Misbehaviour = "is cut off in the middle"  // of every answer
	Impostor    Misbehaviour = "is somebody else"          // a page that says 200, from something in between
	Misrouted   Misbehaviour = "is not found by the proxy" // a page that says 404, from something in between
	Denied      Misbehaviour = "denies the right"          //
	Throttled   Misbehaviour = "asks to wait"              // for Fault.After

	SecondPage    Misbehaviour = "fails in the middle of a list" // after the first page
	DeletionFails Misbehaviour = "fails to delete"               // Fault.Machine, having accepted it
	DeletionHangs Misbehaviour = "hangs when it deletes"         // Fault.Machine, having accepted it
	Forgets       Misbehaviour = "forgets its operations"        // those so far
	Stale         Misbehaviour = "has stale lists"               // they stay as they are now
	Full          Misbehaviour = "has no quota"                  // for another machine

	Loses  Misbehaviour = "loses machines"                    // by Lose
	Yields Misbehaviour = "lets a test change it"             // machines made and deleted, at least Machines of them there
	Misses Misbehaviour = "tells of a machine that never was" // by Missing
)

// blackouts are those that leave nothing that could be known.
func blackouts() []Misbehaviour {
	return []Misbehaviour{Unavailable, Reset, Truncated, Impostor, Misrouted, Denied, Throttled}
}

// Fault is an instruction to misbehave.
type Fault struct {
	Misbehaviour
	Machine string
	After   time.Duration
}

// Run runs the suite. newCloud makes a cloud for one test.
func Run(t *testing.T, newCloud func(*testing.T) Cloud) {
	for _, test := range []struct {
		name  string
		check func(*testing.T, Cloud)
		group bool // needs a group
		alter bool // makes or deletes machines, or has the cloud fail while it asks for that
	}{
		{"an ID has one spelling, and those of others are refused", spelling, false, false},
		{"a list has every machine once", lists, true, false},
		{"a machine reads as it is listed", reads, true, false},
		{"I7 what could not be read is not gone", blackoutsAreNotGone, false, true},
		{"I7 a list that breaks off is an error", brokenList, true, false},
		{"I7 a stale list makes no machine gone", staleList, true, true},
		{"a machine that never was, is not found", missing, false, false},
		{"a machine that went by itself is not found", lost, false, false},
		{"a deletion is followed to its end and takes one machine", deletes, false, true},
		{"a deletion can be asked for again", deletesAgain, false, true},
		{"deletions side by side take each machine once", deletesTogether, false, true},
		{"deletions that come close together are one request", batches, false, true},
		{"a deletion that fails says so, and can be repeated", deletionFails, false, true},
		{"of several deletions one fails", oneOfSeveralFails, false, true},
		{"a deletion that hangs is not done", deletionHangs, false, true},
		{"another process finds a deletion again", handover, false, true},
		{"an operation that was forgotten is done", forgotten, false, true},
		{"an operation of nobody is an error", nobodysOperation, false, false},
		{"a cloud that wants to be left alone is not waited for", throttling, false, false},
		{"a missing right is a refusal", denied, false, false},
		{"a caller who has left deletes nothing", cancelled, false, true},
		{"a group grows by what was asked", grows, true, true},
		{"a group grows by what each template says", growsByTemplate, true, true},
		{"groups that grow side by side lose no request", growsTogether, true, true},
		{"a group without quota is a refusal", full, true, true},
		{"a group that does not exist is not found", noGroup, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCloud(t)
			if test.group && c.Group() == "" {
				t.Skip("the machines are each on their own")
			}
			if test.alter {
				needs(t, c, Yields)
			}
			if n := len(c.Machines()); n < Machines && can(c, Yields) {
				t.Fatalf("the cloud has %d machines, the suite needs %d", n, Machines)
			}
			test.check(t, c)
		})
	}
}
