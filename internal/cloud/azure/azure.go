// Package azure is the provider of virtual machine scale sets, uniform and flexible, of AKS agent pools, and of virtual
// machines on their own.
//
// What is known of Azure Resource Manager (ARM) is from its REST reference and its asynchronous operations page
// (https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations), and from the SDK's models.
//
// # Who deletes
//
// An instance of a scale set is deleted in the scale set, which lowers its capacity by as many. A machine of an agent
// pool that the configuration lists is deleted by AKS (agentPools/…/deleteMachines), which keeps AKS's own count right.
// A machine on its own is deleted as what it is: Azure deletes its disks and network interfaces with it if their
// deleteOption is Delete, and those that stay are logged. Deletions of one group that come within [Config].BatchWindow are
// one request, whose outcome is looked up for each machine.
//
// # What is remembered
//
// Which machine is in which agent pool under which name, which never changes. Whether a machine exists, and in which
// state, is asked each time. What the credential may do is remembered for three minutes at most, see rights.go. The status of an
// operation is remembered for as long as deletions are gathered, 1 s at the most: all instances of one request have one operation.
package azure

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// Name is the provider's.
const Name = "azure"

// Options are what a Provider is given beside its configuration.
type Options struct {
	// Credential takes the place of the one that Config.Auth names.
	Credential azcore.TokenCredential
	// Transport, if set, carries all requests in place of one over the network.
	Transport http.RoundTripper
	// Log is discarded when nil.
	Log *slog.Logger
}

// Provider is one Azure subscription. It implements [cloud.Provider],
// [cloud.RightsChecker], [cloud.Keeper] and [cloud.GoneProver].
type Provider struct {
	config  Config
	log     *slog.Logger
	clients *clients
	groups  []group // of the configuration
	deletes *batcher
	rights  *grantCache
	// statuses are the last answers of operations.
	statuses statusReads

	mu sync.Mutex
	// members says which machine of an agent pool is which, by the machine's ID.
	members map[string]member
	// modes are the settings of agent pools that keep their machines, by group.
	modes map[string]poolMode
	// reads are the last reads of machines by Instance, by the machine's ID.
	reads map[string]read
	// growing is held by group while its size is changed.
	growing map[string]*sync.Mutex
}

var (
	_ cloud.Provider   = (*Provider)(nil)
	_ cloud.GoneProver = (*Provider)(nil)
	_ cloud.Keeper     = (*Provider)(nil)
)

// New checks the configuration and makes a provider. It asks nothing of Azure yet.
func New(c Config, o Options) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	clients, err := newClients(&c, o)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{
		config: c, log: o.Log.With("provider", Name), clients: clients,
		members: map[string]member{}, modes: map[string]poolMode{}, reads: map[string]read{}, growing: map[string]*sync.Mutex{},
	}
	for _, g := range c.Groups {
		p.groups = append(p.groups, p.configured(g))
	}
	p.deletes = &batcher{
		window: c.batchWindow(), limit: clients.requestBudget, send: p.deleteBatch, pending: map[string]*batch{},
	}
	p.statuses.holds = min(c.batchWindow(), maxStatusHolds)
	p.rights = &grantCache{ask: p.grantsOn, limit: c.requestTimeout(), scopes: map[string]*knownGrants{}}
	return p, nil
}

// Name is "azure".
func (p *Provider) Name() string { return Name }

// Normalize gives the ID in lower case.
func (p *Provider) Normalize(providerID string) (string, error) {
	id, err := p.own(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// own reads the ID of a machine of this subscription.
func (p *Provider) own(providerID string) (providerid.ID, error) {
	id, err := providerid.Parse(providerID)
	if err != nil {
		return id, &cloud.RefusedError{Reason: cloud.Invalid, Err: err}
	}
	if !strings.EqualFold(id.Subscription, p.config.Subscription) {
		return id, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"provider ID %s: is of subscription %s; want %s, the one that azure is configured for",
			id, id.Subscription, p.config.Subscription)}
	}
	return id, nil
}

// Group reads a scale set or an agent pool.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	g, err := p.group(name)
	if err != nil {
		return cloud.Group{}, err
	}
	if g.isPool() {
		pool, err := p.getPool(ctx, g)
		if err != nil {
			return cloud.Group{}, err
		}
		return p.poolGroup(ctx, g, pool)
	}
	set, err := p.getSet(ctx, g)
	if err != nil {
		return cloud.Group{}, err
	}
	return setGroup(g, set)
}
