package demo

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// aWhile is how long evictions must stay absent before a drain counts as stopped. A running drain evicts within a
// second.
const aWhile = 3 * time.Second

// cancelledReboot is the step with an event that is cancelled during the drain.
func (s *stage) cancelledReboot(ctx context.Context, a *account) (string, error) {
	pods := s.on(spared)
	r, err := s.announce(ctx, a, azure.Announcement{Type: azure.Reboot, Resources: []string{spared.resource()}},
		"Azure: %s will reboot in 15 minutes. The PDB allows 1 of its %d pods to be evicted at a time", spared.resource(), len(pods))
	if err != nil {
		return "", err
	}
	if _, err := s.cordoned(ctx, spared, r); err != nil {
		return "", err
	}
	pods, err = s.await(ctx, pods, 2, "ended", ended)
	if err != nil {
		return "", err
	}
	a.say(last(pods, endedAt), "node cordoned and 2 pods stopped, then Azure cancels the reboot")
	if err := s.Azure.Cancel(r.EventID); err != nil {
		return "", err
	}
	at, err := s.givenBack(ctx, spared)
	if err != nil {
		return "", err
	}
	a.say(at, "the drain has stopped, and the node is uncordoned")
	if err := s.stopped(ctx); err != nil {
		return "", err
	}
	pods = s.now(pods)
	gone := count(pods, asked)
	// The API server's time has truncated seconds, and the watch of the pods may be behind the watch of the node.
	late := count(pods, func(p azure.Pod) bool { return p.AskedAt.After(at) })
	a.say(time.Now(), "the PDB has allowed another eviction for %s, and there was none: %d pods were evicted, %d keep running", aWhile, gone, len(pods)-gone)
	if r, err = s.over(ctx, r); err != nil {
		return "", err
	}
	return fmt.Sprintf("the other %d pods were not touched", len(pods)-gone), all(
		expect(late == 0, "no eviction after the node was restored", "%d", late),
		expect(gone < len(pods), "pods that were not evicted", "none"),
		expect(r.Ending == azure.Cancelled && len(r.Power) == 0, "no power change of the machine", "%s, %v", r.Ending, r.Power),
		s.unharmed(r, len(pods)),
	)
}

// stopped waits until the PDB has allowed an eviction for aWhile.
func (s *stage) stopped(ctx context.Context) error {
	var since time.Time
	return testbed.Poll(ctx, "the PDB of reports allows an eviction", func() bool {
		b, err := s.Client().PolicyV1().PodDisruptionBudgets(shop).Get(ctx, reports.Name, metav1.GetOptions{})
		if err != nil || b.Status.DisruptionsAllowed == 0 {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= aWhile
	})
}

// unharmed checks that each pod of an event has finished or still runs.
func (s *stage) unharmed(r azure.Record, pods int) error {
	l, _ := s.Azure.Ledger().Event(r.EventID)
	sound := l.Count(azure.OutcomeFinished) + l.Count(azure.OutcomeRunning)
	return expect(sound == pods && l.Count(azure.OutcomeFinished) >= 2,
		fmt.Sprintf("in the ledger: %d pods, each finished or running", pods), "%s", l.Summary(testbed.CutTolerance))
}
