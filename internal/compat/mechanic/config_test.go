package mechanic

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// podEnvironment is the environment of every pod of the tool.
var podEnvironment = []string{"MECHANIC_NODE_NAME=n", "PATH=/bin"}

func mustParse(t *testing.T, text string, environ ...string) Config {
	t.Helper()
	c, err := Parse([]byte(text), append(environ, podEnvironment...))
	must.NoError(t, err)
	return c
}

// shippedConfig is the ConfigMap in the tool's manifests.
const shippedConfig = `vmEvents:
  freeze: false
  reboot: true
  redeploy: false
  preempt: true
  terminate: true
  liveMigration: true
optional:
  kernelDeadlock: true
  kubeletProblem: true
  frequentKubeletRestarts: true
  frequentContainerdRestarts: true
  fsCorrupt: true
  pollingInterval: 30
runtimeEnv: prod
enableTracing: true
bypassNodeProblemDetector: false
`

func TestEveryKeyIsReadInEachSpelling(t *testing.T) {
	for _, s := range settings {
		for _, key := range s.keys {
			value := map[bool]string{true: "false", false: "true"}[defaultBool(s)]
			switch s.value(&Config{}).(type) {
			case *int:
				value = "7"
			case *string:
				value = "dev"
			}
			group, name, nested := strings.Cut(key, ".")
			text := key + ": " + value
			if nested {
				text = strings.ToUpper(group) + ":\n  " + name + ": " + value
			}
			c := mustParse(t, text)
			if cmp.Equal(c, mustParse(t, ""), cmpopts.IgnoreFields(Config{}, "Warnings")) {
				t.Errorf("%s: changes nothing", text)
			}
			got := mustParse(t, "", "MECHANIC_"+strings.ToUpper(key)+"="+value)
			if diff := cmp.Diff(c, got, cmpopts.IgnoreFields(Config{}, "Warnings")); diff != "" {
				t.Errorf("%s in the environment: %s", key, diff)
			}
		}
	}
}

// defaultBool returns the default of a boolean setting.
func defaultBool(s setting) bool {
	c := Default()
	b, ok := s.value(&c).(*bool)
	return ok && *b
}

func TestMergeKeysOfFileAreApplied(t *testing.T) {
	c := mustParse(t, "x: &x {freeze: true, redeploy: false}\nscheduledEvents: {<<: *x, redeploy: true}\n")
	if !c.Freeze || !c.Redeploy {
		t.Errorf("freeze %t, redeploy %t: want both", c.Freeze, c.Redeploy)
	}
}

func TestEnvironmentOverridesFile(t *testing.T) {
	c := mustParse(t, "scheduledEvents: {freeze: false}\nruntimeEnv: prod", "MECHANIC_SCHEDULEDEVENTS.FREEZE=true",
		"MECHANIC_RUNTIMEENV=dev", "MECHANIC_VMEVENTS_REBOOT=true", "MECHANIC_ENABLETRACING=")
	if !c.Freeze || c.RuntimeEnv != "dev" || !c.Reboot || !c.EnableTracing || c.NodeName != "n" {
		t.Errorf("%+v", c)
	}
}

func TestSpellingThatMechanicReadsWins(t *testing.T) {
	c := mustParse(t, "vmEvents: {reboot: true}\nscheduledEvents: {reboot: false}")
	if c.Reboot || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "vmEvents.reboot") {
		t.Errorf("reboot %t, warnings %q", c.Reboot, c.Warnings)
	}
}

func TestMissingFileSelectsDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	c, err := Load(path, podEnvironment)
	want := Default()
	want.NodeName, want.Warnings = "n", []string{path + ": not found, using the defaults"}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if _, err := Load(t.TempDir(), podEnvironment); err == nil {
		t.Error("a directory was read as a file")
	}
}

func TestI10BadInputNamesFieldAndRange(t *testing.T) {
	for text, want := range map[string][]string{
		"scheduledEvents: {freeze: maybe}":                     {"line 1", "scheduledEvents.freeze", `"maybe"`, "true or false"},
		"optional:\n  pollingInterval: 30s":                    {"line 2", "optional.pollingInterval", `"30s"`, "whole number"},
		"optional: {fsCorrupt: true, pollingInterval: 300000}": {"optionalConditions.pollingInterval", "300000", "1 to 86400"},
		"scheduledEvents: [freeze]":                            {"line 1", "scheduledEvents", "list"},
		"runtimeEnv: prod\nRuntimeEnv: dev":                    {"runtimeEnv", "already"},
		"bypassNodeProblemDetector: 3a":                        {"bypassNodeProblemDetector", `"3a"`, "true or false"},
		"scheduledEvents: {freeze: true, freeze: 1}":           {"freeze", "already"},
	} {
		_, err := Parse([]byte(text), podEnvironment)
		if err == nil {
			t.Errorf("%q: no error", text)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %q does not contain %q", text, err, part)
			}
		}
	}
	check.ErrorContains(t, check.Err(Parse(nil, nil)), "MECHANIC_NODE_NAME")
	if _, err := Parse(nil, append([]string{"MECHANIC_SCHEDULEDEVENTS.FREEZE=2"}, podEnvironment...)); err == nil ||
		!strings.Contains(err.Error(), `$MECHANIC_SCHEDULEDEVENTS.FREEZE: "2": want true or false`) {
		t.Errorf("bad variable: %v", err)
	}
}

// TestBadFileIsOnlyReportedAtStart tests files that mechanic started with: it warned, and used its defaults for what it
// could not read.
func TestBadFileIsOnlyReportedAtStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	for text, want := range map[string]struct {
		warning string
		change  func(*Config)
	}{
		"scheduledEvents: [": {"line 1", func(*Config) {}},
		"- freeze":           {"want keys", func(*Config) {}},
		"scheduledEvents: {freeze: maybe, reboot: true}":                         {`scheduledEvents.freeze: "maybe"`, func(c *Config) { c.Reboot = true }},
		"scheduledEvents: [freeze]\nruntimeEnv: dev":                             {"scheduledEvents: is a list", func(c *Config) { c.RuntimeEnv = "dev" }},
		"optionalConditions: {fsCorrupt: true, pollingInterval: 30s}":            {`pollingInterval: "30s"`, func(c *Config) { c.FSCorrupt = true }},
		"optional: {fsCorrupt: true, pollingInterval: 300000}":                   {"300000: want 1 to 86400", func(c *Config) { c.FSCorrupt = true }},
		"scheduledEvents: {freeze: true, freeze: true}":                          {"already set", func(c *Config) { c.Freeze = true }},
		"runtimeEnv: dev\nRuntimeEnv: prod":                                      {"already set", func(c *Config) { c.RuntimeEnv = "prod" }},
		"scheduledEvents: {<<: 3}\nruntimeEnv: dev":                              {"scheduledEvents.<<", func(*Config) {}},
		"bypassNodeProblemDetector: {a: 1}":                                      {"keys with values", func(*Config) {}},
		"scheduledEvents: {reboot: 3, redeploy: 0.0}":                            {"3 is converted to true", func(c *Config) { c.Reboot, c.Redeploy = true, false }},
		"optionalConditions: {kernelDeadlock: true, pollingInterval: 0x10}":      {"", func(c *Config) { c.KernelDeadlock, c.PollingInterval = true, 16 }},
		"optionalConditions: {kernelDeadlock: true, pollingInterval: 4.5}":       {"", func(c *Config) { c.KernelDeadlock, c.PollingInterval = true, 4 }},
		"optionalConditions: {kernelDeadlock: true}\noptionalConditions: {a: b}": {"optionalConditions.a", func(c *Config) { c.KernelDeadlock = true }},
	} {
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, err := LoadWithWarnings(path, podEnvironment)
		expected := Default()
		expected.NodeName = "n"
		want.change(&expected)
		if diff := cmp.Diff(expected, c, cmpopts.IgnoreFields(Config{}, "Warnings")); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
		if all := strings.Join(c.Warnings, "\n"); !strings.Contains(all, want.warning) {
			t.Errorf("%q: warnings %q, want %q", text, all, want.warning)
		}
		agent := c.ToAgentConfig()
		if err := agent.Validate(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if c, err := LoadWithWarnings(t.TempDir(), podEnvironment); err != nil || len(c.Warnings) == 0 {
		t.Errorf("a directory instead of the file: %v, warnings %q", err, c.Warnings)
	}
	must.NoError(t, os.WriteFile(path, []byte("scheduledEvents: {reboot: true}"), 0o600))
	if c, err := LoadWithWarnings(path, append([]string{"MECHANIC_SCHEDULEDEVENTS_FREEZE=2"}, podEnvironment...)); err != nil || c.Freeze {
		t.Errorf("a bad variable: %v, freeze %t", err, c.Freeze)
	}
	check.ErrorContains(t, check.Err(LoadWithWarnings(path, nil)), "MECHANIC_NODE_NAME")
}

func TestUnknownKeysAreReportedWithSuggestion(t *testing.T) {
	c := mustParse(t, "scheduledEvent:\n  freeze: true\ncolour: red\noptionalConditions:\n", "MECHANIC_VMEVENTS.REBOOTS=true",
		"MECHANIC_SERVICE_HOST=10.0.0.1", "MECHANIC_PORT_80_TCP=x")
	all := strings.Join(c.Warnings, "\n")
	check.Contains(t, all, "did you mean scheduledEvents?", "line 3: colour", "did you mean $MECHANIC_VMEVENTS.REBOOT?")
	if len(c.Warnings) != 3 {
		t.Errorf("%d warnings, want 3: %q", len(c.Warnings), all)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(shippedConfig, "MECHANIC_RUNTIMEENV=dev")
	f.Add("scheduledEvents: {freeze: &a true, reboot: *a}", "MECHANIC_X=1")
	f.Add("DRAIN_ON_FREEZE: true", "")
	f.Fuzz(func(t *testing.T, text, variable string) {
		c, err := Parse([]byte(text), []string{"MECHANIC_NODE_NAME=n", variable})
		if err == nil && c.PollingInterval < 1 {
			t.Errorf("polling interval %d", c.PollingInterval)
		}
		if a := c.ToAgentConfig(); err == nil && a.Validate() != nil {
			t.Errorf("accepted, but the agent refuses it: %v", a.Validate())
		}
	})
}

func TestOldBooleansAndUnknownKeysAreReported(t *testing.T) {
	c := mustParse(t, "scheduledEvents: {freeze: yes, redeploy: Off}\nplugins: [a]\nextra: {deep: {er: 1}}\n")
	if !c.Freeze || c.Redeploy {
		t.Errorf("%+v", c)
	}
	all := strings.Join(c.Warnings, "\n")
	check.Contains(t, all, "scheduledEvents.freeze: yes", "scheduledEvents.redeploy: Off", "line 2: plugins", "line 3: extra: unknown key")
}
