package demo

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// stoppedDrainTime is how long evictions must stay absent before a drain counts as stopped. A running drain evicts within a
// second.
const stoppedDrainTime = 3 * time.Second

// runCancelledReboot is the step with an event that is cancelled during the drain.
func (s *stage) runCancelledReboot(ctx context.Context, a *stepOutput) (string, error) {
	pods := s.podsOn(cancelledOn)
	r, err := s.announceEvent(ctx, a, azure.Announcement{Type: azure.Reboot, Resources: []string{cancelledOn.resource()}},
		"Azure: %s will reboot in 15 minutes. The PDB allows 1 of its %d pods to be evicted at a time", cancelledOn.resource(), len(pods))
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
	a.print(latestTime(pods, endTime), "node cordoned and 2 pods stopped, then Azure cancels the reboot")
	if err := s.Azure.CancelEvent(r.EventID); err != nil {
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

// awaitDrainStopped waits until the PDB has allowed an eviction for stoppedDrainTime.
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

// checkPodsUnharmed checks that each pod of an event has finished or still runs.
func (s *stage) checkPodsUnharmed(r azure.EventRecord, pods int) error {
	l, _ := s.Azure.Ledger().Event(r.EventID)
	sound := l.CountOutcome(azure.OutcomeFinished) + l.CountOutcome(azure.OutcomeRunning)
	return checkExpectation(sound == pods && l.CountOutcome(azure.OutcomeFinished) >= 2,
		fmt.Sprintf("in the ledger: %d pods, each finished or running", pods), "%s", l.Summary(testbed.CutTolerance))
}
