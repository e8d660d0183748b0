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
	r.registry = "ghcr.io/acme/slipway"
	for _, step := range []func(context.Context, []executable) error{r.writeImages, r.writeCharts, r.writeManifests} {
		if err := step(t.Context(), writeTestBinaries(t, r)); err != nil {
			t.Fatal(err)
		}
	}
	for chart, want := range map[string]string{cliCommand: r.imageDigest(agentCommand), handlerChart: r.imageReference(cliCommand)} {
		version, err := r.chartVersion(chart)
		if err != nil {
			t.Fatal(err)
		}
		file := r.filePath(chartFile(chart, version))
		if values := archivedFile(t, file, chart+"/values.yaml")[1]; !strings.Contains(values, `"`+want+`"`) {
			t.Errorf("%s: no %s in its values", file, want)
		}
	}
	for file := range manifests {
		if text := string(readTestFile(t, r.filePath(file))); !strings.Contains(text, "image: "+r.imageReference(agentCommand)+"\n") {
			t.Errorf("%s: no %s", file, r.imageReference(agentCommand))
		}
	}
}
