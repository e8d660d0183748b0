// Package slots limits how many nodes of a cluster are drained at once, with nobody in charge: there are as many
// Leases (coordination.k8s.io) as drains may be under way, and who drains holds one.
//
// A holder renews its Lease, and gives it back when it is done. One that died does neither, and its slot is taken over
// when the Lease has not changed for its duration. That time is counted by the clock of whoever waits, from when he
// last saw the Lease change, so that clocks need not agree. A holder that cannot renew takes its slot for lost well
// before anybody else can take it: there are never more holders than slots, whatever the API server and the network do.
// Each change carries the resourceVersion that it was worked out from, so that of two who are after one slot one gets it.
//
// Of those who wait, whose time is up soonest goes first: a slot that becomes free is left alone for a while by whoever
// has more time. Nobody writes down that he waits, so that this costs no request; of two who both have more than some two
// minutes either may be first.
package slots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// duration is what a Lease says of itself: for so long after its last change it is its holder's.
	duration = 30 * time.Second
	// keepFor is for how long after its last renewal a holder takes the slot for its own. It counts from before the
	// request was sent, others from after they have seen the answer; the difference is what an eviction may take that
	// is under way when the slot is lost.
	keepFor = 15 * time.Second
	// longest is the most that is believed of a Lease's own duration, so that no slot is blocked by a slip of the pen.
	longest = 2 * time.Minute
	// renewEvery leaves time for a renewal that fails to be tried again.
	renewEvery = 6 * time.Second
	// askEvery is the mean pause between two looks of one who waits, and between two tries of what failed.
	askEvery = 3 * time.Second
	// leavePart is the part of the time that a waiting one has left for which he leaves a free slot to those who have less, and
	// longestLeave bounds that.
	leavePart    = 1.0 / 100
	longestLeave = 4 * time.Second
	// leastAskEvery is askEvery of one who has next to no time left.
	leastAskEvery = time.Second
	// requestTimeout bounds each request.
	requestTimeout = 4 * time.Second

	labelKey, labelValue = "slipway.dev/slot", "drain"
	namePrefix           = "slipway-drain-"
)

// MaxLimit is the largest number of slots: an agent's rights name each Lease, so that it can change no other.
const MaxLimit = 16

// API is what the package asks of the API server. *kubeapi.Client is one.
type API interface {
	ListLeases(ctx context.Context, namespace, labelSelector string) ([]kubeapi.Lease, error)
	CreateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error)
	UpdateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error)
}

// Options configure a [Keeper]. All but Log are needed.
type Options struct {
	API API
	// Namespace is where the Leases are.
	Namespace string
	// Holder names who holds a slot, such as a node. One that comes back under its name, after a crash, has its slot still.
	Holder string
	// Limit is the number of slots, 1 to MaxLimit. All who share a namespace should agree on it.
	Limit int
	Log   *slog.Logger
}

// Keeper contends for one slot on behalf of one holder. It asks nothing of the API server while none is wanted. Its
// methods may be called from any goroutine.
type Keeper struct {
	o    Options
	wake chan struct{}

	mu      sync.Mutex
	wanted  bool
	due     time.Time // when it is no longer waited for; zero is never
	until   time.Time // the slot is surely ours before this
	claimed bool      // a slot may bear our name
	holders []string

	// What is below belongs to Run's goroutine.
	lease     *kubeapi.Lease // our slot as last written
	seen      map[string]sighting
	said      string    // the last failure that was logged
	told      string    // what could be asked when changed was last called
	expire    time.Time // when it is no longer worth giving the slot back
	waits     bool      // others had all the slots when we came
	freeSince time.Time // from when on one was free at our last look; zero is none
}

// sighting is when a Lease was first seen in its present state.
type sighting struct {
	version string
	at      time.Time
}

// New checks the options; its errors name the option, its value and what is allowed.
func New(o Options) (*Keeper, error) {
	switch {
	case o.Namespace == "":
		return nil, errors.New("namespace of the Leases is empty; want the agent's own")
	case o.Holder == "":
		return nil, errors.New("holder is empty; want the node's name")
	case o.Limit < 1 || o.Limit > MaxLimit:
		return nil, fmt.Errorf("limit: %d: want 1 to %d", o.Limit, MaxLimit)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{o: o, wake: make(chan struct{}, 1), seen: map[string]sighting{}}, nil
}

// Want says whether a slot is wanted from now on, and until when it is of use; zero is for ever. Who no longer wants one
// has none from that moment on, even if it takes a while until the others know.
func (k *Keeper) Want(wanted bool, due time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due = due
	if k.wanted == wanted {
		return
	}
	k.wanted = wanted
	if !wanted {
		k.until, k.holders = time.Time{}, nil
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Held reports whether a slot is ours at this moment.
func (k *Keeper) Held() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Now().Before(k.until)
}

// GivenBack reports that no slot bears our name any more, as far as is known.
func (k *Keeper) GivenBack() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.wanted && !k.claimed
}

// Holders names who had the slots when we last found none.
func (k *Keeper) Holders() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.holders)
}

// Run contends until ctx ends, and calls changed whenever Held, Holders or GivenBack may answer otherwise. At the end it keeps its
// slot: who is restarted in the midst of a drain goes on with it, and who is not loses it before long.
func (k *Keeper) Run(ctx context.Context, changed func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.tell(changed) // a slot whose time is over, before a request that may hang
		next := k.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		k.tell(changed)
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// tell calls changed when what can be asked of the keeper has changed.
func (k *Keeper) tell(changed func()) {
	if state := fmt.Sprint(k.Held(), k.Holders(), k.GivenBack()); state != k.told {
		k.told = state
		changed()
	}
}

// turn does what is due, and returns when to look again; 0 is when something is wanted.
func (k *Keeper) turn(ctx context.Context) time.Duration {
	k.mu.Lock()
	wanted, until := k.wanted, k.until
	k.mu.Unlock()
	var err error
	next := renewEvery
	switch {
	case !wanted && k.lease == nil:
		clear(k.seen)
		k.waits = false
		return 0
	case !wanted:
		err = k.giveBack(ctx)
		next = 0
	case k.lease != nil:
		err = k.renew(ctx)
	default:
		var got bool
		if got, err = k.take(ctx); !got {
			next = k.pause()
		}
	}
	k.say(err)
	if err != nil {
		next = askEvery/2 + rand.N(askEvery/2)
	}
	if left := time.Until(until); next > 0 && left > 0 {
		next = min(next, left) // to tell of the loss when it comes
	}
	return next
}

// say logs trouble when it begins, when it changes, and when it is over.
func (k *Keeper) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == k.said {
		return
	}
	k.said = text
	if err != nil {
		k.o.Log.Warn("cannot reach the slots for drains", "err", err)
	}
}

// take looks for a slot of ours, a free one, or one whose holder is dead.
func (k *Keeper) take(ctx context.Context) (bool, error) {
	leases, err := k.list(ctx)
	if err != nil {
		return false, err
	}
	if own := k.own(leases); own != nil {
		return k.claim(ctx, *own)
	}
	k.lost()
	if k.leaves(leases) {
		return false, nil
	}
	var holders []string
	first := rand.IntN(k.o.Limit)
	for i := range k.o.Limit {
		name := slotName((first + i) % k.o.Limit)
		lease, there := leases[name]
		if there && !k.free(lease) {
			holders = append(holders, lease.Spec.HolderIdentity)
			continue
		}
		if !there {
			lease = kubeapi.Lease{ObjectMeta: kubeapi.ObjectMeta{Name: name, Namespace: k.o.Namespace}}
		}
		if got, err := k.claim(ctx, lease); got || err != nil {
			k.waits = k.waits && !got
			return got, err
		}
	}
	k.waits = true
	slices.Sort(holders)
	k.mu.Lock()
	k.holders = holders
	k.mu.Unlock()
	return false, nil
}

// leaves reports that a slot is free, and is left to those who have less time, for now. Who came to free slots does not
// know of anybody who waits.
func (k *Keeper) leaves(leases map[string]kubeapi.Lease) bool {
	k.freeSince = time.Time{}
	if !k.waits {
		return false
	}
	for i := range k.o.Limit {
		lease := leases[slotName(i)]
		lease.Name = slotName(i)
		since, free := k.freeFrom(lease)
		if free && (k.freeSince.IsZero() || since.Before(k.freeSince)) {
			k.freeSince = since
		}
	}
	return !k.freeSince.IsZero() && time.Since(k.freeSince) < k.leave()
}

// leave is for how long a free slot is left to others.
func (k *Keeper) leave() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.due.IsZero() {
		return longestLeave
	}
	return min(max(0, time.Duration(leavePart*float64(time.Until(k.due)))), longestLeave)
}

// pause is the time until the next look for a free slot. Who has little time looks more often.
func (k *Keeper) pause() time.Duration {
	every := min(max(k.leave(), leastAskEvery), askEvery)
	next := every/2 + rand.N(every)
	if !k.freeSince.IsZero() {
		next = min(next, max(k.leave()-time.Since(k.freeSince), leastAskEvery/10))
	}
	return next
}

// own finds the slot that is ours, be it from before a crash, or from a request that was not answered.
func (k *Keeper) own(leases map[string]kubeapi.Lease) *kubeapi.Lease {
	for i := range k.o.Limit {
		if l, ok := leases[slotName(i)]; ok && l.Spec.HolderIdentity == k.o.Holder {
			return &l
		}
	}
	return nil
}

// free reports that nobody holds a slot, or that its holder has not been heard of for too long.
func (k *Keeper) free(l kubeapi.Lease) bool {
	_, free := k.freeFrom(l)
	return free
}

// freeFrom reports that a slot is free, and from when on it is known to have been so. One that was taken and given back
// meanwhile is so anew.
func (k *Keeper) freeFrom(l kubeapi.Lease) (since time.Time, free bool) {
	now := time.Now()
	seen, ok := k.seen[l.Name]
	if !ok || seen.version != l.ResourceVersion {
		seen = sighting{version: l.ResourceVersion, at: now}
		k.seen[l.Name] = seen
	}
	if l.Spec.HolderIdentity == "" {
		return seen.at, true
	}
	lasts := duration
	if s := l.Spec.LeaseDurationSeconds; s > 0 {
		lasts = min(max(time.Duration(s)*time.Second, duration), longest)
	}
	since = seen.at.Add(lasts)
	return since, !now.Before(since)
}

// claim writes our name, or writes it again. It returns false when somebody was quicker.
func (k *Keeper) claim(ctx context.Context, l kubeapi.Lease) (bool, error) {
	began := time.Now()
	was := l.Spec.HolderIdentity
	if was != k.o.Holder {
		l.Spec.AcquireTime = kubeapi.MicroTime{Time: began}
		l.Spec.LeaseTransitions++
	}
	l.Spec.HolderIdentity = k.o.Holder
	l.Spec.LeaseDurationSeconds = int32(duration / time.Second)
	l.Spec.RenewTime = kubeapi.MicroTime{Time: began}
	made, err := k.write(ctx, l)
	switch {
	case kubeapi.IsConflict(err), kubeapi.IsExists(err), kubeapi.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if was != k.o.Holder {
		k.o.Log.Info("took a slot for a drain", "slot", l.Name, "from", was)
	}
	k.lease = made
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claimed = true
	if k.wanted { // it may have changed meanwhile
		k.until, k.holders = began.Add(keepFor), nil
	}
	return true, nil
}

// renew keeps the slot. When somebody changed the Lease it is looked for anew: it may be another's now.
func (k *Keeper) renew(ctx context.Context) error {
	got, err := k.claim(ctx, *k.lease)
	if err != nil || got {
		return err
	}
	k.lease = nil
	_, err = k.take(ctx)
	return err
}

// lost notes that no slot is ours.
func (k *Keeper) lost() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until, k.claimed = time.Time{}, false
}

// giveBack takes our name off. What cannot be given back in time is taken over without that.
func (k *Keeper) giveBack(ctx context.Context) error {
	if k.expire.IsZero() {
		k.expire = time.Now().Add(duration)
	}
	err := k.clearName(ctx, *k.lease)
	if kubeapi.IsConflict(err) {
		var leases map[string]kubeapi.Lease
		if leases, err = k.list(ctx); err == nil {
			if own := k.own(leases); own != nil {
				err = k.clearName(ctx, *own)
			}
		}
	}
	if err != nil && !kubeapi.IsNotFound(err) && time.Now().Before(k.expire) {
		return err
	}
	k.lease, k.expire = nil, time.Time{}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claimed = false
	return nil
}

func (k *Keeper) clearName(ctx context.Context, l kubeapi.Lease) error {
	l.Spec.HolderIdentity = ""
	l.Spec.RenewTime = kubeapi.MicroTime{Time: time.Now()}
	_, err := k.write(ctx, l)
	return err
}

// write creates a Lease that has no version, and updates any other.
func (k *Keeper) write(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	l.ObjectMeta = kubeapi.ObjectMeta{
		Name: l.Name, Namespace: k.o.Namespace, ResourceVersion: l.ResourceVersion,
		Labels: map[string]string{labelKey: labelValue},
	}
	if l.ResourceVersion == "" {
		return k.o.API.CreateLease(ctx, l)
	}
	return k.o.API.UpdateLease(ctx, l)
}

// list reads all slots with one request.
func (k *Keeper) list(ctx context.Context) (map[string]kubeapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := k.o.API.ListLeases(ctx, k.o.Namespace, labelKey+"="+labelValue)
	if err != nil {
		return nil, fmt.Errorf("slots for drains: %w", err)
	}
	byName := map[string]kubeapi.Lease{}
	for _, l := range all {
		if strings.HasPrefix(l.Name, namePrefix) {
			byName[l.Name] = l
		}
	}
	return byName, nil
}

func slotName(i int) string { return fmt.Sprintf("%s%d", namePrefix, i) }
