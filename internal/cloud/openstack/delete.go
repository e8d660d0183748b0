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

// Delete begins to delete a server. The ports that Nova has made go with it, and so does the volume that it booted from; those that
// Grow has made are deleted when it is gone. A server that Nova keeps for a while after its deletion (SOFT_DELETED) is deleted for good.
func (p *Provider) Delete(ctx context.Context, providerID string) (cloud.Operation, error) {
	id, err := p.serverID(providerID)
	if err != nil {
		return cloud.Operation{}, err
	}
	m, err := p.get(ctx, id)
	if err != nil {
		return cloud.Operation{}, err
	}
	started := time.Now().UTC()
	switch {
	case m.State == cloud.Deleting && !m.softDeleted:
		return deletion(id, started, p.portsOf(ctx, id)), nil
	case m.keeps != "":
		return cloud.Operation{}, &cloud.RefusedError{Reason: cloud.Protected, Err: fmt.Errorf("server %s (%s): %s", id, m.Name, m.keeps)}
	}
	c, err := p.session.clients(ctx)
	if err != nil {
		return cloud.Operation{}, err
	}
	ports := p.portsOf(ctx, id)
	defer p.servers.Outdate()
	if m.softDeleted {
		err = servers.ForceDelete(ctx, c.compute, id).ExtractErr()
	} else {
		err = servers.Delete(ctx, c.compute, id).ExtractErr()
	}
	if err != nil {
		return p.afterRefusal(ctx, id, started, ports, ofAPI("deleting server "+id, err))
	}
	p.log.Info("a server's deletion has begun", "server", id, "name", m.Name, "group", m.Group)
	return deletion(id, started, ports), nil
}

// afterRefusal looks at a server whose deletion was refused: somebody else's may have come first.
func (p *Provider) afterRefusal(ctx context.Context, id string, started time.Time, ports []string, refused error) (cloud.Operation, error) {
	if saysGone(refused, id) {
		return cloud.Operation{}, &cloud.NotFoundError{Kind: "instance", Name: providerIDOf(id)}
	}
	if ctx.Err() != nil || cloud.IsThrottled(refused) {
		return cloud.Operation{}, refused
	}
	m, err := p.get(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Operation{}, err
	case err == nil && m.State == cloud.Deleting && !m.softDeleted:
		return deletion(id, started, ports), nil
	}
	return cloud.Operation{}, refused
}

// operation is what a [cloud.Operation]'s ID says. Nova has no operations for either change: the servers are looked at.
type operation struct {
	// Delete is the ID of the server that is being deleted.
	Delete string `json:"delete,omitempty"`
	// Create are the IDs of those that are being made.
	Create []string `json:"create,omitempty"`
	// Ports are the IDs of those that are to be deleted after the server.
	Ports []string `json:"ports,omitempty"`
}

func deletion(id string, started time.Time, ports []string) cloud.Operation {
	return operation{Delete: id, Ports: ports}.encode(started)
}

func (o operation) encode(started time.Time) cloud.Operation {
	return cloud.NewOperation(o, started)
}

func decodeOperation(id string) (operation, error) {
	var o operation
	err := cloud.DecodeOperation(id, &o)
	if err == nil && (o.Delete == "") == (len(o.Create) == 0) {
		err = cloud.InvalidOperation(id)
	}
	if err != nil {
		return operation{}, err
	}
	for _, server := range slices.Concat([]string{o.Delete}, o.Create, o.Ports) {
		if server != "" && !uuid.MatchString(server) {
			return operation{}, invalid("operation %.200q: %q is no ID", id, server)
		}
	}
	return o, nil
}

// Status looks at the servers of an operation. A deletion is done when its server is gone, or is not being deleted any
// more; an order when none of its servers is being made.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.Status, error) {
	if op.ID == "" {
		return cloud.Status{Done: true}, nil
	}
	o, err := decodeOperation(op.ID)
	if err != nil {
		return cloud.Status{}, err
	}
	if o.Delete != "" {
		return p.deleted(ctx, o)
	}
	return p.created(ctx, o.Create)
}

func (p *Provider) deleted(ctx context.Context, o operation) (cloud.Status, error) {
	id := o.Delete
	m, err := p.get(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		p.servers.Outdate()
		p.dropPorts(ctx, o.Ports)
		return cloud.Status{Done: true}, nil
	case err != nil:
		return cloud.Status{}, err
	case m.softDeleted:
		return cloud.Status{Done: true, Err: fmt.Errorf("server %s (%s): Nova keeps it for a while although it is deleted; "+
			"asked again, it is deleted for good", id, m.Name)}, nil
	case m.State == cloud.Deleting:
		return cloud.Status{}, nil
	}
	return cloud.Status{Done: true, Err: fmt.Errorf("server %s (%s) is still there, %s %s", id, m.Name, m.State, m.Message)}, nil
}

func (p *Provider) created(ctx context.Context, ids []string) (cloud.Status, error) {
	errs := make([]error, len(ids))
	faults := make([]error, len(ids))
	pending := make([]bool, len(ids))
	each(len(ids), sideBySide, func(i int) {
		m, err := p.get(ctx, ids[i])
		switch {
		case cloud.IsNotFound(err): // whoever deleted it has not been waiting for it
		case err != nil:
			errs[i] = err
		case m.State == cloud.Pending:
			pending[i] = true
		case m.State == cloud.Failed:
			faults[i] = m.failure()
		}
	})
	if err := joined(errs); err != nil {
		return cloud.Status{}, err
	}
	for _, p := range pending {
		if p {
			return cloud.Status{}, nil
		}
	}
	p.servers.Outdate() // a list of before may have the servers as still being built
	return cloud.Status{Done: true, Err: joined(faults)}, nil
}

// failure is the error that a server in ERROR stands for.
func (m *found) failure() error {
	err := fmt.Errorf("server %s (%s) could not be made: %s", m.id, m.Name, cmp.Or(m.Message, "Nova does not say why"))
	if m.Refusal == "" {
		return err
	}
	return &cloud.RefusedError{Reason: m.Refusal, Err: err}
}
