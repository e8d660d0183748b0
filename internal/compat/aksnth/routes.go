package aksnth

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/compat"
)

// AgentAccess holds the functions of the agent that the HTTP handlers call.
type AgentAccess struct {
	// CheckLive returns an error if the process is not healthy.
	CheckLive func() error
	// Drain requests a drain of the node and waits until it has finished or failed. The drain continues if ctx ends.
	Drain func(ctx context.Context) error
	// CancelDrain cancels the request.
	CancelDrain func()
	// AuthorizeDrain returns an error if a client may not request a drain.
	AuthorizeDrain func(*http.Request) error
	// Metrics serves Slipway's metrics page.
	Metrics http.Handler
}

// NewRoutes returns handlers for the paths that the tool served differently than Slipway.
func NewRoutes(in AgentAccess) map[string]http.Handler {
	return map[string]http.Handler{"/healthz": newHealthzHandler(in.CheckLive), "/drainNode": newDrainNodeHandler(in), "/metrics": compat.NewMetricsPage(in.Metrics)}
}

// newHealthzHandler returns the handler for the liveness probe. It contacts no other machine. A restart of the agent
// would not repair another machine, and would leave the node unprotected for a while.
func newHealthzHandler(live func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := live(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "LIVE")
	}
}

// newDrainNodeHandler returns a handler that drains the node, and answers when the drain has finished. A DELETE request
// restores the node. The tool also drained for GET, but crawlers and probes send GET too.
func newDrainNodeHandler(in AgentAccess) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := in.AuthorizeDrain(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		switch r.Method {
		case http.MethodPost:
		case http.MethodDelete:
			in.CancelDrain()
			_, _ = fmt.Fprint(w, "released")
			return
		default:
			w.Header().Set("Allow", "POST, DELETE")
			http.Error(w, "want POST to drain the node, DELETE to restore it", http.StatusMethodNotAllowed)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // an error means that there is no deadline
		if err := in.Drain(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "done")
	}
}
