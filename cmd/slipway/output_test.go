package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestOutputFormatsMeanTheSame(t *testing.T) {
	answer := map[string]any{
		"cost": 2.3010299956639813, "created": 1.7640288e9, "big": 1e21, "count": 3, "text": `costs 1.23456789 or "0.12345"`, "share": 1.0 / 3, "tiny": 1e-9,
	}
	for format, want := range map[outputFlag]string{
		outputJSON: `{
  "big": 1000000000000000000000,
  "cost": 2.301,
  "count": 3,
  "created": 1764028800,
  "share": 0.333,
  "text": "costs 1.23456789 or \"0.12345\"",
  "tiny": 0
}
`,
		outputYAML: "big: 1e+21\ncost: 2.301\ncount: 3\ncreated: 1764028800\nshare: 0.333\ntext: costs 1.23456789 or \"0.12345\"\ntiny: 0\n",
		outputName: "node/a.b.c\nnoderetirement.slipway.dev/r\n", outputWide: "wide true\n", outputTable: "wide false\n",
	} {
		must.NoError(t, format.validate())
		var out bytes.Buffer
		must.NoError(t, format.printAnswer(&out, answer, func(w io.Writer, wide bool) error {
			_, err := io.WriteString(w, map[bool]string{true: "wide true\n", false: "wide false\n"}[wide])
			return err
		}, formatName("Node", "a.b.c"), formatName("NodeRetirement", "r")))
		check.Is(t, want, out.String(), string(format))
	}
}

func TestTextOfClusterCannotControlTheTerminal(t *testing.T) {
	const text, want = "a\x1b]0;x\a\tb\u009b2J\r\x7f…\n", "a]0;x\tb2J…\n"
	for _, format := range []outputFlag{outputTable, outputWide} {
		var out bytes.Buffer
		must.NoError(t, format.printAnswer(&out, nil, func(w io.Writer, _ bool) error {
			_, err := io.WriteString(w, text)
			return err
		}))
		check.Is(t, want, out.String(), string(format))
	}
	for format, want := range map[outputFlag]string{
		outputJSON: `{
  "text": "a\u001b]0;x\u0007\tb\u009b2J\r\u007f…\n"
}
`,
		outputYAML: `text: "a\e]0;x\a\tb\x9B2J\r\x7F…\n"` + "\n",
	} {
		var out bytes.Buffer
		must.NoError(t, format.printAnswer(&out, map[string]string{"text": text}, nil))
		check.Is(t, want, out.String(), string(format))
	}
	var out bytes.Buffer
	n, err := textWriter{&out}.Write([]byte(text))
	check.Not(t, err != nil || n != len(text) || out.String() != want, "%q, %d bytes, %v", out.String(), n, err)
	for _, cmd := range newRootCommand().Commands() {
		_, is := cmd.ErrOrStderr().(textWriter)
		check.Not(t, !is, "slipway %s prints its errors as they are", cmd.Name())
	}
}

func TestEveryOutputFlagRefusesUnknownFormat(t *testing.T) {
	file := saveTestCluster(t)
	for _, line := range []string{
		"plan --snapshot " + file, "why node-b --snapshot " + file, "status", "doctor", "retire n", "drain n", "simulate-eviction n",
	} {
		_, err := runOffline(t, append(strings.Fields(line), "-o", "table")...)
		if err == nil || err.Error() != `--output: "table": want json, yaml, wide, name or nothing` {
			t.Errorf("slipway %s -o table: %v", line, err)
		}
	}
	for _, line := range []string{"version --client", "notify test", "plugin test ./p --group g"} {
		_, err := runOffline(t, append(strings.Fields(line), "-o", "name")...)
		if err == nil || err.Error() != `--output: "name": want json, yaml, wide or nothing` {
			t.Errorf("slipway %s -o name: %v", line, err)
		}
	}
}

func TestVersionNeedsNoAPIServer(t *testing.T) {
	for _, line := range []string{"version -o json", "version --client -o json --server http://127.0.0.1:1"} {
		out, err := runOffline(t, strings.Fields(line)...)
		must.NoError(t, err)
		check.Contains(t, out, `"version": "`, `"goVersion": "go1.`, `"platform": "`)
		check.Not(t, strings.Contains(out, "kubernetes"), "%s prints a server: %s", line, out)
	}
	out, err := runOffline(t, "version", "--server", "http://127.0.0.1:1")
	check.Not(t, err == nil || !strings.Contains(out, "platform"), "without an answer: %q, %v", out, err)
}
