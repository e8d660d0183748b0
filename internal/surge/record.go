package surge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// RecordLabel is on each Lease that records a surge.
	RecordLabel = "slipway.dev/surge"
	// recordAnnotation is on the same Leases. Its value is a record as JSON.
	recordAnnotation = "slipway.dev/surge"
	leaseNamePrefix  = "slipway-surge-"

	// leaseDuration is the duration in each Lease. A Lease without a change for this long no longer belongs to its
	// holder.
	leaseDuration = 20 * time.Second
	// ownershipTimeout is how long after its last renewal a holder relies on its record. The holder measures from before
	// the renewal was sent. A request that it then sends has ended before another process can take the record over.
	ownershipTimeout = leaseDuration - requestTimeout - 4*time.Second
	renewInterval    = 5 * time.Second
	// lateRequestWait is how long a request may be carried out after its sender no longer awaits it. It is the longest timeout of an
	// admission webhook. A request is sent at most ownershipTimeout after a renewal, so it has ended before a record that was taken over
	// and then kept for this time expires.
	lateRequestWait = 30 * time.Second
	// busyInterval is the mean pause between two looks at a record that another process holds.
	busyInterval = 2 * time.Second
)

// record says what a surge changes, so that another process can take it back. It is written before the change.
type record struct {
	Owner  Owner      `json:"owner"`
	Target sizeTarget `json:"target"`
	// From is the value before the raise; nil is an absent field. To is the raised value.
	From *int32 `json:"from"`
	To   int32  `json:"to"`
	// ReplicaSet is the controller of the pod, of any kind in podControllers.
	ReplicaSet objectRef `json:"replicaSet,omitzero"`
	Pod        objectRef `json:"pod"`
	Node       string    `json:"node"`
	// Raised is true once the API server has confirmed the raise.
	Raised bool `json:"raised,omitempty"`
	// AwaitsLateRequest is true if the changes were taken back, and the record is only kept for lateRequestWait.
	AwaitsLateRequest bool `json:"awaitsLateRequest,omitempty"`
	// Cost is the value of DeletionCostAnnotation before the surge; nil is absent.
	Cost      *string   `json:"deletionCost,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	Until     time.Time `json:"until,omitzero"`
}

type objectRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func (p objectRef) String() string { return p.Namespace + "/" + p.Name }

// parseRecord returns the record in a Lease.
func parseRecord(l *kubeapi.Lease) (*record, error) {
	var r record
	if err := json.Unmarshal([]byte(l.Annotations[recordAnnotation]), &r); err != nil {
		return nil, fmt.Errorf("lease %s/%s: annotation %s: %w", l.Namespace, l.Name, recordAnnotation, err)
	}
	if problem := r.findProblem(l.Name); problem != "" {
		return nil, fmt.Errorf("lease %s/%s: annotation %s: %s", l.Namespace, l.Name, recordAnnotation, problem)
	}
	return &r, nil
}

// sizeFields maps each kind of a target to its API group and field.
var sizeFields = map[string]struct{ group, field string }{
	"Deployment": {"apps", "replicas"}, "ReplicaSet": {"apps", "replicas"}, "ReplicationController": {"", "replicas"},
	"Rollout": {"argoproj.io", "replicas"}, "CloneSet": {"apps.kruise.io", "replicas"},
	"HorizontalPodAutoscaler": {"autoscaling", "minReplicas"}, "ScaledObject": {"keda.sh", "minReplicaCount"},
}

// isSized reports whether a surge can raise the size of objects of this kind.
func isSized(apiVersion, kind string) bool {
	want, known := sizeFields[kind]
	return known && groupOf(apiVersion) == want.group
}

// findProblem returns why no surge has written this record; empty if one may have. A client that has fewer rights than this
// process may have written it.
func (r *record) findProblem(leaseName string) string {
	t := r.Target
	switch {
	case !isSized(t.APIVersion, t.Kind) || t.Field != sizeFields[t.Kind].field || t.UID == "":
		return fmt.Sprintf("target %s %s, field %q, uid %q: want a kind with a size, its field and a UID", t.APIVersion, t.Kind, t.Field, t.UID)
	case leaseName != leaseNamePrefix+r.Owner.UID:
		return fmt.Sprintf("owner.uid %q: want the UID in the name", r.Owner.UID)
	case t.Namespace != r.Pod.Namespace:
		return fmt.Sprintf("target.namespace %q: want that of the pod, %q", t.Namespace, r.Pod.Namespace)
	case t.isScaler() && (r.From == nil || *r.From >= 0 && *r.From < r.To):
		return ""
	case !t.isScaler() && t.UID != r.Owner.UID:
		return fmt.Sprintf("target.uid %q: want that of the owner, %q", t.UID, r.Owner.UID)
	case !t.isScaler() && r.From != nil && *r.From >= 1 && r.To == *r.From+1:
		return ""
	}
	return fmt.Sprintf("from %s, to %d: want a raise", formatSize(r.From), r.To)
}

// hold is this process's hold on the record of one owner.
type hold struct {
	s *Surger
	// turn is full while a request for the Lease is in flight. Its holder may use lease and duration.
	turn     chan struct{}
	lease    kubeapi.Lease
	duration time.Duration // in each write of the Lease

	mu      sync.Mutex
	renewed elapsed.Moment // before the last successful write was sent
	lost    bool           // the Lease is gone, or names another process
	// deleted is true if a client has deleted the Lease while no other process could have taken it over.
	deleted bool
}

func (s *Surger) newHold(l kubeapi.Lease, renewed elapsed.Moment) *hold {
	return &hold{s: s, turn: make(chan struct{}, 1), lease: l, duration: leaseDuration, renewed: renewed}
}

var (
	// errRecordLost: another process has taken the record over, and restores the size.
	errRecordLost = errors.New("another process has taken the record of the surge over, or has deleted it")
	// errNotRenewed: another process may take the record over soon.
	errNotRenewed = errors.New("the record of the surge could not be renewed")
	// errBusy: another process holds the record.
	errBusy = errors.New("another surge of the owner is running")
)

func (s *Surger) newLease(r *record, at time.Time) (kubeapi.Lease, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return kubeapi.Lease{}, fmt.Errorf("record of %s: %w", r.Target, err)
	}
	l := kubeapi.Lease{ObjectMeta: kubeapi.ObjectMeta{
		Name: leaseNamePrefix + r.Owner.UID, Namespace: s.options.Namespace,
		Labels: map[string]string{RecordLabel: "true"}, Annotations: map[string]string{recordAnnotation: string(raw)},
	}}
	s.setHolder(&l, at)
	return l, nil
}

// setHolder writes this process into a Lease as its holder.
func (s *Surger) setHolder(l *kubeapi.Lease, at time.Time) {
	if l.Spec.HolderIdentity != s.options.Identity {
		if l.ResourceVersion != "" {
			l.Spec.LeaseTransitions++
		}
		l.Spec.AcquireTime = kubeapi.MicroTime{Time: at}
	}
	l.Spec.HolderIdentity = s.options.Identity
	l.Spec.LeaseDurationSeconds = int32(leaseDuration / time.Second)
	l.Spec.RenewTime = kubeapi.MicroTime{Time: at}
}

// acquireRecord creates the record. If another process holds the owner's record, it waits until that process deletes it,
// or until the record has expired; then it restores it. After such a wait it returns no hold and no error. The error is
// errBusy if ctx ends before.
func (s *Surger) acquireRecord(ctx context.Context, r *record) (*hold, error) {
	var seen observation
	first := elapsed.Now()
	for {
		began := elapsed.Now()
		l, err := s.newLease(r, began.Wall)
		if err != nil {
			return nil, err
		}
		made, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) { return s.api.CreateLease(ctx, l) })
		if err == nil {
			return s.newHold(*made, began), nil
		}
		if !kubeapi.IsAlreadyExists(err) {
			if pauseAfter(ctx, err) == nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, errBusy
			}
			return nil, toRefusal("create the record "+l.Namespace+"/"+l.Name, err)
		}
		h, exists, err := s.takeExisting(ctx, l, first, &seen)
		if h != nil || err != nil || !exists {
			return h, err
		}
		if !pauseBusy(ctx) {
			return nil, errBusy
		}
	}
}

// awaitNoRecord waits until there is no record of the owner. It restores a record that expires. It returns errBusy if ctx ends before.
func (s *Surger) awaitNoRecord(ctx context.Context, ownerUID string) error {
	var seen observation
	l := kubeapi.Lease{ObjectMeta: kubeapi.ObjectMeta{Name: leaseNamePrefix + ownerUID, Namespace: s.options.Namespace}}
	for {
		_, exists, err := s.takeExisting(ctx, l, elapsed.Moment{}, &seen)
		if err != nil || !exists {
			return err
		}
		if !pauseBusy(ctx) {
			return errBusy
		}
	}
}

// pauseBusy waits until the next look at a record that another process holds. It returns false if ctx ends before.
func pauseBusy(ctx context.Context) bool {
	return elapsed.Sleep(ctx, busyInterval/2+rand.N(busyInterval))
}

// deleteUnanswered deletes a record that was created although no answer came, before anything was changed. If it stayed, the owner would
// have no surge until it has expired.
func (s *Surger) deleteUnanswered(ctx context.Context, r *record) {
	l, err := s.newLease(r, time.Now())
	if err != nil {
		return
	}
	current, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) { return s.api.GetLease(ctx, l.Namespace, l.Name) })
	if err == nil && s.wrote(current, l) {
		_ = do(ctx, func(ctx context.Context) error { return s.api.DeleteLease(ctx, *current) })
	}
}

// wrote reports whether a Lease has the record of l, and this process as its holder.
func (s *Surger) wrote(current *kubeapi.Lease, l kubeapi.Lease) bool {
	return current.Spec.HolderIdentity == s.options.Identity && current.Annotations[recordAnnotation] == l.Annotations[recordAnnotation]
}

// takeExisting reads the Lease with the name of l. It returns the hold if an earlier request of this surge,
// since first, created it and the answer was lost. It restores the Lease if it has expired. exists is false if the Lease is gone.
func (s *Surger) takeExisting(ctx context.Context, l kubeapi.Lease, first elapsed.Moment, seen *observation) (h *hold, exists bool, err error) {
	current, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) {
		return s.api.GetLease(ctx, l.Namespace, l.Name)
	})
	if err != nil {
		return nil, !kubeapi.IsNotFound(err), nil // the next try shows what there is
	}
	if s.wrote(current, l) {
		return s.newHold(*current, first), true, nil
	}
	seen.update(current, time.Now())
	if !time.Now().Before(seen.expiry(current)) {
		if _, err := parseRecord(current); err != nil {
			return nil, true, refuse(ReasonBusy, "the record of another surge is invalid, delete it if no surge runs: %v", err)
		}
		if done, ok := s.restoring.start(current.Name); ok {
			defer done()
			s.restoreWithRetries(ctx, *current)
		}
	}
	return nil, true, nil
}

// keepRenewed renews the record until ctx ends, and calls lost once another process has it. After an outage of the API
// server the record is still valid if no other process has taken it over.
func (h *hold) keepRenewed(ctx context.Context, lost func()) {
	for elapsed.Sleep(ctx, renewInterval) {
		for !h.renew(ctx) && elapsed.Sleep(ctx, retryPause) {
			if h.isLost() {
				lost()
				return
			}
		}
	}
}

// isHeld reports whether no other process can have taken the record over, even by the time a request has ended.
func (h *hold) isHeld() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.lost && elapsed.Since(h.renewed) < ownershipTimeout
}

func (h *hold) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *hold) setLost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
}

// setGone records that the Lease no longer exists.
func (h *hold) setGone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost, h.deleted = true, elapsed.Since(h.renewed) < leaseDuration
}

func (h *hold) isDeleted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deleted
}

// renew renews the Lease, and reports whether it did.
func (h *hold) renew(ctx context.Context) bool { return h.writeInTurn(ctx) == nil }

// writeInTurn writes the Lease once no other request for it is in flight.
func (h *hold) writeInTurn(ctx context.Context) error {
	h.turn <- struct{}{}
	defer func() { <-h.turn }()
	return h.write(ctx, h.lease)
}

// setRecord makes each following write of the Lease contain another record.
func (h *hold) setRecord(r *record) error {
	l, err := h.s.newLease(r, time.Now())
	if err != nil {
		return err
	}
	h.turn <- struct{}{}
	h.lease.Annotations = l.Annotations
	<-h.turn
	return nil
}

// awaitLateRequest keeps the record after its changes were taken back. A request that changes the size or the deletion cost may still be
// carried out: it hangs in an admission webhook, and the holder has crashed or got no answer. When the record expires, a process looks
// again.
func (h *hold) awaitLateRequest(ctx context.Context, r *record) error {
	next := *r
	next.AwaitsLateRequest = true
	h.turn <- struct{}{}
	h.duration = lateRequestWait
	<-h.turn
	return h.replace(ctx, &next)
}

// replace writes another record into the Lease.
func (h *hold) replace(ctx context.Context, r *record) error {
	if err := h.setRecord(r); err != nil {
		return err
	}
	for {
		err := h.writeInTurn(ctx)
		if err == nil {
			return nil
		}
		if h.isLost() {
			return errRecordLost
		}
		if err := pauseAfter(ctx, err); err != nil {
			return err
		}
	}
}

// write updates the Lease. After a conflict it reads the Lease: the conflict may be with an earlier write of this
// process that got no answer. The caller has the turn.
func (h *hold) write(ctx context.Context, l kubeapi.Lease) error {
	if h.isLost() {
		return errRecordLost
	}
	began := elapsed.Now()
	h.s.setHolder(&l, began.Wall)
	l.Spec.LeaseDurationSeconds = int32(h.duration / time.Second)
	made, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) { return h.s.api.UpdateLease(ctx, l) })
	switch {
	case err == nil:
		h.lease = *made
		h.mu.Lock()
		h.renewed = began
		h.mu.Unlock()
	case kubeapi.IsNotFound(err):
		h.setGone()
	case kubeapi.IsConflict(err):
		h.reread(ctx)
	}
	return err
}

// reread reads the Lease again, and records whether it still names this process. The caller has the turn.
func (h *hold) reread(ctx context.Context) {
	current, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) {
		return h.s.api.GetLease(ctx, h.lease.Namespace, h.lease.Name)
	})
	switch {
	case kubeapi.IsNotFound(err):
		h.setGone()
	case err != nil:
	case current.UID != h.lease.UID: // another surge has created it since it was deleted
		h.setGone()
	case current.Spec.HolderIdentity != h.s.options.Identity:
		h.setLost()
	default:
		h.lease.ResourceVersion = current.ResourceVersion
	}
}

// release deletes the record. It retries until ctx ends.
func (h *hold) release(ctx context.Context) error {
	h.turn <- struct{}{}
	defer func() { <-h.turn }()
	for !h.isLost() {
		err := do(ctx, func(ctx context.Context) error { return h.s.api.DeleteLease(ctx, h.lease) })
		switch {
		case err == nil, kubeapi.IsNotFound(err):
			h.setLost()
			return nil
		case kubeapi.IsConflict(err):
			h.reread(ctx)
		}
		if err := pauseAfter(ctx, err); err != nil {
			return fmt.Errorf("delete the record %s/%s: %w", h.lease.Namespace, h.lease.Name, err)
		}
	}
	return nil
}
