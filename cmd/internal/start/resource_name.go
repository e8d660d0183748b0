package start

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// awaitResourceName returns the machine's name as notices spell it, from --resource-name or from the node's provider ID. It
// also returns the Node if it read it. It waits for an unavailable API server, an unregistered Node, and a missing provider
// ID. A provider ID of another cloud is an error, because no notice could match.
func awaitResourceName(ctx context.Context, c config.Agent, log *slog.Logger, api *kubeapi.Client,
	alive *observe.Heartbeat,
) (name string, node *kubeapi.Node, err error) {
	if c.ResourceName != "" {
		return c.ResourceName, nil, nil
	}
	for logged := ""; ; alive.Beat() {
		node, err := api.GetNode(ctx, c.NodeName)
		switch {
		case kubeapi.IsForbidden(err), kubeapi.IsUnauthorized(err):
			return "", nil, err
		case err == nil && node.Spec.ProviderID != "":
			name, err := providerid.ScheduledEventName(node.Spec.ProviderID)
			if err != nil {
				return "", nil, fmt.Errorf("node %s: %w (or set --resource-name)", c.NodeName, err)
			}
			return name, node, nil
		case err == nil:
			err = fmt.Errorf("node %s: spec.providerID is empty: the cloud controller has not set it yet", c.NodeName)
		}
		if err.Error() != logged {
			logged = err.Error()
			log.Warn("waiting for the node to determine the machine's name", "err", err)
		}
		if !elapsed.Sleep(ctx, nodeRetryInterval) {
			return "", nil, ctx.Err()
		}
	}
}
