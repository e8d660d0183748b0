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
	must.NoError(t, err)
	return o
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
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
	"resource.name": "vm_1", "exitAfterNodeDrain": "true", "disableEviction": "true", "dryRun": "true", "acknowledge": "false",
	"maxConcurrentDrains": "2", "namespace": "slipway",
}

// settled are the options without what says how they were given.
func settled(o *Options) Options {
	c := *o
	c.given, c.Warnings, c.ConfigFile = nil, nil, ""
	return c
}

var equal = cmp.AllowUnexported(Options{})

func TestSettingsComeFromFlagsEnvironmentAndFile(t *testing.T) {
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
		if value != "true" && value != "false" { // a boolean flag takes no word after it
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
		GracePeriodSeconds: 10, Acknowledge: true,
	}
	check.Equal(t, want, got, equal)
}

func TestFileOverridesFlagsAndFlagsOverrideTheEnvironment(t *testing.T) {
	config := file(t, "telegramchatid: -1001234567890123\nnodename: of-the-file\n")
	o, err := Parse([]string{"-node=of-the-flag", "-webhook.url=http://flag"},
		environment("CONFIG="+config, "WEBHOOK_URL=http://env", "TELEGRAM_CHATID=5"), io.Discard)
	must.NoError(t, err)
	if o.Node != "of-the-file" || o.WebhookURL != "http://flag" || o.TelegramChatID != "-1001234567890123" {
		t.Errorf("%+v", settled(o))
	}
}

func TestMergeKeysOfTheFileCount(t *testing.T) {
	o := parse(t, "-period=9s", "-config="+file(t, "common: &common {period: 1s, dryrun: true}\n<<: *common\ndryrun: false\n"))
	if o.Period != time.Second || o.DryRun {
		t.Errorf("period %s, dry run %t: want 1s and false", o.Period, o.DryRun)
	}
	_, err := Parse([]string{"-node=n", "-config=" + file(t, "<<: 123:secret\n")}, environment(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "line 1: <<: want an alias") || strings.Contains(err.Error(), "secret") {
		t.Errorf("a merge key without keys: %v", err)
	}
}

func TestLogSettingsOfTheFileCount(t *testing.T) {
	o := parse(t, "-config="+file(t, "loglevel: warn\nlogpretty: true\n"))
	if c := o.Config(); c.LogLevel != "warn" || c.LogFormat != "text" {
		t.Errorf("level %s, format %s", c.LogLevel, c.LogFormat)
	}
}

func TestUnknownFlagIsAUsageErrorUnlikeHelp(t *testing.T) {
	var usage strings.Builder
	_, err := Parse([]string{"-nope"}, environment(), &usage)
	if _, is := errors.AsType[*compat.UsageError](err); !is || !strings.Contains(usage.String(), "-taint.node") {
		t.Errorf("%v, usage %q", err, usage.String())
	}
	if _, err := Parse([]string{"-help"}, environment(), io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
	if o, err := Parse([]string{"-version"}, func(string) string { return "" }, io.Discard); err != nil || !o.ShowVersion {
		t.Errorf("version: %v", err)
	}
}

func TestI10BadValuesAreRefusedByFieldAndRange(t *testing.T) {
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
		for _, given := range givenAs(t, c.flag, c.value) {
			_, err := Parse([]string{given.arg}, environment(), io.Discard)
			if err == nil {
				t.Errorf("%s: was taken", given.arg)
				continue
			}
			text := err.Error()
			usage := strings.HasPrefix(text, "invalid ") // the flag package's own words
			if !usage && !strings.Contains(text, c.want) || !strings.Contains(text, given.spelled) || strings.Contains(text, "s3cret") {
				t.Errorf("%s: error %q, want it to say %q", given.arg, text, c.want)
			}
		}
	}
}

// given is a setting on the command line, itself or in a file, and how it is spelled there.
type given struct{ arg, spelled string }

func givenAs(t *testing.T, flag, value string) []given {
	t.Helper()
	for _, s := range settings {
		if s.flag == flag {
			return []given{{"-" + flag + "=" + value, flag}, {"-config=" + file(t, s.key+": '"+value+"'"), s.key}}
		}
	}
	t.Fatalf("no setting %s", flag)
	return nil
}

// TestValuesThatTheToolStartedWithAreReplaced has values with which the tool guarded its node all the same.
func TestValuesThatTheToolStartedWithAreReplaced(t *testing.T) {
	const quiet = "not quoted"
	for _, c := range []struct {
		flag, value, want string
		taken             func(*Options) bool
	}{
		{"period", "0s", "0s: want 100ms to 1m; 1s is taken", func(o *Options) bool { return o.Period == time.Second }},
		{"period", "-1s", "want 100ms", func(o *Options) bool { return o.Period == time.Second }},
		{"period", "10ms", "want 100ms", func(o *Options) bool { return o.Period == 100*time.Millisecond }},
		{"period", "2m", "2m0s: want 100ms to 1m", func(o *Options) bool { return o.Period == time.Minute }},
		{"request.timeout", "0", "0s: want more than 0", func(o *Options) bool { return o.RequestTimeout == 5*time.Second }},
		{"endpoint", "http://h/x", "http://h/x?api-version=2020-07-01 is asked", func(o *Options) bool { return o.Endpoint == "http://h/x?api-version=2020-07-01" }},
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
		{"telegram.token", "1:s3cret", "since there is a token", func(o *Options) bool { return len(o.Receivers()) == 0 }},
		{"webhook.timeout", "0", "want more than 0", func(o *Options) bool { return o.WebhookTimeout == 30*time.Second }},
		{"webhook.timeout", "11m", "11m0s: want more than 0, up to 10m", func(o *Options) bool { return o.WebhookTimeout == 10*time.Minute }},
		{"webhook.method", "post", `"post": want GET, POST`, func(o *Options) bool { return o.WebhookMethod == "POST" }},
		{"webhook.method", "SHOUT", `"SHOUT": want GET`, func(o *Options) bool { return o.WebhookMethod == "POST" }},
		{"webhook.http-proxy", "socks5://h:1080", "", func(o *Options) bool { return o.WebhookProxy == "socks5://h:1080" }},
		{"webhook.contentType", "", "media type", func(o *Options) bool { return o.WebhookContentType == "application/json" }},
		{"webhook.url", "s3cret", quiet, func(o *Options) bool { return len(o.Receivers()) == 0 }},
		{"webhook.url", "http://s3cret:99999/", quiet, func(o *Options) bool { return len(o.Receivers()) == 0 }},
		{"webhook.http-proxy", "s3cret:3128", quiet, func(o *Options) bool { return o.WebhookProxy == "" }},
		{"sentry.dsn", "s3cret@host", quiet, func(o *Options) bool { return o.SentryDSN == "" }},
	} {
		for _, given := range givenAs(t, c.flag, c.value) {
			o, err := Parse([]string{given.arg}, environment(), io.Discard)
			if err != nil {
				t.Errorf("%s: %v", given.arg, err)
				continue
			}
			text := strings.Join(o.Warnings, "\n")
			if !strings.Contains(text, c.want) || !c.taken(o) || strings.Contains(text, "s3cret") {
				t.Errorf("%s: warnings %q, want %q; options %+v", given.arg, text, c.want, settled(o))
			}
			config := o.Config()
			if err := config.Validate(); err != nil {
				t.Errorf("%s makes a bad configuration: %v", given.arg, err)
			}
		}
	}
}

func TestBadLogLevelFailsAsFlagOnly(t *testing.T) {
	_, err := Parse([]string{"-log.level=loud"}, environment(), io.Discard)
	check.ErrorContains(t, err, `-log.level: "loud": want panic, fatal`)
	o := parse(t, "-config="+file(t, "loglevel: loud\n")) // the tool never looked at it
	if c := o.Config(); c.LogLevel != "info" || !strings.Contains(strings.Join(o.Warnings, "\n"), `key loglevel (line 1): "loud": want panic, fatal`) {
		t.Errorf("in the file: level %s, warnings %q", c.LogLevel, o.Warnings)
	}
}

func TestAllThatIsWrongIsSaidAtOnce(t *testing.T) {
	_, err := Parse([]string{"-log.level=x", "-taint.effect=x", "-telegram.chatID=x"}, environment(), io.Discard)
	check.ErrorContains(t, err, "-log.level", "-taint.effect", "-telegram.chatID")
}

func TestUnknownAndIneffectiveSettingsAreWarnedAbout(t *testing.T) {
	o := parse(t, "-config="+file(t, "nodeName: x\nperiod:\nconfigfile: y\nsentrydsn: https://k@s/1\ncolour: red\n"))
	all := strings.Join(o.Warnings, "\n")
	check.Contains(t, all,
		"line 1: nodeName", "meant nodename?", "line 2: period: has no value", "line 3: configfile", "line 5: colour",
	)
	if o.Node != "n" || o.Period != time.Second {
		t.Errorf("node %q, period %s", o.Node, o.Period)
	}
}

func TestOldBooleansAndUnknownShapesAreWarnedOf(t *testing.T) {
	o := parse(t, "-config="+file(t, "taintnode: yes\ndryrun: On\nwebhookinsecure: off\nlabels: [a, b]\nextra:\n  deep: {er: 1, er: 2}\n? [k]\n: v\nwebhookmethod: PUT\nlabels: {<<: 1}\n"))
	if !o.TaintNode || !o.DryRun || o.WebhookInsecure || o.WebhookMethod != "PUT" {
		t.Errorf("%+v", settled(o))
	}
	all := strings.Join(o.Warnings, "\n")
	check.Contains(t, all, "line 1: taintnode: yes", "line 2: dryrun: On", "line 4: labels: is no key", "line 5: extra: is no key", "line 7: ?")
	for text, want := range map[string]string{
		"taintnode: [yes]\n":                      "line 1: taintnode: is a list: want true or false",
		"webhooktemplate: {{ .NodeName }}\n":      "line 1: webhooktemplate: is keys with values: want text",
		"dryrun: true\nperiod: 1s\ndryrun: off\n": "line 3: dryrun: is there already, in line 1",
	} {
		if _, err := Parse([]string{"-config=" + file(t, text)}, environment(), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestNumbersOfTheFileAreThoseOfYAML has spellings that the tool's YAML library made whole numbers of.
func TestNumbersOfTheFileAreThoseOfYAML(t *testing.T) {
	for text, want := range map[string]int{"3.0": 3, "1e1": 10, "1_0": 10, "0x0A": 10, "0o12": 10, "0b11": 3, "+4": 4, "4.7": 4, "'5'": 5} {
		if o := parse(t, "-config="+file(t, "webhookretries: "+text+"\n")); o.WebhookRetries != want {
			t.Errorf("%s: %d, want %d", text, o.WebhookRetries, want)
		}
	}
	if o := parse(t, "-config="+file(t, "nodename: 1e1\nresourcename: !!binary dm1fMQ==\n")); o.Node != "1e1" || o.ResourceName != "vm_1" {
		t.Errorf("node %q, resource %q", o.Node, o.ResourceName)
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
	check.ErrorContains(t, check.Err(Parse([]string{"-config=/nowhere"}, environment(), io.Discard)), "-config")
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

func TestI10BadReceiverSettingsNameTheOriginalSetting(t *testing.T) {
	const url = "-webhook.url=http://127.0.0.1:1"
	for name, c := range map[string]struct {
		args    []string
		env     func(string) string
		want    string
		refused bool
	}{
		"retries":    {[]string{url, "-webhook.retries=30"}, environment(), "-webhook.retries: 30: want 0 to 20", false},
		"file":       {[]string{url, "-config=" + file(t, "webhookretries: 30")}, environment(), "key webhookretries (line 1): 30: want 0 to 20", false},
		"template":   {[]string{url, "-webhook.template={{ .NodeName"}, environment(), "-webhook.template:1: ", false},
		"variable":   {[]string{url}, environment("WEBHOOK_TEMPLATE={{ end }}"), "$WEBHOOK_TEMPLATE:1: ", false},
		"no file":    {[]string{url}, environment("WEBHOOK_TEMPLATE_FILE=/nowhere"), "$WEBHOOK_TEMPLATE_FILE: open /nowhere", false},
		"alert":      {[]string{"-telegram.token=1:a", "-telegram.chatID=1", "-alert.message={{"}, environment(), "-alert.message:1: ", false},
		"token":      {[]string{"-telegram.token=s3cret", "-telegram.chatID=1"}, environment(), "-telegram.token: what is given", true},
		"namespace":  {[]string{"-maxConcurrentDrains=3"}, environment(), "-namespace: \"\": want the agents' own", true},
		"two faults": {[]string{url, "-webhook.retries=30", "-webhook.timeout=11m"}, environment(), "-webhook.timeout: 11m0s", false},
	} {
		o, err := Parse(append([]string{"-node=n"}, c.args...), c.env, io.Discard)
		said := ""
		if err == nil {
			o.CheckTemplates()
			said = strings.Join(o.Warnings, "\n")
		} else {
			said = err.Error()
		}
		if (err != nil) != c.refused || !strings.Contains(said, c.want) || strings.Contains(said, "notifications[") ||
			strings.Contains(said, "--") || strings.Contains(said, "s3cret") {
			t.Errorf("%s: %v, warnings %q, want %q", name, err, o.Warnings, c.want)
		}
	}
}
