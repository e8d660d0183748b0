package agent

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/metadata"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	sampleInterval = time.Second
	// scrapeInterval is a common scrape interval of Prometheus. Without scrapes the agent would use less memory than in
	// production.
	scrapeInterval = 15 * time.Second
)

// idleAgent is an agent that gets no notice for its machine.
type idleAgent struct {
	b      *agentBench
	prefix string // of the names of its results
	// start starts the agent. It returns the metadata service that only this agent reads, and text for the conditions.
	start func(context.Context) (agent *testbed.Agent, service *metadata.Server, setup string, err error)

	agent   *testbed.Agent
	service *metadata.Server
	setup   string
	since   time.Time
	done    chan struct{}

	// Results of the samples. Read them after done is closed.
	largest  int64
	metadata int // requests
	err      error
}

// begin starts the agent, and measures its memory in the background.
func (w *idleAgent) begin(ctx context.Context) (err error) {
	w.since, w.done = time.Now(), make(chan struct{})
	if w.agent, w.service, w.setup, err = w.start(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithDeadline(ctx, w.since.Add(w.b.opts.IdleTime))
	w.b.closers = append(w.b.closers, stop)
	go w.sampleMemory(ctx)
	return nil
}

// startIdleAzureAgent starts an idle agent on Azure. It reads the same document of events as the other agents, because
// their machines are in one scale set.
func (b *agentBench) startIdleAzureAgent(ctx context.Context) (*testbed.Agent, *metadata.Server, string, error) {
	service := metadata.NewServer(b.Azure.Handler())
	b.closers = append(b.closers, service.Close)
	target, err := url.Parse(b.ScheduledEventsURL(b.pool, idleMachine))
	if err != nil {
		return nil, nil, "", err
	}
	agent, err := b.StartAgent(ctx, b.pool, idleMachine, "--endpoint", service.URL()+target.RequestURI())
	return agent, service, b.describeSetup("other machines of its scale set have notices"), err
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
			w.metadata = w.service.Requests()
			return
		case <-ticker.C:
		}
	}
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
	if w.metadata < 2 {
		return nil, fmt.Errorf("%d requests to the metadata service; the agent did not read it", w.metadata)
	}
	window := w.b.opts.IdleTime.String()
	if w.b.opts.IdleTime != IdleWindow {
		window += " INSTEAD OF " + IdleWindow.String()
	}
	setup := fmt.Sprintf("%s from the start of the process, metrics read every %s; %s", window, scrapeInterval, w.setup)
	return []result.Result{
		{
			Name: w.prefix + idleMemoryName, Value: toMebibytes(w.largest), Unit: "MiB", Target: result.AtMost(16),
			Setup: setup + fmt.Sprintf("; the maximum of samples every %s", sampleInterval),
		},
		{
			Name: w.prefix + idleRequestsName, Value: float64(requests), Unit: "requests",
			Target: result.AtMost(2), Setup: setup,
		},
		{Name: w.prefix + "requests to the metadata service by an idle agent in 10 minutes", Value: float64(w.metadata), Unit: "requests", Setup: setup},
		{Name: w.prefix + "CPU time of an idle agent in 10 minutes", Value: cpu.Seconds(), Unit: "s", Setup: setup},
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
