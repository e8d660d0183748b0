package cloudpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloudpool"
)

// What kubeaware-cloudpool-proxy did to a cluster, and must not happen.

func TestI9TwoWorkersDoNotJustifyEachOthersRemoval(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "two", 2, options{})
	f.create(f.app("web", 3).Deployment())
	f.manage()
	f.serve("a")
	a := f.post("/pool/size", size(0))
	f.want(a, http.StatusConflict, "failed to set desired size", "removed 1 machines", "no-room")
	if n := len(f.pool.Machines()); n != 1 || f.pool.Desired() != 1 {
		t.Errorf("%d machines, and a desired size of %d; want 1 and 1", n, f.pool.Desired())
	}
	f.await("all pods run on the node that is left", func() bool {
		on := f.pods("web")
		for _, pods := range on {
			return len(on) == 1 && len(pods) == 3
		}
		return false
	})
}

func TestI2ASharedBudgetWithOneAllowedIsNotSpentTwice(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "budget", 3, options{})
	app := f.app("db", 3)
	f.create(spread(app), app.Budget())
	f.manage()
	f.serve("a")
	// Together the two machines would cost two disruptions: one is chosen, and the other one has its reason.
	f.await("the budget is known", func() bool {
		var plan cloudpool.Decision
		f.check(json.Unmarshal([]byte(f.get("/slipway/v1/pools/budget/plan?desiredSize=1").body), &plan))
		return len(plan.Victims) == 1 && slices.ContainsFunc(plan.Passed, func(p cloudpool.Passed) bool { return p.Rule == "disruption-budget" })
	})
	least := f.fewest(app.Name)
	a := f.post("/pool/size", size(1))
	switch a.code {
	case http.StatusOK: // the pods of the first came to run elsewhere in time
	case http.StatusConflict:
		f.want(a, http.StatusConflict, "disruption-budget")
	default:
		t.Errorf("%s", a)
	}
	if n := least(); n < 2 {
		t.Errorf("I2: no more than %d of 3 pods were there at one time, want 2", n)
	}
	if n := len(f.pool.Machines()); n != f.pool.Desired() || n < 1 || n > 2 {
		t.Errorf("%d machines, and a desired size of %d", n, f.pool.Desired())
	}
	for _, rt := range f.records() {
		if rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("the retirement of %s: %s: %s", rt.Spec.NodeName, rt.Status.Phase, rt.Status.Message)
		}
	}
}

// spread is an App's Deployment with its pods on as many nodes as there are.
func spread(app workload.App) *appsv1.Deployment {
	d := app.Deployment()
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: d.Spec.Selector,
	}}
	return d
}

// fewest watches an app's pods from now on, and then tells how many of them were ready at the least and not on their way
// out.
func (f *fixture) fewest(app string) (stop func() int) {
	f.t.Helper()
	selector := metav1.ListOptions{LabelSelector: workload.AppLabel + "=" + app}
	list, err := f.Client().CoreV1().Pods(f.name).List(f.ctx, selector)
	f.check(err)
	there := map[types.UID]bool{}
	note := func(p *corev1.Pod) {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if delete(there, p.UID); ready && p.DeletionTimestamp == nil {
			there[p.UID] = true
		}
	}
	for i := range list.Items {
		note(&list.Items[i])
	}
	least := len(there)
	selector.ResourceVersion = list.ResourceVersion
	watch, err := f.Client().CoreV1().Pods(f.name).Watch(f.ctx, selector)
	f.check(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type != apiwatch.Deleted {
				note(p)
			} else if ok {
				delete(there, p.UID)
			}
			least = min(least, len(there))
		}
	}()
	return func() int {
		watch.Stop()
		<-done
		return least
	}
}

func TestI1PodsThatArriveLateKeepTheirNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "late", 3, options{})
	slow := f.app("slow", 6)
	slow.Stop = "12" // the others have to be there before the second node's turn has come
	f.create(slow.Deployment())
	f.manage()
	f.serve("a")
	accepted := f.post("/pool/size", size(1), "Prefer: respond-async")
	f.want(accepted, http.StatusAccepted)
	var first v1alpha1.NodeRetirement
	f.await("the first node is being drained", func() bool {
		for _, rt := range f.records() {
			first = rt
			return rt.Status.Phase == v1alpha1.Draining
		}
		return false
	})
	var late []*corev1.Pod
	var objects []runtime.Object
	for i := range 3 {
		if f.node(i) == first.Spec.NodeName {
			continue
		}
		pod := f.app(fmt.Sprint("late-", i), 1)
		pod.Node = f.node(i)
		late = append(late, pod.Pod())
		objects = append(objects, late[len(late)-1])
	}
	f.create(objects...)
	up := f.awaitUpdate(accepted.header.Get("Location"))
	if up.Outcome.Result != cloudpool.Partly || up.Outcome.Removed != 1 {
		t.Errorf("%+v, want one machine removed, and two kept", up.Outcome)
	}
	for _, p := range late {
		got, err := f.Client().CoreV1().Pods(f.name).Get(f.ctx, p.Name, metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp != nil || got.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s: %v, %v", p.Name, got.Status.Phase, err)
		}
	}
}

// awaitUpdate waits until an update is over.
func (f *fixture) awaitUpdate(path string) *cloudpool.Update {
	f.t.Helper()
	up := &cloudpool.Update{}
	f.await("the update is over", func() bool {
		a := f.get(path)
		if a.code != http.StatusOK {
			return false
		}
		up = &cloudpool.Update{}
		f.check(json.Unmarshal([]byte(a.body), up))
		return up.Outcome != nil
	})
	return up
}

func TestAServerThatFailsAfterTheDrainIsAskedUntilTheMachineIsGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "after", 3, options{})
	f.create(f.app("web", 2).Deployment())
	f.manage()
	f.serve("a")
	f.pool.Inject(emulator.Fault{
		Kind: emulator.Status, Status: http.StatusBadGateway, Method: http.MethodPost, Path: "/terminate",
		Message: "failure to process POST /pool/terminate: 100% down",
	})
	f.want(f.post("/pool/size", size(2)), http.StatusBadGateway, "failed to set desired size", "100% down", "goes on trying")
	if n := len(f.pool.Machines()); n != 3 {
		t.Errorf("%d machines, want 3", n)
	}
	f.pool.Heal()
	f.await("the machine is gone", func() bool { return len(f.pool.Machines()) == 2 && f.pool.Desired() == 2 })
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if f.pool.Desired() != 2 || len(f.records()) != 1 {
		t.Errorf("a desired size of %d, %d retirements; want 2 and 1", f.pool.Desired(), len(f.records()))
	}
}

// TestATerminationThatHangsLocksNoPool has the cloud begin with terminations and end none: to their pool such machines do not
// count any more, whatever becomes of them.
func TestATerminationThatHangsLocksNoPool(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hangs", 4, options{})
	f.create(f.app("web", 2).Deployment())
	f.manage()
	f.serve("a")
	for _, m := range f.pool.Machines() {
		f.pool.Inject(emulator.Fault{Kind: emulator.TerminationHangs, Machine: m.ID})
	}
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	records := f.records()
	if len(records) != 1 || records[0].Status.Phase != v1alpha1.NodeDeleted || f.pool.Desired() != 3 {
		t.Fatalf("%d retirements, and a desired size of %d; want one that waits for its machine, and 3", len(records), f.pool.Desired())
	}
	// One that is replaced, and then a raise.
	serial := slices.IndexFunc([]int{0, 1, 2, 3}, func(i int) bool { return f.node(i) != records[0].Spec.NodeName })
	f.want(f.post("/pool/terminate", termination(f.machine(serial), false)), http.StatusOK)
	if f.pool.Desired() != 3 {
		t.Errorf("a desired size of %d, want 3: the machine is replaced", f.pool.Desired())
	}
	f.want(f.post("/pool/size", size(4)), http.StatusOK)
	f.pool.Heal()
	f.await("both machines are gone, and others there", func() bool {
		for _, m := range f.pool.Machines() {
			if !m.State.Allocated() {
				return false
			}
		}
		return len(f.pool.Machines()) == 4 && f.pool.Desired() == 4
	})
	f.await("both retirements are over", func() bool {
		return !slices.ContainsFunc(f.records(), func(rt v1alpha1.NodeRetirement) bool { return rt.Status.Phase != v1alpha1.Succeeded })
	})
	if f.pool.Desired() != 4 || len(f.records()) != 2 {
		t.Errorf("a desired size of %d, %d retirements; want 4 and 2", f.pool.Desired(), len(f.records()))
	}
}

func TestI8AnUpdateGoesOnInAnotherReplicaAndItsClientMayLeave(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume", 4, options{})
	slow := f.app("slow", 4)
	slow.Stop = "2"
	f.create(slow.Deployment())
	f.manage()
	first := f.serve("a")
	ctx, leave := context.WithCancel(f.ctx)
	asked := make(chan error, 1)
	go func() {
		_, err := f.send(ctx, http.MethodPost, "/pool/size", size(2))
		asked <- err
	}()
	f.await("a retirement is under way", func() bool { return len(f.records()) > 0 })
	leave()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	f.check(first.Kill())
	f.serve("b")
	// The request again: it is told how the first one ends.
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 2 || f.pool.Desired() != 2 {
		t.Errorf("%d machines, and a desired size of %d; want 2", n, f.pool.Desired())
	}
	if n := len(f.records()); n != 2 {
		t.Errorf("%d retirements, want 2", n)
	}
}

// TestI8AProcessThatWasPausedLearnsHowItsUpdateEnded has another one end the update, and carry out the next one, while the
// first stands still.
func TestI8AProcessThatWasPausedLearnsHowItsUpdateEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "paused", 4, options{})
	slow := f.app("slow", 4)
	slow.Stop = "2"
	f.create(slow.Deployment())
	f.manage()
	first := f.serve("a")
	a := f.front
	waiting := make(chan answer, 1)
	go func() {
		got, err := f.ask(a, http.MethodPost, "/pool/size", size(3))
		if err != nil {
			t.Error(err)
		}
		waiting <- got
	}()
	f.await("a retirement is under way", func() bool { return len(f.records()) > 0 })
	id := f.records()[0].Labels[cloudpool.UpdateLabel]
	f.check(first.Pause(f.ctx))
	f.serve("b")
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	f.check(first.Resume())
	f.want(<-waiting, http.StatusOK)
	f.front = a
	if up := f.awaitUpdate("/slipway/v1/pools/paused/updates/" + id); up.Outcome.Result != cloudpool.Done {
		t.Errorf("%+v", up.Outcome)
	}
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 2 || f.pool.Desired() != 2 || len(f.records()) != 2 {
		t.Errorf("%d machines, a desired size of %d, %d retirements; want 2 of each", n, f.pool.Desired(), len(f.records()))
	}
}

func TestOneUpdateAtATimeHoweverManyAskWhomever(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "many", 5, options{})
	slow := f.app("slow", 5)
	slow.Stop = "1.5"
	f.create(slow.Deployment())
	f.manage()
	f.serve("a")
	a := f.front
	f.serve("b")
	b := f.front
	var mu sync.Mutex
	codes := map[int][]int{} // by the size that was asked for
	var all sync.WaitGroup
	for _, ask := range []struct {
		front string
		size  int
	}{{a, 3}, {b, 3}, {a, 3}, {a, 4}, {b, 2}} {
		all.Go(func() {
			answer, err := f.ask(ask.front, http.MethodPost, "/pool/size", size(ask.size))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			codes[ask.size] = append(codes[ask.size], answer.code)
			if answer.code == http.StatusTooManyRequests && answer.header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		})
	}
	// Reads are not held up by any of it.
	reads := 0
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); reads++ {
		if got, err := send(f.ctx, http.DefaultClient, a, http.MethodGet, "/pool/size", ""); err != nil || got.code != http.StatusOK {
			t.Errorf("GET /pool/size: %s, %v", got, err)
		}
	}
	all.Wait()
	won := 0
	for asked, got := range codes {
		for _, code := range got {
			if code != http.StatusOK && code != http.StatusTooManyRequests {
				t.Errorf("size %d: %d", asked, code)
			}
		}
		if got[0] == http.StatusOK {
			won = asked
		}
	}
	t.Logf("%v, %d reads meanwhile", codes, reads)
	final := len(f.pool.Machines())
	if final != f.pool.Desired() || len(codes[final]) == 0 || won == 0 {
		t.Errorf("%d machines, a desired size of %d; clients were told %v", final, f.pool.Desired(), codes)
	}
	if n := len(f.records()); n != 5-final {
		t.Errorf("%d retirements for %d machines that went", n, 5-final)
	}
}

func TestMachinesWithoutANodeCountAndGoFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "young", 2, options{})
	f.create(f.app("web", 2).Deployment())
	f.pool.Place(emulator.Requested, nil)
	f.pool.Place(emulator.Pending, nil)
	f.manage()
	f.serve("a")
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	if states := f.states(); states[emulator.Requested] != 0 || states[emulator.Running] != 2 || f.pool.Desired() != 3 {
		t.Errorf("%v, a desired size of %d; want the one that was only asked for gone", states, f.pool.Desired())
	}
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if states := f.states(); states[emulator.Running] != 2 || len(states) != 1 || len(f.records()) != 0 {
		t.Errorf("%v, %d retirements", states, len(f.records()))
	}
}

// TestNodesThatDoNotSayTheirMachineGoWithTheOneOfTheirAddress has a cluster without a cloud controller. It is beside no other
// test: a machine without a node of another one's pool could be one of these nodes.
func TestNodesThatDoNotSayTheirMachineGoWithTheOneOfTheirAddress(t *testing.T) { //nolint:paralleltest // see above
	f := newFixture(t, "anonymous", 3, options{nodes: emulator.ClusterNodes{Anonymous: true}})
	t.Cleanup(func() {
		err := f.Client().CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: emulator.PoolLabel + "=" + f.name})
		if err != nil {
			t.Error(err)
		}
	})
	f.create(f.app("web", 2).Deployment())
	f.manage()
	f.serve("a")
	ids := map[string]string{}
	for _, m := range f.pool.Machines() {
		ids[m.NodeName] = m.ProviderID
	}
	f.want(f.post("/pool/terminate", termination(f.machine(0), true)), http.StatusOK)
	f.left(1, 2)
	f.want(f.post("/pool/size", size(1)), http.StatusOK)
	f.awaitSettled(1)
	records := f.records()
	if len(records) != 2 {
		t.Errorf("%d retirements, want 2", len(records))
	}
	for _, rt := range records {
		if is := rt.Status.Captured; rt.Status.Phase != v1alpha1.Succeeded || is == nil || is.ProviderID != ids[rt.Spec.NodeName] {
			t.Errorf("the retirement of %s: %s: %s; captured %+v, want %s", rt.Spec.NodeName, rt.Status.Phase, rt.Status.Message, is, ids[rt.Spec.NodeName])
		}
	}
}

func (f *fixture) states() map[emulator.State]int {
	states := map[emulator.State]int{}
	for _, m := range f.pool.Machines() {
		if m.State.Allocated() {
			states[m.State]++
		}
	}
	return states
}

// TestI1AMachineThatCountsAgainHasNoOtherOneTakenAway has a machine put aside, which the server replaces, and taken in again:
// there is one too many then, and the server would choose which.
func TestI1AMachineThatCountsAgainHasNoOtherOneTakenAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "aside", 3, options{pool: emulator.Options{Lag: 3 * time.Second, Policy: emulator.Oldest}})
	f.create(f.app("web", 2).Deployment())
	f.manage()
	f.serve("a")
	id := f.machine(2)
	f.want(f.post("/pool/membershipStatus", membership(id, false, false)), http.StatusOK)
	f.await("the machine is replaced", func() bool { return len(f.running()) == 3 && f.nodes() == 4 })
	f.want(f.post("/pool/membershipStatus", membership(id, true, true)), http.StatusOK)
	if n := f.pool.Desired(); n != 4 {
		t.Errorf("the desired size is %d, want 4", n)
	}
	f.left(0, 1, 2, 3)
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.awaitSettled(3)
	if n := len(f.records()); n != 1 {
		t.Errorf("%d retirements, want 1", n)
	}
}

func TestNothingIsRemovedWhilePairsAreUnclear(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "unclear", 3, options{})
	// Somebody gives one machine the address of another's node.
	other := ""
	for _, m := range f.pool.Machines() {
		if m.Serial == 1 {
			other = m.PrivateIPs[0]
		}
	}
	f.pool.Change(f.machine(0), func(m *emulator.Machine) { m.PrivateIPs = []string{other} })
	f.serve("a")
	f.want(f.post("/pool/size", size(1)), http.StatusConflict, "not clear which machine is which node", f.machine(0), other)
	f.want(f.post("/pool/terminate", termination(f.machine(2), true)), http.StatusConflict, "not clear")
	f.left(0, 1, 2)
	if n := len(f.records()); n > 0 {
		t.Errorf("%d retirements", n)
	}
}
