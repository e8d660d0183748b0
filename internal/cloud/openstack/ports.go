package openstack

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// port has the fields of a Neutron port that this package reads.
type port struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	DeviceID    string    `json:"device_id"`
	Created     time.Time `json:"created_at"`
}

// resolvedPort is a [Port] with IDs instead of names.
type resolvedPort struct{ network, subnet string }

// portDescription returns the description of the cluster's ports. A port without it is never deleted.
func (p *Provider) portDescription() string { return ClusterKey + "=" + p.config.ClusterName }

// portRequest returns the create request for a port. The port gets the security groups, because Nova applies a server's
// security groups only to ports that Nova creates.
func (p *Provider) portRequest(g *group, r *resolvedNames, portIndex int, serverName string) map[string]any {
	c := g.Ports[portIndex]
	body := map[string]any{"name": serverName, "description": p.portDescription(), "network_id": r.ports[portIndex].network}
	if r.ports[portIndex].subnet != "" {
		body["fixed_ips"] = []map[string]string{{"subnet_id": r.ports[portIndex].subnet}}
	}
	var pairs []map[string]string
	for _, pair := range c.AllowedAddressPairs {
		item := map[string]string{"ip_address": pair.IPAddress}
		if pair.MACAddress != "" {
			item["mac_address"] = pair.MACAddress
		}
		pairs = append(pairs, item)
	}
	if pairs != nil {
		body["allowed_address_pairs"] = pairs
	}
	if c.VNICType != "" {
		body["binding:vnic_type"] = c.VNICType
	}
	if c.PortSecurity != nil {
		body["port_security_enabled"] = *c.PortSecurity
	}
	switch {
	case c.PortSecurity != nil && !*c.PortSecurity:
		body["security_groups"] = []string{}
	case len(r.securityGroups) > 0:
		body["security_groups"] = r.securityGroups
	}
	return map[string]any{"port": body}
}

// createPorts creates all ports of a server. If one fails, it deletes the others.
func (p *Provider) createPorts(ctx context.Context, c *clients, g *group, r *resolvedNames, server string) (ids []string, err error) {
	for i := range g.Ports {
		var created struct {
			Port port `json:"port"`
		}
		_, err = c.network.Post(ctx, c.network.ServiceURL("ports"), p.portRequest(g, r, i, server), &created, //nolint:bodyclose // it has been read
			&gophercloud.RequestOpts{OkCodes: []int{http.StatusCreated}})
		if err == nil && !uuidPattern.MatchString(created.Port.ID) {
			err = errIncomplete
		}
		if err != nil {
			p.deletePortsIfUnused(ctx, ids)
			return nil, fromAPIError(fmt.Sprintf("creating ports[%d] of server %s", i, server), err)
		}
		ids = append(ids, created.Port.ID)
	}
	return ids, nil
}

// deletePortsIfUnused deletes unused ports of the cluster. deleteUnusedPorts retries failed deletions later.
func (p *Provider) deletePortsIfUnused(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, id := range ids {
		if err := p.deletePortIfUnused(ctx, id); err != nil {
			p.log.Warn("deleting an unused port failed; the next launch retries it", "port", id, "err", err)
		}
	}
}

func (p *Provider) deletePortIfUnused(ctx context.Context, id string) error {
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return err
	}
	var response struct {
		Port port `json:"port"`
	}
	address := c.network.ServiceURL("ports", url.PathEscape(id))
	_, err = c.network.Get(ctx, address, &response, nil) //nolint:bodyclose // it has been read
	switch {
	case gophercloud.ResponseCodeIs(err, http.StatusNotFound):
		return nil
	case err != nil:
		return fromAPIError("reading port "+id, err)
	case response.Port.ID != id || response.Port.Description != p.portDescription() || response.Port.DeviceID != "":
		return fmt.Errorf("port %s: device is %q and description %.100q: want no device and %s", id, response.Port.DeviceID, response.Port.Description,
			p.portDescription())
	}
	_, err = c.network.Delete(ctx, address, nil) //nolint:bodyclose // it has none
	if err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return fromAPIError("deleting port "+id, err)
	}
	p.log.Info("deleted an unused port", "port", id, "server", response.Port.Name)
	return nil
}

// hasPorts reports whether any group configures ports.
func (p *Provider) hasPorts() bool {
	for _, g := range p.groups {
		if len(g.Ports) > 0 {
			return true
		}
	}
	return false
}

// listClusterPorts lists the cluster's ports of a device, or all if device is empty.
func (p *Provider) listClusterPorts(ctx context.Context, device string) ([]port, error) {
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return nil, err
	}
	query := url.Values{"description": {p.portDescription()}}
	if device != "" {
		query.Set("device_id", device)
	}
	return listAllPages(ctx, c.network, pagedList[port]{
		path: "ports", key: "ports", query: query, pageSize: listPageSize, idOf: func(p *port) string { return p.ID },
	})
}

// listServerPortIDs returns the IDs of the cluster's ports of a server that will be deleted. Nova does not delete them.
func (p *Provider) listServerPortIDs(ctx context.Context, server string) []string {
	if !p.hasPorts() {
		return nil
	}
	all, err := p.listClusterPorts(ctx, server)
	if err != nil {
		p.log.Warn("listing the ports of a server failed; a later launch deletes them", "server", server, "err", err)
	}
	var ids []string
	for _, item := range all {
		if item.DeviceID == server && item.Description == p.portDescription() {
			ids = append(ids, item.ID)
		}
	}
	return ids
}

// minUnusedPortAge is the minimum age of an unused port before it is deleted. It is longer than any create request.
const minUnusedPortAge = 15 * time.Minute

// deleteUnusedPorts deletes ports that remain after a crash or a lost response: the cluster's ports without a device, if no
// server has their name.
func (p *Provider) deleteUnusedPorts(ctx context.Context) error {
	if !p.hasPorts() {
		return nil
	}
	all, err := p.listClusterPorts(ctx, "")
	if err != nil {
		return err
	}
	var unused []port
	for _, item := range all {
		if item.DeviceID == "" && item.Description == p.portDescription() && !item.Created.IsZero() && time.Since(item.Created) > minUnusedPortAge {
			unused = append(unused, item)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	machines, err := p.listServers(ctx, nil)
	if err != nil {
		return err
	}
	serverNames := map[string]bool{}
	for _, m := range machines {
		serverNames[m.Name] = true
	}
	for _, item := range unused {
		if !serverNames[item.Name] {
			p.deletePortsIfUnused(ctx, []string{item.ID})
		}
	}
	return nil
}

// resolvePort looks up the network and the subnet of a configured port.
func resolvePort(ctx context.Context, c *gophercloud.ServiceClient, field string, item Port) (r resolvedPort, err error) {
	if r.network, err = findNetwork(ctx, c, field+"network", item.Network); err != nil || item.Subnet == "" {
		return r, err
	}
	r.subnet, err = findSubnet(ctx, c, field+"subnet", r.network, item.Subnet)
	return r, err
}

func findSubnet(ctx context.Context, c *gophercloud.ServiceClient, field, network, name string) (id string, err error) {
	query := nameOrIDQuery(name)
	query.Set("network_id", network)
	all, err := listAllPages(ctx, c, pagedList[subnets.Subnet]{
		path: "subnets", key: "subnets", query: query, pageSize: listPageSize, idOf: func(s *subnets.Subnet) string { return s.ID },
	})
	if err != nil {
		return "", err
	}
	var found []candidate
	for _, s := range all {
		found = append(found, candidate{s.ID, s.Name, s.CIDR})
	}
	return requireOneCandidate(field, "subnet of network "+network, name, found)
}
