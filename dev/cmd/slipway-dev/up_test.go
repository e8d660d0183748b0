package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

// TestMain lets the test binary run as slipway-dev, because `up` starts it as the emulator.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == testbed.AzureProcessName {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// testTimeout is generous, because tests share the machine.
const testTimeout = 8 * time.Minute

func TestUpRunsEmulatorAndDownStopsEverything(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "cluster")
	t.Cleanup(func() {
		if err := stopAll(dir); err != nil {
			t.Error(err)
		}
	})
	var out strings.Builder
	kubeconfig, err := startAll(ctx, dir, "", &out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kubeconfig); err != nil {
		t.Error(err)
	}
	if err := checkNotRunning(dir); err == nil {
		t.Error("a second control plane started in the same directory")
	}
	emulator := regexp.MustCompile(`http://\S+/emulator`).FindString(out.String())
	if emulator == "" {
		t.Fatalf("no address of the emulator in:\n%s", out.String())
	}
	preempted, rebooted := 0, findMachineWithoutBarePods(ctx, t, dir)
	machines := []int{preempted, rebooted}
	before := findProcesses(t, dir, machines)

	announceEvent(ctx, t, emulator, `{"type":"Preempt","resources":["`+spotPool.ResourceName(preempted)+`"]}`)
	announceEvent(ctx, t, emulator, `{"type":"Reboot","resources":["`+spotPool.ResourceName(rebooted)+`"],"outage":"100ms"}`)
	const ended, revived = 0, 1
	awaitCondition(ctx, t, "the preempted machine's agent has ended, and the rebooted machine's agent has restarted", func() bool {
		now := findProcesses(t, dir, machines)
		return !now[ended].IsAlive() && now[revived].PID() != before[revived].PID() && now[revived].IsAlive()
	})
	if summary := httpGet(ctx, t, emulator+"/ledger?format=summary"); strings.Count(summary, " 0 lost") != 2 {
		t.Errorf("the ledger: %s\n%s", summary, httpGet(ctx, t, emulator+"/ledger"))
	}

	clouds, err := os.ReadFile(filepath.Join(dir, "clouds.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// A machine leaves its scale set once its event has vanished, some time after power-off.
	awaitCondition(ctx, t, "Azure's Resource Manager lists the remaining machines", func() bool {
		return checkResourceManager(ctx, clouds) == nil
	})

	after := findProcesses(t, dir, machines)
	if err := testbed.StopDetached(dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(before, after...) {
		if p.IsAlive() {
			t.Errorf("%s still runs, as process %d", p.Name(), p.PID())
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory still exists: %v", err)
	}
}

// checkResourceManager checks that the Resource Manager in a cloud configuration has the right machines.
func checkResourceManager(ctx context.Context, clouds []byte) error {
	var file struct {
		Azure provider.Config `json:"azure"`
	}
	if err := yaml.Unmarshal(clouds, &file); err != nil {
		return err
	}
	azure, err := provider.New(file.Azure, provider.Options{})
	if err != nil {
		return err
	}
	for set, want := range map[string]int{spotPool.ScaleSetName(): spotNodes - 1, generalPool.ScaleSetName(): generalNodes} {
		group, err := azure.Group(ctx, set)
		if err != nil {
			return err
		}
		if group.Size != want {
			return fmt.Errorf("scale set %s has the size %d, want %d", set, group.Size, want)
		}
	}
	return nil
}

// findMachineWithoutBarePods returns a Spot machine, other than the first, without bare pods. A Reboot leaves such
// a pod on the node, and the ledger counts it as lost.
func findMachineWithoutBarePods(ctx context.Context, t *testing.T, dir string) int {
	t.Helper()
	cluster, err := controlplane.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := cluster.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bare := map[string]bool{}
	for _, p := range pods.Items {
		bare[p.Spec.NodeName] = bare[p.Spec.NodeName] || len(p.OwnerReferences) == 0
	}
	for i := 1; i < spotNodes; i++ {
		if !bare[spotPool.NodeName(i)] {
			return i
		}
	}
	t.Fatal("every Spot machine has a pod without controller")
	return 0
}

// findProcesses returns the recorded processes of the agents of Spot machines, the emulator and the API server.
func findProcesses(t *testing.T, dir string, machines []int) []*controlplane.Process {
	t.Helper()
	cluster, err := controlplane.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []*controlplane.Process
	var names []string
	for _, m := range machines {
		names = append(names, testbed.AgentProcessName(spotPool.NodeName(m)))
	}
	names = append(names, testbed.AzureProcessName, controlplane.APIServer)
	for _, name := range names {
		p := cluster.Process(name)
		if p == nil {
			t.Fatalf("no process %s is recorded", name)
		}
		found = append(found, p)
	}
	return found
}

func announceEvent(ctx context.Context, t *testing.T, emulator, event string) {
	t.Helper()
	sendRequest(t, newRequest(ctx, t, http.MethodPost, emulator+"/events", strings.NewReader(event)))
}

func httpGet(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	return sendRequest(t, newRequest(ctx, t, http.MethodGet, url, nil))
}

func newRequest(ctx context.Context, t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sendRequest(t *testing.T, r *http.Request) string {
	t.Helper()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s", r.Method, r.URL, response.Status, body)
	}
	return string(body)
}

func awaitCondition(ctx context.Context, t *testing.T, state string, check func() bool) {
	t.Helper()
	if err := testbed.PollUntil(ctx, state, check); err != nil {
		t.Fatal(err)
	}
}
