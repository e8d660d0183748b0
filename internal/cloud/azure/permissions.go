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

// The actions of Azure roles that this package needs
// (https://learn.microsoft.com/azure/role-based-access-control/resource-provider-operations).
const (
	computeNamespace = "Microsoft.Compute"
	aksNamespace     = "Microsoft.ContainerService"

	actionReadScaleSet       = computeNamespace + "/virtualMachineScaleSets/read"
	actionWriteScaleSet      = computeNamespace + "/virtualMachineScaleSets/write"
	actionDeleteInstances    = computeNamespace + "/virtualMachineScaleSets/delete/action"
	actionReadInstance       = computeNamespace + "/virtualMachineScaleSets/virtualMachines/read"
	actionReadVM             = computeNamespace + "/virtualMachines/read"
	actionDeleteVM           = computeNamespace + "/virtualMachines/delete"
	actionReadPool           = aksNamespace + "/managedClusters/agentPools/read"
	actionWritePool          = aksNamespace + "/managedClusters/agentPools/write"
	actionDeletePoolMachines = aksNamespace + "/managedClusters/agentPools/deleteMachines/action"
	actionReadPoolMachines   = aksNamespace + "/managedClusters/agentPools/machines/read"
)

var _ cloud.PermissionChecker = (*Provider)(nil)

// MissingGroupPermissions checks the permissions on a scale set or an agent pool. The permissions on the scale set of an agent
// pool are checked per instance.
func (p *Provider) MissingGroupPermissions(ctx context.Context, name string) (cloud.GroupPermissions, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return cloud.GroupPermissions{}, err
	}
	var needs []requiredActions
	growing := requiredActions{p.scaleSetScope(g.resourceGroup, g.scaleSet), []string{actionWriteScaleSet}}
	if g.isPool() {
		growing = requiredActions{p.poolScope(g), []string{actionWritePool}}
		needs = []requiredActions{{p.poolScope(g), []string{actionReadPool, actionReadPoolMachines, actionDeletePoolMachines}}}
	} else if needs, err = p.requiredActionsForScaleSet(ctx, g); err != nil {
		return cloud.GroupPermissions{}, err
	}
	var missing cloud.GroupPermissions
	if missing.ToDelete, err = p.missingPermissions(ctx, needs...); err != nil {
		return cloud.GroupPermissions{}, err
	}
	missing.ToGrow, err = p.missingPermissions(ctx, growing)
	return missing, err
}

// requiredActionsForScaleSet returns the permissions for a scale set. The instances of a flexible scale set are listed in the resource
// group.
func (p *Provider) requiredActionsForScaleSet(ctx context.Context, g group) ([]requiredActions, error) {
	set, err := p.getScaleSet(ctx, g)
	if err != nil {
		return nil, err
	}
	if set.Properties == nil {
		return nil, fmt.Errorf("reading %s: %w: it has no properties", g, errIncomplete)
	}
	at := p.scaleSetScope(g.resourceGroup, g.scaleSet)
	if deref(set.Properties.OrchestrationMode) == armcompute.OrchestrationModeFlexible {
		return []requiredActions{{at, []string{actionReadScaleSet, actionDeleteInstances}}, {p.resourceGroupScope(g.resourceGroup), []string{actionReadVM}}}, nil
	}
	return []requiredActions{{at, []string{actionReadScaleSet, actionReadInstance, actionDeleteInstances}}}, nil
}

// MissingDeletePermissions checks the permissions on the resource that deletes the instance, see the package comment.
func (p *Provider) MissingDeletePermissions(ctx context.Context, providerID string) (cloud.Permissions, error) {
	id, err := p.parseID(providerID)
	if err != nil {
		return nil, err
	}
	needs, err := p.requiredActionsForDeletion(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.missingPermissions(ctx, needs...)
}

func (p *Provider) requiredActionsForDeletion(ctx context.Context, id providerid.ID) ([]requiredActions, error) {
	self := requiredActions{p.vmScope(id), []string{actionReadVM}}
	if id.ScaleSet != "" {
		self = requiredActions{p.scaleSetScope(id.ResourceGroup, id.ScaleSet), []string{actionReadInstance}}
	}
	member, inPool, err := p.findPoolMember(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case inPool:
		return []requiredActions{self, {p.poolScope(member.pool), []string{actionReadPoolMachines, actionDeletePoolMachines}}}, nil
	case id.ScaleSet != "":
		return []requiredActions{{self.scope, []string{actionReadInstance, actionDeleteInstances}}}, nil
	}
	m, err := p.cachedOrFetchedInstance(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case m.flexible != "":
		return []requiredActions{self, {p.scaleSetScope(id.ResourceGroup, m.flexible), []string{actionDeleteInstances}}}, nil
	}
	return []requiredActions{{self.scope, []string{actionReadVM, actionDeleteVM}}}, nil
}

// requiredActions is a list of actions on a scope.
type requiredActions struct {
	scope   scope
	actions []string
}

// scope is a resource group or a resource in it.
type scope struct {
	id            string
	resourceGroup string
	// namespace, parent, kind and name identify a resource; they are empty for a resource group. A top-level resource
	// has no parent.
	namespace, parent, kind, name string
}

func (s scope) key() string { return strings.ToLower(s.id) }

func (p *Provider) resourceGroupScope(resourceGroup string) scope {
	return scope{id: "/subscriptions/" + p.config.Subscription + "/resourceGroups/" + resourceGroup, resourceGroup: resourceGroup}
}

func (p *Provider) resourceScope(resourceGroup, namespace, parent, kind, name string) scope {
	s := p.resourceGroupScope(resourceGroup)
	s.namespace, s.parent, s.kind, s.name = namespace, parent, kind, name
	s.id = removeEmptySegments(s.id + "/providers/" + namespace + "/" + parent + "/" + kind + "/" + name)
	return s
}

func (p *Provider) scaleSetScope(resourceGroup, set string) scope {
	return p.resourceScope(resourceGroup, computeNamespace, "", "virtualMachineScaleSets", set)
}

func (p *Provider) vmScope(id providerid.ID) scope {
	return p.resourceScope(id.ResourceGroup, computeNamespace, "", "virtualMachines", id.Name)
}

func (p *Provider) poolScope(g group) scope {
	return p.resourceScope(g.resourceGroup, aksNamespace, "managedClusters/"+g.cluster, "agentPools", g.pool)
}

func (p *Provider) missingPermissions(ctx context.Context, needs ...requiredActions) (cloud.Permissions, error) {
	var missing cloud.Permissions
	for _, n := range needs {
		lacks, err := p.permissions.missingActions(ctx, n)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacks...)
	}
	return missing, nil
}

// roleGrant is what one role of a credential allows.
type roleGrant struct{ actions, notActions []string }

// allows reports whether a role grants an action. An action that one role excludes may be granted by another
// (https://learn.microsoft.com/azure/role-based-access-control/role-definitions#notactions).
func (g roleGrant) allows(action string) bool {
	return anyMatchesAction(g.actions, action) && !anyMatchesAction(g.notActions, action)
}

func anyMatchesAction(patterns []string, action string) bool {
	for _, pattern := range patterns {
		if matchesAction(pattern, action) {
			return true
		}
	}
	return false
}

// matchesAction compares case-insensitively. A "*" matches any text, including slashes.
func matchesAction(pattern, action string) bool {
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

// How long a permission check is cached. The short limit makes a newly granted permission effective soon.
const (
	grantedTTL = 3 * time.Minute // if all actions are allowed
	missingTTL = 5 * time.Second // if an action is missing or the read failed
)

// permissionCache reads the permissions on a scope and caches them. Concurrent callers share a read.
type permissionCache struct {
	// list reads the permissions on a scope. It ends after limit.
	list    func(context.Context, scope) ([]roleGrant, error)
	timeout time.Duration

	mu     sync.Mutex
	scopes map[string]*cachedGrants
}

type cachedGrants struct {
	lock   chan struct{} // mutex: holds one value while a caller reads
	readAt time.Time
	grants []roleGrant
	err    error
}

// missingActions lists the actions that no role allows on the scope.
func (c *permissionCache) missingActions(ctx context.Context, n requiredActions) (cloud.Permissions, error) {
	known := c.getOrCreateGrants(n.scope)
	select {
	case known.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("permissions on %s: %w", n.scope.id, context.Cause(ctx))
	}
	defer func() { <-known.lock }()
	age := time.Since(known.readAt)
	missing := known.missingActions(n)
	if age >= grantedTTL || age >= missingTTL && (known.err != nil || len(missing) > 0) {
		limited, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		grants, err := c.list(limited, n.scope)
		if ctx.Err() != nil { // the error says nothing about permissions
			return nil, fmt.Errorf("permissions on %s: %w", n.scope.id, context.Cause(ctx))
		}
		known.readAt, known.grants, known.err = time.Now(), grants, err
		missing = known.missingActions(n)
	}
	if known.err != nil {
		return nil, known.err
	}
	return missing, nil
}

func (c *permissionCache) getOrCreateGrants(s scope) *cachedGrants {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for key, known := range c.scopes { // remove scopes of single VMs that are gone
		select {
		case known.lock <- struct{}{}:
			if now.Sub(known.readAt) >= grantedTTL {
				delete(c.scopes, key)
			}
			<-known.lock
		default:
		}
	}
	known := c.scopes[s.key()]
	if known == nil {
		known = &cachedGrants{lock: make(chan struct{}, 1)}
		c.scopes[s.key()] = known
	}
	return known
}

func (k *cachedGrants) missingActions(n requiredActions) cloud.Permissions {
	var missing cloud.Permissions
	for _, action := range n.actions {
		allowed := false
		for _, g := range k.grants {
			allowed = allowed || g.allows(action)
		}
		if !allowed {
			missing = append(missing, cloud.Permission{Name: action, Scope: n.scope.id})
		}
	}
	return missing
}

// listGrants reads the credential's permissions on a scope, including inherited ones
// (https://learn.microsoft.com/rest/api/authorization/permissions). It does not include deny assignments and locks.
func (p *Provider) listGrants(ctx context.Context, s scope) (grants []roleGrant, err error) {
	doing := "permissions on " + s.id
	if s.name == "" {
		grants, err = listAllPages(ctx, doing, p.clients.permissions.NewListForResourceGroupPager(s.resourceGroup, nil),
			func(r armauthorization.PermissionsClientListForResourceGroupResponse) []*armauthorization.Permission {
				return r.Value
			}, toRoleGrant)
	} else {
		grants, err = listAllPages(ctx, doing,
			p.clients.permissions.NewListForResourcePager(s.resourceGroup, s.namespace, s.parent, s.kind, s.name, nil),
			func(r armauthorization.PermissionsClientListForResourceResponse) []*armauthorization.Permission {
				return r.Value
			}, toRoleGrant)
	}
	if err == nil && len(grants) == 0 { // a credential that may read this list has at least one permission
		err = fmt.Errorf("%s: %w: the list of permissions is empty", doing, errIncomplete)
	}
	return grants, err
}

func toRoleGrant(permission *armauthorization.Permission) (roleGrant, error) {
	if permission == nil {
		return roleGrant{}, fmt.Errorf("%w: an entry is empty", errIncomplete)
	}
	return roleGrant{derefStrings(permission.Actions), derefStrings(permission.NotActions)}, nil
}

func derefStrings(list []*string) []string {
	texts := make([]string, 0, len(list))
	for _, text := range list {
		texts = append(texts, deref(text))
	}
	return texts
}

// emptySegmentPolicy removes the empty path segment that the SDK adds for a resource without a parent.
type emptySegmentPolicy struct{}

func (emptySegmentPolicy) Do(r *policy.Request) (*http.Response, error) {
	u := r.Raw().URL
	u.Path, u.RawPath = removeEmptySegments(u.Path), removeEmptySegments(u.RawPath)
	return r.Next()
}

func removeEmptySegments(path string) string { return strings.ReplaceAll(path, "//", "/") }
