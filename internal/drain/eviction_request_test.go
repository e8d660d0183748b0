package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// responder is the behavior of one responder. Times count from its activation.
type responder struct {
	answersAfter time.Duration // its first heartbeat; never is a responder that hangs
	expects      time.Duration // its expectedCompletionTime; 0 sets none
	heartbeat    time.Duration // between heartbeats; 0 writes only one
	deletesAfter time.Duration // deletes the pod; 0 does not
	endsAfter    time.Duration // sets completionTime; 0 never
}

// lifecycleSim simulates the API group lifecycle.k8s.io, its controller, and the responders of the pods.
type lifecycleSim struct {
	sim          *sim
	listErr      error
	noController bool
	pause        time.Duration // of the controller between two responders
	failsAfter   time.Duration // the controller sets Failed; 0 never
	responders   map[string]responder
	// fault may replace the answer to a request: its error, and whether it took effect.
	fault func(verb string) (err error, tookEffect bool)

	mu        sync.Mutex
	versions  int
	requests  map[string]kubeapi.EvictionRequest // by name
	evictions map[string]kubeapi.Eviction        // by the pod's UID
	timers    map[string][]*time.Timer           // of the responders, by the pod's UID
	changed   chan struct{}
	calls     []string // verb and pod, with the seconds since the start
	began     time.Time
}

func newLifecycleSim(s *sim, responders map[string]responder) *lifecycleSim {
	return &lifecycleSim{
		sim: s, responders: responders, requests: map[string]kubeapi.EvictionRequest{}, evictions: map[string]kubeapi.Eviction{},
		timers: map[string][]*time.Timer{}, changed: make(chan struct{}), began: time.Now(),
	}
}

// withResponders names responders, the first one with the highest priority.
func withResponders(names ...string) podOption {
	return func(p *simPod) {
		for i, n := range names {
			r := kubeapi.EvictionResponder{Name: n, Priority: int32(10000 - i)}
			p.Spec.EvictionResponders = append([]kubeapi.EvictionResponder{r}, p.Spec.EvictionResponders...)
		}
	}
}

func (l *lifecycleSim) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// after runs a change after d, unless the pod's responders were stopped before.
func (l *lifecycleSim) after(pod string, d time.Duration, change func()) {
	l.timers[pod] = append(l.timers[pod], time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		change()
		l.wake()
	}))
}

func (l *lifecycleSim) stopResponders(pod string) {
	for _, t := range l.timers[pod] {
		t.Stop()
	}
	l.timers[pod] = nil
}

// process is what the controller does with a new request.
func (l *lifecycleSim) process(name string) {
	r, is := l.requests[name]
	if !is || r.Spec.Intent != kubeapi.IntentEviction {
		return
	}
	pod := r.Spec.Target.Pod.UID
	l.setConditions(name, kubeapi.Condition{Type: "Failed", Status: "False", Reason: "AwaitingEviction"})
	if _, is := l.evictions[pod]; is && l.hasOtherRequest(name, pod) {
		return
	}
	e := kubeapi.Eviction{ObjectMeta: kubeapi.ObjectMeta{Name: "pod-1-" + r.Spec.Target.Pod.Name, Namespace: r.Namespace, UID: "e-" + r.UID, CreationTimestamp: time.Now()}}
	e.Spec.Target = r.Spec.Target
	for _, n := range l.sim.respondersOf(pod) {
		e.Status.TargetResponders = append(e.Status.TargetResponders, kubeapi.TargetResponder{Name: n.Name, Priority: n.Priority, State: kubeapi.ResponderInactive})
		e.Status.Responders = append(e.Status.Responders, kubeapi.ResponderStatus{Name: n.Name})
	}
	evictor := kubeapi.TargetResponder{Name: kubeapi.ImperativeEvictor, Priority: 100, State: kubeapi.ResponderInactive}
	e.Status.TargetResponders = append(e.Status.TargetResponders, evictor)
	e.Status.Responders = append(e.Status.Responders, kubeapi.ResponderStatus{Name: evictor.Name})
	l.evictions[pod] = e
	l.activateNext(pod)
	if l.failsAfter > 0 {
		l.after(pod, l.failsAfter, func() {
			l.setConditions(name, kubeapi.Condition{Type: "Failed", Status: "True", Reason: "NoFurtherResponder", Message: "all gave up"})
		})
	}
}

func (l *lifecycleSim) setConditions(name string, c kubeapi.Condition) {
	r := l.requests[name]
	r.Status = kubeapi.EvictionRequestStatus{Conditions: []kubeapi.Condition{c}, ObservedGeneration: 1}
	l.requests[name] = r
	l.wake()
}

// update changes the state and the status of one responder.
func (l *lifecycleSim) update(pod, name, state string, change func(*kubeapi.ResponderStatus)) {
	e := l.evictions[pod]
	e.Status.TargetResponders, e.Status.Responders = slices.Clone(e.Status.TargetResponders), slices.Clone(e.Status.Responders)
	for i := range e.Status.TargetResponders {
		if e.Status.TargetResponders[i].Name == name {
			e.Status.TargetResponders[i].State = state
			change(&e.Status.Responders[i])
		}
	}
	l.evictions[pod] = e
	l.wake()
}

// activateNext activates the first responder that was not active yet, and starts it.
func (l *lifecycleSim) activateNext(pod string) {
	var name string
	for _, t := range l.evictions[pod].Status.TargetResponders {
		if t.State == kubeapi.ResponderInactive {
			name = t.Name
			break
		}
	}
	l.update(pod, name, kubeapi.ResponderActive, func(s *kubeapi.ResponderStatus) { s.StartTime = time.Now() })
	r, is := l.responders[name]
	if !is {
		return // the evictor of Kubernetes is slow
	}
	if r.answersAfter != never {
		answer := func(s *kubeapi.ResponderStatus) {
			s.HeartbeatTime, s.Message = time.Now(), "moving the leader"
			if r.expects > 0 {
				s.ExpectedCompletionTime = s.StartTime.Add(r.expects)
			}
		}
		var beat func()
		beat = func() {
			l.update(pod, name, kubeapi.ResponderActive, answer)
			if r.heartbeat > 0 {
				l.after(pod, r.heartbeat, beat)
			}
		}
		l.after(pod, r.answersAfter, beat)
	}
	if r.deletesAfter > 0 {
		l.after(pod, r.deletesAfter, func() { l.sim.deleteAsResponder(pod) })
	}
	if r.endsAfter > 0 {
		l.after(pod, r.endsAfter, func() {
			l.stopResponders(pod)
			l.update(pod, name, kubeapi.ResponderCompleted, func(s *kubeapi.ResponderStatus) { s.CompletionTime = time.Now() })
			if l.pause == 0 {
				l.activateNext(pod)
				return
			}
			l.after(pod, l.pause, func() { l.activateNext(pod) })
		})
	}
}

func (s *sim) respondersOf(pod string) []kubeapi.EvictionResponder {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.pods[pod].Spec.EvictionResponders)
	slices.SortFunc(all, func(a, b kubeapi.EvictionResponder) int { return int(b.Priority - a.Priority) })
	return all
}

func (s *sim) deleteAsResponder(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[pod]; !p.gone {
		_, _ = s.deletePod(p, kubeapi.PodRemoval{UID: pod})
	}
}

// serve answers one writing request.
func (l *lifecycleSim) serve(ctx context.Context, verb, name string, do func() error) error {
	l.mu.Lock()
	l.calls = append(l.calls, fmt.Sprintf("%.0fs %s %s", time.Since(l.began).Seconds(), verb, strings.TrimPrefix(name, "slipway-drain-")))
	var err error
	tookEffect := true
	if l.fault != nil {
		err, tookEffect = l.fault(verb)
	}
	l.mu.Unlock()
	arrived := elapsed.Sleep(ctx, l.sim.latency)
	l.mu.Lock()
	defer l.mu.Unlock()
	if tookEffect || err == nil {
		if done := do(); err == nil {
			err = done
		}
		l.wake()
	}
	if !arrived {
		return ctx.Err()
	}
	return err
}

func (l *lifecycleSim) CreateEvictionRequest(ctx context.Context, r kubeapi.EvictionRequest, dryRun bool) error {
	verb := "create"
	if dryRun {
		verb = "dry-run"
	}
	return l.serve(ctx, verb, r.Name, func() error {
		if _, exists := l.requests[r.Name]; exists {
			return &kubeapi.StatusError{Code: 409, Reason: "AlreadyExists"}
		}
		if dryRun {
			return l.listErr
		}
		l.versions++
		r.UID = fmt.Sprint(l.versions)
		l.requests[r.Name] = r
		if !l.noController {
			l.after(r.Spec.Target.Pod.UID, l.sim.controllerDelay, func() { l.process(r.Name) })
		}
		return nil
	})
}

// hasOtherRequest reports whether another client asks for the eviction of the pod, too.
func (l *lifecycleSim) hasOtherRequest(name, pod string) bool {
	for other, r := range l.requests {
		if other != name && r.Spec.Target.Pod.UID == pod && r.Spec.Intent == kubeapi.IntentEviction {
			return true
		}
	}
	return false
}

// cancel is what the controller does when no request for the pod is left.
func (l *lifecycleSim) cancel(name, pod string) {
	if l.hasOtherRequest(name, pod) {
		return
	}
	l.stopResponders(pod)
	if _, is := l.evictions[pod]; !is {
		return
	}
	l.after(pod, l.sim.controllerDelay, func() {
		e := l.evictions[pod]
		e.Status.Conditions = []kubeapi.Condition{{Type: "Failed", Status: "True", Reason: "CanceledDueToNoRequesters"}}
		l.evictions[pod] = e
		for _, t := range e.Status.TargetResponders {
			if t.State == kubeapi.ResponderActive {
				l.update(pod, t.Name, kubeapi.ResponderCanceled, func(*kubeapi.ResponderStatus) {})
			}
		}
		if _, is := l.requests[name]; is {
			l.setConditions(name, kubeapi.Condition{Type: "Failed", Status: "True", Reason: "CanceledDueToNoRequesters"})
		}
	})
}

func (l *lifecycleSim) SetEvictionRequestIntent(ctx context.Context, _, name, intent string) error {
	return l.serve(ctx, strings.ToLower(intent), name, func() error {
		r, is := l.requests[name]
		if !is {
			return newNotFound("evictionrequests", name)
		}
		r.Spec.Intent = intent
		l.requests[name] = r
		l.cancel(name, r.Spec.Target.Pod.UID)
		return nil
	})
}

func (l *lifecycleSim) DeleteEvictionRequest(ctx context.Context, _, name string) error {
	return l.serve(ctx, "delete", name, func() error { return l.delete(name) })
}

// delete deletes a request. l.mu must be locked.
func (l *lifecycleSim) delete(name string) error {
	r, is := l.requests[name]
	if !is {
		return newNotFound("evictionrequests", name)
	}
	delete(l.requests, name)
	if r.Spec.Intent == kubeapi.IntentEviction {
		l.cancel(name, r.Spec.Target.Pod.UID)
	}
	l.wake()
	return nil
}

func (l *lifecycleSim) ListEvictionRequests(ctx context.Context, selector string) ([]kubeapi.EvictionRequest, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, err := l.list(selector)
	return slices.Collect(maps.Values(all)), errors.Join(ctx.Err(), err)
}

func (l *lifecycleSim) list(selector string) (map[string]kubeapi.EvictionRequest, error) {
	all := map[string]kubeapi.EvictionRequest{}
	for name, r := range l.requests {
		if selectRequests(r.Labels[requestClientLabel], r.Labels[requestNodeLabel]) == selector {
			all[name] = r
		}
	}
	return all, l.listErr
}

func (l *lifecycleSim) WatchEvictionRequests(ctx context.Context, selector string, h kubeapi.Handler[kubeapi.EvictionRequest]) error {
	var collector sync.WaitGroup
	defer collector.Wait()
	collector.Go(func() { l.collectGarbage(ctx) })
	return watchSim(ctx, l, h, func() (map[string]kubeapi.EvictionRequest, error) { return l.list(selector) })
}

// collectGarbage deletes the requests of pods that are gone, until ctx ends.
func (l *lifecycleSim) collectGarbage(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		l.sim.mu.Lock()
		changed := l.sim.changed
		for name, r := range l.requests {
			if len(r.OwnerReferences) == 1 && l.sim.pods[r.OwnerReferences[0].UID].gone {
				delete(l.requests, name)
				l.wake()
			}
		}
		l.sim.mu.Unlock()
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

func (l *lifecycleSim) WatchEvictions(ctx context.Context, namespace, _ string, h kubeapi.Handler[kubeapi.Eviction]) error {
	return watchSim(ctx, l, h, func() (map[string]kubeapi.Eviction, error) {
		all := map[string]kubeapi.Eviction{}
		for pod, e := range l.evictions {
			if e.Namespace == namespace {
				all[pod] = e
			}
		}
		return all, nil
	})
}

// watchSim lists and watches objects: a list, and then an event for each changed object.
func watchSim[T any](ctx context.Context, l *lifecycleSim, h kubeapi.Handler[T], list func() (map[string]T, error)) error {
	var told map[string]T
	for elapsed.Sleep(ctx, l.sim.latency) {
		l.mu.Lock()
		all, err := list()
		changed := l.changed
		l.mu.Unlock()
		if err != nil {
			h.Failed(err)
			elapsed.Sleep(ctx, time.Second)
			continue
		}
		if told == nil {
			h.Replaced(slices.Collect(maps.Values(all)))
		} else {
			for name, o := range all {
				if !reflect.DeepEqual(told[name], o) {
					h.Changed(o)
				}
			}
		}
		for name, o := range told {
			if _, there := all[name]; !there && h.Deleted != nil {
				h.Deleted(o)
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

// checkNothingLeft checks that no request is left, and that no responder still works on a pod that stays.
func (l *lifecycleSim) checkNothingLeft(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second) // for the controller
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.requests) > 0 {
		t.Errorf("requests are left: %v after %v", slices.Collect(maps.Keys(l.requests)), l.calls)
	}
	for pod, e := range l.evictions {
		l.sim.mu.Lock()
		stays := !l.sim.pods[pod].gone
		l.sim.mu.Unlock()
		for _, s := range e.Status.TargetResponders {
			if stays && s.State == kubeapi.ResponderActive {
				t.Errorf("%s still works on %s", s.Name, e.Name)
			}
		}
		l.stopResponders(pod)
	}
}

func (l *lifecycleSim) countCalls(verb string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if strings.Contains(c, " "+verb+" ") {
			n++
		}
	}
	return n
}

var errUnserved = &kubeapi.StatusError{Code: 404, Message: "404 page not found"}

func TestDrainAsksRespondersAndFallsBackInTime(t *testing.T) {
	const a, b = "acme.io/db", "acme.io/mesh"
	always := TimeLimits{}
	for _, c := range []struct {
		name       string
		responders map[string]responder
		change     func(*lifecycleSim)
		limits     TimeLimits    // relative to the start: Deadline and TimeoutAt are added
		deadline   time.Duration // 0 is none
		timeout    time.Duration
		fallback   EvictionFallback
		// at is when the pod leaves: by the responder, or by an eviction.
		at time.Duration
	}{
		{name: "answers and deletes", responders: map[string]responder{a: {answersAfter: time.Second, expects: time.Minute, deletesAfter: 40 * time.Second}}, at: 40 * time.Second},
		{name: "takes hours with heartbeats", responders: map[string]responder{a: {answersAfter: 5 * time.Second, heartbeat: 3 * time.Minute, deletesAfter: 3 * time.Hour}}, at: 3 * time.Hour},
		{name: "hangs", responders: map[string]responder{a: {answersAfter: never}}, fallback: NoResponder, at: 30 * time.Second},
		{name: "vanishes after its answer", responders: map[string]responder{a: {answersAfter: time.Second}}, fallback: ResponderSilent, at: 21*time.Minute + time.Second},
		{name: "ends without deletion", responders: map[string]responder{a: {answersAfter: time.Second, endsAfter: 20 * time.Second}}, fallback: RespondersFinished, at: 20 * time.Second},
		{name: "the second deletes", responders: map[string]responder{a: {answersAfter: time.Second, endsAfter: 20 * time.Second}, b: {answersAfter: 25 * time.Second, deletesAfter: 50 * time.Second}}, at: 70 * time.Second},
		{
			name: "the second starts late and deletes", change: func(l *lifecycleSim) { l.pause = 5 * time.Second }, at: 95 * time.Second,
			responders: map[string]responder{a: {answersAfter: time.Second, endsAfter: 40 * time.Second}, b: {answersAfter: time.Second, deletesAfter: 50 * time.Second}},
		},
		{name: "the second hangs", responders: map[string]responder{a: {answersAfter: time.Second, endsAfter: 20 * time.Second}, b: {answersAfter: never}}, fallback: NoResponder, at: 50 * time.Second},
		{name: "the request fails", responders: map[string]responder{a: {answersAfter: time.Second}}, change: func(l *lifecycleSim) { l.failsAfter = time.Minute }, fallback: RequestFailed, at: time.Minute},
		{name: "no controller", change: func(l *lifecycleSim) { l.noController = true }, fallback: NoController, at: 10 * time.Second},
		{name: "not served", change: func(l *lifecycleSim) { l.listErr = errUnserved }, fallback: RequestsNotServed},
		{name: "forbidden", change: func(l *lifecycleSim) { l.listErr = newForbidden("cannot list evictionrequests") }, fallback: RequestsForbidden},
		{name: "the API hangs", change: func(l *lifecycleSim) { l.listErr = errors.New("connection refused") }, fallback: NoController, at: 10 * time.Second},
		{
			name: "rejected by a policy", fallback: RequestRejected,
			change: func(l *lifecycleSim) {
				l.fault = func(string) (error, bool) {
					return &kubeapi.StatusError{Code: 422, Reason: "Invalid", Message: "no"}, false
				}
			},
		},
		{name: "deadline in 2 minutes", responders: map[string]responder{a: {answersAfter: time.Second, heartbeat: 20 * time.Second}}, deadline: 2 * time.Minute, fallback: NoTimeForResponders, at: 66750 * time.Millisecond},
		{name: "deadline in 30 s", responders: map[string]responder{a: {answersAfter: time.Second}}, deadline: 30 * time.Second, fallback: NoTimeForResponders, at: 11250 * time.Millisecond},
		{name: "deadline, deleted in time", responders: map[string]responder{a: {answersAfter: time.Second, deletesAfter: time.Minute}}, deadline: 2 * time.Minute, at: time.Minute},
		{name: "timeout in 10 minutes", responders: map[string]responder{a: {answersAfter: time.Second, heartbeat: time.Minute}}, timeout: 10 * time.Minute, fallback: NoTimeForResponders, at: 10*time.Minute - 61*time.Second},
		{name: "no time", responders: map[string]responder{a: {answersAfter: time.Second}}, deadline: 4 * time.Second, fallback: NoTimeForResponders},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			l := newLifecycleSim(s, c.responders)
			if c.change != nil {
				c.change(l)
			}
			names := []string{a}
			if len(c.responders) > 1 {
				names = append(names, b)
			}
			p := s.addPod("db-0", withResponders(names...))
			limits := always
			if c.deadline > 0 {
				limits = deadlineIn(c.deadline)
			}
			if c.timeout > 0 {
				limits.TimeoutAt = time.Now().Add(c.timeout)
			}
			began := time.Now()
			r, err := runDrain(t, s, Options{EvictionRequests: l, TimeLimits: limits})
			must.NoError(t, err)
			answer := r.Pods[0].EvictionRequest
			check.Is(t, c.fallback, answer.Fallback)
			evictions := 0
			if c.fallback != "" {
				evictions = 1
				check.Not(t, answer.FallbackDetail == "", "the fallback has no detail")
			}
			check.Len(t, evictions, s.findRequests("evict", p))
			reportsAnswer := len(answer.Responders) > 0 && answer.Responders[0].Message != ""
			check.Is(t, c.responders[a].answersAfter > 0 && c.name != "no time", reportsAnswer, "the report has the answer")
			took := p.terminatedAt.Sub(began)
			check.Not(t, took < c.at.Truncate(time.Second)-time.Second || took > c.at+time.Second, "the pod was deleted after %s, want %s", took, c.at)
			most := 1
			if c.fallback == RequestsNotServed || c.fallback == RequestsForbidden || c.name == "no time" || c.name == "the API hangs" {
				most = 0
			}
			check.Is(t, most, l.countCalls("create"))
			l.checkNothingLeft(t)
		}))
	}
}

// TestCancelledDrainWithdrawsEvictionRequests cancels a drain at random times, while requests fail in every way.
func TestCancelledDrainWithdrawsEvictionRequests(t *testing.T) {
	for seed := range 300 {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			randomTime := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			s := newSim()
			l := newLifecycleSim(s, map[string]responder{
				"acme.io/a": {answersAfter: randomTime(time.Minute), heartbeat: 20 * time.Second, deletesAfter: randomTime(2 * time.Minute)},
				"acme.io/b": {answersAfter: never, endsAfter: randomTime(time.Minute)},
			})
			faulty := time.Now().Add(randomTime(time.Minute))
			l.fault = func(string) (error, bool) {
				if random.IntN(3) > 0 || time.Now().After(faulty) && random.IntN(10) > 0 {
					return nil, true
				}
				return []error{errors.New("connection reset"), &kubeapi.StatusError{Code: 500}, &kubeapi.StatusError{Code: 429}}[random.IntN(3)], random.IntN(2) == 0
			}
			s.addPods(4, "a-%d", withResponders("acme.io/a"))
			s.addPods(2, "b-%d", withResponders("acme.io/b", "acme.io/a"))
			s.addPods(2, "plain-%d")
			var limits TimeLimits
			if random.IntN(2) == 0 {
				limits = deadlineIn(time.Second + randomTime(3*time.Minute))
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(randomTime(2*time.Minute), cancel)
			_, wait := startDrain(ctx, t, s, Options{EvictionRequests: l, TimeLimits: limits})
			<-ctx.Done()
			ended := time.Now()
			_, _ = wait()
			check.Not(t, time.Since(ended) > 4*time.Second, "seed %d: the drain ended %s after its cancellation", seed, time.Since(ended))
			l.checkNothingLeft(t)
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestCancelledDrainWithdrawsBeforeItDeletes(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second}})
		s.addPod("a", withResponders("acme.io/a"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, wait := startDrain(ctx, t, s, Options{EvictionRequests: l})
		r, err := wait()
		check.Is(t, Cancelled, r.Outcome)
		check.Not(t, err == nil, "no error")
		check.Equal(t, []string{"0s create uid-1", "20s withdrawn uid-1", "20s delete uid-1"}, l.calls)
		check.Is(t, "moving the leader", r.Pods[0].EvictionRequest.Responders[0].Message)
		l.checkNothingLeft(t)
	})
}

func TestProtectedPodLosesItsEvictionRequest(t *testing.T) {
	const excluded = "excluded"
	for name, c := range map[string]struct{ annotation, outcome string }{
		"the drain is refused": {drainability.DoNotEvict, "refused"}, "the drain continues": {excluded, "gave-up"},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: time.Minute}})
			p := s.addPod("a", withResponders("acme.io/a"))
			s.addBlockedPod("b")
			s.changeAfter(10*time.Second, func() {
				withAnnotation(c.annotation, "true")(p)
				s.recordEvent("changed", p)
			})
			r, _ := runDrain(t, s, Options{
				EvictionRequests: l, TimeLimits: TimeLimits{TimeoutAt: time.Now().Add(2 * time.Minute)},
				ShouldDrainPod: func(p kubeapi.Pod) bool { return p.Annotations[excluded] == "" },
			})
			check.Is(t, c.outcome, string(r.Outcome))
			check.Equal(t, []string{"0s create uid-1", "10s withdrawn uid-1", "10s delete uid-1"}, l.calls)
			check.Is(t, false, p.gone, "the responder was not stopped")
			l.checkNothingLeft(t)
		}))
	}
}

func TestDeletedEvictionRequestIsCreatedAgainOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second}})
		s.addPod("a", withResponders("acme.io/a"))
		for _, at := range []time.Duration{10 * time.Second, 20 * time.Second} {
			l.after("other client", at, func() { _ = l.delete(requestName(defaultClient, "uid-1")) })
		}
		r, err := runDrain(t, s, Options{EvictionRequests: l})
		must.NoError(t, err)
		check.Is(t, 2, l.countCalls("create"))
		check.Is(t, RequestDeleted, r.Pods[0].EvictionRequest.Fallback)
		l.checkNothingLeft(t)
	})
}

// TestRestartedDrainTakesOverEvictionRequests kills a drain by dropping its state, and drains again.
func TestRestartedDrainTakesOverEvictionRequests(t *testing.T) {
	for intent, creations := range map[string]int{kubeapi.IntentEviction: 0, kubeapi.IntentWithdrawn: 1} {
		t.Run(intent, simulateFunc(func(t *testing.T, s *sim) {
			l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: 40 * time.Second}})
			p := s.addPod("a", withResponders("acme.io/a"))
			other := s.addPod("b", withResponders("acme.io/a"), onNode(otherNode))
			must.NoError(t, l.CreateEvictionRequest(t.Context(), newEvictionRequest(&p.Pod, defaultClient, node), false))
			must.NoError(t, l.CreateEvictionRequest(t.Context(), newEvictionRequest(&other.Pod, defaultClient, otherNode), false))
			time.Sleep(time.Second)
			if intent == kubeapi.IntentWithdrawn {
				must.NoError(t, l.SetEvictionRequestIntent(t.Context(), p.Namespace, requestName(defaultClient, p.UID), intent))
				time.Sleep(time.Second)
			}
			r, err := runDrain(t, s, Options{EvictionRequests: l})
			must.NoError(t, err)
			check.Is(t, "", r.Pods[0].EvictionRequest.Fallback)
			check.Is(t, 2+creations, l.countCalls("create"))
			must.NoError(t, DeleteEvictionRequests(t.Context(), l, defaultClient, otherNode))
			l.checkNothingLeft(t)
		}))
	}
}

func TestContinuedDrainLeavesEvictionRequestsAtOnce(t *testing.T) {
	for _, cause := range []error{ErrContinued, ErrContinuedLater} {
		t.Run(cause.Error(), simulateFunc(func(t *testing.T, s *sim) { testLeftEvictionRequests(t, s, cause) }))
	}
}

func testLeftEvictionRequests(t *testing.T, s *sim, cause error) {
	t.Helper()
	l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: 40 * time.Second}})
	s.addPod("a", withResponders("acme.io/a"))
	ctx, cancel := context.WithCancelCause(t.Context())
	_, wait := startDrain(ctx, t, s, Options{EvictionRequests: l})
	time.Sleep(20 * time.Second)
	cancel(cause)
	ended := time.Now()
	_, err := wait()
	must.Not(t, !errors.Is(err, cause), "%v", err)
	check.Not(t, time.Since(ended) > 100*time.Millisecond, "the drain ended after %s", time.Since(ended))
	r, err := runDrain(t, s, Options{EvictionRequests: l, TakesOver: true})
	must.NoError(t, err)
	check.Is(t, "", r.Pods[0].EvictionRequest.Fallback)
	check.Is(t, 1, l.countCalls("create"))
	check.Is(t, 0, l.countCalls("withdrawn"))
	l.checkNothingLeft(t)
}

func TestStoppedDrainKeepsRequestsOfAnotherClient(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: time.Minute}})
		s.addPod("a", withResponders("acme.io/a"))
		ctx, cancel := context.WithCancel(t.Context())
		_, waitAgent := startDrain(ctx, t, s, Options{EvictionRequests: l, Client: "agent"})
		_, waitManager := startDrain(t.Context(), t, s, Options{EvictionRequests: l, Client: "manager"})
		time.Sleep(20 * time.Second)
		cancel()
		_, err := waitAgent()
		must.Not(t, !errors.Is(err, context.Canceled), "%v", err)
		r, err := waitManager()
		must.NoError(t, err)
		check.Is(t, "", r.Pods[0].EvictionRequest.Fallback)
		checkTookAbout(t, r, time.Minute+2*time.Second)
		check.Is(t, 2, l.countCalls("create"))
		l.checkNothingLeft(t)
	})
}

func TestDrainWithdrawsLeftRequestsOfPodsThatStay(t *testing.T) {
	for name, end := range map[string]time.Duration{"the drain continues": 2 * time.Minute, "the drain ends before it has read them": time.Millisecond} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: time.Minute}})
			p := s.addPod("a", withResponders("acme.io/a"))
			s.addBlockedPod("b")
			must.NoError(t, l.CreateEvictionRequest(t.Context(), newEvictionRequest(&p.Pod, defaultClient, node), false))
			time.Sleep(2 * time.Second)
			_, err := runDrain(t, s, Options{
				EvictionRequests: l, TakesOver: true, TimeLimits: timeoutIn(end), ShouldDrainPod: func(p kubeapi.Pod) bool { return p.Name != "a" },
			})
			check.Not(t, err == nil, "no error")
			check.Is(t, false, p.gone, "the responder was not stopped")
			l.checkNothingLeft(t)
		}))
	}
}

func TestDeletionOfLeftEvictionRequestsEnds(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, nil)
		for _, p := range s.addPods(3, "a-%d", withResponders("acme.io/a")) {
			must.NoError(t, l.CreateEvictionRequest(t.Context(), newEvictionRequest(&p.Pod, defaultClient, node), false))
		}
		s.latency = time.Hour
		began := time.Now()
		check.Not(t, DeleteEvictionRequests(t.Context(), l, defaultClient, node) == nil, "no error")
		check.Not(t, time.Since(began) > withdrawTimeout, "it took %s", time.Since(began))
	})
}

// TestLaterWaveSeesEarlierAnswers restarts a drain after its second wave was asked. The responder is slow.
func TestLaterWaveSeesEarlierAnswers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		slow := responder{answersAfter: time.Second, deletesAfter: 3 * time.Minute}
		l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: time.Minute}, "acme.io/slow": slow})
		s.addPod("first", withResponders("acme.io/a"))
		p := s.addPod("critical", withPriority(2_000_000_000), withResponders("acme.io/slow"))
		must.NoError(t, l.CreateEvictionRequest(t.Context(), newEvictionRequest(&p.Pod, defaultClient, node), false))
		time.Sleep(5 * time.Second)
		r, err := runDrain(t, s, Options{EvictionRequests: l})
		must.NoError(t, err)
		for _, p := range r.Pods {
			check.Is(t, "", p.EvictionRequest.Fallback, p.Name)
		}
		l.checkNothingLeft(t)
	})
}

func TestPodsWithoutRespondersCostNoRequest(t *testing.T) {
	for name, o := range map[string]Options{"no responders": {}, "eviction disabled": {DisableEviction: true}} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			l := newLifecycleSim(s, nil)
			l.listErr = errors.New("must not be asked")
			if o.DisableEviction {
				s.addPod("a", withResponders("acme.io/a"))
			} else {
				s.addPod("a")
				s.addPod("finished", withResponders("acme.io/a"), withPhase("Succeeded"))
			}
			o.EvictionRequests = l
			d, wait := startDrain(t.Context(), t, s, o)
			_, err := wait()
			must.NoError(t, err)
			check.Not(t, d.requests != nil || len(l.calls) > 0, "calls %v", l.calls)
		}))
	}
}

func TestPodsThatAwaitRespondersReserveNoRequests(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, deletesAfter: 20 * time.Second}})
		for i := range 10 {
			s.addPod("db", inNamespace(fmt.Sprint("db-", i)), withResponders("acme.io/a"))
		}
		s.addPods(12, "web-%d")
		s.evictionDelay = 500 * time.Millisecond // neither fast nor slow, so the limit stays
		_, err := runDrain(t, s, Options{EvictionRequests: l})
		must.NoError(t, err)
		check.Is(t, initialConcurrency, s.maxInFlight)
	})
}

func TestDryRunNamesRespondersAndTheirAnswers(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, map[string]responder{"acme.io/a": {answersAfter: time.Second, expects: time.Hour}})
		p := s.addPod("a", withResponders("acme.io/a"))
		s.addPod("b", withResponders("acme.io/a", "acme.io/b"))
		must.NoError(t, l.CreateEvictionRequest(t.Context(), newEvictionRequest(&p.Pod, defaultClient, node), false))
		time.Sleep(2 * time.Second)
		f, err := Predict(t.Context(), s, Options{Node: node, EvictionRequests: l}, true)
		must.NoError(t, err)
		check.Is(t, "asks acme.io/a: moving the leader, expects to complete at 2000-01-01T01:00:00Z is Active", f.Pods[0].EvictionRequest.String())
		check.Is(t, "asks acme.io/a (priority 10000), then acme.io/b (priority 9999)", f.Pods[1].EvictionRequest.String())
		must.NoError(t, l.DeleteEvictionRequest(t.Context(), p.Namespace, requestName(defaultClient, p.UID)))
		l.listErr = errUnserved
		f, err = Predict(t.Context(), s, Options{Node: node, EvictionRequests: l}, true)
		must.NoError(t, err)
		check.Is(t, RequestsNotServed, f.Pods[1].EvictionRequest.Fallback)
		l.checkNothingLeft(t)
	})
}

func TestDryRunOfEvictionRequestsEnds(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		l := newLifecycleSim(s, nil)
		s.addPods(9, "a-%d", withResponders("acme.io/a"))
		l.fault = func(string) (error, bool) { // the API hangs
			s.latency = time.Hour
			return nil, true
		}
		began := time.Now()
		f, err := Predict(t.Context(), s, Options{Node: node, EvictionRequests: l}, true)
		must.NoError(t, err)
		check.Not(t, time.Since(began) > 30*time.Second, "it took %s", time.Since(began))
		check.Is(t, NoController, f.Pods[0].EvictionRequest.Fallback)
	})
}

func TestResponderMessageIsShownInOneLine(t *testing.T) {
	s := ResponderReport{Name: "acme.io/a", Message: " moved\n\x1b[2J 1 of " + strings.Repeat("9", 4000)}
	text := s.describeAnswer()
	check.Contains(t, text, "acme.io/a: moved [2J 1 of 9")
	check.Not(t, strings.ContainsAny(text, "\n\x1b") || len(text) > maxResponderText+20, "got %q", text)
}

func TestLongNodeNameFitsIntoLabel(t *testing.T) {
	long := strings.Repeat("n", 200)
	check.Is(t, maxLabelValue, len(toLabelValue(long+"1")))
	check.Not(t, toLabelValue(long+"1") == toLabelValue(long+"2"), "two nodes share the label %s", toLabelValue(long+"1"))
	check.Is(t, "node-1", toLabelValue("node-1"))
}
