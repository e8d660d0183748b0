package aksnth

import (
	"net/url"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notify"
)

// The names of the notification receivers that the tool's settings are converted to.
const (
	telegramReceiver = "telegram"
	webhookReceiver  = "webhook"
)

// ManualDrainType is the event type that the tool used for a drain by its HTTP path /drainNode.
const ManualDrainType = notice.Preempt

// noProxy makes a receiver ignore the proxy variables of the environment, as the tool's webhook did.
const noProxy = "direct"

// ToAgentConfig returns the agent configuration for the tool's options.
func (o *Options) ToAgentConfig() config.Agent {
	c := config.NewDefaultAgent()
	c.NodeName, c.Kubeconfig = o.Node, o.Kubeconfig
	c.ResourceName = o.ResourceName
	if o.Endpoint != azure.DefaultEndpoint { // the agent's own default
		c.Endpoint = o.Endpoint
	}
	c.PollInterval, c.RequestTimeout = o.Period, o.RequestTimeout
	c.FirstRequestTimeout = max(c.FirstRequestTimeout, o.RequestTimeout)
	o.setEventActions(&c)
	c.OnUnconfirmed = string(agent.Ignore) // the tool ignored conditions
	c.GracePeriod, c.DisableEviction = int64(o.PodGracePeriodSeconds), o.DisableEviction
	c.ConditionDrainTimeout = time.Duration(o.NodeGracePeriodSeconds) * time.Second
	c.StopGrace = time.Duration(o.GracePeriodSeconds) * time.Second
	c.ExitAfterDrain, c.DryRun, c.Acknowledge = o.ExitAfterNodeDrain, o.DryRun, o.Acknowledge
	c.MaxConcurrentDrains, c.Namespace = o.MaxConcurrentDrains, o.Namespace
	if o.TaintNode {
		c.TaintKey, c.TaintValue, c.TaintEffect = Tool+"/{type}", "{id}", o.TaintEffect
	}
	c.Listen, c.Profiling = o.WebAddress, true
	c.LogLevel, c.LogFormat = logLevels[strings.ToLower(o.LogLevel)], "json"
	if o.LogPretty {
		c.LogFormat = "text"
	}
	c.Notifications = o.ToReceivers()
	return c
}

// setEventActions sets the action for each event type. The tool drained for all events, with one exception: it drained
// for a Freeze only with an option.
func (o *Options) setEventActions(c *config.Agent) {
	for _, on := range []*string{&c.OnPreempt, &c.OnTerminate, &c.OnRedeploy, &c.OnReboot} {
		*on = string(agent.Drain)
	}
	freeze := agent.Ignore
	if o.DrainOnFreezeEvent {
		freeze, c.FreezeTolerance = agent.Drain, 0
	}
	c.OnFreeze, c.OnLiveMigration, c.OnUnknownFreeze = string(freeze), string(freeze), string(freeze)
}

// ToReceivers returns the notification receivers for the tool's options. They get messages for one moment only, because
// the tool sent messages only then.
func (o *Options) ToReceivers() []notify.Receiver {
	var all []notify.Receiver
	at := []notify.Moment{notify.Detected}
	if o.TelegramToken != "" {
		all = append(all, notify.Receiver{Name: telegramReceiver, Moments: at, Telegram: &notify.Telegram{
			Token: o.TelegramToken, ChatID: notify.ChatID(o.TelegramChatID), URL: o.TelegramURL,
			Body: notify.Body{Template: o.AlertMessage},
		}})
	}
	if o.WebhookURL != "" {
		w := &notify.Webhook{
			URL: o.WebhookURL, Method: o.WebhookMethod, ContentType: o.WebhookContentType,
			Connection: notify.Connection{
				Timeout: notify.Duration(o.WebhookTimeout), Retries: &o.WebhookRetries, InsecureSkipVerify: o.WebhookInsecure,
				Proxy: noProxy,
			},
		}
		if o.WebhookProxy != "" {
			w.Proxy = o.WebhookProxy
		}
		switch {
		case o.WebhookTemplateFile != "":
			w.TemplateFile = o.WebhookTemplateFile
		case o.WebhookTemplate != "":
			w.Template = o.WebhookTemplate
		default:
			w.Template = emptyTemplate
		}
		all = append(all, notify.Receiver{Name: webhookReceiver, Moments: at, Webhook: w})
	}
	return all
}

// TelegramHost returns the host of the Telegram Bot API.
func (o *Options) TelegramHost() string {
	if u, err := url.Parse(o.TelegramURL); err == nil && u.Host != "" {
		return u.Host
	}
	return "api.telegram.org"
}

// emptyTemplate renders a body with only a line end, which the tool sent without a template.
const emptyTemplate = `{{ "" }}`
