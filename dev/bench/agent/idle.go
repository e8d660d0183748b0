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
	sampleInterval = time.Second
	// scrapeInterval is a common scrape interval of Prometheus. Without scrapes the agent would use less memory than in
	// production.
	scrapeInterval = 15 * time.Second
)

// idleAgent is an agent that gets no notice for its machine. It reads the same document of events as the other
// agents, because their machines are in one scale set.
type idleAgent struct {
	b     *agentBench
	agent *testbed.Agent
	since time.Time
	stop  context.CancelFunc
	done  chan struct{}

	// Results of the samples. Read them after done is closed.
	largest int64
	err     error
}

// startIdleAgent starts an agent, and measures its memory in the background.
func (b *agentBench) startIdleAgent(ctx context.Context) (*idleAgent, error) {
	w := &idleAgent{b: b, since: time.Now(), done: make(chan struct{})}
	var err error
	if w.agent, err = b.startAgent(ctx, idleMachine); err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithDeadline(ctx, w.since.Add(b.opts.IdleTime))
	go w.sampleMemory(ctx)
	return w, nil
}

// sampleMemory reads the agent's resident memory periodically until ctx ends, and stores the largest value.
func (w *idleAgent) sampleMemory(ctx context.Context) {
	defer close(w.done)
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	scraped := time.Now()
	for {
		now, _, err := w.agent.ResidentMemory()
		if err != nil {
			w.err = err
			return
		}
		w.largest = max(w.largest, now)
		if time.Since(scraped) >= scrapeInterval {
			scraped = time.Now()
			_ = w.agent.ReadMetrics(ctx) // only the scrape matters, not its result
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (b *agentBench) measureIdleAgent(ctx context.Context) ([]result.Result, error) {
	return b.idle.awaitResults(ctx)
}

// awaitResults waits for the end of the measuring time, and returns the results.
func (w *idleAgent) awaitResults(ctx context.Context) ([]result.Result, error) {
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
	cpu, err := w.agent.CPUTime()
	if err != nil {
		return nil, fmt.Errorf("processor time of the agent: %w", err)
	}
	requests, err := w.countRequests()
	if err != nil {
		return nil, err
	}
	window := w.b.opts.IdleTime.String()
	if w.b.opts.IdleTime != IdleWindow {
		window += " INSTEAD OF " + IdleWindow.String()
	}
	setup := w.b.describeSetup("%s from the start of the process, metrics read every %s, other machines of its scale set "+
		"have notices", window, scrapeInterval)
	return []result.Result{
		{
			Name: "agent memory, idle, resident", Value: toMebibytes(w.largest), Unit: "MiB", Target: result.AtMost(16),
			Setup: setup + fmt.Sprintf("; the maximum of samples every %s", sampleInterval),
		},
		{
			Name: "API requests by an idle agent in 10 minutes, without one watch", Value: float64(requests), Unit: "requests",
			Target: result.AtMost(2), Setup: setup,
		},
		{Name: "CPU time of an idle agent in 10 minutes", Value: cpu.Seconds(), Unit: "s", Setup: setup},
	}, nil
}

// countRequests returns the number of the agent's API requests in the measuring time. It does not count the one
// watch.
func (w *idleAgent) countRequests() (int, error) {
	byNode, err := audit.AgentRequestsByNode(w.b.Cluster, w.since)
	if err != nil {
		return 0, err
	}
	all := byNode[w.agent.Node]
	if lost := byNode[audit.UnknownNode]; len(lost) > 0 {
		return 0, fmt.Errorf("audit log: %d requests of agents have no node", len(lost))
	}
	if len(all) == 0 {
		return 0, fmt.Errorf("audit log: no request by the agent of %s, although it must have read its node", w.agent.Node)
	}
	for _, r := range all {
		if r.Verb == "watch" {
			return len(all) - 1, nil
		}
	}
	return len(all), nil
}
