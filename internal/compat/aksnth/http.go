package aksnth

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Inside is what the HTTP paths need of the agent.
type Inside struct {
	// Live says why the process is not healthy.
	Live func() error
	// Drain asks for the node to be drained and waits until it is, or for why it cannot be. What was asked for goes on
	// when ctx ends. Release takes back what was asked for.
	Drain   func(ctx context.Context) error
	Release func()
	// Private says why a request may not ask for a drain.
	Private func(*http.Request) error
	// Metrics serves Slipway's own page.
	Metrics http.Handler
}

// Routes are the tool's paths that Slipway does not have, or answers in other words.
func Routes(in Inside) map[string]http.Handler {
	return map[string]http.Handler{"/healthz": healthz(in.Live), "/drainNode": drainNode(in), "/metrics": Page(in.Metrics)}
}

// healthz asks no other machine: a restart would not help one that is away, and would cost the node its guard.
func healthz(live func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := live(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "LIVE")
	}
}

// drainNode drains the node, and answers when it is drained, however long that takes. DELETE gives the node back. The
// tool also took GET, which what only looks around sends.
func drainNode(in Inside) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := in.Private(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		switch r.Method {
		case http.MethodPost:
		case http.MethodDelete:
			in.Release()
			_, _ = fmt.Fprint(w, "released")
			return
		default:
			w.Header().Set("Allow", "POST, DELETE")
			http.Error(w, "want POST to drain the node, DELETE to give it back", http.StatusMethodNotAllowed)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // where there is none, none is in the way
		if err := in.Drain(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "done")
	}
}
