package aksnth

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/config"
)

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range append(pairs, "MY_NODE_NAME=n") {
			if value, ok := strings.CutPrefix(p, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o, err := Parse(args, environment(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// values is one valid value for each setting, other than its default.
var values = map[string]string{
	"log.level": "DEBUG", "log.pretty": "true", "kubeconfig": "/k", "endpoint": "http://127.0.0.1:9/x?api-version=1",
	"node": "other", "period": "2s", "request.timeout": "7s", "telegram.token": "1:a", "telegram.chatID": "-100",
	"telegram.url": "http://127.0.0.1:1", "alert.message": "x", "webhook.method": "PUT", "webhook.contentType": "text/plain",
	"webhook.url": "https://example.com/s", "webhook.timeout": "3s", "webhook.template": "y", "webhook.template-file": "/f",
	"webhook.insecureSkip": "true", "webhook.http-proxy": "http://p:1", "webhook.retries": "5", "sentry.dsn": "https://k@d/1",
	"web.address": "127.0.0.1:80", "web.token-file": "/t", "taint.node": "true", "taint.effect": "NoExecute",
	"podGracePeriodSeconds": "9", "nodeGracePeriodSeconds": "0", "gracePeriodSeconds": "3", "drainOnFreezeEvent": "true",
	"resource.name": "vm_1", "exitAfterNodeDrain": "true", "disableEviction": "true", "dryRun": "true",
	"maxConcurrentDrains": "2", "namespace": "slipway",
}

// settled are the options without what says how they were given.
func settled(o *Options) Options {
	c := *o
	c.given, c.Warnings, c.ConfigFile = nil, nil, ""
	return c
}

var equal = cmp.AllowUnexported(Options{})

func TestEverySettingIsReadFromFlagWithOneDashOrTwoFromEnvironmentAndFromFile(t *testing.T) {
	for _, s := range settings {
		if s.flag == "version" || s.flag == "config" {
			continue
		}
		value, ok := values[s.flag]
		if !ok {
			t.Errorf("%s: the test has no value for it", s.flag)
			continue
		}
		companion := map[string]string{
			"telegram.token": "-telegram.chatID=1", "maxConcurrentDrains": "-namespace=slipway",
		}[s.flag]
		base := []string{}
		if companion != "" {
			base = append(base, companion)
		}
		want := settled(parse(t, append(base, "-"+s.flag+"="+value)...))
		if cmp.Equal(want, settled(parse(t, base...)), equal) {
			t.Errorf("-%s=%s changes nothing", s.flag, value)
		}
		spellings := [][]string{append(base, "--"+s.flag+"="+value)}
		if value != "true" {
			spellings = append(spellings, append(base, "-"+s.flag, value))
		}
		if s.key != "" {
			spellings = append(spellings, append(base, "-config="+file(t, s.key+": "+value)))
		}
		for _, args := range spellings {
			if diff := cmp.Diff(want, settled(parse(t, args...)), equal); diff != "" {
				t.Errorf("%v: %s", args, diff)
			}
		}
		if s.env != "" {
			o, err := Parse(base, func(name string) string {
				if name == s.env {
					return value
				}
				return environment()(name)
			}, io.Discard)
			if err != nil {
				t.Errorf("$%s: %v", s.env, err)
			} else if diff := cmp.Diff(want, settled(o), equal); diff != "" {
				t.Errorf("$%s: %s", s.env, diff)
			}
		}
	}
}

func TestDefaultsAreTheToolsButForItsFaults(t *testing.T) {
	got := settled(parse(t))
	want := Options{
		LogLevel: "INFO", Endpoint: "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01", Node: "n",
		Period: time.Second, RequestTimeout: 5 * time.Second, AlertMessage: "Draining node={{ .NodeName }}, type={{ .Event.EventType }}",
		WebhookMethod: "POST", WebhookContentType: "application/json", WebhookTimeout: 30 * time.Second, WebhookRetries: 3,
		WebAddress: ":17923", TaintEffect: "NoSchedule", PodGracePeriodSeconds: -1, NodeGracePeriodSeconds: 120,
		GracePeriodSeconds: 10,
	}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Error(diff)
	}
}

func TestFileWinsOverFlagsAndFlagsOverTheEnvironment(t *testing.T) {
	config := file(t, "telegramchatid: -1001234567890123\nnodename: of-the-file\n")
	o, err := Parse([]string{"-node=of-the-flag", "-webhook.url=http://flag"},
		environment("CONFIG="+config, "WEBHOOK_URL=http://env", "TELEGRAM_CHATID=5"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.Node != "of-the-file" || o.WebhookURL != "http://flag" || o.TelegramChatID != "-1001234567890123" {
		t.Errorf("%+v", settled(o))
	}
}

func TestLogSettingsOfTheFileCount(t *testing.T) {
	o := parse(t, "-config="+file(t, "loglevel: warn\nlogpretty: true\n"))
	if c := o.Config(); c.LogLevel != "warn" || c.LogFormat != "text" {
		t.Errorf("level %s, format %s", c.LogLevel, c.LogFormat)
	}
}

func TestUnknownFlagIsAUsageErrorAndHelpIsNone(t *testing.T) {
	var usage strings.Builder
	_, err := Parse([]string{"-nope"}, environment(), &usage)
	if _, is := errors.AsType[*UsageError](err); !is || !strings.Contains(usage.String(), "-taint.node") {
		t.Errorf("%v, usage %q", err, usage.String())
	}
	if _, err := Parse([]string{"-help"}, environment(), io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
	if o, err := Parse([]string{"-version"}, func(string) string { return "" }, io.Discard); err != nil || !o.ShowVersion {
		t.Errorf("version: %v", err)
	}
}

func TestI10BadValuesAreRefusedWithFieldValueAndWhatIsAllowed(t *testing.T) {
	const quiet = "not quoted"
	for _, c := range []struct{ flag, value, want string }{
		{"node", "", "name of this node"},
		{"log.level", "loud", `"loud": want panic, fatal`},
		{"period", "0s", "0s: want 100ms to 1m"},
		{"period", "-1s", "want 100ms"},
		{"period", "2m", "2m0s: want 100ms to 1m"},
		{"period", "5", "duration"},
		{"request.timeout", "0", "0s: want more than 0"},
		{"endpoint", "http://h/x", "api-version"},
		{"endpoint", "", "api-version"},
		{"taint.effect", "Never", `"Never": want NoSchedule, NoExecute or PreferNoSchedule`},
		{"nodeGracePeriodSeconds", "-1", "-1: want 0 or more"},
		{"gracePeriodSeconds", "-1", "-1: want 0"},
		{"gracePeriodSeconds", "601", "601: want 0 to 600"},
		{"gracePeriodSeconds", "x", "whole number"},
		{"webhook.retries", "-1", "want 0 or more"},
		{"web.address", "17923", `"17923": want host:port`},
		{"web.address", ":http", `":http": want host:port`},
		{"telegram.chatID", "@channel", `"@channel": want a whole number`},
		{"telegram.token", "1:s3cret", "since there is a token"},
		{"telegram.url", "bot", "want a URL"},
		{"webhook.timeout", "0", "want more than 0"},
		{"webhook.method", "post", `"post": want GET, POST`},
		{"webhook.contentType", "", "media type"},
		{"webhook.url", "s3cret", quiet},
		{"webhook.http-proxy", "s3cret:3128", quiet},
		{"sentry.dsn", "s3cret@host", quiet},
		{"maxConcurrentDrains", "17", "17: want 0 to 16"},
		{"maxConcurrentDrains", "-1", "-1: want 0 to 16"},
		{"taint.node", "maybe", "true or false"},
	} {
		key := ""
		for _, s := range settings {
			if s.flag == c.flag {
				key = s.key
			}
		}
		for _, given := range []struct{ from, spelled string }{
			{"-" + c.flag + "=" + c.value, c.flag},
			{"-config=" + file(t, key+": '"+c.value+"'"), key},
		} {
			_, err := Parse([]string{given.from}, environment(), io.Discard)
			if err == nil {
				t.Errorf("%s: was taken", given.from)
				continue
			}
			text := err.Error()
			usage := strings.HasPrefix(text, "invalid ") // the flag package's own words
			if !usage && !strings.Contains(text, c.want) || !strings.Contains(text, given.spelled) && c.flag != "telegram.token" ||
				strings.Contains(text, "s3cret") {
				t.Errorf("%s: error %q, want it to say %q", given.from, text, c.want)
			}
		}
	}
}

func TestAllThatIsWrongIsSaidAtOnce(t *testing.T) {
	_, err := Parse([]string{"-period=0s", "-taint.effect=x", "-webhook.method=x"}, environment(), io.Discard)
	for _, want := range []string{"-period", "-taint.effect", "-webhook.method"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestUnknownKeysNullsAndSettingsWithoutEffectAreWarnedOf(t *testing.T) {
	o := parse(t, "-config="+file(t, "nodeName: x\nperiod:\nconfigfile: y\nsentrydsn: https://k@s/1\ncolour: red\n"))
	all := strings.Join(o.Warnings, "\n")
	for _, want := range []string{
		"line 1: nodeName", "meant nodename?", "line 2: period: has no value", "line 3: configfile", "line 5: colour",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings %q do not say %q", all, want)
		}
	}
	if o.Node != "n" || o.Period != time.Second {
		t.Errorf("node %q, period %s", o.Node, o.Period)
	}
}

func TestBrokenFileIsRefusedAndNotQuoted(t *testing.T) {
	for text, want := range map[string]string{
		"telegramtoken: 1:s3cret: x\n": "not YAML", "- a": "want keys", "period: 5": `key period (line 1): "5": want a duration`,
	} {
		_, err := Parse([]string{"-config=" + file(t, text)}, environment(), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Parse([]string{"-config=/nowhere"}, environment(), io.Discard); err == nil || !strings.Contains(err.Error(), "-config") {
		t.Errorf("missing file: %v", err)
	}
}

func TestConfigurationThatIsMadeIsValid(t *testing.T) {
	args := []string{"-node=n"}
	for name, value := range values {
		if name != "webhook.template-file" {
			args = append(args, "-"+name+"="+value)
		}
	}
	for _, args := range [][]string{nil, args} {
		c := parse(t, args...).Config()
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(c.ConfigFile, config.DefaultAgent().ConfigFile) {
			t.Error("a file is read")
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("nodename: x\nperiod: 5s\n")
	f.Add("taintnode: &a true\ndryrun: *a\n")
	f.Add("webhookretries: 99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		o := &Options{given: map[string]string{}}
		fs := o.flagSet(io.Discard)
		if err := o.readFile(fs, []byte(text)); err == nil && o.Validate() == nil {
			c := o.Config()
			if err := c.Validate(); err != nil && len(o.Receivers()) == 0 {
				t.Errorf("%q is taken and makes a bad configuration: %v", text, err)
			}
		}
	})
}

func FuzzCommandLine(f *testing.F) {
	f.Add("-node=x --dryRun -period 1s")
	f.Add("-- -x")
	f.Fuzz(func(_ *testing.T, line string) {
		args := strings.Fields(line)
		for _, a := range args {
			if strings.Contains(a, "config") {
				return // the fuzzer's own files are nobody's
			}
		}
		_, _ = Parse(args, environment(), io.Discard)
	})
}

func TestI10WhatReceiversDoNotTakeIsSaidOfTheSettingThatWasGiven(t *testing.T) {
	const url = "-webhook.url=http://127.0.0.1:1"
	for name, c := range map[string]struct {
		args []string
		env  func(string) string
		want string
	}{
		"retries":    {[]string{url, "-webhook.retries=30"}, environment(), "-webhook.retries: 30: want 0 to 20"},
		"file":       {[]string{url, "-config=" + file(t, "webhookretries: 30")}, environment(), "key webhookretries (line 1): 30: want 0 to 20"},
		"timeout":    {[]string{url, "-webhook.timeout=11m"}, environment(), "-webhook.timeout: 11m0s: want more than 0, up to 10m"},
		"template":   {[]string{url, "-webhook.template={{ .NodeName"}, environment(), "-webhook.template:1: "},
		"variable":   {[]string{url}, environment("WEBHOOK_TEMPLATE={{ end }}"), "$WEBHOOK_TEMPLATE:1: "},
		"no file":    {[]string{url}, environment("WEBHOOK_TEMPLATE_FILE=/nowhere"), "$WEBHOOK_TEMPLATE_FILE: open /nowhere"},
		"alert":      {[]string{"-telegram.token=1:a", "-telegram.chatID=1", "-alert.message={{"}, environment(), "-alert.message:1: "},
		"namespace":  {[]string{"-maxConcurrentDrains=3"}, environment(), "-namespace: \"\": want the agents' own"},
		"two faults": {[]string{url, "-webhook.retries=30", "-webhook.timeout=11m"}, environment(), "-webhook.timeout: 11m0s"},
	} {
		o, err := Parse(append([]string{"-node=n"}, c.args...), c.env, io.Discard)
		if err == nil {
			err = o.CheckTemplates()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "notifications[") ||
			strings.Contains(err.Error(), "--") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
