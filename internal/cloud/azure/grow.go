package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// growTries is how often a size is read and set again when somebody else has changed it in between.
const growTries = 4

// Grow raises the capacity of a scale set or the count of an agent pool. The change is made only of the size that was
// read (If-Match), so that no deletion and no other Grow in between is undone. The machines of a group are all of one
// size, so that an order that names another one is refused.
func (p *Provider) Grow(ctx context.Context, name string, order cloud.Order) (cloud.Operation, error) {
	if err := order.Validate(name); err != nil {
		return cloud.Operation{}, err
	}
	g, err := p.group(name)
	if err != nil {
		return cloud.Operation{}, err
	}
	lock := p.lockOf(g)
	lock.Lock()
	defer lock.Unlock()
	grow := p.growSet
	if g.isPool() {
		grow = p.growPool
	}
	for try := 1; ; try++ {
		started := time.Now().UTC()
		url, err := grow(ctx, g, order)
		if err == nil {
			return operation{URL: url}.encode(started), nil
		}
		if !changedMeanwhile(err) || try == growTries {
			return cloud.Operation{}, err
		}
	}
}

func (p *Provider) lockOf(g group) *sync.Mutex {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.growing[g.key()] == nil {
		p.growing[g.key()] = &sync.Mutex{}
	}
	return p.growing[g.key()]
}

// changedMeanwhile reports that a resource is not what it was when it was read.
func changedMeanwhile(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.Status == http.StatusPreconditionFailed
}

func (p *Provider) growSet(ctx context.Context, g group, order cloud.Order) (string, error) {
	set, err := p.getSet(ctx, g)
	if err != nil {
		return "", err
	}
	now, err := setGroup(g, set)
	if err != nil {
		return "", err
	}
	if err := checkSize(g, value(set.SKU.Name), order); err != nil {
		return "", err
	}
	var response *http.Response
	_, err = p.clients.sets.BeginUpdate(policy.WithCaptureResponse(ctx, &response), g.resourceGroup, g.scaleSet,
		armcompute.VirtualMachineScaleSetUpdate{SKU: &armcompute.SKU{
			Name: set.SKU.Name, Tier: set.SKU.Tier, Capacity: to.Ptr(int64(now.Size + order.Count)),
		}}, &armcompute.VirtualMachineScaleSetsClientBeginUpdateOptions{IfMatch: set.Etag})
	if err != nil {
		return "", errGroup(g, fmt.Sprintf("growing from %d to %d", now.Size, now.Size+order.Count), err)
	}
	return followURL(response), nil
}

// checkSize refuses an order of machines that are not of the size that a group's are.
func checkSize(g group, size string, order cloud.Order) error {
	if order.Template == "" || strings.EqualFold(order.Template, size) {
		return nil
	}
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
		"growing %s by machines of size %s: its machines are of size %s", g, order.Template, size)}
}

func (p *Provider) growPool(ctx context.Context, g group, order cloud.Order) (string, error) {
	pool, err := p.getPool(ctx, g)
	if err != nil {
		return "", err
	}
	now, err := poolGroup(g, pool)
	if err != nil {
		return "", err
	}
	if err := checkSize(g, value(pool.Properties.VMSize), order); err != nil {
		return "", err
	}
	if now.Max > 0 && now.Size+order.Count > now.Max {
		return "", &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf(
			"growing %s from %d to %d: its maximum is %d", g, now.Size, now.Size+order.Count, now.Max)}
	}
	pool.Properties.Count = to.Ptr(int32(now.Size + order.Count))
	return p.putPool(ctx, g, pool, fmt.Sprintf("growing from %d to %d", now.Size, now.Size+order.Count))
}

// putPool writes an agent pool back, if it is still as it was read.
func (p *Provider) putPool(ctx context.Context, g group, pool armcontainerservice.AgentPool, doing string) (string, error) {
	var response *http.Response
	_, err := p.clients.pools.BeginCreateOrUpdate(policy.WithCaptureResponse(ctx, &response), g.resourceGroup, g.cluster, g.pool,
		pool, &armcontainerservice.AgentPoolsClientBeginCreateOrUpdateOptions{IfMatch: pool.Properties.ETag})
	if err != nil {
		return "", errGroup(g, doing, err)
	}
	return followURL(response), nil
}
