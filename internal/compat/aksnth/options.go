// Package aksnth is the compatibility mode of aks-node-termination-handler. It reads the tool's flags, environment
// variables and configuration file, and converts them to Slipway's configuration. In addition to Slipway's outputs it
// provides the tool's taint, Kubernetes Events, metrics and HTTP paths.
package aksnth

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/semaphore"
)

// Tool is the name of the replaced tool.
const Tool = "aks-node-termination-handler"

// Options holds the tool's settings as the user wrote them.
type Options struct {
	ShowVersion bool

	ConfigFile string
	LogLevel   string
	LogPretty  bool
	Kubeconfig string

	Endpoint       string
	Node           string
	Period         time.Duration
	RequestTimeout time.Duration
	ResourceName   string

	TelegramToken  string
	TelegramChatID string
	// TelegramURL is a Bot API server to use instead of Telegram's. The tool does not have it.
	TelegramURL  string
	AlertMessage string

	WebhookMethod       string
	WebhookContentType  string
	WebhookURL          string
	WebhookTimeout      time.Duration
	WebhookTemplate     string
	WebhookTemplateFile string
	WebhookInsecure     bool
	WebhookProxy        string
	WebhookRetries      int

	SentryDSN  string
	WebAddress string
	// WebTokenFile contains the token that allows a drain request from another machine. The tool does not have it.
	WebTokenFile string

	TaintNode   bool
	TaintEffect string

	PodGracePeriodSeconds  int
	NodeGracePeriodSeconds int
	GracePeriodSeconds     int
	DrainOnFreezeEvent     bool
	ExitAfterNodeDrain     bool
	DisableEviction        bool
	DryRun                 bool
	// Acknowledge acknowledges an event to Azure once its machines are drained. The tool does not have it.
	Acknowledge bool
	// MaxConcurrentDrains and Namespace are Slipway's own settings.
	MaxConcurrentDrains int
	Namespace           string

	// Warnings report ignored and changed settings.
	Warnings []string

	sources map[string]string // flag name to the source of its value
}

// setting describes one of the tool's settings by its three names.
type setting struct {
	flag, env, key string
}

// settings lists all settings of the tool. key is the tool's field name in lower case. A setting without a key can be
// set only as a flag.
var settings = []setting{
	{"version", "", ""},
	{"config", "CONFIG", "configfile"},
	{"log.level", "", "loglevel"},
	{"log.pretty", "", "logpretty"},
	{"kubeconfig", "", "kubeconfigfile"},
	{"endpoint", "", "endpoint"},
	{"node", "MY_NODE_NAME", "nodename"},
	{"period", "", "period"},
	{"request.timeout", "", "requesttimeout"},
	{"telegram.token", "TELEGRAM_TOKEN", "telegramtoken"},
	{"telegram.chatID", "TELEGRAM_CHATID", "telegramchatid"},
	{"telegram.url", "TELEGRAM_URL", "telegramurl"},
	{"alert.message", "", "alertmessage"},
	{"webhook.method", "", "webhookmethod"},
	{"webhook.contentType", "", "webhookcontenttype"},
	{"webhook.url", "WEBHOOK_URL", "webhookurl"},
	{"webhook.timeout", "", "webhooktimeout"},
	{"webhook.template", "WEBHOOK_TEMPLATE", "webhooktemplate"},
	{"webhook.template-file", "WEBHOOK_TEMPLATE_FILE", "webhooktemplatefile"},
	{"webhook.insecureSkip", "", "webhookinsecure"},
	{"webhook.http-proxy", "WEBHOOK_HTTP_PROXY", "webhookproxy"},
	{"webhook.retries", "", "webhookretries"},
	{"sentry.dsn", "", "sentrydsn"},
	{"web.address", "", "webhttpaddress"},
	{"web.token-file", "WEB_TOKEN_FILE", "webtokenfile"},
	{"taint.node", "", "taintnode"},
	{"taint.effect", "", "tainteffect"},
	{"podGracePeriodSeconds", "", "podgraceperiodseconds"},
	{"nodeGracePeriodSeconds", "", "nodegraceperiodseconds"},
	{"gracePeriodSeconds", "", "graceperiodseconds"},
	{"drainOnFreezeEvent", "", "drainonfreezeevent"},
	{"resource.name", "", "resourcename"},
	{"exitAfterNodeDrain", "", "exitafternodedrain"},
	{"disableEviction", "", "disableeviction"},
	{"dryRun", "", "dryrun"},
	{"acknowledge", "", "acknowledge"},
	{"maxConcurrentDrains", "MAX_CONCURRENT_DRAINS", "maxconcurrentdrains"},
	{"namespace", "POD_NAMESPACE", "namespace"},
}

// newFlagSet returns the tool's flags with the tool's defaults. Go's flag package accepts one or two dashes.
func (o *Options) newFlagSet(out io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet(Tool, flag.ContinueOnError)
	fs.SetOutput(out)
	fs.BoolVar(&o.ShowVersion, "version", false, "print the version and exit")
	fs.StringVar(&o.ConfigFile, "config", "", "YAML `file` with settings, which override flags ($CONFIG)")
	fs.StringVar(&o.LogLevel, "log.level", "INFO", "panic, fatal, error, warn, info, debug or trace")
	fs.BoolVar(&o.LogPretty, "log.pretty", false, "log text instead of JSON")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; if empty, the pod's ServiceAccount is used")
	fs.StringVar(&o.Endpoint, "endpoint", azure.DefaultEndpoint, "`URL` of Azure's Scheduled Events service")
	fs.StringVar(&o.Node, "node", "", "`name` of the Kubernetes node ($MY_NODE_NAME)")
	fs.DurationVar(&o.Period, "period", azure.DefaultInterval, "polling interval of the endpoint")
	fs.DurationVar(&o.RequestTimeout, "request.timeout", 5*time.Second, "timeout of a request to the endpoint")
	fs.StringVar(&o.TelegramToken, "telegram.token", "", "Telegram bot `token` ($TELEGRAM_TOKEN)")
	fs.StringVar(&o.TelegramChatID, "telegram.chatID", "", "Telegram chat `id` ($TELEGRAM_CHATID)")
	fs.StringVar(&o.TelegramURL, "telegram.url", "", "`URL` of a Bot API server to use instead of Telegram's ($TELEGRAM_URL)")
	fs.StringVar(&o.AlertMessage, "alert.message", "Draining node={{ .NodeName }}, type={{ .Event.EventType }}", "`template` of the Telegram text")
	fs.StringVar(&o.WebhookMethod, "webhook.method", http.MethodPost, "HTTP `method`")
	fs.StringVar(&o.WebhookContentType, "webhook.contentType", "application/json", "Content-Type `header`")
	fs.StringVar(&o.WebhookURL, "webhook.url", "", "`URL` of the webhook ($WEBHOOK_URL)")
	fs.DurationVar(&o.WebhookTimeout, "webhook.timeout", 30*time.Second, "timeout of a request")
	fs.StringVar(&o.WebhookTemplate, "webhook.template", "", "`template` of the body ($WEBHOOK_TEMPLATE)")
	fs.StringVar(&o.WebhookTemplateFile, "webhook.template-file", "", "`file` with the template of the body, overrides -webhook.template ($WEBHOOK_TEMPLATE_FILE)")
	fs.BoolVar(&o.WebhookInsecure, "webhook.insecureSkip", false, "do not verify the webhook's certificate")
	fs.StringVar(&o.WebhookProxy, "webhook.http-proxy", "", "`URL` of an HTTP proxy for the webhook ($WEBHOOK_HTTP_PROXY)")
	fs.IntVar(&o.WebhookRetries, "webhook.retries", 3, "retries of a message; later attempts follow while the process runs")
	fs.StringVar(&o.SentryDSN, "sentry.dsn", "", "Sentry DSN for log lines of level warning and above")
	fs.StringVar(&o.WebAddress, "web.address", ":17923", "`address` of /metrics, /healthz and /drainNode")
	fs.StringVar(&o.WebTokenFile, "web.token-file", "", "`file` with the token that allows /drainNode and profiles from outside of this pod ($WEB_TOKEN_FILE)")
	fs.BoolVar(&o.TaintNode, "taint.node", false, "also taint the node")
	fs.StringVar(&o.TaintEffect, "taint.effect", "NoSchedule", "NoSchedule, NoExecute or PreferNoSchedule")
	fs.IntVar(&o.PodGracePeriodSeconds, "podGracePeriodSeconds", -1, "termination grace period of every pod in `seconds`; negative uses the pod's own")
	fs.IntVar(&o.NodeGracePeriodSeconds, "nodeGracePeriodSeconds", 120, "time limit in `seconds` of a drain by /drainNode; 0 means no limit")
	fs.IntVar(&o.GracePeriodSeconds, "gracePeriodSeconds", 10, "`seconds` to wait for a running drain at shutdown")
	fs.BoolVar(&o.DrainOnFreezeEvent, "drainOnFreezeEvent", false, "also drain for Freeze events")
	fs.StringVar(&o.ResourceName, "resource.name", "", "this machine's `name` in Azure's events (default: from the node's spec.providerID)")
	fs.BoolVar(&o.ExitAfterNodeDrain, "exitAfterNodeDrain", false, "exit once the node is drained")
	fs.BoolVar(&o.DisableEviction, "disableEviction", false, "delete pods instead of evicting them, which bypasses all PodDisruptionBudgets")
	fs.BoolVar(&o.DryRun, "dryRun", false, "log the actions without carrying them out")
	fs.BoolVar(&o.Acknowledge, "acknowledge", true, "acknowledge an event to Azure once its machines are drained, so that it starts early")
	fs.IntVar(&o.MaxConcurrentDrains, "maxConcurrentDrains", 0, "maximum number of `nodes` of the cluster that are drained at the same time, if the event can wait; 0 means no limit ($MAX_CONCURRENT_DRAINS)")
	fs.StringVar(&o.Namespace, "namespace", "", "`namespace` of the Leases of -maxConcurrentDrains ($POD_NAMESPACE)")
	return fs
}

// ParseOptions reads the tool's command line, environment and configuration file. The file overrides flags, flags
// override the environment, and the environment overrides the defaults. It returns flag.ErrHelp after -help, and a
// *compat.UsageError for unknown flags or invalid values. It prints the usage to out. With any other error it also
// returns the options that it could read.
func ParseOptions(args []string, env func(string) string, out io.Writer) (*Options, error) {
	o := &Options{sources: map[string]string{}}
	fs := o.newFlagSet(out)
	for _, s := range settings {
		if s.env == "" || env(s.env) == "" {
			continue
		}
		if err := o.setValue(fs, s.flag, env(s.env), "$"+s.env); err != nil {
			return nil, err
		}
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
	if o.ConfigFile != "" {
		raw, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			return o, fmt.Errorf("%s: %w", o.sources["config"], err)
		}
		if err := o.applyConfigFile(fs, raw); err != nil {
			return o, fmt.Errorf("%s %s: %w", o.sources["config"], o.ConfigFile, err)
		}
	}
	o.repairValues()
	o.warnAboutSettings()
	return o, o.Validate()
}

// applyConfigFile sets the options from the content of a configuration file. As in the tool, keys must match exactly.
func (o *Options) applyConfigFile(fs *flag.FlagSet, raw []byte) error {
	entries, err := compat.ReadYAMLEntries(raw)
	if err != nil {
		return hideTextOfYAMLError(err)
	}
	byKey := map[string]string{}
	for _, s := range settings {
		if s.key != "" {
			byKey[s.key] = s.flag
		}
	}
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(entries), func(a, b string) int { return entries[a].Line - entries[b].Line }) {
		e := entries[key]
		name, known := byKey[key]
		switch {
		case !known:
			o.Warnings = append(o.Warnings, compat.FormatUnknownKeyWarning(key, e.Line, slices.Collect(maps.Keys(byKey))))
		case e.DuplicateLine > 0:
			errs = append(errs, fmt.Errorf("line %d: %s: already set in line %d", e.DuplicateLine, key, e.Line))
		case key == "configfile":
			o.addWarning("line %d: configfile: not allowed in a file, ignored", e.Line)
		case e.Null:
			o.addWarning("line %d: %s: has no value, ignored", e.Line, key)
		case e.NonScalarKind != "":
			errs = append(errs, fmt.Errorf("line %d: %s: is %s: want %s", e.Line, key, e.NonScalarKind, compat.DescribeFlagValue(fs, name)))
		default:
			value := e.Value
			if b, old, _ := compat.ParseBool(value); old && compat.IsBoolFlag(fs, name) {
				o.addWarning("line %d: %s: %s is a YAML 1.1 boolean: want true or false", e.Line, key, value)
				value = strconv.FormatBool(b)
			}
			if n, ok := e.Int(); ok && compat.DescribeFlagValue(fs, name) == compat.WholeNumber {
				value = strconv.Itoa(n)
			}
			if err := o.setValue(fs, name, value, fmt.Sprintf("key %s (line %d)", key, e.Line)); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// yamlLine matches the line number in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`line \d+`)

// hideTextOfYAMLError returns a YAML syntax error with its line number. It omits the text of the file, because that may
// be a token.
func hideTextOfYAMLError(err error) error {
	if !strings.HasPrefix(err.Error(), "yaml:") {
		return err
	}
	where := yamlLine.FindString(err.Error())
	if where == "" {
		where = "line 1" // the parser omits line 1
	}
	return fmt.Errorf("%s: not YAML (text hidden, it may contain a token)", where)
}

// secretSettings lists the settings with values that must never be shown.
var secretSettings = []string{"telegram.token", "webhook.url", "webhook.http-proxy", "sentry.dsn"}

func (o *Options) setValue(fs *flag.FlagSet, name, value, from string) error {
	if err := fs.Set(name, value); err != nil {
		return fmt.Errorf("%s: %q: want %s", from, value, compat.DescribeFlagValue(fs, name))
	}
	o.sources[name] = from
	return nil
}

func (o *Options) addWarning(format string, args ...any) {
	o.Warnings = append(o.Warnings, fmt.Sprintf(format, args...))
}

// IsSet reports whether the user set a setting. name is the setting's flag name.
func (o *Options) IsSet(name string) bool { return o.sources[name] != "" }

// describeSource returns how the user set a setting: the name of a flag, a variable or a key.
func (o *Options) describeSource(name string) string {
	if from := o.sources[name]; from != "" {
		return from
	}
	return "-" + name
}

// logLevels maps logrus' level names to Slipway's.
var logLevels = map[string]string{
	"panic": "error", "fatal": "error", "error": "error", "warn": "warn", "warning": "warn", "info": "info",
	"debug": "debug", "trace": "debug",
}

const logLevelNames = "panic, fatal, error, warn, info, debug or trace"

// The limits of the polling interval. The tool had no limits, and 0 made it poll without a pause.
const (
	minPeriod = 100 * time.Millisecond
	maxPeriod = time.Minute
)

// Validate returns an error for each invalid value that repairValues did not replace. Templates and files are validated
// where they are used.
func (o *Options) Validate() error {
	var errs []error
	var reported []string
	bad := func(name string, value any, want string) {
		reported = append(reported, name)
		errs = append(errs, fmt.Errorf("%s: %s: want %s", o.describeSource(name), formatValueUnlessSecret(name, value), want))
	}
	if o.Node == "" {
		bad("node", o.Node, "the name of this node (in a pod: MY_NODE_NAME from spec.nodeName)")
	}
	if _, known := logLevels[strings.ToLower(o.LogLevel)]; !known {
		bad("log.level", o.LogLevel, logLevelNames)
	}
	if !slices.Contains([]string{"NoSchedule", "NoExecute", "PreferNoSchedule"}, o.TaintEffect) {
		bad("taint.effect", o.TaintEffect, "NoSchedule, NoExecute or PreferNoSchedule")
	}
	if _, port, err := net.SplitHostPort(o.WebAddress); err != nil || !isPort(port) {
		bad("web.address", o.WebAddress, "host:port or :port, such as :17923")
	}
	if o.MaxConcurrentDrains < 0 || o.MaxConcurrentDrains > semaphore.MaxLimit {
		bad("maxConcurrentDrains", o.MaxConcurrentDrains, fmt.Sprintf("0 to %d", semaphore.MaxLimit))
	}
	if o.MaxConcurrentDrains > 0 && o.Namespace == "" {
		bad("namespace", o.Namespace, "the agents' namespace (in a pod: POD_NAMESPACE from metadata.namespace), required by "+
			o.describeSource("maxConcurrentDrains"))
	}
	if _, err := strconv.ParseInt(o.TelegramChatID, 10, 64); err != nil && o.TelegramChatID != "" {
		bad("telegram.chatID", o.TelegramChatID, "a whole number, such as -1001234567890")
	}
	if o.TelegramURL != "" && !isURL(o.TelegramURL) {
		bad("telegram.url", o.TelegramURL, "a URL such as https://bot.example.com")
	}
	return errors.Join(append(errs, o.validateReceivers(reported)...)...)
}

// settingByReceiverField maps each field of a receiver to the setting that it comes from.
var settingByReceiverField = map[string]string{
	"telegram.token": "telegram.token", "telegram.chatID": "telegram.chatID", "telegram.url": "telegram.url",
	"telegram.template": "alert.message",
	"webhook.url":       "webhook.url", "webhook.method": "webhook.method", "webhook.contentType": "webhook.contentType",
	"webhook.template": "webhook.template", "webhook.timeout": "webhook.timeout", "webhook.retries": "webhook.retries",
	"webhook.proxy": "webhook.http-proxy",
}

// validateReceivers returns the errors of the notification receivers for these options. The errors name settings
// instead of receiver fields. Settings in reported are omitted.
func (o *Options) validateReceivers(reported []string) []error {
	var errs []error
	for _, r := range o.ToReceivers() {
		for _, err := range o.validateReceiver(r) {
			if !slices.ContainsFunc(reported, func(name string) bool { return strings.HasPrefix(err.Error(), o.describeSource(name)+":") }) {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// validateReceiver returns the errors of one receiver. The errors name settings instead of receiver fields.
func (o *Options) validateReceiver(r notify.Receiver) []error {
	err := r.Validate()
	if err == nil {
		return nil
	}
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		field, why, _ := strings.Cut(line, ": ")
		if name := settingByReceiverField[field]; name != "" {
			line = o.describeSource(name) + ": " + why
		}
		errs = append(errs, errors.New(line))
	}
	return errs
}

// WarnAboutTemplates logs a warning for each template that cannot be used, at the start of the agent. As in the tool,
// messages with such a template are lost.
func (o *Options) WarnAboutTemplates() {
	check := func(name, text string) {
		if err := notify.ValidateTemplate(o.describeSource(name), text); err != nil {
			o.addWarning("%v: messages with this template are lost", err)
		}
	}
	if o.TelegramToken != "" {
		check("alert.message", o.AlertMessage)
	}
	switch {
	case o.WebhookURL == "":
	case o.WebhookTemplateFile != "":
		raw, err := os.ReadFile(o.WebhookTemplateFile)
		if err != nil {
			o.addWarning("%s: %v: messages are lost until the file is readable", o.describeSource("webhook.template-file"), err)
			break
		}
		check("webhook.template-file", string(raw))
	default:
		check("webhook.template", o.WebhookTemplate)
	}
}

// isURL reports whether a text is a URL with the scheme http, https or one of schemes.
func isURL(s string, schemes ...string) bool {
	return notify.ValidateServerURL(s, append(schemes, "http", "https")...) == nil
}

// isPort reports whether a text is a port number. 0 is valid and selects any port.
func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0 && n < 1<<16
}

// warnAboutSettings adds warnings about settings that have another meaning than in the tool, have no effect, or
// contradict each other.
func (o *Options) warnAboutSettings() {
	if o.WebhookTemplate != "" && o.WebhookTemplateFile != "" {
		o.addWarning("%s: ignored, because %s overrides it", o.describeSource("webhook.template"), o.describeSource("webhook.template-file"))
	}
	if o.WebhookURL == "" && (o.WebhookTemplate != "" || o.WebhookTemplateFile != "") {
		o.addWarning("%s: is empty although a template is set: no webhook is called", o.describeSource("webhook.url"))
	}
	if o.TelegramToken == "" && o.TelegramChatID != "" {
		o.addWarning("%s: is empty although a chat is set: nothing is sent to Telegram", o.describeSource("telegram.token"))
	}
	if o.WebhookInsecure {
		o.addWarning("%s: the webhook's certificate is not verified", o.describeSource("webhook.insecureSkip"))
	}
	if o.Period > 2*time.Second {
		o.addWarning("%s: %s: Azure advises 1s, because a Spot machine may have 30 s or less", o.describeSource("period"), o.Period)
	}
	if o.IsSet("nodeGracePeriodSeconds") {
		o.addWarning("%s: limits only drains by /drainNode; other drains run until the event's deadline",
			o.describeSource("nodeGracePeriodSeconds"))
	}
}
