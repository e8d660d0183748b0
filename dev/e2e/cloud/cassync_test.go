package cloud_test

import (
	"strings"
	"testing"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

const (
	emptyPool = "empty"
	poolWrite = "Microsoft.ContainerService/managedClusters/agentPools/write"
)

// newCAS returns an Azure with a pool of VMs and an empty pool. Tests change the maximum of the empty pool.
func newCAS(t *testing.T) (*azureCloud, *azure.CASSync) {
	t.Helper()
	c := newAzure(t, agentPool)
	err := c.AddAgentPool(emulator.AgentPoolSpec{
		Cluster: clusterName, ResourceGroup: clusterRG, Name: emptyPool, AutoScaling: true, Max: 5,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, c.casSync(t, emptyPool)
}

func (c *azureCloud) casSync(t *testing.T, pool string) *azure.CASSync {
	t.Helper()
	s, err := c.provider(t, c.config()).NewCASSync(azure.CASSyncConfig{
		ResourceGroup: clusterRG, Cluster: clusterName, AgentPool: pool,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkPool asserts the state of the idle empty pool.
func (c *azureCloud) checkPool(t *testing.T, most int) {
	t.Helper()
	pool, _ := c.AgentPool(clusterName, emptyPool)
	if pool.Max != most || len(pool.Tags) != 0 || pool.Count != 0 {
		t.Errorf("the pool is %+v, want maximum %d and no tag", pool, most)
	}
}

// writes returns the requested maxima in order.
func (c *azureCloud) writes() []string {
	var maxima []string
	for _, r := range c.Requests() {
		if r.Action == poolWrite {
			_, rest, _ := strings.Cut(r.Body, `"maxCount":`)
			most, _, _ := strings.Cut(rest, ",")
			maxima = append(maxima, most)
		}
	}
	return maxima
}

func TestI8NextProcessRestoresTheChangedMaximum(t *testing.T) {
	t.Parallel()
	for _, cut := range []struct {
		name      string
		writes    int  // writes that succeed before the fault
		processed bool // Azure processed the request, and only the answer was lost
	}{
		{"before the change", 0, false},
		{"after the change, before its answer", 0, true},
		{"before the maximum is restored", 1, false},
		{"after the maximum was restored, before the answer", 1, true},
	} {
		t.Run(cut.name, func(t *testing.T) {
			c, s := newCAS(t)
			faults := []emulator.ARMFault{
				{Kind: emulator.ARMPass, Action: poolWrite, Times: 1},
				{Kind: emulator.ARMStatus, Status: 400, Code: "Crash", Action: poolWrite, Processed: cut.processed},
			}
			if err := c.ARM.InjectFaults(faults[1-cut.writes:]...); err != nil {
				t.Fatal(err)
			}
			if err := s.RestartAutoscaler(t.Context()); err == nil {
				t.Fatal("the interrupted restart returns no error")
			}
			c.ARM.ClearFaults()
			if err := c.awaitPool(t, emptyPool); err != nil {
				t.Fatal(err)
			}
			if err := c.casSync(t, emptyPool).RestoreMaximum(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.checkPool(t, 5)
		})
	}
}

// awaitPool waits until no operation on a pool is in progress.
func (c *azureCloud) awaitPool(t *testing.T, name string) error {
	return c.AwaitVMs(t.Context(), func([]emulator.VM) bool {
		pool, _ := c.AgentPool(clusterName, name)
		return pool.State == emulator.Succeeded
	})
}

func TestI10UnsuitablePoolsAreRefused(t *testing.T) {
	t.Parallel()
	c, _ := newCAS(t)
	err := c.AddAgentPool(emulator.AgentPoolSpec{Cluster: clusterName, ResourceGroup: clusterRG, Name: "manual"})
	if err != nil {
		t.Fatal(err)
	}
	err = c.AddAgentPool(emulator.AgentPoolSpec{
		Cluster: clusterName, ResourceGroup: clusterRG, Name: "single", Type: "VirtualMachines", AutoScaling: true, Max: 5,
	})
	if err != nil {
		t.Fatal(err)
	}
	for pool, says := range map[string]string{
		"manual": "autoscaler is disabled", "single": "of type VirtualMachines", poolName: "autoscaler is disabled", "missing": "does not exist",
	} {
		err := c.casSync(t, pool).RestartAutoscaler(t.Context())
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), pool) {
			t.Errorf("pool %s: error %v, want one with %q", pool, err, says)
		}
	}
	if err := c.ModifyAgentPool(clusterName, poolName, func(p *emulator.AgentPool) { p.AutoScaling, p.Max = true, 9 }); err != nil {
		t.Fatal(err)
	}
	if err := c.casSync(t, poolName).RestartAutoscaler(t.Context()); cloud.RefusalOf(err) != cloud.Invalid || !strings.Contains(err.Error(), "6 nodes") {
		t.Errorf("a pool with nodes: error %v", err)
	}
	if got := c.writes(); len(got) != 0 {
		t.Errorf("a refused pool was written: %q", got)
	}
}
