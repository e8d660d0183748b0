package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// slowStatus returns a numbered status or an error after 300 ms.
type slowStatus struct {
	questions int
	err       error
}

func (s *slowStatus) ask(ctx context.Context, _ string) (cloud.OperationStatus, bool, error) {
	s.questions++
	answer := cloud.OperationStatus{RetryAfter: time.Duration(s.questions)}
	select {
	case <-time.After(300 * time.Millisecond):
		return answer, false, s.err
	case <-ctx.Done():
		return cloud.OperationStatus{}, false, context.Cause(ctx)
	}
}

// readConcurrently reads a status with ten concurrent callers and returns how many got an error.
func readConcurrently(ctx context.Context, reads *statusCache, s *slowStatus) (failed int) {
	var group sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		group.Go(func() { _, _, errs[i] = reads.get(ctx, "operation", s.ask) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	return failed
}

func TestConcurrentReadsOfAnOperationShareAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStatus{}
		reads := &statusCache{maxAge: maxStatusAge}
		want := func(questions int) {
			t.Helper()
			if s.questions != questions {
				t.Fatalf("%d requests, want %d", s.questions, questions)
			}
		}
		if failed := readConcurrently(t.Context(), reads, s); failed > 0 {
			t.Fatalf("%d of the callers failed", failed)
		}
		want(1)
		time.Sleep(maxStatusAge / 2)
		if got, _, err := reads.get(t.Context(), "operation", s.ask); err != nil || got.RetryAfter != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		want(1)
		if _, _, err := reads.get(t.Context(), "another operation", s.ask); err != nil {
			t.Fatal(err)
		}
		want(2)
		time.Sleep(maxStatusAge / 2)
		if got, _, err := reads.get(t.Context(), "operation", s.ask); err != nil || got.RetryAfter != 3 {
			t.Fatalf("%v, %v: want a new response after %s", got, err, maxStatusAge)
		}

		s.err = errors.New("unavailable")
		time.Sleep(maxStatusAge)
		if failed := readConcurrently(t.Context(), reads, s); failed != 10 {
			t.Fatalf("%d of 10 callers failed, want all that waited for the failed read", failed)
		}
		want(4)
		s.err = nil
		if failed := readConcurrently(t.Context(), reads, s); failed > 0 {
			t.Fatalf("%d callers got an error of an earlier read", failed)
		}
		want(5)
	})
}

func TestCancelledCallerFailsNoOtherRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStatus{}
		reads := &statusCache{maxAge: maxStatusAge}
		leaves, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var group sync.WaitGroup
		group.Go(func() {
			if _, _, err := reads.get(leaves, "operation", s.ask); err == nil {
				t.Error("the cancelled caller got a result")
			}
		})
		synctest.Wait()
		group.Go(func() {
			if _, _, err := reads.get(leaves, "operation", s.ask); err == nil {
				t.Error("a waiting caller got a result after its deadline")
			}
		})
		if failed := readConcurrently(t.Context(), reads, s); failed > 0 {
			t.Errorf("%d callers got the error of a cancelled one", failed)
		}
		group.Wait()
		check.Is(t, 2, s.questions)

		time.Sleep(statusEntryTTL)
		if reads.getOrCreateEntry("another operation", time.Now()); len(reads.byURL) != 1 {
			t.Errorf("%d cached URLs, want 1", len(reads.byURL))
		}
	})
}

func TestInstancesOfOneDeletionShareItsStatus(t *testing.T) {
	questions := 0
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/operation" {
			questions++
			fmt.Fprint(w, `{"status":"Succeeded"}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"ResourceNotFound","message":"gone"}}`)
	})
	p.statuses.maxAge = maxStatusAge
	for i := range 3 {
		id := fmt.Sprintf("azure:///subscriptions/%s/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/%d",
			subscriptionID, i)
		op := operation{URL: "https://" + p.clients.armHost + "/operation", Machine: id}.toCloudOperation(time.Now())
		if status, err := p.Status(t.Context(), op); err != nil || !status.Done || status.Err != nil {
			t.Fatalf("%+v, %v", status, err)
		}
	}
	if questions != 1 {
		t.Errorf("the operation was read %d times, want once", questions)
	}
}
