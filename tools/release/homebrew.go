package main

import (
	"bytes"
	"context"
	_ "embed" // for the template
	"os"
	"slices"
	"strings"
	"text/template"
)

// formulaFile is the name that Homebrew requires for the formula slipway.
const formulaFile = "slipway.rb"

//go:embed slipway.rb.tmpl
var formulaText string

// homebrewNames has Homebrew's names of operating systems and architectures.
var homebrewNames = map[string]string{"darwin": "macos", "linux": "linux", "amd64": "intel", "arm64": "arm"}

// writeFormula writes a Homebrew formula of the command line (https://docs.brew.sh/Formula-Cookbook).
func (r *release) writeFormula(context.Context, []executable) error {
	if r.download == "" {
		return nil
	}
	type platform struct {
		OS, Arch string
		archiveDownload
	}
	var platforms []platform
	for _, t := range r.targets {
		if t.OS == "windows" {
			continue
		}
		download, err := r.archiveDownload(cliCommand, t)
		if err != nil {
			return err
		}
		platforms = append(platforms, platform{homebrewNames[t.OS], homebrewNames[t.Arch], download})
	}
	if len(platforms) == 0 {
		return nil
	}
	slices.SortFunc(platforms, func(a, b platform) int { return strings.Compare(b.OS+b.Arch, a.OS+a.Arch) })
	var b bytes.Buffer
	err := template.Must(template.New(formulaFile).Parse(formulaText)).Execute(&b, map[string]any{
		"Homepage": r.repositoryURL(), "Version": strings.TrimPrefix(r.source.Version, "v"), "Platforms": platforms,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(r.filePath(formulaFile), b.Bytes(), 0o644) //nolint:gosec // public
}
