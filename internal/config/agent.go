// Package config holds what Slipway's parts can be told: the types, their defaults, their flags and their validation.
// Errors name the option, its value and what is allowed, and all of an input's errors are given at once.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notice/condition"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/slots"
)

// Agent is everything that `slipway agent` can be told.
type Agent struct {
	// ConfigFile holds what flags do not say; see LoadFile.
	ConfigFile string
	NodeName   string
	Kubeconfig string

	Endpoint            string
	PollInterval        time.Duration
	RequestTimeout      time.Duration
	FirstRequestTimeout time.Duration
	ResourceName        string

	OnFreeze, OnReboot, OnRedeploy, OnPreempt, OnTerminate, OnLiveMigration string
	OnUnknownFreeze                                                         string
	// OnUserInitiated holds actions by type, in lower case.
	OnUserInitiated                         map[string]string
	FreezeTolerance, AcknowledgeFreezeUnder time.Duration

	// Conditions are the rules for the node's own conditions.
	Conditions            []condition.Rule
	OnUnconfirmed         string
	UnconfirmedAfter      time.Duration
	ConditionDrainTimeout time.Duration

	MaxConcurrentDrains int
	Namespace           string

	DeadlineMargin  time.Duration
	Acknowledge     bool
	WaitForDetach   bool
	GracePeriod     int64 // seconds; negative keeps the pods' own
	DisableEviction bool
	StopGrace       time.Duration
	ExitAfterDrain  bool
	TaintEffect     string
	TaintKey        string
	TaintValue      string
	Labels          map[string]string
	DryRun          bool

	Listen    string
	Profiling bool
	LogLevel  string
	LogFormat string

	// Notifications are who is told of what becomes of the node. Only a file can say.
	Notifications []notify.Receiver
	TraceEndpoint string

	// inFile are the keys of the flags that the file has given their value.
	inFile map[string]string
}

// AddFlags registers the flags with their defaults.
func (a *Agent) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.ConfigFile, configFlag, "", "YAML file with these flags in camelCase, and notifications; flags win over it")
	fs.StringVar(&a.NodeName, "node-name", os.Getenv("NODE_NAME"), "the Kubernetes node to guard, the one this runs on (default $NODE_NAME)")
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "", "kubeconfig file; without one the pod's own ServiceAccount is used")

	fs.StringVar(&a.Endpoint, "endpoint", azure.DefaultEndpoint, "URL of Azure's Scheduled Events")
	fs.DurationVar(&a.PollInterval, "poll-interval", azure.DefaultInterval, "time from one look at the endpoint to the next, 100ms to 1m")
	fs.DurationVar(&a.RequestTimeout, "request-timeout", azure.DefaultTimeout, "how long one look may take")
	fs.DurationVar(&a.FirstRequestTimeout, "first-request-timeout", azure.DefaultFirstTimeout, "how long the first answer may take, while Azure turns the service on")
	fs.StringVar(&a.ResourceName, "resource-name", "", "this machine's name in Azure's events (default: from the node's spec.providerID)")

	def := agent.DefaultImpact()
	for _, f := range a.actions() {
		fs.StringVar(f.value, f.flag, string(f.standard(def)), f.usage+": "+allActions())
	}
	fs.StringVar(&a.OnUnknownFreeze, "on-unknown-freeze", string(def.UnknownFreeze), "when the machine pauses for nobody knows how long, at most what --on-freeze says: "+allActions())
	fs.DurationVar(&a.FreezeTolerance, "freeze-tolerance", def.FreezeTolerance, "the longest Freeze that is left alone")
	fs.DurationVar(&a.AcknowledgeFreezeUnder, "acknowledge-freeze-under", 0, "let a Freeze that is left alone begin at once if it is shorter than this; 0 is never")
	fs.StringToStringVar(&a.OnUserInitiated, "on-user-initiated", nil, "actions for what a user of the cloud asked for, where they differ, such as reboot=acknowledge,redeploy=cordon")

	fs.Var((*rules)(&a.Conditions), conditionFlag, "what to do when a condition of the node holds: TYPE[:STATUS]=ACTION[,hold=DURATION][,release=DURATION]; may be repeated")
	fs.StringVar(&a.OnUnconfirmed, "on-unconfirmed", string(agent.Cordon), "when AKS's node-problem-detector announces an event that the metadata service cannot be asked about: "+conditionActions())
	fs.DurationVar(&a.UnconfirmedAfter, "unconfirmed-after", condition.DefaultUnconfirmedAfter, "for how long the metadata service must not have answered before that counts")
	fs.DurationVar(&a.ConditionDrainTimeout, "condition-drain-timeout", 30*time.Minute, "for how long pods are asked to leave on account of a condition; 0 is for as long as it holds")

	fs.IntVar(&a.MaxConcurrentDrains, "max-concurrent-drains", 0, fmt.Sprintf("how many nodes of the cluster are drained at once for what can wait, at most %d; 0 is no limit", slots.MaxLimit))
	fs.StringVar(&a.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "the agents' own namespace, where their Leases are (default $POD_NAMESPACE)")

	fs.DurationVar(&a.DeadlineMargin, "deadline-margin", agent.DefaultMargin, "time kept free before the machine goes, for pods' ends to be reported")
	fs.BoolVar(&a.Acknowledge, "acknowledge", true, "let Azure begin early once every machine of the event is drained")
	fs.BoolVar(&a.WaitForDetach, "wait-for-detach", false, "count a node as drained only when its pods' volumes are detached")
	fs.Int64Var(&a.GracePeriod, "grace-period", -1, "seconds every pod gets to stop; negative is its own")
	fs.BoolVar(&a.DisableEviction, "disable-eviction", false, "delete pods instead of evicting them, past all disruption budgets")
	fs.DurationVar(&a.StopGrace, "stop-grace", 0, "how long the end of the process waits for a drain under way, 0 to 10m; the next process goes on with it anyway")
	fs.BoolVar(&a.ExitAfterDrain, "exit-after-drain", false, "exit once the node is drained")
	fs.StringVar(&a.TaintEffect, "taint-effect", "", "also taint the node: NoSchedule, PreferNoSchedule, or NoExecute (once it is drained)")
	taint := agent.DefaultTaint()
	fs.StringVar(&a.TaintKey, "taint-key", taint.Key, "key of that taint; {type} and {id} stand for the notice's")
	fs.StringVar(&a.TaintValue, "taint-value", taint.Value, "value of that taint; {type} and {id} stand for the notice's")
	fs.StringToStringVar(&a.Labels, "label", nil, "label that the node has while a notice holds it, as key=value; may be repeated")
	fs.BoolVar(&a.DryRun, "dry-run", false, "say what would be done, change nothing")

	fs.StringVar(&a.Listen, "listen", "127.0.0.1:9818", "address of /metrics, /healthz and /readyz; empty is none")
	fs.BoolVar(&a.Profiling, "profiling", false, "serve /debug/pprof/ too, to requests from the loopback interface")
	fs.StringVar(&a.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&a.LogFormat, "log-format", "json", "json or text")

	fs.StringVar(&a.TraceEndpoint, "trace-endpoint", "", "send traces to this URL by OTLP/HTTP, such as http://collector:4318/v1/traces; "+
		"empty is none, unless $OTEL_EXPORTER_OTLP_ENDPOINT says where")
}

// DefaultAgent is what an agent without flags is told.
func DefaultAgent() Agent {
	var a Agent
	a.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return a
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
	bad := a.refusals(&errs)
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
	errs = append(errs, a.validatePolicy(), a.validateConditions(), notify.Validate(a.Notifications), a.validateDrain())
	if !slices.Contains([]string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}, a.TaintEffect) {
		bad("taint-effect", a.TaintEffect, "NoSchedule, PreferNoSchedule, NoExecute or nothing")
	}
	if a.Listen != "" && !isAddress(a.Listen) {
		bad("listen", a.Listen, "host:port, such as 127.0.0.1:9818, or nothing")
	}
	if a.TraceEndpoint != "" && !isURL(a.TraceEndpoint) {
		bad("trace-endpoint", a.TraceEndpoint, "a URL such as http://collector:4318/v1/traces, or nothing")
	}
	if !slices.Contains([]string{"json", "text"}, a.LogFormat) {
		bad("log-format", a.LogFormat, "json or text")
	}
	if err := new(slog.LevelVar).UnmarshalText([]byte(a.LogLevel)); err != nil {
		bad("log-level", a.LogLevel, "debug, info, warn or error")
	}
	return errors.Join(errs...)
}

// validatePolicy reports what is wrong with the actions.
func (a *Agent) validatePolicy() error {
	var errs []error
	bad := a.refusals(&errs)
	for _, f := range a.actions() {
		if !slices.Contains(agent.Actions(), agent.Action(*f.value)) {
			bad(f.flag, *f.value, allActions())
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(a.OnUserInitiated)) {
		switch action := a.OnUserInitiated[kind]; {
		case typeOf(kind) == "":
			bad("on-user-initiated", kind, "TYPE=ACTION with one of the types "+strings.Join(typeNames(), ", "))
		case !slices.Contains(agent.Actions(), agent.Action(action)):
			bad("on-user-initiated", kind+"="+action, allActions())
		}
	}
	if a.AcknowledgeFreezeUnder < 0 || a.AcknowledgeFreezeUnder > time.Hour {
		bad("acknowledge-freeze-under", a.AcknowledgeFreezeUnder, "0 to 1h")
	}
	if a.AcknowledgeFreezeUnder > 0 && !a.Acknowledge {
		bad("acknowledge-freeze-under", a.AcknowledgeFreezeUnder, "0 with --acknowledge=false, which acknowledges nothing")
	}
	return errors.Join(errs...)
}

// validateConditions reports what is wrong with the rules for conditions and with the turns.
func (a *Agent) validateConditions() error {
	var errs []error
	bad := a.refusals(&errs)
	if err := condition.ValidateAll(a.Conditions); err != nil {
		errs = append(errs, below(a.source(conditionFlag), err))
	}
	if !slices.Contains(condition.Actions(), a.OnUnconfirmed) {
		bad("on-unconfirmed", a.OnUnconfirmed, conditionActions())
	}
	if a.UnconfirmedAfter < 10*time.Second || a.UnconfirmedAfter > time.Hour {
		bad("unconfirmed-after", a.UnconfirmedAfter, "10s to 1h")
	}
	if a.ConditionDrainTimeout < 0 {
		bad("condition-drain-timeout", a.ConditionDrainTimeout, "0 or more")
	}
	if a.MaxConcurrentDrains < 0 || a.MaxConcurrentDrains > slots.MaxLimit {
		bad("max-concurrent-drains", a.MaxConcurrentDrains, fmt.Sprintf("0 to %d", slots.MaxLimit))
	}
	if a.MaxConcurrentDrains > 0 && a.Namespace == "" {
		bad("namespace", a.Namespace, "the agents' own (in a pod: POD_NAMESPACE from metadata.namespace), as --max-concurrent-drains needs it")
	}
	return errors.Join(errs...)
}

// validateDrain reports what is wrong with what is put on the node, and with the time that pods get.
func (a *Agent) validateDrain() error {
	var errs []error
	bad := a.refusals(&errs)
	if !slices.Contains(agent.Actions(), agent.Action(a.OnUnknownFreeze)) {
		bad("on-unknown-freeze", a.OnUnknownFreeze, allActions())
	}
	if a.StopGrace < 0 || a.StopGrace > 10*time.Minute {
		bad("stop-grace", a.StopGrace, "0 to 10m")
	}
	if taint := a.Taint(); slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, taint.Effect) {
		if err := taint.Check(); err != nil {
			errs = append(errs, fmt.Errorf("%s, %s: %s=%s: want %w", a.source("taint-key"), a.source("taint-value"), taint.Key, taint.Value, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.Labels)) {
		if err := cordon.CheckLabel(key, a.Labels[key]); err != nil {
			bad("label", key+"="+a.Labels[key], err.Error())
		}
	}
	return errors.Join(errs...)
}

// Taint is the taint that the flags describe.
func (a *Agent) Taint() agent.Taint {
	return agent.Taint{Key: a.TaintKey, Value: a.TaintValue, Effect: a.TaintEffect}
}

// refusals gives a function that adds one refusal to a list.
func (a *Agent) refusals(errs *[]error) func(flag string, value any, want string) {
	return func(flag string, value any, want string) {
		*errs = append(*errs, fmt.Errorf("%s: %v: want %s", a.source(flag), quoted(value), want))
	}
}

// Impact is the impact policy that the flags describe. The flags must be valid.
func (a *Agent) Impact() agent.Impact {
	return agent.Impact{
		On: map[notice.Type]agent.Action{
			notice.Freeze: agent.Action(a.OnFreeze), notice.Reboot: agent.Action(a.OnReboot),
			notice.Redeploy: agent.Action(a.OnRedeploy), notice.Preempt: agent.Action(a.OnPreempt),
			notice.Terminate: agent.Action(a.OnTerminate),
		},
		UserInitiated:          a.userInitiated(),
		LiveMigration:          agent.Action(a.OnLiveMigration),
		UnknownFreeze:          agent.Action(a.OnUnknownFreeze),
		FreezeTolerance:        a.FreezeTolerance,
		AcknowledgeFreezeUnder: a.AcknowledgeFreezeUnder,
		Conditions:             a.conditions(),
	}
}

func (a *Agent) userInitiated() map[notice.Type]agent.Action {
	all := map[notice.Type]agent.Action{}
	for kind, action := range a.OnUserInitiated {
		all[typeOf(kind)] = agent.Action(action)
	}
	return all
}

// conditions are the actions for the node's conditions: by the rules, and for what cannot be confirmed.
func (a *Agent) conditions() map[string]agent.Action {
	all := map[string]agent.Action{}
	for _, hint := range condition.Hints() {
		all[hint] = agent.Action(a.OnUnconfirmed)
	}
	for _, r := range a.Conditions {
		all[r.ID()] = agent.Action(r.Action)
	}
	return all
}

// WatchesConditions reports that the node's conditions matter.
func (a *Agent) WatchesConditions() bool {
	return len(a.Conditions) > 0 || a.OnUnconfirmed != string(agent.Ignore)
}

// typeOf is the type of interruption of that name in any letter case; empty is none.
func typeOf(name string) notice.Type {
	for _, t := range notice.Interruptions() {
		if strings.EqualFold(string(t), name) {
			return t
		}
	}
	return ""
}

func typeNames() []string {
	var all []string
	for _, t := range notice.Interruptions() {
		all = append(all, strings.ToLower(string(t)))
	}
	return all
}

// allActions and conditionActions name the actions, for people.
func allActions() string       { return "acknowledge, drain-marked, drain, cordon or ignore" }
func conditionActions() string { return "drain-marked, drain, cordon or ignore" }

// rules is the value of a flag that is given once for each rule.
type rules []condition.Rule

func (r *rules) String() string {
	var all []string
	for _, rule := range *r {
		all = append(all, rule.ID()+"="+rule.Action)
	}
	return strings.Join(all, " ")
}

func (r *rules) Set(text string) error {
	rule, err := condition.Parse(text)
	if err != nil {
		return err
	}
	*r = append(*r, rule)
	return nil
}

func (*rules) Type() string { return "rule" }

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
