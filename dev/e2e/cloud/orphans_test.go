package cloud_test

import (
	"strings"
	"testing"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// TestTheWordOfAzureHoldsForAMachineInNoGroup checks a VM outside the configured groups. Azure still finds it, and so
// also proves that a VM is gone.
func TestTheWordOfAzureHoldsForAMachineInNoGroup(t *testing.T) {
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			config := c.config()
			config.Groups = nil
			p := c.provider(t, config)
			id := c.ProviderIDs()[0]
			if m, err := p.Instance(t.Context(), id); err != nil || !p.NotFoundMeansDeleted(id) {
				t.Errorf("Instance = %+v, %v; ProvesGone %t", m, err, p.NotFoundMeansDeleted(id))
			}
			c.LoseInstance(t, id)
			c.AwaitGone(t, id)
			if _, err := p.Instance(t.Context(), id); !cloud.IsNotFound(err) {
				t.Errorf("of a machine that is gone: %v", err)
			}
			for what, id := range map[string]string{
				"another subscription": c.ForeignID(), "another cloud": "openstack:///x",
			} {
				if p.NotFoundMeansDeleted(id) {
					t.Errorf("%s: its word proves that %s is gone", what, id)
				}
			}
			elsewhere := strings.Replace(strings.ToLower(id), strings.ToLower(emulator.DefaultResourceGroup), "never-was", 1)
			if _, err := p.Instance(t.Context(), elsewhere); err == nil || cloud.IsNotFound(err) {
				t.Errorf("of a machine of a resource group that does not answer: %v", err)
			}
		})
	}
}
