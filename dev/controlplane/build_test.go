package controlplane

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestResolveVersionPrefersArgumentThenEnvironment(t *testing.T) {
	t.Setenv(VersionVariable, "")
	if got, err := ResolveVersion(""); got != "1.37" || err != nil {
		t.Errorf("no version given: %q, %v, want 1.37", got, err)
	}
	t.Setenv(VersionVariable, "1.34")
	if got, err := ResolveVersion(""); got != "1.34" || err != nil {
		t.Errorf("1.34 in the environment: %q, %v, want 1.34", got, err)
	}
	if got, err := ResolveVersion("1.35"); got != "1.35" || err != nil {
		t.Errorf("1.35 given, 1.34 in the environment: %q, %v, want 1.35", got, err)
	}
	t.Setenv(VersionVariable, "v1.37")
	check.ErrorContains(t, check.Err(ResolveVersion("")), VersionVariable)
}

func TestEveryVersionHasAModuleThatRequiresIt(t *testing.T) {
	module, err := findDevModule()
	must.NoError(t, err)
	for _, version := range Versions() {
		dir := module
		if version != newestVersion {
			dir = filepath.Join(module, "controlplane", "versions", version)
		}
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		must.NoError(t, err)
		match := kubernetesVersion.FindSubmatch(mod)
		if match == nil || !strings.HasPrefix(string(match[1]), "v"+version+".") {
			t.Errorf("%s/go.mod requires Kubernetes %q, want a patch of %s", dir, match, version)
		}
	}
}

// newTestModule is a module with one program in it.
func newTestModule(t *testing.T, program string) buildPlan {
	t.Helper()
	t.Setenv(CacheDirVariable, filepath.Join(t.TempDir(), "cache"))
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "server", "v3"), 0o700))
	for name, content := range map[string]string{
		"go.mod":            "module small\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.36.3\n",
		"go.sum":            "",
		"server/v3/main.go": program,
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return buildPlan{module: dir, packages: map[string]string{"program": "./server/v3"}}
}

func TestConcurrentBuildsCompileOnce(t *testing.T) {
	plan := newTestModule(t, "package main\n\nfunc main() {}\n")
	var lines lockedBuilder
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			dir, err := plan.ensureBuilt(t.Context(), &lines)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "program")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := strings.Count(lines.String(), "slipway-dev: compiling program"); got != 1 {
		t.Errorf("4 concurrent builds compiled %d times, want once:\n%s", got, lines.String())
	}
}

func TestFailedCompilationReportsErrorAndLeavesNothing(t *testing.T) {
	plan := newTestModule(t, "package main\n\nfunc main() { undefinedFunction() }\n")
	check.ErrorContains(t, check.Err(plan.ensureBuilt(t.Context(), io.Discard)), "undefinedFunction")
	cache, err := findCacheDir()
	must.NoError(t, err)
	entries, err := os.ReadDir(cache)
	must.NoError(t, err)
	for _, entry := range entries {
		if entry.IsDir() {
			t.Errorf("the cache holds %s after a failure", entry.Name())
		}
	}
}

func TestModulesWithSameInputsShareBuild(t *testing.T) {
	plan := newTestModule(t, "package main\n\nfunc main() {}\n")
	var lines lockedBuilder
	first, err := plan.ensureBuilt(t.Context(), &lines)
	must.NoError(t, err)
	mod := filepath.Join(plan.module, "go.mod")
	more := "module small\n\ngo 1.26\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\texample.com/other v1.0.0\n)\n"
	must.NoError(t, os.WriteFile(mod, []byte(more), 0o600))
	second, err := plan.ensureBuilt(t.Context(), &lines)
	must.NoError(t, err)
	if first != second || strings.Count(lines.String(), "compiling") != 1 {
		t.Errorf("an unused requirement changed the build from %s to %s:\n%s", first, second, lines.String())
	}
}

func TestUnusedBuildsAreRemoved(t *testing.T) {
	cache := t.TempDir()
	old := time.Now().Add(-buildRetention - time.Hour)
	for name, used := range map[string]time.Time{"v1-a-old": old, "v1-a-new": time.Now(), "v2-a-old": old} {
		dir := filepath.Join(cache, name)
		must.NoError(t, os.Mkdir(dir, 0o700))
		must.NoError(t, replaceLink(dir, dir+"-link"))
		must.NoError(t, os.Chtimes(dir, used, used))
	}
	for range 2 { // removes the build first, then its dangling link
		must.NoError(t, removeOldBuilds(filepath.Join(cache, "v1-a-")))
	}
	entries, err := os.ReadDir(cache)
	must.NoError(t, err)
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if got, want := strings.Join(left, " "), "v1-a-new v1-a-new-link v2-a-old v2-a-old-link"; got != want {
		t.Errorf("remaining: %s, want %s", got, want)
	}
}

func TestLockWaitEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lockFile(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a held lock: %v, want %v", err, context.DeadlineExceeded)
	}
	unlock()
	unlock, err = lockFile(t.Context(), path)
	if err != nil {
		t.Fatalf("a released lock: %v", err)
	}
	unlock()
}

// lockedBuilder is a strings.Builder for concurrent writers.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
