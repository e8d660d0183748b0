package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"sync"
)

// pass passes a request on to the pool's server, or answers it where there is none.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, f *Front, t target) string {
	if f.proxy == nil {
		s.serveNative(w, r, f.Native, t)
		return "native"
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.o.BackendTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, s.o.MaxBody)
	f.proxy.ServeHTTP(w, r)
	return "passed"
}

// overrides are headers by which some servers take one method, or one path, for another, or the connection for one of another
// protocol, in which nobody would look at what is asked.
var overrides = []string{
	"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL", "Upgrade", "Connection", "HTTP2-Settings",
}

func (s *Server) newProxy(f *Front) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: f.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = f.address(p.In.URL), ""
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded()
			for _, name := range overrides {
				p.Out.Header.Del(name)
			}
			if !s.o.KeepCredentials {
				p.Out.Header.Del("Authorization")
				p.Out.Header.Del("Cookie")
			}
		},
		ModifyResponse: s.checkAnswer, ErrorHandler: s.passFailed,
		BufferPool: &s.buffers,
		ErrorLog:   slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
}

// buffers are used again and again: one of each answer's own would be most of what a read costs the collector.
type buffers struct{ free sync.Pool }

// bufferSize is that of the buffers that httputil.ReverseProxy makes itself, in bytes.
const bufferSize = 32 << 10

func (b *buffers) Get() []byte {
	if is, ok := b.free.Get().(*[bufferSize]byte); ok {
		return is[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(is []byte) {
	if len(is) == bufferSize {
		b.free.Put((*[bufferSize]byte)(is))
	}
}

// checkAnswer refuses to pass an answer on that would make a tunnel of the connection, or that is about the pool's own
// credentials and would be taken for one about the client's.
func (s *Server) checkAnswer(r *http.Response) error {
	switch {
	case r.StatusCode == http.StatusSwitchingProtocols:
		return fmt.Errorf("the server switches to the protocol %.40q, which it was not asked for", r.Header.Get("Upgrade"))
	case deniesUs(r.StatusCode) && !s.o.KeepCredentials && !s.o.StrictCompat:
		return fmt.Errorf("the server answers %d %s to the credentials that this process has for it", r.StatusCode, http.StatusText(r.StatusCode))
	}
	return nil
}

// deniesUs reports an answer that is about who asks.
func deniesUs(code int) bool { return code == http.StatusUnauthorized || code == http.StatusForbidden }

// passFailed answers for a server that did not. Its panic ends the connection of a client that has left.
func (s *Server) passFailed(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case isTooLong(err):
		say(w, http.StatusRequestEntityTooLarge, "the body is too long", err.Error())
		return
	case errors.Is(context.Cause(r.Context()), errEnding):
		say(w, http.StatusServiceUnavailable, "failed to forward request to backend: this process is ending", "whether the server has done what it was asked is not known")
		return
	case errors.Is(r.Context().Err(), context.Canceled):
		panic(http.ErrAbortHandler) // nobody listens any more; to return would be to answer 200
	}
	s.o.Log.Warn("a request could not be passed on", "method", r.Method, "path", r.URL.Path, "err", err)
	say(w, http.StatusBadGateway, "failed to forward request to backend: failed to complete backend cloudpool request", err.Error())
}
