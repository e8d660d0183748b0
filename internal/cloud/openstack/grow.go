package openstack

import (
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

// Grow sends concurrent create requests to Nova. Nova may accept some and refuse others. After the first refusal no
// more requests are sent.
func (p *Provider) Grow(ctx context.Context, name string, order cloud.Order) (cloud.Operation, error) {
	if err := order.Validate(name); err != nil {
		return cloud.Operation{}, err
	}
	g, err := p.group(name)
	if err != nil {
		return cloud.Operation{}, err
	}
	r, err := p.resolve(ctx, g)
	if err != nil {
		return cloud.Operation{}, err
	}
	flavor, err := r.flavor(g, order.Template)
	if err != nil {
		return cloud.Operation{}, err
	}
	if err := p.sweepPorts(ctx); err != nil {
		p.log.Warn("listing unused ports failed", "err", err)
	}
	zones, err := p.spread(ctx, g, order.Count)
	if err != nil {
		return cloud.Operation{}, err
	}
	started := time.Now().UTC()
	ids, err := p.launchAll(ctx, g, r, flavor, zones)
	if err != nil {
		if cloud.RefusalOf(err) == cloud.Invalid {
			g.forget()
		}
		return cloud.Operation{Machines: providerIDsOf(ids)}, fmt.Errorf("growing %s by %d: %d are provisioning: %w", g, order.Count, len(ids), err)
	}
	p.log.Info("requested servers", "group", g.Name, "servers", len(ids), "flavor", flavor.Name)
	op := operation{Create: ids}.encode(started)
	op.Machines = providerIDsOf(ids)
	return op, nil
}

func providerIDsOf(servers []string) (ids []string) {
	for _, id := range servers {
		ids = append(ids, providerIDOf(id))
	}
	return ids
}

// flavor returns the flavor of the given name, or the first one if template is empty.
func (r *resolved) flavor(g *group, template string) (*flavors.Flavor, error) {
	var names []string
	for i := range r.flavors {
		if template == "" || r.flavors[i].Name == template {
			return &r.flavors[i], nil
		}
		names = append(names, r.flavors[i].Name)
	}
	return nil, invalid("growing %s with flavor %s: want one of %s", g, template, someOf(names))
}

// spread assigns a zone to each new server, so that the group is balanced. Without configured zones Nova chooses.
func (p *Provider) spread(ctx context.Context, g *group, count int) ([]string, error) {
	zones := make([]string, count)
	switch len(g.AvailabilityZones) {
	case 0:
		return zones, nil
	case 1:
		for i := range zones {
			zones[i] = g.AvailabilityZones[0]
		}
		return zones, nil
	}
	machines, err := p.list(ctx, g)
	if err != nil {
		return nil, err
	}
	has := map[string]int{}
	for _, m := range machines {
		if m.State != cloud.Deleting {
			has[m.Zone]++
		}
	}
	for i := range zones {
		zones[i] = slices.MinFunc(g.AvailabilityZones, func(a, b string) int { return has[a] - has[b] })
		has[zones[i]]++
	}
	return zones, nil
}

// launchAll creates one server per zone entry and returns the IDs of the accepted ones.
func (p *Provider) launchAll(ctx context.Context, g *group, r *resolved, f *flavors.Flavor, zones []string) ([]string, error) {
	var mu sync.Mutex
	var ids []string
	var errs []error
	var stop atomic.Bool
	each(len(zones), p.config.parallelCreates(), func(i int) {
		if stop.Load() {
			return
		}
		id, err := p.launch(ctx, g, r, f, zones[i])
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
		return rank(a) - rank(b)
	})
	if len(errs) > 0 {
		return ids, errs[0]
	}
	return ids, nil
}

func rank(err error) int {
	switch {
	case cloud.RefusalOf(err) != "":
		return 0
	case cloud.IsThrottled(err):
		return 1
	}
	return 2
}

// launch creates one server. If Nova certainly did not create it, its join token is withdrawn. Otherwise the token
// expires.
func (p *Provider) launch(ctx context.Context, g *group, r *resolved, f *flavors.Flavor, zone string) (string, error) {
	c, err := p.session.clients(ctx)
	if err != nil {
		return "", err
	}
	name := g.namePrefix() + "-" + randomSuffix()
	data, err := p.userDataFor(ctx, g, f, name, zone)
	if err != nil {
		return "", err
	}
	ports, err := p.makePorts(ctx, c, g, r, name)
	if err != nil {
		p.takeBack(ctx, g, name)
		return "", err
	}
	options := p.createOptions(g, r, f, name, zone, data, ports)
	made, err := servers.Create(ctx, c.compute, options, hints(r)).Extract()
	p.servers.Outdate()
	if err == nil && !uuid.MatchString(made.ID) {
		err = errIncomplete
	}
	if err != nil {
		err = ofAPI("creating server "+name, err)
		var api *apiError
		if errors.As(err, &api) && api.Status >= http.StatusInternalServerError { // also with Retry-After: the server may have been created
			err = fmt.Errorf("creating server %s: %w", name, api)
		}
		if refusedForGood(err) {
			p.takeBack(ctx, g, name)
			p.dropPorts(ctx, ports)
		}
		return "", err
	}
	return made.ID, nil
}

// takeBackTime limits the cleanup after a failed create: withdrawing the token and deleting ports.
const takeBackTime = 10 * time.Second

func (p *Provider) takeBack(ctx context.Context, g *group, name string) {
	if !g.userData.joins() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	if err := p.joiner.Withdraw(ctx, name); err != nil {
		p.log.Warn("withdrawing the join token of a server failed; it will expire", "server", name, "err", err)
	}
}

func (p *Provider) userDataFor(ctx context.Context, g *group, f *flavors.Flavor, name, zone string) ([]byte, error) {
	if g.userData == nil {
		return nil, nil
	}
	m := Machine{
		Name: name, Cluster: p.config.ClusterName, Group: g.Name, Flavor: f.Name, Zone: zone, Region: p.session.login.region,
		Labels: labels.Set(g.Nodes.Labels).String(), Taints: taintList(g.Nodes.Taints),
	}
	if g.userData.joins() {
		var err error
		if m.Join, err = p.joiner.Issue(ctx, name); err != nil {
			return nil, fmt.Errorf("join token for server %s: %w", name, err)
		}
	}
	data, err := g.userData.render(m)
	if err != nil {
		p.takeBack(ctx, g, name)
	}
	return data, err
}

func (p *Provider) createOptions(g *group, r *resolved, f *flavors.Flavor, name, zone string, data []byte, ports []string,
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

// createOptions adds the key pair, which gophercloud has only in a wrapper of another package.
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

func hints(r *resolved) servers.SchedulerHintOptsBuilder {
	if r.serverGroup == "" {
		return nil
	}
	return groupHint(r.serverGroup)
}

// groupHint requests a server group.
type groupHint string

// ToSchedulerHintsMap implements servers.SchedulerHintOptsBuilder.
func (h groupHint) ToSchedulerHintsMap() (map[string]any, error) {
	return map[string]any{"os:scheduler_hints": map[string]any{"group": string(h)}}, nil
}

// suffixLetters has no vowels, so that no words appear, and no characters that look alike.
const suffixLetters = "bcdfghjkmnpqrstvwxz2456789"

// randomSuffix returns six characters, one of 300 million combinations.
func randomSuffix() string {
	raw := make([]byte, 6)
	_, _ = rand.Read(raw) // never fails, see crypto/rand
	for i := range raw {
		raw[i] = suffixLetters[int(raw[i])%len(suffixLetters)]
	}
	return string(raw)
}
