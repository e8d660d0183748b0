package agent

import (
	"context"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// fault is what goes wrong with the requests of one verb and resource. The zero fault is none.
type fault struct {
	takes time.Duration // until the request is answered
	hangs bool          // it is never answered
	code  int           // the status that is answered in the server's place
	lost  bool          // the request is served, and its answer is lost
	once  bool          // only the next request has the fault
}

// faults are what goes wrong with one machine's requests, by verb and resource.
type faults struct {
	mu sync.Mutex
	by map[string]fault
}

// set has the requests of these verbs and resources fail from now on; the zero fault mends them.
func (f *faults) set(with fault, of ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, what := range of {
		if f.by == nil {
			f.by = map[string]fault{}
		}
		f.by[what] = with
	}
}

// next returns the fault of the next request of a verb and resource.
func (f *faults) next(what string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	with := f.by[what]
	if with.once {
		delete(f.by, what)
	}
	return with
}

// serve serves a request, which ends with its context or with the client's own timeout.
func (f *faults) serve(ctx context.Context, what string, do func() error) error {
	with := f.next(what)
	ctx, cancel := context.WithTimeout(ctx, kubeapi.DefaultTimeout)
	defer cancel()
	if with.hangs && !with.lost {
		<-ctx.Done()
	}
	if with.takes > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(with.takes):
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
	case with.lost && with.hangs:
		<-ctx.Done()
		return ctx.Err()
	case with.lost:
		return &kubeapi.StatusError{Code: 504, Reason: "Timeout"}
	}
	return err
}

// nodeRequests are the agent's requests for its Node, and verbs are all its requests that may fail.
var (
	nodeRequests = []string{"get nodes", "list nodes", "patch nodes", "patch nodes/status"}
	verbs        = append([]string{"create events", "list pods", "list leases", "create leases", "update leases"}, nodeRequests...)
)

func drawFault(t *rapid.T) fault {
	return rapid.SampledFrom([]fault{
		{}, {hangs: true}, {hangs: true, lost: true}, {lost: true}, {code: 503}, {code: 429}, {code: 500}, {code: 403},
		{takes: 100 * time.Millisecond}, {takes: 3 * time.Second}, {takes: 10 * time.Second},
	}).Draw(t, "fault")
}
