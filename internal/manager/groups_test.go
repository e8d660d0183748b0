package manager

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

const validGroup = `apiVersion: slipway.dev/v1alpha1
kind: NodeGroup
metadata: {name: ci}
spec:
  nodeSelector: {matchLabels: {pool: ci}}
  cloud: {provider: azure, group: ci}
`

func TestI10NodeGroupFileIsValidatedLikeAPIServer(t *testing.T) {
	for _, tt := range []struct{ want, old, with string }{
		{"", "", ""},
		{"", "apiVersion", "# NodeGroups\n---\napiVersion"},
		{"unknown field \"spec.size\"", "spec:\n", "spec:\n  size: 3\n"},
		{"unknown field \"spec.Replacement\"", "spec:\n", "spec:\n  Replacement: Never\n"},
		{"unknown field \"spec.drain.Timeout\"", "spec:\n", "spec:\n  drain: {Timeout: 2h}\n"},
		{"unknown field \"spec.scaledown\"", "spec:\n", "spec:\n  scaledown: {idleByLabel: {podSelector: {matchLabels: {app: job}}}}\n"},
		{"unknown field \"spec.a\"", "spec:\n", "spec:\n  a: 1\n  b: 2\n"},
		{"unknown field \"spec.b\"", "spec:\n", "spec:\n  a: 1\n  b: 2\n"},
		{"key \"minSize\" already set", "spec:\n", "spec:\n  minSize: 1\n  minSize: 2\n"},
		{"metadata.name: Required value", "{name: ci}", "{}"},
		{"metadata.name: Invalid value: \"Bad Name!\"", "{name: ci}", "{name: Bad Name!}"},
		{"metadata.labels: Invalid value: \"a b\"", "{name: ci}", "{name: ci, labels: {a b: c}}"},
		{"want slipway.dev/v1alpha1", "kind: NodeGroup", "kind: Pool"},
		{"spec.nodeSelector: is empty", "{matchLabels: {pool: ci}}", "{}"},
		{"spec.cloud: provider \"azure\"", ", group: ci", ""},
		{"spec.cloud.group: is required", ", group: ci", ""},
		{"spec.cloud.provider: \"AZ URE\": should match", "azure", "AZ URE"},
		{"spec.minSize: 5: want 0 to", "spec:\n", "spec:\n  minSize: 5\n  maxSize: 2\n"},
		{"spec.replacement: \"never\": should be one of [Always WhenNeeded Never]", "spec:\n", "spec:\n  replacement: never\n"},
		{"spec.drain.graceSeconds: 0: should be greater than or equal to 1", "spec:\n", "spec:\n  drain: {graceSeconds: 0}\n"},
		{"spec.drain.graceSeconds: -4: should be", "spec:\n", "spec:\n  drain: {graceSeconds: -4}\n"},
		{"spec.disruptionBudgets[0].nodes: \"200%\": should match", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 200%}]\n"},
		{"spec.disruptionBudgets[0].reasons[0]: \"idle pods\": should match", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, reasons: [idle pods]}]\n"},
		{"spec.disruptionBudgets[0].reasons: \"Idle\" is listed twice", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, reasons: [Idle, Idle]}]\n"},
		{"spec.disruptionBudgets[0].duration: 1h0m0s: needs schedule", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, duration: 1h}]\n"},
		{"spec.disruptionBudgets[0].duration: 1s: want 1m0s", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, schedule: '@daily', duration: 1s}]\n"},
		{"spec.disruptionBudgets[0].timeZone: \"UTC\"", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, timeZone: UTC}]\n"},
		{"spec.disruptionBudgets[0].timeZone", "spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, schedule: '@daily', duration: 1h, timeZone: Moon}]\n"},
		{"metadata.name: \"ci\" is used twice", validGroup, validGroup + "---\n" + validGroup},
	} {
		_, err := ParseGroups([]byte(strings.Replace(validGroup, tt.old, tt.with, 1)))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

// newTestGroups returns the groups of an API server with some objects, of a file, and of the process itself.
func newTestGroups(t *testing.T, file string, given func() []v1alpha1.NodeGroup, objects ...client.Object) (*GroupSource, *bytes.Buffer, *prometheus.Registry) {
	t.Helper()
	scheme, registry := runtime.NewScheme(), prometheus.NewRegistry()
	metrics, err := newGroupMetrics(registry)
	if err := errors.Join(err, v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	return &GroupSource{
		Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), File: file, ExtraGroups: given,
		Log: slog.New(slog.NewTextHandler(log, nil)), Selector: labels.SelectorFromSet(labels.Set{"mine": "yes"}), metrics: metrics,
	}, log, registry
}

// listGroupNames lists the groups twice and returns their names.
func listGroupNames(t *testing.T, g *GroupSource) string {
	t.Helper()
	var names []string
	for range 2 {
		all, err := g.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		names = nil
		for _, one := range all {
			names = append(names, one.Name)
		}
	}
	return strings.Join(names, " ")
}

func gaugeValue(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

func TestChangedFileIsReloadedAndInvalidOneIgnored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "groups.yaml")
	g, log, registry := newTestGroups(t, path, nil)
	two := validGroup + "---\n" + strings.Replace(validGroup, "name: ci", "name: gpu", 1)
	at := time.Now()
	for i, tt := range []struct {
		text, want, log string
		inForce         float64
	}{
		{validGroup, "ci", "", 1},
		{two, "ci gpu", "", 1},
		{"nonsense", "ci gpu", "its previous content stays valid", 0},
		{"", "ci gpu", "has no NodeGroup any more", 0},
		{"# none\n", "ci gpu", "", 0}, // already logged
		{validGroup, "ci", "is valid again", 1},
	} {
		writeFile(t, path, tt.text, at.Add(time.Duration(i)*time.Second))
		if got := listGroupNames(t, g); got != tt.want {
			t.Errorf("%d: %s, want %s", i, got, tt.want)
		}
		if n := strings.Count(log.String(), "\n"); tt.log == "" && n > 0 || tt.log != "" && (n != 1 || !strings.Contains(log.String(), tt.log)) {
			t.Errorf("%d: log %s, want %q once", i, log, tt.log)
		}
		if got := gaugeValue(t, registry, "slipway_nodegroup_file_applied"); got != tt.inForce {
			t.Errorf("%d: in force: %g, want %g", i, got, tt.inForce)
		}
		log.Reset()
	}
}

func TestShadowedGroupIsReportedOnce(t *testing.T) {
	object := func(l map[string]string) *v1alpha1.NodeGroup {
		return &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "ci", UID: "u", Labels: l}}
	}
	own := func() []v1alpha1.NodeGroup { return []v1alpha1.NodeGroup{{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}} }
	path := filepath.Join(t.TempDir(), "groups.yaml")
	writeFile(t, path, validGroup, time.Now())
	for name, tt := range map[string]struct {
		file    string
		objects []client.Object
		want    string
	}{
		"alone":         {"", nil, ""},
		"an object":     {"", []client.Object{object(map[string]string{"mine": "yes"})}, `inForce="that of the API server"`},
		"another one's": {"", []client.Object{object(nil)}, "which this process ignores because of --selector mine=yes"},
		"a file":        {path, nil, `inForce="that of --node-groups"`},
	} {
		g, log, registry := newTestGroups(t, tt.file, own, tt.objects...)
		if got := listGroupNames(t, g); got != "ci" {
			t.Errorf("%s: %s", name, got)
		}
		lines := strings.Count(log.String(), "is ignored")
		if (lines > 0) != (tt.want != "") || lines > 1 || !strings.Contains(log.String(), tt.want) {
			t.Errorf("%s: log %s, want %q once", name, log, tt.want)
		}
		if got := gaugeValue(t, registry, "slipway_nodegroup_name_conflict"); (got == 1) != (tt.want != "") {
			t.Errorf("%s: shadowed: %g", name, got)
		}
	}
}

func writeFile(t *testing.T, path, text string, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestGroupOfFileGetsCRDDefaults(t *testing.T) {
	groups, err := ParseGroups([]byte(validGroup + "  scaleDown: {idleByLabel: {podSelector: {matchLabels: {app: job}}, cooldown: 0s}}\n  drain: {}\n  cooldowns: {}\n"))
	if err != nil || len(groups) != 1 {
		t.Fatalf("%v, %v", groups, err)
	}
	spec := groups[0].Spec
	rule := spec.ScaleDown.IdleByLabel
	if spec.Replacement != v1alpha1.ReplaceAlways || spec.Drain.Timeout.Duration != time.Hour || spec.Cooldowns.AfterFailure.Duration != 5*time.Minute ||
		spec.Drain.Protection != v1alpha1.RespectProtection || rule.Cooldown.Duration != 0 || !*rule.KeepForPending {
		t.Errorf("%+v", spec)
	}
	if groups, err = ParseGroups([]byte(validGroup + "  scaleDown: {idleByLabel: {podSelector: {matchLabels: {app: job}}}}\n")); err != nil {
		t.Fatal(err)
	}
	if got := groups[0].Spec.ScaleDown.IdleByLabel.Cooldown.Duration; got != 10*time.Minute {
		t.Errorf("the cooldown is %s", got)
	}
}

func FuzzParseGroups(f *testing.F) {
	f.Add([]byte(validGroup))
	f.Add([]byte(validGroup + "---\n" + validGroup))
	f.Add([]byte("- 1"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		groups, err := ParseGroups(raw)
		for _, g := range groups {
			if err == nil && (g.Name == "" || g.Spec.Cloud.Provider == "") {
				t.Errorf("taken: %+v", g)
			}
		}
	})
}
