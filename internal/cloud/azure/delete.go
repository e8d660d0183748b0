package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// Delete starts the deletion of an instance. The package comment says which Azure API deletes it.
func (p *Provider) Delete(ctx context.Context, providerID string) (cloud.Operation, error) {
	id, err := p.parseID(providerID)
	if err != nil {
		return cloud.Operation{}, err
	}
	// A cached read is used at most once. If the instance has changed, Azure refuses, and the instance is read again.
	m, err := p.cachedOrFetchedInstance(ctx, id)
	p.forgetRead(id)
	if err != nil {
		return cloud.Operation{}, err
	}
	started := time.Now().UTC()
	switch {
	case m.State == cloud.Deleting:
		return operation{Machine: id.String()}.toCloudOperation(started), nil
	case m.DeletionProtected:
		return cloud.Operation{}, &cloud.RefusedError{Reason: cloud.Protected, Err: fmt.Errorf("instance %s: %s", id, m.DeletionProtectionReason)}
	}
	out, groupName, err := p.requestDeletion(ctx, m)
	if err != nil {
		return cloud.Operation{}, err
	}
	if out.err != nil {
		return p.recheckAfterRefusedDeletion(ctx, id, started, out.err)
	}
	p.log.Info("instance deletion started", "instance", id.String(), "group", groupName)
	if len(m.resourcesKeptOnDelete) > 0 {
		p.log.Warn("Azure keeps resources that were attached to the instance, at a cost: delete them, or set deleteOption to Delete "+
			"for new instances", "instance", id.String(), "kept", m.resourcesKeptOnDelete)
	}
	return operation{URL: out.operationURL, Machine: id.String()}.toCloudOperation(started), nil
}

// requestDeletion sends the deletion to the API of the instance's group. It returns the name of that group for
// messages.
func (p *Provider) requestDeletion(ctx context.Context, m vmInstance) (out deletionResult, groupName string, err error) {
	member, inPool, err := p.findPoolMember(ctx, m.id)
	var where deletionTarget
	name := m.id.Name
	switch {
	case err != nil:
		return deletionResult{}, "", err
	case inPool:
		reason, err := p.poolProtectionReason(ctx, member.pool)
		if err != nil {
			return deletionResult{}, "", err
		}
		if reason != "" {
			return deletionResult{}, "", &cloud.RefusedError{Reason: cloud.Protected, Err: fmt.Errorf("instance %s: %s", m.id, reason)}
		}
		where.group, name = member.pool, member.name
	case m.id.ScaleSet != "":
		where.group = group{name: m.id.ScaleSet, resourceGroup: m.id.ResourceGroup, scaleSet: m.id.ScaleSet}
	case m.flexible != "":
		where.group = group{name: m.flexible, resourceGroup: m.id.ResourceGroup, scaleSet: m.flexible}
		where.flexible = true
	default:
		return p.deleteVM(ctx, m.id), "no group", nil
	}
	return p.deletions.deleteInstance(ctx, where, deletion{m, name}), where.String(), nil
}

// recheckAfterRefusedDeletion reads an instance after a refused deletion: another deletion may have been first.
func (p *Provider) recheckAfterRefusedDeletion(ctx context.Context, id providerid.ID, started time.Time, refused error) (cloud.Operation, error) {
	if ctx.Err() != nil || cloud.IsThrottled(refused) {
		return cloud.Operation{}, refused
	}
	m, err := p.fetchInstance(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Operation{}, err
	case err == nil && m.State == cloud.Deleting:
		return operation{Machine: id.String()}.toCloudOperation(started), nil
	}
	return cloud.Operation{}, refused
}

// deleteBatchOrOneByOne deletes instances of one group with one request. Azure refuses the whole request because of a single
// instance. Then each instance gets its own request and its own error.
func (p *Provider) deleteBatchOrOneByOne(ctx context.Context, where deletionTarget, deletions []deletion) []deletionResult {
	out := p.sendDeletion(ctx, where, deletions)
	outcomes := make([]deletionResult, len(deletions))
	if len(deletions) == 1 || !mayConcernOneInstance(out.err) {
		for i := range outcomes {
			outcomes[i] = out
		}
		return outcomes
	}
	p.log.Warn("Azure refused a batch deletion; deleting its instances one by one", "group", where.String(),
		"instances", len(deletions), "err", out.err)
	for i := range deletions {
		outcomes[i] = p.sendDeletion(ctx, where, deletions[i:i+1])
	}
	return outcomes
}

// mayConcernOneInstance reports whether one instance of a batch can be the reason of a refusal.
func mayConcernOneInstance(err error) bool {
	if err == nil || cloud.IsThrottled(err) {
		return false
	}
	var api *apiError
	return errors.As(err, &api) && (api.Status == http.StatusBadRequest || api.Status == http.StatusNotFound ||
		api.Status == http.StatusConflict || api.Status == http.StatusUnprocessableEntity)
}

func (p *Provider) sendDeletion(ctx context.Context, where deletionTarget, deletions []deletion) deletionResult {
	names := make([]*string, len(deletions))
	for i, d := range deletions {
		names[i] = to.Ptr(d.name)
	}
	var response *http.Response
	ctx = policy.WithCaptureResponse(ctx, &response)
	var err error
	if where.isPool() {
		_, err = p.clients.pools.BeginDeleteMachines(ctx, where.resourceGroup, where.cluster, where.pool,
			armcontainerservice.AgentPoolDeleteMachinesParameter{MachineNames: names}, nil)
	} else {
		_, err = p.clients.scaleSets.BeginDeleteInstances(ctx, where.resourceGroup, where.scaleSet,
			armcompute.VirtualMachineScaleSetVMInstanceRequiredIDs{InstanceIDs: names}, nil)
	}
	if err != nil {
		return deletionResult{err: fromSDKError(fmt.Sprintf("deleting %d instances of %s", len(deletions), where.group), err)}
	}
	return deletionResult{operationURL: statusURL(response)}
}

func (p *Provider) deleteVM(ctx context.Context, id providerid.ID) deletionResult {
	var response *http.Response
	_, err := p.clients.vms.BeginDelete(policy.WithCaptureResponse(ctx, &response), id.ResourceGroup, id.Name, nil)
	if err != nil {
		return deletionResult{err: fromSDKError("deleting instance "+id.String(), err)}
	}
	return deletionResult{operationURL: statusURL(response)}
}
