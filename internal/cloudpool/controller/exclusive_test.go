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

// slow is a pool to which something happens after it was read.
type slow struct {
	*server
	after func() // once, after the machines were read for the first time
}

func (s *slow) Pool(ctx context.Context) (api.Pool, error) {
	pool, err := s.server.Pool(ctx)
	if then := s.after; then != nil {
		s.after = nil
		then()
	}
	return pool, err
}

func TestI1ASizeThatPassesIsReadAgainRightBeforeItIsSet(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		pool := &slow{server: s.pool}
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
		pool.after = func() { // another client's request comes between
			s.pool.size = 10
			for i := 5; i <= 10; i++ {
				s.pool.add(machine(i, api.Running, ""))
			}
		}
		front := newServer("workers", pool, nil, a, false)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/pool/size", strings.NewReader(`{"desiredSize":4}`))
		request.Header.Set("Prefer", "respond-async")
		answer := httptest.NewRecorder()
		front.ServeHTTP(answer, request)
		if asked := s.pool.requests(); len(asked) == 0 || asked[0] == "size 4" {
			t.Errorf("answered %d %s after %q; want no machine taken away by the server, but by an update", answer.Code, answer.Body, s.pool.requests())
		}
	})
}

// TestAPoolIsChangedByOneProcessAtATime has two replicas ask at once, and both ask for more while one update is under way.
func TestAPoolIsChangedByOneProcessAtATime(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a, b := s.replica("a"), s.replica("b")
		s.passes(time.Second)
		accepted, refused := make(chan *Update, 2), make(chan error, 2)
		for size, u := range map[int]*Updater{3: a, 2: b} {
			go func() {
				ticket, err := u.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: size}, u.JudgeSize)
				if err != nil {
					refused <- err
					return
				}
				accepted <- ticket
			}()
		}
		s.passes(time.Second)
		if len(accepted) != 1 || len(refused) != 1 {
			t.Fatalf("%d are accepted, want 1", len(accepted))
		}
		ticket := <-accepted
		var busy *BusyError
		if err := <-refused; !errors.As(err, &busy) || busy.By.ID != ticket.ID {
			t.Errorf("%v; want it to be busy with %s", err, ticket)
		}
		for name, u := range map[string]*Updater{"a": a, "b": b} {
			_, err := u.Submit(t.Context(), Update{Kind: DetachMachine, MachineID: uuid(1)}, nil)
			if !errors.As(err, &busy) || busy.By.ID != ticket.ID {
				t.Errorf("%s: %v; want it to be busy with %s", name, err, ticket)
			}
			if same, err := u.Submit(t.Context(), *ticket, u.JudgeSize); err != nil || same.ID != ticket.ID {
				t.Errorf("%s: %v, %v; want who asks for the same to be told of the same", name, same, err)
			}
		}
		if asked := s.pool.requests(); len(asked) > 0 {
			t.Errorf("the pool was asked %q", asked)
		}
	})
}
