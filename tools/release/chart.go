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

// charts lists the charts of the module. Some charts replace a chart of another tool. The major version of such a
// chart is raised by ahead, so that it is an upgrade for users of the replaced chart.
var charts = []struct {
	name  string
	ahead int
}{
	{"slipway", 0},
	{"aks-node-termination-handler", 2}, // its last version was 1.2.0
}

const chartsFolder = "charts"

var (
	chartVersion    = regexp.MustCompile(`(?m)^version:.*$`)
	chartAppVersion = regexp.MustCompile(`(?m)^appVersion:.*$`)
)

// writeCharts packages the charts. The result is the same as with `helm package --version --app-version`, but with
// reproducible times. It skips charts that do not exist.
func (r *release) writeCharts(context.Context, []executable) error {
	for _, c := range charts {
		dir := filepath.Join(r.source.Root, chartsFolder, c.name)
		if _, err := os.Stat(filepath.Join(dir, "Chart.yaml")); errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("no chart is packaged", "chart", c.name, "reason", dir+" does not exist")
			continue
		}
		version, err := raiseMajor(r.source.Version, c.ahead)
		if err != nil {
			return err
		}
		entries, err := chartEntries(dir, c.name, version, r.source.Version)
		if err != nil {
			return fmt.Errorf("chart %s: %w", c.name, err)
		}
		file := c.name + "-" + version + ".tgz"
		r.log.Info("packing", "product", "chart", "file", file)
		if err := writeArchive(r.filePath(file), entries, r.source.Time); err != nil {
			return err
		}
	}
	return nil
}

// raiseMajor returns a version without the leading v, and with its major version increased by majors.
func raiseMajor(version string, majors int) (string, error) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return "", fmt.Errorf("version %q: must be a semantic version with v, such as v0.1.0", version)
	}
	return fmt.Sprintf("%d.%s", major+majors, rest), nil
}

// chartEntries returns the files of a chart, except the files that .helmignore excludes. Chart.yaml comes first and
// has the given versions. The chart's version has no leading v. The app version is the version of the release, and
// the tag of its images.
func chartEntries(dir, name, version, app string) ([]archiveEntry, error) {
	description, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	if !chartVersion.Match(description) || !chartAppVersion.Match(description) {
		return nil, errors.New("Chart.yaml must have version and appVersion, each on its own line")
	}
	description = chartVersion.ReplaceAll(description, []byte("version: "+version))
	description = chartAppVersion.ReplaceAll(description, []byte("appVersion: "+app))
	var chart struct{ Name string }
	if err := yaml.Unmarshal(description, &chart); err != nil {
		return nil, fmt.Errorf("Chart.yaml: %w", err)
	}
	if chart.Name != name {
		return nil, fmt.Errorf("Chart.yaml: name %q must be %s, the name of its folder", chart.Name, name)
	}
	rules, err := readChartIgnores(dir)
	if err != nil {
		return nil, err
	}
	files, err := listTree(dir, chart.Name, 0o644)
	if err != nil {
		return nil, err
	}
	head := archiveEntry{Name: chart.Name + "/Chart.yaml", Mode: 0o644, Data: description}
	files = slices.DeleteFunc(files, func(e archiveEntry) bool { return e.Name == head.Name || rules(e) })
	return append([]archiveEntry{head}, files...), nil
}

// readChartIgnores returns a function that reports whether Helm leaves a file out of a chart's package. Helm leaves
// out a file if a rule of .helmignore matches the file or one of its folders.
func readChartIgnores(dir string) (func(archiveEntry) bool, error) {
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
	return func(e archiveEntry) bool {
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
