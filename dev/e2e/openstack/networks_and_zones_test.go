package openstack_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	secgroups "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// These tests cover groups with several values where most groups have one.

func TestServerHasAllNetworksAndSecurityGroups(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	network, secgroup := secondNetwork(t, c, g.Name)
	g.Networks = append(g.Networks, network) // by its ID, while the first is by its name
	g.SecurityGroups = append(g.SecurityGroups, g.Name)
	p := providerOf(t, configOf(c, g), openstack.Options{})
	t.Cleanup(func() { removeGroup(t, c, g.Name) }) // before the network is deleted
	if status := grow(t, p, g.Name, cloud.LaunchRequest{Count: 1}); status.Err != nil {
		t.Fatal(status.Err)
	}
	all := serversOf(t, c, g.Name)
	if len(all) != 1 {
		t.Fatalf("%d servers, want 1", len(all))
	}
	pages, err := ports.List(neutron(t, c, openstackdev.DemoCloud), ports.ListOpts{DeviceID: all[0].ID}).AllPages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	attached, err := ports.ExtractPorts(pages)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{c.IDs.SecurityGroup, secgroup}
	slices.Sort(want)
	var on []string
	for _, port := range attached {
		on = append(on, port.NetworkID)
		slices.Sort(port.SecurityGroups)
		if !slices.Equal(port.SecurityGroups, want) {
			t.Errorf("the port on network %s has the security groups %q, want %q", port.NetworkID, port.SecurityGroups, want)
		}
	}
	wanted := []string{c.IDs.Network, network}
	slices.Sort(on)
	slices.Sort(wanted)
	if !slices.Equal(on, wanted) {
		t.Errorf("the server is on the networks %q, want %q", on, wanted)
	}
	if i, err := p.Instances(t.Context(), g.Name); err != nil || len(i) != 1 {
		t.Errorf("%+v, %v", i, err)
	}
}

// secondNetwork creates a network with a subnet and a security group, in the project, with the given name.
func secondNetwork(t *testing.T, c *openstackdev.Cloud, name string) (network, secgroup string) {
	t.Helper()
	client := neutron(t, c, openstackdev.DemoCloud)
	ctx := context.WithoutCancel(t.Context())
	made, err := networks.Create(ctx, client, networks.CreateOpts{Name: name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // this also deletes the subnet
		if err := networks.Delete(ctx, client, made.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	})
	dhcp := false
	_, err = subnets.Create(ctx, client, subnets.CreateOpts{
		NetworkID: made.ID, CIDR: "10.1.0.0/24", IPVersion: 4, EnableDHCP: &dhcp,
	}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	group, err := secgroups.Create(ctx, client, secgroups.CreateOpts{Name: name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := secgroups.Delete(ctx, client, group.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	})
	return made.ID, group.ID
}

// TestServersAreSpreadOverZones uses the two zones of the test OpenStack, which have one host each.
func TestServersAreSpreadOverZones(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	g.AvailabilityZones = []string{openstackdev.FirstZone, openstackdev.SecondZone}
	p := providerOf(t, configOf(c, g), openstack.Options{})
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	for _, tt := range []struct {
		more int
		want map[string]int // servers by zone
	}{
		{1, map[string]int{openstackdev.FirstZone: 1}},
		{3, map[string]int{openstackdev.FirstZone: 2, openstackdev.SecondZone: 2}},
	} {
		if status := grow(t, p, g.Name, cloud.LaunchRequest{Count: tt.more}); status.Err != nil {
			t.Fatal(status.Err)
		}
		has, says := map[string]int{}, map[string]int{}
		for _, s := range serversOf(t, c, g.Name) {
			has[s.AvailabilityZone]++
		}
		instances, err := p.Instances(t.Context(), g.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range instances {
			says[i.Zone]++
		}
		if !maps.Equal(has, tt.want) || !maps.Equal(says, tt.want) {
			t.Errorf("Nova has zones %v, the provider reports %v; want %v", has, says, tt.want)
		}
	}
	// The error reports an unknown zone as such, and not as a lack of capacity.
	g.AvailabilityZones = []string{"missing"}
	p = providerOf(t, configOf(c, g), openstack.Options{})
	_, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 1})
	if cloud.RefusalOf(err) != cloud.Invalid ||
		!strings.Contains(err.Error(), `availabilityZones[0]: availability zone "missing": not found: want one of east, west`) {
		t.Errorf("a server in no zone: %v, want %s", err, cloud.Invalid)
	}
}
