// Package azure implements [cloud.Provider] for Azure: uniform and flexible scale sets, AKS agent pools, and single
// virtual machines.
//
// The behavior of Azure Resource Manager (ARM) is taken from its REST reference, from the models of the SDK, and from
// https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations.
//
// # Deletion
//
// - A scale set deletes its own instances and decreases its capacity.
// - AKS deletes the instances of the configured agent pools (agentPools/…/deleteMachines) and decreases the pool's count.
// - A single virtual machine is deleted directly. Azure deletes its disks and network interfaces only if their deleteOption is Delete. The remaining ones are logged.
//
// Deletions of one group within [Config].BatchWindow are one request. The result is read for each instance.
//
// # Caching
//
// - The agent pool of an instance and its name there are cached. They never change.
// - The existence and the state of an instance are read each time.
// - Permissions are cached for at most 3 minutes, see permissions.go.
// - The status of an operation is cached for BatchWindow, but at most 1 second, because all instances of one request share an operation.
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

// Name is the name of the provider.
const Name = "azure"

// Options configures a Provider in addition to Config.
type Options struct {
	// Credential replaces the credential from Config.Auth.
	Credential azcore.TokenCredential
	// Transport replaces the network; for tests.
	Transport http.RoundTripper
	// Log may be nil.
	Log *slog.Logger
}

// Provider is the [cloud.Provider] of one Azure subscription.
type Provider struct {
	config           Config
	log              *slog.Logger
	clients          *clients
	configuredGroups []group // from the configuration
	deletions        *deletionBatcher
	permissions      *permissionCache
	statuses         statusCache

	mu sync.Mutex
	// memberCache caches the agent pool of each instance, by provider ID.
	memberCache map[string]poolMember
	// poolProtections caches whether agent pools protect their instances, by group.
	poolProtections map[string]poolProtection
	// recentReads caches recent reads of instances, by provider ID.
	recentReads map[string]recentRead
	// growLocks has a mutex per group, locked while its size changes.
	growLocks map[string]*sync.Mutex
}

var (
	_ cloud.Provider                   = (*Provider)(nil)
	_ cloud.DeletionVerifier           = (*Provider)(nil)
	_ cloud.DeletionProtectionReporter = (*Provider)(nil)
)

// New validates the configuration and returns a provider. It makes no request.
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
		memberCache: map[string]poolMember{}, poolProtections: map[string]poolProtection{}, recentReads: map[string]recentRead{}, growLocks: map[string]*sync.Mutex{},
	}
	for _, g := range c.Groups {
		p.configuredGroups = append(p.configuredGroups, p.groupFromConfig(g))
	}
	p.deletions = &deletionBatcher{
		window: c.batchWindow(), timeout: clients.maxCallDuration, send: p.deleteBatchOrOneByOne, pending: map[string]*deletionBatch{},
	}
	p.statuses.maxAge = min(c.batchWindow(), maxStatusAge)
	p.permissions = &permissionCache{list: p.listGrants, timeout: c.requestTimeout(), scopes: map[string]*cachedGrants{}}
	return p, nil
}

// Name returns "azure".
func (p *Provider) Name() string { return Name }

// Normalize returns the provider ID in lower case.
func (p *Provider) Normalize(providerID string) (string, error) {
	id, err := p.parseID(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// parseID parses the provider ID of an instance in this subscription.
func (p *Provider) parseID(providerID string) (providerid.ID, error) {
	id, err := providerid.Parse(providerID)
	if err != nil {
		return id, &cloud.RefusedError{Reason: cloud.Invalid, Err: err}
	}
	if !strings.EqualFold(id.Subscription, p.config.Subscription) {
		return id, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"provider ID %s: subscription is %s: want %s, the configured azure subscription",
			id, id.Subscription, p.config.Subscription)}
	}
	return id, nil
}

// Group reads a scale set or an agent pool.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return cloud.Group{}, err
	}
	if g.isPool() {
		pool, err := p.getPool(ctx, g)
		if err != nil {
			return cloud.Group{}, err
		}
		return p.groupOfPool(ctx, g, pool)
	}
	set, err := p.getScaleSet(ctx, g)
	if err != nil {
		return cloud.Group{}, err
	}
	return groupOfScaleSet(g, set)
}
