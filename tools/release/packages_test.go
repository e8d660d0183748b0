package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestMacOSHasCommandLineWithoutAgentAndImages(t *testing.T) {
	r := newTestRelease(t, cliCommand, agentCommand)
	r.download = "https://acme.example.com/download"
	writeTestFile(t, filepath.Join(r.out, docsFolder, "man", "slipway.1"), "manual")
	r.source.Root = t.TempDir()
	writeTestFile(t, filepath.Join(r.source.Root, "LICENSE"), "Yours.\n")
	binaries := writeTestBinaries(t, r)
	for _, step := range []func() error{
		func() error { return r.writeArchives(t.Context(), binaries) },
		func() error { return r.writeKrew(t.Context(), binaries) },
		func() error { return r.writeFormula(t.Context(), binaries) },
		func() error { return r.writeImages(t.Context(), binaries) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		want := []string{"LICENSE", "slipway", "man/slipway.1"}
		if diff := cmp.Diff(want, archiveNames(t, r.filePath("slipway_v0.1.0_darwin_"+arch+".tar.gz"))); diff != "" {
			t.Error(diff)
		}
	}
	index, err := readIndex(t, r, agentCommand).IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range index.Manifests {
		if d.Platform.OS == "darwin" {
			t.Errorf("there is an image for %v", d.Platform)
		}
	}

	var plugin krewPlugin
	if err := yaml.UnmarshalStrict(readTestFile(t, r.filePath(krewFile)), &plugin); err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, p := range plugin.Spec.Platforms {
		platforms = append(platforms, p.Selector.MatchLabels["os"]+"/"+p.Selector.MatchLabels["arch"])
	}
	if diff := cmp.Diff(targetNames(supportedTargets), platforms); diff != "" {
		t.Errorf("krew: %s", diff)
	}

	formula := string(readTestFile(t, r.filePath(formulaFile)))
	var got []string
	for _, m := range regexp.MustCompile(`on_(\w+) do\s+on_(\w+) do\s+url "(.*)"\s+sha256 "([0-9a-f]{64})"`).FindAllStringSubmatch(formula, -1) {
		file := r.filePath(m[3][strings.LastIndex(m[3], "/")+1:])
		if sum, err := sha256File(file); err != nil || sum != m[4] {
			t.Errorf("%s: the formula has checksum %s, want %s, %v", m[3], m[4], sum, err)
		}
		got = append(got, m[1]+" "+m[2]+" "+m[3])
	}
	const base = "https://acme.example.com/download/v0.1.0/slipway_v0.1.0_"
	want := []string{
		"macos intel " + base + "darwin_amd64.tar.gz", "macos arm " + base + "darwin_arm64.tar.gz",
		"linux intel " + base + "linux_amd64.tar.gz", "linux arm " + base + "linux_arm64.tar.gz",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("formula: %s", diff)
	}
}

func TestChartValueThatCannotBeSetIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "image.registry does not exist",
		"image: it\n":                        "image.registry does not exist",
		"image:\n  repository: it\n":         "image.registry does not exist",
		"image:\n  registry: [a]\n":          "image.registry: must be a string on one line",
		"image:\n  registry: 'a'\n":          "image.registry: must be a string on one line",
		"image:\n  registry: |\n    a\n":     "image.registry: must be a string on one line",
		"image:\n  registry:\n":              "image.registry: must be a string on one line",
		"image: {registry: &a \"\"}\n":       "image.registry: ",
		"image:\n  registry: a\n   b\n":      "image.registry: must be a string on one line",
		"image:\n  registry: \"a\n    b\"\n": "image.registry: ",
		"image: [\n":                         "values.yaml: ",
	} {
		changed, err := setValues([]byte(text), []chartValue{{"image.registry", "ghcr.io/acme"}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v and:\n%s", text, want, err, changed)
		}
	}
}

func TestChartReadmeWithoutSourceURLHasNoLinks(t *testing.T) {
	r := newTestRelease(t, cliCommand, agentCommand)
	text := readTestFile(t, filepath.Join(r.source.Root, chartsFolder, cliCommand, "README.md"))
	got, err := r.chartReadme(cliCommand, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" Install and GitOps describe its use.", "\n$ helm install slipway slipway-0.1.0.tgz -n slipway --create-namespace --set image.registry="} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q", want)
		}
	}
	if links := markdownLink.FindAllString(string(got), -1); len(links) > 0 {
		t.Errorf("links %q", links)
	}
}

func TestChartReadmeThatCannotBeReleasedIsRefused(t *testing.T) {
	r := newTestRelease(t, cliCommand, agentCommand)
	r.registry = "ghcr.io/acme/slipway"
	for text, want := range map[string]string{
		"": "README.md: 0 lines are the command",
		"$ helm install slipway charts/slipway -n slipway\n": "README.md: image.registry has no row",
	} {
		if _, err := r.chartReadme(cliCommand, []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v", text, want, err)
		}
	}
}

func TestReleaseSaysWhatItLacks(t *testing.T) {
	r := &release{}
	got := r.listMissing()
	for i, want := range []string{"REGISTRY=", "DOWNLOAD_URL=", "SOURCE_URL="} {
		if len(got) != 3 || !strings.Contains(got[i], "make the release with "+want) {
			t.Errorf("want %q in %q", want, got)
		}
	}
	r.registry, r.download, r.sourceURL = "ghcr.io/acme/slipway", "https://acme.example.com/download", "https://git.example.com/acme/slipway"
	if got := r.listMissing(); len(got) > 0 {
		t.Errorf("a complete release lacks %q", got)
	}
}

func TestManifestWithForeignImageIsRefused(t *testing.T) {
	r := newTestRelease(t, cliCommand, agentCommand)
	r.registry = "ghcr.io/acme/slipway"
	dir := t.TempDir()
	writeTestFile(t, filepath.Join(dir, "kustomization.yaml"), "resources: [it.yaml]\n")
	writeTestFile(t, filepath.Join(dir, "it.yaml"), testWorkload("DaemonSet", "slipway-agnet"))
	if _, err := r.renderOverlay(dir); err == nil || !strings.Contains(err.Error(), `image "slipway-agnet" is not an image of the release`) {
		t.Errorf("got %v", err)
	}
}

// TestRepositoryTakesReleasedImages packages the charts and manifests of this repository.
func TestRepositoryTakesReleasedImages(t *testing.T) {
	r := newTestRelease(t, cliCommand, agentCommand)
	r.registry, r.sourceURL = "ghcr.io/acme/slipway", "https://git.example.com/acme/slipway"
	for _, step := range []func(context.Context, []executable) error{r.writeImages, r.writeCharts, r.writeManifests} {
		if err := step(t.Context(), writeTestBinaries(t, r)); err != nil {
			t.Fatal(err)
		}
	}
	for chart, texts := range map[string]map[string][]string{
		cliCommand: {
			"values.yaml": {`"` + r.registry + `"`, `"` + r.imageDigest(agentCommand) + `"`, `"` + r.imageDigest(cliCommand) + `"`},
			"README.md": {
				"\n$ helm install slipway oci://ghcr.io/acme/slipway/charts/slipway --version 0.1.0 -n slipway --create-namespace\n",
				"\n| `image.registry` | `\"ghcr.io/acme/slipway\"` | string |",
				"\n| `image.agent.digest` | `\"" + r.imageDigest(agentCommand) + "\"` | string |",
				"[Install](https://git.example.com/acme/slipway/blob/v0.1.0/docs/install.md)",
			},
			"files/monitoring/slipway.rules.yaml": {"runbook_url: https://git.example.com/acme/slipway/"},
		},
		handlerChart: {"values.yaml": {`"` + r.imageReference(cliCommand) + `"`}},
		awsHandler:   {"values.yaml": {`"` + r.imageReference(cliCommand) + `"`}},
		"slipway-crds": {
			"README.md": {"[slipway](https://git.example.com/acme/slipway/blob/v0.1.0/charts/slipway/README.md)"},
		},
	} {
		version, err := r.chartVersion(chart)
		if err != nil {
			t.Fatal(err)
		}
		file := r.filePath(chartFile(chart, version))
		texts["Chart.yaml"] = []string{"\nhome: https://git.example.com/acme/slipway\nsources:\n  - https://git.example.com/acme/slipway\n"}
		for name, wants := range texts {
			text := archivedFile(t, file, chart+"/"+name)[1]
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("%s: no %q in %s", file, want, name)
				}
			}
		}
		for _, name := range archiveNames(t, file) {
			text := archivedFile(t, file, name)[1]
			for _, unwanted := range []string{projectURL, "](..", "charts/slipway -n"} {
				if strings.Contains(text, unwanted) {
					t.Errorf("%s: %q in %s", file, unwanted, name)
				}
			}
		}
	}
	for file := range manifests {
		if text := string(readTestFile(t, r.filePath(file))); !strings.Contains(text, "image: "+r.imageReference(agentCommand)+"\n") {
			t.Errorf("%s: no %s", file, r.imageReference(agentCommand))
		}
	}
}
