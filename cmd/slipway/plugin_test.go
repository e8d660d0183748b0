//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// runMainVariable is the environment variable that makes the test binary run as slipway.
const runMainVariable = "SLIPWAY_TEST_MAIN"

func init() {
	if os.Getenv(runMainVariable) != "" {
		main()
		os.Exit(0)
	}
}

// codeBlock matches a code block in a page.
var codeBlock = regexp.MustCompile("(?ms)^```(sh|text|go)\n(.*?)^```$")

// TestPluginTutorialWorks runs all commands of docs/writing-a-plugin.md in one shell, and checks the outputs that the page
// shows.
func TestPluginTutorialWorks(t *testing.T) {
	root, err := filepath.Abs("../..")
	must.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "writing-a-plugin.md"))
	must.NoError(t, err)
	dir, bin := filepath.Join(t.TempDir(), "tutorial"), t.TempDir()
	linkSlipway(t, bin)
	script := "set -euo pipefail\nexport PATH='" + bin + "':\"$PATH\" DIR='" + dir + "'\n"
	var wants [][]string // by block of the script
	for _, b := range codeBlock.FindAllStringSubmatch(string(page), -1) {
		switch kind, text := b[1], b[2]; kind {
		case "go":
			script += "cat > \"$DIR/shelf.go\" <<'END OF FILE'\n" + text + "END OF FILE\n"
		case "sh":
			// The test replaces the binary and the directory.
			text = strings.NewReplacer("make build\n", "", "export PATH=\"$PWD/bin:$PATH\" DIR=/tmp/plugin-tutorial\n", "").Replace(text)
			script += text + "echo '=== END OF BLOCK'\n"
			wants = append(wants, nil)
		case "text":
			wants[len(wants)-1] = strings.Split(strings.TrimRight(text, "\n"), "\n")
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = root
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	got := strings.Split(out.String(), "=== END OF BLOCK\n")
	if len(got) != len(wants)+1 || len(wants) < 5 {
		t.Fatalf("%d blocks were typed of %d:\n%s", len(got)-1, len(wants), &out)
	}
	for i, lines := range wants {
		rest := got[i]
		for _, line := range lines {
			_, after, found := strings.Cut(rest, line)
			if !found {
				t.Errorf("the page promises %q, and there is only\n%s", line, got[i])
				break
			}
			rest = after
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the page leaves its directory behind")
	}
}

// linkSlipway links the test binary as slipway in a directory.
func linkSlipway(t *testing.T, dir string) {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	script := "#!/bin/sh\n" + runMainVariable + "=1 exec '" + self + "' \"$@\"\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "slipway"), []byte(script), 0o700))
}

func TestPluginTestPrintsResultsAsData(t *testing.T) {
	t.Setenv(runMainVariable, "1")
	out, err := runSlipway(t, "plugin", "test", "/nonexistent/shelf", "--group", "all", "-o", "json")
	check.ErrorContains(t, err, "plugin /nonexistent/shelf: failed: shelf")
	var got pluginResults
	must.NoError(t, json.Unmarshal([]byte(out), &got))
	must.Not(t, len(got.Tests) != 1, "%s", out)
	check.Not(t, got.Passed || got.Tests[0].Result != "fail" || !strings.Contains(got.Tests[0].Output, "plugin directory /nonexistent: does not exist"), "%s", out)
	_, err = runSlipway(t, "plugin", "test", "/nonexistent/shelf", "--group", "all", "-o", "name")
	check.ErrorContains(t, err, `--output: "name": want json, yaml, wide or nothing`)
}

func TestTestResultsAreParsed(t *testing.T) {
	const text = `=== RUN   my shelf
=== RUN   my shelf/a_list
=== RUN   my shelf/a_deletion
    conformance.go:12: changes are not allowed
=== NAME  my shelf/a_list
    conformance.go:34: want 2,
        got 1
--- FAIL: my shelf (0.25s)
    --- FAIL: my shelf/a_list (0.10s)
    --- SKIP: my shelf/a_deletion (0.00s)
FAIL
`
	check.Equal(t, []pluginTestResult{
		{Name: "my shelf", Result: "fail", Seconds: 0.25},
		{Name: "my shelf/a_list", Result: "fail", Seconds: 0.1, Output: "conformance.go:34: want 2,\ngot 1"},
		{Name: "my shelf/a_deletion", Result: "skip", Output: "conformance.go:12: changes are not allowed"},
	}, parseTestResults(text))
}
