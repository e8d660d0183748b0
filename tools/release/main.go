// Command release makes all parts of a release of Slipway, without a container engine: binaries, archives, images as OCI
// layouts, chart packages, manifests, files for krew and Homebrew, software bills of materials, provenance and checksums.
// `release push` pushes the images and charts of a release to a registry, and signs them.
//
// The result of a release depends only on the commit, the flags and the Go toolchain, not on time, folder, user or machine.
// docs/release.md describes each file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "push" {
		return runPush(ctx, args[1:])
	}
	return runRelease(ctx, args)
}

// commands lists the commands of a release. Each one also has an image.
var commands = []string{cliCommand, agentCommand}

func runRelease(ctx context.Context, args []string) error {
	var version, root, targets string
	var audit bool
	r := release{commands: commands, log: slog.Default()}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&version, "version", "", "version to release, such as v0.1.0")
	flags.StringVar(&root, "source", ".", "folder of Slipway's module, in a git work tree")
	flags.StringVar(&r.out, "out", "dist", "output folder; its content is removed first")
	flags.StringVar(&targets, "targets", strings.Join(targetNames(supportedTargets), ","), "platforms to build for")
	flags.StringVar(&r.registry, "registry", "", "registry of the images and charts, such as ghcr.io/acme/slipway; empty leaves it to "+
		"the chart's value image.registry")
	flags.StringVar(&r.download, "download-url", "", "base URL of the published files, such as "+
		"https://github.com/acme/slipway/releases/download; version and file name are appended. Empty leaves out krew and Homebrew")
	flags.StringVar(&r.sourceURL, "source-url", "", "URL of the source repository in all files of the release, such as "+
		"https://github.com/acme/slipway; empty means "+projectURL)
	flags.BoolVar(&r.allowModified, "allow-modified", false, "allow a work tree that differs from its commit, and a version without tag, for experiments")
	flags.BoolVar(&audit, "audit-licences", false, "only list the licences of the linked modules, and fail on a forbidden one")
	flags.IntVar(&r.jobs, "p", 0, "number of parallel compilations; 0 means one per core")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: release has only flags", flags.Arg(0))
	}
	if audit {
		return checkLicences(ctx, root, r.commands, os.Stdout)
	}
	var err error
	if r.targets, err = parseTargets(targets); err != nil {
		return err
	}
	if r.source, err = readSource(ctx, root, version); err != nil {
		return err
	}
	if r.registry != "" {
		if err := checkRegistry(r.registry); err != nil {
			return err
		}
		if !slices.ContainsFunc(r.targets, target.isNode) {
			return fmt.Errorf("registry %q: targets %s have no image: add a platform of nodes, such as linux/amd64", r.registry, targets)
		}
	}
	if r.download = strings.TrimSuffix(r.download, "/"); r.download != "" && !plainURL.MatchString(r.download) {
		return fmt.Errorf("download-url %q: must be a URL such as https://github.com/acme/slipway/releases/download", r.download)
	}
	if r.sourceURL = strings.TrimSuffix(r.sourceURL, "/"); r.sourceURL != "" && !plainURL.MatchString(r.sourceURL) {
		return fmt.Errorf("source-url %q: must be a URL such as https://github.com/acme/slipway", r.sourceURL)
	}
	return r.makeRelease(ctx)
}

// plainURL matches URLs that need no escapes in YAML, Ruby and Markdown.
var plainURL = regexp.MustCompile(`^https?://[A-Za-z0-9.:-]+(/[A-Za-z0-9._~%+@-]+)*$`)

// release holds the source and the settings of the release to make.
type release struct {
	source        source
	commands      []string // names of folders in cmd
	targets       []target
	out           string
	registry      string // such as ghcr.io/acme/slipway, or empty
	download      string // base URL of the published files, or empty
	sourceURL     string // URL of the source repository, or empty
	allowModified bool
	jobs          int
	log           *slog.Logger

	images []subject // set by writeImages: NAME:VERSION and the digest of the index
}

// makeRelease writes all files of the release to the output folder.
func (r *release) makeRelease(ctx context.Context) error {
	changes, err := r.listChanges(ctx)
	if err != nil {
		return err
	}
	if r.source.Modified = len(changes) > 0; r.source.Modified && !r.allowModified {
		return fmt.Errorf("%s differs from its commit %.12s, or has files that are not in it: commit or remove them, "+
			"or use -allow-modified for experiments:\n%s", r.source.Root, r.source.Commit, strings.Join(changes, "\n"))
	}
	if !r.source.Tagged && !r.allowModified {
		return fmt.Errorf("version %s: no tag of this name is at commit %.12s of %s, and Go writes the tag into the programs: create it with "+
			"git tag %[1]s, fetch it with git fetch --tags, or use -allow-modified for experiments", r.source.Version, r.source.Commit, r.source.Root)
	}
	if err := r.removeEarlierRelease(ctx); err != nil {
		return err
	}
	work := filepath.Join(r.out, "bin")
	if err := os.MkdirAll(work, 0o755); err != nil { //nolint:gosec // public
		return err
	}
	binaries, err := r.buildAll(ctx, work)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context, []executable) error{
		r.writeDocs, r.writeSBOMs, r.writeArchives, r.writeKrew, r.writeFormula,
		r.writeImages, r.writeCharts, r.writeManifests, r.writeInstallPage,
	} {
		if err := step(ctx, binaries); err != nil {
			return err
		}
	}
	// A push accepts no release without provenance and checksums, so they come last.
	if err := r.checkSourceUnchanged(ctx); err != nil {
		return err
	}
	files, err := r.listReleaseFiles()
	if err != nil {
		return err
	}
	if err := r.writeProvenance(slices.Concat(files, r.images)); err != nil {
		return err
	}
	if err := r.writeChecksums(); err != nil {
		return err
	}
	for _, missing := range r.listMissing() {
		r.log.Warn(missing)
	}
	return nil
}

// listMissing says what the release lacks without a registry, a download URL or a source URL.
func (r *release) listMissing() []string {
	var missing []string
	if r.registry == "" {
		missing = append(missing, "the chart needs image.registry, and there are no install manifests: make the release with REGISTRY=ghcr.io/acme/slipway")
	}
	if r.download == "" {
		missing = append(missing, "there are no files for krew and Homebrew: make the release with DOWNLOAD_URL=https://github.com/acme/slipway/releases/download")
	}
	if r.sourceURL == "" {
		missing = append(missing, "charts, images and provenance name the repository "+projectURL+", and the README files of the charts have no links: "+
			"make the release with SOURCE_URL=https://github.com/acme/slipway")
	}
	return missing
}

// checkSourceUnchanged returns an error if the work tree has changed since the release was started.
func (r *release) checkSourceUnchanged(ctx context.Context) error {
	if r.source.Modified {
		return nil
	}
	commit, err := runCommand(ctx, r.source.Root, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	changes, err := r.listChanges(ctx)
	if err != nil {
		return err
	}
	if commit != r.source.Commit || len(changes) > 0 {
		return fmt.Errorf("%s was changed during the release, so %s is not of one commit: repeat the release",
			r.source.Root, r.out)
	}
	return nil
}

// removeEarlierRelease removes the output folder, which may hold an earlier release. If this folder contains the
// source, or if git would see it as a change of the source, it returns an error and removes nothing.
func (r *release) removeEarlierRelease(ctx context.Context) error {
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(out, r.source.Root)
	if err != nil {
		return err
	}
	if rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fmt.Errorf("out: %s contains the source and would be emptied: use a separate folder, such as dist", out)
	}
	if rel, err := filepath.Rel(r.source.Root, out); err == nil && filepath.IsLocal(rel) {
		if err := r.checkIgnored(ctx, rel); err != nil {
			return err
		}
	}
	return os.RemoveAll(out)
}

// checkIgnored returns an error if git does not ignore a folder of the source.
func (r *release) checkIgnored(ctx context.Context, folder string) error {
	// It asks for a file in the folder, because rules such as /dist/ match no folder that does not exist yet.
	_, err := runCommand(ctx, r.source.Root, "git", "check-ignore", "--quiet", filepath.Join(folder, checksumsFile))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return fmt.Errorf("out: %s is in the source, and git does not ignore it, so Go would mark the programs as modified: "+
			"use an ignored folder, such as dist, or a folder outside of %s", folder, r.source.Root)
	}
	return err
}

// fileName joins the first part, the version of the release and the other parts with underscores.
func (r *release) fileName(parts ...string) string {
	return strings.Join(append([]string{parts[0], r.source.Version}, parts[1:]...), "_")
}

func (r *release) filePath(name string) string { return filepath.Join(r.out, name) }
