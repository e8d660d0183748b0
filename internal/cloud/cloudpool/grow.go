package cloudpool

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// Templates returns the pool's only template.
func (p *Provider) Templates(ctx context.Context, group string) ([]cloud.Template, error) {
	pool, err := p.findPool(ctx, group)
	if err != nil {
		return nil, err
	}
	name := pool.config.MachineSize
	if name == "" {
		o, err := p.observePool(ctx, pool)
		if err != nil {
			return nil, err
		}
		for i := range o.machines { // the last one with a size
			if size := o.machines[i].Size; size != "" {
				name = size
			}
		}
	}
	if name == "" {
		return nil, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
			"cloudpool %s: no machine has a known size: set pools[].machineSize", group)}
	}
	return []cloud.Template{{Name: name, NodeShape: pool.config.Nodes}}, nil
}

// Grow increases the desired size of a pool.
func (p *Provider) Grow(ctx context.Context, group string, order cloud.LaunchRequest) (cloud.Operation, error) {
	pool, err := p.findPool(ctx, group)
	if err != nil {
		return cloud.Operation{}, err
	}
	if err := order.Validate(group); err != nil {
		return cloud.Operation{}, err
	}
	if err := p.checkTemplate(ctx, group, order); err != nil {
		return cloud.Operation{}, err
	}
	pool.sizeLock.Lock()
	defer pool.sizeLock.Unlock()
	if p.lock != nil {
		unlock, err := p.lock(ctx, group)
		if err != nil {
			return cloud.Operation{}, err
		}
		defer unlock()
	}
	now, err := pool.client.Size(ctx)
	if err != nil {
		return cloud.Operation{}, toProviderError(group, err)
	}
	size := now.Desired + order.Count
	if err := pool.client.SetDesiredSize(ctx, size); err != nil {
		if status := wire.AsStatusError(err); status != nil && !status.FromServer && status.Code >= http.StatusInternalServerError {
			return cloud.Operation{}, fmt.Errorf("cloudpool %s: %w", group, err) // also with Retry-After: the change may have happened
		}
		return cloud.Operation{}, toProviderError(group, err)
	}
	return cloud.NewOperation(operation{Pool: group, Size: size}, time.Now().UTC()), nil
}

func (p *Provider) checkTemplate(ctx context.Context, group string, order cloud.LaunchRequest) error {
	if order.Template == "" {
		return nil
	}
	templates, err := p.Templates(ctx, group)
	if err != nil {
		return err
	}
	if templates[0].Name == order.Template {
		return nil
	}
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
		"growing %s with size %q: its machines have size %q", group, order.Template, templates[0].Name)}
}

// growthStatus returns the progress of an increased desired size. The growth is done when enough machines run. It is
// also done when a user has decreased the desired size again.
func (p *Provider) growthStatus(ctx context.Context, o operation) (cloud.OperationStatus, error) {
	pool, err := p.findPool(ctx, o.Pool)
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	size, err := pool.client.Size(ctx)
	if err != nil {
		return cloud.OperationStatus{}, toProviderError(o.Pool, err)
	}
	seen, err := p.observePool(ctx, pool)
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	running := 0
	for i := range seen.machines {
		if m := &seen.machines[i]; m.State == wire.Running && m.IsActive() {
			running++
		}
	}
	if size.Desired < o.Size || running >= o.Size {
		return cloud.OperationStatus{Done: true}, nil
	}
	return cloud.OperationStatus{RetryAfter: p.config.pollInterval()}, nil
}
