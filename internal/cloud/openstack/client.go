package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/utils"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	// maxAnswer is the most that is read of one answer, in bytes: a page of 1000 servers takes a tenth of it.
	maxAnswer = 32 << 20
	// retries and retryDelay are for reads that go wrong in passing. Whatever takes longer is for the caller to decide on.
	retries    = 2
	retryDelay = 250 * time.Millisecond
	// refusedPause is how long a credential that was refused is not tried again, as Keystone may lock its user.
	refusedPause = 30 * time.Second

	// newestMicroversion is the newest of Nova that this package is written for: 2.90 tells the host name.
	newestMicroversion = 90
	// oldestMicroversion is the one since which a list has the servers of a cell that is down. Before it (OpenStack Rocky
	// and older) they are left out without a word, and I7 could not be kept.
	oldestMicroversion = 69
)

// clients are those of one token's project.
type clients struct {
	compute, image, network *gophercloud.ServiceClient
	project                 string // its ID; empty when Keystone does not say
}

// session signs in when it is first needed, and renews the token when a service refuses it.
type session struct {
	login     *login
	read      func() (*login, error) // reads it again
	endpoints map[string]string
	timeout   time.Duration

	turn    chan struct{} // holds one: who may sign in
	current *clients
	// refused is why Keystone did not take the credential, and until when it is not asked again.
	refused error
	until   time.Time
}

func newSession(c *Config, l *login) *session {
	return &session{login: l, read: c.login, endpoints: c.Endpoints, timeout: c.requestTimeout(), turn: make(chan struct{}, 1)}
}

// clients gives the clients, after signing in if need be.
func (s *session) clients(ctx context.Context) (*clients, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.current != nil {
		return s.current, nil
	}
	if s.refused != nil && time.Now().Before(s.until) {
		return nil, s.refused
	}
	c, err := s.signIn(ctx)
	if cloud.RefusalOf(err) == cloud.NoRight {
		s.refused, s.until = err, time.Now().Add(refusedPause)
	}
	if err != nil {
		return nil, err
	}
	s.current, s.refused = c, nil
	return c, nil
}

func (s *session) signIn(ctx context.Context) (*clients, error) {
	provider, err := openstack.NewClient(s.login.auth.IdentityEndpoint)
	if err != nil {
		return nil, invalid("auth_url %q: %v", s.login.auth.IdentityEndpoint, err)
	}
	provider.UserAgent.Prepend("slipway")
	provider.UseTokenLock()
	provider.HTTPClient = s.httpClient()
	provider.RetryFunc = retryReads
	if err := openstack.Authenticate(ctx, provider, s.auth()); err != nil {
		return nil, ofAPI("signing in at Keystone", err)
	}
	provider.ReauthFunc = s.renewal(provider)
	result, ok := provider.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return nil, invalid("auth_url %q: want Keystone of version 3", s.login.auth.IdentityEndpoint)
	}
	catalog, err := result.ExtractServiceCatalog()
	if err != nil {
		return nil, fmt.Errorf("signing in at Keystone: its catalog: %w", err)
	}
	return s.find(ctx, provider, catalog)
}

// auth is the credential as its file or environment has it now, since it may have been replaced. While that cannot be read,
// as in the middle of being written, it is what it was.
func (s *session) auth() gophercloud.AuthOptions {
	if l, err := s.read(); err == nil {
		return l.auth
	}
	return s.login.auth
}

// renewal gives what has a token renewed, one call of it at a time. A credential that Keystone refuses is left alone for a
// while. One that was replaced by another project's is refused: there the machines of this one would be gone (I7).
func (s *session) renewal(p *gophercloud.ProviderClient) func(context.Context) error {
	var refused error
	var until time.Time
	return func(ctx context.Context) error {
		if time.Now().Before(until) {
			return refused
		}
		anew, err := openstack.NewClient(s.login.auth.IdentityEndpoint)
		if err != nil {
			return err
		}
		anew.UserAgent, anew.HTTPClient, anew.RetryFunc = p.UserAgent, p.HTTPClient, p.RetryFunc
		auth := s.auth()
		auth.AllowReauth = false
		if err := openstack.Authenticate(ctx, anew, auth); err != nil {
			if gophercloud.ResponseCodeIs(err, http.StatusUnauthorized) {
				refused, until = err, time.Now().Add(refusedPause)
			}
			return err
		}
		if was, is := projectOf(p), projectOf(anew); is != was {
			refused = invalid("the credential was replaced by one of project %q: want project %q, or a restart", is, was)
			until = time.Now().Add(refusedPause)
			return refused
		}
		p.CopyTokenFrom(anew)
		return nil
	}
}

// projectOf is the ID of the project that a client's token is of; empty when Keystone does not say.
func projectOf(p *gophercloud.ProviderClient) string {
	if result, ok := p.GetAuthResult().(tokens.CreateResult); ok {
		if project, err := result.ExtractProject(); err == nil && project != nil {
			return project.ID
		}
	}
	return ""
}

// httpClient follows no redirect: a token must not go where somebody else points to.
func (s *session) httpClient() http.Client {
	return http.Client{
		Timeout:       s.timeout,
		Transport:     cloud.LimitAnswers(cloud.NewTransport(s.login.tls, 100), maxAnswer),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// retryReads tries a read again that went wrong in passing. A change is never repeated: it may have been made.
func retryReads(ctx context.Context, method, _ string, _ *gophercloud.RequestOpts, err error, failures uint) error {
	var answer gophercloud.ErrUnexpectedResponseCode
	switch {
	case method != http.MethodGet, failures > retries, ctx.Err() != nil, cloud.IsTooLarge(err),
		errors.As(err, &answer) && (answer.Actual < 500 || cloud.RetryAfter(answer.ResponseHeader, time.Now()) > 0):
		return err
	}
	if !elapsed.Sleep(ctx, retryDelay<<(failures-1)) {
		return err
	}
	return nil
}

// find looks the services up in the catalog, and agrees with Nova on a microversion.
func (s *session) find(ctx context.Context, p *gophercloud.ProviderClient, catalog *tokens.ServiceCatalog) (*clients, error) {
	c := clients{project: projectOf(p)}
	for _, service := range []struct {
		into *(*gophercloud.ServiceClient)
		kind string
		base string // what follows the address, unless it is there
	}{
		{&c.compute, "compute", ""}, {&c.image, "image", "v2/"}, {&c.network, "network", "v2.0/"},
	} {
		address, err := s.endpoint(catalog, service.kind)
		if err != nil {
			return nil, err
		}
		client := &gophercloud.ServiceClient{ProviderClient: p, Endpoint: gophercloud.NormalizeURL(address), Type: service.kind}
		if service.base != "" && !strings.HasSuffix(client.Endpoint, "/"+service.base) {
			client.ResourceBase = client.Endpoint + service.base
		}
		*service.into = client
	}
	version, err := negotiate(ctx, p, c.compute.Endpoint)
	if err != nil {
		return nil, err
	}
	c.compute.Microversion = version
	return &c, nil
}

// serviceTypes are the names of a service in catalogs, the official one first.
func serviceTypes(kind string) []string {
	if kind == "network" {
		return []string{"network", "networking"}
	}
	return []string{kind}
}

// endpoint finds the address of a service in the region. Without a region there has to be one only.
func (s *session) endpoint(catalog *tokens.ServiceCatalog, kind string) (string, error) {
	if address := s.endpoints[kind]; address != "" {
		return address, nil
	}
	addresses := map[string]string{} // by region
	for _, entry := range catalog.Entries {
		if !slices.Contains(serviceTypes(kind), entry.Type) {
			continue
		}
		for _, e := range entry.Endpoints {
			if e.Interface == string(s.login.availability) {
				addresses[cmp.Or(e.RegionID, e.Region)] = e.URL
			}
		}
	}
	regions := sortedKeys(addresses)
	switch {
	case len(addresses) == 0:
		return "", invalid("the catalog of Keystone has no %s endpoint of the %s service for this project", s.login.availability, kind)
	case s.login.region == "" && len(addresses) > 1:
		return "", invalid("region: is not given: want one of %s", strings.Join(regions, ", "))
	case s.login.region == "":
		return addresses[regions[0]], nil
	case addresses[s.login.region] == "":
		return "", invalid("region %q: has no %s endpoint of the %s service: want one of %s", s.login.region, s.login.availability, kind,
			strings.Join(regions, ", "))
	}
	return addresses[s.login.region], nil
}

// negotiate gives the newest microversion that both Nova and this package know.
func negotiate(ctx context.Context, p *gophercloud.ProviderClient, endpoint string) (string, error) {
	const doing = "asking Nova for its versions"
	base, err := utils.BaseVersionedEndpoint(endpoint)
	if err != nil {
		return "", invalid("the address of Nova %q: %v", endpoint, err)
	}
	var answer struct {
		Version struct {
			Max string `json:"version"`
		} `json:"version"`
	}
	_, err = p.Request(ctx, http.MethodGet, base, &gophercloud.RequestOpts{JSONResponse: &answer}) //nolint:bodyclose // it has been read
	if err != nil {
		return "", ofAPI(doing, err)
	}
	if answer.Version.Max == "" {
		return "", invalid("the Nova at %s knows no microversions: want the endpoint of version 2.1", base)
	}
	major, minor, err := utils.ParseMicroversion(answer.Version.Max)
	if err != nil {
		return "", fmt.Errorf("%s: %q: %w", doing, answer.Version.Max, err)
	}
	if major != 2 || minor < oldestMicroversion {
		return "", invalid("the Nova at %s knows microversions up to %s: want 2.%d (OpenStack Stein) or newer", base,
			answer.Version.Max, oldestMicroversion)
	}
	return "2." + strconv.Itoa(min(minor, newestMicroversion)), nil
}

// listing is a list of a service's, which it gives in pages.
type listing[T any] struct {
	path, key string
	query     url.Values
	size      int // of a page
	id        func(*T) string
	// moving says of an item that it may move on while a page is made: Nova reads what waits to be scheduled before what its
	// cells have, counts a server that goes over twice towards the page, and then gives a short one without a next. Such a
	// page is not taken for the last. Nil where nothing moves.
	moving func(*T) bool
	// offset asks for pages by how many items came before, as for server groups. Such pages do not say whether another one
	// follows: an empty page is the last.
	offset bool
}

// listAll reads every page of a list, and every item of a page: all of them or an error (I7). The next page is asked for
// by the last ID, and not where the answer points to: that may be an address which only the service itself can reach,
// and the token would go there. What comes twice, as a server that moves while it is the last of a page, is there once.
func listAll[T any](ctx context.Context, c *gophercloud.ServiceClient, l listing[T]) ([]T, error) {
	var all []T
	seen := map[string]bool{}
	query := url.Values{"limit": {strconv.Itoa(l.size)}}
	maps.Copy(query, l.query)
	for {
		var page map[string]json.RawMessage
		address := c.ServiceURL(l.path) + "?" + query.Encode()
		_, err := c.Get(ctx, address, &page, &gophercloud.RequestOpts{ //nolint:bodyclose // it has been read
			OkCodes: []int{http.StatusOK, http.StatusNonAuthoritativeInfo},
		})
		if err != nil {
			return nil, ofAPI("listing "+l.key, err)
		}
		var items []T
		if err := json.Unmarshal(page[l.key], &items); err != nil || items == nil {
			return nil, fmt.Errorf("listing %s: %w: a page has no list of them", l.key, errIncomplete)
		}
		next := len(items) > 0 && hasNext(page, l.key)
		fresh := slices.DeleteFunc(items, func(item T) bool { return seen[l.id(&item)] })
		switch {
		case len(fresh) == 0 && next:
			return nil, fmt.Errorf("listing %s: %w: the page after %q begins there again", l.key, errIncomplete, query.Get("marker"))
		case len(fresh) == 0:
			return all, nil
		}
		for i := range fresh {
			seen[l.id(&fresh[i])] = true
		}
		all = append(all, fresh...)
		if l.offset {
			query.Set("offset", strconv.Itoa(len(all)))
			continue
		}
		if !next && !l.moves(fresh) {
			return all, nil
		}
		query.Set("marker", l.id(&fresh[len(fresh)-1]))
	}
}

// moves reports whether one of them may be moving.
func (l listing[T]) moves(items []T) bool {
	for i := range items {
		if l.moving != nil && l.moving(&items[i]) {
			return true
		}
	}
	return false
}

// hasNext reports whether a page says that there is another one: Nova and Neutron in KEY_links, Glance in next.
func hasNext(page map[string]json.RawMessage, key string) bool {
	var links []struct {
		Rel string `json:"rel"`
	}
	var next string
	_ = json.Unmarshal(page[key+"_links"], &links) // what is not there has no next
	_ = json.Unmarshal(page["next"], &next)
	for _, l := range links {
		if l.Rel == "next" {
			return true
		}
	}
	return next != ""
}
