package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// VersionVariable is the name of the environment variable that holds the default Kubernetes version.
const VersionVariable = "SLIPWAY_KUBE_VERSION"

// CacheDirVariable is the name of the environment variable that holds the directory of compiled binaries. The
// default is slipway-dev in the user's cache directory.
const CacheDirVariable = "SLIPWAY_DEV_CACHE"

// moduleVariable is the name of the environment variable that holds the directory of the dev module. Set it if the
// module was moved after the build of the binary.
const moduleVariable = "SLIPWAY_DEV_MODULE"

// moduleDir is the directory of the dev module. `make slipway-dev` sets this variable with linker flags.
var moduleDir string

// newestVersion is the Kubernetes version that the dev module requires. Every other supported version has a module
// in the folder versions.
const newestVersion = "1.37"

// oldestAgentVersion is the oldest Kubernetes version that the agent supports. Slipway's other parts need 1.33.
const oldestAgentVersion = "1.30"

// Versions returns the supported Kubernetes minor versions, oldest first.
func Versions() []string {
	return []string{oldestAgentVersion, "1.33", "1.34", "1.35", "1.36", newestVersion}
}

// ResolveVersion returns the given version. If it is empty, ResolveVersion returns the version from the environment
// variable, or else the newest version. It returns an error for a version that is not in Versions.
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
	Etcd, Kwok string
	// Kubernetes is kube-apiserver, kube-controller-manager or kube-scheduler. The first argument selects one of them.
	Kubernetes string
}

// kubernetesProgram is the name of Binaries.Kubernetes, and of the folder with its source.
const kubernetesProgram = "kubernetes"

// kubernetesSource is the source of Binaries.Kubernetes.
//
//go:embed kubernetes/main.go
var kubernetesSource []byte

// BuildBinaries compiles the binaries of a Kubernetes version into the cache, unless the cache has them. It returns
// their paths. The first build takes minutes, so BuildBinaries writes one line to progress. Concurrent builds of the
// same version wait for each other.
func BuildBinaries(ctx context.Context, version string, progress io.Writer) (Binaries, error) {
	module, err := findDevModule()
	if err != nil {
		return Binaries{}, err
	}
	// etcd and kwok always come from the dev module.
	newest := buildPlan{module: module, packages: map[string]string{
		Etcd: "go.etcd.io/etcd/server/v3",
		Kwok: "sigs.k8s.io/kwok/cmd/kwok",
	}}
	older := buildPlan{
		module:   filepath.Join(module, "controlplane", "versions", version),
		packages: map[string]string{kubernetesProgram: "./" + kubernetesProgram},
	}
	if version == newestVersion {
		newest.packages[kubernetesProgram] = "./controlplane/" + kubernetesProgram
	}
	dir, err := newest.ensureBuilt(ctx, progress)
	if err != nil {
		return Binaries{}, err
	}
	b := Binaries{Etcd: filepath.Join(dir, Etcd), Kwok: filepath.Join(dir, Kwok)}
	if version != newestVersion {
		if dir, err = older.ensureBuilt(ctx, progress); err != nil {
			return Binaries{}, err
		}
	}
	b.Kubernetes = filepath.Join(dir, kubernetesProgram)
	return b, nil
}

// buildPlan lists the binaries to compile from one Go module.
type buildPlan struct {
	module   string            // directory of the module
	packages map[string]string // binary name to package
}

// BuildFlags and BuildEnvironment are the flags and the environment of `make build`. With the same flags, shared packages are
// compiled once. The Makefile explains them.
var (
	BuildFlags       = []string{"-trimpath", "-gcflags=all=-dwarf=false"}
	BuildEnvironment = []string{"CGO_ENABLED=0", "GOGC=200"}
)

// kubernetesFlags compiles the packages that only a control plane has without inlining, which saves a quarter of their compile
// time. The libraries, which do most of the API server's work, are as fast as before.
const kubernetesFlags = "-gcflags=k8s.io/kubernetes/...=-dwarf=false -l"

// kubernetesVersion finds the required version of k8s.io/kubernetes in a go.mod.
var kubernetesVersion = regexp.MustCompile(`(?m)^(?:require\s+|\s+)k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// ensureBuilt compiles the plan's binaries, unless they are in the cache, and returns their directory.
//
// The name of a build is a hash of kubernetesSource, kubernetesFlags and the versions of all modules. So branches that use
// the same versions share a build.
// Finding these versions takes seconds. So a symbolic link, named after a hash of go.mod and go.sum, points to the build.
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
	dir := prefix + hashBuildInputs(kubernetesSource, []byte(kubernetesFlags), modules)
	if _, ok := p.findCompleteBuild(dir); !ok {
		ldflags := linkerFlags(key.version, key.major, key.minor)
		if err := p.compileBinaries(ctx, dir, ldflags, progress); err != nil {
			return "", err
		}
	}
	return dir, errors.Join(markBuildUsed(dir), replaceLink(dir, link), removeOldBuilds(prefix))
}

// buildKey holds what go.mod and go.sum determine about a build: the Kubernetes version, the prefix of its
// directory, and its symbolic link.
type buildKey struct{ version, major, minor, prefix, link string }

// readBuildKey returns the buildKey of the plan, from the plan's go.mod and go.sum.
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
	return buildKey{version, string(match[2]), string(match[3]), prefix, prefix + "go.mod-" + hashBuildInputs(kubernetesSource, []byte(kubernetesFlags), mod, sum)}, nil
}

// hashBuildInputs returns a short hash of the given content, the compiler version and the platform.
func hashBuildInputs(parts ...[]byte) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, part := range parts {
		fmt.Fprintf(hash, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// listModules returns the modules, with versions, that are linked into the plan's binaries.
func (p buildPlan) listModules(ctx context.Context) ([]byte, error) {
	const format = "{{with .Module}}{{.Path}} {{.Version}}{{with .Replace}} {{.Path}} {{.Version}}{{end}}{{end}}"
	listed, err := p.runGoCommand(ctx, append([]string{"list", "-deps", "-f", format}, slices.Sorted(maps.Values(p.packages))...)...)
	if err != nil {
		return nil, fmt.Errorf("finding out what to build: %w", err)
	}
	lines := strings.Split(string(listed), "\n")
	slices.Sort(lines)
	return []byte(strings.Join(slices.Compact(lines), "\n")), nil
}

// runGoCommand runs the go command in the plan's module and returns the output. It ignores the caller's Go workspace
// and Go flags, because they would change the build.
func (p buildPlan) runGoCommand(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // constants and values of go.mod
	cmd.Dir = p.module
	cmd.Env = append(os.Environ(), "GOWORK=off", "GO111MODULE=on", "GOFLAGS=-buildvcs=false -tags=controlplane "+strings.Join(BuildFlags, " "))
	cmd.Env = append(cmd.Env, BuildEnvironment...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", args[0], p.module, err, stderr.Bytes())
	}
	return output, nil
}

// replaceLink makes a symbolic link point at a build in the same directory. It replaces an existing link.
func replaceLink(dir, link string) error {
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replacing a link to a build: %w", err)
	}
	if err := os.Symlink(filepath.Base(dir), link); err != nil {
		return fmt.Errorf("linking to a build: %w", err)
	}
	return nil
}

// markBuildUsed records the current time as the last use of a build.
func markBuildUsed(dir string) error {
	if err := os.Chtimes(dir, time.Time{}, time.Now()); err != nil {
		return fmt.Errorf("recording the use of a build: %w", err)
	}
	return nil
}

// buildRetention is the time that a build stays in the cache after its last use.
const buildRetention = 14 * 24 * time.Hour

// removeOldBuilds removes the builds with the given name prefix that were not used for buildRetention. It also
// removes the links to these builds.
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

// findCompleteBuild resolves path to the directory of a build. It returns false if a binary of the plan is missing
// there.
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

// majorVersion matches the end of a package path that is only a version.
var majorVersion = regexp.MustCompile(`/v\d+$`)

// compileBinaries compiles the plan's binaries in a temporary directory next to dir. It moves them to dir once all
// are complete.
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
	// One command compiles all, so that a core that does not link has something to compile.
	args := append([]string{"build", kubernetesFlags, "-ldflags=" + ldflags, "-o", temporary + "/"}, slices.Sorted(maps.Values(p.packages))...)
	if _, err := p.runGoCommand(ctx, args...); err != nil {
		return err
	}
	for name, pkg := range p.packages {
		// `go build` names a program after the last part of the package's path that is no major version.
		program := path.Base(majorVersion.ReplaceAllString(pkg, ""))
		if err := os.Rename(filepath.Join(temporary, program), filepath.Join(temporary, name)); err != nil {
			return fmt.Errorf("renaming %s to %s: %w", program, name, err)
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

// linkerFlags returns linker flags that set the version in the binaries, as Kubernetes' own build does. The flags
// also omit debug information.
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

// findDevModule returns the directory of the dev module. The go.mod files of all builds are below this directory.
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

// lockPollInterval is the time between two attempts of lockFile to get the lock.
const lockPollInterval = 200 * time.Millisecond

// lockFile locks a file against other processes, and waits while another process holds the lock. The operating
// system releases the lock when the process ends, even after a crash.
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
