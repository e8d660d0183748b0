package notify

import (
	"strings"
	"testing"
	"time"
)

func TestI10BadReceiversAreRefusedByFieldAndRange(t *testing.T) {
	hook := func(change func(*Webhook)) Receiver {
		r := webhook("http://h")
		change(r.Webhook)
		return r
	}
	chat := func(change func(*Telegram)) Receiver {
		t := &Telegram{Token: "123:abc", ChatID: "-5"}
		change(t)
		return Receiver{Name: "chat", Telegram: t}
	}
	many := 21
	for _, c := range []struct {
		r    Receiver
		want []string
	}{
		{Receiver{}, []string{`name: ""`, "webhook, telegram: neither given"}},
		{Receiver{Name: "a b", Webhook: &Webhook{URL: "http://h"}}, []string{`name: "a b": want 1 to 63`}},
		{Receiver{Name: "a", Webhook: &Webhook{URL: "http://h"}, Telegram: &Telegram{}}, []string{"both given"}},
		{Receiver{Name: "a", Moments: []Moment{"soon", Ended, Ended}, Webhook: &Webhook{URL: "http://h"}}, []string{
			`moments[0]: "soon": want detected, blocked, drained, deadline-passed or over`, `moments[2]: "over": want each moment once`,
		}},
		{hook(func(w *Webhook) { w.URL = "" }), []string{"webhook.url, webhook.urlFile: both or neither"}},
		{hook(func(w *Webhook) { w.Method = "post" }), []string{`webhook.method: "post": want POST, PUT, PATCH, GET or DELETE`}},
		{hook(func(w *Webhook) { w.ContentType = "a\nb" }), []string{"webhook.contentType"}},
		{hook(func(w *Webhook) { w.Headers = map[string]string{"a b": "c"} }), []string{`webhook.headers["a b"]`}},
		{hook(func(w *Webhook) { w.Headers = map[string]string{"a": "b\r\nc"} }), []string{`webhook.headers["a"]: its value has a control character`}},
		{hook(func(w *Webhook) { w.Headers = map[string]string{"content-type": "b"} }), []string{"it comes from contentType"}},
		{hook(func(w *Webhook) { w.BearerTokenFile, w.BasicAuth = "f", &BasicAuth{"u", "p"} }), []string{"webhook.basicAuth, webhook.bearerTokenFile: both"}},
		{hook(func(w *Webhook) { w.BasicAuth = &BasicAuth{"a:b", ""} }), []string{`username: "a:b"`, "passwordFile"}},
		{hook(func(w *Webhook) { w.TemplateFile = "f" }), []string{"webhook.template, webhook.templateFile: both"}},
		{hook(func(w *Webhook) { w.Template = strings.Repeat("x", maxTemplateBytes+1) }), []string{"webhook.template: 262145 bytes"}},
		{hook(func(w *Webhook) { w.SecretFiles = map[string]string{"": "f"} }), []string{`webhook.secretFiles[""]`}},
		{hook(func(w *Webhook) { w.Timeout = Duration(-time.Second) }), []string{"webhook.timeout: -1s: want more than 0, up to 10m"}},
		{hook(func(w *Webhook) { w.Retries = &many }), []string{"webhook.retries: 21: want 0 to 20"}},
		{hook(func(w *Webhook) { w.Proxy = "ftp://h" }), []string{`webhook.proxy: scheme "ftp": want an http, https, socks5 or socks5h URL`}},
		{hook(func(w *Webhook) { w.Proxy, w.ProxyPasswordFile = "http://h", "f" }), []string{"webhook.proxyPasswordFile", "a user's name"}},
		{hook(func(w *Webhook) { w.CAFile, w.InsecureSkipVerify = "f", true }), []string{"webhook.caFile, webhook.insecureSkipVerify: both"}},
		{chat(func(t *Telegram) { t.Token = "" }), []string{"telegram.token, telegram.tokenFile: both or neither"}},
		{chat(func(t *Telegram) { t.ChatID = "12x" }), []string{`telegram.chatID: "12x": want the number of a chat`}},
		{chat(func(t *Telegram) { t.ParseMode = "html" }), []string{`telegram.parseMode: "html": want MarkdownV2, HTML or nothing`}},
		{chat(func(t *Telegram) { t.ParseMode = "MarkdownV2" }), []string{`telegram.parseMode: "MarkdownV2": want nothing without a template`}},
		{chat(func(t *Telegram) { t.ParseMode = "HTML" }), []string{`telegram.parseMode: "HTML": want nothing without a template`}},
		{chat(func(t *Telegram) { t.URL = "api.telegram.org" }), []string{`telegram.url: scheme ""`}},
	} {
		err := c.r.Validate()
		if err == nil {
			t.Errorf("%+v: no error, want %q", c.r, c.want)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q, want it to contain %q", err, want)
			}
		}
	}
	for _, good := range []Receiver{
		webhook("http://h"), chat(func(t *Telegram) { t.ChatID = "@channel" }),
		chat(func(t *Telegram) { t.ParseMode, t.Template = "HTML", "{{ html .Summary }}" }),
		chat(func(t *Telegram) { t.ParseMode, t.TemplateFile = "MarkdownV2", "f" }),
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%s: %v", good.Name, err)
		}
	}
}

func TestDuplicateReceiverNameIsRefused(t *testing.T) {
	_, err := NewNotifier([]Receiver{webhook("http://h"), webhook("http://h")}, Options{})
	if err == nil || !strings.Contains(err.Error(), `notifications[1].name: "hook": want another`) {
		t.Errorf("error %v", err)
	}
}
