package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Grow raises the capacity of a scale set or the count of an agent pool, see growTo. The change is made only of the size that was
// read (If-Match), so that no deletion and no other Grow in between is undone. It is one request, which is never repeated
// here: when its answer is lost, or the size has changed since it was read, the caller reads the size and decides anew. The
// machines of a group are all of one size, so that an order that names another one is refused.
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
	started := time.Now().UTC()
	url, err := grow(ctx, g, order)
	if err != nil {
		return cloud.Operation{}, err
	}
	return operation{URL: url}.encode(started), nil
}

func (p *Provider) lockOf(g group) *sync.Mutex {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.growing[g.key()] == nil {
		p.growing[g.key()] = &sync.Mutex{}
	}
	return p.growing[g.key()]
}

// once has the requests of a context sent once, and captures the answer. The SDK would repeat a PATCH or PUT after a lost
// answer, and the second one meets the ETag that the first one has made.
func (p *Provider) once(ctx context.Context, response **http.Response) context.Context {
	ctx = policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1, TryTimeout: p.config.requestTimeout()})
	return policy.WithCaptureResponse(ctx, response)
}

// accepted reports a change that Azure has accepted, by a status that the SDK does not know of this request.
func accepted(response *http.Response, err error) bool {
	var answer *azcore.ResponseError
	return errors.As(err, &answer) && answer.StatusCode/100 == 2 && followURL(response) != ""
}

// errWrite gives the error of a change of a group's size. An answer that says neither yes nor no is a plain error, also
// where it asks to wait: the change may have been made.
func errWrite(g group, doing string, err error) error {
	err = errGroup(g, doing, err)
	var api *apiError
	if errors.As(err, &api) && (api.Status >= http.StatusInternalServerError || api.Status == http.StatusRequestTimeout) {
		return fmt.Errorf("%s %s: %w", doing, g, api)
	}
	return err
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
	size, err := growTo(g, now, order, func() ([]found, error) { return p.listMachines(ctx, g, set) })
	if err != nil {
		return "", err
	}
	var response *http.Response
	_, err = p.clients.sets.BeginUpdate(p.once(ctx, &response), g.resourceGroup, g.scaleSet,
		armcompute.VirtualMachineScaleSetUpdate{SKU: &armcompute.SKU{
			Name: set.SKU.Name, Tier: set.SKU.Tier, Capacity: to.Ptr(int64(size)),
		}}, &armcompute.VirtualMachineScaleSetsClientBeginUpdateOptions{IfMatch: set.Etag})
	if err != nil && !accepted(response, err) {
		return "", errWrite(g, fmt.Sprintf("growing from %d to %d", now.Size, size), err)
	}
	return followURL(response), nil
}

// growTo gives the size to ask for. Azure keeps a raised size when it finds later that it has no capacity, so that the size
// may count machines that nothing is making. Those that the order says are Unmade are asked for by the size that counts them
// already, see ADR 11. Where they are not missing, or something is changing the group, the order is from another reading of
// the group, and is to be decided on anew. The size is never below the present one: that would delete machines.
func growTo(g group, now cloud.Group, order cloud.Order, list func() ([]found, error)) (int, error) {
	if order.Unmade == 0 {
		return now.Size + order.Count, nil
	}
	machines, err := list()
	if err != nil {
		return 0, err
	}
	missing := now.Size
	for _, m := range machines {
		if m.State != cloud.Deleting {
			missing--
		}
	}
	if !now.Refills || missing < order.Unmade {
		return 0, &cloud.ThrottledError{After: followPause, Err: fmt.Errorf(
			"growing %s: its size of %d was read to count %d machines that it does not have, and it has changed since", g, now.Size, order.Unmade)}
	}
	return now.Size + order.Count - order.Unmade, nil
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
	if err := checkCanGrow(g, pool); err != nil {
		return "", err
	}
	now, err := p.poolGroup(ctx, g, pool)
	if err != nil {
		return "", err
	}
	if err := checkSize(g, value(pool.Properties.VMSize), order); err != nil {
		return "", err
	}
	size, err := growTo(g, now, order, func() ([]found, error) { return p.listPool(ctx, g) })
	if err != nil {
		return "", err
	}
	if now.Max > 0 && size > now.Max {
		return "", &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf(
			"growing %s from %d to %d: its maximum is %d", g, now.Size, size, now.Max)}
	}
	pool.Properties.Count = to.Ptr(int32(size))
	return p.putPool(ctx, g, pool, fmt.Sprintf("growing from %d to %d", now.Size, size))
}

// putPool writes an agent pool back, if it is still as it was read.
func (p *Provider) putPool(ctx context.Context, g group, pool armcontainerservice.AgentPool, doing string) (string, error) {
	var response *http.Response
	_, err := p.clients.pools.BeginCreateOrUpdate(p.once(ctx, &response), g.resourceGroup, g.cluster, g.pool,
		pool, &armcontainerservice.AgentPoolsClientBeginCreateOrUpdateOptions{IfMatch: pool.Properties.ETag})
	if err != nil && !accepted(response, err) {
		return "", errWrite(g, doing, err)
	}
	return followURL(response), nil
}
