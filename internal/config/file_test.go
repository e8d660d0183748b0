package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/notify"
)

// loadAgent parses flags and a file with this content.
func loadAgent(t testing.TB, content string, args ...string) (Agent, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	var c Agent
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.RegisterFlags(fs)
	fs.Bool("version", false, "a flag of the command itself")
	if err := fs.Parse(append(args, "--config="+path)); err != nil {
		t.Fatal(err)
	}
	return c, c.LoadFile(fs)
}

func TestFlagsOverrideFileAndFileOverridesDefaults(t *testing.T) {
	t.Setenv("NODE_NAME", "from-environment")
	c, err := loadAgent(t, `
nodeName: from-file
pollInterval: 3s
requestTimeout: 4s
acknowledge: false
dryRun: "true"
notifications:
- name: chat
  moments: [drained, over]
  telegram: {tokenFile: /secrets/token, chatID: -100123, timeout: 7s, retries: 0}
- name: hook
  webhook:
    url: https://example.com/hook
    headers: {X-Team: blue}
    template: "{{ .NodeName }}"
`, "--poll-interval=2s")
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeName != "from-file" || c.PollInterval != 2*time.Second || c.RequestTimeout != 4*time.Second || c.Acknowledge ||
		!c.DryRun || c.LogLevel != "info" {
		t.Errorf("%+v", c)
	}
	if len(c.Notifications) != 2 {
		t.Fatalf("%+v", c.Notifications)
	}
	chat, hook := c.Notifications[0], c.Notifications[1]
	if chat.Name != "chat" || chat.Moments[1] != notify.Ended || chat.Telegram.ChatID != "-100123" ||
		time.Duration(chat.Telegram.Timeout) != 7*time.Second || *chat.Telegram.Retries != 0 {
		t.Errorf("%+v %+v", chat, chat.Telegram)
	}
	if hook.Webhook.Headers["X-Team"] != "blue" || hook.Webhook.Template != "{{ .NodeName }}" {
		t.Errorf("%+v", hook.Webhook)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// TestPairsAreKeysOrText reads flags with several pairs, from a file for the chart and from one with the texts of the flags.
func TestPairsAreKeysOrText(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          Agent
	}{
		{"one pair", "label: {slipway.dev/going: true}", Agent{Labels: map[string]string{"slipway.dev/going": "true"}}},
		{"text", "label: a=b,c=d", Agent{Labels: map[string]string{"a": "b", "c": "d"}}},
		{"no pairs", "label: {}", Agent{}},
		{"commas and equals signs", "noticeSource: {alibaba: 'http://h/?a=b,c', other: 'exec:/a,b'}", Agent{NoticeSources: map[string]string{
			"alibaba": "http://h/?a=b,c", "other": "exec:/a,b",
		}}},
		{"quotes", `noticeSource: {a: 'exec:/b "c"'}`, Agent{NoticeSources: map[string]string{"a": `exec:/b "c"`}}},
		{"types", "onUserInitiated: {reboot: acknowledge, redeploy: cordon}", Agent{OnUserInitiated: map[string]string{
			"reboot": "acknowledge", "redeploy": "cordon",
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := loadAgent(t, c.content)
			if err != nil {
				t.Fatal(err)
			}
			for _, pair := range [][2]map[string]string{
				{c.want.Labels, got.Labels}, {c.want.NoticeSources, got.NoticeSources}, {c.want.OnUserInitiated, got.OnUserInitiated},
			} {
				if !maps.Equal(pair[0], pair[1]) {
					t.Errorf("%v, want %v", pair[1], pair[0])
				}
			}
		})
	}
	a, err := loadAgent(t, "label: {a: b}", "--label=c=d")
	if err != nil || !maps.Equal(a.Labels, map[string]string{"c": "d"}) {
		t.Errorf("%v, %v: want the flag's label only", a.Labels, err)
	}
}

func TestEveryAgentFlagIsAFileKey(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(Agent).RegisterFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		_, err := loadAgent(t, ToFileKey(f.Name)+": null\n")
		switch {
		case f.Name == conditionFlag: // a list in a file
		case f.Name == "config" && !strings.Contains(err.Error(), "config: unknown key"):
			t.Errorf("config: %v", err)
		case f.Name != "config" && (err == nil || !strings.Contains(err.Error(), ToFileKey(f.Name)+": no value")):
			t.Errorf("%s: %v", f.Name, err)
		}
	})
}

func TestI10FileErrorsNameTheKey(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          []string
	}{
		{"a key with a typing error", "polInterval: 1s", []string{"agent.yaml", "polInterval: unknown key: did you mean pollInterval?"}},
		{"a key with another case", "nodename: x", []string{"nodename: unknown key: did you mean nodeName?"}},
		{"a key without similar keys", "xyzzyplugh: 1", []string{"xyzzyplugh: unknown key: want one of", "pollInterval", "notifications"}},
		{"a flag of the command itself", "version: true", []string{"version: unknown key"}},
		{"a duplicate key", "nodeName: a\nnodeName: b", []string{"nodeName", "already set"}},
		{"a value of another type", "pollInterval: soon", []string{"pollInterval", `"soon"`, "duration"}},
		{"a number without its unit", "pollInterval: 5", []string{"pollInterval", "5", "duration"}},
		{"a list for a value", "nodeName: [a]", []string{"nodeName", `["a"]`, "want a single value"}},
		{"a list for pairs", "label: [a]", []string{"label", `["a"]`, "want keys with values"}},
		{"pairs without values", "label: {a: null, b: [c]}", []string{"label: a: no value", `label: b: ["c"]: want a single value`}},
		{"no value", "nodeName:", []string{"nodeName", "no value"}},
		{"no keys", "- a", []string{"want keys and values"}},
		{"invalid YAML", "a: [", []string{"not valid YAML"}},
		{"no list", "notifications: slack", []string{"notifications", `"slack"`, "want a list"}},
		{
			"a nested key with a typing error", "notifications: [{name: x, webhook: {url: http://h, tiemout: 1s}}]",
			[]string{"notifications[0].webhook.tiemout: unknown key: did you mean timeout?"},
		},
		{
			"a nested invalid value", "notifications: [{name: x}, {name: y, webhook: {timeout: 5}}]",
			[]string{"notifications[1]: webhook.timeout: 5: want a duration"},
		},
		{
			"a nested value of another type", "notifications: [{name: x, webhook: {retries: many}}]",
			[]string{"notifications[0]: webhook.retries: string: want a whole number"},
		},
		{
			"several errors", "nodename: a\npollInterval: x\nnotifications: [{nam: x}]",
			[]string{"nodename: unknown", "pollInterval:", "notifications[0].nam: unknown key: did you mean name?"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loadAgent(t, c.content)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestI10InvalidValueIsNamedWithItsSource(t *testing.T) {
	for _, c := range []struct {
		name, content string
		args          []string
		want          string
	}{
		{"in the file", "nodeName: n\npollInterval: 1h", nil, "agent.yaml: pollInterval: 1h0m0s: want 100ms to 1m"},
		{"as a flag, past the file", "nodeName: n\npollInterval: 1s", []string{"--poll-interval=1h"}, "--poll-interval: 1h0m0s: want 100ms to 1m"},
		{"the file's rules", "nodeName: n\nconditions: [{type: A, action: explode}]", nil, "agent.yaml: conditions[0]"},
		{"one of two in the file", "nodeName: n\ntaintEffect: NoSchedule\ntaintKey: 'a b'", nil, "agent.yaml: taintKey, --taint-value: a b="},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := loadAgent(t, c.content, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			err = a.Validate()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "agent.yaml: pollInterval") != (c.name == "in the file") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestInvalidReceiversAreOptionErrors(t *testing.T) {
	c, err := loadAgent(t, "nodeName: n\nnotifications: [{name: x}, {name: x, webhook: {url: ftp://h/secret-path, method: post}}]")
	if err != nil {
		t.Fatal(err)
	}
	err = c.Validate()
	for _, want := range []string{
		"notifications[0] (x): webhook, telegram: neither given", `notifications[1] (x): webhook.method: "post": want POST`,
		`notifications[1].name: "x": want another`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestMissingFileIsAnError(t *testing.T) {
	c := Agent{ConfigFile: filepath.Join(t.TempDir(), "missing.yaml")}
	if err := c.LoadFile(pflag.NewFlagSet("", pflag.ContinueOnError)); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("error %v", err)
	}
}

func TestLenientReaderWarnsAboutUnknownKeys(t *testing.T) {
	var size int
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.IntVar(&size, "size", 0, "")
	document := []byte("size: 3\nsiez: 4\n")
	warnings, err := DecodeKeys(document, ListFlagKeys(fs, func(string) {}), Lenient)
	if err != nil || size != 3 || len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "did you mean size?") {
		t.Errorf("size %d, warnings %v, error %v", size, warnings, err)
	}
	if _, err := DecodeKeys(document, ListFlagKeys(fs, func(string) {}), Strict); err == nil {
		t.Error("no error from a strict reader")
	}
	if _, err := DecodeKeys([]byte("size: big"), ListFlagKeys(fs, func(string) {}), Lenient); err == nil {
		t.Error("a bad value is no error")
	}
}

func FuzzFile(f *testing.F) {
	for _, s := range []string{
		"", "null", "a", "nodeName: x", "- 1", "a: [", "pollInterval: 1s\nnotifications:\n- name: a\n  webhook: {url: http://h}",
		"notifications: [1, null, {webhook: 3}]", "? {a: b}\n: c", "a: &x [*x]", "nodeName: !!binary aGk=", "1: 2",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		var c Agent
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.RegisterFlags(fs)
		_, strict := DecodeKeys(document, c.listFileKeys(fs), Strict)
		var l Agent
		fs = pflag.NewFlagSet("", pflag.ContinueOnError)
		l.RegisterFlags(fs)
		_, lenient := DecodeKeys(document, l.listFileKeys(fs), Lenient)
		if strict == nil && lenient != nil {
			t.Errorf("a lenient reader refuses what a strict one takes: %v", lenient)
		}
		_ = c.Validate()
	})
}
