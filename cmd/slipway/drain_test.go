package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/report"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestI10BadDrainFlagsAreRefusedUnsent(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"no node", "--selector"}},
		{[]string{"n", "-l", "a=b"}, []string{`"n"`, `"a=b"`, "one of the two"}},
		{[]string{"n", "--dry-run=maybe"}, []string{"--dry-run", `"maybe"`, "none, client or server"}},
		{[]string{"n", "-o", "xml"}, []string{"--output", `"xml"`, "json"}},
		{[]string{"n", "--deadline", "-1s"}, []string{"--deadline", "-1s", "more than 0"}},
		{[]string{"n", "--deadline", "0s"}, []string{"--deadline", "0s", "more than 0", "leave it out"}},
		{[]string{"n", "--deadline", "soon"}, []string{"--deadline", "soon"}},
		{[]string{"n", "--timeout", "1m", "--deadline", "1m"}, []string{"--deadline and --timeout", "want only one"}},
		{[]string{"n", "--pod-selector", "a in"}, []string{"--pod-selector"}},
		{[]string{"-l", "a in ("}, []string{"--selector", "a in"}},
		{[]string{"pod/n"}, []string{`node "pod/n"`, "NAME or node/NAME"}},
		{[]string{"n", "../pods"}, []string{`node "../pods"`, "NAME or node/NAME"}},
		{[]string{"n", "--surge=maybe"}, []string{"--surge", `"maybe"`, "use never, annotated or always"}},
		{[]string{"n", "--surge", "--surge-namespace="}, []string{"--surge-namespace", "want the namespace of Slipway"}},
		{[]string{"n", "--surge", "--disable-eviction"}, []string{"--surge and --disable-eviction", "want only one"}},
		{[]string{"n", "--nonsense"}, []string{"unknown flag: --nonsense"}},
	} {
		cmd := newRootCommand()
		cmd.SetArgs(append([]string{"drain", "--kubeconfig=/nonexistent"}, tt.args...))
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		err := cmd.ExecuteContext(t.Context())
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

func TestDrainFlagsMatchKubectl(t *testing.T) {
	f := drainFlags{gracePeriod: -1, ignoreDaemons: true}
	o, err := f.drainOptions()
	must.NoError(t, err)
	if o.GraceSeconds != nil || o.Policy.ActionFor(podrules.RuleDaemonSet) != podrules.Skip || o.Policy.ActionFor(podrules.RuleUnmanaged) != podrules.RefuseDrain {
		t.Errorf("without flags: %+v", o)
	}
	f = drainFlags{gracePeriod: 5, force: true, deleteEmptyDir: true, skipTerminated: 3, disableEvict: true}
	if o, err = f.drainOptions(); err != nil {
		t.Fatal(err)
	}
	if *o.GraceSeconds != 5 || o.SkipTerminatingAfter != 3*time.Second || !o.DisableEviction {
		t.Errorf("grace %d, skip %s, eviction disabled: %v", *o.GraceSeconds, o.SkipTerminatingAfter, o.DisableEviction)
	}
	for rule, want := range map[podrules.Rule]podrules.Action{
		podrules.RuleDaemonSet: podrules.RefuseDrain, podrules.RuleUnmanaged: podrules.Evict, podrules.RuleLocalStorage: podrules.Evict, podrules.RuleProtected: podrules.RefuseDrain,
	} {
		if got := o.Policy.ActionFor(rule); got != want {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
	}
}

func TestDrainExitCodes(t *testing.T) {
	node := errors.New("no such node")
	for name, tt := range map[string]struct {
		outcome drain.Outcome
		err     error
		code    int
	}{
		"drained":          {drain.Drained, nil, 0},
		"another error":    {"", node, 1},
		"policy keeps pod": {drain.RefusedByPolicy, &drain.RefusedError{Node: "n"}, exitRefused},
		"timeout":          {drain.TimedOut, &drain.UnfinishedError{Node: "n", Outcome: drain.TimedOut}, exitUnfinished},
		"interrupted":      {drain.Cancelled, context.Canceled, exitInterrupted},
	} {
		if code := toExitCode(toExitError(drain.Report{Outcome: tt.outcome}, tt.err)); code != tt.code {
			t.Errorf("%s: exit code %d, want %d", name, code, tt.code)
		}
	}
}

func TestHighestExitCodeOfNodesWins(t *testing.T) {
	err := joinWithHighestExitCode([]error{nil, &exitError{exitRefused, errors.New("a")}, &exitError{exitUnfinished, errors.New("b")}})
	var e *exitError
	if !errors.As(err, &e) || e.code != exitUnfinished || !strings.Contains(err.Error(), "a") {
		t.Errorf("%v", err)
	}
	if joinWithHighestExitCode([]error{nil, nil}) != nil {
		t.Error("an error without a failed node")
	}
}

func TestProgressPrintsEachObstacleOnce(t *testing.T) {
	var out bytes.Buffer
	line := newProgressLine(&out)
	p := drain.Progress{Node: "n", Listed: true, Total: 1, Waiting: 1, RemainingPods: []drain.BlockedPod{
		{Namespace: "shop", Pod: "web", Reason: drain.ObstaclePDB, PDB: "shop/web", Detail: "allows none"},
	}}
	line.show(p)
	line.show(p)
	if got := strings.Count(out.String(), "n: waiting for shop/web: disruption-budget: allows none\n"); got != 1 {
		t.Errorf("printed %d times in %q", got, out.String())
	}
	check.Contains(t, out.String(), "n: 0 of 1 gone, 1 waiting (disruption-budget shop/web: 1)\n")
}

func TestNodeNamesAreParsedLikeKubectl(t *testing.T) {
	names, err := parseNodeNames([]string{"node/a", "nodes/b", "c.example.org"})
	if err != nil || !slices.Equal(names, []string{"a", "b", "c.example.org"}) {
		t.Errorf("%q, %v", names, err)
	}
	for _, wrong := range []string{"pod/a", "node/", "node/a/b", "", "../pods", "a?x=1"} {
		if name, err := parseNodeName(wrong); err == nil || !strings.Contains(err.Error(), strconv.Quote(wrong)) {
			t.Errorf("%q: %q, %v", wrong, name, err)
		}
	}
}

func TestI10UnknownCommandIsAnError(t *testing.T) {
	for line, want := range map[string]string{
		"migrate mechanik FILE": `slipway migrate: "mechanik": want aks-node-termination-handler or aws-node-termination-handler or mechanic or `,
		"snapshot safe":         `slipway snapshot: "safe": want save`,
		"notify tset":           `slipway notify: "tset": want test`,
		"plugin tset":           `slipway plugin: "tset": want test`,
	} {
		if out, err := runOffline(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %q, %v", line, out, err)
		}
	}
	if out, err := runOffline(t, "migrate"); err != nil || !strings.Contains(out, "mechanic") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestDrainPrintsReportsForPrograms(t *testing.T) {
	for output, want := range map[outputFlag]string{
		outputJSON: `^{"node":"a",.*"outcome":"drained".*}\n{"node":"b",.*"outcome":"gave-up".*}\n$`,
		outputYAML: `(?s)^---\n.*node: a\noutcome: drained\n.*\n---\n.*node: b\noutcome: gave-up\n`,
		outputName: `^node/a\n$`,
	} {
		out := printReports(output, drain.Report{Node: "a", Outcome: drain.Drained}, drain.Report{Node: "b", Outcome: drain.TimedOut})
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("-o %s: %s", output, out)
		}
	}
}

// printReports returns what a drain of several nodes prints with -o.
func printReports(output outputFlag, reports ...drain.Report) string {
	var out strings.Builder
	for _, r := range reports {
		d := &nodeDrain{flags: &drainFlags{output: output}, options: drain.Options{Node: r.Node}, out: &out, errOut: io.Discard}
		d.printReport(r)
	}
	return out.String()
}

func newTestReport() drain.Report {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return drain.Report{Node: "a", Outcome: drain.TimedOut, StartedAt: start, EndedAt: start.Add(time.Minute), Pods: []drain.PodReport{
		{
			Namespace: "shop", Name: "web", UID: "u1", Owner: "ReplicaSet/web", Removal: drain.Evicted, RemovalRequestedAt: start.Add(6 * time.Second),
			WantedGraceSeconds: 30, GivenGraceSeconds: 10, End: drain.Killed, EndedAt: start.Add(16 * time.Second),
			Delays: []drain.Delay{{Reason: drain.ObstaclePDB, PDB: "shop/web", Detail: "allows < 1", Count: 2, StartedAt: start, Seconds: 5.300000000000001}},
		},
		{Namespace: "shop", Name: "db", UID: "u2", WantedGraceSeconds: 30, Decision: drain.Decision{Rule: podrules.RuleProtected, Detail: "annotation"}},
		{Namespace: "kube-system", Name: "proxy", UID: "u3", Action: podrules.Skip, Decision: drain.Decision{Rule: podrules.RuleDaemonSet}},
	}}
}

func TestDrainReportIsRoundedAndReadBySlipwayReport(t *testing.T) {
	for _, output := range []outputFlag{outputJSON, outputYAML} {
		out := printReports(output, newTestReport())
		check.Not(t, strings.Contains(out, "5.3000"), "-o %s: %s", output, out)
		var in report.Inputs
		must.NoError(t, in.Read("drain", []byte(out)))
		check.Len(t, 0, in.Problems())
		r := report.Build(&in, report.Options{})
		must.Not(t, len(r.Drains) != 1 || len(r.Drains[0].Pods) != 3, "-o %s: %+v", output, r.Drains)
		check.Equal(t, newTestReport().Pods[1:], r.Drains[0].Pods[1:])
		check.Is(t, 5.3, r.Drains[0].Pods[0].Delays[0].Seconds)
	}
}

func TestWideDrainHasRowForEachPod(t *testing.T) {
	const summary = "a: gave-up after 60.0s: 1 gone, 1 remaining, 1 skipped, 1 cut short\n"
	check.Is(t, summary+`NAMESPACE    POD    OWNER           ACTION  WAVE  WAITED FOR                                            REMOVAL  GRACE       GONE AFTER         END     RULE
shop         web    ReplicaSet/web  evict   0     disruption-budget shop/web (refused 2 times in 5.3s)  evicted  10s of 30s  16s                killed  ordinary
shop         db     -               evict   0     -                                                     -        0s of 30s   still on the node  -       protected (annotation)
kube-system  proxy  -               leave   0     -                                                     -        -           -                  -       daemonset
`, printReports(outputWide, newTestReport()))
	check.Is(t, summary+"  shop/web: evicted with 10 s of its 30 s grace period, killed\n", printReports(outputTable, newTestReport()))
}
