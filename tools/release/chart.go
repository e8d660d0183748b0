package main

import (
	"bytes"
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

const (
	chartsFolder = "charts"
	handlerChart = "aks-node-termination-handler"
	awsHandler   = "aws-node-termination-handler"
)

// handlerMajorsAhead lists the charts that replace the chart of another tool. Their major versions are higher by this number,
// so that they are an upgrade. The last versions of the other tools' charts were 1.2.0 and 0.27.6.
var handlerMajorsAhead = map[string]int{handlerChart: 2, awsHandler: 1}

var (
	chartVersion    = regexp.MustCompile(`(?m)^version:.*$`)
	chartAppVersion = regexp.MustCompile(`(?m)^appVersion:.*$`)
)

// writeCharts packages each chart in the folder charts. The result is the same as with
// `helm package --version --app-version`, but with reproducible times, with the images of the registry as defaults, and with
// texts for readers who have only the package.
func (r *release) writeCharts(context.Context, []executable) error {
	descriptions, err := filepath.Glob(filepath.Join(r.source.Root, chartsFolder, "*", "Chart.yaml"))
	if err != nil {
		return err
	}
	for _, description := range descriptions {
		dir := filepath.Dir(description)
		chart := filepath.Base(dir)
		version, err := r.chartVersion(chart)
		if err != nil {
			return err
		}
		entries, err := r.chartEntries(dir, chart, version)
		if err != nil {
			return fmt.Errorf("chart %s: %w", chart, err)
		}
		r.log.Info("packing", "product", "chart", "file", chartFile(chart, version))
		if err := writeArchive(r.filePath(chartFile(chart, version)), entries, r.source.Time); err != nil {
			return err
		}
	}
	return nil
}

// chartVersion returns the version of a chart in this release, without v.
func (r *release) chartVersion(chart string) (string, error) {
	if ahead := handlerMajorsAhead[chart]; ahead > 0 {
		return raiseMajor(r.source.Version, ahead)
	}
	return strings.TrimPrefix(r.source.Version, "v"), nil
}

func chartFile(chart, version string) string { return chart + "-" + version + ".tgz" }

// imageValues returns the defaults that name the released images in a chart, and the release that they are of. Without a registry
// there are none.
func (r *release) imageValues(chart string) []chartValue {
	if r.registry == "" {
		return nil
	}
	switch chart {
	case cliCommand:
		values := []chartValue{{"image.registry", r.registry}, {"image.release", r.source.Version}}
		for _, image := range []struct{ part, command string }{{"agent", agentCommand}, {"slipway", cliCommand}} {
			// An empty tag is the chart's appVersion, which is the version of the release.
			values = append(values,
				chartValue{"image." + image.part + ".repository", image.command},
				chartValue{"image." + image.part + ".tag", ""},
				chartValue{"image." + image.part + ".digest", r.imageDigest(image.command)})
		}
		return values
	case handlerChart, awsHandler:
		return []chartValue{{"slipway.image", r.imageReference(cliCommand)}, {"slipway.release", r.source.Version}}
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
// has the given version, which has no leading v. The app version is the version of the release, and the tag of its
// images.
func (r *release) chartEntries(dir, name, version string) ([]archiveEntry, error) {
	description, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	if !chartVersion.Match(description) || !chartAppVersion.Match(description) {
		return nil, errors.New("file Chart.yaml must have version and appVersion, each on its own line")
	}
	description = chartVersion.ReplaceAll(description, []byte("version: "+version))
	description = chartAppVersion.ReplaceAll(description, []byte("appVersion: "+r.source.Version))
	var chart struct{ Name string }
	if err := yaml.Unmarshal(description, &chart); err != nil {
		return nil, fmt.Errorf("read Chart.yaml: %w", err)
	}
	if chart.Name != name {
		return nil, fmt.Errorf("read Chart.yaml: name %q must be %s, the name of its folder", chart.Name, name)
	}
	rules, err := readChartIgnores(dir)
	if err != nil {
		return nil, err
	}
	files, err := listTree(dir, chart.Name, 0o644)
	if err != nil {
		return nil, err
	}
	head := archiveEntry{Name: chart.Name + "/Chart.yaml", Mode: 0o644, Data: r.replaceProjectURL(description)}
	files = slices.DeleteFunc(files, func(e archiveEntry) bool { return e.Name == head.Name || rules(e) })
	if values := r.imageValues(name); len(values) > 0 && !slices.ContainsFunc(files, func(e archiveEntry) bool { return e.Name == name+"/values.yaml" }) {
		return nil, fmt.Errorf("values.yaml does not exist, and the release must set %s", values[0].path)
	}
	for i := range files {
		if files[i].Data, err = r.chartFileForRelease(name, files[i]); err != nil {
			return nil, err
		}
		files[i].Path = ""
	}
	return append([]archiveEntry{head}, files...), nil
}

// chartFileForRelease returns the content of a chart's file in the package.
func (r *release) chartFileForRelease(chart string, file archiveEntry) ([]byte, error) {
	text, err := os.ReadFile(file.Path)
	if err != nil {
		return nil, err
	}
	switch file.Name {
	case chart + "/values.yaml":
		text, err = setValues(text, r.imageValues(chart))
	case chart + "/README.md":
		text, err = r.chartReadme(chart, text)
	}
	return r.replaceProjectURL(text), err
}

// replaceProjectURL returns a text with the address of the source repository that the release names.
func (r *release) replaceProjectURL(text []byte) []byte {
	return bytes.ReplaceAll(text, []byte(projectURL), []byte(r.repositoryURL()))
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
