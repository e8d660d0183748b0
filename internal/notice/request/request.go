// Package request provides the notice for a user's request to drain the agent's node. No interruption is announced. The
// notice has no deadline, and lasts until the request is cancelled.
package request

import (
	"context"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// SourceName is the value of [notice.Notice.Source] in the notice of this package.
const SourceName = "request"

// NoticeID is the ID of this package's only notice.
const NoticeID = "manual"

// Source provides the notice for a requested drain. Its methods are safe for concurrent use.
type Source struct {
	noticeType notice.Type
	created    time.Time
	changed    chan struct{}

	mu        sync.Mutex
	called    bool // this process was called, so the request of an earlier one is void
	requested bool
}

// NewSource returns a source without a request. The agent handles a request like an interruption of the given type.
func NewSource(as notice.Type) *Source {
	return &Source{noticeType: as, created: time.Now(), changed: make(chan struct{}, 1)}
}

// Name returns the value of [notice.Notice.Source] in this source's notice.
func (s *Source) Name() string { return SourceName }

// LastRead returns when the source was created. The source reads nothing, so it is always current.
func (s *Source) LastRead() time.Time { return s.created }

// RequestDrain requests that the agent drains the node and keeps it cordoned.
func (s *Source) RequestDrain() { s.setRequested(true) }

// CancelDrain cancels the request to drain, even if an earlier process received the request.
func (s *Source) CancelDrain() { s.setRequested(false) }

// ResumeNotices continues the request of an earlier process. It does nothing if RequestDrain or CancelDrain was called
// before.
func (s *Source) ResumeNotices(notices []notice.Notice) {
	s.mu.Lock()
	said := s.called
	s.requested = s.requested || !said && len(notices) > 0
	asked := s.requested
	s.mu.Unlock()
	if !said && asked {
		s.triggerSnapshot()
	}
}

func (s *Source) setRequested(asked bool) {
	s.mu.Lock()
	s.called, s.requested = true, asked
	s.mu.Unlock()
	s.triggerSnapshot()
}

// triggerSnapshot makes Run call emit with a new snapshot.
func (s *Source) triggerSnapshot() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run calls emit with a snapshot after each change until ctx ends. Before the first change it does not call emit. So
// the request of an earlier process continues.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			emit(s.snapshot())
		}
	}
}

func (s *Source) snapshot() notice.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := notice.Snapshot{At: time.Now()}
	if s.requested {
		snapshot.Notices = []notice.Notice{{
			ID: NoticeID, Source: SourceName, Type: notice.Condition, PodType: s.noticeType, Status: notice.Scheduled, Duration: -1, UserInitiated: true,
			Description: "a user requested a drain of this node from the agent",
		}}
	}
	return snapshot
}
