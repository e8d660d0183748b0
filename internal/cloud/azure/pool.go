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
	keeps, err := p.poolKeeps(ctx, g)
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
		m.keep(keeps)
		machines = append(machines, m)
	}
	return machines, nil
}

// keep notes why a machine's pool would not have it deleted; empty is no reason.
func (m *found) keep(reason string) {
	if reason != "" && !m.Kept && m.State != cloud.Deleting {
		m.Kept, m.KeptReason = true, reason
	}
}

// modeTime is for how long the settings of an agent pool are remembered by which its machines are kept.
const modeTime = time.Minute

// poolMode is why AKS would not delete a pool's machines, and when that was read.
type poolMode struct {
	keeps string
	at    time.Time
}

// poolKeeps says why AKS would not delete the machines of a pool; empty when it would, or when there is no such pool.
func (p *Provider) poolKeeps(ctx context.Context, g group) (string, error) {
	p.mu.Lock()
	mode, known := p.modes[g.key()]
	p.mu.Unlock()
	if known && time.Since(mode.at) < modeTime {
		return mode.keeps, nil
	}
	pool, err := p.getPool(ctx, g)
	if err != nil && !cloud.IsNotFound(err) {
		return "", err
	}
	mode = poolMode{at: time.Now()}
	if err == nil && deallocates(pool) {
		mode.keeps = deallocateReason
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes[g.key()] = mode
	return mode.keeps, nil
}

// deallocateReason says why the machines of a pool with the scaleDownMode Deallocate are kept.
const deallocateReason = "its agent pool has the scaleDownMode Deallocate, so that AKS stops machines instead of deleting them " +
	"(set it to Delete: az aks nodepool update --scale-down-mode Delete)"

func deallocates(pool armcontainerservice.AgentPool) bool {
	return strings.EqualFold(string(value(pool.Properties.ScaleDownMode)), string(armcontainerservice.ScaleDownModeDeallocate))
}

// ofSingleVMs reports an agent pool that AKS makes of virtual machines, and counts by size.
func ofSingleVMs(pool armcontainerservice.AgentPool) bool {
	return strings.EqualFold(string(value(pool.Properties.Type)), "VirtualMachines")
}

// checkCanGrow refuses pools that Slipway cannot make larger: in one kind machines come back under their old names, the other
// has no single count.
func checkCanGrow(g group, pool armcontainerservice.AgentPool) error {
	switch {
	case deallocates(pool):
		return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"%s has the scaleDownMode Deallocate, by which AKS starts old machines again: want Delete", g)}
	case ofSingleVMs(pool):
		return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"%s is of type VirtualMachines, whose machines AKS counts by size: want VirtualMachineScaleSets, or scale it with AKS", g)}
	}
	return nil
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
