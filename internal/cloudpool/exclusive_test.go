package cloudpool

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
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
		a := s.replica("a")
		pool := &slow{server: s.pool}
		pool.after = func() { // another client's request comes between
			s.pool.size = 10
			for i := 5; i <= 10; i++ {
				s.pool.add(machine(i, api.Running, ""))
			}
		}
		front := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, &Front{Name: "workers", Backend: pool, Updater: a})
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/pool/size", strings.NewReader(`{"desiredSize":4}`))
		request.Header.Set("Prefer", "respond-async")
		answer := httptest.NewRecorder()
		front.ServeHTTP(answer, request)
		if answer.Code == http.StatusOK || len(s.pool.requests()) > 0 && s.pool.requests()[0] == "size 4" {
			t.Errorf("answered %d %s after %q; want no machine taken away by the server", answer.Code, answer.Body, s.pool.requests())
		}
	})
}

func TestAPoolIsChangedByOneProcessAtATime(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a, b := s.replica("a"), s.replica("b")
		inside, leave := make(chan struct{}), make(chan struct{})
		first := make(chan error, 1)
		go func() {
			first <- a.Exclusively(t.Context(), func(context.Context) error { close(inside); <-leave; return nil })
		}()
		<-inside
		var busy *BusyError
		err := b.Exclusively(t.Context(), func(context.Context) error { t.Error("two are at it at once"); return nil })
		if !errors.As(err, &busy) || busy.Holder != "a" {
			t.Errorf("%v; want it to be said that a has it", err)
		}
		close(leave)
		if err := <-first; err != nil {
			t.Error(err)
		}
		s.passes(5 * time.Second)
		if err := b.Exclusively(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Errorf("the pool is not free: %v", err)
		}
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 3}, a.judgeSize)
		if err != nil {
			t.Fatal(err)
		}
		for name, u := range map[string]*Updater{"a": a, "b": b} {
			err := u.Exclusively(t.Context(), func(context.Context) error { return nil })
			if !errors.As(err, &busy) || busy.By == nil || busy.By.ID != ticket.Update.ID {
				t.Errorf("%s: %v; want it to be busy with %s", name, err, ticket.Update)
			}
		}
	})
}

// TestARecordThatCannotBeReadIsNoFailureOfTheBackend has the Lease be had, and the record say what nobody can read.
func TestARecordThatCannotBeReadIsNoFailureOfTheBackend(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		name := recordName("workers")
		s.maps[name] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Data: map[string]string{recordKey: "{"}}
		front := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, &Front{Name: "workers", Backend: s.pool, Updater: s.replica("a")})
		for path, body := range map[string]string{
			"/pool/size":             `{"desiredSize":4}`,
			"/pool/terminate":        `{"machineId":"` + uuid(1) + `","decrementDesiredSize":true}`,
			"/pool/membershipStatus": `{"machineId":"` + uuid(1) + `","membershipStatus":{"active":true,"evictable":true}}`,
		} {
			answer := httptest.NewRecorder()
			front.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
			if answer.Code != http.StatusServiceUnavailable || len(s.pool.requests()) > 0 {
				t.Errorf("%s: answered %d %s after %q; want 503, and nothing asked for", path, answer.Code, answer.Body, s.pool.requests())
			}
			s.passes(time.Minute)
		}
	})
}
