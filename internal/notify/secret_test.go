package notify

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestW20NoSecretIsInLogsErrorsOrMetrics(t *testing.T) {
	const secret = "hunter2-hunter2"
	// echo repeats all that it received in its refusal.
	echo := newInbox(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, r.URL.RequestURI()+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Api-Key")+" "+r.Header.Get("X-Team"))
	})
	address := strings.TrimPrefix(echo.URL, "http://")
	const nowhere = "127.0.0.1:1"
	hook := func(change func(*Webhook)) Receiver {
		r := webhook(echo.URL)
		change(r.Webhook)
		return r
	}
	for name, r := range map[string]Receiver{
		"in the path":                hook(func(w *Webhook) { w.URL += "/services/" + secret }),
		"in the query":               hook(func(w *Webhook) { w.URL += "?key=" + secret }),
		"in a file with the address": hook(func(w *Webhook) { w.URL, w.URLFile = "", writeTempFile(t, echo.URL+"/"+secret) }),
		"as the address's password":  hook(func(w *Webhook) { w.URL = "http://ann:" + secret + "@" + address }),
		"at a closed port":           hook(func(w *Webhook) { w.URL = "http://ann:" + secret + "@" + nowhere + "/" + secret }),
		"as a bearer token":          hook(func(w *Webhook) { w.BearerTokenFile = writeTempFile(t, secret) }),
		"as a password":              hook(func(w *Webhook) { w.BasicAuth = &BasicAuth{"ann", writeTempFile(t, secret)} }),
		"in a header":                hook(func(w *Webhook) { w.Headers = map[string]string{"X-Api-Key": secret} }),
		"as the password of a proxy": hook(func(w *Webhook) { w.Proxy = "http://ann:" + secret + "@" + nowhere }),
		"in a template": hook(func(w *Webhook) {
			w.SecretFiles = map[string]string{"k": writeTempFile(t, secret)}
			w.URL += `/{{ secret "k" }}`
		}),
		"in a failing template": hook(func(w *Webhook) {
			w.SecretFiles = map[string]string{"k": writeTempFile(t, secret)}
			w.Template = `{{ if not .Test }}{{ fail (secret "k") }}{{ end }}`
		}),
		"in Telegram's address": {Name: "chat", Telegram: &Telegram{URL: echo.URL, Token: "123:" + secret, ChatID: "1"}},
		"in Telegram's token file": {Name: "chat", Telegram: &Telegram{
			URL: "http://" + nowhere, TokenFile: writeTempFile(t, "123:"+secret), ChatID: "1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			none := 0
			if r.Webhook != nil {
				r.Webhook.Retries = &none
			} else {
				r.Telegram.Retries = &none
			}
			var log logged
			registry := observe.NewRegistry()
			n := newNotifier(t, Options{Log: log.logger(), Metrics: registry}, r)
			m := NewSampleMessage(Detected, time.Now())
			m.Test = false
			err := n.SendToAllNow(t.Context(), m)
			if err == nil {
				t.Fatal("no failure")
			}
			n.Enqueue(m)
			w := n.workers[0]
			w.trySend(t.Context(), w.queue.markFirstBusy())
			for what, text := range map[string]string{"error": err.Error(), "log": log.String(), "metrics": exposition(registry)} {
				if strings.Contains(text, secret) || strings.Contains(text, "aHVudGVyMi1odW50ZXIy") {
					t.Errorf("%s: %s", what, text)
				}
			}
			if !strings.Contains(log.String(), "notification") {
				t.Errorf("nothing was logged: %s", log.String())
			}
		})
	}
}

func TestBadConfigurationIsRefusedWithoutItsSecrets(t *testing.T) {
	const secret = "hunter2-hunter2"
	for name, r := range map[string]Receiver{
		"a bad address":           {Name: "x", Webhook: &Webhook{URL: "htp://ann:" + secret + "@host/" + secret}},
		"no address at all":       {Name: "x", Webhook: &Webhook{URL: "http://ann:" + secret + "@:80:90/%zz" + secret}},
		"a bad proxy":             {Name: "x", Webhook: &Webhook{URL: "http://h", Connection: Connection{Proxy: "socks://" + secret + "@h"}}},
		"a bad token":             {Name: "x", Telegram: &Telegram{Token: secret, ChatID: "1"}},
		"a bad token in a file":   {Name: "x", Telegram: &Telegram{TokenFile: writeTempFile(t, secret), ChatID: "1"}},
		"a bad address in a file": {Name: "x", Webhook: &Webhook{URLFile: writeTempFile(t, "ftp://"+secret)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewNotifier([]Receiver{r}, Options{})
			if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "want ") &&
				!strings.Contains(err.Error(), "what is in it is not") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestRotatedFilesAreReadForEveryRequest(t *testing.T) {
	b := newInbox(t, nil)
	r := webhook(b.URL)
	r.Webhook.BearerTokenFile = writeTempFile(t, "first-token")
	n := newNotifier(t, Options{}, r)
	for _, token := range []string{"first-token", "second-token"} {
		overwrite(t, r.Webhook.BearerTokenFile, token)
		must.NoError(t, n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now())))
		if got := b.all(); got[len(got)-1].header.Get("Authorization") != "Bearer "+token {
			t.Errorf("%s, want %s", got[len(got)-1].header.Get("Authorization"), token)
		}
	}
}
