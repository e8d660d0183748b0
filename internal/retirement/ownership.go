package retirement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// isNamedByNode reports whether the Node names the instance, by its provider ID or system UUID. The provider ID in the
// spec of a NodeRetirement proves nothing, because a user can write any ID there.
func (p *retirementScope) isNamedByNode(i cloud.Instance) bool {
	return p.node != nil && (!p.isNodeWithoutProviderID() || hasSystemUUID(cloud.NodeIdentity{SystemUUID: p.node.Status.NodeInfo.SystemUUID}, i))
}

// checkClusterOwnsInstance ends the retirement of an instance that no Node names, unless the cluster owns the instance
// (invariant I4).
//
// The cluster owns an instance if the cloud group of a NodeGroup contains it, or if the cloud has marked it as the
// cluster's. If the NodeGroup of the retirement is known, only its own cloud group is a proof. The right to delete the
// instance proves nothing: a credential may be able to delete any VM. If a cloud does not answer, the owner is unknown,
// and the step is retried (invariant I7).
func (p *retirementScope) checkClusterOwnsInstance(ctx context.Context, i cloud.Instance) error {
	groups, err := p.controller.options.Groups.List(ctx)
	if err != nil {
		return err
	}
	only := p.rt.Spec.Group
	if p.group != nil {
		only = p.group.Name
	}
	var unknown error
	asked := map[v1alpha1.CloudGroup]bool{}
	for _, g := range listPossibleOwnerGroups(groups, only, i) {
		if where := g.Spec.Cloud; !asked[where] {
			asked[where] = true
			owned, err := p.cloudGroupOwnsInstance(ctx, where, i)
			if owned {
				return nil
			}
			if err != nil {
				unknown = errors.Join(unknown, fmt.Errorf("NodeGroup %s: %w", g.Name, err))
			}
		}
	}
	if marker, canMark := p.provider.(cloud.InstanceTagger); canMark {
		readCtx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
		defer cancel()
		marked, err := marker.ClusterInstances(readCtx)
		if slices.ContainsFunc(marked, func(m cloud.Instance) bool { return m.ProviderID == i.ProviderID }) {
			return nil
		}
		unknown = errors.Join(unknown, err)
	}
	if unknown != nil {
		return fmt.Errorf("finding the owner of the instance %s: %w", i.ProviderID, unknown)
	}
	owner := "no NodeGroup's cloud group has it"
	if only != "" {
		owner = "the cloud group of the NodeGroup " + only + " does not have it"
	}
	return newEnd(InstanceNotOwned, "no Node names the instance %s, %s, and it lacks this cluster's mark: delete it in its cloud if it is "+
		"not needed, or create a NodeGroup for its cloud group", i.ProviderID, owner)
}

// listPossibleOwnerGroups returns the groups that may own an instance, the most likely first. If only is not empty, it returns
// only the group with this name. A refused group owns nothing.
func listPossibleOwnerGroups(groups []v1alpha1.NodeGroup, only string, i cloud.Instance) []v1alpha1.NodeGroup {
	found := slices.DeleteFunc(slices.Clone(groups), func(g v1alpha1.NodeGroup) bool {
		return !acceptance.FromGroup(&g).OwnsNodes() || only != "" && g.Name != only
	})
	named := func(g v1alpha1.NodeGroup) int {
		if strings.EqualFold(g.Spec.Cloud.Group, i.Group) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(found, func(a, b v1alpha1.NodeGroup) int { return cmp.Compare(named(a), named(b)) })
	return found
}

// cloudGroupOwnsInstance reports whether a cloud group owns an instance. An adopted instance does not count, because it may
// belong to another cluster.
func (p *retirementScope) cloudGroupOwnsInstance(ctx context.Context, cloudGroup v1alpha1.CloudGroup, i cloud.Instance) (owned bool, err error) {
	provider := p.controller.options.Clouds[cloudGroup.Provider]
	if provider == nil {
		return false, nil
	}
	id, err := provider.Normalize(i.ProviderID)
	switch {
	case cloud.IsProviderUnavailable(err):
		return false, err
	case err != nil:
		return false, nil // it belongs to another cloud
	}
	readCtx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	all, err := provider.Instances(readCtx, cloudGroup.Group)
	p.controller.options.Metrics.RecordCloudRequest(provider.Name(), "Instances", err)
	if cloud.IsNotFound(err) {
		return false, nil
	}
	return slices.ContainsFunc(all, func(m cloud.Instance) bool { return m.ProviderID == id && !m.OwnerUncertain }), err
}
