package provisioning

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// newNeverReadyFixture returns a fixture with an instance's Node that was not Ready in time. Its retirement was
// requested.
func newNeverReadyFixture(t *testing.T) *fixture {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile()
	f.setNode(newRegisteredNode(func(*corev1.Node) {}))
	f.reconcile()
	f.makeOverdue()
	f.reconcile()
	if all := f.listRetirements(); len(all) != 1 {
		t.Fatalf("retirements are %+v, want one", all)
	}
	return f
}

// finishRetirement sets the phase of the node's unfinished retirements.
func (f *fixture) finishRetirement(phase v1alpha1.Phase, code string, ago time.Duration) {
	f.t.Helper()
	for _, rt := range f.listRetirements() {
		if rt.Status.Phase.IsFinal() {
			continue
		}
		rt.UID, rt.Status.Phase = types.UID("uid-of-"+rt.Name), phase
		rt.Status.Captured = &v1alpha1.Captured{NodeUID: rt.Spec.NodeUID, ProviderID: "id-0", Provider: "pool", Group: "web"}
		if phase.IsFinal() {
			rt.Status.Times.Finished = &metav1.Time{Time: time.Now().Add(-ago)}
			rt.Status.Reasons = []v1alpha1.RetirementReason{{Code: code}}
		}
		if err := f.client.Update(f.t.Context(), &rt); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) reconcileTimes(n int) {
	f.t.Helper()
	for range n {
		f.reconcile()
	}
}

func TestFailedRetirementOfNeverReadyNodeIsRepeated(t *testing.T) {
	f := newNeverReadyFixture(t)
	first := f.listRetirements()[0].Name
	f.finishRetirement(v1alpha1.Refused, retirement.ProtectedNode, time.Minute)
	f.reconcileTimes(3)
	if all := f.listRetirements(); len(all) != 1 {
		t.Fatalf("%d retirements, want none more before cooldowns.afterFailure", len(all))
	}
	for _, rt := range f.listRetirements() {
		rt.Status.Times.Finished = &metav1.Time{Time: time.Now().Add(-time.Hour)}
		if err := f.client.Update(t.Context(), &rt); err != nil {
			t.Fatal(err)
		}
	}
	f.reconcileTimes(3)
	all := f.listRetirements()
	if len(all) != 2 || all[0].Name == all[1].Name || all[0].Name != first && all[1].Name != first {
		t.Fatalf("retirements are %+v, want another one of the node", all)
	}
	b := f.states["web"].backOffs["m4"]
	b.Until = metav1.NewTime(time.Now().Add(-time.Second))
	f.states["web"].backOffs["m4"] = b
	f.reconcileTimes(2)
	if now := f.states["web"].backOffs["m4"]; now.Failures != b.Failures {
		t.Errorf("one instance is %d failures of its kind, want %d", now.Failures, b.Failures)
	}
}

func TestInstanceOfRetiredNodeIsLeftToItsRetirement(t *testing.T) {
	f := newNeverReadyFixture(t)
	f.finishRetirement(v1alpha1.Drained, "", 0)
	if err := f.kube.CoreV1().Nodes().Delete(t.Context(), "machine-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.waitUntil("the watch has told of it", func() bool { _, err := f.sources.nodes.Get("machine-0"); return err != nil })
	f.reconcileTimes(2)
	if s := f.status(); len(s.Awaited) != 1 {
		t.Errorf("status is %+v, want the instance while its retirement may be deleted", s)
	}
	f.finishRetirement(v1alpha1.NodeDeleted, "", 0)
	f.reconcileTimes(2)
	if s := f.status(); len(s.Awaited) != 0 {
		t.Errorf("status is %+v, want the instance left to its retirement", s)
	}
	f.calls.Wait()
	f.pool.change(func() {
		if len(f.pool.deleted) != 0 {
			t.Errorf("deleted is %v", f.pool.deleted)
		}
	})
}

func TestNodeThatWasReadyDuringItsRetirementHasJoined(t *testing.T) {
	f := newNeverReadyFixture(t)
	f.finishRetirement(v1alpha1.Refused, retirement.NodeReady, time.Hour)
	f.reconcileTimes(3)
	if all, s := f.listRetirements(), f.status(); len(all) != 1 || len(s.Awaited) != 0 {
		t.Errorf("%d retirements, status is %+v: want the instance not awaited any more", len(all), s)
	}
}

// TestNodeThatWasReadyDuringACloudOutageHasJoined has a Node that is not Ready when the cloud can be read again.
func TestNodeThatWasReadyDuringACloudOutageHasJoined(t *testing.T) {
	for name, between := range map[string]func(*fixture){
		"in one process":           func(*fixture) {},
		"with a restart before it": func(f *fixture) { f.states = map[string]*groupState{} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.addUnschedulable("a")
			f.reconcileTimes(2)
			f.states["web"].backOffs["m4"] = v1alpha1.BackOff{
				Template: "m4", Reason: "NoQuota", Until: metav1.NewTime(time.Now().Add(-time.Minute)), Failures: 1,
			}
			f.reconcile()
			f.pool.change(func() { f.pool.unread = errors.New("503") })
			between(f)
			f.setNode(newRegisteredNode(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }))
			f.reconcile()
			if s := f.status(); len(s.Awaited) != 0 || len(s.BackOffs) != 0 {
				t.Errorf("status is %+v, want neither an instance that is awaited nor a template that has failed", s)
			}
			f.makeOverdue()
			f.setNode(newRegisteredNode(func(*corev1.Node) {}))
			f.pool.change(func() { f.pool.unread = nil })
			f.reconcileTimes(2)
			if all := f.listRetirements(); len(all) != 0 {
				t.Errorf("retirements are %+v", all)
			}
		})
	}
}

func TestI3AnnotationIsWrittenOnTheNodeAsRead(t *testing.T) {
	f := newFixture(t, nil, newIdleNode("a", ""))
	var read corev1.Node
	if err := f.client.Get(t.Context(), client.ObjectKey{Name: "a"}, &read); err != nil {
		t.Fatal(err)
	}
	changed := read.DeepCopy()
	changed.Spec.Unschedulable = true
	if err := f.client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := f.Controller.writeUnderutilizedSinceAnnotation(t.Context(), &read, time.Now()); err != nil {
		t.Error(err)
	}
	if mark := f.sinceAnnotation("a"); mark != "" {
		t.Errorf("a Node that has changed since it was read has the mark %q", mark)
	}
}

func TestConcurrentlyChangedRetirementIsNotCancelled(t *testing.T) {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "a-underused", UID: "first"}}
	rt.Spec.NodeName, rt.Spec.RequestedBy = "a", plan.UnderutilizedRequester
	f := newFixture(t, nil, newIdleNode("a", ""))
	if err := f.client.Create(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	read := *rt.DeepCopy()
	rt.Annotations = map[string]string{"example.com/by": "somebody"}
	if err := f.client.Update(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	d := &plan.NodeDecision{Subject: &nodegroup.Node{Object: newIdleNode("a", ""), Retirements: []v1alpha1.NodeRetirement{read}}}
	if err := f.cancelRetirement(t.Context(), d); err != nil {
		t.Error(err)
	}
	if got := f.listRetirements(); len(got) != 1 {
		t.Errorf("%d retirements are left, want the one that has changed since it was read", len(got))
	}
}
