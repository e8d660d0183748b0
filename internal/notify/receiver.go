package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	defaultTimeout = 30 * time.Second
	defaultRetries = 3
	mostRetries    = 20
	mostHeaders    = 64
	// defaultTelegramURL is where Telegram's Bot API is (https://core.telegram.org/bots/api#making-requests).
	defaultTelegramURL = "https://api.telegram.org"
)

// Receiver is somebody who is told: the configuration of one webhook or one Telegram chat.
type Receiver struct {
	// Name names the receiver in logs, metrics and errors: letters, digits, dots, dashes and underscores, 63 at most.
	Name string `json:"name"`
	// Moments are those that it is told of; none is detected, drained, deadline-passed and over.
	Moments []Moment `json:"moments,omitempty"`
	// One of the two must be given.
	Webhook  *Webhook  `json:"webhook,omitempty"`
	Telegram *Telegram `json:"telegram,omitempty"`
}

// Webhook is a request over HTTP.
type Webhook struct {
	// URL is where to; it is a template. URLFile is a file that holds it, for one that is a secret.
	URL     string `json:"url,omitempty"`
	URLFile string `json:"urlFile,omitempty"`
	// Method is POST (the default), PUT, PATCH, GET or DELETE.
	Method string `json:"method,omitempty"`
	// ContentType is application/json by default.
	ContentType string `json:"contentType,omitempty"`
	// Headers are sent with the request, by name; 64 at most.
	Headers map[string]string `json:"headers,omitempty"`
	// BearerTokenFile or BasicAuth say who asks. The files are read for every request, so that they may be replaced.
	BearerTokenFile string     `json:"bearerTokenFile,omitempty"`
	BasicAuth       *BasicAuth `json:"basicAuth,omitempty"`
	Body
	Connection
}

// Telegram is a chat that a bot writes to.
type Telegram struct {
	// TokenFile is a file that holds the bot's token; Token is the token itself.
	TokenFile string `json:"tokenFile,omitempty"`
	Token     string `json:"token,omitempty"`
	// ChatID is the chat's number, or @ and the name of a public channel.
	ChatID ChatID `json:"chatID"`
	// ParseMode is empty for plain text, MarkdownV2 or HTML.
	ParseMode string `json:"parseMode,omitempty"`
	// URL replaces https://api.telegram.org for a Bot API server of one's own.
	URL string `json:"url,omitempty"`
	Body
	Connection
}

// Body says what is sent.
type Body struct {
	// Template is a Go text/template over a Message. None sends the Message as JSON to a webhook, and its Summary to
	// Telegram.
	Template string `json:"template,omitempty"`
	// TemplateFile is a file that holds it. It is read again for every message; while it is bad the last good one stands.
	TemplateFile string `json:"templateFile,omitempty"`
	// SecretFiles are files whose content templates can use, by name: {{ secret "name" }}.
	SecretFiles map[string]string `json:"secretFiles,omitempty"`
}

// Connection says how the receiver is reached.
type Connection struct {
	// Timeout bounds one request as a whole, from the look-up of the name to the end of the answer; 30s by default.
	Timeout Duration `json:"timeout,omitempty"`
	// Retries is how often a request that failed is repeated before the next message gets a try, 0 to 20; 3 by default.
	Retries *int `json:"retries,omitempty"`
	// Proxy is the URL of an HTTP, HTTPS or SOCKS5 proxy; user and password may be in it. Empty uses the standard environment
	// variables, and direct none at all. ProxyPasswordFile holds the password of the user in the URL.
	Proxy             string `json:"proxy,omitempty"`
	ProxyPasswordFile string `json:"proxyPasswordFile,omitempty"`
	// CAFile holds the certificates of the authorities that are trusted in place of the system's, in PEM.
	CAFile string `json:"caFile,omitempty"`
	// InsecureSkipVerify accepts any certificate: whoever is on the way can read and change what is sent.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// BasicAuth is a user's name and password (RFC 7617).
type BasicAuth struct {
	Username string `json:"username"`
	// PasswordFile is a file that holds the password of Username.
	PasswordFile string `json:"passwordFile"`
}

// Duration is a time.Duration that is written as Go writes it, such as 30s.
type Duration time.Duration

// Want says what a Duration is written as, for errors.
func (Duration) Want() string { return "duration with its unit, such as 30s" }

// UnmarshalJSON reads a string such as "30s". Its error is a *json.UnmarshalTypeError, to which encoding/json adds the
// name of the field.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var s string
	err := json.Unmarshal(raw, &s)
	if err == nil {
		var v time.Duration
		if v, err = time.ParseDuration(s); err == nil {
			*d = Duration(v)
			return nil
		}
	}
	return &json.UnmarshalTypeError{Value: string(raw), Type: reflect.TypeFor[Duration]()}
}

// MarshalJSON writes a string such as "30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// ChatID is a Telegram chat, in YAML and JSON a number or a string.
type ChatID string

// Want says what a ChatID is written as, for errors.
func (ChatID) Want() string { return "number of a chat, or @ and the name of a public channel" }

// UnmarshalJSON takes a number for the string of its digits.
func (c *ChatID) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, (*string)(c)) == nil && string(raw) != "null" {
		return nil
	}
	if _, err := strconv.ParseInt(string(raw), 10, 64); err != nil {
		return &json.UnmarshalTypeError{Value: string(raw), Type: reflect.TypeFor[ChatID]()}
	}
	*c = ChatID(raw)
	return nil
}

var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	tokenForm   = regexp.MustCompile(`^[0-9]+:[A-Za-z0-9_-]+$`)
	channelForm = regexp.MustCompile(`^@[A-Za-z0-9_]+$`)
)

func methods() []string {
	return []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodGet, http.MethodDelete}
}

// complaints collects what is wrong, field by field.
type complaints []error

func (c *complaints) add(field, value, want string) {
	*c = append(*c, fmt.Errorf("%s: %s: want %s", field, value, want))
}

// Validate reports everything that can be known to be wrong without reading a file: the field, its value and what is
// allowed. Values that may be secret are not repeated.
func (r *Receiver) Validate() error {
	var c complaints
	if !nameForm.MatchString(r.Name) {
		c.add("name", strconv.Quote(r.Name), "1 to 63 letters, digits, dots, dashes or underscores, the first a letter or digit")
	}
	for i, m := range r.Moments {
		field := fmt.Sprintf("moments[%d]", i)
		switch {
		case !slices.Contains(Moments(), m):
			c.add(field, strconv.Quote(string(m)), listed(Moments()))
		case slices.Contains(r.Moments[:i], m):
			c.add(field, strconv.Quote(string(m)), "each moment once")
		}
	}
	switch {
	case r.Webhook != nil && r.Telegram != nil:
		c.add("webhook, telegram", "both given", "one of the two")
	case r.Webhook != nil:
		r.Webhook.validate(&c)
	case r.Telegram != nil:
		r.Telegram.validate(&c)
	default:
		c.add("webhook, telegram", "neither given", "one of the two")
	}
	return errors.Join(c...)
}

func listed[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func (w *Webhook) validate(c *complaints) {
	if (w.URL == "") == (w.URLFile == "") {
		c.add("webhook.url, webhook.urlFile", "both or neither given", "one of the two")
	}
	if w.Method != "" && !slices.Contains(methods(), w.Method) {
		c.add("webhook.method", strconv.Quote(w.Method), listed(methods())+", in capitals")
	}
	if !httpguts.ValidHeaderFieldValue(w.ContentType) {
		c.add("webhook.contentType", strconv.Quote(w.ContentType), "a media type, such as application/json")
	}
	w.validateHeaders(c)
	if w.BasicAuth != nil {
		if w.BearerTokenFile != "" {
			c.add("webhook.basicAuth, webhook.bearerTokenFile", "both given", "one of the two")
		}
		if w.BasicAuth.Username == "" || strings.Contains(w.BasicAuth.Username, ":") {
			c.add("webhook.basicAuth.username", strconv.Quote(w.BasicAuth.Username), "a name without a colon")
		}
		if w.BasicAuth.PasswordFile == "" {
			c.add("webhook.basicAuth.passwordFile", `""`, "the path of a file")
		}
	}
	w.Body.validate(c, "webhook.")
	w.Connection.validate(c, "webhook.")
}

// headersOfOurs are set by other fields, or by HTTP itself.
var headersOfOurs = map[string]string{
	"Content-Type": "contentType", "Content-Length": "the body's length", "Host": "the host of url",
	"Transfer-Encoding": "nothing", "Connection": "nothing", "Proxy-Authorization": "proxy",
}

func (w *Webhook) validateHeaders(c *complaints) {
	if len(w.Headers) > mostHeaders {
		c.add("webhook.headers", strconv.Itoa(len(w.Headers)), fmt.Sprintf("%d at most", mostHeaders))
	}
	for name, value := range w.Headers {
		field := fmt.Sprintf("webhook.headers[%q]", name)
		canonical := http.CanonicalHeaderKey(name)
		switch ours, ok := headersOfOurs[canonical]; {
		case ok:
			c.add(field, "not to be set here", "it left out: it comes from "+ours)
		case !httpguts.ValidHeaderFieldName(name):
			c.add(field, "not the name of a header", "letters, digits and dashes")
		case !httpguts.ValidHeaderFieldValue(value):
			c.add(field, "its value has a control character", "one line of text")
		case canonical == "Authorization" && (w.BasicAuth != nil || w.BearerTokenFile != ""):
			c.add(field, "given beside basicAuth or bearerTokenFile", "one of the two")
		}
	}
}

func (t *Telegram) validate(c *complaints) {
	if (t.Token == "") == (t.TokenFile == "") {
		c.add("telegram.token, telegram.tokenFile", "both or neither given", "one of the two")
	}
	if t.Token != "" && !tokenForm.MatchString(t.Token) {
		c.add("telegram.token", "what is given", "a bot's token as Telegram writes it, 123456:ABC-DEF")
	}
	if !isChat(string(t.ChatID)) {
		c.add("telegram.chatID", strconv.Quote(string(t.ChatID)), "the number of a chat, or @ and the name of a public channel")
	}
	if !slices.Contains([]string{"", "MarkdownV2", "HTML"}, t.ParseMode) {
		c.add("telegram.parseMode", strconv.Quote(t.ParseMode), "MarkdownV2, HTML or nothing")
	}
	if t.URL != "" {
		if err := checkURL(t.URL); err != nil {
			c.add("telegram.url", err.Error(), "an http or https URL, such as "+defaultTelegramURL)
		}
	}
	t.Body.validate(c, "telegram.")
	t.Connection.validate(c, "telegram.")
}

func isChat(id string) bool {
	_, err := strconv.ParseInt(id, 10, 64)
	return err == nil || channelForm.MatchString(id)
}

func (b *Body) validate(c *complaints, prefix string) {
	if b.Template != "" && b.TemplateFile != "" {
		c.add(prefix+"template, "+prefix+"templateFile", "both given", "one of the two")
	}
	if len(b.Template) > mostTemplate {
		c.add(prefix+"template", fmt.Sprintf("%d bytes", len(b.Template)), fmt.Sprintf("%d at most", mostTemplate))
	}
	for name, path := range b.SecretFiles {
		if name == "" || path == "" {
			c.add(fmt.Sprintf("%ssecretFiles[%q]", prefix, name), strconv.Quote(path), "a name, and the path of a file")
		}
	}
}

func (n *Connection) validate(c *complaints, prefix string) {
	if n.Timeout < 0 || time.Duration(n.Timeout) > 10*time.Minute {
		c.add(prefix+"timeout", time.Duration(n.Timeout).String(), "more than 0, up to 10m")
	}
	if n.Retries != nil && (*n.Retries < 0 || *n.Retries > mostRetries) {
		c.add(prefix+"retries", strconv.Itoa(*n.Retries), fmt.Sprintf("0 to %d", mostRetries))
	}
	if n.Proxy != "" && n.Proxy != noProxy {
		if err := CheckAddress(n.Proxy, "http", "https", "socks5", "socks5h"); err != nil {
			c.add(prefix+"proxy", err.Error(), "an http, https, socks5 or socks5h URL with a host, or direct")
		}
	}
	if n.ProxyPasswordFile != "" {
		if u, err := url.Parse(n.Proxy); err != nil || u.User.Username() == "" {
			c.add(prefix+"proxyPasswordFile", strconv.Quote(n.ProxyPasswordFile), "a user's name in "+prefix+"proxy with it")
		}
	}
	if n.CAFile != "" && n.InsecureSkipVerify {
		c.add(prefix+"caFile, "+prefix+"insecureSkipVerify", "both given", "one of the two")
	}
}

// checkURL says what is wrong with the address of an HTTP server, without repeating what in it may be secret.
func checkURL(s string) error { return CheckAddress(s, "http", "https") }

// CheckAddress does so of the address of a server of one of the schemes.
func CheckAddress(s string, schemes ...string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("scheme %q", u.Scheme)
	case u.Hostname() == "":
		return errors.New("no host")
	case u.Port() != "" && !isPort(u.Port()):
		return fmt.Errorf("port %q", u.Port())
	}
	return nil
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n > 0 && n < 1<<16
}

// tells reports whether the receiver is told of a moment.
func (r *Receiver) tells(m Moment) bool {
	if len(r.Moments) == 0 {
		return slices.Contains(defaultMoments(), m)
	}
	return slices.Contains(r.Moments, m)
}

// connection and body are those of whichever kind the receiver is.
func (r *Receiver) connection() Connection {
	if r.Telegram != nil {
		return r.Telegram.Connection
	}
	return r.Webhook.Connection
}

func (r *Receiver) body() Body {
	if r.Telegram != nil {
		return r.Telegram.Body
	}
	return r.Webhook.Body
}

func (n Connection) timeout() time.Duration {
	if n.Timeout == 0 {
		return defaultTimeout
	}
	return time.Duration(n.Timeout)
}

func (n Connection) retries() int {
	if n.Retries == nil {
		return defaultRetries
	}
	return *n.Retries
}
