package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// emptyPool is the step with idle nodes that are retired. It also runs what the next steps report.
func (s *stage) emptyPool(ctx context.Context, a *account) (_ string, err error) {
	o, err := s.observe(ctx)
	if err != nil {
		return "", err
	}
	s.pool = o
	defer func() { o.failed = err }()
	keep, stop := context.WithCancel(ctx)
	defer stop()
	go s.keepManagers(keep)
	if err := s.ARM.Inject(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: ci.Resource(undeletable), Times: 1}); err != nil {
		return "", err
	}
	o.began = time.Now()
	a.began = o.began
	if err := s.endBuilds(ctx); err != nil {
		return "", err
	}
	a.say(time.Now(), "the builds on the %d machines of pool %s have ended. A node without a build for %s is retired, %d at a time", ciMachines,
		ci.Name, cooldown, 1)
	if err := s.disturb(ctx, o); err != nil {
		return "", err
	}
	if err := s.tellGone(ctx, a, o); err != nil {
		return "", err
	}
	return "5 nodes and 5 machines deleted, never two nodes out of service at once", s.checkPool(ctx, o)
}

// tellGone waits until all nodes except the rescued one are deleted, and reports them in order.
func (s *stage) tellGone(ctx context.Context, a *account, o *observed) error {
	var gone []int
	for i := range ciMachines {
		if i == o.rescued {
			continue
		}
		if err := o.await(ctx, i, v1alpha1.Succeeded); err != nil {
			return err
		}
		gone = append(gone, i)
	}
	slices.SortFunc(gone, func(x, y int) int {
		return o.reached(x, v1alpha1.Succeeded).Compare(o.reached(y, v1alpha1.Succeeded))
	})
	for _, i := range gone {
		a.say(o.reached(i, v1alpha1.Succeeded), "%s and its machine are deleted; the Node at %.1f s", ci.NodeName(i),
			o.reached(i, v1alpha1.NodeDeleted).Sub(o.began).Seconds())
	}
	return nil
}

// endBuilds ends the builds on all machines, starting with the machine that is retired first.
func (s *stage) endBuilds(ctx context.Context) error {
	pods := s.Client().CoreV1().Pods(builds)
	if err := pods.Delete(ctx, buildName(interrupted), metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("ending a build: %w", err)
	}
	first, err := s.AwaitNode(ctx, ci.NodeName(interrupted), "marked as idle", idle)
	if err != nil {
		return err
	}
	since, err := time.Parse(time.RFC3339, first.Annotations[idleSince])
	if err != nil {
		return fmt.Errorf("node %s: %w", first.Name, err)
	}
	time.Sleep(time.Until(since)) // the annotation has whole seconds; the others must differ
	err = pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: buildLabel})
	if err != nil {
		return fmt.Errorf("ending the builds: %w", err)
	}
	return testbed.Poll(ctx, "the builds have ended", func() bool {
		left, err := pods.List(ctx, metav1.ListOptions{LabelSelector: buildLabel})
		return err == nil && len(left.Items) == 0
	})
}

// idleSince is the manager's annotation with the time since when a node is idle.
const idleSince = "nodegroup.slipway.dev/idle-since"

func idle(n *corev1.Node) bool { return n.Annotations[idleSince] != "" }

// disturb kills the manager during a drain, and starts a build on the last node during another retirement.
func (s *stage) disturb(ctx context.Context, o *observed) error {
	if err := o.await(ctx, interrupted, v1alpha1.Draining); err != nil {
		return err
	}
	if err := testbed.Poll(ctx, "a manager leads", func() bool { o.first = s.leader(ctx); return o.first != nil }); err != nil {
		return err
	}
	o.first.killed.Store(true)
	if err := o.first.Kill(); err != nil {
		return err
	}
	o.killed = time.Now()
	var err error
	if o.rescued, err = o.last(); err != nil {
		return err
	}
	if err := workload.CreateSettled(ctx, s.Client(), build("build-7", o.rescued).Pod()); err != nil {
		return err
	}
	o.called = time.Now()
	if err := testbed.Poll(ctx, "the other manager leads", func() bool { return s.leader(ctx) != nil }); err != nil {
		return err
	}
	o.took = time.Now()
	return nil
}

// checkPool checks the final state with the API server and Azure.
func (s *stage) checkPool(ctx context.Context, o *observed) error {
	nodes, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.azure.com/agentpool=" + ci.Name})
	if err != nil {
		return err
	}
	var names, machines []string
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	for _, vm := range s.ARM.VMs() {
		if vm.ScaleSet == ci.ScaleSet() {
			machines = append(machines, vm.Resource)
		}
	}
	return all(
		expect(slices.Equal(names, []string{ci.NodeName(o.rescued)}), "one node remaining, "+ci.NodeName(o.rescued), "%v", names),
		expect(slices.Equal(machines, []string{ci.Resource(o.rescued)}), "one machine remaining, "+ci.Resource(o.rescued), "%v", machines),
		expect(s.ARM.Capacity(ci.ScaleSet()) == 1, "a scale set capacity of 1", "%d", s.ARM.Capacity(ci.ScaleSet())),
		expect(o.most() == 1, "never more than one node out of service at once", "%d were", o.most()),
	)
}

// told returns the observations of the pool's step, for the steps after it.
func (s *stage) told(a *account) (*observed, error) {
	if s.pool == nil {
		return nil, fmt.Errorf("the pool was not observed")
	}
	a.began = s.pool.began
	return s.pool, s.pool.failed
}

// failedDeletion is the step that reports the machine that Azure failed to delete.
func (s *stage) failedDeletion(_ context.Context, a *account) (string, error) {
	o, err := s.told(a)
	if err != nil {
		return "", err
	}
	var asked []time.Time
	for _, r := range s.ARM.Requests() {
		if r.Action == "Microsoft.Compute/virtualMachineScaleSets/delete/action" && strings.Contains(r.Path, ci.ScaleSet()) &&
			strings.Contains(r.Body, fmt.Sprintf("%q", fmt.Sprint(undeletable))) {
			asked = append(asked, r.At)
		}
	}
	if err := expect(len(asked) == 2, "two deletion requests for "+ci.Resource(undeletable), "%d requests", len(asked)); err != nil {
		return "", err
	}
	rt := o.record(undeletable)
	a.say(asked[0], "Azure is asked to delete %s, and fails", ci.Resource(undeletable))
	a.say(asked[1], "the deletion is retried, because the machine still costs money")
	a.say(o.reached(undeletable, v1alpha1.Succeeded), "now the machine is deleted")
	return fmt.Sprintf("deleted at the second attempt, %.1f s after the first", asked[1].Sub(asked[0]).Seconds()), all(
		expect(asked[1].Sub(asked[0]) >= retryAfter, "a pause of at least "+retryAfter.String(), "%s", asked[1].Sub(asked[0])),
		expect(rt != nil && rt.Status.Operation != nil && rt.Status.Operation.Attempts == 2, "2 attempts in the record", "%+v", rt),
	)
}

// killedManager is the step that reports the killed manager.
func (s *stage) killedManager(ctx context.Context, a *account) (string, error) {
	o, err := s.told(a)
	if err != nil {
		return "", err
	}
	a.say(o.reached(interrupted, v1alpha1.Draining), "%s is being drained: its %d pods take 4 s to stop", ci.NodeName(interrupted), cache.Replicas)
	a.say(o.killed, "the manager is killed (SIGKILL)")
	a.say(o.took, "the other manager leads after %.1f s, reads the state in the NodeRetirement and resumes", o.took.Sub(o.killed).Seconds())
	done := o.reached(interrupted, v1alpha1.Succeeded)
	a.say(done, "the node and its machine are deleted")
	gone := slices.DeleteFunc(s.Pods.Pods(), func(p azure.Pod) bool { return p.Node != ci.NodeName(interrupted) || !isOf(cache, p.Name) })
	return "the second manager finished the retirement of the first", all(
		expect(!o.first.Alive() && s.leader(ctx) != nil, "the first manager killed and the other leading", "otherwise"),
		expect(done.After(o.took), "the retirement to end under the second manager", "at %s", clock(done)),
		expect(len(gone) == int(cache.Replicas) && count(gone, ended) == len(gone), fmt.Sprintf("%d pods of cache ended on the node", cache.Replicas),
			"%d of %d", count(gone, ended), len(gone)),
		s.replaced(ctx, machine{ci, interrupted}, int(cache.Replicas), cache),
	)
}

// rescuedNode is the step that reports the node with a new build.
func (s *stage) rescuedNode(ctx context.Context, a *account) (string, error) {
	o, err := s.told(a)
	if err != nil {
		return "", err
	}
	a.say(o.called, "a build starts on %s, which is not being drained yet", ci.NodeName(o.rescued))
	node, err := s.AwaitNode(ctx, ci.NodeName(o.rescued), "in service and without marks of Slipway", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && len(leftovers(n)) == 0 && !idle(n)
	})
	if err != nil {
		return "", err
	}
	if err := testbed.Poll(ctx, "no retirement of it is active", func() bool {
		rt := o.record(o.rescued)
		return rt == nil || rt.Status.Phase.Finished()
	}); err != nil {
		return "", err
	}
	a.say(time.Now(), "the node is busy again, and its retirement is cancelled")
	pods, err := s.Client().CoreV1().Pods(builds).List(ctx, metav1.ListOptions{LabelSelector: buildLabel})
	if err != nil {
		return "", err
	}
	return "the node stays, and the build keeps running", all(
		expect(o.reached(o.rescued, v1alpha1.Draining).IsZero(), "a node that was never drained", "it was drained"),
		expect(len(pods.Items) == 1 && ready(&pods.Items[0]) && pods.Items[0].Spec.NodeName == node.Name, "the build ready on "+node.Name,
			"%d builds", len(pods.Items)),
	)
}
