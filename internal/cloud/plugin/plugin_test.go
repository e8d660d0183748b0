//go:build unix

package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/plugin"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/faultyplugintest"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	author "github.com/slipway-dev/slipway/plugin"
)

func init() { faultyplugintest.RunAsPluginIfRequested(func() { author.Serve(openTestProvider) }) }

// testProvider is the provider of the working test plugin. The requested names select its responses.
type testProvider struct {
	Greeting string `json:"greeting"`
}

func openTestProvider(c author.Config) (author.Provider, error) {
	var s testProvider
	if err := c.Decode(&s); err != nil {
		return nil, err
	}
	slog.Info("opened", "greeting", s.Greeting, "visible", os.Getenv("SLIPWAY_TEST_VISIBLE"), "hidden", os.Getenv("SLIPWAY_TEST_HIDDEN"))
	return s, nil
}

func (testProvider) Name() string { return "simple" }

func (testProvider) Normalize(id string) (string, error) {
	if !strings.HasPrefix(id, "simple://") {
		return "", fmt.Errorf("%q: want simple://…", id)
	}
	if strings.HasPrefix(id, "simple://hangs") {
		select {}
	}
	return strings.ToLower(id), nil
}

// groupErrors has the errors by group name.
var groupErrors = map[string]error{
	"missing":   &cloud.NotFoundError{Kind: "group", Name: "missing"},
	"machine":   &cloud.NotFoundError{Kind: "instance", Name: "machine"},
	"throttled": fmt.Errorf("somewhere: %w", &cloud.ThrottledError{RetryAfter: 1500 * time.Millisecond, Err: errors.New("slow down")}),
	"no-right":  &cloud.RefusedError{Reason: cloud.NoRight, Err: errors.New("compute.read")},
	"no-quota":  fmt.Errorf("project x: %w", &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("cores")}),
	"odd":       &cloud.RefusedError{Reason: "BadMood", Err: errors.New("not today")},
	"plain":     errors.New("the disk is on fire"),
	"long":      errors.New(strings.Repeat("a very long story ", 10_000)),
	"bytes":     errors.New("\xff\xfe is no text"),
}

func (testProvider) Group(ctx context.Context, name string) (author.Group, error) {
	switch name {
	case "panics":
		panic("there is no such thing")
	case "waits":
		<-ctx.Done()
		return author.Group{}, ctx.Err()
	case "another":
		return author.Group{Name: "other"}, nil
	case "negative":
		return author.Group{Name: name, Size: -1}, nil
	}
	return author.Group{Name: name, Size: 3, Min: 1, Max: 5}, groupErrors[name]
}

func (testProvider) Instances(_ context.Context, group string) ([]author.Instance, error) {
	switch group {
	case "twice":
		return []author.Instance{{ProviderID: "simple://a"}, {ProviderID: "simple://a"}}, nil
	case "nameless":
		return []author.Instance{{Name: "a"}}, nil
	case "big":
		list := make([]author.Instance, 20_000)
		for i := range list {
			list[i] = author.Instance{ProviderID: fmt.Sprintf("simple://machine-%d", i), Tags: map[string]string{"k": strings.Repeat("v", 500)}}
		}
		return list, nil
	}
	return nil, nil
}

func (testProvider) Instance(context.Context, string) (author.Instance, error) {
	return author.Instance{ProviderID: "simple://other"}, nil
}

func (testProvider) Delete(context.Context, string) (author.Operation, error) {
	return author.Operation{ID: "op"}, nil
}

func (testProvider) Templates(context.Context, string) ([]author.Template, error) {
	return nil, nil
}

func (testProvider) Grow(context.Context, string, author.LaunchRequest) (author.Operation, error) {
	return author.Operation{}, nil
}

func (testProvider) Status(_ context.Context, op author.Operation) (author.OperationStatus, error) {
	return author.OperationStatus{Done: true, Err: &cloud.NotFoundError{Kind: "instance", Name: op.ID}}, nil
}

func (testProvider) ModifyEventAnalyzer(_ context.Context, pod *corev1.Pod) ([]author.Recommendation, error) {
	switch pod.Name {
	case "greedy":
		return []author.Recommendation{{Grow: &author.Grow{Group: "g", Count: 1 << 40}}}, nil
	case "undecided":
		return []author.Recommendation{{}}, nil
	}
	return []author.Recommendation{{Grow: &author.Grow{Group: pod.Namespace, Count: 2, Template: "t"}, Reason: pod.Name}}, nil
}

// logBuffer keeps the log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *logBuffer) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *logBuffer) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

var unlimited = resource.MustParse("0") // the race detector reserves the whole address space

// testEntry returns the configuration of the test plugin.
func testEntry() plugin.Entry {
	return plugin.Entry{
		Type: "Simple", Config: json.RawMessage(`{"greeting":"hello"}`), MemoryLimit: &unlimited,
		Environment: []string{"SLIPWAY_TEST_VISIBLE"},
	}
}

func writePlugin(t *testing.T, mode faultyplugintest.Mode) (directory string) {
	t.Helper()
	directory = t.TempDir()
	must.NoError(t, faultyplugintest.WritePluginScript(directory, "Simple", mode))
	return directory
}

func testOptions(log *logBuffer) plugin.Options {
	return plugin.Options{Log: slog.New(slog.NewJSONHandler(log, nil)), RestartMin: time.Millisecond, RestartMax: 5 * time.Millisecond}
}

func openPlugin(t *testing.T, directory string, e plugin.Entry) (*plugin.Provider, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	p, err := plugin.Open(t.Context(), directory, e, testOptions(log))
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p, log
}

// awaitReady waits until a group can be read.
func awaitReady(t *testing.T, p *plugin.Provider) {
	t.Helper()
	for {
		g, err := p.Group(t.Context(), "g")
		if err == nil && g.Size == 3 {
			return
		}
		must.Not(t, cloud.IsNotFound(err), "I7: the group is not gone: %v", err)
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("the plugin was not restarted: %v", err)
		}
	}
}

func TestPluginErrorsKeepTheirKind(t *testing.T) {
	t.Parallel()
	p, _ := openPlugin(t, writePlugin(t, faultyplugintest.Good), testEntry())
	for name, want := range groupErrors {
		_, err := p.Group(t.Context(), name)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		var asked, told *cloud.ThrottledError
		if errors.As(want, &asked) && (!errors.As(err, &told) || told.RetryAfter != asked.RetryAfter) {
			t.Errorf("%s: %v: want a retry delay of %s", name, err, asked.RetryAfter)
		}
		switch name {
		case "missing":
			check.Not(t, !cloud.IsNotFound(err), "%s: %v is not NotFound", name, err)
		case "machine":
			check.Not(t, cloud.IsNotFound(err), "I7: %s: a missing instance for a requested group: %v must not be NotFound", name, err)
			continue
		case "odd":
			check.Is(t, "", cloud.RefusalOf(err), name)
		default:
			if cloud.IsNotFound(err) || cloud.RefusalOf(err) != cloud.RefusalOf(want) {
				t.Errorf("%s: %v (refusal %q), want the refusal %q", name, err, cloud.RefusalOf(err), cloud.RefusalOf(want))
			}
		}
		switch name {
		case "long", "bytes":
			check.Not(t, len(err.Error()) > 4096, "%s: the text has %d bytes", name, len(err.Error()))
		default:
			check.Is(t, want.Error(), err.Error(), name, err, want)
		}
	}
	status, err := p.Status(t.Context(), cloud.Operation{ID: "x"})
	if err != nil || !status.Done || status.Err == nil || cloud.IsNotFound(status.Err) {
		t.Errorf("I7: the result of an operation must not be NotFound: %+v, %v", status, err)
	}
}

func TestInvalidResponsesAreErrors(t *testing.T) {
	t.Parallel()
	p, _ := openPlugin(t, writePlugin(t, faultyplugintest.Good), testEntry())
	for name, ask := range map[string]func() error{
		"another group":           func() error { _, err := p.Group(t.Context(), "another"); return err },
		"a negative size":         func() error { _, err := p.Group(t.Context(), "negative"); return err },
		"a duplicate machine":     func() error { _, err := p.Instances(t.Context(), "twice"); return err },
		"a machine without an ID": func() error { _, err := p.Instances(t.Context(), "nameless"); return err },
		"another machine":         func() error { _, err := p.Instance(t.Context(), "simple://a"); return err },
		"no templates":            func() error { _, err := p.Templates(t.Context(), "g"); return err },
		"a panic":                 func() error { _, err := p.Group(t.Context(), "panics"); return err },
		"an ID of another cloud":  func() error { _, err := p.Normalize("azure://x"); return err },
		"an oversized ID":         func() error { _, err := p.Normalize("simple://" + strings.Repeat("x", 1<<20)); return err },
	} {
		if err := ask(); err == nil || cloud.IsNotFound(err) {
			t.Errorf("%s: %v, want an error that is not NotFound", name, err)
		}
	}
	before := p.PID()
	awaitReady(t, p)
	check.Not(t, p.PID() != before || before == 0, "process %d was replaced by %d: an invalid response must not end the plugin", before, p.PID())
	if list, err := p.Instances(t.Context(), "big"); err != nil || len(list) != 20_000 {
		t.Errorf("list of 20,000 instances: %d, %v", len(list), err)
	}
}

func TestNormalizedIDIsCachedWhilePluginIsDown(t *testing.T) {
	t.Parallel()
	directory := writePlugin(t, faultyplugintest.Good)
	p, _ := openPlugin(t, directory, testEntry())
	if id, err := p.Normalize("simple://A"); err != nil || id != "simple://a" {
		t.Fatalf("%q, %v", id, err)
	}
	_, foreign := p.Normalize("azure://x")
	must.Not(t, foreign == nil || cloud.IsProviderUnavailable(foreign), "ID of another cloud: %v", foreign)
	must.NoError(t, os.Remove(filepath.Join(directory, "Simple")))
	must.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
	for p.PID() != 0 {
		time.Sleep(time.Millisecond)
	}
	if id, err := p.Normalize("simple://A"); err != nil || id != "simple://a" {
		t.Errorf("cached ID: %q, %v", id, err)
	}
	if _, err := p.Normalize("azure://x"); err == nil || cloud.IsProviderUnavailable(err) {
		t.Errorf("cached ID of another cloud: %v", err)
	}
	if _, err := p.Normalize("simple://B"); !cloud.IsProviderUnavailable(err) {
		t.Errorf("new ID: %v, want an UnansweredError", err)
	}
}

func TestNormalizeOfHangingPluginTimesOut(t *testing.T) {
	t.Parallel()
	p, _ := openPlugin(t, writePlugin(t, faultyplugintest.Good), testEntry())
	must.NoError(t, check.Err(p.Normalize("simple://KNOWN")))
	pid := p.PID()
	took := func(id string, asked, answered bool) {
		t.Helper()
		began := time.Now()
		_, err := p.Normalize(id)
		if d := time.Since(began); asked && !answered && d < plugin.NormalizeTimeout || d > 10*plugin.NormalizeTimeout { // a call may take longer
			t.Errorf("%s: took %s", id, d)
		}
		check.Not(t, answered != (err == nil) || !answered && !cloud.IsProviderUnavailable(err), "%s: %v", id, err)
	}
	took("simple://hangs-1", true, false)
	began := time.Now()
	for i := range 100 {
		took(fmt.Sprintf("simple://hangs-%d", i), false, false)
	}
	took("simple://NEW", false, false)
	took("simple://KNOWN", false, true)
	if d := time.Since(began); d > 50*plugin.NormalizeTimeout { // half the time of a hundred timeouts
		t.Errorf("a hundred requests during the pause took %s", d)
	}
	if _, err := p.Instance(t.Context(), "simple://OTHER"); err != nil {
		t.Errorf("call with the full timeout: %v", err)
	}

	p.AdvanceTime(plugin.NormalizePause)
	took("simple://hangs-1", false, false) // the others come first
	took("simple://NEW", true, true)
	p.AdvanceTime(plugin.NormalizePause)
	took("simple://hangs-1", true, false)
	check.Not(t, p.PID() != pid, "the plugin was killed although it is healthy")
}

func TestKilledPluginIsRestarted(t *testing.T) {
	t.Parallel()
	p, log := openPlugin(t, writePlugin(t, faultyplugintest.Good), testEntry())
	for range 3 {
		awaitReady(t, p)
		pid := p.PID()
		failed := make(chan error)
		go func() {
			_, err := p.Group(t.Context(), "waits")
			failed <- err
		}()
		must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		if err := <-failed; err == nil || cloud.IsNotFound(err) || !strings.Contains(err.Error(), "plugin simple") {
			t.Errorf("I7: call during the kill: %v", err)
		}
	}
	awaitReady(t, p)
	if !strings.Contains(log.String(), "plugin exited") || !strings.Contains(log.String(), "signal: killed") {
		t.Errorf("the log does not report the exit:\n%s", log)
	}
}

func TestHangingPluginIsRestarted(t *testing.T) {
	t.Parallel()
	e := testEntry()
	e.CallTimeout = metav1.Duration{Duration: time.Second}
	p, log := openPlugin(t, writePlugin(t, faultyplugintest.Good), e)
	pid := p.PID()
	must.NoError(t, faultyplugintest.Freeze(t.Context(), pid))
	_, err := p.Group(t.Context(), "g")
	check.Not(t, err == nil || cloud.IsNotFound(err), "I7: call of a hanging plugin: %v", err)
	awaitReady(t, p)
	if p.PID() == pid || !strings.Contains(log.String(), "killing a plugin that does not respond") {
		t.Errorf("process %d, before %d; the log:\n%s", p.PID(), pid, log)
	}
}

func TestSlowPluginIsNotKilled(t *testing.T) {
	t.Parallel()
	e := testEntry()
	e.CallTimeout = metav1.Duration{Duration: time.Second}
	p, _ := openPlugin(t, writePlugin(t, faultyplugintest.Good), e)
	pid := p.PID()
	check.ErrorContains(t, check.Err(p.Group(t.Context(), "waits")))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := p.Group(ctx, "waits")
	check.Not(t, !errors.Is(err, context.Canceled), "cancelled call: %v, want %v", err, context.Canceled)
	awaitReady(t, p)
	check.Not(t, p.PID() != pid, "the plugin was killed although it only waits for its cloud")
}

func TestCloseStopsEveryPlugin(t *testing.T) {
	t.Parallel()
	for _, mode := range []faultyplugintest.Mode{faultyplugintest.Good, faultyplugintest.HangsOnCall, faultyplugintest.LeavesChild} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p, log := openPlugin(t, writePlugin(t, mode), testEntry())
			pid := p.PID()
			if mode == faultyplugintest.HangsOnCall {
				must.NoError(t, faultyplugintest.Freeze(t.Context(), pid))
			}
			_ = p.Close()
			err := syscall.Kill(pid, 0)
			check.Not(t, !errors.Is(err, syscall.ESRCH), "process %d exists after Close: %v\n%s", pid, err, log)
			check.ErrorContains(t, check.Err(p.Group(t.Context(), "g")))
			_ = p.Close() // a second Close is harmless
		})
	}
}

func TestTransportErrorIsNeverNotFound(t *testing.T) {
	t.Parallel()
	for _, mode := range []faultyplugintest.Mode{
		faultyplugintest.ExitsOnCall, faultyplugintest.HangsOnCall, faultyplugintest.ReturnsNotFound, faultyplugintest.ReturnsPermissionDenied, faultyplugintest.OversizedResponse, faultyplugintest.ServesWebPage, faultyplugintest.ServesNoise,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			directory := writePlugin(t, faultyplugintest.Good)
			e := testEntry()
			e.CallTimeout = metav1.Duration{Duration: time.Second}
			p, _ := openPlugin(t, directory, e)
			must.NoError(t, check.Err(p.Normalize("simple://a")))
			must.NoError(t, faultyplugintest.WritePluginScript(directory, "Simple", mode))
			must.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
			for range 2 {
				if _, err := p.Group(t.Context(), "g"); err == nil || cloud.IsNotFound(err) {
					t.Errorf("I7: Group: %v", err)
				}
				if list, err := p.Instances(t.Context(), "g"); err == nil || cloud.IsNotFound(err) || list != nil {
					t.Errorf("I7: Instances: %d, %v", len(list), err)
				}
				if _, err := p.Instance(t.Context(), "simple://a"); err == nil || cloud.IsNotFound(err) {
					t.Errorf("I7: Instance: %v", err)
				}
				if _, err := p.Delete(t.Context(), "simple://a"); err == nil || cloud.IsNotFound(err) {
					t.Errorf("I7: Delete: %v", err)
				}
			}
			must.NoError(t, faultyplugintest.WritePluginScript(directory, "Simple", faultyplugintest.Good))
			if pid := p.PID(); pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			awaitReady(t, p)
		})
	}
}

func TestInvalidExecutableIsRefused(t *testing.T) {
	t.Parallel()
	type setup func(t *testing.T, directory, path string)
	chmod := func(mode os.FileMode) setup {
		return func(t *testing.T, _, path string) {
			must.NoError(t, os.Chmod(path, mode))
		}
	}
	mode := func(m faultyplugintest.Mode) setup {
		return func(t *testing.T, directory, _ string) {
			must.NoError(t, faultyplugintest.WritePluginScript(directory, "Simple", m))
		}
	}
	content := func(text string) setup {
		return func(t *testing.T, _, path string) {
			must.NoError(t, os.WriteFile(path, []byte(text), 0o700))
		}
	}
	for name, test := range map[string]struct {
		setup setup
		want  []string // in the error, next to the path
	}{
		"not executable":     {chmod(0o600), []string{"not executable", "chmod +x"}},
		"writable for all":   {chmod(0o777), []string{"writable for others", "chmod o-w"}},
		"a newer version":    {mode(faultyplugintest.NewerVersion), []string{"version 2", "want version 1", "build the plugin"}},
		"another program":    {mode(faultyplugintest.OtherProtocol), []string{`"netrpc"`, "another program"}},
		"a program":          {mode(faultyplugintest.PrintsUsage), []string{"not a plugin of Slipway", "Usage: babbler", "nothing to do"}},
		"a script that ends": {content("#!/bin/sh\nexit 0\n"), []string{"not a plugin of Slipway", "printed nothing", "exit status 0"}},
		"a text":             {content("this is no program\n"), []string{"not a program for this platform"}},
		"a silent program":   {mode(faultyplugintest.Silent), []string{"printed nothing so far"}},
		"a hanging one":      {mode(faultyplugintest.HangsInConfigure), []string{"started, then failed"}},
		"a web server":       {mode(faultyplugintest.ServesWebPage), []string{"started, then failed"}},
		"a missing file": {func(t *testing.T, _, path string) {
			must.NoError(t, os.Rename(path, path+"-2"))
		}, []string{"does not exist", "Simple-2"}},
		"a directory": {func(t *testing.T, _, path string) {
			must.NoError(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
		}, []string{"is a directory", "executable file"}},
		"a link into a writable directory": {func(t *testing.T, _, path string) {
			shared := filepath.Join(t.TempDir(), "shared")
			target := filepath.Join(shared, "plugin")
			must.NoError(t, errors.Join(os.Mkdir(shared, 0o700), os.Rename(path, target), os.Chmod(shared, 0o777), os.Symlink(target, path)))
		}, []string{"links to", "writable for others"}},
		"a writable directory": {func(t *testing.T, directory, _ string) {
			must.NoError(t, os.Chmod(directory, 0o1777))
		}, []string{"writable for others", "chmod o-w"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := writePlugin(t, faultyplugintest.Good)
			test.setup(t, directory, filepath.Join(directory, "Simple"))
			e := testEntry()
			switch name {
			case "a silent program":
				e.StartTimeout = metav1.Duration{Duration: time.Second}
			case "a hanging one": // after its handshake, which can be slow on a loaded host
				e.StartTimeout = metav1.Duration{Duration: 5 * time.Second}
			}
			p, err := plugin.Open(t.Context(), directory, e, testOptions(&logBuffer{}))
			if err == nil {
				_ = p.Close()
				t.Fatal("Open succeeded")
			}
			for _, want := range append(test.want, directory) {
				check.ErrorContains(t, err, want)
			}
		})
	}
}

func TestPluginCanRefuseItsConfig(t *testing.T) {
	t.Parallel()
	e := testEntry()
	e.Config = json.RawMessage(`{"greetings":"hello"}`)
	_, err := plugin.Open(t.Context(), writePlugin(t, faultyplugintest.Good), e, testOptions(&logBuffer{}))
	check.ErrorContains(t, err, `unknown field "greetings"`)
}

func TestPluginGetsListedEnvironmentAndLogs(t *testing.T) {
	t.Setenv("SLIPWAY_TEST_VISIBLE", "yes")
	t.Setenv("SLIPWAY_TEST_HIDDEN", "a secret")
	p, log := openPlugin(t, writePlugin(t, faultyplugintest.Good), testEntry())
	_ = p.Close()
	if !strings.Contains(log.String(), `"msg":"opened"`) || !strings.Contains(log.String(), `"visible":"yes"`) ||
		!strings.Contains(log.String(), `"hidden":""`) || !strings.Contains(log.String(), `"plugin":"simple"`) {
		t.Errorf("the log is\n%s", log)
	}
}

func TestAnalyzerReturnsRecommendations(t *testing.T) {
	t.Parallel()
	p, _ := openPlugin(t, writePlugin(t, faultyplugintest.Good), testEntry())
	e := p.Events()
	check.Not(t, !e.Modify || e.Delete, "events %+v, want only modify events", e)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}}
	recommendations, err := p.AnalyzeModifyEvent(t.Context(), pod)
	if err != nil || len(recommendations) != 1 || recommendations[0].Reason != "a" || recommendations[0].Grow == nil ||
		*recommendations[0].Grow != (author.Grow{Group: "b", Count: 2, Template: "t"}) {
		t.Errorf("got %+v, %v", recommendations, err)
	}
	for _, name := range []string{"greedy", "undecided"} {
		pod.Name = name
		if recommendations, err := p.AnalyzeModifyEvent(t.Context(), pod); err == nil || recommendations != nil {
			t.Errorf("%s: got %+v, want an error", name, recommendations)
		}
	}
	check.ErrorContains(t, check.Err(p.AnalyzeDeleteEvent(t.Context(), pod)))
}

func TestOneBadPluginStopsAll(t *testing.T) {
	t.Parallel()
	directory := writePlugin(t, faultyplugintest.Good)
	bad := testEntry()
	bad.Name, bad.Config = "bad", json.RawMessage(`{"x":1}`)
	log := &logBuffer{}
	_, err := plugin.OpenAll(t.Context(), plugin.Config{Directory: directory, Use: []plugin.Entry{testEntry(), bad}}, testOptions(log))
	check.ErrorContains(t, err, `unknown field "x"`)
	var line struct{ Msg, PID string }
	for _, text := range strings.Split(log.String(), "\n") {
		if json.Unmarshal([]byte(text), &line) == nil && line.Msg == "plugin started" {
			var pid int
			if _, err := fmt.Sscan(line.PID, &pid); err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				t.Errorf("process %s still runs", line.PID)
			}
		}
	}
}
