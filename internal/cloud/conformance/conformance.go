// Package conformance tests whether a provider fulfills the contract of [cloud.Provider]. A failed read must never mean
// "gone" and never a shorter list (I7: unknown is not gone). A deletion can be repeated, and another process can follow
// an operation.
//
// A provider's test calls [Run] with an emulator of its cloud. The emulator has to use the cloud's real protocol.
package conformance

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Cloud is an emulated cloud with at least [MinInstances] running instances. All instances are in one group, unless
// Group is empty. Each test gets its own Cloud.
type Cloud interface {
	// Provider returns a new provider for this cloud, as in another process.
	Provider(t *testing.T) cloud.Provider
	// Group returns the name of the group; empty for instances without a group.
	Group() string
	// ProviderIDs returns the provider IDs of all instances, read from the cloud directly.
	ProviderIDs() []string
	// GroupSize returns the target size of the group, read from the cloud directly.
	GroupSize() int
	// MissingID returns the ID of an instance that never existed, Foreign one of another account of the same cloud.
	MissingID() string
	ForeignID() string
	// LoseInstance removes an instance without a request.
	LoseInstance(t *testing.T, machine string)
	// AwaitGone returns when the cloud no longer has the instance.
	AwaitGone(t *testing.T, machine string)
	// InjectFault makes the cloud fail until ClearFaults.
	InjectFault(t *testing.T, f Fault)
	ClearFaults(t *testing.T)
	// DeletionRequests returns the number of deletion requests so far.
	DeletionRequests() int
}

// BatchingCloud is a [Cloud] with a provider that combines several deletions into one request.
type BatchingCloud interface {
	Cloud
	// BatchingProvider returns a provider that waits several seconds for more deletions, so that a busy host can send
	// them in time. It returns nil if instances are deleted one by one.
	BatchingProvider(t *testing.T) cloud.Provider
}

// LimitedCloud is a [Cloud] that cannot produce every fault, such as a real cloud.
type LimitedCloud interface {
	Cloud
	// UnsupportedFaults returns the faults that this cloud cannot produce, each with the reason. Tests that need them are skipped.
	UnsupportedFaults() map[FaultKind]string
}

// canInject reports whether a cloud can produce a fault.
func canInject(c Cloud, m FaultKind) bool {
	limited, ok := c.(LimitedCloud)
	return !ok || limited.UnsupportedFaults()[m] == ""
}

// skipUnlessFaultSupported skips a test if the cloud cannot produce a fault.
func skipUnlessFaultSupported(t *testing.T, c Cloud, m FaultKind) {
	t.Helper()
	if limited, ok := c.(LimitedCloud); ok {
		if why, cannot := limited.UnsupportedFaults()[m]; cannot {
			t.Skipf("this cloud never %s: %s", m, why)
		}
	}
}

// MinInstances is the minimum number of instances at the start of a test. They need more than one page of a list.
const MinInstances = 6

// FaultKind names a fault that an emulated cloud can produce.
type FaultKind string

// The kinds of faults. The first seven apply to every request.
const (
	Unavailable       FaultKind = "is unavailable"           // returns an error for every request
	ConnectionReset   FaultKind = "closes connections"       // closes the connection without a response
	TruncatedResponse FaultKind = "is cut off in the middle" // truncates every response
	ProxyPage         FaultKind = "is replaced by a proxy"   // a proxy returns a page with status 200
	ProxyNotFound     FaultKind = "is not found by a proxy"  // a proxy returns a page with status 404
	PermissionDenied  FaultKind = "denies permission"
	Throttled         FaultKind = "throttles requests" // with the delay Fault.RetryAfter

	ListFailsMidway   FaultKind = "fails in the middle of a list" // after the first page
	DeletionFails     FaultKind = "fails to delete"               // Fault.ProviderID, after accepting the request
	DeletionHangs     FaultKind = "hangs when it deletes"         // Fault.ProviderID, after accepting the request
	ForgetsOperations FaultKind = "forgets operations"            // all operations so far
	StaleLists        FaultKind = "returns stale lists"           // lists no longer change
	QuotaExhausted    FaultKind = "has no quota left"             // for another instance

	LosesInstances FaultKind = "loses instances"                                   // with Lose
	AllowsChanges  FaultKind = "allows changes by tests"                           // tests may create and delete instances; at least Machines exist
	ReportsMissing FaultKind = "reports an instance that never existed as missing" // with Missing
)

// totalFaults returns the kinds of faults that affect every request.
func totalFaults() []FaultKind {
	return []FaultKind{Unavailable, ConnectionReset, TruncatedResponse, ProxyPage, ProxyNotFound, PermissionDenied, Throttled}
}

// Fault is a fault to inject. ProviderID is set for DeletionFails and DeletionHangs, to name the instance. Throttled
// responses tell the client to wait for RetryAfter.
type Fault struct {
	FaultKind
	ProviderID string
	RetryAfter time.Duration
}

// Run runs all tests of the contract, one after another. newCloud returns a new cloud for each test.
func Run(t *testing.T, newCloud func(*testing.T) Cloud) {
	run(t, newCloud, func(*testing.T) {})
}

// RunParallel runs all tests in parallel. The clouds must share nothing.
func RunParallel(t *testing.T, newCloud func(*testing.T) Cloud) {
	run(t, newCloud, (*testing.T).Parallel)
}

func run(t *testing.T, newCloud func(*testing.T) Cloud, prepare func(*testing.T)) {
	for _, test := range []struct {
		name  string
		check func(*testing.T, Cloud)
		group bool // needs a group
		alter bool // creates or deletes instances, or injects faults into such requests
	}{
		{"IDs are normalized and foreign IDs are refused", testNormalize, false, false},
		{"a list has every instance once", testListedInstances, true, false},
		{"an instance reads as it is listed", testReadMatchesList, true, false},
		{"I7 a failed read is not gone", testFailedReadIsNotGone, false, true},
		{"I7 a truncated list is an error", testTruncatedList, true, false},
		{"I7 a stale list makes no instance gone", testStaleList, true, true},
		{"an instance that never existed is not found", testMissingInstance, false, false},
		{"a lost instance is not found", testLostInstance, false, false},
		{"a deletion removes one instance", testDelete, false, true},
		{"a deletion can be repeated", testRepeatedDelete, false, true},
		{"concurrent deletions remove each instance once", testConcurrentDeletes, false, true},
		{"concurrent deletions are one request", testDeletionBatching, false, true},
		{"a failed deletion is reported and can be repeated", testFailedDelete, false, true},
		{"one of several deletions fails", testOneOfSeveralFails, false, true},
		{"a hanging deletion is not done", testHangingDelete, false, true},
		{"another process can follow a deletion", testFollowDeletionFromOtherProvider, false, true},
		{"a forgotten operation is done", testForgottenOperation, false, true},
		{"an unknown operation is an error", testUnknownOperation, false, false},
		{"a throttled call does not wait", testThrottledRead, false, false},
		{"a missing permission is a refusal", testMissingPermission, false, false},
		{"a cancelled caller deletes nothing", testCancelledCaller, false, true},
		{"a group grows by the requested count", testGrow, true, true},
		{"a group grows by each template", testGrowByTemplate, true, true},
		{"concurrent launches lose no request", testConcurrentGrow, true, true},
		{"an exhausted quota is a refusal", testQuotaExhausted, true, true},
		{"a missing group is not found", testMissingGroup, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			prepare(t)
			c := newCloud(t)
			if test.group && c.Group() == "" {
				t.Skip("the instances have no group")
			}
			if test.alter {
				skipUnlessFaultSupported(t, c, AllowsChanges)
			}
			if n := len(c.ProviderIDs()); n < MinInstances && canInject(c, AllowsChanges) {
				t.Fatalf("the cloud has %d instances, the suite needs %d", n, MinInstances)
			}
			test.check(t, c)
		})
	}
}
