package openstack

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	gopher "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// Cluster is the part of a control plane that this package needs.
type Cluster interface {
	AddNodes(ctx context.Context, specs ...controlplane.NodeSpec) error
	PowerOff(ctx context.Context, node string) error
}

// novaPollInterval is the polling interval of Nova.
const novaPollInterval = 300 * time.Millisecond

// NewNovaClient returns a client of Nova for an entry of clouds.yaml.
func (c *Cloud) NewNovaClient(ctx context.Context, user string) (*gophercloud.ServiceClient, error) {
	auth, _, secure, err := clouds.Parse(clouds.WithCloudName(user), clouds.WithLocations(c.CloudsFile()))
	if err != nil {
		return nil, fmt.Errorf("OpenStack: %w", err)
	}
	auth.AllowReauth = true
	provider, err := config.NewProviderClient(ctx, auth, config.WithTLSConfig(secure))
	if err != nil {
		return nil, fmt.Errorf("OpenStack: %w", err)
	}
	client, err := gopher.NewComputeV2(provider, gophercloud.EndpointOpts{Region: "RegionOne"})
	if err != nil {
		return nil, fmt.Errorf("OpenStack: %w", err)
	}
	client.Microversion = "2.90"
	return client, nil
}

// ListServers lists the servers of the project Demo with this metadata.
func ListServers(ctx context.Context, nova *gophercloud.ServiceClient, metadata map[string]string) ([]servers.Server, error) {
	pages, err := servers.List(nova, servers.ListOpts{}).AllPages(ctx)
	if err != nil {
		return nil, fmt.Errorf("OpenStack: listing servers: %w", err)
	}
	all, err := servers.ExtractServers(pages)
	if err != nil {
		return nil, fmt.Errorf("OpenStack: listing servers: %w", err)
	}
	var list []servers.Server
	for _, s := range all {
		matches := true
		for key, value := range metadata {
			matches = matches && s.Metadata[key] == value
		}
		if matches {
			list = append(list, s)
		}
	}
	return list, nil
}

// DeleteServersAndWait deletes the servers with this metadata, for example from an earlier run, and returns when they are
// gone.
func DeleteServersAndWait(ctx context.Context, nova *gophercloud.ServiceClient, metadata map[string]string) error {
	for {
		left, err := ListServers(ctx, nova, metadata)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, s := range left {
			if s.TaskState != "deleting" {
				_ = servers.Delete(ctx, nova, s.ID).ExtractErr() // the next list shows whether it worked
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("OpenStack: %d servers with metadata %v remain: %w", len(left), metadata, context.Cause(ctx))
		case <-time.After(novaPollInterval):
		}
	}
}

// SyncNodes keeps the nodes of a control plane in line with the servers with this metadata until ctx ends, and then returns
// nil. An ACTIVE server joins as a node with the labels and the size of its flavor. The node of a deleted server is
// powered off. Join is needed because the servers of the fake hypervisor run nothing.
func (c *Cloud) SyncNodes(ctx context.Context, to Cluster, metadata, labels map[string]string) error {
	nova, err := c.NewNovaClient(ctx, DemoCloud)
	if err != nil {
		return err
	}
	joined := map[string]bool{}
	for {
		all, err := ListServers(ctx, nova, metadata)
		if err == nil {
			err = syncNodesOnce(ctx, to, all, labels, joined)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended
		}
		if err != nil {
			return fmt.Errorf("sync the nodes of the servers: %w", err)
		}
		select {
		case <-time.After(novaPollInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// syncNodesOnce adds nodes for new servers, and powers off the nodes of deleted servers.
func syncNodesOnce(ctx context.Context, to Cluster, all []servers.Server, labels map[string]string, joined map[string]bool) error {
	existing := map[string]bool{}
	var newNodes []controlplane.NodeSpec
	for i := range all {
		s := &all[i]
		existing[s.Name] = true
		if s.Status == "ACTIVE" && s.TaskState == "" && !joined[s.Name] {
			newNodes = append(newNodes, newNodeSpec(s, labels))
		}
	}
	if err := to.AddNodes(ctx, newNodes...); err != nil {
		return err
	}
	for _, spec := range newNodes {
		joined[spec.Name] = true
	}
	for name := range joined {
		if existing[name] {
			continue
		}
		if err := to.PowerOff(ctx, name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		delete(joined, name)
	}
	return nil
}

// newNodeSpec returns the node of a server.
func newNodeSpec(s *servers.Server, labels map[string]string) controlplane.NodeSpec {
	vcpus, _ := s.Flavor["vcpus"].(float64)
	ram, _ := s.Flavor["ram"].(float64)
	flavor, _ := s.Flavor["original_name"].(string)
	spec := controlplane.NodeSpec{
		Name: s.Name, ProviderID: "openstack:///" + s.ID, CPU: strconv.Itoa(int(vcpus)), Memory: strconv.Itoa(int(ram)) + "Mi",
		Labels: map[string]string{corev1.LabelInstanceTypeStable: flavor},
	}
	maps.Copy(spec.Labels, labels)
	return spec
}
