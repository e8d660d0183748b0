package cloudpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// setMembership is how a machine's membership is set.
type setMembership func(context.Context, api.SetMembershipStatus) error

// setWithRoom says how a membership is set so that the pool's server does not find more active machines than it is meant
// to have, of which it would take some of its own choice away. A machine that comes to count again raises the desired size
// by one, as one does that is attached. One that may be taken away again while there are too many already is refused.
func setWithRoom(ctx context.Context, b Backend, want api.SetMembershipStatus) (setMembership, error) {
	if !want.MembershipStatus.Active {
		return b.SetMembershipStatus, nil
	}
	pool, err := b.Pool(ctx)
	if err != nil {
		return nil, backendFailure("reading the pool", err)
	}
	size, err := b.Size(ctx)
	if err != nil {
		return nil, backendFailure("reading the pool's size", err)
	}
	active := 0
	var is *api.Machine
	for i := range pool.Machines {
		m := &pool.Machines[i]
		if m.ID == want.MachineID && !m.State.Over() {
			is = m
		}
		if m.Active() {
			active++
		}
	}
	switch {
	case is == nil: // the server has a word for that
	case !is.Active() && active+1 > size.Desired:
		return func(ctx context.Context, want api.SetMembershipStatus) error {
			return countAgain(ctx, b, want, *is.Membership, size.Desired+1)
		}, nil
	case is.Active() && !is.Evictable() && want.MembershipStatus.Evictable && active > size.Desired:
		return nil, failure(NotPossible, "the pool has %d active machines and is meant to have %d: as soon as machine %s may be taken away, its server takes "+
			"some of its own choice: want the pool brought to its size before, with POST /pool/size", active, size.Desired, want.MachineID)
	}
	return b.SetMembershipStatus, nil
}

// countAgain has a machine count, and then raises the desired size, in this order: a server that is meant to have one more
// launches it. Servers look at how many machines they have once a minute or so, and not between these two requests. If the
// second one fails the machine is made what it was. A client that leaves stops neither.
func countAgain(ctx context.Context, b Backend, want api.SetMembershipStatus, was api.MembershipStatus, desired int) error {
	ctx = context.WithoutCancel(ctx)
	if err := b.SetMembershipStatus(ctx, want); err != nil {
		return err
	}
	err := b.SetDesiredSize(ctx, desired)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("machine %s is not made active, since the desired size cannot be raised to %d with it: %w", want.MachineID, desired, err)
	if undo := b.SetMembershipStatus(ctx, api.SetMembershipStatus{MachineID: want.MachineID, MembershipStatus: was}); undo != nil {
		return errors.Join(err, fmt.Errorf("nor is it made what it was: %w", undo))
	}
	return err
}
