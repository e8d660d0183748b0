package openstack_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	gopher "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// clusterName is the cluster name of the tests' servers.
const clusterName = "e2e"

// pollInterval is the time between two polls of a slow operation.
const pollInterval = 50 * time.Millisecond

// direct holds clients of the real OpenStack, for actions that bypass the provider.
var direct struct {
	sync.Mutex
	clients map[string]*gophercloud.ProviderClient
}

// as returns a client of a user that bypasses every proxy.
func as(t *testing.T, c *openstackdev.Cloud, user string) *gophercloud.ProviderClient {
	t.Helper()
	direct.Lock()
	defer direct.Unlock()
	if known := direct.clients[user]; known != nil {
		return known
	}
	auth, _, secure, err := clouds.Parse(clouds.WithCloudName(user), clouds.WithLocations(c.CloudsFile()))
	if err != nil {
		t.Fatal(err)
	}
	auth.AllowReauth = true
	client, err := config.NewProviderClient(context.WithoutCancel(t.Context()), auth, config.WithTLSConfig(secure))
	if err != nil {
		t.Fatal(err)
	}
	client.UseTokenLock()
	if direct.clients == nil {
		direct.clients = map[string]*gophercloud.ProviderClient{}
	}
	direct.clients[user] = client
	return client
}

// nova returns a client of Nova itself.
func nova(t *testing.T, c *openstackdev.Cloud, user string) *gophercloud.ServiceClient {
	t.Helper()
	client, err := gopher.NewComputeV2(as(t, c, user), gophercloud.EndpointOpts{Region: "RegionOne"})
	if err != nil {
		t.Fatal(err)
	}
	client.Microversion = "2.90"
	return client
}

func neutron(t *testing.T, c *openstackdev.Cloud, user string) *gophercloud.ServiceClient {
	t.Helper()
	client, err := gopher.NewNetworkV2(as(t, c, user), gophercloud.EndpointOpts{Region: "RegionOne"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func glance(t *testing.T, c *openstackdev.Cloud, user string) *gophercloud.ServiceClient {
	t.Helper()
	client, err := gopher.NewImageV2(as(t, c, user), gophercloud.EndpointOpts{Region: "RegionOne"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// groupOf returns a group of small servers.
func groupOf(name string) openstack.GroupConfig {
	return openstack.GroupConfig{
		Name: name, Flavors: []string{"t.1c512m", "m.2c4g"}, Image: openstack.Image{Name: "tiny"}, Networks: []string{"demo-net"},
		SecurityGroups: []string{"demo-sg"}, KeyPair: openstackdev.KeyPair,
	}
}

// configOf returns a configuration with one group.
func configOf(c *openstackdev.Cloud, group openstack.GroupConfig) openstack.Config {
	return openstack.Config{
		Cloud: openstackdev.DemoCloud, CloudsFile: c.CloudsFile(), ClusterName: clusterName, Groups: []openstack.GroupConfig{group},
	}
}

func providerOf(t *testing.T, config openstack.Config, o openstack.Options) *openstack.Provider {
	t.Helper()
	p, err := openstack.New(config, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serversOf lists the servers of a group directly from Nova, ordered by ID.
func serversOf(t *testing.T, c *openstackdev.Cloud, group string) []servers.Server {
	t.Helper()
	all, err := openstackdev.ListServers(context.WithoutCancel(t.Context()), nova(t, c, openstackdev.DemoCloud), markOf(group))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b servers.Server) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// markOf returns the metadata of a group's servers.
func markOf(group string) map[string]string {
	return map[string]string{openstack.ClusterKey: clusterName, openstack.GroupKey: group}
}

// removeGroup deletes the remaining servers of a group, and waits until they are gone.
func removeGroup(t *testing.T, c *openstackdev.Cloud, group string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	if err := openstackdev.DeleteServersAndWait(ctx, nova(t, c, openstackdev.DemoCloud), markOf(group)); err != nil {
		t.Fatal(err)
	}
}

// follow polls an operation until it ends.
func follow(t *testing.T, p cloud.Provider, op cloud.Operation) cloud.OperationStatus {
	t.Helper()
	for {
		status, err := p.Status(t.Context(), op)
		if err != nil {
			t.Fatalf("Status(%+v): %v", op, err)
		}
		if status.Done {
			return status
		}
		look(t)
	}
}

func look(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(pollInterval):
	case <-t.Context().Done():
		t.Fatal("test timeout")
	}
}

// setQuota limits the instances and cores of the project. -1 means no limit.
func setQuota(t *testing.T, c *openstackdev.Cloud, instances, cores int) {
	t.Helper()
	_, err := quotasets.Update(context.WithoutCancel(t.Context()), nova(t, c, openstackdev.AdminCloud), c.IDs.Project,
		quotasets.UpdateOpts{Instances: &instances, Cores: &cores, Force: true}).Extract()
	if err != nil {
		t.Fatal(err)
	}
}

// launch creates servers of a group without the provider.
func launch(t *testing.T, c *openstackdev.Cloud, group string, count int) {
	t.Helper()
	if count == 0 {
		return
	}
	_, err := servers.Create(t.Context(), nova(t, c, openstackdev.DemoCloud), servers.CreateOpts{
		Name: group, ImageRef: c.IDs.Image, FlavorRef: c.IDs.Flavors["t.1c512m"], Min: count, Max: count,
		Networks: []servers.Network{{UUID: c.IDs.Network}}, Metadata: metadataOf(group),
	}, nil).Extract()
	if err != nil {
		t.Fatal(err)
	}
}

func metadataOf(group string) map[string]string {
	return map[string]string{openstack.ClusterKey: clusterName, openstack.GroupKey: group}
}

// portsOf counts the ports of a server.
func portsOf(t *testing.T, c *openstackdev.Cloud, server string) int {
	t.Helper()
	client := neutron(t, c, openstackdev.DemoCloud)
	var answer struct {
		Ports []struct{} `json:"ports"`
	}
	query := url.Values{"device_id": {server}}
	_, err := client.Get(t.Context(), client.ServiceURL("ports")+"?"+query.Encode(), &answer, nil) //nolint:bodyclose // it has been read
	if err != nil {
		t.Fatal(err)
	}
	return len(answer.Ports)
}

var groups struct {
	sync.Mutex
	n int
}

// newGroupName returns a name that no other test uses.
func newGroupName(t *testing.T) string {
	t.Helper()
	groups.Lock()
	defer groups.Unlock()
	groups.n++
	return fmt.Sprintf("g%d-%d", os.Getpid(), groups.n)
}
