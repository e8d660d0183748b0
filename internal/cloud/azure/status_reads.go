package azure

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

// statusReads reads the status of operations. The instances of one deletion have one operation and ask for it at the same time:
// they share an answer.
type statusReads struct {
	// holds is how long an answer serves later callers. The end of an operation is noticed as much later at the most.
	holds time.Duration

	mu        sync.Mutex
	byAddress map[string]*statusRead
}

// askStatus asks an address once.
type askStatus func(ctx context.Context, address string) (status cloud.Status, forgotten bool, err error)

// statusRead is the last answer of one address.
type statusRead struct {
	asked  time.Time // by the last caller, guarded by the mutex of statusReads
	shared sharedread.Reader[statusAnswer]
}

type statusAnswer struct {
	status    cloud.Status
	forgotten bool
}

const (
	// maxStatusHolds bounds how long an answer serves later callers.
	maxStatusHolds = time.Second
	// statusKept is for how long an address is remembered.
	statusKept = time.Minute
)

// read returns the answer of an address, as [sharedread.Reader] shares it.
func (s *statusReads) read(ctx context.Context, address string, ask askStatus) (status cloud.Status, forgotten bool, err error) {
	a, err := s.of(address, time.Now()).shared.Read(ctx, func(ctx context.Context) (a statusAnswer, err error) {
		a.status, a.forgotten, err = ask(ctx, address)
		return a, err
	})
	return a.status, a.forgotten, err
}

func (s *statusReads) of(address string, now time.Time) *statusRead {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byAddress, func(_ string, r *statusRead) bool { return now.Sub(r.asked) >= statusKept })
	r := s.byAddress[address]
	if r == nil {
		if s.byAddress == nil {
			s.byAddress = map[string]*statusRead{}
		}
		r = &statusRead{shared: sharedread.Reader[statusAnswer]{Holds: s.holds}}
		s.byAddress[address] = r
	}
	r.asked = now
	return r
}
