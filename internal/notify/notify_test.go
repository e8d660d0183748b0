package notify

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestWebhookIsSentAsConfigured(t *testing.T) {
	b := newInbox(t, nil)
	r := webhook(b.URL + "/metrics/job/slipway/instance/{{ .NodeName }}?a=b")
	r.Webhook.Method, r.Webhook.ContentType = http.MethodPut, "text/plain"
	r.Webhook.Headers = map[string]string{"x-team": "blue"}
	r.Webhook.BearerTokenFile = writeTempFile(t, "s3cr3t-token\n")
	must.NoError(t, sendOnce(t, r))
	got := b.all()
	if len(got) != 1 {
		t.Fatalf("%d requests, want 1", len(got))
	}
	node := NewSampleMessage(Detected, time.Now()).NodeName
	want := received{method: "PUT", path: "/metrics/job/slipway/instance/" + node + "?a=b", body: "detected " + node + "\n"}
	if got[0].method != want.method || got[0].path != want.path || got[0].body != want.body {
		t.Errorf("%+v, want %+v", got[0], want)
	}
	for name, value := range map[string]string{
		"Content-Type": "text/plain", "X-Team": "blue", "Authorization": "Bearer s3cr3t-token", "User-Agent": "slipway/test",
	} {
		if got[0].header.Get(name) != value {
			t.Errorf("header %s: %q, want %q", name, got[0].header.Get(name), value)
		}
	}
}

func TestWebhookWithoutATemplateGetsJSON(t *testing.T) {
	b := newInbox(t, nil)
	must.NoError(t, sendOnce(t, Receiver{Name: "hook", Webhook: &Webhook{URL: b.URL}}))
	got := b.all()[0]
	var m Message
	if err := json.Unmarshal([]byte(got.body), &m); err != nil {
		t.Fatalf("%v in %s", err, got.body)
	}
	if m.NodeName == "" || len(m.Pods) != 2 || m.Pods[1].Owner != "StatefulSet/orders-db" || m.SecondsLeft != 30 || !m.Test {
		t.Errorf("%+v", m)
	}
	if got.method != "POST" || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s, %s", got.method, got.header.Get("Content-Type"))
	}
}

func TestBasicAuthComesFromFileOrAddress(t *testing.T) {
	var user, password string
	b := newInbox(t, func(_ int, _ http.ResponseWriter, r *http.Request) { user, password, _ = r.BasicAuth() })
	r := webhook(b.URL)
	r.Webhook.BasicAuth = &BasicAuth{Username: "ann", PasswordFile: writeTempFile(t, "from-file")}
	if err := sendOnce(t, r); err != nil || user != "ann" || password != "from-file" {
		t.Errorf("%q %q, %v", user, password, err)
	}
	r = webhook(strings.Replace(b.URL, "http://", "http://bob:in-address@", 1))
	if err := sendOnce(t, r); err != nil || user != "bob" || password != "in-address" {
		t.Errorf("%q %q, %v", user, password, err)
	}
}

func TestTelegramGetsPlainTextOrItsParseMode(t *testing.T) {
	b := newInbox(t, func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ok":true}`) })
	r := Receiver{Name: "chat", Telegram: &Telegram{
		URL: b.URL, TokenFile: writeTempFile(t, "123:abc-DEF\n"), ChatID: "-1001", ParseMode: "HTML",
		Body: Body{Template: `<b>{{ .Event.EventType }}</b> & {{ .NodeName }}{{ repeat 5000 "x" }}`},
	}}
	must.NoError(t, sendOnce(t, r))
	got := b.all()[0]
	var sent map[string]string
	must.NoError(t, json.Unmarshal([]byte(got.body), &sent))
	if got.path != "/bot123:abc-DEF/sendMessage" || sent["chat_id"] != "-1001" || sent["parse_mode"] != "HTML" ||
		!strings.HasPrefix(sent["text"], "<b>Preempt</b> & aks-") || len([]rune(sent["text"])) != maxTelegramUnits {
		t.Errorf("%s %v", got.path, sent)
	}
}

func TestProxyWithBasicAuthIsUsed(t *testing.T) {
	b := newInbox(t, nil)
	var passed []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// "ann:pass-word" in base64.
		if r.Header.Get("Proxy-Authorization") != "Basic YW5uOnBhc3Mtd29yZA==" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		passed = append(passed, r.URL.String())
		r.RequestURI = ""
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		w.WriteHeader(resp.StatusCode)
	}))
	t.Cleanup(proxy.Close)
	for _, c := range []struct {
		name, proxy, file string
		ok                bool
	}{
		{"password in the address", "http://ann:pass-word@", "", true},
		{"password in a file", "http://ann@", "pass-word\n", true},
		{"wrong password", "http://ann:guess@", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := webhook(b.URL)
			r.Webhook.Proxy = strings.Replace(proxy.URL, "http://", c.proxy, 1)
			if c.file != "" {
				r.Webhook.ProxyPasswordFile = writeTempFile(t, c.file)
			}
			err := sendOnce(t, r)
			if (err == nil) != c.ok {
				t.Fatalf("error %v", err)
			}
			if !c.ok && (!strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "guess")) {
				t.Errorf("error %v", err)
			}
		})
	}
	if len(passed) != 2 || len(b.all()) != 2 {
		t.Errorf("the proxy let %d through, and the receiver got %d: want 2 and 2", len(passed), len(b.all()))
	}
}

// startSOCKS starts a SOCKS5 proxy (RFC 1928) without authentication.
func startSOCKS(t *testing.T) (address string, passed *atomic.Int32) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	passed = new(atomic.Int32)
	serve := func(from net.Conn) error {
		defer func() { _ = from.Close() }()
		var head [4]byte
		if _, err := io.ReadFull(from, head[:3]); err != nil { // version 5, one method, without authentication
			return err
		}
		if _, err := from.Write([]byte{5, 0}); err != nil {
			return err
		}
		if _, err := io.ReadFull(from, head[:]); err != nil { // version 5, connect, 0, an IPv4 address
			return err
		}
		var to [6]byte
		if _, err := io.ReadFull(from, to[:]); err != nil {
			return err
		}
		onward, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte(to[:4])), uint16(to[4])<<8|uint16(to[5])).String())
		if err != nil {
			return err
		}
		defer func() { _ = onward.Close() }()
		passed.Add(1)
		if _, err := from.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
			return err
		}
		go func() { _, _ = io.Copy(onward, from) }()
		_, err = io.Copy(from, onward)
		return err
	}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = serve(from) }()
		}
	}()
	return listener.Addr().String(), passed
}

func TestSOCKSProxyIsUsed(t *testing.T) {
	b := newInbox(t, nil)
	for _, scheme := range []string{"socks5", "socks5h"} {
		address, passed := startSOCKS(t)
		r := Receiver{Name: "hook", Webhook: &Webhook{URL: b.URL, Connection: Connection{Proxy: scheme + "://" + address}}}
		if err := sendOnce(t, r); err != nil || passed.Load() != 1 {
			t.Errorf("%s: %v, %d connections through the proxy", scheme, err, passed.Load())
		}
	}
}
