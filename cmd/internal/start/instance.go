package start

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	awsid "github.com/slipway-dev/slipway/internal/cloud/aws/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/observe"
)

// instance is the agent's own instance.
type instance struct {
	// cloud is a value of --cloud, but not auto.
	cloud string
	// resource is the instance's name in the spelling of the cloud's notices.
	resource string
	node     *kubeapi.Node // nil if it was not read
}

// awaitInstance returns the cloud of the node's instance, and the instance's name. They come from --cloud and
// --resource-name, or from the node's provider ID. It waits while the API server is unavailable, the Node is not
// registered, or the provider ID is missing. With --cloud=aws a missing provider ID does not matter, because the metadata
// service has the name. A provider ID of another cloud is an error, because no notice could match.
func awaitInstance(ctx context.Context, c config.Agent, log *slog.Logger, api *kubeapi.Client, alive *observe.Heartbeat) (instance, error) {
	switch {
	case c.Cloud == config.CloudNone:
		return instance{cloud: c.Cloud, resource: c.NodeName}, nil
	case c.ResourceName != "" && isAutoCloud(c):
		return instance{cloud: config.CloudAzure, resource: c.ResourceName}, nil
	case c.ResourceName != "":
		return instance{cloud: c.Cloud, resource: c.ResourceName}, nil
	}
	for logged := ""; ; alive.Beat() {
		node, err := api.GetNode(ctx, c.NodeName)
		switch {
		case kubeapi.IsForbidden(err), kubeapi.IsUnauthorized(err):
			return instance{}, err
		case err == nil && node.Spec.ProviderID != "":
			cloud, name, err := identifyInstance(c, node.Spec.ProviderID)
			if err != nil {
				return instance{}, fmt.Errorf("node %s: %w (or set --cloud and --resource-name)", c.NodeName, err)
			}
			return instance{cloud, name, node}, nil
		case err == nil:
			var name string
			if name, err = readInstanceName(ctx, c); err == nil {
				return instance{c.Cloud, name, node}, nil
			}
			err = fmt.Errorf("node %s: spec.providerID is empty: %w", c.NodeName, err)
		}
		if err.Error() != logged {
			logged = err.Error()
			log.Warn("waiting for the node to determine the machine's name", "err", err)
		}
		if !elapsed.Sleep(ctx, nodeRetryInterval) {
			return instance{}, ctx.Err()
		}
	}
}

// readInstanceName reads the instance's name from the metadata service of AWS. For other clouds it returns an error.
func readInstanceName(ctx context.Context, c config.Agent) (string, error) {
	if c.Cloud != config.CloudAWS {
		return "", errors.New("the cloud controller has not set it yet")
	}
	client, err := aws.NewClient(aws.ClientOptions{Endpoint: c.Endpoint, Timeout: c.RequestTimeout})
	if err != nil {
		return "", fmt.Errorf("--endpoint: %w", err)
	}
	id, found, err := client.Get(ctx, aws.InstanceIDPath)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "", fmt.Errorf("the metadata service has no %s: set --resource-name to the instance's ID", aws.InstanceIDPath)
	}
	return awsid.InstanceID("aws:///" + strings.TrimSpace(string(id)))
}

func isAutoCloud(c config.Agent) bool { return c.Cloud == "" || c.Cloud == config.CloudAuto }

// identifyInstance returns the cloud of a provider ID, and the instance's name in the cloud's notices.
func identifyInstance(c config.Agent, providerID string) (cloud, name string, err error) {
	cloud = c.Cloud
	if isAutoCloud(c) {
		scheme, _, _ := strings.Cut(providerID, "://")
		if cloud = findCloudByScheme(scheme); cloud == "" {
			return "", "", fmt.Errorf("spec.providerID: %s: want an ID that begins with azure://, aws:// or gce://", providerID)
		}
	}
	support, err := cloudSupportOf(cloud)
	if err != nil {
		return "", "", err
	}
	name, err = support.instanceName(providerID)
	return cloud, name, err
}
