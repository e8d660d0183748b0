package retirement_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/machinedir"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/examples/directory/machines"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/plugin"
)

// directory is the sample plugin with a directory of instances. Their nodes are in the testbed.
type directory struct{ root, plugins string }

func newDirectory(f *fixture) directory {
	f.t.Helper()
	d := directory{root: filepath.Join(f.t.TempDir(), "machines"), plugins: f.t.TempDir()}
	f.check(testbed.BuildPackages(f.ctx, filepath.Join(d.plugins, "directory"), "./examples/directory"))
	f.check(os.MkdirAll(filepath.Join(d.root, f.name), 0o700))
	f.check(os.WriteFile(filepath.Join(d.root, "host.json"), []byte(`{"quota": 10}`), 0o600))
	f.check(os.WriteFile(filepath.Join(d.root, f.name, "group.json"),
		[]byte(`{"max": 5, "templates": [{"name": "small", "capacity": {"cpu": "4", "memory": "8Gi"}}]}`), 0o600))
	ctx, stop := context.WithCancel(f.ctx)
	tied := make(chan error, 1)
	go func() { tied <- machinedir.SyncNodes(ctx, f.Testbed, machines.Hypervisor{Root: d.root}, "host-1") }()
	f.t.Cleanup(func() {
		stop()
		if err := <-tied; err != nil {
			f.t.Error(err)
		}
	})
	return d
}

// config returns the plugin's own configuration.
func (d directory) config() string { return fmt.Sprintf(`{"path": %q, "host": "host-1"}`, d.root) }

// clouds writes a cloud configuration file with the plugin as its only cloud.
func (d directory) clouds(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "clouds.yaml")
	file := fmt.Sprintf("plugins:\n  directory: %s\n  use:\n  - type: directory\n    config: %s\n", d.plugins, d.config())
	if err := os.WriteFile(to, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// grow launches instances with the plugin, and returns the names of their nodes after they have joined.
func (d directory) grow(f *fixture, n int) []string {
	f.t.Helper()
	p, err := plugin.Open(f.ctx, d.plugins, plugin.Entry{Type: "directory", Config: []byte(d.config())}, plugin.Options{})
	f.check(err)
	defer func() { _ = p.Close() }()
	_, err = p.Grow(f.ctx, f.name, cloud.LaunchRequest{Count: n})
	f.check(err)
	list, err := p.Instances(f.ctx, f.name)
	f.check(err)
	var names []string
	for _, i := range list {
		f.check(testbed.PollUntil(f.ctx, "node "+i.ComputerName+" has joined", func() bool {
			node, err := f.Client().CoreV1().Nodes().Get(f.ctx, i.ComputerName, metav1.GetOptions{})
			return err == nil && node.Spec.ProviderID == i.ProviderID
		}))
		names = append(names, i.ComputerName)
	}
	return names
}

// children returns the child processes of a process.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(tasks) == 0 {
		t.Errorf("the children of process %d: %v", pid, err)
	}
	for _, task := range tasks {
		raw, _ := os.ReadFile(task) // a thread may have ended
		for _, word := range strings.Fields(string(raw)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Errorf("the children of process %d: %q: %v", pid, raw, err)
			}
			pids = append(pids, child)
		}
	}
	return pids
}

// killPlugins kills three of the plugins that a manager starts, one after the other, until ctx ends. It kills the first
// one immediately.
func killPlugins(ctx context.Context, t *testing.T, manager int) (killed int) {
	for killed < 3 {
		for _, pid := range children(t, manager) {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
		select {
		case <-ctx.Done():
			return killed
		case <-time.After(700 * time.Millisecond):
		}
	}
	return killed
}

func TestAMachineOfAPluginIsRetiredAlthoughThePluginDiesAgainAndAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "byplugin", 0, "drain: {timeout: 3m}")
	d := newDirectory(f)
	nodes := d.grow(f, 2)
	victim, other := nodes[0], nodes[1]
	app := workload.App{Namespace: f.name, Name: "web", Replicas: 2, Node: victim, StopSeconds: "0.5"}
	f.run(app.Deployment())

	proxy := faultproxy.New(kindOf)
	manager := f.manage("", proxy, "--cloud-config", d.clouds(t))
	f.check(testbed.PollUntil(f.ctx, "the manager has begun", func() bool {
		log, err := os.ReadFile(manager.LogFile())
		return err == nil && strings.Contains(string(log), "managing the cluster")
	}))
	f.create("NodeRetirement", victim, "reason: Requested\nnodeName: "+victim)
	ctx, over := context.WithCancel(f.ctx)
	killed := make(chan int)
	go func() { killed <- killPlugins(ctx, t, manager.PID()) }()
	rt := f.awaitPhase(victim, v1alpha1.Succeeded)
	over()
	if n := <-killed; n == 0 {
		t.Error("no plugin was killed")
	}
	if rt.Status.Captured == nil || rt.Status.Captured.Provider != "directory" {
		t.Errorf("captured: %+v", rt.Status.Captured)
	}
	if _, err := os.Stat(filepath.Join(d.root, f.name, victim+".json")); !os.IsNotExist(err) {
		t.Errorf("the machine's file is there: %v", err)
	}
	if _, err := f.Client().CoreV1().Nodes().Get(f.ctx, victim, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.root, f.name, other+".json")); err != nil {
		t.Errorf("the other machine: %v", err)
	}
	node, err := f.Client().CoreV1().Nodes().Get(f.ctx, other, metav1.GetOptions{})
	f.check(err)
	f.untouched(node)
}
