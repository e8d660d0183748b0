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

// Delete begins to delete a machine; see the package's comment for who carries it out.
func (p *Provider) Delete(ctx context.Context, providerID string) (cloud.Operation, error) {
	id, err := p.own(providerID)
	if err != nil {
		return cloud.Operation{}, err
	}
	// A read of a moment ago serves once. Where the machine has changed since, Azure refuses, and it is read again then.
	m, err := p.recent(ctx, id)
	p.forget(id)
	if err != nil {
		return cloud.Operation{}, err
	}
	started := time.Now().UTC()
	switch {
	case m.State == cloud.Deleting:
		return operation{Machine: id.String()}.encode(started), nil
	case m.Kept:
		return cloud.Operation{}, &cloud.RefusedError{Reason: cloud.Protected, Err: fmt.Errorf("machine %s: %s", id, m.KeptReason)}
	}
	out, of, err := p.requestDeletion(ctx, m)
	if err != nil {
		return cloud.Operation{}, err
	}
	if out.err != nil {
		return p.afterRefusal(ctx, id, started, out.err)
	}
	p.log.Info("a machine's deletion has begun", "machine", id.String(), "group", of)
	if len(m.detaches) > 0 {
		p.log.Warn("Azure keeps what the machine had attached, and it goes on costing: delete it by hand, or set deleteOption to Delete "+
			"on the next machine", "machine", id.String(), "kept", m.detaches)
	}
	return operation{URL: out.url, Machine: id.String()}.encode(started), nil
}

// requestDeletion asks for it where Azure wants to be asked, and says in words which group that is.
func (p *Provider) requestDeletion(ctx context.Context, m found) (out outcome, of string, err error) {
	member, inPool, err := p.member(ctx, m.id)
	var where place
	name := m.id.Name
	switch {
	case err != nil:
		return outcome{}, "", err
	case inPool:
		keeps, err := p.poolKeeps(ctx, member.pool)
		if err != nil {
			return outcome{}, "", err
		}
		if keeps != "" {
			return outcome{}, "", &cloud.RefusedError{Reason: cloud.Protected, Err: fmt.Errorf("machine %s: %s", m.id, keeps)}
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
	return p.deletes.delete(ctx, where, deletion{m, name}), where.String(), nil
}

// afterRefusal looks at a machine whose deletion was refused: somebody else's may have come first.
func (p *Provider) afterRefusal(ctx context.Context, id providerid.ID, started time.Time, refused error) (cloud.Operation, error) {
	if ctx.Err() != nil || cloud.IsThrottled(refused) {
		return cloud.Operation{}, refused
	}
	m, err := p.instance(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Operation{}, err
	case err == nil && m.State == cloud.Deleting:
		return operation{Machine: id.String()}.encode(started), nil
	}
	return cloud.Operation{}, refused
}

// deleteBatch sends deletions of one group as one request. Azure refuses such a request as a whole for one machine that
// it does not like; they are sent one by one then, so that each has the answer that is its own.
func (p *Provider) deleteBatch(ctx context.Context, where place, deletions []deletion) []outcome {
	out := p.deleteTogether(ctx, where, deletions)
	outcomes := make([]outcome, len(deletions))
	if len(deletions) == 1 || !aboutOneOf(out.err) {
		for i := range outcomes {
			outcomes[i] = out
		}
		return outcomes
	}
	p.log.Warn("a deletion of several machines was refused; they are deleted one by one", "group", where.String(),
		"machines", len(deletions), "err", out.err)
	for i := range deletions {
		outcomes[i] = p.deleteTogether(ctx, where, deletions[i:i+1])
	}
	return outcomes
}

// aboutOneOf reports whether a refusal may be due to one machine of several.
func aboutOneOf(err error) bool {
	if err == nil || cloud.IsThrottled(err) {
		return false
	}
	var api *apiError
	return errors.As(err, &api) && (api.Status == http.StatusBadRequest || api.Status == http.StatusNotFound ||
		api.Status == http.StatusConflict || api.Status == http.StatusUnprocessableEntity)
}

func (p *Provider) deleteTogether(ctx context.Context, where place, deletions []deletion) outcome {
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
		_, err = p.clients.sets.BeginDeleteInstances(ctx, where.resourceGroup, where.scaleSet,
			armcompute.VirtualMachineScaleSetVMInstanceRequiredIDs{InstanceIDs: names}, nil)
	}
	if err != nil {
		return outcome{err: ofSDK(fmt.Sprintf("deleting %d machines of %s", len(deletions), where.group), err)}
	}
	return outcome{url: followURL(response)}
}

func (p *Provider) deleteVM(ctx context.Context, id providerid.ID) outcome {
	var response *http.Response
	_, err := p.clients.vms.BeginDelete(policy.WithCaptureResponse(ctx, &response), id.ResourceGroup, id.Name, nil)
	if err != nil {
		return outcome{err: ofSDK("deleting machine "+id.String(), err)}
	}
	return outcome{url: followURL(response)}
}
