package demo

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// aWhile is for how long nobody is asked to leave, though the budget would allow it, before a drain is taken to have
// stopped. While it was under way it asked within a second.
const aWhile = 3 * time.Second

// cancelledReboot is the step in which an event is called off while the node is being drained for it.
func (s *stage) cancelledReboot(ctx context.Context, a *account) (string, error) {
	pods := s.on(spared)
	r, err := s.announce(ctx, a, azure.Announcement{Type: azure.Reboot, Resources: []string{spared.resource()}},
		"Azure: %s will reboot in 15 minutes. Of its %d pods one may go at a time", spared.resource(), len(pods))
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
	a.say(last(pods, endedAt), "node cordoned, and 2 of the pods are gone, when Azure calls the reboot off")
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
	// By the API server's clock, in whole seconds that were cut off: the watch of the pods may be behind that of the node.
	late := count(pods, func(p azure.Pod) bool { return p.AskedAt.After(at) })
	a.say(time.Now(), "their budget has allowed another eviction for %s now, and nobody asks: %d pods have left, %d run on", aWhile, gone, len(pods)-gone)
	if r, err = s.over(ctx, r); err != nil {
		return "", err
	}
	return fmt.Sprintf("the other %d pods never noticed", len(pods)-gone), all(
		expect(late == 0, "no pod asked to leave after the node was given back", "%d", late),
		expect(gone < len(pods), "pods that were not asked to leave", "none"),
		expect(r.Ending == azure.Cancelled && len(r.Power) == 0, "the machine not to be touched", "%s, %v", r.Ending, r.Power),
		s.unharmed(r, len(pods)),
	)
}

// stopped waits until the budget has allowed an eviction for a while.
func (s *stage) stopped(ctx context.Context) error {
	var since time.Time
	return testbed.Poll(ctx, "the budget of reports allows an eviction", func() bool {
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

// unharmed checks that of all pods of an event each has stopped by itself or runs on.
func (s *stage) unharmed(r azure.Record, pods int) error {
	l, _ := s.Azure.Ledger().Event(r.EventID)
	sound := l.Count(azure.OutcomeFinished) + l.Count(azure.OutcomeRunning)
	return expect(sound == pods && l.Count(azure.OutcomeFinished) >= 2,
		fmt.Sprintf("in the ledger: %d pods, each finished or running", pods), "%s", l.Summary(testbed.CutTolerance))
}
