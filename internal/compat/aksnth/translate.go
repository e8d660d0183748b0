package aksnth

import (
	"net/url"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notify"
)

// Names of the receivers that the options make.
const (
	telegramReceiver = "telegram"
	webhookReceiver  = "webhook"
)

// DrainAs is the type under which the tool drained when /drainNode asked for it.
const DrainAs = notice.Preempt

// direct is no proxy: the tool's webhook took none from the environment.
const direct = "direct"

// Config is the agent that does what the options ask for.
func (o *Options) Config() config.Agent {
	c := config.DefaultAgent()
	c.NodeName, c.Kubeconfig = o.Node, o.Kubeconfig
	c.Endpoint, c.ResourceName = o.Endpoint, o.ResourceName
	c.PollInterval, c.RequestTimeout = o.Period, o.RequestTimeout
	c.FirstRequestTimeout = max(c.FirstRequestTimeout, o.RequestTimeout)
	o.impact(&c)
	c.OnUnconfirmed = string(agent.Ignore) // the tool looked at no conditions
	c.GracePeriod, c.DisableEviction = int64(o.PodGracePeriodSeconds), o.DisableEviction
	c.ConditionDrainTimeout = time.Duration(o.NodeGracePeriodSeconds) * time.Second
	c.StopGrace = time.Duration(o.GracePeriodSeconds) * time.Second
	c.ExitAfterDrain, c.DryRun, c.Acknowledge = o.ExitAfterNodeDrain, o.DryRun, o.Acknowledge
	c.MaxConcurrentDrains, c.Namespace = o.MaxConcurrentDrains, o.Namespace
	if o.TaintNode {
		c.TaintKey, c.TaintValue, c.TaintEffect = Tool+"/{type}", "{id}", o.TaintEffect
	}
	c.Listen, c.Profiling = o.WebAddress, true
	c.LogLevel, c.LogFormat = levels[strings.ToLower(o.LogLevel)], "json"
	if o.LogPretty {
		c.LogFormat = "text"
	}
	c.Notifications = o.Receivers()
	return c
}

// impact is what the tool drained for: everything but, unless asked for, a Freeze.
func (o *Options) impact(c *config.Agent) {
	for _, on := range []*string{&c.OnPreempt, &c.OnTerminate, &c.OnRedeploy, &c.OnReboot} {
		*on = string(agent.Drain)
	}
	freeze := agent.Ignore
	if o.DrainOnFreezeEvent {
		freeze, c.FreezeTolerance = agent.Drain, 0
	}
	c.OnFreeze, c.OnLiveMigration, c.OnUnknownFreeze = string(freeze), string(freeze), string(freeze)
}

// Receivers are who is told, at the one moment at which the tool told anybody.
func (o *Options) Receivers() []notify.Receiver {
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
				Proxy: direct,
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

// TelegramHost is where Telegram's Bot API is asked.
func (o *Options) TelegramHost() string {
	if u, err := url.Parse(o.TelegramURL); err == nil && u.Host != "" {
		return u.Host
	}
	return "api.telegram.org"
}

// emptyTemplate makes the body that the tool sent without a template: an end of line.
const emptyTemplate = `{{ "" }}`
