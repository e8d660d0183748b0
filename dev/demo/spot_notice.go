package demo

import (
	"context"
	"regexp"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
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
	ready := s.watchReadyPods(ctx, web, webMinReady)
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
		s.reportSearch, s.reportOrders, s.reportWeb(ready), s.reportInvoices, s.reportEncoder, s.reportMachineEnd, s.reportNotifications,
	} {
		if err := tell(ctx, a, r, pods); err != nil {
			return "", err
		}
	}
	err = s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: spotPods, azure.OutcomeStayed: 1})
	return "40 of 40 pods finished, 0 cut short, 0 lost; an Event reports the forced deletion", err
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
	var twin azure.Pod
	err = testbed.PollUntil(ctx, "orders-db has a new pod", func() bool {
		twin = s.replacementOf(pods[0])
		return !twin.BoundAt.IsZero()
	})
	if err == nil {
		err = s.awaitReplacements(ctx, preempted, 1, orders)
	}
	if err != nil {
		return err
	}
	a.print(time.Now(), "orders-db: the StatefulSet's pod took %.0f s to stop. Only then its replacement started on another node",
		pods[0].EndedAt.Sub(pods[0].DeletionSeenAt).Seconds())
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

func (s *stage) reportWeb(ready *readyPods) func(context.Context, *stepOutput, azure.EventRecord, []azure.Pod) error {
	return func(ctx context.Context, a *stepOutput, r azure.EventRecord, pods []azure.Pod) error {
		pods, err := s.awaitPods(ctx, podsOfApp(web, pods), int(web.Replicas), "of web ended", hasEnded)
		if err != nil {
			return err
		}
		least, tooFew := ready.current()
		if tooFew.IsZero() {
			a.print(latestTime(pods, endTime), "web: its %d pods were evicted 6 at a time, as the PDB allows; at least %d were always Ready",
				len(pods), least)
			return nil
		}
		// On a slow machine the evictions do not end in time. The agent then deletes the last pods, so that they get their
		// grace period.
		a.print(latestTime(pods, endTime), "web: its %d pods were evicted 6 at a time, until the time was too short: this machine is slow", len(pods))
		return checkExpectation(mayBypassPDB(r, tooFew), "at least 24 of web's 30 pods Ready while there is time",
			"%d, %.0f s before the end of the machine", least, r.NotBefore.Sub(tooFew).Seconds())
	}
}

// readyPods is the number of Ready pods of a Deployment over the time.
type readyPods struct {
	mu     sync.Mutex
	least  int32
	tooFew time.Time // when the number was less than the minimum for the first time
}

// current returns the least number so far, and when the number was less than the minimum for the first time. That time is
// zero if it never was.
func (p *readyPods) current() (least int32, tooFew time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.least, p.tooFew
}

func (p *readyPods) observe(n, minimum int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.least = min(p.least, n)
	if n < minimum && p.tooFew.IsZero() {
		p.tooFew = time.Now()
	}
}

// watchReadyPods watches the number of Ready pods of a Deployment.
func (s *stage) watchReadyPods(ctx context.Context, app workload.App, minimum int32) *readyPods {
	ready := &readyPods{least: app.Replicas}
	go func() {
		w, err := s.Client().AppsV1().Deployments(shop).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, app.Name).String(),
		})
		if err != nil {
			ready.observe(0, minimum) // unknown, so not Ready
			return
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok {
				ready.observe(d.Status.ReadyReplicas, minimum)
			}
		}
	}()
	return ready
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
	a.print(pods[0].EndedAt, "encoder: needed 20 s to stop, and got them") // otherwise the ledger counts it as cut short
	return nil
}

// mayBypassPDB reports whether a pod of web was deleted so late that the agent may have bypassed the PDB for it.
func mayBypassPDB(r azure.EventRecord, deleted time.Time) bool {
	return r.NotBefore.Sub(deleted) < web.GracePeriod+testbed.CutTolerance
}

// forcedDeletions finds the number of forced deletions in an Event of the agent.
var forcedDeletions = regexp.MustCompile(`\b(\d+) deleted despite a disruption budget`)

// reportMachineEnd waits until the machine has ended, and reports and checks what happened.
func (s *stage) reportMachineEnd(ctx context.Context, a *stepOutput, r azure.EventRecord, pods []azure.Pod) error {
	r, err := s.reportDrained(ctx, a, preempted, r)
	if err != nil {
		return err
	}
	died, err := s.awaitPowerChange(ctx, r, false)
	if err != nil {
		return err
	}
	drainedEvent, err := s.AwaitEvent(ctx, preempted.node(), "Drained")
	if err != nil {
		return err
	}
	if err := s.awaitReplacements(ctx, preempted, spotPods, onSpot.Apps()...); err != nil {
		return err
	}
	elsewhere, nodes, err := s.countReadyPods(ctx, preempted, onSpot.Apps()...)
	if err != nil {
		return err
	}
	a.print(died, "the machine ends. %d pods of the same apps are Ready on %d other nodes", elsewhere, nodes)
	forced := forcedDeletions.FindStringSubmatch(drainedEvent.Message)
	late := countPods(podsOfApp(web, s.currentPods(pods)), func(p azure.Pod) bool { return mayBypassPDB(r, p.DeletionSeenAt) })
	return firstError(
		checkExpectation(len(forced) == 2 && (forced[1] == "1" || late > 0), "1 deletion despite a disruption budget in an Event of the agent on the Node",
			"%q", drainedEvent.Message),
		checkExpectation(countPods(s.Pods.Pods(), func(p azure.Pod) bool { return p.Node == preempted.node() && p.BoundAt.After(r.VisibleAt) }) == 0,
			"no new pod on the machine since the notice", "one or more"),
	)
}
