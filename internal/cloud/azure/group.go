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

// group is where a group is found: a scale set, or an agent pool of a managed cluster.
type group struct {
	name          string // as the user calls it
	resourceGroup string
	scaleSet      string
	cluster, pool string
}

func (g group) isPool() bool { return g.pool != "" }

// key tells groups apart, whatever they are called.
func (g group) key() string {
	return strings.ToLower(strings.Join([]string{g.resourceGroup, g.scaleSet, g.cluster, g.pool}, "/"))
}

func (g group) String() string {
	if g.isPool() {
		return fmt.Sprintf("agent pool %s of cluster %s in resource group %s", g.pool, g.cluster, g.resourceGroup)
	}
	return fmt.Sprintf("scale set %s in resource group %s", g.scaleSet, g.resourceGroup)
}

func (p *Provider) configured(c GroupConfig) group {
	g := group{name: c.Name, resourceGroup: c.ResourceGroup, scaleSet: c.ScaleSet, cluster: c.Cluster, pool: c.AgentPool}
	if g.resourceGroup == "" {
		g.resourceGroup = p.config.ResourceGroup
	}
	return g
}

// group finds a group by its name: one of the configuration, or else a scale set of the configured resource group.
func (p *Provider) group(name string) (group, error) {
	for _, g := range p.groups {
		if strings.EqualFold(g.name, name) {
			return g, nil
		}
	}
	if !resourceName.MatchString(name) {
		return group{}, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"group %q: want the name of one of azure groups, or of a scale set in resource group %s", name, p.config.ResourceGroup)}
	}
	return group{name: name, resourceGroup: p.config.ResourceGroup, scaleSet: name}, nil
}

// groupOfSet gives what the group of a scale set is called: by the configuration, or by the set's own name. One of
// another resource group that the configuration does not name is no group here.
func (p *Provider) groupOfSet(resourceGroup, set string) string {
	for _, g := range p.groups {
		if strings.EqualFold(g.scaleSet, set) && strings.EqualFold(g.resourceGroup, resourceGroup) {
			return g.name
		}
	}
	if strings.EqualFold(resourceGroup, p.config.ResourceGroup) {
		return strings.ToLower(set)
	}
	return ""
}

// errGroup gives the error of a read or change of a group: [cloud.NotFoundError] where Azure says that it does not exist.
func errGroup(g group, doing string, err error) error {
	return goneGroup(g, ofSDK(fmt.Sprintf("%s %s", doing, g), err))
}

// goneGroup names the group where an error says that what was asked for does not exist.
func goneGroup(g group, err error) error {
	if gone(err) {
		return fmt.Errorf("%w (%s)", &cloud.NotFoundError{Kind: "group", Name: g.name}, g)
	}
	return err
}

func (p *Provider) getSet(ctx context.Context, g group) (armcompute.VirtualMachineScaleSet, error) {
	answer, err := p.clients.sets.Get(ctx, g.resourceGroup, g.scaleSet, nil)
	if err != nil {
		return answer.VirtualMachineScaleSet, errGroup(g, "reading", err)
	}
	return answer.VirtualMachineScaleSet, nil
}

func setGroup(g group, set armcompute.VirtualMachineScaleSet) (cloud.Group, error) {
	if set.SKU == nil || set.SKU.Capacity == nil {
		return cloud.Group{}, fmt.Errorf("reading %s: %w: it has no sku.capacity", g, errIncomplete)
	}
	size := cloud.Group{Name: g.name, Size: int(*set.SKU.Capacity)}
	if set.Properties != nil {
		size.Refills = isIdle(value(set.Properties.ProvisioningState))
	}
	return size, nil
}

// isIdle reports a provisioning state in which nothing is changing a group. What is not known to be one is not.
func isIdle(provisioning string) bool {
	return slices.Contains([]string{"succeeded", "failed", "canceled"}, strings.ToLower(provisioning))
}

// errIncomplete is an answer that lacks what Azure always gives: not one of Azure, or not all of it (I7).
var errIncomplete = errors.New("the answer is incomplete")

func (p *Provider) getPool(ctx context.Context, g group) (armcontainerservice.AgentPool, error) {
	answer, err := p.clients.pools.Get(ctx, g.resourceGroup, g.cluster, g.pool, nil)
	if err != nil {
		return answer.AgentPool, errGroup(g, "reading", err)
	}
	if answer.Properties == nil || answer.Properties.Count == nil && !ofSingleVMs(answer.AgentPool) {
		return answer.AgentPool, fmt.Errorf("reading %s: %w: it has no properties.count", g, errIncomplete)
	}
	return answer.AgentPool, nil
}

// poolGroup gives a pool's size. A pool that has no single count is as large as its list of machines.
func (p *Provider) poolGroup(ctx context.Context, g group, pool armcontainerservice.AgentPool) (cloud.Group, error) {
	size := cloud.Group{Name: g.name, Size: int(value(pool.Properties.Count)), Refills: isIdle(value(pool.Properties.ProvisioningState))}
	if ofSingleVMs(pool) {
		machines, err := p.listPool(ctx, g)
		if err != nil {
			return cloud.Group{}, err
		}
		size.Size = len(slices.DeleteFunc(machines, func(m found) bool { return m.State == cloud.Deleting }))
	}
	if value(pool.Properties.EnableAutoScaling) {
		size.Min, size.Max = int(value(pool.Properties.MinCount)), int(value(pool.Properties.MaxCount))
	}
	return size, nil
}

// value gives what a pointer points to, or else the zero value.
func value[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}
