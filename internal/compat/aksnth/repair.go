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

// repair replaces values with which the tool started although they could not work, and warns of each: a DaemonSet whose
// pods end at their start guards no node.
func (o *Options) repair() {
	o.repairEndpoint()
	o.repairTimes()
	o.repairNumbers()
	o.repairWebhook()
	if _, known := levels[strings.ToLower(o.LogLevel)]; !known && strings.HasPrefix(o.given["log.level"], "key ") {
		o.replace("log.level", o.LogLevel, levelNames, "info is taken") // the tool passed the key over
		o.LogLevel = "INFO"
	}
	if host, port, err := net.SplitHostPort(o.WebAddress); err == nil {
		if n, err := net.LookupPort("tcp", port); err == nil { // it may be a name, such as http
			o.WebAddress = net.JoinHostPort(host, strconv.Itoa(n))
		}
	}
	if _, _, err := sentryURL(o.SentryDSN); err != nil && o.SentryDSN != "" {
		o.replace("sentry.dsn", o.SentryDSN, "https://KEY@HOST/PROJECT, with a number for PROJECT", "nothing is sent to Sentry")
		o.SentryDSN = ""
	}
	if o.TelegramToken != "" && o.TelegramChatID == "" {
		o.replace("telegram.chatID", o.TelegramChatID, "the chat to write to, since there is a token", "nothing is sent to Telegram")
		o.TelegramToken = ""
	}
}

// replace warns that a setting's value is not used, and says what is done in its place.
func (o *Options) replace(name string, value any, want, instead string) {
	o.warn("%s: %s: want %s; %s", o.field(name), shown(name, value), want, instead)
}

// shown spells a value for people, unless it may be secret.
func shown(name string, value any) string {
	if slices.Contains(secret, name) {
		return "its value (not quoted, it may hold a secret)"
	}
	if s, ok := value.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(value)
}

// repairEndpoint adds the api-version that the service asks for, or spells its name as the service does.
func (o *Options) repairEndpoint() {
	u, err := url.Parse(o.Endpoint)
	if err == nil && isURL(o.Endpoint) && u.Query().Get("api-version") == "" {
		rest, version := apiVersionOf(u.RawQuery)
		u.RawQuery = strings.TrimPrefix(rest+"&api-version="+cmp.Or(version, azure.APIVersion), "&")
		if version == "" {
			o.replace("endpoint", o.Endpoint, "an api-version", u.String()+" is asked")
		}
		o.Endpoint = u.String()
	}
	if _, err := azure.NewClient(azure.Options{Endpoint: o.Endpoint}); err != nil || o.Endpoint == "" {
		o.replace("endpoint", o.Endpoint, "a URL such as "+azure.DefaultEndpoint, azure.DefaultEndpoint+" is asked")
		o.Endpoint = azure.DefaultEndpoint
	}
}

// apiVersionOf takes the api-version out of a query, in any letter case.
func apiVersionOf(query string) (rest, version string) {
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

func (o *Options) repairTimes() {
	for _, d := range []struct {
		name             string
		value            *time.Duration
		least, most, not time.Duration // not replaces a value of 0 and less
		want             string
	}{
		{"period", &o.Period, minPeriod, maxPeriod, azure.DefaultInterval, "100ms to 1m"},
		{"request.timeout", &o.RequestTimeout, 1, 10 * time.Minute, azure.DefaultTimeout, "more than 0, up to 10m"},
		{"webhook.timeout", &o.WebhookTimeout, 1, 10 * time.Minute, 30 * time.Second, "more than 0, up to 10m"},
	} {
		taken := min(max(*d.value, d.least), d.most)
		if *d.value <= 0 {
			taken = d.not
		}
		if taken != *d.value {
			o.replace(d.name, *d.value, d.want, taken.String()+" is taken")
			*d.value = taken
		}
	}
}

func (o *Options) repairNumbers() {
	for _, n := range []struct {
		name      string
		value     *int
		most, not int // not replaces a value below 0
		want      string
	}{
		{"nodeGracePeriodSeconds", &o.NodeGracePeriodSeconds, maxSeconds, 120, "0 or more"},
		{"gracePeriodSeconds", &o.GracePeriodSeconds, 600, 10, "0 to 600"},
		{"webhook.retries", &o.WebhookRetries, 20, 0, "0 to 20"},
	} {
		taken := min(*n.value, n.most)
		if taken < 0 {
			taken = n.not
		}
		if taken != *n.value {
			o.replace(n.name, *n.value, n.want, strconv.Itoa(taken)+" is taken")
			*n.value = taken
		}
	}
}

// maxSeconds is the longest time that fits into a time.Duration.
const maxSeconds = int(1<<63-1) / int(time.Second)

// repairWebhook does without what the tool would have failed to send with.
func (o *Options) repairWebhook() {
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	if method := strings.ToUpper(o.WebhookMethod); !slices.Contains(methods, o.WebhookMethod) {
		if !slices.Contains(methods, method) {
			method = http.MethodPost
		}
		o.replace("webhook.method", o.WebhookMethod, strings.Join(methods, ", "), method+" is taken")
		o.WebhookMethod = method
	}
	if strings.TrimSpace(o.WebhookContentType) == "" || strings.ContainsAny(o.WebhookContentType, "\r\n") {
		o.replace("webhook.contentType", o.WebhookContentType, "a media type, such as application/json", "application/json is taken")
		o.WebhookContentType = "application/json"
	}
	if o.WebhookProxy != "" && !isURL(o.WebhookProxy, "socks5", "socks5h") {
		o.replace("webhook.http-proxy", o.WebhookProxy, "a URL such as http://proxy:3128", "no proxy is used")
		o.WebhookProxy = ""
	}
	if o.WebhookURL != "" && !isURL(o.WebhookURL) {
		o.replace("webhook.url", o.WebhookURL, "a URL such as https://example.com/hook", "no webhook is called")
		o.WebhookURL = ""
	}
	for _, r := range o.Receivers() {
		if r.Webhook == nil {
			continue
		}
		for _, err := range o.faultsOf(r) {
			o.warn("%v; no webhook is called", err)
			o.WebhookURL = ""
		}
	}
}
