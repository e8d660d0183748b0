package aksnth

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/azure"
)

// repairValues replaces values that cannot work although the tool started with them, and warns of each. If the pods of a
// DaemonSet exited instead, no node would be protected.
func (o *Options) repairValues() {
	o.repairEndpoint()
	o.repairDurations()
	o.repairNumbers()
	o.repairWebhook()
	if _, known := logLevels[strings.ToLower(o.LogLevel)]; !known && strings.HasPrefix(o.sources["log.level"], "key ") {
		o.warnReplaced("log.level", o.LogLevel, logLevelNames, "using info") // the tool ignored the key
		o.LogLevel = "INFO"
	}
	if host, port, err := net.SplitHostPort(o.WebAddress); err == nil {
		if n, err := net.LookupPort("tcp", port); err == nil { // the port may be a name such as http
			o.WebAddress = net.JoinHostPort(host, strconv.Itoa(n))
		}
	}
	if _, _, err := parseSentryDSN(o.SentryDSN); err != nil && o.SentryDSN != "" {
		o.warnReplaced("sentry.dsn", o.SentryDSN, "https://KEY@HOST/PROJECT, with a number for PROJECT", "nothing is sent to Sentry")
		o.SentryDSN = ""
	}
	if o.TelegramToken != "" && o.TelegramChatID == "" {
		o.warnReplaced("telegram.chatID", o.TelegramChatID, "a chat ID, because a token is set", "nothing is sent to Telegram")
		o.TelegramToken = ""
	}
}

// warnReplaced warns that a setting's value is not used, and what is used instead.
func (o *Options) warnReplaced(name string, value any, want, instead string) {
	o.addWarning("%s: %s: want %s; %s", o.describeSource(name), formatValueUnlessSecret(name, value), want, instead)
}

// formatValueUnlessSecret formats a value for a message, unless it may be secret.
func formatValueUnlessSecret(name string, value any) string {
	if slices.Contains(secretSettings, name) {
		return "(value hidden, it may contain a secret)"
	}
	if s, ok := value.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(value)
}

// repairEndpoint adds the api-version that the service requires, or corrects the letter case of its name.
func (o *Options) repairEndpoint() {
	u, err := url.Parse(o.Endpoint)
	if err == nil && isURL(o.Endpoint) && u.Query().Get("api-version") == "" {
		rest, version := cutAPIVersion(u.RawQuery)
		u.RawQuery = strings.TrimPrefix(rest+"&api-version="+cmp.Or(version, azure.APIVersion), "&")
		if version == "" {
			o.warnReplaced("endpoint", o.Endpoint, "an api-version", "using "+u.String())
		}
		o.Endpoint = u.String()
	}
	if _, err := azure.NewClient(azure.Options{Endpoint: o.Endpoint}); err != nil || o.Endpoint == "" {
		o.warnReplaced("endpoint", o.Endpoint, "a URL such as "+azure.DefaultEndpoint, "using "+azure.DefaultEndpoint)
		o.Endpoint = azure.DefaultEndpoint
	}
}

// cutAPIVersion removes the api-version, in any letter case, from a query and returns both.
func cutAPIVersion(query string) (rest, version string) {
	var others []string
	for part := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(part, "="); strings.EqualFold(name, "api-version") {
			version = cmp.Or(version, value)
		} else {
			others = append(others, part)
		}
	}
	return strings.Join(others, "&"), version
}

func (o *Options) repairDurations() {
	for _, d := range []struct {
		name                  string
		value                 *time.Duration
		least, most, fallback time.Duration // fallback replaces a value of 0 or less
		want                  string
	}{
		{"period", &o.Period, minPeriod, maxPeriod, azure.DefaultInterval, "100ms to 1m"},
		{"request.timeout", &o.RequestTimeout, 1, 10 * time.Minute, azure.DefaultTimeout, "more than 0, up to 10m"},
		{"webhook.timeout", &o.WebhookTimeout, 1, 10 * time.Minute, 30 * time.Second, "more than 0, up to 10m"},
	} {
		used := min(max(*d.value, d.least), d.most)
		if *d.value <= 0 {
			used = d.fallback
		}
		if used != *d.value {
			o.warnReplaced(d.name, *d.value, d.want, "using "+used.String())
			*d.value = used
		}
	}
}

func (o *Options) repairNumbers() {
	for _, n := range []struct {
		name           string
		value          *int
		most, fallback int // fallback replaces a value below 0
		want           string
	}{
		{"nodeGracePeriodSeconds", &o.NodeGracePeriodSeconds, maxSeconds, 120, "0 or more"},
		{"gracePeriodSeconds", &o.GracePeriodSeconds, 600, 10, "0 to 600"},
		{"webhook.retries", &o.WebhookRetries, 20, 0, "0 to 20"},
	} {
		used := min(*n.value, n.most)
		if used < 0 {
			used = n.fallback
		}
		if used != *n.value {
			o.warnReplaced(n.name, *n.value, n.want, "using "+strconv.Itoa(used))
			*n.value = used
		}
	}
}

// maxSeconds is the maximum number of seconds that fits into a time.Duration.
const maxSeconds = int(1<<63-1) / int(time.Second)

// repairWebhook replaces or removes webhook settings that made the tool's messages fail.
func (o *Options) repairWebhook() {
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	if method := strings.ToUpper(o.WebhookMethod); !slices.Contains(methods, o.WebhookMethod) {
		if !slices.Contains(methods, method) {
			method = http.MethodPost
		}
		o.warnReplaced("webhook.method", o.WebhookMethod, strings.Join(methods, ", "), "using "+method)
		o.WebhookMethod = method
	}
	if strings.TrimSpace(o.WebhookContentType) == "" || strings.ContainsAny(o.WebhookContentType, "\r\n") {
		o.warnReplaced("webhook.contentType", o.WebhookContentType, "a media type such as application/json", "using application/json")
		o.WebhookContentType = "application/json"
	}
	if o.WebhookProxy != "" && !isURL(o.WebhookProxy, "socks5", "socks5h") {
		o.warnReplaced("webhook.http-proxy", o.WebhookProxy, "a URL such as http://proxy:3128", "no proxy is used")
		o.WebhookProxy = ""
	}
	if o.WebhookURL != "" && !isURL(o.WebhookURL) {
		o.warnReplaced("webhook.url", o.WebhookURL, "a URL such as https://example.com/hook", "no webhook is called")
		o.WebhookURL = ""
	}
	for _, r := range o.ToReceivers() {
		if r.Webhook == nil {
			continue
		}
		for _, err := range o.validateReceiver(r) {
			o.addWarning("%v; no webhook is called", err)
			o.WebhookURL = ""
		}
	}
}
