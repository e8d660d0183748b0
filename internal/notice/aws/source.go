// Package aws reads notices from the metadata service of an EC2 instance (IMDSv2): Spot interruptions, rebalance
// recommendations, scheduled maintenance events, and the termination by an Auto Scaling group. It also completes the
// lifecycle hook of the group.
//
// Facts about the service are from the Amazon EC2 and Amazon EC2 Auto Scaling user guides. All notices are of this
// instance. Notices of Spot interruptions and recommendations are best effort.
//
// The package is linked into the node agent. It uses only the standard library, to save memory.
package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// SourceName is the value of [notice.Notice.Source] in the notices of this package.
const SourceName = "aws"

// DefaultInterval is the default of SourceOptions.Interval. A Spot notice gives two minutes.
const DefaultInterval = time.Second

const (
	// maxInterval limits the time between two polls of a path, so that metrics show a path that cannot be read.
	maxInterval = time.Minute
	// maxSpotBackoff limits the pause between polls of the Spot notice while they fail.
	maxSpotBackoff = 5 * time.Second
	// maxBackoff limits the pause between polls of the other notices while they fail. The service limits the requests of
	// each instance.
	maxBackoff = time.Minute
)

// SourceOptions configures a [Source]. Client and Instance are required.
type SourceOptions struct {
	Client *Client
	// Instance is the ID of the instance, such as i-0123456789abcdef0.
	Instance string
	// Interval is the time between two polls of the Spot notice; 0 is DefaultInterval. NewSource has the multiples of it for
	// the other notices, which are polled at least once a minute.
	Interval time.Duration
	// Leads are how long before scheduled events their notices are given to the agent.
	Leads poll.Leads
	// Hook completes the lifecycle hook of the Auto Scaling group; nil completes none.
	Hook *Hook
	// HookTimeout is how long the drain for an Auto Scaling group may take; 0 is the timeout of the hook.
	HookTimeout time.Duration
	Observer    poll.Observer // may be nil
	Log         *slog.Logger  // may be nil
}

// Source polls the notices of one instance. It polls each path of the metadata service on its own, so that a failure
// of one path does not delay the others.
type Source struct {
	options SourceOptions
	parts   []*part
	asg     *asgReader
	events  *eventReader
	hint    *rebalanceReader
	spot    *spotReader
}

// part is one path with its own schedule.
type part struct {
	*poll.Source

	read     bool
	snapshot notice.Snapshot // the last that was read
}

// reader reads the notices of one path; see [poll.ReadFunc].
type reader interface {
	read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error)
}

// NewSource validates the options and returns a source. An error names the option, its value and what is allowed.
func NewSource(o SourceOptions) (*Source, error) {
	switch {
	case o.Client == nil:
		return nil, errors.New("client: is missing")
	case o.Instance == "":
		return nil, errors.New("instance: is empty, want an ID such as i-0123456789abcdef0")
	case o.Interval < 0:
		return nil, fmt.Errorf("poll interval: %s: want more than 0", o.Interval)
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{options: o}
	base := pathReader{client: o.Client, instance: o.Instance, log: o.Log}
	s.asg = &asgReader{pathReader: base, hook: o.Hook, hookTimeout: o.HookTimeout}
	s.events = &eventReader{pathReader: base, planner: poll.NewPlanner(o.Leads)}
	s.hint, s.spot = &rebalanceReader{pathReader: base}, &spotReader{pathReader: base}
	// The paths are polled at different times, so that one connection is enough for all.
	for i, p := range []struct {
		label   string
		reader  reader
		every   time.Duration // in polls of the Spot notice
		backoff time.Duration
	}{
		{"aws-spot", s.spot, 1, maxSpotBackoff},
		{"aws-asg", s.asg, 2, maxBackoff},         // without a hook the instance may stop within seconds
		{"aws-rebalance", s.hint, 15, maxBackoff}, // has no deadline
		{"aws-events", s.events, 30, maxBackoff},  // come days ahead, and must be read before the alert after two minutes
	} {
		source, err := poll.NewSource(poll.Options{
			Name: SourceName, Label: p.label, Read: p.reader.read, Interval: min(p.every*o.Interval, max(o.Interval, maxInterval)), Delay: time.Duration(i) * o.Interval / 4, MaxBackoff: p.backoff, MaxRetryAfter: p.backoff,
			ClockAhead: o.Client.ClockAhead, Observer: o.Observer, Log: o.Log,
		})
		if err != nil {
			return nil, err
		}
		s.parts = append(s.parts, &part{Source: source})
	}
	return s, nil
}

// Name returns the value of [notice.Notice.Source] in this source's notices.
func (s *Source) Name() string { return SourceName }

// LastRead returns when the Spot notice was last read successfully; see [poll.Source.LastRead].
func (s *Source) LastRead() time.Time { return s.parts[0].LastRead() }

// RequestPoll requests a poll of every path ahead of the schedule.
func (s *Source) RequestPoll() {
	for _, p := range s.parts {
		p.RequestPoll()
	}
}

// ResumeNotices passes the notices that the previous agent process was handling. Planned events that it acted on stay
// given. A Spot interruption keeps its ID, and a recommendation keeps it for an hour.
func (s *Source) ResumeNotices(notices []notice.Notice) {
	if len(notices) == 0 {
		return
	}
	s.events.resume(notices)
	s.hint.resume(notice.Rebalance, notices)
	s.spot.resume(notice.Preempt, notices)
	s.RequestPoll()
}

// Run polls until ctx ends. It calls emit with all notices whenever the notices of one path have changed. Until every path has
// been read, the snapshots are incomplete.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	var group sync.WaitGroup
	defer group.Wait()
	var mu sync.Mutex // keeps the order of the snapshots
	for _, p := range s.parts {
		group.Go(func() {
			p.Run(ctx, func(snapshot notice.Snapshot) {
				mu.Lock()
				defer mu.Unlock()
				p.read, p.snapshot = true, snapshot
				emit(s.merge(snapshot.At))
			})
		})
	}
	if s.options.Hook != nil {
		group.Go(func() { s.options.Hook.run(ctx, s.options.HookTimeout, s.parts[1].RequestPoll) })
	}
}

// merge returns the notices of all paths.
func (s *Source) merge(at time.Time) notice.Snapshot {
	all := notice.Snapshot{At: at}
	for _, p := range s.parts {
		all.Notices = append(all.Notices, p.snapshot.Notices...)
		all.Planned = append(all.Planned, p.snapshot.Planned...)
		all.Unreadable = append(all.Unreadable, p.snapshot.Unreadable...)
		all.Warnings = append(all.Warnings, p.snapshot.Warnings...)
		all.Incomplete = all.Incomplete || !p.read
	}
	slices.SortFunc(all.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Approve completes the lifecycle hook of the Auto Scaling group, which then terminates the instance. AWS accepts no
// approval of other notices.
func (s *Source) Approve(ctx context.Context, ids ...string) error {
	if s.options.Hook == nil || !slices.Contains(ids, s.asg.noticeID()) {
		return nil
	}
	return s.options.Hook.complete(ctx)
}
