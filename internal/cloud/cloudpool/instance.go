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

// observation is what a pool answered.
type observation struct {
	pool     *pool
	at       time.Time // when the server observed its cloud, by its own clock
	machines []wire.Machine
}

// observe reads a pool.
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

// noteSeen remembers which machines a pool has, each until it has been missing for long.
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

// withoutPool reports that a pool is no longer there, by its server's list and by its own answer, and that a machine was last seen
// in another one: what that says of the machine is all that there is to be known. One that was never seen may have been in it (I7).
func (p *Provider) withoutPool(one *pool, key string, err error) bool {
	status := wire.AsStatus(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.seen[key].pool
	return one.unlisted && status != nil && status.Own && status.Code == http.StatusNotFound && at != nil && at != one
}

// fresh reports that an observation is newer than this provider.
func (o *observation) fresh() bool {
	o.pool.mu.Lock()
	defer o.pool.mu.Unlock()
	return o.at.After(o.pool.first)
}

// Group reads a pool's desired size, which is what its server goes by, and not an observation.
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

// Instances lists a pool's machines as they were last observed, but for those that have ended.
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

// ProviderID is a machine's provider ID. A machine that its cloud has not made yet, or of a cloud that is not known, has
// one of the pool's own, cloudpool://POOL/ID, which no Node has.
func ProviderID(group string, m *wire.Machine) string {
	if id, ok := MachineID(m); ok {
		return id.String()
	}
	return poolID(group, m)
}

// poolID is the provider ID of a machine that only the pool knows.
func poolID(group string, m *wire.Machine) string { return Name + "://" + group + "/" + m.ID }

// instance puts a machine in the words of package cloud.
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
		i.KeptReason = "its membershipStatus says that it is not evictable"
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

// terminating reports that a machine which an observation has as alive was terminated, and that the observation need not
// know of it yet.
func (p *Provider) terminating(o *observation, providerID string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.terminated[providerID]
	return ok && t.failed == nil && o.at.Sub(t.observed) <= p.config.settleTime()
}

// found is a machine with the observation that has it.
type found struct {
	cloud.Instance
	id          string // the pool's own
	observation observation
}

// Instance reads a machine. One that was observed twice to be missing is gone.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	f, err := p.find(ctx, providerID)
	return f.Instance, err
}

// find finds a machine, or says that it is gone. Where that takes a newer observation it waits for one, not for long.
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
		"machine %s: the pools as they were last observed do not have it, and have not been observed again since", key)}
}

// again asks until there is an answer, or the time is over in which a newer observation is waited for. The second time is
// at once, since a server may observe its cloud for every request.
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

// lookEvery is the time between two looks for a newer observation within one call.
const lookEvery = 100 * time.Millisecond

// notYetError says that what was asked cannot be known before the server has observed its cloud again.
type notYetError struct {
	after time.Duration
	err   error
}

func (e *notYetError) Error() string { return e.err.Error() }

// As makes it a wish of the cloud to be asked later.
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

// look reads all pools once. It gives the machine, or says that it is gone; neither means that it is not known yet.
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
			continue // another one may have it
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
	if len(lacking) == 0 { // nobody has said anything of it
		unread = cmp.Or(unread, dropped)
	}
	if unread != nil {
		return nil, false, unread
	}
	return nil, p.lacks(key, lacking), nil
}

// maxMissing bounds how many machines are remembered as missing. Who asks for more has to ask a third time.
const maxMissing = 4096

// noteFound forgets that a machine was missing.
func (p *Provider) noteFound(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.missing, key)
}

// lacks takes in that the latest observations lack a machine, and reports whether all of them are newer than those that
// first did.
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
