// Package plugintest checks that a plugin keeps what Slipway expects of a cloud. The author of a plugin calls [Run] from a
// test, or runs `slipway plugin test`, which does the same for a plugin in any language.
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

// Options say what is tested.
type Options struct {
	// Path is the plugin's executable.
	Path string
	// Config is the plugin's own configuration, a JSON object; {} if empty.
	Config json.RawMessage
	// Group is the name of a group with machines that run: one at the least, and six with Change.
	Group string
	// Missing is the provider ID of a machine that never was. Without it, one is made of another machine's ID.
	Missing string
	// Foreign is the provider ID of a machine of another account or host of the same kind; it may be empty.
	Foreign string
	// Change allows the tests to delete machines of the group and to have others made, up to five more than there are or
	// six, whichever is more. Give it a group that is there for the tests.
	Change bool
	// Timeout bounds each call of the plugin; 30s if zero.
	Timeout time.Duration
	// Unlimited leaves the plugin's memory without a limit, as a program that is built with -race needs it.
	Unlimited bool
}

// Validate reports what is wrong.
func (o Options) Validate() error {
	switch {
	case o.Path == "":
		return fmt.Errorf("path: is empty: want the plugin's executable")
	case o.Group == "":
		return fmt.Errorf("group: is empty: want the name of a group with machines")
	}
	return nil
}

// Run runs the tests as subtests of t.
func Run(t *testing.T, o Options) {
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	account := o.open(t) // one for the suite's own look at the cloud
	size := max(conformance.Machines, len((&live{o: o, account: account, t: t}).Machines()))
	conformance.Run(t, func(t *testing.T) conformance.Cloud {
		c := &live{o: o, account: account, t: t}
		if o.Change {
			c.resize(size)
		}
		return c
	})
	if o.Change {
		(&live{o: o, account: account, t: t}).resize(size)
	}
	t.Run("I8 a plugin that is killed finds its machines again", func(t *testing.T) { comesBack(t, o) })
	t.Run("the analyzers answer", func(t *testing.T) { analyze(t, o) })
}

// Main runs the tests as a program of their own, and exits with 0 if they pass and 1 if not.
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

// open starts the plugin as Slipway does.
func (o Options) open(t *testing.T) *host.Provider {
	t.Helper()
	path, err := filepath.Abs(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	entry := host.Entry{
		Type: filepath.Base(path), Name: "tested", Config: o.Config, CallTimeout: metav1.Duration{Duration: o.Timeout},
	}
	if o.Unlimited {
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

// pause is the time between two looks at something that takes its time.
const pause = 50 * time.Millisecond

// until calls do until it says that it is done.
func until(t *testing.T, do func(context.Context) (done bool, err error)) {
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
		case <-time.After(pause):
		case <-t.Context().Done():
			t.Fatal("the test's time is over")
		}
	}
}

// live is a plugin's real cloud: the suite has no look at it but through the plugin.
type live struct {
	o       Options
	account *host.Provider
	t       *testing.T
}

// resize has the group be of a size, and waits until all of its machines run.
func (c *live) resize(size int) {
	c.t.Helper()
	ids := c.Machines()
	if n := size - len(ids); n > 0 {
		if _, err := c.account.Grow(c.t.Context(), c.o.Group, cloud.Order{Count: n}); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, id := range ids[min(size, len(ids)):] {
		if _, err := c.account.Delete(c.t.Context(), id); err != nil && !cloud.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
	until(c.t, func(ctx context.Context) (bool, error) {
		list, err := c.account.Instances(ctx, c.o.Group)
		return len(list) == size && !slices.ContainsFunc(list, func(i cloud.Instance) bool { return i.State != cloud.Running }), err
	})
}

func (c *live) Provider(t *testing.T) cloud.Provider { return c.o.open(t) }
func (c *live) Group() string                        { return c.o.Group }
func (c *live) Foreign() string                      { return c.o.Foreign }
func (*live) Heal(*testing.T)                        {}
func (*live) Deletions() int                         { return 0 }

func (c *live) Machines() (ids []string) {
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

func (c *live) Size() int {
	g, err := c.account.Group(c.t.Context(), c.o.Group)
	if err != nil {
		c.t.Fatal(err)
	}
	return g.Size
}

// Missing makes an ID of a machine's own where none was given.
func (c *live) Missing() string {
	if machines := c.Machines(); c.o.Missing == "" && len(machines) > 0 {
		return machines[0] + "-never-was"
	}
	return c.o.Missing
}

func (*live) Lose(t *testing.T, _ string) { t.Fatal("the plugin's own cloud loses no machines") }

func (c *live) AwaitGone(t *testing.T, machine string) {
	t.Helper()
	until(t, func(ctx context.Context) (bool, error) {
		_, err := c.account.Instance(ctx, machine)
		if cloud.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

func (*live) Inject(t *testing.T, f conformance.Fault) {
	t.Fatalf("the plugin's own cloud cannot be one that %s", f.Misbehaviour)
}

// Cannot implements conformance.Limited.
func (c *live) Cannot() map[conformance.Misbehaviour]string {
	cannot := map[conformance.Misbehaviour]string{}
	for _, m := range []conformance.Misbehaviour{
		conformance.Unavailable, conformance.Reset, conformance.Truncated, conformance.Impostor, conformance.Misrouted,
		conformance.Denied, conformance.Throttled, conformance.SecondPage, conformance.DeletionFails, conformance.DeletionHangs,
		conformance.Forgets, conformance.Stale, conformance.Full, conformance.Loses,
	} {
		cannot[m] = "the plugin's cloud is a real one"
	}
	if !c.o.Change {
		cannot[conformance.Yields] = "changes were not asked for"
	}
	if _, err := c.account.Normalize(c.Missing()); err != nil {
		cannot[conformance.Misses] = fmt.Sprintf("no ID of one was given, and the plugin says of one that was made up: %v", err)
	}
	return cannot
}

// comesBack kills the plugin, and looks for the machines again.
func comesBack(t *testing.T, o Options) {
	p := o.open(t)
	before := names(t, p, o.Group)
	if err := kill(p.PID()); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) (bool, error) {
		_, err := p.Group(ctx, o.Group)
		if cloud.IsNotFound(err) {
			return false, fmt.Errorf("I7: after the plugin was killed, the group is not found: %w", err)
		}
		return err == nil, nil
	})
	if after := names(t, p, o.Group); !slices.Equal(before, after) {
		t.Errorf("the machines are\n%q\nand were\n%q", after, before)
	}
}

func names(t *testing.T, p *host.Provider, group string) (ids []string) {
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

// analyze shows the plugin a pod of no importance.
func analyze(t *testing.T, o Options) {
	p := o.open(t)
	events := p.Events()
	if !events.Modify && !events.Delete {
		t.Skip("the plugin has no analyzers")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default", UID: "1"}}
	if events.Modify {
		if wishes, err := p.AnalyzeModifyEvent(t.Context(), pod); err != nil {
			t.Errorf("ModifyEventAnalyzer: %v", err)
		} else {
			t.Logf("ModifyEventAnalyzer wants %+v", wishes)
		}
	}
	if events.Delete {
		if wishes, err := p.AnalyzeDeleteEvent(t.Context(), pod); err != nil {
			t.Errorf("DeleteEventAnalyzer: %v", err)
		} else {
			t.Logf("DeleteEventAnalyzer wants %+v", wishes)
		}
	}
}

// kill ends a process without a word to it.
func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
