// Package cloudpool implements [cloud.Provider] for servers of the cloudpool REST API, version 5. Such a server keeps a
// group of machines in a cloud at a desired size.
//
// # Proof of deletion
//
// The API can only list all machines, as the server last observed them in its cloud. The observation has a timestamp
// and may be minutes old. So a machine counts as gone only if the server reports it as terminated, or if an observation
// lacks it and a later one too. Until then the provider returns [cloud.ThrottledError], because unknown is not gone (I7).
// If the server's clock is set back, the wait for a later observation starts again.
//
// # Deletion
//
// The server terminates a machine and decreases the desired size by one, unless a replacement is wanted. It checks each
// request against its last observation, which is old. So the same request twice decreases the desired size twice, and
// the server then removes another machine. To prevent this, the provider does not terminate a machine twice within
// [Config].SettleTime. After its start it terminates nothing before it has read a newer observation. That observation
// shows the terminations of an earlier process.
//
// The desired size is current, and decreases with each termination. So if it is lower than the number of active
// machines, the observation may list a machine that another process has terminated. The provider then waits until the
// difference has lasted for [Config].SettleTime.
//
// # Confirmation of a Node
//
// The name of a machine is the last part of its ID. The computer name comes from the cloud's metadata, see
// [PoolConfig].ComputerName.
package cloudpool

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
)

// Name is the name of the provider.
const Name = "cloudpool"

// Options configures a Provider in addition to Config.
type Options struct {
	// Lock makes one process at a time increase a pool's desired size, because the API cannot do this without a race.
	// Nil locks only the callers of this Provider, which is enough if a single process does it.
	Lock func(ctx context.Context, pool string) (unlock func(), err error)
	// Wrap, if set, wraps the transport, for metrics.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Log may be nil.
	Log *slog.Logger
}

// Provider is the [cloud.Provider] of all configured pools.
type Provider struct {
	config Config
	lock   func(context.Context, string) (func(), error)
	http   *http.Client
	log    *slog.Logger

	mu    sync.Mutex
	pools map[string]*pool // known pools by name
	// hasListedPools has the URLs of the servers with several pools that have listed a pool with a valid name.
	hasListedPools map[string]bool
	// missing has the requested machines that an observation lacked, and that no later observation has listed.
	missing map[string]lackingObservations
	// terminated has the machines with an accepted termination.
	terminated map[string]termination
	// lastSeen has the pool of each machine, from the latest observations.
	lastSeen map[string]sighting
}

// sighting holds the pool that last listed a machine, and the time of that read.
type sighting struct {
	pool *pool
	at   time.Time
}

var (
	_ cloud.Provider                   = (*Provider)(nil)
	_ cloud.DeletionProtectionReporter = (*Provider)(nil)
	_ cloud.SizePreservingDeleter      = (*Provider)(nil)
)

type pool struct {
	name     string
	config   PoolConfig
	url      *url.URL
	client   *wire.Client
	sizeLock sync.Mutex // locked while the desired size changes
	// unlisted means that a server with several pools no longer lists this pool. prunedAt is when old entries of this
	// pool were last removed from Provider.lastSeen. Both are guarded by Provider.mu.
	unlisted bool
	prunedAt time.Time

	mu sync.Mutex
	// firstObservation is the newest observation when this provider first read the pool, by the server's current clock.
	firstObservation time.Time
	surplus          surplus
}

// lackingObservations holds the time of the first observation that lacked a machine, by name of the pool.
type lackingObservations map[string]time.Time

// termination is a termination of a machine that a server has accepted, or may have accepted.
type termination struct {
	// failed is the server's error, or says that the machine was still alive after SettleTime; nil if there is no error.
	// After the server's error its cloud may have received the request anyway.
	failed error
	// unanswered means that there was no valid answer. The server may have accepted the termination.
	unanswered bool
	// sending means that the request has not ended. A slow server may carry it out at any time until then.
	sending bool
	period  settlePeriod
	at      time.Time // when the request was sent, or when it ended
}

// New validates the configuration and returns a provider. It makes no request.
func New(c Config, o Options) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	transport, err := c.Transport()
	if err != nil {
		return nil, err
	}
	if o.Wrap != nil {
		transport = o.Wrap(transport)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{
		config: c, lock: o.Lock, log: o.Log.With("provider", Name), pools: map[string]*pool{}, hasListedPools: map[string]bool{},
		missing: map[string]lackingObservations{}, terminated: map[string]termination{}, lastSeen: map[string]sighting{},
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	for _, pool := range c.Pools {
		if !pool.Multi {
			u, err := ParseURL(pool.URL)
			if err != nil {
				return nil, err
			}
			p.pools[pool.Name] = p.newPool(pool.Name, pool, u)
		}
	}
	return p, nil
}

func (p *Provider) newPool(name string, c PoolConfig, u *url.URL) *pool {
	return &pool{name: name, config: c, url: u, client: wire.NewClient(u, p.http, p.config.requestTimeout())}
}

// Name returns "cloudpool".
func (p *Provider) Name() string { return Name }

// ReportsDeletionProtection shows that this provider reports deletion protection. A machine is protected if it is not
// evictable.
func (p *Provider) ReportsDeletionProtection() {}

// Normalize returns the provider ID without region and zone, because the Node or the cloudpool may not report them. It
// returns an error for an ID of another cloud.
func (p *Provider) Normalize(providerID string) (string, error) {
	id, err := p.parseID(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// parseID parses the provider ID of a machine. It returns an error if no configured pool can have this machine.
func (p *Provider) parseID(providerID string) (providerid.ID, error) {
	id, err := providerid.Parse(providerID)
	if err != nil {
		return id, &cloud.RefusedError{Reason: cloud.Invalid, Err: err}
	}
	for _, c := range p.config.Pools {
		if c.Scope == "" || id.Scope == "" || c.Scope == id.Scope {
			return id, nil
		}
	}
	return id, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
		"provider ID %s: its scope is %s: want a scope of cloudpool.pools[].scope", providerID, id.Scope)}
}

// Client returns the client of a pool. It returns a [*cloud.NotFoundError] for an unknown pool.
func (p *Provider) Client(ctx context.Context, group string) (*wire.Client, error) {
	found, err := p.findPool(ctx, group)
	if err != nil {
		return nil, err
	}
	return found.client, nil
}

// URL returns the URL of a pool. It returns a [*cloud.NotFoundError] for an unknown pool.
func (p *Provider) URL(ctx context.Context, group string) (*url.URL, error) {
	found, err := p.findPool(ctx, group)
	if err != nil {
		return nil, err
	}
	return found.url, nil
}

// ComputerNamePath returns the configured path of the host name in the metadata of a pool's machines, see [PoolConfig].
// It returns a [*cloud.NotFoundError] for an unknown pool.
func (p *Provider) ComputerNamePath(ctx context.Context, group string) (path string, err error) {
	found, err := p.findPool(ctx, group)
	if err != nil {
		return "", err
	}
	return found.config.ComputerName, nil
}

// Transport returns the HTTP transport for requests to the servers. The transport adds the credentials.
func (p *Provider) Transport() http.RoundTripper { return p.http.Transport }

// findPool returns the pool with the given name. If the name is unknown, findPool first reads the lists of the servers
// with several pools.
func (p *Provider) findPool(ctx context.Context, name string) (*pool, error) {
	p.mu.Lock()
	found := p.pools[name]
	p.mu.Unlock()
	if found != nil {
		return found, nil
	}
	if err := p.discoverPools(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if found = p.pools[name]; found == nil {
		return nil, &cloud.NotFoundError{Kind: "group", Name: name}
	}
	return found, nil
}

// listPools returns all pools.
func (p *Provider) listPools(ctx context.Context) ([]*pool, error) {
	if err := p.discoverPools(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var pools []*pool
	for _, pool := range p.pools {
		pools = append(pools, pool)
	}
	return pools, nil
}

// discoverPools reads the lists of the servers with several pools. It keeps a pool that a server no longer lists,
// because the pool's machines may still exist.
func (p *Provider) discoverPools(ctx context.Context) error {
	for _, c := range p.config.Pools {
		if !c.Multi {
			continue
		}
		u, err := ParseURL(c.URL)
		if err != nil {
			return err
		}
		names, err := wire.NewClient(u, p.http, p.config.requestTimeout()).Pools(ctx)
		if err != nil {
			return toProviderError("pools", err)
		}
		p.mu.Lock()
		for name, pool := range p.pools {
			if pool.config.Multi && pool.config.URL == c.URL {
				pool.unlisted = !slices.Contains(names, name)
			}
		}
		for _, name := range names {
			if !groupNamePattern.MatchString(name) {
				continue
			}
			p.hasListedPools[c.URL] = true
			if p.pools[name] == nil {
				p.pools[name] = p.newPool(name, c, u.JoinPath("cloudpools", name))
			}
		}
		p.mu.Unlock()
	}
	return nil
}

// Groups returns the names of all pools.
func (p *Provider) Groups(ctx context.Context) ([]string, error) {
	pools, err := p.listPools(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(pools))
	for _, pool := range pools {
		names = append(names, pool.name)
	}
	slices.Sort(names)
	return names, nil
}
