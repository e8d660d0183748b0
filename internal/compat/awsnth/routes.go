package awsnth

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/observe"
)

// HasOwnProbesServer reports whether the liveness probe has another port than the metrics.
func (o *Options) HasOwnProbesServer() bool {
	return o.EnableProbesServer && o.EnablePrometheusServer && o.ProbesServerPort != o.PrometheusServerPort
}

// NewRoutes returns the handlers for the paths that the tool served differently than Slipway. Without
// -enable-prometheus-server, the port of the probes serves no metrics.
func (o *Options) NewRoutes(live func() error, metrics http.Handler) map[string]http.Handler {
	routes := map[string]http.Handler{"/metrics": compat.NewMetricsPage(metrics)}
	if !o.EnablePrometheusServer {
		routes["/metrics"] = http.NotFoundHandler()
	}
	if o.EnableProbesServer && !o.HasOwnProbesServer() {
		routes[o.ProbesServerEndpoint] = NewProbeHandler(live)
	}
	return routes
}

// NewProbeHandler returns the handler of the liveness probe with the tool's response. The tool always reported success.
// Here the probe fails if the process hangs.
func NewProbeHandler(live func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := live(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"health":"OK"}`)) // the client may have stopped reading
	})
}

// ListenForProbes opens the server of the liveness probe, which has no other path. The caller runs it.
func (o *Options) ListenForProbes(ctx context.Context, live func() error, log *slog.Logger) (*observe.Server, error) {
	return observe.Listen(ctx, observe.ServerOptions{
		Address: o.ProbesAddress(), Log: log,
		Routes: map[string]http.Handler{"/healthz": http.NotFoundHandler(), "/readyz": http.NotFoundHandler(), o.ProbesServerEndpoint: NewProbeHandler(live)},
	})
}
