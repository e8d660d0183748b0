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

// Grow asks Nova for servers, several at once. Nova may take some of them and refuse others; once one is refused no more
// are asked for.
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
		p.log.Warn("ports that no server has could not be looked for", "err", err)
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
		return cloud.Operation{Machines: providerIDsOf(ids)}, fmt.Errorf("growing %s by %d: %d are on their way: %w", g, order.Count, len(ids), err)
	}
	p.log.Info("servers were asked for", "group", g.Name, "servers", len(ids), "flavor", flavor.Name)
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

// flavor finds the flavor that an order names; the first where it names none.
func (r *resolved) flavor(g *group, template string) (*flavors.Flavor, error) {
	var names []string
	for i := range r.flavors {
		if template == "" || r.flavors[i].Name == template {
			return &r.flavors[i], nil
		}
		names = append(names, r.flavors[i].Name)
	}
	return nil, invalid("growing %s by servers of flavor %s: want one of %s", g, template, someOf(names))
}

// spread gives each new server its zone, so that those of the group are as even as they can be. Without zones Nova
// chooses.
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

// launchAll asks for one server in each of the zones, and gives the IDs of those that Nova took.
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
	slices.SortStableFunc(errs, func(a, b error) int { // a refusal says more than what came of it
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

// launch asks for one server. What it was to join with is taken back when Nova is sure not to have made it; else it ends
// by itself.
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
		if errors.As(err, &api) && api.Status >= http.StatusInternalServerError { // also one that asks to wait says neither yes nor no
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

// takeBackTime is how long taking back what a server was to join with may take.
const takeBackTime = 10 * time.Second

func (p *Provider) takeBack(ctx context.Context, g *group, name string) {
	if !g.userData.joins() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	if err := p.joiner.Withdraw(ctx, name); err != nil {
		p.log.Warn("what a server was to join with could not be taken back; it ends by itself", "server", name, "err", err)
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
			return nil, fmt.Errorf("what server %s joins the cluster with: %w", name, err)
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
		attached = append(attached, servers.Network{UUID: id}) // the port is Nova's to make, and to take away
	}
	for _, id := range ports {
		attached = append(attached, servers.Network{Port: id})
	}
	options.Networks = attached
	if g.ConfigDrive {
		options.ConfigDrive = &g.ConfigDrive
	}
	if data != nil {
		// Encoded here, since gophercloud takes text that happens to be base64 for encoded already.
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

// createOptions adds the key pair, which Nova's create has and gophercloud keeps in another package's wrapper.
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

// groupHint asks for a server group.
type groupHint string

// ToSchedulerHintsMap implements servers.SchedulerHintOptsBuilder.
func (h groupHint) ToSchedulerHintsMap() (map[string]any, error) {
	return map[string]any{"os:scheduler_hints": map[string]any{"group": string(h)}}, nil
}

// suffixLetters leave out vowels, so that no words come about, and what looks alike.
const suffixLetters = "bcdfghjkmnpqrstvwxz2456789"

// randomSuffix is six characters, of 300 million.
func randomSuffix() string {
	raw := make([]byte, 6)
	_, _ = rand.Read(raw) // it never fails, see crypto/rand
	for i := range raw {
		raw[i] = suffixLetters[int(raw[i])%len(suffixLetters)]
	}
	return string(raw)
}
