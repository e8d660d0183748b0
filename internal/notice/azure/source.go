package azure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

const (
	// DefaultInterval is the polling interval that Microsoft recommends. A Spot notice may give 30 s or less.
	DefaultInterval = time.Second
	// maxRetryAfter limits how long the service can delay polls, for the same reason.
	maxRetryAfter = 5 * time.Second
	// minRequestedInterval is the least time before a poll that Ask requested.
	minRequestedInterval = time.Second
	// repeatLogInterval is how often a lasting failure is logged.
	repeatLogInterval = time.Minute
)

// Fetcher reads the current document. [Client] implements it.
type Fetcher interface {
	Fetch(ctx context.Context) (Document, error)
}

// Observer receives the result of every poll, for metrics. Run calls its methods from its goroutine, so they must not
// block.
type Observer interface {
	// FetchSucceeded reports a poll that was read successfully, changed or not; took is the duration of the request.
	FetchSucceeded(took time.Duration)
	// FetchFailed reports a failed poll; class is one of [Classes].
	FetchFailed(err error, class Class)
}

// Source polls the notices of one instance.
type Source struct {
	fetcher    Fetcher
	resource   string
	interval   time.Duration
	observer   Observer
	log        *slog.Logger
	clockAhead func() time.Duration

	requested chan struct{}
	lastRead  atomic.Int64 // UnixNano; 0 before the first read
}

// SourceOptions configures a [Source]. Fetcher and Resource are required.
type SourceOptions struct {
	Fetcher Fetcher
	// Resource is the instance's name in the service's terms; see [ResourceName].
	Resource string
	// Interval is the time from the start of one poll to the start of the next; 0 is DefaultInterval.
	Interval time.Duration
	// ClockAhead returns how far the instance's clock is ahead of the service's; nil is 0. See [Client.ClockAhead].
	ClockAhead func() time.Duration
	Observer   Observer     // may be nil
	Log        *slog.Logger // may be nil
}

// NewSource checks the options. Its errors name the option, its value and what is allowed.
func NewSource(o SourceOptions) (*Source, error) {
	switch {
	case o.Fetcher == nil:
		return nil, errors.New("fetcher: is missing")
	case o.Resource == "":
		return nil, errors.New("resource name: is empty, want the instance's name as in Scheduled Events")
	case o.Interval < 0:
		return nil, fmt.Errorf("poll interval: %s: want more than 0", o.Interval)
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
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
	return &Source{
		fetcher: o.Fetcher, resource: o.Resource, interval: o.Interval, observer: o.Observer, log: o.Log,
		clockAhead: o.ClockAhead, requested: make(chan struct{}, 1),
	}, nil
}

// Name returns the Source field of the notices.
func (s *Source) Name() string { return SourceName }

// Resource returns the name of the watched instance.
func (s *Source) Resource() string { return s.resource }

// LastRead returns when a document was last read successfully, changed or not; zero before the first. It may be
// called from any goroutine.
func (s *Source) LastRead() time.Time {
	if nanos := s.lastRead.Load(); nanos != 0 {
		return time.Unix(0, nanos)
	}
	return time.Time{}
}

// RequestPoll requests a poll ahead of the schedule, because another source hints at a new event. Requested polls are at
// least a second apart, and none is made while the service demands a pause. Ask may be called from any goroutine, and
// does not block.
func (s *Source) RequestPoll() {
	select {
	case s.requested <- struct{}{}:
	default:
	}
}

// Run polls until ctx ends.
//
// It emits a snapshot for the first document, and then whenever the document or the clock difference changes. An
// unchanged document is not parsed, emits nothing and allocates nothing; only [Source.LastRead] and the observer show
// the read. A failure emits nothing, so the last snapshot stays valid. Run calls emit from its goroutine, and polls
// nothing while emit blocks.
//
// Polls have a fixed schedule, from start to start. Polls that a slow response delays are skipped.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	poll := poller{source: s, emit: emit}
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
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
			due = nextDue(due, now, now.Add(wait), s.interval)
		}
		timer.Reset(due.Sub(now))
	}
}

// nextDue returns the first time on the last poll's schedule that is after now and not before earliest.
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

// poller is the state of one Run.
type poller struct {
	source       *Source
	emit         func(notice.Snapshot)
	lastDocument Document // the last that was read successfully
	clockAhead   time.Duration
	failure      failureLog
}

// pollOnce polls once, and returns the pause that the service demands.
func (p *poller) pollOnce(ctx context.Context) (wait time.Duration) {
	s := p.source
	began := time.Now()
	document, err := s.fetcher.Fetch(ctx)
	took := time.Since(began)
	ahead := s.clockAhead()
	changed := p.lastDocument == nil || !bytes.Equal(document, p.lastDocument) || ahead != p.clockAhead
	var snapshot notice.Snapshot
	if err == nil && changed {
		snapshot, err = document.ToSnapshot(s.resource, time.Now())
	}
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		return p.reportFailedPoll(err)
	}
	s.lastRead.Store(time.Now().UnixNano())
	p.failure.logRecovery(s.log)
	s.observer.FetchSucceeded(took)
	if changed {
		for i := range snapshot.Notices {
			snapshot.Notices[i].ClockAhead = ahead
		}
		if ahead != p.clockAhead {
			s.log.Warn("this instance's clock differs from the metadata service's; NotBefore is corrected", "ahead", ahead.String())
		}
		p.lastDocument, p.clockAhead = document, ahead
		p.emit(snapshot)
	}
	return 0
}

func (p *poller) reportFailedPoll(err error) (wait time.Duration) {
	failed := &Error{Class: Unreachable, Err: err}
	errors.As(err, &failed)
	p.failure.logFailure(p.source.log, failed, err)
	p.source.observer.FetchFailed(err, failed.Class)
	if failed.Status == http.StatusTooManyRequests || failed.Status == http.StatusServiceUnavailable {
		return min(failed.RetryAfter, maxRetryAfter)
	}
	return 0
}

// failureLog logs a failure when it begins, when it changes, each minute while it lasts, and when it ends. Two
// failures are the same if class and status agree. Their texts differ at each poll, for example by port numbers.
type failureLog struct {
	class  Class // empty without a failure
	status int
	since  time.Time
	logged time.Time
	polls  int
}

func (f *failureLog) logFailure(log *slog.Logger, failed *Error, err error) {
	now := time.Now()
	if f.class == "" {
		f.since = now
	}
	f.polls++
	if f.class == failed.Class && f.status == failed.Status && now.Sub(f.logged) < repeatLogInterval {
		return
	}
	f.class, f.status, f.logged = failed.Class, failed.Status, now
	log.Warn("cannot read notices, will retry; the last read notices stay valid", "source", SourceName, "error", err, "class", failed.Class,
		"failedPolls", f.polls, "since", f.since)
}

func (f *failureLog) logRecovery(log *slog.Logger) {
	if f.class == "" {
		return
	}
	log.Info("notices are readable again", "source", SourceName, "failedPolls", f.polls,
		"after", time.Since(f.since).Round(time.Millisecond))
	*f = failureLog{}
}

type noObserver struct{}

func (noObserver) FetchSucceeded(time.Duration) {}
func (noObserver) FetchFailed(error, Class)     {}
