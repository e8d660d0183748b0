package testbed

import (
	"context"
	"net/http"
	"net/url"
	"sync"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// PlayedAgent is an agent in this process, on a machine of a testbed in memory.
type PlayedAgent struct {
	start func(ctx context.Context) (kill func())

	ctx context.Context //nolint:containedctx // the agent's own context outlives the calls
	powerSupply
	kill    func()
	running sync.WaitGroup
}

// PlayAgent starts an agent on a node behind a proxy. Each start calls run with new transports.
func (t *Testbed) PlayAgent(ctx context.Context, node string, proxy *faultproxy.Proxy,
	run func(ctx context.Context, metadata, api http.RoundTripper, server *url.URL),
) (*PlayedAgent, error) {
	server, err := url.Parse(t.RESTConfig().Host)
	if err != nil {
		return nil, err
	}
	api := proxy.ServeDirect("api", server, t.RESTConfig().Transport)
	metadata := proxy.ServeDirect("metadata", t.base, faultproxy.Direct(t.Azure.Handler()))
	a := &PlayedAgent{ctx: ctx}
	a.start = func(ctx context.Context) func() {
		life := proxy.Begin()
		ctx, cancel := context.WithCancel(ctx)
		a.running.Go(func() { run(ctx, metadata.Of(life, nil), api.Of(life, nil), server) })
		return func() { life.End(); cancel() }
	}
	t.mu.Lock()
	t.agents[node] = a
	t.mu.Unlock()
	return a, a.Revive(ctx)
}

// Crash kills the agent, unless it is dead already.
func (a *PlayedAgent) Crash() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kill != nil {
		a.kill()
		a.kill = nil
	}
	return nil
}

// Revive starts a dead agent again, unless its machine has no power.
func (a *PlayedAgent) Revive(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.off && a.kill == nil {
		a.kill = a.start(a.ctx) //nolint:contextcheck // it outlives the call
	}
	return nil
}

// Wait waits until all killed agents have ended.
func (a *PlayedAgent) Wait() { a.running.Wait() }
