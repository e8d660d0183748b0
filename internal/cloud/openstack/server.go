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

// serverInstance is a server as Nova describes it, with the data for its deletion.
type serverInstance struct {
	cloud.Instance
	id               string
	belongsToCluster bool
	softDeleted      bool
	protectedReason  string // why it must not be deleted; empty if it may be
}

// maxConcurrentReads limits concurrent reads of servers.
const maxConcurrentReads = 10

// Instances lists the servers of a group.
func (p *Provider) Instances(ctx context.Context, name string) ([]cloud.Instance, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return nil, err
	}
	listed, err := p.listServers(ctx, g)
	if err != nil {
		return nil, err
	}
	if listed, err = p.addFaultsAndDropGone(ctx, listed); err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, len(listed))
	for i, m := range listed {
		instances[i] = m.Instance
	}
	return instances, nil
}

// Instance reads one server.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	id, err := p.parseServerID(providerID)
	if err != nil {
		return cloud.Instance{}, err
	}
	m, err := p.getServer(ctx, id)
	return m.Instance, err
}

// ClusterInstances lists the servers with this cluster's name in their metadata, also in groups that were removed from the configuration. It
// excludes servers that a group adopts by name, which may belong to another cluster.
func (p *Provider) ClusterInstances(ctx context.Context) ([]cloud.Instance, error) {
	listed, err := p.listServers(ctx, nil)
	if err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, 0, len(listed))
	for _, m := range listed {
		if m.Tags[ClusterKey] == p.config.ClusterName {
			instances = append(instances, m.Instance)
		}
	}
	return instances, nil
}

// listServers returns the servers of a group, or of the whole cluster if g is nil. Nova cannot filter by metadata, so all
// servers of the project are read.
func (p *Provider) listServers(ctx context.Context, g *group) ([]serverInstance, error) {
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return nil, err
	}
	all, err := p.servers.Read(ctx, func(ctx context.Context) ([]servers.Server, error) { return p.readAllServers(ctx, c.compute) })
	if err != nil {
		return nil, err
	}
	var instances []serverInstance
	seen := map[string]bool{}
	for i := range all {
		if all[i].Metadata == nil {
			return nil, fmt.Errorf("listing servers: %w: server %s has no metadata, so a cell of Nova is down", errIncomplete, all[i].ID)
		}
		m, err := p.toServerInstance(&all[i])
		if err != nil {
			return nil, err
		}
		// Pages shift when a server is added between two reads, and readAllServers may read the list twice.
		if seen[m.id] || !m.belongsToCluster || g != nil && m.Group != g.Name {
			continue
		}
		seen[m.id] = true
		instances = append(instances, m)
	}
	return instances, nil
}

// readAllServers reads the servers of the project. While servers are being built, a list of several pages can miss a
// server that moves to its cell between two pages. Then the list is read twice and the results are combined. A server
// in both appears twice, with the later state first.
func (p *Provider) readAllServers(ctx context.Context, nova *gophercloud.ServiceClient) ([]servers.Server, error) {
	all := pagedList[servers.Server]{
		path: "servers/detail", key: "servers", pageSize: p.pageSize,
		idOf:     func(s *servers.Server) string { return s.ID },
		isMoving: func(s *servers.Server) bool { return s.Status == statusBuilding },
	}
	first, err := listAllPages(ctx, nova, all)
	if err != nil || !all.anyMoving(first) || len(first) < p.pageSize/2 {
		return first, err
	}
	second, err := listAllPages(ctx, nova, all)
	if err != nil {
		return nil, err
	}
	return append(second, first...), nil
}

// statusBuilding is the status of a server that is being created.
const statusBuilding = "BUILD"

// addFaultsAndDropGone reads why servers are in state ERROR. The list omits the fault if no host was found.
func (p *Provider) addFaultsAndDropGone(ctx context.Context, instances []serverInstance) ([]serverInstance, error) {
	errs := make([]error, len(instances))
	gone := make([]bool, len(instances))
	forEachConcurrently(len(instances), maxConcurrentReads, func(i int) {
		if instances[i].State != cloud.Failed || instances[i].Message != "" {
			return
		}
		m, err := p.getServer(ctx, instances[i].id)
		switch gone[i] = cloud.IsNotFound(err); {
		case err == nil:
			instances[i] = m
		case !gone[i]:
			errs[i] = err
		}
	})
	if err := joinOrSingleError(errs); err != nil {
		return nil, err
	}
	var remaining []serverInstance
	for i, m := range instances {
		if !gone[i] {
			remaining = append(remaining, m)
		}
	}
	return remaining, nil
}

// forEachConcurrently calls f with the indexes 0 to n-1, with at most atOnce concurrent calls.
func forEachConcurrently(n, atOnce int, f func(i int)) {
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

// getServer reads one server without a cache. It returns [*cloud.NotFoundError] if Nova says that the ID does not exist.
func (p *Provider) getServer(ctx context.Context, id string) (serverInstance, error) {
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return serverInstance{}, err
	}
	s, err := servers.Get(ctx, c.compute, id).Extract()
	if err != nil {
		err = fromAPIError("reading server "+id, err)
		if isGone(err, id) {
			return serverInstance{}, &cloud.NotFoundError{Kind: "instance", Name: toProviderID(id)}
		}
		return serverInstance{}, err
	}
	if !strings.EqualFold(s.ID, id) {
		return serverInstance{}, fmt.Errorf("reading server %s: %w: the response is about %q", id, errIncomplete, s.ID)
	}
	return p.toServerInstance(s)
}

// toServerInstance converts a server of Nova.
func (p *Provider) toServerInstance(s *servers.Server) (serverInstance, error) {
	if !uuidPattern.MatchString(s.ID) || s.Status == "" {
		return serverInstance{}, fmt.Errorf("server %q: %w: it has no ID or no status", s.ID, errIncomplete)
	}
	m := serverInstance{
		Instance: cloud.Instance{
			ProviderID: toProviderID(s.ID), Name: s.Name, ComputerName: hostname(s), Zone: s.AvailabilityZone,
			State: toState(s.Status, s.TaskState), Created: s.Created, Tags: maps.Clone(s.Metadata),
		},
		id:          strings.ToLower(s.ID),
		softDeleted: s.Status == "SOFT_DELETED",
	}
	m.Type, _ = s.Flavor["original_name"].(string)
	m.Group, m.belongsToCluster, m.OwnerUncertain = p.findOwner(s)
	m.protectedReason = p.protectionReason(m.belongsToCluster, s)
	if m.DeletionProtected = m.protectedReason != "" && (m.State != cloud.Deleting || m.softDeleted); m.DeletionProtected {
		m.DeletionProtectionReason = m.protectedReason
	}
	if m.State == cloud.Failed {
		m.Message = cloud.SanitizeText(s.Fault.Message, maxMessageLength)
		m.Refusal = classifyFault(m.Message)
	}
	return m, nil
}

// ReportsDeletionProtection marks a provider with deletion protection. Servers of other clusters and locked servers are protected.
func (p *Provider) ReportsDeletionProtection() {}

// protectionReason returns why this provider must not delete a server; empty if it may.
func (p *Provider) protectionReason(ours bool, s *servers.Server) string {
	switch {
	case !ours:
		return fmt.Sprintf("its metadata does not name cluster %s: want %s=%s and %s with a group's name, or a group that adopts "+
			"it by its name", p.config.ClusterName, ClusterKey, p.config.ClusterName, GroupKey)
	case s.Locked != nil && *s.Locked:
		return "it is locked in Nova"
	}
	return ""
}

// findOwner returns the group of a server and whether it belongs to this cluster. adopted means that only its name or a
// former cluster name shows that.
func (p *Provider) findOwner(s *servers.Server) (groupName string, ours, adopted bool) {
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

// invalidHostChars matches the characters that a host name cannot contain.
var invalidHostChars = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

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
	name = strings.Trim(strings.ToLower(invalidHostChars.ReplaceAllString(name, "")), ".-")
	return strings.ReplaceAll(name, ".", "-")
}

// toState converts a status of Nova, see https://docs.openstack.org/nova/latest/reference/vm-states.html. A server that
// is being deleted keeps its status for a while; its task shows the deletion.
func toState(status, task string) cloud.State {
	if task == "deleting" || task == "soft-deleting" {
		return cloud.Deleting
	}
	switch status {
	case statusBuilding:
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
