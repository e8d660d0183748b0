// Package conformance tests that a provider fulfills the contract of [cloud.Provider]. Most important: a failed read is
// never "gone" and never a shorter list (I7), a deletion can be repeated, and another process can follow an operation.
//
// A provider's test calls [Run] with an emulator of its cloud, which has to speak the real protocol.
package conformance

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Cloud is an emulated cloud with at least [Machines] running instances. All are in one group, unless Group is empty.
// Each test gets its own Cloud.
type Cloud interface {
	// Provider returns a new provider for this cloud, as in another process.
	Provider(t *testing.T) cloud.Provider
	// Group returns the name of the group; empty for instances without a group.
	Group() string
	// Machines returns the provider IDs of all instances, read from the cloud directly.
	Machines() []string
	// Size returns the target size of the group, read from the cloud directly.
	Size() int
	// Missing returns the ID of an instance that never existed, Foreign one of another account of the same cloud.
	Missing() string
	Foreign() string
	// Lose removes an instance without a request.
	Lose(t *testing.T, machine string)
	// AwaitGone returns when the cloud no longer has the instance.
	AwaitGone(t *testing.T, machine string)
	// Inject makes the cloud fail until Heal.
	Inject(t *testing.T, f Fault)
	Heal(t *testing.T)
	// Deletions returns the number of deletion requests so far.
	Deletions() int
}

// Batching is a Cloud with providers that combine deletions into one request.
type Batching interface {
	Cloud
	// BatchingProvider returns a provider that waits several seconds for more deletions, so that a busy host can send
	// them in time. It returns nil if instances are deleted one by one.
	BatchingProvider(t *testing.T) cloud.Provider
}

// Limited is a Cloud that cannot produce every fault, such as a real cloud.
type Limited interface {
	Cloud
	// Cannot returns the faults that this cloud cannot produce, each with the reason. Tests that need them are skipped.
	Cannot() map[Misbehaviour]string
}

// canInject reports whether a cloud can produce a fault.
func canInject(c Cloud, m Misbehaviour) bool {
	limited, ok := c.(Limited)
	return !ok || limited.Cannot()[m] == ""
}

// requireFault skips a test if the cloud cannot produce a fault.
func requireFault(t *testing.T, c Cloud, m Misbehaviour) {
	t.Helper()
	if limited, ok := c.(Limited); ok {
		if why, cannot := limited.Cannot()[m]; cannot {
			t.Skipf("this cloud never %s: %s", m, why)
		}
	}
}

// Machines is the minimum number of instances at the start. It is more than one page of a list.
const Machines = 6

// Misbehaviour is a kind of fault.
type Misbehaviour string

// The kinds of faults. The first seven apply to every request.
const (
	Unavailable Misbehaviour = "is unavailable"           // returns an error for every request
	Reset       Misbehaviour = "closes connections"       // closes the connection without a response
	Truncated   Misbehaviour = "is cut off in the middle" // truncates every response
	Impostor    Misbehaviour = "is replaced by a proxy"   // a proxy returns a page with status 200
	Misrouted   Misbehaviour = "is not found by a proxy"  // a proxy returns a page with status 404
	Denied      Misbehaviour = "denies permission"
	Throttled   Misbehaviour = "throttles requests" // with the delay Fault.After

	SecondPage    Misbehaviour = "fails in the middle of a list" // after the first page
	DeletionFails Misbehaviour = "fails to delete"               // Fault.Machine, after accepting the request
	DeletionHangs Misbehaviour = "hangs when it deletes"         // Fault.Machine, after accepting the request
	Forgets       Misbehaviour = "forgets operations"            // all operations so far
	Stale         Misbehaviour = "returns stale lists"           // lists no longer change
	Full          Misbehaviour = "has no quota left"             // for another instance

	Loses  Misbehaviour = "loses instances"                                   // with Lose
	Yields Misbehaviour = "allows changes by tests"                           // tests may create and delete instances; at least Machines exist
	Misses Misbehaviour = "reports an instance that never existed as missing" // with Missing
)

// totalFaults returns the faults that make every request fail.
func totalFaults() []Misbehaviour {
	return []Misbehaviour{Unavailable, Reset, Truncated, Impostor, Misrouted, Denied, Throttled}
}

type Fault struct {
	Misbehaviour
	Machine string
	After   time.Duration
}

// Run runs all tests. newCloud returns the cloud of one test.
func Run(t *testing.T, newCloud func(*testing.T) Cloud) {
	for _, test := range []struct {
		name  string
		check func(*testing.T, Cloud)
		group bool // needs a group
		alter bool // creates or deletes instances, or injects faults into such requests
	}{
		{"IDs are normalized and foreign IDs are refused", testNormalize, false, false},
		{"a list has every instance once", testList, true, false},
		{"an instance reads as it is listed", testRead, true, false},
		{"I7 a failed read is not gone", testFailedReadIsNotGone, false, true},
		{"I7 a truncated list is an error", testTruncatedList, true, false},
		{"I7 a stale list makes no instance gone", testStaleList, true, true},
		{"an instance that never existed is not found", testMissing, false, false},
		{"a lost instance is not found", testLost, false, false},
		{"a deletion removes one instance", testDelete, false, true},
		{"a deletion can be repeated", testRepeatedDelete, false, true},
		{"concurrent deletions remove each instance once", testConcurrentDeletes, false, true},
		{"concurrent deletions are one request", testBatching, false, true},
		{"a failed deletion is reported and can be repeated", testFailedDelete, false, true},
		{"one of several deletions fails", testOneOfSeveralFails, false, true},
		{"a hanging deletion is not done", testHangingDelete, false, true},
		{"another process can follow a deletion", testHandover, false, true},
		{"a forgotten operation is done", testForgottenOperation, false, true},
		{"an unknown operation is an error", testUnknownOperation, false, false},
		{"a throttled call does not wait", testThrottled, false, false},
		{"a missing permission is a refusal", testMissingPermission, false, false},
		{"a cancelled caller deletes nothing", testCancelledCaller, false, true},
		{"a group grows by the requested count", testGrow, true, true},
		{"a group grows by each template", testGrowByTemplate, true, true},
		{"concurrent launches lose no request", testConcurrentGrow, true, true},
		{"an exhausted quota is a refusal", testQuotaExhausted, true, true},
		{"a missing group is not found", testMissingGroup, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCloud(t)
			if test.group && c.Group() == "" {
				t.Skip("the instances have no group")
			}
			if test.alter {
				requireFault(t, c, Yields)
			}
			if n := len(c.Machines()); n < Machines && canInject(c, Yields) {
				t.Fatalf("the cloud has %d instances, the suite needs %d", n, Machines)
			}
			test.check(t, c)
		})
	}
}
