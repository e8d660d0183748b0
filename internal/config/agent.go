// Package config holds what Slipway's parts can be told: the types, their defaults, their flags and their validation.
// Errors name the option, its value and what is allowed, and all of an input's errors are given at once.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
)

// Agent is everything that `slipway agent` can be told.
type Agent struct {
	NodeName   string
	Kubeconfig string

	Endpoint            string
	PollInterval        time.Duration
	RequestTimeout      time.Duration
	FirstRequestTimeout time.Duration
	ResourceName        string

	OnFreeze, OnReboot, OnRedeploy, OnPreempt, OnTerminate, OnLiveMigration string
	FreezeTolerance                                                         time.Duration

	DeadlineMargin time.Duration
	Acknowledge    bool
	WaitForDetach  bool
	TaintEffect    string
	DryRun         bool

	Listen    string
	Profiling bool
	LogLevel  string
	LogFormat string

	TraceEndpoint string
}

// AddFlags registers the flags with their defaults.
func (a *Agent) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.NodeName, "node-name", os.Getenv("NODE_NAME"), "the Kubernetes node to guard, the one this runs on (default $NODE_NAME)")
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "", "kubeconfig file; without one the pod's own ServiceAccount is used")

	fs.StringVar(&a.Endpoint, "endpoint", azure.DefaultEndpoint, "URL of Azure's Scheduled Events")
	fs.DurationVar(&a.PollInterval, "poll-interval", azure.DefaultInterval, "time from one look at the endpoint to the next, 100ms to 1m")
	fs.DurationVar(&a.RequestTimeout, "request-timeout", azure.DefaultTimeout, "how long one look may take")
	fs.DurationVar(&a.FirstRequestTimeout, "first-request-timeout", azure.DefaultFirstTimeout, "how long the first answer may take, while Azure turns the service on")
	fs.StringVar(&a.ResourceName, "resource-name", "", "this machine's name in Azure's events (default: from the node's spec.providerID)")

	def := agent.DefaultImpact()
	for _, f := range a.actions() {
		fs.StringVar(f.value, f.flag, string(f.standard(def)), f.usage+": drain, cordon or ignore")
	}
	fs.DurationVar(&a.FreezeTolerance, "freeze-tolerance", def.FreezeTolerance, "the longest Freeze that is left alone")

	fs.DurationVar(&a.DeadlineMargin, "deadline-margin", agent.DefaultMargin, "time kept free before the machine goes, for pods' ends to be reported")
	fs.BoolVar(&a.Acknowledge, "acknowledge", true, "let Azure begin early once every machine of the event is drained")
	fs.BoolVar(&a.WaitForDetach, "wait-for-detach", false, "count a node as drained only when its pods' volumes are detached")
	fs.StringVar(&a.TaintEffect, "taint-effect", "", "also taint the node: NoSchedule, PreferNoSchedule or NoExecute")
	fs.BoolVar(&a.DryRun, "dry-run", false, "say what would be done, change nothing")

	fs.StringVar(&a.Listen, "listen", "127.0.0.1:9818", "address of /metrics, /healthz and /readyz; empty is none")
	fs.BoolVar(&a.Profiling, "profiling", false, "serve /debug/pprof/ too")
	fs.StringVar(&a.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&a.LogFormat, "log-format", "json", "json or text")

	fs.StringVar(&a.TraceEndpoint, "trace-endpoint", "", "send traces to this URL by OTLP/HTTP, such as http://collector:4318/v1/traces; "+
		"empty is none, unless $OTEL_EXPORTER_OTLP_ENDPOINT says where")
}

type actionFlag struct {
	flag     string
	value    *string
	usage    string
	standard func(agent.Impact) agent.Action
}

func (a *Agent) actions() []actionFlag {
	on := func(t notice.Type) func(agent.Impact) agent.Action {
		return func(i agent.Impact) agent.Action { return i.On[t] }
	}
	return []actionFlag{
		{"on-preempt", &a.OnPreempt, "when a Spot machine is taken away", on(notice.Preempt)},
		{"on-terminate", &a.OnTerminate, "when the machine is to be deleted", on(notice.Terminate)},
		{"on-redeploy", &a.OnRedeploy, "when the machine moves to other hardware", on(notice.Redeploy)},
		{"on-reboot", &a.OnReboot, "when the machine restarts", on(notice.Reboot)},
		{"on-freeze", &a.OnFreeze, "when the machine pauses for longer than --freeze-tolerance (unknown: at most cordon)", on(notice.Freeze)},
		{"on-live-migration", &a.OnLiveMigration, "when the machine is moved while it runs", func(i agent.Impact) agent.Action { return i.LiveMigration }},
	}
}

// Validate reports everything that is wrong.
func (a *Agent) Validate() error {
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--%s: %v: want %s", flag, quoted(value), want))
	}
	if a.NodeName == "" {
		bad("node-name", a.NodeName, "the name of this node (in a pod: NODE_NAME from spec.nodeName)")
	}
	if a.PollInterval < 100*time.Millisecond || a.PollInterval > time.Minute {
		bad("poll-interval", a.PollInterval, "100ms to 1m")
	}
	if a.RequestTimeout <= 0 {
		bad("request-timeout", a.RequestTimeout, "more than 0")
	}
	if a.FirstRequestTimeout < a.RequestTimeout {
		bad("first-request-timeout", a.FirstRequestTimeout, "at least --request-timeout")
	}
	if a.FreezeTolerance < 0 {
		bad("freeze-tolerance", a.FreezeTolerance, "0 or more")
	}
	if a.DeadlineMargin < 0 || a.DeadlineMargin > time.Minute {
		bad("deadline-margin", a.DeadlineMargin, "0 to 1m")
	}
	for _, f := range a.actions() {
		if !oneOf(*f.value, agent.Actions()) {
			bad(f.flag, *f.value, "drain, cordon or ignore")
		}
	}
	if !oneOf(a.TaintEffect, []string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}) {
		bad("taint-effect", a.TaintEffect, "NoSchedule, PreferNoSchedule, NoExecute or nothing")
	}
	if a.Listen != "" && !isAddress(a.Listen) {
		bad("listen", a.Listen, "host:port, such as 127.0.0.1:9818, or nothing")
	}
	if a.TraceEndpoint != "" && !isURL(a.TraceEndpoint) {
		bad("trace-endpoint", a.TraceEndpoint, "a URL such as http://collector:4318/v1/traces, or nothing")
	}
	if !oneOf(a.LogFormat, []string{"json", "text"}) {
		bad("log-format", a.LogFormat, "json or text")
	}
	if err := new(slog.LevelVar).UnmarshalText([]byte(a.LogLevel)); err != nil {
		bad("log-level", a.LogLevel, "debug, info, warn or error")
	}
	return errors.Join(errs...)
}

// Impact is the impact policy that the flags describe. The flags must be valid.
func (a *Agent) Impact() agent.Impact {
	return agent.Impact{
		On: map[notice.Type]agent.Action{
			notice.Freeze: agent.Action(a.OnFreeze), notice.Reboot: agent.Action(a.OnReboot),
			notice.Redeploy: agent.Action(a.OnRedeploy), notice.Preempt: agent.Action(a.OnPreempt),
			notice.Terminate: agent.Action(a.OnTerminate),
		},
		LiveMigration:   agent.Action(a.OnLiveMigration),
		FreezeTolerance: a.FreezeTolerance,
	}
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

func isAddress(s string) bool {
	_, _, err := net.SplitHostPort(s)
	return err == nil
}

func quoted(v any) any {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return v
}

func oneOf[T ~string](s string, allowed []T) bool {
	for _, a := range allowed {
		if s == string(a) {
			return true
		}
	}
	return false
}
