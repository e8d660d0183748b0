package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// NewDirectTransport returns a transport that calls a handler in the same process. It uses no network, so it works
// in virtual time (testing/synctest). If the handler panics with http.ErrAbortHandler, the client gets an incomplete
// response, as from a real server.
func NewDirectTransport(to http.Handler) http.RoundTripper { return directTransport{handler: to} }

type directTransport struct {
	handler       http.Handler
	life          *ProcessLife // nil for a transport that never ends
	lateTransport http.RoundTripper
}

// ServeDirect starts the proxy of a server as Serve does, but without a network. Clients use the transport of the
// Front.
func (p *Proxy) ServeDirect(name string, server *url.URL, transport http.RoundTripper) *Front {
	return &Front{p.newHandler(name, newReverseProxy(server, transport, true))}
}

// Front is the proxy of one server, which clients reach without a network.
type Front struct{ handler http.Handler }

// Transport returns the transport of one emulated process. After Kill, requests fail. The emulated process may still
// have to read; then the transport late serves its reads, and the proxy does not see them. With a nil late, these
// reads fail too.
func (f *Front) Transport(l *ProcessLife, late http.RoundTripper) http.RoundTripper {
	return directTransport{f.handler, l, late}
}

// ProcessLife is the time from start to kill of one emulated process. The requests of this process reach the proxy
// without a network.
type ProcessLife struct {
	number int
	alive  context.Context
	kill   context.CancelFunc
}

// StartLife ends the life of the previous emulated process, and starts the life of the next one. See StartNextLife.
func (p *Proxy) StartLife() *ProcessLife {
	p.StartNextLife()
	alive, kill := context.WithCancel(context.Background())
	return &ProcessLife{int(p.life.Load()), alive, kill}
}

// Kill cuts the connections of the process, as SIGKILL does. Later requests of this process fail.
func (l *ProcessLife) Kill() { l.kill() }

// errCut is the error of a request if the connection was cut before the response began.
var errCut = errors.New("the connection was cut")

func (d directTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if l := d.life; l != nil && l.alive.Err() != nil {
		if d.lateTransport == nil || r.Method != http.MethodGet {
			return nil, errCut
		}
		return d.lateTransport.RoundTrip(r)
	}
	stopWatching := func() bool { return true }
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), http.ServerContextKey, d))
	if l := d.life; l != nil {
		stopWatching = context.AfterFunc(l.alive, cancel) //nolint:contextcheck // the end of the process ends its requests
		ctx = context.WithValue(ctx, lifeKey{}, l.number)
	}
	req := r.Clone(ctx)
	if req.Body == nil {
		req.Body = http.NoBody
	}
	req.RequestURI, req.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:1"
	if req.Host == "" {
		req.Host = r.URL.Host
	}
	a := &directResponse{header: http.Header{}, begun: make(chan struct{}), cancel: cancel}
	a.changed.L = &a.mu
	go func() {
		err := io.EOF
		defer func() {
			switch cause := recover(); cause {
			case nil:
			case http.ErrAbortHandler:
				err = io.ErrUnexpectedEOF
			default:
				panic(cause)
			}
			a.endWith(err)
		}()
		d.handler.ServeHTTP(a, req)
		a.WriteHeader(http.StatusOK)
	}()
	select {
	case <-a.begun:
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
	if a.status == 0 {
		cancel()
		return nil, errCut
	}
	unwatch := context.AfterFunc(ctx, func() { a.endWith(context.Cause(ctx)) })
	a.stop = func() { stopWatching(); unwatch() }
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, Body: a, ContentLength: -1, Request: r,
	}, nil
}

// directResponse passes the response of a handler to a client in the same process. The handler writes while the
// client reads.
type directResponse struct {
	header, sent http.Header
	status       int // 0 until the response begins
	begun        chan struct{}
	cancel       context.CancelFunc
	stop         func()

	mu      sync.Mutex
	changed sync.Cond
	text    bytes.Buffer
	readErr error // the reader's error after the text
}

func (a *directResponse) Header() http.Header { return a.header }

func (a *directResponse) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status != 0 || a.readErr != nil || status < http.StatusOK {
		return
	}
	a.status, a.sent = status, a.header.Clone()
	close(a.begun)
}

func (a *directResponse) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.readErr != nil {
		return 0, errCut
	}
	a.changed.Broadcast()
	return a.text.Write(b)
}

func (a *directResponse) Flush() { a.WriteHeader(http.StatusOK) }

// endWith ends the response for the given reason. Later calls have no effect.
func (a *directResponse) endWith(reason error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.readErr == nil {
		a.readErr = reason
		if a.status == 0 {
			close(a.begun)
		}
	}
	a.changed.Broadcast()
}

func (a *directResponse) Read(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.text.Len() == 0 && a.readErr == nil {
		a.changed.Wait()
	}
	if a.text.Len() > 0 {
		return a.text.Read(b)
	}
	return 0, a.readErr
}

// Close cancels the context of the handler, as a server does when its client disconnects.
func (a *directResponse) Close() error {
	a.stop()
	a.endWith(errCut)
	a.cancel()
	return nil
}

// newReverseProxy returns a proxy that forwards requests to a server. If keepHost is true, requests keep the
// client's Host header.
func newReverseProxy(server *url.URL, transport http.RoundTripper, keepHost bool) *httputil.ReverseProxy {
	target := &url.URL{Scheme: server.Scheme, Host: server.Host}
	// Unlike Director, Rewrite does not add X-Forwarded-For, which the metadata service refuses.
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if keepHost {
				r.Out.Host = r.In.Host
			}
		},
		Transport:     transport,
		FlushInterval: -1, // a watch must not wait for a full buffer
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}
