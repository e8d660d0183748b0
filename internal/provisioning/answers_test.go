package provisioning

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// busy has a cloud take orders without an answer until the function that it gives is called.
func (f *fixture) busy() (answer func()) {
	f.t.Helper()
	return f.hold(func(until chan struct{}) { f.pool.busy = until })
}

// silent has a cloud not say what there is until the function that it gives is called.
func (f *fixture) silent() (answer func()) {
	f.t.Helper()
	return f.hold(func(until chan struct{}) { f.pool.silent = until })
}

// stuck has a cloud not say how a machine is until the function that it gives is called. Anything else is answered.
func (f *fixture) stuck() (answer func()) {
	f.t.Helper()
	answer = f.hold(func(until chan struct{}) { f.pool.stuck = until })
	f.patience = time.Minute
	return answer
}

func (f *fixture) hold(set func(chan struct{})) (release func()) {
	f.t.Helper()
	until := make(chan struct{})
	f.pool.change(func() { set(until) })
	f.patience = 0
	release = sync.OnceFunc(func() {
		f.pool.change(func() { set(nil) })
		close(until)
		f.work.Wait()
		f.patience = time.Minute
	})
	f.t.Cleanup(release)
	return release
}

func (f *fixture) looked() []string { defer f.pool.locked()(); return slices.Clone(f.pool.looked) }

func (f *fixture) reads() int { defer f.pool.locked()(); return f.pool.reads }

func (f *fixture) calls() int { defer f.pool.locked()(); return f.pool.asked }

func (f *fixture) readOnce() {
	f.t.Helper()
	f.look() // the group is known
	f.work.Wait()
}

func TestAnOrderWithoutAnAnswerHoldsUpNoPodThatComesLater(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	answer := f.busy()
	for i, pod := range []string{"a", "b", "c"} {
		f.wait(pod)
		f.look()
		f.until("a machine for pod "+pod+" is asked for", func() bool { return f.calls() == i+1 })
	}
	f.look()
	if s := f.status(); s.OnTheWay != 3 || f.calls() != 3 {
		t.Errorf("%d orders, and status is %+v: want three, with a machine each on the way", f.calls(), s)
	}
	answer()
	for range 2 {
		f.look()
	}
	if got := f.pool.ordered(); len(got) != 3 || f.calls() != 3 {
		t.Errorf("orders are %v", got)
	}
	if s := f.status(); s.OnTheWay != 3 || len(s.Awaited) != 3 {
		t.Errorf("status is %+v, want three machines that are ours", s)
	}
	if notes := f.told(eventBackedOff); len(notes) > 0 {
		t.Errorf("Events are %q", notes)
	}
}

func TestI5OrdersWithoutAnAnswerCountAgainstTheMaximum(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Maximum = new(int32(2)) })
	f.readOnce()
	answer := f.busy()
	f.wait("a", "b")
	f.look()
	f.wait("c")
	for range 3 {
		f.look()
		f.until("the cloud was asked", func() bool { return f.calls() == 1 })
	}
	answer()
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || got[0].Count != 2 {
		t.Errorf("orders are %v, want one of 2", got)
	}
}

func TestARefusalThatComesLateHasTheNextKindOrdered(t *testing.T) {
	f := withoutSpot(t)
	f.readOnce()
	answer := f.busy()
	f.wait("a")
	f.look()
	f.look()
	if s := f.status(); s.OnTheWay != 1 || len(s.BackOffs) != 0 {
		t.Fatalf("status is %+v before the answer", s)
	}
	answer()
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("orders are %v, want one of m4", got)
	}
	if s := f.status(); s.OnTheWay != 1 || len(s.BackOffs) != 1 || s.BackOffs[0].Template != "spot" {
		t.Errorf("status is %+v, want spot left alone", s)
	}
}

func TestI7AfterAnOrderThatFailedTheGroupIsReadBeforeTheNext(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	f.pool.change(func() { f.pool.refuse["m4"] = &cloud.ThrottledError{Err: errors.New("429")} })
	f.wait("a")
	f.look()
	f.memory["web"].backOffs = map[string]v1alpha1.BackOff{} // as when it is over
	f.pool.change(func() { f.pool.refuse = nil })
	answer := f.silent()
	f.look()
	if got := f.calls(); got != 1 {
		t.Fatalf("%d orders, the second before the group was read", got)
	}
	answer()
	f.look()
	if got := f.pool.ordered(); len(got) != 1 {
		t.Errorf("orders are %v once it has been read", got)
	}
}

func TestACloudThatAsksToBeLeftAloneIsForAsLong(t *testing.T) {
	const wish = 7 * time.Minute
	throttled := fmt.Errorf("creating a server: %w", &cloud.ThrottledError{After: wish, Err: errors.New("429")})
	for name, set := range map[string]func(*pool){
		"when it is read":       func(p *pool) { p.unread = throttled },
		"when it lists kinds":   func(p *pool) { p.unlisted = throttled },
		"when it gets an order": func(p *pool) { p.refuse["m4"] = throttled },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pool.change(func() { set(f.pool) })
			f.wait("a")
			from := time.Now()
			for range 3 {
				f.look()
			}
			if f.reads() != 1 {
				t.Errorf("the cloud was read %d times", f.reads())
			}
			m := f.memory["web"]
			if b, there := m.backOffs["m4"]; there != (f.calls() > 0) || there && b.Until.Before(&metav1.Time{Time: from.Add(wish)}) {
				t.Errorf("after %d orders the kind is left alone until %s, want %s at the least from %s", f.calls(), b.Until, wish, from)
			}
			f.pool.change(func() { f.pool.unread, f.pool.unlisted, f.pool.refuse = nil, nil, nil })
			m.quiet, m.backOffs = time.Now(), map[string]v1alpha1.BackOff{} // as when it is over
			f.look()
			if got := f.pool.ordered(); len(got) != 1 {
				t.Errorf("orders are %v after that", got)
			}
		})
	}
}

func TestAKindIsLeftAloneFromWhenItsOrderWasRefused(t *testing.T) {
	f := withoutSpot(t)
	f.readOnce()
	answer := f.busy()
	f.wait("a")
	f.look()
	f.until("the cloud was asked", func() bool { return f.calls() == 1 })
	answered := time.Now()
	answer()
	f.look()
	b := f.memory["web"].backOffs["spot"]
	if least := answered.Add(launch.Pause(b.Reason, 1)); b.Until.Before(&metav1.Time{Time: least}) {
		t.Errorf("it is left alone until %s, want %s at the least", b.Until, least)
	}
}

func TestACloudThatIsSlowToReadHoldsUpNoOrder(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	answer := f.silent()
	f.wait("a")
	f.look()
	f.until("a machine is asked for", func() bool { return f.calls() == 1 })
	f.look()
	answer()
	for range 2 {
		f.look()
	}
	if got := f.pool.ordered(); len(got) != 1 {
		t.Errorf("orders are %v, want one", got)
	}
	if notes := f.told(eventBackedOff); len(notes) > 0 {
		t.Errorf("Events are %q", notes)
	}
}

func TestAWishIsNotGrantedAgainWhileItsOrderHasNoAnswerAndIsWhenItFailed(t *testing.T) {
	f := withoutSpot(t)
	f.readOnce()
	answer := f.busy()
	f.o.Wishes.Ask(plan.Wish{ID: "w", Group: "web", Count: 1})
	for range 3 {
		f.look()
		f.until("the cloud was asked", func() bool { return f.calls() == 1 })
	}
	answer()
	f.look()
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("orders are %v, want one of m4", got)
	}
	f.look()
	if open := f.o.Wishes.open(); len(open) != 0 || f.calls() != 2 {
		t.Errorf("open is %v after %d orders", open, f.calls())
	}
}

// woken reports whether the next look is to begin soon, and forgets it.
func (f *fixture) woken() bool {
	select {
	case <-f.wake:
		return true
	default:
		return false
	}
}

func TestWhatIsWaitedForHasTheNextLookBeginWhenItComesLate(t *testing.T) {
	f := withoutSpot(t)
	answer := f.silent()
	f.look() // the group has never been read
	f.woken()
	answer()
	if !f.woken() {
		t.Error("a group that has been read at last waits for the next look")
	}
	f.look()
	answer = f.silent()
	f.look()
	f.woken()
	answer()
	if f.woken() {
		t.Error("a group that was read again has a look begin")
	}
	f.look()
	answer = f.busy()
	f.wait("a")
	f.look()
	f.woken()
	answer()
	if !f.woken() {
		t.Error("an order that was refused at last waits for the next look")
	}
}

func TestAMachineThatIsGivenUpWithoutAnAnswerHoldsUpNoOrderAndIsAskedForOnce(t *testing.T) {
	f := dead(t)
	f.pool.change(func() { f.pool.templates = []string{"m4", "m8"} }) // m4 is left alone
	answer := f.stuck()
	for i, pod := range []string{"b", "c", "d"} {
		f.wait(pod)
		f.look()
		f.until("a machine for pod "+pod+" is asked for", func() bool { return f.calls() == i+2 })
	}
	f.until("the machine is asked for", func() bool { return len(f.looked()) > 0 })
	if got := f.looked(); len(got) != 1 {
		t.Errorf("machines that are given up: %q", got)
	}
	answer()
	if !f.woken() {
		t.Error("what may come in the place of a machine that is given up waits for the next look")
	}
	f.look()
	if notes := f.told(eventGivenUp); !slices.Equal(f.pool.deleted, []string{"id-0"}) || len(notes) != 1 {
		t.Errorf("deleted is %v, Events are %q", f.pool.deleted, notes)
	}
}

func TestOfManyMachinesThatAreGivenUpAFewAreAtOnceAndAllInTheEnd(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Minimum, g.Spec.Maximum = 2*mostGivenUp+1, new(int32(100)) })
	f.look()
	f.look() // sees the machines, and writes them down
	f.pool.change(func() {
		for i := range f.pool.machines {
			f.pool.machines[i].State = cloud.Failed
		}
	})
	answer := f.stuck()
	for range 3 {
		f.look()
		f.until("machines are asked for", func() bool { return len(f.looked()) == mostGivenUp })
	}
	answer()
	for range 2 {
		f.look()
		f.work.Wait()
	}
	if got := len(f.pool.deleted); got != 2*mostGivenUp+1 {
		t.Errorf("%d machines are deleted, want %d", got, 2*mostGivenUp+1)
	}
}

func TestARefusalDuringAnOlderReadHasTheGroupReadAgainSoon(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	f.pool.change(func() { f.pool.refuse["m4"] = &cloud.ThrottledError{Err: errors.New("429")} })
	read := f.silent()
	f.wait("a")
	f.look() // the cloud is asked, and then refuses the order
	f.until("the order is refused", func() bool { f.settle(f.last); return f.memory["web"].unsure() })
	f.look()
	f.woken()
	read()
	if !f.woken() {
		t.Error("a group that nothing is ordered for until it has been read waits for the next look")
	}
	f.settle(f.last)
	if !f.woken() {
		t.Error("what was read is older than the refusal, and the next look does not begin soon")
	}
}

func TestAMachineThatHasJoinedSinceItsCloudWasReadIsNotCountedTwice(t *testing.T) {
	f := newFixture(t, nil)
	f.wait("a")
	f.look()
	f.look()
	if s := f.status(); s.OnTheWay != 1 {
		t.Fatalf("status is %+v, want the machine", s)
	}
	f.setNode(registered(func(*corev1.Node) {}))
	f.silent()
	f.look()
	if s := f.status(); s.OnTheWay != 0 || f.calls() != 1 {
		t.Errorf("%d orders, and status is %+v: want the machine as its Node alone", f.calls(), s)
	}
}

// TestAMachineThatJoinsWhileItsCloudIsReadIsAwaitedOrArrives has the cloud be found to have a Node for it that was not there
// when the look began.
func TestAMachineThatJoinsWhileItsCloudIsReadIsAwaitedOrArrives(t *testing.T) {
	f := newFixture(t, nil)
	f.wait("a")
	f.look()
	f.look()
	answer := f.silent()
	f.patience = time.Minute
	reads, looked := f.reads(), make(chan error)
	go func() {
		_, err := f.Controller.look(t.Context(), f.sources, true)
		looked <- err
	}()
	f.until("the cloud is being read", func() bool { return f.reads() > reads })
	f.setNode(registered(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}))
	answer()
	if err := <-looked; err != nil {
		t.Fatal(err)
	}
	if s := f.status(); s.OnTheWay != 0 || f.calls() != 1 {
		t.Errorf("%d orders, and status is %+v: want the machine as its Node alone", f.calls(), s)
	}
}

// TestMachinesThatAreOrderedAfterOneHasJoinedHaveNamesOfTheirOwn has the cloud not be read meanwhile, so that none is shown yet.
func TestMachinesThatAreOrderedAfterOneHasJoinedHaveNamesOfTheirOwn(t *testing.T) {
	f := newFixture(t, nil)
	f.wait("a")
	f.looks(2)
	f.silent()
	f.wait("b")
	f.look()
	f.until("a second machine is asked for", func() bool { return f.calls() == 2 })
	f.setNode(registered(func(*corev1.Node) {}))
	f.wait("c")
	f.look()
	f.until("a third machine is asked for", func() bool { return f.calls() == 3 })
	f.looks(2)
	seen := map[string]bool{}
	for _, w := range f.memory["web"].survey.Awaited {
		if seen[w.ID] {
			t.Errorf("two machines that are awaited are called %s", w.ID)
		}
		seen[w.ID] = true
	}
	if f.calls() != 3 || len(seen) != 2 {
		t.Errorf("%d orders, and %v on the way: want three, and the two that have no Node", f.calls(), seen)
	}
}

func TestAnAnswerForAnEarlierGroupIsDropped(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	earlier := f.last[0]
	anew := earlier.Group.DeepCopy()
	anew.UID, anew.ResourceVersion = "anew", ""
	if err := f.client.Delete(t.Context(), earlier.Group.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	f.look()
	if err := f.client.Create(t.Context(), anew); err != nil {
		t.Fatal(err)
	}
	f.look()
	f.answer(earlier, false, func(*known) { t.Error("the new group of this name got it") })
	f.look()
	if f.memory["web"] == earlier.memory {
		t.Error("the new group has the memory of the earlier one")
	}
}
