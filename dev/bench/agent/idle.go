package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	sampleEvery = time.Second
	// scrapeEvery is how often Prometheus reads the metrics in many clusters. An agent that nobody looks at would be
	// smaller than it is in earnest.
	scrapeEvery = 15 * time.Second
)

// idle is an agent that no notice is for. It shares the document with the machines that have some, as machines of one
// scale set do.
type idle struct {
	b     *bench
	agent *testbed.Agent
	since time.Time
	stop  context.CancelFunc
	done  chan struct{}

	// Of the samples; to be read when done is closed.
	largest int64
	err     error
}

// watchIdle starts an agent and begins to watch it.
func (b *bench) watchIdle(ctx context.Context) (*idle, error) {
	w := &idle{b: b, since: time.Now(), done: make(chan struct{})}
	var err error
	if w.agent, err = b.guard(ctx, idleMachine); err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithDeadline(ctx, w.since.Add(b.o.Idle))
	go w.sample(ctx)
	return w, nil
}

// sample weighs the agent again and again until ctx ends.
func (w *idle) sample(ctx context.Context) {
	defer close(w.done)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	scraped := time.Now()
	for {
		now, _, err := w.agent.Resident()
		if err != nil {
			w.err = err
			return
		}
		w.largest = max(w.largest, now)
		if time.Since(scraped) >= scrapeEvery {
			scraped = time.Now()
			_ = w.agent.Metrics(ctx) // what it says is of no interest here
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (b *bench) idleResults(ctx context.Context) ([]result.Result, error) { return b.idle.results(ctx) }

// results waits for the end of the window.
func (w *idle) results(ctx context.Context) ([]result.Result, error) {
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if w.err != nil {
		return nil, fmt.Errorf("memory of the agent: %w", w.err)
	}
	cpu, err := w.agent.CPU()
	if err != nil {
		return nil, fmt.Errorf("processor time of the agent: %w", err)
	}
	requests, err := w.requests()
	if err != nil {
		return nil, err
	}
	window := w.b.o.Idle.String()
	if w.b.o.Idle != IdleWindow {
		window += " INSTEAD OF " + IdleWindow.String()
	}
	setup := w.b.setup("window of %s from the start of the process, metrics read every %s, other machines of its scale set "+
		"having notices", window, scrapeEvery)
	return []result.Result{
		{
			Name: "agent memory, idle, resident", Value: mebibytes(w.largest), Unit: "MiB", Reach: result.AtMost(16),
			Setup: setup + fmt.Sprintf("; the largest of the samples taken every %s", sampleEvery),
		},
		{
			Name: "API requests by an idle agent in 10 minutes, one watch aside", Value: float64(requests), Unit: "requests",
			Reach: result.AtMost(2), Setup: setup,
		},
		{Name: "CPU time of an idle agent in 10 minutes", Value: cpu.Seconds(), Unit: "s", Setup: setup},
	}, nil
}

// requests counts what the agent asked in the window, but for one watch.
func (w *idle) requests() (int, error) {
	byNode, err := audit.Requests(w.b.Cluster, w.since)
	if err != nil {
		return 0, err
	}
	all := byNode[w.agent.Node]
	if lost := byNode[audit.Nobody]; len(lost) > 0 {
		return 0, fmt.Errorf("audit log: %d requests are an agent's, and of which node is not known", len(lost))
	}
	if len(all) == 0 {
		return 0, fmt.Errorf("audit log: no request by the agent of %s, which cannot be: it has read its node", w.agent.Node)
	}
	for _, r := range all {
		if r.Verb == "watch" {
			return len(all) - 1, nil
		}
	}
	return len(all), nil
}
