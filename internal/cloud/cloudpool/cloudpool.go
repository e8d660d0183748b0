// Package cloudpool is the provider of cloudpools: servers of the cloudpool REST API, version 5, which keep a group of
// machines in some cloud at a desired size.
//
// # What is known of a machine
//
// Such a server has one way to ask about machines: all of them, as they were when the server last asked its cloud, which
// may be some minutes ago. The answer carries the time of that observation. So a machine is gone when the server says that
// it has terminated it, or when two observations in a row lack it, the second of which was made after the question
// came up; until then the provider asks to be asked again ([cloud.ThrottledError]), and never guesses (I7).
//
// # Who deletes
//
// A machine is terminated with the desired size lowered by one, unless it is to be replaced. The servers check whether a machine may be terminated
// against the same observation, and so terminate one twice if they are told to, and lower the desired size twice, upon
// which they take some other machine away. So a provider terminates no machine that it has terminated within
// [Config].SettleTime, and none before it has seen an observation that is newer than itself: what a predecessor
// terminated, it then sees.
//
// # Who is confirmed
//
// A machine's name is the last part of its ID. Its computer name is looked for in the metadata that its cloud gives; see
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

// Name is the provider's.
const Name = "cloudpool"

// Options are what a Provider is given beside its configuration.
type Options struct {
	// Lock lets one process at a time change a pool's desired size upwards, which the API cannot do without a race. nil
	// is a lock among the callers of this Provider alone: enough where one process does that.
	Lock func(ctx context.Context, pool string) (unlock func(), err error)
	// Wrap, if set, wraps the transport, so that requests can be measured.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Log is discarded when nil.
	Log *slog.Logger
}

// Provider is the pools of some servers. It implements [cloud.Provider].
type Provider struct {
	config Config
	lock   func(context.Context, string) (func(), error)
	http   *http.Client
	log    *slog.Logger

	mu    sync.Mutex
	pools map[string]*pool // by name, those that are known
	// missing are machines that somebody asked for, and that an observation lacked.
	missing map[string]absence
	// terminated are machines whose termination the servers have taken.
	terminated map[string]termination
	// seen is where machines were last seen, by the pools' latest observations.
	seen map[string]sighting
}

// sighting is where and when a machine was last seen.
type sighting struct {
	pool *pool
	at   time.Time
}

var (
	_ cloud.Provider   = (*Provider)(nil)
	_ cloud.Keeper     = (*Provider)(nil)
	_ cloud.SizeKeeper = (*Provider)(nil)
)

// pool is one pool as this provider knows it.
type pool struct {
	name   string
	config PoolConfig
	url    *url.URL
	client *wire.Client
	size   sync.Mutex // held while the desired size is changed
	// unlisted says that the server of several pools that this is one of does not list it any more, and forgot is when those of its
	// machines were forgotten that had not been seen for long; both are guarded by the Provider's mu.
	unlisted bool
	forgot   time.Time

	mu sync.Mutex
	// first is the observation that was the newest when this provider first read the pool.
	first time.Time
}

// absence is which observation of each pool lacked a machine when it was first asked for.
type absence map[string]time.Time

// termination is one that a server has taken, or may have.
type termination struct {
	// failed is the server's own word that it has failed, which need not mean that its cloud was not asked; nil when it has not
	// said so.
	failed error
	// observed is the observation that the server had then.
	observed time.Time
	at       time.Time
}

// New checks the configuration and makes a provider. It asks nothing of the servers yet.
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
		config: c, lock: o.Lock, log: o.Log.With("provider", Name), pools: map[string]*pool{}, missing: map[string]absence{},
		terminated: map[string]termination{}, seen: map[string]sighting{},
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	for _, one := range c.Pools {
		if !one.Multi {
			u, err := ParseURL(one.URL)
			if err != nil {
				return nil, err
			}
			p.pools[one.Name] = p.newPool(one.Name, one, u)
		}
	}
	return p, nil
}

func (p *Provider) newPool(name string, c PoolConfig, u *url.URL) *pool {
	return &pool{name: name, config: c, url: u, client: wire.NewClient(u, p.http, p.config.requestTimeout())}
}

// Name is "cloudpool".
func (p *Provider) Name() string { return Name }

// KeepsMachines implements [cloud.Keeper]: a machine that is not evictable is kept.
func (p *Provider) KeepsMachines() {}

// Normalize gives the ID without the region or zone that one side of a pair may not know.
func (p *Provider) Normalize(providerID string) (string, error) {
	id, err := p.own(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// own reads the ID of a machine that may be in one of the pools.
func (p *Provider) own(providerID string) (providerid.ID, error) {
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
		"provider ID %s: is in %s; want one of those that cloudpool.pools[].scope names", providerID, id.Scope)}
}

// Client gives the client of a pool: [*cloud.NotFoundError] when there is no such pool.
func (p *Provider) Client(ctx context.Context, group string) (*wire.Client, error) {
	found, err := p.pool(ctx, group)
	if err != nil {
		return nil, err
	}
	return found.client, nil
}

// URL is where a pool is: [*cloud.NotFoundError] when there is no such pool.
func (p *Provider) URL(ctx context.Context, group string) (*url.URL, error) {
	found, err := p.pool(ctx, group)
	if err != nil {
		return nil, err
	}
	return found.url, nil
}

// ComputerName is [PoolConfig].ComputerName of a pool: [*cloud.NotFoundError] when there is no such pool.
func (p *Provider) ComputerName(ctx context.Context, group string) (string, error) {
	found, err := p.pool(ctx, group)
	if err != nil {
		return "", err
	}
	return found.config.ComputerName, nil
}

// Transport is how the servers are reached, with credentials on every request.
func (p *Provider) Transport() http.RoundTripper { return p.http.Transport }

// pool finds a pool by its name; the servers of several are asked for one that is not known yet.
func (p *Provider) pool(ctx context.Context, name string) (*pool, error) {
	p.mu.Lock()
	found := p.pools[name]
	p.mu.Unlock()
	if found != nil {
		return found, nil
	}
	if err := p.discover(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if found = p.pools[name]; found == nil {
		return nil, &cloud.NotFoundError{Kind: "group", Name: name}
	}
	return found, nil
}

// all lists the pools there are.
func (p *Provider) all(ctx context.Context) ([]*pool, error) {
	if err := p.discover(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var pools []*pool
	for _, one := range p.pools {
		pools = append(pools, one)
	}
	return pools, nil
}

// discover asks the servers of several pools which these are. One that is gone from a list stays known: its machines
// may be there still.
func (p *Provider) discover(ctx context.Context) error {
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
			return classify("pools", err)
		}
		p.mu.Lock()
		for name, one := range p.pools {
			if one.config.Multi && one.config.URL == c.URL {
				one.unlisted = !slices.Contains(names, name)
			}
		}
		for _, name := range names {
			if groupName.MatchString(name) && p.pools[name] == nil {
				p.pools[name] = p.newPool(name, c, u.JoinPath("cloudpools", name))
			}
		}
		p.mu.Unlock()
	}
	return nil
}

// Groups lists the names of the pools.
func (p *Provider) Groups(ctx context.Context) ([]string, error) {
	pools, err := p.all(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(pools))
	for _, one := range pools {
		names = append(names, one.name)
	}
	slices.Sort(names)
	return names, nil
}
