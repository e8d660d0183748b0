package surge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// ownerInterval is the longest pause between two reads of the size, and minOwnerInterval the shortest.
	ownerInterval    = 5 * time.Second
	minOwnerInterval = time.Second
	// minEndpointInterval is the first pause between two reads of the EndpointSlices. It doubles up to endpointInterval.
	minEndpointInterval = 125 * time.Millisecond
	endpointInterval    = 500 * time.Millisecond
	// endpointWait limits the wait for the endpoints. If the endpoints of a Service are written by hand, the successor
	// never becomes one.
	endpointWait = 2 * time.Minute
	// creationWait is how long a new pod may take to appear. An autoscaler reads its minimum every 15 s by default.
	creationWait = 45 * time.Second
	// readyWait is the shortest limit of the wait for Ready. It is the default of progressDeadlineSeconds of a Deployment.
	readyWait = 10 * time.Minute
	// removalWait is how long a controller may take to remove the pod after the size was lowered.
	removalWait = 20 * time.Second
	// departureWait is how long the raised size is kept after the time of a request is over, while a successor starts. The drain
	// then evicts or deletes the pod within 10 s.
	departureWait = 12 * time.Second
	// costWait is how long the ReplicaSet controller may take to see the deletion cost of the leaving pod. If it takes longer, it may delete
	// the successor, and the leaving pod stays.
	costWait = 300 * time.Millisecond
	// evictionWait limits how long the raised size is kept for an eviction.
	evictionWait = 10 * time.Minute
)

// surgeRun is the state of one surge. Only the goroutine of Run uses it, except for pods.
type surgeRun struct {
	s       *Surger
	request Request
	result  Result
	owners  owners
	record  *record
	hold    *hold
	held    context.Context // ends once another process may have the record
	pods    *podWatch
	before  map[string]bool // UIDs of the pods before the raise
	// readyBefore is how many of them were Ready.
	readyBefore int

	// releaseRoom ends the reservation of room for the successor; nil if there is none.
	releaseRoom func()

	// planned is the target as the plan has read it, until the first attempt to raise; nil after that.
	planned *sizeState
	raised  bool // a request that may have raised the size was sent
	// unanswered is the resourceVersion of such a request without a clear answer.
	unanswered string
	// unansweredCost is true if the request that set the deletion cost has no clear answer.
	unansweredCost bool
	// costSetAt is when the pod got the lowest deletion cost; zero if it does not have it.
	costSetAt time.Time
	lowered   bool
	loweredAt time.Time
	// evictableAt is when the caller was first asked to evict the pod.
	evictableAt  time.Time
	left         bool // the pod is terminating or gone
	successor    *podState
	progress     Progress
	raisedAt     time.Time
	hadSuccessor bool      // a successor was Ready once
	nextOwner    time.Time // when the owner is read next
	lastOwner    time.Time
}

// Run carries out one surge. It returns when the pod is terminating or gone, when the surge failed, or when ctx ends. In
// each case it has restored the owner's size before, for at most 15 s after the end of ctx. After Request.Until or GiveUpAt it may
// first wait departureWait for the pod to leave, until ctx ends.
func (s *Surger) Run(ctx context.Context, r Request) Result {
	x := &surgeRun{s: s, request: r, pods: newPodWatch()}
	limited := ctx
	if end := r.earliestEnd(); !end.IsZero() {
		var cancel context.CancelFunc
		limited, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	err := x.waitAndSurge(ctx, limited)
	x.finish(ctx, limited, err)
	return x.result
}

// waitAndSurge waits for the owner and for a free place, and runs the surge. ctx is parent with the time limit of the request.
func (x *surgeRun) waitAndSurge(parent, ctx context.Context) error {
	s := x.s
	unlock, ok := s.lockOwner(ctx, x.request.Decision.Owner.UID)
	if !ok {
		return errBusy
	}
	defer unlock()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return errBusy
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wait sync.WaitGroup
	defer wait.Wait()
	defer stop()
	defer x.endReservation()
	err := x.prepare(ctx)
	if err == nil {
		held, lose := context.WithCancel(background)
		defer lose()
		x.held = held
		wait.Go(func() { x.hold.keepRenewed(background, lose) })
		err = x.surge(ctx, background, &wait)
		err = x.end(parent, err)
	}
	return err
}

// prepare checks again that the surge is possible, and writes its record.
func (x *surgeRun) prepare(ctx context.Context) error {
	for {
		r, err := x.plan(ctx)
		if isFinal(err) {
			return err
		}
		if errors.Is(err, errBusy) {
			if err := x.s.awaitNoRecord(ctx, x.request.Decision.Owner.UID); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			x.record = r
			x.hold, err = x.s.acquireRecord(ctx, r)
			if errors.Is(err, errBusy) {
				x.s.deleteUnanswered(context.WithoutCancel(ctx), r)
			}
			if err != nil || x.hold != nil {
				return err
			}
			continue // another surge of the owner was running, so the plan is outdated
		}
		if err := pauseAfter(ctx, err); err != nil {
			return err
		}
	}
}

// isFinal reports whether an error ends the surge, so that a retry is useless.
func isFinal(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) || errors.Is(err, errPodLeft) || errors.Is(err, errRecordLost)
}

// plan reads the owner and its pods, and returns the record of the raise. It returns errBusy if another surge has to end first.
func (x *surgeRun) plan(ctx context.Context) (*record, error) {
	s, pod := x.s, &x.request.Pod
	current, err := call(ctx, func(ctx context.Context) (*kubeapi.Pod, error) { return s.api.GetPod(ctx, pod.Namespace, pod.Name) })
	switch {
	case kubeapi.IsNotFound(err), err == nil && (current.UID != pod.UID || !toPodState(current).isActive()):
		x.left = true
		return nil, errPodLeft
	case err != nil:
		return nil, toRefusal(fmt.Sprintf("read pod %s/%s", pod.Namespace, pod.Name), err)
	}
	o, siblings, err := x.readOwnersAndSiblings(ctx, current)
	if err != nil {
		return nil, err
	}
	if x.request.Decision.Reason == ReasonLastReady {
		sized := &o
		if x.hold != nil {
			sized = nil // the record is that of this surge, which has not raised the size yet
		}
		reason, detail, err := s.findNeed(ctx, current, nil, time.Time{}, siblings, sized)
		if err != nil {
			return nil, err
		}
		if reason != ReasonLastReady {
			return nil, refuse(ReasonNotNeeded, "%s", detail)
		}
	}
	if x.hold != nil { // the record is that of this surge
		err = o.checkSteady()
	} else {
		err = s.checkSteadyBesideSurges(ctx, current, o)
	}
	if err != nil {
		return nil, err
	}
	if err := s.checkReversal(o.top.UID); err != nil {
		return nil, err
	}
	// An error shows before the raise that the EndpointSlices cannot be read.
	if _, err := x.findMissingEndpoint(ctx, ""); err != nil {
		return nil, err
	}
	size, err := s.findTarget(ctx, o)
	if err != nil {
		return nil, err
	}
	x.planned = &sizeState{value: size.from, resourceVersion: size.resourceVersion}
	x.request.Decision.Owner = o.toOwner()
	x.request.Decision.Owner.Scaler = size.scaler
	r := &record{
		Owner: x.request.Decision.Owner, Target: size.target, From: size.from, To: size.to, Node: x.request.Node,
		Pod:        objectRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		ReplicaSet: objectRef{Namespace: pod.Namespace, Name: o.replicaSet.Name, UID: o.replicaSet.UID},
		Cost:       deletionCost(current), StartedAt: time.Now().UTC(), Until: x.request.earliestEnd(),
	}
	x.owners, x.before = o, map[string]bool{}
	for _, p := range siblings {
		x.before[p.uid] = true
	}
	x.readyBefore = countReadyBeside(siblings, "")
	return r, nil
}

// readOwnersAndSiblings returns the owners of the pod and the pods of its controller, as the decision has just seen them or else
// from the API server.
func (x *surgeRun) readOwnersAndSiblings(ctx context.Context, pod *kubeapi.Pod) (owners, []podState, error) {
	if seen, ok := x.request.Decision.seen.take(); ok {
		return seen.owners, seen.siblings, nil
	}
	o, err := x.s.readSettledOwners(ctx, pod)
	if err != nil {
		return owners{}, nil, err
	}
	siblings, err := x.s.listSiblings(ctx, pod, o.replicaSet)
	return o, siblings, err
}

// readPlannedSize returns the target as the plan has read it, the first time, and then from the API server. A write for an outdated
// read conflicts.
func (x *surgeRun) readPlannedSize(ctx context.Context) (sizeState, error) {
	if z := x.planned; z != nil {
		x.planned = nil
		return *z, nil
	}
	return x.s.readSize(ctx, x.record.Target)
}

// surge raises the size, waits for the successor, and makes the pod leave.
func (x *surgeRun) surge(ctx, background context.Context, wait *sync.WaitGroup) error {
	// Only the holder of the record reserves room: before, the surge may wait for minutes until another one of the owner has ended.
	var err error
	x.releaseRoom, err = x.s.checkTimeAndRoom(ctx, &x.request.Pod, &x.request.Decision, x.request.Until, true)
	if err != nil {
		return err
	}
	x.result.StartedAt = time.Now()
	x.s.options.Metrics.SurgeStarted()
	x.report(Raising, "", fmt.Sprintf("%s from %s to %d", x.record.Target, formatSize(x.record.From), x.record.To))
	if err := x.raise(ctx); err != nil {
		return err
	}
	x.raisedAt = time.Now()
	raised := *x.record
	raised.Raised = true
	if err := x.hold.setRecord(&raised); err != nil { // the next renewal writes it
		return err
	}
	x.record = &raised
	selector, err := siblingSelector(&x.request.Pod, x.owners.replicaSet)
	if err != nil {
		return err
	}
	uid := x.owners.replicaSet.UID
	wait.Go(func() { x.pods.run(background, x.s.api, x.request.Pod.Namespace, selector, uid) })
	for {
		successor, err := x.awaitSuccessor(ctx)
		if err != nil {
			return err
		}
		x.successor = successor
		x.result.Successor, x.result.ReadyAt = successor.namespace+"/"+successor.name, time.Now()
		if err = x.awaitEndpoints(ctx, successor); err == nil {
			err = x.remove(ctx)
		}
		if !errors.Is(err, errSuccessorLost) {
			return err
		}
		x.successor, x.result.Successor, x.result.ReadyAt = nil, "", time.Time{}
		if x.lowered {
			return refuse(ReasonNotReadyInTime, "the successor %s is no longer Ready", successor.name)
		}
		if err := x.unsetCost(ctx); err != nil {
			return err
		}
	}
}

// errSuccessorLost: the successor lost its readiness before the pod has left.
var errSuccessorLost = errors.New("the successor is no longer Ready")

// raise sets the size to the raised value. After a request without a clear answer it reads the size before the next, so
// that it never raises twice.
func (x *surgeRun) raise(ctx context.Context) error {
	for {
		r, isPlanned := x.record, x.planned != nil
		z, err := x.readPlannedSize(ctx)
		switch {
		case errors.Is(err, errTargetGone):
			return refuse(ReasonDeleting, "%s no longer exists", r.Target)
		case err != nil:
		case z.isOurs(r.To) && x.raised:
			if x.hold.isHeld() {
				x.unanswered = "" // it was carried out while there was a record
			}
			return nil
		case !isSame(z.value, r.From) && x.raised:
			return x.newSizeChanged(z)
		case !isSame(z.value, r.From):
			// The size has changed since it was read for the record.
			if err = x.planAgain(ctx); err == nil {
				continue
			}
		case x.hold.isLost():
			return errRecordLost
		case !x.hold.isHeld():
			err = errNotRenewed
		default:
			x.raised = true
			err = x.s.writeSize(ctx, r.Target, z.resourceVersion, &r.To)
			if kubeapi.UnknownResult(err) {
				x.unanswered = z.resourceVersion
			}
			if err == nil {
				return nil
			}
			if isPlanned && kubeapi.IsConflict(err) {
				// The target has changed since the plan, perhaps by a rollout. Or a proxy has repeated the request, and this is the
				// answer to its second one.
				z, err = x.s.readSize(ctx, r.Target)
				if err == nil && z.isOurs(r.To) && slices.Contains(z.managers, FieldManager) {
					return nil
				}
				if err == nil {
					x.raised = false
					err = x.planAgain(ctx)
				}
				if err == nil {
					x.planned = nil // from now on, each attempt reads only the size
					if !elapsed.Sleep(ctx, conflictPause) {
						return ctx.Err()
					}
					continue
				}
			}
		}
		if isFinal(err) {
			return err
		}
		if kubeapi.IsForbidden(err) {
			return toRefusal("raise the size", err)
		}
		if err := pauseAfter(ctx, err); err != nil {
			return err
		}
	}
}

// planAgain replaces the record by one for the present size, before the raise.
func (x *surgeRun) planAgain(ctx context.Context) error {
	started := x.record.StartedAt
	r, err := x.plan(ctx)
	if err != nil {
		return err
	}
	r.StartedAt = started
	if err := x.hold.replace(ctx, r); err != nil {
		return err
	}
	x.record = r
	return nil
}

func (x *surgeRun) newSizeChanged(z sizeState) error {
	x.rememberReversal(z)
	return refuse(ReasonSizeChanged, "%s set %s to %s during the surge", z.changedBy(), x.record.Target, formatSize(z.value))
}

// rememberReversal refuses surges of the owner for a while if another client has taken back the raise. A GitOps tool would take back
// each raise, but a user who sets a larger size would not.
func (x *surgeRun) rememberReversal(z sizeState) {
	if x.raisedAt.IsZero() || toMinSize(z.value) > toMinSize(x.record.From) {
		return
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if len(x.s.reverted) >= maxLearned {
		clear(x.s.reverted)
	}
	x.s.reverted[x.record.Owner.UID] = reversal{by: z.changedBy(), at: time.Now()}
}

// endReservation lets other successors use the room that is reserved for this one.
func (x *surgeRun) endReservation() {
	if x.releaseRoom != nil {
		x.releaseRoom()
		x.releaseRoom = nil
	}
}

// readyLimit returns how long after the raise enough pods have to be Ready.
func (x *surgeRun) readyLimit() time.Duration {
	return max(readyWait, x.request.Decision.MaxStartTime())
}

// awaitSuccessor waits until a pod that was created after the raise is Ready on another node.
func (x *surgeRun) awaitSuccessor(ctx context.Context) (*podState, error) {
	var unschedulableSince time.Time
	for {
		pods, known := x.pods.snapshot()
		if known && x.hasLeft(pods) {
			return nil, errPodLeft
		}
		var candidate *podState
		for i, p := range pods {
			if x.before[p.uid] || !p.isActive() {
				continue
			}
			if p.node != "" {
				x.endReservation() // it takes the room itself now
			}
			if p.ready && p.node != x.request.Node {
				if !x.hadSuccessor { // a pod that is Ready again shows too long a time
					x.s.learnStartup(x.record.Owner.UID, p.readySince.Sub(p.scheduled))
				}
				x.hadSuccessor = true
				return &pods[i], nil
			}
			candidate = &pods[i]
		}
		now := time.Now()
		next := x.raisedAt.Add(x.readyLimit())
		switch {
		case !now.Before(next):
			return nil, refuse(ReasonNotReadyInTime, "no successor became Ready within %s", x.readyLimit())
		case candidate == nil:
			unschedulableSince = time.Time{}
			if created := x.raisedAt.Add(creationWait); now.Before(created) {
				next = created
			} else if known {
				return nil, refuse(ReasonNoSuccessor, "no new pod was created within %s", creationWait)
			}
			x.report(AwaitingReady, "", "no new pod yet")
		case candidate.unschedulable != "":
			if unschedulableSince.IsZero() {
				unschedulableSince = now
			}
			next = unschedulableSince.Add(max(x.s.options.SchedulingWait, toDuration(x.request.Decision.LaunchSeconds)))
			if !now.Before(next) {
				return nil, refuse(ReasonUnschedulable, "pod %s is unschedulable: %s", candidate.name, candidate.unschedulable)
			}
			x.report(AwaitingReady, candidate.name, "unschedulable: "+candidate.unschedulable)
		default:
			unschedulableSince = time.Time{}
			x.report(AwaitingReady, candidate.name, "not Ready yet")
		}
		if err := x.await(ctx, next); err != nil {
			return nil, err
		}
	}
}

// awaitEndpoints waits until the successor is a ready endpoint of each Service that has the leaving pod as endpoint.
func (x *surgeRun) awaitEndpoints(ctx context.Context, successor *podState) error {
	for pause := minEndpointInterval; ; pause = min(2*pause, endpointInterval) {
		missing, err := x.findMissingEndpoint(ctx, successor.uid)
		if err == nil && missing == "" {
			return nil
		}
		var refused *refusal
		if errors.As(err, &refused) {
			return err
		}
		if time.Since(x.result.ReadyAt) > endpointWait && err != nil {
			return refuse(ReasonNoEndpoint, "whether the successor %s is a ready endpoint is unknown after %s: %v", successor.name, endpointWait, err)
		}
		if time.Since(x.result.ReadyAt) > endpointWait {
			return refuse(ReasonNoEndpoint, "the successor %s is not a ready endpoint of Service %s after %s", successor.name, missing, endpointWait)
		}
		detail := "not an endpoint yet of Service " + missing
		if err != nil {
			detail = err.Error()
		}
		x.report(AwaitingEndpoint, successor.name, detail)
		if err := x.await(ctx, time.Now().Add(pause)); err != nil {
			return err
		}
		pods, _ := x.pods.snapshot()
		if x.hasLeft(pods) {
			return errPodLeft
		}
		if !x.hasReadySuccessor(pods) {
			return errSuccessorLost
		}
	}
}

// findMissingEndpoint returns a Service that has the leaving pod as endpoint, and has no ready endpoint with the UID of the
// successor. The result is empty if each Service has the successor.
func (x *surgeRun) findMissingEndpoint(ctx context.Context, successorUID string) (service string, err error) {
	all, err := x.s.listEndpointSlices(ctx, x.request.Pod.Namespace)
	if err != nil {
		return "", toRefusal("list the EndpointSlices of namespace "+x.request.Pod.Namespace, err)
	}
	wanted, found := map[string]bool{}, map[string]bool{}
	for _, slice := range all {
		name := slice.Labels["kubernetes.io/service-name"]
		for _, e := range slice.Endpoints {
			switch {
			case name == "" || e.TargetRef == nil:
			case e.TargetRef.UID == x.request.Pod.UID:
				wanted[name] = true
			case e.TargetRef.UID == successorUID && (e.Conditions.Ready == nil || *e.Conditions.Ready):
				found[name] = true
			}
		}
	}
	for name := range wanted {
		if !found[name] && (service == "" || name < service) {
			service = name
		}
	}
	return service, nil
}

// setCost gives the pod the lowest deletion cost. Before the successor receives traffic, the pod must not have it. Otherwise a lower size
// would remove the only endpoint, past the PodDisruptionBudget. It returns errNotRenewed if another process may take the record over
// soon, and restore the cost before this process sets it.
func (x *surgeRun) setCost(ctx context.Context) error {
	err := x.s.changeCost(ctx, x.record, func(p *kubeapi.Pod) (*string, bool, error) {
		if !x.hold.isHeld() {
			return nil, false, errNotRenewed
		}
		isLowest := p.Annotations[DeletionCostAnnotation] == lowestCost
		if isLowest && x.unansweredCost {
			return nil, false, nil
		}
		if err := x.recordCost(ctx, deletionCost(p)); err != nil {
			return nil, false, err
		}
		x.unansweredCost = !isLowest
		return new(lowestCost), !isLowest, nil
	})
	if !kubeapi.UnknownResult(err) || errors.Is(err, errPodLeft) {
		x.unansweredCost = false
	}
	switch {
	case errors.Is(err, errNotRenewed):
		return err
	case err != nil:
		x.left = errors.Is(err, errPodLeft)
		return toRefusal("set the deletion cost of pod "+x.record.Pod.String(), err)
	}
	x.costSetAt = time.Now()
	return nil
}

// recordCost updates the record if another client has changed the deletion cost of the pod since the record was written.
func (x *surgeRun) recordCost(ctx context.Context, cost *string) error {
	if isSame(cost, x.record.Cost) {
		return nil
	}
	r := *x.record
	r.Cost = cost
	if err := x.hold.replace(ctx, &r); err != nil {
		return err
	}
	x.record = &r
	return nil
}

// costSeenAt returns when the ReplicaSet controller has seen the deletion cost. It does not see it before the watch of this process does.
func (x *surgeRun) costSeenAt(pods []podState) time.Time {
	for _, p := range pods {
		if p.uid == x.request.Pod.UID && p.cost == math.MinInt32 {
			return x.costSetAt.Add(costWait)
		}
	}
	return x.costSetAt.Add(removalWait)
}

// unsetCost takes back setCost, because the successor no longer receives traffic.
func (x *surgeRun) unsetCost(ctx context.Context) error {
	if x.costSetAt.IsZero() {
		return nil
	}
	x.costSetAt = time.Time{}
	_, err := x.s.restoreCost(ctx, x.record)
	return err
}

// remove makes the pod leave. It lowers the size if exactly this pod would then be deleted. Otherwise it asks the caller
// to evict the pod.
func (x *surgeRun) remove(ctx context.Context) error {
	for err := x.setCost(ctx); err != nil; err = x.setCost(ctx) {
		if !errors.Is(err, errNotRenewed) {
			return err
		}
		if err := x.await(ctx, time.Now().Add(minOwnerInterval)); err != nil {
			return err
		}
	}
	for {
		pods, known := x.pods.snapshot()
		if known && x.hasLeft(pods) {
			return errPodLeft
		}
		if known && !x.hasReadySuccessor(pods) {
			return errSuccessorLost
		}
		now := time.Now()
		next := now.Add(ownerInterval)
		if costSeen := x.costSeenAt(pods); !x.lowered && now.Before(costSeen) {
			next = costSeen
		} else if !x.lowered {
			safe, detail, err := x.lowerIfSafe(ctx, pods)
			if err != nil {
				return err
			}
			if x.lowered {
				continue
			}
			if safe {
				next = now.Add(minOwnerInterval)
			} else {
				x.askForEviction(pods, detail)
			}
		} else {
			next = x.loweredAt.Add(removalWait)
			if !now.Before(next) {
				if !x.record.Target.isScaler() && !x.areOthersReady(pods) {
					return refuse(ReasonOtherPodRemoved, "the pod was not removed within %s after the size was lowered", removalWait)
				}
				// The controller is slow. Until the pod leaves, its deletion cost protects the successor.
				x.askForEviction(pods, fmt.Sprintf("the pod was not removed within %s after the size was lowered", removalWait))
				next = now.Add(ownerInterval)
			}
		}
		if !x.evictableAt.IsZero() && now.Sub(x.evictableAt) > evictionWait {
			return refuse(ReasonNotEvicted, "the pod was not evicted within %s", evictionWait)
		}
		if x.evictableAt.IsZero() && now.Sub(x.raisedAt) > x.readyLimit() {
			return refuse(ReasonNotReadyInTime, "too few pods are Ready after %s", x.readyLimit())
		}
		if err := x.await(ctx, next); err != nil {
			return err
		}
	}
}

// askForEviction tells the caller to evict the pod, if as many pods then stay Ready as before the raise.
func (x *surgeRun) askForEviction(pods []podState, detail string) {
	if !x.areOthersReady(pods) {
		ready := countReadyBeside(pods, x.request.Pod.UID)
		x.report(AwaitingReady, x.successor.name, fmt.Sprintf("%d other pods are Ready, and %d were: %s", ready, x.readyBefore, detail))
		return
	}
	if x.evictableAt.IsZero() {
		x.evictableAt = time.Now()
	}
	x.report(Evictable, x.successor.name, detail)
}

// areOthersReady reports whether as many pods beside the leaving one are Ready as before the raise, or as the owner wants.
func (x *surgeRun) areOthersReady(pods []podState) bool {
	return countReadyBeside(pods, x.request.Pod.UID) >= min(x.readyBefore, int(x.record.To-1))
}

// lowerIfSafe lowers the size if the controller would then delete exactly the leaving pod. It first looks at
// the watched pods, and then lists them.
func (x *surgeRun) lowerIfSafe(ctx context.Context, watched []podState) (safe bool, detail string, err error) {
	if detail := x.findOtherVictim(watched); detail != "" {
		return false, detail, nil
	}
	pods, err := x.s.listSiblings(ctx, &x.request.Pod, x.owners.replicaSet)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return false, "", err
	case err != nil:
		return true, "", nil // await pauses, and it is tried again
	}
	if x.hasLeft(pods) {
		return false, "", errPodLeft
	}
	if detail := x.findOtherVictim(pods); detail != "" {
		return false, detail, nil
	}
	if !x.wasAlwaysReady(pods) {
		return false, "", errSuccessorLost
	}
	switch counted, err := x.areReadyPodsCounted(ctx, pods); {
	case errors.As(err, &refused):
		return false, "", err
	case err == nil && !counted && time.Since(x.costSetAt) >= removalWait:
		return false, fmt.Sprintf("the controller of the %s has not counted the ready pods within %s", x.owners.replicaSetRef.Kind, removalWait), nil
	case err != nil || !counted:
		return true, "", nil // await pauses, and it is tried again
	}
	if !x.hold.isHeld() {
		return true, "", nil // await ends the surge if the record is lost
	}
	x.report(Removing, x.successor.name, fmt.Sprintf("%s back to %s", x.record.Target, formatSize(x.record.From)))
	lowering, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	defer context.AfterFunc(x.held, cancel)()
	by, z, err := x.s.lower(lowering, x.hold, x.record)
	switch {
	case err != nil && x.hold.isLost():
		return false, "", errRecordLost
	case err != nil:
		return false, "", err
	}
	if by != "" {
		return false, "", x.newSizeChanged(z)
	}
	x.lowered, x.loweredAt = true, time.Now()
	return true, "", nil
}

// areReadyPodsCounted reports whether the controller has seen that these pods are Ready. Until then it would delete the successor. It
// returns a refusal if a CloneSet has started a rollout.
func (x *surgeRun) areReadyPodsCounted(ctx context.Context, pods []podState) (bool, error) {
	ref := x.owners.replicaSetRef
	current, err := x.s.readWorkload(ctx, ref, x.owners.replicaSet.UID)
	if err != nil {
		return false, err
	}
	o := owners{replicaSet: current, top: current, ref: ref}
	if !o.isObserved() {
		return false, nil
	}
	counted := current.Status.ReadyReplicas
	if ref.Kind == "CloneSet" {
		// It deletes pods first that are not available: Ready for less than minReadySeconds, or with a hook that has not run.
		counted, err = current.Status.AvailableReplicas, o.checkSteady()
	}
	return int(counted) >= countReadyBeside(pods, ""), err
}

// findOtherVictim returns why lowering the size might not delete the leaving pod; empty if it does. The order of podControllers is:
// unassigned, not Running, not Ready, lower cost.
func (x *surgeRun) findOtherVictim(pods []podState) string {
	others := 0
	cost := int32(0)
	for _, p := range pods {
		if p.uid == x.request.Pod.UID {
			cost = p.cost
		}
	}
	for _, p := range pods {
		if p.uid == x.request.Pod.UID || !p.isActive() {
			continue
		}
		others++
		switch {
		case p.node == "":
			return fmt.Sprintf("pod %s is not assigned to a node", p.name)
		case p.phase != "Running":
			return fmt.Sprintf("pod %s is %s", p.name, p.phase)
		case !p.ready:
			return fmt.Sprintf("pod %s is not Ready", p.name)
		case p.cost <= cost:
			return fmt.Sprintf("pod %s has the deletion cost %d", p.name, p.cost)
		}
	}
	if wanted := x.record.To - 1; others < int(wanted) {
		return fmt.Sprintf("the owner has %d other pods, and wants %d", others, wanted)
	}
	return ""
}

// hasLeft reports whether the pod is terminating or gone, and remembers it.
func (x *surgeRun) hasLeft(pods []podState) bool {
	x.left = x.left || !x.staysIn(pods)
	return x.left
}

// staysIn reports whether the pod is one of these pods, and not terminating.
func (x *surgeRun) staysIn(pods []podState) bool {
	return slices.ContainsFunc(pods, func(p podState) bool { return p.uid == x.request.Pod.UID && p.isActive() })
}

func (x *surgeRun) hasReadySuccessor(pods []podState) bool {
	i := slices.IndexFunc(pods, func(p podState) bool { return p.uid == x.successor.uid })
	return i >= 0 && pods[i].isActive() && pods[i].ready
}

// wasAlwaysReady reports whether the successor has not lost its readiness since it was an endpoint. The watch may have shown only the end
// of a short loss, and then the successor may not be an endpoint again.
func (x *surgeRun) wasAlwaysReady(pods []podState) bool {
	return slices.ContainsFunc(pods, func(p podState) bool {
		return p.uid == x.successor.uid && p.readySince.Equal(x.successor.readySince)
	})
}

// await waits for a change of the pods, but not after next. It reads the owner when that is due. It returns an error if
// the surge has to end.
func (x *surgeRun) await(ctx context.Context, next time.Time) error {
	if x.nextOwner.IsZero() {
		x.lastOwner, x.nextOwner = time.Now(), time.Now().Add(ownerInterval)
	}
	if x.nextOwner.Before(next) && !x.lowered {
		next = x.nextOwner
	}
	timer := time.NewTimer(max(time.Until(next), conflictPause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-x.held.Done():
		return errRecordLost
	case <-x.pods.changed:
		if soon := x.lastOwner.Add(minOwnerInterval); soon.Before(x.nextOwner) {
			x.nextOwner = soon
		}
	case <-timer.C:
	}
	if x.lowered || time.Now().Before(x.nextOwner) {
		return nil
	}
	x.lastOwner, x.nextOwner = time.Now(), time.Now().Add(ownerInterval)
	return x.checkOwner(ctx)
}

// checkOwner returns an error if another client has changed the size, or has started a rollout. It ignores a failed read.
func (x *surgeRun) checkOwner(ctx context.Context) error {
	z, err := x.s.readSize(ctx, x.record.Target)
	switch {
	case errors.Is(err, errTargetGone):
		return refuse(ReasonDeleting, "%s no longer exists", x.record.Target)
	case err == nil && !z.isOurs(x.record.To):
		return x.newSizeChanged(z)
	}
	top := z.workload
	if x.record.Target.isScaler() {
		var refused *refusal
		if top, err = x.s.readWorkload(ctx, x.owners.ref, x.owners.top.UID); errors.As(err, &refused) {
			return err
		}
	}
	if err == nil && revision(top) != revision(x.owners.top) {
		return refuse(ReasonRollout, "%s %s has started a rollout", x.owners.ref.Kind, x.owners.ref.Name)
	}
	return nil
}

// awaitDeparture waits until the pod leaves, if the time is over and there is a successor. If the size was lowered now, the
// ReplicaSet controller would delete that successor, and the next one would have to start from the beginning. It lowers the size if
// the controller would delete the leaving pod instead. The deletion cost then protects the successor until the controller has removed
// the pod. If ctx ends, the drain has stopped to remove the pod, and the wait ends too.
func (x *surgeRun) awaitDeparture(ctx context.Context) {
	until := x.request.earliestEnd()
	if until.IsZero() || time.Now().Before(until) || !x.raised {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, departureWait)
	defer cancel()
	for {
		pods, known := x.pods.snapshot()
		stays := x.staysIn(pods)
		hasSuccessor := slices.ContainsFunc(pods, func(p podState) bool { return !x.before[p.uid] && p.isActive() && p.unschedulable == "" })
		if !known || !stays || !x.lowered && !hasSuccessor {
			return
		}
		if !x.lowered && !x.costSetAt.IsZero() && !time.Now().Before(x.costSeenAt(pods)) {
			if _, _, err := x.lowerIfSafe(ctx, pods); err != nil {
				return
			}
		}
		select {
		case <-x.pods.changed:
		case <-time.After(retryPause):
		case <-ctx.Done():
			return
		case <-x.held.Done():
			return
		}
	}
}

// end restores what the surge has changed, and deletes its record. ctx is the context of Run. The time of the request may be over before it.
func (x *surgeRun) end(ctx context.Context, cause error) error {
	x.awaitDeparture(ctx)
	restoring, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	// While the drain goes on, it does not evict the pod before the surge has ended.
	settling, cancelSettling := withGrace(ctx, settleWait, restoreTimeout-requestTimeout)
	defer cancelSettling()
	h := x.hold
	// After an outage, another process may have restored the size, and a later surge may have raised it.
	for !h.isHeld() && !h.isLost() && !h.renew(restoring) && elapsed.Sleep(restoring, retryPause) {
	}
	isAlone := false
	if x.raised && (h.isDeleted() || h.isLost() && x.unanswered != "") {
		// Without a record no other process restores the size. After an outage of the network, the raise may have been carried out after
		// another process has deleted the record. Any other raise had a record, and the process that took it over restores the size.
		var again *hold
		var err error
		for again == nil && err == nil { // another surge of the owner may have ended
			again, err = x.s.acquireRecord(restoring, x.record)
		}
		// No process can write a record if the namespace of the records is deleted, or Slipway is uninstalled.
		isAlone = h.isDeleted() && err != nil && !errors.Is(err, errBusy)
		if again != nil {
			h = again
		}
	}
	if h.isLost() && !isAlone {
		if x.raised {
			x.result.RestoreErr = errRecordLost
		}
		return cause
	}
	successor := ""
	if x.successor != nil {
		successor = x.successor.name
	}
	x.report(Restoring, successor, "")
	if isAlone {
		h = nil
	}
	changedBy, last, err := x.s.lower(restoring, h, x.record)
	if err == nil {
		_, err = x.s.restoreCost(restoring, x.record)
	}
	if !x.lowered && len(last.otherManagers()) > 0 {
		x.rememberReversal(last)
	}
	if err != nil {
		x.result.RestoreErr = err
		return cause
	}
	if x.unansweredCost || x.unanswered != "" && x.unanswered == last.resourceVersion {
		// The request may still be carried out. Another process looks again when the record has expired.
		return cause
	}
	pods, known := x.pods.snapshot()
	mayStay := !x.left && (!known || x.staysIn(pods))
	if h == nil || x.raised && mayStay && changedBy == "" && !x.s.awaitSettled(settling, h, x.record) {
		return cause // another process waits longer, if there is a record
	}
	restoreEnd, _ := restoring.Deadline()
	releasing, cancelRelease := context.WithTimeout(context.WithoutCancel(ctx), max(requestTimeout, time.Until(restoreEnd)))
	defer cancelRelease()
	x.result.RestoreErr = h.release(releasing)
	return cause
}

// withGrace returns a context that ends after the longest time, or after grace since the end of ctx.
func withGrace(ctx context.Context, longest, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	stop := context.AfterFunc(ctx, func() {
		elapsed.Sleep(later, grace)
		cancel()
	})
	return later, func() {
		stop()
		cancel()
	}
}

// finish fills in the result.
func (x *surgeRun) finish(parent, limited context.Context, err error) {
	x.result.EndedAt = time.Now()
	x.result.PodLeft = x.left
	started := !x.result.StartedAt.IsZero()
	if x.left {
		if started && !x.result.ReadyAt.IsZero() {
			x.s.options.Metrics.SurgeSucceeded(x.result.ReadyAt.Sub(x.result.StartedAt))
		} else if started {
			x.s.options.Metrics.SurgeFailed(x.leavingReason())
		}
		return
	}
	x.result.Reason, x.result.Detail = x.describe(parent, limited, err)
	if !x.raised && slices.Contains(RefusalReasons, x.result.Reason) {
		x.s.options.Metrics.SurgeRefused(x.result.Reason)
	} else {
		x.s.options.Metrics.SurgeFailed(x.result.Reason)
	}
	x.s.log.Info("the surge has ended and the pod stays", "pod", x.request.Pod.Namespace+"/"+x.request.Pod.Name,
		"reason", x.result.Reason, "detail", x.result.Detail, "restoreErr", x.result.RestoreErr)
}

// leavingReason returns why the pod has left before its successor was Ready.
func (x *surgeRun) leavingReason() string {
	if x.request.Decision.Reason == ReasonPDBDenies {
		return ReasonNotNeeded // the PodDisruptionBudget has allowed the eviction
	}
	return ReasonLeaving
}

// describe returns the reason and one sentence for the error that ended a surge.
func (x *surgeRun) describe(parent, limited context.Context, err error) (reason, detail string) {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return refused.reason, refused.detail
	case errors.Is(err, errRecordLost):
		return ReasonRecordLost, err.Error()
	case errors.Is(err, errBusy) && parent.Err() == nil:
		return ReasonBusy, "until the time was over, another surge of the owner was running, or too many others were"
	case parent.Err() != nil:
		return ReasonCancelled, "the drain ended or was cancelled"
	case limited.Err() != nil && x.progress.Step == "":
		return ReasonUntil, "the time was over before the surge started"
	case limited.Err() != nil:
		return ReasonUntil, fmt.Sprintf("the time was over after the step %q: %s", x.progress.Step, x.progress.Detail)
	}
	return ReasonRequestFailed, fmt.Sprint(err)
}

// report stores the progress, and passes it on if it has changed.
func (x *surgeRun) report(step Step, successor, detail string) {
	if successor != "" {
		successor = x.request.Pod.Namespace + "/" + successor
	}
	if x.progress.Step == step && x.progress.Successor == successor && x.progress.Detail == detail {
		return
	}
	if x.progress.Step != step {
		x.progress.Since = time.Now()
	}
	x.progress.Step, x.progress.Successor, x.progress.Detail = step, successor, detail
	if x.request.OnProgress != nil {
		x.request.OnProgress(x.progress)
	}
}

// learnStartup remembers how long a successor took to become Ready on its node.
func (s *Surger) learnStartup(uid string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.startups) >= maxLearned {
		clear(s.startups)
	}
	s.startups[uid] = took
}

// podWatch watches the pods of one controller.
type podWatch struct {
	changed chan struct{}

	mu    sync.Mutex
	known bool
	pods  map[string]podState // by UID
}

func newPodWatch() *podWatch {
	return &podWatch{changed: make(chan struct{}, 1), pods: map[string]podState{}}
}

// run watches until ctx ends.
func (w *podWatch) run(ctx context.Context, api API, namespace, selector, ownerUID string) {
	_ = api.WatchPods(ctx, namespace, selector, kubeapi.Handler[kubeapi.Pod]{
		Replaced: func(all []kubeapi.Pod) {
			w.update(func() {
				clear(w.pods)
				w.known = true
				for i := range all {
					w.put(&all[i], ownerUID)
				}
			})
		},
		Changed: func(p kubeapi.Pod) { w.update(func() { w.put(&p, ownerUID) }) },
		Deleted: func(p kubeapi.Pod) { w.update(func() { delete(w.pods, p.UID) }) },
	})
}

func (w *podWatch) put(p *kubeapi.Pod, ownerUID string) {
	if c := fromkubeapi.FindController(p); c != nil && c.UID == ownerUID {
		w.pods[p.UID] = toPodState(p)
	} else {
		delete(w.pods, p.UID)
	}
}

func (w *podWatch) update(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// snapshot returns the pods by name. known is false before the first list.
func (w *podWatch) snapshot() (pods []podState, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pods {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b podState) int { return a.created.Compare(b.created) })
	return pods, w.known
}
