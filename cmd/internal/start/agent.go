// Package start builds components from configurations. It contains the wiring that the binaries share.
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
	// agentGCPercent keeps the agent's heap close to its live size of a few MiB. Frequent collections are cheap on such a
	// small heap. GOGC overrides it.
	agentGCPercent = 25
	// nodeRetryInterval is the interval between attempts to read the node at the start.
	nodeRetryInterval = 2 * time.Second
	// stuckTimeout is how long the agent's loop may run without an iteration before it counts as stuck. Every step of an
	// iteration is limited to seconds.
	stuckTimeout = 5 * time.Minute
)

// Extras are optional hooks and settings of an agent. The zero value sets none.
type Extras struct {
	// Voice changes the texts of Kubernetes Events.
	Voice agent.Voice
	// Metrics registers additional metrics.
	Metrics func(*observe.Registry)
	// Wrap wraps the transport of requests to APIServer, Metadata or Receivers, for example to measure them.
	Wrap func(to string, next http.RoundTripper) http.RoundTripper
	// Polls observes every poll for notices, in addition to the agent's own metrics.
	Polls azure.Observer
	// Sources are additional notice sources. Conditions maps the IDs of their notices to actions.
	Sources    []agent.Source
	Conditions map[string]agent.Action
	// ConditionsNeedMetadata is NeedsMetadata of condition.Options. LabelOwnCordon is the option of agent.Options.
	ConditionsNeedMetadata, LabelOwnCordon bool
	// Known is called once, before the agent starts, with the machine's name in notices.
	Known func(resource string)
	// Log wraps the log handler.
	Log func(slog.Handler) slog.Handler
	// WarnOfTemplates is the option of notify.Options.
	WarnOfTemplates bool
	// Routes returns additional HTTP handlers. They override /metrics, /healthz and /readyz for the same path.
	Routes func(Inside) map[string]http.Handler
	// Tracing creates the trace exporter. If nil, traces are not supported.
	Tracing Tracing
	// Private returns an error if a client may not read profiles. If nil, all clients may.
	Private func(*http.Request) error
	// Connect creates the API client for kubeconfig credentials that package kubeapi does not support, for example from an exec
	// plugin. If nil, they are refused.
	Connect func(kubeconfig, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*kubeapi.Client, error)
}

// Inside gives additional routes access to the agent.
type Inside struct {
	// Live returns an error if the process is not healthy.
	Live func() error
	// Await waits for the agent to start, and then calls its method Await.
	Await func(ctx context.Context, source, id string) error
	// Metrics serves the metrics page.
	Metrics http.Handler
}

// The destinations of requests for Extras.Wrap.
const (
	APIServer = "apiserver"
	Metadata  = "metadata"
	Receivers = "receivers"
)

func (x Extras) wrapTransport(to string) func(http.RoundTripper) http.RoundTripper {
	if x.Wrap == nil {
		return nil
	}
	return func(next http.RoundTripper) http.RoundTripper { return x.Wrap(to, next) }
}

// connectAPI creates the client of the API server.
func (x Extras) connectAPI(kubeconfig string) (*kubeapi.Client, error) {
	userAgent := "slipway-agent/" + Version()
	c, err := kubeapi.LoadConfig(kubeconfig)
	if errors.Is(err, kubeapi.ErrCredentials) && x.Connect != nil {
		return x.Connect(kubeconfig, userAgent, x.wrapTransport(APIServer))
	}
	if err != nil {
		return nil, err
	}
	c.Wrap = x.wrapTransport(APIServer)
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
	api, err := x.connectAPI(c.Kubeconfig)
	if err != nil {
		return err
	}
	metadata, err := azure.NewClient(azure.Options{
		Endpoint: c.Endpoint, Timeout: c.RequestTimeout, FirstTimeout: c.FirstRequestTimeout, Wrap: x.wrapTransport(Metadata),
	})
	if err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	registry := observe.NewRegistry()
	notifier, err := notify.New(c.Notifications, notify.Options{
		Log: log, Metrics: registry, UserAgent: "slipway-agent/" + Version(), Wrap: x.wrapTransport(Receivers), WarnOfTemplates: x.WarnOfTemplates,
	})
	if err != nil {
		return err
	}
	if x.Metrics != nil {
		x.Metrics(registry)
	}
	tracer, endTraces, err := x.Tracing.startTracing(ctx, c.TraceEndpoint, log)
	if err != nil {
		return err
	}
	defer endTraces()
	err = runAgent(ctx, c, x, log, tracer, api, metadata, registry, notifier)
	if errors.Is(err, agent.ErrDrained) {
		log.Info("the node is drained; exiting as configured")
		return nil
	}
	return err
}

// runAgent runs the agent for the node, after it has determined the machine's name. It serves metrics and health from the
// start, so that an agent that waits for its API server does not fail its liveness probe.
func runAgent(ctx context.Context, c config.Agent, x Extras, log *slog.Logger, tracer observe.Tracer, api *kubeapi.Client,
	metadata *azure.Client, registry *observe.Registry, notifier *notify.Notifier,
) error {
	registry.Standard(buildInfo())
	metrics := agent.NewMetrics(registry)
	alive := observe.NewHeartbeat("agent", stuckTimeout)
	var running atomic.Pointer[agent.Agent]
	ready := func() error {
		if a := running.Load(); a != nil {
			return a.Ready()
		}
		return fmt.Errorf("node %s: has not been read yet", c.NodeName)
	}
	guard := func(ctx context.Context) error {
		resource, found, err := awaitResourceName(ctx, c, log, api, alive)
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
		return runWithNotifier(ctx, notifier, a.Run)
	}
	if c.Listen == "" {
		return runAll(ctx, guard)
	}
	var routes map[string]http.Handler
	if x.Routes != nil {
		routes = x.Routes(Inside{Live: alive.Check, Metrics: registry, Await: func(ctx context.Context, source, id string) error {
			return awaitNotice(ctx, &running, source, id)
		}})
	}
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: c.Listen, Metrics: registry, Live: []observe.Check{alive.Check}, Ready: []observe.Check{ready},
		Pprof: c.Profiling, Log: log, Routes: routes, Private: x.Private,
	})
	if err != nil {
		return err
	}
	return runAll(ctx, guard, server.Run)
}

func newAgent(c config.Agent, x Extras, resource string, found *kubeapi.Node, log *slog.Logger, tracer observe.Tracer,
	api *kubeapi.Client, metadata *azure.Client, metrics *agent.Metrics, alive *observe.Heartbeat,
	notifier *notify.Notifier,
) (*agent.Agent, error) {
	source, err := azure.NewSource(azure.SourceOptions{
		Fetcher: metadata, Resource: resource, Interval: c.PollInterval, ClockAhead: metadata.ClockAhead,
		Observer: x.pollObserver(metrics), Log: log,
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

// awaitNotice waits until the agent has started, and then calls its method Await.
func awaitNotice(ctx context.Context, running *atomic.Pointer[agent.Agent], source, id string) error {
	ticker := time.NewTicker(nodeRetryInterval)
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

// pollObserver returns an observer that calls the agent's own and the additional observer.
func (x Extras) pollObserver(own azure.Observer) azure.Observer {
	if x.Polls == nil {
		return own
	}
	return observerPair{own, x.Polls}
}

type observerPair struct{ first, second azure.Observer }

func (b observerPair) FetchOK(took time.Duration) {
	b.first.FetchOK(took)
	b.second.FetchOK(took)
}

func (b observerPair) FetchFailed(err error, class azure.Class) {
	b.first.FetchFailed(err, class)
	b.second.FetchFailed(err, class)
}

// runWithNotifier runs part while notifications are sent. After part has ended, it sends the remaining notifications.
func runWithNotifier(ctx context.Context, notifier *notify.Notifier, part func(context.Context) error) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { _ = notifier.Run(sending) })
	defer group.Wait()
	defer stop()
	return part(ctx)
}
