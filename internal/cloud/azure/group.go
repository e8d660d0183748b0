package azure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// group names a scale set, or an agent pool of a managed cluster.
type group struct {
	name          string // in NodeGroups
	resourceGroup string
	scaleSet      string
	cluster, pool string
}

func (g group) isPool() bool { return g.pool != "" }

// key returns a string that identifies the Azure resource. The configured name of the group is not part of it.
func (g group) key() string {
	return strings.ToLower(strings.Join([]string{g.resourceGroup, g.scaleSet, g.cluster, g.pool}, "/"))
}

func (g group) String() string {
	if g.isPool() {
		return fmt.Sprintf("agent pool %s of cluster %s in resource group %s", g.pool, g.cluster, g.resourceGroup)
	}
	return fmt.Sprintf("scale set %s in resource group %s", g.scaleSet, g.resourceGroup)
}

func (p *Provider) groupFromConfig(c GroupConfig) group {
	g := group{name: c.Name, resourceGroup: c.ResourceGroup, scaleSet: c.ScaleSet, cluster: c.Cluster, pool: c.AgentPool}
	if g.resourceGroup == "" {
		g.resourceGroup = p.config.ResourceGroup
	}
	return g
}

// findGroup returns the configured group with the given name. If there is no such group, it returns the scale set with
// this name in the configured resource group.
func (p *Provider) findGroup(name string) (group, error) {
	for _, g := range p.configuredGroups {
		if strings.EqualFold(g.name, name) {
			return g, nil
		}
	}
	if !resourceNamePattern.MatchString(name) {
		return group{}, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"group %q: want the name of a configured azure group, or of a scale set in resource group %s", name, p.config.ResourceGroup)}
	}
	return group{name: name, resourceGroup: p.config.ResourceGroup, scaleSet: name}, nil
}

// groupNameOfScaleSet returns the group name of a scale set. That is the configured name, or else the scale set's own
// name. It returns "" for a scale set that is not configured and in another resource group.
func (p *Provider) groupNameOfScaleSet(resourceGroup, set string) string {
	for _, g := range p.configuredGroups {
		if strings.EqualFold(g.scaleSet, set) && strings.EqualFold(g.resourceGroup, resourceGroup) {
			return g.name
		}
	}
	if strings.EqualFold(resourceGroup, p.config.ResourceGroup) {
		return strings.ToLower(set)
	}
	return ""
}

// groupRequestError converts the error of a request for a group. It returns a [cloud.NotFoundError] if Azure reports
// that the group does not exist.
func groupRequestError(g group, doing string, err error) error {
	return toGroupNotFound(g, fromSDKError(fmt.Sprintf("%s %s", doing, g), err))
}

// toGroupNotFound returns a [cloud.NotFoundError] for the group if err means that the group does not exist. Otherwise
// it returns err.
func toGroupNotFound(g group, err error) error {
	if isGone(err) {
		return fmt.Errorf("%w (%s)", &cloud.NotFoundError{Kind: "group", Name: g.name}, g)
	}
	return err
}

func (p *Provider) getScaleSet(ctx context.Context, g group) (armcompute.VirtualMachineScaleSet, error) {
	answer, err := p.clients.scaleSets.Get(ctx, g.resourceGroup, g.scaleSet, nil)
	if err != nil {
		return answer.VirtualMachineScaleSet, groupRequestError(g, "reading", err)
	}
	return answer.VirtualMachineScaleSet, nil
}

func groupOfScaleSet(g group, set armcompute.VirtualMachineScaleSet) (cloud.Group, error) {
	if set.SKU == nil || set.SKU.Capacity == nil {
		return cloud.Group{}, fmt.Errorf("reading %s: %w: it has no sku.capacity", g, errIncomplete)
	}
	size := cloud.Group{Name: g.name, Size: int(*set.SKU.Capacity)}
	if set.Properties != nil {
		size.CanRetryFailed = isIdle(deref(set.Properties.ProvisioningState))
	}
	return size, nil
}

// isIdle reports whether no change of a group is in progress, from its provisioning state. It returns false for an
// unknown state.
func isIdle(provisioning string) bool {
	return slices.Contains([]string{"succeeded", "failed", "canceled"}, strings.ToLower(provisioning))
}

// errIncomplete means that a response lacks a required field. The response may be truncated, or
// not be from Azure, so it proves nothing (I7: unknown is not gone).
var errIncomplete = errors.New("the response is incomplete")

func (p *Provider) getPool(ctx context.Context, g group) (armcontainerservice.AgentPool, error) {
	answer, err := p.clients.pools.Get(ctx, g.resourceGroup, g.cluster, g.pool, nil)
	if err != nil {
		return answer.AgentPool, groupRequestError(g, "reading", err)
	}
	if answer.Properties == nil || answer.Properties.Count == nil && !isSingleVMPool(answer.AgentPool) {
		return answer.AgentPool, fmt.Errorf("reading %s: %w: it has no properties.count", g, errIncomplete)
	}
	return answer.AgentPool, nil
}

// groupOfPool returns an agent pool with its size. A pool of type VirtualMachines has no count, so groupOfPool counts
// its instances.
func (p *Provider) groupOfPool(ctx context.Context, g group, pool armcontainerservice.AgentPool) (cloud.Group, error) {
	size := cloud.Group{Name: g.name, Size: int(deref(pool.Properties.Count)), CanRetryFailed: isIdle(deref(pool.Properties.ProvisioningState))}
	if isSingleVMPool(pool) {
		machines, err := p.listPoolInstances(ctx, g)
		if err != nil {
			return cloud.Group{}, err
		}
		size.Size = len(slices.DeleteFunc(machines, func(m vmInstance) bool { return m.State == cloud.Deleting }))
	}
	if deref(pool.Properties.EnableAutoScaling) {
		size.Min, size.Max = int(deref(pool.Properties.MinCount)), int(deref(pool.Properties.MaxCount))
	}
	return size, nil
}

// deref returns the value of a pointer. It returns the zero value for a nil pointer.
func deref[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}
