package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// projectURL is the address of the source repository in the files of the source. A release with a source URL replaces it.
const projectURL = "https://github.com/slipway-dev/slipway"

// repositoryURL returns the address of the source repository that the release names.
func (r *release) repositoryURL() string { return cmp.Or(r.sourceURL, projectURL) }

// source describes the commit that a release is made from.
type source struct {
	Root      string    // absolute path of the module
	Version   string    // with v, such as "v0.1.0"
	Commit    string    // 40 hex digits
	Tagged    bool      // the version has a tag, which is at the commit
	Time      time.Time // of the commit, in UTC; the time of every file in the release
	Modified  bool      // the work tree differs from the commit; set by makeRelease
	Toolchain string    // "go1.26.0"
}

// readSource reads the commit of the work tree at root with git, and the version of Go. It returns an error if the
// version is not a semantic version, or if its tag is at another commit.
func readSource(ctx context.Context, root, version string) (source, error) {
	s := source{Version: version}
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return s, fmt.Errorf("version %q: must be a semantic version with v, such as v0.1.0 or v0.2.0-rc.1 (make release VERSION=v0.1.0)",
			version)
	}
	var err error
	if s.Root, err = filepath.Abs(root); err != nil {
		return s, err
	}
	if s.Commit, err = runCommand(ctx, s.Root, "git", "rev-parse", "HEAD"); err != nil {
		return s, fmt.Errorf("release needs a git work tree: %w", err)
	}
	tagged, err := runCommand(ctx, s.Root, "git", "rev-parse", "--verify", "--quiet", "refs/tags/"+version+"^{commit}")
	if s.Tagged = err == nil; s.Tagged && tagged != s.Commit {
		return s, fmt.Errorf("version %s: its tag is at commit %.12s, and the work tree at %.12s: check out the tag first",
			version, tagged, s.Commit)
	}
	seconds, err := runCommand(ctx, s.Root, "git", "show", "--no-patch", "--format=%ct", "HEAD")
	if err != nil {
		return s, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return s, fmt.Errorf("parse the time of commit %.12s: %w", s.Commit, err)
	}
	s.Time = time.Unix(unix, 0).UTC()
	s.Toolchain, err = runCommand(ctx, s.Root, "go", "env", "GOVERSION")
	return s, err
}

// listChanges returns how the work tree differs from its commit, in the format of `git status --porcelain`. This includes
// ignored files that the release packs or compiles. The user's settings of git status have no effect.
func (r *release) listChanges(ctx context.Context) ([]string, error) {
	var changes []string
	status, err := runCommand(ctx, r.source.Root, "git", "status", "--porcelain", "--untracked-files=normal")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(status) {
		changes = append(changes, strings.TrimSpace(line))
	}
	ignored, err := runCommand(ctx, r.source.Root, "git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	compiled, err := r.listCompiledFiles(ctx)
	if err != nil {
		return nil, err
	}
	for file := range strings.SplitSeq(ignored, "\x00") {
		if folder, _, _ := strings.Cut(file, "/"); compiled[file] || slices.Contains(packedFiles, folder) {
			changes = append(changes, "!! "+file)
		}
	}
	return changes, nil
}

// packedFiles lists the files and folders of the source, besides the compiled files, that the release reads.
var packedFiles = []string{chartsFolder, deployFolder, "LICENSE", "go.mod", "go.sum"}

// runCommand runs a command in a folder and returns its output without surrounding white space.
func runCommand(ctx context.Context, dir, name string, args ...string) (string, error) {
	return runCommandWith(ctx, nil, dir, name, args...)
}

// runCommandWith runs a command as runCommand does, but with the given environment. If env is nil, the command gets
// this process's environment.
func runCommandWith(ctx context.Context, env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // git, go and the new binaries
	cmd.Dir, cmd.Env = dir, env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
