package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"
)

// Fault is what goes wrong with one request. The zero Fault is none.
type Fault struct {
	// Delay comes before the request is forwarded.
	Delay time.Duration
	// Status is answered in the server's place, which never hears of the request. A 429 comes with a Retry-After of a
	// second, the shortest there is.
	Status int
	// Lost cuts the connection once the server has answered: it has done what it was asked, and nobody knows.
	Lost bool
	// Cut is after how many bytes of the answer the connection is cut; a watch is dropped so, too.
	Cut int
	// Stale answers a GET with what the same GET was answered before, if that is not longer ago than this: the answer of
	// a server that lags behind. Where there is no such answer, the request passes.
	Stale time.Duration
	// Lag is by how much the events of a watch come late. It means nothing for other requests.
	Lag time.Duration
}

// Faults has f called for each request, at any time. It must be called before Serve.
func (p *Proxy) Faults(f func(Request) Fault) { p.fault = f }

// Odds say how much goes wrong in a Schedule.
type Odds struct {
	// Percent is how many in a hundred requests fail in one way or another.
	Percent int
	// Delay and Stale bound by how much an answer or an event comes late, and how old what is answered is.
	Delay, Stale time.Duration
}

// Schedule is a function for Faults in which a seed decides which requests fail, and how: the same for the same sequence
// of requests.
func Schedule(seed uint64, odds Odds) func(Request) Fault {
	return func(r Request) Fault {
		h := uint64(14695981039346656037) // FNV-1a over what the request is
		for _, b := range []byte(fmt.Sprint(r.Point)) {
			h = (h ^ uint64(b)) * 1099511628211
		}
		random := rand.New(rand.NewPCG(seed, h))
		if random.IntN(100) >= odds.Percent {
			return Fault{}
		}
		late := 1 + time.Duration(random.Int64N(int64(odds.Delay)))
		switch random.IntN(8) {
		case 0:
			return Fault{Delay: late}
		case 1:
			return Fault{Status: http.StatusTooManyRequests}
		case 2:
			return Fault{Status: http.StatusInternalServerError}
		case 3:
			return Fault{Status: http.StatusServiceUnavailable}
		case 4:
			return Fault{Lost: true}
		case 5:
			return Fault{Cut: 1 + random.IntN(2000)}
		}
		// What is read is the likeliest to mislead.
		return Fault{Stale: odds.Stale, Lag: late}
	}
}

func (f Fault) serve(w http.ResponseWriter, r *http.Request, forward http.Handler, held *httputil.ReverseProxy, old *memory) {
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
		held.ServeHTTP(w, r)
	case f.Cut > 0:
		forward.ServeHTTP(&cutting{ResponseWriter: w, left: f.Cut}, r)
	case f.Lag > 0 && isWatch(r):
		late := newLagging(w, r, f.Lag)
		defer late.close()
		forward.ServeHTTP(late, r)
	case f.Stale > 0 && old.serve(w, r, f.Stale):
	default:
		forward.ServeHTTP(w, r)
	}
}

func isWatch(r *http.Request) bool {
	watch, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	return watch
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
