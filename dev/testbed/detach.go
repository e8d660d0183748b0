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

// AzureProcessName is the name of the emulator's process after DetachAzure.
const AzureProcessName = "azure"

// DetachAzure moves the emulator from this process to its own process at the same address, and leaves the testbed running.
// The control plane must be detached. The program is called as `azure --dir DIR -- FLAGS`. It must call azure.Main with
// these flags and with Machines. The new process has no events and an empty ledger.
func (t *Testbed) DetachAzure(ctx context.Context, program string) error {
	if err := t.stopAzure(); err != nil {
		return fmt.Errorf("stop the Azure emulator: %w", err)
	}
	// The Resource Manager keeps its address, so that the configuration of its clients stays valid.
	flags := []string{
		"azure", "--dir", t.Dir(), "--", "--kubeconfig", t.Kubeconfig(), "--listen", t.base.Host,
		"--linger", t.azure.StartedAfterImpact.String(), "--arm-listen", t.armServer.URL.Host,
		"--arm-ca-file", filepath.Join(t.Dir(), armCAFile),
	}
	if t.azure.Outage > 0 {
		flags = append(flags, "--outage", t.azure.Outage.String())
	}
	_, err := t.StartProcess(ctx, controlplane.Command{
		Name: AzureProcessName, Path: program, Args: flags, ReadyURL: t.ControlURL() + "/state",
	})
	return err
}

// WriteCloudConfig writes the file for `slipway manager --cloud-config` that reaches the testbed's Azure, and returns its
// path.
func (t *Testbed) WriteCloudConfig() (path string, err error) {
	raw, err := yaml.Marshal(map[string]any{"azure": t.AzureProviderConfig()})
	if err != nil {
		return "", err
	}
	path = filepath.Join(t.Dir(), "clouds.yaml")
	return path, os.WriteFile(path, raw, 0o600)
}

// NoticeInstructions returns commands that preempt a machine and show how its pods ended.
func NoticeInstructions(controlURL, resource string) string {
	return fmt.Sprintf("  curl -d '{\"type\":\"Preempt\",\"resources\":[\"%s\"]}' %s/events\n"+
		"  curl '%s/ledger?format=summary'\n", resource, controlURL, controlURL)
}

// StopDetached stops a detached control plane and its processes after DetachAzure, and removes the directory, which Start created.
// It returns controlplane.ErrNotFound if nothing runs there.
func StopDetached(dir string) error {
	cluster, err := controlplane.Open(dir)
	if err != nil {
		return err
	}
	// The emulator stops first, because it may be restarting an agent. Only the record that it leaves names that agent.
	if emulator := cluster.Process(AzureProcessName); emulator != nil {
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
		return fmt.Errorf("remove the data of the control plane: %w", err)
	}
	return nil
}

// NewDetachedNodePower switches the machines of a detached testbed on and off: their nodes and agents.
func NewDetachedNodePower(dir string) azure.NodePower { return &detachedNodePower{dir: dir} }

type detachedNodePower struct {
	dir string

	mu      sync.Mutex
	cluster *controlplane.Cluster
}

// openClusterAndAgent returns the control plane, and the agent of a node if it has one.
func (m *detachedNodePower) openClusterAndAgent(node string) (*controlplane.Cluster, *controlplane.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cluster == nil || m.cluster.Process(AgentProcessName(node)) == nil { // or the agent was started after the last read
		cluster, err := controlplane.Open(m.dir)
		if err != nil {
			return nil, nil, err
		}
		m.cluster = cluster
	}
	return m.cluster, m.cluster.Process(AgentProcessName(node)), nil
}

func (m *detachedNodePower) PowerOff(ctx context.Context, node string) error {
	cluster, agent, err := m.openClusterAndAgent(node)
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

func (m *detachedNodePower) PowerOn(ctx context.Context, node string) error {
	cluster, agent, err := m.openClusterAndAgent(node)
	if err != nil {
		return err
	}
	if err := cluster.PowerOn(ctx, node); err != nil {
		return err
	}
	if agent == nil || agent.IsAlive() {
		return nil
	}
	return agent.Restart(ctx)
}

var _ azure.NodeJoiner = (*detachedNodePower)(nil)

// JoinNode adds the Node of a machine that Azure has created.
func (m *detachedNodePower) JoinNode(ctx context.Context, vm azure.VM) error {
	pool, ok := controlplane.ParseScaleSetName(vm.ScaleSet)
	instance, err := strconv.Atoi(vm.InstanceID)
	if !ok || err != nil {
		return fmt.Errorf("machine %s belongs to no scale set of AKS", vm.Resource)
	}
	pool.Spot = vm.Spot
	cluster, err := controlplane.Open(m.dir)
	if err != nil {
		return err
	}
	return cluster.AddNodes(ctx, pool.Node(instance))
}
