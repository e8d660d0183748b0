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
	// defaultTelegramURL is the address of Telegram's Bot API (https://core.telegram.org/bots/api#making-requests).
	defaultTelegramURL = "https://api.telegram.org"
)

// Receiver is the configuration of one receiver: a webhook or a Telegram chat.
type Receiver struct {
	// Name identifies the receiver in logs, metrics and errors: letters, digits, dots, dashes and underscores, 63 at
	// most.
	Name string `json:"name"`
	// Moments are the moments to send; none is detected, drained, deadline-passed and over.
	Moments []Moment `json:"moments,omitempty"`
	// Exactly one of the two is required.
	Webhook  *Webhook  `json:"webhook,omitempty"`
	Telegram *Telegram `json:"telegram,omitempty"`
}

// Webhook is an HTTP request.
type Webhook struct {
	// URL is the address; it is a template. URLFile is a file with the address, for a secret one.
	URL     string `json:"url,omitempty"`
	URLFile string `json:"urlFile,omitempty"`
	// Method is POST (the default), PUT, PATCH, GET or DELETE.
	Method string `json:"method,omitempty"`
	// ContentType is application/json by default.
	ContentType string `json:"contentType,omitempty"`
	// Headers are sent with the request, by name; 64 at most.
	Headers map[string]string `json:"headers,omitempty"`
	// BearerTokenFile or BasicAuth authenticates the request. The files are read for every request, so that they may
	// be replaced.
	BearerTokenFile string     `json:"bearerTokenFile,omitempty"`
	BasicAuth       *BasicAuth `json:"basicAuth,omitempty"`
	Body
	Connection
}

// Telegram is a chat that a bot writes to.
type Telegram struct {
	// TokenFile is a file with the bot's token; Token is the token itself.
	TokenFile string `json:"tokenFile,omitempty"`
	Token     string `json:"token,omitempty"`
	// ChatID is the chat's number, or @ and the name of a public channel.
	ChatID ChatID `json:"chatID"`
	// ParseMode is empty for plain text, MarkdownV2 or HTML. The last two require a template that escapes its values.
	ParseMode string `json:"parseMode,omitempty"`
	// URL replaces https://api.telegram.org, for another Bot API server.
	URL string `json:"url,omitempty"`
	Body
	Connection
}

// Body configures the content.
type Body struct {
	// Template is a Go text/template for a Message. Without it, a webhook gets the Message as JSON, and Telegram gets
	// its Summary.
	Template string `json:"template,omitempty"`
	// TemplateFile is a file with the template. It is read again for every message. If it becomes invalid, the last
	// valid template is used.
	TemplateFile string `json:"templateFile,omitempty"`
	// SecretFiles are files for use in templates, by name: {{ secret "name" }}.
	SecretFiles map[string]string `json:"secretFiles,omitempty"`
}

// Connection configures the connection to the receiver.
type Connection struct {
	// Timeout limits one request, from name resolution to the end of the response; 30s by default.
	Timeout Duration `json:"timeout,omitempty"`
	// Retries is how often a failed request is repeated before the next message is tried, 0 to 20; 3 by default.
	Retries *int `json:"retries,omitempty"`
	// Proxy is the URL of an HTTP, HTTPS or SOCKS5 proxy; it may contain user and password. Empty uses the standard
	// environment variables, and direct uses no proxy. ProxyPasswordFile is a file with the password of the user in
	// the URL.
	Proxy             string `json:"proxy,omitempty"`
	ProxyPasswordFile string `json:"proxyPasswordFile,omitempty"`
	// CAFile is a file with the trusted certificate authorities in PEM, instead of the system's.
	CAFile string `json:"caFile,omitempty"`
	// InsecureSkipVerify accepts any certificate, so that others on the network can read and change the messages.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// BasicAuth is a user name and password (RFC 7617).
type BasicAuth struct {
	Username string `json:"username"`
	// PasswordFile is a file with the password of Username.
	PasswordFile string `json:"passwordFile"`
}

// Duration is a time.Duration that configuration files write in Go's format, such as 30s.
type Duration time.Duration

// WantedFormat returns the format of a Duration, for error messages.
func (Duration) WantedFormat() string { return "duration with its unit, such as 30s" }

// UnmarshalJSON parses a string such as "30s". Its error is a *json.UnmarshalTypeError, so that encoding/json adds the
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

// MarshalJSON encodes the duration as a string such as "30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// ChatID is the ID of a Telegram chat. YAML and JSON files can write it as a number or as a string.
type ChatID string

// WantedFormat returns the format of a ChatID, for error messages.
func (ChatID) WantedFormat() string { return "number of a chat, or @ and the name of a public channel" }

// UnmarshalJSON parses a string or a number.
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

// fieldErrors collects the errors of a receiver's fields.
type fieldErrors []error

func (c *fieldErrors) add(field, value, want string) {
	*c = append(*c, fmt.Errorf("%s: %s: want %s", field, value, want))
}

// Validate returns all errors in the receiver that can be found without reading a file. Each error has the field, the
// value and what is allowed. It does not quote values that may be secret.
func (r *Receiver) Validate() error {
	var c fieldErrors
	if !nameForm.MatchString(r.Name) {
		c.add("name", strconv.Quote(r.Name), "1 to 63 letters, digits, dots, dashes or underscores, the first a letter or digit")
	}
	for i, m := range r.Moments {
		field := fmt.Sprintf("moments[%d]", i)
		switch {
		case !slices.Contains(Moments(), m):
			c.add(field, strconv.Quote(string(m)), joinValues(Moments()))
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

func joinValues[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func (w *Webhook) validate(c *fieldErrors) {
	if (w.URL == "") == (w.URLFile == "") {
		c.add("webhook.url, webhook.urlFile", "both or neither given", "one of the two")
	}
	if w.Method != "" && !slices.Contains(methods(), w.Method) {
		c.add("webhook.method", strconv.Quote(w.Method), joinValues(methods())+", in capitals")
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

// reservedHeaders are the HTTP headers that a user cannot configure, because another field or HTTP itself sets them.
var reservedHeaders = map[string]string{
	"Content-Type": "contentType", "Content-Length": "the body's length", "Host": "the host of url",
	"Transfer-Encoding": "nothing", "Connection": "nothing", "Proxy-Authorization": "proxy",
}

func (w *Webhook) validateHeaders(c *fieldErrors) {
	if len(w.Headers) > mostHeaders {
		c.add("webhook.headers", strconv.Itoa(len(w.Headers)), fmt.Sprintf("%d at most", mostHeaders))
	}
	for name, value := range w.Headers {
		field := fmt.Sprintf("webhook.headers[%q]", name)
		canonical := http.CanonicalHeaderKey(name)
		switch ours, ok := reservedHeaders[canonical]; {
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

func (t *Telegram) validate(c *fieldErrors) {
	if (t.Token == "") == (t.TokenFile == "") {
		c.add("telegram.token, telegram.tokenFile", "both or neither given", "one of the two")
	}
	if t.Token != "" && !tokenForm.MatchString(t.Token) {
		c.add("telegram.token", "what is given", "a bot token in the form 123456:ABC-DEF")
	}
	if !isChat(string(t.ChatID)) {
		c.add("telegram.chatID", strconv.Quote(string(t.ChatID)), "the number of a chat, or @ and the name of a public channel")
	}
	switch {
	case !slices.Contains([]string{"", "MarkdownV2", "HTML"}, t.ParseMode):
		c.add("telegram.parseMode", strconv.Quote(t.ParseMode), "MarkdownV2, HTML or nothing")
	case t.ParseMode != "" && t.Template == "" && t.TemplateFile == "":
		// The summary has characters with a meaning in a parse mode, such as - and ( in MarkdownV2. Telegram would refuse each message.
		c.add("telegram.parseMode", strconv.Quote(t.ParseMode), "nothing without a template, because the summary is plain text")
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

func (b *Body) validate(c *fieldErrors, prefix string) {
	if b.Template != "" && b.TemplateFile != "" {
		c.add(prefix+"template, "+prefix+"templateFile", "both given", "one of the two")
	}
	if len(b.Template) > maxTemplateBytes {
		c.add(prefix+"template", fmt.Sprintf("%d bytes", len(b.Template)), fmt.Sprintf("%d at most", maxTemplateBytes))
	}
	for name, path := range b.SecretFiles {
		if name == "" || path == "" {
			c.add(fmt.Sprintf("%ssecretFiles[%q]", prefix, name), strconv.Quote(path), "a name, and the path of a file")
		}
	}
}

func (n *Connection) validate(c *fieldErrors, prefix string) {
	if n.Timeout < 0 || time.Duration(n.Timeout) > 10*time.Minute {
		c.add(prefix+"timeout", time.Duration(n.Timeout).String(), "more than 0, up to 10m")
	}
	if n.Retries != nil && (*n.Retries < 0 || *n.Retries > mostRetries) {
		c.add(prefix+"retries", strconv.Itoa(*n.Retries), fmt.Sprintf("0 to %d", mostRetries))
	}
	if n.Proxy != "" && n.Proxy != noProxy {
		if err := ValidateServerURL(n.Proxy, "http", "https", "socks5", "socks5h"); err != nil {
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

// checkURL returns an error if s is not the address of an HTTP server. The error does not quote parts that may be
// secret.
func checkURL(s string) error { return ValidateServerURL(s, "http", "https") }

// ValidateServerURL returns an error if s is not the address of a server with one of the schemes.
func ValidateServerURL(s string, schemes ...string) error {
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

// wantsMoment reports whether the receiver gets messages for a moment.
func (r *Receiver) wantsMoment(m Moment) bool {
	if len(r.Moments) == 0 {
		return slices.Contains(defaultMoments(), m)
	}
	return slices.Contains(r.Moments, m)
}

// connection returns the connection settings of the webhook or of the Telegram chat.
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
