package manager

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

const good = `apiVersion: slipway.dev/v1alpha1
kind: NodeGroup
metadata: {name: ci}
spec:
  nodeSelector: {matchLabels: {pool: ci}}
  cloud: {provider: azure, group: ci}
`

func TestI10AFileOfNodeGroupsIsCheckedAsTheAPIServerWould(t *testing.T) {
	for want, change := range map[string][2]string{
		"":                                     {"", ""},
		"unknown field \"size\"":               {"spec:\n", "spec:\n  size: 3\n"},
		"metadata.name: is empty":              {"{name: ci}", "{}"},
		"want slipway.dev/v1alpha1":            {"kind: NodeGroup", "kind: Pool"},
		"spec.nodeSelector: is empty":          {"{matchLabels: {pool: ci}}", "{}"},
		"spec.cloud: provider \"azure\"":       {", group: ci", ""},
		"spec.minimum: 5: want 0 to":           {"spec:\n", "spec:\n  minimum: 5\n  maximum: 2\n"},
		"spec.disruptionBudgets[0].timeZone":   {"spec:\n", "spec:\n  disruptionBudgets: [{nodes: 1, schedule: '@daily', duration: 1h, timeZone: Moon}]\n"},
		"metadata.name: \"ci\" is there twice": {good, good + "---\n" + good},
	} {
		_, err := ParseGroups([]byte(strings.Replace(good, change[0], change[1], 1)))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAFileThatChangesIsReadAgainAndABadOneChangesNothing(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "groups.yaml")
	g := &Groups{Reader: fake.NewClientBuilder().WithScheme(scheme).Build(), File: path, Log: slog.New(slog.DiscardHandler)}
	at := time.Now()
	write(t, path, good, at)
	if all, err := g.List(context.Background()); err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	write(t, path, good+"---\n"+strings.Replace(good, "name: ci", "name: gpu", 1), at.Add(time.Second))
	if all, err := g.List(context.Background()); err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	write(t, path, "nonsense", at.Add(2*time.Second))
	if all, err := g.List(context.Background()); err != nil || len(all) != 2 {
		t.Fatalf("after a bad change: %v, %v", all, err)
	}
}

func write(t *testing.T, path, text string, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func FuzzParseGroups(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(good + "---\n" + good))
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
