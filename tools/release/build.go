package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// target is a platform that binaries are built for, given as an operating system and an architecture.
type target struct{ OS, Arch string }

func (t target) String() string { return t.OS + "/" + t.Arch }

// fileSuffix returns the target as it appears in file names, such as linux_amd64.
func (t target) fileSuffix() string { return t.OS + "_" + t.Arch }

// exeName returns the file name of a program on the target platform.
func (t target) exeName(name string) string {
	if t.OS == "windows" {
		return name + ".exe"
	}
	return name
}

// supportedTargets lists the platforms of Kubernetes nodes that Slipway supports, and macOS for the command line.
var supportedTargets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

func targetNames(targets []target) []string {
	names := make([]string, len(targets))
	for i, t := range targets {
		names[i] = t.String()
	}
	return names
}

// isNode reports whether Kubernetes nodes run on the target. Otherwise the release has no agent and no image for it.
func (t target) isNode() bool { return t.OS != "darwin" }

// parseTargets parses a list of targets such as "linux/amd64,windows/amd64".
func parseTargets(list string) ([]target, error) {
	var targets []target
	for _, s := range strings.Split(list, ",") {
		goos, arch, _ := strings.Cut(strings.TrimSpace(s), "/")
		t := target{goos, arch}
		if !slices.Contains(supportedTargets, t) {
			return nil, fmt.Errorf("targets: %q: must be a comma-separated list of %v", s, supportedTargets)
		}
		if slices.Contains(targets, t) {
			return nil, fmt.Errorf("targets: %q is listed twice", s)
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// The commands of the release. Each one is a folder in cmd and the name of an image.
const (
	cliCommand   = "slipway"
	agentCommand = "slipway-agent"
)

// executable is the compiled binary of one command for one target.
type executable struct {
	Command string
	Target  target
	Path    string
}

// versionVariable is the Go variable that holds the version that Slipway prints. The linker sets it.
const versionVariable = "github.com/slipway-dev/slipway/cmd/internal/start.version"

// buildAll compiles every command for every target into dir, and returns the binaries.
func (r *release) buildAll(ctx context.Context, dir string) ([]executable, error) {
	binaries := r.listBinaries(dir)
	for _, b := range binaries {
		r.log.Info("building", "command", b.Command, "target", b.Target.String())
		if err := r.compileBinary(ctx, b); err != nil {
			return nil, err
		}
	}
	return binaries, nil
}

// listBinaries returns the binaries of the release. The agent is only for platforms of nodes.
func (r *release) listBinaries(dir string) []executable {
	var binaries []executable
	for _, t := range r.targets {
		for _, command := range r.commands {
			if command != agentCommand || t.isNode() {
				binaries = append(binaries, executable{
					Command: command, Target: t, Path: filepath.Join(dir, t.fileSuffix(), t.exeName(command)),
				})
			}
		}
	}
	return binaries
}

// compileBinary compiles one binary reproducibly. It uses no C compiler, removes local paths, and fixes all
// environment settings. The binary contains the git commit and the time of the commit.
func (r *release) compileBinary(ctx context.Context, b executable) error {
	path, err := filepath.Abs(b.Path)
	if err != nil {
		return err
	}
	args := []string{
		"build", "-mod=readonly", "-trimpath", "-buildvcs=true",
		"-ldflags", "-s -w -buildid= -X " + versionVariable + "=" + r.source.Version, "-o", path,
	}
	if r.jobs > 0 {
		args = append(args, "-p", strconv.Itoa(r.jobs))
	}
	env, err := goEnvironment(ctx, r.source.Root, b.Target)
	if err != nil {
		return err
	}
	if _, err := runCommandWith(ctx, env, r.source.Root, "go", append(args, "./cmd/"+b.Command)...); err != nil {
		return fmt.Errorf("build %s for %s: %w", b.Command, b.Target, err)
	}
	return nil
}

// downloadSettings lists the settings of Go that say where modules, toolchains and compiled packages come from. They change no
// binary, and a build may need the user's values.
var downloadSettings = []string{
	"GOPROXY", "GOPRIVATE", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOINSECURE", "GOVCS", "GOAUTH", "GOTOOLCHAIN",
	"GOPATH", "GOMODCACHE", "GOCACHE", "GOCACHEPROG", "GOTMPDIR",
}

// goEnvironment returns the environment for the go command that compiles for a target. It has fixed values for all settings that
// change a binary. GOENV=off is needed too, because an empty variable does not replace a setting of `go env -w`.
func goEnvironment(ctx context.Context, root string, t target) ([]string, error) {
	text, err := runCommand(ctx, root, "go", append([]string{"env", "-json"}, downloadSettings...)...)
	if err != nil {
		return nil, err
	}
	var settings map[string]string
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := append(os.Environ(), "GOENV=off", "CGO_ENABLED=0", "GOOS="+t.OS, "GOARCH="+t.Arch, "GOWORK=off", "GOFLAGS=",
		"GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GODEBUG=")
	for name, value := range settings {
		env = append(env, name+"="+value)
	}
	return env, nil
}

// listDependencies returns the lines that a template of `go list` prints for each package that the commands compile for a
// target.
func listDependencies(ctx context.Context, root string, commands []string, t target, template string) ([]string, error) {
	args := []string{"list", "-mod=readonly", "-deps", "-f", template}
	for _, command := range commands {
		args = append(args, "./cmd/"+command)
	}
	env, err := goEnvironment(ctx, root, t)
	if err != nil {
		return nil, err
	}
	text, err := runCommandWith(ctx, env, root, "go", args...)
	return strings.Split(text, "\n"), err
}

// compiledFilesTemplate lists the files of the commands' own module that the compiler or the linker reads. Each line begins
// with a slash and is relative to the module.
var compiledFilesTemplate = func() string {
	var files strings.Builder
	for _, field := range []string{"GoFiles", "SFiles", "HFiles", "SysoFiles", "EmbedFiles"} {
		fmt.Fprintf(&files, `{{range .%s}}{{slice $.ImportPath (len $.Module.Path)}}/{{.}}{{"\n"}}{{end}}`, field)
	}
	return "{{if .Module}}{{if .Module.Main}}" + files.String() + "{{end}}{{end}}"
}()

// listCompiledFiles returns the files of the module that are compiled for any target, relative to its root and with slashes.
func (r *release) listCompiledFiles(ctx context.Context) (map[string]bool, error) {
	files := map[string]bool{}
	for _, t := range r.targets {
		lines, err := listDependencies(ctx, r.source.Root, r.commands, t, compiledFilesTemplate)
		if err != nil {
			return nil, err
		}
		for _, line := range lines {
			if file, ok := strings.CutPrefix(line, "/"); ok {
				files[file] = true
			}
		}
	}
	return files, nil
}

// ensureHostBinary returns a binary of a command that runs on this machine. If the list has none, it compiles the
// binary.
func (r *release) ensureHostBinary(ctx context.Context, command string, binaries []executable) (executable, error) {
	t := target{runtime.GOOS, runtime.GOARCH}
	for _, b := range binaries {
		if b.Command == command && b.Target == t {
			return b, nil
		}
	}
	b := executable{Command: command, Target: t, Path: filepath.Join(r.out, "bin", t.fileSuffix(), t.exeName(command))}
	return b, r.compileBinary(ctx, b)
}
