package slots

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

// server keeps Leases as the API server does: each change has a version, and one with an old version is a conflict.
type server struct {
	mu       sync.Mutex
	leases   map[string]kubeapi.Lease
	version  int
	requests int
	// trouble says what becomes of a request: it may take time, fail, or be carried out without an answer.
	trouble func() (takes time.Duration, fails, unanswered bool)
}

var errTrouble = errors.New("connection reset")

func newServer() *server {
	return &server{
		leases:  map[string]kubeapi.Lease{},
		trouble: func() (time.Duration, bool, bool) { return time.Millisecond, false, false },
	}
}

func (s *server) request(ctx context.Context, do func() error) error {
	s.mu.Lock()
	s.requests++
	takes, fails, unanswered := s.trouble()
	s.mu.Unlock()
	if fails {
		return errTrouble
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
		return errTrouble
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

func conflict(reason string) error { return &kubeapi.StatusError{Code: 409, Reason: reason} }

func (s *server) ListLeases(ctx context.Context, _, selector string) (all []kubeapi.Lease, err error) {
	err = s.request(ctx, func() error {
		for _, l := range s.leases {
			if l.Labels[labelKey] == strings.TrimPrefix(selector, labelKey+"=") {
				all = append(all, l)
			}
		}
		return nil
	})
	return all, err
}

func (s *server) CreateLease(ctx context.Context, l kubeapi.Lease) (made *kubeapi.Lease, err error) {
	err = s.request(ctx, func() error {
		if _, there := s.leases[l.Name]; there {
			return conflict("AlreadyExists")
		}
		made = s.put(l)
		return nil
	})
	return made, err
}

func (s *server) UpdateLease(ctx context.Context, l kubeapi.Lease) (made *kubeapi.Lease, err error) {
	err = s.request(ctx, func() error {
		if s.leases[l.Name].ResourceVersion != l.ResourceVersion {
			return conflict("Conflict")
		}
		made = s.put(l)
		return nil
	})
	return made, err
}

func (s *server) put(l kubeapi.Lease) *kubeapi.Lease {
	s.version++
	l.ResourceVersion = fmt.Sprint(s.version)
	s.leases[l.Name] = l
	return &l
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// link is one holder's way to the server, which may be cut.
type link struct {
	*server

	cut atomic.Bool
}

func (l *link) ListLeases(ctx context.Context, namespace, selector string) ([]kubeapi.Lease, error) {
	if l.cut.Load() {
		return nil, errTrouble
	}
	return l.server.ListLeases(ctx, namespace, selector)
}

func (l *link) CreateLease(ctx context.Context, lease kubeapi.Lease) (*kubeapi.Lease, error) {
	if l.cut.Load() {
		return nil, errTrouble
	}
	return l.server.CreateLease(ctx, lease)
}

func (l *link) UpdateLease(ctx context.Context, lease kubeapi.Lease) (*kubeapi.Lease, error) {
	if l.cut.Load() {
		return nil, errTrouble
	}
	return l.server.UpdateLease(ctx, lease)
}

// node is one holder whose process can be killed and started again.
type node struct {
	*Keeper

	link *link
	kill func()
	gone chan struct{}
}

func start(t testing.TB, s *server, name string, limit int) *node {
	way := &link{server: s}
	k, err := New(Options{API: way, Namespace: "slipway", Holder: name, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(t.Context())
	n := &node{Keeper: k, link: way, kill: kill, gone: make(chan struct{})}
	go func() {
		defer close(n.gone)
		k.Run(ctx, func() {})
	}()
	return n
}

func (n *node) crash() {
	n.kill()
	<-n.gone
}

func TestTheNextGetsTheSlotWhenItIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, b := start(t, s, "a", 1), start(t, s, "b", 1)
		a.Want(true, time.Time{})
		time.Sleep(time.Second)
		b.Want(true, time.Time{})
		time.Sleep(5 * time.Minute)
		if !a.Held() || b.Held() || !slices.Equal(b.Holders(), []string{"a"}) {
			t.Fatalf("a holds %v, b holds %v and sees %v", a.Held(), b.Held(), b.Holders())
		}
		a.Want(false, time.Time{})
		if a.Held() {
			t.Error("a holds what it no longer wants")
		}
		time.Sleep(2*askEvery + longestLeave)
		if !a.GivenBack() || b.GivenBack() {
			t.Errorf("given back by a: %v, by b: %v", a.GivenBack(), b.GivenBack())
		}
		if !b.Held() || len(b.Holders()) != 0 {
			t.Errorf("b holds %v and sees %v", b.Held(), b.Holders())
		}
	})
}

func TestOfThoseWhoWaitTheOneWithTheLeastTimeGoesFirst(t *testing.T) {
	left := map[string]time.Duration{"soon": time.Minute, "never": 0} // from when the slot is free
	for range 40 {                                                    // the pauses are of random length
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			holder := start(t, s, "holder", 1)
			holder.Want(true, time.Time{})
			time.Sleep(time.Second)
			const wait = time.Minute
			waiting := map[string]*node{}
			for name, d := range left {
				due := time.Time{}
				if d > 0 {
					due = time.Now().Add(wait + d)
				}
				waiting[name] = start(t, s, name, 1)
				waiting[name].Want(true, due)
			}
			time.Sleep(wait)
			holder.Want(false, time.Time{})
			for _, next := range []string{"soon", "never"} {
				freed := time.Now()
				for !waiting[next].Held() {
					time.Sleep(100 * time.Millisecond)
					for name, n := range waiting {
						if name != next && n.Held() {
							t.Fatalf("%s goes before %s", name, next)
						}
					}
					if time.Since(freed) > 2*longestLeave+2*askEvery {
						t.Fatalf("%s has waited for %s for a slot that is free", next, time.Since(freed))
					}
				}
				waiting[next].Want(false, time.Time{})
				delete(waiting, next)
			}
		})
	}
}

func TestWhoWantsNothingAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := start(t, s, "a", 1)
		time.Sleep(24 * time.Hour)
		if n := s.count(); n != 0 {
			t.Errorf("%d requests before a slot was wanted", n)
		}
		a.Want(true, time.Time{})
		time.Sleep(time.Minute)
		a.Want(false, time.Time{})
		time.Sleep(time.Minute)
		before := s.count()
		time.Sleep(24 * time.Hour)
		if n := s.count(); before == 0 || n != before {
			t.Errorf("%d requests while a slot was wanted, %d after that", before, n-before)
		}
	})
}

func TestADeadHoldersSlotIsTakenOverAfterItsTimeAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, b := start(t, s, "a", 1), start(t, s, "b", 1)
		a.Want(true, time.Time{})
		time.Sleep(time.Second)
		b.Want(true, time.Time{})
		time.Sleep(time.Minute)
		a.crash()
		time.Sleep(duration - renewEvery)
		if b.Held() {
			t.Error("taken over while it may still be held")
		}
		time.Sleep(renewEvery + 2*askEvery + longestLeave)
		if !b.Held() {
			t.Errorf("not taken over: b sees %v", b.Holders())
		}
	})
}

func TestI8WhoComesBackInTimeHasItsSlotStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, b := start(t, s, "a", 1), start(t, s, "b", 1)
		a.Want(true, time.Time{})
		time.Sleep(time.Second)
		b.Want(true, time.Time{})
		time.Sleep(time.Minute)
		a.crash()
		time.Sleep(duration / 2)
		a = start(t, s, "a", 1)
		a.Want(true, time.Time{})
		time.Sleep(time.Second)
		if !a.Held() || b.Held() {
			t.Errorf("a holds %v, b holds %v", a.Held(), b.Held())
		}
	})
}

func TestWhoCannotRenewLosesTheSlotBeforeAnotherGetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := start(t, s, "a", 1)
		a.Want(true, time.Time{})
		time.Sleep(time.Second)
		s.mu.Lock()
		s.trouble = func() (time.Duration, bool, bool) { return time.Hour, false, false }
		s.mu.Unlock()
		time.Sleep(keepFor)
		if a.Held() {
			t.Error("still held after its time")
		}
	})
}

func TestI10BadOptionsAreRefusedByName(t *testing.T) {
	for want, o := range map[string]Options{
		"namespace": {Holder: "n", Limit: 1},
		"holder":    {Namespace: "s", Limit: 1},
		"0: want":   {Namespace: "s", Holder: "n"},
		"17: want":  {Namespace: "s", Holder: "n", Limit: 17},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v does not say %q", o, err, want)
		}
	}
}

// act is what happens to one of the nodes at one moment.
type act struct {
	after time.Duration
	node  int
	what  string // want, rest, crash, start, cut, mend
}

// story is a cluster whose nodes come, go and die, on an API server with troubles of its own.
type story struct {
	limit, nodes int
	acts         []act
	fails, mute  int // in a hundred
	slow         time.Duration
	seed         []int
}

func drawStory(t *rapid.T) story {
	w := story{
		limit: rapid.IntRange(1, 2).Draw(t, "limit"), nodes: rapid.IntRange(3, 6).Draw(t, "nodes"),
		fails: rapid.SampledFrom([]int{0, 0, 10, 40}).Draw(t, "fails"),
		mute:  rapid.SampledFrom([]int{0, 0, 10, 30}).Draw(t, "unanswered"),
		slow:  rapid.SampledFrom([]time.Duration{0, time.Second, 8 * time.Second}).Draw(t, "slow"),
		seed:  rapid.SliceOfN(rapid.IntRange(0, 99), 50, 50).Draw(t, "dice"),
	}
	for range rapid.IntRange(10, 40).Draw(t, "acts") {
		w.acts = append(w.acts, act{
			after: time.Duration(rapid.IntRange(0, 40).Draw(t, "after")) * time.Second,
			node:  rapid.IntRange(0, w.nodes-1).Draw(t, "node"),
			what:  rapid.SampledFrom([]string{"want", "want", "want", "rest", "crash", "start", "cut", "mend"}).Draw(t, "what"),
		})
	}
	return w
}

// play runs the story and returns what was broken. Time is not real.
func (w story) play(t *testing.T) (broken []string) {
	s := newServer()
	throws := 0
	s.trouble = func() (time.Duration, bool, bool) {
		throws++
		dice := w.seed[throws%len(w.seed)]
		return w.slow * time.Duration(dice) / 100, dice < w.fails, (dice+throws)%100 < w.mute
	}
	nodes := make([]*node, w.nodes)
	wants := make([]bool, w.nodes)
	alive := make([]bool, w.nodes)
	for i := range nodes {
		nodes[i], alive[i] = start(t, s, fmt.Sprint("node-", i), w.limit), true
		nodes[i].Want(true, time.Time{})
		wants[i] = true
	}
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); {
			time.Sleep(100 * time.Millisecond)
			held := 0
			for i := range nodes {
				if alive[i] && nodes[i].Held() {
					held++
				}
			}
			if held > w.limit {
				broken = append(broken, fmt.Sprintf("%d slots held, the limit is %d", held, w.limit))
				return
			}
		}
	}
	for _, a := range w.acts {
		watch(a.after)
		switch n := nodes[a.node]; {
		case a.what == "want" || a.what == "rest":
			wants[a.node] = a.what == "want"
			n.Want(wants[a.node], time.Time{})
		case a.what == "cut" || a.what == "mend":
			n.link.cut.Store(a.what == "cut")
		case a.what == "crash" && alive[a.node]:
			n.crash()
			alive[a.node] = false
		case a.what == "start" && !alive[a.node]:
			nodes[a.node], alive[a.node] = start(t, s, fmt.Sprint("node-", a.node), w.limit), true
			nodes[a.node].Want(wants[a.node], time.Time{})
		}
	}
	// No deadlock: with the troubles over, everybody who wants a slot gets one, if each gives his back.
	s.mu.Lock()
	s.trouble = func() (time.Duration, bool, bool) { return time.Millisecond, false, false }
	s.mu.Unlock()
	for _, n := range nodes {
		n.link.cut.Store(false)
	}
	for left := w.nodes; left > 0 && len(broken) == 0; left-- {
		watch(longest)
		waiting, served := false, false
		for i, n := range nodes {
			switch {
			case !alive[i] || !wants[i]:
			case n.Held():
				n.Want(false, time.Time{})
				wants[i], served = false, true
			default:
				waiting = true
			}
		}
		if waiting && !served {
			broken = append(broken, "somebody waits, and nobody holds a slot")
		}
	}
	for i, n := range nodes {
		if alive[i] {
			n.crash()
		}
	}
	return broken
}

func TestNeverMoreHoldersThanSlotsAndNobodyWaitsForEver(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawStory(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = w.play(t) })
		if len(broken) > 0 {
			rt.Fatal(strings.Join(broken, "; "))
		}
	})
}
