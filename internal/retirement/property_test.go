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

// happening is something that others do to the world while a node is retired.
type happening struct {
	After time.Duration
	What  string
}

// fate is a random world.
type fate struct {
	Seed    uint64
	Faulty  int // percent of the requests
	Calm    time.Duration
	Crashes []time.Duration
	Happens []happening
	Fails   int
	Takes   time.Duration
	Pods    []string
}

var happenings = map[string]func(*sim){
	"protected pod comes": func(s *sim) { s.addPod("a", "late-protected", protectedPod) },
	"protection ends":     func(s *sim) { s.removePod("uid-late-protected"); s.removePod("uid-protected") },
	"ordinary pod comes":  func(s *sim) { s.addPod("a", "late", nil) },
	"budget lets go":      func(s *sim) { s.mu.Lock(); defer s.mu.Unlock(); s.allow() },
	"uncordoned":          func(s *sim) { s.change("a", uncordon) },
	"another tool":        func(s *sim) { s.change("a", tainted("ToBeDeletedByClusterAutoscaler")) },
	"node silent":         func(s *sim) { s.change("a", silent) },
	"machine gone": func(s *sim) {
		s.mu.Lock()
		delete(s.machines, "sim://a")
		s.mu.Unlock()
		s.change("a", silent)
	},
	"machine back": func(s *sim) { s.bringBack("a") },
	"node registered anew": func(s *sim) {
		s.drop("a")
		time.AfterFunc(20*time.Second, func() { s.rename("a", "a") })
	},
	"node renamed": func(s *sim) { s.rename("a", "a.example.org") },
	"node replaced": func(s *sim) {
		if s.node("a").DeepCopy() != nil {
			s.addNode("a", map[string]string{pool: "ci"})
		}
	},
	"called off": func(s *sim) {
		if rt := s.record("r"); rt != nil {
			_ = s.records.Delete(context.Background(), rt)
		}
	},
}

// TestWhateverHappensNoInvariantIsBrokenAndItEnds retires a node in random worlds: requests fail before and after they
// are served, the process is killed, others change the node, its pods and its machine.
func TestWhateverHappensNoInvariantIsBrokenAndItEnds(t *testing.T) {
	names := []string{
		"protected pod comes", "protection ends", "ordinary pod comes", "budget lets go", "uncordoned", "another tool",
		"node silent", "machine gone", "machine back", "node replaced", "node renamed",
		"node registered anew", "called off",
	}
	rapid.Check(t, func(rt *rapid.T) {
		f := fate{
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
			f.Happens = append(f.Happens, happening{
				time.Duration(rapid.IntRange(0, 120_000).Draw(rt, "after")) * time.Millisecond,
				rapid.SampledFrom(names).Draw(rt, "what"),
			})
		}
		var err error
		synctest.Test(t, func(t *testing.T) { err = f.play(t) })
		if err != nil {
			rt.Fatalf("%+v: %v", f, err)
		}
	})
}

// play lives through the world and returns what was wrong.
func (f fate) play(t *testing.T) error {
	ctx, cancel := context.WithCancel(context.Background())
	s := ci(t)
	defer func() {
		cancel()
		synctest.Wait()
	}()
	uid := s.node("a").UID
	for _, name := range f.Pods {
		s.addPod("a", name, func(p *simPod) {
			switch name {
			case "denied":
				p.denied = true
			case "protected":
				protectedPod(p)
			case "slow":
				p.stops = 40 * time.Second
			}
		})
	}
	s.machines["sim://a"].fails, s.machines["sim://a"].takes = f.Fails, f.Takes
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
	s.atEach(f.faults(s))
	for _, h := range f.Happens {
		switch h.What {
		case "machine back", "node renamed", "node registered anew":
			// Not while the controller looks: no look is fresh enough for what comes right after it.
			h.After += time.Millisecond / 2
		}
		time.AfterFunc(h.After, func() { happenings[h.What](s) })
	}
	for _, life := range f.Crashes {
		f.live(ctx, t, s, life)
	}
	f.live(ctx, t, s, f.Calm)
	s.atEach(func(string, string) error { return nil })
	time.AfterFunc(10*time.Minute, func() { happenings["protection ends"](s) })
	rt := s.settled(ctx, s.controller(t), "r", 6*time.Hour)
	time.Sleep(3 * time.Minute) // all has happened then, and no kubelet is about to register
	return s.judge(rt, string(uid))
}

// live runs one process for so long. What it still sends after its death does not arrive.
func (f fate) live(ctx context.Context, t *testing.T, s *sim, life time.Duration) {
	alive, die := context.WithCancel(ctx)
	s.mu.Lock()
	faults := s.at
	s.mu.Unlock()
	s.atEach(func(moment, request string) error {
		if alive.Err() != nil {
			return errKilled
		}
		return faults(moment, request)
	})
	time.AfterFunc(life, die)
	c := s.controller(t)
	for alive.Err() == nil && !s.over("r") {
		s.turn(alive, c, "r")
		time.Sleep(time.Millisecond)
	}
	die()
	c.drains.stop("r")
	s.atEach(faults)
}

// faults fail requests at random, before or after they were served.
func (f fate) faults(s *sim) func(moment, request string) error {
	random := rand.New(rand.NewPCG(f.Seed, 0))
	return func(_, request string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if random.IntN(200) >= f.Faulty { // two moments for each request
			return nil
		}
		switch {
		case len(request) > 5 && request[:5] == "cloud":
			return []error{&cloud.ThrottledError{After: 7 * time.Second}, errors.New("connection reset"), context.DeadlineExceeded}[random.IntN(3)]
		case random.IntN(3) == 0:
			return apierrors.NewConflict(schema.GroupResource{Resource: "noderetirements"}, "r", errors.New("changed"))
		default:
			return status([]int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusTooManyRequests}[random.IntN(3)], "", "fault")
		}
	}
}

// judge says what of the end is wrong.
func (s *sim) judge(rt *v1alpha1.NodeRetirement, uid string) error {
	var errs []error
	for _, v := range s.violations {
		errs = append(errs, errors.New(v))
	}
	s.mu.Lock()
	n, machine := s.nodes["a"], s.machines["sim://a"]
	renamed := s.nodes["a.example.org"] != nil
	touched := s.touched
	s.mu.Unlock()
	ours := n != nil && string(n.UID) == uid
	if len(touched) > 1 || len(touched) == 1 && !touched["sim://a"] {
		errs = append(errs, fmt.Errorf("I4: machines %v were deleted", touched))
	}
	switch {
	case rt != nil && !rt.Status.Phase.Finished():
		errs = append(errs, fmt.Errorf("it does not end: %s: %s", rt.Status.Phase, rt.Status.Message))
	case rt != nil && rt.Status.Phase == v1alpha1.Succeeded && (ours || machine != nil && n == nil && !renamed):
		errs = append(errs, fmt.Errorf("succeeded, with the Node there: %t, its machine there: %t", ours, machine != nil))
	case n == nil && machine != nil && !renamed:
		errs = append(errs, errors.New("the machine is forgotten"))
	case ours:
		if err := restored(n); err != nil {
			errs = append(errs, err)
		}
		if n.Spec.Unschedulable {
			errs = append(errs, errors.New("I3: the node is still cordoned"))
		}
		if touched["sim://a"] {
			errs = append(errs, errors.New("the machine of a living Node was deleted"))
		}
	}
	return errors.Join(errs...)
}
