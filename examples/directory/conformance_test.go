//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/examples/directory/machines"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
	"github.com/slipway-dev/slipway/internal/cloud/plugin"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/faultyplugintest"
)

func init() { faultyplugintest.RunAsPluginIfRequested(main) }

const (
	cloudType = "directory"
	group     = "workers"
	host      = "host-1"
)

// directoryCloud is a directory of machines, reached through the plugin.
type directoryCloud struct {
	root, plugins string

	mu        sync.Mutex
	providers []*plugin.Provider
}

// newDirectory creates a host with running machines.
func newDirectory(t *testing.T, count int) *directoryCloud {
	t.Helper()
	c := &directoryCloud{root: filepath.Join(t.TempDir(), "machines"), plugins: t.TempDir()}
	c.writeFile(t, "host.json", machines.Host{Quota: 20})
	c.writeFile(t, group+"/group.json", machines.Group{Max: 15, Templates: []machines.Template{
		{Name: "small", Capacity: map[string]string{"cpu": "2", "memory": "4Gi"}},
		{Name: "large", Capacity: map[string]string{"cpu": "8", "memory": "32Gi"}, Cost: 4},
	}})
	for i := range count {
		c.writeFile(t, group+"/"+group+"-"+string(rune('a'+i))+".json", machines.Machine{Template: "small", Created: time.Now()})
	}
	c.writePlugin(t, faultyplugintest.Good)
	return c
}

func (c *directoryCloud) writeFile(t *testing.T, name string, content any) {
	t.Helper()
	raw, err := json.Marshal(content)
	path := filepath.Join(c.root, name)
	err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, raw, 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// writePlugin replaces the plugin's file with one of a mode. It does not affect a running plugin.
func (c *directoryCloud) writePlugin(t *testing.T, mode faultyplugintest.Mode) {
	t.Helper()
	if err := faultyplugintest.WritePluginScript(c.plugins, cloudType, mode); err != nil {
		t.Fatal(err)
	}
}

// forEachPlugin calls do for every running plugin.
func (c *directoryCloud) forEachPlugin(do func(pid int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.providers {
		if pid := p.PID(); pid > 0 {
			_ = do(pid) // it may have exited meanwhile
		}
	}
}

func killProcess(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// noMemoryLimit disables the memory limit: the race detector, also in the plugins of tests, reserves the whole address space.
var noMemoryLimit = resource.MustParse("0")

func (c *directoryCloud) Provider(t *testing.T) cloud.Provider {
	t.Helper()
	raw, err := json.Marshal(config{Path: c.root, Host: host})
	if err != nil {
		t.Fatal(err)
	}
	var timeout metav1.Duration
	if strings.Contains(t.Name(), "not_gone") { // all calls of this test fail, so a short timeout breaks nothing
		timeout.Duration = 2 * time.Second
	}
	p, err := plugin.Open(t.Context(), c.plugins, plugin.Entry{
		Type: cloudType, Config: raw, MemoryLimit: &noMemoryLimit, CallTimeout: timeout,
	}, plugin.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), RestartMin: time.Millisecond, RestartMax: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.providers = append(c.providers, p)
	return p
}

func (*directoryCloud) Group() string { return group }

// withLock calls do with the machines in the directory, without the plugin.
func (c *directoryCloud) withLock(do func(machines.View) error) {
	if err := (machines.Hypervisor{Root: c.root}).WithLock(context.Background(), do); err != nil {
		panic(err)
	}
}

func (c *directoryCloud) ProviderIDs() (ids []string) {
	c.withLock(func(v machines.View) error {
		all, err := v.Machines(group)
		for name := range all {
			ids = append(ids, "directory://"+host+"/"+group+"/"+name)
		}
		return err
	})
	slices.Sort(ids)
	return ids
}

func (c *directoryCloud) GroupSize() (n int) {
	c.withLock(func(v machines.View) (err error) {
		n, err = v.Size(group)
		return err
	})
	return n
}

func (*directoryCloud) MissingID() string { return "directory://" + host + "/" + group + "/never-was" }

func (*directoryCloud) ForeignID() string { return "directory://host-2/" + group + "/" + group + "-a" }

func (c *directoryCloud) machinePath(id string) string {
	return filepath.Join(c.root, group, id[strings.LastIndex(id, "/")+1:]+".json")
}

func (c *directoryCloud) LoseInstance(t *testing.T, id string) {
	t.Helper()
	if err := os.Remove(c.machinePath(id)); err != nil {
		t.Fatal(err)
	}
}

func (c *directoryCloud) AwaitGone(t *testing.T, id string) {
	t.Helper()
	for slices.Contains(c.ProviderIDs(), id) {
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the machine still exists")
		}
	}
}

// editMachines changes every machine's file, as a user would.
func (c *directoryCloud) editMachines(change func(id string, m *machines.Machine)) {
	c.withLock(func(v machines.View) error {
		all, err := v.Machines(group)
		for name, m := range all {
			change("directory://"+host+"/"+group+"/"+name, &m)
			err = errors.Join(err, v.SetMachine(group, name, m))
		}
		return err
	})
}

// awaitPlugins waits until every plugin responds, so that no plugin starts while its file is replaced.
func (c *directoryCloud) awaitPlugins(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.providers {
		for {
			if _, err := p.Group(t.Context(), group); err == nil {
				break
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatal("the plugin does not respond")
			}
		}
	}
}

func (c *directoryCloud) InjectFault(t *testing.T, f conformance.Fault) {
	t.Helper()
	c.awaitPlugins(t)
	switch f.FaultKind {
	case conformance.Unavailable:
		c.writePlugin(t, faultyplugintest.HangsOnCall)
		c.forEachPlugin(func(pid int) error { return faultyplugintest.Freeze(t.Context(), pid) })
	case conformance.ConnectionReset:
		c.writePlugin(t, faultyplugintest.ExitsOnCall)
		c.forEachPlugin(killProcess)
	case conformance.ProxyPage:
		c.writePlugin(t, faultyplugintest.ServesWebPage)
		c.forEachPlugin(killProcess)
	case conformance.ProxyNotFound:
		c.writePlugin(t, faultyplugintest.ReturnsNotFound)
		c.forEachPlugin(killProcess)
	case conformance.TruncatedResponse:
		c.truncateFiles(t)
	case conformance.DeletionHangs:
		c.editMachines(func(id string, m *machines.Machine) {
			if id == f.ProviderID {
				m.Shutdown = 1e6
			}
		})
	case conformance.DeletionFails:
		c.editMachines(func(id string, m *machines.Machine) {
			if id == f.ProviderID {
				m.Stuck = "its disk is in use"
			}
		})
	case conformance.QuotaExhausted:
		c.writeFile(t, "host.json", machines.Host{Quota: conformance.MinInstances})
	default:
		t.Fatalf("the directory never %s", f.FaultKind)
	}
}

// truncateFiles truncates all files to their first half and keeps copies for Heal.
func (c *directoryCloud) truncateFiles(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.root, "*", "*.json"))
	files = append(files, filepath.Join(c.root, "host.json"))
	for _, path := range files {
		raw, wrong := os.ReadFile(path)
		err = errors.Join(err, wrong, os.WriteFile(path+".whole", raw, 0o600), os.WriteFile(path, raw[:len(raw)/2], 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *directoryCloud) ClearFaults(t *testing.T) {
	t.Helper()
	c.writePlugin(t, faultyplugintest.Good)
	wholes, err := filepath.Glob(filepath.Join(c.root, "*", "*.whole"))
	if whole := filepath.Join(c.root, "host.json.whole"); len(wholes) > 0 {
		wholes = append(wholes, whole)
	}
	for _, whole := range wholes {
		err = errors.Join(err, os.Rename(whole, strings.TrimSuffix(whole, ".whole")))
	}
	if err != nil {
		t.Fatal(err)
	}
	c.editMachines(func(_ string, m *machines.Machine) { m.Shutdown, m.Stuck = 0, "" })
}

func (*directoryCloud) DeletionRequests() int { return 0 }

func (*directoryCloud) UnsupportedFaults() map[conformance.FaultKind]string {
	return map[conformance.FaultKind]string{
		conformance.PermissionDenied:  "a directory has no credentials",
		conformance.Throttled:         "a directory does not count requests",
		conformance.ListFailsMidway:   "a directory is read at once",
		conformance.StaleLists:        "a directory has no cache",
		conformance.ForgetsOperations: "the record of a deletion is the machine itself",
	}
}

func TestSamplePassesConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Cloud { return newDirectory(t, conformance.MinInstances) })
}
