// Package start turns configurations into running parts. It holds the wiring that the binaries share, and no behaviour.
package start

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// agentGCPercent keeps the agent's heap near what it uses, a few mebibytes, at the price of more frequent
	// collections that cost next to nothing on so small a heap. GOGC, where it is set, wins.
	agentGCPercent = 25
	// nodeRetry is the pause between two tries to read the node at the start.
	nodeRetry = 2 * time.Second
	// stuckAfter is for how long the agent's loop may go without a turn before it is taken for stuck. Every step of a
	// turn is bounded to seconds.
	stuckAfter = 5 * time.Minute
)

// Agent runs the agent until ctx ends. It keeps traces if it is told to and tracing is not nil.
func Agent(ctx context.Context, c config.Agent, tracing Tracing, stderr io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(agentGCPercent)
	}
	log, err := observe.Logger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	log = log.With("node", c.NodeName)
	kube, err := kubeapi.LoadConfig(c.Kubeconfig)
	if err != nil {
		return err
	}
	api, err := kube.Connect("slipway-agent/" + Version())
	if err != nil {
		return err
	}
	metadata, err := azure.NewClient(azure.Options{
		Endpoint: c.Endpoint, Timeout: c.RequestTimeout, FirstTimeout: c.FirstRequestTimeout,
	})
	if err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	tracer, endTraces, err := tracing.begin(ctx, c.TraceEndpoint, log)
	if err != nil {
		return err
	}
	defer endTraces()
	return runAgent(ctx, c, log, tracer, api, metadata)
}

// runAgent serves metrics and health from the start, so that an agent that waits for its API server is not taken for
// dead, and guards the node once it knows which machine that is.
func runAgent(ctx context.Context, c config.Agent, log *slog.Logger, tracer agent.Tracer, api *kubeapi.Client,
	metadata *azure.Client,
) error {
	registry := observe.NewRegistry()
	registry.Standard(build())
	metrics := agent.NewMetrics(registry)
	alive := observe.NewHeartbeat("agent", stuckAfter)
	var running atomic.Pointer[agent.Agent]
	ready := func() error {
		if a := running.Load(); a != nil {
			return a.Ready()
		}
		return fmt.Errorf("node %s: has not been read yet", c.NodeName)
	}
	guard := func(ctx context.Context) error {
		resource, err := resourceName(ctx, c, log, api, alive)
		if err != nil {
			return err
		}
		a, err := newAgent(c, resource, log, tracer, api, metadata, metrics, alive)
		if err != nil {
			return err
		}
		running.Store(a)
		log.Info("guarding the node", "version", Version(), "resource", resource, "endpoint", c.Endpoint,
			"pollInterval", c.PollInterval.String(), "dryRun", c.DryRun)
		return a.Run(ctx)
	}
	if c.Listen == "" {
		return together(ctx, guard)
	}
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: c.Listen, Metrics: registry, Live: []observe.Check{alive.Check}, Ready: []observe.Check{ready},
		Pprof: c.Profiling, Log: log,
	})
	if err != nil {
		return err
	}
	return together(ctx, guard, server.Run)
}

func newAgent(c config.Agent, resource string, log *slog.Logger, tracer agent.Tracer, api *kubeapi.Client,
	metadata *azure.Client, metrics *agent.Metrics, alive *observe.Heartbeat,
) (*agent.Agent, error) {
	source, err := azure.NewSource(azure.SourceOptions{
		Fetcher: metadata, Resource: resource, Interval: c.PollInterval, Observer: metrics, Log: log,
	})
	if err != nil {
		return nil, err
	}
	o := agent.Options{
		Node: c.NodeName, Resource: resource, Machine: azure.ResourceName, API: api, Source: source,
		Impact: c.Impact(), Margin: c.DeadlineMargin, TaintEffect: c.TaintEffect, DryRun: c.DryRun,
		Metrics: metrics, Heartbeat: alive, Tracer: tracer, Log: log,
	}
	if c.Acknowledge && !c.DryRun {
		o.Approver = metadata
	}
	if c.WaitForDetach {
		o.Volumes = api
	}
	return agent.New(o), nil
}
