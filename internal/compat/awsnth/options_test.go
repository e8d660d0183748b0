package awsnth

import (
	"errors"
	"flag"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// allSettings lists each setting of aws-node-termination-handler v1.25.6: flag, variable, default, and another value that
// is valid with the settings in allCompanions.
var allSettings = []struct{ flag, env, defaultValue, other string }{
	{"dry-run", "DRY_RUN", "false", "true"},
	{"node-name", "NODE_NAME", "", "other"},
	{"pod-name", "POD_NAME", "", "pod"},
	{"pod-namespace", "NAMESPACE", "", "kube-system"},
	{"metadata-url", "INSTANCE_METADATA_URL", "http://169.254.169.254", "http://127.0.0.1:1338"},
	{"ignore-daemon-sets", "IGNORE_DAEMON_SETS", "true", "false"},
	{"delete-local-data", "DELETE_LOCAL_DATA", "true", "false"},
	{"kubernetes-service-host", "KUBERNETES_SERVICE_HOST", "", "10.0.0.1"},
	{"kubernetes-service-port", "KUBERNETES_SERVICE_PORT", "", "443"},
	{"grace-period", "GRACE_PERIOD", "-1", "30"},
	{"pod-termination-grace-period", "POD_TERMINATION_GRACE_PERIOD", "-1", "40"},
	{"node-termination-grace-period", "NODE_TERMINATION_GRACE_PERIOD", "120", "7200"},
	{"kube-api-qps", "KUBE_API_QPS", "5", "50"},
	{"kube-api-burst", "KUBE_API_BURST", "10", "100"},
	{"webhook-url", "WEBHOOK_URL", "", "https://example.com/hook"},
	{"webhook-proxy", "WEBHOOK_PROXY", "", "http://proxy:3128"},
	{"webhook-headers", "WEBHOOK_HEADERS", `{"Content-type":"application/json"}`, `{"X-Token":"t"}`},
	{"webhook-template", "WEBHOOK_TEMPLATE", `{"text":"[NTH][Instance Interruption] EventID: {{ .EventID }} - Kind: {{ .Kind }} - Instance: {{ .InstanceID }} - Node: {{ .NodeName }} - Description: {{ .Description }} - Start Time: {{ .StartTime }}"}`, "{{ .Kind }}"},
	{"webhook-template-file", "WEBHOOK_TEMPLATE_FILE", "", "/config/template"},
	{"enable-scheduled-event-draining", "ENABLE_SCHEDULED_EVENT_DRAINING", "true", "false"},
	{"enable-spot-interruption-draining", "ENABLE_SPOT_INTERRUPTION_DRAINING", "true", "false"},
	{"enable-asg-lifecycle-draining", "ENABLE_ASG_LIFECYCLE_DRAINING", "false", "true"},
	{"enable-sqs-termination-draining", "ENABLE_SQS_TERMINATION_DRAINING", "false", "true"},
	{"enable-rebalance-monitoring", "ENABLE_REBALANCE_MONITORING", "false", "true"},
	{"enable-rebalance-draining", "ENABLE_REBALANCE_DRAINING", "false", "true"},
	{"check-asg-tag-before-draining", "CHECK_ASG_TAG_BEFORE_DRAINING", "true", "false"},
	{"check-tag-before-draining", "CHECK_TAG_BEFORE_DRAINING", "true", "false"},
	{"managed-asg-tag", "MANAGED_ASG_TAG", "aws-node-termination-handler/managed", "old/tag"},
	{"managed-tag", "MANAGED_TAG", "aws-node-termination-handler/managed", "tag"},
	{"metadata-tries", "METADATA_TRIES", "3", "9"},
	{"cordon-only", "CORDON_ONLY", "false", "true"},
	{"taint-node", "TAINT_NODE", "false", "true"},
	{"taint-effect", "TAINT_EFFECT", "NoSchedule", "NoExecute"},
	{"enable-out-of-service-taint", "ENABLE_OUT_OF_SERVICE_TAINT", "false", "true"},
	{"exclude-from-load-balancers", "EXCLUDE_FROM_LOAD_BALANCERS", "false", "true"},
	{"json-logging", "JSON_LOGGING", "false", "true"},
	{"log-level", "LOG_LEVEL", "INFO", "Debug"},
	{"log-format-version", "LOG_FORMAT_VERSION", "1", "2"},
	{"uptime-from-file", "UPTIME_FROM_FILE", "", "/uptime"},
	{"enable-prometheus-server", "ENABLE_PROMETHEUS_SERVER", "false", "true"},
	{"prometheus-server-port", "PROMETHEUS_SERVER_PORT", "9092", "9093"},
	{"enable-probes-server", "ENABLE_PROBES_SERVER", "false", "true"},
	{"probes-server-port", "PROBES_SERVER_PORT", "8080", "8081"},
	{"probes-server-endpoint", "PROBES_SERVER_ENDPOINT", "/healthz", "/alive"},
	{"emit-kubernetes-events", "EMIT_KUBERNETES_EVENTS", "false", "true"},
	{"kubernetes-events-extra-annotations", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS", "", "a=b"},
	{"aws-region", "AWS_REGION", "", "eu-west-1"},
	{"aws-endpoint", "AWS_ENDPOINT", "", "http://localstack:4566"},
	{"queue-url", "QUEUE_URL", "", "https://sqs.us-east-1.amazonaws.com/123456789012/other"},
	{"workers", "WORKERS", "10", "20"},
	{"use-provider-id", "USE_PROVIDER_ID", "false", "true"},
	{"complete-lifecycle-action-delay-seconds", "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS", "-1", "15"},
	{"delete-sqs-msg-if-node-not-found", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", "false", "true"},
	{"use-apiserver-cache", "USE_APISERVER_CACHE", "false", "true"},
	{"heartbeat-interval", "HEARTBEAT_INTERVAL", "-1", "60"},
	{"heartbeat-until", "HEARTBEAT_UNTIL", "-1", "600"},
	{"sqs-msg-visibility-timeout-sec", "SQS_MSG_VISIBILITY_TIMEOUT_SEC", "20", "100"},
}

// queueArgs select the queue mode, with all that it requires.
var queueArgs = []string{"-enable-sqs-termination-draining", "-queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/notices"}

// companionsOf returns the flags without which a setting is refused or has no effect.
func companionsOf(name string) []string {
	switch name {
	case "enable-sqs-termination-draining":
		return queueArgs[1:]
	case "heartbeat-until":
		return append(slices.Clone(queueArgs), "-heartbeat-interval=30")
	case "heartbeat-interval", "workers", "queue-url", "sqs-msg-visibility-timeout-sec":
		return queueArgs
	case "webhook-proxy", "webhook-headers", "webhook-template", "webhook-template-file":
		return []string{"-webhook-url=https://example.com/hook"}
	}
	return nil
}

// newEnvironment returns an environment with NAME=VALUE pairs, and a node's name.
func newEnvironment(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range append(pairs, "NODE_NAME=n") {
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

// withoutSources returns the options without the sources of their values.
func withoutSources(o *Options) Options {
	c := *o
	c.sources, c.Warnings = nil, nil
	return c
}

var compareOptions = cmp.AllowUnexported(Options{})

func TestSettingsAreThe57OfTheTool(t *testing.T) {
	ours := toolSettings()
	check.Equal(t, 57, len(allSettings))
	check.Equal(t, len(allSettings), len(ours))
	fs := new(Options).newFlagSet(io.Discard)
	for i, s := range allSettings {
		check.Equal(t, setting{s.flag, s.env}, ours[i], cmp.AllowUnexported(setting{}))
		if f := fs.Lookup(s.flag); f == nil || f.DefValue != s.defaultValue {
			t.Errorf("-%s: flag %+v, want the default %q", s.flag, f, s.defaultValue)
		}
	}
	known := map[string]bool{}
	for _, s := range slices.Concat(ours, ownSettings()) {
		known[s.flag] = true
	}
	fs.VisitAll(func(f *flag.Flag) { check.Not(t, !known[f.Name], "-%s: is in no list", f.Name) })
}

func TestSettingsComeFromFlagsAndEnvironment(t *testing.T) {
	for _, s := range allSettings {
		base := companionsOf(s.flag)
		if s.flag == "queue-url" {
			base = base[:1]
		}
		want := withoutSources(mustParse(t, append(slices.Clone(base), "-"+s.flag+"="+s.other)...))
		if s.flag != "queue-url" { // the queue mode requires it
			check.Not(t, cmp.Equal(want, withoutSources(mustParse(t, base...)), compareOptions), "-%s=%s changes nothing", s.flag, s.other)
		}
		spellings := [][]string{{"--" + s.flag + "=" + s.other}}
		switch s.other {
		case "true":
			spellings = append(spellings, []string{"-" + s.flag}, []string{"-" + s.flag + "=T"}, []string{"-" + s.flag + "=1"})
		case "false":
			spellings = append(spellings, []string{"-" + s.flag + "=F"})
		default:
			spellings = append(spellings, []string{"-" + s.flag, s.other}, []string{"--" + s.flag, s.other})
		}
		for _, args := range spellings {
			args = slices.Concat(base, args)
			if diff := cmp.Diff(want, withoutSources(mustParse(t, args...)), compareOptions); diff != "" {
				t.Errorf("%v: %s", args, diff)
			}
		}
		o, err := ParseOptions(base, func(name string) string {
			if name == s.env {
				return s.other
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

// TestEverySettingChangesConfigurationOrWarns checks that no setting is dropped silently.
func TestEverySettingChangesConfigurationOrWarns(t *testing.T) {
	// These reach the outputs of the compatibility mode directly.
	outputs := []string{
		"pod-name", "kubernetes-service-host", "kubernetes-service-port", "log-format-version", "probes-server-endpoint",
		"emit-kubernetes-events", "kubernetes-events-extra-annotations", "uptime-from-file",
	}
	type outcome struct {
		Agent    any
		Queue    queue.Config
		Warnings []string
		Taints   [][]cordon.Taint
	}
	convert := func(args []string) outcome {
		o := mustParse(t, args...)
		out := outcome{Agent: o.ToAgentConfig(), Queue: o.ToQueueConfig(), Warnings: o.Warnings}
		for _, n := range exampleNotices() {
			out.Taints = append(out.Taints, o.TaintsFor(n))
		}
		return out
	}
	extra := map[string][]string{
		"taint-effect": {"-taint-node"}, "prometheus-server-port": {"-enable-prometheus-server"}, "probes-server-port": {"-enable-probes-server"},
	}
	for _, s := range allSettings {
		if slices.Contains(outputs, s.flag) {
			continue
		}
		base := slices.Concat(companionsOf(s.flag), extra[s.flag])
		before, after := convert(base), convert(append(slices.Clone(base), "-"+s.flag+"="+s.other))
		if cmp.Equal(before, after, cmp.Exporter(func(reflect.Type) bool { return true })) {
			t.Errorf("-%s=%s: changes neither the configuration nor the warnings", s.flag, s.other)
		}
	}
}

func TestFlagsOverrideEnvironmentOverridesDefaults(t *testing.T) {
	o, err := ParseOptions([]string{"-workers=3", "-webhook-url", "-taint-node"}, newEnvironment("WORKERS=4", "METADATA_TRIES=5", "LOG_LEVEL="), io.Discard)
	must.NoError(t, err)
	check.Equal(t, 3, o.Workers)
	check.Equal(t, 5, o.MetadataTries)
	check.Equal(t, "INFO", o.LogLevel) // an empty variable is not set
	check.Not(t, o.TaintNode || o.WebhookURL != "", "the value of -webhook-url was read as a flag")
}

func TestNewNamesOverrideDeprecatedNames(t *testing.T) {
	for _, c := range []struct {
		args    []string
		env     []string
		grace   int
		tag     string
		check   bool
		warning string
	}{
		{nil, nil, -1, "aws-node-termination-handler/managed", true, ""},
		{[]string{"-grace-period=5"}, nil, 5, "aws-node-termination-handler/managed", true, "-grace-period: is an old name, use -pod-termination-grace-period"},
		{[]string{"-grace-period=5"}, []string{"POD_TERMINATION_GRACE_PERIOD=6"}, 6, "aws-node-termination-handler/managed", true, "-grace-period: ignored, because $POD_TERMINATION_GRACE_PERIOD overrides it"},
		{nil, []string{"MANAGED_ASG_TAG=old"}, -1, "old", true, "$MANAGED_ASG_TAG: is an old name"},
		{nil, []string{"MANAGED_ASG_TAG=old", "MANAGED_TAG=new"}, -1, "new", true, "$MANAGED_ASG_TAG: ignored"},
		{nil, []string{"MANAGED_ASG_TAG=same", "MANAGED_TAG=same"}, -1, "same", true, ""},
		{[]string{"-check-asg-tag-before-draining=false"}, nil, -1, "aws-node-termination-handler/managed", false, "is an old name"},
		{[]string{"-check-asg-tag-before-draining=false", "-check-tag-before-draining"}, nil, -1, "aws-node-termination-handler/managed", true, "ignored"},
	} {
		o, err := ParseOptions(slices.Concat(queueArgs, c.args), newEnvironment(c.env...), io.Discard)
		must.NoError(t, err)
		a, q := o.ToAgentConfig(), o.ToQueueConfig()
		if a.GracePeriod != int64(c.grace) || q.ManagedTag != c.tag || q.CheckTag != c.check {
			t.Errorf("%v %v: grace period %d, tag %q, check %t: want %d, %q, %t", c.args, c.env, a.GracePeriod, q.ManagedTag, q.CheckTag, c.grace, c.tag, c.check)
		}
		if warnings := strings.Join(o.Warnings, "\n"); c.warning == "" && warnings != "" || !strings.Contains(warnings, c.warning) {
			t.Errorf("%v %v: warnings %q, want %q", c.args, c.env, warnings, c.warning)
		}
	}
}

func TestI10ValuesTheToolRefusedAreRefused(t *testing.T) {
	inQueueMode := func(args ...string) []string { return slices.Concat(queueArgs, args) }
	for _, c := range []struct {
		args []string
		env  string
		want string
	}{
		{[]string{"-node-name="}, "", `-node-name: "": want the name of this node`},
		{[]string{"-log-level=loud"}, "", `-log-level: "loud": want info, debug or error`},
		{nil, "WORKERS=many", `$WORKERS: "many": want a whole number`},
		{nil, "DRY_RUN=maybe", `$DRY_RUN: "maybe": want true or false`},
		{[]string{"-workers=many"}, "", `invalid value "many" for flag -workers`},
		{[]string{"-taint-node=maybe"}, "", `invalid boolean value "maybe" for -taint-node`},
		{[]string{"-heartbeat-interval=60"}, "", "-heartbeat-interval: 60: want -1 without -enable-sqs-termination-draining"},
		{inQueueMode("-heartbeat-interval=29"), "", "-heartbeat-interval: 29: want 30 to 3600 seconds"},
		{inQueueMode("-heartbeat-interval=3601"), "", "-heartbeat-interval: 3601: want 30 to 3600 seconds"},
		{inQueueMode("-heartbeat-interval=60", "-heartbeat-until=59"), "", "-heartbeat-until: 59: want 60 to 172800 seconds"},
		{inQueueMode("-heartbeat-interval=60", "-heartbeat-until=172801"), "", "-heartbeat-until: 172801: want 60 to 172800 seconds"},
		{inQueueMode("-heartbeat-until=600"), "", "-heartbeat-interval: -1: want a number of seconds, required by -heartbeat-until"},
		{inQueueMode("-heartbeat-interval=600", "-heartbeat-until=60"), "", "-heartbeat-until: 60: want at least -heartbeat-interval, which is 600"},
		{inQueueMode("-sqs-msg-visibility-timeout-sec=0"), "", "-sqs-msg-visibility-timeout-sec: 0: want 1 to 119 seconds"},
		{inQueueMode(), "SQS_MSG_VISIBILITY_TIMEOUT_SEC=120", "$SQS_MSG_VISIBILITY_TIMEOUT_SEC: 120: want 1 to 119 seconds"},
		{queueArgs[:1], "", `-queue-url: "": want the URL of an SQS queue`},
		{[]string{"-max-concurrent-drains=2"}, "", "-pod-namespace"},
		{[]string{"-max-concurrent-drains=-1"}, "", "-max-concurrent-drains: -1: want 0 to"},
	} {
		_, err := ParseOptions(c.args, newEnvironment(c.env), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %s: error %v, want %q", c.args, c.env, err, c.want)
		}
	}
}

// TestOddValuesTheToolAcceptedAreAccepted checks that such a value gives a warning, and a configuration that is valid.
func TestOddValuesTheToolAcceptedAreAccepted(t *testing.T) {
	hook := []string{"-webhook-url=https://example.com/s3cret"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-taint-effect=Never", "-taint-node"}, `-taint-effect: "Never": want NoSchedule, PreferNoSchedule or NoExecute; using NoSchedule`},
		{[]string{"-taint-effect=noexecute", "-taint-node"}, "using NoSchedule"},
		{[]string{"-log-format-version=7"}, "-log-format-version: 7: want 1 or 2; using 2"},
		{[]string{"-log-format-version=-3"}, "using 1"},
		{[]string{"-metadata-url=http://127.0.0.1:1338/latest"}, "using http://127.0.0.1:1338"},
		{[]string{"-metadata-url="}, "using http://169.254.169.254"},
		{[]string{"-metadata-url=169.254.169.254:80"}, "using http://169.254.169.254"},
		{[]string{"-enable-prometheus-server", "-prometheus-server-port=70000"}, "-prometheus-server-port: 70000: want 0 to 65535; nothing is served there"},
		{[]string{"-enable-probes-server", "-probes-server-port=-1"}, "nothing is served there"},
		{[]string{"-enable-probes-server", "-probes-server-endpoint=alive"}, "using /alive"},
		{[]string{"-enable-probes-server", "-probes-server-endpoint="}, "using /healthz"},
		{[]string{"-node-termination-grace-period=-5"}, "limits no drain"},
		{[]string{"-node-termination-grace-period=9999999"}, "limits no drain"},
		{[]string{"-pod-termination-grace-period=-99"}, ""},
		{[]string{"-kubernetes-events-extra-annotations=a=b,c,=d,,e=f=g"}, `"c": want key=value`},
		{[]string{"-queue-url=https://sqs.eu-west-1.amazonaws.com/1/q"}, "-queue-url: ignored without -enable-sqs-termination-draining"},
		{[]string{"-dry-run", "extra", "-taint-node"}, `"extra": is not a flag`},
		{slices.Concat(queueArgs, []string{"-workers=0"}), "-workers: 0: want 1 to 1000; using 1"},
		{slices.Concat(queueArgs, []string{"-workers=100000"}), "using 1000"},
		{slices.Concat(queueArgs, []string{"-complete-lifecycle-action-delay-seconds=7200"}), "using 3600"},
		{slices.Concat(queueArgs, []string{"-sqs-msg-visibility-timeout-sec=2"}), "-sqs-msg-visibility-timeout-sec: 2: want at least 5; using 5"},
		{slices.Concat(queueArgs, []string{"-managed-tag="}), "using aws-node-termination-handler/managed"},
		{slices.Concat(queueArgs, []string{"-enable-spot-interruption-draining=false"}), "has no effect in queue mode"},
		{slices.Concat(hook, []string{"-webhook-proxy=tcp://squid:3128"}), ""},
		{slices.Concat(hook, []string{"-webhook-proxy=squid:3128"}), "using http"},
		{slices.Concat(hook, []string{"-webhook-proxy=http://"}), "the webhook is called without one"},
		{slices.Concat(hook, []string{"-webhook-headers=s3cret"}), "want a JSON object"},
		{slices.Concat(hook, []string{`-webhook-headers={"X-A":"s3cret\n","X-B":1,"X-C":null,"Host":"h"}`}), `header "X-C": want text as its value`},
		{[]string{"-webhook-url=s3cret"}, "no webhook is called"},
		{[]string{"-cordon-only", "-exclude-from-load-balancers", "-enable-out-of-service-taint"}, "has no effect with -cordon-only"},
	} {
		o, err := ParseOptions(c.args, newEnvironment(), io.Discard)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		warnings := strings.Join(o.Warnings, "\n")
		if !strings.Contains(warnings, c.want) || c.want == "" && warnings != "" || strings.Contains(warnings, "s3cret") {
			t.Errorf("%v: warnings %q, want %q", c.args, warnings, c.want)
		}
		a := o.ToAgentConfig()
		a.NodeName = "n" // the queue mode has none
		if err := a.Validate(); err != nil {
			t.Errorf("%v: the agent refuses the configuration: %v", c.args, err)
		}
		if q := o.ToQueueConfig(); o.EnableSQSTerminationDraining {
			if err := q.Validate(); err != nil {
				t.Errorf("%v: the queue refuses the configuration: %v", c.args, err)
			}
		}
	}
}

func TestUnknownFlagIsUsageErrorUnlikeHelp(t *testing.T) {
	var usage strings.Builder
	_, err := ParseOptions([]string{"-nope"}, newEnvironment(), &usage)
	if _, is := errors.AsType[*compat.UsageError](err); !is || !strings.Contains(usage.String(), "-taint-node") {
		t.Errorf("%v, usage %q", err, usage.String())
	}
	if _, err := ParseOptions([]string{"-help"}, newEnvironment(), io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
	if o, err := ParseOptions([]string{"-version"}, func(string) string { return "" }, io.Discard); err != nil || !o.ShowVersion {
		t.Errorf("version: %v", err)
	}
}

// exampleNotices returns one notice of each kind, with IDs as package aws and package queue give them.
func exampleNotices() map[string]notice.Notice {
	return map[string]notice.Notice{
		"spot":       {ID: "spot-0123456789abcdef", Type: notice.Preempt},
		"rebalance":  {ID: "rebalance-0123456789abcdef", Type: notice.Rebalance},
		"asg":        {ID: "asg-0123456789abcdef", Type: notice.Terminate},
		"retirement": {ID: "instance-event-0d59937288b749b32", Type: notice.Terminate},
		"reboot":     {ID: "instance-event-1", Type: notice.Reboot},
		"freeze":     {ID: "instance-event-2", Type: notice.Freeze, Duration: -1},
		"state":      {ID: "state-change-7", Type: notice.Terminate},
		"condition":  {ID: "KernelDeadlock", Type: notice.Condition},
	}
}

func TestActionsFollowTheToolsSwitches(t *testing.T) {
	const drain, cordonOnly, ignore = agent.Drain, agent.Cordon, agent.Ignore
	for _, c := range []struct {
		args                                                    []string
		spot, rebalance, asg, retirement, reboot, freeze, state agent.Action
	}{
		{nil, drain, ignore, ignore, drain, drain, drain, ignore},
		{[]string{"-enable-asg-lifecycle-draining"}, drain, ignore, drain, drain, drain, drain, ignore},
		{[]string{"-enable-scheduled-event-draining=false", "-enable-asg-lifecycle-draining"}, drain, ignore, drain, ignore, ignore, ignore, ignore},
		{[]string{"-enable-spot-interruption-draining=false"}, ignore, ignore, ignore, drain, drain, drain, ignore},
		{[]string{"-enable-rebalance-monitoring"}, drain, cordonOnly, ignore, drain, drain, drain, ignore},
		{[]string{"-enable-rebalance-monitoring", "-enable-rebalance-draining"}, drain, drain, ignore, drain, drain, drain, ignore},
		{[]string{"-enable-rebalance-draining"}, drain, drain, ignore, drain, drain, drain, ignore},
		{[]string{"-cordon-only", "-enable-rebalance-draining"}, cordonOnly, cordonOnly, ignore, cordonOnly, cordonOnly, cordonOnly, ignore},
		{queueArgs, drain, drain, drain, drain, drain, drain, drain},
		{slices.Concat(queueArgs, []string{"-enable-spot-interruption-draining=false"}), drain, drain, drain, drain, drain, drain, drain},
		{slices.Concat(queueArgs, []string{"-cordon-only"}), cordonOnly, cordonOnly, cordonOnly, cordonOnly, cordonOnly, cordonOnly, cordonOnly},
	} {
		o := mustParse(t, c.args...)
		a := o.ToAgentConfig()
		policy := a.BuildNoticePolicy()
		policy.ActionFor = o.ActionFor
		n := exampleNotices()
		for name, want := range map[string]agent.Action{
			"spot": c.spot, "rebalance": c.rebalance, "asg": c.asg, "retirement": c.retirement, "reboot": c.reboot, "freeze": c.freeze, "state": c.state,
			"condition": ignore,
		} {
			if got := policy.Decide(n[name], agent.SeenTimes{First: time.Now()}); got.Action != want {
				t.Errorf("%v: %s: action %s, want %s", c.args, name, got.Action, want)
			}
		}
	}
}

func TestTaintsHaveTheToolsKeys(t *testing.T) {
	n := exampleNotices()
	outOfService := cordon.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"}
	taint := func(name string) cordon.Taint {
		return cordon.Taint{Key: "aws-node-termination-handler/" + name, Effect: "PreferNoSchedule"}
	}
	o := mustParse(t, "-taint-node", "-taint-effect=PreferNoSchedule", "-enable-out-of-service-taint", "-enable-rebalance-monitoring", "-enable-asg-lifecycle-draining")
	for name, want := range map[string][]cordon.Taint{
		"spot":       {taint("spot-itn"), outOfService},
		"rebalance":  {taint("rebalance-recommendation")}, // it is only cordoned
		"asg":        {taint("asg-lifecycle-termination"), outOfService},
		"retirement": {taint("scheduled-maintenance"), outOfService},
		"reboot":     {taint("scheduled-maintenance"), outOfService},
		"condition":  nil,
	} {
		got := o.TaintsFor(n[name])
		for i := range got {
			check.Not(t, got[i].Value == "", "%s: the taint %s has no value", name, got[i].Key)
			if got[i].Key != outOfService.Key {
				got[i].Value = "" // the ID of the event
			}
		}
		check.Equal(t, want, got)
	}
	check.Equal(t, []cordon.Taint(nil), mustParse(t).TaintsFor(n["spot"]))
	check.Equal(t, []cordon.Taint(nil), mustParse(t, "-cordon-only", "-enable-out-of-service-taint").TaintsFor(n["spot"]))
}

func TestNodeThatIsOnlyCordonedStaysBehindLoadBalancers(t *testing.T) {
	const label = "node.kubernetes.io/exclude-from-external-load-balancers"
	n := exampleNotices()
	for _, c := range []struct {
		args            []string
		spot, rebalance bool
	}{
		{[]string{"-exclude-from-load-balancers"}, true, false},
		{[]string{"-exclude-from-load-balancers", "-enable-rebalance-monitoring"}, true, false},
		{[]string{"-exclude-from-load-balancers", "-enable-rebalance-draining"}, true, true},
		{[]string{"-exclude-from-load-balancers", "-cordon-only", "-enable-rebalance-draining"}, false, false},
		{[]string{"-enable-rebalance-draining"}, false, false},
	} {
		o := mustParse(t, c.args...)
		for name, want := range map[string]bool{"spot": c.spot, "rebalance": c.rebalance} {
			// The agent acts on no notice that it ignores, so it sets no label for it.
			action, _ := o.ActionFor(n[name])
			always := action != agent.Ignore && o.ToAgentConfig().Labels[label] != ""
			if got := always || o.LabelsFor(n[name], time.Now())[label] != ""; got != want {
				t.Errorf("%v: %s: label %v, want %v", c.args, name, got, want)
			}
		}
	}
}

func TestQueueSettingsAreConverted(t *testing.T) {
	want := queue.NewDefaultConfig()
	want.URL, want.Region = "https://sqs.eu-west-1.amazonaws.com/123456789012/notices", "eu-west-1"
	want.CheckTag, want.UseNodeNameByDNS, want.NoHeartbeats, want.Visibility = true, true, true, 20*time.Second
	check.Equal(t, want, mustParse(t, queueArgs...).ToQueueConfig())

	want.Region, want.Endpoint, want.Workers, want.Visibility = "us-gov-west-1", "http://localhost:4566", 7, 90*time.Second
	want.CheckTag, want.ManagedTag, want.UseNodeNameByDNS, want.DeleteIfNodeNotFound = false, "t", false, true
	want.NoHeartbeats, want.HeartbeatInterval, want.HeartbeatUntil, want.HookTimeout = false, 30*time.Second, 48*time.Hour, 48*time.Hour
	want.LeaseNamespace = "kube-system"
	want.CompletionDelay, want.Acknowledge = 10*time.Second, false
	check.Equal(t, want, mustParse(t, slices.Concat(queueArgs, []string{
		"-aws-region=us-gov-west-1", "-aws-endpoint=http://localhost:4566", "-workers=7", "-sqs-msg-visibility-timeout-sec=90",
		"-check-tag-before-draining=false", "-managed-tag=t", "-use-provider-id", "-delete-sqs-msg-if-node-not-found",
		"-heartbeat-interval=30", "-complete-lifecycle-action-delay-seconds=10", "-acknowledge=false", "-pod-namespace=kube-system",
	})...).ToQueueConfig())
	for url, region := range map[string]string{
		"https://sqs.us-gov-east-1.amazonaws.com/1/q": "us-gov-east-1", "https://eu-west-1.queue.amazonaws.com/1/q": "eu-west-1",
		"https://sqs.cn-north-1.amazonaws.com.cn/1/q": "cn-north-1", "http://localhost:4566/1/my-queue-1": "", "https://queue.amazonaws.com/1/q": "",
		"https://vpce-0ab-12.sqs.eu-west-3.vpce.amazonaws.com/1/q": "eu-west-3", "https://sqs.us-iso-east-1.c2s.ic.gov/1/q": "us-iso-east-1",
		"https://sqs.us-isob-east-1.sc2s.sgov.gov/1/q": "us-isob-east-1", "https://sqs.eu-isoe-west-1.cloud.adc-e.uk/1/q": "eu-isoe-west-1",
		"https://sqs.us-isof-south-1.csp.hci.ic.gov/1/q": "us-isof-south-1", "https://sqs.eusc-de-east-1.amazonaws.eu/1/q": "eusc-de-east-1",
		"https://sqs-fips.us-east-1.api.aws/1/q": "us-east-1", "http://sqs-mock-1.test-ns-2/1/q": "", "http://sqs-mock-1.test.svc/1/q": "",
	} {
		check.Equal(t, region, regionInURL(url))
	}
}

func TestFlagsOfPodAndAPIServerReachTheEnvironment(t *testing.T) {
	check.Equal(t, map[string]string{}, mustParse(t).KubernetesEnvironment())
	want := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "POD_NAME": "p", "POD_NAMESPACE": "ns"}
	check.Equal(t, want, mustParse(t, "-kubernetes-service-host=10.0.0.1", "-kubernetes-service-port=443", "-pod-name=p", "-pod-namespace=ns").KubernetesEnvironment())
}

func TestServersListenOnTheToolsPorts(t *testing.T) {
	for _, c := range []struct {
		args                    []string
		listen, metrics, probes string
	}{
		{nil, "", "", ""},
		{[]string{"-enable-prometheus-server"}, ":9092", ":9092", ""},
		{[]string{"-enable-probes-server"}, ":8080", "", ":8080"},
		{[]string{"-enable-prometheus-server", "-enable-probes-server", "-probes-server-port=81"}, ":9092", ":9092", ":81"},
	} {
		o := mustParse(t, c.args...)
		check.Equal(t, []string{c.listen, c.metrics, c.probes}, []string{o.ToAgentConfig().Listen, o.MetricsAddress(), o.ProbesAddress()})
	}
}

func TestWebhookIsConvertedToOneReceiver(t *testing.T) {
	o := mustParse(t, "-webhook-url=https://example.com/hook", `-webhook-headers={"content-Type":"text/plain","X-Token":"t","X-Number":7}`,
		"-webhook-proxy=tcp://squid:3128")
	all := o.ToReceivers()
	must.NoError(t, all[0].Validate())
	w := all[0].Webhook
	check.Equal(t, "text/plain", w.ContentType)
	check.Equal(t, map[string]string{"X-Token": "t", "X-Number": "7"}, w.Headers)
	check.Equal(t, "http://squid:3128", w.Proxy)
	check.Equal(t, defaultWebhookTemplate, w.Template)
	o = mustParse(t, "-webhook-url=https://example.com/hook", "-webhook-template-file=/f")
	w = o.ToReceivers()[0].Webhook
	check.Equal(t, "direct /f ", w.Proxy+" "+w.TemplateFile+" "+w.Template)
}

// FuzzCommandLine checks that accepted settings result in configurations that the agent and the queue accept. Only the URLs
// of the queue mode may be invalid: the tool could not use them either.
func FuzzCommandLine(f *testing.F) {
	f.Add("-taint-node -node-name=x\n-webhook-headers={}\n-webhook-url=http://h")
	f.Add("--\n-x")
	f.Add(strings.Join(queueArgs, "\n") + "\n-workers\n0x10\n-heartbeat-interval=60")
	for _, s := range allSettings {
		f.Add("-" + s.flag + "=" + s.other)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\n")
		o, err := ParseOptions(args, newEnvironment(), io.Discard)
		if err != nil || o.ShowVersion {
			return
		}
		a, q := o.ToAgentConfig(), o.ToQueueConfig()
		a.NodeName, a.ASG.Endpoint = "n", ""
		if err := a.Validate(); err != nil {
			t.Errorf("%q is accepted and results in an invalid agent: %v", args, err)
		}
		q.URL, q.Endpoint = "http://q", ""
		if err := q.Validate(); err != nil && o.EnableSQSTerminationDraining {
			t.Errorf("%q is accepted and results in an invalid queue: %v", args, err)
		}
		if m, err := Migrate(args, io.Discard); err == nil {
			if _, err := m.ToFile(); err != nil {
				t.Errorf("%q cannot be migrated: %v", args, err)
			}
		}
	})
}
