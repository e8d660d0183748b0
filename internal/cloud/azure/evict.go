package azure

import (
	"context"
	"fmt"
	"net/http"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// SimulateEviction asks Azure to act as if it took a Spot machine away: it announces that in Scheduled Events, and then
// does what the eviction policy of the machine's scale set says. A machine that does not run, or is not of priority Spot,
// is a [cloud.RefusedError].
func (p *Provider) SimulateEviction(ctx context.Context, providerID string) error {
	id, err := p.own(providerID)
	if err != nil {
		return err
	}
	if err := p.evict(ctx, id); err != nil {
		return ofSDK(fmt.Sprintf("simulating the eviction of %s", id), err)
	}
	return nil
}

func (p *Provider) evict(ctx context.Context, id providerid.ID) error {
	ctx = p.once(ctx, new(*http.Response)) // a second one would be announced as well
	if id.ScaleSet == "" {
		_, err := p.clients.vms.SimulateEviction(ctx, id.ResourceGroup, id.Name, nil)
		return err
	}
	_, err := p.clients.instances.SimulateEviction(ctx, id.ResourceGroup, id.ScaleSet, id.Name, nil)
	return err
}
