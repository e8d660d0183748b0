package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"
)

// Fault is what goes wrong with one request. The zero Fault is none.
type Fault struct {
	// Delay comes before the request is forwarded.
	Delay time.Duration
	// Status is answered in the server's place, which never hears of the request.
	Status int
	// Lost cuts the connection once the server has answered: it has done what it was asked, and nobody knows.
	Lost bool
	// Cut is after how many bytes of the answer the connection is cut; a watch is dropped so, too.
	Cut int
}

// Faults has f called for each request, at any time. It must be called before the first request.
func (p *Proxy) Faults(f func(Request) Fault) { p.fault = f }

// Schedule is a function for Faults that fails so many in a hundred requests, in ways that the seed decides: the same
// for the same sequence of requests.
func Schedule(seed uint64, percent int) func(Request) Fault {
	return func(r Request) Fault {
		h := uint64(14695981039346656037) // FNV-1a over what the request is
		for _, b := range []byte(fmt.Sprint(r.Point)) {
			h = (h ^ uint64(b)) * 1099511628211
		}
		random := rand.New(rand.NewPCG(seed, h))
		if random.IntN(100) >= percent {
			return Fault{}
		}
		switch random.IntN(6) {
		case 0:
			return Fault{Delay: time.Duration(1+random.IntN(1500)) * time.Millisecond}
		case 1:
			return Fault{Status: http.StatusTooManyRequests}
		case 2:
			return Fault{Status: http.StatusInternalServerError}
		case 3:
			return Fault{Status: http.StatusServiceUnavailable}
		case 4:
			return Fault{Lost: true}
		}
		return Fault{Cut: 1 + random.IntN(2000)}
	}
}

func (f Fault) serve(w http.ResponseWriter, r *http.Request, forward *httputil.ReverseProxy) {
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
		}
	}
	switch {
	case f.Status != 0:
		f.refuse(w, r)
	case f.Lost:
		served := *forward
		served.ModifyResponse = func(*http.Response) error { return errHeldBack }
		served.ServeHTTP(w, r)
	case f.Cut > 0:
		forward.ServeHTTP(&cutting{ResponseWriter: w, left: f.Cut}, r)
	default:
		forward.ServeHTTP(w, r)
	}
}

// refuse answers as the API server does, or as ARM does.
func (f Fault) refuse(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if f.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(f.Status)
	if strings.HasPrefix(r.URL.Path, "/subscriptions/") {
		_, _ = fmt.Fprintf(w, `{"error":{"code":"Injected","message":"fault of the proxy"}}`)
		return
	}
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"fault of the proxy","code":%d}`, f.Status)
}

// cutting cuts the connection after so many bytes.
type cutting struct {
	http.ResponseWriter
	left int
}

// Unwrap lets http.ResponseController flush.
func (c *cutting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutting) Write(b []byte) (int, error) {
	if len(b) < c.left {
		c.left -= len(b)
		return c.ResponseWriter.Write(b)
	}
	_, _ = c.ResponseWriter.Write(b[:c.left])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}
