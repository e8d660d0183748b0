package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// VersionVariable names the environment variable with the default Kubernetes version.
const VersionVariable = "SLIPWAY_KUBE_VERSION"

// CacheDirVariable names the environment variable with the directory of compiled binaries. The default is slipway-dev in
// the user's cache directory.
const CacheDirVariable = "SLIPWAY_DEV_CACHE"

// moduleVariable names the environment variable with the directory of the dev module. A binary needs it if the module
// has moved since the build.
const moduleVariable = "SLIPWAY_DEV_MODULE"

// moduleDir is the directory of the dev module. `make slipway-dev` sets it with the linker.
var moduleDir string

// newestVersion is the version that the dev module requires. Each other version has a module in versions/.
const newestVersion = "1.37"

// Versions returns the supported Kubernetes minor versions, oldest first.
func Versions() []string { return []string{"1.33", "1.34", "1.35", "1.36", newestVersion} }

// ResolveVersion returns the given version, or else the version in the environment, or else the newest. It returns an
// error for a version that is not in Versions.
func ResolveVersion(version string) (string, error) {
	source := "Version"
	if version == "" {
		version, source = os.Getenv(VersionVariable), VersionVariable
	}
	if version == "" {
		return newestVersion, nil
	}
	if !slices.Contains(Versions(), version) {
		return "", fmt.Errorf("%s is %q, it must be one of %s", source, version, strings.Join(Versions(), ", "))
	}
	return version, nil
}

// Binaries holds the paths of a control plane's binaries.
type Binaries struct {
	Etcd, APIServer, ControllerManager, Scheduler, Kwok string
}

// BuildBinaries compiles the binaries of a Kubernetes version into the cache, unless they are there, and returns their paths.
// The first build takes minutes, and is announced in one line to progress. Concurrent builds wait for each other.
func BuildBinaries(ctx context.Context, version string, progress io.Writer) (Binaries, error) {
	module, err := findDevModule()
	if err != nil {
		return Binaries{}, err
	}
	// etcd and kwok always come from the dev module.
	tools := buildPlan{module: module, packages: map[string]string{
		Etcd: "go.etcd.io/etcd/server/v3",
		Kwok: "sigs.k8s.io/kwok/cmd/kwok",
	}}
	kubernetes := buildPlan{module: module, packages: map[string]string{
		APIServer:         "k8s.io/kubernetes/cmd/kube-apiserver",
		ControllerManager: "k8s.io/kubernetes/cmd/kube-controller-manager",
		Scheduler:         "k8s.io/kubernetes/cmd/kube-scheduler",
	}}
	if version != newestVersion {
		kubernetes.module = filepath.Join(module, "controlplane", "versions", version)
	}
	var dirs [2]string
	for i, plan := range []buildPlan{tools, kubernetes} {
		if dirs[i], err = plan.ensureBuilt(ctx, progress); err != nil {
			return Binaries{}, err
		}
	}
	return Binaries{
		Etcd:              filepath.Join(dirs[0], Etcd),
		Kwok:              filepath.Join(dirs[0], Kwok),
		APIServer:         filepath.Join(dirs[1], APIServer),
		ControllerManager: filepath.Join(dirs[1], ControllerManager),
		Scheduler:         filepath.Join(dirs[1], Scheduler),
	}, nil
}

// buildPlan is a set of binaries of one module.
type buildPlan struct {
	module   string            // directory of the module
	packages map[string]string // binary name to package
}

// kubernetesVersion matches the Kubernetes version that a go.mod requires.
var kubernetesVersion = regexp.MustCompile(`(?m)^(?:require\s+|\s+)k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// ensureBuilt compiles the plan's binaries, unless they are in the cache, and returns their directory.
//
// A build is named after the versions of all modules in it, so that branches with other differences share it. Finding
// these versions takes seconds. So a symbolic link, named after go.mod and go.sum, points to the build.
func (p buildPlan) ensureBuilt(ctx context.Context, progress io.Writer) (string, error) {
	key, err := p.readBuildKey()
	if err != nil {
		return "", err
	}
	prefix, link := key.prefix, key.link
	if dir, ok := p.findCompleteBuild(link); ok {
		return dir, markBuildUsed(dir)
	}
	unlock, err := lockFile(ctx, prefix+"lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir, ok := p.findCompleteBuild(link); ok { // another process built it during the wait
		return dir, markBuildUsed(dir)
	}
	modules, err := p.listModules(ctx)
	if err != nil {
		return "", err
	}
	dir := prefix + hashBuildInputs(modules)
	if _, ok := p.findCompleteBuild(dir); !ok {
		ldflags := linkerFlags(key.version, key.major, key.minor)
		if err := p.compileBinaries(ctx, dir, ldflags, progress); err != nil {
			return "", err
		}
	}
	return dir, errors.Join(markBuildUsed(dir), replaceLink(dir, link), removeOldBuilds(prefix))
}

// buildKey locates a plan's binaries, as far as go.mod and go.sum determine it.
type buildKey struct{ version, major, minor, prefix, link string }

// readBuildKey reads the plan's go.mod and go.sum.
func (p buildPlan) readBuildKey() (buildKey, error) {
	mod, err := os.ReadFile(filepath.Join(p.module, "go.mod"))
	if err != nil {
		return buildKey{}, fmt.Errorf("finding out what to build: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(p.module, "go.sum"))
	if err != nil {
		return buildKey{}, fmt.Errorf("finding out what to build: %w", err)
	}
	match := kubernetesVersion.FindSubmatch(mod)
	if match == nil {
		return buildKey{}, fmt.Errorf("%s does not require k8s.io/kubernetes", filepath.Join(p.module, "go.mod"))
	}
	cache, err := findCacheDir()
	if err != nil {
		return buildKey{}, err
	}
	version := string(match[1])
	prefix := filepath.Join(cache, strings.Join(append([]string{version}, p.binaryNames()...), "-")+"-")
	return buildKey{version, string(match[2]), string(match[3]), prefix, prefix + "go.mod-" + hashBuildInputs(mod, sum)}, nil
}

// hashBuildInputs returns a short hash of the parts, the compiler version and the platform.
func hashBuildInputs(parts ...[]byte) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, part := range parts {
		fmt.Fprintf(hash, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// listModules lists the modules that are linked into the plan's binaries, with their versions.
func (p buildPlan) listModules(ctx context.Context) ([]byte, error) {
	const format = "{{with .Module}}{{.Path}} {{.Version}}{{with .Replace}} {{.Path}} {{.Version}}{{end}}{{end}}"
	args := []string{"list", "-deps", "-f", format}
	for _, name := range p.binaryNames() {
		args = append(args, p.packages[name])
	}
	listed, err := p.runGoCommand(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("finding out what to build: %w", err)
	}
	lines := strings.Split(string(listed), "\n")
	slices.Sort(lines)
	return []byte(strings.Join(slices.Compact(lines), "\n")), nil
}

// runGoCommand runs the go command in the plan's module and returns its output. It ignores the caller's workspace and
// flags, because they would change the build.
func (p buildPlan) runGoCommand(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // constants and values of go.mod
	cmd.Dir = p.module
	// Has the flags of `make build`, so that shared packages are compiled once.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false -trimpath", "GO111MODULE=on", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", args[0], p.module, err, stderr.Bytes())
	}
	return output, nil
}

// replaceLink points a symbolic link at a build in the same directory.
func replaceLink(dir, link string) error {
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replacing a link to a build: %w", err)
	}
	if err := os.Symlink(filepath.Base(dir), link); err != nil {
		return fmt.Errorf("linking to a build: %w", err)
	}
	return nil
}

// markBuildUsed records that a build was used.
func markBuildUsed(dir string) error {
	if err := os.Chtimes(dir, time.Time{}, time.Now()); err != nil {
		return fmt.Errorf("recording the use of a build: %w", err)
	}
	return nil
}

// buildRetention is the time that a build stays in the cache after its last use.
const buildRetention = 14 * 24 * time.Hour

// removeOldBuilds removes the builds with this name prefix that were not used for buildRetention, and the links to them.
func removeOldBuilds(prefix string) error {
	paths, err := filepath.Glob(prefix + "*")
	if err != nil {
		return fmt.Errorf("looking for old builds: %w", err)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		dangling := errors.Is(err, fs.ErrNotExist)
		if !dangling && (err != nil || !info.IsDir() || time.Since(info.ModTime()) < buildRetention) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("removing an old build: %w", err)
		}
	}
	return nil
}

func (p buildPlan) binaryNames() []string {
	var names []string
	for name := range p.packages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// findCompleteBuild returns the directory behind a path, and whether it has all of the plan's binaries.
func (p buildPlan) findCompleteBuild(path string) (dir string, ok bool) {
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", false
	}
	for name := range p.packages {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", false
		}
	}
	return dir, true
}

// compileBinaries compiles the plan's binaries next to dir, and moves them to dir when all are complete.
func (p buildPlan) compileBinaries(ctx context.Context, dir, ldflags string, progress io.Writer) error {
	if progress == nil {
		progress = os.Stderr
	}
	begun := time.Now()
	fmt.Fprintf(progress, "slipway-dev: compiling %s (minutes the first time) …\n", strings.Join(p.binaryNames(), ", "))
	// The caller holds the lock, so a directory found here is the rest of a killed build.
	temporary := dir + ".building"
	clean := func() error { return os.RemoveAll(temporary) }
	if err := errors.Join(clean(), os.Mkdir(temporary, 0o700)); err != nil {
		return fmt.Errorf("making a directory to build in: %w", err)
	}
	defer func() { _ = clean() }()
	for _, name := range p.binaryNames() {
		output := filepath.Join(temporary, name)
		if _, err := p.runGoCommand(ctx, "build", "-ldflags="+ldflags, "-o", output, p.packages[name]); err != nil {
			return fmt.Errorf("compiling %s: %w", name, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("replacing an unfinished build: %w", err)
	}
	if err := os.Rename(temporary, dir); err != nil {
		return fmt.Errorf("moving the build to the cache: %w", err)
	}
	fmt.Fprintf(progress, "slipway-dev: compiled %s in %s\n", strings.Join(p.binaryNames(), ", "),
		time.Since(begun).Round(time.Second))
	return nil
}

// linkerFlags sets the version in the binaries, as Kubernetes' own build does, and omits debug information.
func linkerFlags(version, major, minor string) string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor="+major, "-X", pkg+".gitMinor="+minor,
			"-X", pkg+".gitTreeState=clean")
	}
	// The default Kubernetes version of `helm template`.
	const helm = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
	flags = append(flags, "-X", helm+"Major="+major, "-X", helm+"Minor="+minor)
	return strings.Join(flags, " ")
}

func findCacheDir() (string, error) {
	dir := filepath.Clean(os.Getenv(CacheDirVariable))
	if dir == "." {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding the cache of compiled programs (set %s to a directory): %w", CacheDirVariable, err)
		}
		dir = filepath.Join(user, "slipway-dev")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:gosec // inside the cache
		return "", fmt.Errorf("making the cache of compiled programs: %w", err)
	}
	return dir, nil
}

// findDevModule returns the directory of the dev module, which has the go.mod of all builds.
func findDevModule() (string, error) {
	if dir := os.Getenv(moduleVariable); dir != "" {
		return dir, nil
	}
	if moduleDir != "" {
		return moduleDir, nil
	}
	// The path of this file at compile time. With -trimpath it is not absolute.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Dir(filepath.Dir(file))
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the directory of the dev module has moved since this program was compiled; "+
		"set %s to its directory", moduleVariable)
}

// lockPollInterval is the interval between two attempts to lock.
const lockPollInterval = 200 * time.Millisecond

// lockFile locks a file against other processes. The system unlocks it when the process ends, even by a crash.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the cache: %w", err)
	}
	ticker := time.NewTicker(lockPollInterval)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("waiting for another process to finish compiling (lock %s): %w", path, ctx.Err())
			return nil, errors.Join(err, f.Close())
		case <-ticker.C:
		}
	}
}
