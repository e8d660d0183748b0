package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBaseImagesCanBeSetByDigest reads the Dockerfiles, because tests have no container engine. It runs the command
// that refuses a base image without a digest.
func TestBaseImagesCanBeSetByDigest(t *testing.T) {
	const digest = "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	for file, images := range map[string][]string{"Dockerfile": {"GO_IMAGE"}, "Dockerfile.windows": {"GO_IMAGE", "BASE"}} {
		raw, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(raw), "\\\n", " ")
		stages := map[string]bool{"scratch": true}
		for _, from := range regexp.MustCompile(`(?m)^FROM (?:--platform=\S+ )?(\S+) AS (\S+)$`).FindAllStringSubmatch(text, -1) {
			if name, isArgument := strings.CutPrefix(from[1], "${"); !stages[from[1]] && (!isArgument || !strings.Contains(text, "ARG "+strings.TrimSuffix(name, "}")+"=")) {
				t.Errorf("%s: FROM %s: must be an argument with a default, or a stage", file, from[1])
			}
			stages[from[2]] = true
		}
		_, after, _ := strings.Cut(text, "\nRUN ")
		check, _, _ := strings.Cut(after, "\n")
		builds := func(require string, suffixes ...string) bool {
			cmd := exec.Command("sh", "-c", check)
			cmd.Env = append(os.Environ(), "REQUIRE_DIGESTS="+require)
			for i, image := range images {
				cmd.Env = append(cmd.Env, image+"=registry.example.com/"+strings.ToLower(image)+":v1"+suffixes[i])
			}
			out, err := cmd.CombinedOutput()
			if err != nil && !strings.Contains(string(out), "want IMAGE@sha256:DIGEST") {
				t.Errorf("%s: %v: %s", file, err, out)
			}
			return err == nil
		}
		none, all := make([]string, len(images)), make([]string, len(images))
		for i := range all {
			all[i] = digest
		}
		for i := range images {
			without := append([]string(nil), all...)
			without[i] = ""
			if builds("true", without...) {
				t.Errorf("%s: accepts %s without a digest", file, images[i])
			}
		}
		if !builds("true", all...) || !builds("false", none...) || builds("yes", all...) {
			t.Errorf("%s: builds with digests: %t; without digests: %t; without digests and REQUIRE_DIGESTS=yes: %t", file,
				builds("true", all...), builds("false", none...), builds("yes", all...))
		}
	}
}

// TestImagesPrintVersionCommitAndDate runs the build commands of the Dockerfiles with a go command that only prints its
// arguments. It builds slipway with their linker flags and runs it.
func TestImagesPrintVersionCommitAndDate(t *testing.T) {
	const version, commit, date = "v1.2.3", "0123456789abcdef0123456789abcdef01234567", "2026-01-31T12:00:00+01:00"
	stub := t.TempDir()
	if err := os.WriteFile(filepath.Join(stub, "go"), []byte("#!/bin/sh\nfor a; do printf '%s\\n' \"$a\"; done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..")
	linkerFlags := map[string]string{}
	for _, file := range []string{"Dockerfile", "Dockerfile.windows"} {
		raw, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(raw), "\\\n", " ")
		build := regexp.MustCompile(`(?m)^RUN (.* go build .*)$`).FindStringSubmatch(text)
		if build == nil {
			t.Fatalf("%s: no RUN with go build", file)
		}
		env := []string{"PATH=" + stub + string(os.PathListSeparator) + os.Getenv("PATH"), "TARGETOS=linux", "TARGETARCH=amd64"}
		for name, value := range map[string]string{"VERSION": version, "COMMIT": commit, "COMMIT_DATE": date} {
			if !regexp.MustCompile(`(?m)^ARG ` + name + `=`).MatchString(text) {
				t.Errorf("%s: no ARG %s with a default", file, name)
			}
			env = append(env, name+"="+value)
		}
		printed, err := runCommandWith(t.Context(), env, root, "sh", "-c", build[1])
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(printed, "\n-ldflags\n")
		linkerFlags[file], _, _ = strings.Cut(rest, "\n-o\n")
	}
	if linkerFlags["Dockerfile"] != linkerFlags["Dockerfile.windows"] {
		t.Errorf("the linker flags differ: %q", linkerFlags)
	}
	// The compiler flags of `make build`, so that the packages come from its cache.
	program := filepath.Join(t.TempDir(), "slipway")
	_, err := runCommandWith(t.Context(), append(os.Environ(), "CGO_ENABLED=0"), root, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false",
		"-buildvcs=false", "-ldflags", linkerFlags["Dockerfile"], "-o", program, "./cmd/slipway")
	if err != nil {
		t.Fatal(err)
	}
	printed, err := runCommand(t.Context(), root, program, "version", "--client")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{version, commit, date} {
		if !strings.Contains(printed, want) {
			t.Errorf("slipway version prints no %s:\n%s", want, printed)
		}
	}
}
