package main

import (
	"archive/tar"
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

// newTestRelease returns a release of version v0.1.0 into a temporary folder.
func newTestRelease(t *testing.T, commands ...string) *release {
	t.Helper()
	return &release{
		source: source{
			Root: filepath.Join("..", ".."), Version: "v0.1.0", Commit: strings.Repeat("0123456789", 4),
			Time: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), Toolchain: "go1.26.0",
		},
		commands: commands, targets: supportedTargets, out: t.TempDir(), log: slog.New(slog.DiscardHandler),
	}
}

// writeTestBinaries writes a text in place of each binary of a release.
func writeTestBinaries(t *testing.T, r *release) []executable {
	t.Helper()
	binaries := r.listBinaries(filepath.Join(r.out, "bin"))
	for _, b := range binaries {
		writeTestFile(t, b.Path, "program for "+b.Target.String())
	}
	return binaries
}

func TestIndexNamesEveryPlatformOnce(t *testing.T) {
	r := newTestRelease(t, "slipway-agent")
	if err := r.writeImages(t.Context(), writeTestBinaries(t, r)); err != nil {
		t.Fatal(err)
	}
	index := readIndex(t, r, "slipway-agent")
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.imageLabels("slipway-agent"), manifest.Annotations); diff != "" {
		t.Errorf("annotations of the index: %s", diff)
	}
	var platforms, bases []string
	for _, d := range manifest.Manifests {
		platforms = append(platforms, strings.TrimSpace(d.Platform.OS+" "+d.Platform.Architecture+" "+d.Platform.OSVersion))
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, m.Layers[0].Digest.Hex)
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.Annotations, config.Config.Labels); diff != "" {
			t.Errorf("%v: annotations and labels differ: %s", d.Platform, diff)
		}
		if config.OSVersion != d.Platform.OSVersion {
			t.Errorf("%v: os.version %q in the config", d.Platform, config.OSVersion)
		}
		switch config.OS {
		case "linux":
			if config.Config.User != "65532:65532" {
				t.Errorf("%v: user %q", d.Platform, config.Config.User)
			}
		case "windows":
			if diff := cmp.Diff([]string{"slipway-agent.exe"}, config.Config.Entrypoint); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(windowsFiles, layerNames(t, image)); diff != "" {
				t.Errorf("%v: %s", d.Platform, diff)
			}
		}
	}
	want := []string{
		"linux amd64", "linux arm64", "windows amd64 10.0.17763", "windows amd64 10.0.20348", "windows amd64 10.0.26100",
	}
	if diff := cmp.Diff(want, platforms); diff != "" {
		t.Error(diff)
	}
	if slices.Sort(bases); len(slices.Compact(bases)) != 2 {
		t.Errorf("want one base layer for Linux and one for Windows, got %v", bases)
	}
}

// windowsFiles are the files that containerd's importer of Windows layers expects, and the program.
var windowsFiles = []string{
	"Files/", "Files/Windows/", "Files/Windows/System32/", "Files/Windows/System32/config/",
	"Files/Windows/System32/config/DEFAULT", "Files/Windows/System32/config/SAM", "Files/Windows/System32/config/SECURITY",
	"Files/Windows/System32/config/SOFTWARE", "Files/Windows/System32/config/SYSTEM",
	"Files/", "Files/slipway-agent.exe",
}

// readIndex reads the only index of a command's layout.
func readIndex(t *testing.T, r *release, command string) v1.ImageIndex {
	t.Helper()
	path, err := layout.FromPath(filepath.Join(r.out, imagesFolder, command))
	if err != nil {
		t.Fatal(err)
	}
	top, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != r.source.Version {
		t.Errorf("the layout names its image %q", got)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func layerNames(t *testing.T, image v1.Image) []string {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, layer := range layers {
		rc, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, unpackTar(t, rc, "")...)
	}
	return list
}

// unpackTar writes a tar's files under a folder, if one is given, and returns their names.
func unpackTar(t *testing.T, rc io.ReadCloser, dir string) []string {
	t.Helper()
	defer func() { _ = rc.Close() }()
	var list []string
	tr := tar.NewReader(rc)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.Name)
		if dir == "" {
			continue
		}
		file := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(file, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, h.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAgentFromItsImage builds the real agent for this machine and does what a node does: it reads the layout, unpacks
// the image, and starts the image's command.
func TestAgentFromItsImage(t *testing.T) {
	h := hostTarget(t)
	r := newTestRelease(t, "slipway-agent")
	if _, err := runCommand(t.Context(), r.source.Root, "git", "rev-parse", "HEAD"); err != nil {
		t.Skipf("release needs a git work tree: %v", err)
	}
	r.targets = []target{h}
	binaries, err := r.buildAll(t.Context(), filepath.Join(r.out, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("the image runs and prints its version", func(t *testing.T) {
		if h.OS != "linux" {
			t.Skip("only Windows can unpack an image for Windows")
		}
		if err := r.writeImages(t.Context(), binaries); err != nil {
			t.Fatal(err)
		}
		index := readIndex(t, r, "slipway-agent")
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		image, err := index.Image(manifest.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(t.TempDir(), "rootfs")
		unpackTar(t, mutate.Extract(image), root)
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		cmd := inside(root, config.Config, "--version")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
		if got := string(out); got != "slipway-agent version v0.1.0\n" {
			t.Errorf("printed %q", got)
		}
	})
	t.Run("the SBOM lists the modules of the binary and nothing else", func(t *testing.T) {
		if err := r.writeSBOMs(t.Context(), binaries); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(r.filePath("slipway-agent_v0.1.0_" + h.fileSuffix() + ".spdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		doc, err := spdxjson.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := spdxlib.ValidateDocument(doc); err != nil {
			t.Error(err)
		}
		var got []string
		for _, p := range doc.Packages {
			if p.PackageLicenseDeclared == noAssertion || p.PackageLicenseConcluded == noAssertion || p.PackageLicenseDeclared == "" {
				t.Errorf("package %s has the licence %q, concluded %q", p.PackageName, p.PackageLicenseDeclared, p.PackageLicenseConcluded)
			}
			for _, ref := range p.PackageExternalReferences {
				got = append(got, ref.Locator)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(linkedPackageURLs(t, binaries[0].Path), got); diff != "" {
			t.Error(diff)
		}
		if n := len(doc.Relationships); n != len(doc.Packages) {
			t.Errorf("%d packages and %d relationships: want equal numbers", len(doc.Packages), n)
		}
	})
}

// linkedPackageURLs returns the modules of a binary from the go command, as package URLs.
func linkedPackageURLs(t *testing.T, path string) []string {
	t.Helper()
	out, err := runCommand(t.Context(), ".", "go", "version", "-m", path)
	if err != nil {
		t.Fatal(err)
	}
	_, toolchain, _ := strings.Cut(strings.SplitN(out, "\n", 2)[0], ": go")
	toolchain, _, _ = strings.Cut(toolchain, " ")
	list := []string{"pkg:golang/github.com/slipway-dev/slipway@v0.1.0", "pkg:golang/stdlib@" + toolchain}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "dep":
			list = append(list, "pkg:golang/"+strings.ToLower(fields[1])+"@"+strings.ReplaceAll(fields[2], "+", "%2B"))
		case "=>":
			list[len(list)-1] = "pkg:golang/" + strings.ToLower(fields[1]) + "@" + strings.ReplaceAll(fields[2], "+", "%2B")
		}
	}
	if len(list) < 10 {
		t.Fatalf("the agent has only the modules %v", list)
	}
	slices.Sort(list)
	return list
}

func TestRootCertificatesAreAuthorities(t *testing.T) {
	n := 0
	for rest := rootCertificates(); len(rest) > 0; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			t.Fatal("not PEM")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if c.Version == 3 && !c.IsCA {
			t.Errorf("%s is not a certificate authority", c.Subject)
		}
	}
	if n < 50 {
		t.Errorf("%d certificates", n)
	}
}

func TestImageUserHasName(t *testing.T) {
	image, err := newTestRelease(t).newIndex("slipway", []executable{{Command: "slipway", Target: supportedTargets[0], Path: os.DevNull}})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := image.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	linux, err := image.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpackTar(t, mutate.Extract(linux), dir)
	f, err := os.Open(filepath.Join(dir, "etc", "passwd"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Split(lines.Text(), ":"); fields[0] == "nonroot" && fields[2]+":"+fields[3] == nonRoot {
			return
		}
	}
	t.Errorf("no user %s in etc/passwd", nonRoot)
}

func TestImageIsPulledByPlatform(t *testing.T) {
	r := newTestRelease(t, "slipway")
	if err := r.writeImages(t.Context(), writeTestBinaries(t, r)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/slipway:v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, readIndex(t, r, "slipway"), remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, platform := range []v1.Platform{
		{OS: "linux", Architecture: "arm64"},
		{OS: "windows", Architecture: "amd64", OSVersion: "10.0.20348"},
	} {
		image, err := remote.Image(ref, remote.WithPlatform(platform), remote.WithContext(t.Context()))
		if err != nil {
			t.Fatalf("%v: %v", platform, err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := (v1.Platform{OS: config.OS, Architecture: config.Architecture, OSVersion: config.OSVersion}); !got.Equals(platform) {
			t.Errorf("requested %v, got %v", platform, got)
		}
	}
}
