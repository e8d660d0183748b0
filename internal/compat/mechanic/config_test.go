package mechanic

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// here is the environment that every pod of the tool has.
var here = []string{"MECHANIC_NODE_NAME=n", "PATH=/bin"}

func parse(t *testing.T, text string, environ ...string) Config {
	t.Helper()
	c, err := Parse([]byte(text), append(environ, here...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shipped is the ConfigMap that the tool's manifests have.
const shipped = `vmEvents:
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

func TestEveryKeyIsReadUnderEachOfItsSpellings(t *testing.T) {
	for _, s := range settings {
		for _, key := range s.keys {
			value := map[bool]string{true: "false", false: "true"}[truth(s)]
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
			c := parse(t, text)
			if cmp.Equal(c, parse(t, ""), cmpopts.IgnoreFields(Config{}, "Warnings")) {
				t.Errorf("%s: changes nothing", text)
			}
			got := parse(t, "", "MECHANIC_"+strings.ToUpper(key)+"="+value)
			if diff := cmp.Diff(c, got, cmpopts.IgnoreFields(Config{}, "Warnings")); diff != "" {
				t.Errorf("%s in the environment: %s", key, diff)
			}
		}
	}
}

// truth is the default of a setting that is true or false.
func truth(s setting) bool {
	c := Default()
	b, ok := s.value(&c).(*bool)
	return ok && *b
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	c := parse(t, "scheduledEvents: {freeze: false}\nruntimeEnv: prod", "MECHANIC_SCHEDULEDEVENTS.FREEZE=true",
		"MECHANIC_RUNTIMEENV=dev", "MECHANIC_VMEVENTS_REBOOT=true", "MECHANIC_ENABLETRACING=")
	if !c.Freeze || c.RuntimeEnv != "dev" || !c.Reboot || !c.EnableTracing || c.NodeName != "n" {
		t.Errorf("%+v", c)
	}
}

func TestSpellingThatMechanicReadWinsOverTheOneThatItShipped(t *testing.T) {
	c := parse(t, "vmEvents: {reboot: true}\nscheduledEvents: {reboot: false}")
	if c.Reboot || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "vmEvents.reboot") {
		t.Errorf("reboot %t, warnings %q", c.Reboot, c.Warnings)
	}
}

func TestMissingFileLeavesTheDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	c, err := Load(path, here)
	want := Default()
	want.NodeName, want.Warnings = "n", []string{path + ": is not there: the defaults hold"}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if _, err := Load(t.TempDir(), here); err == nil {
		t.Error("a directory was read as a file")
	}
}

func TestI10BadInputIsRefusedWithFieldValueAndWhatIsAllowed(t *testing.T) {
	for text, want := range map[string][]string{
		"scheduledEvents: {freeze: maybe}":                     {"line 1", "scheduledEvents.freeze", `"maybe"`, "true or false"},
		"optional:\n  pollingInterval: 30s":                    {"line 2", "optional.pollingInterval", `"30s"`, "whole number"},
		"optional: {fsCorrupt: true, pollingInterval: 300000}": {"optionalConditions.pollingInterval", "300000", "1 to 86400"},
		"scheduledEvents: [freeze]":                            {"line 1", "scheduledEvents", "list"},
		"runtimeEnv: prod\nRuntimeEnv: dev":                    {"runtimeEnv", "already"},
		"bypassNodeProblemDetector: 3":                         {"bypassNodeProblemDetector", `"3"`, "true or false"},
		"scheduledEvents: {freeze: true, freeze: 1}":           {"freeze", "already"},
	} {
		_, err := Parse([]byte(text), here)
		if err == nil {
			t.Errorf("%q: no error", text)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %q does not say %q", text, err, part)
			}
		}
	}
	if _, err := Parse(nil, nil); err == nil || !strings.Contains(err.Error(), "MECHANIC_NODE_NAME") {
		t.Errorf("without a node's name: %v", err)
	}
	if _, err := Parse(nil, append([]string{"MECHANIC_SCHEDULEDEVENTS.FREEZE=2"}, here...)); err == nil ||
		!strings.Contains(err.Error(), `$MECHANIC_SCHEDULEDEVENTS.FREEZE: "2": want true or false`) {
		t.Errorf("bad variable: %v", err)
	}
}

func TestUnknownKeysAreWarnedOfWithASuggestion(t *testing.T) {
	c := parse(t, "scheduledEvent:\n  freeze: true\ncolour: red\noptionalConditions:\n", "MECHANIC_VMEVENTS.REBOOTS=true",
		"MECHANIC_SERVICE_HOST=10.0.0.1", "MECHANIC_PORT_80_TCP=x")
	all := strings.Join(c.Warnings, "\n")
	for _, want := range []string{"meant scheduledEvents.freeze?", "line 3: colour", "meant $MECHANIC_VMEVENTS.REBOOT?"} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings %q do not say %q", all, want)
		}
	}
	if len(c.Warnings) != 3 {
		t.Errorf("%d warnings, want 3: %q", len(c.Warnings), all)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(shipped, "MECHANIC_RUNTIMEENV=dev")
	f.Add("scheduledEvents: {freeze: &a true, reboot: *a}", "MECHANIC_X=1")
	f.Add("DRAIN_ON_FREEZE: true", "")
	f.Fuzz(func(t *testing.T, text, variable string) {
		c, err := Parse([]byte(text), []string{"MECHANIC_NODE_NAME=n", variable})
		if err == nil && c.PollingInterval < 1 {
			t.Errorf("polling interval %d", c.PollingInterval)
		}
		if a := c.Config(); err == nil && a.Validate() != nil {
			t.Errorf("is taken, and the agent refuses it: %v", a.Validate())
		}
	})
}
