// Package aksnth is the personality of aks-node-termination-handler: its flags, environment variables and configuration
// file in, Slipway's configuration out, and on top of what Slipway shows of itself that tool's taint, Kubernetes
// Events, metrics and HTTP paths.
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
	"github.com/slipway-dev/slipway/internal/slots"
)

// Tool is the name of what is stood in for.
const Tool = "aks-node-termination-handler"

// Options are the tool's settings, as its users gave them.
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
	// TelegramURL is new: a Bot API server of one's own.
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
	// WebTokenFile is new: whoever bears the token that the file holds may ask for a drain from elsewhere.
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
	// Acknowledge is new: whether Azure is told that it may begin once the event's machines are drained.
	Acknowledge bool
	// MaxConcurrentDrains and Namespace are Slipway's own.
	MaxConcurrentDrains int
	Namespace           string

	// Warnings are what was passed over or is done otherwise than it was asked for.
	Warnings []string

	given map[string]string // by flag: where its value came from
}

// setting is one of the tool's settings under its three names.
type setting struct {
	flag, env, key string
}

// settings lists all that the tool has. A key is the tool's name of a field in lower case; a setting without one can
// only be a flag.
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

// flagSet has the tool's flags with its defaults. Go's flag package takes them with one dash or two.
func (o *Options) flagSet(out io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet(Tool, flag.ContinueOnError)
	fs.SetOutput(out)
	fs.BoolVar(&o.ShowVersion, "version", false, "print the version and exit")
	fs.StringVar(&o.ConfigFile, "config", "", "YAML `file` with settings, which win over flags ($CONFIG)")
	fs.StringVar(&o.LogLevel, "log.level", "INFO", "panic, fatal, error, warn, info, debug or trace")
	fs.BoolVar(&o.LogPretty, "log.pretty", false, "log text instead of JSON")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; without one the pod's own ServiceAccount is used")
	fs.StringVar(&o.Endpoint, "endpoint", azure.DefaultEndpoint, "`URL` of Azure's Scheduled Events")
	fs.StringVar(&o.Node, "node", "", "`name` of the Kubernetes node to guard ($MY_NODE_NAME)")
	fs.DurationVar(&o.Period, "period", azure.DefaultInterval, "time from one look at the endpoint to the next")
	fs.DurationVar(&o.RequestTimeout, "request.timeout", 5*time.Second, "how long one look may take")
	fs.StringVar(&o.TelegramToken, "telegram.token", "", "Telegram bot `token` ($TELEGRAM_TOKEN)")
	fs.StringVar(&o.TelegramChatID, "telegram.chatID", "", "Telegram chat `id` ($TELEGRAM_CHATID)")
	fs.StringVar(&o.TelegramURL, "telegram.url", "", "`URL` of a Bot API server in place of Telegram's ($TELEGRAM_URL)")
	fs.StringVar(&o.AlertMessage, "alert.message", "Draining node={{ .NodeName }}, type={{ .Event.EventType }}", "`template` of the Telegram text")
	fs.StringVar(&o.WebhookMethod, "webhook.method", http.MethodPost, "HTTP `method`")
	fs.StringVar(&o.WebhookContentType, "webhook.contentType", "application/json", "Content-Type `header`")
	fs.StringVar(&o.WebhookURL, "webhook.url", "", "`URL` of the webhook ($WEBHOOK_URL)")
	fs.DurationVar(&o.WebhookTimeout, "webhook.timeout", 30*time.Second, "how long one request may take")
	fs.StringVar(&o.WebhookTemplate, "webhook.template", "", "`template` of the body ($WEBHOOK_TEMPLATE)")
	fs.StringVar(&o.WebhookTemplateFile, "webhook.template-file", "", "`file` with the template of the body, which wins ($WEBHOOK_TEMPLATE_FILE)")
	fs.BoolVar(&o.WebhookInsecure, "webhook.insecureSkip", false, "do not verify the webhook's certificate")
	fs.StringVar(&o.WebhookProxy, "webhook.http-proxy", "", "`URL` of an HTTP proxy for the webhook ($WEBHOOK_HTTP_PROXY)")
	fs.IntVar(&o.WebhookRetries, "webhook.retries", 3, "further attempts after the first; more follow while the process lives")
	fs.StringVar(&o.SentryDSN, "sentry.dsn", "", "Sentry DSN: log lines from warning on are sent there")
	fs.StringVar(&o.WebAddress, "web.address", ":17923", "`address` to serve /metrics, /healthz and /drainNode on")
	fs.StringVar(&o.WebTokenFile, "web.token-file", "", "`file` with the token for /drainNode and profiles from elsewhere than this pod ($WEB_TOKEN_FILE)")
	fs.BoolVar(&o.TaintNode, "taint.node", false, "also taint the node")
	fs.StringVar(&o.TaintEffect, "taint.effect", "NoSchedule", "NoSchedule, NoExecute or PreferNoSchedule")
	fs.IntVar(&o.PodGracePeriodSeconds, "podGracePeriodSeconds", -1, "`seconds` that every pod gets to stop; negative is its own")
	fs.IntVar(&o.NodeGracePeriodSeconds, "nodeGracePeriodSeconds", 120, "`seconds` that a drain may take which /drainNode asks for; 0 is any time")
	fs.IntVar(&o.GracePeriodSeconds, "gracePeriodSeconds", 10, "`seconds` that the end of the process waits for a drain under way")
	fs.BoolVar(&o.DrainOnFreezeEvent, "drainOnFreezeEvent", false, "drain for a Freeze too")
	fs.StringVar(&o.ResourceName, "resource.name", "", "this machine's `name` in Azure's events (default: from the node's spec.providerID)")
	fs.BoolVar(&o.ExitAfterNodeDrain, "exitAfterNodeDrain", false, "exit once the node is drained")
	fs.BoolVar(&o.DisableEviction, "disableEviction", false, "delete pods instead of evicting them, past all disruption budgets")
	fs.BoolVar(&o.DryRun, "dryRun", false, "say what would be done, change nothing")
	fs.BoolVar(&o.Acknowledge, "acknowledge", true, "tell Azure that an event may begin once its machines are drained")
	fs.IntVar(&o.MaxConcurrentDrains, "maxConcurrentDrains", 0, "how many `nodes` of the cluster are drained at once for what can wait; 0 is no limit ($MAX_CONCURRENT_DRAINS)")
	fs.StringVar(&o.Namespace, "namespace", "", "`namespace` of the Leases that -maxConcurrentDrains needs ($POD_NAMESPACE)")
	return fs
}

// Parse reads the tool's command line, its environment and the configuration file that either names. The file wins over
// flags, flags over the environment, that over the defaults. It returns flag.ErrHelp after help that was asked for, and
// a *compat.UsageError for flags that do not exist or cannot be read. Usage goes to out. With other errors come the options that
// could be read.
func Parse(args []string, env func(string) string, out io.Writer) (*Options, error) {
	o := &Options{given: map[string]string{}}
	fs := o.flagSet(out)
	for _, s := range settings {
		if s.env == "" || env(s.env) == "" {
			continue
		}
		if err := o.set(fs, s.flag, env(s.env), "$"+s.env); err != nil {
			return nil, err
		}
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, &compat.UsageError{Err: err}
	}
	if fs.NArg() > 0 {
		o.warn("%q: is no flag, and it and what follows is passed over", fs.Arg(0))
	}
	onCommandLine(fs, args, func(name string) { o.given[name] = "-" + name })
	if o.ShowVersion {
		return o, nil
	}
	if o.ConfigFile != "" {
		raw, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			return o, fmt.Errorf("%s: %w", o.given["config"], err)
		}
		if err := o.readFile(fs, raw); err != nil {
			return o, fmt.Errorf("%s %s: %w", o.given["config"], o.ConfigFile, err)
		}
	}
	o.repair()
	o.advise()
	return o, o.Validate()
}

// onCommandLine calls with the name of each flag of the command line. The environment has set some of the same set
// before, so that flag's own Visit does not tell.
func onCommandLine(fs *flag.FlagSet, args []string, with func(string)) {
	rest := len(args) - fs.NArg()
	for _, arg := range args[:rest] {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && fs.Lookup(name) != nil {
			with(name)
		}
	}
}

// readFile lays a configuration file over what is set. Keys are matched exactly, as the tool did.
func (o *Options) readFile(fs *flag.FlagSet, raw []byte) error {
	entries, err := compat.Entries(raw)
	if err != nil {
		return withoutText(err)
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
			o.Warnings = append(o.Warnings, compat.Unknown(key, e.Line, slices.Collect(maps.Keys(byKey))))
		case e.Again > 0:
			errs = append(errs, fmt.Errorf("line %d: %s: is there already, in line %d", e.Again, key, e.Line))
		case key == "configfile":
			o.warn("line %d: configfile: a file cannot name another, and it is passed over", e.Line)
		case e.Null:
			o.warn("line %d: %s: has no value, and is passed over", e.Line, key)
		case e.Shape != "":
			errs = append(errs, fmt.Errorf("line %d: %s: is %s: want %s", e.Line, key, e.Shape, want(fs, name)))
		default:
			value := e.Value
			if b, old, _ := compat.Bool(value); old && isBool(fs, name) {
				o.warn("line %d: %s: %s is a boolean of YAML 1.1: want true or false", e.Line, key, value)
				value = strconv.FormatBool(b)
			}
			if n, ok := e.Int(); ok && want(fs, name) == wholeNumber {
				value = strconv.Itoa(n)
			}
			if err := o.set(fs, name, value, fmt.Sprintf("key %s (line %d)", key, e.Line)); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// yamlLine is where in its text the YAML parser says it is.
var yamlLine = regexp.MustCompile(`line \d+`)

// withoutText says where a file is not YAML, without what stands there, which may be a token.
func withoutText(err error) error {
	if !strings.HasPrefix(err.Error(), "yaml:") {
		return err
	}
	where := yamlLine.FindString(err.Error())
	if where == "" {
		where = "line 1" // which the parser leaves out
	}
	return fmt.Errorf("%s: not YAML (not quoted, it may hold a token)", where)
}

const wholeNumber = "a whole number"

// want says what a flag's value must be.
func want(fs *flag.FlagSet, name string) string {
	getter, _ := fs.Lookup(name).Value.(flag.Getter)
	switch getter.Get().(type) {
	case bool:
		return "true or false"
	case int:
		return wholeNumber
	case time.Duration:
		return "a duration with its unit, such as 5s"
	}
	return "text"
}

func isBool(fs *flag.FlagSet, name string) bool {
	getter, _ := fs.Lookup(name).Value.(flag.Getter)
	_, is := getter.Get().(bool)
	return is
}

// secret are the settings whose values are never shown.
var secret = []string{"telegram.token", "webhook.url", "webhook.http-proxy", "sentry.dsn"}

func (o *Options) set(fs *flag.FlagSet, name, value, from string) error {
	if err := fs.Set(name, value); err != nil {
		return fmt.Errorf("%s: %q: want %s", from, value, want(fs, name))
	}
	o.given[name] = from
	return nil
}

func (o *Options) warn(format string, args ...any) {
	o.Warnings = append(o.Warnings, fmt.Sprintf(format, args...))
}

// Given reports whether a setting, by its flag's name, was set and is not the default.
func (o *Options) Given(name string) bool { return o.given[name] != "" }

// field spells a setting as it was given.
func (o *Options) field(name string) string {
	if from := o.given[name]; from != "" {
		return from
	}
	return "-" + name
}

// levels are logrus' names and what they are here.
var levels = map[string]string{
	"panic": "error", "fatal": "error", "error": "error", "warn": "warn", "warning": "warn", "info": "info",
	"debug": "debug", "trace": "debug",
}

const levelNames = "panic, fatal, error, warn, info, debug or trace"

// Bounds of a polling period. The tool had none, and 0 made it spin.
const (
	minPeriod = 100 * time.Millisecond
	maxPeriod = time.Minute
)

// Validate reports everything that is wrong with the values, and is not made up for by repair. What needs a template engine
// or a file is checked where it is made use of.
func (o *Options) Validate() error {
	var errs []error
	var said []string
	bad := func(name string, value any, want string) {
		said = append(said, name)
		errs = append(errs, fmt.Errorf("%s: %s: want %s", o.field(name), shown(name, value), want))
	}
	if o.Node == "" {
		bad("node", o.Node, "the name of this node (in a pod: MY_NODE_NAME from spec.nodeName)")
	}
	if _, known := levels[strings.ToLower(o.LogLevel)]; !known {
		bad("log.level", o.LogLevel, levelNames)
	}
	if !slices.Contains([]string{"NoSchedule", "NoExecute", "PreferNoSchedule"}, o.TaintEffect) {
		bad("taint.effect", o.TaintEffect, "NoSchedule, NoExecute or PreferNoSchedule")
	}
	if _, port, err := net.SplitHostPort(o.WebAddress); err != nil || !isPort(port) {
		bad("web.address", o.WebAddress, "host:port or :port, such as :17923")
	}
	if o.MaxConcurrentDrains < 0 || o.MaxConcurrentDrains > slots.MaxLimit {
		bad("maxConcurrentDrains", o.MaxConcurrentDrains, fmt.Sprintf("0 to %d", slots.MaxLimit))
	}
	if o.MaxConcurrentDrains > 0 && o.Namespace == "" {
		bad("namespace", o.Namespace, "the agents' own (in a pod: POD_NAMESPACE from metadata.namespace), as "+
			o.field("maxConcurrentDrains")+" needs it")
	}
	if _, err := strconv.ParseInt(o.TelegramChatID, 10, 64); err != nil && o.TelegramChatID != "" {
		bad("telegram.chatID", o.TelegramChatID, "a whole number, such as -1001234567890")
	}
	if o.TelegramURL != "" && !isURL(o.TelegramURL) {
		bad("telegram.url", o.TelegramURL, "a URL such as https://bot.example.com")
	}
	return errors.Join(append(errs, o.refused(said)...)...)
}

// settingOf are the settings that fields of a receiver are made of.
var settingOf = map[string]string{
	"telegram.token": "telegram.token", "telegram.chatID": "telegram.chatID", "telegram.url": "telegram.url",
	"telegram.template": "alert.message",
	"webhook.url":       "webhook.url", "webhook.method": "webhook.method", "webhook.contentType": "webhook.contentType",
	"webhook.template": "webhook.template", "webhook.timeout": "webhook.timeout", "webhook.retries": "webhook.retries",
	"webhook.proxy": "webhook.http-proxy",
}

// refused are what the receivers that are made do not take, said of the settings that they are made of, but those of which
// something is said already.
func (o *Options) refused(said []string) []error {
	var errs []error
	for _, r := range o.Receivers() {
		for _, err := range o.faultsOf(r) {
			if !slices.ContainsFunc(said, func(name string) bool { return strings.HasPrefix(err.Error(), o.field(name)+":") }) {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// faultsOf are what a receiver that is made does not take, said of the settings that it is made of.
func (o *Options) faultsOf(r notify.Receiver) []error {
	err := r.Validate()
	if err == nil {
		return nil
	}
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		field, why, _ := strings.Cut(line, ": ")
		if name := settingOf[field]; name != "" {
			line = o.field(name) + ": " + why
		}
		errs = append(errs, errors.New(line))
	}
	return errs
}

// CheckTemplates warns of templates that cannot be read, in the process that is to use them. As with the tool, their
// messages are lost.
func (o *Options) CheckTemplates() {
	check := func(name, text string) {
		if err := notify.CheckTemplate(o.field(name), text); err != nil {
			o.warn("%v: such messages are lost", err)
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
			o.warn("%s: %v: messages are lost until it can be read", o.field("webhook.template-file"), err)
			break
		}
		check("webhook.template-file", string(raw))
	default:
		check("webhook.template", o.WebhookTemplate)
	}
}

// isURL reports whether a text is a URL of HTTP, or of another scheme that is given.
func isURL(s string, schemes ...string) bool {
	return notify.CheckAddress(s, append(schemes, "http", "https")...) == nil
}

// isPort reports whether a text is a port to listen on; 0 is any.
func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0 && n < 1<<16
}

// advise warns of settings that are accepted and no longer mean what they did, or that contradict each other.
func (o *Options) advise() {
	if o.WebhookTemplate != "" && o.WebhookTemplateFile != "" {
		o.warn("%s: is passed over, since %s wins", o.field("webhook.template"), o.field("webhook.template-file"))
	}
	if o.WebhookURL == "" && (o.WebhookTemplate != "" || o.WebhookTemplateFile != "") {
		o.warn("%s: there is a template but no URL: no webhook is called", o.field("webhook.url"))
	}
	if o.TelegramToken == "" && o.TelegramChatID != "" {
		o.warn("%s: there is a chat but no token: nothing is sent to Telegram", o.field("telegram.token"))
	}
	if o.WebhookInsecure {
		o.warn("%s: the webhook's certificate is not verified", o.field("webhook.insecureSkip"))
	}
	if o.Period > 2*time.Second {
		o.warn("%s: %s: Azure advises 1s, as a Spot machine may have 30 s or less", o.field("period"), o.Period)
	}
	if o.Given("nodeGracePeriodSeconds") {
		o.warn("%s: limits a drain that /drainNode asks for; any other goes on until the machine is due",
			o.field("nodeGracePeriodSeconds"))
	}
}
