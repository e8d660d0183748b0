package testbed

import (
	"context"
	"net/http"
	"net/url"
	"sync"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// InProcessAgent is an agent in this process, on a machine of a testbed in memory.
type InProcessAgent struct {
	start func(ctx context.Context) (kill func())

	ctx context.Context //nolint:containedctx // the agent's own context outlives the calls
	powerSupply
	kill    func()
	running sync.WaitGroup
}

// StartInProcessAgent starts an agent on a node behind a proxy. Each start calls run with new transports.
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

// KillIfAlive kills the agent, unless it is dead already.
func (a *InProcessAgent) KillIfAlive() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kill != nil {
		a.kill()
		a.kill = nil
	}
	return nil
}

// RestartIfDead starts a dead agent again, unless its machine has no power.
func (a *InProcessAgent) RestartIfDead(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.off && a.kill == nil {
		a.kill = a.start(a.ctx) //nolint:contextcheck // it outlives the call
	}
	return nil
}

// Wait waits until all killed agents have ended.
func (a *InProcessAgent) Wait() { a.running.Wait() }
