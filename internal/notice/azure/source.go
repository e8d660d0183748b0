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
	// DefaultInterval is the polling interval that Microsoft recommends; a Spot notice may be of 30 s or less.
	DefaultInterval = time.Second
	// maxRetryAfter limits how long the service can make us look away, for the same reason.
	maxRetryAfter = 5 * time.Second
	// askedEvery is the least time between two polls of which the later was asked for.
	askedEvery = time.Second
	// repeatLog is how often a failure that goes on is logged.
	repeatLog = time.Minute
)

// Fetcher reads the current document. [Client] is the one that asks the service.
type Fetcher interface {
	Fetch(ctx context.Context) (Document, error)
}

// Observer is told of every poll, for metrics. Its methods are called from Run's goroutine and must not block.
type Observer interface {
	// FetchOK follows a document that was read and understood, changed or not; took is the request's duration.
	FetchOK(took time.Duration)
	// FetchFailed follows a poll that told us nothing; class is one of [Classes].
	FetchFailed(err error, class Class)
}

// Source watches the notices of one machine.
type Source struct {
	fetcher  Fetcher
	resource string
	interval time.Duration
	observer Observer
	log      *slog.Logger
	ahead    func() time.Duration

	asked    chan struct{}
	lastRead atomic.Int64 // UnixNano; 0 before the first
}

// SourceOptions configure a [Source]. Fetcher and Resource are required.
type SourceOptions struct {
	Fetcher Fetcher
	// Resource is the machine's name in the service's terms; see [ResourceName].
	Resource string
	// Interval is the time from the start of one poll to the start of the next; 0 is DefaultInterval.
	Interval time.Duration
	// ClockAhead is how far this machine's clock is ahead of the service's; nil is not at all. See [Client.ClockAhead].
	ClockAhead func() time.Duration
	Observer   Observer     // may be nil
	Log        *slog.Logger // may be nil
}

// NewSource checks the options; its errors name the option, its value and what is allowed.
func NewSource(o SourceOptions) (*Source, error) {
	switch {
	case o.Fetcher == nil:
		return nil, errors.New("fetcher is missing")
	case o.Resource == "":
		return nil, errors.New("resource name is empty; want the machine's name as Scheduled Events spell it")
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
		o.Observer = nobody{}
	}
	if o.ClockAhead == nil {
		o.ClockAhead = func() time.Duration { return 0 }
	}
	return &Source{
		fetcher: o.Fetcher, resource: o.Resource, interval: o.Interval, observer: o.Observer, log: o.Log,
		ahead: o.ClockAhead, asked: make(chan struct{}, 1),
	}, nil
}

// Name is the name of the source in its notices.
func (s *Source) Name() string { return Name }

// Resource is the name of the machine that is watched.
func (s *Source) Resource() string { return s.resource }

// LastRead is when a document was last read and understood, changed or not; the zero time before the first. It may be
// called at any time, from any goroutine.
func (s *Source) LastRead() time.Time {
	if nanos := s.lastRead.Load(); nanos != 0 {
		return time.Unix(0, nanos)
	}
	return time.Time{}
}

// Ask has the service polled at once, ahead of the schedule: somebody has heard elsewhere that there may be news. Polls
// that are asked for are a second apart at least, and none is made while the service has asked to be left alone. It may
// be called from any goroutine, and does not block.
func (s *Source) Ask() {
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

// Run polls until the context ends.
//
// It hands a snapshot to emit when the first document has been read, and then whenever the document or the difference of
// the clocks has changed: as long as the document is the same byte for byte, nothing is parsed, emitted or allocated for it, and only [Source.LastRead]
// and the observer tell that it was read. A failure emits nothing, so that the last snapshot stands until a good one
// follows. emit is called from Run's goroutine: while it blocks, nothing is polled.
//
// Polls keep to a fixed schedule from start to start. Those that a slow answer overran are left out, not made up for.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	poll := poll{source: s, emit: emit}
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	var earliest time.Time // for a poll that is asked for
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.asked:
			timer.Reset(min(time.Until(due), time.Until(earliest)))
			continue
		case <-timer.C:
		}
		earliest = time.Now().Add(askedEvery)
		wait := poll.once(ctx)
		now := time.Now()
		if until := now.Add(wait); wait > 0 && until.After(earliest) {
			earliest = until
		}
		if !due.After(now.Add(wait)) { // else it was asked for, and the schedule stands
			due = nextDue(due, now, now.Add(wait), s.interval)
		}
		timer.Reset(due.Sub(now))
	}
}

// nextDue is the first time on the schedule of the last poll that is after now and not before earliest.
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

// poll is the state of one Run.
type poll struct {
	source  *Source
	emit    func(notice.Snapshot)
	last    Document // the last that was understood
	ahead   time.Duration
	failure failure
}

// once asks once, and returns how long the service wants to be left alone.
func (p *poll) once(ctx context.Context) (wait time.Duration) {
	s := p.source
	began := time.Now()
	document, err := s.fetcher.Fetch(ctx)
	took := time.Since(began)
	ahead := s.ahead()
	changed := p.last == nil || !bytes.Equal(document, p.last) || ahead != p.ahead
	var snapshot notice.Snapshot
	if err == nil && changed {
		snapshot, err = document.Snapshot(s.resource, time.Now())
	}
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		return p.failed(err)
	}
	s.lastRead.Store(time.Now().UnixNano())
	p.failure.over(s.log)
	s.observer.FetchOK(took)
	if changed {
		for i := range snapshot.Notices {
			snapshot.Notices[i].ClockAhead = ahead
		}
		if ahead != p.ahead {
			s.log.Warn("this machine's clock differs from the metadata service's; NotBefore is corrected by it", "ahead", ahead.String())
		}
		p.last, p.ahead = document, ahead
		p.emit(snapshot)
	}
	return 0
}

func (p *poll) failed(err error) (wait time.Duration) {
	failed := &Error{Class: Unreachable, Err: err}
	errors.As(err, &failed)
	p.failure.goesOn(p.source.log, failed, err)
	p.source.observer.FetchFailed(err, failed.Class)
	if failed.Status == http.StatusTooManyRequests || failed.Status == http.StatusServiceUnavailable {
		return min(failed.RetryAfter, maxRetryAfter)
	}
	return 0
}

// failure logs trouble with the service when it begins, when it changes its kind, each minute that it lasts, and when
// it is over. Two errors are of one kind when class and status agree: their texts differ at each poll, by port numbers
// and the like.
type failure struct {
	class  Class // empty while all is well
	status int
	since  time.Time
	logged time.Time
	polls  int
}

func (f *failure) goesOn(log *slog.Logger, failed *Error, err error) {
	now := time.Now()
	if f.class == "" {
		f.since = now
	}
	f.polls++
	if f.class == failed.Class && f.status == failed.Status && now.Sub(f.logged) < repeatLog {
		return
	}
	f.class, f.status, f.logged = failed.Class, failed.Status, now
	log.Warn("cannot read notices; what was read last stands", "source", Name, "error", err, "class", failed.Class,
		"failedPolls", f.polls, "since", f.since)
}

func (f *failure) over(log *slog.Logger) {
	if f.class == "" {
		return
	}
	log.Info("notices can be read again", "source", Name, "failedPolls", f.polls,
		"after", time.Since(f.since).Round(time.Millisecond))
	*f = failure{}
}

// nobody observes nothing.
type nobody struct{}

func (nobody) FetchOK(time.Duration)    {}
func (nobody) FetchFailed(error, Class) {}
