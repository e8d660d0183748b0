package mechanic

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notice/condition"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// Each test below covers one known fault of mechanic (M1 and so on). Tests that need a cluster are in dev/e2e/compat.

// decideAction returns the action of the agent with a configuration file for a notice.
func decideAction(t *testing.T, text string, n notice.Notice) agent.Action {
	t.Helper()
	file := mustParse(t, text)
	c := file.ToAgentConfig()
	must.NoError(t, c.Validate())
	n.Source, n.Status = azure.SourceName, notice.Scheduled
	n.NotBefore = time.Now().Add(time.Minute)
	return c.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action
}

var (
	liveMigrationNotice = notice.Notice{Type: notice.Freeze, LiveMigration: true, Duration: 5 * time.Second}
	freezeNotice        = notice.Notice{Type: notice.Freeze, Duration: 5 * time.Second}
	endlessFreezeNotice = notice.Notice{Type: notice.Freeze, Duration: -1}
)

func newNotice(kind notice.Type) notice.Notice { return notice.Notice{Type: kind, Duration: -1} }

func TestM01EverySwitchWorksInBothModes(t *testing.T) {
	for _, mode := range []string{"", "bypassNodeProblemDetector: true\n"} {
		for _, c := range []struct {
			text string
			n    notice.Notice
			want agent.Action
		}{
			{"", newNotice(notice.Preempt), agent.Drain},
			{"", newNotice(notice.Terminate), agent.Drain},
			{"", newNotice(notice.Redeploy), agent.Drain},
			{"", newNotice(notice.Reboot), agent.Ignore},
			{"", liveMigrationNotice, agent.Drain},
			{"", freezeNotice, agent.Ignore},
			{"scheduledEvents: {reboot: true}", newNotice(notice.Reboot), agent.Drain},
			{"scheduledEvents: {preempt: false}", newNotice(notice.Preempt), agent.Ignore},
			{"scheduledEvents: {freeze: true}", freezeNotice, agent.Drain},
			{"scheduledEvents: {freeze: true}", endlessFreezeNotice, agent.Drain},
		} {
			check.Is(t, c.want, decideAction(t, mode+c.text, c.n), mode, c.text, c.n.Type, c.n.LiveMigration)
		}
	}
}

func TestM03ShippedSpellingIsApplied(t *testing.T) {
	check.Is(t, agent.Drain, decideAction(t, shippedConfig, newNotice(notice.Reboot)))
	check.Is(t, agent.Ignore, decideAction(t, shippedConfig, newNotice(notice.Redeploy)))
	shippedFile := mustParse(t, shippedConfig)
	check.Is(t, 5, len(shippedFile.ToAgentConfig().Conditions))
}

// TestM04MissingKeysKeepDefaultsAfterEachReload reads a file again and again, like an edited ConfigMap. Nothing of an
// earlier state may remain, and a missing key must keep its default.
func TestM04MissingKeysKeepDefaultsAfterEachReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	write := func(text string) {
		t.Helper()
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, step := range []struct {
		text                                                   string
		freeze, reboot, redeploy, preempt, terminate, migrates bool
		polling                                                int
		env                                                    string
	}{
		{"", false, false, true, true, true, true, 30, "prod"},
		{"scheduledEvents: {redeploy: false, preempt: false}\noptionalConditions: {pollingInterval: 5}", false, false, false, false, true, true, 5, "prod"},
		{"runtimeEnv: dev", false, false, true, true, true, true, 30, "dev"},
		{shippedConfig, false, true, false, true, true, true, 30, "prod"},
		{"vmEvents: {freeze: true}", true, false, true, true, true, true, 30, "prod"},
		{"scheduledEvents: {liveMigration: false}", false, false, true, true, true, false, 30, "prod"},
	} {
		write(step.text)
		c, err := Load(path, podEnvironment)
		must.NoError(t, err)
		if c.Freeze != step.freeze || c.Reboot != step.reboot || c.Redeploy != step.redeploy || c.Preempt != step.preempt ||
			c.Terminate != step.terminate || c.LiveMigration != step.migrates || c.PollingInterval != step.polling ||
			c.RuntimeEnv != step.env || c.NodeName != "n" {
			t.Errorf("%q: %+v, want %+v", step.text, c, step)
		}
	}
}

func TestM08ConditionsHaveHysteresis(t *testing.T) {
	file := mustParse(t, "optional: {kernelDeadlock: true, pollingInterval: 7}")
	rules := file.ToAgentConfig().Conditions
	if len(rules) != 1 || time.Duration(*rules[0].HoldDown) != 7*time.Second || rules[0].Release != nil {
		t.Errorf("%+v: want HoldDown to be the polling interval, and the default Release", rules)
	}
}

func TestM09SwitchesAreIndependent(t *testing.T) {
	for _, mode := range []string{"", "bypassNodeProblemDetector: true\n"} {
		check.Is(t, agent.Ignore, decideAction(t, mode+"scheduledEvents: {liveMigration: false}", liveMigrationNotice), mode)
		check.Is(t, agent.Ignore, decideAction(t, mode+"scheduledEvents: {freeze: true, liveMigration: false}", liveMigrationNotice), mode)
		check.Is(t, agent.Drain, decideAction(t, mode+"scheduledEvents: {freeze: true, liveMigration: false}", freezeNotice), mode)
		check.Is(t, agent.Ignore, decideAction(t, mode+"scheduledEvents: {freeze: true}", newNotice(notice.Reboot)), mode)
	}
	file := mustParse(t, "scheduledEvents: {freeze: false}\noptionalConditions: {fsCorrupt: true}")
	c := file.ToAgentConfig()
	n := notice.Notice{Type: notice.Condition, ID: "FileSystemCorruptionProblem"}
	check.Is(t, agent.Drain, c.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action)
}

// unreadMetadata is a metadata service that was never read.
type unreadMetadata struct{}

func (unreadMetadata) RequestPoll()        {}
func (unreadMetadata) LastRead() time.Time { return time.Time{} }

// TestM09UnconfirmedHintOverridesNoCondition has both on the node while the metadata service is unreadable. mechanic did
// nothing then, although for the condition alone it drained without the metadata service.
func TestM09UnconfirmedHintOverridesNoCondition(t *testing.T) {
	for bypass, want := range map[bool]map[string]agent.Action{
		false: {"KernelDeadlock": agent.Drain, "VMEventScheduled": agent.Ignore},
		true:  {"VMEventScheduled": agent.Ignore}, // in that mode a condition waits for the metadata service, as in mechanic
	} {
		synctest.Test(t, func(t *testing.T) {
			file := mustParse(t, fmt.Sprintf("optionalConditions: {kernelDeadlock: true}\nbypassNodeProblemDetector: %t", bypass))
			c := file.ToAgentConfig()
			source, err := condition.NewSource(condition.Options{Rules: c.Conditions, Metadata: unreadMetadata{},
				UnconfirmedDelay: c.UnconfirmedAfter, RequireMetadata: file.BypassNodeProblemDetector})
			must.NoError(t, err)
			var node kubeapi.Node
			for _, kind := range []string{"KernelDeadlock", "VMEventScheduled"} {
				node.Status.Conditions = append(node.Status.Conditions, kubeapi.Condition{Type: kind, Status: "True"})
			}
			var latest notice.Snapshot
			go source.Run(t.Context(), func(s notice.Snapshot) { latest = s })
			source.ObserveNode(&node)
			time.Sleep(c.UnconfirmedAfter + time.Minute)
			synctest.Wait()
			got := map[string]agent.Action{}
			for _, n := range latest.Notices {
				kind, _, _ := strings.Cut(n.Description, " ")
				got[kind] = c.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("bypass %t: %s", bypass, diff)
			}
		})
	}
}

func TestDetectorHintNeedsMetadataService(t *testing.T) {
	for _, mode := range []string{"", "bypassNodeProblemDetector: true\n"} {
		n := notice.Notice{Type: notice.Condition, ID: "VMEventScheduled"}
		check.Is(t, agent.Ignore, decideAction(t, mode, n), mode)
	}
}

func TestM10LiveMigrationIsDetectedInAnyCase(t *testing.T) {
	document := azure.Document(`{"DocumentIncarnation":1,"Events":[{"EventId":"e","EventType":"Freeze","EventStatus":"Scheduled",` +
		`"Resources":["vm"],"ResourceType":"VirtualMachine","NotBefore":"","DurationInSeconds":5,"EventSource":"Platform",` +
		`"Description":"MEMORY-PRESERVING LIVE MIGRATION"}]}`)
	s, err := document.ToSnapshot("vm", time.Now())
	check.Not(t, err != nil || len(s.Notices) != 1 || !s.Notices[0].LiveMigration || s.Notices[0].Duration != 5*time.Second, "%+v, %v", s, err)
	none := notice.Notice{Type: notice.Freeze, Duration: 0}
	check.Is(t, agent.Ignore, decideAction(t, "scheduledEvents: {freeze: true}", none))
}

func TestM11DeadlineLimitsDrainAndEventIsAcknowledged(t *testing.T) {
	file := mustParse(t, "")
	c := file.ToAgentConfig()
	d := c.BuildNoticePolicy().Decide(notice.Notice{Type: notice.Preempt, NotBefore: time.Now().Add(time.Hour)}, agent.SeenTimes{First: time.Now()})
	check.Not(t, !d.Forced || time.Until(d.Deadline) < 59*time.Minute || !c.Acknowledge || c.DeadlineMargin <= 0, "%+v, acknowledge %t", d, c.Acknowledge)
}

func TestM12MachineIsIdentifiedByProviderID(t *testing.T) {
	const group = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/"
	for id, want := range map[string]string{
		group + "virtualMachines/aks-default-x7k2p":                  "aks-default-x7k2p", // Karpenter
		group + "virtualMachineScaleSets/a-vmss/virtualMachines/10":  "a-vmss_10",
		group + "virtualMachines/ab":                                 "ab", // shorter than six
		group + "virtualMachines/aks-pool-12345678-vms1":             "aks-pool-12345678-vms1",
		group + "virtualMachineScaleSets/aks-x/virtualMachines/0001": "aks-x_0001",
	} {
		got, err := providerid.ScheduledEventName(id)
		check.Not(t, err != nil || got != want, "%s: %s, %v", id, got, err)
	}
	file := mustParse(t, "")
	c := file.ToAgentConfig()
	check.Not(t, c.ResourceName != "", "resource name %q, want it from the provider ID", c.ResourceName)
}

// readAgentManifest returns the manifest of the agent's DaemonSet.
func readAgentManifest(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "agent", "daemonset.yaml"))
	must.NoError(t, err)
	return string(raw)
}

func TestM16AgentNeedsNoPrivileges(t *testing.T) {
	text := readAgentManifest(t)
	for _, privilege := range []string{"privileged: true", "hostPID: true", "hostNetwork: true"} {
		check.Not(t, strings.Contains(text, privilege), "the manifest has %s", privilege)
	}
	check.Contains(t, text, "runAsNonRoot: true", "allowPrivilegeEscalation: false", "drop: [ALL]")
}

func TestM17AgentRunsOnEveryNode(t *testing.T) {
	var d struct {
		Spec struct {
			Template struct {
				Spec struct {
					PriorityClassName string `json:"priorityClassName"`
					Tolerations       []struct{ Key, Operator, Effect string }
				}
			}
		}
	}
	must.NoError(t, yaml.Unmarshal([]byte(readAgentManifest(t)), &d))
	pod := d.Spec.Template.Spec
	if len(pod.Tolerations) != 1 || pod.Tolerations[0].Key != "" || pod.Tolerations[0].Operator != "Exists" ||
		pod.Tolerations[0].Effect != "" || pod.PriorityClassName == "" {
		t.Errorf("%+v: want all taints tolerated, and a priority", pod)
	}
}

// TestM18DaemonSetsSelectTheirOwnPods checks all shipped manifests.
func TestM18DaemonSetsSelectTheirOwnPods(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "deploy", "*", "*.yaml"))
	must.NoError(t, err)
	selectors := map[string]string{} // selector to file
	for _, file := range files {
		raw, err := os.ReadFile(file)
		must.NoError(t, err)
		for _, document := range strings.Split(string(raw), "\n---\n") {
			var d daemonSetManifest
			if err := yaml.Unmarshal([]byte(document), &d); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if d.Kind != "DaemonSet" {
				continue
			}
			pod := d.Spec.Template.Spec
			os := pod.NodeSelector["kubernetes.io/os"]
			check.Not(t, os != "linux" && os != "windows", "%s: kubernetes.io/os is %q, want linux or windows", file, os)
			if strings.Contains(strings.ReplaceAll(document, "kubernetes.azure.com/os-sku", ""), "os-sku") {
				t.Errorf("%s: selects the label os-sku, which AKS does not set: want kubernetes.azure.com/os-sku", file)
			}
			check.Not(t, os == "windows" && (pod.HostPID || strings.Contains(document, "privileged: true")), "%s: requires Linux features on Windows", file)
			selector := fmt.Sprint(d.Spec.Selector.MatchLabels)
			other, there := selectors[selector]
			check.Not(t, there || len(d.Spec.Selector.MatchLabels) == 0, "%s: the selector %s is also used in %s", file, selector, other)
			selectors[selector] = file
			for key, value := range d.Spec.Selector.MatchLabels {
				check.Not(t, d.Spec.Template.Metadata.Labels[key] != value, "%s: its own pods lack %s=%s", file, key, value)
			}
		}
	}
	check.Not(t, len(selectors) == 0, "no DaemonSet is shipped")
}

// daemonSetManifest contains the checked fields of a DaemonSet.
type daemonSetManifest struct {
	Kind string
	Spec struct {
		Selector struct{ MatchLabels map[string]string }
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				NodeSelector map[string]string
				HostPID      bool
			}
		}
	}
}

func TestM21ForeignCordonHasOwnEvent(t *testing.T) {
	words, ok := NewEventFormatter("n")(agent.EventTrigger{Reason: agent.FoundCordoned})
	check.Not(t, !ok || len(words) != 1 || words[0].Message != "Node n is already cordoned, no need to attempt a cordon.", "%+v", words)
}

func TestEventsMatchTool(t *testing.T) {
	voice := NewEventFormatter("X")
	for reason, want := range map[agent.EventReason]agent.FormattedEvent{
		agent.NodeCordoned:   {Type: "Normal", Reason: "CordonNode", Message: "Node X cordoned by mechanic"},
		agent.FoundCordoned:  {Type: "Normal", Reason: "CordonNode", Message: "Node X is already cordoned, no need to attempt a cordon."},
		agent.CordonFailed:   {Type: "Warning", Reason: "CordonNode", Message: "Failed to cordon node X"},
		agent.DrainDone:      {Type: "Normal", Reason: "DrainNode", Message: "Node X drained by mechanic"},
		agent.DrainFailed:    {Type: "Warning", Reason: "DrainNode", Message: "Failed to drain node X"},
		agent.NodeUncordoned: {Type: "Normal", Reason: "UncordonNode", Message: "Node X uncordoned by mechanic"},
		agent.UncordonFailed: {Type: "Warning", Reason: "UncordonNode", Message: "Failed to uncordon node X"},
	} {
		want.Component = "mechanic"
		if got, ok := voice(agent.EventTrigger{Reason: reason}); !ok || !cmp.Equal(got, []agent.FormattedEvent{want}) {
			t.Errorf("%s: %+v", reason, got)
		}
	}
	if _, ok := voice(agent.EventTrigger{Reason: agent.DrainBlocked}); ok {
		t.Error("want no Event, as with mechanic")
	}
}

func TestMigratedFileIsValidForAgent(t *testing.T) {
	for _, text := range []string{"", shippedConfig, "scheduledEvents: {freeze: true}\nbypassNodeProblemDetector: true\nruntimeEnv: dev"} {
		m, err := Migrate([]byte(text))
		must.NoError(t, err)
		raw, err := m.ToFile()
		must.NoError(t, err)
		got, err := config.DecodeAgentFile(raw)
		must.Not(t, err != nil, "%v in\n%s", err, raw)
		file := mustParse(t, text)
		want := file.ToAgentConfig()
		want.NodeName = got.NodeName
		check.Not(t, string(mustWrite(t, got)) != string(mustWrite(t, want)), "%s\ndiffers from the agent for %q", raw, text)
	}
}

func mustWrite(t *testing.T, a config.Agent) []byte {
	t.Helper()
	raw, err := a.EncodeFile()
	must.NoError(t, err)
	return raw
}

func TestNotesListStayingPodsAndIgnoredEvents(t *testing.T) {
	for text, want := range map[string]string{
		"scheduledEvents: {freeze: true}":            "DurationInSeconds 0 interrupts nothing and is ignored, unless it is a live migration",
		"scheduledEvents: {reboot: true}":            "for a Reboot",
		"optionalConditions: {kernelDeadlock: true}": "conditionDrainTimeout",
	} {
		m, err := Migrate([]byte(text))
		with := strings.Join(m.Notes, "\n")
		check.Not(t, err != nil || !strings.Contains(with, want), "%s: %v: no %q in\n%s", text, err, want, with)
		m, err = Migrate(nil)
		without := strings.Join(m.Notes, "\n")
		check.Not(t, err != nil || strings.Contains(without, want), "nothing: %v: %q in\n%s", err, want, without)
	}
}

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
			check.Not(t, cmp.Equal(c, mustParse(t, ""), cmpopts.IgnoreFields(Config{}, "Warnings")), "%s: changes nothing", text)
			got := mustParse(t, "", "MECHANIC_"+strings.ToUpper(key)+"="+value)
			if diff := cmp.Diff(c, got, cmpopts.IgnoreFields(Config{}, "Warnings")); diff != "" {
				t.Errorf("%s in the environment: %s", key, diff)
			}
		}
	}
}

// TestFirstKeyCountsInFileAndEnvironment sets one setting by two of its keys. mechanic read only the first one.
func TestFirstKeyCountsInFileAndEnvironment(t *testing.T) {
	for _, environ := range [][]string{
		{"MECHANIC_VMEVENTS_PREEMPT=false", "MECHANIC_SCHEDULEDEVENTS_PREEMPT=true"},
		{"MECHANIC_SCHEDULEDEVENTS.PREEMPT=true", "MECHANIC_DRAIN_ON_PREEMPT=false"},
	} {
		c := mustParse(t, "", environ...)
		warnings := strings.Join(c.Warnings, "\n")
		check.Not(t, !c.Preempt, "%q: preempt is off; %s", environ, warnings)
		check.Contains(t, warnings, "PREEMPT: false is ignored, because $MECHANIC_SCHEDULEDEVENTS", "overrides it with true")
	}
	c := mustParse(t, "vmEvents: {preempt: false}\nscheduledEvents: {preempt: true}")
	check.Not(t, !c.Preempt, "preempt is off; %q", c.Warnings)
	c = mustParse(t, "scheduledEvents: {preempt: true}", "MECHANIC_VMEVENTS_PREEMPT=false")
	check.Not(t, c.Preempt, "want the only variable to override the file; %q", c.Warnings)
}

// defaultBool returns the default of a boolean setting.
func defaultBool(s setting) bool {
	c := Default()
	b, ok := s.value(&c).(*bool)
	return ok && *b
}

func TestMergeKeysOfFileAreApplied(t *testing.T) {
	c := mustParse(t, "x: &x {freeze: true, redeploy: false}\nscheduledEvents: {<<: *x, redeploy: true}\n")
	check.Not(t, !c.Freeze || !c.Redeploy, "freeze %t, redeploy %t: want both", c.Freeze, c.Redeploy)
}

func TestEnvironmentOverridesFile(t *testing.T) {
	c := mustParse(t, "scheduledEvents: {freeze: false}\nruntimeEnv: prod", "MECHANIC_SCHEDULEDEVENTS.FREEZE=true",
		"MECHANIC_RUNTIMEENV=dev", "MECHANIC_VMEVENTS_REBOOT=true", "MECHANIC_ENABLETRACING=")
	check.Not(t, !c.Freeze || c.RuntimeEnv != "dev" || !c.Reboot || !c.EnableTracing || c.NodeName != "n", "%+v", c)
}

func TestSpellingThatMechanicReadsWins(t *testing.T) {
	c := mustParse(t, "vmEvents: {reboot: true}\nscheduledEvents: {reboot: false}")
	check.Not(t, c.Reboot || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "vmEvents.reboot"), "reboot %t, warnings %q", c.Reboot, c.Warnings)
}

func TestMissingFileSelectsDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	c, err := Load(path, podEnvironment)
	want := Default()
	want.NodeName, want.Warnings = "n", []string{path + ": not found, using the defaults"}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Error(err, diff)
	}
	check.ErrorContains(t, check.Err(Load(t.TempDir(), podEnvironment)))
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
			check.Not(t, !strings.Contains(err.Error(), part), "%q: error %q does not contain %q", text, err, part)
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
		diff := cmp.Diff(expected, c, cmpopts.IgnoreFields(Config{}, "Warnings"))
		check.Not(t, err != nil || diff != "", "%q: %v\n%s", text, err, diff)
		all := strings.Join(c.Warnings, "\n")
		check.Not(t, !strings.Contains(all, want.warning), "%q: warnings %q, want %q", text, all, want.warning)
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
	check.Is(t, 3, len(c.Warnings), all)
}

func FuzzParse(f *testing.F) {
	f.Add(shippedConfig, "MECHANIC_RUNTIMEENV=dev")
	f.Add("scheduledEvents: {freeze: &a true, reboot: *a}", "MECHANIC_X=1")
	f.Add("DRAIN_ON_FREEZE: true", "")
	f.Fuzz(func(t *testing.T, text, variable string) {
		c, err := Parse([]byte(text), []string{"MECHANIC_NODE_NAME=n", variable})
		check.Not(t, err == nil && c.PollingInterval < 1, "polling interval %d", c.PollingInterval)
		if a := c.ToAgentConfig(); err == nil && a.Validate() != nil {
			t.Errorf("accepted, but the agent refuses it: %v", a.Validate())
		}
	})
}

func TestOldBooleansAndUnknownKeysAreReported(t *testing.T) {
	c := mustParse(t, "scheduledEvents: {freeze: yes, redeploy: Off}\nplugins: [a]\nextra: {deep: {er: 1}}\n")
	check.Not(t, !c.Freeze || c.Redeploy, "%+v", c)
	all := strings.Join(c.Warnings, "\n")
	check.Contains(t, all, "scheduledEvents.freeze: yes", "scheduledEvents.redeploy: Off", "line 2: plugins", "line 3: extra: unknown key")
}
