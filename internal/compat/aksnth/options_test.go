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

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func newEnvironment(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range append(pairs, "MY_NODE_NAME=n") {
			if value, ok := strings.CutPrefix(p, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func mustParse(t *testing.T, args ...string) *Options {
	t.Helper()
	o, err := ParseOptions(args, newEnvironment(), io.Discard)
	must.NoError(t, err)
	return o
}

func writeConfigFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// exampleValues contains one valid value, other than the default, for each setting.
var exampleValues = map[string]string{
	"log.level": "DEBUG", "log.pretty": "true", "kubeconfig": "/k", "endpoint": "http://127.0.0.1:9/x?api-version=1",
	"node": "other", "period": "2s", "request.timeout": "7s", "telegram.token": "1:a", "telegram.chatID": "-100",
	"telegram.url": "http://127.0.0.1:1", "alert.message": "x", "webhook.method": "PUT", "webhook.contentType": "text/plain",
	"webhook.url": "https://example.com/s", "webhook.timeout": "3s", "webhook.template": "y", "webhook.template-file": "/f",
	"webhook.insecureSkip": "true", "webhook.http-proxy": "http://p:1", "webhook.retries": "5", "sentry.dsn": "https://k@d/1",
	"web.address": "127.0.0.1:80", "web.token-file": "/t", "taint.node": "true", "taint.effect": "NoExecute",
	"podGracePeriodSeconds": "9", "nodeGracePeriodSeconds": "0", "gracePeriodSeconds": "3", "drainOnFreezeEvent": "true",
	"resource.name": "vm_1", "exitAfterNodeDrain": "true", "disableEviction": "true", "dryRun": "true", "acknowledge": "false",
	"maxConcurrentDrains": "2", "namespace": "slipway",
}

// withoutSources returns the options without the sources of their values.
func withoutSources(o *Options) Options {
	c := *o
	c.sources, c.Warnings, c.ConfigFile = nil, nil, ""
	return c
}

var compareOptions = cmp.AllowUnexported(Options{})

func TestSettingsComeFromFlagsEnvironmentAndFile(t *testing.T) {
	for _, s := range settings {
		if s.flag == "version" || s.flag == "config" {
			continue
		}
		value, ok := exampleValues[s.flag]
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
		want := withoutSources(mustParse(t, append(base, "-"+s.flag+"="+value)...))
		check.Not(t, cmp.Equal(want, withoutSources(mustParse(t, base...)), compareOptions), "-%s=%s changes nothing", s.flag, value)
		spellings := [][]string{append(base, "--"+s.flag+"="+value)}
		if value != "true" && value != "false" { // a boolean flag takes no separate argument
			spellings = append(spellings, append(base, "-"+s.flag, value))
		}
		if s.key != "" {
			spellings = append(spellings, append(base, "-config="+writeConfigFile(t, s.key+": "+value)))
		}
		for _, args := range spellings {
			if diff := cmp.Diff(want, withoutSources(mustParse(t, args...)), compareOptions); diff != "" {
				t.Errorf("%v: %s", args, diff)
			}
		}
		if s.env != "" {
			o, err := ParseOptions(base, func(name string) string {
				if name == s.env {
					return value
				}
				return newEnvironment()(name)
			}, io.Discard)
			if err != nil {
				t.Errorf("$%s: %v", s.env, err)
			} else if diff := cmp.Diff(want, withoutSources(o), compareOptions); diff != "" {
				t.Errorf("$%s: %s", s.env, diff)
			}
		}
	}
}

func TestDefaultsMatchToolExceptFaults(t *testing.T) {
	got := withoutSources(mustParse(t))
	want := Options{
		LogLevel: "INFO", Endpoint: "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01", Node: "n",
		Period: time.Second, RequestTimeout: 5 * time.Second, AlertMessage: "Draining node={{ .NodeName }}, type={{ .Event.EventType }}",
		WebhookMethod: "POST", WebhookContentType: "application/json", WebhookTimeout: 30 * time.Second, WebhookRetries: 3,
		WebAddress: ":17923", TaintEffect: "NoSchedule", PodGracePeriodSeconds: -1, NodeGracePeriodSeconds: 120,
		GracePeriodSeconds: 10, Acknowledge: true,
	}
	check.Equal(t, want, got, compareOptions)
}

func TestFileOverridesFlagsOverrideEnvironment(t *testing.T) {
	config := writeConfigFile(t, "telegramchatid: -1001234567890123\nnodename: of-the-file\n")
	o, err := ParseOptions([]string{"-node=of-the-flag", "-webhook.url=http://flag"},
		newEnvironment("CONFIG="+config, "WEBHOOK_URL=http://env", "TELEGRAM_CHATID=5"), io.Discard)
	must.NoError(t, err)
	if o.Node != "of-the-file" || o.WebhookURL != "http://flag" || o.TelegramChatID != "-1001234567890123" {
		t.Errorf("%+v", withoutSources(o))
	}
	check.Not(t, mustParse(t, "-webhook.template", "-nodeGracePeriodSeconds").IsSet("nodeGracePeriodSeconds"), "the value of a flag was read as a flag")
}

func TestMergeKeysOfFileAreApplied(t *testing.T) {
	o := mustParse(t, "-period=9s", "-config="+writeConfigFile(t, "common: &common {period: 1s, dryrun: true}\n<<: *common\ndryrun: false\n"))
	check.Not(t, o.Period != time.Second || o.DryRun, "period %s, dry run %t: want 1s and false", o.Period, o.DryRun)
	_, err := ParseOptions([]string{"-node=n", "-config=" + writeConfigFile(t, "<<: 123:secret\n")}, newEnvironment(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "line 1: <<: want an alias") || strings.Contains(err.Error(), "secret") {
		t.Errorf("an invalid merge key: %v", err)
	}
}

func TestLogSettingsOfFileAreApplied(t *testing.T) {
	o := mustParse(t, "-config="+writeConfigFile(t, "loglevel: warn\nlogpretty: true\n"))
	c := o.ToAgentConfig()
	check.Not(t, c.LogLevel != "warn" || c.LogFormat != "text", "level %s, format %s", c.LogLevel, c.LogFormat)
}

func TestUnknownFlagIsUsageErrorUnlikeHelp(t *testing.T) {
	var usage strings.Builder
	_, err := ParseOptions([]string{"-nope"}, newEnvironment(), &usage)
	if _, is := errors.AsType[*compat.UsageError](err); !is || !strings.Contains(usage.String(), "-taint.node") {
		t.Errorf("%v, usage %q", err, usage.String())
	}
	if _, err := ParseOptions([]string{"-help"}, newEnvironment(), io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
	if o, err := ParseOptions([]string{"-version"}, func(string) string { return "" }, io.Discard); err != nil || !o.ShowVersion {
		t.Errorf("version: %v", err)
	}
}

func TestI10BadValuesNameFieldAndRange(t *testing.T) {
	for _, c := range []struct{ flag, value, want string }{
		{"node", "", "name of this node"},
		{"period", "5", "duration"},
		{"taint.effect", "Never", `"Never": want NoSchedule, NoExecute or PreferNoSchedule`},
		{"gracePeriodSeconds", "x", "whole number"},
		{"web.address", "17923", `"17923": want host:port`},
		{"telegram.chatID", "@channel", `"@channel": want a whole number`},
		{"telegram.url", "bot", "want a URL"},
		{"maxConcurrentDrains", "17", "17: want 0 to 16"},
		{"maxConcurrentDrains", "-1", "-1: want 0 to 16"},
		{"taint.node", "maybe", "true or false"},
	} {
		for _, given := range newGivenSettings(t, c.flag, c.value) {
			_, err := ParseOptions([]string{given.arg}, newEnvironment(), io.Discard)
			if err == nil {
				t.Errorf("%s: was accepted", given.arg)
				continue
			}
			text := err.Error()
			usage := strings.HasPrefix(text, "invalid ") // error of the flag package
			if !usage && !strings.Contains(text, c.want) || !strings.Contains(text, given.spelling) || strings.Contains(text, "s3cret") {
				t.Errorf("%s: error %q, want %q in it", given.arg, text, c.want)
			}
		}
	}
}

// givenSetting is a setting on the command line, as a flag or in a file, and its spelling there.
type givenSetting struct{ arg, spelling string }

func newGivenSettings(t *testing.T, flag, value string) []givenSetting {
	t.Helper()
	for _, s := range settings {
		if s.flag == flag {
			return []givenSetting{{"-" + flag + "=" + value, flag}, {"-config=" + writeConfigFile(t, s.key+": '"+value+"'"), s.key}}
		}
	}
	t.Fatalf("no setting %s", flag)
	return nil
}

// TestUnusableValuesAreReplacedWithWarning has values that the tool started with.
func TestUnusableValuesAreReplacedWithWarning(t *testing.T) {
	const hidden = "value hidden"
	for _, c := range []struct {
		flag, value, want string
		check             func(*Options) bool
	}{
		{"period", "0s", "0s: want 100ms to 1m; using 1s", func(o *Options) bool { return o.Period == time.Second }},
		{"period", "-1s", "want 100ms", func(o *Options) bool { return o.Period == time.Second }},
		{"period", "10ms", "want 100ms", func(o *Options) bool { return o.Period == 100*time.Millisecond }},
		{"period", "2m", "2m0s: want 100ms to 1m", func(o *Options) bool { return o.Period == time.Minute }},
		{"request.timeout", "0", "0s: want more than 0", func(o *Options) bool { return o.RequestTimeout == 5*time.Second }},
		{"endpoint", "http://h/x", "using http://h/x?api-version=2020-07-01", func(o *Options) bool { return o.Endpoint == "http://h/x?api-version=2020-07-01" }},
		{"endpoint", "http://h/x?a=b", "want an api-version", func(o *Options) bool { return o.Endpoint == "http://h/x?a=b&api-version=2020-07-01" }},
		{"endpoint", "http://h/x?api-version=&a=b", "want an api-version", func(o *Options) bool { return o.Endpoint == "http://h/x?a=b&api-version=2020-07-01" }},
		{"endpoint", "http://h/x?API-Version=2019-08-01", "", func(o *Options) bool { return o.Endpoint == "http://h/x?api-version=2019-08-01" }},
		{"endpoint", "169.254.169.254", "want a URL", func(o *Options) bool { return o.Endpoint == azure.DefaultEndpoint }},
		{"endpoint", "", "want a URL", func(o *Options) bool { return o.Endpoint == azure.DefaultEndpoint }},
		{"nodeGracePeriodSeconds", "-1", "-1: want 0 or more", func(o *Options) bool { return o.NodeGracePeriodSeconds == 120 }},
		{"gracePeriodSeconds", "-1", "-1: want 0", func(o *Options) bool { return o.GracePeriodSeconds == 10 }},
		{"gracePeriodSeconds", "601", "601: want 0 to 600", func(o *Options) bool { return o.GracePeriodSeconds == 600 }},
		{"webhook.retries", "-1", "want 0 to 20", func(o *Options) bool { return o.WebhookRetries == 0 }},
		{"webhook.retries", "30", "30: want 0 to 20", func(o *Options) bool { return o.WebhookRetries == 20 }},
		{"web.address", ":http", "", func(o *Options) bool { return o.WebAddress == ":80" }},
		{"telegram.token", "1:s3cret", "because a token is set", func(o *Options) bool { return len(o.ToReceivers()) == 0 }},
		{"webhook.timeout", "0", "want more than 0", func(o *Options) bool { return o.WebhookTimeout == 30*time.Second }},
		{"webhook.timeout", "11m", "11m0s: want more than 0, up to 10m", func(o *Options) bool { return o.WebhookTimeout == 10*time.Minute }},
		{"webhook.method", "post", `"post": want GET, POST`, func(o *Options) bool { return o.WebhookMethod == "POST" }},
		{"webhook.method", "SHOUT", `"SHOUT": want GET`, func(o *Options) bool { return o.WebhookMethod == "POST" }},
		{"webhook.http-proxy", "socks5://h:1080", "", func(o *Options) bool { return o.WebhookProxy == "socks5://h:1080" }},
		{"webhook.contentType", "", "media type", func(o *Options) bool { return o.WebhookContentType == "application/json" }},
		{"webhook.url", "s3cret", hidden, func(o *Options) bool { return len(o.ToReceivers()) == 0 }},
		{"webhook.url", "http://s3cret:99999/", hidden, func(o *Options) bool { return len(o.ToReceivers()) == 0 }},
		{"webhook.http-proxy", "s3cret:3128", hidden, func(o *Options) bool { return o.WebhookProxy == "" }},
		{"sentry.dsn", "s3cret@host", hidden, func(o *Options) bool { return o.SentryDSN == "" }},
	} {
		for _, given := range newGivenSettings(t, c.flag, c.value) {
			o, err := ParseOptions([]string{given.arg}, newEnvironment(), io.Discard)
			if err != nil {
				t.Errorf("%s: %v", given.arg, err)
				continue
			}
			text := strings.Join(o.Warnings, "\n")
			if !strings.Contains(text, c.want) || !c.check(o) || strings.Contains(text, "s3cret") {
				t.Errorf("%s: warnings %q, want %q; options %+v", given.arg, text, c.want, withoutSources(o))
			}
			config := o.ToAgentConfig()
			if err := config.Validate(); err != nil {
				t.Errorf("%s results in an invalid configuration: %v", given.arg, err)
			}
		}
	}
}

func TestBadLogLevelFailsAsFlagOnly(t *testing.T) {
	_, err := ParseOptions([]string{"-log.level=loud"}, newEnvironment(), io.Discard)
	check.ErrorContains(t, err, `-log.level: "loud": want panic, fatal`)
	o := mustParse(t, "-config="+writeConfigFile(t, "loglevel: loud\n")) // the tool ignored the key
	if c := o.ToAgentConfig(); c.LogLevel != "info" || !strings.Contains(strings.Join(o.Warnings, "\n"), `key loglevel (line 1): "loud": want panic, fatal`) {
		t.Errorf("in the file: level %s, warnings %q", c.LogLevel, o.Warnings)
	}
}

func TestAllErrorsAreReportedTogether(t *testing.T) {
	_, err := ParseOptions([]string{"-log.level=x", "-taint.effect=x", "-telegram.chatID=x"}, newEnvironment(), io.Discard)
	check.ErrorContains(t, err, "-log.level", "-taint.effect", "-telegram.chatID")
}

func TestUnknownAndIneffectiveSettingsAreReported(t *testing.T) {
	o := mustParse(t, "-config="+writeConfigFile(t, "nodeName: x\nperiod:\nconfigfile: y\nsentrydsn: https://k@s/1\ncolour: red\n"))
	all := strings.Join(o.Warnings, "\n")
	check.Contains(t, all,
		"line 1: nodeName", "did you mean nodename?", "line 2: period: has no value", "line 3: configfile", "line 5: colour",
	)
	check.Not(t, o.Node != "n" || o.Period != time.Second, "node %q, period %s", o.Node, o.Period)
}

func TestOldBooleansAndUnknownKeysAreReported(t *testing.T) {
	o := mustParse(t, "-config="+writeConfigFile(t, "taintnode: yes\ndryrun: On\nwebhookinsecure: off\nlabels: [a, b]\nextra:\n  deep: {er: 1, er: 2}\n? [k]\n: v\nwebhookmethod: PUT\nlabels: {<<: 1}\n"))
	if !o.TaintNode || !o.DryRun || o.WebhookInsecure || o.WebhookMethod != "PUT" {
		t.Errorf("%+v", withoutSources(o))
	}
	all := strings.Join(o.Warnings, "\n")
	check.Contains(t, all, "line 1: taintnode: yes", "line 2: dryrun: On", "line 4: labels: unknown key", "line 5: extra: unknown key", "line 7: ?")
	for text, want := range map[string]string{
		"taintnode: [yes]\n":                      "line 1: taintnode: is a list: want true or false",
		"webhooktemplate: {{ .NodeName }}\n":      "line 1: webhooktemplate: is keys with values: want text",
		"dryrun: true\nperiod: 1s\ndryrun: off\n": "line 3: dryrun: already set in line 1",
	} {
		_, err := ParseOptions([]string{"-config=" + writeConfigFile(t, text)}, newEnvironment(), io.Discard)
		check.Not(t, err == nil || !strings.Contains(err.Error(), want), "%q: %v, want %q", text, err, want)
	}
}

// TestNumbersOfFileFollowYAML has spellings that the tool's YAML library converted to integers.
func TestNumbersOfFileFollowYAML(t *testing.T) {
	for text, want := range map[string]int{"3.0": 3, "1e1": 10, "1_0": 10, "0x0A": 10, "0o12": 10, "0b11": 3, "+4": 4, "4.7": 4, "'5'": 5} {
		if o := mustParse(t, "-config="+writeConfigFile(t, "webhookretries: "+text+"\n")); o.WebhookRetries != want {
			t.Errorf("%s: %d, want %d", text, o.WebhookRetries, want)
		}
	}
	if o := mustParse(t, "-config="+writeConfigFile(t, "nodename: 1e1\nresourcename: !!binary dm1fMQ==\n")); o.Node != "1e1" || o.ResourceName != "vm_1" {
		t.Errorf("node %q, resource %q", o.Node, o.ResourceName)
	}
}

func TestBrokenFileIsRefusedAndNotQuoted(t *testing.T) {
	for text, want := range map[string]string{
		"telegramtoken: 1:s3cret: x\n": "not YAML", "- a": "want keys", "period: 5": `key period (line 1): "5": want a duration`,
	} {
		_, err := ParseOptions([]string{"-config=" + writeConfigFile(t, text)}, newEnvironment(), io.Discard)
		check.Not(t, err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret"), "%q: %v", text, err)
	}
	check.ErrorContains(t, check.Err(ParseOptions([]string{"-config=/nowhere"}, newEnvironment(), io.Discard)), "-config")
}

func TestResultingConfigIsValid(t *testing.T) {
	args := []string{"-node=n"}
	for name, value := range exampleValues {
		if name != "webhook.template-file" {
			args = append(args, "-"+name+"="+value)
		}
	}
	for _, args := range [][]string{nil, args} {
		c := mustParse(t, args...).ToAgentConfig()
		check.NoError(t, c.Validate())
		check.Not(t, !reflect.DeepEqual(c.ConfigFile, config.NewDefaultAgent().ConfigFile), "want no configuration file")
	}
}

func FuzzFile(f *testing.F) {
	f.Add("nodename: x\nperiod: 5s\n")
	f.Add("taintnode: &a true\ndryrun: *a\n")
	f.Add("webhookretries: 99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		o := &Options{sources: map[string]string{}}
		fs := o.newFlagSet(io.Discard)
		if err := o.applyConfigFile(fs, []byte(text)); err == nil && o.Validate() == nil {
			c := o.ToAgentConfig()
			if err := c.Validate(); err != nil && len(o.ToReceivers()) == 0 {
				t.Errorf("%q is accepted and results in an invalid configuration: %v", text, err)
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
				return // files of the fuzzer do not exist
			}
		}
		_, _ = ParseOptions(args, newEnvironment(), io.Discard)
	})
}

func TestI10BadReceiverSettingsNameTheOriginalSetting(t *testing.T) {
	const url = "-webhook.url=http://127.0.0.1:1"
	for name, c := range map[string]struct {
		args    []string
		env     func(string) string
		want    string
		refused bool
	}{
		"retries":    {[]string{url, "-webhook.retries=30"}, newEnvironment(), "-webhook.retries: 30: want 0 to 20", false},
		"file":       {[]string{url, "-config=" + writeConfigFile(t, "webhookretries: 30")}, newEnvironment(), "key webhookretries (line 1): 30: want 0 to 20", false},
		"template":   {[]string{url, "-webhook.template={{ .NodeName"}, newEnvironment(), "-webhook.template:1: ", false},
		"variable":   {[]string{url}, newEnvironment("WEBHOOK_TEMPLATE={{ end }}"), "$WEBHOOK_TEMPLATE:1: ", false},
		"no file":    {[]string{url}, newEnvironment("WEBHOOK_TEMPLATE_FILE=/nowhere"), "$WEBHOOK_TEMPLATE_FILE: open /nowhere", false},
		"alert":      {[]string{"-telegram.token=1:a", "-telegram.chatID=1", "-alert.message={{"}, newEnvironment(), "-alert.message:1: ", false},
		"token":      {[]string{"-telegram.token=s3cret", "-telegram.chatID=1"}, newEnvironment(), "-telegram.token: what is given", true},
		"namespace":  {[]string{"-maxConcurrentDrains=3"}, newEnvironment(), "-namespace: \"\": want the agents' namespace", true},
		"two faults": {[]string{url, "-webhook.retries=30", "-webhook.timeout=11m"}, newEnvironment(), "-webhook.timeout: 11m0s", false},
	} {
		o, err := ParseOptions(append([]string{"-node=n"}, c.args...), c.env, io.Discard)
		output := ""
		if err == nil {
			o.WarnAboutTemplates()
			output = strings.Join(o.Warnings, "\n")
		} else {
			output = err.Error()
		}
		if (err != nil) != c.refused || !strings.Contains(output, c.want) || strings.Contains(output, "notifications[") ||
			strings.Contains(output, "--") || strings.Contains(output, "s3cret") {
			t.Errorf("%s: %v, warnings %q, want %q", name, err, o.Warnings, c.want)
		}
	}
}
