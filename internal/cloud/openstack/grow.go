package openstack

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Grow sends concurrent create requests to Nova. Nova may accept some of them and refuse others. After the first error
// Grow sends no more requests.
func (p *Provider) Grow(ctx context.Context, name string, order cloud.LaunchRequest) (cloud.Operation, error) {
	if err := order.Validate(name); err != nil {
		return cloud.Operation{}, err
	}
	g, err := p.findGroup(name)
	if err != nil {
		return cloud.Operation{}, err
	}
	r, err := p.resolveNames(ctx, g)
	if err != nil {
		return cloud.Operation{}, err
	}
	flavor, err := r.selectFlavor(g, order.Template)
	if err != nil {
		return cloud.Operation{}, err
	}
	if err := p.deleteUnusedPorts(ctx); err != nil {
		p.log.Warn("listing unused ports failed", "err", err)
	}
	zones, err := p.assignZones(ctx, g, order.Count)
	if err != nil {
		return cloud.Operation{}, err
	}
	started := time.Now().UTC()
	ids, err := p.createServers(ctx, g, r, flavor, zones)
	if err != nil {
		if cloud.RefusalOf(err) == cloud.Invalid {
			g.clearCachedNames()
		}
		return cloud.Operation{ProviderIDs: toProviderIDs(ids)}, fmt.Errorf("growing %s by %d: %d are provisioning: %w", g, order.Count, len(ids), err)
	}
	p.log.Info("requested servers", "group", g.Name, "servers", len(ids), "flavor", flavor.Name)
	op := operation{Create: ids}.toCloudOperation(started)
	op.ProviderIDs = toProviderIDs(ids)
	return op, nil
}

func toProviderIDs(servers []string) (ids []string) {
	for _, id := range servers {
		ids = append(ids, toProviderID(id))
	}
	return ids
}

// selectFlavor returns the flavor with the given name. If template is empty, it returns the group's first flavor.
func (r *resolvedNames) selectFlavor(g *group, template string) (*flavors.Flavor, error) {
	var names []string
	for i := range r.flavors {
		if template == "" || r.flavors[i].Name == template {
			return &r.flavors[i], nil
		}
		names = append(names, r.flavors[i].Name)
	}
	return nil, newInvalidError("growing %s with flavor %s: want one of %s", g, template, joinLimited(names))
}

// assignZones returns a zone for each new server, so that the group's zones are balanced. If the group has no
// configured zones, Nova chooses.
func (p *Provider) assignZones(ctx context.Context, g *group, count int) (zones []string, err error) {
	zones = make([]string, count)
	switch len(g.AvailabilityZones) {
	case 0:
		return zones, nil
	case 1:
		for i := range zones {
			zones[i] = g.AvailabilityZones[0]
		}
		return zones, nil
	}
	instances, err := p.listServers(ctx, g)
	if err != nil {
		return nil, err
	}
	perZone := map[string]int{}
	for _, m := range instances {
		if m.State != cloud.Deleting {
			perZone[m.Zone]++
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range zones {
		zones[i] = slices.MinFunc(g.AvailabilityZones, func(a, b string) int { // Nova does not report the host that one of them may name
			return cmp.Or(perZone[cutHost(a)]-perZone[cutHost(b)], g.assigned[a]-g.assigned[b])
		})
		perZone[cutHost(zones[i])]++
		g.assigned[zones[i]]++
	}
	return zones, nil
}

// createServers creates one server for each element of zones. It returns the IDs of the servers that Nova accepted, and
// the most useful error.
func (p *Provider) createServers(ctx context.Context, g *group, r *resolvedNames, f *flavors.Flavor, zones []string) (serverIDs []string, err error) {
	var mu sync.Mutex
	var ids []string
	var errs []error
	var stop atomic.Bool
	forEachConcurrently(len(zones), p.config.parallelCreates(), func(i int) {
		if stop.Load() {
			return
		}
		id, err := p.createServer(ctx, g, r, f, zones[i])
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			stop.Store(true)
			errs = append(errs, err)
			return
		}
		ids = append(ids, id)
	})
	slices.SortStableFunc(errs, func(a, b error) int { // a refusal is the most useful error
		return errorRank(a) - errorRank(b)
	})
	if len(errs) > 0 {
		return ids, errs[0]
	}
	return ids, nil
}

func errorRank(err error) int {
	switch {
	case cloud.RefusalOf(err) != "":
		return 0
	case cloud.IsThrottled(err):
		return 1
	}
	return 2
}

// createServer creates one server and returns its ID. If Nova certainly did not create the server, createServer
// withdraws the server's join token. Otherwise the token expires by itself.
func (p *Provider) createServer(ctx context.Context, g *group, r *resolvedNames, f *flavors.Flavor, zone string) (serverID string, err error) {
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return "", err
	}
	name := g.namePrefix() + "-" + randomSuffix()
	data, err := p.renderUserDataWithJoinToken(ctx, g, f, name, zone)
	if err != nil {
		return "", err
	}
	ports, err := p.createPorts(ctx, c, g, r, name)
	if err != nil {
		p.withdrawJoinToken(ctx, g, name)
		return "", err
	}
	options := p.createOptions(g, r, f, name, zone, data, ports)
	created, err := servers.Create(ctx, c.compute, options, schedulerHints(r)).Extract()
	p.servers.Outdate()
	if err == nil && !uuidPattern.MatchString(created.ID) {
		err = errIncomplete
	}
	if err != nil {
		err = fromAPIError("creating server "+name, err)
		var api *apiError
		if errors.As(err, &api) && api.Status >= http.StatusInternalServerError { // also with Retry-After: the server may have been created
			err = fmt.Errorf("creating server %s: %w", name, api)
		}
		if isPermanentlyRejected(err) {
			p.withdrawJoinToken(ctx, g, name)
			p.deletePortsIfUnused(ctx, ports)
		}
		return "", err
	}
	return created.ID, nil
}

// cleanupTimeout limits the cleanup after a server could not be created. The cleanup withdraws the join token and
// deletes ports.
const cleanupTimeout = 10 * time.Second

func (p *Provider) withdrawJoinToken(ctx context.Context, g *group, serverName string) {
	if !g.userData.needsJoin() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := p.joiner.Withdraw(ctx, serverName); err != nil {
		p.log.Warn("withdrawing the join token of a server failed; it will expire", "server", serverName, "err", err)
	}
}

func (p *Provider) renderUserDataWithJoinToken(ctx context.Context, g *group, f *flavors.Flavor, serverName, zone string) ([]byte, error) {
	if g.userData == nil {
		return nil, nil
	}
	m := Machine{
		Name: serverName, Cluster: p.config.ClusterName, Group: g.Name, Flavor: f.Name, Zone: zone, Region: p.session.login.region,
		Labels: labels.Set(g.Nodes.Labels).String(), Taints: formatTaints(g.Nodes.Taints),
	}
	if g.userData.needsJoin() {
		var err error
		if m.Join, err = p.joiner.Issue(ctx, serverName); err != nil {
			return nil, fmt.Errorf("join token for server %s: %w", serverName, err)
		}
	}
	data, err := g.userData.render(m)
	if err != nil {
		p.withdrawJoinToken(ctx, g, serverName)
	}
	return data, err
}

func (p *Provider) createOptions(g *group, r *resolvedNames, f *flavors.Flavor, name, zone string, data []byte, ports []string,
) servers.CreateOptsBuilder {
	metadata := maps.Clone(g.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadata[ClusterKey], metadata[GroupKey] = p.config.ClusterName, g.Name
	options := createOptions{CreateOpts: servers.CreateOpts{
		Name: name, FlavorRef: f.ID, ImageRef: r.image, SecurityGroups: r.securityGroups, AvailabilityZone: zone, Metadata: metadata,
	}, keyPair: g.KeyPair}
	var attached []servers.Network
	for _, id := range r.networks {
		attached = append(attached, servers.Network{UUID: id}) // Nova creates and deletes this port
	}
	for _, id := range ports {
		attached = append(attached, servers.Network{Port: id})
	}
	options.Networks = attached
	if g.ConfigDrive {
		options.ConfigDrive = &g.ConfigDrive
	}
	if data != nil {
		// Encoded here, because gophercloud does not encode text that happens to be valid base64.
		options.UserData = []byte(base64.StdEncoding.EncodeToString(data))
	}
	if v := g.BootVolume; v != nil {
		options.ImageRef = ""
		options.BlockDevice = []servers.BlockDevice{{
			SourceType: servers.SourceImage, UUID: r.image, DestinationType: servers.DestinationVolume, VolumeSize: v.SizeGiB,
			VolumeType: v.Type, DeleteOnTermination: true,
		}}
	}
	return options
}

// createOptions adds the key pair to a create request. gophercloud supports key pairs only in a wrapper of another
// package.
type createOptions struct {
	servers.CreateOpts
	keyPair string
}

// ToServerCreateMap implements servers.CreateOptsBuilder.
func (o createOptions) ToServerCreateMap() (map[string]any, error) {
	body, err := o.CreateOpts.ToServerCreateMap()
	if server, ok := body["server"].(map[string]any); ok && err == nil && o.keyPair != "" {
		server["key_name"] = o.keyPair
	}
	return body, err
}

func schedulerHints(r *resolvedNames) servers.SchedulerHintOptsBuilder {
	if r.serverGroup == "" {
		return nil
	}
	return serverGroupHint(r.serverGroup)
}

// serverGroupHint tells Nova's scheduler to place a server in a server group.
type serverGroupHint string

// ToSchedulerHintsMap implements servers.SchedulerHintOptsBuilder.
func (h serverGroupHint) ToSchedulerHintsMap() (map[string]any, error) {
	return map[string]any{"os:scheduler_hints": map[string]any{"group": string(h)}}, nil
}

// suffixCharacters are the characters of a random suffix. Vowels are missing, so that no words appear. Characters that
// look alike are missing too.
const suffixCharacters = "bcdfghjkmnpqrstvwxz2456789"

// randomSuffix returns six random characters. There are 300 million combinations.
func randomSuffix() string {
	raw := make([]byte, 6)
	_, _ = rand.Read(raw) // never fails, see crypto/rand
	for i := range raw {
		raw[i] = suffixCharacters[int(raw[i])%len(suffixCharacters)]
	}
	return string(raw)
}
