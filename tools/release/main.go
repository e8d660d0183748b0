// Command release makes everything that a release of Slipway consists of, without a container engine: binaries, archives,
// images as OCI layouts, the chart's package, a krew manifest, software bills of materials, provenance and checksums.
//
// What it writes depends on the commit, the version and the Go toolchain alone: not on the time, the folder, the user or
// the machine. docs/release.md says what each file is for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
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
	var version, root, targets string
	var audit bool
	r := release{commands: []string{"slipway", "slipway-agent"}, log: slog.Default()}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&version, "version", "", "version to release, such as v0.1.0")
	flags.StringVar(&root, "source", ".", "folder of Slipway's module, in a git work tree")
	flags.StringVar(&r.out, "out", "dist", "folder to write to; what was there is removed")
	flags.StringVar(&targets, "targets", "linux/amd64,linux/arm64,windows/amd64", "platforms to build for")
	flags.StringVar(&r.download, "download-url", "https://github.com/slipway-dev/slipway/releases/download",
		"where the archives will be found, for the krew manifest; the version and the file are appended")
	flags.BoolVar(&r.allowModified, "allow-modified", false, "release from a work tree that differs from its commit, for trying out")
	flags.BoolVar(&audit, "audit-licences", false, "only say which licences the linked modules have, and fail on one that is not allowed")
	flags.IntVar(&r.jobs, "p", 0, "packages that are compiled at once; 0 is one for each core")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: release takes flags only", flags.Arg(0))
	}
	if audit {
		return auditLicences(ctx, root, r.commands, os.Stdout)
	}
	var err error
	if r.targets, err = parseTargets(targets); err != nil {
		return err
	}
	if r.source, err = readSource(ctx, root, version); err != nil {
		return err
	}
	return r.make(ctx)
}

// release is what is being made, and from what.
type release struct {
	source        source
	commands      []string // names of folders under cmd
	targets       []target
	out           string
	download      string
	allowModified bool
	jobs          int
	log           *slog.Logger
}

// make writes the whole release.
func (r *release) make(ctx context.Context) error {
	if r.source.Modified && !r.allowModified {
		return fmt.Errorf("%s differs from its commit %.12s, or has files that git does not know: commit or remove them, "+
			"or try out with -allow-modified", r.source.Root, r.source.Commit)
	}
	if err := r.empty(); err != nil {
		return err
	}
	work := filepath.Join(r.out, "bin")
	if err := os.MkdirAll(work, 0o755); err != nil { //nolint:gosec // what is released is for everybody to read
		return err
	}
	binaries, err := r.build(ctx, work)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context, []executable) error{
		r.writeDocs, r.writeSBOMs, r.writeArchives, r.writeKrew, r.writeCharts,
	} {
		if err := step(ctx, binaries); err != nil {
			return err
		}
	}
	images, err := r.writeImages(binaries)
	if err != nil {
		return err
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	if err := r.writeProvenance(slices.Concat(files, images)); err != nil {
		return err
	}
	if err := r.writeChecksums(); err != nil {
		return err
	}
	return r.unchanged(ctx)
}

// unchanged refuses what was made of a work tree that somebody has changed meanwhile.
func (r *release) unchanged(ctx context.Context) error {
	if r.source.Modified {
		return nil
	}
	commit, err := output(ctx, r.source.Root, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	args := []string{"status", "--porcelain", "--", "."}
	if rel, err := filepath.Rel(r.source.Root, out); err == nil && filepath.IsLocal(rel) {
		args = append(args, ":(exclude)"+filepath.ToSlash(rel))
	}
	status, err := output(ctx, r.source.Root, "git", args...)
	if err != nil {
		return err
	}
	if commit != r.source.Commit || status != "" {
		return fmt.Errorf("%s was changed while the release was made, so that what is in %s is not of one commit: make it again",
			r.source.Root, r.out)
	}
	return nil
}

// empty removes what an earlier release left in the folder to write to. It refuses a folder that the source is in.
func (r *release) empty() error {
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(out, r.source.Root)
	if err != nil {
		return err
	}
	if rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fmt.Errorf("out: %s has the source in it, and would be emptied: want a folder of its own, such as dist", out)
	}
	return os.RemoveAll(out)
}

// name is the name of a file of the release.
func (r *release) name(parts ...string) string {
	return strings.Join(append([]string{parts[0], r.source.Version}, parts[1:]...), "_")
}

func (r *release) path(name string) string { return filepath.Join(r.out, name) }
