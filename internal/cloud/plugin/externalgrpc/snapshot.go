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

// snapshot is one complete read of the provider.
type snapshot struct {
	groups    map[string]cloud.Group
	instances map[string][]cloud.Instance // by group
}

// findInstance returns an instance. If it is not listed, it is gone, unless the list looks incomplete. That applies to the last
// known group of the instance, or to all groups if it is unknown.
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
	if g, ok := r.groups[last]; ok {
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

// maxCachedGroups limits the cached groups of instances.
const maxCachedGroups = 20_000

// cacheInstanceGroups caches the group of each instance.
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

// readSnapshot reads all groups and instances without the provider's cache. Concurrent callers share the next read: a hundred
// concurrent deletions need two.
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

// outOfResourcesClass is the error class for a cloud without capacity.
const outOfResourcesClass = 1

// toInstance converts an instance. The protocol has no names, so the last part of the ID is used.
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
