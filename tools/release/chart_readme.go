package main

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

var (
	// cloneInstall matches the command in a README that installs the chart slipway from a clone of the repository.
	cloneInstall = regexp.MustCompile(`(?m)^\$ helm install slipway charts/slipway .*$`)
	markdownLink = regexp.MustCompile(`\[([^\]\n]*)\]\(([^)\s]+)\)`)
)

// installCommand returns the command that installs the chart slipway of the release.
func (r *release) installCommand() string {
	version := strings.TrimPrefix(r.source.Version, "v")
	if r.registry == "" {
		return "helm install slipway " + chartFile(cliCommand, version) + " -n slipway --create-namespace --set image.registry=registry.example.com/slipway"
	}
	return "helm install slipway oci://" + chartRepository(r.registry, cliCommand) + " --version " + version + " -n slipway --create-namespace"
}

// chartReadme returns the README of a packaged chart. Its command installs the released chart, its tables have the defaults
// of the released chart, and its links do not lead to files of the repository, which the package does not have.
func (r *release) chartReadme(chart string, text []byte) ([]byte, error) {
	if chart == cliCommand {
		if n := len(cloneInstall.FindAll(text, -1)); n != 1 {
			return nil, fmt.Errorf("README.md: %d lines are the command $ helm install slipway charts/slipway: want 1", n)
		}
		text = cloneInstall.ReplaceAllLiteral(text, []byte("$ "+r.installCommand()))
	}
	for _, v := range r.imageValues(chart) {
		row := regexp.MustCompile("(?m)^(\\| `" + regexp.QuoteMeta(v.path) + "` \\| `)[^`]*")
		if !row.Match(text) {
			return nil, fmt.Errorf("README.md: %s has no row, and the release must set its default", v.path)
		}
		text = row.ReplaceAll(text, []byte("${1}"+strconv.Quote(v.content)))
	}
	return markdownLink.ReplaceAllFunc(text, func(link []byte) []byte {
		parts := markdownLink.FindSubmatch(link)
		title, target := parts[1], string(parts[2])
		switch {
		case strings.Contains(target, "://") || strings.HasPrefix(target, "#"):
			return link
		case r.sourceURL == "": // an address that may not exist is worse than no link
			return title
		}
		return fmt.Appendf(nil, "[%s](%s/blob/%s/%s)", title, r.sourceURL, r.source.Version, path.Join(chartsFolder, chart, target))
	}), nil
}
