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

// forwardOrServeNative forwards a request to the pool's server. For a native pool it answers the request itself. It
// returns the value of the metric label handling.
func (s *Server) forwardOrServeNative(w http.ResponseWriter, r *http.Request, f *ServedPool, t target) (handling string) {
	if f.proxy == nil {
		s.serveNativeRequest(w, r, f.Native, t)
		return "native"
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.BackendTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, s.opts.MaxBody)
	f.proxy.ServeHTTP(w, r)
	return "passed"
}

// overrideHeaders are removed from forwarded requests. Because of them, some servers use another method or path than
// Slipway has checked, or switch to another protocol.
var overrideHeaders = []string{
	"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL", "Upgrade", "Connection", "HTTP2-Settings",
}

func (s *Server) newProxy(f *ServedPool) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: f.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = f.backendURL(p.In.URL), ""
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded()
			for _, name := range overrideHeaders {
				p.Out.Header.Del(name)
			}
			if !s.opts.ForwardCredentials {
				p.Out.Header.Del("Authorization")
				p.Out.Header.Del("Cookie")
			}
		},
		ModifyResponse: s.rejectUnsafeResponse, ErrorHandler: s.writeProxyError,
		BufferPool: &s.buffers,
		ErrorLog:   slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
}

// bufferPool reuses copy buffers. Most of the garbage of a read would otherwise be the new buffer for each answer.
type bufferPool struct{ free sync.Pool }

// bufferSize is the buffer size of httputil.ReverseProxy in bytes.
const bufferSize = 32 << 10

func (b *bufferPool) Get() []byte {
	if is, ok := b.free.Get().(*[bufferSize]byte); ok {
		return is[:]
	}
	return make([]byte, bufferSize)
}

func (b *bufferPool) Put(is []byte) {
	if len(is) == bufferSize {
		b.free.Put((*[bufferSize]byte)(is))
	}
}

// rejectUnsafeResponse returns an error for a response that turns the connection into a tunnel. It also returns an
// error if the server has refused this process's own credentials: the client would think that its own credentials were
// refused.
func (s *Server) rejectUnsafeResponse(r *http.Response) error {
	switch {
	case r.StatusCode == http.StatusSwitchingProtocols:
		return fmt.Errorf("the server switches to the protocol %.40q without a request", r.Header.Get("Upgrade"))
	case isAuthFailure(r.StatusCode) && !s.opts.ForwardCredentials && !s.opts.StrictCompat:
		return fmt.Errorf("the server answered %d %s to this process's own credentials", r.StatusCode, http.StatusText(r.StatusCode))
	}
	return nil
}

// isAuthFailure reports whether a status code means that the server refuses the credentials of a request.
func isAuthFailure(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusForbidden
}

// writeProxyError answers a forwarded request that got no usable response from the server. If the client has
// disconnected, it panics with http.ErrAbortHandler, which closes the connection.
func (s *Server) writeProxyError(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case isBodyTooLarge(err):
		writeError(w, http.StatusRequestEntityTooLarge, "the body is too long", err.Error())
		return
	case errors.Is(context.Cause(r.Context()), errShuttingDown):
		writeError(w, http.StatusServiceUnavailable, "failed to forward request to backend: this process is shutting down", "it is unknown whether the server carried out the request")
		return
	case errors.Is(r.Context().Err(), context.Canceled):
		panic(http.ErrAbortHandler) // a return would answer 200
	}
	s.opts.Log.Warn("cannot forward a request", "method", r.Method, "path", r.URL.Path, "err", err)
	writeError(w, http.StatusBadGateway, "failed to forward request to backend: failed to complete backend cloudpool request", err.Error())
}
