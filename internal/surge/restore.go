package surge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// idlePoll is the least pause between two reads of the records if there was none, and recordsPoll if there was one.
	// Up to pollSpread is added at random. The read comes from the API server's cache. With the expiry and its jitter, a
	// record is taken over at most 50 s after the crash of its holder.
	idlePoll    = 15 * time.Second
	recordsPoll = 8 * time.Second
	pollSpread  = 10 * time.Second
	// takeOverSpread is the longest random delay before an expired record is taken over, so that a thousand agents do
	// not all write at once.
	takeOverSpread = 5 * time.Second
	// maxConcurrentRestores lets other records be restored while one waits for a request that hangs.
	maxConcurrentRestores = 16
	// restoreRetryTime limits how long a process tries to restore one record, so that other records have their turn.
	restoreRetryTime = 45 * time.Second
	takeOverTries    = 3
	// settleWait is how long the controllers may take to remove a pod after the size was lowered. On an overloaded control plane, each of
	// two controllers took more than 15 s.
	settleWait = 2 * time.Minute
	// maxLeaseDuration limits the duration that another process has written.
	maxLeaseDuration = time.Minute
)

// observation records when a Lease was first seen with its resourceVersion, by this process's clock. So the clocks of two
// nodes may differ.
type observation struct {
	resourceVersion string
	firstSeen       time.Time
}

func (o *observation) update(l *kubeapi.Lease, now time.Time) {
	if o.resourceVersion != l.ResourceVersion {
		*o = observation{resourceVersion: l.ResourceVersion, firstSeen: now}
	}
}

// expiry returns when the Lease no longer belongs to its holder.
func (o *observation) expiry(l *kubeapi.Lease) time.Time {
	if l.Spec.HolderIdentity == "" {
		return o.firstSeen
	}
	lasts := time.Duration(l.Spec.LeaseDurationSeconds) * time.Second
	return o.firstSeen.Add(min(max(lasts, leaseDuration), maxLeaseDuration))
}

// RestoreExpired takes over the records that their holders no longer renew, restores what they changed, and deletes
// them. It returns when ctx ends.
func (s *Surger) RestoreExpired(ctx context.Context) {
	observations := map[string]*observation{}
	jitters := map[string]time.Duration{}
	lastFailure := ""
	var restoring sync.WaitGroup
	defer restoring.Wait()
	for wait := rand.N(takeOverSpread); elapsed.Sleep(ctx, wait); {
		leases, err := call(ctx, func(ctx context.Context) ([]kubeapi.Lease, error) {
			return s.api.ListCachedLeases(ctx, s.options.Namespace, RecordLabel+"=true")
		})
		if err != nil {
			if text := err.Error(); text != lastFailure && ctx.Err() == nil {
				s.log.Warn("cannot list the records of surges, will retry", "namespace", s.options.Namespace, "err", err)
				lastFailure = text
			}
			wait = recordsPoll + rand.N(takeOverSpread)
			continue
		}
		lastFailure = ""
		wait = idlePoll + rand.N(pollSpread)
		if len(leases) > 0 {
			wait = recordsPoll + rand.N(takeOverSpread)
		}
		known := map[string]*observation{}
		for _, l := range leases {
			o := observations[l.Name]
			if o == nil {
				o = &observation{}
			}
			if known[l.Name] = o; o.resourceVersion != l.ResourceVersion {
				jitters[l.Name] = rand.N(takeOverSpread)
			}
			o.update(&l, time.Now())
			due := s.takeOverTime(&l, o, jitters[l.Name])
			if left := time.Until(due); left > 0 {
				wait = min(wait, left)
				continue
			}
			done, ok := s.restoring.start(l.Name)
			if !ok {
				wait = min(wait, time.Second)
				continue
			}
			restoring.Go(func() {
				defer done()
				s.restoreWithRetries(ctx, l)
			})
		}
		observations = known
		for name := range jitters {
			if known[name] == nil {
				delete(jitters, name)
			}
		}
	}
}

// restores are the records that this process restores now. A request that hangs delays only its own record.
type restores struct {
	mu    sync.Mutex
	names map[string]bool // true until the size is restored
}

// start returns false if this record is being restored, or if the sizes of maxConcurrentRestores others are. Otherwise the caller calls done at the end.
func (r *restores) start(name string) (done func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, running := r.names[name]; running || r.countUrgent() >= maxConcurrentRestores {
		return nil, false
	}
	if r.names == nil {
		r.names = map[string]bool{}
	}
	r.names[name] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.names, name)
	}, true
}

// freeSlot lets another record be restored, because the size of this one is.
func (r *restores) freeSlot(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names[name] {
		r.names[name] = false
	}
}

func (r *restores) isFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.countUrgent() >= maxConcurrentRestores
}

// countUrgent returns the number of records whose size is not restored yet. The caller has locked mu.
func (r *restores) countUrgent() (n int) {
	for _, urgent := range r.names {
		if urgent {
			n++
		}
	}
	return n
}

// restoreWithRetries restores a record, and tries again while it belongs to this process. Otherwise it would first have to expire again.
// It gives up after restoreRetryTime, or if other records wait.
func (s *Surger) restoreWithRetries(ctx context.Context, l kubeapi.Lease) {
	isOurs := false
	for began := time.Now(); time.Since(began) < restoreRetryTime; {
		err := s.restoreExpired(ctx, l)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.log.Warn("cannot restore the record of a surge, will retry", "lease", l.Name, "err", err)
		isOurs = isOurs || !errors.Is(err, errNotTaken)
		if !isOurs || s.restoring.isFull() || !elapsed.Sleep(ctx, retryPause) {
			return
		}
		current, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) { return s.api.GetLease(ctx, l.Namespace, l.Name) })
		switch {
		case kubeapi.IsNotFound(err):
			return
		case err != nil: // the take-over recognizes the Lease
		case current.UID != l.UID || current.Spec.HolderIdentity != s.options.Identity ||
			current.Annotations[recordAnnotation] != l.Annotations[recordAnnotation]: // such as awaitLateRequest has written it
			return
		default:
			l = *current
		}
	}
}

// takeOverTime returns when this process may take over a record. A record of a surge that this process runs is not due.
func (s *Surger) takeOverTime(l *kubeapi.Lease, o *observation, jitter time.Duration) time.Time {
	if l.Spec.HolderIdentity == s.options.Identity {
		if r, err := parseRecord(l); err == nil && s.isRunning(r.Owner.UID) {
			return time.Now().Add(leaseDuration)
		}
	}
	return o.expiry(l).Add(jitter)
}

// errNotTaken: a record could not be taken over.
var errNotTaken = errors.New("the record still has its former holder")

// restoreExpired takes over one record, restores what it names, and deletes it. It does nothing if the Lease has changed
// since it was read.
func (s *Surger) restoreExpired(ctx context.Context, l kubeapi.Lease) error {
	r, err := parseRecord(&l)
	if err != nil {
		return err
	}
	previous := l.Spec.HolderIdentity
	h := s.newHold(l, elapsed.Moment{})
	lowering, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if err := h.takeOver(lowering); err != nil {
		if errors.Is(err, errRecordLost) {
			return nil // another process was faster
		}
		return fmt.Errorf("%w: %w", errNotTaken, err)
	}
	renewing, stop := context.WithCancel(ctx)
	var renewals sync.WaitGroup
	defer renewals.Wait()
	defer stop()
	renewals.Go(func() { h.keepRenewed(renewing, stop) })
	changedBy, before, err := s.lower(lowering, h, r)
	if err != nil {
		return err
	}
	s.restoring.freeSlot(l.Name)
	// The deletion cost is set only while the successor receives traffic. So until the controllers have acted, it stays, and the leaving
	// pod goes.
	if changedBy == "" {
		settling, cancelSettling := context.WithTimeout(ctx, settleWait)
		defer cancelSettling()
		if !s.awaitSettled(settling, h, r) && ctx.Err() != nil {
			return ctx.Err() // the record expires, and another process waits longer
		}
	}
	ctx, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancelLast()
	switch {
	case h.isLost():
		return nil
	case !h.isHeld():
		return errNotRenewed
	}
	mayCostCome, err := s.restoreCost(ctx, r)
	if err != nil {
		return err
	}
	mayRaiseCome := !r.Raised && isSame(before.value, r.From)
	if (mayRaiseCome || mayCostCome) && !r.AwaitsLateRequest {
		return h.awaitLateRequest(ctx, r)
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	s.options.Metrics.RecordRestored()
	s.log.Info("restored the size after a surge that its process did not end", "target", r.Target.String(),
		"to", formatSize(r.From), "pod", r.Pod.String(), "previousHolder", previous, "changedBy", changedBy)
	return nil
}

// takeOver writes this process into the Lease, if the Lease has not changed since it was read. It tries up to takeOverTries times, until
// the API server has answered. The error is errRecordLost if another process was faster.
func (h *hold) takeOver(ctx context.Context) error {
	for try := 1; ; try++ {
		err := h.writeInTurn(ctx)
		switch {
		case err == nil:
			return nil
		case h.isLost():
			return errRecordLost
		}
		if pauseErr := pauseAfter(ctx, err); pauseErr != nil || try == takeOverTries || !elapsed.Sleep(ctx, rand.N(retryPause)) {
			return err
		}
	}
}

// deletionCost returns the value of DeletionCostAnnotation; nil is absent.
func deletionCost(p *kubeapi.Pod) *string {
	if cost, ok := p.Annotations[DeletionCostAnnotation]; ok {
		return &cost
	}
	return nil
}

// restoreCost gives the pod of the record its former deletion cost, if the pod stays and still has Slipway's cost. mayCome is true if
// the pod stays without that cost: a late request may still set it.
func (s *Surger) restoreCost(ctx context.Context, r *record) (mayCome bool, err error) {
	found := false
	err = s.changeCost(ctx, r, func(p *kubeapi.Pod) (*string, bool, error) {
		isLowest := p.Annotations[DeletionCostAnnotation] == lowestCost
		found = found || isLowest
		return r.Cost, isLowest, nil
	})
	if errors.Is(err, errPodLeft) {
		return false, nil
	}
	return !found, err
}

// awaitSettled waits until the controller of the pod has removed the surplus pods after the size was lowered, and returns false if ctx ends
// or h is lost before. Until then the record has to stay: another process would count the successor as a pod that stays, and evict
// the leaving pod, while the controller deletes the successor. An autoscaler takes minutes, so this does not wait for it.
func (s *Surger) awaitSettled(ctx context.Context, h *hold, r *record) bool {
	if r.Target.isScaler() || r.ReplicaSet.UID == "" {
		return true
	}
	for !s.isPassedOn(ctx, r) || !s.isSettled(ctx, r) {
		if h.isLost() || !elapsed.Sleep(ctx, retryPause) {
			return false
		}
	}
	return true
}

// isPassedOn reports whether the owner's controller has seen the size that the owner has now. Before, it may still raise its ReplicaSet.
func (s *Surger) isPassedOn(ctx context.Context, r *record) bool {
	if r.Target.UID == r.ReplicaSet.UID {
		return true
	}
	o, err := s.readTop(ctx, r.Target.ref())
	return kubeapi.IsNotFound(err) || err == nil && (o.top.UID != r.Target.UID || o.isObserved())
}

// isSettled reports whether the pod's controller has no more pods than it wants, and wants no more than before the raise.
func (s *Surger) isSettled(ctx context.Context, r *record) bool {
	o, err := s.readTop(ctx, r.controllerRef())
	if err != nil {
		return kubeapi.IsNotFound(err)
	}
	size := toMinSize(o.top.Spec.Replicas)
	if o.top.UID != r.ReplicaSet.UID || size > r.To { // its user has set a larger size
		return true
	}
	return o.isObserved() && size <= toMinSize(r.From) && o.top.Status.Replicas <= size
}

// readTop reads one workload.
func (s *Surger) readTop(ctx context.Context, ref kubeapi.ObjectRef) (owners, error) {
	w, err := call(ctx, func(ctx context.Context) (*kubeapi.Workload, error) { return s.api.GetWorkload(ctx, ref) })
	return owners{top: w, ref: ref}, err
}

// controllerRef returns the controller of the pod. Only a Deployment or a Rollout has another one below it.
func (r *record) controllerRef() kubeapi.ObjectRef {
	if r.ReplicaSet.UID == r.Owner.UID {
		return kubeapi.ObjectRef{APIVersion: r.Owner.APIVersion, Kind: r.Owner.Kind, Namespace: r.ReplicaSet.Namespace, Name: r.ReplicaSet.Name}
	}
	return kubeapi.ObjectRef{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: r.ReplicaSet.Namespace, Name: r.ReplicaSet.Name}
}

// errPodLeft: the pod is gone, is terminating, or was replaced by another of the same name.
var errPodLeft = errors.New("the pod has left")

// changeCost sets the pod's deletion cost to what change returns, unless that is unnecessary. It retries until the API
// server has answered, change returns an error, or ctx ends. Each request only changes the pod that change was called with.
func (s *Surger) changeCost(ctx context.Context, r *record, change func(p *kubeapi.Pod) (cost *string, necessary bool, err error)) error {
	for {
		pod, err := call(ctx, func(ctx context.Context) (*kubeapi.Pod, error) { return s.api.GetPod(ctx, r.Pod.Namespace, r.Pod.Name) })
		switch {
		case kubeapi.IsNotFound(err), err == nil && (pod.UID != r.Pod.UID || pod.DeletionTimestamp != nil):
			return errPodLeft
		case err == nil:
			cost, necessary, changeErr := change(pod)
			if changeErr != nil || !necessary {
				return changeErr
			}
			a := kubeapi.AnnotationChange{
				Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
				Key: DeletionCostAnnotation, Value: cost,
			}
			err = do(ctx, func(ctx context.Context) error { return s.api.SetPodAnnotation(ctx, a) })
		}
		if err == nil {
			return nil
		}
		if kubeapi.IsNotFound(err) {
			return errPodLeft
		}
		if err := pauseAfter(ctx, err); err != nil {
			return fmt.Errorf("annotation %s of pod %s: %w", DeletionCostAnnotation, r.Pod, err)
		}
	}
}
