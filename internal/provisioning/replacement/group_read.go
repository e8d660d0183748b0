package replacement

import (
	"context"
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// maxGroupReads is how often a group is read again if it changes during the read.
const maxGroupReads = 3

// readConsistentGroup reads a group's size and instances as they were at one moment. The cloud returns them in two answers. An
// instance that is deleted between these answers would count only once. So readConsistentGroup reads the list before and after the
// size, and repeats that until both lists are equal.
func (c *Controller) readConsistentGroup(ctx context.Context, p cloud.Provider, group string) (GroupSnapshot, error) {
	before, err := c.listUndeletedInstances(ctx, p, group)
	if err != nil {
		return GroupSnapshot{}, err
	}
	for range maxGroupReads {
		size, err := c.readCloudGroup(ctx, p, group)
		if err != nil {
			return GroupSnapshot{}, fmt.Errorf("group %s: %w", group, err)
		}
		after, err := c.listUndeletedInstances(ctx, p, group)
		if err != nil {
			return GroupSnapshot{}, err
		}
		s := GroupSnapshot{Group: size, Instances: after}
		if slices.Equal(GroupSnapshot{Instances: before}.SortedInstanceNames(), s.SortedInstanceNames()) {
			return s, nil
		}
		before = after
	}
	return GroupSnapshot{}, fmt.Errorf("group %s: its instances changed during the read", group)
}

func (c *Controller) readCloudGroup(ctx context.Context, p cloud.Provider, group string) (cloud.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	size, err := p.Group(ctx, group)
	c.options.ReportCall(p.Name(), "Group", err)
	return size, err
}

// listUndeletedInstances lists the instances that are not being deleted. The others are not in the group's size any more.
func (c *Controller) listUndeletedInstances(ctx context.Context, p cloud.Provider, group string) ([]cloud.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	all, err := p.Instances(ctx, group)
	c.options.ReportCall(p.Name(), "Instances", err)
	if err != nil {
		return nil, fmt.Errorf("instances of group %s: %w", group, err)
	}
	return slices.DeleteFunc(all, func(m cloud.Instance) bool { return m.State == cloud.Deleting }), nil
}
