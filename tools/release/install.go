package main

import (
	"bytes"
	"context"
	_ "embed" // for the template
	"os"
	"strings"
	"text/template"
)

// installFile says how to install and verify the release. It can also be the text of a release on GitHub.
const installFile = "INSTALL.md"

//go:embed INSTALL.md.tmpl
var installText string

// writeInstallPage writes the commands that install and verify the release from its registry.
func (r *release) writeInstallPage(context.Context, []executable) error {
	if r.registry == "" {
		return nil
	}
	var b bytes.Buffer
	err := template.Must(template.New(installFile).Parse(installText)).Execute(&b, map[string]any{
		"Version": r.source.Version, "Command": r.installCommand(), "ChartVersion": strings.TrimPrefix(r.source.Version, "v"),
		"Agent": r.imageReference(agentCommand), "Slipway": r.imageReference(cliCommand),
		"Chart": chartRepository(r.registry, cliCommand), "Download": r.download,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(r.filePath(installFile), b.Bytes(), 0o644) //nolint:gosec // public
}
