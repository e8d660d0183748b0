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

// observation is the response of a pool.
type observation struct {
	pool     *pool
	at       time.Time // time of the observation, by the server's clock
	machines []wire.Machine
}

func (p *Provider) observe(ctx context.Context, one *pool) (observation, error) {
	read, err := one.client.Pool(ctx)
	if err != nil {
		return observation{}, classify(one.name, err)
	}
	p.noteSeen(one, read.Machines)
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.first.IsZero() {
		one.first = read.Timestamp
	}
	return observation{one, read.Timestamp, read.Machines}, nil
}

// noteSeen records the machines of a pool. It removes a machine after it was missing for forgetAfter.
func (p *Provider) noteSeen(one *pool, machines []wire.Machine) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range machines {
		m := &machines[i]
		if key := ProviderID(one.name, m); m.State != wire.Terminated {
			p.seen[key] = sighting{one, now}
		} else if p.seen[key].pool == one {
			delete(p.seen, key)
		}
	}
	if now.Sub(one.forgot) > forgetAfter { // of this pool alone: another may not have been read for as long
		one.forgot = now
		maps.DeleteFunc(p.seen, func(_ string, s sighting) bool { return s.pool == one && now.Sub(s.at) > forgetAfter })
	}
}

// withoutPool reports whether a pool no longer exists and does not matter for a machine. The server's list and the
// pool's response must both lack the pool, and the machine must have been observed in another pool. A machine that was
// never observed may have been in it (I7).
func (p *Provider) withoutPool(one *pool, key string, err error) bool {
	status := wire.AsStatus(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.seen[key].pool
	return one.unlisted && status != nil && status.Own && status.Code == http.StatusNotFound && at != nil && at != one
}

// fresh reports whether an observation is newer than this provider.
func (o *observation) fresh() bool {
	o.pool.mu.Lock()
	defer o.pool.mu.Unlock()
	return o.at.After(o.pool.first)
}

// Group reads the desired size of a pool. It does not depend on an observation.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	one, err := p.pool(ctx, name)
	if err != nil {
		return cloud.Group{}, err
	}
	size, err := one.client.Size(ctx)
	if err != nil {
		return cloud.Group{}, classify(name, err)
	}
	return cloud.Group{Name: name, Size: size.Desired}, nil
}

// Instances lists the machines of a pool's last observation, except terminated ones.
func (p *Provider) Instances(ctx context.Context, name string) ([]cloud.Instance, error) {
	one, err := p.pool(ctx, name)
	if err != nil {
		return nil, err
	}
	o, err := p.observe(ctx, one)
	if err != nil {
		return nil, err
	}
	instances := []cloud.Instance{}
	for i := range o.machines {
		if m := &o.machines[i]; m.State != wire.Terminated {
			instances = append(instances, p.instance(&o, m))
		}
	}
	return instances, nil
}

// ProviderID returns the provider ID of a machine. A machine that does not exist in its cloud yet, or is of an unknown
// cloud, has the ID cloudpool://POOL/ID, which no Node has.
func ProviderID(group string, m *wire.Machine) string {
	if id, ok := MachineID(m); ok {
		return id.String()
	}
	return poolID(group, m)
}

// poolID returns the provider ID of a machine that only the pool knows.
func poolID(group string, m *wire.Machine) string { return Name + "://" + group + "/" + m.ID }

// instance converts a machine of a pool.
func (p *Provider) instance(o *observation, m *wire.Machine) cloud.Instance {
	i := cloud.Instance{
		ProviderID: ProviderID(o.pool.name, m), Name: MachineName(m),
		ComputerName: ComputerName(m, o.pool.config.ComputerName), Group: o.pool.name, Type: m.Size, State: stateOf(m.State),
		Kept: m.Membership != nil && !m.Membership.Evictable, AnyName: true,
	}
	if before := poolID(o.pool.name, m); isRequest(m) && before != i.ProviderID {
		i.FormerID = before
	}
	if i.Kept {
		i.KeptReason = "its membershipStatus is not evictable"
	}
	switch {
	case m.LaunchTime != nil:
		i.Created = *m.LaunchTime
	case m.RequestTime != nil:
		i.Created = *m.RequestTime
	}
	if i.State == cloud.Failed {
		i.Message = "the pool's cloud has rejected the request for the machine"
	}
	if i.State != cloud.Deleting && p.terminating(o, i.ProviderID) {
		i.State = cloud.Deleting
	}
	return i
}

func stateOf(s wire.MachineState) cloud.State {
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

// terminating reports whether a machine was terminated although the observation may still report it as alive.
func (p *Provider) terminating(o *observation, providerID string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.terminated[providerID]
	return ok && t.failed == nil && o.at.Sub(t.observed) <= p.config.settleTime()
}

// found is a machine with its observation.
type found struct {
	cloud.Instance
	id          string // ID in the pool
	observation observation
}

// Instance reads a machine. A machine that two observations lack is gone.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	f, err := p.find(ctx, providerID)
	return f.Instance, err
}

// find finds a machine or proves that it is gone. It waits briefly for a newer observation if necessary.
func (p *Provider) find(ctx context.Context, providerID string) (found, error) {
	id, err := p.own(providerID)
	if err != nil {
		return found{}, err
	}
	key := id.String()
	var answer found
	known, err := p.again(ctx, func() (bool, error) {
		f, gone, err := p.look(ctx, key)
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
	return found{}, &notYetError{p.config.pollInterval(), fmt.Errorf(
		"machine %s: missing in the last observation of the pools; waiting for a new observation", key)}
}

// again calls ask until it returns true, or until ObservationWait ends. The second call is immediate, because a server
// may observe its cloud on every request.
func (p *Provider) again(ctx context.Context, ask func() (bool, error)) (bool, error) {
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
		if !elapsed.Sleep(ctx, min(p.config.pollInterval(), lookEvery)) {
			return false, fmt.Errorf("cloudpool: %w", context.Cause(ctx))
		}
	}
}

// lookEvery is the delay between two reads within one call.
const lookEvery = 100 * time.Millisecond

// notYetError means that the result needs a newer observation of the server.
type notYetError struct {
	after time.Duration
	err   error
}

func (e *notYetError) Error() string { return e.err.Error() }

// As converts the error to a [cloud.ThrottledError].
func (e *notYetError) As(target any) bool {
	throttled, ok := target.(**cloud.ThrottledError)
	if ok {
		*throttled = &cloud.ThrottledError{After: e.after, Err: e.err}
	}
	return ok
}

func isNotYet(err error) bool {
	var e *notYetError
	return errors.As(err, &e)
}

// look reads all pools once. It returns the machine, or that it is gone, or neither if that is unknown.
func (p *Provider) look(ctx context.Context, key string) (f *found, gone bool, err error) {
	pools, err := p.all(ctx)
	if err != nil {
		return nil, false, err
	}
	lacking := absence{}
	var unread, dropped error
	for _, one := range pools {
		o, err := p.observe(ctx, one)
		switch {
		case p.withoutPool(one, key, err):
			dropped = err
			continue
		case err != nil:
			unread = cmp.Or(unread, err)
			continue // another pool may have it
		}
		for i := range o.machines {
			m := &o.machines[i]
			if ProviderID(one.name, m) != key {
				continue
			}
			if m.State == wire.Terminated {
				return nil, true, nil
			}
			p.noteFound(key)
			return &found{p.instance(&o, m), m.ID, o}, false, nil
		}
		lacking[one.name] = o.at
	}
	if len(lacking) == 0 { // no pool was read
		unread = cmp.Or(unread, dropped)
	}
	if unread != nil {
		return nil, false, unread
	}
	return nil, p.lacks(key, lacking), nil
}

// maxMissing limits the recorded missing machines. Beyond it, a machine needs a third request.
const maxMissing = 4096

// noteFound removes a machine from the missing ones.
func (p *Provider) noteFound(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.missing, key)
}

// lacks records that the latest observations lack a machine. It reports whether all of them are newer than the first
// ones that lacked it.
func (p *Provider) lacks(key string, now absence) bool {
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
	for name, at := range now {
		if before, known := first[name]; !known || !at.After(before) {
			if !known {
				first[name] = at
			}
			return false
		}
	}
	return true
}
