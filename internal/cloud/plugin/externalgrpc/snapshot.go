package externalgrpc

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"

	pb "github.com/slipway-dev/slipway/api/externalgrpc/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// snapshot holds all groups and instances from one complete read of the provider.
type snapshot struct {
	groups    map[string]cloud.Group
	instances map[string][]cloud.Instance // by group
}

// findInstance returns an instance of the snapshot. An instance that is not listed is gone, so findInstance returns a
// NotFoundError. It returns a plain error if the instance's last known group is not listed, or if its list is empty
// although it has a size. If no group is known, it checks all groups.
func (p *Provider) findInstance(r *snapshot, id string) (cloud.Instance, error) {
	for _, list := range r.instances {
		for _, i := range list {
			if i.ProviderID == id {
				return i, nil
			}
		}
	}
	if len(r.groups) == 0 {
		return cloud.Instance{}, fmt.Errorf("instance %s: the provider returned an empty list of groups, which is not trusted", id)
	}
	p.mu.Lock()
	last := p.lastGroup[id]
	p.mu.Unlock()
	suspects := r.groups
	if last != "" {
		g, listed := r.groups[last]
		if !listed {
			return cloud.Instance{}, fmt.Errorf("instance %s: not listed, but neither is its group %s, which is not trusted", id, last)
		}
		suspects = map[string]cloud.Group{last: g}
	}
	for group, g := range suspects {
		if len(r.instances[group]) == 0 && g.Size > 0 {
			return cloud.Instance{}, fmt.Errorf("instance %s: not listed, but the list of group %s is empty although its size is %d, "+
				"which is not trusted", id, group, g.Size)
		}
	}
	return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
}

// maxCachedGroups limits the number of instances with a cached group.
const maxCachedGroups = 20_000

// cacheInstanceGroups stores the group of each instance in the snapshot.
func (p *Provider) cacheInstanceGroups(r *snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for group, list := range r.instances {
		for _, i := range list {
			if len(p.lastGroup) >= maxCachedGroups {
				clear(p.lastGroup)
			}
			p.lastGroup[i.ProviderID] = group
		}
	}
}

// readSnapshot reads all groups and instances, bypassing the provider's cache. Concurrent callers share the next read.
// So a hundred concurrent deletions need only two reads.
func (p *Provider) readSnapshot(ctx context.Context) (*snapshot, error) {
	r, err := p.snapshots.Read(ctx, func(ctx context.Context) (*snapshot, error) {
		r, err := p.refreshAndReadGroups(ctx)
		if err == nil {
			p.cacheInstanceGroups(r)
		}
		return r, err
	})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("provider %s: reading: %w", p.config.Name, context.Cause(ctx))
	}
	return r, err
}

func (p *Provider) refreshAndReadGroups(ctx context.Context) (*snapshot, error) {
	if err := p.call(ctx, "Refresh", func(ctx context.Context) error {
		_, err := p.client.Refresh(ctx, &pb.RefreshRequest{})
		return err
	}); err != nil {
		return nil, err
	}
	var groups *pb.NodeGroupsResponse
	if err := p.call(ctx, "NodeGroups", func(ctx context.Context) (err error) {
		groups, err = p.client.NodeGroups(ctx, &pb.NodeGroupsRequest{})
		return err
	}); err != nil {
		return nil, err
	}
	r := &snapshot{groups: map[string]cloud.Group{}, instances: map[string][]cloud.Instance{}}
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, g := range groups.GetNodeGroups() {
		all.Go(func() {
			group, list, err := p.readGroup(ctx, g)
			mu.Lock()
			defer mu.Unlock()
			if _, twice := r.groups[g.GetId()]; err == nil && (twice || g.GetId() == "") {
				err = fmt.Errorf("provider %s: NodeGroups: group %q is duplicate or has no name", p.config.Name, g.GetId())
			}
			if err != nil {
				failed = err
				return
			}
			r.groups[group.Name], r.instances[group.Name] = group, list
		})
	}
	all.Wait()
	if failed != nil {
		return nil, failed
	}
	return r, nil
}

// readGroup reads a group and its instances.
func (p *Provider) readGroup(ctx context.Context, g *pb.NodeGroup) (cloud.Group, []cloud.Instance, error) {
	group := cloud.Group{Name: g.GetId(), Min: int(g.GetMinSize()), Max: int(g.GetMaxSize())}
	var nodes *pb.NodeGroupNodesResponse
	err := p.call(ctx, "NodeGroupTargetSize", func(ctx context.Context) error {
		size, err := p.client.NodeGroupTargetSize(ctx, &pb.NodeGroupTargetSizeRequest{Id: g.GetId()})
		group.Size = int(size.GetTargetSize())
		return err
	})
	if err == nil {
		err = p.call(ctx, "NodeGroupNodes", func(ctx context.Context) (err error) {
			nodes, err = p.client.NodeGroupNodes(ctx, &pb.NodeGroupNodesRequest{Id: g.GetId()})
			return err
		})
	}
	if err != nil {
		return group, nil, err
	}
	if group.Size < 0 || group.Min < 0 || group.Max < 0 {
		return group, nil, fmt.Errorf("provider %s: group %s: size %d, minimum %d, maximum %d: want 0 or more",
			p.config.Name, group.Name, group.Size, group.Min, group.Max)
	}
	seen := map[string]bool{}
	list := make([]cloud.Instance, 0, len(nodes.GetInstances()))
	for _, n := range nodes.GetInstances() {
		i, err := p.toInstance(group.Name, n)
		if err == nil && seen[i.ProviderID] {
			err = fmt.Errorf("provider %s: group %s: instance %s is listed twice", p.config.Name, group.Name, i.ProviderID)
		}
		if err != nil {
			return group, nil, err
		}
		seen[i.ProviderID] = true
		list = append(list, i)
	}
	return group, list, nil
}

// outOfResourcesClass is the protocol's error class for a cloud without capacity.
const outOfResourcesClass = 1

// toInstance converts an instance. Its name is the last part of its ID, because the protocol has no names.
func (p *Provider) toInstance(group string, n *pb.Instance) (cloud.Instance, error) {
	id, err := p.Normalize(n.GetId())
	if err != nil {
		return cloud.Instance{}, fmt.Errorf("provider %s: group %s: listed instance %q: %w", p.config.Name, group, n.GetId(), err)
	}
	name := path.Base(strings.TrimPrefix(id, p.config.ProviderIDPrefix))
	i := cloud.Instance{ProviderID: id, Name: name, ComputerName: name, Group: group, Type: group, State: cloud.Unknown}
	switch n.GetStatus().GetInstanceState() {
	case pb.InstanceStatus_instanceRunning:
		i.State = cloud.Running
	case pb.InstanceStatus_instanceCreating:
		i.State = cloud.Pending
	case pb.InstanceStatus_instanceDeleting:
		i.State = cloud.Deleting
	case pb.InstanceStatus_unspecified:
		i.State = cloud.Running // as in the cluster autoscaler; many providers report no state
	}
	if e := n.GetStatus().GetErrorInfo(); e.GetErrorCode() != "" {
		i.State, i.Message = cloud.Failed, e.GetErrorCode()+": "+e.GetErrorMessage()
		if e.GetInstanceErrorClass() == outOfResourcesClass {
			i.Refusal = cloud.NoCapacity
		}
	}
	return i, nil
}
