package semaphore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

var _ API = (*kubeapi.Client)(nil)

// fakeServer stores Leases like the API server: each change has a version, and a write with an old version is a
// conflict.
type fakeServer struct {
	mu       sync.Mutex
	leases   map[string]kubeapi.Lease
	version  int
	requests int
	// nextFault returns the fault of the next request: a delay, a failure, or a lost response.
	nextFault func() (takes time.Duration, fails, unanswered bool)
}

var errConnection = errors.New("connection reset")

func newFakeServer() *fakeServer {
	return &fakeServer{
		leases:    map[string]kubeapi.Lease{},
		nextFault: func() (time.Duration, bool, bool) { return time.Millisecond, false, false },
	}
}

func (s *fakeServer) serve(ctx context.Context, do func() error) error {
	s.mu.Lock()
	s.requests++
	takes, fails, unanswered := s.nextFault()
	s.mu.Unlock()
	if fails {
		return errConnection
	}
	if err := sleep(ctx, takes/2); err != nil {
		return err
	}
	s.mu.Lock()
	err := do()
	s.mu.Unlock()
	if slow := sleep(ctx, takes/2); slow != nil {
		return slow
	}
	if unanswered {
		return errConnection
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newConflictError(reason string) error { return &kubeapi.StatusError{Code: 409, Reason: reason} }

func (s *fakeServer) ListLeases(ctx context.Context, _, selector string) (all []kubeapi.Lease, err error) {
	err = s.serve(ctx, func() error {
		for _, l := range s.leases {
			if l.Labels[purposeLabel] == strings.TrimPrefix(selector, purposeLabel+"=") {
				all = append(all, l)
			}
		}
		return nil
	})
	return all, err
}

func (s *fakeServer) CreateLease(ctx context.Context, l kubeapi.Lease) (made *kubeapi.Lease, err error) {
	err = s.serve(ctx, func() error {
		if _, there := s.leases[l.Name]; there {
			return newConflictError("AlreadyExists")
		}
		made = s.putLease(l)
		return nil
	})
	return made, err
}

func (s *fakeServer) UpdateLease(ctx context.Context, l kubeapi.Lease) (made *kubeapi.Lease, err error) {
	err = s.serve(ctx, func() error {
		if s.leases[l.Name].ResourceVersion != l.ResourceVersion {
			return newConflictError("Conflict")
		}
		made = s.putLease(l)
		return nil
	})
	return made, err
}

func (s *fakeServer) putLease(l kubeapi.Lease) *kubeapi.Lease {
	s.version++
	l.ResourceVersion = fmt.Sprint(s.version)
	s.leases[l.Name] = l
	return &l
}

func (s *fakeServer) requestCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// connection is one holder's connection to the server, which may be cut.
type connection struct {
	*fakeServer

	cut     atomic.Bool
	refused error // the answer to each request that creates a Lease, if set
	repeats bool  // a proxy sends each request twice that creates a Lease, and the answer is the second one's
}

func (l *connection) ListLeases(ctx context.Context, namespace, selector string) ([]kubeapi.Lease, error) {
	if l.cut.Load() {
		return nil, errConnection
	}
	return l.fakeServer.ListLeases(ctx, namespace, selector)
}

func (l *connection) CreateLease(ctx context.Context, lease kubeapi.Lease) (*kubeapi.Lease, error) {
	if l.cut.Load() {
		return nil, errConnection
	}
	if l.refused != nil {
		return nil, l.refused
	}
	if l.repeats {
		_, _ = l.fakeServer.CreateLease(ctx, lease)
	}
	return l.fakeServer.CreateLease(ctx, lease)
}

func (l *connection) UpdateLease(ctx context.Context, lease kubeapi.Lease) (*kubeapi.Lease, error) {
	if l.cut.Load() {
		return nil, errConnection
	}
	return l.fakeServer.UpdateLease(ctx, lease)
}

// testHolder is a holder with a process that can be killed and started again.
type testHolder struct {
	*Holder

	connection *connection
	stopRun    func()
	runDone    chan struct{}
}

func startHolder(t testing.TB, s *fakeServer, name string, limit int) *testHolder {
	way := &connection{fakeServer: s}
	k, err := NewHolder(Options{API: way, Namespace: "slipway", Identity: name, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(t.Context())
	n := &testHolder{Holder: k, connection: way, stopRun: kill, runDone: make(chan struct{})}
	go func() {
		defer close(n.runDone)
		k.Run(ctx, func() {})
	}()
	return n
}

func (n *testHolder) crash() {
	n.stopRun()
	<-n.runDone
}

func TestReleasedSlotGoesToWaitingHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a, b := startHolder(t, s, "a", 1), startHolder(t, s, "b", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		b.SetWanted(true, time.Time{})
		time.Sleep(5 * time.Minute)
		if !a.IsHeld() || b.IsHeld() || !slices.Equal(b.Holders(), []string{"a"}) {
			t.Fatalf("a has a slot: %v, b has a slot: %v, b sees holders %v", a.IsHeld(), b.IsHeld(), b.Holders())
		}
		a.SetWanted(false, time.Time{})
		if a.IsHeld() {
			t.Error("a has a slot that it no longer wants")
		}
		time.Sleep(2*retryInterval + maxYieldTime)
		if !a.IsReleased() || b.IsReleased() {
			t.Errorf("a released: %v, b released: %v", a.IsReleased(), b.IsReleased())
		}
		if !b.IsHeld() || len(b.Holders()) != 0 {
			t.Errorf("b has a slot: %v, and sees holders %v", b.IsHeld(), b.Holders())
		}
	})
}

func TestWaitingHolderWithLeastTimeGoesFirst(t *testing.T) {
	left := map[string]time.Duration{"soon": time.Minute, "never": 0} // time left when the slot becomes free
	for range 40 {                                                    // the pauses have random lengths
		synctest.Test(t, func(t *testing.T) {
			s := newFakeServer()
			holder := startHolder(t, s, "holder", 1)
			holder.SetWanted(true, time.Time{})
			time.Sleep(time.Second)
			const wait = time.Minute
			waiting := map[string]*testHolder{}
			for name, d := range left {
				due := time.Time{}
				if d > 0 {
					due = time.Now().Add(wait + d)
				}
				waiting[name] = startHolder(t, s, name, 1)
				waiting[name].SetWanted(true, due)
			}
			time.Sleep(wait)
			holder.SetWanted(false, time.Time{})
			for _, next := range []string{"soon", "never"} {
				freed := time.Now()
				for !waiting[next].IsHeld() {
					time.Sleep(100 * time.Millisecond)
					for name, n := range waiting {
						if name != next && n.IsHeld() {
							t.Fatalf("%s got the slot before %s", name, next)
						}
					}
					if time.Since(freed) > 2*maxYieldTime+2*retryInterval {
						t.Fatalf("%s has waited %s for a free slot", next, time.Since(freed))
					}
				}
				waiting[next].SetWanted(false, time.Time{})
				delete(waiting, next)
			}
		})
	}
}

func TestUnwantedSlotSendsNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a := startHolder(t, s, "a", 1)
		time.Sleep(24 * time.Hour)
		if n := s.requestCount(); n != 0 {
			t.Errorf("%d requests before a slot was wanted", n)
		}
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Minute)
		a.SetWanted(false, time.Time{})
		time.Sleep(time.Minute)
		before := s.requestCount()
		time.Sleep(24 * time.Hour)
		if n := s.requestCount(); before == 0 || n != before {
			t.Errorf("%d requests while a slot was wanted, %d after that", before, n-before)
		}
	})
}

func TestDeadHoldersSlotIsTakenOverOnlyAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a, b := startHolder(t, s, "a", 1), startHolder(t, s, "b", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		b.SetWanted(true, time.Time{})
		time.Sleep(time.Minute)
		a.crash()
		time.Sleep(leaseDuration - renewInterval)
		if b.IsHeld() {
			t.Error("taken over before the Lease expired")
		}
		time.Sleep(renewInterval + 2*retryInterval + maxYieldTime)
		if !b.IsHeld() {
			t.Errorf("not taken over: b sees holders %v", b.Holders())
		}
	})
}

func TestI8RestartedHolderStillHasItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a, b := startHolder(t, s, "a", 1), startHolder(t, s, "b", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		b.SetWanted(true, time.Time{})
		time.Sleep(time.Minute)
		a.crash()
		time.Sleep(leaseDuration / 2)
		a = startHolder(t, s, "a", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		if !a.IsHeld() || b.IsHeld() {
			t.Errorf("a has a slot: %v, b has a slot: %v", a.IsHeld(), b.IsHeld())
		}
	})
}

func TestHolderThatCannotRenewLosesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a := startHolder(t, s, "a", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		s.mu.Lock()
		s.nextFault = func() (time.Duration, bool, bool) { return time.Hour, false, false }
		s.mu.Unlock()
		time.Sleep(ownershipTimeout)
		if a.IsHeld() {
			t.Error("still held after ownershipTimeout")
		}
	})
}

// TestSuspendedHolderLosesItsSlot suspends the machine of a holder, so that only the wall clock goes on.
func TestSuspendedHolderLosesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startHolder(t, newFakeServer(), "a", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		if !a.IsHeld() {
			t.Fatal("it has no slot")
		}
		a.mu.Lock()
		a.renewed.Wall = a.renewed.Wall.Add(-ownershipTimeout)
		a.mu.Unlock()
		if a.IsHeld() {
			t.Error("still held, although another process may have taken it")
		}
		time.Sleep(renewInterval)
		if !a.IsHeld() {
			t.Error("not held after a renewal")
		}
	})
}

// failNext makes the next n requests fail without a change.
func (s *fakeServer) failNext(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextFault = func() (time.Duration, bool, bool) {
		n--
		return time.Millisecond, n >= 0, false
	}
}

// holders returns the holders of all slots.
func (s *fakeServer) holders() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		if l.Spec.HolderIdentity != "" {
			names = append(names, l.Spec.HolderIdentity)
		}
	}
	return names
}

func TestEachReleaseIsRetriedForItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a := startHolder(t, s, "a", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		for range 2 { // the slot is wanted again before its first release has succeeded
			s.failNext(1)
			a.SetWanted(false, time.Time{})
			time.Sleep(retryInterval / 4)
			if a.IsReleased() || !slices.Equal(s.holders(), []string{"a"}) {
				t.Fatalf("released: %v after a failure, holders %v", a.IsReleased(), s.holders())
			}
			a.SetWanted(true, time.Time{})
			time.Sleep(2 * leaseDuration)
		}
	})
}

func TestSlotOfAnUnansweredRequestIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		writes := 0
		s.nextFault = func() (time.Duration, bool, bool) {
			writes++
			return time.Millisecond, false, writes == 2 // the first request lists
		}
		a := startHolder(t, s, "a", 1)
		a.SetWanted(true, time.Time{})
		time.Sleep(retryInterval / 4)
		a.SetWanted(false, time.Time{})
		if a.IsReleased() || !slices.Equal(s.holders(), []string{"a"}) {
			t.Fatalf("released: %v before its release, holders %v", a.IsReleased(), s.holders())
		}
		time.Sleep(time.Second)
		if !a.IsReleased() || len(s.holders()) > 0 {
			t.Errorf("released: %v, holders %v", a.IsReleased(), s.holders())
		}
	})
}

func TestSlotOfARepeatedRequestIsHeldAndReleased(t *testing.T) {
	for name, listFails := range map[string]bool{"with the list after it": false, "without that list": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				requests := 0
				s.nextFault = func() (time.Duration, bool, bool) {
					requests++
					return time.Millisecond, listFails && requests == 4, false // the first one lists, and the next two create
				}
				a := startHolder(t, s, "a", 2)
				a.connection.repeats = true
				time.Sleep(time.Second) // so that the call that follows starts the only try
				a.SetWanted(true, time.Time{})
				time.Sleep(retryInterval / 4)
				if a.IsHeld() == listFails || !slices.Equal(s.holders(), []string{"a"}) {
					t.Fatalf("held: %v, holders %v", a.IsHeld(), s.holders())
				}
				a.SetWanted(false, time.Time{})
				if a.IsReleased() {
					t.Fatal("released before its release")
				}
				time.Sleep(time.Second)
				if !a.IsReleased() || len(s.holders()) > 0 {
					t.Errorf("released: %v, holders %v", a.IsReleased(), s.holders())
				}
			})
		})
	}
}

// A refused request has changed nothing, so no slot has to be released.
func TestRefusedSlotIsReleasedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a := startHolder(t, s, "a", 1)
		a.connection.refused = &kubeapi.StatusError{Code: 403, Reason: "Forbidden"}
		a.SetWanted(true, time.Time{})
		time.Sleep(time.Second)
		a.SetWanted(false, time.Time{})
		if !a.IsReleased() {
			t.Error("not released, although no request has taken effect")
		}
	})
}

func TestI10BadOptionsAreRefusedByName(t *testing.T) {
	for want, o := range map[string]Options{
		"namespace": {Identity: "n", Limit: 1},
		"holder":    {Namespace: "s", Limit: 1},
		"0: want":   {Namespace: "s", Identity: "n"},
		"17: want":  {Namespace: "s", Identity: "n", Limit: 17},
	} {
		if _, err := NewHolder(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want it to contain %q", o, err, want)
		}
	}
}

// step is one action on one holder.
type step struct {
	after  time.Duration
	holder int
	action string // want, rest, crash, start, cut, mend
}

// scenario is a cluster with holders that come, go and die, and an unreliable API server.
type scenario struct {
	limit, holders           int
	steps                    []step
	failPercent, lostPercent int // in percent
	maxDelay                 time.Duration
	seed                     []int
}

func drawScenario(t *rapid.T) scenario {
	w := scenario{
		limit: rapid.IntRange(1, 2).Draw(t, "limit"), holders: rapid.IntRange(3, 6).Draw(t, "nodes"),
		failPercent: rapid.SampledFrom([]int{0, 0, 10, 40}).Draw(t, "fails"),
		lostPercent: rapid.SampledFrom([]int{0, 0, 10, 30}).Draw(t, "unanswered"),
		maxDelay:    rapid.SampledFrom([]time.Duration{0, time.Second, 8 * time.Second}).Draw(t, "slow"),
		seed:        rapid.SliceOfN(rapid.IntRange(0, 99), 50, 50).Draw(t, "dice"),
	}
	for range rapid.IntRange(10, 40).Draw(t, "acts") {
		w.steps = append(w.steps, step{
			after:  time.Duration(rapid.IntRange(0, 40).Draw(t, "after")) * time.Second,
			holder: rapid.IntRange(0, w.holders-1).Draw(t, "node"),
			action: rapid.SampledFrom([]string{"want", "want", "want", "rest", "crash", "start", "cut", "mend"}).Draw(t, "what"),
		})
	}
	return w
}

// run runs the scenario in virtual time, and returns the violations.
func (w scenario) run(t *testing.T) (broken []string) {
	s := newFakeServer()
	throws := 0
	s.nextFault = func() (time.Duration, bool, bool) {
		throws++
		dice := w.seed[throws%len(w.seed)]
		return w.maxDelay * time.Duration(dice) / 100, dice < w.failPercent, (dice+throws)%100 < w.lostPercent
	}
	nodes := make([]*testHolder, w.holders)
	wants := make([]bool, w.holders)
	alive := make([]bool, w.holders)
	for i := range nodes {
		nodes[i], alive[i] = startHolder(t, s, fmt.Sprint("node-", i), w.limit), true
		nodes[i].SetWanted(true, time.Time{})
		wants[i] = true
	}
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); {
			time.Sleep(100 * time.Millisecond)
			held := 0
			for i := range nodes {
				if alive[i] && nodes[i].IsHeld() {
					held++
				}
			}
			if held > w.limit {
				broken = append(broken, fmt.Sprintf("%d slots held, the limit is %d", held, w.limit))
				return
			}
		}
	}
	for _, a := range w.steps {
		watch(a.after)
		switch n := nodes[a.holder]; {
		case a.action == "want" || a.action == "rest":
			wants[a.holder] = a.action == "want"
			n.SetWanted(wants[a.holder], time.Time{})
		case a.action == "cut" || a.action == "mend":
			n.connection.cut.Store(a.action == "cut")
		case a.action == "crash" && alive[a.holder]:
			n.crash()
			alive[a.holder] = false
		case a.action == "start" && !alive[a.holder]:
			nodes[a.holder], alive[a.holder] = startHolder(t, s, fmt.Sprint("node-", a.holder), w.limit), true
			nodes[a.holder].SetWanted(wants[a.holder], time.Time{})
		}
	}
	// No deadlock: without faults, every holder that wants a slot gets one, if each releases its slot.
	s.mu.Lock()
	s.nextFault = func() (time.Duration, bool, bool) { return time.Millisecond, false, false }
	s.mu.Unlock()
	for _, n := range nodes {
		n.connection.cut.Store(false)
	}
	for left := w.holders; left > 0 && len(broken) == 0; left-- {
		watch(maxLeaseDuration)
		waiting, served := false, false
		for i, n := range nodes {
			switch {
			case !alive[i] || !wants[i]:
			case n.IsHeld():
				n.SetWanted(false, time.Time{})
				wants[i], served = false, true
			default:
				waiting = true
			}
		}
		if waiting && !served {
			broken = append(broken, "a holder waits, but no slot is held")
		}
	}
	for i, n := range nodes {
		if alive[i] {
			n.crash()
		}
	}
	return broken
}

func TestHoldersNeverExceedSlotsAndNoneStarves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawScenario(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = w.run(t) })
		if len(broken) > 0 {
			rt.Fatal(strings.Join(broken, "; "))
		}
	})
}
