package azure

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// scriptedFetcher returns the listed responses, and then the last one forever.
type scriptedFetcher struct {
	began     time.Time
	answers   []response
	fetchedAt []time.Duration // since began
}

type response struct {
	takes    time.Duration
	document Document
	err      error
}

func (s *scriptedFetcher) Fetch(ctx context.Context) (Document, error) {
	s.fetchedAt = append(s.fetchedAt, time.Since(s.began))
	a := s.answers[min(len(s.fetchedAt), len(s.answers))-1]
	select {
	case <-time.After(a.takes):
		return bytes.Clone(a.document), a.err
	case <-ctx.Done():
		return nil, &poll.Error{Class: poll.Canceled, Err: ctx.Err()}
	}
}

// countingObserver stores the results of the polls.
type countingObserver struct {
	ok     int
	failed []poll.Class
}

func (c *countingObserver) FetchSucceeded(string, time.Duration) { c.ok++ }
func (c *countingObserver) FetchFailed(_ string, _ error, class poll.Class) {
	c.failed = append(c.failed, class)
}

// pollResult is what a source did in some time of a synctest bubble.
type pollResult struct {
	source    *Source
	counts    countingObserver
	snapshots []notice.Snapshot
	log       bytes.Buffer
}

func runSource(t *testing.T, s *scriptedFetcher, lasts time.Duration) *pollResult {
	t.Helper()
	w := &pollResult{}
	var err error
	w.source, err = NewSource(SourceOptions{
		Fetcher: s, Resource: "vm_1", Observer: &w.counts, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	s.began = time.Now()
	w.source.Run(ctx, func(snapshot notice.Snapshot) { w.snapshots = append(w.snapshots, snapshot) })
	return w
}

func toSeconds(at ...float64) []time.Duration {
	out := make([]time.Duration, len(at))
	for i, s := range at {
		out[i] = time.Duration(s * float64(time.Second))
	}
	return out
}

func TestPollsKeepTheirScheduleFromStartToStart(t *testing.T) {
	good := sample(t, "preempt.json")
	for _, tc := range []struct {
		name    string
		answers []response
		asked   []time.Duration
	}{
		{"quick responses", []response{{document: good}}, toSeconds(0, 1, 2, 3, 4)},
		{"answers of 300 ms", []response{{takes: 300 * time.Millisecond, document: good}}, toSeconds(0, 1, 2, 3, 4)},
		{
			"one of 2.5 s makes no burst",
			[]response{{takes: 2500 * time.Millisecond, document: good}, {document: good}},
			toSeconds(0, 3, 4),
		},
		{"one of exactly 1 s", []response{{takes: time.Second, document: good}, {document: good}}, toSeconds(0, 2, 3, 4)},
		{"failures", []response{{err: &poll.Error{Class: poll.Unreachable, Err: errors.New("refused")}}}, toSeconds(0, 1, 2, 3, 4)},
		{"429 that asks for 2 s", []response{
			{err: &poll.Error{Class: poll.HTTPStatus, Status: 429, RetryAfter: 2 * time.Second, Err: errors.New("429")}},
			{document: good},
		}, toSeconds(0, 2, 3, 4)},
		{"503 that asks for 1.2 s", []response{
			{err: &poll.Error{Class: poll.HTTPStatus, Status: 503, RetryAfter: 1200 * time.Millisecond, Err: errors.New("503")}},
			{document: good},
		}, toSeconds(0, 2, 3, 4)},
		{"500 may not ask for a pause", []response{
			{err: &poll.Error{Class: poll.HTTPStatus, Status: 500, RetryAfter: 3 * time.Second, Err: errors.New("500")}},
			{document: good},
		}, toSeconds(0, 1, 2, 3, 4)},
	} {
		t.Run(tc.name, virtual.InVirtualTime(func(t *testing.T) {
			s := &scriptedFetcher{answers: tc.answers}
			runSource(t, s, 4500*time.Millisecond)
			check.Equal(t, tc.asked, s.fetchedAt)
		}))
	}
}

func TestServiceCannotDelayPollsPastASpotNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := &poll.Error{Class: poll.HTTPStatus, Status: 429, RetryAfter: time.Hour, Err: errors.New("429")}
		s := &scriptedFetcher{answers: []response{{err: busy}}}
		runSource(t, s, 11*time.Second)
		check.Equal(t, toSeconds(0, 5, 10), s.fetchedAt)
	})
}

func TestOnlyChangedDocumentsAreEmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		empty, preempt := sample(t, "empty.json"), preemptOf(nil)
		s := &scriptedFetcher{answers: []response{
			{document: empty}, {document: empty}, {document: preempt}, {document: preempt}, {document: empty},
		}}
		w := runSource(t, s, 6500*time.Millisecond)
		var got []int
		for _, snapshot := range w.snapshots {
			got = append(got, len(snapshot.Notices))
		}
		if want := []int{0, 1, 0}; !slices.Equal(got, want) {
			t.Errorf("snapshots of %v notices, want %v", got, want)
		}
		if got, want := w.snapshots[1].At.Sub(s.began), 2*time.Second; got != want {
			t.Errorf("the Preempt was emitted as of %v, want %v", got, want)
		}
		if w.counts.ok != 7 || len(w.counts.failed) != 0 {
			t.Errorf("observed %+v, want 7 successful polls", w.counts)
		}
		if got, want := w.source.LastRead().Sub(s.began), 6*time.Second; got != want {
			t.Errorf("last read at %v, want %v", got, want)
		}
	})
}

func TestI7FailedReadKeepsTheLastSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		preempt := preemptOf(nil)
		s := &scriptedFetcher{answers: []response{
			{document: preempt},
			{document: Document("<html>")},
			{document: Document(`{"error":"x"}`)},
			{document: preempt[:len(preempt)/2]},
			{err: &poll.Error{Class: poll.Timeout, Err: errors.New("timeout")}},
			{err: errors.New("of no class")},
			{document: preempt},
		}}
		w := runSource(t, s, 6500*time.Millisecond)
		if len(w.snapshots) != 1 {
			t.Errorf("%d snapshots, want only the first", len(w.snapshots))
		}
		want := []poll.Class{poll.NotJSON, poll.WrongShape, poll.NotJSON, poll.Timeout, poll.Unreachable}
		if diff := cmp.Diff(want, w.counts.failed); diff != "" || w.counts.ok != 2 {
			t.Errorf("failures (-want +got):\n%s and %d successful polls", diff, w.counts.ok)
		}
	})
}

func TestLastReadIsZeroUntilTheFirstDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runSource(t, &scriptedFetcher{answers: []response{{document: Document("<html>")}}}, 1500*time.Millisecond)
		if at := w.source.LastRead(); !at.IsZero() {
			t.Errorf("last read %v", at)
		}
	})
}

func TestFailureIsLoggedOnChangeAndEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := func(n int, class poll.Class) []response {
			var out []response
			for i := range n {
				err := &poll.Error{Class: class, Err: errors.New("port " + string(rune('a'+i%26)))}
				out = append(out, response{err: err})
			}
			return out
		}
		answers := slices.Concat(failing(130, poll.Unreachable), failing(5, poll.Timeout), []response{{document: sample(t, "empty.json")}})
		w := runSource(t, &scriptedFetcher{answers: answers}, 200*time.Second)
		lines := strings.Split(strings.TrimSpace(w.log.String()), "\n")
		if len(lines) != 5 {
			t.Fatalf("%d lines, want 5: at 0 s, 60 s, 120 s, the change, the end:\n%s", len(lines), w.log.String())
		}
		for i, part := range []string{
			"class=unreachable failedPolls=1 ", "failedPolls=61 ", "failedPolls=121 ", "class=timeout failedPolls=131 ",
			"notices are readable again",
		} {
			if !strings.Contains(lines[i], part) {
				t.Errorf("line %d is %q, want it to contain %q", i, lines[i], part)
			}
		}
		check.Contains(t, lines[4], "failedPolls=135 after=2m15s")
	})
}

func TestContextEndDuringAPollIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runSource(t, &scriptedFetcher{answers: []response{{takes: time.Hour}}}, time.Second)
		if len(w.counts.failed) != 0 || len(w.snapshots) != 0 || w.log.Len() != 0 {
			t.Errorf("observed %+v, %d snapshots, log %q", w.counts, len(w.snapshots), w.log.String())
		}
	})
}

func TestI10BadSourceOptionsAreNamedWithTheirValue(t *testing.T) {
	s := &scriptedFetcher{}
	for says, options := range map[string]SourceOptions{
		"fetcher: is missing":     {Resource: "vm_1"},
		"resource name: is empty": {Fetcher: s},
		"poll interval: -1s":      {Fetcher: s, Resource: "vm_1", Interval: -time.Second},
	} {
		check.ErrorContains(t, check.Err(NewSource(options)), says)
	}
}

func TestClockChangeEmitsASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		s := &scriptedFetcher{began: time.Now(), answers: []response{{document: preemptOf(nil)}}}
		source, err := NewSource(SourceOptions{Fetcher: s, Resource: "vm_1", ClockAhead: func() time.Duration { return time.Duration(ahead.Load()) }})
		must.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(4500*time.Millisecond, func() { ahead.Store(int64(-time.Hour)) })
		var told []time.Duration
		source.Run(ctx, func(snapshot notice.Snapshot) { told = append(told, snapshot.Notices[0].ClockAhead) })
		if want := []time.Duration{0, -time.Hour}; !slices.Equal(told, want) {
			t.Errorf("emitted clocks %v ahead, want %v", told, want)
		}
	})
}

type fixedFetcher struct{ document Document }

func (s fixedFetcher) Fetch(context.Context) (Document, error) { return s.document, nil }

func TestUnchangedDocumentAllocatesNothing(t *testing.T) {
	source, err := NewSource(SourceOptions{Fetcher: fixedFetcher{sample(t, "scale-set.json")}, Resource: "vm_1"})
	must.NoError(t, err)
	read := func() {
		if _, _, err := source.read(t.Context()); err != nil {
			t.Error(err)
		}
	}
	read()
	check.Is(t, 0, testing.AllocsPerRun(100, read))
}

func TestRequestedPollsRunAtMostOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := sample(t, "empty.json")
		s := &scriptedFetcher{began: time.Now(), answers: []response{
			{document: good},
			{document: good},
			{document: good},
			{err: &poll.Error{Class: poll.HTTPStatus, Status: 503, RetryAfter: 4 * time.Second, Err: errors.New("503")}},
			{document: good},
		}}
		source, err := NewSource(SourceOptions{Fetcher: s, Resource: "vm_1", Interval: time.Minute})
		must.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		go func() {
			for _, at := range toSeconds(20, 20.5, 40, 41) { // the last one while the service demands a pause
				time.Sleep(time.Until(s.began.Add(at)))
				source.RequestPoll()
				source.RequestPoll()
			}
		}()
		source.Run(ctx, func(notice.Snapshot) {})
		want := toSeconds(0, 20, 21, 40, 44, 60)
		check.Equal(t, want, s.fetchedAt)
	})
}
