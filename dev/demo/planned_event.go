package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// distantNotice is the time from a distantEvent's announcement to the event.
const distantNotice = 14 * 24 * time.Hour

// runDistantEvent runs the step with an event that is planned weeks ahead, and cancelled later. The agent only counts and
// logs it.
func (s *stage) runDistantEvent(ctx context.Context, a *stepOutput) (string, error) {
	pods, agent := s.podsOn(crashed), s.agents[crashed.node()]
	history, err := s.RecordNodeStates(ctx, crashed.node())
	if err != nil {
		return "", err
	}
	defer history.StopRecording()
	r, err := s.announce(ctx, a, distantEvent, crashed, "It runs %d pods", len(pods))
	if err != nil {
		return "", err
	}
	planned := fmt.Sprintf("slipway_agent_planned_notices{type=%q}", r.Type)
	awaitPlanned := func(want float64) error {
		return testbed.PollUntil(ctx, fmt.Sprintf("the agent's metric %s is %v", planned, want), func() bool {
			value, _ := agent.ReadMetric(ctx, planned)
			return value == want
		})
	}
	if err := awaitPlanned(1); err != nil {
		return "", err
	}
	a.print(time.Now(), "the agent counts it (%s 1), and leaves the node alone", planned)
	if err := s.cloud.cancel(r); err != nil {
		return "", err
	}
	if err := awaitPlanned(0); err != nil {
		return "", err
	}
	a.print(time.Now(), "%s cancels it, and the agent counts 0", s.cloud.title())
	const logged = "planned interruption, not due yet"
	return fmt.Sprintf("never cordoned; the same %d pods keep running; the agent's log says “%s”", len(pods), logged), firstError(
		checkExpectation(agent.HasLogged(logged), fmt.Sprintf("%q in the agent's log", logged), "no such line"),
		checkExpectation(!wasEverMarked(history), "a node that was never cordoned or marked", "it was"),
		checkExpectation(countPods(s.currentPods(pods), func(p azure.Pod) bool { return wasDeleted(p) || hasEnded(p) }) == 0, "no eviction", "some"),
	)
}
