package start

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
)

// NodeAgents builds agents of several nodes in one process. They have the same policy, taint, labels and notifications,
// and read no notices themselves: Sources of each agent come from the caller.
type NodeAgents struct {
	API      *kubeapi.Client
	Registry *observe.Registry
	Log      *slog.Logger

	config   config.Agent
	options  AgentOptions
	metrics  *agent.Metrics
	notifier *notify.Notifier
	tracer   observe.Tracer
	close    func()
}

// NewNodeAgents validates c, connects to the API server and registers the metrics of agents. c.NodeName has to be empty.
// The caller calls Close at the end.
func NewNodeAgents(ctx context.Context, c config.Agent, x AgentOptions, stderr io.Writer) (*NodeAgents, error) {
	c = withoutOwnSources(c)
	if err := c.Validate(); err != nil {
		return nil, err
	}
	log, err := observe.NewLogger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return nil, err
	}
	if x.WrapLogHandler != nil {
		log = slog.New(x.WrapLogHandler(log.Handler()))
	}
	n := &NodeAgents{Log: log, Registry: observe.NewRegistry(), config: c, options: x}
	if n.API, err = x.newAPIClient(c.Kubeconfig); err != nil {
		return nil, err
	}
	if n.notifier, err = notify.NewNotifier(c.Notifications, notify.Options{
		Log: log, Metrics: n.Registry, UserAgent: "slipway-agent/" + Version(), Wrap: x.newTransportWrapper(Receivers), WarnOnInvalidTemplates: x.WarnOfTemplates,
		TemplateData: x.TemplateData,
	}); err != nil {
		return nil, err
	}
	if x.RegisterMetrics != nil {
		x.RegisterMetrics(n.Registry)
	}
	n.metrics = agent.NewMetrics(n.Registry)
	n.tracer, n.close, err = x.OpenTracing.startTracing(ctx, c.TraceEndpoint, log)
	return n, err
}

// placeholderNode is the NodeName while the options are validated. Each agent then gets its own.
const placeholderNode = "queue"

// withoutOwnSources disables the sources of notices that an agent on its node would read.
func withoutOwnSources(c config.Agent) config.Agent {
	c.NodeName, c.Cloud, c.NoticeSources, c.Conditions, c.OnUnconfirmed = placeholderNode, config.CloudNone, nil, nil, string(agent.Ignore)
	c.ExitAfterDrain = false
	return c
}

// SetMemoryLimits keeps the heap small, as for an agent on a node. It is for a process that does nothing else.
func SetMemoryLimits() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(agentGCPercent)
	}
}

// New returns the agent of one node. resource is the name of its instance in notices. adapt changes the agent's options.
func (n *NodeAgents) New(node *kubeapi.Node, resource string, source agent.Source, adapt func(*agent.Options)) (*agent.Agent, error) {
	c, x := n.config, n.options
	c.NodeName = node.Name
	x.Sources, x.adaptAgent = append([]agent.Source{source}, x.Sources...), adapt
	own := instance{node: node, cloud: config.CloudNone, resource: resource}
	a, _, err := newAgent(c, x, own, n.Log.With("node", node.Name), n.tracer, n.API, n.metrics.ForOneNode(), observe.NewHeartbeat("agent", stuckTimeout), n.notifier)
	return a, err
}

// Run sends notifications and serves metrics and health until ctx ends or part fails.
func (n *NodeAgents) Run(ctx context.Context, live, ready observe.Check, part func(context.Context) error) error {
	run := func(ctx context.Context) error { return n.RunNotified(ctx, part) }
	if n.config.Listen == "" {
		return runAllUntilFailure(ctx, run)
	}
	n.Registry.AddStandardMetrics(buildInfo())
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: n.config.Listen, Metrics: n.Registry, Live: []observe.Check{live}, Ready: []observe.Check{ready},
		Pprof: n.config.Profiling, Log: n.Log, Routes: n.routes(live), Private: n.options.AuthorizeProfiles,
	})
	if err != nil {
		return err
	}
	return runAllUntilFailure(ctx, run, server.Run)
}

func (n *NodeAgents) routes(live observe.Check) map[string]http.Handler {
	if n.options.NewRoutes == nil {
		return nil
	}
	return n.options.NewRoutes(AgentAccess{CheckLive: live, Metrics: n.Registry, AwaitDrained: func(context.Context, string, string) error {
		return errors.New("the queue mode drains no node on request")
	}})
}

// RunNotified runs part, and sends the notifications of its agents.
func (n *NodeAgents) RunNotified(ctx context.Context, part func(context.Context) error) error {
	return runWithNotifier(ctx, n.notifier, part)
}

// Policy returns the policy of the agents.
func (n *NodeAgents) Policy() agent.NoticePolicy {
	policy := n.config.BuildNoticePolicy()
	policy.ActionFor = n.options.ActionFor
	return policy
}

// Close sends the remaining spans.
func (n *NodeAgents) Close() { n.close() }
