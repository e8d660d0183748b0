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

// Bounds of the server, for clients on the same node or in the same cluster.
const (
	readTimeout   = 5 * time.Second
	writeTimeout  = 15 * time.Second // package net/http/pprof adds the length of a profile by itself
	idleTimeout   = 2 * time.Minute  // longer than the usual scrape interval, so that the connection is used again
	maxHeader     = 16 << 10         // bytes
	shutdownGrace = 5 * time.Second
)

// ServerOptions is what a Server serves.
type ServerOptions struct {
	// Address is where to listen, as host:port. Port 0 takes a free one.
	Address string
	Metrics *Registry
	// Live decides on /healthz and Ready on /readyz. Without checks the answer is always good.
	Live, Ready []Check
	// Pprof serves profiles under /debug/pprof/: they show command lines and what is in memory. Private says why a request
	// may not see them; nil admits requests from the loopback interface alone.
	Pprof   bool
	Private func(*http.Request) error
	// Routes are served as well, and in place of the above where the path is the same. They judge method and body
	// themselves.
	Routes map[string]http.Handler
	// Log receives what goes wrong with single connections; nil is slog.Default().
	Log *slog.Logger
}

// Server serves /metrics, /healthz, /readyz and, where asked for, /debug/pprof/ over HTTP.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// Listen opens the address, so that an address that cannot be had is known at once. Run must follow.
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
		Handler:           handler(o),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, then lets what is under way finish for up to 5 s. It returns nil after that, or the error
// that ended it before.
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
		_ = s.http.Close() // who is still reading, such as a long profile, is cut off
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics and health: %w", err)
	}
	return nil
}

// handler answers GET and HEAD of exactly the paths that are served. It is no http.ServeMux, which would also
// answer paths that are merely alike, with redirects.
func handler(o ServerOptions) http.Handler {
	if o.Private == nil {
		o.Private = loopbackOnly
	}
	paths := map[string]http.Handler{"/healthz": serveChecks(o.Live), "/readyz": serveChecks(o.Ready)}
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
			h = http.HandlerFunc(pprof.Index) // the named profiles too; it answers 404 to a name unknown
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
