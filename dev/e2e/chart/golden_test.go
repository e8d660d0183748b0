package chart_test

import (
	"bufio"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func newReader(text string) *bufio.Reader { return bufio.NewReader(strings.NewReader(text)) }

// set is a file of values in testdata, with its chart and release.
type set struct{ chart, release, namespace, file string }

// sets returns the sets with a stored manifest.
func sets(t *testing.T) []set {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*.values.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of values: %v", len(files), err)
	}
	var all []set
	for _, file := range files {
		s := set{chart: filepath.Base(filepath.Dir(file)), file: file, release: slipwayChart, namespace: namespace}
		if s.chart != slipwayChart {
			s.release, s.namespace = s.chart, "kube-system" // as that tool's instructions require
		}
		all = append(all, s)
	}
	return all
}

func (s set) name() string {
	return s.chart + "/" + strings.TrimSuffix(filepath.Base(s.file), ".values.yaml")
}

func (s set) values(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (s set) manifest(t *testing.T) string {
	t.Helper()
	return manifest(t, s.chart, release(s.release, s.namespace), s.values(t))
}

func TestManifestsMatchGoldenFiles(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			golden := strings.TrimSuffix(s.file, ".values.yaml") + ".golden.yaml"
			got := s.manifest(t)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("-%s +rendered (go test ./e2e/chart -update writes it):\n%s", golden, d)
			}
		})
	}
}

func TestHelmLintPasses(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			l := lint.AllWithKubeVersion(filepath.Join(root(t), "charts", s.chart), values(t, s.values(t)), s.namespace, kubeVersion(t, newestKubernetes))
			for _, m := range l.Messages {
				// Only the chart slipway has an icon.
				if m.Severity > support.InfoSev || s.chart == slipwayChart {
					t.Error(m)
				}
			}
		})
	}
}
