package azure

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/authorization/armauthorization/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// The actions that Azure's roles grant, of the requests that this package makes of groups and machines
// (https://learn.microsoft.com/azure/role-based-access-control/resource-provider-operations).
const (
	computeNamespace = "Microsoft.Compute"
	aksNamespace     = "Microsoft.ContainerService"

	readSet          = computeNamespace + "/virtualMachineScaleSets/read"
	writeSet         = computeNamespace + "/virtualMachineScaleSets/write"
	deleteOfSet      = computeNamespace + "/virtualMachineScaleSets/delete/action"
	readInstance     = computeNamespace + "/virtualMachineScaleSets/virtualMachines/read"
	readVM           = computeNamespace + "/virtualMachines/read"
	removeVM         = computeNamespace + "/virtualMachines/delete"
	readPool         = aksNamespace + "/managedClusters/agentPools/read"
	writePool        = aksNamespace + "/managedClusters/agentPools/write"
	deleteOfPool     = aksNamespace + "/managedClusters/agentPools/deleteMachines/action"
	readPoolMachines = aksNamespace + "/managedClusters/agentPools/machines/read"
)

var _ cloud.RightsChecker = (*Provider)(nil)

// MissingForGroup asks for the rights on a scale set or an agent pool. Those on the scale set below an agent pool show
// when its machines are looked at.
func (p *Provider) MissingForGroup(ctx context.Context, name string) (cloud.GroupRights, error) {
	g, err := p.group(name)
	if err != nil {
		return cloud.GroupRights{}, err
	}
	var needs []need
	growing := need{p.setScope(g.resourceGroup, g.scaleSet), []string{writeSet}}
	if g.isPool() {
		growing = need{p.poolScope(g), []string{writePool}}
		needs = []need{{p.poolScope(g), []string{readPool, readPoolMachines, deleteOfPool}}}
	} else if needs, err = p.needsOfSet(ctx, g); err != nil {
		return cloud.GroupRights{}, err
	}
	var missing cloud.GroupRights
	if missing.ToDelete, err = p.missing(ctx, needs...); err != nil {
		return cloud.GroupRights{}, err
	}
	missing.ToGrow, err = p.missing(ctx, growing)
	return missing, err
}

// needsOfSet knows that the machines of a flexible scale set are listed in the resource group.
func (p *Provider) needsOfSet(ctx context.Context, g group) ([]need, error) {
	set, err := p.getSet(ctx, g)
	if err != nil {
		return nil, err
	}
	if set.Properties == nil {
		return nil, fmt.Errorf("reading %s: %w: it has no properties", g, errIncomplete)
	}
	at := p.setScope(g.resourceGroup, g.scaleSet)
	if value(set.Properties.OrchestrationMode) == armcompute.OrchestrationModeFlexible {
		return []need{{at, []string{readSet, deleteOfSet}}, {p.groupScope(g.resourceGroup), []string{readVM}}}, nil
	}
	return []need{{at, []string{readSet, readInstance, deleteOfSet}}}, nil
}

// MissingToDelete asks for the rights on what would delete the machine; see the package's comment for what that is.
func (p *Provider) MissingToDelete(ctx context.Context, providerID string) (cloud.Rights, error) {
	id, err := p.own(providerID)
	if err != nil {
		return nil, err
	}
	needs, err := p.needsOfDeletion(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.missing(ctx, needs...)
}

func (p *Provider) needsOfDeletion(ctx context.Context, id providerid.ID) ([]need, error) {
	self := need{p.vmScope(id), []string{readVM}}
	if id.ScaleSet != "" {
		self = need{p.setScope(id.ResourceGroup, id.ScaleSet), []string{readInstance}}
	}
	member, inPool, err := p.member(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case inPool:
		return []need{self, {p.poolScope(member.pool), []string{readPoolMachines, deleteOfPool}}}, nil
	case id.ScaleSet != "":
		return []need{{self.scope, []string{readInstance, deleteOfSet}}}, nil
	}
	m, err := p.recent(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case m.flexible != "":
		return []need{self, {p.setScope(id.ResourceGroup, m.flexible), []string{deleteOfSet}}}, nil
	}
	return []need{{self.scope, []string{readVM, removeVM}}}, nil
}

// need is what is to be allowed on a scope.
type need struct {
	scope   scope
	actions []string
}

// scope is a resource group, or a resource in one.
type scope struct {
	id            string
	resourceGroup string
	// namespace, parent, kind and name are those of a resource; empty for the resource group itself. A resource of a
	// top-level type has no parent.
	namespace, parent, kind, name string
}

func (s scope) key() string { return strings.ToLower(s.id) }

func (p *Provider) groupScope(resourceGroup string) scope {
	return scope{id: "/subscriptions/" + p.config.Subscription + "/resourceGroups/" + resourceGroup, resourceGroup: resourceGroup}
}

func (p *Provider) resourceScope(resourceGroup, namespace, parent, kind, name string) scope {
	s := p.groupScope(resourceGroup)
	s.namespace, s.parent, s.kind, s.name = namespace, parent, kind, name
	s.id = withoutEmptySegments(s.id + "/providers/" + namespace + "/" + parent + "/" + kind + "/" + name)
	return s
}

func (p *Provider) setScope(resourceGroup, set string) scope {
	return p.resourceScope(resourceGroup, computeNamespace, "", "virtualMachineScaleSets", set)
}

func (p *Provider) vmScope(id providerid.ID) scope {
	return p.resourceScope(id.ResourceGroup, computeNamespace, "", "virtualMachines", id.Name)
}

func (p *Provider) poolScope(g group) scope {
	return p.resourceScope(g.resourceGroup, aksNamespace, "managedClusters/"+g.cluster, "agentPools", g.pool)
}

func (p *Provider) missing(ctx context.Context, needs ...need) (cloud.Rights, error) {
	var missing cloud.Rights
	for _, n := range needs {
		lacks, err := p.rights.missing(ctx, n)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacks...)
	}
	return missing, nil
}

// grant is one entry of a credential's permissions: what one of its roles allows.
type grant struct{ actions, notActions []string }

// allows reports whether a role grants an action. What one role leaves out, another may grant
// (https://learn.microsoft.com/azure/role-based-access-control/role-definitions#notactions).
func (g grant) allows(action string) bool {
	return anyMatches(g.actions, action) && !anyMatches(g.notActions, action)
}

func anyMatches(patterns []string, action string) bool {
	for _, pattern := range patterns {
		if matches(pattern, action) {
			return true
		}
	}
	return false
}

// matches compares without regard to letter case. A "*" stands for any text, slashes included.
func matches(pattern, action string) bool {
	parts := strings.Split(strings.ToLower(pattern), "*")
	rest, found := strings.CutPrefix(strings.ToLower(action), parts[0])
	if !found || len(parts) == 1 {
		return found && rest == ""
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		if _, rest, found = strings.Cut(rest, part); !found {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[last])
}

// How long an answer about rights is taken for true. Nobody waits for long for a right that somebody has just given.
const (
	grantsHeld    = 3 * time.Minute // what allowed all that was needed
	grantsLacking = 5 * time.Second // what did not, or no answer
)

// grantCache asks for the permissions on a scope, and remembers them for as long as said above. Callers that come while
// one asks wait for its answer.
type grantCache struct {
	// ask lists the permissions on a scope, within limit.
	ask   func(context.Context, scope) ([]grant, error)
	limit time.Duration

	mu     sync.Mutex
	scopes map[string]*knownGrants
}

type knownGrants struct {
	busy   chan struct{} // takes one value, of the caller that reads or asks
	asked  time.Time
	grants []grant
	err    error
}

// missing lists the actions that no permission on the scope allows.
func (c *grantCache) missing(ctx context.Context, n need) (cloud.Rights, error) {
	known := c.on(n.scope)
	select {
	case known.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("permissions on %s: %w", n.scope.id, context.Cause(ctx))
	}
	defer func() { <-known.busy }()
	age := time.Since(known.asked)
	missing := known.missing(n)
	if age >= grantsHeld || age >= grantsLacking && (known.err != nil || len(missing) > 0) {
		limited, cancel := context.WithTimeout(ctx, c.limit)
		defer cancel()
		grants, err := c.ask(limited, n.scope)
		if ctx.Err() != nil { // which says nothing about the rights
			return nil, fmt.Errorf("permissions on %s: %w", n.scope.id, context.Cause(ctx))
		}
		known.asked, known.grants, known.err = time.Now(), grants, err
		missing = known.missing(n)
	}
	if known.err != nil {
		return nil, known.err
	}
	return missing, nil
}

func (c *grantCache) on(s scope) *knownGrants {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for key, known := range c.scopes { // machines on their own come and go
		select {
		case known.busy <- struct{}{}:
			if now.Sub(known.asked) >= grantsHeld {
				delete(c.scopes, key)
			}
			<-known.busy
		default:
		}
	}
	known := c.scopes[s.key()]
	if known == nil {
		known = &knownGrants{busy: make(chan struct{}, 1)}
		c.scopes[s.key()] = known
	}
	return known
}

func (k *knownGrants) missing(n need) cloud.Rights {
	var missing cloud.Rights
	for _, action := range n.actions {
		allowed := false
		for _, g := range k.grants {
			allowed = allowed || g.allows(action)
		}
		if !allowed {
			missing = append(missing, cloud.Right{Name: action, Scope: n.scope.id})
		}
	}
	return missing
}

// grantsOn asks Azure for the permissions of the credential on a scope, those from above it included
// (https://learn.microsoft.com/rest/api/authorization/permissions). Deny assignments and locks are not among them.
func (p *Provider) grantsOn(ctx context.Context, s scope) (grants []grant, err error) {
	doing := "permissions on " + s.id
	if s.name == "" {
		grants, err = listAll(ctx, doing, p.clients.permissions.NewListForResourceGroupPager(s.resourceGroup, nil),
			func(r armauthorization.PermissionsClientListForResourceGroupResponse) []*armauthorization.Permission {
				return r.Value
			}, ofPermission)
	} else {
		grants, err = listAll(ctx, doing,
			p.clients.permissions.NewListForResourcePager(s.resourceGroup, s.namespace, s.parent, s.kind, s.name, nil),
			func(r armauthorization.PermissionsClientListForResourceResponse) []*armauthorization.Permission {
				return r.Value
			}, ofPermission)
	}
	if err == nil && len(grants) == 0 { // whoever may ask has this one
		err = fmt.Errorf("%s: %w: there is no permission at all", doing, errIncomplete)
	}
	return grants, err
}

func ofPermission(permission *armauthorization.Permission) (grant, error) {
	if permission == nil {
		return grant{}, fmt.Errorf("%w: an entry is empty", errIncomplete)
	}
	return grant{plain(permission.Actions), plain(permission.NotActions)}, nil
}

func plain(list []*string) []string {
	texts := make([]string, 0, len(list))
	for _, text := range list {
		texts = append(texts, value(text))
	}
	return texts
}

// tidyPath takes the empty segment out of a request's path that the SDK leaves where a resource has no parent.
type tidyPath struct{}

func (tidyPath) Do(r *policy.Request) (*http.Response, error) {
	u := r.Raw().URL
	u.Path, u.RawPath = withoutEmptySegments(u.Path), withoutEmptySegments(u.RawPath)
	return r.Next()
}

func withoutEmptySegments(path string) string { return strings.ReplaceAll(path, "//", "/") }
