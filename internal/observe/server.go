package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"
)

// Limits of the server, for clients on the same node or in the same cluster.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 15 * time.Second // package net/http/pprof adds the length of a profile
	idleTimeout    = 2 * time.Minute  // longer than the usual scrape interval, so that the connection is reused
	maxHeaderBytes = 16 << 10         // bytes
	shutdownGrace  = 5 * time.Second
)

// ServerOptions configures a Server.
type ServerOptions struct {
	// Address is the host:port to listen on. Port 0 selects a free port.
	Address string
	Metrics *Registry
	// Live decides /healthz, and Ready decides /readyz. Without checks the response is 200.
	Live, Ready []Check
	// Pprof serves profiles under /debug/pprof/, which show command lines and memory contents. Private returns an
	// error for a request that may not see them; nil admits only the loopback interface.
	Pprof   bool
	Private func(*http.Request) error
	// Routes are additional handlers, and replace the paths above if equal. They check method and body themselves.
	Routes map[string]http.Handler
	// Log receives errors of single connections; nil is slog.Default().
	Log *slog.Logger
}

// Server serves /metrics, /healthz, /readyz and, if enabled, /debug/pprof/ over HTTP.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// Listen opens the address, so that an unavailable address is an error at once. Call Run afterwards.
func Listen(ctx context.Context, o ServerOptions) (*Server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("metrics and health: address %q: %w", o.Address, err)
	}
	log := o.Log
	if log == nil {
		log = slog.Default()
	}
	return &Server{listener: l, http: &http.Server{
		Handler:           newHandler(o),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, and then waits up to 5 s for running requests. Then it returns nil, or the error that
// ended it before.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("metrics and health: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := s.http.Shutdown(grace); errors.Is(err, context.DeadlineExceeded) {
		_ = s.http.Close() // close connections that are still in use, such as a long profile
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics and health: %w", err)
	}
	return nil
}

// newHandler answers GET and HEAD of exactly the served paths. It is not an http.ServeMux, which would also redirect
// similar paths.
func newHandler(o ServerOptions) http.Handler {
	if o.Private == nil {
		o.Private = requireLoopback
	}
	paths := map[string]http.Handler{"/healthz": newChecksHandler(o.Live), "/readyz": newChecksHandler(o.Ready)}
	if o.Metrics != nil {
		paths["/metrics"] = o.Metrics
	}
	if o.Pprof {
		paths["/debug/pprof/cmdline"] = http.HandlerFunc(pprof.Cmdline)
		paths["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
		paths["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
		paths["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := paths[r.URL.Path]
		if h == nil && o.Pprof && strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			h = http.HandlerFunc(pprof.Index) // it also serves the named profiles, and 404 for an unknown name
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if route := o.Routes[r.URL.Path]; route != nil {
			route.ServeHTTP(w, r)
			return
		}
		if h != nil && strings.HasPrefix(r.URL.Path, "/debug/") {
			if err := o.Private(r); err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
		}
		switch {
		case h == nil:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "want GET or HEAD", http.StatusMethodNotAllowed)
		case r.ContentLength != 0:
			http.Error(w, "want no body", http.StatusRequestEntityTooLarge)
		default:
			h.ServeHTTP(w, r)
		}
	})
}
