package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v4/pkg/ignore"
	"sigs.k8s.io/yaml"
)

// charts are the folders of the charts in the module, by name. The version of one that takes the place of another tool's
// chart is as many majors ahead of the release's as that tool's last one was, so that it is always an upgrade.
var charts = []struct {
	name  string
	ahead int
}{
	{"slipway", 0},
	{"aks-node-termination-handler", 2}, // whose last was 1.2.0
}

const chartsFolder = "charts"

var (
	chartVersion    = regexp.MustCompile(`(?m)^version:.*$`)
	chartAppVersion = regexp.MustCompile(`(?m)^appVersion:.*$`)
)

// writeCharts packages the charts as `helm package --version --app-version` does, apart from the times that Helm leaves in
// the packages. Of a chart that is not in the module there is no package.
func (r *release) writeCharts(context.Context, []executable) error {
	for _, c := range charts {
		dir := filepath.Join(r.source.Root, chartsFolder, c.name)
		if _, err := os.Stat(filepath.Join(dir, "Chart.yaml")); errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("no chart is packaged", "chart", c.name, "reason", dir+" does not exist")
			continue
		}
		version, err := aheadOf(r.source.Version, c.ahead)
		if err != nil {
			return err
		}
		entries, err := chartEntries(dir, c.name, version, r.source.Version)
		if err != nil {
			return fmt.Errorf("chart %s: %w", c.name, err)
		}
		file := c.name + "-" + version + ".tgz"
		r.log.Info("packing", "product", "chart", "file", file)
		if err := writeArchive(r.path(file), entries, r.source.Time); err != nil {
			return err
		}
	}
	return nil
}

// aheadOf is a version without its v, so many majors ahead.
func aheadOf(version string, majors int) (string, error) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return "", fmt.Errorf("version %q: want a semantic version with its v, such as v0.1.0", version)
	}
	return fmt.Sprintf("%d.%s", major+majors, rest), nil
}

// chartEntries are a chart's files with its version in Chart.yaml, which comes first, without those that .helmignore names.
// The chart's version has no v; the application's is the release's, and the tag of its images.
func chartEntries(dir, name, version, app string) ([]entry, error) {
	description, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	if !chartVersion.Match(description) || !chartAppVersion.Match(description) {
		return nil, errors.New("its Chart.yaml has to have version and appVersion, each on a line of its own")
	}
	description = chartVersion.ReplaceAll(description, []byte("version: "+version))
	description = chartAppVersion.ReplaceAll(description, []byte("appVersion: "+app))
	var chart struct{ Name string }
	if err := yaml.Unmarshal(description, &chart); err != nil {
		return nil, fmt.Errorf("its Chart.yaml: %w", err)
	}
	if chart.Name != name {
		return nil, fmt.Errorf("its Chart.yaml: name %q: the package is called %s, as its folder is", chart.Name, name)
	}
	rules, err := chartIgnores(dir)
	if err != nil {
		return nil, err
	}
	files, err := tree(dir, chart.Name, 0o644)
	if err != nil {
		return nil, err
	}
	head := entry{Name: chart.Name + "/Chart.yaml", Mode: 0o644, Data: description}
	files = slices.DeleteFunc(files, func(e entry) bool { return e.Name == head.Name || rules(e) })
	return append([]entry{head}, files...), nil
}

// chartIgnores says which files of a chart Helm would leave out: those that a rule names, or one of the folders they are in.
func chartIgnores(dir string) (func(entry) bool, error) {
	dir = filepath.Clean(dir)
	rules := ignore.Empty()
	file := filepath.Join(dir, ignore.HelmIgnore)
	switch parsed, err := ignore.ParseFile(file); {
	case err == nil:
		rules = parsed
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", ignore.HelmIgnore, err)
	}
	rules.AddDefaults()
	return func(e entry) bool {
		for path := e.Path; path != dir; path = filepath.Dir(path) {
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return false
			}
			if info, err := os.Stat(path); err == nil && rules.Ignore(filepath.ToSlash(rel), info) {
				return true
			}
		}
		return false
	}, nil
}
