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

// VersionVariable is the environment variable that says which Kubernetes version is meant when none is named.
const VersionVariable = "SLIPWAY_KUBE_VERSION"

// CacheVariable is the environment variable that says where compiled binaries are kept. The default is slipway-dev in
// the user's cache directory.
const CacheVariable = "SLIPWAY_DEV_CACHE"

// moduleVariable is the environment variable that says where the dev module is, for a program that was moved away from
// it.
const moduleVariable = "SLIPWAY_DEV_MODULE"

// moduleDir is where the dev module is, as `make slipway-dev` has the linker say it.
var moduleDir string

// newest is the version that the dev module itself requires; the others have a module each below versions.
const newest = "1.37"

// Versions lists the Kubernetes minor versions that can be started, oldest first.
func Versions() []string { return []string{"1.33", "1.34", "1.35", "1.36", newest} }

// ResolveVersion returns the version that is meant: the one named, or else the one in the environment, or else the
// newest. It refuses a version that is not among Versions.
func ResolveVersion(version string) (string, error) {
	source := "Version"
	if version == "" {
		version, source = os.Getenv(VersionVariable), VersionVariable
	}
	if version == "" {
		return newest, nil
	}
	if !slices.Contains(Versions(), version) {
		return "", fmt.Errorf("%s is %q, it must be one of %s", source, version, strings.Join(Versions(), ", "))
	}
	return version, nil
}

// Binaries are the paths of a control plane's programs.
type Binaries struct {
	Etcd, APIServer, ControllerManager, Scheduler, Kwok string
}

// Build makes sure that the programs of a Kubernetes version are in the cache, and returns where. The first time takes
// minutes of compiling; a line is written to progress then. Processes that build at the same time wait for each other.
func Build(ctx context.Context, version string, progress io.Writer) (Binaries, error) {
	module, err := devModule()
	if err != nil {
		return Binaries{}, err
	}
	// etcd and kwok are always those of the dev module.
	tools := buildPlan{module: module, packages: map[string]string{
		Etcd: "go.etcd.io/etcd/server/v3",
		Kwok: "sigs.k8s.io/kwok/cmd/kwok",
	}}
	kubernetes := buildPlan{module: module, packages: map[string]string{
		APIServer:         "k8s.io/kubernetes/cmd/kube-apiserver",
		ControllerManager: "k8s.io/kubernetes/cmd/kube-controller-manager",
		Scheduler:         "k8s.io/kubernetes/cmd/kube-scheduler",
	}}
	if version != newest {
		kubernetes.module = filepath.Join(module, "controlplane", "versions", version)
	}
	var dirs [2]string
	for i, plan := range []buildPlan{tools, kubernetes} {
		if dirs[i], err = plan.ensure(ctx, progress); err != nil {
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

// buildPlan is a set of programs of one module.
type buildPlan struct {
	module   string            // directory of the module
	packages map[string]string // name of the program to its package
}

// kubernetesVersion finds the version of Kubernetes that a go.mod requires.
var kubernetesVersion = regexp.MustCompile(`(?m)^(?:require\s+|\s+)k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// ensure returns the directory that the plan's programs are in, after compiling them if they are not.
//
// A build is named after the versions of all modules that are compiled into it, so that branches which differ in other
// requirements share it. Finding these out takes seconds, so a symbolic link named after go.mod and go.sum remembers it.
func (p buildPlan) ensure(ctx context.Context, progress io.Writer) (string, error) {
	key, err := p.key()
	if err != nil {
		return "", err
	}
	prefix, link := key.prefix, key.link
	if dir, ok := p.complete(link); ok {
		return dir, touch(dir)
	}
	unlock, err := lock(ctx, prefix+"lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir, ok := p.complete(link); ok { // Another process built it while this one waited.
		return dir, touch(dir)
	}
	modules, err := p.modules(ctx)
	if err != nil {
		return "", err
	}
	dir := prefix + digest(modules)
	if _, ok := p.complete(dir); !ok {
		ldflags := ldflags(key.version, key.major, key.minor)
		if err := p.build(ctx, dir, ldflags, progress); err != nil {
			return "", err
		}
	}
	return dir, errors.Join(touch(dir), relink(dir, link), prune(prefix))
}

// buildKey is where a plan's programs are, as far as it is known without asking what they are made of.
type buildKey struct{ version, major, minor, prefix, link string }

// key reads a plan's go.mod and go.sum.
func (p buildPlan) key() (buildKey, error) {
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
	cache, err := cacheDir()
	if err != nil {
		return buildKey{}, err
	}
	version := string(match[1])
	prefix := filepath.Join(cache, strings.Join(append([]string{version}, p.names()...), "-")+"-")
	return buildKey{version, string(match[2]), string(match[3]), prefix, prefix + "go.mod-" + digest(mod, sum)}, nil
}

// digest is a short name for what is given and for the compiler that is used.
func digest(parts ...[]byte) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, part := range parts {
		fmt.Fprintf(hash, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// modules lists the modules that are compiled into the plan's programs, with their versions.
func (p buildPlan) modules(ctx context.Context) ([]byte, error) {
	const format = "{{with .Module}}{{.Path}} {{.Version}}{{with .Replace}} {{.Path}} {{.Version}}{{end}}{{end}}"
	args := []string{"list", "-deps", "-f", format}
	for _, name := range p.names() {
		args = append(args, p.packages[name])
	}
	listed, err := p.goCommand(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("finding out what to build: %w", err)
	}
	lines := strings.Split(string(listed), "\n")
	slices.Sort(lines)
	return []byte(strings.Join(slices.Compact(lines), "\n")), nil
}

// goCommand runs the go command in the plan's module and returns what it printed. A workspace or flags of the caller's
// would make it build something else than the module's go.sum says.
func (p buildPlan) goCommand(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // constants and what go.mod says
	cmd.Dir = p.module
	// With the flags of `make build`, what the programs share with it is compiled once.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false -trimpath", "GO111MODULE=on", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", args[0], p.module, err, stderr.Bytes())
	}
	return output, nil
}

// relink makes a symbolic link to a build beside it.
func relink(dir, link string) error {
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replacing a link to a build: %w", err)
	}
	if err := os.Symlink(filepath.Base(dir), link); err != nil {
		return fmt.Errorf("linking to a build: %w", err)
	}
	return nil
}

// touch notes that a build was used.
func touch(dir string) error {
	if err := os.Chtimes(dir, time.Time{}, time.Now()); err != nil {
		return fmt.Errorf("noting the use of a build: %w", err)
	}
	return nil
}

// buildKept is how long a build stays in the cache after its last use.
const buildKept = 14 * 24 * time.Hour

// prune removes the builds whose names begin with prefix and that were not used for long, and the links to them.
func prune(prefix string) error {
	paths, err := filepath.Glob(prefix + "*")
	if err != nil {
		return fmt.Errorf("looking for old builds: %w", err)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		dangling := errors.Is(err, fs.ErrNotExist)
		if !dangling && (err != nil || !info.IsDir() || time.Since(info.ModTime()) < buildKept) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("removing an old build: %w", err)
		}
	}
	return nil
}

func (p buildPlan) names() []string {
	var names []string
	for name := range p.packages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// complete reports whether all of the plan's programs are in a directory, and which one that is after links.
func (p buildPlan) complete(path string) (dir string, ok bool) {
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

// build compiles the plan's programs beside dir, and moves them there once all are made.
func (p buildPlan) build(ctx context.Context, dir, ldflags string, progress io.Writer) error {
	if progress == nil {
		progress = os.Stderr
	}
	begun := time.Now()
	fmt.Fprintf(progress, "slipway-dev: compiling %s (minutes the first time) …\n", strings.Join(p.names(), ", "))
	// The lock makes the directory this process's own; a build that was killed may have left one.
	temporary := dir + ".building"
	clean := func() error { return os.RemoveAll(temporary) }
	if err := errors.Join(clean(), os.Mkdir(temporary, 0o700)); err != nil {
		return fmt.Errorf("making a directory to build in: %w", err)
	}
	defer func() { _ = clean() }()
	for _, name := range p.names() {
		output := filepath.Join(temporary, name)
		if _, err := p.goCommand(ctx, "build", "-ldflags="+ldflags, "-o", output, p.packages[name]); err != nil {
			return fmt.Errorf("compiling %s: %w", name, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("replacing an unfinished build: %w", err)
	}
	if err := os.Rename(temporary, dir); err != nil {
		return fmt.Errorf("keeping what was built: %w", err)
	}
	fmt.Fprintf(progress, "slipway-dev: compiled %s in %s\n", strings.Join(p.names(), ", "),
		time.Since(begun).Round(time.Second))
	return nil
}

// ldflags has the programs tell their version, as Kubernetes' own build does, and leaves out what debuggers need.
func ldflags(version, major, minor string) string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor="+major, "-X", pkg+".gitMinor="+minor,
			"-X", pkg+".gitTreeState=clean")
	}
	// The version that helm renders for when it asks no cluster.
	const helm = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
	flags = append(flags, "-X", helm+"Major="+major, "-X", helm+"Minor="+minor)
	return strings.Join(flags, " ")
}

// cacheDir is where compiled programs are kept.
func cacheDir() (string, error) {
	dir := filepath.Clean(os.Getenv(CacheVariable))
	if dir == "." {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding a place for compiled programs (%s names one): %w", CacheVariable, err)
		}
		dir = filepath.Join(user, "slipway-dev")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:gosec // inside the cache
		return "", fmt.Errorf("making the cache of compiled programs: %w", err)
	}
	return dir, nil
}

// devModule is the directory of the dev module, whose go.mod says what is compiled.
func devModule() (string, error) {
	if dir := os.Getenv(moduleVariable); dir != "" {
		return dir, nil
	}
	if moduleDir != "" {
		return moduleDir, nil
	}
	// The path of this file as the compiler saw it; with -trimpath it is no path of this machine.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Dir(filepath.Dir(file))
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the source of the dev module is not where it was when this program was compiled; "+
		"set %s to its directory", moduleVariable)
}

// lockPoll is the pause between two attempts to get a lock that another process holds.
const lockPoll = 200 * time.Millisecond

// lock takes a lock between processes. The system releases it when the process ends, however it does.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the cache: %w", err)
	}
	ticker := time.NewTicker(lockPoll)
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
