package demo

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// stoppedDrainTime is how long no eviction may happen before the demo regards a drain as stopped. A running drain
// evicts a pod within one second.
const stoppedDrainTime = 3 * time.Second

// runCancelledReboot runs the step with a reboot, or a maintenance of the host, that the cloud cancels during the drain.
func (s *stage) runCancelledReboot(ctx context.Context, a *stepOutput) (string, error) {
	pods := s.podsOn(cancelledOn)
	r, err := s.announce(ctx, a, laterReboot, cancelledOn, "The PDB allows 1 of its %d pods to be evicted at a time", len(pods))
	if err != nil {
		return "", err
	}
	if _, err := s.awaitCordon(ctx, cancelledOn, r); err != nil {
		return "", err
	}
	pods, err = s.awaitPods(ctx, pods, 2, "ended", hasEnded)
	if err != nil {
		return "", err
	}
	a.print(latestTime(pods, endTime), "node cordoned and 2 pods stopped, then %s cancels it", s.cloud.title())
	if err := s.cloud.cancel(r); err != nil {
		return "", err
	}
	at, err := s.awaitNodeRestored(ctx, cancelledOn)
	if err != nil {
		return "", err
	}
	a.print(at, "the drain has stopped, and the node is uncordoned")
	if err := s.awaitDrainStopped(ctx); err != nil {
		return "", err
	}
	pods = s.currentPods(pods)
	evicted := countPods(pods, wasDeleted)
	// The API server's time has truncated seconds, and the watch of the pods may be behind the watch of the node.
	late := countPods(pods, func(p azure.Pod) bool { return p.DeletedAt.After(at) })
	a.print(time.Now(), "the PDB has allowed another eviction for %s, and there was none: %d pods were evicted, %d keep running", stoppedDrainTime, evicted, len(pods)-evicted)
	if r, err = s.awaitEventVanished(ctx, r); err != nil {
		return "", err
	}
	return fmt.Sprintf("the other %d pods were not touched", len(pods)-evicted), firstError(
		checkExpectation(late == 0, "no eviction after the node was restored", "%d", late),
		checkExpectation(evicted < len(pods), "pods that were not evicted", "none"),
		checkExpectation(r.Ending == azure.Cancelled && len(r.Power) == 0, "no power change of the machine", "%s, %v", r.Ending, r.Power),
		s.checkPodsUnharmed(r, len(pods)),
	)
}

// awaitDrainStopped waits until the PDB has allowed an eviction for stoppedDrainTime, but the agent has not evicted
// a pod.
func (s *stage) awaitDrainStopped(ctx context.Context) error {
	var since time.Time
	return testbed.PollUntil(ctx, "the PDB of reports allows an eviction", func() bool {
		b, err := s.Client().PolicyV1().PodDisruptionBudgets(shop).Get(ctx, reports.Name, metav1.GetOptions{})
		if err != nil || b.Status.DisruptionsAllowed == 0 {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= stoppedDrainTime
	})
}

// checkPodsUnharmed returns an error unless each of the event's pods has finished or is still running.
func (s *stage) checkPodsUnharmed(r azure.EventRecord, pods int) error {
	l := s.cloud.ledger(r)
	sound := l.CountOutcome(azure.OutcomeFinished) + l.CountOutcome(azure.OutcomeRunning)
	return checkExpectation(sound == pods && l.CountOutcome(azure.OutcomeFinished) >= 2,
		fmt.Sprintf("in the ledger: %d pods, each finished or running", pods), "%s", l.Summary(testbed.CutTolerance))
}
