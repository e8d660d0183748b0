package manager

import (
	"log/slog"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/cloud/plugin"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/externalgrpc"
	"github.com/slipway-dev/slipway/internal/orphans"
)

// TestI7OrphanedNodesNeedCloudWithProofOfAbsence uses Azure with and without its cluster autoscaler wrapper. A pool's
// "not found" only means that an instance is not in the pool.
func TestI7OrphanedNodesNeedCloudWithProofOfAbsence(t *testing.T) {
	config := azure.Config{Subscription: "00000000-0000-0000-0000-000000000001", ResourceGroup: "mc"}
	for name, c := range map[string]AzureCloud{
		"alone":        {Config: config},
		"with casSync": {Config: config, CASSync: &azure.CASSyncConfig{ResourceGroup: "rg", Cluster: "aks", AgentPool: "fake"}},
	} {
		p, err := c.newProvider(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, synced := p.(casSyncProvider); synced != (c.CASSync != nil) {
			t.Fatalf("%s: it is %T", name, p)
		}
		if _, marks := p.(cloud.InstanceTagger); marks || orphans.NewIfSupported(p, orphans.Options{}) == nil {
			t.Errorf("%s: its orphaned Nodes are not found, or it has marks: %t", name, marks)
		}
	}
	for _, p := range []any{(*cloudpool.Provider)(nil), (*plugin.Provider)(nil), (*externalgrpc.Provider)(nil), (*openstack.Provider)(nil)} {
		if _, is := p.(cloud.DeletionVerifier); is {
			t.Errorf("%T", p)
		}
	}
	if _, is := any((*openstack.Provider)(nil)).(cloud.InstanceTagger); !is {
		t.Error("openstack has no marks")
	}
}
