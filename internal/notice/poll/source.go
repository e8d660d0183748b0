// Package poll has the parts that all sources share which poll a cloud's metadata service: the schedule of polls, the
// HTTP client, the classes of failures and their log, and the difference between the clocks.
//
// The package is linked into the node agent. It uses only the standard library, to save memory.
package poll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

const (
	// DefaultMaxRetryAfter limits how long a service can delay polls. A Spot notice may give 30 s or less.
	DefaultMaxRetryAfter = 5 * time.Second
	// minRequestedInterval is the least time before a poll that RequestPoll requested.
	minRequestedInterval = time.Second
)

// Observer receives the result of every poll, for metrics. Its methods must not block, because [Source.Run] calls them
// between polls.
type Observer interface {
	// FetchSucceeded reports a poll that was read successfully, changed or not; took is the duration of the request.
	// source is [Options.Label].
	FetchSucceeded(source string, took time.Duration)
	// FetchFailed reports a failed poll; class is one of [Classes].
	FetchFailed(source string, err error, class Class)
}

// ReadFunc reads the notices once. changed is false if they are the same as at the last successful read; the snapshot
// is then empty. An error that is an [*Error] gives its class; any other counts as [Unreachable].
type ReadFunc func(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error)

// Options configures a [Source].
type Options struct {
	// Name is the value of [notice.Notice.Source] in the source's notices.
	Name string
	// Label tells this source from others with the same name, in logs and metrics; empty is Name.
	Label string
	Read  ReadFunc
	// Interval is the time from the start of one poll to the start of the next.
	Interval time.Duration
	// Delay is the time until the first poll.
	Delay time.Duration
	// MaxRetryAfter limits how long the service can delay polls; 0 is DefaultMaxRetryAfter.
	MaxRetryAfter time.Duration
	// MaxBackoff, if it is more than Interval, doubles the pause after each failed poll, up to this pause.
	MaxBackoff time.Duration
	// ClockAhead returns how far the instance's clock is ahead of the service's; nil is 0. See [Client.ClockAhead].
	ClockAhead func() time.Duration
	Observer   Observer     // may be nil
	Log        *slog.Logger // may be nil
}

// Source polls the notices of one instance.
type Source struct {
	options   Options
	requested chan struct{}
	lastRead  atomic.Int64 // UnixNano; 0 before the first read
}

// NewSource validates the options and returns a source. An error names the option, its value and what is allowed.
func NewSource(o Options) (*Source, error) {
	if o.Interval <= 0 {
		return nil, fmt.Errorf("poll interval: %s: want more than 0", o.Interval)
	}
	if o.Label == "" {
		o.Label = o.Name
	}
	if o.MaxRetryAfter == 0 {
		o.MaxRetryAfter = DefaultMaxRetryAfter
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.ClockAhead == nil {
		o.ClockAhead = func() time.Duration { return 0 }
	}
	return &Source{options: o, requested: make(chan struct{}, 1)}, nil
}

// Name returns the value of [notice.Notice.Source] in this source's notices.
func (s *Source) Name() string { return s.options.Name }

// LastRead returns when the notices were last read successfully, even if they had not changed. It returns the zero time
// before the first read. It is safe for concurrent use.
func (s *Source) LastRead() time.Time {
	if nanos := s.lastRead.Load(); nanos != 0 {
		return time.Unix(0, nanos)
	}
	return time.Time{}
}

// RequestPoll requests a poll ahead of the schedule, because another source hints at a new event. Requested polls are
// at least one second apart. RequestPoll does not block. It is safe for concurrent use.
func (s *Source) RequestPoll() {
	select {
	case s.requested <- struct{}{}:
	default:
	}
}

// Run polls until ctx ends.
//
// Run calls emit with a snapshot after the first read. It calls emit again whenever the notices or the difference
// between the clocks have changed. Only [Source.LastRead] and the observer show other reads. After a failed read Run
// does not call emit, so the last snapshot stays valid. Run waits while emit blocks.
//
// Polls have a fixed schedule, from start to start. Polls that a slow response delays are skipped.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	poll := poller{source: s, emit: emit, failure: FailureLog{Source: s.options.Label}}
	timer := time.NewTimer(s.options.Delay)
	defer timer.Stop()
	due := time.Now().Add(s.options.Delay)
	var earliest time.Time // earliest time of a requested poll
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.requested:
			timer.Reset(min(time.Until(due), time.Until(earliest)))
			continue
		case <-timer.C:
		}
		earliest = time.Now().Add(minRequestedInterval)
		wait := poll.pollOnce(ctx)
		now := time.Now()
		if until := now.Add(wait); wait > 0 && until.After(earliest) {
			earliest = until
		}
		if !due.After(now.Add(wait)) { // otherwise it was a requested poll, and the schedule stays
			due = nextDue(due, now, now.Add(wait), s.options.Interval)
		}
		timer.Reset(due.Sub(now))
	}
}

// nextDue returns the time of the next poll. It is the first time on the schedule that is after now and not before
// earliest. The schedule continues from last in steps of interval.
func nextDue(last, now, earliest time.Time, interval time.Duration) time.Time {
	next := last.Add(interval)
	if behind := earliest.Sub(next); behind > 0 {
		next = next.Add(behind)
		if over := behind % interval; over > 0 {
			next = next.Add(interval - over)
		}
	}
	if !next.After(now) {
		next = next.Add(interval)
	}
	return next
}

// poller holds the state of one call of [Source.Run].
type poller struct {
	source     *Source
	emit       func(notice.Snapshot)
	last       notice.Snapshot // the last that was read successfully
	isRead     bool            // last is set
	clockAhead time.Duration
	failure    FailureLog
	failed     int // polls that failed in a row
}

// pollOnce polls once. It returns the pause that the service demands before the next poll.
func (p *poller) pollOnce(ctx context.Context) (wait time.Duration) {
	o := &p.source.options
	began := time.Now()
	snapshot, changed, err := o.Read(ctx)
	took := time.Since(began)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		return p.reportFailedPoll(err)
	}
	p.failed = 0
	p.source.lastRead.Store(time.Now().UnixNano())
	p.failure.LogRecovery(o.Log)
	o.Observer.FetchSucceeded(o.Label, took)
	ahead := o.ClockAhead()
	switch {
	case changed:
		p.last, p.isRead = snapshot, true
	case !p.isRead || ahead == p.clockAhead:
		return 0
	default:
		p.last.At = time.Now()
	}
	if ahead != p.clockAhead {
		o.Log.Warn("this instance's clock differs from the metadata service's; NotBefore is corrected", "ahead", ahead.String())
	}
	p.clockAhead = ahead
	p.emit(withClockAhead(p.last, ahead))
	return 0
}

// withClockAhead returns a copy of the snapshot with the difference between the clocks in each notice.
func withClockAhead(s notice.Snapshot, ahead time.Duration) notice.Snapshot {
	s.Notices, s.Planned = slices.Clone(s.Notices), slices.Clone(s.Planned)
	for _, list := range [][]notice.Notice{s.Notices, s.Planned} {
		for i := range list {
			list[i].ClockAhead = ahead
		}
	}
	return s
}

// reportFailedPoll logs and counts a failed poll. It returns the pause before the next poll.
func (p *poller) reportFailedPoll(err error) (wait time.Duration) {
	o := &p.source.options
	failed := &Error{Class: Unreachable, Err: err}
	errors.As(err, &failed)
	p.failure.LogFailure(o.Log, failed, err)
	o.Observer.FetchFailed(o.Label, err, failed.Class)
	if o.MaxBackoff > o.Interval {
		wait = min(o.Interval<<min(p.failed, 16), o.MaxBackoff) - o.Interval/2 // the schedule rounds up
		p.failed++
	}
	if failed.Status == http.StatusTooManyRequests || failed.Status == http.StatusServiceUnavailable {
		wait = max(wait, min(failed.RetryAfter, o.MaxRetryAfter))
	}
	return wait
}

type noObserver struct{}

func (noObserver) FetchSucceeded(string, time.Duration) {}
func (noObserver) FetchFailed(string, error, Class)     {}
