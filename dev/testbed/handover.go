package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
)

// AzureProcess is the name of the emulator's process after HandOver.
const AzureProcess = "azure"

// HandOver leaves a testbed whose control plane is detached to itself. The emulator, which ran in this process, goes on
// in one of its own at the same address: program with the arguments `azure --dir DIR -- FLAGS`, which has to call
// azure.Main with those flags and the power that Machines gives. It begins with no event and an empty ledger.
func (t *Testbed) HandOver(ctx context.Context, program string) error {
	if err := t.closeAzure(); err != nil {
		return fmt.Errorf("azure emulator: %w", err)
	}
	// The Resource Manager keeps its address, and with it the configuration that clients of it were given.
	flags := []string{
		"azure", "--dir", t.Dir(), "--", "--kubeconfig", t.Kubeconfig(), "--listen", t.base.Host,
		"--linger", t.azure.Linger.String(), "--arm-listen", t.armServer.URL.Host,
		"--arm-ca-file", filepath.Join(t.Dir(), armCAFile),
	}
	if t.azure.Outage > 0 {
		flags = append(flags, "--outage", t.azure.Outage.String())
	}
	_, err := t.Run(ctx, controlplane.Command{
		Name: AzureProcess, Path: program, Args: flags, ReadyURL: t.ControlURL() + "/state",
	})
	return err
}

// WriteClouds writes what slipway manager is given as --cloud-config to reach the testbed's Azure, and returns the path.
func (t *Testbed) WriteClouds() (path string, err error) {
	raw, err := yaml.Marshal(map[string]any{"azure": t.AzureConfig()})
	if err != nil {
		return "", err
	}
	path = filepath.Join(t.Dir(), "clouds.yaml")
	return path, os.WriteFile(path, raw, 0o600)
}

// Announcing tells people how to announce the end of a machine, and how to learn what became of its pods.
func Announcing(controlURL, resource string) string {
	return fmt.Sprintf("  curl -d '{\"type\":\"Preempt\",\"resources\":[\"%s\"]}' %s/events\n"+
		"  curl '%s/ledger?format=summary'\n", resource, controlURL, controlURL)
}

// Down stops what was left running in a directory, a control plane and what belongs to it after HandOver, and removes
// the directory, which only ever held what Start put there. Where there is nothing it is controlplane.ErrNotFound.
func Down(dir string) error {
	cluster, err := controlplane.Open(dir)
	if err != nil {
		return err
	}
	// The emulator goes first: it may be starting an agent again, and only the record that it leaves knows of it.
	if emulator := cluster.Process(AzureProcess); emulator != nil {
		if err := emulator.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		if cluster, err = controlplane.Open(dir); err != nil {
			return err
		}
	}
	if err := cluster.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Clean(cluster.Dir())); err != nil {
		return fmt.Errorf("removing the data of the control plane: %w", err)
	}
	return nil
}

// Machines is the power over the machines of a testbed that was handed over: their nodes, and the agents on them.
func Machines(dir string) azure.NodePower { return &machines{dir: dir} }

type machines struct {
	dir string

	mu      sync.Mutex
	cluster *controlplane.Cluster
}

// on gives the control plane and the agent of a node, if it has one.
func (m *machines) on(node string) (*controlplane.Cluster, *controlplane.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cluster == nil || m.cluster.Process(AgentProcess(node)) == nil { // or the agent came later than the last look
		cluster, err := controlplane.Open(m.dir)
		if err != nil {
			return nil, nil, err
		}
		m.cluster = cluster
	}
	return m.cluster, m.cluster.Process(AgentProcess(node)), nil
}

func (m *machines) PowerOff(ctx context.Context, node string) error {
	cluster, agent, err := m.on(node)
	if err != nil {
		return err
	}
	if agent != nil {
		if err := agent.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return cluster.PowerOff(ctx, node)
}

func (m *machines) PowerOn(ctx context.Context, node string) error {
	cluster, agent, err := m.on(node)
	if err != nil {
		return err
	}
	if err := cluster.PowerOn(ctx, node); err != nil {
		return err
	}
	if agent == nil || agent.Alive() {
		return nil
	}
	return agent.Restart(ctx)
}

var _ azure.Joiner = (*machines)(nil)

// Join adds the node of a machine that Azure has made.
func (m *machines) Join(ctx context.Context, vm azure.VM) error {
	pool, ok := controlplane.AKSPoolOf(vm.ScaleSet)
	instance, err := strconv.Atoi(vm.InstanceID)
	if !ok || err != nil {
		return fmt.Errorf("machine %s: is of no scale set of AKS", vm.Resource)
	}
	pool.Spot = vm.Spot
	cluster, err := controlplane.Open(m.dir)
	if err != nil {
		return err
	}
	return cluster.AddNodes(ctx, pool.Node(instance))
}
