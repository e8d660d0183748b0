// Package request provides a notice for a request to the agent itself to drain its node, without an interruption. The
// notice has no deadline, and lasts until it is withdrawn.
package request

import (
	"context"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// SourceName is the Source field of its notice.
const SourceName = "request"

// NoticeID is the NoticeID of its only notice.
const NoticeID = "manual"

// Source provides the notice of the request. Its methods may be called from any goroutine.
type Source struct {
	noticeType notice.Type
	created    time.Time
	changed    chan struct{}

	mu        sync.Mutex
	called    bool // this process was called, so the request of an earlier one is void
	requested bool
}

// NewSource returns a source without a request. A request is handled like an interruption of type as.
func NewSource(as notice.Type) *Source {
	return &Source{noticeType: as, created: time.Now(), changed: make(chan struct{}, 1)}
}

// Name returns the Source field of the notice.
func (s *Source) Name() string { return SourceName }

// LastRead returns when the source was created, because it always knows everything.
func (s *Source) LastRead() time.Time { return s.created }

// RequestDrain requests that the node is drained and kept empty.
func (s *Source) RequestDrain() { s.setRequested(true) }

// CancelDrain withdraws the request, also one of an earlier process.
func (s *Source) CancelDrain() { s.setRequested(false) }

// ResumeNotices continues a request of an earlier process, unless Ask or Withdraw was called.
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

// triggerSnapshot makes Run emit a snapshot.
func (s *Source) triggerSnapshot() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run emits a snapshot after each change until ctx ends. Before the first change it emits nothing, so the request of
// an earlier process continues.
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
