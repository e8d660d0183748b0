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

// slowStatus answers each question after 300 ms with a number of its own, or with an error.
type slowStatus struct {
	questions int
	err       error
}

func (s *slowStatus) ask(ctx context.Context, _ string) (cloud.Status, bool, error) {
	s.questions++
	answer := cloud.Status{After: time.Duration(s.questions)}
	select {
	case <-time.After(300 * time.Millisecond):
		return answer, false, s.err
	case <-ctx.Done():
		return cloud.Status{}, false, context.Cause(ctx)
	}
}

// together has ten callers read an address at once, and returns how many of them got an error.
func together(ctx context.Context, reads *statusReads, s *slowStatus) (failed int) {
	var group sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		group.Go(func() { _, _, errs[i] = reads.read(ctx, "operation", s.ask) })
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
		reads := &statusReads{holds: maxStatusHolds}
		want := func(questions int) {
			t.Helper()
			if s.questions != questions {
				t.Fatalf("%d questions, want %d", s.questions, questions)
			}
		}
		if failed := together(t.Context(), reads, s); failed > 0 {
			t.Fatalf("%d of the callers failed", failed)
		}
		want(1)
		time.Sleep(maxStatusHolds / 2)
		if got, _, err := reads.read(t.Context(), "operation", s.ask); err != nil || got.After != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		want(1)
		if _, _, err := reads.read(t.Context(), "another operation", s.ask); err != nil {
			t.Fatal(err)
		}
		want(2)
		time.Sleep(maxStatusHolds / 2)
		if got, _, err := reads.read(t.Context(), "operation", s.ask); err != nil || got.After != 3 {
			t.Fatalf("%v, %v: want a new answer after %s", got, err, maxStatusHolds)
		}

		s.err = errors.New("unavailable")
		time.Sleep(maxStatusHolds)
		if failed := together(t.Context(), reads, s); failed != 10 {
			t.Fatalf("%d of 10 callers failed, want all that waited for the failed read", failed)
		}
		want(4)
		s.err = nil
		if failed := together(t.Context(), reads, s); failed > 0 {
			t.Fatalf("%d callers got an error of an earlier read", failed)
		}
		want(5)
	})
}

func TestACallerThatLeavesFailsNoOtherRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStatus{}
		reads := &statusReads{holds: maxStatusHolds}
		leaves, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var group sync.WaitGroup
		group.Go(func() {
			if _, _, err := reads.read(leaves, "operation", s.ask); err == nil {
				t.Error("the caller that left got an answer")
			}
		})
		synctest.Wait()
		group.Go(func() {
			if _, _, err := reads.read(leaves, "operation", s.ask); err == nil {
				t.Error("a caller that waited for another got an answer after its time")
			}
		})
		if failed := together(t.Context(), reads, s); failed > 0 {
			t.Errorf("%d callers got the error of one that left", failed)
		}
		group.Wait()
		check.Is(t, 2, s.questions)

		time.Sleep(statusKept)
		if reads.of("another operation", time.Now()); len(reads.byAddress) != 1 {
			t.Errorf("%d addresses are remembered, want 1", len(reads.byAddress))
		}
	})
}

func TestInstancesOfOneDeletionShareItsStatus(t *testing.T) {
	questions := 0
	p := talkingTo(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/operation" {
			questions++
			fmt.Fprint(w, `{"status":"Succeeded"}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"ResourceNotFound","message":"gone"}}`)
	})
	p.statuses.holds = maxStatusHolds
	for i := range 3 {
		id := fmt.Sprintf("azure:///subscriptions/%s/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/%d",
			subscription, i)
		op := operation{URL: "https://" + p.clients.armHost + "/operation", Machine: id}.encode(time.Now())
		if status, err := p.Status(t.Context(), op); err != nil || !status.Done || status.Err != nil {
			t.Fatalf("%+v, %v", status, err)
		}
	}
	if questions != 1 {
		t.Errorf("the operation was read %d times, want once", questions)
	}
}
