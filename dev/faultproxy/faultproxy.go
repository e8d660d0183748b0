// Package faultproxy stands between a process and the servers that it asks, numbers its requests, and lets a test step
// in at each one of them: before the server hears of it, or after it was served and before the process knows.
//
// These are all the moments at which a crash can make a difference to the world outside of a process: what it does
// between two requests nobody sees. A test that lets a process run undisturbed, and then steps in at each of the
// requests that it has seen, one in each run, has therefore been at every instruction that counts.
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

// Moment is when to step in at a request.
type Moment string

// The two moments.
const (
	// Before the request is forwarded: the server never hears of it.
	Before Moment = "before"
	// After the server has answered: the process never hears of it.
	After Moment = "after"
)

// Moments lists both.
func Moments() []Moment { return []Moment{Before, After} }

// Request is one request that came through the proxy.
type Request struct {
	// Server is the name that was given to Serve.
	Server, Method, Path, Query string
	// Life tells the processes apart that asked through the proxy one after the other: see NextLife.
	Life int
	Point
}

// Point tells a request from the others of its run, in words that mean the same in another run.
type Point struct {
	// Kind is what New's function makes of a request.
	Kind string
	// Nth counts the requests of a kind from 1, in the order of arrival. The order between kinds is left to chance where
	// a process asks side by side.
	Nth int
}

func (p Point) String() string { return fmt.Sprintf("%s, number %d", p.Kind, p.Nth) }

// Proxy is a proxy for one process, in front of any number of servers. Its methods may be called concurrently.
type Proxy struct {
	kind func(Request) string

	mu       sync.Mutex
	requests []Request
	nth      map[string]int
	at       Point
	moment   Moment
	stepIn   func(Request)
	fault    func(Request) Fault
	guard    func(context.Context, Request, []byte)
	answers  func(r Request, asked time.Time, status int)
	servers  []*http.Server

	life atomic.Int64 // not under mu: Close waits for what asks for it
}

// New returns a proxy that lets everything pass. The function says of what kind a request is, its Point still empty.
func New(kind func(Request) string) *Proxy { return &Proxy{kind: kind, nth: map[string]int{}} }

// At has do called once, at one request. That request goes no further than the moment says: its connection is cut when
// do returns. It must be called before the first request.
func (p *Proxy) At(point Point, moment Moment, do func(Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.moment, p.stepIn = point, moment, do
}

// Requests gives all requests so far.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Request(nil), p.requests...)
}

// Serve puts the proxy in front of one more server, on a loopback port of its own, and returns the address to use in
// the server's place. The transport is how the server is reached; nil is http.DefaultTransport.
func (p *Proxy) Serve(name string, server *url.URL, transport http.RoundTripper) (*url.URL, error) {
	return p.serve(name, server, transport, nil)
}

// ServeTLS is Serve for a client that wants TLS. The server is told the address that the client asked for, so that the
// links in its answers lead back to the proxy.
func (p *Proxy) ServeTLS(name string, server *url.URL, transport http.RoundTripper, show tls.Certificate) (*url.URL, error) {
	return p.serve(name, server, transport, &tls.Config{Certificates: []tls.Certificate{show}, MinVersion: tls.VersionTLS12})
}

func (p *Proxy) serve(name string, server *url.URL, transport http.RoundTripper, secure *tls.Config) (*url.URL, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fault proxy before %s: %w", name, err)
	}
	forward := reverse(server, transport, secure != nil)
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: p.handler(name, forward), ConnContext: p.connected}
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

// errHeldBack is what an answer that is not delivered fails with.
var errHeldBack = errors.New("the answer is held back")

func (p *Proxy) handler(name string, direct *httputil.ReverseProxy) http.Handler {
	old := newMemory()
	var forward http.Handler = direct
	if p.fault != nil { // otherwise nothing that is remembered is ever asked for
		forward = old.remembering(direct)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, stepIn := p.arrived(name, r)
		w = p.telling(w, request)
		fault := Fault{}
		if p.fault != nil {
			fault = p.fault(request)
		}
		if fault.Status == 0 && (stepIn == nil || p.moment == After) {
			p.ask(request, r)
		}
		held := *direct
		held.ModifyResponse = func(*http.Response) error {
			if stepIn != nil {
				stepIn(request)
			}
			return errHeldBack
		}
		switch {
		case stepIn != nil && p.moment == Before:
			stepIn(request)
			panic(http.ErrAbortHandler)
		case stepIn != nil:
			held.ServeHTTP(w, r)
		case fault != Fault{}:
			fault.serve(w, r, forward, &held, old)
		default:
			forward.ServeHTTP(w, r)
		}
	})
}

// Guard has f called for each request but a GET that is about to be forwarded, with its body: what f does comes before
// the server hears of the request. The context ends when the client waits for an answer no longer: the server does not
// hear of the request then. It must be called before the first request.
func (p *Proxy) Guard(f func(ctx context.Context, r Request, body []byte)) { p.guard = f }

// ask shows a request to the guard.
func (p *Proxy) ask(request Request, r *http.Request) {
	if p.guard == nil || r.Method == http.MethodGet {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.guard(r.Context(), request, body)
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

// Answers has f called for each request that is answered, before the answer's first byte is delivered, with the time at
// which the request arrived. An answer that is held back is none; one that is cut short is one. It must be called before the
// first request.
func (p *Proxy) Answers(f func(r Request, asked time.Time, status int)) { p.answers = f }

// telling tells of the answer when it begins.
func (p *Proxy) telling(w http.ResponseWriter, request Request) http.ResponseWriter {
	if p.answers == nil {
		return w
	}
	asked := time.Now()
	return &beginning{ResponseWriter: w, tell: func(status int) { p.answers(request, asked, status) }}
}

// beginning calls tell once, with the status.
type beginning struct {
	http.ResponseWriter
	tell func(status int)
	told bool
}

// Unwrap lets http.ResponseController flush.
func (b *beginning) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *beginning) WriteHeader(status int) {
	b.begin(status)
	b.ResponseWriter.WriteHeader(status)
}

func (b *beginning) Write(p []byte) (int, error) {
	b.begin(http.StatusOK)
	return b.ResponseWriter.Write(p)
}

func (b *beginning) begin(status int) {
	if !b.told && status >= http.StatusOK {
		b.told = true
		b.tell(status)
	}
}

// NextLife says that the process has ended, and that the one that asks next has not begun: the Life of its requests is
// one more. What the dead process had sent before, and comes only now, is still told from that by its connection.
func (p *Proxy) NextLife() { p.life.Add(1) }

type lifeKey struct{}

func (p *Proxy) connected(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, lifeKey{}, int(p.life.Load()))
}

// arrived numbers a request, and gives what is to be done at it, if anything.
func (p *Proxy) arrived(name string, r *http.Request) (Request, func(Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life, _ := r.Context().Value(lifeKey{}).(int)
	request := Request{Server: name, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Life: life}
	kind := p.kind(request)
	p.nth[kind]++
	request.Point = Point{Kind: kind, Nth: p.nth[kind]}
	p.requests = append(p.requests, request)
	if p.stepIn == nil || request.Point != p.at {
		return request, nil
	}
	return request, p.stepIn
}

// Close cuts all connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Kubeconfig writes a copy of a kubeconfig whose current cluster is reached at another address, without TLS.
func Kubeconfig(from, to string, server *url.URL) error {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return fmt.Errorf("kubeconfig behind a fault proxy: %w", err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return fmt.Errorf("kubeconfig %s: the cluster of the current context %q is not there", from, config.CurrentContext)
	}
	cluster := config.Clusters[current.Cluster]
	cluster.Server, cluster.CertificateAuthority, cluster.CertificateAuthorityData = server.String(), "", nil
	if err := clientcmd.WriteToFile(*config, to); err != nil {
		return fmt.Errorf("kubeconfig behind a fault proxy: %w", err)
	}
	return nil
}
