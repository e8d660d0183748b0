package azure

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// member is a machine of an agent pool.
type member struct {
	pool group
	name string // by which AKS knows it
	id   providerid.ID
}

// listPool lists an agent pool: AKS says which machines it has, compute in which state they are. Both lists are read to
// their end. A machine that only AKS knows is in no known state.
func (p *Provider) listPool(ctx context.Context, g group) ([]found, error) {
	members, err := p.poolMembers(ctx, g)
	if err != nil {
		return nil, err
	}
	known := map[string]found{}
	for _, set := range scaleSetsOf(members) {
		machines, err := p.listUniform(ctx, set)
		if cloud.IsNotFound(err) {
			continue // a scale set that is gone has no machine in any state
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", g, err)
		}
		for _, m := range machines {
			known[m.ProviderID] = m
		}
	}
	machines := make([]found, 0, len(members))
	for _, member := range members {
		m, ok := known[member.id.String()]
		if !ok && member.id.ScaleSet == "" {
			if m, err = p.instance(ctx, member.id); err != nil && !cloud.IsNotFound(err) {
				return nil, fmt.Errorf("listing %s: %w", g, err)
			}
			ok = err == nil
		}
		if !ok {
			m = found{id: member.id, Instance: cloud.Instance{
				ProviderID: member.id.String(), Name: member.id.Resource(), ComputerName: member.name, State: cloud.Unknown,
			}}
		}
		machines = append(machines, m)
	}
	return machines, nil
}

// scaleSetsOf gives the uniform scale sets that machines are in. A pool has one, or none when AKS manages its machines
// one by one.
func scaleSetsOf(members []member) []group {
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

// poolMembers asks AKS for the machines of a pool, and remembers them.
func (p *Provider) poolMembers(ctx context.Context, g group) ([]member, error) {
	pager := p.clients.machines.NewListPager(g.resourceGroup, g.cluster, g.pool, nil)
	machines := func(r armcontainerservice.MachinesClientListResponse) []*armcontainerservice.Machine { return r.Value }
	doing := fmt.Sprintf("listing the machines of %s", g)
	members, err := listAll(ctx, doing, pager, machines, func(m *armcontainerservice.Machine) (member, error) {
		if m == nil || m.Name == nil || m.Properties == nil || m.Properties.ResourceID == nil {
			return member{}, fmt.Errorf("%w: a machine has no name or no resource ID", errIncomplete)
		}
		id, err := providerid.ParseResource(*m.Properties.ResourceID)
		if err != nil {
			return member{}, fmt.Errorf("machine %s: %w", *m.Name, err)
		}
		return member{pool: g, name: *m.Name, id: id}, nil
	})
	if err != nil {
		return nil, goneGroup(g, err)
	}
	p.remember(g, members)
	return members, nil
}

// remember replaces what was known of a pool.
func (p *Provider) remember(g group, members []member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, m := range p.members {
		if m.pool == g {
			delete(p.members, id)
		}
	}
	for _, m := range members {
		p.members[m.id.String()] = m
	}
}

// member finds the agent pool that a machine is in, among those of the configuration. A machine that is in none was
// looked for in all of them: one that could not be read is an error, since a deletion would go past AKS otherwise.
func (p *Provider) member(ctx context.Context, id providerid.ID) (member, bool, error) {
	p.mu.Lock()
	m, ok := p.members[id.String()]
	p.mu.Unlock()
	if ok {
		return m, true, nil
	}
	for _, g := range p.groups {
		if !g.isPool() {
			continue
		}
		members, err := p.poolMembers(ctx, g)
		if cloud.IsNotFound(err) {
			continue
		}
		if err != nil {
			return member{}, false, fmt.Errorf("looking for machine %s: %w", id, err)
		}
		for _, m := range members {
			if m.id.Same(id) {
				return m, true, nil
			}
		}
	}
	return member{}, false, nil
}
