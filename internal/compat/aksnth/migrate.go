package aksnth

import (
	"io"
	"net/url"
	"strings"

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notify"
)

// Files that a migrated configuration reads its secrets from; a Secret is mounted there.
const (
	tokenFile    = "/etc/slipway/secrets/telegram-token"         //nolint:gosec // a path
	urlFile      = "/etc/slipway/secrets/webhook-url"            //nolint:gosec // a path
	passwordFile = "/etc/slipway/secrets/webhook-proxy-password" //nolint:gosec // a path
)

// inPod are the variables that a pod of the agent has too, which have some value there.
var inPod = map[string]string{"MY_NODE_NAME": "any", "POD_NAMESPACE": "any"}

// Migrate makes the modern configuration of the tool's flags, which may name its file. The environment is not looked
// at: it is another machine's.
func Migrate(args []string, usage io.Writer) (compat.Migration, error) {
	o, err := Parse(args, func(name string) string {
		return inPod[name]
	}, usage)
	if err != nil {
		return compat.Migration{}, err
	}
	m := compat.Migration{Tool: Tool, Config: o.Config(), Notes: append(o.Warnings, o.notes()...)}
	if o.given["node"] == "$MY_NODE_NAME" {
		m.Config.NodeName = ""
	}
	if o.given["namespace"] == "$POD_NAMESPACE" {
		m.Config.Namespace = ""
	}
	m.Config.Profiling = false
	for i := range m.Config.Notifications {
		m.Notes = append(m.Notes, hideSecrets(&m.Config.Notifications[i])...)
	}
	return m, nil
}

// hideSecrets puts files in the place of secrets, and says what has to be in them.
func hideSecrets(r *notify.Receiver) (notes []string) {
	if t := r.Telegram; t != nil {
		t.Token, t.TokenFile = "", tokenFile
		return []string{tokenFile + ": put the value of -telegram.token there, from a Secret."}
	}
	w := r.Webhook
	w.URL, w.URLFile = "", urlFile
	notes = append(notes, urlFile+": put the value of -webhook.url there, from a Secret.")
	if u, err := url.Parse(w.Proxy); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			u.User = url.User(u.User.Username())
			w.Proxy, w.ProxyPasswordFile = u.String(), passwordFile
			notes = append(notes, passwordFile+": put the password of -webhook.http-proxy there, from a Secret.")
		}
	}
	return notes
}

// variables are those of the environment that stand for flags, each with its flag.
func variables() []string {
	var all []string
	for _, s := range settings {
		if s.env != "" && inPod[s.env] == "" {
			all = append(all, s.env+" as -"+s.flag)
		}
	}
	return all
}

// notes are what is done otherwise than the tool did, where somebody may have come to depend on it.
func (o *Options) notes() []string {
	asked := "Scheduled Events is asked during a drain too."
	if o.Period == azure.DefaultInterval {
		asked = "Scheduled Events is asked every second, not every five, also during a drain."
	}
	notes := []string{
		"The environment is not read here. What it gives the tool in its pod, give as flags: " + strings.Join(variables(), ", ") + ".",
		asked,
		"Azure is told that it may begin once every machine of an event is drained: the machine goes earlier than its " +
			"NotBefore. acknowledge: false waits.",
		"A node that lives on is uncordoned, and its taint removed, when the event is over. What the tool itself has left " +
			"on nodes (cordons, taints) is not Slipway's to remove: do so before.",
		"A drain goes on until the machine is due and is tried again when it fails, also on a node that is cordoned " +
			"already. Near the deadline pods that a disruption budget still keeps are deleted past it, and each pod's grace is " +
			"capped to the time that is left.",
		"Every event is handled, not only the first in the life of the process.",
		"For a Reboot, pods that no controller would replace stay: the kubelet starts them again.",
		"Nothing is done about an event of a type that is not known: the Warning Event NoticeUnreadable on the node says so, and " +
			"the metric slipway_agent_unreadable_notices_total counts it.",
		"/healthz says whether the process is alive and asks neither Telegram nor the API server.",
		"Kubernetes Events have Slipway's reasons and component (NoticeReceived of slipway-agent in place of the event's type " +
			"of " + Tool + "), and metrics Slipway's names: change alerts on them. slipway " + Tool + " keeps the old ones.",
		"There is no /drainNode: use slipway drain NODE. slipway " + Tool + " has it, for POST from the loopback interface or " +
			"with a token.",
		"Needed are the rights of deploy/agent/rbac.yaml, which are more than the chart's: nodes/status patch, pods delete " +
			"and watch, poddisruptionbudgets list.",
	}
	if o.DrainOnFreezeEvent {
		notes = append(notes, "A drain for a Freeze leaves pods that would lose work: those without a controller, with an "+
			"emptyDir, or protected by an annotation. A Freeze with DurationInSeconds 0 interrupts nothing, and is left alone.")
	}
	if o.TaintNode && o.TaintEffect == "NoExecute" {
		notes = append(notes, "The NoExecute taint is put on once the node is drained: the pods of DaemonSets that do not "+
			"tolerate it go then.")
	}
	if o.ExitAfterNodeDrain {
		notes = append(notes, "exitAfterDrain: the process does exit, and a DaemonSet starts it again.")
	}
	if o.SentryDSN != "" {
		notes = append(notes, "Nothing is sent to Sentry: alert on the metrics (slipway_agent_*), on notifications or on the log. "+
			"slipway "+Tool+" sends to it.")
	}
	return append(notes, o.receiverNotes()...)
}

func (o *Options) receiverNotes() []string {
	var notes []string
	if o.WebhookURL != "" {
		notes = append(notes,
			"The webhook's certificate is verified unless -webhook.insecureSkip=true was given. For one of an authority of "+
				"your own set caFile.",
			"The webhook's timeout bounds the whole request, and a message that could not be sent is tried for as long as the "+
				"process lives.")
		if o.WebhookTemplate+o.WebhookTemplateFile == "" {
			notes = append(notes, "The webhook's body is empty, as it was. Leave template out to get all that is known as JSON.")
		}
	}
	if o.WebhookURL != "" || o.TelegramToken != "" {
		notes = append(notes, "Templates are text/template: values are put in as they are and not escaped for HTML, which "+
			"broke links and plus signs. In JSON write {{ .Event.Description | toJson }}, without quotes around it. "+
			".Template is no marker any more.",
			"More moments can be told: moments: [detected, blocked, drained, deadline-passed, over].")
	}
	return notes
}
