package testbed

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

// InProcessAgent is an agent that runs in this process, for a machine of a testbed in memory.
type InProcessAgent struct {
	start func(ctx context.Context) (kill func())

	ctx context.Context //nolint:containedctx // the agent's own context outlives the calls
	powerSupply
	kill    func()
	running sync.WaitGroup
}

// StartInProcessAgent starts an agent for a node. All requests of the agent go through the proxy. Each start and
// restart calls the function run with new transports.
func (t *Testbed) StartInProcessAgent(ctx context.Context, node string, proxy *faultproxy.Proxy,
	run func(ctx context.Context, metadata, api http.RoundTripper, server *url.URL),
) (*InProcessAgent, error) {
	server, err := url.Parse(t.RESTConfig().Host)
	if err != nil {
		return nil, err
	}
	api := proxy.ServeDirect("api", server, t.RESTConfig().Transport)
	metadata := proxy.ServeDirect("metadata", t.base, faultproxy.NewDirectTransport(t.Azure.Handler()))
	a := &InProcessAgent{ctx: ctx}
	a.start = func(ctx context.Context) func() {
		life := proxy.StartLife()
		ctx, cancel := context.WithCancel(ctx)
		a.running.Go(func() { run(ctx, metadata.Transport(life, nil), api.Transport(life, nil), server) })
		return func() { life.Kill(); cancel() }
	}
	t.mu.Lock()
	t.agents[node] = a
	t.mu.Unlock()
	return a, a.RestartIfDead(ctx)
}

// KillIfAlive kills the agent. If the agent has ended already, it does nothing.
func (a *InProcessAgent) KillIfAlive() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kill != nil {
		a.kill()
		a.kill = nil
	}
	return nil
}

// RestartIfDead starts the agent again if it was killed. If its machine has no power, it does nothing.
func (a *InProcessAgent) RestartIfDead(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.off && a.kill == nil {
		a.kill = a.start(a.ctx) //nolint:contextcheck // it outlives the call
	}
	return nil
}

// Wait waits until every killed run of the agent has returned.
func (a *InProcessAgent) Wait() { a.running.Wait() }

// StartInProcessAgentForTest runs the agent of an instance in this process, with the given flags. When the test ends, it kills
// the agent, and prints its log if the test failed.
func (t *Testbed) StartInProcessAgentForTest(ctx context.Context, tb testing.TB, pool controlplane.AKSPool, instance int,
	proxy *faultproxy.Proxy, flags ...string,
) *InProcessAgent {
	tb.Helper()
	var c config.Agent
	set := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.RegisterFlags(set)
	if err := set.Parse(append([]string{"--node-name", pool.NodeName(instance), "--endpoint", t.ScheduledEventsURL(pool, instance)}, flags...)); err != nil {
		tb.Fatal(err)
	}
	log := &LogBuffer{}
	a, err := t.StartInProcessAgent(ctx, c.NodeName, proxy, func(ctx context.Context, metadata, api http.RoundTripper, server *url.URL) {
		o, err := NewAgentOptions(ctx, c, metadata, api, server, slog.New(slog.NewTextHandler(log, nil)))
		if err == nil {
			err = agent.New(o).Run(ctx)
		}
		if err != nil && ctx.Err() == nil {
			tb.Error(err)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = a.KillIfAlive() // always nil
		a.Wait()
		if tb.Failed() {
			tb.Logf("log of the agent on %s:\n%s", c.NodeName, log)
		}
	})
	return a
}

// agentLives numbers the runs of agents in this process, as process IDs do.
var agentLives atomic.Int64

// NewAgentOptions returns the options of an agent with a configuration, as its program computes them. The agent sends its
// requests through the transports metadata and api.
func NewAgentOptions(
	ctx context.Context, c config.Agent, metadata, api http.RoundTripper, server *url.URL, log *slog.Logger,
) (agent.Options, error) {
	kube, err := (kubeapi.Config{Server: server, Wrap: func(http.RoundTripper) http.RoundTripper { return api }}).NewClient("slipway-agent/test")
	if err != nil {
		return agent.Options{}, err
	}
	client, err := azure.NewClient(azure.Options{
		Endpoint: c.Endpoint, Timeout: c.RequestTimeout, FirstTimeout: c.FirstRequestTimeout,
		Wrap: func(http.RoundTripper) http.RoundTripper { return metadata },
	})
	if err != nil {
		return agent.Options{}, err
	}
	node, err := kube.GetNode(ctx, c.NodeName)
	if err != nil {
		return agent.Options{}, err
	}
	resource, err := providerid.ScheduledEventName(node.Spec.ProviderID)
	if err != nil {
		return agent.Options{}, err
	}
	metrics := agent.NewMetrics(observe.NewRegistry())
	source, err := azure.NewSource(azure.SourceOptions{
		Fetcher: client, Resource: resource, Interval: c.PollInterval, ClockAhead: client.ClockAhead, Observer: metrics, Log: log,
	})
	if err != nil {
		return agent.Options{}, err
	}
	o := agent.Options{
		Node: c.NodeName, ResourceName: resource, InstanceName: providerid.ScheduledEventName, API: kube, InitialNode: node, Sources: []agent.Source{source},
		Approver: client, Policy: c.BuildNoticePolicy(), DeadlineMargin: c.DeadlineMargin, Taint: c.BuildTaint(), GracePeriodSeconds: &c.GracePeriod,
		StopTimeout: c.StopGrace, Metrics: metrics, Heartbeat: observe.NewHeartbeat("agent", time.Hour), Log: log,
	}
	mode, err := surge.ParseMode(c.Surge)
	if err == nil && mode.Enabled() {
		o.Surger, err = surge.New(surge.Options{
			API: kube, Namespace: c.Namespace, Identity: fmt.Sprintf("%s/%d", c.NodeName, agentLives.Add(1)), Mode: mode, Logger: log,
		})
	}
	return o, err
}
