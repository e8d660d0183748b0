package aksnth

import (
	"io"
	"strings"

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notify"
)

// telegramTokenFile holds a secret of a migrated configuration. The pod has to mount a Secret at this path.
const telegramTokenFile = "/etc/slipway/secrets/telegram-token" //nolint:gosec // a path

// podVariables are the environment variables that an agent's pod also has, with placeholder values.
var podVariables = map[string]string{"MY_NODE_NAME": "any", "POD_NAMESPACE": "any"}

// Migrate converts the tool's flags and its configuration file to Slipway's configuration. It ignores the environment,
// because this process runs on another machine than the tool.
func Migrate(args []string, usage io.Writer) (compat.Migration, error) {
	o, err := ParseOptions(args, func(name string) string { return podVariables[name] }, usage)
	if err != nil {
		return compat.Migration{}, err
	}
	m := compat.Migration{Tool: Tool, Config: o.ToAgentConfig(), Notes: append(o.Warnings, o.migrationNotes()...)}
	if o.sources["node"] == "$MY_NODE_NAME" {
		m.Config.NodeName = ""
	}
	if o.sources["namespace"] == "$POD_NAMESPACE" {
		m.Config.Namespace = ""
	}
	m.Config.Profiling = false
	for i := range m.Config.Notifications {
		m.Notes = append(m.Notes, replaceSecretsByFileNames(&m.Config.Notifications[i])...)
	}
	return m, nil
}

// replaceSecretsByFileNames replaces each secret of a receiver by the name of a file. The notes say which content each
// file needs.
func replaceSecretsByFileNames(r *notify.Receiver) (notes []string) {
	if t := r.Telegram; t != nil {
		t.Token, t.TokenFile = "", telegramTokenFile
		return []string{telegramTokenFile + ": must contain the value of -telegram.token; mount a Secret."}
	}
	return compat.ReplaceWebhookSecrets(r.Webhook, "-webhook.url", "-webhook.http-proxy")
}

// listFlagVariables returns the environment variables that set flags of the tool, each with its flag.
func listFlagVariables() []string {
	var all []string
	for _, s := range settings {
		if s.env != "" && podVariables[s.env] == "" {
			all = append(all, s.env+" as -"+s.flag)
		}
	}
	return all
}

// migrationNotes returns the differences between the tool and Slipway that may matter to users.
func (o *Options) migrationNotes() []string {
	polling := "Scheduled Events is polled during a drain too."
	if o.Period == azure.DefaultInterval {
		polling = "Scheduled Events is polled every second, not every five, also during a drain."
	}
	notes := []string{
		"The environment is not read here. Set the variables of the tool's pod as flags: " + strings.Join(listFlagVariables(), ", ") + ".",
		polling,
		"An event is acknowledged once all its machines are drained, so Azure starts it before its NotBefore. " +
			"acknowledge: false disables that.",
		"When the event has ended and the machine still exists, the node is uncordoned and its taint removed. Remove the tool's own " +
			"cordons and taints before the migration; Slipway does not.",
		"A drain runs until the event's deadline and is retried after a failure, even on a node that is already cordoned. Near " +
			"the deadline, pods that are blocked by a PodDisruptionBudget are deleted without eviction, and grace periods are capped " +
			"to the time left.",
		"Every event is handled, not only the first one of the process.",
		"For a Reboot, pods without a controller stay: the kubelet restarts them.",
		"An event of an unknown type is ignored. It is reported by the Warning Event NoticeUnreadable on the node and counted by " +
			"the metric slipway_agent_unreadable_notices_total.",
		"/healthz reports whether the process is alive. It contacts neither Telegram nor the API server.",
		"Kubernetes Events have Slipway's reasons and component (NoticeReceived of slipway-agent instead of the event's type " +
			"of " + Tool + "), and metrics have Slipway's names: change your alerts. slipway " + Tool + " keeps the old ones.",
		"There is no /drainNode: use slipway drain NODE. slipway " + Tool + " has it, for POST from the loopback interface or " +
			"with a token.",
		"The permissions of deploy/agent/rbac.yaml are required. They exceed the tool's chart: nodes/status patch, pods delete " +
			"and watch, poddisruptionbudgets list.",
	}
	if o.DrainOnFreezeEvent {
		notes = append(notes, "A drain for a Freeze does not evict pods that would lose work: pods without a controller, with an "+
			"emptyDir, or protected by an annotation. A Freeze with DurationInSeconds 0 interrupts nothing and is ignored, unless "+
			"it is a live migration.")
	}
	if o.TaintNode && o.TaintEffect == "NoExecute" {
		notes = append(notes, "The NoExecute taint is set once the node is drained. DaemonSet pods that do not tolerate it "+
			"are evicted then.")
	}
	if o.ExitAfterNodeDrain {
		notes = append(notes, "exitAfterDrain: the process exits, and the DaemonSet restarts it.")
	}
	if o.SentryDSN != "" {
		notes = append(notes, "Nothing is sent to Sentry: use the metrics (slipway_agent_*), notifications or the log for alerts. "+
			"slipway "+Tool+" sends to Sentry.")
	}
	return append(notes, o.receiverNotes()...)
}

func (o *Options) receiverNotes() []string {
	var notes []string
	if o.WebhookURL != "" {
		notes = append(notes,
			"The webhook's certificate is verified unless -webhook.insecureSkip=true is set. For a private CA set "+
				"caFile.",
			"The webhook's timeout limits the whole request. A failed message is retried until the "+
				"process ends.")
		if o.WebhookTemplate+o.WebhookTemplateFile == "" {
			notes = append(notes, "The webhook's body is empty, as with the tool. Remove template to get all data as JSON.")
		}
	}
	if o.WebhookURL != "" || o.TelegramToken != "" {
		notes = append(notes, "Templates use text/template: values are not HTML-escaped, because that broke links and plus "+
			"signs. In JSON write {{ .Event.Description | toJson }} without quotes around it. "+
			".Template is no longer a marker.",
			"Notifications for more moments are available: moments: [detected, blocked, drained, deadline-passed, over].")
	}
	return notes
}
