// Package semaphore limits how many nodes of a cluster are drained at once, without a central controller. There are as
// many Leases (coordination.k8s.io) as concurrent drains are allowed, and each drain holds one Lease, its slot.
//
// A holder renews its Lease while it drains, and releases it afterwards. If a holder dies, its Lease stops changing.
// Once the Lease has not changed for its duration, another process may take it. The waiting process measures this time
// by its own clock, from when it last saw the Lease change. So the clocks of two nodes may differ. A holder that cannot
// renew its Lease stops relying on it long before another process can take it. So there are never more holders than
// slots, even after failures. Each write carries the resourceVersion that was read, so only one of two competitors gets
// a slot.
//
// Among the waiting processes, the one with the least time left gets the next slot: a process with more time does not
// take a free slot for a while. Waiting is not recorded anywhere, so it causes no writes. Between two processes that
// both have more than about two minutes left, the order is random.
package semaphore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// leaseDuration is the duration in each Lease. A Lease without a change for this long no longer belongs to its
	// holder.
	leaseDuration = 30 * time.Second
	// ownershipTimeout is how long after its last renewal a holder relies on its slot. The holder measures from before
	// the renewal was sent. Other processes measure a longer time, leaseDuration, from when they saw the renewal. So an
	// eviction that is running when the slot is lost can still end before another process takes the slot.
	ownershipTimeout = 15 * time.Second
	// maxLeaseDuration is the longest duration that is accepted from a Lease. Without this limit, a wrong duration
	// could block a slot.
	maxLeaseDuration = 2 * time.Minute
	// renewInterval is the pause between two renewals. It is short enough to retry a failed renewal several times.
	renewInterval = 6 * time.Second
	// retryInterval is the mean pause between two tries to get a slot, and the pause after a failed request.
	retryInterval = 3 * time.Second
	// yieldFraction determines how long a waiting process does not take a free slot, so that a process with less time
	// can take it. It is the fraction of the process's remaining time; maxYieldTime is the limit.
	yieldFraction = 1.0 / 100
	maxYieldTime  = 4 * time.Second
	// minRetryInterval is the mean pause between two tries of a process with almost no time left.
	minRetryInterval = time.Second
	// requestTimeout is the timeout of each request.
	requestTimeout = 4 * time.Second

	purposeLabel   = "slipway.dev/slot"
	defaultPurpose = "drain"
)

// MaxLimit is the largest number of slots. The agent's RBAC rules list the names of this many Leases, so that an agent
// can change no other Lease.
const MaxLimit = 16

// API lists the requests of this package to the API server. *kubeapi.Client implements it.
type API interface {
	ListLeases(ctx context.Context, namespace, labelSelector string) ([]kubeapi.Lease, error)
	CreateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error)
	UpdateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error)
}

// Options configures a [Holder]. Purpose and Log are optional.
type Options struct {
	API API
	// Namespace is the namespace of the Leases.
	Namespace string
	// Identity names the holder of a slot, such as a node. A holder that restarts under the same name still has its
	// slot.
	Identity string
	// Limit is the number of slots, 1 to MaxLimit. All holders in a namespace should use the same limit.
	Limit int
	// Purpose separates the slots of one kind from others in the namespace. The Leases are named slipway-PURPOSE-0,
	// slipway-PURPOSE-1, and so on. It is a DNS label of at most 40 characters; empty is "drain".
	Purpose string
	Log     *slog.Logger
}

// Holder competes for one slot. It sends no request while SetWanted is false. Its methods may be called from any
// goroutine.
type Holder struct {
	options Options
	wake    chan struct{}

	mu          sync.Mutex
	wanted      bool
	usefulUntil time.Time      // until when the slot is useful; zero is no limit
	renewed     elapsed.Moment // before the last renewal of the slot was sent; zero if it is not ours
	mayBeHolder bool           // a Lease may name this holder
	holders     []string

	// The fields below belong to the goroutine of Run.
	lease           *kubeapi.Lease
	observations    map[string]observation
	lastFailure     string    // the last failure that was logged
	lastState       string    // the public state when changed was last called
	releaseDeadline time.Time // when releasing the slot stops being useful
	foundNoneFree   bool      // at the last try every slot was taken
	freeSince       time.Time // since when a slot is free, as of the last try; zero is none
}

// observation records when a Lease was first seen with its current resourceVersion.
type observation struct {
	resourceVersion string
	firstSeen       time.Time
}

// NewHolder returns a Holder that wants no slot yet. If an option is invalid, the error names the option, its value and
// what is allowed.
func NewHolder(o Options) (*Holder, error) {
	switch {
	case o.Namespace == "":
		return nil, errors.New("namespace: is empty, want the namespace of the Leases")
	case o.Identity == "":
		return nil, errors.New("holder: is empty, want a name such as the node's")
	case o.Limit < 1 || o.Limit > MaxLimit:
		return nil, fmt.Errorf("limit: %d: want 1 to %d", o.Limit, MaxLimit)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Purpose == "" {
		o.Purpose = defaultPurpose
	}
	return &Holder{options: o, wake: make(chan struct{}, 1), observations: map[string]observation{}}, nil
}

// SetWanted sets whether this holder wants a slot, and until when the slot is useful to it. A zero due means without
// limit. If wanted is false, IsHeld returns false at once, although the Lease is released later.
func (k *Holder) SetWanted(wanted bool, usefulUntil time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.usefulUntil = usefulUntil
	if k.wanted == wanted {
		return
	}
	k.wanted = wanted
	if !wanted {
		k.renewed, k.holders = elapsed.Moment{}, nil
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// IsHeld reports whether this holder may rely on a slot now.
func (k *Holder) IsHeld() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.timeHeld() > 0
}

// timeHeld returns for how long this holder may still rely on its slot. The caller has locked mu.
func (k *Holder) timeHeld() time.Duration { return ownershipTimeout - elapsed.Since(k.renewed) }

// IsReleased reports whether this holder wants no slot and no Lease names it, as far as it knows.
func (k *Holder) IsReleased() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.wanted && !k.mayBeHolder
}

// Holders returns the names of the processes that held all slots at the last try. It returns none if a slot was free.
func (k *Holder) Holders() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.holders)
}

// Run competes for a slot until ctx ends. It calls changed whenever IsHeld, Holders or IsReleased may return something
// else. It does not release the slot at the end: a process that restarts during a drain continues with the slot. If no
// process continues, the Lease expires.
func (k *Holder) Run(ctx context.Context, changed func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.notifyIfChanged(changed) // before a request that may hang, because the slot may have expired
		next := k.reconcileLease(ctx)
		if ctx.Err() != nil {
			return
		}
		k.notifyIfChanged(changed)
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// notifyIfChanged calls changed if IsHeld, Holders or IsReleased returns something else than at the last call of
// changed.
func (k *Holder) notifyIfChanged(changed func()) {
	if state := fmt.Sprint(k.IsHeld(), k.Holders(), k.IsReleased()); state != k.lastState {
		k.lastState = state
		changed()
	}
}

// reconcileLease acquires, renews or releases the slot, as is due. It returns when to call it again; 0 means after the
// next call of SetWanted.
func (k *Holder) reconcileLease(ctx context.Context) (next time.Duration) {
	k.mu.Lock()
	wanted, mayBeHolder := k.wanted, k.mayBeHolder
	k.mu.Unlock()
	var err error
	next = renewInterval
	switch {
	case !wanted && k.lease == nil && !mayBeHolder:
		clear(k.observations)
		k.foundNoneFree = false
		return 0
	case !wanted:
		err = k.releaseLease(ctx)
		next = 0
	case k.lease != nil:
		err = k.renewOrReacquire(ctx)
	default:
		var got bool
		if got, err = k.tryAcquireSlot(ctx); !got {
			next = k.retryDelay()
		}
	}
	k.logFailureIfChanged(err)
	if err != nil {
		next = retryInterval/2 + rand.N(retryInterval/2)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if left := k.timeHeld(); next > 0 && left > 0 {
		next = min(next, left) // to report the loss when it happens
	}
	return next
}

// logFailureIfChanged logs a failure, unless the last failure was the same.
func (k *Holder) logFailureIfChanged(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == k.lastFailure {
		return
	}
	k.lastFailure = text
	if err != nil {
		k.options.Log.Warn("cannot read or write the slots, will retry", "for", k.options.Purpose, "err", err)
	}
}

// tryAcquireSlot tries to get a slot, and reports whether it did. It first looks for a Lease that already names this
// holder, then for a free Lease or the Lease of a dead holder.
func (k *Holder) tryAcquireSlot(ctx context.Context) (acquired bool, err error) {
	leases, err := k.listLeases(ctx)
	if err != nil {
		return false, err
	}
	if own := k.findOwnLease(leases); own != nil {
		return k.writeSelfAsHolder(ctx, *own)
	}
	k.clearHeld()
	if k.shouldYieldFreeSlot(leases) {
		return false, nil
	}
	var holders []string
	first := rand.IntN(k.options.Limit)
	for i := range k.options.Limit {
		name := k.leaseName((first + i) % k.options.Limit)
		lease, there := leases[name]
		if there && !k.isFree(lease) {
			holders = append(holders, lease.Spec.HolderIdentity)
			continue
		}
		if !there {
			lease = kubeapi.Lease{ObjectMeta: kubeapi.ObjectMeta{Name: name, Namespace: k.options.Namespace}}
		}
		if got, err := k.writeSelfAsHolder(ctx, lease); got || err != nil {
			k.foundNoneFree = k.foundNoneFree && !got
			return got, err
		}
		// Another process was faster. Or a proxy has repeated the write, and the slot is ours.
		if leases, err = k.listLeases(ctx); err != nil {
			return false, err
		}
		if own := k.findOwnLease(leases); own != nil {
			return k.writeSelfAsHolder(ctx, *own)
		}
		k.setMayBeHolder(false)
	}
	k.foundNoneFree = true
	slices.Sort(holders)
	k.mu.Lock()
	k.holders = holders
	k.mu.Unlock()
	return false, nil
}

// shouldYieldFreeSlot reports whether there is a free slot that this holder does not take yet, so that a process with
// less time can take it. If the holder has found a free slot at its first try, it takes the slot at once.
func (k *Holder) shouldYieldFreeSlot(leases map[string]kubeapi.Lease) bool {
	k.freeSince = time.Time{}
	if !k.foundNoneFree {
		return false
	}
	for i := range k.options.Limit {
		lease := leases[k.leaseName(i)]
		lease.Name = k.leaseName(i)
		since, free := k.checkFree(lease)
		if free && (k.freeSince.IsZero() || since.Before(k.freeSince)) {
			k.freeSince = since
		}
	}
	return !k.freeSince.IsZero() && time.Since(k.freeSince) < k.yieldTime()
}

// yieldTime returns how long this holder does not take a free slot, so that a process with less time can take it.
func (k *Holder) yieldTime() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.usefulUntil.IsZero() {
		return maxYieldTime
	}
	return min(max(0, time.Duration(yieldFraction*float64(time.Until(k.usefulUntil)))), maxYieldTime)
}

// retryDelay returns the time until the next try to get a slot. It is shorter if the holder has less time left.
func (k *Holder) retryDelay() time.Duration {
	every := min(max(k.yieldTime(), minRetryInterval), retryInterval)
	next := every/2 + rand.N(every)
	if !k.freeSince.IsZero() {
		next = min(next, max(k.yieldTime()-time.Since(k.freeSince), minRetryInterval/10))
	}
	return next
}

// findOwnLease returns the Lease that names this holder, or nil. There is one after a restart, or after a request
// without an answer.
func (k *Holder) findOwnLease(leases map[string]kubeapi.Lease) *kubeapi.Lease {
	for i := range k.options.Limit {
		if l, ok := leases[k.leaseName(i)]; ok && l.Spec.HolderIdentity == k.options.Identity {
			return &l
		}
	}
	return nil
}

func (k *Holder) isFree(l kubeapi.Lease) bool {
	_, free := k.checkFree(l)
	return free
}

// checkFree reports whether the slot of this Lease is free, and since when. If the slot was taken and released between
// two reads, the time counts from the release.
func (k *Holder) checkFree(l kubeapi.Lease) (since time.Time, free bool) {
	now := time.Now()
	seen, ok := k.observations[l.Name]
	if !ok || seen.resourceVersion != l.ResourceVersion {
		seen = observation{resourceVersion: l.ResourceVersion, firstSeen: now}
		k.observations[l.Name] = seen
	}
	if l.Spec.HolderIdentity == "" {
		return seen.firstSeen, true
	}
	lasts := leaseDuration
	if s := l.Spec.LeaseDurationSeconds; s > 0 {
		lasts = min(max(time.Duration(s)*time.Second, leaseDuration), maxLeaseDuration)
	}
	since = seen.firstSeen.Add(lasts)
	return since, !now.Before(since)
}

// writeSelfAsHolder writes this holder into the Lease, or renews the Lease. It returns false if the Lease has changed since it
// was read.
func (k *Holder) writeSelfAsHolder(ctx context.Context, l kubeapi.Lease) (written bool, err error) {
	began := elapsed.Now()
	was := l.Spec.HolderIdentity
	if was != k.options.Identity {
		l.Spec.AcquireTime = kubeapi.MicroTime{Time: began.Wall}
		l.Spec.LeaseTransitions++
	}
	l.Spec.HolderIdentity = k.options.Identity
	l.Spec.LeaseDurationSeconds = int32(leaseDuration / time.Second)
	l.Spec.RenewTime = kubeapi.MicroTime{Time: began.Wall}
	mayHaveBeen := k.setMayBeHolder(true) // before the request, because its answer may be late or lost
	made, err := k.createOrUpdateLease(ctx, l)
	if isRefusal(err) {
		k.setMayBeHolder(mayHaveBeen)
	}
	switch {
	case kubeapi.IsConflict(err), kubeapi.IsAlreadyExists(err), kubeapi.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if was != k.options.Identity {
		k.options.Log.Info("acquired a slot", "slot", l.Name, "previousHolder", was)
	}
	k.lease, k.releaseDeadline = made, time.Time{}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wanted { // it may have changed meanwhile
		k.renewed, k.holders = began, nil
	}
	return true, nil
}

// renewOrReacquire renews the Lease. If another process has changed the Lease, it tries to acquire a slot again.
func (k *Holder) renewOrReacquire(ctx context.Context) error {
	got, err := k.writeSelfAsHolder(ctx, *k.lease)
	if err != nil || got {
		return err
	}
	k.lease = nil
	_, err = k.tryAcquireSlot(ctx)
	return err
}

func (k *Holder) clearHeld() {
	k.releaseDeadline = time.Time{}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed, k.mayBeHolder = elapsed.Moment{}, false
}

// isRefusal reports whether the API server itself has refused a write. Any other error may come after the write took effect. A conflict
// may be with the write itself, if a proxy has repeated it.
func isRefusal(err error) bool {
	status := kubeapi.ToStatusError(err)
	return status != nil && status.Reason != "" && status.Code < http.StatusInternalServerError && status.Code != http.StatusConflict
}

// setMayBeHolder sets whether a Lease may name this holder, and returns what was set before.
func (k *Holder) setMayBeHolder(may bool) (before bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, k.mayBeHolder = k.mayBeHolder, may
	return before
}

// releaseLease removes this holder's name from its Lease. If the Lease is unknown or has changed, it looks for it first. If the
// requests fail for too long, the Lease expires, and another process can take it.
func (k *Holder) releaseLease(ctx context.Context) error {
	if k.releaseDeadline.IsZero() {
		k.releaseDeadline = time.Now().Add(leaseDuration)
	}
	var err error
	if k.lease != nil {
		err = k.clearLeaseHolder(ctx, *k.lease)
	}
	if k.lease == nil || kubeapi.IsConflict(err) {
		var leases map[string]kubeapi.Lease
		if leases, err = k.listLeases(ctx); err == nil {
			if own := k.findOwnLease(leases); own != nil {
				err = k.clearLeaseHolder(ctx, *own)
			}
		}
	}
	if err != nil && !kubeapi.IsNotFound(err) && time.Now().Before(k.releaseDeadline) {
		return err
	}
	k.lease, k.releaseDeadline = nil, time.Time{}
	k.setMayBeHolder(false)
	return nil
}

func (k *Holder) clearLeaseHolder(ctx context.Context, l kubeapi.Lease) error {
	l.Spec.HolderIdentity = ""
	l.Spec.RenewTime = kubeapi.MicroTime{Time: time.Now()}
	_, err := k.createOrUpdateLease(ctx, l)
	return err
}

// createOrUpdateLease creates the Lease if it has no resourceVersion, and updates it otherwise.
func (k *Holder) createOrUpdateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	l.ObjectMeta = kubeapi.ObjectMeta{
		Name: l.Name, Namespace: k.options.Namespace, ResourceVersion: l.ResourceVersion,
		Labels: map[string]string{purposeLabel: k.options.Purpose},
	}
	if l.ResourceVersion == "" {
		return k.options.API.CreateLease(ctx, l)
	}
	return k.options.API.UpdateLease(ctx, l)
}

// listLeases lists the Leases of all slots with one request. The key is the Lease's name.
func (k *Holder) listLeases(ctx context.Context) (map[string]kubeapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := k.options.API.ListLeases(ctx, k.options.Namespace, purposeLabel+"="+k.options.Purpose)
	if err != nil {
		return nil, fmt.Errorf("list the slots for %s: %w", k.options.Purpose, err)
	}
	byName := map[string]kubeapi.Lease{}
	for _, l := range all {
		if strings.HasPrefix(l.Name, k.namePrefix()) {
			byName[l.Name] = l
		}
	}
	return byName, nil
}

func (k *Holder) namePrefix() string { return "slipway-" + k.options.Purpose + "-" }

func (k *Holder) leaseName(i int) string { return fmt.Sprintf("%s%d", k.namePrefix(), i) }
