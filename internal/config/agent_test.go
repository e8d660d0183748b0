package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/condition"
)

func parseAgent(t *testing.T, args ...string) (Agent, error) {
	t.Helper()
	t.Setenv("NODE_NAME", "")
	var c Agent
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.RegisterFlags(fs)
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	return c, c.Validate()
}

func TestAgentDefaultsMatchImpactPolicy(t *testing.T) {
	c, err := parseAgent(t, "--node-name=n")
	if err != nil {
		t.Fatal(err)
	}
	want := agent.DefaultNoticePolicy()
	got := c.BuildNoticePolicy()
	for _, typ := range notice.Types() {
		if got.ActionByType[typ] != want.ActionByType[typ] {
			t.Errorf("%s: %s, want %s", typ, got.ActionByType[typ], want.ActionByType[typ])
		}
	}
	if got.LiveMigrationAction != want.LiveMigrationAction || got.FreezeTolerance != want.FreezeTolerance {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestI10InvalidAgentFlagsAreNamed(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"--node-name", `""`, "NODE_NAME"}},
		{[]string{"--node-name=n", "--nonsense"}, []string{"unknown flag", "--nonsense"}},
		{[]string{"--node-name=n", "--poll-interval=fast"}, []string{"poll-interval", "fast"}},
		{[]string{"--node-name=n", "--poll-interval=0"}, []string{"--poll-interval", "0s", "100ms to 1m"}},
		{[]string{"--node-name=n", "--on-reboot=panic"}, []string{"--on-reboot", `"panic"`, "drain, cordon or ignore"}},
		{[]string{"--node-name=n", "--taint-effect=Never"}, []string{"--taint-effect", `"Never"`, "NoExecute"}},
		{[]string{"--node-name=n", "--deadline-margin=-1s"}, []string{"--deadline-margin", "-1s", "0 to 1m"}},
		{[]string{"--node-name=n", "--listen=9818"}, []string{"--listen", `"9818"`, "host:port"}},
		{[]string{"--node-name=n", "--log-level=loud"}, []string{"--log-level", `"loud"`, "warn"}},
		{[]string{"--node-name=n", "--request-timeout=3m"}, []string{"--first-request-timeout", "at least --request-timeout"}},
		{[]string{"--node-name=n", "--condition=KernelDeadlock"}, []string{"condition", "KernelDeadlock", "want TYPE[:STATUS]=ACTION"}},
		{[]string{"--node-name=n", "--condition=A=drain", "--condition=A=cordon"}, []string{"--condition", "[1]: A is there twice"}},
		{[]string{"--node-name=n", "--on-unconfirmed=acknowledge"}, []string{"--on-unconfirmed", `"acknowledge"`, "drain-marked, drain, cordon or ignore"}},
		{[]string{"--node-name=n", "--unconfirmed-after=1s"}, []string{"--unconfirmed-after", "1s", "10s to 1h"}},
		{[]string{"--node-name=n", "--condition-drain-timeout=-1s"}, []string{"--condition-drain-timeout", "-1s", "0 or more"}},
		{[]string{"--node-name=n", "--max-concurrent-drains=17"}, []string{"--max-concurrent-drains", "17", "0 to 16"}},
		{[]string{"--node-name=n", "--max-concurrent-drains=1", "--namespace="}, []string{"--namespace", `""`, "POD_NAMESPACE"}},
		{[]string{"--node-name=n", "--surge=on"}, []string{"--surge", `"on"`, "never, annotated or always"}},
		{[]string{"--node-name=n", "--surge=always", "--namespace="}, []string{"--namespace", `""`, "--surge needs"}},
		{[]string{"--node-name=n", "--surge=always", "--namespace=s", "--disable-eviction"}, []string{"--surge", `"always"`, "never with --disable-eviction"}},
		{[]string{"--node-name=n", "--on-user-initiated=reboot=drain,Reboot=ignore"}, []string{"--on-user-initiated", `"reboot=drain"`, "Reboot is the same type"}},
		{[]string{"--node-name=n", "--on-user-initiated=meteor=drain"}, []string{"--on-user-initiated", `"meteor"`, "freeze, reboot"}},
		{[]string{"--node-name=n", "--on-user-initiated=reboot=panic"}, []string{"--on-user-initiated", `"reboot=panic"`, "acknowledge"}},
		{[]string{"--node-name=n", "--acknowledge-freeze-under=2h"}, []string{"--acknowledge-freeze-under", "2h0m0s", "0 to 1h"}},
		{[]string{"--node-name=n", "--acknowledge-freeze-under=9s", "--acknowledge=false"}, []string{"--acknowledge-freeze-under", "--acknowledge=false"}},
		{[]string{"--log-format=xml", "--on-freeze="}, []string{"--log-format", "--on-freeze", "--node-name"}},
	} {
		_, err := parseAgent(t, tt.args...)
		if err == nil {
			t.Errorf("%q: no error", tt.args)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %q does not contain %q", tt.args, err, want)
			}
		}
	}
}

func TestFlagsSetImpactPolicy(t *testing.T) {
	c, err := parseAgent(t, "--node-name=n", "--condition=KernelDeadlock=drain,hold=2m", "--condition=Ready:Unknown=cordon",
		"--on-unconfirmed=drain-marked", "--on-user-initiated=reboot=acknowledge,Redeploy=cordon", "--acknowledge-freeze-under=9s")
	if err != nil {
		t.Fatal(err)
	}
	i := c.BuildNoticePolicy()
	for id, want := range map[string]agent.Action{
		"KernelDeadlock": agent.Drain, "Ready-Unknown": agent.Cordon, "RebootScheduled": agent.DrainMarked,
	} {
		if i.ActionByCondition[id] != want {
			t.Errorf("condition %s: %q, want %q", id, i.ActionByCondition[id], want)
		}
	}
	if i.UserInitiatedByType[notice.Reboot] != agent.Acknowledge || i.UserInitiatedByType[notice.Redeploy] != agent.Cordon {
		t.Errorf("user-initiated: %v", i.UserInitiatedByType)
	}
	if i.AcknowledgeFreezeUnder != 9*time.Second || !c.ShouldWatchConditions() {
		t.Errorf("%+v", i)
	}
	c, err = parseAgent(t, "--node-name=n", "--on-unconfirmed=ignore")
	if err != nil || c.ShouldWatchConditions() {
		t.Errorf("conditions are watched without a rule: %v", err)
	}
}

func TestErrorsListEveryAction(t *testing.T) {
	for _, a := range agent.Actions() {
		if !strings.Contains(formatActions(), string(a)) {
			t.Errorf("%s is not in %q", a, formatActions())
		}
	}
	for _, a := range condition.RuleActions() {
		if !strings.Contains(formatConditionActions(), a) || !slices.Contains(agent.Actions(), agent.Action(a)) {
			t.Errorf("%s is not in %q, or is not an agent action", a, formatConditionActions())
		}
	}
}
