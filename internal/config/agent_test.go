package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice"
)

func parse(t *testing.T, args ...string) (Agent, error) {
	t.Helper()
	t.Setenv("NODE_NAME", "")
	var c Agent
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	return c, c.Validate()
}

func TestAgentDefaultsAreTheImpactPolicysOwn(t *testing.T) {
	c, err := parse(t, "--node-name=n")
	if err != nil {
		t.Fatal(err)
	}
	want := agent.DefaultImpact()
	got := c.Impact()
	for _, typ := range notice.Types() {
		if got.On[typ] != want.On[typ] {
			t.Errorf("%s: %s, want %s", typ, got.On[typ], want.On[typ])
		}
	}
	if got.LiveMigration != want.LiveMigration || got.FreezeTolerance != want.FreezeTolerance {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestI10BadAgentFlagsAreRefusedWithFlagValueAndWhatIsAllowed(t *testing.T) {
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
		{[]string{"--log-format=xml", "--on-freeze="}, []string{"--log-format", "--on-freeze", "--node-name"}},
	} {
		_, err := parse(t, tt.args...)
		if err == nil {
			t.Errorf("%q: no error", tt.args)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %q does not say %q", tt.args, err, want)
			}
		}
	}
}
