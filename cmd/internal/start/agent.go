// Package start turns configurations into running parts. It holds the wiring that the binaries share, and no behaviour.
package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notice/condition"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/slots"
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

// Extras are what others see of an agent beside what it always shows. The zero value is nothing.
type Extras struct {
	// Voice puts Kubernetes Events into other words.
	Voice agent.Voice
	// Metrics defines more metrics.
	Metrics func(*observe.Registry)
	// Wrap wraps the transport of the requests to one of APIServer, Metadata and Receivers, so that they can be measured.
	Wrap func(to string, next http.RoundTripper) http.RoundTripper
	// Polls is told of every look at the notices, as the agent's own metrics are.
	Polls azure.Observer
	// Sources tell of more notices; Conditions are the actions for theirs, by ID.
	Sources    []agent.Source
	Conditions map[string]agent.Action
	// ConditionsNeedMetadata is NeedsMetadata of condition.Options, and LabelOwnCordon is agent.Options'.
	ConditionsNeedMetadata, LabelOwnCordon bool
	// Known is called once, before the agent guards its node, with this machine's name in its notices.
	Known func(resource string)
	// Log wraps the handler of what is logged.
	Log func(slog.Handler) slog.Handler
	// WarnOfTemplates is of notify.Options.
	WarnOfTemplates bool
	// Routes are served beside /metrics, /healthz and /readyz, and in their place where the path is the same.
	Routes func(Inside) map[string]http.Handler
	// Tracing keeps traces where the configuration asks for some; nil cannot.
	Tracing Tracing
	// Private decides who may see profiles; nil is everybody.
	Private func(*http.Request) error
	// Connect reaches the API server with a kubeconfig that has credentials which package kubeapi does not support, such as
	// those of another program; nil cannot.
	Connect func(kubeconfig, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*kubeapi.Client, error)
}

// Inside is what extra paths may ask of the agent.
type Inside struct {
	// Live says why the process is not healthy.
	Live func() error
	// Await is agent.Agent's, and waits for the agent too.
	Await func(ctx context.Context, source, id string) error
	// Metrics serves the page that Routes may serve in another way.
	Metrics http.Handler
}

// The destinations of requests that Extras.Wrap can tell apart.
const (
	APIServer = "apiserver"
	Metadata  = "metadata"
	Receivers = "receivers"
)

func (x Extras) wrap(to string) func(http.RoundTripper) http.RoundTripper {
	if x.Wrap == nil {
		return nil
	}
	return func(next http.RoundTripper) http.RoundTripper { return x.Wrap(to, next) }
}

// connect makes the client of the API server.
func (x Extras) connect(kubeconfig string) (*kubeapi.Client, error) {
	userAgent := "slipway-agent/" + Version()
	c, err := kubeapi.LoadConfig(kubeconfig)
	if errors.Is(err, kubeapi.ErrCredentials) && x.Connect != nil {
		return x.Connect(kubeconfig, userAgent, x.wrap(APIServer))
	}
	if err != nil {
		return nil, err
	}
	c.Wrap = x.wrap(APIServer)
	return c.Connect(userAgent)
}

// Agent runs the agent until ctx ends.
func Agent(ctx context.Context, c config.Agent, stderr io.Writer) error {
	return AgentWith(ctx, c, Extras{}, stderr)
}

// AgentWith runs the agent with extras until ctx ends.
func AgentWith(ctx context.Context, c config.Agent, x Extras, stderr io.Writer) error {
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
	if x.Log != nil {
		log = slog.New(x.Log(log.Handler()))
	}
	log = log.With("node", c.NodeName)
	api, err := x.connect(c.Kubeconfig)
	if err != nil {
		return err
	}
	metadata, err := azure.NewClient(azure.Options{
		Endpoint: c.Endpoint, Timeout: c.RequestTimeout, FirstTimeout: c.FirstRequestTimeout, Wrap: x.wrap(Metadata),
	})
	if err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	registry := observe.NewRegistry()
	notifier, err := notify.New(c.Notifications, notify.Options{
		Log: log, Metrics: registry, UserAgent: "slipway-agent/" + Version(), Wrap: x.wrap(Receivers), WarnOfTemplates: x.WarnOfTemplates,
	})
	if err != nil {
		return err
	}
	if x.Metrics != nil {
		x.Metrics(registry)
	}
	tracer, endTraces, err := x.Tracing.begin(ctx, c.TraceEndpoint, log)
	if err != nil {
		return err
	}
	defer endTraces()
	err = runAgent(ctx, c, x, log, tracer, api, metadata, registry, notifier)
	if errors.Is(err, agent.ErrDrained) {
		log.Info("the node is drained, and this process was to end then")
		return nil
	}
	return err
}

// runAgent serves metrics and health from the start, so that an agent that waits for its API server is not taken for
// dead, and guards the node once it knows which machine that is.
func runAgent(ctx context.Context, c config.Agent, x Extras, log *slog.Logger, tracer observe.Tracer, api *kubeapi.Client,
	metadata *azure.Client, registry *observe.Registry, notifier *notify.Notifier,
) error {
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
		resource, found, err := resourceName(ctx, c, log, api, alive)
		if err != nil {
			return err
		}
		if x.Known != nil {
			x.Known(resource)
		}
		a, err := newAgent(c, x, resource, found, log, tracer, api, metadata, metrics, alive, notifier)
		if err != nil {
			return err
		}
		running.Store(a)
		log.Info("guarding the node", "version", Version(), "resource", resource, "endpoint", c.Endpoint,
			"pollInterval", c.PollInterval.String(), "dryRun", c.DryRun)
		return telling(ctx, notifier, a.Run)
	}
	if c.Listen == "" {
		return together(ctx, guard)
	}
	var routes map[string]http.Handler
	if x.Routes != nil {
		routes = x.Routes(Inside{Live: alive.Check, Metrics: registry, Await: func(ctx context.Context, source, id string) error {
			return await(ctx, &running, source, id)
		}})
	}
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: c.Listen, Metrics: registry, Live: []observe.Check{alive.Check}, Ready: []observe.Check{ready},
		Pprof: c.Profiling, Log: log, Routes: routes, Private: x.Private,
	})
	if err != nil {
		return err
	}
	return together(ctx, guard, server.Run)
}

func newAgent(c config.Agent, x Extras, resource string, found *kubeapi.Node, log *slog.Logger, tracer observe.Tracer,
	api *kubeapi.Client, metadata *azure.Client, metrics *agent.Metrics, alive *observe.Heartbeat,
	notifier *notify.Notifier,
) (*agent.Agent, error) {
	source, err := azure.NewSource(azure.SourceOptions{
		Fetcher: metadata, Resource: resource, Interval: c.PollInterval, ClockAhead: metadata.ClockAhead,
		Observer: x.observe(metrics), Log: log,
	})
	if err != nil {
		return nil, err
	}
	o := agent.Options{
		Node: c.NodeName, Resource: resource, Machine: providerid.ResourceName, API: api, Found: found,
		Sources: append([]agent.Source{source}, x.Sources...), ConditionDrain: c.ConditionDrainTimeout,
		Impact: c.Impact(), Margin: c.DeadlineMargin, Taint: c.Taint(), Labels: c.Labels, DryRun: c.DryRun,
		LabelOwnCordon: x.LabelOwnCordon,
		GraceSeconds:   &c.GracePeriod, DisableEviction: c.DisableEviction,
		StopGrace: c.StopGrace, ExitAfterDrain: c.ExitAfterDrain, Voice: x.Voice,
		Metrics: metrics, Heartbeat: alive, Tracer: tracer, Log: log,
	}
	maps.Copy(o.Impact.Conditions, x.Conditions)
	if c.WatchesConditions() {
		conditions, err := condition.New(condition.Options{
			Rules: c.Conditions, Metadata: source, UnconfirmedAfter: c.UnconfirmedAfter, NeedsMetadata: x.ConditionsNeedMetadata,
		})
		if err != nil {
			return nil, err
		}
		o.Sources = append(o.Sources, conditions)
	}
	if c.MaxConcurrentDrains > 0 {
		if o.Slots, err = slots.New(slots.Options{
			API: api, Namespace: c.Namespace, Holder: c.NodeName, Limit: c.MaxConcurrentDrains, Log: log,
		}); err != nil {
			return nil, fmt.Errorf("--max-concurrent-drains: %w", err)
		}
	}
	if c.Acknowledge && !c.DryRun {
		o.Approver = metadata
	}
	if len(c.Notifications) > 0 {
		o.Notifier = notifier
	}
	if c.WaitForDetach {
		o.Volumes = api
	}
	return agent.New(o), nil
}

// await waits until there is an agent, and then for what it awaits.
func await(ctx context.Context, running *atomic.Pointer[agent.Agent], source, id string) error {
	ticker := time.NewTicker(nodeRetry)
	defer ticker.Stop()
	for running.Load() == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return running.Load().Await(ctx, source, id)
}

// observe tells the agent's own metrics of polls, and the extra ones.
func (x Extras) observe(own azure.Observer) azure.Observer {
	if x.Polls == nil {
		return own
	}
	return both{own, x.Polls}
}

type both struct{ first, second azure.Observer }

func (b both) FetchOK(took time.Duration) {
	b.first.FetchOK(took)
	b.second.FetchOK(took)
}

func (b both) FetchFailed(err error, class azure.Class) {
	b.first.FetchFailed(err, class)
	b.second.FetchFailed(err, class)
}

// telling runs a part while notifications are sent, and after it ends sends those that it left.
func telling(ctx context.Context, notifier *notify.Notifier, part func(context.Context) error) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { _ = notifier.Run(sending) })
	defer group.Wait()
	defer stop()
	return part(ctx)
}
