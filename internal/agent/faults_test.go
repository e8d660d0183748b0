package agent

import (
	"context"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// fault is an error of the requests with one verb and resource. The zero fault is none.
type fault struct {
	delay        time.Duration // until the request is answered
	hangs        bool          // the request is never answered
	code         int           // status code of the response instead of the server's
	responseLost bool          // the request is served, but the response is lost
	once         bool          // only the next request has the fault
}

// faults holds the faults of one node's requests, by verb and resource.
type faults struct {
	mu     sync.Mutex
	byVerb map[string]fault
}

// set sets the fault of requests; the zero fault removes it.
func (f *faults) set(with fault, of ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, what := range of {
		if f.byVerb == nil {
			f.byVerb = map[string]fault{}
		}
		f.byVerb[what] = with
	}
}

// next returns the fault of the next request.
func (f *faults) next(what string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	with := f.byVerb[what]
	if with.once {
		delete(f.byVerb, what)
	}
	return with
}

// serve serves a request until its context ends or the client's timeout passes.
func (f *faults) serve(ctx context.Context, what string, do func() error) error {
	with := f.next(what)
	ctx, cancel := context.WithTimeout(ctx, kubeapi.DefaultTimeout)
	defer cancel()
	if with.hangs && !with.responseLost {
		<-ctx.Done()
	}
	if with.delay > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(with.delay):
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if with.code != 0 {
		return &kubeapi.StatusError{Code: with.code, Reason: "Injected"}
	}
	err := do()
	switch {
	case with.responseLost && with.hangs:
		<-ctx.Done()
		return ctx.Err()
	case with.responseLost:
		return &kubeapi.StatusError{Code: 504, Reason: "Timeout"}
	}
	return err
}

// nodeRequests are the agent's requests for its Node. allRequests are all requests that may fail.
var (
	nodeRequests = []string{"get nodes", "list nodes", "patch nodes", "patch nodes/status"}
	allRequests  = append([]string{"create events", "list pods", "list leases", "create leases", "update leases"}, nodeRequests...)
)

func drawFault(t *rapid.T) fault {
	return rapid.SampledFrom([]fault{
		{}, {hangs: true}, {hangs: true, responseLost: true}, {responseLost: true}, {code: 503}, {code: 429}, {code: 500}, {code: 403},
		{delay: 100 * time.Millisecond}, {delay: 3 * time.Second}, {delay: 10 * time.Second},
	}).Draw(t, "fault")
}
