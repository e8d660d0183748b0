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

// Cluster has the methods of a control plane that this package calls.
type Cluster interface {
	AddNodes(ctx context.Context, specs ...controlplane.NodeSpec) error
	PowerOff(ctx context.Context, node string) error
}

// novaPollInterval is the time between two reads of the servers from Nova.
const novaPollInterval = 300 * time.Millisecond

// NewNovaClient returns a client of Nova with the credentials of the entry named user in clouds.yaml.
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

// ListServers lists the servers that have all of the given metadata. It searches the project of the client.
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

// DeleteServersAndWait deletes the servers that have the given metadata, and returns when they no longer exist. It
// cleans up after an earlier run, for example.
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

// SyncNodes makes servers join a control plane as nodes, because servers of the fake hypervisor run no kubelet. It
// handles servers that have the given metadata. An ACTIVE server becomes a node with the given labels and the size
// of its flavor. The node of a deleted server is powered off. SyncNodes returns nil when ctx ends.
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

// syncNodesOnce adds nodes for new servers, and powers off the nodes of deleted servers. It keeps the map joined up
// to date.
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

// newNodeSpec returns the spec of the node that a server joins as.
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
