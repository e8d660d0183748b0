package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

const (
	node      = "node-1"
	otherNode = "node-2"
)

// sim simulates an API server, kubelets and controllers in the virtual time of testing/synctest. Its answers follow
// k8s.io/kubernetes v1.36 (pkg/registry/core/pod/storage/eviction.go and k8s.io/apiserver/pkg/registry/rest/delete.go).
type sim struct {
	latency          time.Duration // of each request
	evictionDelay    time.Duration // added to each eviction
	watchLag         time.Duration // of each watch event
	watchSilentUntil time.Time     // the watch of pods sends nothing until then
	// pdbWriteDelay is the time between an eviction's read and write of its PDB. 0 means no delay and no conflicts.
	pdbWriteDelay time.Duration
	// controllerDelay is the time from an eviction until the disruption controller counts it.
	controllerDelay time.Duration
	// fault, if set, may replace the answer to a request.
	fault func(c call) *fault
	// watchLifetime returns how long the nth watch (from 0) lasts; 0 means until the end. With relist the client lists
	// again after it.
	watchLifetime func(n int) (lives time.Duration, relist bool)

	// listLag is how many events the first list lacks.
	listLag int
	// listAnswerTime, if set, returns how long the answer to the nth list (from 0) takes after the pods were read.
	listAnswerTime func(n int) time.Duration

	mu   sync.Mutex
	uids int
	pods map[string]*simPod // by UID; gone pods stay, with gone set
	pdbs []*simPDB
	// podGroups are the disruptionModes of PodGroups, by namespace/name.
	podGroups map[string]string
	events    []podEvent
	changed   chan struct{}
	requests  []sentRequest
	calls     map[string]int // by verb
	// conflicts counts the evictions that found their PDB changed by another client.
	conflicts   int
	lists       int            // lists of pods that were read
	finalReadAt time.Time      // when the pods were read for the latest final list
	inFlight    map[string]int // by verb
	maxInFlight int            // requests of one verb in flight at once
	watches     int
	nodeDown    bool // the node and its kubelet have stopped
}

type call struct {
	verb string // evict, delete, condition, budgets, list
	kubeapi.PodRemoval
	n int // number of this call of the verb, from 0
}

type fault struct {
	err        error
	tookEffect bool // the request took effect despite the error
	hang       bool // until the client cancels the request
	// delay is added to the answer's time.
	delay time.Duration
}

type sentRequest struct {
	verb       string
	removal    kubeapi.PodRemoval
	at         time.Time
	err        error
	changedPod bool // it changed the pod
}

type podEvent struct {
	kind string // changed, deleted
	at   time.Time
	pod  kubeapi.Pod
}

// simPod is a pod and the behavior of its processes.
type simPod struct {
	kubeapi.Pod
	stopsAfter     time.Duration // from SIGTERM to its own end, or never
	twinKind       twinPolicy
	twinReadyAfter time.Duration // from the twin's creation until it is ready
	gone           bool
	end            PodEnd
	endedAt        time.Time
	terminatedAt   time.Time // time of SIGTERM
	givenGrace     time.Duration
	deletedByOther bool // a request of another client deleted it
	timers         []*time.Timer
	killTimer      *time.Timer
}

const never = time.Duration(-1)

// twinPolicy says how a removed pod is replaced.
type twinPolicy int

const (
	noTwin       twinPolicy = iota
	twinNewName             // at once, as a ReplicaSet does
	twinSameName            // after the object is gone, as a StatefulSet does
)

type simPDB struct {
	namespace, name      string
	labels               map[string]string // nil selects all
	minHealthy           int32             // required by the PDB
	expected             int32
	alwaysAllowUnhealthy bool // unhealthyPodEvictionPolicy: AlwaysAllow
	version              int
	disrupted            map[string]any // evicted pods that the controller has not counted yet
}

func newSim() *sim {
	return &sim{
		latency: 5 * time.Millisecond, controllerDelay: 10 * time.Millisecond, pods: map[string]*simPod{}, changed: make(chan struct{}),
		calls: map[string]int{}, inFlight: map[string]int{},
	}
}

// simulate runs a test in virtual time. Goroutines that outlive the test make it fail.
func simulate(t *testing.T, test func(t *testing.T, s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newSim()) })
}

// simulateFunc returns a test in virtual time, for t.Run.
func simulateFunc(test func(t *testing.T, s *sim)) func(t *testing.T) {
	return func(t *testing.T) { simulate(t, test) }
}

// podOption changes a new pod.
type podOption func(*simPod)

func withGrace(d time.Duration) podOption {
	return func(p *simPod) { p.Spec.TerminationGracePeriodSeconds = ptr(int64(d / time.Second)) }
}
func withStopTime(d time.Duration) podOption { return func(p *simPod) { p.stopsAfter = d } }
func withPriority(n int32) podOption         { return func(p *simPod) { p.Spec.Priority = &n } }
func withLabel(k, v string) podOption        { return func(p *simPod) { p.Labels = map[string]string{k: v} } }

func withAnnotation(k, v string) podOption {
	return func(p *simPod) { p.Annotations = map[string]string{k: v} }
}
func withPhase(s string) podOption           { return func(p *simPod) { p.Status.Phase = s } }
func onNode(n string) podOption              { return func(p *simPod) { p.Spec.NodeName = n } }
func inNamespace(namespace string) podOption { return func(p *simPod) { p.Namespace = namespace } }

func withTwin(w twinPolicy, up time.Duration) podOption {
	return func(p *simPod) { p.twinKind, p.twinReadyAfter = w, up }
}

func withOwner(kind string) podOption {
	return func(p *simPod) {
		p.OwnerReferences = []kubeapi.OwnerReference{{Kind: kind, Name: "owner", UID: "owner", Controller: ptr(true)}}
	}
}
func withoutOwner(p *simPod) { p.OwnerReferences = nil }
func asNotReady(p *simPod) {
	p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "False"}}
}

func asReady(p *simPod) {
	p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}}
}

func withEmptyDir(p *simPod) {
	p.Spec.Volumes = []kubeapi.Volume{{Name: "scratch", EmptyDir: &kubeapi.EmptyDirVolume{}}}
}

// asDeleted makes the pod terminating since ago.
func asDeleted(ago, grace time.Duration) podOption {
	return func(p *simPod) {
		p.DeletionTimestamp = ptr(time.Now().Add(grace - ago).Truncate(time.Second))
		p.DeletionGracePeriodSeconds = ptr(int64(grace / time.Second))
	}
}

func ptr[T any](v T) *T { return &v }

// addPod adds a pod of a ReplicaSet in namespace "shop" that stops 2 seconds after SIGTERM.
func (s *sim) addPod(name string, changes ...podOption) *simPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &simPod{stopsAfter: 2 * time.Second}
	p.Name, p.Namespace, p.CreationTimestamp = name, "shop", time.Now()
	p.Spec.NodeName = node
	p.Status.Phase = "Running"
	p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}}
	withOwner("ReplicaSet")(p)
	for _, c := range changes {
		c(p)
	}
	s.registerPod(p)
	return p
}

// addPods adds n pods, named by format with 0 to n-1.
func (s *sim) addPods(n int, format string, changes ...podOption) (pods []*simPod) {
	for i := range n {
		pods = append(pods, s.addPod(fmt.Sprintf(format, i), changes...))
	}
	return pods
}

// addBlockedPod adds a pod and a PDB of the same name that denies its eviction.
func (s *sim) addBlockedPod(name string, changes ...podOption) *simPod {
	p := s.addPod(name, append([]podOption{withLabel("app", name)}, changes...)...)
	s.addPDB(name, 1, 1, map[string]string{"app": name})
	return p
}

// changeAfter runs a change of the cluster after d.
func (s *sim) changeAfter(d time.Duration, change func()) {
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		change()
	})
}

// failWhen answers the requests that meet the condition with the fault.
func (s *sim) failWhen(f fault, condition func(call) bool) {
	s.fault = func(c call) *fault {
		if condition(c) {
			return &f
		}
		return nil
	}
}

// failAll answers all requests of a verb with the fault.
func (s *sim) failAll(verb string, f fault) {
	s.failWhen(f, func(c call) bool { return c.verb == verb })
}

func (s *sim) registerPod(p *simPod) {
	s.uids++
	p.UID = fmt.Sprintf("uid-%d", s.uids)
	p.SetContainerRunning()
	s.pods[p.UID] = p
	if p.DeletionTimestamp != nil {
		p.terminatedAt = p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
		p.givenGrace = p.DeletionTimestamp.Sub(p.terminatedAt)
		s.stopContainers(p, time.Until(*p.DeletionTimestamp))
	}
	s.recordEvent("changed", p)
}

func (p *simPod) SetContainerRunning() {
	p.Status.ContainerStatuses = []kubeapi.ContainerStatus{{Name: "main"}}
}

func (s *sim) addPDB(name string, healthy, expected int32, labels map[string]string) *simPDB {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &simPDB{namespace: "shop", name: name, labels: labels, minHealthy: healthy, expected: expected}
	s.pdbs = append(s.pdbs, b)
	return b
}

func (b *simPDB) selects(p *simPod) bool {
	if b.namespace != p.Namespace {
		return false
	}
	for k, v := range b.labels {
		if p.Labels[k] != v {
			return false
		}
	}
	return true
}

func (p *simPod) isReady() bool {
	return p.Status.Phase == "Running" && p.Status.Conditions[0].Status == "True" && p.DeletionTimestamp == nil && !p.gone
}

func (s *sim) countHealthy(b *simPDB) (n int32) {
	for _, p := range s.pods {
		if b.selects(p) && p.isReady() {
			n++
		}
	}
	return n
}

func (s *sim) recordEvent(kind string, p *simPod) {
	s.events = append(s.events, podEvent{kind, time.Now(), p.snapshot()})
	s.wakeWatchers()
}

func (s *sim) wakeWatchers() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// snapshot returns a copy that shares no changing data.
func (p *simPod) snapshot() kubeapi.Pod {
	c := p.Pod
	c.Labels, c.Annotations = maps.Clone(p.Labels), maps.Clone(p.Annotations)
	c.Status.ContainerStatuses = slices.Clone(p.Status.ContainerStatuses)
	c.Status.Conditions = slices.Clone(p.Status.Conditions)
	return c
}

// addOrUpdatePod changes a pod as another client would.
func (s *sim) addOrUpdatePod(p *simPod, c podOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c(p)
	s.recordEvent("changed", p)
}

func (s *sim) findPod(namespace, name string) *simPod {
	for _, p := range s.pods {
		if p.Namespace == namespace && p.Name == name && !p.gone {
			return p
		}
	}
	return nil
}

func (s *sim) EvictPod(ctx context.Context, r kubeapi.PodRemoval) error {
	return s.serve(ctx, "evict", r, s.evict)
}

func (s *sim) DeletePod(ctx context.Context, r kubeapi.PodRemoval) error {
	return s.serve(ctx, "delete", r, func(r kubeapi.PodRemoval) (bool, error) {
		p := s.findPod(r.Namespace, r.Name)
		if p == nil {
			return false, newNotFound("pods", r.Name)
		}
		return s.deletePod(p, r)
	})
}

func (s *sim) SetDisruptionTarget(ctx context.Context, c kubeapi.PodDisruption) error {
	r := kubeapi.PodRemoval{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	return s.serve(ctx, "condition", r, func(r kubeapi.PodRemoval) (bool, error) {
		p := s.findPod(r.Namespace, r.Name)
		switch {
		case p == nil:
			return false, newNotFound("pods", r.Name)
		case p.UID != r.UID:
			return false, &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: "the UID in the precondition does not match"}
		}
		p.Status.Conditions = append(slices.Clone(p.Status.Conditions),
			kubeapi.Condition{Type: disruptionTarget, Status: "True", Reason: c.Reason})
		s.recordEvent("changed", p)
		return true, nil
	})
}

func (s *sim) serve(ctx context.Context, verb string, r kubeapi.PodRemoval, do func(kubeapi.PodRemoval) (bool, error)) error {
	s.mu.Lock()
	c := call{verb, r, s.calls[verb]}
	s.calls[verb]++
	if verb != "condition" {
		s.inFlight[verb]++
		s.maxInFlight = max(s.maxInFlight, s.inFlight[verb])
		defer s.finishRequest(verb)
	}
	began := time.Now()
	s.mu.Unlock()

	took := s.latency
	if verb == "evict" {
		took += s.evictionDelay
	}
	arrived := elapsed.Sleep(ctx, took)
	if verb == "evict" && s.pdbWriteDelay > 0 && !r.DryRun {
		if err := s.writeEvictionToPDB(ctx, r); err != nil {
			do = func(kubeapi.PodRemoval) (bool, error) { return false, err }
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	var f *fault
	if s.fault != nil {
		f = s.fault(c)
	}
	if !arrived {
		s.requests = append(s.requests, sentRequest{verb, r, began, ctx.Err(), false})
		return ctx.Err()
	}
	if f != nil && (f.hang || f.delay > 0) {
		s.mu.Unlock()
		wait, answer := f.delay, f.err
		if f.hang {
			wait = never
		}
		if !sleepFor(ctx, wait) {
			answer = ctx.Err()
		}
		s.mu.Lock()
		f = &fault{err: answer, tookEffect: f.tookEffect}
	}
	var worked bool
	var err error
	if f == nil || f.tookEffect {
		worked, err = do(r)
	}
	if f != nil && err == nil {
		err = f.err
	}
	s.requests = append(s.requests, sentRequest{verb, r, began, err, worked})
	return err
}

func (s *sim) finishRequest(verb string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[verb]--
}

// sleepFor reports whether d passed before ctx ended. The duration never does not pass.
func sleepFor(ctx context.Context, d time.Duration) bool {
	if d == never {
		<-ctx.Done()
		return false
	}
	return elapsed.Sleep(ctx, d)
}

// writeEvictionToPDB records an eviction in its PDB. After a conflict it tries again half a second later.
func (s *sim) writeEvictionToPDB(ctx context.Context, r kubeapi.PodRemoval) error {
	const attempts, pause = 20, 500 * time.Millisecond
	for range attempts {
		s.mu.Lock()
		var over *simPDB
		if p := s.findPod(r.Namespace, r.Name); p != nil {
			if i := slices.IndexFunc(s.pdbs, func(b *simPDB) bool { return b.selects(p) }); i >= 0 {
				over = s.pdbs[i]
			}
		}
		if over == nil {
			s.mu.Unlock()
			return nil
		}
		read := over.version
		s.mu.Unlock()
		if !elapsed.Sleep(ctx, s.pdbWriteDelay) {
			return ctx.Err()
		}
		if s.writePDB(over, read) {
			return nil
		}
		if !elapsed.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
	return &kubeapi.StatusError{Code: 504, Reason: "Timeout", Message: "couldn't update PodDisruptionBudget due to conflicts"}
}

// writePDB reports whether the PDB still had the version read, and increments it.
func (s *sim) writePDB(b *simPDB, read int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.version != read {
		s.conflicts++
		return false
	}
	b.version++
	return true
}

func (s *sim) evict(r kubeapi.PodRemoval) (bool, error) {
	p := s.findPod(r.Namespace, r.Name)
	if p == nil {
		return false, newNotFound("pods", r.Name)
	}
	if isExemptFromPDBs(&p.Pod) || p.DeletionTimestamp != nil {
		return s.deleteEvicted(p, r)
	}
	var over []*simPDB
	for _, b := range s.pdbs {
		if b.selects(p) {
			over = append(over, b)
		}
	}
	if len(over) > 1 {
		return false, &kubeapi.StatusError{Code: 500, Message: "This pod has more than one PodDisruptionBudget, " +
			"which the eviction subresource does not support."}
	}
	if len(over) == 1 {
		if err := s.checkPDB(over[0], p, r.DryRun); err != nil {
			return false, err
		}
	}
	return s.deleteEvicted(p, r)
}

func (s *sim) deleteEvicted(p *simPod, r kubeapi.PodRemoval) (bool, error) {
	if r.UID == p.UID && !r.DryRun && !hasEvictionCondition(&p.Pod) {
		p.Status.Conditions = append(slices.Clone(p.Status.Conditions),
			kubeapi.Condition{Type: "DisruptionTarget", Status: "True", Reason: "EvictionByEvictionAPI"})
	}
	return s.deletePod(p, r)
}

// checkPDB returns an error if the PDB denies the eviction.
func (s *sim) checkPDB(b *simPDB, p *simPod, dryRun bool) error {
	has := s.countHealthy(b)
	if !p.isReady() && (b.alwaysAllowUnhealthy || has >= b.minHealthy && b.minHealthy > 0) {
		return nil
	}
	if has > b.minHealthy {
		if !dryRun {
			s.recordDisruption(b, p)
		}
		return nil
	}
	return newDenial(fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.name, b.minHealthy, has))
}

// recordDisruption records the eviction in the PDB's status, and removes it later as the disruption controller does.
func (s *sim) recordDisruption(b *simPDB, p *simPod) {
	if b.disrupted == nil {
		b.disrupted = map[string]any{}
	}
	b.disrupted[p.Name] = p.UID
	s.wakeWatchers()
	s.changeAfter(s.controllerDelay, func() {
		delete(b.disrupted, p.Name)
		b.version++
		s.wakeWatchers()
	})
}

func newDenial(message string) error {
	return &kubeapi.StatusError{
		Code: 429, Reason: "TooManyRequests",
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Causes:  []kubeapi.Cause{{Reason: "DisruptionBudget", Message: message}},
	}
}

func newNotFound(kind, name string) error {
	return &kubeapi.StatusError{Code: 404, Reason: "NotFound", Message: fmt.Sprintf("%s %q not found", kind, name)}
}

func newForbidden(message string) error {
	return &kubeapi.StatusError{Code: 403, Reason: "Forbidden", Message: message}
}

// deletePod does what BeforeDelete of the API server and the kubelet do.
func (s *sim) deletePod(p *simPod, r kubeapi.PodRemoval) (bool, error) {
	if r.UID != "" && r.UID != p.UID {
		return false, &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: fmt.Sprintf(
			"the UID in the precondition (%s) does not match the UID in record (%s)", r.UID, p.UID)}
	}
	if r.DryRun {
		return false, nil
	}
	period := int64(30)
	switch {
	case r.GracePeriodSeconds != nil:
		period = *r.GracePeriodSeconds
	case p.DeletionTimestamp != nil:
		return false, nil
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if period < 0 {
		period = 1
	}
	now := time.Now()
	if p.DeletionTimestamp != nil { // the grace can only be shortened, counted from the first deletion
		had := *p.DeletionGracePeriodSeconds
		if period >= had {
			return false, nil
		}
		at := p.DeletionTimestamp.Add(time.Duration(period-had) * time.Second)
		if at.Before(now) {
			at = now
			if period != 0 {
				period = 1
			}
		}
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr(at.Truncate(time.Second)), &period
	} else {
		if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			period = 0
		}
		p.terminatedAt = now.Truncate(time.Second)
		p.DeletionTimestamp = ptr(now.Add(time.Duration(period) * time.Second).Truncate(time.Second))
		p.DeletionGracePeriodSeconds = &period
		if p.twinKind == twinNewName {
			s.startTwin(p, p.Name+"-new")
		}
	}
	p.givenGrace = p.DeletionTimestamp.Sub(p.terminatedAt)
	if period == 0 {
		s.removeObject(p)
		return true, nil
	}
	s.recordEvent("changed", p)
	s.stopContainers(p, time.Duration(period)*time.Second)
	return true, nil
}

// stopContainers stops the pod's processes. Called again, it kills them earlier.
func (s *sim) stopContainers(p *simPod, kill time.Duration) {
	if p.killTimer == nil && p.stopsAfter != never {
		p.timers = append(p.timers, time.AfterFunc(p.stopsAfter, func() { s.recordStopped(p, 0) }))
	}
	if p.killTimer != nil {
		p.killTimer.Stop()
	}
	p.killTimer = time.AfterFunc(max(time.Second, kill), func() { s.recordStopped(p, killedExitCode) })
	p.timers = append(p.timers, p.killTimer)
}

func (s *sim) recordStopped(p *simPod, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone || p.end != StillPresent || (s.nodeDown && p.Spec.NodeName == node) {
		return
	}
	p.end, p.endedAt = Stopped, time.Now()
	if code == killedExitCode {
		p.end = Killed
	}
	p.setTerminated(code, time.Now())
	s.recordEvent("changed", p)
	s.changeAfter(20*time.Millisecond, func() { s.removeObject(p) })
}

func (p *simPod) setTerminated(code int, at time.Time) {
	c := kubeapi.ContainerStatus{Name: "main"}
	c.State.Terminated = &struct {
		ExitCode   int       `json:"exitCode"`
		Reason     string    `json:"reason,omitempty"`
		FinishedAt time.Time `json:"finishedAt,omitzero"`
	}{ExitCode: code, FinishedAt: at.Truncate(time.Second)}
	p.Status.ContainerStatuses = []kubeapi.ContainerStatus{c}
}

func (s *sim) removeObject(p *simPod) {
	if p.gone {
		return
	}
	p.gone = true
	if p.end == StillPresent {
		p.end, p.endedAt = Vanished, time.Now()
	}
	s.recordEvent("deleted", p)
	if p.twinKind == twinSameName {
		s.startTwin(p, p.Name)
	}
}

// startTwin starts the pod's replacement on another node. Once ready, it may allow evictions under a PDB.
func (s *sim) startTwin(p *simPod, name string) {
	q := &simPod{stopsAfter: p.stopsAfter, twinKind: p.twinKind, twinReadyAfter: p.twinReadyAfter}
	q.Pod = p.snapshot()
	q.Name, q.Spec.NodeName, q.DeletionTimestamp, q.DeletionGracePeriodSeconds = name, otherNode, nil, nil
	q.Status = kubeapi.PodStatus{Phase: "Pending", Conditions: []kubeapi.Condition{{Type: "Ready", Status: "False"}}}
	s.registerPod(q)
	s.changeAfter(p.twinReadyAfter, func() {
		q.Status.Phase = "Running"
		q.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}}
		s.recordEvent("changed", q)
	})
}

// stopNodeAt stops the node's kubelet: its remaining pods are lost.
func (s *sim) stopNodeAt(at time.Time) {
	s.changeAfter(time.Until(at), func() { s.nodeDown = true })
}

func (s *sim) GetPodGroup(ctx context.Context, namespace, name string) (*kubeapi.PodGroup, error) {
	if !elapsed.Sleep(ctx, s.latency) {
		return nil, ctx.Err()
	}
	if err := s.faultError(ctx, call{verb: "podgroup", PodRemoval: kubeapi.PodRemoval{Namespace: namespace, Name: name}}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mode, ok := s.podGroups[namespace+"/"+name]
	if !ok {
		return nil, newNotFound("podgroups", name)
	}
	g := &kubeapi.PodGroup{}
	g.Namespace, g.Name, g.Spec.DisruptionMode = namespace, name, []byte(mode)
	return g, nil
}

// WatchPodDisruptionBudgets returns a list and then an event for each changed PDB.
func (s *sim) WatchPodDisruptionBudgets(
	ctx context.Context, namespace string, h kubeapi.Handler[kubeapi.PodDisruptionBudget],
) error {
	var told map[string]kubeapi.PodDisruptionBudget
	for ctx.Err() == nil {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if told == nil {
			all, err := s.listPDBs(ctx, namespace)
			if err != nil {
				if ctx.Err() == nil {
					h.Failed(err)
				}
				elapsed.Sleep(ctx, 100*time.Millisecond)
				continue
			}
			h.Replaced(slices.Collect(maps.Values(all)))
			told = all
		}
		s.mu.Lock()
		all := s.toPDBs(namespace)
		s.mu.Unlock()
		if !elapsed.Sleep(ctx, s.watchLag) {
			break
		}
		for name, b := range all {
			if !reflect.DeepEqual(told[name], b) && h.Changed != nil {
				h.Changed(b)
			}
		}
		for name, b := range told {
			if _, there := all[name]; !there && h.Deleted != nil {
				h.Deleted(b)
			}
		}
		told = all
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return ctx.Err()
}

func (s *sim) listPDBs(ctx context.Context, namespace string) (map[string]kubeapi.PodDisruptionBudget, error) {
	if !elapsed.Sleep(ctx, s.latency) {
		return nil, ctx.Err()
	}
	if err := s.faultError(ctx, call{verb: "budgets", PodRemoval: kubeapi.PodRemoval{Namespace: namespace}}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.toPDBs(namespace), nil
}

// faultError returns the error of a failing read after its delay, or nil.
func (s *sim) faultError(ctx context.Context, c call) error {
	s.mu.Lock()
	c.n = s.calls[c.verb]
	s.calls[c.verb]++
	var f *fault
	if s.fault != nil {
		f = s.fault(c)
	}
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, kubeapi.DefaultTimeout)
	defer cancel()
	wait := f.delay
	if f.hang {
		wait = never
	}
	if wait != 0 && !sleepFor(bounded, wait) {
		return bounded.Err()
	}
	return f.err
}

// toPDBs returns a namespace's PDBs. s.mu must be locked.
func (s *sim) toPDBs(namespace string) map[string]kubeapi.PodDisruptionBudget {
	all := map[string]kubeapi.PodDisruptionBudget{}
	for _, b := range s.pdbs {
		if b.namespace != namespace {
			continue
		}
		var o kubeapi.PodDisruptionBudget
		o.Name, o.Namespace = b.name, b.namespace
		o.Spec.Selector = &kubeapi.LabelSelector{MatchLabels: b.labels}
		if b.alwaysAllowUnhealthy {
			o.Spec.UnhealthyPodEvictionPolicy = "AlwaysAllow"
		}
		o.Status.CurrentHealthy = s.countHealthy(b)
		o.Status.DesiredHealthy, o.Status.ExpectedPods = b.minHealthy, b.expected
		o.Status.DisruptionsAllowed = max(0, o.Status.CurrentHealthy-b.minHealthy)
		o.Status.DisruptedPods = maps.Clone(b.disrupted)
		all[b.name] = o
	}
	return all
}

// WatchPodsOnNode works like kubeapi.Follow: one list, then watches, and another list if a watch is too old.
func (s *sim) WatchPodsOnNode(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod]) error {
	next := -1
	for ctx.Err() == nil {
		err := s.listAndWatch(ctx, node, h, &next)
		if err != nil && ctx.Err() == nil && h.Failed != nil {
			h.Failed(err)
		}
		elapsed.Sleep(ctx, 100*time.Millisecond)
	}
	return ctx.Err()
}

func (s *sim) listAndWatch(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod], next *int) error {
	if *next < 0 {
		if !elapsed.Sleep(ctx, s.latency) {
			return ctx.Err()
		}
		list, err := s.listPods(ctx, node)
		if err != nil {
			return err
		}
		if s.listLag > 0 {
			list.pods, list.seen = s.listAsOfEvent(node, list.seen-s.listLag)
			s.listLag = 0
		}
		h.Replaced(list.pods)
		*next = list.seen
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	n := s.watches
	s.watches++
	s.mu.Unlock()
	relist := false
	if s.watchLifetime != nil {
		var lives time.Duration
		if lives, relist = s.watchLifetime(n); lives > 0 {
			var done context.CancelFunc
			ctx, done = context.WithTimeout(ctx, lives)
			defer done()
		}
	}
	s.watchPods(ctx, node, h, next)
	if relist {
		*next = -1
	}
	return errors.New("watch broke")
}

// podList has the pods of a node at one time.
type podList struct {
	pods   []kubeapi.Pod
	seen   int // number of events before
	readAt time.Time
}

func (s *sim) listPods(ctx context.Context, node string) (podList, error) {
	if err := s.faultError(ctx, call{verb: "list"}); err != nil {
		return podList{}, err
	}
	s.mu.Lock()
	n, list := s.lists, podList{seen: len(s.events), readAt: time.Now()}
	s.lists++
	for _, p := range s.pods {
		if p.Spec.NodeName == node && !p.gone {
			list.pods = append(list.pods, p.snapshot())
		}
	}
	s.mu.Unlock()
	if s.listAnswerTime != nil {
		elapsed.Sleep(ctx, s.listAnswerTime(n))
	}
	return list, ctx.Err()
}

func (s *sim) ListPodsOnNode(ctx context.Context, node string) ([]kubeapi.Pod, error) {
	if !elapsed.Sleep(ctx, s.latency) {
		return nil, ctx.Err()
	}
	list, err := s.listPods(ctx, node)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finalReadAt = list.readAt
	return list.pods, nil
}

// listAsOfEvent returns the pods after the first seen events, and the number of these events.
func (s *sim) listAsOfEvent(node string, seen int) ([]kubeapi.Pod, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen = max(0, seen)
	there := map[string]kubeapi.Pod{}
	for _, e := range s.events[:seen] {
		if e.kind == "deleted" {
			delete(there, e.pod.UID)
		} else if e.pod.Spec.NodeName == node {
			there[e.pod.UID] = e.pod
		}
	}
	return slices.Collect(maps.Values(there)), seen
}

func (s *sim) watchPods(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod], next *int) {
	for {
		s.mu.Lock()
		changed := s.changed
		more := s.events[*next:]
		s.mu.Unlock()
		for _, e := range more {
			s.mu.Lock()
			at := laterOf(e.at.Add(s.watchLag), s.watchSilentUntil)
			s.mu.Unlock()
			if !elapsed.Sleep(ctx, time.Until(at)) {
				return
			}
			*next++
			switch {
			case e.pod.Spec.NodeName != node:
			case e.kind == "deleted":
				h.Deleted(e.pod)
			default:
				h.Changed(e.pod)
			}
		}
		if len(more) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// findRequests returns the requests of a verb for a pod. An empty verb or a nil pod matches any.
func (s *sim) findRequests(verb string, p *simPod) (found []sentRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if (verb == "" || r.verb == verb) && (p == nil || r.removal.UID == p.UID) {
			found = append(found, r)
		}
	}
	return found
}

func (s *sim) checkRequestCount(t *testing.T, verb string, want int) {
	t.Helper()
	check.Is(t, want, len(s.findRequests(verb, nil)), verb)
}

func (s *sim) checkMaxRequestCount(t *testing.T, verb string, most int) {
	t.Helper()
	if n := len(s.findRequests(verb, nil)); n > most {
		t.Errorf("%d requests of %s, want up to %d", n, verb, most)
	}
}

// countRemainingPods returns how many of the node's pods are not gone.
func (s *sim) countRemainingPods() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listRemainingPods())
}

// listRemainingPods returns the node's pods that are not gone. s.mu must be locked.
func (s *sim) listRemainingPods() (pods []*simPod) {
	for _, p := range s.pods {
		if p.Spec.NodeName == node && !p.gone {
			pods = append(pods, p)
		}
	}
	return pods
}
