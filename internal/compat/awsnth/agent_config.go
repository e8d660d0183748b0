package awsnth

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notify"
)

// webhookReceiver is the name of the notification receiver that the tool's webhook is converted to.
const webhookReceiver = "webhook"

// webhookTimeout is the tool's timeout of a request to the webhook.
const webhookTimeout = 5 * time.Second

// noProxy makes a receiver ignore the proxy variables of the environment, as the tool's webhook did.
const noProxy = "direct"

// The label that excludes a node from load balancers of cloud providers, with the tool's value.
const (
	excludeFromLoadBalancersLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
	excludeFromLoadBalancersValue = Tool
)

// maxLead is the longest lead that the agent accepts.
const maxLead = 30 * 24 * time.Hour

// ToAgentConfig returns the agent configuration for the tool's options. In queue mode it is for the agents of all nodes,
// and has no NodeName. ActionFor and TaintsFor are more precise than its actions and its taint.
func (o *Options) ToAgentConfig() config.Agent {
	c := config.NewDefaultAgent()
	c.Cloud, c.Kubeconfig, c.NodeName = config.CloudAWS, o.Kubeconfig, o.NodeName
	if o.EnableSQSTerminationDraining {
		c.NodeName = ""
	}
	if o.MetadataURL != defaultMetadataURL { // the agent's own default
		c.Endpoint = o.MetadataURL
	}
	c.ASG.Endpoint = o.AWSEndpoint
	c.Acknowledge = o.Acknowledge && o.isActive(ASGLifecycle)
	o.setActions(&c)
	c.OnUnconfirmed = string(agent.Ignore) // the tool ignored conditions
	if lead := time.Duration(o.NodeTerminationGracePeriod) * time.Second; lead > 0 {
		c.MaintenanceLead = min(max(c.MaintenanceLead, lead), maxLead)
		c.RetirementLead = min(max(c.RetirementLead, lead), maxLead)
	}
	c.GracePeriod = int64(o.PodTerminationGracePeriod)
	c.MaxConcurrentDrains, c.Namespace = o.MaxConcurrentDrains, o.PodNamespace
	c.DryRun = o.DryRun
	if o.TaintNode {
		c.TaintKey, c.TaintValue, c.TaintEffect = Tool+"/{type}", "{id}", o.TaintEffect
	}
	if o.excludesFromLoadBalancers() && !o.cordonsForRebalance() { // otherwise LabelsFor returns the label
		c.Labels = map[string]string{excludeFromLoadBalancersLabel: excludeFromLoadBalancersValue}
	}
	if c.Listen = o.MetricsAddress(); c.Listen == "" {
		c.Listen = o.ProbesAddress()
	}
	c.LogLevel, c.LogFormat = logLevels[strings.ToLower(o.LogLevel)], "text"
	if o.JSONLogging {
		c.LogFormat = "json"
	}
	c.Notifications = o.ToReceivers()
	return c
}

// excludesFromLoadBalancers reports whether a node that is drained gets the label. The tool set it only before a drain.
func (o *Options) excludesFromLoadBalancers() bool {
	return o.ExcludeFromLoadBalancers && !o.CordonOnly
}

// cordonsForRebalance reports whether a rebalance recommendation cordons the node, and does not drain it.
func (o *Options) cordonsForRebalance() bool {
	return o.actionForKind(RebalanceRecommendation) == agent.Cordon
}

// setActions sets the action for each type of notice.
func (o *Options) setActions(c *config.Agent) {
	set := func(k Kind, actions ...*string) {
		for _, on := range actions {
			*on = string(o.actionForKind(k))
		}
	}
	set(SpotITN, &c.OnPreempt)
	set(RebalanceRecommendation, &c.OnRebalance)
	set(ScheduledEvent, &c.OnReboot, &c.OnRedeploy, &c.OnFreeze, &c.OnUnknownFreeze, &c.OnLiveMigration, &c.OnTerminate)
	if !o.isActive(ScheduledEvent) {
		set(ASGLifecycle, &c.OnTerminate)
	}
	c.FreezeTolerance = 0
}

// MetricsAddress returns the listen address of /metrics; empty means none.
func (o *Options) MetricsAddress() string {
	return toAddress(o.EnablePrometheusServer, o.PrometheusServerPort)
}

// ProbesAddress returns the listen address of the liveness probe; empty means none. It may be the same as the one of
// /metrics.
func (o *Options) ProbesAddress() string { return toAddress(o.EnableProbesServer, o.ProbesServerPort) }

func toAddress(enabled bool, port int) string {
	if !enabled {
		return ""
	}
	return net.JoinHostPort("", strconv.Itoa(port))
}

// KubernetesEnvironment returns the environment variables that select the API server in a pod and name this pod. They
// override the variables of the process.
func (o *Options) KubernetesEnvironment() map[string]string {
	all := map[string]string{}
	for name, value := range map[string]string{
		"KUBERNETES_SERVICE_HOST": o.KubernetesServiceHost, "KUBERNETES_SERVICE_PORT": o.KubernetesServicePort,
		"POD_NAME": o.PodName, "POD_NAMESPACE": o.PodNamespace,
	} {
		if value != "" {
			all[name] = value
		}
	}
	return all
}

// ToReceivers returns the notification receiver of the tool's webhook, if there is one. It gets one message for each
// notice, as from the tool. The message is sent when the notice is read, and not after the drain.
func (o *Options) ToReceivers() []notify.Receiver {
	if o.WebhookURL == "" {
		return nil
	}
	w := &notify.Webhook{
		URL: o.WebhookURL, Method: http.MethodPost,
		Connection: notify.Connection{Timeout: notify.Duration(webhookTimeout), Proxy: noProxy},
	}
	if o.WebhookProxy != "" {
		w.Proxy = o.WebhookProxy
	}
	headers, _ := parseHeaders(o.WebhookHeaders) // repairValues has reported what is left out
	for name, value := range headers {
		if http.CanonicalHeaderKey(name) == "Content-Type" {
			w.ContentType = value
			delete(headers, name)
		}
	}
	if len(headers) > 0 {
		w.Headers = headers
	}
	if o.WebhookTemplateFile != "" {
		w.TemplateFile = o.WebhookTemplateFile
	} else {
		w.Template = o.WebhookTemplate
	}
	return []notify.Receiver{{Name: webhookReceiver, Moments: []notify.Moment{notify.Detected}, Webhook: w}}
}

// parseHeaders parses the tool's headers, a JSON object. It returns the headers that can be sent, and an error for each of
// the others. The errors contain no values, which may be secret.
func parseHeaders(text string) (headers map[string]string, errs []error) {
	var all map[string]any
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, []error{fmt.Errorf(`want a JSON object such as %s`, defaultWebhookHeaders)}
	}
	headers = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var value string
		switch v := all[name].(type) {
		case string:
			value = v
		case float64, bool:
			value = fmt.Sprint(v)
		default:
			errs = append(errs, fmt.Errorf("header %q: want text as its value", name))
			continue
		}
		if err := validateHeader(name, value); err != nil {
			errs = append(errs, fmt.Errorf("header %q: %w", name, err))
			continue
		}
		headers[name] = value
	}
	return headers, errs
}

// validateHeader returns an error if a notification receiver would refuse a header.
func validateHeader(name, value string) error {
	r := notify.Receiver{Name: webhookReceiver, Webhook: &notify.Webhook{URL: "http://localhost"}}
	if http.CanonicalHeaderKey(name) == "Content-Type" {
		r.Webhook.ContentType = value
	} else {
		r.Webhook.Headers = map[string]string{name: value}
	}
	if err := r.Validate(); err != nil {
		_, why, _ := strings.Cut(err.Error(), ": ")
		return fmt.Errorf("%s", why)
	}
	return nil
}
