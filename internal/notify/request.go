package notify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/template"
	"time"
	"unicode/utf16"
)

const (
	// standardWebhook and standardTelegram are the templates of receivers without one.
	standardWebhook  = "{{ toJson . }}"
	standardTelegram = "{{ .Summary }}"
	// maxTelegramUnits is the length limit of a Telegram message, in UTF-16 code units
	// (https://core.telegram.org/bots/api#sendmessage).
	maxTelegramUnits = 4096
)

// requestWriter builds the HTTP requests of one receiver. Only one goroutine uses it.
type requestWriter struct {
	r    *Receiver
	body *template.Template // nil if none was valid so far
	// broken is the reason for a nil body.
	broken error
	url    *template.Template // nil if the address is not a template
	// source and urlSource are the texts of the compiled templates.
	source, urlSource string
	secrets           secrets // what was read for the present request
	warn              func(msg string, args ...any)
	data              func(Message) any
}

// newRequestWriter reads the receiver's files and checks its templates with sample messages. If warnOnly is true, an
// invalid template causes a warning instead of an error, see [Options]. If a file cannot be read, the writer is returned with
// an [unreadableError]. data may be nil.
func newRequestWriter(r *Receiver, warn func(string, ...any), warnOnly bool, data func(Message) any) (*requestWriter, error) {
	if data == nil {
		data = useMessage
	}
	w := &requestWriter{r: r, warn: warn, data: data}
	text, err := w.readTemplate()
	if err == nil {
		w.body, err = w.compileAndTestTemplate(text, warnOnly)
	}
	if isUnreadable(err) {
		w.broken = err
		return w, w.secrets.redactError(err)
	}
	if err != nil && warnOnly {
		w.warn("template cannot be used: messages are lost", "err", w.secrets.redactError(err))
		w.broken = err
		return w, nil
	}
	if err != nil {
		return nil, w.secrets.redactError(err)
	}
	w.source = text
	_, err = w.newMessageRequest(NewSampleMessage(Detected, time.Now()))
	if _, fails := errors.AsType[template.ExecError](err); fails && warnOnly && !isUnreadable(err) {
		err = nil // compileAndTestTemplate has logged a warning
	}
	if w.url != nil && (err == nil || isUnreadable(err)) {
		if invalid := checkSampleOutputs(w.url, r, useMessage, checkURL); invalid != nil {
			err = invalid
		}
	}
	if err != nil && warnOnly && !isUnreadable(err) {
		w.warn("message cannot be made for a sample: such messages are lost", "err", w.secrets.redactError(err))
		err = nil
	}
	return w, w.secrets.redactError(err)
}

// fieldName returns the full name of a receiver's field, for messages.
func (w *requestWriter) fieldName(name string) string {
	if w.r.Telegram != nil {
		return "telegram." + name
	}
	return "webhook." + name
}

// readTemplate returns the text of the receiver's template.
func (w *requestWriter) readTemplate() (string, error) {
	b := w.r.body()
	switch {
	case b.TemplateFile != "":
		text, err := readFile(b.TemplateFile)
		if err != nil {
			return "", fmt.Errorf("%s: %w", w.fieldName("templateFile"), err)
		}
		return text, nil
	case b.Template != "":
		return b.Template, nil
	case w.r.Telegram != nil:
		return standardTelegram, nil
	}
	return standardWebhook, nil
}

func (w *requestWriter) compileAndTestTemplate(text string, lenient bool) (*template.Template, error) {
	name := w.fieldName("template")
	if w.r.body().TemplateFile != "" {
		name = w.fieldName("templateFile")
	}
	t, err := compileTemplate(name, text, w.readSecretFile)
	if err != nil {
		return nil, err
	}
	if err = checkSampleOutputs(t, w.r, w.data, nil); err != nil && lenient {
		w.warn("template cannot be filled in for a sample: such messages are lost", "err", w.secrets.redactError(err))
		return t, nil
	}
	return t, err
}

// reloadChangedTemplate reads the template file again and compiles it if it has changed. If the new template is
// invalid, the last valid one stays in use. An outdated text is better than no message.
func (w *requestWriter) reloadChangedTemplate() {
	if w.r.body().TemplateFile == "" {
		return
	}
	text, err := w.readTemplate()
	if err == nil && text == w.source && w.body != nil {
		return
	}
	t := w.body
	if err == nil {
		t, err = w.compileAndTestTemplate(text, w.body == nil)
	}
	if err != nil && w.body == nil {
		w.broken = err
		return
	}
	if err != nil {
		w.warn("changed template is not used: the last good one stands", "err", w.secrets.redactError(err))
		return
	}
	w.body, w.source = t, text
}

// readSecretFile returns the secret in a configured file. Templates call it as the function secret.
func (w *requestWriter) readSecretFile(name string) (string, error) {
	path, ok := w.r.body().SecretFiles[name]
	if !ok {
		return "", fmt.Errorf("secret %q: want a name in %s", name, w.fieldName("secretFiles"))
	}
	return w.rememberSecret(readSecret(path))
}

// rememberSecret records a secret that no error may contain. It returns its arguments.
func (w *requestWriter) rememberSecret(secret string, err error) (string, error) {
	w.secrets.add(secret)
	return secret, err
}

// newMessageRequest returns the HTTP request for a message. It reads every file again. Its errors may contain secrets,
// see redactError.
func (w *requestWriter) newMessageRequest(m Message) (*http.Request, error) {
	w.secrets = nil
	w.reloadChangedTemplate()
	if w.body == nil {
		return nil, w.broken
	}
	text, err := renderTemplate(w.body, w.data(m))
	if err != nil {
		return nil, err
	}
	if w.r.Telegram != nil {
		return w.newTelegramRequest(text)
	}
	return w.newWebhookRequest(m, text)
}

// newWebhookRequest returns the HTTP request of a webhook. The body ends with a line end, which Prometheus' text format
// requires.
func (w *requestWriter) newWebhookRequest(m Message, text string) (*http.Request, error) {
	h := w.r.Webhook
	address, err := w.webhookURL(m)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	method := h.Method
	if method == "" {
		method = http.MethodPost
	}
	req, err := w.newRequest(method, address, text)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if h.ContentType != "" {
		req.Header.Set("Content-Type", h.ContentType)
	}
	for name, value := range h.Headers {
		req.Header.Set(name, value)
		if isSensitiveHeader(name) {
			w.secrets.add(value)
		}
	}
	return req, w.addAuthorization(req)
}

// isSensitiveHeader reports whether a header with this name may contain a secret.
func isSensitiveHeader(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"auth", "token", "key", "secret", "password", "cookie"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// webhookURL returns the address of a webhook's request.
func (w *requestWriter) webhookURL(m Message) (string, error) {
	h := w.r.Webhook
	text, field := h.URL, "webhook.url"
	if h.URLFile != "" {
		var err error
		field = "webhook.urlFile"
		if text, err = w.rememberSecret(readSecret(h.URLFile)); err != nil {
			return "", fmt.Errorf("%s: %w", field, err)
		}
	}
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	if w.url == nil || text != w.urlSource {
		t, err := compileTemplate(field, text, w.readSecretFile)
		if err != nil {
			return "", err
		}
		w.url, w.urlSource = t, text
	}
	return renderTemplate(w.url, m)
}

func (w *requestWriter) newRequest(method, address, body string) (*http.Request, error) {
	if err := checkURL(address); err != nil {
		return nil, fmt.Errorf("%s: %w: want an http or https URL with a host", w.fieldName("url"), err)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	w.secrets.addURL(u)
	return http.NewRequest(method, address, strings.NewReader(body)) //nolint:noctx // its sender gives it one
}

// addAuthorization adds the configured credentials to the request. net/http itself handles a user name in the URL.
func (w *requestWriter) addAuthorization(req *http.Request) error {
	h := w.r.Webhook
	switch {
	case h.BearerTokenFile != "":
		token, err := w.rememberSecret(readSecret(h.BearerTokenFile))
		if err != nil {
			return fmt.Errorf("webhook.bearerTokenFile: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
	case h.BasicAuth != nil:
		password, err := w.rememberSecret(readSecret(h.BasicAuth.PasswordFile))
		if err != nil {
			return fmt.Errorf("webhook.basicAuth.passwordFile: %w", err)
		}
		req.SetBasicAuth(h.BasicAuth.Username, password)
	}
	return nil
}

// newTelegramRequest returns a sendMessage request of Telegram's Bot API
// (https://core.telegram.org/bots/api#sendmessage).
func (w *requestWriter) newTelegramRequest(text string) (*http.Request, error) {
	t := w.r.Telegram
	token, err := w.rememberSecret(t.Token, nil)
	if t.TokenFile != "" {
		token, err = w.rememberSecret(readSecret(t.TokenFile))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("telegram.tokenFile: %w", err)
	case !tokenForm.MatchString(token):
		return nil, errors.New("telegram.tokenFile: its content is not a bot token, want the form 123456:ABC-DEF")
	case strings.TrimSpace(text) == "":
		return nil, errors.New("telegram.template: its output is empty, which Telegram refuses")
	}
	base := t.URL
	if base == "" {
		base = defaultTelegramURL
	}
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(struct {
		ChatID    string `json:"chat_id"`
		Text      string `json:"text"`
		ParseMode string `json:"parse_mode,omitempty"`
	}{string(t.ChatID), clipForTelegram(text), t.ParseMode}); err != nil {
		return nil, err
	}
	req, err := w.newRequest(http.MethodPost, strings.TrimSuffix(base, "/")+"/bot"+token+"/sendMessage", body.String())
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// clipForTelegram clips a text to the length that Telegram accepts.
func clipForTelegram(text string) string {
	units := 0
	for i, r := range text {
		if units += utf16.RuneLen(r); units > maxTelegramUnits {
			return clipToUTF16Units(text[:i], maxTelegramUnits-1) + "…"
		}
	}
	return text
}

// clipToUTF16Units shortens a text to at most the given number of UTF-16 code units. It removes whole runes at the end.
func clipToUTF16Units(text string, most int) string {
	runes := []rune(text)
	for len(utf16.Encode(runes)) > most {
		runes = runes[:len(runes)-1]
	}
	return string(runes)
}
