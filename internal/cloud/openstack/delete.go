package openstack

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Delete starts the deletion of a server. Nova also deletes its own ports and the boot volume. The ports that Grow
// created are deleted after the server. A server that Nova keeps after its deletion (SOFT_DELETED) is deleted
// permanently.
func (p *Provider) Delete(ctx context.Context, providerID string) (cloud.Operation, error) {
	id, err := p.parseServerID(providerID)
	if err != nil {
		return cloud.Operation{}, err
	}
	m, err := p.getServer(ctx, id)
	if err != nil {
		return cloud.Operation{}, err
	}
	started := time.Now().UTC()
	switch {
	case m.State == cloud.Deleting && !m.softDeleted:
		return newDeletionOperation(id, started, p.listServerPortIDs(ctx, id)), nil
	case m.protectedReason != "":
		return cloud.Operation{}, &cloud.RefusedError{Reason: cloud.Protected, Err: fmt.Errorf("server %s (%s): %s", id, m.Name, m.protectedReason)}
	}
	c, err := p.session.authenticatedClients(ctx)
	if err != nil {
		return cloud.Operation{}, err
	}
	ports := p.listServerPortIDs(ctx, id)
	defer p.servers.Outdate()
	if m.softDeleted {
		err = servers.ForceDelete(ctx, c.compute, id).ExtractErr()
	} else {
		err = servers.Delete(ctx, c.compute, id).ExtractErr()
	}
	if err != nil {
		return p.recheckAfterRefusedDeletion(ctx, id, started, ports, fromAPIError("deleting server "+id, err))
	}
	p.log.Info("server deletion started", "server", id, "name", m.Name, "group", m.Group)
	return newDeletionOperation(id, started, ports), nil
}

// recheckAfterRefusedDeletion reads a server after a refused deletion: another deletion may have been first.
func (p *Provider) recheckAfterRefusedDeletion(ctx context.Context, id string, started time.Time, ports []string, refusal error) (cloud.Operation, error) {
	if isGone(refusal, id) {
		return cloud.Operation{}, &cloud.NotFoundError{Kind: "instance", Name: toProviderID(id)}
	}
	if ctx.Err() != nil || cloud.IsThrottled(refusal) {
		return cloud.Operation{}, refusal
	}
	m, err := p.getServer(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Operation{}, err
	case err == nil && m.State == cloud.Deleting && !m.softDeleted:
		return newDeletionOperation(id, started, ports), nil
	}
	return cloud.Operation{}, refusal
}

// operation is the content of [cloud.Operation].ID. Nova has no operations for these changes, so the servers are
// polled.
type operation struct {
	// Delete is the ID of the server that is being deleted.
	Delete string `json:"delete,omitempty"`
	// Create are the IDs of the servers that are being created.
	Create []string `json:"create,omitempty"`
	// Ports are the IDs of the ports to delete after the server.
	Ports []string `json:"ports,omitempty"`
}

func newDeletionOperation(id string, started time.Time, ports []string) cloud.Operation {
	return operation{Delete: id, Ports: ports}.toCloudOperation(started)
}

func (o operation) toCloudOperation(started time.Time) cloud.Operation {
	return cloud.NewOperation(o, started)
}

func decodeOperation(id string) (operation, error) {
	var o operation
	err := cloud.DecodeOperation(id, &o)
	if err == nil && (o.Delete == "") == (len(o.Create) == 0) {
		err = cloud.NewInvalidOperationError(id)
	}
	if err != nil {
		return operation{}, err
	}
	for _, server := range slices.Concat([]string{o.Delete}, o.Create, o.Ports) {
		if server != "" && !uuidPattern.MatchString(server) {
			return operation{}, newInvalidError("operation %.200q: %q is not a server or port ID", id, server)
		}
	}
	return o, nil
}

// Status reads the servers of an operation. A deletion is done when its server is gone or no longer being deleted. A
// launch is done when none of its servers is being created.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	if op.ID == "" {
		return cloud.OperationStatus{Done: true}, nil
	}
	o, err := decodeOperation(op.ID)
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	if o.Delete != "" {
		return p.deletionStatus(ctx, o)
	}
	return p.launchStatus(ctx, o.Create)
}

func (p *Provider) deletionStatus(ctx context.Context, o operation) (cloud.OperationStatus, error) {
	id := o.Delete
	m, err := p.getServer(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		p.servers.Outdate()
		p.deletePortsIfUnused(ctx, o.Ports)
		return cloud.OperationStatus{Done: true}, nil
	case err != nil:
		return cloud.OperationStatus{}, err
	case m.softDeleted:
		return cloud.OperationStatus{Done: true, Err: fmt.Errorf("server %s (%s): Nova keeps the deleted server for a while; "+
			"delete it again to remove it permanently", id, m.Name)}, nil
	case m.State == cloud.Deleting:
		return cloud.OperationStatus{}, nil
	}
	return cloud.OperationStatus{Done: true, Err: fmt.Errorf("server %s (%s) still exists, %s %s", id, m.Name, m.State, m.Message)}, nil
}

func (p *Provider) launchStatus(ctx context.Context, ids []string) (cloud.OperationStatus, error) {
	errs := make([]error, len(ids))
	faults := make([]error, len(ids))
	pending := make([]bool, len(ids))
	forEachConcurrently(len(ids), maxConcurrentReads, func(i int) {
		m, err := p.getServer(ctx, ids[i])
		switch {
		case cloud.IsNotFound(err): // deleted meanwhile
		case err != nil:
			errs[i] = err
		case m.State == cloud.Pending:
			pending[i] = true
		case m.State == cloud.Failed:
			faults[i] = m.launchError()
		}
	})
	if err := joinOrSingleError(errs); err != nil {
		return cloud.OperationStatus{}, err
	}
	for _, p := range pending {
		if p {
			return cloud.OperationStatus{}, nil
		}
	}
	p.servers.Outdate() // a cached list may show the servers as building
	return cloud.OperationStatus{Done: true, Err: joinOrSingleError(faults)}, nil
}

// launchError returns the error of a server in state ERROR.
func (m *serverInstance) launchError() error {
	err := fmt.Errorf("Nova failed to create server %s (%s): %s", m.id, m.Name, cmp.Or(m.Message, "Nova gives no reason"))
	if m.Refusal == "" {
		return err
	}
	return &cloud.RefusedError{Reason: m.Refusal, Err: err}
}
