package cloudpool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// raised are the machines for which the desired size was raised so that they count again.
type raised map[string]raise

// raise is what the desired size was raised to for a machine.
type raise struct {
	To int `json:"to"`
	// Unused says that the machine does not count all the same, so that whoever asks again needs no larger size.
	Unused bool `json:"unused,omitempty"`
	// Observed is the observation by which it did not count. As long as no newer one is there, it is not raised for again.
	Observed time.Time `json:"observed,omitzero"`
}

// setMembership is setWithRoom by what is written down, which whoever asks another process goes by, too. Nobody else may change
// the pool meanwhile.
func (u *Updater) setMembership(ctx context.Context, want api.SetMembershipStatus) error {
	ctx = context.WithoutCancel(ctx)
	load, cancel := context.WithTimeout(ctx, u.o.Pace.Take)
	defer cancel()
	r, err := u.store.load(load)
	if err != nil { // the pool may be changed while the API server is away
		u.log.Warn("cannot see what the desired size was raised for", "err", err)
		was := maps.Clone(u.raised)
		defer func() { u.unwritten = u.unwritten.with(u.raised.since(was)) }()
		return u.raised.setWithRoom(ctx, u.o.Backend, want)
	}
	if r.Raised == nil {
		r.Raised = raised{}
	}
	b := &writing{Backend: u.o.Backend, u: u, record: r, is: maps.Clone(r.Raised)}
	u.raised = r.Raised.with(u.unwritten)
	defer b.write(ctx)
	return u.raised.setWithRoom(ctx, b, want)
}

// writing is a pool's server that is asked for no size before it is written down what that is raised for.
type writing struct {
	Backend
	u      *Updater
	record *record
	is     raised // as it was written down last
	failed bool   // to be written down
}

func (w *writing) write(ctx context.Context) {
	if maps.Equal(w.is, w.record.Raised) {
		w.u.unwritten = nil
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.u.o.Pace.Take)
	defer cancel()
	if err := w.u.store.save(ctx, w.record); err != nil {
		w.u.log.Warn("cannot write down what the desired size is raised for", "err", err)
		w.failed, w.u.unwritten = true, w.record.Raised.since(w.is)
		return
	}
	w.is, w.u.unwritten = maps.Clone(w.record.Raised), nil
}

// since gives what was raised since.
func (r raised) since(was raised) raised {
	news := maps.Clone(r)
	maps.DeleteFunc(news, func(machine string, now raise) bool { return was[machine] == now })
	return news
}

// with adds what was raised besides, or later.
func (r raised) with(news raised) raised {
	if r == nil {
		r = raised{}
	}
	maps.Copy(r, news)
	return r
}

// SetDesiredSize writes down first. What failed is not tried again before the end: a machine may count already that there is no
// room for yet.
func (w *writing) SetDesiredSize(ctx context.Context, n int) error {
	if !w.failed {
		w.write(ctx)
	}
	return w.Backend.SetDesiredSize(ctx, n)
}

// setWithRoom sets a membership so that the pool's server does not find more active machines than it is meant to have, of
// which it would take some of its own choice away. A machine that comes to count again raises the desired size by one, as
// one does that is attached. One that may be taken away again while there are too many already is refused. Nobody else may
// change the pool meanwhile. A client that leaves stops none of it.
func (r raised) setWithRoom(ctx context.Context, b Backend, want api.SetMembershipStatus) error {
	ctx = context.WithoutCancel(ctx)
	if !want.MembershipStatus.Active {
		delete(r, want.MachineID)
		return b.SetMembershipStatus(ctx, want)
	}
	pool, err := b.Pool(ctx)
	if err != nil {
		return err // the server's own word, which it would have for the request too
	}
	size, err := b.Size(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(r, func(id string, _ raise) bool {
		return !slices.ContainsFunc(pool.Machines, func(m api.Machine) bool { return m.ID == id })
	})
	active := activeIn(&pool)
	var is *api.Machine
	for i := range pool.Machines {
		if m := &pool.Machines[i]; m.ID == want.MachineID && !m.State.Over() {
			is = m
		}
	}
	switch {
	case is == nil: // the server has a word for that
	case !is.Active() && r.counts(is.ID, pool.Timestamp): // and that was not observed yet
	case !is.Active():
		return r.countAgain(ctx, b, want, is.Membership.Disposable(), r.sizeFor(is.ID, size.Desired), pool.Timestamp)
	case !is.Evictable() && want.MembershipStatus.Evictable && active > size.Desired:
		return failure(NotPossible, "the pool has %d active machines and is meant to have %d: as soon as machine %s may be taken away, its server takes "+
			"some of its own choice: want the pool brought to its size before, with POST /pool/size", active, size.Desired, want.MachineID)
	}
	return b.SetMembershipStatus(ctx, want)
}

// counts reports that the desired size was raised for a machine since an observation.
func (r raised) counts(machine string, observed time.Time) bool {
	is, raised := r[machine]
	return raised && !is.Unused && !observed.After(is.Observed)
}

// sizeFor is the desired size that a machine may count with. One that it was raised to for that machine, in vain, is not raised
// again: each try that fails would have one more launched. What was launched for it meanwhile has room made as in the first try.
func (r raised) sizeFor(machine string, desired int) int {
	if is := r[machine]; is.Unused && is.To == desired {
		return desired
	}
	return desired + 1
}

// countAgain raises the desired size, and then has a machine count, in this order: whatever happens between the two, the
// server has at worst one machine launched too many. That one is one too many to keep as soon as the other counts, and at the next
// turn of its loop the server may take for it the machine that has served longest. So room is made for it too, right then. No
// order of these calls is better: a smaller size than there are machines is what a turn must not find, and a larger one is filled.
// The size is not lowered again when the machine cannot be changed: the server may have begun to launch one for it, and would
// choose which goes. A machine that is disposable is put aside before all, and stays so if it cannot count: its server takes it
// as soon as it looks, as it does for a size.
func (r raised) countAgain(
	ctx context.Context, b Backend, want api.SetMembershipStatus, disposable bool, desired int, observed time.Time,
) error {
	aside := api.SetMembershipStatus{MachineID: want.MachineID}
	if disposable {
		if err := b.SetMembershipStatus(ctx, aside); err != nil {
			return fmt.Errorf("machine %s is not made active, since it cannot be put aside before, and its server may take it away: %w",
				want.MachineID, err)
		}
	}
	r[want.MachineID] = raise{To: desired, Unused: true} // also where it is raised, and the answer lost
	if err := b.SetDesiredSize(ctx, desired); err != nil {
		return fmt.Errorf("machine %s is not made active, since the desired size cannot be raised to %d for it: %w", want.MachineID, desired, err)
	}
	if err := b.SetMembershipStatus(ctx, want); err != nil {
		return fmt.Errorf("the desired size was raised to %d for machine %s, which is not made active: %w", desired, want.MachineID, err)
	}
	desired, err := makeRoom(ctx, b, desired)
	if err == nil {
		r[want.MachineID] = raise{To: desired, Observed: observed}
		return nil
	}
	r[want.MachineID] = raise{To: desired, Unused: true}
	err = fmt.Errorf("machine %s counts again, and there may be no room for what was launched meanwhile: %w", want.MachineID, err)
	if back := b.SetMembershipStatus(ctx, aside); back != nil {
		return fmt.Errorf("%w; nor can it be put aside again: %w", err, back)
	}
	return fmt.Errorf("%w: it is put aside again", err)
}

// How long, and how often, it is looked whether a server launches a machine for a size that another one fills now.
const roomFor, roomEvery = time.Second, 50 * time.Millisecond

// makeRoom raises the desired size by what was launched before a machine came to count: to as many as are active, by observations
// made since, and returns what it is then. A server that has none when it is asked, since it answers with what it observed before,
// is not waited for: its loop looks for itself. One machine may have been launched there, and there is to be room for it. So it is
// where the pool cannot be read all the while.
func makeRoom(ctx context.Context, b Backend, desired int) (int, error) {
	var first time.Time
	looked, seen := false, false
	for until := time.Now().Add(roomFor); ; {
		pool, err := b.Pool(ctx)
		isLast := !time.Now().Before(until)
		room := desired
		switch {
		case err == nil && looked:
			seen = pool.Timestamp.After(first)
			isLast = isLast || !seen
			room = activeIn(&pool)
		case err == nil:
			first, looked = pool.Timestamp, true
		}
		if isLast && !seen {
			room = desired + 1
		}
		if room > desired {
			if err := b.SetDesiredSize(ctx, room); err != nil {
				return desired, err
			}
			desired = room
		}
		if isLast {
			return desired, nil
		}
		time.Sleep(roomEvery) // two observations within a server's millisecond could not be told apart
	}
}

// activeIn counts the machines that a pool's size counts.
func activeIn(pool *api.Pool) int {
	n := 0
	for i := range pool.Machines {
		if pool.Machines[i].Active() {
			n++
		}
	}
	return n
}
