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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
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
		if err != nil {
			rt.Fatalf("%+v: %v", f, err)
		}
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
