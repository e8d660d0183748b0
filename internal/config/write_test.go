package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/notify"
)

func TestWrittenFileIsReadBackUnchanged(t *testing.T) {
	a := NewDefaultAgent()
	a.OnReboot, a.PollInterval, a.Acknowledge, a.GracePeriod = "cordon", 2*time.Second, false, 7
	a.TaintEffect, a.TaintKey = "NoSchedule", "example.com/{type}"
	a.Labels = map[string]string{"example.com/held": "true", "other": ""}
	a.NoticeSources = map[string]string{"here": "http://[::1]", "there": "http://10.0.0.1/?a=b,c", "program": `exec:/a "b"`}
	a.Notifications = []notify.Receiver{{Name: "chat", Webhook: &notify.Webhook{URL: "https://example.com/x"}}}
	raw, err := a.EncodeFile()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	var b Agent
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	b.RegisterFlags(fs)
	if err := fs.Parse([]string{"--config=" + path}); err != nil {
		t.Fatal(err)
	}
	if err := b.LoadFile(fs); err != nil {
		t.Fatalf("%v in\n%s", err, raw)
	}
	b.ConfigFile = ""
	if diff := cmp.Diff(a, b, cmpopts.IgnoreUnexported(Agent{})); diff != "" {
		t.Errorf("%s of\n%s", diff, raw)
	}
}

func TestDefaultAgentWritesEmptyFile(t *testing.T) {
	a := NewDefaultAgent()
	if raw, err := a.EncodeFile(); err != nil || len(raw) > 0 {
		t.Errorf("%q, %v", raw, err)
	}
}
