package retirement

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// disturbance is a change by others while a node is retired.
type disturbance struct {
	After time.Duration
	What  string
}

// randomScenario is a random cluster with random faults and changes.
type randomScenario struct {
	Seed    uint64
	Faulty  int // percent of the requests
	Calm    time.Duration
	Crashes []time.Duration
	Happens []disturbance
	Fails   int
	Takes   time.Duration
	Pods    []string
}

var disturbances = map[string]func(*sim){
	"protected pod arrives": func(s *sim) { s.addPod("a", "late-protected", protectedPod) },
	"protection ends":       func(s *sim) { s.removePod("uid-late-protected"); s.removePod("uid-protected") },
	"ordinary pod arrives":  func(s *sim) { s.addPod("a", "late", nil) },
	"PDB allows evictions":  func(s *sim) { s.mu.Lock(); defer s.mu.Unlock(); s.allowEvictions() },
	"uncordoned":            func(s *sim) { s.changeNode("a", uncordon) },
	"another tool":          func(s *sim) { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) },
	"node not Ready":        func(s *sim) { s.changeNode("a", setUnready) },
	"instance gone": func(s *sim) {
		s.mu.Lock()
		delete(s.instances, "sim://a")
		s.mu.Unlock()
		s.changeNode("a", setUnready)
	},
	"instance back": func(s *sim) { s.reviveNode("a") },
	"node reregistered": func(s *sim) {
		s.deleteNodeAsUser("a")
		time.AfterFunc(20*time.Second, func() { s.reregisterAs("a", "a") })
	},
	"node renamed": func(s *sim) { s.reregisterAs("a", "a.example.org") },
	"node replaced": func(s *sim) {
		if s.getNode("a").DeepCopy() != nil {
			s.addNode("a", map[string]string{pool: "ci"})
		}
	},
	"cancelled": func(s *sim) {
		if rt := s.getRetirement("r"); rt != nil {
			_ = s.retirements.Delete(context.Background(), rt)
		}
	},
}

// TestRandomDisturbancesBreakNoInvariant retires a node in random scenarios. Requests fail before or after they are
// served, the process is killed, and others change the node, its pods and its instance.
func TestRandomDisturbancesBreakNoInvariant(t *testing.T) {
	names := []string{
		"protected pod arrives", "protection ends", "ordinary pod arrives", "PDB allows evictions", "uncordoned", "another tool",
		"node not Ready", "instance gone", "instance back", "node replaced", "node renamed",
		"node reregistered", "cancelled",
	}
	rapid.Check(t, func(rt *rapid.T) {
		f := randomScenario{
			Seed:   rapid.Uint64().Draw(rt, "seed"),
			Faulty: rapid.SampledFrom([]int{0, 5, 20, 60}).Draw(rt, "faulty"),
			Calm:   time.Duration(rapid.IntRange(0, 600).Draw(rt, "calm")) * time.Second,
			Fails:  rapid.IntRange(0, 2).Draw(rt, "fails"),
			Takes:  time.Duration(rapid.IntRange(0, 90).Draw(rt, "takes")) * time.Second,
			Pods:   rapid.SliceOfN(rapid.SampledFrom([]string{"web", "denied", "protected", "slow"}), 0, 3).Draw(rt, "pods"),
		}
		for range rapid.IntRange(0, 3).Draw(rt, "crashes") {
			f.Crashes = append(f.Crashes, time.Duration(rapid.IntRange(1, 90_000).Draw(rt, "crash"))*time.Millisecond)
		}
		for range rapid.IntRange(0, 4).Draw(rt, "happenings") {
			f.Happens = append(f.Happens, disturbance{
				time.Duration(rapid.IntRange(0, 120_000).Draw(rt, "after")) * time.Millisecond,
				rapid.SampledFrom(names).Draw(rt, "what"),
			})
		}
		var err error
		synctest.Test(t, func(t *testing.T) { err = f.runAndCheck(t) })
		must.Not(rt, err != nil, "%+v: %v", f, err)
	})
}

// runAndCheck runs the scenario and returns every violation.
func (f randomScenario) runAndCheck(t *testing.T) error {
	ctx, cancel := context.WithCancel(context.Background())
	s := newGroupOfTwo(t)
	defer func() {
		cancel()
		synctest.Wait()
	}()
	uid := s.getNode("a").UID
	for _, name := range f.Pods {
		s.addPod("a", name, func(p *simPod) {
			switch name {
			case "denied":
				p.evictionDenied = true
			case "protected":
				protectedPod(p)
			case "slow":
				p.stopsAfter = 40 * time.Second
			}
		})
	}
	s.instances["sim://a"].failingDeletions, s.instances["sim://a"].deletionTakes = f.Fails, f.Takes
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
	s.interceptRequests(f.newFaults(s))
	for _, h := range f.Happens {
		switch h.What {
		case "instance back", "node renamed", "node reregistered":
			// Not at the time of a reconcile: a change right after a read can never be noticed.
			h.After += time.Millisecond / 2
		}
		time.AfterFunc(h.After, func() { disturbances[h.What](s) })
	}
	for _, processCtx := range f.Crashes {
		f.runWithDisturbances(ctx, t, s, processCtx)
	}
	f.runWithDisturbances(ctx, t, s, f.Calm)
	s.interceptRequests(func(string, string) error { return nil })
	time.AfterFunc(10*time.Minute, func() { disturbances["protection ends"](s) })
	rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 6*time.Hour)
	time.Sleep(3 * time.Minute) // all changes are done by then, and no kubelet is about to register
	return s.checkInvariants(rt, string(uid))
}

// runWithDisturbances runs one process for its lifetime. Its later requests do not arrive.
func (f randomScenario) runWithDisturbances(ctx context.Context, t *testing.T, s *sim, processCtx time.Duration) {
	alive, killProcess := context.WithCancel(ctx)
	s.mu.Lock()
	faults := s.intercept
	s.mu.Unlock()
	s.interceptRequests(func(moment, request string) error {
		if alive.Err() != nil {
			return errKilled
		}
		return faults(moment, request)
	})
	time.AfterFunc(processCtx, killProcess)
	c := s.newController(t)
	for alive.Err() == nil && !s.isFinished("r") {
		s.reconcileOnce(alive, c, "r")
		time.Sleep(time.Millisecond)
	}
	killProcess()
	c.drains.stopAndWait("r")
	s.interceptRequests(faults)
}

// newFaults makes requests fail at random, before or after they are served.
func (f randomScenario) newFaults(s *sim) func(moment, request string) error {
	random := rand.New(rand.NewPCG(f.Seed, 0))
	return func(_, request string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if random.IntN(200) >= f.Faulty { // each request can fail at two moments
			return nil
		}
		switch {
		case len(request) > 5 && request[:5] == "cloud":
			return []error{&cloud.ThrottledError{RetryAfter: 7 * time.Second}, errors.New("connection reset"), context.DeadlineExceeded}[random.IntN(3)]
		case random.IntN(3) == 0:
			return apierrors.NewConflict(schema.GroupResource{Resource: "noderetirements"}, "r", errors.New("changed"))
		default:
			return newStatusError([]int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusTooManyRequests}[random.IntN(3)], "", "fault")
		}
	}
}

// checkInvariants returns every violation in the final state.
func (s *sim) checkInvariants(rt *v1alpha1.NodeRetirement, uid string) error {
	var errs []error
	for _, v := range s.violations {
		errs = append(errs, errors.New(v))
	}
	s.mu.Lock()
	n, machine := s.nodes["a"], s.instances["sim://a"]
	renamed := s.nodes["a.example.org"] != nil
	touched := s.deletionRequested
	s.mu.Unlock()
	ours := n != nil && string(n.UID) == uid
	if len(touched) > 1 || len(touched) == 1 && !touched["sim://a"] {
		errs = append(errs, fmt.Errorf("I4: instances %v were deleted", touched))
	}
	switch {
	case rt != nil && !rt.Status.Phase.IsFinal():
		errs = append(errs, fmt.Errorf("it does not finish: %s: %s", rt.Status.Phase, rt.Status.Message))
	case rt != nil && rt.Status.Phase == v1alpha1.Succeeded && (ours || machine != nil && n == nil && !renamed):
		errs = append(errs, fmt.Errorf("succeeded, with the Node there: %t, its instance there: %t", ours, machine != nil))
	case n == nil && machine != nil && !renamed:
		errs = append(errs, errors.New("the instance is forgotten"))
	case ours:
		if err := checkRestored(n); err != nil {
			errs = append(errs, err)
		}
		if n.Spec.Unschedulable {
			errs = append(errs, errors.New("I3: the node is still cordoned"))
		}
		if touched["sim://a"] {
			errs = append(errs, errors.New("the instance of an existing Node was deleted"))
		}
	}
	return errors.Join(errs...)
}

var errKilled = errors.New("the process was killed")

// requestKiller kills a process at one of its requests. Its later requests do not arrive.
type requestKiller struct {
	s      *sim
	moment string
	at, n  int
	armed  string // the counted request, while others run concurrently
	dead   bool
}

func (k *requestKiller) interceptRequest(moment, request string) error {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if k.dead {
		return errKilled
	}
	if moment == "before" {
		if k.n++; k.n == k.at {
			k.armed = request
		}
	}
	if k.armed == request && moment == k.moment {
		k.dead = true
		return errKilled
	}
	return nil
}

func (k *requestKiller) hasKilled() bool {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	return k.dead
}

// crashScenario is one course of a retirement.
type crashScenario struct {
	name  string
	setup func(*testing.T, *sim)
	end   v1alpha1.Phase
}

func crashScenarios() []crashScenario {
	return []crashScenario{
		{"succeeds", func(_ *testing.T, s *sim) { s.addPod("a", "web", nil) }, v1alpha1.Succeeded},
		{"fails in the cloud once", func(_ *testing.T, s *sim) { s.instances["sim://a"].failingDeletions = 1 }, v1alpha1.Succeeded},
		{"times out", func(_ *testing.T, s *sim) {
			s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 20 * time.Second}
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		}, v1alpha1.Aborted},
		{"is refused", func(_ *testing.T, s *sim) { s.addPod("a", "web", protectedPod) }, v1alpha1.Refused},
		{"finds the instance gone", func(_ *testing.T, s *sim) {
			delete(s.instances, "sim://a")
			s.changeNode("a", setUnready)
		}, v1alpha1.Succeeded},
		{"finds the instance gone, and it comes back", func(_ *testing.T, s *sim) {
			delete(s.instances, "sim://a")
			s.changeNode("a", setUnready)
			s.addPod("a", "web", func(p *simPod) { p.stopsAfter = -1 }) // so that there is time for the instance to come back
			time.AfterFunc(15*time.Second+time.Millisecond/2, func() { s.reviveNode("a") })
		}, v1alpha1.Aborted},
		{"is cancelled", func(t *testing.T, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
			time.AfterFunc(15*time.Second, func() {
				check.NoError(t, s.retirements.Delete(context.Background(), s.getRetirement("r")))
			})
		}, ""},
		{"yields to another tool", func(_ *testing.T, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
			time.AfterFunc(15*time.Second, func() { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) })
		}, v1alpha1.Aborted},
	}
}

// TestI8CrashAtAnyRequestReachesSameEnd kills the process at each request, once before it is served and once after, and
// continues with a new process. A run without a crash determines the requests. A drain and its reconcile send some
// requests at the same time, so that a run may end with one less. Few crashes are missed by that.
func TestI8CrashAtAnyRequestReachesSameEnd(t *testing.T) {
	for _, c := range crashScenarios() {
		t.Run(c.name, func(t *testing.T) {
			const few = 4
			total, missed := 0, 0
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) { total, _ = c.runWithCrash(ctx, t, 0, "") })
			t.Logf("%d requests", total)
			for at := 1; at <= total; at++ {
				for _, moment := range []string{"before", "after"} {
					t.Run(fmt.Sprintf("%d %s", at, moment), inVirtualTime(func(t *testing.T, ctx context.Context) {
						if _, struck := c.runWithCrash(ctx, t, at, moment); !struck {
							missed++
						}
					}))
				}
			}
			check.Not(t, missed > few, "%d of %d crashes were missed because the run had ended, want at most %d", missed, 2*total, few)
		})
	}
}

// runWithCrash runs the scenario once. It returns the number of requests, and whether the process was killed.
func (c crashScenario) runWithCrash(ctx context.Context, t *testing.T, at int, moment string) (requests int, struck bool) {
	t.Helper()
	s := newGroupOfTwo(t)
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
	c.setup(t, s)
	k := &requestKiller{s: s, at: at, moment: moment}
	if at > 0 {
		s.interceptRequests(k.interceptRequest)
	}
	processCtx, killProcess := context.WithCancel(ctx)
	first := s.newController(t)
	for end := time.Now().Add(3 * time.Hour); time.Now().Before(end) && !k.hasKilled() && !s.isFinished("r"); time.Sleep(time.Millisecond) {
		s.reconcileOnce(processCtx, first, "r")
	}
	killProcess()
	s.interceptRequests(func(string, string) error { return nil })
	rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
	switch {
	case rt == nil && c.end != "":
		t.Fatal("the record is gone")
	case rt != nil && rt.Status.Phase != c.end:
		t.Fatalf("%s: %s, want %q", rt.Status.Phase, rt.Status.Message, c.end)
	case c.end == v1alpha1.Succeeded:
		s.checkRetired(t, "a")
	default:
		s.checkNodeRestored(t, "a")
	}
	if restoredErr := checkRestored(s.getNode("b")); restoredErr != nil {
		t.Error(restoredErr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests), k.dead
}

// isFinished reports whether the retirement has ended and nothing is left to do.
func (s *sim) isFinished(name string) bool {
	rt := s.getRetirement(name)
	return rt == nil || rt.Status.Phase.IsFinal() && len(rt.Finalizers) == 0
}

func setUnschedulable(n *corev1.Node) { n.Spec.Unschedulable = true }

func TestI3ExistingCordonStays(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.changeNode("a", setUnschedulable)
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || !s.getNode("a").Spec.Unschedulable {
			t.Errorf("%s, cordoned %t", rt.Status.Phase, s.getNode("a").Spec.Unschedulable)
		}
		check.NoError(t, checkRestored(s.getNode("a")))
	})
}
