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

// Fault is an error injected into one request. The zero Fault does nothing.
type Fault struct {
	// Delay is the time before the request is forwarded.
	Delay time.Duration
	// Status is returned without forwarding the request. A 429 has a Retry-After of 1 second, the shortest possible.
	Status int
	// LoseResponse cuts the connection after the server has answered: the server has acted, but the client does not know.
	LoseResponse bool
	// CutAfterBytes is the number of response bytes before the connection is cut. It also cuts watches.
	CutAfterBytes int
	// StaleWithin is the maximum age of an earlier response to the same GET, which is returned instead of a new one. It
	// emulates a server that lags behind. Without such a response, the request is forwarded.
	StaleWithin time.Duration
	// WatchLag is the delay of the events of a watch. Other requests ignore it.
	WatchLag time.Duration
}

// SetFaults sets the function that returns the fault of each request. The function may be called concurrently. Call
// SetFaults before Serve.
func (p *Proxy) SetFaults(f func(Request) Fault) { p.fault = f }

// FaultRates configures the faults of NewFaultSchedule.
type FaultRates struct {
	// Percent is the percentage of requests that fail.
	Percent int
	// Delay and Stale are the maximum delay of a response or event, and the maximum age of a stale response.
	Delay, Stale time.Duration
}

// NewFaultSchedule returns a function for SetFaults. The function selects the requests that fail, and their faults,
// from the seed. The same seed and the same sequence of requests give the same faults.
func NewFaultSchedule(seed uint64, odds FaultRates) func(Request) Fault {
	return func(r Request) Fault {
		h := uint64(14695981039346656037) // FNV-1a over what the request is
		for _, b := range []byte(fmt.Sprint(r.RequestID)) {
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
			return Fault{LoseResponse: true}
		case 5:
			return Fault{CutAfterBytes: 1 + random.IntN(2000)}
		}
		// Stale reads are the likeliest to cause errors.
		return Fault{StaleWithin: odds.Stale, WatchLag: late}
	}
}

func (f Fault) serveFaulty(w http.ResponseWriter, r *http.Request, forward http.Handler, lagging *httputil.ReverseProxy, old *responseCache) {
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
		}
	}
	switch {
	case f.Status != 0:
		f.writeError(w, r)
	case f.LoseResponse:
		lagging.ServeHTTP(w, r)
	case f.CutAfterBytes > 0:
		forward.ServeHTTP(&truncatingWriter{ResponseWriter: w, left: f.CutAfterBytes}, r)
	case f.WatchLag > 0 && isWatch(r):
		late := newDelayedWriter(w, r, f.WatchLag)
		defer late.close()
		forward.ServeHTTP(late, r)
	case f.StaleWithin > 0 && old.serveCached(w, r, f.StaleWithin):
	default:
		forward.ServeHTTP(w, r)
	}
}

func isWatch(r *http.Request) bool {
	watch, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	return watch
}

// writeError writes an error response. A path that begins with /subscriptions/ gets the format of Azure Resource
// Manager; other paths get the API server's format.
func (f Fault) writeError(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if f.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(f.Status)
	if strings.HasPrefix(r.URL.Path, "/subscriptions/") {
		_, _ = fmt.Fprintf(w, `{"error":{"code":"Injected","message":"injected by the fault proxy"}}`)
		return
	}
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"injected by the fault proxy","code":%d}`, f.Status)
}

// truncatingWriter writes a limited number of bytes of a response, and then cuts the connection.
type truncatingWriter struct {
	http.ResponseWriter
	left int
}

// Unwrap gives http.ResponseController access to Flush.
func (c *truncatingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *truncatingWriter) Write(b []byte) (int, error) {
	if len(b) < c.left {
		c.left -= len(b)
		return c.ResponseWriter.Write(b)
	}
	_, _ = c.ResponseWriter.Write(b[:c.left])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}
