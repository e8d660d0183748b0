package agent_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

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

func TestAnEventOfTwoMachinesIsAcknowledgedOnceBothAreDrained(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "pair", 2)
	slow := f.on(1, "slow")
	slow.StopSeconds = "4"
	f.run(f.on(0, "web").Deployment(), slow.Deployment())
	was := []string{f.marksOf(0), f.marksOf(1)}
	f.agent(0, brisk)
	f.agent(1, brisk)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(0, 1), Notice: 5 * time.Minute})
	over := f.awaitOver(e.EventID)
	f.drainedInTime(e.EventID, 2)
	if over.StartedBy != azure.ByApproval {
		t.Fatalf("started %s, want it acknowledged", over.StartedBy)
	}
	ledger, _ := f.Pods.Ledger(f.Azure.State()).Event(e.EventID)
	for _, p := range ledger.Pods {
		if p.EndedAt.After(over.Approvals[0].At) {
			t.Errorf("acknowledged %s before %s had ended", p.EndedAt.Sub(over.Approvals[0].At), p.Name)
		}
	}
	f.awaitAsItWas(0, was[0])
	f.awaitAsItWas(1, was[1])
}

func TestI7AnEventIsNeverAcknowledgedForAMachineThatSaysNothing(t *testing.T) {
	t.Parallel()
	t.Run("its agent is missing", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "silent", 2)
		f.agent(0, brisk)
		e := f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(0, 1), Notice: 20 * time.Second})
		f.awaitEvent(0, "Drained")
		f.neverApproved(e)
	})
	t.Run("its node is missing", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "absent", 1)
		f.agent(0, brisk)
		e := f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(0, 1), Notice: 20 * time.Second})
		f.awaitEvent(0, "Drained")
		f.neverApproved(e)
	})
	t.Run("its drain is blocked", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "stuck", 2)
		// An eviction or a deletion does not remove a pod with a foreign finalizer.
		f.run(f.on(0, "web").Deployment())
		stuck := f.on(1, "stuck")
		f.run(stuck.Deployment())
		f.keepPods("stuck")
		f.agent(0, brisk)
		f.agent(1, brisk)
		e := f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(0, 1), Notice: 20 * time.Second})
		f.awaitEvent(0, "Drained")
		f.awaitEvent(1, "Draining")
		f.neverApproved(e)
	})
}

// neverApproved waits until the event begins at its NotBefore time, without an approval.
func (f *fixture) neverApproved(e azure.EventRecord) {
	f.t.Helper()
	r := f.awaitNotice(e.EventID, "started", func(r azure.EventRecord) bool { return r.Status == azure.Started })
	if r.StartedBy != azure.ByNotBefore || len(r.Approvals) != 0 {
		f.t.Errorf("started %s, approved by %v", r.StartedBy, r.Approvals)
	}
}

// keepPods puts a finalizer on an App's pods until the test ends.
func (f *fixture) keepPods(app string) {
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
