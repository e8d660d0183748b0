package openstack

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// found is a server as Nova describes it, with the data for its deletion.
type found struct {
	cloud.Instance
	id          string
	ours        bool
	softDeleted bool
	keeps       string // why it must not be deleted; empty if it may be
}

// sideBySide limits concurrent reads of servers.
const sideBySide = 10

// Instances lists the servers of a group.
func (p *Provider) Instances(ctx context.Context, name string) ([]cloud.Instance, error) {
	g, err := p.group(name)
	if err != nil {
		return nil, err
	}
	machines, err := p.list(ctx, g)
	if err != nil {
		return nil, err
	}
	if machines, err = p.withFaults(ctx, machines); err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, len(machines))
	for i, m := range machines {
		instances[i] = m.Instance
	}
	return instances, nil
}

// Instance reads one server.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	id, err := p.serverID(providerID)
	if err != nil {
		return cloud.Instance{}, err
	}
	m, err := p.get(ctx, id)
	return m.Instance, err
}

// Ours lists the servers with this cluster's name in their metadata, also in groups that were removed from the configuration. It
// excludes servers that a group adopts by name, which may belong to another cluster.
func (p *Provider) Ours(ctx context.Context) ([]cloud.Instance, error) {
	machines, err := p.list(ctx, nil)
	if err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, 0, len(machines))
	for _, m := range machines {
		if m.Tags[ClusterKey] == p.config.ClusterName {
			instances = append(instances, m.Instance)
		}
	}
	return instances, nil
}

// list returns the servers of a group, or of the whole cluster if g is nil. Nova cannot filter by metadata, so all
// servers of the project are read.
func (p *Provider) list(ctx context.Context, g *group) ([]found, error) {
	c, err := p.session.clients(ctx)
	if err != nil {
		return nil, err
	}
	all, err := p.servers.Read(ctx, func(ctx context.Context) ([]servers.Server, error) { return p.readServers(ctx, c.compute) })
	if err != nil {
		return nil, err
	}
	var machines []found
	seen := map[string]bool{}
	for i := range all {
		if all[i].Metadata == nil {
			return nil, fmt.Errorf("listing servers: %w: server %s has no metadata, so a cell of Nova is down", errIncomplete, all[i].ID)
		}
		m, err := p.read(&all[i])
		if err != nil {
			return nil, err
		}
		// Pages shift when a server is added between two reads, and readServers may read the list twice.
		if seen[m.id] || !m.ours || g != nil && m.Group != g.Name {
			continue
		}
		seen[m.id] = true
		machines = append(machines, m)
	}
	return machines, nil
}

// readServers reads the servers of the project. While servers are being built, a list of several pages can miss a
// server that moves to its cell between two pages. Then the list is read twice and the results are combined. A server
// in both appears twice, with the later state first.
func (p *Provider) readServers(ctx context.Context, nova *gophercloud.ServiceClient) ([]servers.Server, error) {
	all := listing[servers.Server]{
		path: "servers/detail", key: "servers", size: p.pageSize,
		id:     func(s *servers.Server) string { return s.ID },
		moving: func(s *servers.Server) bool { return s.Status == building },
	}
	once, err := listAll(ctx, nova, all)
	if err != nil || !all.moves(once) || len(once) < p.pageSize/2 {
		return once, err
	}
	again, err := listAll(ctx, nova, all)
	if err != nil {
		return nil, err
	}
	return append(again, once...), nil
}

// building is the status of a server that is being created.
const building = "BUILD"

// withFaults reads why servers are in state ERROR. The list omits the fault if no host was found.
func (p *Provider) withFaults(ctx context.Context, machines []found) ([]found, error) {
	errs := make([]error, len(machines))
	gone := make([]bool, len(machines))
	each(len(machines), sideBySide, func(i int) {
		if machines[i].State != cloud.Failed || machines[i].Message != "" {
			return
		}
		m, err := p.get(ctx, machines[i].id)
		switch gone[i] = cloud.IsNotFound(err); {
		case err == nil:
			machines[i] = m
		case !gone[i]:
			errs[i] = err
		}
	})
	if err := joined(errs); err != nil {
		return nil, err
	}
	var left []found
	for i, m := range machines {
		if !gone[i] {
			left = append(left, m)
		}
	}
	return left, nil
}

// each calls f with the indexes 0 to n-1, with at most atOnce concurrent calls.
func each(n, atOnce int, f func(i int)) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	all.Wait()
}

// get reads one server without a cache. It returns [*cloud.NotFoundError] if Nova says that the ID does not exist.
func (p *Provider) get(ctx context.Context, id string) (found, error) {
	c, err := p.session.clients(ctx)
	if err != nil {
		return found{}, err
	}
	s, err := servers.Get(ctx, c.compute, id).Extract()
	if err != nil {
		err = ofAPI("reading server "+id, err)
		if saysGone(err, id) {
			return found{}, &cloud.NotFoundError{Kind: "instance", Name: providerIDOf(id)}
		}
		return found{}, err
	}
	if !strings.EqualFold(s.ID, id) {
		return found{}, fmt.Errorf("reading server %s: %w: the response is about %q", id, errIncomplete, s.ID)
	}
	return p.read(s)
}

// read converts a server of Nova.
func (p *Provider) read(s *servers.Server) (found, error) {
	if !uuid.MatchString(s.ID) || s.Status == "" {
		return found{}, fmt.Errorf("server %q: %w: it has no ID or no status", s.ID, errIncomplete)
	}
	m := found{
		Instance: cloud.Instance{
			ProviderID: providerIDOf(s.ID), Name: s.Name, ComputerName: hostname(s), Zone: s.AvailabilityZone,
			State: state(s.Status, s.TaskState), Created: s.Created, Tags: maps.Clone(s.Metadata),
		},
		id:          strings.ToLower(s.ID),
		softDeleted: s.Status == "SOFT_DELETED",
	}
	m.Type, _ = s.Flavor["original_name"].(string)
	m.Group, m.ours, m.Adopted = p.owner(s)
	m.keeps = p.keeps(m.ours, s)
	if m.Kept = m.keeps != "" && (m.State != cloud.Deleting || m.softDeleted); m.Kept {
		m.KeptReason = m.keeps
	}
	if m.State == cloud.Failed {
		m.Message = cloud.Printable(s.Fault.Message, maxMessage)
		m.Refusal = ofFault(m.Message)
	}
	return m, nil
}

// KeepsMachines implements [cloud.Keeper]. Servers of other clusters and locked servers are protected.
func (p *Provider) KeepsMachines() {}

// keeps returns why this provider must not delete a server; empty if it may.
func (p *Provider) keeps(ours bool, s *servers.Server) string {
	switch {
	case !ours:
		return fmt.Sprintf("its metadata does not name cluster %s: want %s=%s and %s with a group's name, or a group that adopts "+
			"it by its name", p.config.ClusterName, ClusterKey, p.config.ClusterName, GroupKey)
	case s.Locked != nil && *s.Locked:
		return "it is locked in Nova"
	}
	return ""
}

// owner returns the group of a server and whether it belongs to this cluster. adopted means that only its name or a
// former cluster name shows that.
func (p *Provider) owner(s *servers.Server) (groupName string, ours, adopted bool) {
	cluster, marked := s.Metadata[ClusterKey]
	if marked {
		adopted = cluster != p.config.ClusterName && slices.Contains(p.config.FormerClusterNames, cluster)
		return s.Metadata[GroupKey], adopted || cluster == p.config.ClusterName, adopted
	}
	for _, g := range p.groups {
		if g.AdoptNamePrefix != "" && strings.HasPrefix(s.Name, g.AdoptNamePrefix) {
			return g.Name, true, true
		}
	}
	return "", false, false
}

// unfit matches the characters that a host name cannot contain.
var unfit = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

// hostname returns the host name of a server. Before microversion 2.90 Nova does not report it. Then it is derived from
// the server name as in Nova (sanitize_hostname in nova/utils.py): spaces and underscores become dashes, other
// characters are removed.
func hostname(s *servers.Server) string {
	if s.Hostname != nil && *s.Hostname != "" {
		return *s.Hostname
	}
	name := strings.Map(func(r rune) rune {
		if r == ' ' || r == '_' {
			return '-'
		}
		return r
	}, s.Name)
	name = strings.Trim(strings.ToLower(unfit.ReplaceAllString(name, "")), ".-")
	return strings.ReplaceAll(name, ".", "-")
}

// state converts a status of Nova, see https://docs.openstack.org/nova/latest/reference/vm-states.html. A server that
// is being deleted keeps its status for a while; its task shows the deletion.
func state(status, task string) cloud.State {
	if task == "deleting" || task == "soft-deleting" {
		return cloud.Deleting
	}
	switch status {
	case building:
		return cloud.Pending
	case "ACTIVE", "REBOOT", "HARD_REBOOT", "PASSWORD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING", "RESCUE":
		return cloud.Running
	case "SHUTOFF", "STOPPED", "PAUSED", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED":
		return cloud.Stopped
	case "DELETED", "SOFT_DELETED": // DELETED is a short state before the server is gone
		return cloud.Deleting
	case "ERROR":
		return cloud.Failed
	}
	return cloud.Unknown
}
