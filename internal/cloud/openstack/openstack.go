// Package openstack is the provider of servers of OpenStack's Nova, without Magnum and without any other service on top:
// Keystone says who asks, Nova has the servers, Glance the images and Neutron the networks. What is known of them is from
// their API references (https://docs.openstack.org/api-ref/) and from what their servers answer.
//
// # What a group is
//
// OpenStack counts no groups. A group is what the configuration says: the servers of the project whose metadata has
// [ClusterKey] and [GroupKey] with the cluster's and the group's names, which Grow writes and nobody should change. A
// server without them is not this cluster's, and is never deleted.
//
// # What is proof
//
// A server is gone when Nova itself says of its very ID that it could not be found: a 404 of anything else, such as a
// proxy or a wrong address, proves nothing (I7). A list is whole, or an error: since microversion 2.69 Nova lists the
// servers of a cell that is down too, without their metadata, and such a list says nothing of a group.
//
// # What is remembered
//
// The token, the endpoints, for [resolvedFor] which flavors, image and networks the names of a group mean, and for [listFor] the
// list of the project's servers, which all groups share. A change by this process ends that. A single server is asked for each time.
package openstack

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

// listFor is how long a list of servers is shared. Nova lists all servers of a project for each group.
const listFor = 5 * time.Second

// Name is the provider's.
const Name = "openstack"

// The metadata of a server that mark it as one of a group. Nova takes no slash in a key.
const (
	ClusterKey = "slipway.cluster"
	GroupKey   = "slipway.group"
)

// Options are what a Provider is given beside its configuration.
type Options struct {
	// Joiner makes what user data needs to join the cluster. It is only called for templates that have .Join; without
	// one such a template is refused.
	Joiner Joiner
	// Log is discarded when nil.
	Log *slog.Logger
	// PageSize is how many servers are asked for at once, 1 to 1000; 0 is 500.
	PageSize int
}

const defaultPageSize = 500

// Provider is one project in one region of an OpenStack. It implements [cloud.Provider].
type Provider struct {
	config   Config
	groups   []*group
	log      *slog.Logger
	joiner   Joiner
	session  *session
	pageSize int
	// servers are all of the project's, which the groups share.
	servers sharedread.Reader[[]servers.Server]
}

var (
	_ cloud.Provider         = (*Provider)(nil)
	_ cloud.Keeper           = (*Provider)(nil)
	_ cloud.SystemIdentifier = (*Provider)(nil)
)

// group is a group of the configuration with its user data compiled.
type group struct {
	GroupConfig
	userData *userData // nil is none

	mu       sync.Mutex
	resolved *resolved
	missing  string // the flavors that were last told to be missing
}

func (g *group) String() string { return "group " + g.Name }

// New checks the configuration, reads the files that it names, and makes a provider. It asks nothing of OpenStack yet;
// see [Provider.Check] for that.
func New(c Config, o Options) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	login, err := c.login()
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.PageSize == 0 {
		o.PageSize = defaultPageSize
	}
	p := &Provider{
		config: c, log: o.Log.With("provider", Name), joiner: o.Joiner, session: newSession(&c, login), pageSize: o.PageSize,
		servers: sharedread.Reader[[]servers.Server]{Holds: listFor},
	}
	for i := range c.Groups {
		g := &group{GroupConfig: c.Groups[i]}
		if g.userData, err = compileUserData(&g.GroupConfig, o.Joiner != nil); err != nil {
			return nil, fmt.Errorf("openstack groups[%d].%w", i, err)
		}
		p.groups = append(p.groups, g)
	}
	return p, nil
}

// Name is "openstack".
func (p *Provider) Name() string { return Name }

// Joins reports whether any group's machines are given something to join with.
func (p *Provider) Joins() bool {
	return slices.ContainsFunc(p.groups, func(g *group) bool { return g.userData.joins() })
}

// idForm is that of the provider IDs of the OpenStack cloud provider: openstack:///ID, or openstack://REGION/ID.
var (
	idForm = regexp.MustCompile(`^openstack://([^/]*)/([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)
	uuid   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

// Normalize gives openstack:///ID. An ID that names a region has to name the configured one.
func (p *Provider) Normalize(providerID string) (string, error) {
	id, err := p.serverID(providerID)
	if err != nil {
		return "", err
	}
	return providerIDOf(id), nil
}

func providerIDOf(serverID string) string { return Name + ":///" + strings.ToLower(serverID) }

// IDOfSystem implements [cloud.SystemIdentifier]: Nova gives the system of a server the server's ID as its UUID.
func (p *Provider) IDOfSystem(systemUUID string) (string, bool) {
	if !uuid.MatchString(systemUUID) {
		return "", false
	}
	return providerIDOf(systemUUID), true
}

// serverID reads the ID of a server out of a provider ID.
func (p *Provider) serverID(providerID string) (string, error) {
	parts := idForm.FindStringSubmatch(providerID)
	if parts == nil {
		return "", invalid("provider ID %.200q: want openstack:///ID or openstack://REGION/ID, with the ID of a server", providerID)
	}
	if region := p.session.login.region; parts[1] != "" && region != "" && parts[1] != region {
		return "", invalid("provider ID %s: is of region %s; want %s, the one that openstack is configured for", providerID, parts[1], region)
	}
	return strings.ToLower(parts[2]), nil
}

// group finds a group of the configuration, which is the only place that has them.
func (p *Provider) group(name string) (*group, error) {
	for _, g := range p.groups {
		if g.Name == name {
			return g, nil
		}
	}
	return nil, &cloud.NotFoundError{Kind: "group", Name: name}
}

// Group counts the servers of a group: all but those that are being deleted.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	g, err := p.group(name)
	if err != nil {
		return cloud.Group{}, err
	}
	servers, err := p.list(ctx, g)
	if err != nil {
		return cloud.Group{}, err
	}
	counted := cloud.Group{Name: g.Name}
	for _, s := range servers {
		if s.State != cloud.Deleting {
			counted.Size++
		}
	}
	return counted, nil
}

// Check asks OpenStack for everything that the configuration names, and reports all that is not there or not clear.
func (p *Provider) Check(ctx context.Context) error {
	errs := make([]error, len(p.groups))
	var all sync.WaitGroup
	for i, g := range p.groups {
		all.Go(func() {
			r, err := p.resolve(ctx, g)
			if err == nil {
				err = r.missing
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", g, err)
			}
		})
	}
	all.Wait()
	if len(p.groups) == 0 {
		_, err := p.session.clients(ctx)
		return err
	}
	return joined(errs)
}
