package cloudpool

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// operation is what a [cloud.Operation]'s ID says: it is written down, and may be read by another process.
type operation struct {
	// Machine is the provider ID of a machine that is being terminated.
	Machine string `json:"machine,omitempty"`
	// Observed is the pool's observation when the termination was taken.
	Observed time.Time `json:"observed,omitzero"`
	// Pool and Size are a pool that grows, and the size that it is meant to come to.
	Pool string `json:"pool,omitempty"`
	Size int    `json:"size,omitempty"`
}

func decodeOperation(id string) (o operation, err error) {
	err = cloud.DecodeOperation(id, &o)
	if err == nil && (o.Machine == "") == (o.Pool == "") {
		err = cloud.InvalidOperation(id)
	}
	return o, err
}

// Delete terminates a machine, and has its pool's desired size be one less.
func (p *Provider) Delete(ctx context.Context, providerID string) (cloud.Operation, error) {
	return p.delete(ctx, providerID, cloud.DeleteOptions{})
}

// DeleteKeepingSize terminates a machine without decrement: its pool's server launches another one.
func (p *Provider) DeleteKeepingSize(ctx context.Context, providerID string) (cloud.Operation, error) {
	return p.delete(ctx, providerID, cloud.DeleteOptions{KeepSize: true})
}

func (p *Provider) delete(ctx context.Context, providerID string, options cloud.DeleteOptions) (cloud.Operation, error) {
	f, err := p.deletable(ctx, providerID, func() (found, error) { return p.find(ctx, providerID) })
	if err != nil {
		return cloud.Operation{}, err
	}
	return p.terminate(ctx, f, options)
}

// DeleteMember deletes a machine by its own ID in a pool, which may have none in its cloud yet.
func (p *Provider) DeleteMember(ctx context.Context, group, id string, options cloud.DeleteOptions) (cloud.Operation, error) {
	one, err := p.pool(ctx, group)
	if err != nil {
		return cloud.Operation{}, err
	}
	f, err := p.deletable(ctx, id, func() (found, error) {
		o, err := p.observe(ctx, one)
		if err != nil {
			return found{}, err
		}
		for i := range o.machines {
			if m := &o.machines[i]; m.ID == id && m.State != wire.Terminated {
				return found{p.instance(&o, m), m.ID, o}, nil
			}
		}
		return found{}, &cloud.NotFoundError{Kind: "instance", Name: id}
	})
	if err != nil {
		return cloud.Operation{}, err
	}
	return p.terminate(ctx, f, options)
}

func (p *Provider) terminate(ctx context.Context, f found, options cloud.DeleteOptions) (cloud.Operation, error) {
	one := f.observation.pool
	one.size.Lock() // so that no growth comes between, which would keep the server from lowering the desired size
	defer one.size.Unlock()
	started := time.Now().UTC()
	o := operation{Machine: f.ProviderID, Observed: f.observation.at}
	switch begun, err := p.begin(f); {
	case err != nil:
		return cloud.Operation{}, err
	case !begun:
		return cloud.NewOperation(o, started), nil
	}
	switch err := one.client.Terminate(ctx, wire.Removal{MachineID: f.id, Decrement: !options.KeepSize}); {
	case err == nil:
		p.log.Info("a machine's termination was taken", "machine", f.id, "pool", one.name)
		return cloud.NewOperation(o, started), nil
	case notTaken(err):
		p.abandon(f.ProviderID)
		return p.afterRefusal(ctx, f, o, started, classify(one.name, err))
	case wire.AsStatus(err) != nil && wire.AsStatus(err).Own: // a 5xx
		err = classify(one.name, err)
		p.fail(f.ProviderID, err)
		return cloud.Operation{}, err
	default:
		// It may have been taken: until the pool was observed anew it counts as such.
		return cloud.Operation{}, classify(one.name, err)
	}
}

// deletable finds a machine by an observation that is newer than this provider.
func (p *Provider) deletable(ctx context.Context, name string, find func() (found, error)) (found, error) {
	var answer found
	known, err := p.again(ctx, func() (_ bool, err error) {
		answer, err = find()
		return err == nil && (answer.State == cloud.Deleting || answer.observation.fresh()), err
	})
	if err != nil || known {
		return answer, err
	}
	return found{}, &notYetError{p.config.pollInterval(), fmt.Errorf(
		"machine %s: is not terminated before its pool has been observed again, lest it be terminated twice", name)}
}

// begin notes that a machine is being terminated. It reports false when it is already. After a failure it gives the server's word
// for that until the pool was observed again: the failed request may have reached its cloud.
func (p *Provider) begin(f found) (bool, error) {
	if f.State == cloud.Deleting || p.terminating(&f.observation, f.ProviderID) {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.terminated[f.ProviderID]; ok && t.failed != nil && !f.observation.at.After(t.observed) {
		return false, t.failed
	}
	for id, t := range p.terminated {
		if time.Since(t.at) > forgetAfter+p.config.settleTime() {
			delete(p.terminated, id)
		}
	}
	p.terminated[f.ProviderID] = termination{observed: f.observation.at, at: time.Now()}
	return true, nil
}

// fail notes that a server has failed to terminate a machine.
func (p *Provider) fail(providerID string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.terminated[providerID]
	t.failed = err
	p.terminated[providerID] = t
}

// forgetAfter is beyond the age of any observation: the reference server's are 5 minutes old at most.
const forgetAfter = time.Hour

func (p *Provider) abandon(providerID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.terminated, providerID)
}

// notTaken reports that a server has certainly not done what it was asked.
func notTaken(err error) bool {
	status := wire.AsStatus(err)
	return status != nil && (status.Code >= 400 && status.Code < 500 || status.Code == http.StatusNotImplemented || status.Own && status.Code == http.StatusBadGateway)
}

// afterRefusal looks at a machine that the server did not terminate: somebody else may have.
func (p *Provider) afterRefusal(ctx context.Context, f found, o operation, started time.Time, refused error) (cloud.Operation, error) {
	if ctx.Err() != nil || cloud.IsThrottled(refused) || cloud.RefusalOf(refused) != "" {
		return cloud.Operation{}, refused
	}
	again, err := p.find(ctx, f.ProviderID)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Operation{}, err
	case err == nil && again.State == cloud.Deleting:
		return cloud.NewOperation(o, started), nil
	}
	return cloud.Operation{}, refused
}

// Status looks what became of a termination or of a growth. Nothing but the machines tells.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.Status, error) {
	if op.ID == "" {
		return cloud.Status{Done: true}, nil
	}
	o, err := decodeOperation(op.ID)
	if err != nil {
		return cloud.Status{}, err
	}
	if o.Pool != "" {
		return p.growth(ctx, o)
	}
	f, err := p.find(ctx, o.Machine)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Status{Done: true}, nil
	case isNotYet(err):
		return cloud.Status{After: p.config.pollInterval()}, nil // it is missing, and not known to be gone
	case err != nil:
		return cloud.Status{}, err
	case f.State == cloud.Deleting, f.observation.at.Sub(o.Observed) <= p.config.settleTime():
		return cloud.Status{After: p.config.pollInterval()}, nil
	}
	p.abandon(f.ProviderID)
	return cloud.Status{Done: true, Err: fmt.Errorf("machine %s is still %s at %s, although its termination was taken", f.id, f.State,
		f.observation.at.Format(time.RFC3339))}, nil
}
