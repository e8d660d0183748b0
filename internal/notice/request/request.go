// Package request makes a notice of what somebody asks of the agent itself: to drain its node, though no machine is
// about to go. Such a notice has no deadline, and lasts until it is taken back.
package request

import (
	"context"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// Name is the name of this source in its notices.
const Name = "request"

// ID is the ID of its one notice.
const ID = "manual"

// Source tells of the request. Its methods may be called from any goroutine.
type Source struct {
	as    notice.Type
	began time.Time
	news  chan struct{}

	mu    sync.Mutex
	said  bool // something was, so that what an earlier process was asked counts no more
	asked bool
}

// New returns a source to which nothing has been said. What is asked of it is done as for an interruption of the type as.
func New(as notice.Type) *Source {
	return &Source{as: as, began: time.Now(), news: make(chan struct{}, 1)}
}

// Name is the name of the source in its notices.
func (s *Source) Name() string { return Name }

// LastRead is when the source was made: it knows at any time all there is to know.
func (s *Source) LastRead() time.Time { return s.began }

// Ask asks for the node to be drained and held.
func (s *Source) Ask() { s.say(true) }

// Withdraw takes back what was asked for, also by an earlier process.
func (s *Source) Withdraw() { s.say(false) }

// Resume has what an earlier process was asked hold, unless something was said to this one.
func (s *Source) Resume(notices []notice.Notice) {
	s.mu.Lock()
	said := s.said
	s.asked = s.asked || !said && len(notices) > 0
	asked := s.asked
	s.mu.Unlock()
	if !said && asked {
		s.tell()
	}
}

func (s *Source) say(asked bool) {
	s.mu.Lock()
	s.said, s.asked = true, asked
	s.mu.Unlock()
	s.tell()
}

// tell has Run hand on what is said.
func (s *Source) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Run hands on what is said until ctx ends. As long as nothing is said it emits no snapshot but what Resume brings, so that what
// was asked of an earlier process holds.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			emit(s.snapshot())
		}
	}
}

func (s *Source) snapshot() notice.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := notice.Snapshot{At: time.Now()}
	if s.asked {
		snapshot.Notices = []notice.Notice{{
			ID: ID, Source: Name, Type: notice.Condition, As: s.as, Status: notice.Scheduled, Duration: -1, UserInitiated: true,
			Description: "somebody asked this agent to drain its node",
		}}
	}
	return snapshot
}
