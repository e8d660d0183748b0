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
)

const (
	node      = "node-1"
	elsewhere = "node-2"
)

// sim is an API server with the kubelets and controllers that matter to a drain, in the virtual time of
// testing/synctest. Its answers are those of k8s.io/kubernetes v1.36 (pkg/registry/core/pod/storage/eviction.go and
// k8s.io/apiserver/pkg/registry/rest/delete.go).
type sim struct {
	latency time.Duration // of each request
	queued  time.Duration // how much longer an eviction takes
	lag     time.Duration // of each watch event
	silent  time.Time     // until then the watch of the pods says nothing
	// counting is the time from an eviction's reading its budget to its writing it; 0 is none, and no conflicts.
	counting time.Duration
	// controlling is the time from an eviction to the disruption controller's writing what it makes of it.
	controlling time.Duration
	// fault, if set, may answer a request in the server's stead.
	fault func(c call) *fault
	// watchLives says how long the nth watch (from 0) lasts; 0 is for ever. relist makes the client list after it.
	watchLives func(n int) (lives time.Duration, relist bool)

	// behind is how many events the cache lacks from which the first list is answered.
	behind int

	mu       sync.Mutex
	uids     int
	pods     map[string]*simPod // by UID; gone ones stay, with gone set
	budgets  []*simBudget
	events   []event
	changed  chan struct{}
	requests []request
	calls    map[string]int // by verb
	// conflicts is how often an eviction found its budget written by somebody else.
	conflicts int
	inFlight  map[string]int // by verb
	most      int            // requests of one verb in flight at once
	watches   int
	off       bool // the node's machine is gone, and its kubelet
}

type call struct {
	verb string // evict, delete, condition, budgets, list
	kubeapi.Removal
	n int // of this verb, from 0
}

type fault struct {
	err    error
	worked bool // the request took effect all the same
	hang   bool // until the client gives up
	// takes is how much longer the answer takes.
	takes time.Duration
}

type request struct {
	verb    string
	removal kubeapi.Removal
	at      time.Time
	err     error
	worked  bool // it changed the pod
}

type event struct {
	kind string // changed, deleted
	at   time.Time
	pod  kubeapi.Pod
}

// simPod is a pod and what its processes do.
type simPod struct {
	kubeapi.Pod
	stops   time.Duration // from SIGTERM to its own end; never is for ever
	twin    twin
	twinUp  time.Duration // from the twin's creation to its being ready
	gone    bool
	end     End
	endedAt time.Time
	toldAt  time.Time // SIGTERM
	given   time.Duration
	timers  []*time.Timer
	killing *time.Timer
}

const never = time.Duration(-1)

// twin is what replaces a pod that goes.
type twin int

const (
	noTwin   twin = iota
	newName       // at once, as a ReplicaSet does
	sameName      // once the object is gone, as a StatefulSet does
)

type simBudget struct {
	namespace, name string
	labels          map[string]string // nil selects all
	healthy         int32             // how many have to be
	expected        int32
	always          bool // unhealthyPodEvictionPolicy: AlwaysAllow
	version         int
	disrupted       map[string]any // pods that an eviction was allowed for and the controller has not counted yet
}

func newSim() *sim {
	return &sim{
		latency: 5 * time.Millisecond, controlling: 10 * time.Millisecond, pods: map[string]*simPod{}, changed: make(chan struct{}),
		calls: map[string]int{}, inFlight: map[string]int{},
	}
}

// simulate runs a test in virtual time. Goroutines that outlive it fail it.
func simulate(t *testing.T, test func(t *testing.T, s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newSim()) })
}

// simulated returns a test in virtual time, for t.Run.
func simulated(test func(t *testing.T, s *sim)) func(t *testing.T) {
	return func(t *testing.T) { simulate(t, test) }
}

// change is something to make a pod special.
type change func(*simPod)

func grace(d time.Duration) change {
	return func(p *simPod) { p.Spec.TerminationGracePeriodSeconds = ptr(int64(d / time.Second)) }
}
func stopsIn(d time.Duration) change { return func(p *simPod) { p.stops = d } }
func priority(n int32) change        { return func(p *simPod) { p.Spec.Priority = &n } }
func label(k, v string) change       { return func(p *simPod) { p.Labels = map[string]string{k: v} } }

func annotation(k, v string) change {
	return func(p *simPod) { p.Annotations = map[string]string{k: v} }
}
func phase(s string) change      { return func(p *simPod) { p.Status.Phase = s } }
func on(n string) change         { return func(p *simPod) { p.Spec.NodeName = n } }
func in(namespace string) change { return func(p *simPod) { p.Namespace = namespace } }

func twinned(w twin, up time.Duration) change { return func(p *simPod) { p.twin, p.twinUp = w, up } }

func ownedBy(kind string) change {
	return func(p *simPod) {
		p.OwnerReferences = []kubeapi.OwnerReference{{Kind: kind, Name: "owner", UID: "owner", Controller: ptr(true)}}
	}
}
func unowned(p *simPod) { p.OwnerReferences = nil }
func notReady(p *simPod) {
	p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "False"}}
}

func emptyDir(p *simPod) {
	p.Spec.Volumes = []kubeapi.Volume{{Name: "scratch", EmptyDir: &kubeapi.EmptyDirVolume{}}}
}

// deleted makes the pod terminating since some time.
func deleted(ago, grace time.Duration) change {
	return func(p *simPod) {
		p.DeletionTimestamp = ptr(time.Now().Add(grace - ago).Truncate(time.Second))
		p.DeletionGracePeriodSeconds = ptr(int64(grace / time.Second))
	}
}

func ptr[T any](v T) *T { return &v }

// pod adds a pod of a ReplicaSet in namespace "shop" that stops two seconds after SIGTERM.
func (s *sim) pod(name string, changes ...change) *simPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &simPod{stops: 2 * time.Second}
	p.Name, p.Namespace, p.CreationTimestamp = name, "shop", time.Now()
	p.Spec.NodeName = node
	p.Status.Phase = "Running"
	p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}}
	ownedBy("ReplicaSet")(p)
	for _, c := range changes {
		c(p)
	}
	s.add(p)
	return p
}

// podsNamed adds n pods with the name format for 0 to n-1.
func (s *sim) podsNamed(n int, format string, changes ...change) (pods []*simPod) {
	for i := range n {
		pods = append(pods, s.pod(fmt.Sprintf(format, i), changes...))
	}
	return pods
}

// blockedPod adds a pod and a PDB of the same name, which does not allow its eviction.
func (s *sim) blockedPod(name string, changes ...change) *simPod {
	p := s.pod(name, append([]change{label("app", name)}, changes...)...)
	s.budget(name, 1, 1, map[string]string{"app": name})
	return p
}

// after runs a change of the cluster later.
func (s *sim) after(d time.Duration, change func()) {
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

func (s *sim) add(p *simPod) {
	s.uids++
	p.UID = fmt.Sprintf("uid-%d", s.uids)
	p.ContainerRunning()
	s.pods[p.UID] = p
	if p.DeletionTimestamp != nil {
		p.toldAt = p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
		p.given = p.DeletionTimestamp.Sub(p.toldAt)
		s.kubelet(p, time.Until(*p.DeletionTimestamp))
	}
	s.tell("changed", p)
}

// ContainerRunning gives the pod one container.
func (p *simPod) ContainerRunning() {
	p.Status.ContainerStatuses = []kubeapi.ContainerStatus{{Name: "main"}}
}

func (s *sim) budget(name string, healthy, expected int32, labels map[string]string) *simBudget {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &simBudget{namespace: "shop", name: name, labels: labels, healthy: healthy, expected: expected}
	s.budgets = append(s.budgets, b)
	return b
}

func (b *simBudget) selects(p *simPod) bool {
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

func (p *simPod) ready() bool {
	return p.Status.Phase == "Running" && p.Status.Conditions[0].Status == "True" && p.DeletionTimestamp == nil && !p.gone
}

func (s *sim) healthyUnder(b *simBudget) (n int32) {
	for _, p := range s.pods {
		if b.selects(p) && p.ready() {
			n++
		}
	}
	return n
}

func (s *sim) tell(kind string, p *simPod) {
	s.events = append(s.events, event{kind, time.Now(), p.snapshot()})
	s.shout()
}

// shout wakes whoever watches.
func (s *sim) shout() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// snapshot shares nothing that changes.
func (p *simPod) snapshot() kubeapi.Pod {
	c := p.Pod
	c.Labels, c.Annotations = maps.Clone(p.Labels), maps.Clone(p.Annotations)
	c.Status.ContainerStatuses = slices.Clone(p.Status.ContainerStatuses)
	c.Status.Conditions = slices.Clone(p.Status.Conditions)
	return c
}

// update changes a pod from outside.
func (s *sim) update(p *simPod, c change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c(p)
	s.tell("changed", p)
}

func (s *sim) named(namespace, name string) *simPod {
	for _, p := range s.pods {
		if p.Namespace == namespace && p.Name == name && !p.gone {
			return p
		}
	}
	return nil
}

// Evict implements API.
func (s *sim) Evict(ctx context.Context, r kubeapi.Removal) error {
	return s.serve(ctx, "evict", r, s.evict)
}

// DeletePod implements API.
func (s *sim) DeletePod(ctx context.Context, r kubeapi.Removal) error {
	return s.serve(ctx, "delete", r, func(r kubeapi.Removal) (bool, error) {
		p := s.named(r.Namespace, r.Name)
		if p == nil {
			return false, notFound("pods", r.Name)
		}
		return s.remove(p, r)
	})
}

// SetDisruptionTarget implements API.
func (s *sim) SetDisruptionTarget(ctx context.Context, c kubeapi.Disruption) error {
	r := kubeapi.Removal{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	return s.serve(ctx, "condition", r, func(r kubeapi.Removal) (bool, error) {
		p := s.named(r.Namespace, r.Name)
		switch {
		case p == nil:
			return false, notFound("pods", r.Name)
		case p.UID != r.UID:
			return false, &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: "the UID in the precondition does not match"}
		}
		p.Status.Conditions = append(slices.Clone(p.Status.Conditions),
			kubeapi.Condition{Type: disruptionTarget, Status: "True", Reason: c.Reason})
		s.tell("changed", p)
		return true, nil
	})
}

func (s *sim) serve(ctx context.Context, verb string, r kubeapi.Removal, do func(kubeapi.Removal) (bool, error)) error {
	s.mu.Lock()
	c := call{verb, r, s.calls[verb]}
	s.calls[verb]++
	if verb != "condition" {
		s.inFlight[verb]++
		s.most = max(s.most, s.inFlight[verb])
		defer s.finished(verb)
	}
	began := time.Now()
	s.mu.Unlock()

	took := s.latency
	if verb == "evict" {
		took += s.queued
	}
	arrived := elapsed.Sleep(ctx, took)
	if verb == "evict" && s.counting > 0 {
		if err := s.count(ctx, r); err != nil {
			do = func(kubeapi.Removal) (bool, error) { return false, err }
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	var f *fault
	if s.fault != nil {
		f = s.fault(c)
	}
	if !arrived {
		s.requests = append(s.requests, request{verb, r, began, ctx.Err(), false})
		return ctx.Err()
	}
	if f != nil && (f.hang || f.takes > 0) {
		s.mu.Unlock()
		wait, answer := f.takes, f.err
		if f.hang {
			wait = never
		}
		if !waited(ctx, wait) {
			answer = ctx.Err()
		}
		s.mu.Lock()
		f = &fault{err: answer, worked: f.worked}
	}
	var worked bool
	var err error
	if f == nil || f.worked {
		worked, err = do(r)
	}
	if f != nil && err == nil {
		err = f.err
	}
	s.requests = append(s.requests, request{verb, r, began, err, worked})
	return err
}

func (s *sim) finished(verb string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[verb]--
}

// waited reports whether so much time passed before ctx ended; never does not pass.
func waited(ctx context.Context, d time.Duration) bool {
	if d == never {
		<-ctx.Done()
		return false
	}
	return elapsed.Sleep(ctx, d)
}

// count writes an eviction into its budget, and tries again after half a second when somebody else did meanwhile.
func (s *sim) count(ctx context.Context, r kubeapi.Removal) error {
	const attempts, pause = 20, 500 * time.Millisecond
	for range attempts {
		s.mu.Lock()
		var over *simBudget
		if p := s.named(r.Namespace, r.Name); p != nil {
			if i := slices.IndexFunc(s.budgets, func(b *simBudget) bool { return b.selects(p) }); i >= 0 {
				over = s.budgets[i]
			}
		}
		if over == nil {
			s.mu.Unlock()
			return nil
		}
		read := over.version
		s.mu.Unlock()
		if !elapsed.Sleep(ctx, s.counting) {
			return ctx.Err()
		}
		if s.write(over, read) {
			return nil
		}
		if !elapsed.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
	return &kubeapi.StatusError{Code: 504, Reason: "Timeout", Message: "couldn't update PodDisruptionBudget due to conflicts"}
}

// write reports whether the budget still had the version read, and gives it the next.
func (s *sim) write(b *simBudget, read int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.version != read {
		s.conflicts++
		return false
	}
	b.version++
	return true
}

func (s *sim) evict(r kubeapi.Removal) (bool, error) {
	p := s.named(r.Namespace, r.Name)
	if p == nil {
		return false, notFound("pods", r.Name)
	}
	if exempt(&p.Pod) || p.DeletionTimestamp != nil {
		return s.removeEvicted(p, r)
	}
	var over []*simBudget
	for _, b := range s.budgets {
		if b.selects(p) {
			over = append(over, b)
		}
	}
	if len(over) > 1 {
		return false, &kubeapi.StatusError{Code: 500, Message: "This pod has more than one PodDisruptionBudget, " +
			"which the eviction subresource does not support."}
	}
	if len(over) == 1 {
		if err := s.ask(over[0], p); err != nil {
			return false, err
		}
	}
	return s.removeEvicted(p, r)
}

func (s *sim) removeEvicted(p *simPod, r kubeapi.Removal) (bool, error) {
	if r.UID == p.UID && !r.DryRun && !wasEvicted(&p.Pod) {
		p.Status.Conditions = append(slices.Clone(p.Status.Conditions),
			kubeapi.Condition{Type: "DisruptionTarget", Status: "True", Reason: "EvictionByEvictionAPI"})
	}
	return s.remove(p, r)
}

// ask is the budget's part of an eviction.
func (s *sim) ask(b *simBudget, p *simPod) error {
	has := s.healthyUnder(b)
	if !p.ready() && (b.always || has >= b.healthy && b.healthy > 0) {
		return nil
	}
	if has > b.healthy {
		s.enter(b, p)
		return nil
	}
	return denial(fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.name, b.healthy, has))
}

// enter is what an eviction writes into its budget, and the disruption controller after it.
func (s *sim) enter(b *simBudget, p *simPod) {
	if b.disrupted == nil {
		b.disrupted = map[string]any{}
	}
	b.disrupted[p.Name] = p.UID
	s.shout()
	s.after(s.controlling, func() {
		delete(b.disrupted, p.Name)
		b.version++
		s.shout()
	})
}

func denial(message string) error {
	return &kubeapi.StatusError{
		Code: 429, Reason: "TooManyRequests",
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Causes:  []kubeapi.Cause{{Reason: "DisruptionBudget", Message: message}},
	}
}

func notFound(kind, name string) error {
	return &kubeapi.StatusError{Code: 404, Reason: "NotFound", Message: fmt.Sprintf("%s %q not found", kind, name)}
}

func forbidden(message string) error {
	return &kubeapi.StatusError{Code: 403, Reason: "Forbidden", Message: message}
}

// remove is BeforeDelete of the API server, and what the kubelet makes of it.
func (s *sim) remove(p *simPod, r kubeapi.Removal) (bool, error) {
	if r.UID != "" && r.UID != p.UID {
		return false, &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: fmt.Sprintf(
			"the UID in the precondition (%s) does not match the UID in record (%s)", r.UID, p.UID)}
	}
	if r.DryRun {
		return false, nil
	}
	period := int64(30)
	switch {
	case r.Grace != nil:
		period = *r.Grace
	case p.DeletionTimestamp != nil:
		return false, nil
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if period < 0 {
		period = 1
	}
	now := time.Now()
	if p.DeletionTimestamp != nil { // it can only be shortened, counted from the first deletion
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
		p.toldAt = now.Truncate(time.Second)
		p.DeletionTimestamp = ptr(now.Add(time.Duration(period) * time.Second).Truncate(time.Second))
		p.DeletionGracePeriodSeconds = &period
		if p.twin == newName {
			s.replace(p, p.Name+"-new")
		}
	}
	p.given = p.DeletionTimestamp.Sub(p.toldAt)
	if period == 0 {
		s.vanish(p)
		return true, nil
	}
	s.tell("changed", p)
	s.kubelet(p, time.Duration(period)*time.Second)
	return true, nil
}

// kubelet stops the pod's processes; called again, it kills them sooner.
func (s *sim) kubelet(p *simPod, kill time.Duration) {
	if p.killing == nil && p.stops != never {
		p.timers = append(p.timers, time.AfterFunc(p.stops, func() { s.stopped(p, 0) }))
	}
	if p.killing != nil {
		p.killing.Stop()
	}
	p.killing = time.AfterFunc(max(time.Second, kill), func() { s.stopped(p, killedExitCode) })
	p.timers = append(p.timers, p.killing)
}

func (s *sim) stopped(p *simPod, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone || p.end != StillThere || (s.off && p.Spec.NodeName == node) {
		return
	}
	p.end, p.endedAt = Stopped, time.Now()
	if code == killedExitCode {
		p.end = Killed
	}
	p.exit(code, time.Now())
	s.tell("changed", p)
	s.after(20*time.Millisecond, func() { s.vanish(p) })
}

func (p *simPod) exit(code int, at time.Time) {
	c := kubeapi.ContainerStatus{Name: "main"}
	c.State.Terminated = &struct {
		ExitCode   int       `json:"exitCode"`
		Reason     string    `json:"reason,omitempty"`
		FinishedAt time.Time `json:"finishedAt,omitzero"`
	}{ExitCode: code, FinishedAt: at.Truncate(time.Second)}
	p.Status.ContainerStatuses = []kubeapi.ContainerStatus{c}
}

func (s *sim) vanish(p *simPod) {
	if p.gone {
		return
	}
	p.gone = true
	if p.end == StillThere {
		p.end, p.endedAt = Vanished, time.Now()
	}
	s.tell("deleted", p)
	if p.twin == sameName {
		s.replace(p, p.Name)
	}
}

// replace starts the pod's twin on another node; its readiness may open a budget.
func (s *sim) replace(p *simPod, name string) {
	q := &simPod{stops: p.stops, twin: p.twin, twinUp: p.twinUp}
	q.Pod = p.snapshot()
	q.Name, q.Spec.NodeName, q.DeletionTimestamp, q.DeletionGracePeriodSeconds = name, elsewhere, nil, nil
	q.Status = kubeapi.PodStatus{Phase: "Pending", Conditions: []kubeapi.Condition{{Type: "Ready", Status: "False"}}}
	s.add(q)
	s.after(p.twinUp, func() {
		q.Status.Phase = "Running"
		q.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}}
		s.tell("changed", q)
	})
}

// machineOff ends the node's kubelet: what is left there is lost.
func (s *sim) machineOff(at time.Time) {
	s.after(time.Until(at), func() { s.off = true })
}

// FollowBudgets implements API: a list, and then an event for each budget that another status can be read from.
func (s *sim) FollowBudgets(
	ctx context.Context, namespace string, h kubeapi.Handler[kubeapi.PodDisruptionBudget],
) error {
	var told map[string]kubeapi.PodDisruptionBudget
	for ctx.Err() == nil {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if told == nil {
			all, err := s.listBudgets(ctx, namespace)
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
		all := s.budgetsOf(namespace)
		s.mu.Unlock()
		if !elapsed.Sleep(ctx, s.lag) {
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

func (s *sim) listBudgets(ctx context.Context, namespace string) (map[string]kubeapi.PodDisruptionBudget, error) {
	if !elapsed.Sleep(ctx, s.latency) {
		return nil, ctx.Err()
	}
	if err := s.refuses(ctx, call{verb: "budgets", Removal: kubeapi.Removal{Namespace: namespace}}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budgetsOf(namespace), nil
}

// refuses returns the error of a read that has one, after the time that it takes.
func (s *sim) refuses(ctx context.Context, c call) error {
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
	wait := f.takes
	if f.hang {
		wait = never
	}
	if wait != 0 && !waited(bounded, wait) {
		return bounded.Err()
	}
	return f.err
}

// budgetsOf renders a namespace's budgets; s.mu is held.
func (s *sim) budgetsOf(namespace string) map[string]kubeapi.PodDisruptionBudget {
	all := map[string]kubeapi.PodDisruptionBudget{}
	for _, b := range s.budgets {
		if b.namespace != namespace {
			continue
		}
		var o kubeapi.PodDisruptionBudget
		o.Name, o.Namespace = b.name, b.namespace
		o.Spec.Selector = &kubeapi.LabelSelector{MatchLabels: b.labels}
		o.Status.CurrentHealthy = s.healthyUnder(b)
		o.Status.DesiredHealthy, o.Status.ExpectedPods = b.healthy, b.expected
		o.Status.DisruptionsAllowed = max(0, o.Status.CurrentHealthy-b.healthy)
		o.Status.DisruptedPods = maps.Clone(b.disrupted)
		all[b.name] = o
	}
	return all
}

// FollowPodsOn implements API as kubeapi.Follow does: one list, then watches, and a list again where one is too old.
func (s *sim) FollowPodsOn(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod]) error {
	next := -1
	for ctx.Err() == nil {
		err := s.followOnce(ctx, node, h, &next)
		if err != nil && ctx.Err() == nil && h.Failed != nil {
			h.Failed(err)
		}
		elapsed.Sleep(ctx, 100*time.Millisecond)
	}
	return ctx.Err()
}

func (s *sim) followOnce(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod], next *int) error {
	if *next < 0 {
		if !elapsed.Sleep(ctx, s.latency) {
			return ctx.Err()
		}
		pods, at, err := s.list(ctx, node)
		if err != nil {
			return err
		}
		if s.behind > 0 {
			pods, at = s.cached(node, at-s.behind)
			s.behind = 0
		}
		h.Replaced(pods)
		*next = at
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	n := s.watches
	s.watches++
	s.mu.Unlock()
	relist := false
	if s.watchLives != nil {
		var lives time.Duration
		if lives, relist = s.watchLives(n); lives > 0 {
			var done context.CancelFunc
			ctx, done = context.WithTimeout(ctx, lives)
			defer done()
		}
	}
	s.watch(ctx, node, h, next)
	if relist {
		*next = -1
	}
	return errors.New("watch broke")
}

func (s *sim) list(ctx context.Context, node string) ([]kubeapi.Pod, int, error) {
	if err := s.refuses(ctx, call{verb: "list"}); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []kubeapi.Pod
	for _, p := range s.pods {
		if p.Spec.NodeName == node && !p.gone {
			pods = append(pods, p.snapshot())
		}
	}
	return pods, len(s.events), ctx.Err()
}

// ListPodsOn implements API.
func (s *sim) ListPodsOn(ctx context.Context, node string) ([]kubeapi.Pod, error) {
	if !elapsed.Sleep(ctx, s.latency) {
		return nil, ctx.Err()
	}
	pods, _, err := s.list(ctx, node)
	return pods, err
}

// cached is what a cache answers that has seen so many events, and how many these are.
func (s *sim) cached(node string, seen int) ([]kubeapi.Pod, int) {
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

func (s *sim) watch(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod], next *int) {
	for {
		s.mu.Lock()
		changed := s.changed
		more := s.events[*next:]
		s.mu.Unlock()
		for _, e := range more {
			s.mu.Lock()
			at := latest(e.at.Add(s.lag), s.silent)
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

// asked returns the requests of a verb for a pod; empty and nil are any.
func (s *sim) asked(verb string, p *simPod) (found []request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if (verb == "" || r.verb == verb) && (p == nil || r.removal.UID == p.UID) {
			found = append(found, r)
		}
	}
	return found
}

func (s *sim) wantRequests(t *testing.T, verb string, want int) {
	t.Helper()
	if n := len(s.asked(verb, nil)); n != want {
		t.Errorf("%d requests of %s, want %d", n, verb, want)
	}
}

func (s *sim) wantRequestsUpTo(t *testing.T, verb string, most int) {
	t.Helper()
	if n := len(s.asked(verb, nil)); n > most {
		t.Errorf("%d requests of %s, want up to %d", n, verb, most)
	}
}

// bound returns how many of the node's pods are not gone.
func (s *sim) bound() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.left())
}

// left returns them; s.mu is held.
func (s *sim) left() (pods []*simPod) {
	for _, p := range s.pods {
		if p.Spec.NodeName == node && !p.gone {
			pods = append(pods, p)
		}
	}
	return pods
}
