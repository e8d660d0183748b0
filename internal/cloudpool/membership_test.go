package cloudpool

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

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// members is a pool of which nothing but memberships and sizes is asked.
type members struct {
	Backend
	pool  api.Pool
	size  api.Size
	fails map[string]error
	asked []string
}

// Pool is observed anew each time.
func (m *members) Pool(context.Context) (api.Pool, error) {
	m.pool.Timestamp = m.pool.Timestamp.Add(time.Millisecond)
	return m.pool, m.fails["pool"]
}

func (m *members) Size(context.Context) (api.Size, error) { return m.size, m.fails["size"] }

func (m *members) SetDesiredSize(_ context.Context, n int) error {
	if err := m.fails["desired"]; err != nil {
		return err
	}
	m.size.Desired = n
	m.asked = append(m.asked, "desired")
	return nil
}

func (m *members) SetMembershipStatus(_ context.Context, s api.SetMembershipStatus) error {
	for i := range m.pool.Machines {
		if m.pool.Machines[i].ID == s.MachineID {
			m.pool.Machines[i].Membership = &s.MembershipStatus
		}
	}
	m.asked = append(m.asked, "membership")
	return m.fails["membership"]
}

func (m *members) active() int {
	n := 0
	for i := range m.pool.Machines {
		if m.pool.Machines[i].Active() {
			n++
		}
	}
	return n
}

// pooled is a pool of machines of these memberships, and what size it is meant to have.
func pooled(desired int, memberships ...api.MembershipStatus) *members {
	m := &members{size: api.Size{Desired: desired}, fails: map[string]error{}}
	for i := range memberships {
		m.pool.Machines = append(m.pool.Machines, api.Machine{ID: string(rune('a' + i)), State: api.Running, Membership: &memberships[i]})
	}
	return m
}

var (
	plain   = api.MembershipStatus{Active: true, Evictable: true}
	blessed = api.MembershipStatus{Active: true}
	waiting = api.MembershipStatus{}
)

func TestI1AMembershipLeavesThePoolsServerNothingToTakeAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			pool    *members
			machine string
			to      api.MembershipStatus
			refused bool
			asked   []string
		}{
			"one that counts again raises the size":      {pooled(2, waiting, plain, plain), "a", plain, false, []string{"desired", "membership"}},
			"also one that is to be kept":                {pooled(2, waiting, plain, plain), "a", blessed, false, []string{"desired", "membership"}},
			"also where there seems to be room for it":   {pooled(3, waiting, plain, plain), "a", plain, false, []string{"desired", "membership"}},
			"one that stops counting is replaced":        {pooled(3, plain, plain, plain), "a", waiting, false, []string{"membership"}},
			"one that is kept is not taken":              {pooled(1, plain, plain), "a", blessed, false, []string{"membership"}},
			"one that is not kept any more":              {pooled(2, blessed, plain), "a", plain, false, []string{"membership"}},
			"one that is not, while there are too many":  {pooled(1, blessed, plain), "a", plain, true, nil},
			"what is so already":                         {pooled(1, plain, plain), "a", plain, false, []string{"membership"}},
			"one that is unknown is the server's matter": {pooled(1, plain), "x", plain, false, []string{"membership"}},
		} {
			want := api.SetMembershipStatus{MachineID: tt.machine, MembershipStatus: tt.to}
			surplus := max(0, tt.pool.active()-tt.pool.size.Desired)
			err := raised{}.setWithRoom(t.Context(), tt.pool, want)
			if refused := resultOf(err) == NotPossible; refused != tt.refused || err != nil && !refused || !slices.Equal(tt.pool.asked, tt.asked) {
				t.Errorf("%s: %v, asked for %v; want %v", name, err, tt.pool.asked, tt.asked)
			}
			if now := max(0, tt.pool.active()-tt.pool.size.Desired); now > surplus {
				t.Errorf("%s: %d active machines are too many, and were %d before", name, now, surplus)
			}
		}
	})
}

func TestAMachineIsLeftAsItIsWhenTheSizeCannotBeRaised(t *testing.T) {
	want := api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain}
	pool := pooled(1, waiting, plain)
	pool.fails["desired"] = errors.New("502")
	err := raised{}.setWithRoom(t.Context(), pool, want)
	if err == nil || !strings.Contains(err.Error(), "cannot be raised to 2") || *pool.pool.Machines[0].Membership != waiting || len(pool.asked) > 0 {
		t.Errorf("%v, %+v, asked for %v", err, pool.pool.Machines[0].Membership, pool.asked)
	}
	pool = pooled(1, waiting, plain)
	pool.fails["membership"] = errors.New("502")
	err = raised{}.setWithRoom(t.Context(), pool, want)
	if err == nil || !strings.Contains(err.Error(), "was raised to 2 for machine a, which is not made active") {
		t.Errorf("%v", err)
	}
	for _, what := range []string{"pool", "size"} {
		pool := pooled(1, waiting, plain)
		pool.fails[what] = errors.New("away")
		if err := (raised{}).setWithRoom(t.Context(), pool, want); !errors.Is(err, pool.fails[what]) || len(pool.asked) > 0 {
			t.Errorf("%s away: %v, asked for %v", what, err, pool.asked)
		}
	}
}

// stale is a pool that is observed once and for all.
type stale struct {
	*members
	seen api.Pool
}

func (s *stale) Pool(context.Context) (api.Pool, error) { return s.seen, nil }

// TestI1MachinesThatCountAgainBetweenTwoObservationsEachRaiseTheSize has a server that answers with what it observed before, so
// that each has room made for the one, too, that may have been launched for it meanwhile.
func TestI1MachinesThatCountAgainBetweenTwoObservationsEachRaiseTheSize(t *testing.T) {
	pool := &stale{members: pooled(3, waiting, waiting, plain, plain, plain)}
	for _, m := range pool.pool.Machines {
		was := *m.Membership
		m.Membership = &was
		pool.seen.Machines = append(pool.seen.Machines, m)
	}
	pool.seen.Timestamp = time.Now()
	r := raised{}
	for _, id := range []string{"a", "b", "a", "b"} { // the second time they are asked for again, which is not to raise it again
		if err := r.setWithRoom(t.Context(), pool, api.SetMembershipStatus{MachineID: id, MembershipStatus: plain}); err != nil {
			t.Fatal(err)
		}
	}
	if pool.size.Desired != 7 || pool.active() != 5 {
		t.Errorf("%d machines are active, and %d meant to be; want 5, and 7", pool.active(), pool.size.Desired)
	}
}

// looping is a pool's server as the reference server is: it goes by a size at once, by what its cloud says then, and by a
// membership at the next turn of its loop, when it takes those machines that have served longest if there are too many. Those
// that are disposable it takes each time.
type looping struct {
	Backend
	mu       sync.Mutex
	pool     api.Pool
	size     int
	launched int
	cached   time.Duration // how old what it answers may be
	answer   api.Pool
	takes    []string      // the machines that it took
	slow     time.Duration // what a membership takes
	fails    int           // sizes after which no more are taken; 0 is none
	lazy     bool          // launches nothing for a size
	refuses  error         // of a membership
}

const loopEvery = 60 * time.Second

// turn brings the pool to its size.
func (l *looping) turn() {
	for i := range l.pool.Machines {
		if m := &l.pool.Machines[i]; !m.State.Over() && m.Membership.Disposable() {
			m.State = api.Terminating
			l.takes = append(l.takes, m.ID)
		}
	}
	active := activeIn(&l.pool)
	for ; active < l.size; active++ {
		l.launched++
		l.pool.Machines = append(l.pool.Machines, api.Machine{ID: fmt.Sprint("new-", l.launched), State: api.Running, Membership: &plain})
	}
	for i := range l.pool.Machines {
		if m := &l.pool.Machines[i]; active > l.size && m.Active() && m.Membership.Evictable {
			m.State, active = api.Terminating, active-1
			l.takes = append(l.takes, m.ID)
		}
	}
}

func (l *looping) loop(ctx context.Context) {
	for {
		select {
		case <-time.After(loopEvery):
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		l.turn()
		l.mu.Unlock()
	}
}

func (l *looping) Pool(context.Context) (api.Pool, error) {
	time.Sleep(time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.answer.Timestamp) > l.cached {
		l.answer = api.Pool{Timestamp: time.Now(), Machines: slices.Clone(l.pool.Machines)}
	}
	return l.answer, nil
}

func (l *looping) Size(context.Context) (api.Size, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return api.Size{Desired: l.size}, nil
}

func (l *looping) SetDesiredSize(_ context.Context, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails > 0 && n >= l.fails {
		return errors.New("502")
	}
	l.size = n
	if !l.lazy {
		l.turn()
	}
	return nil
}

func (l *looping) SetMembershipStatus(_ context.Context, s api.SetMembershipStatus) error {
	time.Sleep(l.slow)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuses != nil {
		return l.refuses
	}
	for i := range l.pool.Machines {
		if l.pool.Machines[i].ID == s.MachineID {
			l.pool.Machines[i].Membership = &s.MembershipStatus
		}
	}
	return nil
}

// TestI1AMachineThatCountsAgainAfterAnotherWasLaunchedForItHasNoneTakenAway has a server that launches one between the two calls.
func TestI1AMachineThatCountsAgainAfterAnotherWasLaunchedForItHasNoneTakenAway(t *testing.T) {
	for name, cached := range map[string]time.Duration{"a server that looks for each answer": 0, "one that answers with what it has seen": 30 * time.Second} {
		for refused, fails := range map[string]int{"": 0, ", and takes no larger size": 5} {
			t.Run(name+refused, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, end := context.WithCancel(t.Context())
					pool := &looping{pool: pooled(3, waiting, plain, plain, plain).pool, size: 3, cached: cached, slow: 400 * time.Millisecond, fails: fails}
					go pool.loop(ctx)
					time.Sleep(loopEvery - 2*time.Second)
					err := raised{}.setWithRoom(t.Context(), pool, api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain})
					if (err == nil) != (fails == 0) || err != nil && !strings.Contains(err.Error(), "put aside again") {
						t.Error(err)
					}
					time.Sleep(3 * loopEvery)
					end()
					synctest.Wait()
					if len(pool.takes) > 0 || fails == 0 && pool.size != 5 || fails > 0 && pool.size != 4 {
						t.Errorf("the server took %q, and the desired size is %d", pool.takes, pool.size)
					}
				})
			})
		}
	}
}

// deaf is a pool's server that some reads of its pool fail at, the first being 1.
type deaf struct {
	*looping
	reads int
	fails func(n int) bool
}

func (d *deaf) Pool(ctx context.Context) (api.Pool, error) {
	if d.reads++; d.fails(d.reads) {
		return api.Pool{}, errors.New("502")
	}
	return d.looping.Pool(ctx)
}

func TestAFailedReadOfThePoolRaisesTheSizeOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		fails func(int) bool
		size  int
	}{
		"each second one":              {func(n int) bool { return n%2 == 0 }, 4},
		"all after the machine counts": {func(n int) bool { return n > 1 }, 5}, // nobody knows whether one was launched
	} {
		synctest.Test(t, func(t *testing.T) {
			pool := &deaf{&looping{pool: pooled(3, waiting, plain, plain, plain).pool, size: 3, lazy: true}, 0, tt.fails}
			if err := (raised{}).setWithRoom(t.Context(), pool, api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if pool.size != tt.size || *pool.pool.Machines[0].Membership != plain {
				t.Errorf("%s: the desired size is %d, the machine is %+v; want %d, and a machine that counts", name, pool.size, pool.pool.Machines[0].Membership, tt.size)
			}
		})
	}
}

func TestWhoAsksAgainForAMachineToCountDoesNotRaiseTheSizeAgain(t *testing.T) {
	want := api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain}
	for name, change := range map[string]func(*looping){
		"no room can be made":               func(l *looping) { l.fails = 5 },
		"the machine cannot be made active": func(l *looping) { l.refuses = errors.New("502") },
	} {
		synctest.Test(t, func(t *testing.T) {
			pool := &looping{pool: pooled(3, waiting, plain, plain, plain).pool, size: 3, slow: time.Millisecond}
			change(pool)
			r := raised{}
			for range 4 {
				if err := r.setWithRoom(t.Context(), pool, want); err == nil {
					t.Errorf("%s: no failure", name)
				}
				if pool.size != 4 || *pool.pool.Machines[0].Membership != waiting {
					t.Errorf("%s: the desired size is %d, the machine is %+v; want 4, and it as it was", name, pool.size, pool.pool.Machines[0].Membership)
				}
				time.Sleep(time.Minute)
			}
			pool.fails, pool.refuses = 0, nil
			if err := r.setWithRoom(t.Context(), pool, want); err != nil || pool.size != 5 || activeIn(&pool.pool) != 5 {
				t.Errorf("%s, and then: %v; %d machines are active, and %d meant to be; want 5", name, err, activeIn(&pool.pool), pool.size)
			}
			pool.lazy = true
			_ = pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: "a"}) // by others
			time.Sleep(time.Second)
			if err := r.setWithRoom(t.Context(), pool, want); err != nil || pool.size != 6 {
				t.Errorf("%s, and once it was put aside anew: %v; the desired size is %d, want 6", name, err, pool.size)
			}
		})
	}
}

// TestI1AMachineThatIsToCountAgainIsNotDisposedOf has it be one that its server takes as soon as it looks, as it does for a size.
func TestI1AMachineThatIsToCountAgainIsNotDisposedOf(t *testing.T) {
	disposable := api.MembershipStatus{Evictable: true}
	for name, tt := range map[string]struct {
		fails int // sizes from there on
		want  api.MembershipStatus
		size  int
	}{
		"it counts":                 {0, plain, 5},
		"no room can be made":       {5, waiting, 4},
		"the size cannot be raised": {4, waiting, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			pool := &looping{pool: pooled(3, disposable, plain, plain, plain).pool, size: 3, slow: time.Millisecond, fails: tt.fails}
			go pool.loop(ctx)
			err := raised{}.setWithRoom(t.Context(), pool, api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain})
			time.Sleep(2 * loopEvery)
			end()
			synctest.Wait()
			if is := *pool.pool.Machines[0].Membership; (err == nil) != (tt.fails == 0) || len(pool.takes) > 0 || is != tt.want || pool.size != tt.size {
				t.Errorf("%s: %v; the server took %q, the machine is %+v, and the desired size %d; want %+v, and %d", name, err, pool.takes, is,
					pool.size, tt.want, tt.size)
			}
		})
	}
	pool := &looping{pool: pooled(3, disposable, plain, plain, plain).pool, size: 3, refuses: errors.New("502")}
	if err := (raised{}).setWithRoom(t.Context(), pool, api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain}); !errors.Is(err, pool.refuses) || pool.size != 3 {
		t.Errorf("%v, and a desired size of %d; want none that is larger for a machine that cannot be kept", err, pool.size)
	}
}

// TestWhoAsksAgainElsewhereForAMachineToCountDoesNotRaiseTheSizeAgain asks two processes in turn, and one that was started since.
func TestWhoAsksAgainElsewhereForAMachineToCountDoesNotRaiseTheSizeAgain(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.pool.machines[0].Membership = &api.MembershipStatus{}
		s.pool.fail("membership", errors.New("502"))
		count := func(u *Updater) error {
			defer s.passes(15 * time.Second)
			return u.Exclusively(t.Context(), func(ctx context.Context) error {
				return u.setMembership(ctx, api.SetMembershipStatus{MachineID: uuid(1), MembershipStatus: plain})
			})
		}
		a, b := s.replica("a"), s.replica("b")
		for _, u := range []*Updater{a, b, a, b} {
			if err := count(u); err == nil {
				t.Error("no failure")
			}
		}
		if s.pool.size != 4 {
			t.Errorf("a desired size of %d, want 4", s.pool.size)
		}
		begun(t, a, Update{Kind: SetSize, DesiredSize: 3}) // whose record is the same
		s.passes(30 * time.Second)
		s.pool.size = 4 // as somebody else has it again
		if err := count(s.replica("c")); err == nil || s.pool.size != 4 {
			t.Errorf("%v, and a desired size of %d; want 4", err, s.pool.size)
		}
		s.pool.fail("membership", nil)
		if err := count(b); err != nil || s.pool.size != 4 || *s.pool.machines[0].Membership != plain {
			t.Errorf("%v, a desired size of %d, and %+v; want 4, and it to count", err, s.pool.size, s.pool.machines[0].Membership)
		}
	})
}

// TestI1ARecordThatCannotBeWrittenDelaysNoRoom has each write of it hang, and the turn of the server's loop come at any time.
func TestI1ARecordThatCannotBeWrittenDelaysNoRoom(t *testing.T) {
	for at := time.Second; at < 30*time.Second; at += 4 * time.Second {
		simulate(t, 0, func(t *testing.T, s *sim) {
			pool := &looping{pool: pooled(3, waiting, plain, plain, plain).pool, size: 3, slow: time.Millisecond}
			s.kube.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				time.Sleep(8 * time.Second)
				return true, nil, context.DeadlineExceeded
			})
			a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
			ctx, end := context.WithCancel(t.Context())
			go pool.loop(ctx)
			time.Sleep(loopEvery - at)
			err := a.Exclusively(t.Context(), func(ctx context.Context) error {
				return a.setMembership(ctx, api.SetMembershipStatus{MachineID: "a", MembershipStatus: plain})
			})
			time.Sleep(2 * loopEvery)
			end()
			synctest.Wait()
			if err != nil || len(pool.takes) > 0 || pool.size != 5 {
				t.Errorf("%s before the turn: %v; the server took %q, and the desired size is %d; want none, and 5", at, err, pool.takes, pool.size)
			}
		})
	}
}

// TestWhoAsksAgainWhenTheRecordIsThereAgainDoesNotRaiseTheSizeAgain has the API server be away, or take no record, as it is asked
// before.
func TestWhoAsksAgainWhenTheRecordIsThereAgainDoesNotRaiseTheSizeAgain(t *testing.T) {
	for _, verb := range []string{"get", "create"} {
		t.Run(verb, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{}
				s.pool.fail("membership", errors.New("502"))
				var away atomic.Bool
				s.kube.PrependReactor(verb, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return away.Load(), nil, errors.New("away")
				})
				a := s.replica("a")
				for _, is := range []bool{true, true, false, false} {
					away.Store(is)
					s.leases.cutOff("a", is && verb == "get")
					err := a.Exclusively(t.Context(), func(ctx context.Context) error {
						return a.setMembership(ctx, api.SetMembershipStatus{MachineID: uuid(1), MembershipStatus: plain})
					})
					if err == nil || s.pool.size != 4 {
						t.Errorf("%s, away %v: %v, and a desired size of %d; want 4", verb, is, err, s.pool.size)
					}
					s.passes(15 * time.Second)
				}
				if r, err := a.written(t.Context()); err != nil || r.Raised[uuid(1)].To != 4 {
					t.Errorf("%s: %+v, %v; want it written down in the end", verb, r, err)
				}
			})
		})
	}
}

// TestI1WhatAnotherProcessHasSeenToIsNotRemembered has a process fail at a machine that another one has count then, and put aside
// again. The first one cannot read the record meanwhile, as it changes another machine.
func TestI1WhatAnotherProcessHasSeenToIsNotRemembered(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.pool.machines[0].Membership = &api.MembershipStatus{}
		s.pool.fail("membership", errors.New("502"))
		var away atomic.Bool
		s.kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("away")
		})
		set := func(u *Updater, machine int, to api.MembershipStatus) error {
			defer s.passes(15 * time.Second)
			return u.Exclusively(t.Context(), func(ctx context.Context) error {
				return u.setMembership(ctx, api.SetMembershipStatus{MachineID: uuid(machine), MembershipStatus: to})
			})
		}
		a, b := s.replica("a"), s.replica("b")
		if err := set(a, 1, plain); err == nil || s.pool.size != 4 {
			t.Fatalf("%v, and a desired size of %d", err, s.pool.size)
		}
		s.pool.fail("membership", nil)
		if err := errors.Join(set(b, 1, plain), set(b, 1, api.MembershipStatus{})); err != nil {
			t.Fatal(err)
		}
		away.Store(true)
		s.leases.cutOff("a", true)
		if err := set(a, 2, api.MembershipStatus{Active: true}); err != nil {
			t.Fatal(err)
		}
		away.Store(false)
		s.leases.cutOff("a", false)
		was := s.pool.size
		if err := set(a, 1, plain); err != nil || s.pool.size != was+1 {
			t.Errorf("%v, and a desired size of %d after one of %d; want it one larger for the machine", err, s.pool.size, was)
		}
	})
}
