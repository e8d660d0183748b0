package cloudpool

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
)

// pass passes a request on to the pool's server, or answers it where there is none.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, f *Front, t target) string {
	if f.proxy == nil {
		f.Native.serve(s, w, r, t)
		return "native"
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.o.BackendTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, s.o.MaxBody)
	f.proxy.ServeHTTP(w, r)
	return "passed"
}

// overrides are headers by which some servers take one method for another.
var overrides = []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"}

// newProxy makes the proxy of a pool.
func (s *Server) newProxy(f *Front) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: f.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			stripPool(p, f.Name)
			p.SetURL(f.URL)
			p.Out.URL.RawQuery = p.In.URL.RawQuery // also what cannot be parsed
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
		ErrorHandler: s.passFailed,
		BufferPool:   &s.buffers,
		ErrorLog:     slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
}

// buffers are used again and again: one of each answer's own would be most of what a read costs the collector.
type buffers struct{ free sync.Pool }

// bufferSize is that of the buffers that httputil.ReverseProxy makes itself, in bytes.
const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if is, ok := b.free.Get().(*[bufferSize]byte); ok {
		return is[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(is []byte) {
	if len(is) == bufferSize {
		b.free.Put((*[bufferSize]byte)(is))
	}
}

// stripPool takes /cloudpools/{name} off the path: it is in the pool's own URL where it has to be.
func stripPool(p *httputil.ProxyRequest, name string) {
	prefix := "/" + multiSegment + "/" + name
	u := p.Out.URL
	if rest, ok := strings.CutPrefix(u.Path, prefix); ok && (rest == "" || rest[0] == '/') {
		u.Path = rest
		raw, ok := strings.CutPrefix(u.RawPath, prefix)
		if !ok {
			raw = ""
		}
		u.RawPath = raw
	}
}

// passFailed answers for a server that did not.
func (s *Server) passFailed(w http.ResponseWriter, r *http.Request, err error) {
	tooLong := new(http.MaxBytesError)
	switch {
	case errors.As(err, &tooLong):
		say(w, http.StatusRequestEntityTooLarge, "the body is too long", err.Error())
		return
	case errors.Is(r.Context().Err(), context.Canceled):
		return // nobody listens any more
	}
	s.o.Log.Warn("a request could not be passed on", "method", r.Method, "path", r.URL.Path, "err", err)
	say(w, http.StatusBadGateway, "failed to forward request to backend: failed to complete backend cloudpool request", err.Error())
}
