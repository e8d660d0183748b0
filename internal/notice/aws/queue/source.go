package queue

import (
	"context"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// Source passes the notices of one node to its agent. It is safe for concurrent use.
type Source struct {
	approve func(ctx context.Context, id string) error
	changed chan struct{} // has a value if the snapshot has changed

	mu       sync.Mutex
	snapshot notice.Snapshot
}

// NewSource returns a source. approve tells AWS that the interruption of a notice may begin.
func NewSource(approve func(ctx context.Context, id string) error) *Source {
	return &Source{approve: approve, changed: make(chan struct{}, 1)}
}

// Name returns the value of [notice.Notice.Source] in this source's notices.
func (s *Source) Name() string { return SourceName }

// SetNotices sets all notices of the node. A notice that is not in it any more has ended.
func (s *Source) SetNotices(due, planned []notice.Notice) {
	s.mu.Lock()
	s.snapshot = notice.Snapshot{At: time.Now(), Notices: due, Planned: planned}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// LastRead returns when SetNotices was last called.
func (s *Source) LastRead() time.Time { return s.current().At }

func (s *Source) current() notice.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot
}

// Run passes the notices to emit whenever they have changed, until ctx ends.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			emit(s.current())
		}
	}
}

// Approve completes the lifecycle hooks of notices. AWS accepts no approval of other notices.
func (s *Source) Approve(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if err := s.approve(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
