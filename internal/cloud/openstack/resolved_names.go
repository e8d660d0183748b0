package openstack

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/availabilityzones"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// resolvedTTL is how long the IDs for a group's configured names are cached.
const resolvedTTL = time.Minute

// resolvedNames holds the IDs of the resources that a group's configuration names.
type resolvedNames struct {
	readAt         time.Time
	flavors        []flavors.Flavor // at least one
	missing        error            // error for each flavor that is missing or cannot be read; nil if none
	image          string
	networks       []string
	ports          []resolvedPort
	securityGroups []string
	serverGroup    string
}

// resolveNames looks up the names of a group concurrently. It returns an error for each name that is missing or
// ambiguous. It ignores a missing flavor if the group has another usable one.
func (p *Provider) resolveNames(ctx context.Context, g *group) (*resolvedNames, error) {
	g.mu.Lock()
	known := g.cachedNames
	g.mu.Unlock()
	if known != nil && time.Since(known.readAt) < resolvedTTL {
		return known, nil
	}
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return nil, err
	}
	r := &resolvedNames{
		readAt: time.Now(), networks: make([]string, len(g.Networks)), securityGroups: make([]string, len(g.SecurityGroups)),
		ports: make([]resolvedPort, len(g.Ports)),
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	lookUp := func(up func() error) {
		all.Go(func() {
			if err := up(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	lookUp(func() (err error) { r.flavors, r.missing, err = usableFlavors(ctx, c.compute, g); return err })
	lookUp(func() (err error) { r.image, err = findImage(ctx, c.image, g.Image); return err })
	for i, name := range g.Networks {
		lookUp(func() (err error) {
			r.networks[i], err = findNetwork(ctx, c.network, fmt.Sprintf("networks[%d]", i), name)
			return err
		})
	}
	for i, portConfig := range g.Ports {
		lookUp(func() (err error) {
			r.ports[i], err = resolvePort(ctx, c.network, fmt.Sprintf("ports[%d].", i), portConfig)
			return err
		})
	}
	for i, name := range g.SecurityGroups {
		lookUp(func() (err error) {
			r.securityGroups[i], err = findSecurityGroup(ctx, c, fmt.Sprintf("securityGroups[%d]", i), name)
			return err
		})
	}
	if g.ServerGroup != "" {
		lookUp(func() (err error) { r.serverGroup, err = findServerGroup(ctx, c.compute, g.ServerGroup); return err })
	}
	if g.KeyPair != "" {
		lookUp(func() error { return checkKeyPairExists(ctx, c.compute, g.KeyPair) })
	}
	if len(g.AvailabilityZones) > 0 {
		lookUp(func() error { return checkZonesExist(ctx, c.compute, g.AvailabilityZones) })
	}
	all.Wait()
	if err := joinOrSingleError(errs); err != nil {
		return nil, err
	}
	g.mu.Lock()
	logged := g.loggedMissing
	g.cachedNames, g.loggedMissing = r, fmt.Sprint(r.missing)
	g.mu.Unlock()
	if r.missing != nil && logged != fmt.Sprint(r.missing) {
		p.log.Warn("some flavors of the group cannot be used", "group", g.Name, "err", r.missing)
	}
	return r, nil
}

// clearCachedNames clears the cached IDs of a group, because Nova refused a request with them.
func (g *group) clearCachedNames() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cachedNames = nil
}

// candidate is a resource that matches a name.
type candidate struct{ id, name, description string }

// requireOneCandidate returns the ID of the only candidate. It returns an error if there is none or more than one.
func requireOneCandidate(field, kind, wanted string, candidates []candidate) (id string, err error) {
	switch len(candidates) {
	case 0:
		return "", newInvalidError("%s: %s %q: not found in this project", field, kind, wanted)
	case 1:
		return candidates[0].id, nil
	}
	var all []string
	for _, c := range candidates {
		all = append(all, fmt.Sprintf("%s (%s)", c.id, c.description))
	}
	slices.Sort(all)
	return "", newInvalidError("%s: %s %q: the name matches %d: want one of the IDs %s", field, kind, wanted, len(candidates), joinLimited(all))
}

// maxJoined limits the number of candidates in an error message.
const maxJoined = 20

func joinLimited(names []string) string {
	if len(names) > maxJoined {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxJoined], ", "), len(names)-maxJoined)
	}
	return strings.Join(names, ", ")
}

// findImage returns the ID of a bootable image. If several images have the tag, it returns the newest, because each
// build of an image gets the tag.
func findImage(ctx context.Context, c *gophercloud.ServiceClient, image Image) (id string, err error) {
	query := url.Values{"status": {"active"}}
	if image.Visibility != "" {
		query.Set("visibility", image.Visibility)
	}
	switch {
	case image.ID != "":
		query.Set("id", image.ID)
	case image.Tag != "":
		query.Set("tag", image.Tag)
	default:
		query.Set("name", image.Name)
	}
	all, err := listAllPages(ctx, c, pagedList[images.Image]{
		path: "images", key: "images", query: query, pageSize: listPageSize, idOf: func(i *images.Image) string { return i.ID },
	})
	if err != nil {
		return "", err
	}
	if image.Tag != "" && len(all) > 1 {
		newest := slices.MaxFunc(all, func(a, b images.Image) int {
			return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
		return newest.ID, nil
	}
	var found []candidate
	for _, i := range all {
		found = append(found, candidate{i.ID, i.Name, fmt.Sprintf("%s, %s, of %s", i.CreatedAt.UTC().Format(time.RFC3339), i.Visibility, i.Owner)})
	}
	field := "image"
	if image.Visibility == "" {
		field = "image (set image.visibility to distinguish)"
	}
	return requireOneCandidate(field, "image of", image.String(), found)
}

// nameOrIDQuery returns a filter by ID if the text is a UUID. Otherwise it returns a filter by name.
func nameOrIDQuery(nameOrID string) url.Values {
	if uuidPattern.MatchString(nameOrID) {
		return url.Values{"id": {nameOrID}}
	}
	return url.Values{"name": {nameOrID}}
}

func findNetwork(ctx context.Context, c *gophercloud.ServiceClient, field, name string) (id string, err error) {
	all, err := listAllPages(ctx, c, pagedList[networks.Network]{
		path: "networks", key: "networks", query: nameOrIDQuery(name), pageSize: listPageSize, idOf: func(n *networks.Network) string { return n.ID },
	})
	if err != nil {
		return "", err
	}
	var found []candidate
	for _, n := range all {
		found = append(found, candidate{n.ID, n.Name, "of project " + n.ProjectID})
	}
	return requireOneCandidate(field, "network", name, found)
}

// securityGroup is a security group of Neutron. Shared is true if Neutron reports that another project shares the group
// with this project.
type securityGroup struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	ProjectID string `json:"project_id"`
	Shared    bool   `json:"shared"`
}

// findSecurityGroup returns the ID of the project's security group with this name. If the project has none, it returns
// a group that is shared with the project. An administrator sees the groups of all projects. They may have the same
// name, such as default.
func findSecurityGroup(ctx context.Context, c *clients, field, name string) (id string, err error) {
	all, err := listAllPages(ctx, c.network, pagedList[securityGroup]{
		path: "security-groups", key: "security_groups", query: nameOrIDQuery(name), pageSize: listPageSize, idOf: func(g *securityGroup) string { return g.ID },
	})
	if err != nil {
		return "", err
	}
	var ownGroups, shared []candidate
	for _, g := range all {
		found := candidate{g.ID, g.Name, "of project " + g.ProjectID}
		switch {
		case c.project == "" || g.ProjectID == c.project:
			ownGroups = append(ownGroups, found)
		case g.Shared || uuidPattern.MatchString(name): // an ID is unambiguous
			shared = append(shared, found)
		}
	}
	if len(ownGroups) == 0 {
		ownGroups = shared
	}
	return requireOneCandidate(field, "security group", name, ownGroups)
}

func findServerGroup(ctx context.Context, c *gophercloud.ServiceClient, name string) (id string, err error) {
	all, err := listAllPages(ctx, c, pagedList[servergroups.ServerGroup]{
		path: "os-server-groups", key: "server_groups", pageSize: listPageSize, byOffset: true, idOf: func(g *servergroups.ServerGroup) string { return g.ID },
	})
	if err != nil {
		return "", err
	}
	var found []candidate
	for _, g := range all {
		if g.Name == name || g.ID == name {
			policy := ""
			if g.Policy != nil {
				policy = *g.Policy
			}
			found = append(found, candidate{g.ID, g.Name, policy})
		}
	}
	return requireOneCandidate("serverGroup", "server group", name, found)
}

func checkKeyPairExists(ctx context.Context, c *gophercloud.ServiceClient, name string) error {
	_, err := keypairs.Get(ctx, c, url.PathEscape(name), keypairs.GetOpts{}).Extract()
	if err == nil {
		return nil
	}
	if err = fromAPIError("reading key pair "+name, err); isGone(err, name) {
		return newInvalidError("keyPair: key pair %q: not found for the configured user", name)
	}
	return err
}

// checkZonesExist returns an error that names the zones that do not exist. Nova's own error does not name them.
func checkZonesExist(ctx context.Context, c *gophercloud.ServiceClient, names []string) error {
	page, err := availabilityzones.List(c).AllPages(ctx)
	if err != nil {
		err = fromAPIError("listing the availability zones", err)
		if cloud.RefusalOf(err) == cloud.NoRight {
			return nil // Nova will check when it creates the server
		}
		return err
	}
	all, err := availabilityzones.ExtractAvailabilityZones(page)
	if err != nil {
		return fmt.Errorf("listing the availability zones: %w", err)
	}
	existing := make([]string, len(all))
	for i := range all {
		existing[i] = all[i].ZoneName
	}
	slices.Sort(existing)
	for i, name := range names {
		if !slices.Contains(existing, cutHost(name)) {
			return newInvalidError("availabilityZones[%d]: availability zone %q: not found: want one of %s", i, name, joinLimited(existing))
		}
	}
	return nil
}

// cutHost returns the zone of a configured availability zone. Administrators may append a host, as in az1:host1. Nova
// reports the zone without it.
func cutHost(configured string) (zone string) {
	zone, _, _ = strings.Cut(configured, ":")
	return zone
}
