package demo

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// untilMigration is the notice of the live migration, short enough for the demo.
const untilMigration = 4 * time.Second

// liveMigration is the step with a machine that only pauses, so that the agent ignores it.
func (s *stage) liveMigration(ctx context.Context, a *account) (string, error) {
	pods := s.on(crashed)
	history, err := s.RecordNode(ctx, crashed.node())
	if err != nil {
		return "", err
	}
	defer history.Stop()
	what, err := azure.Scenario("live-migration", crashed.resource())
	if err != nil {
		return "", err
	}
	what.Notice = untilMigration
	r, err := s.announce(ctx, a, what, "Azure: %s will pause for 5 s while it moves to another host (Freeze). It runs %d pods",
		crashed.resource(), len(pods))
	if err != nil {
		return "", err
	}
	noticed, err := s.AwaitEvent(ctx, crashed.node(), "NoticeReceived")
	if err != nil {
		return "", err
	}
	a.say(time.Now(), "the agent has seen the event and ignores it, because restarting pods costs more than a short pause")
	if r, err = s.over(ctx, r); err != nil {
		return "", err
	}
	if _, err := s.AwaitEvent(ctx, crashed.node(), "NoticeOver"); err != nil {
		return "", err
	}
	a.say(r.VanishedAt, "the migration, started at %.1f s, has ended", r.StartedAt.Sub(r.VisibleAt).Seconds())
	return "never cordoned; the same 6 pods keep running", all(
		expect(strings.Contains(noticed.Message, "ignore"), "the agent's decision to ignore it", "%q", noticed.Message),
		expect(!everHeld(history), "a node that was never cordoned or marked", "it was"),
		expect(count(s.now(pods), func(p azure.Pod) bool { return asked(p) || ended(p) }) == 0, "no eviction", "some"),
		s.fates(ctx, r, map[azure.Outcome]int{azure.OutcomeRunning: len(pods), azure.OutcomeStayed: 1}),
	)
}

// everHeld reports whether a node was ever cordoned or marked by Slipway.
func everHeld(h *testbed.NodeHistory) bool {
	for _, n := range h.States() {
		if held(n) {
			return true
		}
	}
	return false
}

func held(n *corev1.Node) bool { return n.Spec.Unschedulable || len(leftovers(n)) > 0 }
