// Package plugintest tests that a plugin fulfills Slipway's contract. Plugin authors call [Run] from a test, or run
// `slipway plugin test` for a plugin in any language.
package plugintest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
	host "github.com/slipway-dev/slipway/internal/cloud/plugin"
)

// Options configures the tests.
type Options struct {
	// Path is the plugin's executable.
	Path string
	// Config is the plugin's own configuration, a JSON object. Empty is {}.
	Config json.RawMessage
	// Group is the name of a group with running instances: at least one, and at least six with Change.
	Group string
	// Missing is the provider ID of an instance that never existed. By default it is derived from another instance's
	// ID.
	Missing string
	// Foreign is the provider ID of an instance of another account or host of the same kind; optional.
	Foreign string
	// Change allows the tests to delete and launch instances of the group, up to five more than exist, or up to six.
	// Use a group for tests only.
	Change bool
	// Timeout limits each call of the plugin. 0 is 30s.
	Timeout time.Duration
	// UnlimitedMemory removes the memory limit of the plugin, which a program built with -race needs.
	UnlimitedMemory bool
}

// Validate returns the first error.
func (o Options) Validate() error {
	switch {
	case o.Path == "":
		return fmt.Errorf("path: is empty: want the plugin's executable")
	case o.Group == "":
		return fmt.Errorf("group: is empty: want the name of a group with instances")
	}
	return nil
}

// Run runs the tests as subtests of t.
func Run(t *testing.T, o Options) {
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	account := o.openPlugin(t) // for the suite's own reads
	size := max(conformance.MinInstances, len((&liveCloud{o: o, account: account, t: t}).ProviderIDs()))
	conformance.Run(t, func(t *testing.T) conformance.Cloud {
		c := &liveCloud{o: o, account: account, t: t}
		if o.Change {
			c.resizeGroup(size)
		}
		return c
	})
	if o.Change {
		(&liveCloud{o: o, account: account, t: t}).resizeGroup(size)
	}
	t.Run("I8 a killed plugin keeps its instances", func(t *testing.T) { testRestart(t, o) })
	t.Run("the analyzers respond", func(t *testing.T) { testAnalyzers(t, o) })
}

// Main runs the tests as a program. It exits with 0 if they pass and with 1 otherwise.
func Main(o Options) {
	testing.Init()
	if err := flag.CommandLine.Parse([]string{"-test.v"}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{
		{Name: filepath.Base(o.Path), F: func(t *testing.T) { Run(t, o) }},
	}, nil, nil)
}

// openPlugin starts the plugin as Slipway does.
func (o Options) openPlugin(t *testing.T) *host.Provider {
	t.Helper()
	path, err := filepath.Abs(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	entry := host.Entry{
		Type: filepath.Base(path), Name: "tested", Config: o.Config, CallTimeout: metav1.Duration{Duration: o.Timeout},
	}
	if o.UnlimitedMemory {
		entry.MemoryLimit = new(resource.MustParse("0"))
	}
	p, err := host.Open(t.Context(), filepath.Dir(path), entry, host.Options{
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), RestartMin: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// pollInterval is the delay between two reads.
const pollInterval = 50 * time.Millisecond

// waitUntil calls do until it is done.
func waitUntil(t *testing.T, do func(context.Context) (done bool, err error)) {
	t.Helper()
	for {
		done, err := do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		select {
		case <-time.After(pollInterval):
		case <-t.Context().Done():
			t.Fatal("test timeout")
		}
	}
}

// liveCloud is the real cloud of a plugin. The suite reads it only through the plugin.
type liveCloud struct {
	o       Options
	account *host.Provider
	t       *testing.T
}

// resizeGroup changes the size of the group and waits until all its instances run.
func (c *liveCloud) resizeGroup(size int) {
	c.t.Helper()
	ids := c.ProviderIDs()
	if n := size - len(ids); n > 0 {
		if _, err := c.account.Grow(c.t.Context(), c.o.Group, cloud.LaunchRequest{Count: n}); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, id := range ids[min(size, len(ids)):] {
		if _, err := c.account.Delete(c.t.Context(), id); err != nil && !cloud.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
	waitUntil(c.t, func(ctx context.Context) (bool, error) {
		list, err := c.account.Instances(ctx, c.o.Group)
		return len(list) == size && !slices.ContainsFunc(list, func(i cloud.Instance) bool { return i.State != cloud.Running }), err
	})
}

func (c *liveCloud) Provider(t *testing.T) cloud.Provider { return c.o.openPlugin(t) }
func (c *liveCloud) Group() string                        { return c.o.Group }
func (c *liveCloud) ForeignID() string                    { return c.o.Foreign }
func (*liveCloud) ClearFaults(*testing.T)                 {}
func (*liveCloud) DeletionRequests() int                  { return 0 }

func (c *liveCloud) ProviderIDs() (ids []string) {
	list, err := c.account.Instances(c.t.Context(), c.o.Group)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, i := range list {
		ids = append(ids, i.ProviderID)
	}
	slices.Sort(ids)
	return ids
}

func (c *liveCloud) GroupSize() int {
	g, err := c.account.Group(c.t.Context(), c.o.Group)
	if err != nil {
		c.t.Fatal(err)
	}
	return g.Size
}

// MissingID derives an ID unless the options have one.
func (c *liveCloud) MissingID() string {
	if machines := c.ProviderIDs(); c.o.Missing == "" && len(machines) > 0 {
		return machines[0] + "-never-was"
	}
	return c.o.Missing
}

func (*liveCloud) LoseInstance(t *testing.T, _ string) {
	t.Fatal("the plugin's own cloud loses no instances")
}

func (c *liveCloud) AwaitGone(t *testing.T, machine string) {
	t.Helper()
	waitUntil(t, func(ctx context.Context) (bool, error) {
		_, err := c.account.Instance(ctx, machine)
		if cloud.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

func (*liveCloud) InjectFault(t *testing.T, f conformance.Fault) {
	t.Fatalf("the plugin's own cloud never %s", f.FaultKind)
}

func (c *liveCloud) UnsupportedFaults() map[conformance.FaultKind]string {
	cannot := map[conformance.FaultKind]string{}
	for _, m := range []conformance.FaultKind{
		conformance.Unavailable, conformance.ConnectionReset, conformance.TruncatedResponse, conformance.ProxyPage, conformance.ProxyNotFound,
		conformance.PermissionDenied, conformance.Throttled, conformance.ListFailsMidway, conformance.DeletionFails, conformance.DeletionHangs,
		conformance.ForgetsOperations, conformance.StaleLists, conformance.QuotaExhausted, conformance.LosesInstances,
	} {
		cannot[m] = "the plugin has a real cloud"
	}
	if !c.o.Change {
		cannot[conformance.AllowsChanges] = "changes are not allowed"
	}
	if _, err := c.account.Normalize(c.MissingID()); err != nil {
		cannot[conformance.ReportsMissing] = fmt.Sprintf("no missing ID is configured, and the plugin refuses a derived one: %v", err)
	}
	return cannot
}

// testRestart kills the plugin and checks that it is restarted with the same instances.
func testRestart(t *testing.T, o Options) {
	p := o.openPlugin(t)
	before := listSortedInstanceIDs(t, p, o.Group)
	if err := killProcess(p.PID()); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func(ctx context.Context) (bool, error) {
		_, err := p.Group(ctx, o.Group)
		if cloud.IsNotFound(err) {
			return false, fmt.Errorf("I7: NotFound for the group after the plugin was killed: %w", err)
		}
		return err == nil, nil
	})
	if after := listSortedInstanceIDs(t, p, o.Group); !slices.Equal(before, after) {
		t.Errorf("instances\n%q\nwant\n%q", after, before)
	}
}

func listSortedInstanceIDs(t *testing.T, p *host.Provider, group string) (ids []string) {
	t.Helper()
	list, err := p.Instances(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		ids = append(ids, i.ProviderID)
	}
	slices.Sort(ids)
	return ids
}

// testAnalyzers calls the analyzers with a sample pod.
func testAnalyzers(t *testing.T, o Options) {
	p := o.openPlugin(t)
	events := p.Events()
	if !events.Modify && !events.Delete {
		t.Skip("the plugin has no analyzers")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default", UID: "1"}}
	if events.Modify {
		if recommendations, err := p.AnalyzeModifyEvent(t.Context(), pod); err != nil {
			t.Errorf("ModifyEventAnalyzer: %v", err)
		} else {
			t.Logf("ModifyEventAnalyzer recommends %+v", recommendations)
		}
	}
	if events.Delete {
		if recommendations, err := p.AnalyzeDeleteEvent(t.Context(), pod); err != nil {
			t.Errorf("DeleteEventAnalyzer: %v", err)
		} else {
			t.Logf("DeleteEventAnalyzer recommends %+v", recommendations)
		}
	}
}

// killProcess kills a process with SIGKILL.
func killProcess(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
