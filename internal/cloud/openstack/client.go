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
	// maxAnswer limits the size of a response in bytes. A page of 1000 servers needs a tenth of it.
	maxAnswer = 32 << 20
	// retries and retryDelay cover short failures of reads. The caller decides about longer ones.
	retries    = 2
	retryDelay = 250 * time.Millisecond
	// refusedPause is the delay before a refused credential is tried again, because Keystone may lock the user.
	refusedPause = 30 * time.Second

	// newestMicroversion is the newest microversion of Nova that this package supports. 2.90 returns the host name.
	newestMicroversion = 90
	// oldestMicroversion is the first one with a list that includes the servers of a cell that is down. Older versions
	// (OpenStack Rocky and before) omit them silently, which would violate I7.
	oldestMicroversion = 69
)

// clients are the service clients of one token's project.
type clients struct {
	compute, image, network *gophercloud.ServiceClient
	project                 string // project ID; empty if Keystone does not return it
}

// session authenticates on first use, and renews the token when a service rejects it.
type session struct {
	login     *login
	read      func() (*login, error) // reads the configuration again
	endpoints map[string]string
	timeout   time.Duration

	turn    chan struct{} // mutex for authentication: holds one value
	current *clients
	// refused is the error of a rejected credential, until is the time of the next attempt.
	refused error
	until   time.Time
}

func newSession(c *Config, l *login) *session {
	return &session{login: l, read: c.login, endpoints: c.Endpoints, timeout: c.requestTimeout(), turn: make(chan struct{}, 1)}
}

// clients returns the clients and authenticates first if necessary.
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
		return nil, ofAPI("authenticating at Keystone", err)
	}
	provider.ReauthFunc = s.renewal(provider)
	result, ok := provider.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return nil, invalid("auth_url %q: want Keystone version 3", s.login.auth.IdentityEndpoint)
	}
	catalog, err := result.ExtractServiceCatalog()
	if err != nil {
		return nil, fmt.Errorf("authenticating at Keystone: parsing the catalog: %w", err)
	}
	return s.find(ctx, provider, catalog)
}

// auth reads the credential again, because a user may have replaced it. If the file cannot be read, for example during
// a write, it returns the previous credential.
func (s *session) auth() gophercloud.AuthOptions {
	if l, err := s.read(); err == nil {
		return l.auth
	}
	return s.login.auth
}

// renewal returns the function that renews a token; calls do not overlap. After a rejected credential it waits for
// refusedPause. It refuses a credential of another project, where this project's servers would appear to be gone (I7).
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
			refused = invalid("the new credential is of project %q: want project %q, or restart the process", is, was)
			until = time.Now().Add(refusedPause)
			return refused
		}
		p.CopyTokenFrom(anew)
		return nil
	}
}

// projectOf returns the project ID of a client's token; empty if Keystone does not return it.
func projectOf(p *gophercloud.ProviderClient) string {
	if result, ok := p.GetAuthResult().(tokens.CreateResult); ok {
		if project, err := result.ExtractProject(); err == nil && project != nil {
			return project.ID
		}
	}
	return ""
}

// httpClient returns a client that follows no redirect, so that no other host receives the token.
func (s *session) httpClient() http.Client {
	return http.Client{
		Timeout:       s.timeout,
		Transport:     cloud.LimitAnswers(cloud.NewTransport(s.login.tls, 100), maxAnswer),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// retryReads retries a failed GET. It never repeats a change, which may have succeeded.
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

// find creates the service clients from the catalog and negotiates the microversion of Nova.
func (s *session) find(ctx context.Context, p *gophercloud.ProviderClient, catalog *tokens.ServiceCatalog) (*clients, error) {
	c := clients{project: projectOf(p)}
	for _, service := range []struct {
		into *(*gophercloud.ServiceClient)
		kind string
		base string // path after the endpoint, unless it is part of it
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

// serviceTypes returns the catalog names of a service, the official one first.
func serviceTypes(kind string) []string {
	if kind == "network" {
		return []string{"network", "networking"}
	}
	return []string{kind}
}

// endpoint returns the URL of a service in the configured region. Without a configured region, the catalog must have a
// single one.
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
		return "", invalid("region: is not set: want one of %s", strings.Join(regions, ", "))
	case s.login.region == "":
		return addresses[regions[0]], nil
	case addresses[s.login.region] == "":
		return "", invalid("region %q: has no %s endpoint of the %s service: want one of %s", s.login.region, s.login.availability, kind,
			strings.Join(regions, ", "))
	}
	return addresses[s.login.region], nil
}

// negotiate returns the newest microversion that both Nova and this package support.
func negotiate(ctx context.Context, p *gophercloud.ProviderClient, endpoint string) (string, error) {
	const doing = "reading the versions of Nova"
	base, err := utils.BaseVersionedEndpoint(endpoint)
	if err != nil {
		return "", invalid("the endpoint of Nova %q: %v", endpoint, err)
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
		return "", invalid("Nova at %s has no microversions: want the endpoint of version 2.1", base)
	}
	major, minor, err := utils.ParseMicroversion(answer.Version.Max)
	if err != nil {
		return "", fmt.Errorf("%s: %q: %w", doing, answer.Version.Max, err)
	}
	if major != 2 || minor < oldestMicroversion {
		return "", invalid("Nova at %s supports microversions up to %s: want 2.%d (OpenStack Stein) or newer", base,
			answer.Version.Max, oldestMicroversion)
	}
	return "2." + strconv.Itoa(min(minor, newestMicroversion)), nil
}

// listing describes a paged list of a service.
type listing[T any] struct {
	path, key string
	query     url.Values
	size      int // page size
	id        func(*T) string
	// moving reports whether an item can move while a page is built. Nova reads unscheduled servers first, then
	// the servers of the cells. It counts a server that moves twice, and returns a short page without a next link. Such a
	// page is not the last one. Nil if items never move.
	moving func(*T) bool
	// offset requests pages by offset, as for server groups. Such pages have no next link; the first empty page is the
	// end.
	offset bool
}

// listAll reads all pages of a list and returns all items or an error (I7). It requests the next page by the last ID.
// It does not use the link in the response, which may lead to an internal address, and would send the token there.
// Duplicates are removed, because a server can move while it is the last of a page.
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
			return nil, fmt.Errorf("listing %s: %w: a page has no such list", l.key, errIncomplete)
		}
		next := len(items) > 0 && hasNext(page, l.key)
		fresh := slices.DeleteFunc(items, func(item T) bool { return seen[l.id(&item)] })
		switch {
		case len(fresh) == 0 && next:
			return nil, fmt.Errorf("listing %s: %w: the page after %q repeats earlier items", l.key, errIncomplete, query.Get("marker"))
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

// moves reports whether any of the items may be moving.
func (l listing[T]) moves(items []T) bool {
	for i := range items {
		if l.moving != nil && l.moving(&items[i]) {
			return true
		}
	}
	return false
}

// hasNext reports whether a page has a next link. Nova and Neutron use KEY_links, Glance uses next.
func hasNext(page map[string]json.RawMessage, key string) bool {
	var links []struct {
		Rel string `json:"rel"`
	}
	var next string
	_ = json.Unmarshal(page[key+"_links"], &links) // a missing field means no next page
	_ = json.Unmarshal(page["next"], &next)
	for _, l := range links {
		if l.Rel == "next" {
			return true
		}
	}
	return next != ""
}
