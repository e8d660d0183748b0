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

// runIdlePool is the step with idle nodes that are retired. It also runs what the next steps report.
func (s *stage) runIdlePool(ctx context.Context, a *stepOutput) (_ string, err error) {
	o, err := s.observePool(ctx)
	if err != nil {
		return "", err
	}
	s.pool = o
	defer func() { o.err = err }()
	keep, stop := context.WithCancel(ctx)
	defer stop()
	go s.restartManagers(keep)
	if err := s.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: ciPool.ResourceName(undeletableInstance), Times: 1}); err != nil {
		return "", err
	}
	o.startedAt = time.Now()
	a.startTime = o.startedAt
	if err := s.endBuilds(ctx); err != nil {
		return "", err
	}
	a.print(time.Now(), "the builds on the %d machines of pool %s have ended. A node without a build for %s is retired, %d at a time", ciMachineCount,
		ciPool.Name, cooldown, 1)
	if err := s.killManagerAndAddBuild(ctx, o); err != nil {
		return "", err
	}
	if err := s.reportDeletedNodes(ctx, a, o); err != nil {
		return "", err
	}
	return "5 nodes and 5 machines deleted, never two nodes out of service at once", s.checkFinalPool(ctx, o)
}

// reportDeletedNodes waits until all nodes except the rescued one are deleted, and reports them in order.
func (s *stage) reportDeletedNodes(ctx context.Context, a *stepOutput, o *poolObserver) error {
	var deleted []int
	for i := range ciMachineCount {
		if i == o.rescued {
			continue
		}
		if err := o.awaitPhase(ctx, i, v1alpha1.Succeeded); err != nil {
			return err
		}
		deleted = append(deleted, i)
	}
	slices.SortFunc(deleted, func(x, y int) int {
		return o.phaseTime(x, v1alpha1.Succeeded).Compare(o.phaseTime(y, v1alpha1.Succeeded))
	})
	for _, i := range deleted {
		a.print(o.phaseTime(i, v1alpha1.Succeeded), "%s and its machine are deleted; the Node at %.1f s", ciPool.NodeName(i),
			o.phaseTime(i, v1alpha1.NodeDeleted).Sub(o.startedAt).Seconds())
	}
	return nil
}

// endBuilds ends the builds on all machines, starting with the machine that is retired first.
func (s *stage) endBuilds(ctx context.Context) error {
	pods := s.Client().CoreV1().Pods(builds)
	if err := pods.Delete(ctx, initialBuildName(interruptedInstance), metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("ending a build: %w", err)
	}
	first, err := s.AwaitNode(ctx, ciPool.NodeName(interruptedInstance), "marked as idle", isMarkedIdle)
	if err != nil {
		return err
	}
	since, err := time.Parse(time.RFC3339, first.Annotations[idleSinceAnnotation])
	if err != nil {
		return fmt.Errorf("node %s: %w", first.Name, err)
	}
	time.Sleep(time.Until(since)) // the annotation has whole seconds; the others must differ
	err = pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: buildLabel})
	if err != nil {
		return fmt.Errorf("ending the builds: %w", err)
	}
	return testbed.PollUntil(ctx, "the builds have ended", func() bool {
		left, err := pods.List(ctx, metav1.ListOptions{LabelSelector: buildLabel})
		return err == nil && len(left.Items) == 0
	})
}

// idleSinceAnnotation is the manager's annotation with the time since when a node is idle.
const idleSinceAnnotation = "nodegroup.slipway.dev/idle-since"

func isMarkedIdle(n *corev1.Node) bool { return n.Annotations[idleSinceAnnotation] != "" }

// killManagerAndAddBuild kills the manager during a drain, and starts a build on the last node during another retirement.
func (s *stage) killManagerAndAddBuild(ctx context.Context, o *poolObserver) error {
	if err := o.awaitPhase(ctx, interruptedInstance, v1alpha1.Draining); err != nil {
		return err
	}
	if err := testbed.PollUntil(ctx, "a manager leads", func() bool { o.killedManager = s.leadingManager(ctx); return o.killedManager != nil }); err != nil {
		return err
	}
	o.killedManager.killed.Store(true)
	if err := o.killedManager.Kill(); err != nil {
		return err
	}
	o.killedAt = time.Now()
	var err error
	if o.rescued, err = o.lastUndrainedInstance(); err != nil {
		return err
	}
	if err := workload.CreateAndAwait(ctx, s.Client(), buildApp("build-7", o.rescued).Pod()); err != nil {
		return err
	}
	o.rescuedAt = time.Now()
	if err := testbed.PollUntil(ctx, "the other manager leads", func() bool { return s.leadingManager(ctx) != nil }); err != nil {
		return err
	}
	o.takeoverAt = time.Now()
	return nil
}

// checkFinalPool checks the final state with the API server and Azure.
func (s *stage) checkFinalPool(ctx context.Context, o *poolObserver) error {
	nodes, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.azure.com/agentpool=" + ciPool.Name})
	if err != nil {
		return err
	}
	var names, machines []string
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	for _, vm := range s.ARM.VMs() {
		if vm.ScaleSet == ciPool.ScaleSetName() {
			machines = append(machines, vm.Resource)
		}
	}
	return firstError(
		checkExpectation(slices.Equal(names, []string{ciPool.NodeName(o.rescued)}), "one node remaining, "+ciPool.NodeName(o.rescued), "%v", names),
		checkExpectation(slices.Equal(machines, []string{ciPool.ResourceName(o.rescued)}), "one machine remaining, "+ciPool.ResourceName(o.rescued), "%v", machines),
		checkExpectation(s.ARM.Capacity(ciPool.ScaleSetName()) == 1, "a scale set capacity of 1", "%d", s.ARM.Capacity(ciPool.ScaleSetName())),
		checkExpectation(o.maxConcurrentUnschedulable() == 1, "never more than one node out of service at once", "%d were", o.maxConcurrentUnschedulable()),
	)
}

// poolObservations returns the observations of the pool's step, for the steps after it.
func (s *stage) poolObservations(a *stepOutput) (*poolObserver, error) {
	if s.pool == nil {
		return nil, fmt.Errorf("the pool was not observed")
	}
	a.startTime = s.pool.startedAt
	return s.pool, s.pool.err
}

// reportFailedDeletion is the step that reports the machine that Azure failed to delete.
func (s *stage) reportFailedDeletion(_ context.Context, a *stepOutput) (string, error) {
	o, err := s.poolObservations(a)
	if err != nil {
		return "", err
	}
	var requestTimes []time.Time
	for _, r := range s.ARM.Requests() {
		if r.Action == "Microsoft.Compute/virtualMachineScaleSets/delete/action" && strings.Contains(r.Path, ciPool.ScaleSetName()) &&
			strings.Contains(r.Body, fmt.Sprintf("%q", fmt.Sprint(undeletableInstance))) {
			requestTimes = append(requestTimes, r.At)
		}
	}
	if err := checkExpectation(len(requestTimes) == 2, "two deletion requests for "+ciPool.ResourceName(undeletableInstance), "%d requests", len(requestTimes)); err != nil {
		return "", err
	}
	rt := o.retirementOf(undeletableInstance)
	a.print(requestTimes[0], "Azure is asked to delete %s, and fails", ciPool.ResourceName(undeletableInstance))
	a.print(requestTimes[1], "the deletion is retried, because the machine still costs money")
	a.print(o.phaseTime(undeletableInstance, v1alpha1.Succeeded), "now the machine is deleted")
	return fmt.Sprintf("deleted at the second attempt, %.1f s after the first", requestTimes[1].Sub(requestTimes[0]).Seconds()), firstError(
		checkExpectation(requestTimes[1].Sub(requestTimes[0]) >= retryInterval, "a pause of at least "+retryInterval.String(), "%s", requestTimes[1].Sub(requestTimes[0])),
		checkExpectation(rt != nil && rt.Status.Operation != nil && rt.Status.Operation.Attempts == 2, "2 attempts in the record", "%+v", rt),
	)
}

// reportKilledManager is the step that reports the killed manager.
func (s *stage) reportKilledManager(ctx context.Context, a *stepOutput) (string, error) {
	o, err := s.poolObservations(a)
	if err != nil {
		return "", err
	}
	a.print(o.phaseTime(interruptedInstance, v1alpha1.Draining), "%s is being drained: its %d pods take 4 s to stop", ciPool.NodeName(interruptedInstance), cacheApp.Replicas)
	a.print(o.killedAt, "the manager is killed (SIGKILL)")
	a.print(o.takeoverAt, "the other manager leads after %.1f s, reads the state in the NodeRetirement and resumes", o.takeoverAt.Sub(o.killedAt).Seconds())
	done := o.phaseTime(interruptedInstance, v1alpha1.Succeeded)
	a.print(done, "the node and its machine are deleted")
	gone := slices.DeleteFunc(s.Pods.Pods(), func(p azure.Pod) bool {
		return p.Node != ciPool.NodeName(interruptedInstance) || !isPodOfApp(cacheApp, p.Name)
	})
	return "the second manager finished the retirement of the first", firstError(
		checkExpectation(!o.killedManager.IsAlive() && s.leadingManager(ctx) != nil, "the first manager killed and the other leading", "otherwise"),
		checkExpectation(done.After(o.takeoverAt), "the retirement to end under the second manager", "at %s", formatTime(done)),
		checkExpectation(len(gone) == int(cacheApp.Replicas) && countPods(gone, hasEnded) == len(gone), fmt.Sprintf("%d pods of cache ended on the node", cacheApp.Replicas),
			"%d of %d", countPods(gone, hasEnded), len(gone)),
		s.awaitReplacements(ctx, machine{ciPool, interruptedInstance}, int(cacheApp.Replicas), cacheApp),
	)
}

// reportRescuedNode is the step that reports the node with a new build.
func (s *stage) reportRescuedNode(ctx context.Context, a *stepOutput) (string, error) {
	o, err := s.poolObservations(a)
	if err != nil {
		return "", err
	}
	a.print(o.rescuedAt, "a build starts on %s, which is not being drained yet", ciPool.NodeName(o.rescued))
	node, err := s.AwaitNode(ctx, ciPool.NodeName(o.rescued), "in service and without marks of Slipway", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && len(slipwayMarks(n)) == 0 && !isMarkedIdle(n)
	})
	if err != nil {
		return "", err
	}
	if err := testbed.PollUntil(ctx, "no retirement of it is active", func() bool {
		rt := o.retirementOf(o.rescued)
		return rt == nil || rt.Status.Phase.IsFinal()
	}); err != nil {
		return "", err
	}
	a.print(time.Now(), "the node is busy again, and its retirement is cancelled")
	pods, err := s.Client().CoreV1().Pods(builds).List(ctx, metav1.ListOptions{LabelSelector: buildLabel})
	if err != nil {
		return "", err
	}
	return "the node stays, and the build keeps running", firstError(
		checkExpectation(o.phaseTime(o.rescued, v1alpha1.Draining).IsZero(), "a node that was never drained", "it was drained"),
		checkExpectation(len(pods.Items) == 1 && isReady(&pods.Items[0]) && pods.Items[0].Spec.NodeName == node.Name, "the build ready on "+node.Name,
			"%d builds", len(pods.Items)),
	)
}
