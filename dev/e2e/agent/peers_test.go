package agent_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/workload"
)

// on returns an App on instance i.
func (f *fixture) on(i int, name string) workload.App {
	app := f.app(name, 1)
	app.Node = f.node(i)
	return app
}

func (f *fixture) resources(instances ...int) []string {
	var names []string
	for _, i := range instances {
		names = append(names, f.pool.ResourceName(i))
	}
	return names
}

func TestEventIsApprovedOnceBothInstancesAreDrained(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "pair", 2)
	slow := f.on(1, "slow")
	slow.StopSeconds = "4"
	f.run(f.on(0, "web").Deployment(), slow.Deployment())
	was := []string{f.marksOf(0), f.marksOf(1)}
	f.agent(0, shortPolls)
	f.agent(1, shortPolls)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(0, 1), Notice: 5 * time.Minute})
	over := f.awaitEnd(e.EventID)
	f.checkDrainedInTime(e.EventID, 2)
	if over.StartedBy != azure.ByApproval {
		t.Fatalf("started %s, want it acknowledged", over.StartedBy)
	}
	ledger, _ := f.Pods.Ledger(f.Azure.State()).Event(e.EventID)
	for _, p := range ledger.Pods {
		if p.EndedAt.After(over.Approvals[0].At) {
			t.Errorf("approved %s before %s had ended", p.EndedAt.Sub(over.Approvals[0].At), p.Name)
		}
	}
	f.awaitRestored(0, was[0])
	f.awaitRestored(1, was[1])
}

func TestI7BlockedDrainPreventsApproval(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "stuck", 2)
	// An eviction or a deletion does not remove a pod with a foreign finalizer.
	f.run(f.on(0, "web").Deployment(), f.on(1, "stuck").Deployment())
	f.addFinalizer("stuck")
	f.agent(0, shortPolls)
	f.agent(1, shortPolls)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(0, 1), Notice: 20 * time.Second})
	f.awaitEvent(0, "Drained")
	f.awaitEvent(1, "Draining")
	f.checkNotApproved(e)
}

func TestShortFreezeIsApprovedWithoutADrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "short-freeze", 2)
	f.run(f.on(0, "web").Deployment(), f.on(1, "db").Deployment())
	was := []string{f.marksOf(0), f.marksOf(1)}
	histories := []func() []*corev1.Node{f.record(0).States, f.record(1).States}
	f.agent(0, shortPolls, "--acknowledge-freeze-under=9s")
	e := f.announce(azure.Announcement{
		Type: azure.Freeze, Resources: f.resources(0, 1), DurationSeconds: new(5), Outage: time.Second,
	})
	f.awaitNode(0, "ready for the event", claimedBy(e.EventID))
	if r := f.awaitNotice(e.EventID, "there", func(azure.EventRecord) bool { return true }); len(r.Approvals) != 0 {
		t.Errorf("approved for an instance without an agent: %v", r.Approvals)
	}
	f.agent(1, shortPolls, "--acknowledge-freeze-under=9s")
	f.checkApproved(f.awaitEnd(e.EventID))
	for i, states := range histories {
		f.awaitRestored(i, was[i])
		if slices.ContainsFunc(states(), cordoned) {
			t.Errorf("instance %d was cordoned", i)
		}
	}
}

// checkNotApproved waits until the event begins at its NotBefore time, without an approval.
func (f *fixture) checkNotApproved(e azure.EventRecord) {
	f.t.Helper()
	r := f.awaitNotice(e.EventID, "started", func(r azure.EventRecord) bool { return r.Status == azure.Started })
	if r.StartedBy != azure.ByNotBefore || len(r.Approvals) != 0 {
		f.t.Errorf("started %s, approved by %v", r.StartedBy, r.Approvals)
	}
}

// addFinalizer puts a finalizer on an App's pods until the test ends.
func (f *fixture) addFinalizer(app string) {
	f.t.Helper()
	pods := f.Client().CoreV1().Pods(f.ns)
	list, err := pods.List(f.ctx, metav1.ListOptions{LabelSelector: workload.AppLabel + "=" + app})
	f.check(err)
	for _, p := range list.Items {
		set := func(finalizers []string) error {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
			if err != nil {
				return err
			}
			// During cleanup, the test's own context is over.
			_, err = pods.Patch(context.WithoutCancel(f.ctx), p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}
		f.check(set([]string{"example.com/keep"}))
		f.t.Cleanup(func() {
			if err := set(nil); err != nil {
				f.t.Error(err)
			}
		})
	}
}
