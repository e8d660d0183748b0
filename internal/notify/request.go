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
	// standardWebhook and standardTelegram are the templates of receivers that have none.
	standardWebhook  = "{{ toJson . }}"
	standardTelegram = "{{ .Summary }}"
	// mostTelegram is the length of the longest text that Telegram takes, in UTF-16 code units
	// (https://core.telegram.org/bots/api#sendmessage).
	mostTelegram = 4096
)

// writer makes the requests of one receiver. It is used by one goroutine.
type writer struct {
	r    *Receiver
	body *template.Template // nil when none could be used so far
	// broken says why there is none.
	broken error
	url    *template.Template // nil when the address is no template
	// source and urlSource are what they were compiled from.
	source, urlSource string
	secrets           secrets // what was read for the request in the making
	warn              func(msg string, args ...any)
}

// newWriter reads what the receiver's files hold and checks its templates against samples; see Options.WarnOfTemplates for
// lenient.
func newWriter(r *Receiver, warn func(string, ...any), lenient bool) (*writer, error) {
	w := &writer{r: r, warn: warn}
	text, err := w.read()
	if err == nil {
		w.body, err = w.checked(text, lenient)
	}
	if err != nil && lenient {
		w.warn("template cannot be used: messages are lost", "err", w.secrets.clean(err))
		w.broken = err
		return w, nil
	}
	if err != nil {
		return nil, w.secrets.clean(err)
	}
	w.source = text
	_, err = w.request(Sample(Detected, time.Now()))
	if _, fails := errors.AsType[template.ExecError](err); fails && lenient {
		err = nil // checked has warned of it
	}
	if err == nil && w.url != nil {
		err = check(w.url, r, checkURL)
	}
	if err != nil && lenient {
		w.warn("message cannot be made for a sample: such messages are lost", "err", w.secrets.clean(err))
		err = nil
	}
	return w, w.secrets.clean(err)
}

// field is the name of one of the receiver's fields.
func (w *writer) field(name string) string {
	if w.r.Telegram != nil {
		return "telegram." + name
	}
	return "webhook." + name
}

// read gives the template's text.
func (w *writer) read() (string, error) {
	b := w.r.body()
	switch {
	case b.TemplateFile != "":
		text, err := readFile(b.TemplateFile)
		if err != nil {
			return "", fmt.Errorf("%s: %w", w.field("templateFile"), err)
		}
		return text, nil
	case b.Template != "":
		return b.Template, nil
	case w.r.Telegram != nil:
		return standardTelegram, nil
	}
	return standardWebhook, nil
}

func (w *writer) checked(text string, lenient bool) (*template.Template, error) {
	name := w.field("template")
	if w.r.body().TemplateFile != "" {
		name = w.field("templateFile")
	}
	t, err := compile(name, text, w.secret)
	if err != nil {
		return nil, err
	}
	if err = check(t, w.r, nil); err != nil && lenient {
		w.warn("template cannot be filled in for a sample: such messages are lost", "err", w.secrets.clean(err))
		return t, nil
	}
	return t, err
}

// refresh takes up a template file that has changed. While it is bad the last good one stands: whoever must be told is
// told in old words rather than not at all.
func (w *writer) refresh() {
	if w.r.body().TemplateFile == "" {
		return
	}
	text, err := w.read()
	if err == nil && text == w.source && w.body != nil {
		return
	}
	t := w.body
	if err == nil {
		t, err = w.checked(text, w.body == nil)
	}
	if err != nil && w.body == nil {
		w.broken = err
		return
	}
	if err != nil {
		w.warn("changed template is not used: the last good one stands", "err", w.secrets.clean(err))
		return
	}
	w.body, w.source = t, text
}

// secret is the template function of that name.
func (w *writer) secret(name string) (string, error) {
	path, ok := w.r.body().SecretFiles[name]
	if !ok {
		return "", fmt.Errorf("secret %q: want a name in %s", name, w.field("secretFiles"))
	}
	return w.keep(readSecret(path))
}

// keep remembers what must not be told.
func (w *writer) keep(secret string, err error) (string, error) {
	w.secrets.add(secret)
	return secret, err
}

// request makes the request for a message, reading every file anew. Errors may hold secrets: see clean.
func (w *writer) request(m Message) (*http.Request, error) {
	w.secrets = nil
	w.refresh()
	if w.body == nil {
		return nil, w.broken
	}
	text, err := render(w.body, m)
	if err != nil {
		return nil, err
	}
	if w.r.Telegram != nil {
		return w.telegram(text)
	}
	return w.webhook(m, text)
}

// webhook makes the request of a webhook. The body ends with a line end, which Prometheus' text format asks for.
func (w *writer) webhook(m Message, text string) (*http.Request, error) {
	h := w.r.Webhook
	address, err := w.address(m)
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
		if sensitive(name) {
			w.secrets.add(value)
		}
	}
	return req, w.authorize(req)
}

// sensitive reports whether a header of that name is likely to hold a secret.
func sensitive(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"auth", "token", "key", "secret", "password", "cookie"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// address is where a webhook's request goes.
func (w *writer) address(m Message) (string, error) {
	h := w.r.Webhook
	text, field := h.URL, "webhook.url"
	if h.URLFile != "" {
		var err error
		field = "webhook.urlFile"
		if text, err = w.keep(readSecret(h.URLFile)); err != nil {
			return "", fmt.Errorf("%s: %w", field, err)
		}
	}
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	if w.url == nil || text != w.urlSource {
		t, err := compile(field, text, w.secret)
		if err != nil {
			return "", err
		}
		w.url, w.urlSource = t, text
	}
	return render(w.url, m)
}

func (w *writer) newRequest(method, address, body string) (*http.Request, error) {
	if err := checkURL(address); err != nil {
		return nil, fmt.Errorf("%s: %w: want an http or https URL with a host", w.field("url"), err)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	w.secrets.addURL(u)
	return http.NewRequest(method, address, strings.NewReader(body)) //nolint:noctx // its sender gives it one
}

// authorize says who asks. A user in the URL is one way, which net/http sees to.
func (w *writer) authorize(req *http.Request) error {
	h := w.r.Webhook
	switch {
	case h.BearerTokenFile != "":
		token, err := w.keep(readSecret(h.BearerTokenFile))
		if err != nil {
			return fmt.Errorf("webhook.bearerTokenFile: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
	case h.BasicAuth != nil:
		password, err := w.keep(readSecret(h.BasicAuth.PasswordFile))
		if err != nil {
			return fmt.Errorf("webhook.basicAuth.passwordFile: %w", err)
		}
		req.SetBasicAuth(h.BasicAuth.Username, password)
	}
	return nil
}

// telegram makes a sendMessage of Telegram's Bot API (https://core.telegram.org/bots/api#sendmessage).
func (w *writer) telegram(text string) (*http.Request, error) {
	t := w.r.Telegram
	token, err := w.keep(t.Token, nil)
	if t.TokenFile != "" {
		token, err = w.keep(readSecret(t.TokenFile))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("telegram.tokenFile: %w", err)
	case !tokenForm.MatchString(token):
		return nil, errors.New("telegram.tokenFile: what is in it is not a bot's token as Telegram writes it, 123456:ABC-DEF")
	case strings.TrimSpace(text) == "":
		return nil, errors.New("telegram.template: its output is empty, which Telegram does not take")
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
	}{string(t.ChatID), shorten(text), t.ParseMode}); err != nil {
		return nil, err
	}
	req, err := w.newRequest(http.MethodPost, strings.TrimSuffix(base, "/")+"/bot"+token+"/sendMessage", body.String())
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// shorten cuts a text to what Telegram takes.
func shorten(text string) string {
	units := 0
	for i, r := range text {
		if units += utf16.RuneLen(r); units > mostTelegram {
			return shortenTo(text[:i], mostTelegram-1) + "…"
		}
	}
	return text
}

// shortenTo takes runes from the end of a text until it has so many UTF-16 code units at most.
func shortenTo(text string, most int) string {
	runes := []rune(text)
	for len(utf16.Encode(runes)) > most {
		runes = runes[:len(runes)-1]
	}
	return string(runes)
}
