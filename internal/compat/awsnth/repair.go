package awsnth

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notify"
)

// The limits of the agent and of the queue that the tool did not have.
const (
	maxWorkers         = 1000
	maxCompletionDelay = time.Hour
	maxPort            = 1<<16 - 1
)

// repairValues replaces invalid values that did not prevent the start of the tool, and adds a warning for each. If the
// pods of a DaemonSet exited for such a value, no node would be protected.
func (o *Options) repairValues() {
	if _, err := aws.NewClient(aws.ClientOptions{Endpoint: o.MetadataURL}); err != nil || o.MetadataURL == "" {
		o.repairMetadataURL()
	}
	if !isTaintEffect(o.TaintEffect) {
		o.warnReplaced("taint-effect", o.TaintEffect, "NoSchedule, PreferNoSchedule or NoExecute", "using NoSchedule")
		o.TaintEffect = "NoSchedule"
	}
	if fixed := min(max(o.LogFormatVersion, 1), 2); fixed != o.LogFormatVersion {
		o.warnReplaced("log-format-version", o.LogFormatVersion, "1 or 2", fmt.Sprintf("using %d", fixed))
		o.LogFormatVersion = fixed
	}
	o.repairServers()
	o.repairQueue()
	o.repairWebhook()
	for part := range strings.SplitSeq(o.KubernetesEventsExtraAnnotations, ",") {
		if key, _, ok := strings.Cut(part, "="); part != "" && (!ok || strings.TrimSpace(key) == "") {
			o.warnReplaced("kubernetes-events-extra-annotations", part, "key=value,key=value", "this part is left out")
		}
	}
}

// repairMetadataURL removes the path of the URL, because the tool accepted one. If the rest is invalid too, it uses the
// default.
func (o *Options) repairMetadataURL() {
	fixed := defaultMetadataURL
	if u, err := url.Parse(o.MetadataURL); err == nil && u.Host != "" {
		candidate := u.Scheme + "://" + u.Host
		if _, err := aws.NewClient(aws.ClientOptions{Endpoint: candidate}); err == nil {
			fixed = candidate
		}
	}
	o.warnReplaced("metadata-url", o.MetadataURL, "a URL without a path, such as "+defaultMetadataURL, "using "+fixed)
	o.MetadataURL = fixed
}

func (o *Options) repairServers() {
	for _, s := range []struct {
		flag    string
		port    int
		enabled *bool
	}{
		{"prometheus-server-port", o.PrometheusServerPort, &o.EnablePrometheusServer},
		{"probes-server-port", o.ProbesServerPort, &o.EnableProbesServer},
	} {
		if *s.enabled && (s.port < 0 || s.port > maxPort) {
			o.warnReplaced(s.flag, s.port, fmt.Sprintf("0 to %d", maxPort), "nothing is served there")
			*s.enabled = false
		}
	}
	if path := o.ProbesServerEndpoint; o.EnableProbesServer && !strings.HasPrefix(path, "/") {
		fixed := "/" + path
		if path == "" {
			fixed = defaultProbesEndpoint
		}
		o.warnReplaced("probes-server-endpoint", path, "a path that begins with /", "using "+fixed)
		o.ProbesServerEndpoint = fixed
	}
}

func (o *Options) repairQueue() {
	if !o.EnableSQSTerminationDraining {
		return
	}
	if fixed := min(max(o.Workers, 1), maxWorkers); fixed != o.Workers {
		o.warnReplaced("workers", o.Workers, fmt.Sprintf("1 to %d", maxWorkers), fmt.Sprintf("using %d", fixed))
		o.Workers = fixed
	}
	if longest := int(maxCompletionDelay.Seconds()); o.CompleteLifecycleActionDelaySeconds > longest {
		o.warnReplaced("complete-lifecycle-action-delay-seconds", o.CompleteLifecycleActionDelaySeconds,
			fmt.Sprintf("at most %d", longest), fmt.Sprintf("using %d", longest))
		o.CompleteLifecycleActionDelaySeconds = longest
	}
	if shortest := int(queue.MinVisibility.Seconds()); o.SQSMsgVisibilityTimeoutSec >= minVisibilitySeconds && o.SQSMsgVisibilityTimeoutSec < shortest {
		o.warnReplaced("sqs-msg-visibility-timeout-sec", o.SQSMsgVisibilityTimeoutSec, fmt.Sprintf("at least %d", shortest), fmt.Sprintf("using %d", shortest))
		o.SQSMsgVisibilityTimeoutSec = shortest
	}
	if o.CheckTagBeforeDraining && o.ManagedTag == "" {
		o.warnReplaced("managed-tag", "", "the key of a tag", "using "+defaultManagedTag)
		o.ManagedTag = defaultManagedTag
	}
}

// repairWebhook replaces the values that no receiver accepts. The warnings contain no URL and no header, because these
// may be secret.
func (o *Options) repairWebhook() {
	if o.WebhookURL == "" {
		return
	}
	if err := notify.ValidateServerURL(o.WebhookURL, "http", "https"); err != nil {
		o.addWarning("%s: %v (value hidden, it may contain a secret): want an http or https URL; no webhook is called", o.describeSource("webhook-url"), err)
		o.WebhookURL = ""
		return
	}
	if o.WebhookProxy != "" {
		o.repairProxy()
	}
	headers, errs := parseHeaders(o.WebhookHeaders)
	for _, err := range errs {
		o.addWarning("%s: %v; it is not sent", o.describeSource("webhook-headers"), err)
	}
	if headers == nil {
		o.WebhookHeaders = defaultWebhookHeaders
	}
	for _, r := range o.ToReceivers() {
		if err := r.Validate(); err != nil { // such as too many headers
			o.addWarning("%s: %v; no webhook is called", o.describeSource("webhook-headers"), err)
			o.WebhookURL = ""
		}
	}
}

// repairProxy replaces the scheme of the proxy's URL by http if it is missing or unknown. The tool accepted any scheme,
// and its help shows tcp.
func (o *Options) repairProxy() {
	schemes := []string{"http", "https", "socks5", "socks5h"}
	if notify.ValidateServerURL(o.WebhookProxy, schemes...) == nil {
		return
	}
	_, rest, hasScheme := strings.Cut(o.WebhookProxy, "://")
	if !hasScheme {
		rest = o.WebhookProxy
	}
	if fixed := "http://" + rest; notify.ValidateServerURL(fixed, schemes...) == nil {
		if !strings.HasPrefix(o.WebhookProxy, "tcp://") { // the form in the tool's help
			o.addWarning("%s: its scheme is not http, https or socks5; using http", o.describeSource("webhook-proxy"))
		}
		o.WebhookProxy = fixed
		return
	}
	o.addWarning("%s: is not the URL of a proxy; the webhook is called without one", o.describeSource("webhook-proxy"))
	o.WebhookProxy = ""
}

// warnAboutSettings adds warnings about settings that have another meaning than in the tool, or no effect.
func (o *Options) warnAboutSettings() {
	ignored := func(name string, isDefault bool, instead string) {
		if !isDefault {
			o.addWarning("%s: ignored: %s", o.describeSource(name), instead)
		}
	}
	ignored("ignore-daemon-sets", o.IgnoreDaemonSets, "DaemonSet pods stay on the node; the tool could not drain a node with such pods")
	ignored("delete-local-data", o.DeleteLocalData, "pods with an emptyDir are evicted, because the instance goes away with their data; the "+
		"tool did not drain a node with such pods")
	ignored("kube-api-qps", o.KubeAPIQPS == defaultKubeAPIQPS, "requests are not limited on the client's side; the API server's priority and fairness apply")
	ignored("kube-api-burst", o.KubeAPIBurst == defaultKubeAPIBurst, "requests are not limited on the client's side; the API server's priority and fairness apply")
	ignored("use-apiserver-cache", !o.UseAPIServerCache, "the pods of a node are listed once and then watched")
	ignored("metadata-tries", o.MetadataTries == defaultMetadataTries, "reading continues after every failure, with growing pauses of at most 1m")
	if o.IsSet("node-termination-grace-period") && o.NodeTerminationGracePeriod != defaultNodeGracePeriod {
		o.addWarning("%s: limits no drain: a drain continues until the deadline of its notice. A drain for a planned event begins at "+
			"least this time before the event", o.describeSource("node-termination-grace-period"))
	}
	if o.ExcludeFromLoadBalancers && o.CordonOnly {
		o.addWarning("%s: has no effect with %s, as in the tool", o.describeSource("exclude-from-load-balancers"), o.describeSource("cordon-only"))
	}
	if o.EnableOutOfServiceTaint && o.CordonOnly {
		o.addWarning("%s: has no effect with %s, as in the tool", o.describeSource("enable-out-of-service-taint"), o.describeSource("cordon-only"))
	}
	if o.EnableSQSTerminationDraining {
		o.warnAboutMetadataSettings()
	} else if o.QueueURL != "" {
		o.addWarning("%s: ignored without %s", o.describeSource("queue-url"), o.describeSource("enable-sqs-termination-draining"))
	}
}

// warnAboutMetadataSettings adds a warning for each option that switches off a kind of notice, but not in queue mode.
func (o *Options) warnAboutMetadataSettings() {
	for _, s := range []struct {
		flag string
		on   bool
	}{
		{"enable-spot-interruption-draining", o.EnableSpotInterruptionDraining},
		{"enable-scheduled-event-draining", o.EnableScheduledEventDraining},
	} {
		if !s.on && o.IsSet(s.flag) {
			o.addWarning("%s: has no effect in queue mode, as in the tool: leave such messages out of the queue", o.describeSource(s.flag))
		}
	}
}

// WarnAboutTemplates adds a warning if the webhook's template cannot be used. Its messages are then lost. The tool did not
// start.
func (o *Options) WarnAboutTemplates() {
	if o.WebhookURL == "" {
		return
	}
	name, text := "webhook-template", o.WebhookTemplate
	if o.WebhookTemplateFile != "" {
		name = "webhook-template-file"
		raw, err := os.ReadFile(o.WebhookTemplateFile)
		if err != nil {
			o.addWarning("%s: %v: messages are lost until the file is readable", o.describeSource(name), err)
			return
		}
		text = string(raw)
	}
	if err := notify.ValidateTemplate(o.describeSource(name), text); err != nil {
		o.addWarning("%v: messages with this template are lost", err)
	}
}

// regionInHost finds the region in the host of a queue. A region has the same form in all partitions of AWS, such as
// us-isob-east-1. In an old form of the host, the region comes first.
var regionInHost = regexp.MustCompile(`\.(` + regionForm + `)\.|^(` + regionForm + `)\.queue\.`)

const regionForm = `[a-z]+(?:-[a-z]+)+-[0-9]+`

// regionInURL returns the AWS region in the host of a queue's URL; empty if there is none.
func regionInURL(queueURL string) string {
	u, err := url.Parse(queueURL)
	if err != nil {
		return ""
	}
	if m := regionInHost.FindStringSubmatch(u.Hostname()); m != nil {
		return cmp.Or(m[1], m[2])
	}
	return ""
}
