package azure

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// poolMember is an instance of an agent pool.
type poolMember struct {
	pool group
	name string // the name in AKS
	id   providerid.ID
}

// listPoolInstances lists an agent pool. AKS reports its instances, compute reports their states. Both lists are read
// completely. An instance that only AKS reports has the state Unknown.
func (p *Provider) listPoolInstances(ctx context.Context, g group) ([]vmInstance, error) {
	members, err := p.listPoolMembers(ctx, g)
	if err != nil {
		return nil, err
	}
	protectedReason, err := p.poolProtectionReason(ctx, g)
	if err != nil {
		return nil, err
	}
	known := map[string]vmInstance{}
	for _, set := range uniformScaleSets(members) {
		machines, err := p.listUniformInstances(ctx, set)
		if cloud.IsNotFound(err) {
			continue // a scale set that is gone has no instances
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", g, err)
		}
		for _, m := range machines {
			known[m.ProviderID] = m
		}
	}
	machines := make([]vmInstance, 0, len(members))
	for _, member := range members {
		m, ok := known[member.id.String()]
		if !ok && member.id.ScaleSet == "" {
			if m, err = p.fetchInstance(ctx, member.id); err != nil && !cloud.IsNotFound(err) {
				return nil, fmt.Errorf("listing %s: %w", g, err)
			}
			ok = err == nil
		}
		if !ok {
			m = vmInstance{id: member.id, Instance: cloud.Instance{
				ProviderID: member.id.String(), Name: member.id.ScheduledEventName(), ComputerName: member.name, State: cloud.Unknown,
			}}
		}
		m.protect(protectedReason)
		machines = append(machines, m)
	}
	return machines, nil
}

// protect marks an instance as protected by its pool; an empty reason changes nothing.
func (m *vmInstance) protect(reason string) {
	if reason != "" && !m.DeletionProtected && m.State != cloud.Deleting {
		m.DeletionProtected, m.DeletionProtectionReason = true, reason
	}
}

// poolProtectionTTL is how long the protection setting of an agent pool is cached.
const poolProtectionTTL = time.Minute

// poolProtection is why AKS would not delete the instances of a pool, and the time of the read.
type poolProtection struct {
	reason string
	readAt time.Time
}

// poolProtectionReason returns why AKS would not delete the instances of a pool. It returns "" if AKS would, or if the pool does
// not exist.
func (p *Provider) poolProtectionReason(ctx context.Context, g group) (reason string, err error) {
	p.mu.Lock()
	mode, known := p.poolProtections[g.key()]
	p.mu.Unlock()
	if known && time.Since(mode.readAt) < poolProtectionTTL {
		return mode.reason, nil
	}
	pool, err := p.getPool(ctx, g)
	if err != nil && !cloud.IsNotFound(err) {
		return "", err
	}
	mode = poolProtection{readAt: time.Now()}
	if err == nil && isDeallocatePool(pool) {
		mode.reason = deallocateReason
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.poolProtections[g.key()] = mode
	return mode.reason, nil
}

const deallocateReason = "its agent pool has the scaleDownMode Deallocate, so AKS stops instances and does not delete them " +
	"(set it to Delete: az aks nodepool update --scale-down-mode Delete)"

func isDeallocatePool(pool armcontainerservice.AgentPool) bool {
	return strings.EqualFold(string(deref(pool.Properties.ScaleDownMode)), string(armcontainerservice.ScaleDownModeDeallocate))
}

// isSingleVMPool reports whether AKS builds the agent pool from single virtual machines, which it counts per VM size.
func isSingleVMPool(pool armcontainerservice.AgentPool) bool {
	return strings.EqualFold(string(deref(pool.Properties.Type)), "VirtualMachines")
}

// checkCanGrow refuses pools that Slipway cannot grow. A pool with scaleDownMode Deallocate restarts instances under
// their old names. A pool of type VirtualMachines has no single count.
func checkCanGrow(g group, pool armcontainerservice.AgentPool) error {
	switch {
	case isDeallocatePool(pool):
		return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"%s has the scaleDownMode Deallocate, so AKS restarts stopped instances: want Delete", g)}
	case isSingleVMPool(pool):
		return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"%s is of type VirtualMachines, which has no single count: want VirtualMachineScaleSets, or scale it with AKS", g)}
	}
	return nil
}

// uniformScaleSets returns the uniform scale sets of the instances. A pool has one, or none if AKS manages its instances one
// by one.
func uniformScaleSets(members []poolMember) []group {
	var sets []group
	seen := map[string]bool{}
	for _, m := range members {
		set := group{name: m.id.ScaleSet, resourceGroup: m.id.ResourceGroup, scaleSet: m.id.ScaleSet}
		if m.id.ScaleSet != "" && !seen[set.key()] {
			seen[set.key()] = true
			sets = append(sets, set)
		}
	}
	return sets
}

// listPoolMembers lists the instances of a pool in AKS and caches them.
func (p *Provider) listPoolMembers(ctx context.Context, g group) ([]poolMember, error) {
	pager := p.clients.poolMachines.NewListPager(g.resourceGroup, g.cluster, g.pool, nil)
	machines := func(r armcontainerservice.MachinesClientListResponse) []*armcontainerservice.Machine { return r.Value }
	doing := fmt.Sprintf("listing the instances of %s", g)
	members, err := listAllPages(ctx, doing, pager, machines, func(m *armcontainerservice.Machine) (poolMember, error) {
		if m == nil || m.Name == nil || m.Properties == nil || m.Properties.ResourceID == nil {
			return poolMember{}, fmt.Errorf("%w: an instance has no name or no resource ID", errIncomplete)
		}
		id, err := providerid.ParseResourceID(*m.Properties.ResourceID)
		if err != nil {
			return poolMember{}, fmt.Errorf("instance %s: %w", *m.Name, err)
		}
		return poolMember{pool: g, name: *m.Name, id: id}, nil
	})
	if err != nil {
		return nil, toGroupNotFound(g, err)
	}
	p.cachePoolMembers(g, members)
	return members, nil
}

// cachePoolMembers replaces the cached instances of a pool.
func (p *Provider) cachePoolMembers(g group, members []poolMember) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, m := range p.memberCache {
		if m.pool == g {
			delete(p.memberCache, id)
		}
	}
	for _, m := range members {
		p.memberCache[m.id.String()] = m
	}
}

// findPoolMember returns the configured agent pool of an instance. If the instance is not cached, it reads all pools. A failed
// read is an error, because the deletion would otherwise bypass AKS.
func (p *Provider) findPoolMember(ctx context.Context, id providerid.ID) (member poolMember, found bool, err error) {
	p.mu.Lock()
	m, ok := p.memberCache[id.String()]
	p.mu.Unlock()
	if ok {
		return m, true, nil
	}
	for _, g := range p.configuredGroups {
		if !g.isPool() {
			continue
		}
		members, err := p.listPoolMembers(ctx, g)
		if cloud.IsNotFound(err) {
			continue
		}
		if err != nil {
			return poolMember{}, false, fmt.Errorf("finding the agent pool of instance %s: %w", id, err)
		}
		for _, m := range members {
			if m.id.Equal(id) {
				return m, true, nil
			}
		}
	}
	return poolMember{}, false, nil
}
