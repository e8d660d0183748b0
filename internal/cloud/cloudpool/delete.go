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
	return p.findAndTerminate(ctx, providerID, options, func() (foundMachine, error) { return p.findMachine(ctx, providerID) })
}

// DeleteMember deletes a machine by its ID in the pool. The machine need not exist in the cloud yet.
func (p *Provider) DeleteMember(ctx context.Context, group, id string, options cloud.DeleteOptions) (cloud.Operation, error) {
	pool, err := p.findPool(ctx, group)
	if err != nil {
		return cloud.Operation{}, err
	}
	return p.findAndTerminate(ctx, id, options, func() (foundMachine, error) {
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
}

// findAndTerminate terminates the machine that findMachine returns.
func (p *Provider) findAndTerminate(ctx context.Context, name string, options cloud.DeleteOptions, findMachine func() (foundMachine, error)) (cloud.Operation, error) {
	f, err := p.findInFreshObservation(ctx, name, options, findMachine)
	if err != nil {
		return cloud.Operation{}, err
	}
	pool := f.observation.pool
	if !pool.sizeLock.TryLock() { // a growth in between would prevent the server from decreasing the desired size
		pool.sizeLock.Lock()
		f, err = p.findInFreshObservation(ctx, name, options, findMachine) // the other change may have taken minutes
	}
	defer pool.sizeLock.Unlock()
	if err != nil {
		return cloud.Operation{}, err
	}
	return p.terminate(ctx, f, options)
}

// terminate terminates a machine. The caller holds its pool's sizeLock.
func (p *Provider) terminate(ctx context.Context, f foundMachine, options cloud.DeleteOptions) (cloud.Operation, error) {
	pool := f.observation.pool
	started := time.Now().UTC()
	o := operation{Machine: f.ProviderID, Observed: f.observation.at}
	switch begun, err := p.beginTermination(f); {
	case err != nil:
		return cloud.Operation{}, err
	case !begun:
		return cloud.NewOperation(o, started), nil
	}
	err := pool.client.Terminate(ctx, wire.Removal{MachineID: f.id, Decrement: !options.KeepSize})
	p.recordTerminationSent(f.ProviderID)
	switch {
	case err == nil:
		p.log.Info("termination accepted", "machine", f.id, "pool", pool.name)
		if !options.KeepSize {
			pool.mu.Lock()
			pool.surplus.recordDecrement()
			pool.mu.Unlock()
		}
		return cloud.NewOperation(o, started), nil
	case isCertainlyRejected(err):
		p.forgetTermination(f.ProviderID)
		return p.recheckAfterRefusedTermination(ctx, f, o, started, toProviderError(pool.name, err))
	case wire.AsStatusError(err) != nil && wire.AsStatusError(err).FromServer: // 5xx
		err = toProviderError(pool.name, err)
		p.recordTerminationFailure(f.ProviderID, err, false)
		return cloud.Operation{}, err
	default: // the server may have accepted the termination
		err = toProviderError(pool.name, err)
		p.recordTerminationFailure(f.ProviderID, err, true)
		return cloud.Operation{}, err
	}
}

// findInFreshObservation calls findMachine until a termination of the machine cannot be a second one, and returns the
// machine. Its observation of the pool is then newer than this provider, and shows all earlier terminations. A machine that
// is already being deleted needs no such observation. If the wait would outlast ObservationWait, findInFreshObservation
// returns its error at once.
func (p *Provider) findInFreshObservation(ctx context.Context, name string, options cloud.DeleteOptions, findMachine func() (foundMachine, error)) (foundMachine, error) {
	var answer foundMachine
	var wait string
	waitsLong := p.config.settleTime() > p.config.observationWait() // for all reasons but the first observation
	_, err := p.pollUntilTrue(ctx, func() (_ bool, err error) {
		wait = ""
		if answer, err = findMachine(); err == nil && answer.State != cloud.Deleting {
			wait, err = p.reasonToAwaitObservation(ctx, &answer, options)
		}
		return err == nil && (wait == "" || wait != awaitsFirstObservation && waitsLong), err
	})
	if err != nil || wait == "" {
		return answer, err
	}
	return foundMachine{}, &needsObservationError{p.config.pollInterval(), fmt.Errorf(
		"machine %s: waiting for a new observation of its pool, because it must not be terminated twice: %s", name, wait)}
}

// awaitsFirstObservation is the reason to wait before this provider has read two observations.
const awaitsFirstObservation = "the server has not observed its cloud since this program started"

// reasonToAwaitObservation returns why the server may already have accepted a termination of the machine, although the
// observation still lists it. It returns "" if this is impossible.
func (p *Provider) reasonToAwaitObservation(ctx context.Context, f *foundMachine, options cloud.DeleteOptions) (string, error) {
	if !f.observation.isNewerThanProvider() {
		return awaitsFirstObservation, nil
	}
	if err := p.unansweredTermination(f); err != nil {
		return fmt.Sprintf("its last termination got no valid answer (%s)", err), nil
	}
	return p.reasonToAwaitOthers(ctx, &f.observation, options)
}

// unansweredTermination returns the error of the machine's last termination if it got no valid answer and has not settled.
func (p *Provider) unansweredTermination(f *foundMachine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.terminated[f.ProviderID]
	if t.unanswered && !t.period.isOver(f.observation.at, p.config.settleTime()) {
		return t.failed
	}
	return nil
}

// reasonToAwaitOthers returns why another process may have terminated a machine that the observation lists. Until the
// observation shows such a termination, the desired size is lower than the number of active machines. If the difference
// lasts for SettleTime, the pool has more machines than desired. A termination without decrement may be repeated, because
// it does not change the desired size.
func (p *Provider) reasonToAwaitOthers(ctx context.Context, o *observation, options cloud.DeleteOptions) (string, error) {
	if options.KeepSize {
		return "", nil
	}
	size, err := o.pool.client.Size(ctx)
	if err != nil {
		return "", toProviderError(o.pool.name, err)
	}
	active := p.countActive(o)
	o.pool.mu.Lock()
	defer o.pool.mu.Unlock()
	if o.pool.surplus.hasSettled(o.at, active, size.Desired, p.config.settleTime()) {
		return "", nil
	}
	return fmt.Sprintf("the pool has %d active machines and a desired size of %d, so another client may have terminated one", active, size.Desired), nil
}

// countActive returns the number of active machines without those that this process has terminated.
func (p *Provider) countActive(o *observation) (active int) {
	for i := range o.machines {
		if m := &o.machines[i]; m.IsActive() && !p.isTerminating(o, ProviderID(o.pool.name, m)) {
			active++
		}
	}
	return active
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
	if t := p.terminated[f.ProviderID]; t.failed != nil && !f.observation.at.After(t.period.before) {
		return false, t.failed
	}
	for id, t := range p.terminated {
		if time.Since(t.at) > retentionTime+p.config.settleTime() {
			delete(p.terminated, id)
		}
	}
	p.terminated[f.ProviderID] = termination{sending: true, period: settlePeriod{before: f.observation.at}, at: time.Now()}
	return true, nil
}

// recordTerminationSent records that the request for a machine's termination has ended. The settle period begins.
func (p *Provider) recordTerminationSent(providerID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.terminated[providerID]
	t.sending, t.at = false, time.Now()
	p.terminated[providerID] = t
}

// restoreTermination records a termination that an earlier process has sent. It changes no record of this process, because
// that one may say that the termination has failed.
func (p *Provider) restoreTermination(o operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.terminated[o.Machine]; !known {
		p.terminated[o.Machine] = termination{period: settlePeriod{before: o.Observed}, at: time.Now()}
	}
}

// recordTerminationFailure records the error for the termination of a machine. An unanswered termination may have been
// accepted.
func (p *Provider) recordTerminationFailure(providerID string, err error, unanswered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.terminated[providerID]
	t.failed, t.unanswered = err, unanswered
	p.terminated[providerID] = t
}

// retentionTime is how long records of machines are kept. It is longer than maxObservationAge.
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
	p.restoreTermination(o)
	f, err := p.findMachine(ctx, o.Machine)
	switch {
	case cloud.IsNotFound(err):
		return cloud.OperationStatus{Done: true}, nil
	case needsObservation(err):
		return cloud.OperationStatus{RetryAfter: p.config.pollInterval()}, nil // missing, but not proven to be gone
	case err != nil:
		return cloud.OperationStatus{}, err
	case f.State == cloud.Deleting:
		return cloud.OperationStatus{RetryAfter: p.config.pollInterval()}, nil
	}
	err = fmt.Errorf("machine %s is still %s at %s, after its termination was accepted", f.id, f.State, f.observation.at.Format(time.RFC3339))
	p.recordTerminationFailure(f.ProviderID, err, false)
	return cloud.OperationStatus{Done: true, Err: err}, nil
}
