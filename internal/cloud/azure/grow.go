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

// Grow increases the capacity of a scale set or the count of an agent pool, see targetSize. The request has an If-Match
// header, so that it cannot undo a concurrent deletion or Grow. Grow sends the request once. If the response is lost or
// the size has changed, the caller reads the size and decides again. All instances of a group have one VM size, so Grow
// refuses another template.
func (p *Provider) Grow(ctx context.Context, name string, order cloud.LaunchRequest) (cloud.Operation, error) {
	if err := order.Validate(name); err != nil {
		return cloud.Operation{}, err
	}
	g, err := p.findGroup(name)
	if err != nil {
		return cloud.Operation{}, err
	}
	lock := p.growLock(g)
	lock.Lock()
	defer lock.Unlock()
	grow := p.growScaleSet
	if g.isPool() {
		grow = p.growPool
	}
	started := time.Now().UTC()
	url, err := grow(ctx, g, order)
	if err != nil {
		return cloud.Operation{}, err
	}
	return operation{URL: url}.toCloudOperation(started), nil
}

func (p *Provider) growLock(g group) *sync.Mutex {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.growLocks[g.key()] == nil {
		p.growLocks[g.key()] = &sync.Mutex{}
	}
	return p.growLocks[g.key()]
}

// withoutRetries returns a context that disables the SDK's retries and captures the response. The SDK would repeat a
// PATCH or PUT after a lost response. The repetition would fail because of the new ETag.
func (p *Provider) withoutRetries(ctx context.Context, response **http.Response) context.Context {
	ctx = policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1, TryTimeout: p.config.requestTimeout()})
	return policy.WithCaptureResponse(ctx, response)
}

// isAccepted reports whether Azure accepted a change, although the SDK returned an error. The SDK does not expect every
// 2xx status.
func isAccepted(response *http.Response, err error) bool {
	var answer *azcore.ResponseError
	return errors.As(err, &answer) && answer.StatusCode/100 == 2 && statusURL(response) != ""
}

// toResizeError converts the error of a size change. A 5xx or 408 stays a plain error, even with a Retry-After header,
// because the size may have changed.
func toResizeError(g group, doing string, err error) error {
	err = groupRequestError(g, doing, err)
	var api *apiError
	if errors.As(err, &api) && (api.Status >= http.StatusInternalServerError || api.Status == http.StatusRequestTimeout) {
		return fmt.Errorf("%s %s: %w", doing, g, api)
	}
	return err
}

func (p *Provider) growScaleSet(ctx context.Context, g group, order cloud.LaunchRequest) (operationURL string, err error) {
	set, err := p.getScaleSet(ctx, g)
	if err != nil {
		return "", err
	}
	now, err := groupOfScaleSet(g, set)
	if err != nil {
		return "", err
	}
	if err := checkVMSize(g, deref(set.SKU.Name), order); err != nil {
		return "", err
	}
	size, err := targetSize(g, now, order, func() ([]vmInstance, error) { return p.listScaleSetInstances(ctx, g, set) })
	if err != nil {
		return "", err
	}
	if err := requireETag(g, set.Etag); err != nil {
		return "", err
	}
	var response *http.Response
	_, err = p.clients.scaleSets.BeginUpdate(p.withoutRetries(ctx, &response), g.resourceGroup, g.scaleSet,
		armcompute.VirtualMachineScaleSetUpdate{SKU: &armcompute.SKU{
			Name: set.SKU.Name, Tier: set.SKU.Tier, Capacity: to.Ptr(int64(size)),
		}}, &armcompute.VirtualMachineScaleSetsClientBeginUpdateOptions{IfMatch: set.Etag})
	if err != nil && !isAccepted(response, err) {
		return "", toResizeError(g, fmt.Sprintf("growing from %d to %d", now.Size, size), err)
	}
	return statusURL(response), nil
}

// requireETag returns an error if Azure's response has no ETag. The SDK would then send no If-Match header, and the size
// of a group that has grown meanwhile would decrease.
func requireETag(g group, etag *string) error {
	if deref(etag) == "" {
		return fmt.Errorf("reading %s: %w: it has no ETag", g, errIncomplete)
	}
	return nil
}

// targetSize returns the size to request from Azure. Azure keeps an increased size if it has no capacity. So the
// current size already includes the failed instances to retry, see ADR 11. If fewer instances are missing, or a change
// of the group is in progress, the caller has old data. Then targetSize returns a [cloud.ThrottledError]. The result is
// never below the current size, because that would delete instances.
func targetSize(g group, current cloud.Group, order cloud.LaunchRequest, listInstances func() ([]vmInstance, error)) (size int, err error) {
	if order.RetryFailed == 0 {
		return current.Size + order.Count, nil
	}
	machines, err := listInstances()
	if err != nil {
		return 0, err
	}
	missing := current.Size
	for _, m := range machines {
		if m.State != cloud.Deleting {
			missing--
		}
	}
	if !current.CanRetryFailed || missing < order.RetryFailed {
		return 0, &cloud.ThrottledError{RetryAfter: deletionPollInterval, Err: fmt.Errorf(
			"growing %s: its size %d no longer includes %d failed instances; read the group again", g, current.Size, order.RetryFailed)}
	}
	return current.Size + order.Count - order.RetryFailed, nil
}

// checkVMSize returns an error if the request asks for another VM size than the group's.
func checkVMSize(g group, size string, order cloud.LaunchRequest) error {
	if order.Template == "" || strings.EqualFold(order.Template, size) {
		return nil
	}
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
		"growing %s with VM size %s: its instances have size %s", g, order.Template, size)}
}

func (p *Provider) growPool(ctx context.Context, g group, order cloud.LaunchRequest) (operationURL string, err error) {
	pool, err := p.getPool(ctx, g)
	if err != nil {
		return "", err
	}
	if err := checkCanGrow(g, pool); err != nil {
		return "", err
	}
	now, err := p.groupOfPool(ctx, g, pool)
	if err != nil {
		return "", err
	}
	if err := checkVMSize(g, deref(pool.Properties.VMSize), order); err != nil {
		return "", err
	}
	size, err := targetSize(g, now, order, func() ([]vmInstance, error) { return p.listPoolInstances(ctx, g) })
	if err != nil {
		return "", err
	}
	if now.Max > 0 && size > now.Max {
		return "", &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf(
			"growing %s from %d to %d: its maximum is %d", g, now.Size, size, now.Max)}
	}
	pool.Properties.Count = to.Ptr(int32(size))
	return p.putPoolIfUnchanged(ctx, g, pool, fmt.Sprintf("growing from %d to %d", now.Size, size))
}

// putPoolIfUnchanged writes an agent pool, unless the pool has changed since it was read.
func (p *Provider) putPoolIfUnchanged(ctx context.Context, g group, pool armcontainerservice.AgentPool, doing string) (operationURL string, err error) {
	if err := requireETag(g, pool.Properties.ETag); err != nil {
		return "", err
	}
	var response *http.Response
	_, err = p.clients.pools.BeginCreateOrUpdate(p.withoutRetries(ctx, &response), g.resourceGroup, g.cluster, g.pool,
		pool, &armcontainerservice.AgentPoolsClientBeginCreateOrUpdateOptions{IfMatch: pool.Properties.ETag})
	if err != nil && !isAccepted(response, err) {
		return "", toResizeError(g, doing, err)
	}
	return statusURL(response), nil
}
