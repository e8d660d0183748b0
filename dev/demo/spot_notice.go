package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/workload"
)

// spotPods is the number of pods on the machine that runSpotNotice preempts.
const spotPods = workload.SpotPods

// runSpotNotice runs the step with a Spot machine that the cloud takes back after a notice of 30 s.
func (s *stage) runSpotNotice(ctx context.Context, a *stepOutput) (string, error) {
	pods := s.podsOn(preempted)
	if err := checkExpectation(len(pods) == spotPods, "40 pods on the machine", "%d", len(pods)); err != nil {
		return "", err
	}
	minReady := s.watchMinReadyPods(ctx, web)
	r, err := s.announce(ctx, a, spotLoss, preempted, "It runs %d pods", len(pods))
	if err != nil {
		return "", err
	}
	at, err := s.awaitCordon(ctx, preempted, r)
	if err != nil {
		return "", err
	}
	a.print(at, "the agent has seen the notice and cordoned the node, and starts to drain it")
	for _, tell := range []func(context.Context, *stepOutput, azure.EventRecord, []azure.Pod) error{
		s.reportSearch, s.reportOrders, s.reportWeb(minReady), s.reportInvoices, s.reportEncoder, s.reportMachineEnd, s.reportNotifications,
	} {
		if err := tell(ctx, a, r, pods); err != nil {
			return "", err
		}
	}
	err = s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: spotPods, azure.OutcomeStayed: 1})
	return "40 of 40 pods finished, 0 cut short, 0 lost; an Event reports 1 forced deletion", err
}

func (s *stage) reportSearch(ctx context.Context, a *stepOutput, _ azure.EventRecord, pods []azure.Pod) error {
	pods, err := s.awaitPods(ctx, podsOfApp(search, pods), int(search.Replicas), "of search ended", hasEnded)
	if err != nil {
		return err
	}
	a.print(latestTime(pods, endTime), "search: its %d pods have no PDB; all were evicted at once and have stopped", len(pods))
	return nil
}

func (s *stage) reportOrders(ctx context.Context, a *stepOutput, _ azure.EventRecord, pods []azure.Pod) error {
	pods, err := s.awaitPods(ctx, podsOfApp(orders, pods), 1, "of orders-db ended", hasEnded)
	if err != nil {
		return err
	}
	if err := s.awaitReplacements(ctx, preempted, 1, orders); err != nil {
		return err
	}
	a.print(time.Now(), "orders-db: the StatefulSet's pod took %.0f s to stop. Only then its replacement started on another node",
		pods[0].EndedAt.Sub(pods[0].DeletionSeenAt).Seconds())
	twin := s.replacementOf(pods[0])
	return checkExpectation(twin.BoundAt.After(pods[0].EndedAt), "orders-db's new pod bound after the end of the old pod, at "+
		formatTime(pods[0].EndedAt), "bound at %s", formatTime(twin.BoundAt))
}

// replacementOf returns the new pod with the name of an old pod. If it does not exist yet, replacementOf returns an
// empty Pod.
func (s *stage) replacementOf(old azure.Pod) azure.Pod {
	for _, p := range s.Pods.Pods() {
		if p.Name == old.Name && p.UID != old.UID {
			return p
		}
	}
	return azure.Pod{}
}

// webMinReady is the minimum number of Ready pods that the PDB of the app web requires.
const webMinReady = 30 - 6

func (s *stage) reportWeb(least func() int32) func(context.Context, *stepOutput, azure.EventRecord, []azure.Pod) error {
	return func(ctx context.Context, a *stepOutput, _ azure.EventRecord, pods []azure.Pod) error {
		pods, err := s.awaitPods(ctx, podsOfApp(web, pods), int(web.Replicas), "of web ended", hasEnded)
		if err != nil {
			return err
		}
		ready := least()
		a.print(latestTime(pods, endTime), "web: its %d pods were evicted 6 at a time, as the PDB allows; at least %d were always Ready",
			len(pods), ready)
		return checkExpectation(ready >= webMinReady, "at least 24 of web's 30 pods always Ready", "%d", ready)
	}
}

// watchMinReadyPods watches the number of Ready pods of a Deployment. It returns a function that returns the minimum
// so far.
func (s *stage) watchMinReadyPods(ctx context.Context, app workload.App) (least func() int32) {
	minReady := make(chan int32, 1)
	minReady <- app.Replicas
	go func() {
		w, err := s.Client().AppsV1().Deployments(shop).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, app.Name).String(),
		})
		if err != nil {
			<-minReady
			minReady <- 0 // unknown, so not Ready
			return
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok {
				minReady <- min(<-minReady, d.Status.ReadyReplicas)
			}
		}
	}()
	return func() int32 {
		n := <-minReady
		minReady <- n
		return n
	}
}

func (s *stage) reportInvoices(ctx context.Context, a *stepOutput, r azure.EventRecord, pods []azure.Pod) error {
	pods, err := s.awaitPods(ctx, podsOfApp(invoices, pods), 1, "of invoices deleted", wasDeleted)
	if err != nil {
		return err
	}
	p := pods[0]
	a.print(p.DeletionSeenAt, "invoices: the PDB allows no eviction. With %.0f s left it is deleted nevertheless, so that it gets its %d s",
		r.NotBefore.Sub(p.DeletionSeenAt).Seconds(), p.FirstGrantedSeconds)
	return checkExpectation(p.FirstGrantedSeconds >= p.WantedSeconds, "10 s grace period for invoices", "%d s", p.FirstGrantedSeconds)
}

func (s *stage) reportEncoder(ctx context.Context, a *stepOutput, _ azure.EventRecord, pods []azure.Pod) error {
	pods, err := s.awaitPods(ctx, podsOfApp(encoder, pods), 1, "of encoder ended", hasEnded)
	if err != nil {
		return err
	}
	took := pods[0].EndedAt.Sub(pods[0].DeletionSeenAt)
	a.print(pods[0].EndedAt, "encoder: needed 20 s to stop, and got them")
	return checkExpectation(took > 19*time.Second, "encoder to stop 20 s after its eviction", "%s", took)
}

// reportMachineEnd waits until the machine has ended, and reports and checks what happened.
func (s *stage) reportMachineEnd(ctx context.Context, a *stepOutput, r azure.EventRecord, _ []azure.Pod) error {
	r, err := s.reportDrained(ctx, a, preempted, r)
	if err != nil {
		return err
	}
	died, err := s.awaitPowerChange(ctx, r, false)
	if err != nil {
		return err
	}
	elsewhere, nodes, err := s.countReadyPods(ctx, preempted, onSpot.Apps()...)
	if err != nil {
		return err
	}
	drainedEvent, err := s.AwaitEvent(ctx, preempted.node(), "Drained")
	if err != nil {
		return err
	}
	a.print(died, "the machine ends. %d pods of the same apps are Ready on %d other nodes", elsewhere, nodes)
	const admitted = "1 deleted despite a disruption budget"
	return firstError(
		checkExpectation(elsewhere == spotPods, "40 pods of the same apps Ready on other nodes when the machine is deleted", "%d", elsewhere),
		checkExpectation(strings.Contains(drainedEvent.Message, admitted), fmt.Sprintf("%q in an Event of the agent on the Node", admitted), "%q", drainedEvent.Message),
		checkExpectation(countPods(s.Pods.Pods(), func(p azure.Pod) bool { return p.Node == preempted.node() && p.BoundAt.After(r.VisibleAt) }) == 0,
			"no new pod on the machine since the notice", "one or more"),
	)
}
