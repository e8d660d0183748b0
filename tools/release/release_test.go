package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"sigs.k8s.io/yaml"
)

// newTestProject creates a small module with the same layout as Slipway, for releases.
func newTestProject(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := `package main

import (
	"fmt"
	"os"

	"github.com/slipway-dev/slipway/cmd/internal/start"
)

func main() {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "man":
		if err := os.WriteFile(os.Args[2]+"/slipway.1", []byte(os.Args[3]), 0o644); err != nil {
			panic(err)
		}
	case len(os.Args) == 3 && os.Args[1] == "completion":
		fmt.Println("complete", os.Args[2])
	default:
		fmt.Println("version", start.Version)
	}
}
`
	for file, text := range map[string]string{
		"go.mod":                                    "module github.com/slipway-dev/slipway\n\ngo 1.26.0\n",
		".gitignore":                                "/dist/\n",
		"LICENSE":                                   "Yours.\n",
		"cmd/internal/start/start.go":               "package start\n\nvar version = \"\"\n\nvar Version = version\n",
		"cmd/slipway/main.go":                       program,
		"cmd/slipway-agent/main.go":                 program,
		"charts/slipway/Chart.yaml":                 "apiVersion: v2\nname: slipway\nversion: 0.0.0 # set by the release\nappVersion: devel\n",
		"charts/slipway/.helmignore":                "*_test.yaml\nnotes/\n",
		"charts/slipway/values.yaml":                testValues,
		"charts/slipway/values_test.yaml":           "image: none\n",
		"charts/slipway/notes/a.txt":                "of a folder that is left out\n",
		"charts/slipway/charts/library/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: it\n",

		"charts/aks-node-termination-handler/Chart.yaml":  "apiVersion: v2\nname: aks-node-termination-handler\nversion: 2.0.0\nappVersion: devel\n",
		"charts/aks-node-termination-handler/values.yaml": "slipway:\n  image: \"\"\n  release: \"\"\n",
		"charts/aws-node-termination-handler/Chart.yaml":  "apiVersion: v2\nname: aws-node-termination-handler\nversion: 1.0.0\nappVersion: devel\n",
		"charts/aws-node-termination-handler/values.yaml": "slipway:\n  image: \"\"\n  release: \"\"\n",

		"deploy/overlays/agent-only/kustomization.yaml": "resources: [agent.yaml]\n",
		"deploy/overlays/agent-only/agent.yaml":         testWorkload("DaemonSet", agentCommand),
		"deploy/overlays/full/kustomization.yaml":       "resources: [../agent-only, manager.yaml]\n",
		"deploy/overlays/full/manager.yaml":             testWorkload("Deployment", cliCommand),
	} {
		writeTestFile(t, filepath.Join(dir, file), text)
	}
	for _, chart := range []string{handlerChart, awsHandler} {
		shared := filepath.Join(dir, "charts", chart, "charts/library")
		if err := os.MkdirAll(filepath.Dir(shared), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../slipway/charts/library", shared); err != nil {
			t.Fatal(err)
		}
	}
	runGit(t, dir, "init", "--quiet")
	runGit(t, dir, "add", ".")
	runGit(t, dir, "commit", "--quiet", "--message", "first")
	runGit(t, dir, "tag", "v0.1.0")
	return dir
}

// testValues has the values of the chart that a release sets, in both styles of YAML.
const testValues = `# The values.

image:
  # -- Registry of the images
  registry: "" # required
  release: ""
  agent: {repository: slipway-agent, tag: "", digest: ""}
  slipway:
    repository: slipway
    # -- Tag of the image
    tag: ""
    digest: ""
`

// testWorkload returns a manifest with one container.
func testWorkload(kind, image string) string {
	return fmt.Sprintf("apiVersion: apps/v1\nkind: %s\nmetadata: {name: %s}\nspec: {template: {spec: {containers: [{name: it, image: %s}]}}}\n",
		kind, image, image)
}

func writeTestFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// runGit runs git with a neutral identity.
func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{
		"-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null",
	}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// hostTarget returns this machine's platform as a target.
func hostTarget(t *testing.T) target {
	t.Helper()
	h := target{runtime.GOOS, runtime.GOARCH}
	if !slices.Contains(supportedTargets, h) {
		t.Skipf("nothing is released for %s", h)
	}
	return h
}

// fileDigests returns the checksum of every file under a folder.
func fileDigests(t *testing.T, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		sums[rel], err = sha256File(file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// makeTestRelease makes a release of a project for this machine into its folder dist.
func makeTestRelease(t *testing.T, dir string, args ...string) {
	t.Helper()
	args = append([]string{"-version=v0.1.0", "-source=" + dir, "-out=" + filepath.Join(dir, "dist"), "-targets=" + hostTarget(t).String()}, args...)
	if err := run(t.Context(), args); err != nil {
		t.Fatal(err)
	}
}

func TestRelease(t *testing.T) {
	h := hostTarget(t)
	origin := newTestProject(t)
	clone := filepath.Join(t.TempDir(), "elsewhere", "clone")
	if err := os.MkdirAll(filepath.Dir(clone), 0o755); err != nil {
		t.Fatal(err)
	}
	runGit(t, origin, "clone", "--quiet", origin, clone)
	dist := filepath.Join(origin, "dist")
	for _, dir := range []string{origin, clone} {
		makeTestRelease(t, dir, "-registry=ghcr.io/acme/slipway", "-download-url=https://acme.example.com/download/",
			"-source-url=https://git.example.com/acme/slipway/")
	}
	archive := func(product string) string {
		r := &release{source: source{Version: "v0.1.0"}}
		return filepath.Join(dist, r.archiveName(product, h))
	}

	t.Run("is equal for two clones of a commit", func(t *testing.T) {
		first, second := fileDigests(t, dist), fileDigests(t, filepath.Join(clone, "dist"))
		if len(first) < 20 {
			t.Errorf("only %d files", len(first))
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("has checksums of every file", func(t *testing.T) { checkChecksums(t, dist) })
	t.Run("has layouts that are valid and named in the provenance", func(t *testing.T) {
		statement := readStatement(t, dist)
		for _, command := range []string{"slipway", "slipway-agent"} {
			path, err := layout.FromPath(filepath.Join(dist, imagesFolder, command))
			if err != nil {
				t.Fatal(err)
			}
			index, err := path.ImageIndex()
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(index); err != nil {
				t.Error(err)
			}
			manifest, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			if n := len(manifest.Manifests); n != 1 {
				t.Fatalf("%s has %d images at its top, want one index", command, n)
			}
			if got := statement.subjectDigests()[command+":v0.1.0"]; got != manifest.Manifests[0].Digest.Hex {
				t.Errorf("the provenance has %q for %s, want %s", got, command, manifest.Manifests[0].Digest)
			}
		}
	})
	t.Run("has provenance of every file and of the commit", func(t *testing.T) {
		statement := readStatement(t, dist)
		subjects := statement.subjectDigests()
		for name, sum := range topFileDigests(t, dist) {
			if name == checksumsFile || strings.HasSuffix(name, ".provenance.json") {
				continue
			}
			if subjects[name] != sum {
				t.Errorf("%s: the provenance has %q, want %s", name, subjects[name], sum)
			}
		}
		definition := statement.Predicate.BuildDefinition
		commit := runGit(t, origin, "rev-parse", "HEAD")
		if got := definition.ResolvedDependencies[0].Digest["gitCommit"]; got != commit {
			t.Errorf("made from commit %q, want %q", got, commit)
		}
		want := "git+https://git.example.com/acme/slipway@" + commit
		if got := definition.ResolvedDependencies[0].URI; got != want || definition.ExternalParameters["source"] != want {
			t.Errorf("made from %q and %q, want %q", got, definition.ExternalParameters["source"], want)
		}
	})
	t.Run("names only the repository of the source URL", func(t *testing.T) {
		const source = "https://git.example.com/acme/slipway"
		texts, err := filepath.Glob(filepath.Join(dist, imagesFolder, "*", "blobs", "sha256", "*"))
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		for name := range topFileDigests(t, dist) {
			texts = append(texts, filepath.Join(dist, name))
		}
		for _, file := range texts { // in archives and layers, both are compressed
			text := readTestFile(t, file)
			if bytes.Contains(text, []byte(projectURL)) {
				t.Errorf("%s has %s", file, projectURL)
			}
			named[filepath.Base(file)] = bytes.Contains(text, []byte(source))
		}
		index := strings.TrimPrefix(imageFromList(t, dist, cliCommand), "ghcr.io/acme/slipway/slipway:v0.1.0@sha256:")
		for _, file := range []string{krewFile, formulaFile, provenanceFile("v0.1.0"), "slipway_v0.1.0_" + h.fileSuffix() + ".spdx.json", index} {
			if !named[file] {
				t.Errorf("%s does not have %s", file, source)
			}
		}
		statement := readStatement(t, dist)
		for _, got := range []string{statement.Predicate.BuildDefinition.BuildType, statement.Predicate.RunDetails.Builder.ID} {
			if !strings.HasPrefix(got, source+"/blob/main/docs/release.md#") {
				t.Errorf("the provenance has %s", got)
			}
		}
	})
	t.Run("has archives with everything, and with only the kubectl plugin", func(t *testing.T) {
		want := []string{
			"LICENSE", h.exeName("slipway"), h.exeName("slipway-agent"), "completions/_slipway", "completions/kubectl_complete-slipway",
			"completions/slipway.bash", "completions/slipway.fish", "completions/slipway.ps1", "man/slipway.1",
		}
		if diff := cmp.Diff(want, archiveNames(t, archive("slipway"))); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"LICENSE", h.exeName(kubectlPlugin)}, archiveNames(t, archive(kubectlPlugin))); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("has a krew manifest with the archive's checksum", func(t *testing.T) {
		var plugin krewPlugin
		if err := yaml.UnmarshalStrict(readTestFile(t, filepath.Join(dist, krewFile)), &plugin); err != nil {
			t.Fatal(err)
		}
		sum, err := sha256File(archive(kubectlPlugin))
		if err != nil {
			t.Fatal(err)
		}
		want := []krewPlatform{{
			Selector: krewSelector{MatchLabels: map[string]string{"os": h.OS, "arch": h.Arch}},
			URI:      "https://acme.example.com/download/v0.1.0/" + filepath.Base(archive(kubectlPlugin)),
			SHA256:   sum, Bin: h.exeName(kubectlPlugin),
		}}
		if diff := cmp.Diff(want, plugin.Spec.Platforms); diff != "" {
			t.Error(diff)
		}
		if n := len(plugin.Spec.ShortDescription); n > 50 {
			t.Errorf("the short description has %d characters, krew allows 50", n)
		}
	})
	t.Run("has a chart of the release's version, without ignored files", func(t *testing.T) {
		file := filepath.Join(dist, "slipway-0.1.0.tgz")
		want := []string{
			"slipway/Chart.yaml", "slipway/.helmignore", "slipway/charts/library/config.yaml", "slipway/values.yaml",
		}
		if diff := cmp.Diff(want, archiveNames(t, file)); diff != "" {
			t.Error(diff)
		}
		var chart struct{ APIVersion, Name, Version, AppVersion string }
		if err := yaml.Unmarshal([]byte(archivedFile(t, file, "slipway/Chart.yaml")[1]), &chart); err != nil {
			t.Fatal(err)
		}
		if chart.Version != "0.1.0" || chart.AppVersion != "v0.1.0" || chart.APIVersion != "v2" {
			t.Errorf("%+v", chart)
		}
	})
	handlers := map[string]string{"aks-node-termination-handler": "2.1.0", "aws-node-termination-handler": "1.1.0"}
	t.Run("has charts that upgrade the replaced tools' charts", func(t *testing.T) {
		for name, version := range handlers {
			var chart struct{ Version, AppVersion string }
			if err := yaml.Unmarshal([]byte(archivedFile(t, filepath.Join(dist, name+"-"+version+".tgz"), name+"/Chart.yaml")[1]), &chart); err != nil {
				t.Fatal(err)
			}
			if chart.Version != version || chart.AppVersion != "v0.1.0" {
				t.Errorf("%s: %+v", name, chart)
			}
		}
	})
	agent := imageFromList(t, dist, agentCommand)
	slipway := imageFromList(t, dist, cliCommand)
	t.Run("has charts with the images as defaults", func(t *testing.T) {
		digest := func(image string) string { return image[strings.Index(image, "@")+1:] }
		want := strings.NewReplacer(`registry: ""`, `registry: "ghcr.io/acme/slipway"`, `release: ""`, `release: "v0.1.0"`, `repository: slipway-agent, tag: "", digest: ""`,
			`repository: "slipway-agent", tag: "", digest: "`+digest(agent)+`"`, "repository: slipway\n", "repository: \"slipway\"\n",
			"    digest: \"\"\n", `    digest: "`+digest(slipway)+"\"\n").Replace(testValues)
		if diff := cmp.Diff(want, archivedFile(t, filepath.Join(dist, "slipway-0.1.0.tgz"), "slipway/values.yaml")[1]); diff != "" {
			t.Error(diff)
		}
		for name, version := range handlers {
			got := archivedFile(t, filepath.Join(dist, name+"-"+version+".tgz"), name+"/values.yaml")[1]
			if want := "slipway:\n  image: \"" + slipway + "\"\n  release: \"v0.1.0\"\n"; got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	})
	t.Run("has manifests with the images", func(t *testing.T) {
		for file, want := range map[string][]string{"install-agent.yaml": {agent}, "install.yaml": {agent, slipway}} {
			var got []string
			for line := range strings.Lines(string(readTestFile(t, filepath.Join(dist, file)))) {
				if _, image, ok := strings.Cut(line, "image: "); ok {
					got = append(got, strings.TrimSpace(image))
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", file, diff)
			}
		}
	})
	t.Run("has a page with the commands that install it", func(t *testing.T) {
		page := string(readTestFile(t, filepath.Join(dist, installFile)))
		for _, want := range []string{
			"helm install slipway oci://ghcr.io/acme/slipway/charts/slipway --version 0.1.0 ",
			"kubectl apply -f https://acme.example.com/download/v0.1.0/install-agent.yaml\n",
			agent, slipway,
		} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in:\n%s", want, page)
			}
		}
	})
	t.Run("has the shared files in each chart", func(t *testing.T) {
		want := [2]string{"-rw-r--r--", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: it\n"}
		charts := maps.Clone(handlers)
		charts["slipway"] = "0.1.0"
		for chart, version := range charts {
			if diff := cmp.Diff(want, archivedFile(t, filepath.Join(dist, chart+"-"+version+".tgz"), chart+"/charts/library/config.yaml")); diff != "" {
				t.Errorf("%s: -want +got:\n%s", chart, diff)
			}
		}
	})
	t.Run("prints its version", func(t *testing.T) {
		out, err := exec.Command(filepath.Join(dist, "bin", h.fileSuffix(), h.exeName("slipway"))).Output()
		if err != nil || string(out) != "version v0.1.0\n" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// imageFromList returns the name of an image in the registry ghcr.io/acme/slipway, with the digest in images.txt.
func imageFromList(t *testing.T, dist, command string) string {
	t.Helper()
	for line := range strings.Lines(string(readTestFile(t, filepath.Join(dist, imagesFile)))) {
		if strings.HasPrefix(line, command+":v0.1.0@sha256:") {
			return "ghcr.io/acme/slipway/" + strings.TrimSpace(line)
		}
	}
	t.Fatalf("%s has no %s", imagesFile, command)
	return ""
}

// checkChecksums compares checksums.txt with the files.
func checkChecksums(t *testing.T, dist string) {
	t.Helper()
	want := topFileDigests(t, dist)
	delete(want, checksumsFile)
	got := map[string]string{}
	for line := range strings.Lines(string(readTestFile(t, filepath.Join(dist, checksumsFile)))) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok {
			t.Fatalf("line %q", line)
		}
		got[name] = sum
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// topFileDigests returns the checksums of the files at the top of the release.
func topFileDigests(t *testing.T, dist string) map[string]string {
	t.Helper()
	files := fileDigests(t, dist)
	for name := range files {
		if strings.ContainsRune(name, filepath.Separator) {
			delete(files, name)
		}
	}
	if len(files) == 0 {
		t.Fatal("no files")
	}
	return files
}

// provenanceStatement is the provenance as the tests read it, independent of the library that wrote it.
type provenanceStatement struct {
	Type          string `json:"_type"`
	PredicateType string
	Subject       []struct {
		Name   string
		Digest map[string]string
	}
	Predicate struct {
		BuildDefinition struct {
			BuildType            string
			ExternalParameters   map[string]any
			InternalParameters   map[string]any
			ResolvedDependencies []struct {
				URI    string
				Digest map[string]string
			}
		}
		RunDetails struct{ Builder struct{ ID string } }
	}
}

func (s provenanceStatement) subjectDigests() map[string]string {
	m := map[string]string{}
	for _, subject := range s.Subject {
		m[subject.Name] = subject.Digest["sha256"]
	}
	return m
}

func readStatement(t *testing.T, dist string) provenanceStatement {
	t.Helper()
	var s provenanceStatement
	if err := json.Unmarshal(readTestFile(t, filepath.Join(dist, "slipway_v0.1.0.provenance.json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" ||
		s.Predicate.BuildDefinition.BuildType == "" || s.Predicate.RunDetails.Builder.ID == "" {
		t.Fatalf("no provenance: %+v", s)
	}
	return s
}

func readTestFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// archiveNames returns the files in an archive.
func archiveNames(t *testing.T, file string) []string {
	t.Helper()
	var list []string
	if filepath.Ext(file) == ".zip" {
		z, err := zip.OpenReader(file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = z.Close() }()
		for _, f := range z.File {
			list = append(list, f.Name)
		}
		return list
	}
	gz, err := gzip.NewReader(bytes.NewReader(readTestFile(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(gz)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.Name)
	}
}

// archivedFile returns the mode and the text of a file in an archive.
func archivedFile(t *testing.T, file, name string) [2]string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(readTestFile(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", name, file, err)
		}
		if h.Name != name {
			continue
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		return [2]string{h.FileInfo().Mode().String(), string(text)}
	}
}

func TestZipAndTarHaveSameContent(t *testing.T) {
	dir := t.TempDir()
	entries := []archiveEntry{{Name: "man/", Mode: 0o755}, {Name: "man/slipway.1", Mode: 0o644, Data: []byte("x")}, {Name: "slipway.exe", Mode: 0o755, Data: []byte("y")}}
	for _, file := range []string{"a.zip", "a.tar.gz"} {
		if err := writeArchive(filepath.Join(dir, file), entries, fixedTime.AddDate(30, 0, 0)); err != nil {
			t.Fatal(err)
		}
		files := slices.DeleteFunc(archiveNames(t, filepath.Join(dir, file)), func(n string) bool { return strings.HasSuffix(n, "/") })
		if diff := cmp.Diff([]string{"man/slipway.1", "slipway.exe"}, files); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

func TestReleaseWithoutChartSucceeds(t *testing.T) {
	r := &release{source: source{Root: t.TempDir(), Version: "v0.1.0"}, out: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	if err := r.writeCharts(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(r.out); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
}

func TestChartWithoutAppVersionIsRefused(t *testing.T) {
	dir := t.TempDir()
	writeTestFile(t, filepath.Join(dir, "Chart.yaml"), "apiVersion: v2\nname: slipway\nversion: 0.0.0\n")
	if _, err := (&release{}).chartEntries(dir, "slipway", "0.1.0"); err == nil || !strings.Contains(err.Error(), "appVersion") {
		t.Errorf("want an error about appVersion, got %v", err)
	}
}

func TestWorkTreeChangeDuringReleaseFails(t *testing.T) {
	dir := newTestProject(t)
	was, err := readSource(t.Context(), dir, "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	r := newTestRelease(t, cliCommand)
	r.source, r.targets, r.out = was, []target{hostTarget(t)}, filepath.Join(dir, "dist")
	writeTestFile(t, filepath.Join(dir, "dist", "checksums.txt"), "of the release itself\n")
	if err := r.checkSourceUnchanged(t.Context()); err != nil {
		t.Errorf("unchanged work tree: %v", err)
	}
	writeTestFile(t, filepath.Join(dir, "LICENSE"), "Mine.\n")
	if err := r.checkSourceUnchanged(t.Context()); err == nil || !strings.Contains(err.Error(), "was changed during the release") {
		t.Errorf("changed file: %v", err)
	}
	runGit(t, dir, "commit", "--quiet", "--all", "--message", "second")
	if err := r.checkSourceUnchanged(t.Context()); err == nil || !strings.Contains(err.Error(), "was changed during the release") {
		t.Errorf("new commit: %v", err)
	}
}

// TestWorkTreeChangeDuringReleaseLeavesNoChecksums makes a release of a program that changes the source when it writes its manual
// pages in dist/docs/man. A push needs the checksums.
func TestWorkTreeChangeDuringReleaseLeavesNoChecksums(t *testing.T) {
	dir := newTestProject(t)
	program := "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n\tfmt.Println(os.WriteFile(\"../../../LICENSE\", nil, 0o644))\n}\n"
	writeTestFile(t, filepath.Join(dir, "cmd/slipway/main.go"), program)
	runGit(t, dir, "commit", "--quiet", "--all", "--message", "second")
	runGit(t, dir, "tag", "--force", "v0.1.0")
	dist := filepath.Join(dir, "dist")
	err := run(t.Context(), []string{"-version=v0.1.0", "-source=" + dir, "-out=" + dist, "-targets=" + hostTarget(t).String()})
	if err == nil || !strings.Contains(err.Error(), "was changed during the release") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dist, imagesFile)); err != nil {
		t.Errorf("the release ended too early: %v", err)
	}
	for _, file := range []string{checksumsFile, provenanceFile("v0.1.0")} {
		if _, err := os.Stat(filepath.Join(dist, file)); !os.IsNotExist(err) {
			t.Errorf("%s exists: %v", file, err)
		}
	}
}

// TestFilesOutsideTheCommitAreChanges adds files that git status does not show with the user's settings.
func TestFilesOutsideTheCommitAreChanges(t *testing.T) {
	dir := newTestProject(t)
	for file, text := range map[string]string{
		".gitignore":                    "/dist/\n*.local\n*_local.go\n",
		"cmd/internal/start/text.go":    "package start\n\nimport \"embed\"\n\n//go:embed texts\nvar Texts embed.FS\n",
		"cmd/internal/start/texts/a.md": "text\n",
	} {
		writeTestFile(t, filepath.Join(dir, file), text)
	}
	runGit(t, dir, "add", ".")
	runGit(t, dir, "commit", "--quiet", "--message", "second")
	runGit(t, dir, "config", "status.showUntrackedFiles", "no")
	r := newTestRelease(t, cliCommand, agentCommand)
	r.source.Root, r.targets = dir, []target{hostTarget(t)}
	for _, file := range []string{"notes.local", "cmd/internal/start/notes.local", "cmd/other/main_local.go"} { // neither packed nor compiled
		writeTestFile(t, filepath.Join(dir, file), "package main\n")
	}
	if got, err := r.listChanges(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("got %q, %v", got, err)
	}
	want := []string{
		"!! charts/slipway/templates/secret.local",
		"!! cmd/internal/start/debug_local.go",
		"!! cmd/internal/start/texts/b.local",
		"!! deploy/overlays/full/patch.local",
		"?? charts/slipway/untracked.yaml",
	}
	for _, change := range want {
		writeTestFile(t, filepath.Join(dir, change[len("?? "):]), "package start\n")
	}
	got, err := r.listChanges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestUserSettingsOfGoDoNotChangeBinaries has settings of go env -w: a build tag, which no binary may have, and a proxy, which the
// build may need.
func TestUserSettingsOfGoDoNotChangeBinaries(t *testing.T) {
	dir := newTestProject(t)
	writeTestFile(t, filepath.Join(dir, "cmd/slipway/tagged.go"), "//go:build usertag\n\npackage main\n\nconst wrong string = 1\n")
	settings := filepath.Join(t.TempDir(), "env")
	writeTestFile(t, settings, "GOFLAGS=-tags=usertag\nGOPROXY=https://proxy.example.com\n")
	t.Setenv("GOENV", settings)
	for _, name := range []string{"GOFLAGS", "GOPROXY"} {
		t.Setenv(name, "") // as if it was not set
	}
	r := newTestRelease(t, cliCommand)
	r.source.Root = dir
	binary := executable{Command: cliCommand, Target: hostTarget(t), Path: filepath.Join(r.out, "slipway")}
	if err := r.compileBinary(t.Context(), binary); err != nil {
		t.Error(err)
	}
	if files, err := r.listCompiledFiles(t.Context()); err != nil || files["cmd/slipway/tagged.go"] {
		t.Errorf("compiled files: %v, %v", files, err)
	}
	env, err := goEnvironment(t.Context(), dir, binary.Target)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := runCommandWith(t.Context(), env, dir, "go", "env", "GOPROXY")
	if err != nil || proxy != "https://proxy.example.com" {
		t.Errorf("got the proxy %q, %v", proxy, err)
	}
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	dir := newTestProject(t)
	runGit(t, dir, "tag", "v0.2.0")
	runGit(t, dir, "commit", "--quiet", "--allow-empty", "--message", "second")
	runGit(t, dir, "tag", "--force", "v0.1.0")
	out := filepath.Join(t.TempDir(), "dist")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no version":                  {nil, `version "": must be a semantic version`},
		"version without its v":       {[]string{"-version=0.1.0"}, `version "0.1.0": must be a semantic version with v`},
		"version with two numbers":    {[]string{"-version=v0.1"}, `version "v0.1"`},
		"version with build metadata": {[]string{"-version=v0.1.0+5"}, `version "v0.1.0+5"`},
		"tag at another commit":       {[]string{"-version=v0.2.0"}, "check out the tag first"},
		"no tag":                      {[]string{"-version=v0.3.0", "-targets=linux/amd64"}, "git tag v0.3.0"},
		"unsupported platform":        {[]string{"-version=v0.1.0", "-targets=plan9/386"}, `"plan9/386": must be a comma-separated list of [linux/amd64`},
		"platform twice":              {[]string{"-version=v0.1.0", "-targets=linux/amd64,linux/amd64"}, "twice"},
		"registry without host":       {[]string{"-version=v0.1.0", "-registry=acme/slipway"}, `registry "acme/slipway": must be a host and a path`},
		"registry with scheme":        {[]string{"-version=v0.1.0", "-registry=https://ghcr.io/acme"}, `registry "https://ghcr.io/acme": must be`},
		"registry with tag":           {[]string{"-version=v0.1.0", "-registry=ghcr.io/acme:v1"}, `registry "ghcr.io/acme:v1": must be`},
		"registry without images":     {[]string{"-version=v0.1.0", "-registry=ghcr.io/acme", "-targets=darwin/arm64"}, "targets darwin/arm64 have no image"},
		"URL with quotes":             {[]string{"-version=v0.1.0", "-download-url=https://a/\"b"}, `download-url "https://a/\"b": must be a URL`},
		"source URL without scheme":   {[]string{"-version=v0.1.0", "-source-url=acme/slipway"}, `source-url "acme/slipway": must be a URL`},
		"an argument":                 {[]string{"-version=v0.1.0", "now"}, `argument "now"`},
	} {
		err := run(t.Context(), append([]string{"-source=" + dir, "-out=" + out}, c.args...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q, got %v", name, c.want, err)
		}
	}
	for _, above := range []string{dir, filepath.Dir(dir)} {
		err := run(t.Context(), []string{"-source=" + dir, "-out=" + above, "-version=v0.1.0"})
		if err == nil || !strings.Contains(err.Error(), "contains the source") {
			t.Errorf("out above the source: got %v", err)
		}
	}
	err := run(t.Context(), []string{"-source=" + dir, "-out=" + filepath.Join(dir, "docs"), "-version=v0.1.0"})
	if err == nil || !strings.Contains(err.Error(), "git does not ignore it") {
		t.Errorf("out in the repository: got %v", err)
	}
	writeTestFile(t, filepath.Join(dir, "new.txt"), "new")
	err = run(t.Context(), []string{"-source=" + dir, "-out=" + out, "-version=v0.1.0"})
	if err == nil || !strings.Contains(err.Error(), "commit or remove") || !strings.Contains(err.Error(), "\n?? new.txt") {
		t.Errorf("modified work tree: got %v", err)
	}
	err = run(t.Context(), []string{"-source=" + t.TempDir(), "-out=" + out, "-version=v0.1.0"})
	if err == nil || !strings.Contains(err.Error(), "release needs a git work tree") {
		t.Errorf("no work tree: got %v", err)
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Error(fmt.Errorf("files were written: %w", err))
	}
}
