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
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/utils"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	// maxResponseSize limits the size of a response in bytes. A page of 1000 servers needs a tenth of it.
	maxResponseSize = 32 << 20
	// maxRetries and retryDelay cover short failures of reads. The caller decides about longer ones.
	maxRetries = 2
	retryDelay = 250 * time.Millisecond
	// authRetryDelay is the delay before a refused credential is tried again, because Keystone may lock the user.
	authRetryDelay = 30 * time.Second

	// newestMicroversion is the newest microversion of Nova that this package supports. 2.90 returns the host name.
	newestMicroversion = 90
	// oldestMicroversion is the first one with a list that includes the servers of a cell that is down. Older versions
	// (OpenStack Rocky and before) omit them silently, which would violate I7.
	oldestMicroversion = 69
)

// clients holds the clients of the OpenStack services for one project.
type clients struct {
	compute, image, network *gophercloud.ServiceClient
	project                 string // project ID; empty if Keystone does not return it
}

// session holds the token for OpenStack. It authenticates on first use, and again when a service rejects the token.
type session struct {
	login     *login
	reload    func() (*login, error) // reads the configuration again
	endpoints map[string]string
	timeout   time.Duration

	reloadLock sync.Mutex
	auth       gophercloud.AuthOptions // that reload has returned last

	authLock      chan struct{} // mutex for authentication: holds one value
	cachedClients *clients
	// authError is the error of a rejected credential, until is the time of the next attempt.
	authError error
	retryAt   time.Time
}

func newSession(c *Config, l *login) *session {
	return &session{login: l, auth: l.auth, reload: c.resolveLogin, endpoints: c.Endpoints, timeout: c.requestTimeout(), authLock: make(chan struct{}, 1)}
}

// authenticatedClients returns the service clients. Before the first use it authenticates.
func (s *session) authenticatedClients(ctx context.Context) (*clients, error) {
	select {
	case s.authLock <- struct{}{}:
		defer func() { <-s.authLock }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.cachedClients != nil {
		return s.cachedClients, nil
	}
	if s.authError != nil && time.Now().Before(s.retryAt) {
		return nil, s.authError
	}
	c, err := s.authenticate(ctx)
	if cloud.RefusalOf(err) == cloud.NoRight {
		s.authError, s.retryAt = err, time.Now().Add(authRetryDelay)
	}
	if err != nil {
		return nil, err
	}
	s.cachedClients, s.authError = c, nil
	return c, nil
}

func (s *session) authenticate(ctx context.Context) (*clients, error) {
	provider, err := openstack.NewClient(s.login.auth.IdentityEndpoint)
	if err != nil {
		return nil, newInvalidError("auth_url %q: %v", s.login.auth.IdentityEndpoint, err)
	}
	provider.UserAgent.Prepend("slipway")
	provider.UseTokenLock()
	provider.HTTPClient = s.httpClient()
	provider.RetryFunc = retryReads
	if err := openstack.Authenticate(ctx, provider, s.reloadedOrPreviousAuth()); err != nil {
		return nil, fromAPIError("authenticating at Keystone", err)
	}
	provider.ReauthFunc = s.newReauthFunc(provider)
	result, ok := provider.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return nil, newInvalidError("auth_url %q: want Keystone version 3", s.login.auth.IdentityEndpoint)
	}
	catalog, err := result.ExtractServiceCatalog()
	if err != nil {
		return nil, fmt.Errorf("authenticating at Keystone: parsing the catalog: %w", err)
	}
	return s.newClients(ctx, provider, catalog)
}

// reloadedOrPreviousAuth reads the credential again, because a user may have replaced it. If the file cannot be read,
// it returns the previous credential. A file may be unreadable while a user writes it.
func (s *session) reloadedOrPreviousAuth() gophercloud.AuthOptions {
	s.reloadLock.Lock()
	defer s.reloadLock.Unlock()
	if l, err := s.reload(); err == nil {
		s.auth = l.auth
	}
	return s.auth
}

// newReauthFunc returns a function that renews a token. Calls of this function do not overlap. After a rejected
// credential the function fails until authRetryDelay has passed. It refuses a credential of another project. With that
// credential, this project's servers would appear to be gone (I7: unknown is not gone).
func (s *session) newReauthFunc(p *gophercloud.ProviderClient) func(context.Context) error {
	var refused error
	var until time.Time
	return func(ctx context.Context) error {
		if time.Now().Before(until) {
			return refused
		}
		renewed, err := openstack.NewClient(s.login.auth.IdentityEndpoint)
		if err != nil {
			return err
		}
		renewed.UserAgent, renewed.HTTPClient, renewed.RetryFunc = p.UserAgent, p.HTTPClient, p.RetryFunc
		auth := s.reloadedOrPreviousAuth()
		auth.AllowReauth = false
		if err := openstack.Authenticate(ctx, renewed, auth); err != nil {
			if gophercloud.ResponseCodeIs(err, http.StatusUnauthorized) {
				refused, until = err, time.Now().Add(authRetryDelay)
			}
			return err
		}
		if oldProject, newProject := projectIDOf(p), projectIDOf(renewed); newProject != oldProject {
			refused = newInvalidError("the new credential is of project %q: want project %q, or restart the process", newProject, oldProject)
			until = time.Now().Add(authRetryDelay)
			return refused
		}
		p.CopyTokenFrom(renewed)
		return nil
	}
}

// projectIDOf returns the project ID of a client's token. It returns "" if Keystone does not report the project.
func projectIDOf(p *gophercloud.ProviderClient) string {
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
		Transport:     cloud.LimitResponses(cloud.NewTransport(s.login.tls, 100), maxResponseSize),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// retryReads waits and returns nil if gophercloud should retry a failed GET. Otherwise it returns err. A change is
// never retried, because it may have succeeded.
func retryReads(ctx context.Context, method, _ string, _ *gophercloud.RequestOpts, err error, failures uint) error {
	var answer gophercloud.ErrUnexpectedResponseCode
	switch {
	case method != http.MethodGet, failures > maxRetries, ctx.Err() != nil, cloud.IsResponseTooLarge(err),
		errors.As(err, &answer) && (answer.Actual < 500 || cloud.ParseRetryAfter(answer.ResponseHeader, time.Now()) > 0):
		return err
	}
	if !elapsed.Sleep(ctx, retryDelay<<(failures-1)) {
		return err
	}
	return nil
}

// newClients returns the service clients for the endpoints in the catalog. It uses the newest microversion of Nova that
// both sides support.
func (s *session) newClients(ctx context.Context, p *gophercloud.ProviderClient, catalog *tokens.ServiceCatalog) (*clients, error) {
	c := clients{project: projectIDOf(p)}
	for _, service := range []struct {
		into *(*gophercloud.ServiceClient)
		kind string
		base string // path after the endpoint, unless it is part of it
	}{
		{&c.compute, "compute", ""}, {&c.image, "image", "v2/"}, {&c.network, "network", "v2.0/"},
	} {
		address, err := s.findEndpoint(catalog, service.kind)
		if err != nil {
			return nil, err
		}
		client := &gophercloud.ServiceClient{ProviderClient: p, Endpoint: gophercloud.NormalizeURL(address), Type: service.kind}
		if service.base != "" && !strings.HasSuffix(client.Endpoint, "/"+service.base) {
			client.ResourceBase = client.Endpoint + service.base
		}
		*service.into = client
	}
	version, err := negotiateMicroversion(ctx, p, c.compute.Endpoint)
	if err != nil {
		return nil, err
	}
	c.compute.Microversion = version
	return &c, nil
}

// catalogTypes returns the names that a service can have in the catalog, the official name first.
func catalogTypes(kind string) []string {
	if kind == "network" {
		return []string{"network", "networking"}
	}
	return []string{kind}
}

// findEndpoint returns the URL of a service in the configured region. If no region is configured, the catalog must have
// exactly one.
func (s *session) findEndpoint(catalog *tokens.ServiceCatalog, kind string) (string, error) {
	if address := s.endpoints[kind]; address != "" {
		return address, nil
	}
	addresses := map[string]string{} // by region
	for _, entry := range catalog.Entries {
		if !slices.Contains(catalogTypes(kind), entry.Type) {
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
		return "", newInvalidError("the catalog of Keystone has no %s endpoint of the %s service for this project", s.login.availability, kind)
	case s.login.region == "" && len(addresses) > 1:
		return "", newInvalidError("region: is not set: want one of %s", strings.Join(regions, ", "))
	case s.login.region == "":
		return addresses[regions[0]], nil
	case addresses[s.login.region] == "":
		return "", newInvalidError("region %q: has no %s endpoint of the %s service: want one of %s", s.login.region, s.login.availability, kind,
			strings.Join(regions, ", "))
	}
	return addresses[s.login.region], nil
}

// negotiateMicroversion returns the newest microversion that both Nova and this package support.
func negotiateMicroversion(ctx context.Context, p *gophercloud.ProviderClient, endpoint string) (string, error) {
	const action = "reading the versions of Nova"
	base, err := utils.BaseVersionedEndpoint(endpoint)
	if err != nil {
		return "", newInvalidError("the endpoint of Nova %q: %v", endpoint, err)
	}
	var answer struct {
		Version struct {
			Max string `json:"version"`
		} `json:"version"`
	}
	_, err = p.Request(ctx, http.MethodGet, base, &gophercloud.RequestOpts{JSONResponse: &answer}) //nolint:bodyclose // it has been read
	if err != nil {
		return "", fromAPIError(action, err)
	}
	if answer.Version.Max == "" {
		return "", newInvalidError("Nova at %s has no microversions: want the endpoint of version 2.1", base)
	}
	major, minor, err := utils.ParseMicroversion(answer.Version.Max)
	if err != nil {
		return "", fmt.Errorf("%s: %q: %w", action, answer.Version.Max, err)
	}
	if major != 2 || minor < oldestMicroversion {
		return "", newInvalidError("Nova at %s supports microversions up to %s: want 2.%d (OpenStack Stein) or newer", base,
			answer.Version.Max, oldestMicroversion)
	}
	return "2." + strconv.Itoa(min(minor, newestMicroversion)), nil
}

// pagedList describes how to read a list of a service page by page.
type pagedList[T any] struct {
	path, key string
	query     url.Values
	pageSize  int // page size
	idOf      func(*T) string
	// isMoving reports whether an item can move while a page is built. Nova reads unscheduled servers first, then
	// the servers of the cells. It counts a server that moves twice, and returns a short page without a next link. Such a
	// page is not the last one. Nil if items never move.
	isMoving func(*T) bool
	// byOffset requests pages by offset, as for server groups. Such pages have no next link; the first empty page is the
	// end.
	byOffset bool
}

// listAllPages reads all pages of a list. It returns all items, or an error if a page is missing (I7: unknown is not
// gone). It requests the next page by the last ID. The link in a response may lead to an internal address, and
// following it would send the token there. Duplicates are removed, because a server can move while it is the last item
// of a page.
func listAllPages[T any](ctx context.Context, c *gophercloud.ServiceClient, l pagedList[T]) ([]T, error) {
	var all []T
	seen := map[string]bool{}
	query := url.Values{"limit": {strconv.Itoa(l.pageSize)}}
	maps.Copy(query, l.query)
	for {
		var page map[string]json.RawMessage
		address := c.ServiceURL(l.path) + "?" + query.Encode()
		_, err := c.Get(ctx, address, &page, &gophercloud.RequestOpts{ //nolint:bodyclose // it has been read
			OkCodes: []int{http.StatusOK, http.StatusNonAuthoritativeInfo},
		})
		if err != nil {
			return nil, fromAPIError("listing "+l.key, err)
		}
		var items []T
		if err := json.Unmarshal(page[l.key], &items); err != nil || items == nil {
			return nil, fmt.Errorf("listing %s: %w: a page has no such list", l.key, errIncomplete)
		}
		next := len(items) > 0 && hasNextLink(page, l.key)
		newItems := slices.DeleteFunc(items, func(item T) bool { return seen[l.idOf(&item)] })
		switch {
		case len(newItems) == 0 && next:
			return nil, fmt.Errorf("listing %s: %w: the page after %q repeats earlier items", l.key, errIncomplete, query.Get("marker"))
		case len(newItems) == 0:
			return all, nil
		}
		for i := range newItems {
			seen[l.idOf(&newItems[i])] = true
		}
		all = append(all, newItems...)
		if l.byOffset {
			query.Set("offset", strconv.Itoa(len(all)))
			continue
		}
		if !next && !l.anyMoving(newItems) {
			return all, nil
		}
		query.Set("marker", l.idOf(&newItems[len(newItems)-1]))
	}
}

// anyMoving reports whether any item can move to another page while the list is read.
func (l pagedList[T]) anyMoving(items []T) bool {
	for i := range items {
		if l.isMoving != nil && l.isMoving(&items[i]) {
			return true
		}
	}
	return false
}

// hasNextLink reports whether a page has a link to the next page. Nova and Neutron use the key KEY_links, Glance uses
// next.
func hasNextLink(page map[string]json.RawMessage, key string) bool {
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
