// Package awsnth is the compatibility mode of aws-node-termination-handler. It reads the tool's flags and environment
// variables, and converts them to Slipway's configuration. In addition to Slipway's outputs it provides the tool's taints,
// Kubernetes Events, metrics, webhook data and HTTP paths.
package awsnth

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/semaphore"
)

// Tool is the name of the replaced tool.
const Tool = "aws-node-termination-handler"

// Options holds the tool's settings. The fields up to SQSMsgVisibilityTimeoutSec are the tool's, after repairValues and
// applyDeprecated.
type Options struct {
	DryRun   bool
	NodeName string
	// PodName and PodNamespace name this process's own pod.
	PodName      string
	PodNamespace string
	MetadataURL  string

	IgnoreDaemonSets bool
	DeleteLocalData  bool

	KubernetesServiceHost string
	KubernetesServicePort string

	GracePeriod                int
	PodTerminationGracePeriod  int
	NodeTerminationGracePeriod int
	KubeAPIQPS                 int
	KubeAPIBurst               int

	WebhookURL          string
	WebhookProxy        string
	WebhookHeaders      string
	WebhookTemplate     string
	WebhookTemplateFile string

	EnableScheduledEventDraining   bool
	EnableSpotInterruptionDraining bool
	EnableASGLifecycleDraining     bool
	// EnableSQSTerminationDraining selects the queue mode. The other four Enable options have no effect there.
	EnableSQSTerminationDraining bool
	EnableRebalanceMonitoring    bool
	EnableRebalanceDraining      bool

	CheckASGTagBeforeDraining bool
	CheckTagBeforeDraining    bool
	ManagedASGTag             string
	ManagedTag                string

	MetadataTries            int
	CordonOnly               bool
	TaintNode                bool
	TaintEffect              string
	EnableOutOfServiceTaint  bool
	ExcludeFromLoadBalancers bool

	JSONLogging      bool
	LogLevel         string
	LogFormatVersion int
	UptimeFromFile   string

	EnablePrometheusServer           bool
	PrometheusServerPort             int
	EnableProbesServer               bool
	ProbesServerPort                 int
	ProbesServerEndpoint             string
	EmitKubernetesEvents             bool
	KubernetesEventsExtraAnnotations string

	AWSRegion                           string
	AWSEndpoint                         string
	QueueURL                            string
	Workers                             int
	UseProviderID                       bool
	CompleteLifecycleActionDelaySeconds int
	DeleteSQSMsgIfNodeNotFound          bool
	UseAPIServerCache                   bool
	HeartbeatInterval                   int
	HeartbeatUntil                      int
	SQSMsgVisibilityTimeoutSec          int

	// The tool does not have the settings below.

	ShowVersion bool
	Kubeconfig  string
	// Acknowledge completes the lifecycle hook of the Auto Scaling group once the node is drained.
	Acknowledge         bool
	MaxConcurrentDrains int

	// Warnings report ignored and changed settings.
	Warnings []string

	sources map[string]string // flag name to the source of its value
}

// setting is one of the tool's settings: the name of its flag, and of its environment variable.
type setting struct{ flag, env string }

// toolSettings returns the settings of the tool, in the tool's order.
func toolSettings() []setting {
	return []setting{
		{"dry-run", "DRY_RUN"},
		{"node-name", "NODE_NAME"},
		{"pod-name", "POD_NAME"},
		{"pod-namespace", "NAMESPACE"},
		{"metadata-url", "INSTANCE_METADATA_URL"},
		{"ignore-daemon-sets", "IGNORE_DAEMON_SETS"},
		{"delete-local-data", "DELETE_LOCAL_DATA"},
		{"kubernetes-service-host", "KUBERNETES_SERVICE_HOST"},
		{"kubernetes-service-port", "KUBERNETES_SERVICE_PORT"},
		{"grace-period", "GRACE_PERIOD"},
		{"pod-termination-grace-period", "POD_TERMINATION_GRACE_PERIOD"},
		{"node-termination-grace-period", "NODE_TERMINATION_GRACE_PERIOD"},
		{"kube-api-qps", "KUBE_API_QPS"},
		{"kube-api-burst", "KUBE_API_BURST"},
		{"webhook-url", "WEBHOOK_URL"},
		{"webhook-proxy", "WEBHOOK_PROXY"},
		{"webhook-headers", "WEBHOOK_HEADERS"},
		{"webhook-template", "WEBHOOK_TEMPLATE"},
		{"webhook-template-file", "WEBHOOK_TEMPLATE_FILE"},
		{"enable-scheduled-event-draining", "ENABLE_SCHEDULED_EVENT_DRAINING"},
		{"enable-spot-interruption-draining", "ENABLE_SPOT_INTERRUPTION_DRAINING"},
		{"enable-asg-lifecycle-draining", "ENABLE_ASG_LIFECYCLE_DRAINING"},
		{"enable-sqs-termination-draining", "ENABLE_SQS_TERMINATION_DRAINING"},
		{"enable-rebalance-monitoring", "ENABLE_REBALANCE_MONITORING"},
		{"enable-rebalance-draining", "ENABLE_REBALANCE_DRAINING"},
		{"check-asg-tag-before-draining", "CHECK_ASG_TAG_BEFORE_DRAINING"},
		{"check-tag-before-draining", "CHECK_TAG_BEFORE_DRAINING"},
		{"managed-asg-tag", "MANAGED_ASG_TAG"},
		{"managed-tag", "MANAGED_TAG"},
		{"metadata-tries", "METADATA_TRIES"},
		{"cordon-only", "CORDON_ONLY"},
		{"taint-node", "TAINT_NODE"},
		{"taint-effect", "TAINT_EFFECT"},
		{"enable-out-of-service-taint", "ENABLE_OUT_OF_SERVICE_TAINT"},
		{"exclude-from-load-balancers", "EXCLUDE_FROM_LOAD_BALANCERS"},
		{"json-logging", "JSON_LOGGING"},
		{"log-level", "LOG_LEVEL"},
		{"log-format-version", "LOG_FORMAT_VERSION"},
		{"uptime-from-file", "UPTIME_FROM_FILE"},
		{"enable-prometheus-server", "ENABLE_PROMETHEUS_SERVER"},
		{"prometheus-server-port", "PROMETHEUS_SERVER_PORT"},
		{"enable-probes-server", "ENABLE_PROBES_SERVER"},
		{"probes-server-port", "PROBES_SERVER_PORT"},
		{"probes-server-endpoint", "PROBES_SERVER_ENDPOINT"},
		{"emit-kubernetes-events", "EMIT_KUBERNETES_EVENTS"},
		{"kubernetes-events-extra-annotations", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS"},
		{"aws-region", "AWS_REGION"},
		{"aws-endpoint", "AWS_ENDPOINT"},
		{"queue-url", "QUEUE_URL"},
		{"workers", "WORKERS"},
		{"use-provider-id", "USE_PROVIDER_ID"},
		{"complete-lifecycle-action-delay-seconds", "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS"},
		{"delete-sqs-msg-if-node-not-found", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND"},
		{"use-apiserver-cache", "USE_APISERVER_CACHE"},
		{"heartbeat-interval", "HEARTBEAT_INTERVAL"},
		{"heartbeat-until", "HEARTBEAT_UNTIL"},
		{"sqs-msg-visibility-timeout-sec", "SQS_MSG_VISIBILITY_TIMEOUT_SEC"},
	}
}

// ownSettings returns the settings that the tool does not have.
func ownSettings() []setting {
	return []setting{
		{"version", ""}, {"kubeconfig", ""}, {"acknowledge", "ACKNOWLEDGE"}, {"max-concurrent-drains", "MAX_CONCURRENT_DRAINS"},
	}
}

// The defaults of the tool that other code needs too.
const (
	defaultMetadataURL      = "http://169.254.169.254"
	defaultManagedTag       = Tool + "/managed"
	defaultWebhookHeaders   = `{"Content-type":"application/json"}`
	defaultProbesEndpoint   = "/healthz"
	defaultMetadataTries    = 3
	defaultNodeGracePeriod  = 120
	defaultKubeAPIQPS       = 5
	defaultKubeAPIBurst     = 10
	defaultWorkers          = 10
	defaultMetricsPort      = 9092
	defaultProbesPort       = 8080
	defaultVisibilitySecond = 20
	maxHeartbeatUntil       = 48 * time.Hour
	// notSet is the tool's default of some settings: no value.
	notSet = -1
)

// defaultWebhookTemplate is the tool's template of the webhook's body.
const defaultWebhookTemplate = `{"text":"[NTH][Instance Interruption] EventID: {{ .EventID }} - Kind: {{ .Kind }} - Instance: {{ .InstanceID }} - Node: {{ .NodeName }} - Description: {{ .Description }} - Start Time: {{ .StartTime }}"}`

// newFlagSet returns the tool's flags with the tool's defaults. Go's flag package accepts one or two dashes.
func (o *Options) newFlagSet(out io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet(Tool, flag.ContinueOnError)
	fs.SetOutput(out)
	o.addNodeFlags(fs)
	o.addWebhookFlags(fs)
	o.addNoticeFlags(fs)
	o.addOutputFlags(fs)
	o.addQueueFlags(fs)
	fs.BoolVar(&o.ShowVersion, "version", false, "print the version and exit")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; if empty, the pod's ServiceAccount is used")
	fs.BoolVar(&o.Acknowledge, "acknowledge", true, "complete the lifecycle hook of the Auto Scaling group once the node is drained ($ACKNOWLEDGE)")
	fs.IntVar(&o.MaxConcurrentDrains, "max-concurrent-drains", 0, "maximum number of `nodes` of the cluster that are drained at the same time, if the notice can wait; 0 means no limit ($MAX_CONCURRENT_DRAINS)")
	return fs
}

func (o *Options) addNodeFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.DryRun, "dry-run", false, "log the actions without carrying them out ($DRY_RUN)")
	fs.StringVar(&o.NodeName, "node-name", "", "`name` of the Kubernetes node ($NODE_NAME)")
	fs.StringVar(&o.PodName, "pod-name", "", "`name` of this pod ($POD_NAME)")
	fs.StringVar(&o.PodNamespace, "pod-namespace", "", "`namespace` of this pod ($NAMESPACE)")
	fs.StringVar(&o.MetadataURL, "metadata-url", defaultMetadataURL, "`URL` of the instance metadata service ($INSTANCE_METADATA_URL)")
	fs.BoolVar(&o.IgnoreDaemonSets, "ignore-daemon-sets", true, "has no effect: DaemonSet pods stay ($IGNORE_DAEMON_SETS)")
	fs.BoolVar(&o.DeleteLocalData, "delete-local-data", true, "has no effect: pods with an emptyDir are evicted ($DELETE_LOCAL_DATA)")
	fs.StringVar(&o.KubernetesServiceHost, "kubernetes-service-host", "", "`host` of the API server ($KUBERNETES_SERVICE_HOST)")
	fs.StringVar(&o.KubernetesServicePort, "kubernetes-service-port", "", "`port` of the API server ($KUBERNETES_SERVICE_PORT)")
	fs.IntVar(&o.GracePeriod, "grace-period", notSet, "old name of -pod-termination-grace-period ($GRACE_PERIOD)")
	fs.IntVar(&o.PodTerminationGracePeriod, "pod-termination-grace-period", notSet, "termination grace period of every pod in `seconds`; negative uses the pod's own ($POD_TERMINATION_GRACE_PERIOD)")
	fs.IntVar(&o.NodeTerminationGracePeriod, "node-termination-grace-period", defaultNodeGracePeriod, "how many `seconds` before a planned event a drain begins, at least; it is no time limit ($NODE_TERMINATION_GRACE_PERIOD)")
	fs.IntVar(&o.KubeAPIQPS, "kube-api-qps", defaultKubeAPIQPS, "has no effect: the API server limits requests ($KUBE_API_QPS)")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", defaultKubeAPIBurst, "has no effect: the API server limits requests ($KUBE_API_BURST)")
	fs.BoolVar(&o.UseAPIServerCache, "use-apiserver-cache", false, "has no effect: pods are listed once and then watched ($USE_APISERVER_CACHE)")
	fs.StringVar(&o.UptimeFromFile, "uptime-from-file", "", "`file` with the time since the boot in seconds, instead of the operating system's ($UPTIME_FROM_FILE)")
	fs.BoolVar(&o.CordonOnly, "cordon-only", false, "cordon nodes, but do not drain them ($CORDON_ONLY)")
	fs.BoolVar(&o.TaintNode, "taint-node", false, "also taint the node ($TAINT_NODE)")
	fs.StringVar(&o.TaintEffect, "taint-effect", "NoSchedule", "NoSchedule, NoExecute (after the drain) or PreferNoSchedule ($TAINT_EFFECT)")
	fs.BoolVar(&o.EnableOutOfServiceTaint, "enable-out-of-service-taint", false, "taint a drained node as out of service, so that its volumes are detached ($ENABLE_OUT_OF_SERVICE_TAINT)")
	fs.BoolVar(&o.ExcludeFromLoadBalancers, "exclude-from-load-balancers", false, "exclude the node from load balancers by a label ($EXCLUDE_FROM_LOAD_BALANCERS)")
}

func (o *Options) addWebhookFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.WebhookURL, "webhook-url", "", "`URL` of the webhook ($WEBHOOK_URL)")
	fs.StringVar(&o.WebhookProxy, "webhook-proxy", "", "`URL` of an HTTP proxy for the webhook ($WEBHOOK_PROXY)")
	fs.StringVar(&o.WebhookHeaders, "webhook-headers", defaultWebhookHeaders, "headers of the webhook's requests, as a `JSON` object ($WEBHOOK_HEADERS)")
	fs.StringVar(&o.WebhookTemplate, "webhook-template", defaultWebhookTemplate, "`template` of the webhook's body ($WEBHOOK_TEMPLATE)")
	fs.StringVar(&o.WebhookTemplateFile, "webhook-template-file", "", "`file` with the template of the body, overrides -webhook-template ($WEBHOOK_TEMPLATE_FILE)")
}

func (o *Options) addNoticeFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.EnableScheduledEventDraining, "enable-scheduled-event-draining", true, "act on scheduled events of the instance ($ENABLE_SCHEDULED_EVENT_DRAINING)")
	fs.BoolVar(&o.EnableSpotInterruptionDraining, "enable-spot-interruption-draining", true, "act on Spot interruptions ($ENABLE_SPOT_INTERRUPTION_DRAINING)")
	fs.BoolVar(&o.EnableASGLifecycleDraining, "enable-asg-lifecycle-draining", false, "act when the Auto Scaling group terminates the instance ($ENABLE_ASG_LIFECYCLE_DRAINING)")
	fs.BoolVar(&o.EnableSQSTerminationDraining, "enable-sqs-termination-draining", false, "queue mode: read the notices of all nodes from an SQS queue ($ENABLE_SQS_TERMINATION_DRAINING)")
	fs.BoolVar(&o.EnableRebalanceMonitoring, "enable-rebalance-monitoring", false, "cordon on a rebalance recommendation ($ENABLE_REBALANCE_MONITORING)")
	fs.BoolVar(&o.EnableRebalanceDraining, "enable-rebalance-draining", false, "drain on a rebalance recommendation ($ENABLE_REBALANCE_DRAINING)")
	fs.IntVar(&o.MetadataTries, "metadata-tries", defaultMetadataTries, "has no effect: reading continues after every failure ($METADATA_TRIES)")
}

func (o *Options) addOutputFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.JSONLogging, "json-logging", false, "log JSON instead of text ($JSON_LOGGING)")
	fs.StringVar(&o.LogLevel, "log-level", "INFO", "info, debug or error ($LOG_LEVEL)")
	fs.IntVar(&o.LogFormatVersion, "log-format-version", 1, "`version` of the reasons of Kubernetes Events, 1 or 2 ($LOG_FORMAT_VERSION)")
	fs.BoolVar(&o.EnablePrometheusServer, "enable-prometheus-server", false, "serve /metrics ($ENABLE_PROMETHEUS_SERVER)")
	fs.IntVar(&o.PrometheusServerPort, "prometheus-server-port", defaultMetricsPort, "`port` of /metrics ($PROMETHEUS_SERVER_PORT)")
	fs.BoolVar(&o.EnableProbesServer, "enable-probes-server", false, "serve the liveness probe ($ENABLE_PROBES_SERVER)")
	fs.IntVar(&o.ProbesServerPort, "probes-server-port", defaultProbesPort, "`port` of the liveness probe ($PROBES_SERVER_PORT)")
	fs.StringVar(&o.ProbesServerEndpoint, "probes-server-endpoint", defaultProbesEndpoint, "`path` of the liveness probe ($PROBES_SERVER_ENDPOINT)")
	fs.BoolVar(&o.EmitKubernetesEvents, "emit-kubernetes-events", false, "write the tool's Kubernetes Events ($EMIT_KUBERNETES_EVENTS)")
	fs.StringVar(&o.KubernetesEventsExtraAnnotations, "kubernetes-events-extra-annotations", "", "annotations of these Events, as `key=value,...` ($KUBERNETES_EVENTS_EXTRA_ANNOTATIONS)")
}

func (o *Options) addQueueFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.CheckASGTagBeforeDraining, "check-asg-tag-before-draining", true, "old name of -check-tag-before-draining ($CHECK_ASG_TAG_BEFORE_DRAINING)")
	fs.BoolVar(&o.CheckTagBeforeDraining, "check-tag-before-draining", true, "handle only instances with the tag -managed-tag ($CHECK_TAG_BEFORE_DRAINING)")
	fs.StringVar(&o.ManagedASGTag, "managed-asg-tag", defaultManagedTag, "old name of -managed-tag ($MANAGED_ASG_TAG)")
	fs.StringVar(&o.ManagedTag, "managed-tag", defaultManagedTag, "`key` of the tag for -check-tag-before-draining ($MANAGED_TAG)")
	fs.StringVar(&o.AWSRegion, "aws-region", "", "AWS `region` of the queue ($AWS_REGION)")
	fs.StringVar(&o.AWSEndpoint, "aws-endpoint", "", "`URL` of the AWS APIs, for tests ($AWS_ENDPOINT)")
	fs.StringVar(&o.QueueURL, "queue-url", "", "`URL` of the SQS queue ($QUEUE_URL)")
	fs.IntVar(&o.Workers, "workers", defaultWorkers, "how many `nodes` are drained at the same time, if the notice can wait ($WORKERS)")
	fs.BoolVar(&o.UseProviderID, "use-provider-id", false, "find nodes only by spec.providerID, not by the private DNS name too ($USE_PROVIDER_ID)")
	fs.IntVar(&o.CompleteLifecycleActionDelaySeconds, "complete-lifecycle-action-delay-seconds", notSet, "`seconds` between the drain and the completion of the lifecycle hook ($COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS)")
	fs.BoolVar(&o.DeleteSQSMsgIfNodeNotFound, "delete-sqs-msg-if-node-not-found", false, "delete the message of an instance without a node at once ($DELETE_SQS_MSG_IF_NODE_NOT_FOUND)")
	fs.IntVar(&o.HeartbeatInterval, "heartbeat-interval", notSet, "`seconds` between two heartbeats of the lifecycle hook, 30 to 3600 ($HEARTBEAT_INTERVAL)")
	fs.IntVar(&o.HeartbeatUntil, "heartbeat-until", notSet, "how many `seconds` heartbeats are sent, 60 to 172800 ($HEARTBEAT_UNTIL)")
	fs.IntVar(&o.SQSMsgVisibilityTimeoutSec, "sqs-msg-visibility-timeout-sec", defaultVisibilitySecond, "`seconds` that a received message is hidden, 1 to 119 ($SQS_MSG_VISIBILITY_TIMEOUT_SEC)")
}

// ParseOptions reads the tool's command line and environment. Flags override the environment, and the environment
// overrides the defaults. An empty variable counts as not set. It returns flag.ErrHelp after -help, and a
// *compat.UsageError for unknown flags or invalid values of flags. It prints the usage to out. It refuses only what the
// tool refused.
func ParseOptions(args []string, env func(string) string, out io.Writer) (*Options, error) {
	o := &Options{sources: map[string]string{}}
	fs := o.newFlagSet(out)
	var errs []error
	for _, s := range append(toolSettings(), ownSettings()...) {
		if s.env == "" || env(s.env) == "" {
			continue
		}
		if err := fs.Set(s.flag, env(s.env)); err != nil {
			errs = append(errs, fmt.Errorf("$%s: %q: want %s", s.env, env(s.env), compat.DescribeFlagValue(fs, s.flag)))
		}
		o.sources[s.flag] = "$" + s.env
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := compat.ParseFlags(fs, args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		o.addWarning("%q: is not a flag; this and all following arguments are ignored", fs.Arg(0))
	}
	for _, name := range compat.ListFlagsOnCommandLine(fs, args) {
		o.sources[name] = "-" + name
	}
	if o.ShowVersion {
		return o, nil
	}
	o.applyDeprecated()
	o.repairValues()
	o.warnAboutSettings()
	return o, o.Validate()
}

// IsSet reports whether the user set a setting. name is the setting's flag name.
func (o *Options) IsSet(name string) bool { return o.sources[name] != "" }

// describeSource returns how the user set a setting: the name of a flag or of a variable.
func (o *Options) describeSource(name string) string {
	if from := o.sources[name]; from != "" {
		return from
	}
	return "-" + name
}

func (o *Options) addWarning(format string, args ...any) {
	o.Warnings = append(o.Warnings, fmt.Sprintf(format, args...))
}

// warnReplaced adds a warning that a setting's value is not used, and which value is used instead.
func (o *Options) warnReplaced(name string, value any, want, instead string) {
	if s, ok := value.(string); ok {
		value = strconv.Quote(s)
	}
	o.addWarning("%s: %v: want %s; %s", o.describeSource(name), value, want, instead)
}

// applyDeprecated applies the settings with an old name. As in the tool, the new name overrides the old one.
func (o *Options) applyDeprecated() {
	use := func(old, replacement string, differ bool, apply func()) {
		switch {
		case !o.IsSet(old):
		case o.IsSet(replacement):
			if differ {
				o.addWarning("%s: ignored, because %s overrides it", o.describeSource(old), o.describeSource(replacement))
			}
		default:
			apply()
			o.addWarning("%s: is an old name, use -%s", o.describeSource(old), replacement)
			o.sources[replacement] = o.sources[old]
		}
	}
	use("grace-period", "pod-termination-grace-period", o.GracePeriod != o.PodTerminationGracePeriod,
		func() { o.PodTerminationGracePeriod = o.GracePeriod })
	use("managed-asg-tag", "managed-tag", o.ManagedASGTag != o.ManagedTag, func() { o.ManagedTag = o.ManagedASGTag })
	use("check-asg-tag-before-draining", "check-tag-before-draining", o.CheckASGTagBeforeDraining != o.CheckTagBeforeDraining,
		func() { o.CheckTagBeforeDraining = o.CheckASGTagBeforeDraining })
}

// The limits of the settings that the tool validates, in seconds.
const (
	minHeartbeatInterval, maxHeartbeatInterval = 30, 3600
	minHeartbeatUntil                          = 60
	minVisibilitySeconds, maxVisibilitySeconds = 1, 119
)

// logLevels maps the tool's level names to Slipway's. The tool does not have warn.
var logLevels = map[string]string{"info": "info", "debug": "debug", "error": "error", "warn": "warn"}

// Validate returns an error for each value that the tool refused too. repairValues has replaced all others.
func (o *Options) Validate() error {
	var errs []error
	bad := func(name string, value any, want string) {
		if s, ok := value.(string); ok {
			value = strconv.Quote(s)
		}
		errs = append(errs, fmt.Errorf("%s: %v: want %s", o.describeSource(name), value, want))
	}
	if o.NodeName == "" {
		bad("node-name", o.NodeName, "the name of this node (in a pod: NODE_NAME from spec.nodeName)")
	}
	if logLevels[strings.ToLower(o.LogLevel)] == "" {
		bad("log-level", o.LogLevel, "info, debug or error")
	}
	if o.MaxConcurrentDrains < 0 || o.MaxConcurrentDrains > semaphore.MaxLimit {
		bad("max-concurrent-drains", o.MaxConcurrentDrains, fmt.Sprintf("0 to %d", semaphore.MaxLimit))
	}
	if o.MaxConcurrentDrains > 0 && o.PodNamespace == "" {
		bad("pod-namespace", o.PodNamespace, "the namespace of this pod (in a pod: NAMESPACE from metadata.namespace), required by "+
			o.describeSource("max-concurrent-drains"))
	}
	o.validateQueue(bad)
	return errors.Join(errs...)
}

func (o *Options) validateQueue(bad func(name string, value any, want string)) {
	if !o.EnableSQSTerminationDraining {
		for _, s := range []struct {
			name  string
			value int
		}{{"heartbeat-interval", o.HeartbeatInterval}, {"heartbeat-until", o.HeartbeatUntil}} {
			if s.value != notSet {
				bad(s.name, s.value, "-1 without "+o.describeSource("enable-sqs-termination-draining"))
			}
		}
		return
	}
	if o.QueueURL == "" {
		bad("queue-url", o.QueueURL, "the URL of an SQS queue, required by "+o.describeSource("enable-sqs-termination-draining"))
	}
	if n := o.HeartbeatInterval; n != notSet && (n < minHeartbeatInterval || n > maxHeartbeatInterval) {
		bad("heartbeat-interval", n, fmt.Sprintf("%d to %d seconds, or -1 for none", minHeartbeatInterval, maxHeartbeatInterval))
	}
	switch n := o.HeartbeatUntil; {
	case n == notSet:
	case n < minHeartbeatUntil || n > int(maxHeartbeatUntil.Seconds()):
		bad("heartbeat-until", n, fmt.Sprintf("%d to %.0f seconds, or -1", minHeartbeatUntil, maxHeartbeatUntil.Seconds()))
	case o.HeartbeatInterval == notSet:
		bad("heartbeat-interval", o.HeartbeatInterval, "a number of seconds, required by "+o.describeSource("heartbeat-until"))
	case n < o.HeartbeatInterval:
		bad("heartbeat-until", n, fmt.Sprintf("at least %s, which is %d", o.describeSource("heartbeat-interval"), o.HeartbeatInterval))
	}
	if n := o.SQSMsgVisibilityTimeoutSec; n < minVisibilitySeconds || n > maxVisibilitySeconds {
		bad("sqs-msg-visibility-timeout-sec", n, fmt.Sprintf("%d to %d seconds", minVisibilitySeconds, maxVisibilitySeconds))
	}
}

// ParseEventAnnotations returns the annotations of -kubernetes-events-extra-annotations. Parts without a key or without
// an equals sign are left out.
func (o *Options) ParseEventAnnotations() map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq(o.KubernetesEventsExtraAnnotations, ",") {
		if key, value, ok := strings.Cut(part, "="); ok && strings.TrimSpace(key) != "" {
			all[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return all
}

// taintEffects are the valid effects of a taint.
var taintEffects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

func isTaintEffect(s string) bool { return slices.Contains(taintEffects, s) }
