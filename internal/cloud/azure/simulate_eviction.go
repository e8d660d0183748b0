package azure

import (
	"context"
	"fmt"
	"net/http"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// SimulateEviction asks Azure to simulate the eviction of a Spot instance. Azure announces the eviction in Scheduled
// Events and then applies the eviction policy of the scale set. SimulateEviction returns a [cloud.RefusedError] if the
// instance is not running or not a Spot instance.
func (p *Provider) SimulateEviction(ctx context.Context, providerID string) error {
	id, err := p.parseID(providerID)
	if err != nil {
		return err
	}
	if err := p.simulateEviction(ctx, id); err != nil {
		return fromSDKError(fmt.Sprintf("simulating the eviction of %s", id), err)
	}
	return nil
}

func (p *Provider) simulateEviction(ctx context.Context, id providerid.ID) error {
	ctx = p.withoutRetries(ctx, new(*http.Response)) // a retry would announce a second eviction
	if id.ScaleSet == "" {
		_, err := p.clients.vms.SimulateEviction(ctx, id.ResourceGroup, id.Name, nil)
		return err
	}
	_, err := p.clients.instances.SimulateEviction(ctx, id.ResourceGroup, id.ScaleSet, id.Name, nil)
	return err
}
