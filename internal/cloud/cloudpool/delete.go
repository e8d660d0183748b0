package cloudpool

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// operation is the content of [cloud.Operation].ID. Another process may read this ID later.
type operation struct {
	// Machine is the provider ID of the machine that is being terminated.
	Machine string `json:"machine,omitempty"`
	// Observed is the pool's observation when the termination was accepted.
	Observed time.Time `json:"observed,omitzero"`
	// Pool and Size are the pool that grows and its target size.
	Pool string `json:"pool,omitempty"`
	Size int    `json:"size,omitempty"`
}

func decodeOperation(id string) (o operation, err error) {
	err = cloud.DecodeOperation(id, &o)
	if err == nil && (o.Machine == "") == (o.Pool == "") {
		err = cloud.NewInvalidOperationError(id)
	}
	return o, err
}

// Delete terminates a machine and decreases its pool's desired size by one.
func (p *Provider) Delete(ctx context.Context, providerID string) (cloud.Operation, error) {
	return p.deleteMachine(ctx, providerID, cloud.DeleteOptions{})
}

// DeleteKeepingSize terminates a machine without a change of the desired size. So the server launches another machine.
func (p *Provider) DeleteKeepingSize(ctx context.Context, providerID string) (cloud.Operation, error) {
	return p.deleteMachine(ctx, providerID, cloud.DeleteOptions{KeepSize: true})
}

func (p *Provider) deleteMachine(ctx context.Context, providerID string, options cloud.DeleteOptions) (cloud.Operation, error) {
	f, err := p.findInFreshObservation(ctx, providerID, func() (foundMachine, error) { return p.findMachine(ctx, providerID) })
	if err != nil {
		return cloud.Operation{}, err
	}
	return p.terminate(ctx, f, options)
}

// DeleteMember deletes a machine by its ID in the pool. The machine need not exist in the cloud yet.
func (p *Provider) DeleteMember(ctx context.Context, group, id string, options cloud.DeleteOptions) (cloud.Operation, error) {
	pool, err := p.findPool(ctx, group)
	if err != nil {
		return cloud.Operation{}, err
	}
	f, err := p.findInFreshObservation(ctx, id, func() (foundMachine, error) {
		o, err := p.observePool(ctx, pool)
		if err != nil {
			return foundMachine{}, err
		}
		for i := range o.machines {
			if m := &o.machines[i]; m.ID == id && m.State != wire.Terminated {
				return foundMachine{p.toInstance(&o, m), m.ID, o}, nil
			}
		}
		return foundMachine{}, &cloud.NotFoundError{Kind: "instance", Name: id}
	})
	if err != nil {
		return cloud.Operation{}, err
	}
	return p.terminate(ctx, f, options)
}

func (p *Provider) terminate(ctx context.Context, f foundMachine, options cloud.DeleteOptions) (cloud.Operation, error) {
	pool := f.observation.pool
	pool.sizeLock.Lock() // a growth in between would prevent the server from decreasing the desired size
	defer pool.sizeLock.Unlock()
	started := time.Now().UTC()
	o := operation{Machine: f.ProviderID, Observed: f.observation.at}
	switch begun, err := p.beginTermination(f); {
	case err != nil:
		return cloud.Operation{}, err
	case !begun:
		return cloud.NewOperation(o, started), nil
	}
	switch err := pool.client.Terminate(ctx, wire.Removal{MachineID: f.id, Decrement: !options.KeepSize}); {
	case err == nil:
		p.log.Info("termination accepted", "machine", f.id, "pool", pool.name)
		return cloud.NewOperation(o, started), nil
	case isCertainlyRejected(err):
		p.forgetTermination(f.ProviderID)
		return p.recheckAfterRefusedTermination(ctx, f, o, started, toProviderError(pool.name, err))
	case wire.AsStatusError(err) != nil && wire.AsStatusError(err).FromServer: // 5xx
		err = toProviderError(pool.name, err)
		p.recordTerminationFailure(f.ProviderID, err)
		return cloud.Operation{}, err
	default:
		// The termination may have been accepted. It counts as accepted until the next observation.
		return cloud.Operation{}, toProviderError(pool.name, err)
	}
}

// findInFreshObservation calls findMachine until its observation of the pool is newer than this provider, and returns
// the machine. A machine that is already being deleted needs no newer observation.
func (p *Provider) findInFreshObservation(ctx context.Context, name string, findMachine func() (foundMachine, error)) (foundMachine, error) {
	var answer foundMachine
	known, err := p.pollUntilTrue(ctx, func() (_ bool, err error) {
		answer, err = findMachine()
		return err == nil && (answer.State == cloud.Deleting || answer.observation.isNewerThanProvider()), err
	})
	if err != nil || known {
		return answer, err
	}
	return foundMachine{}, &needsObservationError{p.config.pollInterval(), fmt.Errorf(
		"machine %s: waiting for a new observation of its pool, because it must not be terminated twice", name)}
}

// beginTermination records the start of a machine's termination and returns true. It returns false if a
// termination is in progress. After a failed termination it returns the server's error until the next observation. The
// failed request may have reached the cloud.
func (p *Provider) beginTermination(f foundMachine) (recorded bool, err error) {
	if f.State == cloud.Deleting || p.isTerminating(&f.observation, f.ProviderID) {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.terminated[f.ProviderID]; ok && t.failed != nil && !f.observation.at.After(t.observed) {
		return false, t.failed
	}
	for id, t := range p.terminated {
		if time.Since(t.at) > retentionTime+p.config.settleTime() {
			delete(p.terminated, id)
		}
	}
	p.terminated[f.ProviderID] = termination{observed: f.observation.at, at: time.Now()}
	return true, nil
}

// recordTerminationFailure records the server's error for the termination of a machine.
func (p *Provider) recordTerminationFailure(providerID string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.terminated[providerID]
	t.failed = err
	p.terminated[providerID] = t
}

// retentionTime is how long records of machines are kept. It is longer than the age of any observation. The reference
// server's observations are at most 5 minutes old.
const retentionTime = time.Hour

func (p *Provider) forgetTermination(providerID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.terminated, providerID)
}

// isCertainlyRejected reports whether the error proves that the server did not accept the request.
func isCertainlyRejected(err error) bool {
	status := wire.AsStatusError(err)
	return status != nil && (status.Code >= 400 && status.Code < 500 || status.Code == http.StatusNotImplemented || status.FromServer && status.Code == http.StatusBadGateway)
}

// recheckAfterRefusedTermination reads a machine after the server refused its termination, because another termination
// may have been first. It returns a [cloud.NotFoundError] if the machine is gone, and an operation if it is being
// deleted. Otherwise it returns refused.
func (p *Provider) recheckAfterRefusedTermination(ctx context.Context, f foundMachine, o operation, started time.Time, refused error) (cloud.Operation, error) {
	if ctx.Err() != nil || cloud.IsThrottled(refused) || cloud.RefusalOf(refused) != "" {
		return cloud.Operation{}, refused
	}
	again, err := p.findMachine(ctx, f.ProviderID)
	switch {
	case cloud.IsNotFound(err):
		return cloud.Operation{}, err
	case err == nil && again.State == cloud.Deleting:
		return cloud.NewOperation(o, started), nil
	}
	return cloud.Operation{}, refused
}

// Status returns the progress of a termination or of a growth. Only the machines that the server observed decide the
// result.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	if op.ID == "" {
		return cloud.OperationStatus{Done: true}, nil
	}
	o, err := decodeOperation(op.ID)
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	if o.Pool != "" {
		return p.growthStatus(ctx, o)
	}
	f, err := p.findMachine(ctx, o.Machine)
	switch {
	case cloud.IsNotFound(err):
		return cloud.OperationStatus{Done: true}, nil
	case needsObservation(err):
		return cloud.OperationStatus{RetryAfter: p.config.pollInterval()}, nil // missing, but not proven to be gone
	case err != nil:
		return cloud.OperationStatus{}, err
	case f.State == cloud.Deleting, f.observation.at.Sub(o.Observed) <= p.config.settleTime():
		return cloud.OperationStatus{RetryAfter: p.config.pollInterval()}, nil
	}
	p.forgetTermination(f.ProviderID)
	return cloud.OperationStatus{Done: true, Err: fmt.Errorf("machine %s is still %s at %s, after its termination was accepted", f.id, f.State,
		f.observation.at.Format(time.RFC3339))}, nil
}
