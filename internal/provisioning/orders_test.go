package provisioning

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// fails has the cloud say of a machine that it could not make it.
func (f *fixture) fails(id string) {
	f.t.Helper()
	f.pool.change(func() {
		for i := range f.pool.machines {
			if f.pool.machines[i].ProviderID == id {
				f.pool.machines[i].State = cloud.Failed
				return
			}
		}
		f.t.Fatalf("there is no machine %s", id)
	})
}

// expectDeleted looks, and compares what has been deleted.
func (f *fixture) expectDeleted(want ...string) {
	f.t.Helper()
	f.look()
	f.work.Wait() // machines are given up beside the looks
	defer f.pool.locked()()
	if !slices.Equal(f.pool.deleted, want) {
		f.t.Fatalf("deleted is %v, want %v", f.pool.deleted, want)
	}
}

func TestMachinesOfAnOrderThatWasTakenInPartAreOurs(t *testing.T) {
	for name, names := range map[string]bool{"by name": true, "by what has come": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pool.change(func() {
				f.pool.names, f.pool.partly = names, 1
				f.pool.refuse["m4"] = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 4 cores is used up")}
			})
			f.wait("a", "b")
			f.look()
			f.look()
			if s := f.status(); s.OnTheWay != 1 || len(s.Awaited) != 1 || len(s.Orders) != 0 {
				t.Fatalf("status is %+v, want the machine that was made, and no order left", s)
			}
			if notes := f.told(eventBackedOff); len(notes) != 1 {
				t.Errorf("Events are %q, want one: the rest of the order has failed already", notes)
			}
			f.fails("id-0")
			f.expectDeleted("id-0")
		})
	}
}

// forget has the kinds be left alone no more, as when that is over.
func (f *fixture) forget() {
	f.memory["web"].backOffs = map[string]v1alpha1.BackOff{}
	f.pool.change(func() { f.pool.refuse = nil })
}

func TestTheMachinesOfAnOrderWhoseAnswerWasLostAreExpectedForAWhileAndAreOurs(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.refuse["m4"] = errors.New("the connection was lost") })
	f.wait("a")
	f.look()
	f.forget()
	for range 3 {
		f.look()
	}
	if s := f.status(); f.calls() != 1 || s.OnTheWay != 1 {
		t.Fatalf("%d orders, and status is %+v: want one, with its machine on the way", f.calls(), s)
	}
	f.pool.made(cloud.Instance{ProviderID: "late", Type: "m4", State: cloud.Pending, Created: time.Now()})
	f.look()
	if s := f.status(); f.calls() != 1 || s.OnTheWay != 1 || len(s.Awaited) != 1 {
		t.Fatalf("%d orders, and status is %+v: want the machine that came late", f.calls(), s)
	}
	f.fails("late")
	f.expectDeleted("late")
}

func TestI5AnOrderThatWasCarriedOutInSpiteOfItsAnswerIsNotMadeTwice(t *testing.T) {
	for name, answer := range map[string]error{
		"the answer was lost":               errors.New("the connection was lost"),
		"the answer came too late":          context.DeadlineExceeded,
		"the size was said to have changed": &cloud.ThrottledError{After: time.Millisecond, Err: errors.New("412")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Maximum = new(int32(4)) })
			f.pool.change(func() { f.pool.partly, f.pool.refuse["m4"] = 2, answer })
			f.wait("a", "b")
			f.look()
			f.forget()
			f.memory["web"].quiet = time.Time{} // as when the pause is over
			for range 5 {
				f.look()
			}
			if s := f.status(); f.calls() != 1 || s.OnTheWay != 2 {
				t.Errorf("%d orders, and status is %+v: want one, with its two machines on the way", f.calls(), s)
			}
		})
	}
}

func TestWhenNothingHasComeOfALostOrderItIsMadeAgain(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.refuse["m4"] = errors.New("the connection was lost") })
	f.wait("a")
	f.look()
	f.forget()
	f.memory["web"].asked[0].Settled = time.Now() // as when that is over
	f.look()
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || f.calls() != 2 {
		t.Errorf("orders are %v after %d calls, want another one", got, f.calls())
	}
	if notes := f.told(eventBackedOff); len(notes) != 1 {
		t.Errorf("Events are %q, want one", notes)
	}
}

func TestI8AnOrderIsWrittenDownBeforeItIsMade(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	answer := f.busy()
	f.wait("a", "b")
	f.look()
	f.until("the cloud is asked", func() bool { return f.calls() == 1 })
	if s := f.status(); len(s.Orders) != 1 || s.Orders[0].Template != "m4" || s.Orders[0].Count != 2 {
		t.Errorf("status is %+v, want the order", s)
	}
	answer()
	f.look()
	f.look()
	if s := f.status(); len(s.Orders) != 0 || len(s.Awaited) != 2 {
		t.Errorf("status is %+v, want the machines instead of the order", s)
	}
}

func TestI8AfterARestartBetweenAnOrderAndItsSightTheMachinesAreOurs(t *testing.T) {
	for name, c := range map[string]struct{ answered, names bool }{
		"before the answer":               {},
		"after it":                        {answered: true},
		"after it, of a cloud that names": {answered: true, names: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.readOnce()
			f.pool.change(func() { f.pool.names = c.names })
			theirs := cloud.Instance{ProviderID: "theirs", Type: "m4", State: cloud.Pending, Created: time.Now().Add(-time.Hour)}
			f.pool.made(theirs) // nobody has seen it yet
			answer := f.busy()
			f.wait("a")
			f.look()
			f.until("the cloud is asked", func() bool { return f.calls() == 1 })
			answer()
			if c.answered {
				blind := f.silent()
				f.look() // takes in the answer, and sees no machine
				f.memory = map[string]*memory{}
				blind()
			}
			f.memory = map[string]*memory{}
			f.look()
			if s := f.status(); f.calls() != 1 || len(s.Awaited) != 1 || s.Awaited[0].ProviderID != "id-1" {
				t.Fatalf("%d orders, and status is %+v: want the machine of the one", f.calls(), s)
			}
			f.fails("theirs")
			f.fails("id-1")
			f.expectDeleted("id-1")
		})
	}
}

// unwritable is a client whose writes of a status fail.
type unwritable struct{ client.Client }

func (u unwritable) Status() client.SubResourceWriter { return noStatus{u.Client.Status()} }

type noStatus struct{ client.SubResourceWriter }

func (noStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errors.New("the API server is away")
}

func TestI8AnOrderThatCannotBeWrittenDownIsNotMade(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	f.o.Launches = launch.New(f.client, unwritable{f.client})
	f.wait("a")
	if _, err := f.Controller.look(t.Context(), f.sources, true); err == nil || f.calls() != 0 {
		t.Fatalf("%d orders, %v", f.calls(), err)
	}
	f.o.Launches = launch.New(f.client, f.client)
	f.look()
	f.look()
	if s := f.status(); f.calls() != 1 || s.OnTheWay != 1 {
		t.Errorf("%d orders, and status is %+v, once it can be written", f.calls(), s)
	}
}

func TestI4AMachineThatTheOrdersAnswerDoesNotNameIsNotOurs(t *testing.T) {
	f := newFixture(t, nil)
	f.readOnce()
	f.pool.change(func() { f.pool.names = true })
	answer := f.busy()
	f.wait("a")
	f.look()
	f.until("the cloud is asked", func() bool { return f.calls() == 1 })
	f.pool.made(cloud.Instance{ProviderID: "theirs", Type: "m4", State: cloud.Pending, Created: time.Now()})
	f.look()
	f.until("the cloud has said what there is", func() bool { f.settle(f.last); return len(f.memory["web"].survey.Known) == 1 })
	answer()
	f.look()
	f.look()
	if s := f.status(); len(s.Awaited) != 1 || s.Awaited[0].ProviderID != "id-1" {
		t.Fatalf("status is %+v, want the machine that was named", s)
	}
	f.fails("theirs")
	f.fails("id-1")
	f.expectDeleted("id-1")
}

func TestI4AMachineThatIsAdoptedByItsNameIsNeverOneOfOurOrders(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Maximum = new(int32(1)) })
	f.readOnce()
	f.pool.made(cloud.Instance{ProviderID: "theirs", Type: "m4", State: cloud.Pending, Created: time.Now(), Adopted: true})
	answer := f.busy()
	f.wait("a")
	f.look()
	f.until("a machine is asked for all the same", func() bool { return f.calls() == 1 })
	answer()
	f.look()
	f.look()
	if s := f.status(); s.OnTheWay != 1 || len(s.Awaited) != 1 || s.Awaited[0].ProviderID != "id-1" {
		t.Fatalf("status is %+v, want the machine that was ordered", s)
	}
	f.fails("theirs")
	f.fails("id-1")
	f.expectDeleted("id-1")
}

// registered is the Node of the pool's first machine, as its kubelet makes it.
func registered(change func(*corev1.Node)) *corev1.Node {
	n := idle("machine-0", "")
	n.Spec.ProviderID, n.CreationTimestamp = "id-0", metav1.Now()
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	change(n)
	return n
}

// setNode has the API server and the caches know a Node.
func (f *fixture) setNode(n *corev1.Node) {
	f.t.Helper()
	_, err := f.kube.CoreV1().Nodes().Create(f.t.Context(), n, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = f.kube.CoreV1().Nodes().Update(f.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.until("the watch has told of the Node", func() bool {
		known, err := f.sources.nodes.Get(n.Name)
		return err == nil && equality.Semantic.DeepEqual(known.Status, n.Status)
	})
}

// overdue has the time be over in which the machines that are awaited had to join.
func (f *fixture) overdue() {
	m := f.memory["web"]
	long := time.Now().Add(-24 * time.Hour)
	m.watched = long
	for i := range m.record {
		m.record[i].Since = metav1.NewTime(long)
	}
}

func (f *fixture) retirements() []v1alpha1.NodeRetirement {
	f.t.Helper()
	var all v1alpha1.NodeRetirementList
	if err := f.client.List(f.t.Context(), &all); err != nil {
		f.t.Fatal(err)
	}
	return all.Items
}

func TestANodeThatIsNeverReadyIsRetiredAndItsKindLeftAlone(t *testing.T) {
	f := newFixture(t, nil)
	f.wait("a")
	f.look()
	f.look()
	f.setNode(registered(func(*corev1.Node) {}))
	f.look()
	if s := f.status(); len(s.Awaited) != 1 || s.OnTheWay != 0 {
		t.Fatalf("status is %+v, want the machine until its Node is Ready, which is there already", s)
	}
	f.overdue()
	for range 3 {
		f.look()
	}
	all := f.retirements()
	if len(all) != 1 || all[0].Spec.NodeName != "machine-0" || all[0].Spec.NodeUID != "uid-machine-0" || all[0].Spec.Reason != v1alpha1.NeverReady {
		t.Fatalf("retirements are %+v, want one of the node", all)
	}
	if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Reason != launch.NeverReady || len(s.Awaited) != 1 {
		t.Errorf("status is %+v, want the kind left alone, and the machine on record until it is gone", s)
	}
	if got := f.pool.ordered(); len(got) != 1 || len(f.pool.deleted) != 0 { // I1
		t.Errorf("orders are %v, deleted is %v: a node is drained before its machine goes", got, f.pool.deleted)
	}
}

func TestANodeThatWasReadyOnceOrIsNotSurelyTheMachinesIsNotRetired(t *testing.T) {
	for name, c := range map[string]struct {
		first bool // it is Ready first
		node  *corev1.Node
	}{
		"it was Ready once":           {true, registered(func(*corev1.Node) {})},
		"it has no provider ID":       {false, registered(func(n *corev1.Node) { n.Spec.ProviderID = "" })},
		"it is none of the group's":   {false, registered(func(n *corev1.Node) { n.Labels = nil })},
		"somebody else takes it away": {false, registered(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} })}, // I6
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.wait("a")
			f.look()
			f.look()
			if c.first {
				f.setNode(registered(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }))
				f.look()
			}
			f.setNode(c.node)
			f.look()
			f.overdue()
			f.look()
			if all := f.retirements(); len(all) != 0 || len(f.pool.deleted) != 0 {
				t.Errorf("retirements are %+v, deleted is %v", all, f.pool.deleted)
			}
		})
	}
}
