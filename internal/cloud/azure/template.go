package azure

import (
	"context"
	"fmt"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Templates gives the one size that a group's machines have, with the shape that the configuration declares: ARM does
// not say with the group how much memory a size has, nor with which labels its Nodes will join.
func (p *Provider) Templates(ctx context.Context, name string) ([]cloud.Template, error) {
	g, err := p.group(name)
	if err != nil {
		return nil, err
	}
	size, err := p.sizeOf(ctx, g)
	if err != nil {
		return nil, err
	}
	if size == "" {
		return nil, fmt.Errorf("reading %s: %w: it has no size of machines", g, errIncomplete)
	}
	return []cloud.Template{{Name: size, Shape: p.shapeOf(g)}}, nil
}

func (p *Provider) sizeOf(ctx context.Context, g group) (string, error) {
	if g.isPool() {
		pool, err := p.getPool(ctx, g)
		if err != nil {
			return "", err
		}
		return value(pool.Properties.VMSize), nil
	}
	set, err := p.getSet(ctx, g)
	if err != nil {
		return "", err
	}
	if set.SKU == nil {
		return "", nil
	}
	return value(set.SKU.Name), nil
}

// shapeOf gives what the configuration declares of a group.
func (p *Provider) shapeOf(g group) cloud.Shape {
	for _, c := range p.config.Groups {
		if strings.EqualFold(c.Name, g.name) {
			return c.Nodes
		}
	}
	return cloud.Shape{}
}
