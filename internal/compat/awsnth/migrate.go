package awsnth

import (
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notify"
)

// The files that hold the secrets of a migrated configuration. The pod has to mount a Secret at these paths.
const (
	webhookURLFile    = "/etc/slipway/secrets/webhook-url"
	webhookTokenFile  = "/etc/slipway/secrets/webhook-token"          //nolint:gosec // a path
	proxyPasswordFile = "/etc/slipway/secrets/webhook-proxy-password" //nolint:gosec // a path
)

// podVariables are the environment variables that an agent's pod also has, with placeholder values.
var podVariables = map[string]string{"NODE_NAME": "any", "NAMESPACE": "any"}

// Migrate converts the tool's flags to Slipway's configuration. It ignores the environment, because this process runs on
// another machine than the tool.
func Migrate(args []string, usage io.Writer) (compat.Migration, error) {
	o, err := ParseOptions(args, func(name string) string { return podVariables[name] }, usage)
	if err != nil {
		return compat.Migration{}, err
	}
	m := compat.Migration{Tool: Tool, Config: o.ToAgentConfig(), Notes: append(o.Warnings, o.migrationNotes()...)}
	if o.sources["node-name"] == "$NODE_NAME" {
		m.Config.NodeName = ""
	}
	if o.sources["pod-namespace"] == "$NAMESPACE" {
		m.Config.Namespace = ""
	}
	defaults := config.NewDefaultAgent()
	if m.Config.Listen == "" {
		m.Config.Listen = defaults.Listen // the agent's pod has probes
	}
	if o.EnableSQSTerminationDraining {
		m.Reader = "slipway manager --aws-queue-agent-config FILE"
		m.Notes = append([]string{"The manager also needs: " + strings.Join(listQueueFlags(o.ToQueueConfig()), " ")}, m.Notes...)
		m.Config.Listen, m.Config.LogLevel, m.Config.LogFormat = defaults.Listen, defaults.LogLevel, defaults.LogFormat // the manager's own
		// The manager's admission policy allows no keys of the tool.
		m.Config.TaintKey, m.Config.TaintValue, m.Config.Labels = defaults.TaintKey, defaults.TaintValue, nil
	}
	for i := range m.Config.Notifications {
		w := m.Config.Notifications[i].Webhook
		m.Notes = append(m.Notes, replaceSecretsByFileNames(w)...)
		m.Notes = append(m.Notes, o.convertTemplate(w)...)
	}
	return m, nil
}

// listQueueFlags returns the manager's flags for a configuration of the queue mode. It omits defaults.
func listQueueFlags(q queue.Config) []string {
	var bound queue.Config
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	bound.AddFlags(fs)
	bound = q // the flags still point here
	var all []string
	fs.SortFlags = false
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Value.String() != f.DefValue {
			all = append(all, "--"+f.Name+"="+f.Value.String())
		}
	})
	return all
}

// replaceSecretsByFileNames replaces each secret of the webhook by the name of a file. The notes say which content each
// file needs.
func replaceSecretsByFileNames(w *notify.Webhook) (notes []string) {
	w.URL, w.URLFile = "", webhookURLFile
	notes = append(notes, webhookURLFile+": must contain the value of -webhook-url; mount a Secret.")
	if u, err := url.Parse(w.Proxy); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			u.User = url.User(u.User.Username())
			w.Proxy, w.ProxyPasswordFile = u.String(), proxyPasswordFile
			notes = append(notes, proxyPasswordFile+": must contain the password of -webhook-proxy; mount a Secret.")
		}
	}
	for name, value := range w.Headers {
		if !strings.EqualFold(name, "Authorization") {
			continue
		}
		delete(w.Headers, name)
		if kind, _, _ := strings.Cut(value, " "); strings.EqualFold(kind, "Bearer") {
			w.BearerTokenFile = webhookTokenFile
			notes = append(notes, webhookTokenFile+": must contain the token in the header Authorization of -webhook-headers; mount a Secret.")
		} else {
			notes = append(notes, "The header Authorization of -webhook-headers is left out, because it is secret: set basicAuth with passwordFile.")
		}
	}
	if len(w.Headers) > 0 {
		notes = append(notes, "The headers "+strings.Join(slices.Sorted(maps.Keys(w.Headers)), ", ")+" are in this file with their values. If one "+
			"is secret, store this file in a Secret.")
	}
	return notes
}

// templateFields maps the fields of the tool's template data to Slipway's.
var templateFields = map[string]string{
	"EventID": ".Event.EventId", "Kind": ".Event.EventType", "Description": ".Event.Description", "StartTime": ".Deadline",
	"InstanceID": "(first .Event.Resources)", "InstanceType": ".InstanceType", "NodeName": ".NodeName", "NodeLabels": ".NodeLabels",
	"Pods": ".NodePods", "AvailabilityZone": ".NodeZone", "Region": ".NodeRegion", "LocalHostname": ".NodeName",
}

var (
	templateAction = regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	// templateField matches a field, together with the character before it: after a word, a bracket or a dollar sign the
	// dot is not the message's.
	templateField = regexp.MustCompile(`(^|[^\w)$.])\.([A-Z]\w*)`)
)

// convertTemplate replaces the fields of the tool's template data by Slipway's. The notes name fields without an
// equivalent.
func (o *Options) convertTemplate(w *notify.Webhook) []string {
	if w.TemplateFile != "" {
		return []string{"The template in " + w.TemplateFile + " has the tool's fields. Replace them: " + formatTemplateFields() + "."}
	}
	unknown := map[string]bool{}
	w.Template = templateAction.ReplaceAllStringFunc(w.Template, func(action string) string {
		return templateField.ReplaceAllStringFunc(action, func(match string) string {
			parts := templateField.FindStringSubmatch(match)
			replacement := templateFields[parts[2]]
			if replacement == "" {
				unknown[parts[2]] = true
				return match
			}
			return parts[1] + replacement
		})
	})
	notes := []string{"The fields in the webhook's template were replaced by Slipway's: " + formatTemplateFields() + ". Values of " +
		".Event.EventType are Preempt, Terminate, Reboot, Freeze and Rebalance. Check the template with slipway notify test."}
	if len(unknown) > 0 {
		notes = append(notes, "These fields of the template have no equivalent, so messages are lost until you remove them: "+
			strings.Join(slices.Sorted(maps.Keys(unknown)), ", ")+".")
	}
	return notes
}

func formatTemplateFields() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(templateFields)) {
		if templateFields[name] != "."+name {
			all = append(all, "."+name+" by "+templateFields[name])
		}
	}
	return strings.Join(all, ", ")
}

// migrationNotes returns the differences between the tool and Slipway that may matter to users.
func (o *Options) migrationNotes() []string {
	notes := []string{
		"The environment is not read here. Set the variables of the tool's pod as flags: TAINT_NODE is -taint-node, and so on; only " +
			"INSTANCE_METADATA_URL is -metadata-url, and NAMESPACE is -pod-namespace.",
		fmt.Sprintf("A scheduled event is not handled at once, weeks early. A stop or retirement is handled %s before it (retirementLead), a "+
			"reboot or maintenance %s before it (maintenanceLead).", o.ToAgentConfig().RetirementLead, o.ToAgentConfig().MaintenanceLead),
		"When the event has ended or was cancelled and the instance still exists, the node is uncordoned and its taint removed. Remove the " +
			"tool's own cordons, taints and labels before the migration; Slipway does not.",
		"A drain runs until the deadline of its notice and is retried after a failure. Near the deadline, pods that are blocked by a " +
			"PodDisruptionBudget are deleted without eviction, and grace periods are capped to the time left.",
		"DaemonSet pods stay on the node, and pods with an emptyDir are evicted. A reboot keeps pods without a controller: the kubelet restarts them.",
		"Kubernetes Events have Slipway's reasons and component, and metrics have Slipway's names: change your alerts. slipway " + Tool +
			" keeps the old ones.",
	}
	if o.EnableSQSTerminationDraining {
		notes = append(notes, o.queueNotes()...)
	} else {
		notes = append(notes, o.metadataNotes()...)
	}
	if o.TaintNode {
		notes = append(notes, "The taint has the type of the notice in its key or value: preempt, terminate, reboot, freeze or rebalance. The tool's "+
			"keys end in spot-itn, asg-lifecycle-termination, scheduled-maintenance or rebalance-recommendation. Change tolerations for them.")
		if o.TaintEffect == "NoExecute" {
			notes = append(notes, "The NoExecute taint is set once the node is drained. DaemonSet pods that do not tolerate it are evicted then.")
		}
	}
	if o.EnableOutOfServiceTaint {
		notes = append(notes, "There is no out-of-service taint: set waitForDetach to treat a node as drained only when its volumes are "+
			"detached. slipway "+Tool+" sets the taint once the node is drained.")
	}
	if o.WebhookURL != "" {
		notes = append(notes, "The webhook is called when the notice is read, and not after the drain. A failed message is retried until the "+
			"process ends. More moments are available: moments: [detected, blocked, drained, deadline-passed, over].")
	}
	return notes
}

// metadataNotes returns the differences of the mode that reads the metadata service on every node.
func (o *Options) metadataNotes() []string {
	notes := []string{
		"The permissions of deploy/agent/rbac.yaml are required. They exceed the tool's chart: nodes/status patch, pods delete and watch, " +
			"poddisruptionbudgets list.",
	}
	if o.isActive(ASGLifecycle) {
		notes = append(notes, "Once the node is drained, the lifecycle hook of the Auto Scaling group is completed, if the node's role may: "+
			"autoscaling:DescribeAutoScalingInstances, DescribeLifecycleHooks, RecordLifecycleActionHeartbeat, CompleteLifecycleAction. "+
			"acknowledge: false disables that.")
	}
	if o.isActive(ASGLifecycle) != o.isActive(ScheduledEvent) {
		notes = append(notes, "onTerminate applies to the termination by an Auto Scaling group and to a scheduled stop or retirement: this file "+
			"cannot ignore only one of them. slipway "+Tool+" can.")
	}
	if o.excludesFromLoadBalancers() && o.cordonsForRebalance() {
		notes = append(notes, "The label "+excludeFromLoadBalancersLabel+" is left out, because the agent would also set it for a rebalance "+
			"recommendation, which only cordons the node. slipway "+Tool+" sets it for drains only.")
	}
	if o.actionForKind(RebalanceRecommendation) == agent.Drain {
		notes = append(notes, fmt.Sprintf("A drain for a rebalance recommendation has no deadline. It ends after %s (conditionDrainTimeout).",
			o.ToAgentConfig().ConditionDrainTimeout))
	}
	return notes
}

// queueNotes returns the differences of the queue mode.
func (o *Options) queueNotes() []string {
	notes := []string{
		"The queue mode runs in slipway manager, with the permissions of deploy/manager/queue. The tool's role in AWS also needs " +
			"sqs:ChangeMessageVisibility, autoscaling:DescribeLifecycleHooks and autoscaling:RecordLifecycleActionHeartbeat.",
		"A node is found by the instance's ID in spec.providerID. A message is deleted once its node is handled, or if no node has this " +
			"instance for 10 minutes (--aws-queue-unknown-node-grace).",
		"A message that cannot be read stays in the queue for its dead-letter queue. It is reported, and stops nothing.",
		"A drain for a rebalance recommendation begins at once. Beside Karpenter, set onRebalance: cordon, because Karpenter may launch the " +
			"same offering again.",
	}
	if o.ExcludeFromLoadBalancers {
		notes = append(notes, "The label "+excludeFromLoadBalancersLabel+" is left out, because the manager may not set it. slipway "+Tool+" and "+
			"slipway agent (label) can.")
	}
	if o.HeartbeatInterval == notSet {
		notes = append(notes, "No heartbeats are sent, as with the tool: the timeout of the lifecycle hook limits each drain. Remove "+
			"--aws-queue-no-heartbeats to send them.")
	}
	return notes
}
