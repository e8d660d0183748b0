package cloud_test

import (
	"context"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/strays"
)

// A machine that is in no group of the configuration is found by Azure all the same, and so is found missing.
func TestTheWordOfAzureHoldsForAMachineInNoGroup(t *testing.T) {
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			config := c.config()
			config.Groups = nil
			p := c.provider(t, config)
			id := c.Machines()[0]
			if m, err := p.Instance(t.Context(), id); err != nil || !p.ProvesGone(id) {
				t.Errorf("Instance = %+v, %v; ProvesGone %t", m, err, p.ProvesGone(id))
			}
			c.Lose(t, id)
			c.AwaitGone(t, id)
			if _, err := p.Instance(t.Context(), id); !cloud.IsNotFound(err) {
				t.Errorf("of a machine that is gone: %v", err)
			}
			for what, id := range map[string]string{
				"another subscription": c.Foreign(), "another cloud": "openstack:///x",
			} {
				if p.ProvesGone(id) {
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

// look is one look for ghosts, of Nodes that are silent, a time after now.
func (c *azureCloud) look(t *testing.T, p *azure.Provider, f *strays.Finder, nodes []strays.Node, after time.Duration) ([]strays.Finding, error) {
	t.Helper()
	list := func(ctx context.Context) ([]cloud.Instance, error) {
		if c.Group() == "" {
			return nil, nil
		}
		return p.Instances(ctx, c.Group())
	}
	return f.Ghosts(t.Context(), list, nodes, time.Now().Add(after))
}

func TestAMachineThatVanishesFromAzureLeavesAGhost(t *testing.T) {
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			p := c.provider(t, c.config())
			var nodes []strays.Node
			for _, id := range c.Machines() {
				nodes = append(nodes, strays.Node{Name: "node-" + id[strings.LastIndex(id, "/")+1:], ProviderID: id})
			}
			f := strays.New(p, strays.Grace{Join: time.Minute, Stay: 15 * time.Minute, Looks: 2})
			if found, err := c.look(t, p, f, nodes, 0); err != nil || len(found) != 0 {
				t.Fatalf("all machines are there: %+v, %v", found, err)
			}
			c.Lose(t, nodes[1].ProviderID)
			c.AwaitGone(t, nodes[1].ProviderID)
			for i, due := range []bool{false, true} {
				found, err := c.look(t, p, f, nodes, time.Duration(i)*15*time.Minute)
				if err != nil || len(found) != 1 || found[0].Name != nodes[1].Name || found[0].Kind != strays.Ghost || found[0].Due != due {
					t.Errorf("look %d: %+v, %v", i, found, err)
				}
			}
			if n := c.Deletions(); n != 0 {
				t.Errorf("%d deletions", n)
			}
			if err := c.ARM.Inject(emulator.ARMFault{Kind: emulator.ARMStatus, Status: 500}); err != nil {
				t.Fatal(err)
			}
			if found, err := c.look(t, p, f, nodes, time.Hour); err == nil || len(found) != 0 {
				t.Errorf("I7: Azure does not answer: %+v, %v", found, err)
			}
		})
	}
}
