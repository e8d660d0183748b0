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
