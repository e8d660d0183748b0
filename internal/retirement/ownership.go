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

// isNamedByNode reports that the Node itself says that it is on an instance, by its provider ID or its system's UUID. The spec of a NodeRetirement
// proves nothing: it may name any instance that the credential can delete, and any UID.
func (p *passage) isNamedByNode(i cloud.Instance) bool {
	return p.node != nil && (!p.unsaid() || isItsUUID(cloud.Host{SystemUUID: p.node.Status.NodeInfo.SystemUUID}, i))
}

// checkOwned ends the retirement of an instance that no Node names unless a NodeGroup's cloud group owns the instance, or it has the cluster's
// own mark (I4): the credential may be able to delete any VM. If the group is known, only that one counts. Other errors mean that the owner is
// not known, and the step is retried (I7).
func (p *passage) checkOwned(ctx context.Context, i cloud.Instance) error {
	groups, err := p.c.o.Groups.List(ctx)
	if err != nil {
		return err
	}
	only := p.rt.Spec.Group
	if p.group != nil {
		only = p.group.Name
	}
	var unknown error
	asked := map[v1alpha1.CloudGroup]bool{}
	for _, g := range mayOwn(groups, only, i) {
		if where := g.Spec.Cloud; !asked[where] {
			asked[where] = true
			owned, err := p.hasInstance(ctx, where, i)
			if owned {
				return nil
			}
			if err != nil {
				unknown = errors.Join(unknown, fmt.Errorf("NodeGroup %s: %w", g.Name, err))
			}
		}
	}
	if marks, can := p.cloud.(cloud.Marker); can {
		within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
		defer cancel()
		marked, err := marks.Ours(within)
		if slices.ContainsFunc(marked, func(m cloud.Instance) bool { return m.ProviderID == i.ProviderID }) {
			return nil
		}
		unknown = errors.Join(unknown, err)
	}
	if unknown != nil {
		return fmt.Errorf("whether the cluster owns the instance %s: %w", i.ProviderID, unknown)
	}
	whose := "no NodeGroup's cloud group has it"
	if only != "" {
		whose = "the cloud group of the NodeGroup " + only + " does not have it"
	}
	return end(InstanceNotOwned, "no Node says that it is on the instance %s, %s, and it does not have this cluster's mark: delete it in its cloud if it is "+
		"not wanted, or make a NodeGroup for its cloud group", i.ProviderID, whose)
}

// mayOwn gives the groups that may own an instance, the most likely first. A group that is refused owns nothing.
func mayOwn(groups []v1alpha1.NodeGroup, asked string, i cloud.Instance) []v1alpha1.NodeGroup {
	found := slices.DeleteFunc(slices.Clone(groups), func(g v1alpha1.NodeGroup) bool {
		return !acceptance.Of(&g).OwnsNodes() || asked != "" && g.Name != asked
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

// hasInstance reports whether a cloud group owns an instance. One that the group has only adopted may be another cluster's.
func (p *passage) hasInstance(ctx context.Context, where v1alpha1.CloudGroup, i cloud.Instance) (bool, error) {
	provider := p.c.o.Clouds[where.Provider]
	if provider == nil {
		return false, nil
	}
	id, err := provider.Normalize(i.ProviderID)
	switch {
	case cloud.IsUnanswered(err):
		return false, err
	case err != nil:
		return false, nil // it is none of this cloud's
	}
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	all, err := provider.Instances(within, where.Group)
	p.c.o.Metrics.Cloud(provider.Name(), "Instances", err)
	if cloud.IsNotFound(err) {
		return false, nil
	}
	return slices.ContainsFunc(all, func(m cloud.Instance) bool { return m.ProviderID == id && !m.Adopted }), err
}
