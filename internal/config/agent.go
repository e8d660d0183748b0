// Package config defines the options of Slipway's processes: types, defaults, flags and validation. An error names the
// option, its value and what is allowed. All errors of an input are returned together.
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
	"github.com/slipway-dev/slipway/internal/semaphore"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Agent holds all options of `slipway agent`.
type Agent struct {
	// ConfigFile is a file with options that are not given as flags; see LoadFile.
	ConfigFile string
	NodeName   string
	Kubeconfig string

	// Cloud is the cloud with the notices; see Clouds.
	Cloud               string
	Endpoint            string
	PollInterval        time.Duration
	RequestTimeout      time.Duration
	FirstRequestTimeout time.Duration
	ResourceName        string

	// NoticeSources are programs and URLs with further notices, by the name of the source.
	NoticeSources map[string]string

	// RetirementLead and MaintenanceLead are how long before a planned interruption the agent acts on its notice.
	RetirementLead, MaintenanceLead time.Duration

	// ASG holds the options of the lifecycle hook of an AWS Auto Scaling group.
	ASG ASGOptions

	OnFreeze, OnReboot, OnRedeploy, OnPreempt, OnTerminate, OnLiveMigration string
	OnUnknownFreeze, OnRebalance                                            string
	// OnUserInitiated maps notice types, in lower case, to actions.
	OnUserInitiated                         map[string]string
	FreezeTolerance, AcknowledgeFreezeUnder time.Duration

	// Conditions are the rules for the node's conditions.
	Conditions            []condition.Rule
	OnUnconfirmed         string
	UnconfirmedAfter      time.Duration
	ConditionDrainTimeout time.Duration

	MaxConcurrentDrains int
	Namespace           string
	// Surge is a surge.Mode.
	Surge string

	DeadlineMargin  time.Duration
	Acknowledge     bool
	WaitForDetach   bool
	GracePeriod     int64 // seconds; negative means the pods' own grace period
	DisableEviction bool
	// EvictionRequests is EvictionRequestsAuto or EvictionRequestsNever.
	EvictionRequests string
	StopGrace        time.Duration
	ExitAfterDrain   bool
	TaintEffect      string
	TaintKey         string
	TaintValue       string
	Labels           map[string]string
	DryRun           bool

	Listen    string
	Profiling bool
	LogLevel  string
	LogFormat string

	// Notifications are the receivers of notifications. They can be set only in a file.
	Notifications []notify.Receiver
	TraceEndpoint string

	// fileKeysByFlag holds the file key of each flag with a value from the file.
	fileKeysByFlag map[string]string
}

// RegisterFlags adds the flags of the agent with their defaults.
func (a *Agent) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.ConfigFile, configFlag, "", "YAML file with these flags in camelCase, and notifications; flags override it")
	fs.StringVar(&a.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of the Node that the agent runs on (default $NODE_NAME)")
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "", "kubeconfig file; empty uses the pod's ServiceAccount")

	a.registerCloudFlags(fs)
	fs.DurationVar(&a.PollInterval, "poll-interval", azure.DefaultInterval, "interval between reads of the endpoint, 100ms to 1m")
	fs.DurationVar(&a.RequestTimeout, "request-timeout", azure.DefaultTimeout, "timeout of one read")
	fs.DurationVar(&a.FirstRequestTimeout, "first-request-timeout", azure.DefaultFirstTimeout, "timeout of the first read, while Azure enables its service")
	fs.StringVar(&a.ResourceName, "resource-name", "", "name of this VM in the cloud's notices (default: from the node's spec.providerID)")

	def := agent.DefaultNoticePolicy()
	for _, f := range a.listActionFlags() {
		fs.StringVar(f.value, f.flag, string(f.defaultAction(def)), f.usage+": "+formatActions())
	}
	fs.StringVar(&a.OnUnknownFreeze, "on-unknown-freeze", string(def.UnknownFreezeAction), "action when the VM freezes for an unknown time, at most the action of --on-freeze: "+formatActions())
	fs.StringVar(&a.OnRebalance, "on-rebalance", string(def.ActionByType[notice.Rebalance]), "action when AWS recommends to replace a Spot VM: "+formatConditionActions())
	fs.DurationVar(&a.FreezeTolerance, "freeze-tolerance", def.FreezeTolerance, "the longest Freeze to ignore")
	fs.DurationVar(&a.AcknowledgeFreezeUnder, "acknowledge-freeze-under", 0, "acknowledge an ignored Freeze at once if it is shorter than this; 0 means never")
	fs.StringToStringVar(&a.OnUserInitiated, "on-user-initiated", nil, "other actions for events that a cloud user initiated, such as reboot=acknowledge,redeploy=cordon")

	fs.Var((*conditionRulesValue)(&a.Conditions), conditionFlag, "action for a node condition: TYPE[:STATUS]=ACTION[,hold=DURATION][,release=DURATION]; can be repeated")
	fs.StringVar(&a.OnUnconfirmed, "on-unconfirmed", string(agent.Cordon), "action when AKS node-problem-detector reports an event and the metadata service does not answer: "+formatConditionActions())
	fs.DurationVar(&a.UnconfirmedAfter, "unconfirmed-after", condition.DefaultUnconfirmedDelay, "how long the metadata service must not have answered before --on-unconfirmed applies")
	fs.DurationVar(&a.ConditionDrainTimeout, "condition-drain-timeout", 30*time.Minute, "how long to evict pods for a node condition; 0 means while the condition holds")

	fs.IntVar(&a.MaxConcurrentDrains, "max-concurrent-drains", 0, fmt.Sprintf("how many nodes of the cluster may drain at once if the drain can wait, at most %d; 0 means no limit", semaphore.MaxLimit))
	fs.StringVar(&a.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the agents and their Leases (default $POD_NAMESPACE)")
	fs.StringVar(&a.Surge, "surge", string(surge.Off), "start a pod's successor before its eviction, if its owner would have no ready pod: never, annotated (with "+surge.Annotation+": \"true\") or always")

	fs.DurationVar(&a.DeadlineMargin, "deadline-margin", agent.DefaultDeadlineMargin, "time before the deadline that stays free for reporting ended pods")
	fs.BoolVar(&a.Acknowledge, "acknowledge", true, "acknowledge a notice to the cloud when every VM of the notice is drained")
	fs.BoolVar(&a.WaitForDetach, "wait-for-detach", false, "treat a node as drained only when its pods' volumes are detached")
	fs.Int64Var(&a.GracePeriod, "grace-period", -1, "grace period of every pod in seconds; negative means the pod's own")
	fs.BoolVar(&a.DisableEviction, "disable-eviction", false, "delete pods instead of evicting them, which bypasses all PodDisruptionBudgets")
	fs.StringVar(&a.EvictionRequests, "eviction-requests", EvictionRequestsAuto, EvictionRequestsUsage)
	fs.DurationVar(&a.StopGrace, "stop-grace", 0, "how long a stopping agent waits for a running drain, 0 to 10m; the next agent continues the drain")
	fs.BoolVar(&a.ExitAfterDrain, "exit-after-drain", false, "exit when the node is drained")
	fs.StringVar(&a.TaintEffect, "taint-effect", "", "also taint the node: NoSchedule, PreferNoSchedule, or NoExecute (after the drain)")
	taint := agent.DefaultTaint()
	fs.StringVar(&a.TaintKey, "taint-key", taint.Key, "key of the taint; {type} and {id} are replaced by the notice's")
	fs.StringVar(&a.TaintValue, "taint-value", taint.Value, "value of the taint; {type} and {id} are replaced by the notice's")
	fs.StringToStringVar(&a.Labels, "label", nil, "label of the node while a notice is active, as key=value; can be repeated")
	fs.BoolVar(&a.DryRun, "dry-run", false, "log what would be done, change nothing")

	fs.StringVar(&a.Listen, "listen", "127.0.0.1:9818", "address of /metrics, /healthz and /readyz; empty means none")
	fs.BoolVar(&a.Profiling, "profiling", false, "also serve /debug/pprof/ to requests from the loopback interface")
	fs.StringVar(&a.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&a.LogFormat, "log-format", "json", "json or text")

	fs.StringVar(&a.TraceEndpoint, "trace-endpoint", "", "send traces to this URL by OTLP/HTTP, such as http://collector:4318/v1/traces; "+
		"empty means none, unless $OTEL_EXPORTER_OTLP_ENDPOINT is set")
}

// The values of --eviction-requests, and its usage.
const (
	EvictionRequestsAuto  = "auto"
	EvictionRequestsNever = "never"
	EvictionRequestsUsage = "ask the evictionResponders of a pod before its eviction if the cluster serves EvictionRequests: auto or never"
)

// NewDefaultAgent returns the options with the defaults of all flags.
func NewDefaultAgent() Agent {
	var a Agent
	a.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return a
}

type actionFlag struct {
	flag          string
	value         *string
	usage         string
	defaultAction func(agent.NoticePolicy) agent.Action
}

func (a *Agent) listActionFlags() []actionFlag {
	on := func(t notice.Type) func(agent.NoticePolicy) agent.Action {
		return func(i agent.NoticePolicy) agent.Action { return i.ActionByType[t] }
	}
	return []actionFlag{
		{"on-preempt", &a.OnPreempt, "action when a Spot VM is preempted", on(notice.Preempt)},
		{"on-terminate", &a.OnTerminate, "action when the VM will be deleted", on(notice.Terminate)},
		{"on-redeploy", &a.OnRedeploy, "action when the VM moves to other hardware", on(notice.Redeploy)},
		{"on-reboot", &a.OnReboot, "action when the VM restarts", on(notice.Reboot)},
		{"on-freeze", &a.OnFreeze, "action when the VM freezes for longer than --freeze-tolerance (unknown: at most cordon)", on(notice.Freeze)},
		{"on-live-migration", &a.OnLiveMigration, "action when the VM is live-migrated", func(i agent.NoticePolicy) agent.Action { return i.LiveMigrationAction }},
	}
}

// Validate returns all errors in the options.
func (a *Agent) Validate() error {
	var errs []error
	bad := a.newErrorCollector(&errs)
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
	errs = append(errs, a.validateCloud(), a.validatePolicy(), a.validateConditions(), notify.ValidateReceivers(a.Notifications), a.validateDrain())
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

func (a *Agent) validatePolicy() error {
	var errs []error
	bad := a.newErrorCollector(&errs)
	for _, f := range a.listActionFlags() {
		if !slices.Contains(agent.Actions(), agent.Action(*f.value)) {
			bad(f.flag, *f.value, formatActions())
		}
	}
	spellings := map[notice.Type]string{}
	for _, kind := range slices.Sorted(maps.Keys(a.OnUserInitiated)) {
		action, typ := a.OnUserInitiated[kind], parseNoticeType(kind)
		other := spellings[typ]
		spellings[typ] = kind
		switch {
		case typ == "":
			bad("on-user-initiated", kind, "TYPE=ACTION with one of the types "+strings.Join(listNoticeTypeNames(), ", "))
		case !slices.Contains(agent.Actions(), agent.Action(action)):
			bad("on-user-initiated", kind+"="+action, formatActions())
		case other != "":
			bad("on-user-initiated", kind+"="+action, "each type once: "+other+" is the same type")
		}
	}
	if !slices.Contains(condition.RuleActions(), a.OnRebalance) {
		bad("on-rebalance", a.OnRebalance, formatConditionActions())
	}
	if a.AcknowledgeFreezeUnder < 0 || a.AcknowledgeFreezeUnder > time.Hour {
		bad("acknowledge-freeze-under", a.AcknowledgeFreezeUnder, "0 to 1h")
	}
	if a.AcknowledgeFreezeUnder > 0 && !a.Acknowledge {
		bad("acknowledge-freeze-under", a.AcknowledgeFreezeUnder, "0 with --acknowledge=false, which acknowledges nothing")
	}
	return errors.Join(errs...)
}

// validateConditions validates the condition rules, and the options that need Leases: drain slots and surges.
func (a *Agent) validateConditions() error {
	var errs []error
	bad := a.newErrorCollector(&errs)
	if err := condition.ValidateRules(a.Conditions); err != nil {
		errs = append(errs, prefixErrors(a.describeOptionSource(conditionFlag), err))
	}
	if !slices.Contains(condition.RuleActions(), a.OnUnconfirmed) {
		bad("on-unconfirmed", a.OnUnconfirmed, formatConditionActions())
	}
	if a.UnconfirmedAfter < 10*time.Second || a.UnconfirmedAfter > time.Hour {
		bad("unconfirmed-after", a.UnconfirmedAfter, "10s to 1h")
	}
	if a.ConditionDrainTimeout < 0 {
		bad("condition-drain-timeout", a.ConditionDrainTimeout, "0 or more")
	}
	if a.MaxConcurrentDrains < 0 || a.MaxConcurrentDrains > semaphore.MaxLimit {
		bad("max-concurrent-drains", a.MaxConcurrentDrains, fmt.Sprintf("0 to %d", semaphore.MaxLimit))
	}
	if a.MaxConcurrentDrains > 0 && a.Namespace == "" {
		bad("namespace", a.Namespace, "the namespace of the agents (in a pod: POD_NAMESPACE from metadata.namespace), which --max-concurrent-drains needs")
	}
	if mode, err := surge.ParseMode(a.Surge); err != nil {
		bad("surge", a.Surge, "never, annotated or always")
	} else if mode.Enabled() {
		if a.Namespace == "" {
			bad("namespace", a.Namespace, "the namespace of the agents (in a pod: POD_NAMESPACE from metadata.namespace), which --surge needs")
		}
		if a.DisableEviction {
			bad("surge", a.Surge, "never with --disable-eviction: pods that are deleted at once get no successor first")
		}
	}
	return errors.Join(errs...)
}

// validateDrain validates the action for an unknown freeze, the grace periods, the taint and the labels.
func (a *Agent) validateDrain() error {
	var errs []error
	bad := a.newErrorCollector(&errs)
	if !slices.Contains(agent.Actions(), agent.Action(a.OnUnknownFreeze)) {
		bad("on-unknown-freeze", a.OnUnknownFreeze, formatActions())
	}
	if a.StopGrace < 0 || a.StopGrace > 10*time.Minute {
		bad("stop-grace", a.StopGrace, "0 to 10m")
	}
	if !slices.Contains([]string{EvictionRequestsAuto, EvictionRequestsNever}, a.EvictionRequests) {
		bad("eviction-requests", a.EvictionRequests, "auto or never")
	}
	if taint := a.BuildTaint(); slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, taint.Effect) {
		if err := taint.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s, %s: %s=%s: want %w", a.describeOptionSource("taint-key"), a.describeOptionSource("taint-value"), taint.Key, taint.Value, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.Labels)) {
		if err := cordon.ValidateLabel(key, a.Labels[key]); err != nil {
			bad("label", key+"="+a.Labels[key], err.Error())
		}
	}
	return errors.Join(errs...)
}

// BuildTaint returns the configured taint.
func (a *Agent) BuildTaint() agent.Taint {
	return agent.Taint{Key: a.TaintKey, Value: a.TaintValue, Effect: a.TaintEffect}
}

// newErrorCollector returns a function that appends an error about an option to errs.
func (a *Agent) newErrorCollector(errs *[]error) func(flag string, value any, want string) {
	return func(flag string, value any, want string) {
		*errs = append(*errs, fmt.Errorf("%s: %v: want %s", a.describeOptionSource(flag), quoteIfString(value), want))
	}
}

// BuildNoticePolicy returns the configured action for each type of notice. The options must be valid.
func (a *Agent) BuildNoticePolicy() agent.NoticePolicy {
	return agent.NoticePolicy{
		ActionByType: map[notice.Type]agent.Action{
			notice.Freeze: agent.Action(a.OnFreeze), notice.Reboot: agent.Action(a.OnReboot),
			notice.Redeploy: agent.Action(a.OnRedeploy), notice.Preempt: agent.Action(a.OnPreempt),
			notice.Terminate: agent.Action(a.OnTerminate), notice.Rebalance: agent.Action(a.OnRebalance),
		},
		UserInitiatedByType:    a.buildUserInitiatedActions(),
		LiveMigrationAction:    agent.Action(a.OnLiveMigration),
		UnknownFreezeAction:    agent.Action(a.OnUnknownFreeze),
		FreezeTolerance:        a.FreezeTolerance,
		AcknowledgeFreezeUnder: a.AcknowledgeFreezeUnder,
		ActionByCondition:      a.buildConditionActions(),
	}
}

func (a *Agent) buildUserInitiatedActions() map[notice.Type]agent.Action {
	all := map[notice.Type]agent.Action{}
	for kind, action := range a.OnUserInitiated {
		all[parseNoticeType(kind)] = agent.Action(action)
	}
	return all
}

// buildConditionActions returns the action for each node condition. It combines the rules with the action for
// unconfirmed events.
func (a *Agent) buildConditionActions() map[string]agent.Action {
	all := map[string]agent.Action{}
	for _, hint := range condition.HintTypes() {
		all[hint] = agent.Action(a.OnUnconfirmed)
	}
	for _, r := range a.Conditions {
		all[r.ID()] = agent.Action(r.Action)
	}
	return all
}

// ShouldWatchConditions reports whether the agent must watch the node's conditions.
func (a *Agent) ShouldWatchConditions() bool {
	return len(a.Conditions) > 0 || a.OnUnconfirmed != string(agent.Ignore)
}

// parseNoticeType returns the interruption type with the given name, ignoring letter case. It returns "" for an unknown
// name.
func parseNoticeType(name string) notice.Type {
	for _, t := range notice.Interruptions() {
		if strings.EqualFold(string(t), name) {
			return t
		}
	}
	return ""
}

func listNoticeTypeNames() []string {
	var all []string
	for _, t := range notice.Interruptions() {
		all = append(all, strings.ToLower(string(t)))
	}
	return all
}

// formatActions and formatConditionActions list the allowed actions for messages.
func formatActions() string          { return "acknowledge, drain-marked, drain, cordon or ignore" }
func formatConditionActions() string { return "drain-marked, drain, cordon or ignore" }

// conditionRulesValue is the value of a flag that can be repeated, with one rule each time.
type conditionRulesValue []condition.Rule

func (r *conditionRulesValue) String() string {
	var all []string
	for _, rule := range *r {
		all = append(all, rule.ID()+"="+rule.Action)
	}
	return strings.Join(all, " ")
}

func (r *conditionRulesValue) Set(text string) error {
	rule, err := condition.ParseRule(text)
	if err != nil {
		return err
	}
	*r = append(*r, rule)
	return nil
}

func (*conditionRulesValue) Type() string { return "rule" }

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

func isAddress(s string) bool {
	_, _, err := net.SplitHostPort(s)
	return err == nil
}

func quoteIfString(v any) any {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return v
}
