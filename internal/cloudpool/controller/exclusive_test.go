package controller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// changingPool is a pool that changes after its first read.
type changingPool struct {
	*fakeServer
	afterRead func() // called once, after the first read
}

func (s *changingPool) Pool(ctx context.Context) (api.Pool, error) {
	pool, err := s.fakeServer.Pool(ctx)
	if change := s.afterRead; change != nil {
		s.afterRead = nil
		change()
	}
	return pool, err
}

func TestI1SizeIsReadAgainBeforeForwardedRaise(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		pool := &changingPool{fakeServer: s.pool}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		pool.afterRead = func() { // another client raises the size in between
			s.pool.size = 10
			for i := 5; i <= 10; i++ {
				s.pool.addMachine(newMachine(i, api.Running, ""))
			}
		}
		front := newServer("workers", pool, nil, a, false)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/pool/size", strings.NewReader(`{"desiredSize":4}`))
		request.Header.Set("Prefer", "respond-async")
		answer := httptest.NewRecorder()
		front.ServeHTTP(answer, request)
		if asked := s.pool.changeRequests(); len(asked) == 0 || asked[0] == "size 4" {
			t.Errorf("answered %d %s after %q; want an update to remove the machines, not the server", answer.Code, answer.Body, s.pool.changeRequests())
		}
	})
}

// TestOneReplicaChangesPoolAtATime submits from two replicas at once, and then more from both while one update is
// unfinished.
func TestOneReplicaChangesPoolAtATime(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a, b := s.startReplica("a"), s.startReplica("b")
		s.advance(time.Second)
		accepted, refused := make(chan *Update, 2), make(chan error, 2)
		for size, u := range map[int]*Updater{3: a, 2: b} {
			go func() {
				submitted, err := u.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: size}, u.CheckCanShrink)
				if err != nil {
					refused <- err
					return
				}
				accepted <- submitted
			}()
		}
		s.advance(time.Second)
		if len(accepted) != 1 || len(refused) != 1 {
			t.Fatalf("%d are accepted, want 1", len(accepted))
		}
		submitted := <-accepted
		var busy *BusyError
		if err := <-refused; !errors.As(err, &busy) || busy.Current.ID != submitted.ID {
			t.Errorf("%v; want it to be busy with %s", err, submitted)
		}
		for name, u := range map[string]*Updater{"a": a, "b": b} {
			_, err := u.SubmitOrFindEqual(t.Context(), Update{Kind: DetachMachine, MachineID: newUUID(1)}, nil)
			if !errors.As(err, &busy) || busy.Current.ID != submitted.ID {
				t.Errorf("%s: %v; want it to be busy with %s", name, err, submitted)
			}
			if same, err := u.SubmitOrFindEqual(t.Context(), *submitted, u.CheckCanShrink); err != nil || same.ID != submitted.ID {
				t.Errorf("%s: %v, %v; want an equal request to return the same update", name, same, err)
			}
		}
		if asked := s.pool.changeRequests(); len(asked) > 0 {
			t.Errorf("the pool was asked %q", asked)
		}
	})
}
