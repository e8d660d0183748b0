// Package faultproxy is a proxy between a process and its servers. It numbers the requests. A test can interrupt each
// request: before the server receives it, or after the server has answered and before the process knows.
//
// A crash of a process can have different results only at these moments. To all servers, a crash between two requests
// looks like a crash at one of them. So a test first records the requests of an undisturbed run. Then it interrupts one
// of them per run. This covers every relevant instruction.
package faultproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Moment is when a request is interrupted: before the server receives it, or after the server has answered.
type Moment string

const (
	// Before means before the request is forwarded: the server never receives it.
	Before Moment = "before"
	// After means after the server has answered: the process never receives the answer.
	After Moment = "after"
)

// Moments returns all possible moments of an interruption: Before and After.
func Moments() []Moment { return []Moment{Before, After} }

// Request is a request that passed through the proxy.
type Request struct {
	// Server is the name given to Serve.
	Server, Method, Path, Query string
	// Life numbers the processes that used the proxy one after the other, see StartNextLife.
	Life int
	RequestID
}

// RequestID identifies a request by its kind and its number. The same RequestID names the corresponding request of
// another run.
type RequestID struct {
	// Kind is the result of the function given to New.
	Kind string
	// Nth counts the requests of a kind from 1 in the order of arrival. The order between kinds may vary if a process
	// sends requests in parallel.
	Nth int
}

func (p RequestID) String() string { return fmt.Sprintf("%s, number %d", p.Kind, p.Nth) }

// Proxy is a proxy between one process and any number of servers. Its methods may be called concurrently.
type Proxy struct {
	kind func(Request) string

	mu           sync.Mutex
	requests     []Request
	nth          map[string]int
	interruption *interruption // the next one, or nil
	fault        func(Request) Fault
	onWrite      func(context.Context, Request, []byte)
	onResponse   func(r Request, asked time.Time, status int)
	servers      []*http.Server

	life atomic.Int64 // not under mu, because Close waits for readers of it
}

// New returns a proxy without faults. The function kind returns the kind of a request. The request that kind gets
// has an empty RequestID.
func New(kind func(Request) string) *Proxy { return &Proxy{kind: kind, nth: map[string]int{}} }

// Requests returns all requests so far.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Request(nil), p.requests...)
}

// Serve starts the proxy of a server on a new loopback port. It returns the URL that clients must use in place of
// the server's URL. The transport connects to the server; nil means http.DefaultTransport.
func (p *Proxy) Serve(name string, server *url.URL, transport http.RoundTripper) (*url.URL, error) {
	return p.serve(name, server, transport, nil)
}

// ServeTLS starts the proxy of a server as Serve does, but with TLS. It keeps the client's Host header, so that
// links in responses lead to the proxy.
func (p *Proxy) ServeTLS(name string, server *url.URL, transport http.RoundTripper, certificate tls.Certificate) (*url.URL, error) {
	return p.serve(name, server, transport, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
}

func (p *Proxy) serve(name string, server *url.URL, transport http.RoundTripper, secure *tls.Config) (*url.URL, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fault proxy for %s: %w", name, err)
	}
	forward := newReverseProxy(server, transport, secure != nil)
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: p.newHandler(name, forward), ConnContext: p.addLifeToContext}
	p.mu.Lock()
	p.servers = append(p.servers, s)
	p.mu.Unlock()
	address := &url.URL{Scheme: "http", Host: listener.Addr().String()}
	if secure != nil {
		address.Scheme = "https"
		listener = tls.NewListener(listener, secure)
	}
	go func() { _ = s.Serve(listener) }()
	return address, nil
}

// errResponseSuppressed is the error of a response that the proxy received and did not deliver.
var errResponseSuppressed = errors.New("the response is held back")

func (p *Proxy) newHandler(name string, direct *httputil.ReverseProxy) http.Handler {
	old := newResponseCache()
	var forward http.Handler = direct
	if p.fault != nil { // without faults the cache is never used
		forward = old.cacheResponses(direct)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, interruption, moment := p.registerRequest(name, r)
		w = p.observeStatus(w, request)
		fault := Fault{}
		if p.fault != nil {
			fault = p.fault(request)
		}
		if fault.Status == 0 && (interruption == nil || moment == After) {
			p.callOnWrite(request, r)
		}
		suppressed := *direct
		suppressed.ModifyResponse = func(*http.Response) error {
			if interruption != nil {
				p.stopRequest(interruption, request)
			}
			return errResponseSuppressed
		}
		switch {
		case interruption != nil && moment == Before:
			p.stopRequest(interruption, request)
			panic(http.ErrAbortHandler)
		case interruption != nil:
			suppressed.ServeHTTP(w, r)
		case fault != Fault{}:
			fault.serveFaulty(w, r, forward, &suppressed, old)
		default:
			forward.ServeHTTP(w, r)
		}
	})
}

// OnWrite sets a function that the proxy calls before it forwards a request, except for GET requests. The function
// gets the request and its body. Its context ends when the client gives up. The proxy does not forward such a
// request. Call OnWrite before the first request.
func (p *Proxy) OnWrite(f func(ctx context.Context, r Request, body []byte)) { p.onWrite = f }

// callOnWrite calls the function that OnWrite has set, unless the request is a GET. It panics with
// http.ErrAbortHandler if the client has given up.
func (p *Proxy) callOnWrite(request Request, r *http.Request) {
	if p.onWrite == nil || r.Method == http.MethodGet {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.onWrite(r.Context(), request, body)
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

// OnResponse sets a function that the proxy calls before it delivers the first byte of a response. The function also
// gets the arrival time of the request. The proxy calls it for responses that are cut later, but not for suppressed
// responses. Call OnResponse before the first request.
func (p *Proxy) OnResponse(f func(r Request, arrived time.Time, status int)) { p.onResponse = f }

// observeStatus returns a writer that calls the function of OnResponse when the response begins.
func (p *Proxy) observeStatus(w http.ResponseWriter, request Request) http.ResponseWriter {
	if p.onResponse == nil {
		return w
	}
	arrived := time.Now()
	return &statusObserver{ResponseWriter: w, report: func(status int) { p.onResponse(request, arrived, status) }}
}

// statusObserver is a ResponseWriter that calls report once, with the final status, when the response begins.
type statusObserver struct {
	http.ResponseWriter
	report   func(status int)
	reported bool
}

// Unwrap gives http.ResponseController access to Flush.
func (b *statusObserver) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *statusObserver) WriteHeader(status int) {
	b.reportOnce(status)
	b.ResponseWriter.WriteHeader(status)
}

func (b *statusObserver) Write(p []byte) (int, error) {
	b.reportOnce(http.StatusOK)
	return b.ResponseWriter.Write(p)
}

func (b *statusObserver) reportOnce(status int) {
	if !b.reported && status >= http.StatusOK {
		b.reported = true
		b.report(status)
	}
}

// StartNextLife tells the proxy that the process has ended and that its next start follows. It increments
// Request.Life for new connections. A late request of the ended process keeps its Life, because the Life belongs to
// the connection.
func (p *Proxy) StartNextLife() { p.life.Add(1) }

type lifeKey struct{}

func (p *Proxy) addLifeToContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, lifeKey{}, int(p.life.Load()))
}

// registerRequest gives a request its RequestID and stores it. It also returns the interruption of the request and its moment, or nil.
func (p *Proxy) registerRequest(name string, r *http.Request) (request Request, i *interruption, moment Moment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life, _ := r.Context().Value(lifeKey{}).(int)
	request = Request{Server: name, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Life: life}
	kind := p.kind(request)
	p.nth[kind]++
	request.RequestID = RequestID{Kind: kind, Nth: p.nth[kind]}
	p.requests = append(p.requests, request)
	if p.interruption != nil {
		if moment, ok := p.interruption.points[request.RequestID]; ok {
			return request, p.interruption, moment
		}
	}
	return request, nil, ""
}

// Close closes all servers and connections of the proxy.
func (p *Proxy) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// WriteKubeconfig copies a kubeconfig to another file. In the copy, the current cluster has the address of the given
// server, and no TLS.
func WriteKubeconfig(from, to string, server *url.URL) error {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return fmt.Errorf("kubeconfig behind a fault proxy: %w", err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return fmt.Errorf("kubeconfig %s: the current context %q has no cluster", from, config.CurrentContext)
	}
	cluster := config.Clusters[current.Cluster]
	cluster.Server, cluster.CertificateAuthority, cluster.CertificateAuthorityData = server.String(), "", nil
	if err := clientcmd.WriteToFile(*config, to); err != nil {
		return fmt.Errorf("kubeconfig behind a fault proxy: %w", err)
	}
	return nil
}
