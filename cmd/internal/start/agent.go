// Package start builds components from configurations. The binaries slipway and slipway-agent both use it.
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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/condition"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/semaphore"
	"github.com/slipway-dev/slipway/internal/surge"
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

// AgentOptions holds optional hooks and settings of an agent. The zero value sets none.
type AgentOptions struct {
	// EventFormatter changes the texts of Kubernetes Events.
	EventFormatter agent.EventFormatter
	// ActionFor is the field of agent.NoticePolicy. TaintsFor and LabelsFor are fields of agent.Options.
	ActionFor func(notice.Notice) (agent.Action, bool)
	TaintsFor func(notice.Notice) []cordon.Taint
	LabelsFor func(n notice.Notice, first time.Time) map[string]string
	// RegisterMetrics registers additional metrics.
	RegisterMetrics func(*observe.Registry)
	// WrapTransport wraps the transport of requests to APIServer, Metadata or Receivers, for example to measure them.
	WrapTransport func(to string, next http.RoundTripper) http.RoundTripper
	// PollObserver observes every poll for notices, in addition to the agent's own metrics.
	PollObserver poll.Observer
	// Sources are additional notice sources. Conditions maps the IDs of their notices to actions.
	Sources    []agent.Source
	Conditions map[string]agent.Action
	// ConditionsNeedMetadata is NeedsMetadata of condition.Options. LabelOwnCordon is the option of agent.Options.
	ConditionsNeedMetadata, LabelOwnCordon bool
	// OnResourceName is called once, before the agent starts, with the machine's name in notices.
	OnResourceName func(resource string)
	// WrapLogHandler wraps the log handler.
	WrapLogHandler func(slog.Handler) slog.Handler
	// WarnOfTemplates and TemplateData are options of notify.Options.
	WarnOfTemplates bool
	TemplateData    func(notify.Message) any
	// WrapSource wraps the source of the cloud's notices. node is nil if it was not read.
	WrapSource func(source agent.Source, node *kubeapi.Node) agent.Source
	// NewRoutes returns additional HTTP handlers. They override /metrics, /healthz and /readyz for the same path.
	NewRoutes func(AgentAccess) map[string]http.Handler
	// OpenTracing creates the trace exporter. If nil, traces are not supported.
	OpenTracing TracingOpener
	// AuthorizeProfiles returns an error if a client may not read profiles. If nil, all clients may.
	AuthorizeProfiles func(*http.Request) error
	// adaptAgent changes the options of the agent.
	adaptAgent func(*agent.Options)
	// ConnectWithClientGo creates the API client for kubeconfig credentials that package kubeapi does not support, for example from an exec
	// plugin. If nil, they are refused.
	ConnectWithClientGo func(kubeconfig, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*kubeapi.Client, error)
}

// AgentAccess holds the functions of the agent that additional HTTP routes can call.
type AgentAccess struct {
	// CheckLive returns an error if the process is not healthy.
	CheckLive func() error
	// AwaitDrained waits for the agent to start, and then calls its method Await.
	AwaitDrained func(ctx context.Context, source, id string) error
	// Metrics serves the metrics page.
	Metrics http.Handler
}

// The destinations of requests that AgentOptions.WrapTransport receives.
const (
	APIServer = "apiserver"
	Metadata  = "metadata"
	Receivers = "receivers"
)

func (x AgentOptions) newTransportWrapper(destination string) func(http.RoundTripper) http.RoundTripper {
	if x.WrapTransport == nil {
		return nil
	}
	return func(next http.RoundTripper) http.RoundTripper { return x.WrapTransport(destination, next) }
}

// newAPIClient returns a client of the API server.
func (x AgentOptions) newAPIClient(kubeconfig string) (*kubeapi.Client, error) {
	userAgent := "slipway-agent/" + Version()
	c, err := kubeapi.LoadConfig(kubeconfig)
	if errors.Is(err, kubeapi.ErrUnsupportedCredentials) && x.ConnectWithClientGo != nil {
		return x.ConnectWithClientGo(kubeconfig, userAgent, x.newTransportWrapper(APIServer))
	}
	if err != nil {
		return nil, err
	}
	c.Wrap = x.newTransportWrapper(APIServer)
	return c.NewClient(userAgent)
}

// RunAgent runs the agent until ctx ends. It returns the error of a failed start.
func RunAgent(ctx context.Context, c config.Agent, stderr io.Writer) error {
	return RunAgentWithOptions(ctx, c, AgentOptions{}, stderr)
}

// RunAgentWithOptions runs the agent with the hooks and settings in x until ctx ends.
func RunAgentWithOptions(ctx context.Context, c config.Agent, x AgentOptions, stderr io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(agentGCPercent)
	}
	log, err := observe.NewLogger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	if x.WrapLogHandler != nil {
		log = slog.New(x.WrapLogHandler(log.Handler()))
	}
	log = log.With("node", c.NodeName)
	api, err := x.newAPIClient(c.Kubeconfig)
	if err != nil {
		return err
	}
	if err := checkEndpoint(c); err != nil {
		return err
	}
	registry := observe.NewRegistry()
	notifier, err := notify.NewNotifier(c.Notifications, notify.Options{
		Log: log, Metrics: registry, UserAgent: "slipway-agent/" + Version(), Wrap: x.newTransportWrapper(Receivers), WarnOnInvalidTemplates: x.WarnOfTemplates,
		TemplateData: x.TemplateData,
	})
	if err != nil {
		return err
	}
	if x.RegisterMetrics != nil {
		x.RegisterMetrics(registry)
	}
	tracer, endTraces, err := x.OpenTracing.startTracing(ctx, c.TraceEndpoint, log)
	if err != nil {
		return err
	}
	defer endTraces()
	err = runAgent(ctx, c, x, log, tracer, api, registry, notifier)
	if errors.Is(err, agent.ErrDrained) {
		log.Info("the node is drained; exiting as configured")
		return nil
	}
	return err
}

// runAgent runs the agent for its node. First it determines the instance's name. It serves metrics and health from the
// start. So an agent that waits for its API server does not fail its liveness probe.
func runAgent(ctx context.Context, c config.Agent, x AgentOptions, log *slog.Logger, tracer observe.Tracer, api *kubeapi.Client,
	registry *observe.Registry, notifier *notify.Notifier,
) error {
	registry.AddStandardMetrics(buildInfo())
	metrics := agent.NewMetrics(registry)
	alive := observe.NewHeartbeat("agent", stuckTimeout)
	var running atomic.Pointer[agent.Agent]
	ready := func() error {
		if a := running.Load(); a != nil {
			return a.CheckReady()
		}
		return fmt.Errorf("node %s: has not been read yet", c.NodeName)
	}
	guard := func(ctx context.Context) error {
		own, err := awaitInstance(ctx, c, log, api, alive)
		if err != nil {
			return err
		}
		if x.OnResourceName != nil {
			x.OnResourceName(own.resource)
		}
		a, endpoint, err := newAgent(c, x, own, log, tracer, api, metrics, alive, notifier)
		if err != nil {
			return err
		}
		running.Store(a)
		releaseProgramPages()
		log.Info("guarding the node", "version", Version(), "cloud", own.cloud, "resource", own.resource, "endpoint", endpoint,
			"pollInterval", c.PollInterval.String(), "dryRun", c.DryRun)
		return runWithNotifier(ctx, notifier, a.Run)
	}
	if c.Listen == "" {
		return runAllUntilFailure(ctx, guard)
	}
	var routes map[string]http.Handler
	if x.NewRoutes != nil {
		routes = x.NewRoutes(AgentAccess{CheckLive: alive.Check, Metrics: registry, AwaitDrained: func(ctx context.Context, source, id string) error {
			return awaitStartedAndDrained(ctx, &running, source, id)
		}})
	}
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: c.Listen, Metrics: registry, Live: []observe.Check{alive.Check}, Ready: []observe.Check{ready},
		Pprof: c.Profiling, Log: log, Routes: routes, Private: x.AuthorizeProfiles,
	})
	if err != nil {
		return err
	}
	return runAllUntilFailure(ctx, guard, server.Run)
}

// newAgent returns the agent of an instance, and the URL of the metadata service that it reads.
func newAgent(c config.Agent, x AgentOptions, own instance, log *slog.Logger, tracer observe.Tracer,
	api *kubeapi.Client, metrics *agent.Metrics, alive *observe.Heartbeat, notifier *notify.Notifier,
) (a *agent.Agent, endpoint string, err error) {
	var cloud cloudNotices
	o := agent.Options{
		Node: c.NodeName, ResourceName: own.resource, API: api, InitialNode: own.node,
		Sources: x.Sources, ConditionDrainTimeout: c.ConditionDrainTimeout,
		Policy: c.BuildNoticePolicy(), DeadlineMargin: c.DeadlineMargin, Taint: c.BuildTaint(), Labels: c.Labels, DryRun: c.DryRun,
		LabelOwnCordon:     x.LabelOwnCordon,
		GracePeriodSeconds: &c.GracePeriod, DisableEviction: c.DisableEviction,
		StopTimeout: c.StopGrace, ExitAfterDrain: c.ExitAfterDrain, EventFormatter: x.EventFormatter,
		Metrics: metrics, Heartbeat: alive, Tracer: tracer, Log: log,
	}
	maps.Copy(o.Policy.ActionByCondition, x.Conditions)
	o.Policy.ActionFor, o.TaintsFor, o.LabelsFor = x.ActionFor, x.TaintsFor, x.LabelsFor
	var metadata condition.MetadataSource = noMetadata{}
	parts := cloudParts{c, own.resource, api, x.newTransportWrapper(Metadata), x.combinePollObservers(metrics), log}
	if own.cloud != config.CloudNone {
		support, err := cloudSupportOf(own.cloud)
		if err != nil {
			return nil, "", err
		}
		if cloud, err = support.open(parts); err != nil {
			return nil, "", err
		}
		o.InstanceName, metadata = support.instanceName, cloud.source
		o.Sources = append([]agent.Source{cloud.source}, x.Sources...)
		if x.WrapSource != nil {
			o.Sources[0] = x.WrapSource(cloud.source, own.node)
		}
	}
	plugins, err := openExternalSources(parts)
	if err != nil {
		return nil, "", err
	}
	cloud.others = append(cloud.others, plugins...)
	o.Sources = append(slices.Clip(o.Sources), cloud.others...)
	if c.ShouldWatchConditions() {
		conditions, err := condition.NewSource(condition.Options{
			Rules: c.Conditions, Metadata: metadata, UnconfirmedDelay: c.UnconfirmedAfter, RequireMetadata: x.ConditionsNeedMetadata,
		})
		if err != nil {
			return nil, "", err
		}
		o.Sources = append(slices.Clip(o.Sources), conditions)
	}
	if c.MaxConcurrentDrains > 0 {
		if o.DrainSlots, err = semaphore.NewHolder(semaphore.Options{
			API: api, Namespace: c.Namespace, Identity: c.NodeName, Limit: c.MaxConcurrentDrains, Log: log,
		}); err != nil {
			return nil, "", fmt.Errorf("--max-concurrent-drains: %w", err)
		}
	}
	if mode, err := surge.ParseMode(c.Surge); err == nil && mode.Enabled() && !c.DryRun {
		if o.Surger, err = surge.New(surge.Options{
			API: api, Namespace: c.Namespace, Identity: surge.NewIdentity(c.NodeName), Mode: mode, Metrics: metrics, Logger: log,
		}); err != nil {
			return nil, "", fmt.Errorf("--surge: %w", err)
		}
	}
	if c.Acknowledge && !c.DryRun {
		o.Approver, o.Approvers = cloud.approver, map[string]agent.Approver{}
		for _, source := range cloud.others {
			if approver, can := source.(agent.Approver); can {
				o.Approvers[source.Name()] = approver
			}
		}
	}
	if len(c.Notifications) > 0 {
		o.Notifier = notifier
	}
	if x.adaptAgent != nil {
		x.adaptAgent(&o)
	}
	if c.WaitForDetach {
		o.Volumes = api
	}
	if c.EvictionRequests == config.EvictionRequestsAuto {
		o.EvictionRequests = api
	}
	return agent.New(o), cloud.endpoint, nil
}

// awaitStartedAndDrained waits until the agent has started. Then it calls the agent's method AwaitDrained for the
// notice.
func awaitStartedAndDrained(ctx context.Context, running *atomic.Pointer[agent.Agent], source, id string) error {
	ticker := time.NewTicker(nodeRetryInterval)
	defer ticker.Stop()
	for running.Load() == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return running.Load().AwaitDrained(ctx, source, id)
}

// combinePollObservers returns an observer that calls both the agent's own observer and the additional observer.
func (x AgentOptions) combinePollObservers(own poll.Observer) poll.Observer {
	if x.PollObserver == nil {
		return own
	}
	return observerPair{own, x.PollObserver}
}

type observerPair struct{ first, second poll.Observer }

func (b observerPair) FetchSucceeded(source string, took time.Duration) {
	b.first.FetchSucceeded(source, took)
	b.second.FetchSucceeded(source, took)
}

func (b observerPair) FetchFailed(source string, err error, class poll.Class) {
	b.first.FetchFailed(source, err, class)
	b.second.FetchFailed(source, err, class)
}

// runWithNotifier runs part and sends notifications at the same time. After part has ended, it sends the remaining
// notifications.
func runWithNotifier(ctx context.Context, notifier *notify.Notifier, part func(context.Context) error) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { _ = notifier.Run(sending) })
	defer group.Wait()
	defer stop()
	return part(ctx)
}
