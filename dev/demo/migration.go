package demo

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// migrationNotice is the notice of the live migration, short enough for the demo.
const migrationNotice = 4 * time.Second

// runLiveMigration is the step with a machine that only pauses, so that the agent ignores it.
func (s *stage) runLiveMigration(ctx context.Context, a *stepOutput) (string, error) {
	pods := s.podsOn(crashed)
	history, err := s.RecordNodeStates(ctx, crashed.node())
	if err != nil {
		return "", err
	}
	defer history.StopRecording()
	announcement, err := azure.NewScenario("live-migration", crashed.resource())
	if err != nil {
		return "", err
	}
	announcement.Notice = migrationNotice
	r, err := s.announceEvent(ctx, a, announcement, "Azure: %s will pause for 5 s while it moves to another host (Freeze). It runs %d pods",
		crashed.resource(), len(pods))
	if err != nil {
		return "", err
	}
	noticed, err := s.AwaitEvent(ctx, crashed.node(), "NoticeReceived")
	if err != nil {
		return "", err
	}
	a.print(time.Now(), "the agent has seen the event and ignores it, because restarting pods costs more than a short pause")
	if r, err = s.awaitEventVanished(ctx, r); err != nil {
		return "", err
	}
	if _, err := s.AwaitEvent(ctx, crashed.node(), "NoticeEnded"); err != nil {
		return "", err
	}
	a.print(r.VanishedAt, "the migration, started at %.1f s, has ended", r.StartedAt.Sub(r.VisibleAt).Seconds())
	return "never cordoned; the same 6 pods keep running", firstError(
		checkExpectation(strings.Contains(noticed.Message, "ignore"), "the agent's decision to ignore it", "%q", noticed.Message),
		checkExpectation(!wasEverMarked(history), "a node that was never cordoned or marked", "it was"),
		checkExpectation(countPods(s.currentPods(pods), func(p azure.Pod) bool { return wasDeleted(p) || hasEnded(p) }) == 0, "no eviction", "some"),
		s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeRunning: len(pods), azure.OutcomeStayed: 1}),
	)
}

// wasEverMarked reports whether a node was ever cordoned or marked by Slipway.
func wasEverMarked(h *testbed.NodeHistory) bool {
	for _, n := range h.States() {
		if isMarked(n) {
			return true
		}
	}
	return false
}

func isMarked(n *corev1.Node) bool { return n.Spec.Unschedulable || len(slipwayMarks(n)) > 0 }
