package azure

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestI4InstanceWithOtherComputerNameIsNotDeleted(t *testing.T) {
	const id = "azure:///subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/" +
		"virtualMachineScaleSets/aks-pool-12345678-vmss/virtualMachines/10"
	for name, taken := range map[string]bool{
		"aks-pool-12345678-vmss00000a": true, "AKS-POOL-12345678-VMSS00000A": true, "own-prefix00000b": true, "": true,
		"aks-pool-12345678-vmss00000b": false, "aks-pool-12345678-vmss000010": false,
	} {
		t.Run(name, func(t *testing.T) {
			var deleted atomic.Int32
			p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					deleted.Add(1)
					w.Header().Set("Location", "https://"+r.Host+"/operations/1")
					w.WriteHeader(http.StatusAccepted)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"id": %q, "name": "aks-pool-12345678-vmss_10", "properties": {"provisioningState": "Succeeded",
					"osProfile": {"computerName": %q}}}`, strings.TrimPrefix(id, "azure://"), name)
			})
			_, read := p.Instance(t.Context(), id)
			_, deletion := p.Delete(t.Context(), id)
			for _, err := range []error{read, deletion} {
				if taken && err != nil || !taken && cloud.RefusalOf(err) != cloud.Invalid {
					t.Fatalf("accepted: %t: %v", taken, err)
				}
				if !taken && (!strings.Contains(err.Error(), "instance 10") || !strings.Contains(err.Error(), name)) {
					t.Errorf("the error does not name both: %v", err)
				}
			}
			if (deleted.Load() == 1) != taken {
				t.Errorf("%d deletions were sent", deleted.Load())
			}
		})
	}
}

func TestI4UniqueIDIsTheVMID(t *testing.T) {
	const prefix = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/"
	for _, resource := range []string{prefix + "virtualMachineScaleSets/pool/virtualMachines/1", prefix + "virtualMachines/alone"} {
		p := newTestProvider(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"id": %q, "name": "n", "properties": {"provisioningState": "Succeeded", "vmId": "4-2"}}`, resource)
		})
		if m, err := p.Instance(t.Context(), "azure://"+resource); err != nil || m.UniqueID != "4-2" {
			t.Errorf("%s: unique ID %q, %v", resource, m.UniqueID, err)
		}
	}
}
