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

// resourceName is this machine's name as its notices spell it, from the flag or from the node's provider ID. An API
// server that is away is waited for, and so is a Node that is not registered yet or has no provider ID yet; a provider
// ID of another cloud is an error, since no notice could ever match. The Node that was read for it is returned too.
func resourceName(ctx context.Context, c config.Agent, log *slog.Logger, api *kubeapi.Client,
	alive *observe.Heartbeat,
) (string, *kubeapi.Node, error) {
	if c.ResourceName != "" {
		return c.ResourceName, nil, nil
	}
	for said := ""; ; alive.Beat() {
		node, err := api.GetNode(ctx, c.NodeName)
		switch {
		case kubeapi.IsForbidden(err), kubeapi.IsUnauthorized(err):
			return "", nil, err
		case err == nil && node.Spec.ProviderID != "":
			name, err := providerid.ResourceName(node.Spec.ProviderID)
			if err != nil {
				return "", nil, fmt.Errorf("node %s: %w (or give --resource-name)", c.NodeName, err)
			}
			return name, node, nil
		case err == nil:
			err = fmt.Errorf("node %s: spec.providerID is empty: the cloud controller has not set it yet", c.NodeName)
		}
		if err.Error() != said {
			said = err.Error()
			log.Warn("waiting for the node, to know the machine's name", "err", err)
		}
		if !elapsed.Sleep(ctx, nodeRetry) {
			return "", nil, ctx.Err()
		}
	}
}
