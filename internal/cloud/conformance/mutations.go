package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// pollInterval is the delay between two reads in a test.
const pollInterval = 10 * time.Millisecond

func sleepOrFail(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal("test timeout")
	}
}

// startDeletion starts a deletion.
func startDeletion(t *testing.T, p cloud.Provider, machine string) cloud.Operation {
	t.Helper()
	op, err := p.Delete(t.Context(), machine)
	if err != nil {
		t.Fatalf("Delete(%s): %v", machine, err)
	}
	return op
}

// awaitOperationDone waits until an operation is done.
func awaitOperationDone(t *testing.T, p cloud.Provider, op cloud.Operation) cloud.OperationStatus {
	t.Helper()
	for {
		status, err := p.Status(t.Context(), op)
		if err != nil {
			t.Fatalf("Status(%+v): %v", op, err)
		}
		if status.Done {
			return status
		}
		sleepOrFail(t, pollInterval)
	}
}

// deleteAndAwait deletes an instance and waits until it is gone.
func deleteAndAwait(t *testing.T, p cloud.Provider, c Cloud, machine string) {
	t.Helper()
	if status := awaitOperationDone(t, p, startDeletion(t, p, machine)); status.Err != nil {
		t.Fatalf("deleting %s ended with %v", machine, status.Err)
	}
	c.AwaitGone(t, machine)
}

// assertRemainingInstances asserts that all instances except gone still exist, and that the size decreased accordingly.
func assertRemainingInstances(t *testing.T, c Cloud, before []string, size int, gone ...string) {
	t.Helper()
	want := slices.DeleteFunc(slices.Clone(before), func(id string) bool { return slices.Contains(gone, id) })
	if now := c.ProviderIDs(); !slices.Equal(now, want) {
		t.Errorf("instances\n%q\nwant\n%q", now, want)
	}
	if c.Group() != "" && c.GroupSize() != size-len(gone) {
		t.Errorf("the group's size is %d, want %d", c.GroupSize(), size-len(gone))
	}
}

func testDelete(t *testing.T, c Cloud) {
	p := c.Provider(t)
	before, size := c.ProviderIDs(), c.GroupSize()
	victim := before[1]
	began := time.Now()
	op := startDeletion(t, p, victim)
	if op.Started.Before(began.Add(-time.Minute)) || op.Started.After(time.Now().Add(time.Minute)) {
		t.Errorf("the operation started at %v, now is %v", op.Started, time.Now())
	}
	if status := awaitOperationDone(t, p, op); status.Err != nil {
		t.Errorf("the deletion failed with %v", status.Err)
	}
	if _, err := p.Instance(t.Context(), victim); !cloud.IsNotFound(err) {
		t.Errorf("instance after its deletion: %v, want NotFound", err)
	}
	assertRemainingInstances(t, c, before, size, victim)
}

func testRepeatedDelete(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, DeletionHangs)
	p := c.Provider(t)
	before, size := c.ProviderIDs(), c.GroupSize()
	victim := before[0]
	c.InjectFault(t, Fault{FaultKind: DeletionHangs, ProviderID: victim})
	first := startDeletion(t, p, victim)
	again := startDeletion(t, p, victim)
	if c.Group() != "" && c.GroupSize() != size-1 {
		t.Errorf("after two requests the group's size is %d, want %d", c.GroupSize(), size-1)
	}
	if i, err := p.Instance(t.Context(), victim); err != nil || i.State != cloud.Deleting {
		t.Errorf("instance %+v, %v; want state %s", i, err, cloud.Deleting)
	}
	for _, op := range []cloud.Operation{first, again} {
		if status, err := p.Status(t.Context(), op); err != nil || status.Done {
			t.Errorf("deletion in progress, but status %+v, %v", status, err)
		}
	}
	c.ClearFaults(t)
	for _, op := range []cloud.Operation{first, again} {
		if status := awaitOperationDone(t, p, op); status.Err != nil {
			t.Errorf("an operation failed with %v", status.Err)
		}
	}
	if _, err := p.Delete(t.Context(), victim); !cloud.IsNotFound(err) {
		t.Errorf("deletion of a gone instance: %v, want NotFound", err)
	}
	assertRemainingInstances(t, c, before, size, victim)
}

func testConcurrentDeletes(t *testing.T, c Cloud) {
	p := c.Provider(t)
	before, size := c.ProviderIDs(), c.GroupSize()
	victims := before[:4]
	ops := make([]cloud.Operation, 2*len(victims))
	errs := make([]error, len(ops))
	var all sync.WaitGroup
	for i := range ops { // each instance is requested twice
		all.Go(func() { ops[i], errs[i] = deleteWithRetry(t, p, victims[i%len(victims)]) })
	}
	all.Wait()
	for i, op := range ops {
		if cloud.IsNotFound(errs[i]) {
			continue // another request was faster
		}
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if status := awaitOperationDone(t, p, op); status.Err != nil {
			t.Errorf("a deletion failed with %v", status.Err)
		}
	}
	assertRemainingInstances(t, c, before, size, victims...)
}

// deleteWithRetry retries a deletion while the cloud throttles it.
func deleteWithRetry(t *testing.T, p cloud.Provider, machine string) (cloud.Operation, error) {
	for {
		op, err := p.Delete(t.Context(), machine)
		if !cloud.IsThrottled(err) || t.Context().Err() != nil {
			return op, err
		}
		select {
		case <-time.After(pollInterval):
		case <-t.Context().Done():
		}
	}
}

func testDeletionBatching(t *testing.T, c Cloud) {
	var p cloud.Provider
	if batching, ok := c.(BatchingCloud); ok {
		p = batching.BatchingProvider(t)
	}
	if p == nil {
		t.Skip("the provider does not combine deletions")
	}
	victims, asked := c.ProviderIDs()[:4], c.DeletionRequests()
	errs := make([]error, len(victims))
	var all sync.WaitGroup
	for i, v := range victims {
		all.Go(func() { _, errs[i] = p.Delete(t.Context(), v) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := c.DeletionRequests() - asked; n != 1 {
		t.Errorf("%d deletions took %d requests, want 1", len(victims), n)
	}
}

func testFailedDelete(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, DeletionFails)
	p := c.Provider(t)
	before, size := c.ProviderIDs(), c.GroupSize()
	victim := before[2]
	c.InjectFault(t, Fault{FaultKind: DeletionFails, ProviderID: victim})
	status := awaitOperationDone(t, p, startDeletion(t, p, victim))
	if status.Err == nil {
		t.Fatal("the deletion failed, but its operation succeeded")
	}
	if cloud.IsNotFound(status.Err) {
		t.Errorf("I7: the error %v is NotFound", status.Err)
	}
	if i, err := p.Instance(t.Context(), victim); err != nil || i.State == cloud.Deleting {
		t.Errorf("instance %+v, %v", i, err)
	}
	c.ClearFaults(t)
	deleteAndAwait(t, p, c, victim)
	assertRemainingInstances(t, c, before, size, victim)
}

func testOneOfSeveralFails(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, DeletionFails)
	p := c.Provider(t)
	victims := c.ProviderIDs()[:3]
	c.InjectFault(t, Fault{FaultKind: DeletionFails, ProviderID: victims[1]})
	statuses := make([]cloud.OperationStatus, len(victims))
	ops := make([]cloud.Operation, len(victims))
	errs := make([]error, len(victims))
	var all sync.WaitGroup
	for i, v := range victims {
		all.Go(func() { ops[i], errs[i] = deleteWithRetry(t, p, v) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, op := range ops {
		statuses[i] = awaitOperationDone(t, p, op)
	}
	if statuses[0].Err != nil || statuses[1].Err == nil || statuses[2].Err != nil {
		t.Errorf("the deletions ended with %v, %v and %v; want only the second one to fail",
			statuses[0].Err, statuses[1].Err, statuses[2].Err)
	}
	now := c.ProviderIDs()
	for i, v := range victims {
		if slices.Contains(now, v) != (i == 1) {
			t.Errorf("instance %d exists: %v", i, i != 1)
		}
	}
}

func testHangingDelete(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, DeletionHangs)
	p := c.Provider(t)
	victim := c.ProviderIDs()[0]
	c.InjectFault(t, Fault{FaultKind: DeletionHangs, ProviderID: victim})
	op := startDeletion(t, p, victim)
	for range 5 {
		status, err := p.Status(t.Context(), op)
		if err != nil || status.Done {
			t.Fatalf("deletion hangs, but status %+v, %v", status, err)
		}
		sleepOrFail(t, pollInterval)
	}
	c.ClearFaults(t)
	if status := awaitOperationDone(t, p, op); status.Err != nil {
		t.Errorf("the deletion failed with %v", status.Err)
	}
	c.AwaitGone(t, victim)
}

func testFollowDeletionFromOtherProvider(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, DeletionHangs)
	victim := c.ProviderIDs()[0]
	c.InjectFault(t, Fault{FaultKind: DeletionHangs, ProviderID: victim})
	written, err := json.Marshal(startDeletion(t, c.Provider(t), victim))
	if err != nil {
		t.Fatal(err)
	}
	var op cloud.Operation
	if err := json.Unmarshal(written, &op); err != nil {
		t.Fatal(err)
	}
	successor := c.Provider(t)
	if status, err := successor.Status(t.Context(), op); err != nil || status.Done {
		t.Errorf("status from another provider %+v, %v; want it in progress", status, err)
	}
	c.ClearFaults(t)
	if status := awaitOperationDone(t, successor, op); status.Err != nil {
		t.Errorf("the deletion failed with %v", status.Err)
	}
	c.AwaitGone(t, victim)
}

func testForgottenOperation(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, ForgetsOperations)
	p := c.Provider(t)
	victim := c.ProviderIDs()[0]
	c.InjectFault(t, Fault{FaultKind: DeletionHangs, ProviderID: victim})
	op := startDeletion(t, p, victim)
	c.InjectFault(t, Fault{FaultKind: ForgetsOperations})
	if status, err := p.Status(t.Context(), op); err != nil || !status.Done || status.Err != nil {
		t.Errorf("status %+v, %v; want done without an error", status, err)
	}
	c.ClearFaults(t)
	c.AwaitGone(t, victim)
}

func testUnknownOperation(t *testing.T, c Cloud) {
	p := c.Provider(t)
	for _, id := range []string{"x", "{}", "https://example.com/operations/1", `{"url":"https://example.com/"}`} {
		if status, err := p.Status(t.Context(), cloud.Operation{ID: id}); err == nil {
			t.Errorf("status of operation %q: %+v, want an error", id, status)
		}
	}
	if status, err := p.Status(t.Context(), cloud.Operation{}); err != nil || !status.Done || status.Err != nil {
		t.Errorf("empty operation: %+v, %v; want done", status, err)
	}
}

func testCancelledCaller(t *testing.T, c Cloud) {
	p := c.Provider(t)
	before, size := c.ProviderIDs(), c.GroupSize()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Delete(ctx, before[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("Delete: %v, want %v", err, context.Canceled)
	}
	if _, err := p.Instance(ctx, before[0]); err == nil || cloud.IsNotFound(err) {
		t.Errorf("I7: Instance: %v", err)
	}
	assertRemainingInstances(t, c, before, size)
}

func testGrow(t *testing.T, c Cloud) {
	p := c.Provider(t)
	before, size := c.ProviderIDs(), c.GroupSize()
	op, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	if g, err := p.Group(t.Context(), c.Group()); err != nil || g.Size != size+2 {
		t.Errorf("group %+v, %v; want size %d", g, err, size+2)
	}
	if status := awaitOperationDone(t, p, op); status.Err != nil {
		t.Errorf("the launch failed with %v", status.Err)
	}
	running := 0
	for id, i := range listInstancesByID(t, p, c) {
		if !slices.ContainsFunc(before, func(b string) bool { return normalizeID(t, p, b) == id }) && i.State == cloud.Running {
			running++
		}
	}
	if running != 2 {
		t.Errorf("%d new instances run, want 2", running)
	}
	for _, order := range []cloud.LaunchRequest{{}, {Count: -1}, {Count: 1, Template: "no-such-template"}} {
		if _, err := p.Grow(t.Context(), c.Group(), order); cloud.RefusalOf(err) != cloud.Invalid {
			t.Errorf("Grow with %+v: %v, want the refusal %s", order, err, cloud.Invalid)
		}
	}
}

// testGrowByTemplate launches an instance of each template.
func testGrowByTemplate(t *testing.T, c Cloud) {
	p := c.Provider(t)
	templates, err := p.Templates(t.Context(), c.Group())
	if err != nil || len(templates) == 0 {
		t.Fatalf("templates: %+v, %v", templates, err)
	}
	for _, template := range templates {
		before := listInstancesByID(t, p, c)
		op, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1, Template: template.Name})
		if err != nil {
			t.Fatalf("%s: %v", template.Name, err)
		}
		if status := awaitOperationDone(t, p, op); status.Err != nil {
			t.Errorf("%s: the launch failed with %v", template.Name, status.Err)
		}
		for id, i := range listInstancesByID(t, p, c) {
			if _, known := before[id]; !known && i.Type != template.Name {
				t.Errorf("new instance of type %q, want %q", i.Type, template.Name)
			}
		}
	}
}

func testConcurrentGrow(t *testing.T, c Cloud) {
	size := c.GroupSize()
	taken := 0
	var all sync.WaitGroup
	var mu sync.Mutex
	for range 2 {
		p := c.Provider(t)
		for range 2 {
			all.Go(func() {
				_, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					taken++
				case !cloud.IsThrottled(err): // a cloud may allow one operation at a time
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if c.GroupSize() != size+taken || taken == 0 {
		t.Errorf("%d requests for one instance were accepted, but the size changed from %d to %d", taken, size, c.GroupSize())
	}
}

func testQuotaExhausted(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, QuotaExhausted)
	p := c.Provider(t)
	size := c.GroupSize()
	c.InjectFault(t, Fault{FaultKind: QuotaExhausted})
	if _, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.NoQuota {
		t.Errorf("Grow: %v, want the refusal %s", err, cloud.NoQuota)
	}
	if c.GroupSize() != size {
		t.Errorf("the size changed from %d to %d", size, c.GroupSize())
	}
}
