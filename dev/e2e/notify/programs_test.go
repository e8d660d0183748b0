//go:build unix

// Package notify_test runs notifications against other projects' programs, and runs real agents that send them.
package notify_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/notify"
)

// freeAddress returns an unused loopback address.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := controlplane.ReserveFreeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// run runs a program until the test ends, and waits until it listens.
func run(t *testing.T, listens, path string, args ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, args...)
	// The test ends the whole process group, because the program may be a script's child.
	ended := make(chan error, 1)
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	setProcessGroup(cmd)
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; t.Failed() {
			t.Logf("%s ended with %v, output:\n%s", path, err, out.String())
		}
	})
	for deadline := time.Now().Add(testbed.TestTimeout); ; {
		conn, err := net.DialTimeout("tcp", listens, time.Second)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended: %v", path, err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen at %s: %v", path, listens, err)
		}
	}
}

// output collects a program's output.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// send sends a sample of a moment.
func send(t *testing.T, m notify.Moment, w notify.Webhook) error {
	t.Helper()
	none := 0
	w.Retries = &none
	n, err := notify.NewNotifier([]notify.Receiver{{Name: "peer", Webhook: &w}}, notify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testbed.TestContext(t)
	return n.SendToAllNow(ctx, notify.NewSampleMessage(m, time.Now()))
}

func get(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// pushed is the documentation's example for a Pushgateway.
const pushed = `# TYPE node_interruption gauge
node_interruption{type={{ toJson .Event.EventType }},moment={{ toJson .Moment }}} {{ ternary 0 1 (eq .Moment "over") }}
`

func TestPushgatewayAcceptsNotification(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	run(t, address, testbed.FindPeer(t, "prometheus-pushgateway"), "--web.listen-address="+address)
	w := notify.Webhook{
		Method: http.MethodPut, URL: "http://" + address + "/metrics/job/slipway/node/{{ .NodeName }}", ContentType: "text/plain",
		Body: notify.Body{Template: pushed},
	}
	node := notify.NewSampleMessage(notify.Detected, time.Now()).NodeName
	for m, value := range map[notify.Moment]int{notify.Detected: 1, notify.Ended: 0} {
		if err := send(t, m, w); err != nil {
			t.Fatal(err)
		}
		page := get(t, "http://"+address+"/metrics")
		want := fmt.Sprintf(`node_interruption{instance="",job="slipway",moment=%q,node=%q,type="Preempt"} %d`, m, node, value)
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	w.Template = "node_interruption is not a metric"
	if err := send(t, notify.Detected, w); err == nil || !strings.Contains(err.Error(), "answered 400") ||
		!strings.Contains(err.Error(), "text format parsing error") {
		t.Errorf("an invalid body: error %v", err)
	}
}

// squid runs Squid as a proxy for one user, and returns its address.
func squid(t *testing.T) string {
	t.Helper()
	program := testbed.FindPeer(t, "squid")
	// Squid reads some files after it has dropped root's permissions. Other users must be able to read them, but cannot
	// read those in t.TempDir.
	dir, err := os.MkdirTemp("", "slipway-squid-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(dir, "auth")
	script := "#!/bin/sh\nwhile read -r user password; do\n" +
		"  [ \"$user $password\" = 'ann pass-word' ] && echo OK || echo ERR\ndone\n"
	if err := os.WriteFile(helper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	root := ""
	if peers := filepath.Dir(program); filepath.Base(peers) == "peers" {
		root = filepath.Join(peers, "root")
	}
	address := freeAddress(t)
	config := filepath.Join(dir, "squid.conf")
	if err := os.WriteFile(config, []byte(strings.NewReplacer("ADDRESS", address, "ROOT", root, "HELPER", helper).Replace(`
http_port ADDRESS
pid_filename none
cache_log stdio:/dev/stderr
access_log none
cache deny all
coredump_dir none
pinger_enable off
mime_table ROOT/usr/share/squid/mime.conf
icon_directory ROOT/usr/share/squid/icons
error_directory ROOT/usr/share/squid/errors/templates
unlinkd_program ROOT/usr/lib/squid/unlinkd
logfile_daemon ROOT/usr/lib/squid/log_file_daemon
auth_param basic program HELPER
auth_param basic children 1
acl known proxy_auth REQUIRED
http_access allow known
http_access deny all
`)), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, address, program, "-N", "-f", config)
	return address
}

func TestNotificationPassesSquidWithBasicAuth(t *testing.T) {
	t.Parallel()
	proxy := squid(t)
	via := make(chan string, 16)
	take := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { via <- r.Header.Get("Via") })
	plain, encrypted := httptest.NewServer(take), httptest.NewTLSServer(take)
	t.Cleanup(plain.Close)
	t.Cleanup(encrypted.Close)
	password := filepath.Join(t.TempDir(), "password")
	for _, c := range []struct {
		name, receiver, password string
		ok                       bool
		via                      string // what the receiver sees of the proxy: nothing inside TLS
	}{
		{"a webhook", plain.URL, "pass-word", true, "squid"},
		{"a webhook behind TLS", encrypted.URL, "pass-word", true, ""},
		{"a wrong password", plain.URL, "guess-word", false, ""},
		{"a wrong password for a webhook behind TLS", encrypted.URL, "guess-word", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(password, []byte(c.password+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			w := notify.Webhook{URL: c.receiver}
			w.Proxy, w.ProxyPasswordFile = (&url.URL{Scheme: "http", User: url.User("ann"), Host: proxy}).String(), password
			w.CAFile = certificate(t, encrypted)
			err := send(t, notify.Detected, w)
			if (err == nil) != c.ok || (len(via) == 1) != c.ok {
				t.Fatalf("error %v, %d arrived", err, len(via))
			}
			if c.ok {
				if heard := <-via; strings.Contains(heard, "squid") != (c.via != "") {
					t.Errorf("header Via is %q, want %q", heard, c.via)
				}
			}
			if !c.ok && (!strings.Contains(err.Error(), "Proxy Authentication Required") || strings.Contains(err.Error(), "guess-word")) {
				t.Errorf("error %v", err)
			}
		})
	}
}
