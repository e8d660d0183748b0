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

// portMark returns the description of the cluster's ports. A port without it is never deleted.
func (p *Provider) portMark() string { return ClusterKey + "=" + p.config.ClusterName }

// portBody returns the create request for a port. The port gets the security groups, because Nova applies a server's
// security groups only to ports that Nova creates.
func (p *Provider) portBody(g *group, r *resolved, i int, server string) map[string]any {
	c := g.Ports[i]
	body := map[string]any{"name": server, "description": p.portMark(), "network_id": r.ports[i].network}
	if r.ports[i].subnet != "" {
		body["fixed_ips"] = []map[string]string{{"subnet_id": r.ports[i].subnet}}
	}
	var pairs []map[string]string
	for _, pair := range c.AllowedAddressPairs {
		one := map[string]string{"ip_address": pair.IPAddress}
		if pair.MACAddress != "" {
			one["mac_address"] = pair.MACAddress
		}
		pairs = append(pairs, one)
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

// makePorts creates all ports of a server. If one fails, it deletes the others.
func (p *Provider) makePorts(ctx context.Context, c *clients, g *group, r *resolved, server string) (ids []string, err error) {
	for i := range g.Ports {
		var made struct {
			Port port `json:"port"`
		}
		_, err = c.network.Post(ctx, c.network.ServiceURL("ports"), p.portBody(g, r, i, server), &made, //nolint:bodyclose // it has been read
			&gophercloud.RequestOpts{OkCodes: []int{http.StatusCreated}})
		if err == nil && !uuid.MatchString(made.Port.ID) {
			err = errIncomplete
		}
		if err != nil {
			p.dropPorts(ctx, ids)
			return nil, ofAPI(fmt.Sprintf("creating ports[%d] of server %s", i, server), err)
		}
		ids = append(ids, made.Port.ID)
	}
	return ids, nil
}

// dropPorts deletes unused ports of the cluster. sweepPorts retries failed deletions later.
func (p *Provider) dropPorts(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	for _, id := range ids {
		if err := p.dropPort(ctx, id); err != nil {
			p.log.Warn("deleting an unused port failed; the next launch retries it", "port", id, "err", err)
		}
	}
}

func (p *Provider) dropPort(ctx context.Context, id string) error {
	c, err := p.session.clients(ctx)
	if err != nil {
		return err
	}
	var is struct {
		Port port `json:"port"`
	}
	address := c.network.ServiceURL("ports", url.PathEscape(id))
	_, err = c.network.Get(ctx, address, &is, nil) //nolint:bodyclose // it has been read
	switch {
	case gophercloud.ResponseCodeIs(err, http.StatusNotFound):
		return nil
	case err != nil:
		return ofAPI("reading port "+id, err)
	case is.Port.ID != id || is.Port.Description != p.portMark() || is.Port.DeviceID != "":
		return fmt.Errorf("port %s: device is %q and description %.100q: want no device and %s", id, is.Port.DeviceID, is.Port.Description,
			p.portMark())
	}
	_, err = c.network.Delete(ctx, address, nil) //nolint:bodyclose // it has none
	if err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return ofAPI("deleting port "+id, err)
	}
	p.log.Info("deleted an unused port", "port", id, "server", is.Port.Name)
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

// listPorts lists the cluster's ports of a device, or all if device is empty.
func (p *Provider) listPorts(ctx context.Context, device string) ([]port, error) {
	c, err := p.session.clients(ctx)
	if err != nil {
		return nil, err
	}
	query := url.Values{"description": {p.portMark()}}
	if device != "" {
		query.Set("device_id", device)
	}
	return listAll(ctx, c.network, listing[port]{
		path: "ports", key: "ports", query: query, size: listSize, id: func(p *port) string { return p.ID },
	})
}

// portsOf returns the IDs of the cluster's ports of a server that will be deleted. Nova does not delete them.
func (p *Provider) portsOf(ctx context.Context, server string) []string {
	if !p.hasPorts() {
		return nil
	}
	all, err := p.listPorts(ctx, server)
	if err != nil {
		p.log.Warn("listing the ports of a server failed; a later launch deletes them", "server", server, "err", err)
	}
	var ids []string
	for _, one := range all {
		if one.DeviceID == server && one.Description == p.portMark() {
			ids = append(ids, one.ID)
		}
	}
	return ids
}

// portGrace is the minimum age of an unused port before it is deleted. It is longer than any create request.
const portGrace = 15 * time.Minute

// sweepPorts deletes ports that remain after a crash or a lost response: the cluster's ports without a device, if no
// server has their name.
func (p *Provider) sweepPorts(ctx context.Context) error {
	if !p.hasPorts() {
		return nil
	}
	all, err := p.listPorts(ctx, "")
	if err != nil {
		return err
	}
	var left []port
	for _, one := range all {
		if one.DeviceID == "" && one.Description == p.portMark() && !one.Created.IsZero() && time.Since(one.Created) > portGrace {
			left = append(left, one)
		}
	}
	if len(left) == 0 {
		return nil
	}
	machines, err := p.list(ctx, nil)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, m := range machines {
		has[m.Name] = true
	}
	for _, one := range left {
		if !has[one.Name] {
			p.dropPorts(ctx, []string{one.ID})
		}
	}
	return nil
}

// portNamed looks up the network and the subnet of a configured port.
func portNamed(ctx context.Context, c *gophercloud.ServiceClient, field string, one Port) (r resolvedPort, err error) {
	if r.network, err = networkNamed(ctx, c, field+"network", one.Network); err != nil || one.Subnet == "" {
		return r, err
	}
	r.subnet, err = subnetNamed(ctx, c, field+"subnet", r.network, one.Subnet)
	return r, err
}

func subnetNamed(ctx context.Context, c *gophercloud.ServiceClient, field, network, name string) (string, error) {
	query := query(name)
	query.Set("network_id", network)
	all, err := listAll(ctx, c, listing[subnets.Subnet]{
		path: "subnets", key: "subnets", query: query, size: listSize, id: func(s *subnets.Subnet) string { return s.ID },
	})
	if err != nil {
		return "", err
	}
	var found []candidate
	for _, s := range all {
		found = append(found, candidate{s.ID, s.Name, s.CIDR})
	}
	return only(field, "subnet of network "+network, name, found)
}
