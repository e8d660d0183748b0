package replacement

import (
	"context"
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// maxGroupReads is how often a group is read that changes under the reading.
const maxGroupReads = 3

// readGroup reads a group's size and its machines as they were at one moment. The size and the list are two answers of the
// cloud, and a machine that leaves between them would be counted once and not twice: the list is read before and after,
// until both are the same.
func (c *Controller) readGroup(ctx context.Context, p cloud.Provider, group string) (Survey, error) {
	before, err := c.listInstances(ctx, p, group)
	if err != nil {
		return Survey{}, err
	}
	for range maxGroupReads {
		size, err := c.readSize(ctx, p, group)
		if err != nil {
			return Survey{}, fmt.Errorf("group %s: %w", group, err)
		}
		after, err := c.listInstances(ctx, p, group)
		if err != nil {
			return Survey{}, err
		}
		s := Survey{Group: size, Machines: after}
		if slices.Equal(Survey{Machines: before}.Names(), s.Names()) {
			return s, nil
		}
		before = after
	}
	return Survey{}, fmt.Errorf("group %s: its machines change while they are counted", group)
}

func (c *Controller) readSize(ctx context.Context, p cloud.Provider, group string) (cloud.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	size, err := p.Group(ctx, group)
	c.options.Asked(p.Name(), "Group", err)
	return size, err
}

// listInstances lists those that count: a machine whose deletion has begun is out of its group's size already.
func (c *Controller) listInstances(ctx context.Context, p cloud.Provider, group string) ([]cloud.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	all, err := p.Instances(ctx, group)
	c.options.Asked(p.Name(), "Instances", err)
	if err != nil {
		return nil, fmt.Errorf("machines of group %s: %w", group, err)
	}
	return slices.DeleteFunc(all, func(m cloud.Instance) bool { return m.State == cloud.Deleting }), nil
}
