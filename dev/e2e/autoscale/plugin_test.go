package autoscale_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/machinedir"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/examples/directory/machines"
)

// ownInstance is a pod annotation. It tells the analyzer of the sample plugin that the pod wants its own instance.
const ownInstance = "directory.slipway.dev/own-machine"

// directory builds the sample plugin with a directory of instances. Their nodes are nodes of the testbed. It returns
// the file of clouds.
func directory(f *fixture) (root, clouds string) {
	f.t.Helper()
	root = filepath.Join(f.t.TempDir(), "machines")
	plugins := f.t.TempDir()
	f.check(testbed.BuildPackages(f.ctx, filepath.Join(plugins, "directory"), "./examples/directory"))
	f.check(os.MkdirAll(filepath.Join(root, f.name), 0o700))
	f.check(os.WriteFile(filepath.Join(root, "host.json"), []byte(`{"quota": 10}`), 0o600))
	f.check(os.WriteFile(filepath.Join(root, f.name, "group.json"),
		[]byte(`{"max": 5, "templates": [{"name": "small", "capacity": {"cpu": "4", "memory": "8Gi"}}]}`), 0o600))
	ctx, stop := context.WithCancel(f.ctx)
	synced := make(chan error, 1)
	go func() { synced <- machinedir.SyncNodes(ctx, f.Testbed, machines.Hypervisor{Root: root}, "host-1") }()
	f.t.Cleanup(func() {
		stop()
		if err := <-synced; err != nil {
			f.t.Error(err)
		}
	})
	file := fmt.Sprintf("plugins:\n  directory: %s\n  use:\n  - type: directory\n    config: {path: %q, host: host-1}\n", plugins, root)
	return root, testbed.WriteTempFile(f.t, "clouds.yaml", file)
}

// killPlugins kills up to three of the plugins that a manager starts, until ctx ends. It kills the first one immediately.
func killPlugins(ctx context.Context, t *testing.T, manager int) (killed int) {
	for killed < 3 {
		for _, pid := range pluginProcesses(t, manager) {
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

// pluginProcesses returns the plugin processes of a manager.
func pluginProcesses(t *testing.T, manager int) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", manager))
	if err != nil {
		t.Error(err)
	}
	for _, task := range tasks {
		raw, _ := os.ReadFile(task) // a thread may have ended
		for _, word := range strings.Fields(string(raw)) {
			var pid int
			if _, err := fmt.Sscan(word, &pid); err != nil {
				t.Error(err)
				continue
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestPluginLaunchesAndRetiresInstanceDespiteCrashes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "analyzer")
	root, clouds := directory(f)
	f.createGroup("analyzer", fmt.Sprintf(`nodeSelector: {matchLabels: {directory.slipway.dev/group: %[1]s}}
cloud: {provider: directory, group: %[1]s}
maxSize: 2
scaleUp: {joinTimeout: 5m}
cooldowns: {afterFailure: 1s}`, f.name))
	manager := f.startManager(clouds)
	files := func() []string {
		all, err := filepath.Glob(filepath.Join(root, f.name, f.name+"-*.json"))
		f.check(err)
		return all
	}

	// Its annotation requests its own instance. The node of the group's only other pod would have room for it.
	app := workload.App{
		Namespace: f.name, Name: "own", CPU: resource.MustParse("1"), StopSeconds: "0.1", Annotations: map[string]string{ownInstance: f.name},
		NodeSelector: map[string]string{"directory.slipway.dev/group": f.name},
	}
	f.check(workload.Create(f.ctx, f.Client(), app.Pod()))
	var node string
	f.await("the pod runs", func() (string, bool) {
		p, err := f.Client().CoreV1().Pods(f.name).Get(f.ctx, "own", metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		node = p.Spec.NodeName
		return fmt.Sprintf("it is %s, and the instances are %q", p.Status.Phase, files()), p.Status.Phase == corev1.PodRunning
	})
	if n := len(files()); n != 1 {
		t.Errorf("%d instances for one pod, want 1", n)
	}

	ctx, retired := context.WithCancel(f.ctx)
	killed := make(chan int)
	go func() { killed <- killPlugins(ctx, t, manager.PID()) }()
	f.check(f.Client().CoreV1().Pods(f.name).Delete(f.ctx, "own", metav1.DeleteOptions{}))
	f.await("the instance and its Node are deleted", func() (string, bool) {
		_, err := f.Client().CoreV1().Nodes().Get(f.ctx, node, metav1.GetOptions{})
		return fmt.Sprintf("%q; the Node: %v; %s", files(), err, f.describeRetirements()), len(files()) == 0 && apierrors.IsNotFound(err)
	})
	retired()
	if n := <-killed; n == 0 {
		t.Error("no plugin was killed")
	}
	if !manager.IsAlive() {
		t.Error("the manager has exited with its plugin")
	}
}
