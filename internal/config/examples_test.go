package config

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/slipway-dev/slipway/internal/notify"
)

const exampleSecrets = "/etc/slipway/secrets/"

// readExamples returns the configuration files in docs/notifications.md, with secrets in files of the test.
func readExamples(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tls := httptest.NewTLSServer(nil)
	tls.Close()
	for name, content := range map[string]string{
		"slack-url": "https://hooks.slack.com/services/T/B/x", "teams-url": "https://prod.westeurope.logic.azure.com/workflows/x?sig=y",
		"pagerduty-key": "routing-key", "telegram-token": "123:abc", "hook-token": "token", "proxy-password": "password",
		"internal-ca.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var files []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		files = append(files, strings.ReplaceAll(block[1], exampleSecrets, dir+"/"))
	}
	return files
}

// sent is one request to a receiver.
type sent struct {
	method, url, contentType, body string
}

// recordingTransport records every request instead of sending it.
type recordingTransport struct {
	mu  sync.Mutex
	all []sent
}

func (w *recordingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, sent{r.Method, r.URL.String(), r.Header.Get("Content-Type"), string(body)})
	return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody, Request: r}, err
}

// sendExample sends every moment to the receiver of an example.
func sendExample(t *testing.T, file string) (notify.Receiver, map[notify.Moment]sent) {
	t.Helper()
	c, err := loadAgent(t, file)
	if err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	if len(c.Notifications) != 1 {
		t.Fatalf("%d receivers, want 1 in\n%s", len(c.Notifications), file)
	}
	got := map[notify.Moment]sent{}
	for _, m := range notify.Moments() {
		var w recordingTransport
		n, err := notify.NewNotifier(c.Notifications, notify.Options{Wrap: func(http.RoundTripper) http.RoundTripper { return &w }})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.SendToAllNow(t.Context(), notify.NewSampleMessage(m, time.Now())); err != nil {
			t.Fatal(err)
		}
		got[m] = w.all[0]
	}
	return c.Notifications[0], got
}

// getField returns the value at a path such as a.0.b in JSON.
func getField(t *testing.T, body, path string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for _, key := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			v = x[key[0]-'0']
		default:
			t.Fatalf("no %s in %s", path, body)
		}
	}
	return v
}

func TestDocumentedExamplesSendValidRequests(t *testing.T) {
	want := map[string]func(t *testing.T, m notify.Moment, s sent){
		"anything": func(t *testing.T, m notify.Moment, s sent) {
			expectField(t, s.body, "moment", string(m))
		},
		"slack": func(t *testing.T, m notify.Moment, s sent) {
			if text := fmt.Sprint(getField(t, s.body, "text")); !strings.Contains(text, string(m)) || !strings.Contains(text, "`aks-spot") {
				t.Errorf("text %q", text)
			}
		},
		"teams": func(t *testing.T, m notify.Moment, s sent) {
			expectField(t, s.body, "attachments.0.content.type", "AdaptiveCard")
			expectField(t, s.body, "attachments.0.content.body.0.text", "Preempt: "+string(m))
			expectField(t, s.body, "attachments.0.content.body.2.facts.2.value", "2")
		},
		"pagerduty": func(t *testing.T, m notify.Moment, s sent) {
			action := map[bool]string{true: "resolve", false: "trigger"}[m == notify.Ended]
			expectField(t, s.body, "event_action", action)
			expectField(t, s.body, "routing_key", "routing-key")
			expectField(t, s.body, "dedup_key", "aks-spot-12345678-vmss000000/602d9444-d2cd-49c7-8624-8643e7171297")
			expectField(t, s.body, "payload.severity", "error")
		},
		"alertmanager": func(t *testing.T, m notify.Moment, s sent) {
			expectField(t, s.body, "0.labels.node", "aks-spot-12345678-vmss000000")
			starts := fmt.Sprint(getField(t, s.body, "0.startsAt"))
			if _, err := time.Parse(time.RFC3339Nano, starts); err != nil {
				t.Error(err)
			}
			if ends := getField(t, s.body, "0.endsAt"); (ends != nil) != (m == notify.Ended) || ends != nil && fmt.Sprint(ends) <= starts {
				t.Errorf("starts at %s, ends at %v", starts, ends)
			}
		},
		"pushgateway": func(t *testing.T, m notify.Moment, s sent) {
			parser := expfmt.NewTextParser(model.LegacyValidation)
			families, err := parser.TextToMetricFamilies(strings.NewReader(s.body))
			if err != nil {
				t.Fatal(err)
			}
			value := families["node_interruption"].Metric[0].GetGauge().GetValue()
			if s.method != "PUT" || !strings.HasSuffix(s.url, "/node/aks-spot-12345678-vmss000000") || (value == 0) != (m == notify.Ended) {
				t.Errorf("%s %s: %v", s.method, s.url, value)
			}
		},
		"telegram": func(t *testing.T, m notify.Moment, s sent) {
			expectField(t, s.body, "chat_id", "-1001234567890")
			if text := fmt.Sprint(getField(t, s.body, "text")); !strings.Contains(text, string(m)) {
				t.Errorf("text %q", text)
			}
		},
		"own": func(t *testing.T, m notify.Moment, s sent) {
			expectField(t, s.body, "moment", string(m))
		},
	}
	var seen []string
	for _, file := range readExamples(t) {
		r, got := sendExample(t, file)
		check, ok := want[r.Name]
		if !ok {
			t.Errorf("nothing is known of the example %q", r.Name)
			continue
		}
		seen = append(seen, r.Name)
		for m, s := range got {
			t.Run(r.Name+" "+string(m), func(t *testing.T) { check(t, m, s) })
		}
	}
	if len(seen) != len(want) || len(slices.Compact(slices.Sorted(slices.Values(seen)))) != len(want) {
		t.Errorf("examples %v, want one of each", seen)
	}
}

func expectField(t *testing.T, body, path, want string) {
	t.Helper()
	if got := getField(t, body, path); got != want {
		t.Errorf("%s: %v, want %s", path, got, want)
	}
}

// TestDocumentedAgentFilesAreRead checks that each example on the page is a file of the agent. An overlay is none.
func TestDocumentedAgentFilesAreRead(t *testing.T) {
	page, err := os.ReadFile("../../docs/agent-howto.md")
	if err != nil {
		t.Fatal(err)
	}
	conditions := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(block[1], "resources:") {
			continue
		}
		c, err := loadAgent(t, "nodeName: node\n"+block[1])
		if err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
		conditions += len(c.Conditions)
	}
	if conditions == 0 {
		t.Error("the page has no conditions")
	}
}
