package poll

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

func TestBackoffDoublesUpToItsLimitAndResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		s, err := NewSource(Options{Interval: time.Second, MaxBackoff: 5 * time.Second, Read: func(context.Context) (notice.Snapshot, bool, error) {
			at = append(at, time.Since(began))
			if len(at) == 6 { // one success between the failures
				return notice.Snapshot{}, true, nil
			}
			return notice.Snapshot{}, false, errors.New("refused")
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 25500*time.Millisecond)
		defer cancel()
		s.Run(ctx, func(notice.Snapshot) {})
		var seconds []int
		for _, d := range at {
			seconds = append(seconds, int(d/time.Second))
		}
		if want := []int{0, 1, 3, 7, 12, 17, 18, 19, 21, 25}; !slices.Equal(seconds, want) {
			t.Errorf("polls at %v s, want %v", seconds, want)
		}
	})
}

func TestUnchangedPollAllocatesNothing(t *testing.T) {
	first := true
	s, err := NewSource(Options{Interval: time.Second, Read: func(context.Context) (notice.Snapshot, bool, error) {
		changed := first
		first = false
		return notice.Snapshot{}, changed, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := poller{source: s, emit: func(notice.Snapshot) {}}
	p.pollOnce(t.Context())
	if n := testing.AllocsPerRun(100, func() { p.pollOnce(t.Context()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
