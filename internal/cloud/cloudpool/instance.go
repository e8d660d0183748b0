package cloudpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// observation is the list of a pool's machines that a server read from its cloud at one time.
type observation struct {
	pool     *pool
	at       time.Time // time of the observation, by the server's clock
	machines []wire.Machine
}

func (p *Provider) observePool(ctx context.Context, pool *pool) (observation, error) {
	began := time.Now()
	read, err := pool.client.Pool(ctx)
	if err != nil {
		return observation{}, toProviderError(pool.name, err)
	}
	p.recordSeenMachines(pool, &read, began)
	o := observation{pool, read.Timestamp, read.Machines}
	active := p.countActive(&o)
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if pool.firstObservation.IsZero() || isClockSetBack(pool.firstObservation, read.Timestamp) {
		pool.firstObservation = read.Timestamp
	}
	pool.surplus.recordObservation(o.at, active)
	return o, nil
}

// recordSeenMachines records for each machine which pool lists it, that it is not missing, and the settle period of its
// termination. It forgets a machine that no observation has listed for retentionTime. The read of the pool began at the
// time began.
func (p *Provider) recordSeenMachines(pool *pool, read *wire.Pool, began time.Time) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range read.Machines {
		m := &read.Machines[i]
		if key := ProviderID(pool.name, m); m.State != wire.Terminated {
			p.lastSeen[key] = sighting{pool, now}
			delete(p.missing, key)
			if t, ok := p.terminated[key]; ok {
				if t.sending || began.Before(t.at) { // the termination may be later than the observation
					t.period.recordEarlierObservation(read.Timestamp)
				} else {
					t.period.recordObservation(read.Timestamp)
				}
				p.terminated[key] = t
			}
		} else if p.lastSeen[key].pool == pool {
			delete(p.lastSeen, key)
		}
	}
	if now.Sub(pool.prunedAt) > retentionTime { // of this pool alone: another may not have been read for as long
		pool.prunedAt = now
		maps.DeleteFunc(p.lastSeen, func(_ string, s sighting) bool { return s.pool == pool && now.Sub(s.at) > retentionTime })
	}
}

// canIgnoreRemovedPool reports whether a pool was removed and does not matter for a machine. The pool must be missing
// in the server's list, and its own response must be a 404. The machine must have been observed in another pool. A
// machine that was never observed may have been in the removed pool (I7: unknown is not gone).
func (p *Provider) canIgnoreRemovedPool(pool *pool, key string, readErr error) bool {
	status := wire.AsStatusError(readErr)
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.lastSeen[key].pool
	return pool.unlisted && status != nil && status.FromServer && status.Code == http.StatusNotFound && at != nil && at != pool
}

// checkServersListPools returns an error if a server with several pools has never listed a valid pool. A machine that was
// never observed may be in one of its pools (I7: unknown is not gone).
func (p *Provider) checkServersListPools(key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastSeen[key].pool != nil {
		return nil
	}
	for _, c := range p.config.Pools {
		if c.Multi && !p.hasListedPools[c.URL] {
			return fmt.Errorf("machine %s: the list of pools of %s has no valid name, which is not trusted: want /cloudpools/NAME", key, c.URL)
		}
	}
	return nil
}

// isNewerThanProvider reports whether the server made the observation after this provider's first read of the pool.
func (o *observation) isNewerThanProvider() bool {
	o.pool.mu.Lock()
	defer o.pool.mu.Unlock()
	return o.at.After(o.pool.firstObservation)
}

// Group reads the desired size of a pool. The size does not come from an observation, so it is current.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	pool, err := p.findPool(ctx, name)
	if err != nil {
		return cloud.Group{}, err
	}
	size, err := pool.client.Size(ctx)
	if err != nil {
		return cloud.Group{}, toProviderError(name, err)
	}
	return cloud.Group{Name: name, Size: size.Desired}, nil
}

// Instances lists the machines in a pool's last observation, except terminated machines.
func (p *Provider) Instances(ctx context.Context, name string) ([]cloud.Instance, error) {
	pool, err := p.findPool(ctx, name)
	if err != nil {
		return nil, err
	}
	o, err := p.observePool(ctx, pool)
	if err != nil {
		return nil, err
	}
	instances := []cloud.Instance{}
	for i := range o.machines {
		if m := &o.machines[i]; m.State != wire.Terminated {
			instances = append(instances, p.toInstance(&o, m))
		}
	}
	return instances, nil
}

// ProviderID returns the provider ID of a machine. A machine that does not exist in its cloud yet has the ID
// cloudpool://POOL/ID, which no Node has. The same applies to a machine of an unknown cloud.
func ProviderID(group string, m *wire.Machine) string {
	if id, ok := ParseMachineID(m); ok {
		return id.String()
	}
	return poolProviderID(group, m)
}

// poolProviderID returns the provider ID of a machine that has no known ID in a cloud.
func poolProviderID(group string, m *wire.Machine) string { return Name + "://" + group + "/" + m.ID }

// toInstance converts a machine of a pool.
func (p *Provider) toInstance(o *observation, m *wire.Machine) cloud.Instance {
	i := cloud.Instance{
		ProviderID: ProviderID(o.pool.name, m), Name: MachineName(m),
		ComputerName: ComputerName(m, o.pool.config.ComputerName), Group: o.pool.name, Type: m.Size, State: toState(m.State),
		DeletionProtected: m.Membership != nil && !m.Membership.Evictable, NameMayDiffer: true,
	}
	if before := poolProviderID(o.pool.name, m); isSpotRequest(m) && before != i.ProviderID {
		i.PreviousProviderID = before
	}
	if i.DeletionProtected {
		i.DeletionProtectionReason = "its membershipStatus is not evictable"
	}
	for _, at := range []*time.Time{m.RequestTime, m.LaunchTime} { // a server sets the launch time of a requested machine later
		if at != nil && (i.Created.IsZero() || at.Before(i.Created)) {
			i.Created = *at
		}
	}
	if i.State == cloud.Failed {
		i.Message = "the pool's cloud has rejected the request for the machine"
	}
	if i.State != cloud.Deleting && p.isTerminating(o, i.ProviderID) {
		i.State = cloud.Deleting
	}
	return i
}

func toState(s wire.MachineState) cloud.State {
	switch s {
	case wire.Requested, wire.Pending:
		return cloud.Pending
	case wire.Running:
		return cloud.Running
	case wire.Terminating, wire.Terminated:
		return cloud.Deleting
	case wire.Rejected:
		return cloud.Failed
	}
	return cloud.Unknown
}

// isTerminating reports whether a termination of a machine was accepted and has not settled yet. The observation may
// still report such a machine as alive.
func (p *Provider) isTerminating(o *observation, providerID string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.terminated[providerID]
	return ok && t.failed == nil && !t.period.isOver(o.at, p.config.settleTime())
}

// foundMachine is a machine and the observation that lists it.
type foundMachine struct {
	cloud.Instance
	id          string // ID in the pool
	observation observation
}

// Instance reads one machine. It returns a [cloud.NotFoundError] if the server reports the machine as terminated. Two
// observations that lack the machine prove the same.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	f, err := p.findMachine(ctx, providerID)
	return f.Instance, err
}

// findMachine returns a machine, or a [cloud.NotFoundError] if the machine is proved to be gone. If necessary, it waits
// briefly for a newer observation.
func (p *Provider) findMachine(ctx context.Context, providerID string) (foundMachine, error) {
	id, err := p.parseID(providerID)
	if err != nil {
		return foundMachine{}, err
	}
	key := id.String()
	var answer foundMachine
	known, err := p.pollUntilTrue(ctx, func() (bool, error) {
		f, gone, err := p.searchPools(ctx, key)
		if f != nil {
			answer = *f
		}
		if gone {
			err = &cloud.NotFoundError{Kind: "instance", Name: providerID}
		}
		return f != nil, err
	})
	if err != nil || known {
		return answer, err
	}
	return foundMachine{}, &needsObservationError{p.config.pollInterval(), fmt.Errorf(
		"machine %s: missing in the last observation of the pools; waiting for a new observation", key)}
}

// pollUntilTrue calls ask until ask returns true or an error, or until ObservationWait has passed. The second call
// follows at once, because a server may observe its cloud on every request.
func (p *Provider) pollUntilTrue(ctx context.Context, ask func() (bool, error)) (done bool, err error) {
	deadline := time.Now().Add(p.config.observationWait())
	for try := 0; ; try++ {
		done, err := ask()
		if done || err != nil {
			return done, err
		}
		switch {
		case try == 0:
			continue
		case time.Now().After(deadline):
			return false, nil
		}
		if !elapsed.Sleep(ctx, min(p.config.pollInterval(), readInterval)) {
			return false, fmt.Errorf("cloudpool: %w", context.Cause(ctx))
		}
	}
}

// readInterval is the maximum delay between two reads within one call.
const readInterval = 100 * time.Millisecond

// needsObservationError means that the result is unknown until the server makes a newer observation.
type needsObservationError struct {
	after time.Duration
	err   error
}

func (e *needsObservationError) Error() string { return e.err.Error() }

// As presents the error as a [cloud.ThrottledError], so that the caller waits and retries.
func (e *needsObservationError) As(target any) bool {
	throttled, ok := target.(**cloud.ThrottledError)
	if ok {
		*throttled = &cloud.ThrottledError{RetryAfter: e.after, Err: e.err}
	}
	return ok
}

func needsObservation(err error) bool {
	var e *needsObservationError
	return errors.As(err, &e)
}

// searchPools reads all pools once. It returns the machine if a pool lists it. Otherwise gone reports whether the
// machine is proved to be gone.
func (p *Provider) searchPools(ctx context.Context, key string) (f *foundMachine, gone bool, err error) {
	pools, err := p.listPools(ctx)
	if err != nil {
		return nil, false, err
	}
	lacking, unread := lackingObservations{}, p.checkServersListPools(key)
	var dropped error
	for _, pool := range pools {
		o, err := p.observePool(ctx, pool)
		switch {
		case p.canIgnoreRemovedPool(pool, key, err):
			dropped = err
			continue
		case err != nil:
			unread = cmp.Or(unread, err)
			continue // another pool may have it
		}
		for i := range o.machines {
			m := &o.machines[i]
			if ProviderID(pool.name, m) != key {
				continue
			}
			if m.State == wire.Terminated {
				return nil, true, nil
			}
			return &foundMachine{p.toInstance(&o, m), m.ID, o}, false, nil
		}
		lacking[pool.name] = o.at
	}
	if len(lacking) == 0 { // no pool was read
		unread = cmp.Or(unread, dropped)
	}
	if unread != nil {
		return nil, false, unread
	}
	return nil, p.confirmMissing(key, lacking), nil
}

// maxMissing limits the number of missing machines that are recorded. At the limit all records are dropped, so a
// machine may need a third request.
const maxMissing = 4096

// confirmMissing records that the latest observations of all pools lack a machine. It returns true if every observation
// is newer than the first one of its pool that lacked the machine.
func (p *Provider) confirmMissing(key string, now lackingObservations) (confirmed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, asked := p.missing[key]
	if !asked {
		if len(p.missing) >= maxMissing {
			clear(p.missing)
		}
		p.missing[key] = now
		return false
	}
	confirmed = true
	for name, at := range now {
		before, known := first[name]
		if !known || isClockSetBack(before, at) {
			first[name] = at
		}
		confirmed = confirmed && known && at.After(before)
	}
	return confirmed
}
