package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// runSlipway runs the command with the arguments and returns its output.
func runSlipway(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	cmd := newRootCommand()
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

func TestNotifyTestSendsASample(t *testing.T) {
	var mu sync.Mutex
	var got []string
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.URL.Path+" "+strings.TrimSpace(string(body)))
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "agent.yaml")
	content := `
pollInterval: 2s
notifications:
- {name: one, moments: [over], webhook: {url: "` + s.URL + `/one", template: "{{ .Moment }} {{ .Test }}", retries: 0}}
- {name: two, webhook: {url: "` + s.URL + `/two", template: "{{ .Event.EventType }}", retries: 0}}
`
	must.NoError(t, os.WriteFile(file, []byte(content), 0o600))

	out, err := runSlipway(t, "notify", "test", "--config", file)
	slices.Sort(got)
	if err != nil || out != "detected: sent to one, two\n" || !slices.Equal(got, []string{"/one detected true", "/two Preempt"}) {
		t.Errorf("%q, %v, %v", out, err, got)
	}
	out, err = runSlipway(t, "notify", "test", "--config", file, "-o", "json")
	if err != nil || out != "{\n  \"moment\": \"detected\",\n  \"receivers\": [\n    \"one\",\n    \"two\"\n  ]\n}\n" {
		t.Errorf("%q, %v", out, err)
	}
	got = nil
	out, err = runSlipway(t, "notify", "test", "--config", file, "--receiver=one", "--moment=drained")
	if err != nil || out != "drained: sent to one\n" || !slices.Equal(got, []string{"/one drained true"}) {
		t.Errorf("%q, %v, %v", out, err, got)
	}
	status = http.StatusForbidden
	if out, err := runSlipway(t, "notify", "test", "--config", file, "--receiver=two"); err == nil || out != "" ||
		!strings.Contains(err.Error(), "receiver two: answered 403 Forbidden") {
		t.Errorf("%q, %v", out, err)
	}

	for _, c := range []struct{ flag, want string }{
		{"--moment=never", `--moment: "never": want detected, blocked`},
		{"--receiver=three", `--receiver: "three": want one, two`},
		{"--config=/nonexistent", "--config: open /nonexistent"},
	} {
		if _, err := runSlipway(t, "notify", "test", "--config", file, c.flag); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.flag, err, c.want)
		}
	}
}
