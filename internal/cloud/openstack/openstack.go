// Package openstack implements [cloud.Provider] for servers of OpenStack. It uses Keystone for authentication, Nova for
// servers, Glance for images and Neutron for networks, but not Magnum. The behavior of these services is taken from
// their API references (https://docs.openstack.org/api-ref/) and from observed responses.
//
// # Groups
//
// OpenStack has no groups of servers with a size. Here a group is all servers of the project with the same values of
// [ClusterKey] and [GroupKey] in their metadata. Grow writes these keys, and users should not change them. A server
// without these keys belongs to a group only if the group's configuration adopts it by its name. A server that belongs
// to no group is never deleted.
//
// # Proof of deletion
//
// A server is gone only if Nova returns a 404 that names the server's ID. Any other 404, for example of a proxy or a
// wrong address, proves nothing (I7: unknown is not gone). A list is complete or an error. Since microversion 2.69 Nova
// also lists the servers of a cell that is down, but without metadata. Such a list is an error.
//
// # Caching
//
//   - The token and the endpoints are cached.
//   - The flavors, image and networks of a group are cached for [resolvedTTL].
//   - The list of the project's servers is cached for [serverListTTL], and all groups share it. A change by this process
//     removes the list from the cache.
//   - A single server is read each time.
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

// serverListTTL is how long the groups share one list of servers. Without sharing, each group would list all servers of
// the project.
const serverListTTL = 5 * time.Second

// Name is the name of the provider.
const Name = "openstack"

// The metadata keys that mark a server as part of a group. Nova allows no slash in a key.
const (
	ClusterKey = "slipway.cluster"
	GroupKey   = "slipway.group"
)

// Options configures a Provider in addition to Config.
type Options struct {
	// Joiner issues what user data needs to join the cluster. It is used for templates with .Join. If it is nil, such a
	// template is an error.
	Joiner Joiner
	// Log may be nil.
	Log *slog.Logger
	// PageSize is the page size for servers, 1 to 1000. 0 is 500.
	PageSize int
}

const defaultPageSize = 500

// Provider is the [cloud.Provider] of one project in one region.
type Provider struct {
	config   Config
	groups   []*group
	log      *slog.Logger
	joiner   Joiner
	session  *session
	pageSize int
	// servers shares the list of the project's servers between the groups.
	servers sharedread.Reader[[]servers.Server]
}

var (
	_ cloud.Provider                   = (*Provider)(nil)
	_ cloud.DeletionProtectionReporter = (*Provider)(nil)
	_ cloud.SystemUUIDResolver         = (*Provider)(nil)
)

// group is a configured group with its parsed user data template.
type group struct {
	GroupConfig
	userData *userData // nil if none is configured

	mu            sync.Mutex
	cachedNames   *resolvedNames
	loggedMissing string // the missing flavors that were last logged
	// assigned counts the servers that this process has assigned to each of the AvailabilityZones.
	assigned map[string]int
}

func (g *group) String() string { return "group " + g.Name }

// New validates the configuration, reads its files, and returns a provider. It makes no request, see
// [Provider.CheckConfiguredNames].
func New(c Config, o Options) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	login, err := c.resolveLogin()
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
		servers: sharedread.Reader[[]servers.Server]{ReuseFor: serverListTTL},
	}
	for i := range c.Groups {
		g := &group{GroupConfig: c.Groups[i], assigned: map[string]int{}}
		if g.userData, err = parseAndTestUserData(&g.GroupConfig, o.Joiner != nil); err != nil {
			return nil, fmt.Errorf("openstack groups[%d].%w", i, err)
		}
		p.groups = append(p.groups, g)
	}
	return p, nil
}

// Name returns "openstack".
func (p *Provider) Name() string { return Name }

// UsesJoin reports whether the user data of any group uses .Join, so that new servers need a join token.
func (p *Provider) UsesJoin() bool {
	return slices.ContainsFunc(p.groups, func(g *group) bool { return g.userData.needsJoin() })
}

// providerIDPattern matches the provider IDs of the OpenStack cloud provider: openstack:///ID, or openstack://REGION/ID.
var (
	providerIDPattern = regexp.MustCompile(`^openstack://([^/]*)/([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)
	uuidPattern       = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

// Normalize returns the provider ID as openstack:///ID. It returns an error if the ID has another region than the
// configured one.
func (p *Provider) Normalize(providerID string) (string, error) {
	id, err := p.parseServerID(providerID)
	if err != nil {
		return "", err
	}
	return toProviderID(id), nil
}

func toProviderID(serverID string) string { return Name + ":///" + strings.ToLower(serverID) }

// ProviderIDFromSystemUUID implements [cloud.SystemUUIDResolver]. Nova uses the server ID as the system UUID.
func (p *Provider) ProviderIDFromSystemUUID(systemUUID string) (providerID string, ok bool) {
	if !uuidPattern.MatchString(systemUUID) {
		return "", false
	}
	return toProviderID(systemUUID), true
}

// parseServerID returns the server ID of a provider ID.
func (p *Provider) parseServerID(providerID string) (string, error) {
	parts := providerIDPattern.FindStringSubmatch(providerID)
	if parts == nil {
		return "", newInvalidError("provider ID %.200q: want openstack:///ID or openstack://REGION/ID, with the ID of a server", providerID)
	}
	if region := p.session.login.region; parts[1] != "" && region != "" && parts[1] != region {
		return "", newInvalidError("provider ID %s: region is %s: want %s, the configured openstack region", providerID, parts[1], region)
	}
	return strings.ToLower(parts[2]), nil
}

// findGroup returns a configured group.
func (p *Provider) findGroup(name string) (*group, error) {
	for _, g := range p.groups {
		if g.Name == name {
			return g, nil
		}
	}
	return nil, &cloud.NotFoundError{Kind: "group", Name: name}
}

// Group counts the servers of a group, except the servers that are being deleted.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return cloud.Group{}, err
	}
	servers, err := p.listServers(ctx, g)
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

// CheckConfiguredNames looks up every resource that the configuration names. It returns an error for each name that is
// missing or ambiguous.
func (p *Provider) CheckConfiguredNames(ctx context.Context) error {
	errs := make([]error, len(p.groups))
	var all sync.WaitGroup
	for i, g := range p.groups {
		all.Go(func() {
			r, err := p.resolveNames(ctx, g)
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
		_, err := p.session.authenticatedClients(ctx)
		return err
	}
	return joinOrSingleError(errs)
}
