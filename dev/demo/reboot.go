package demo

import (
	"context"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// runReboot runs the step with a machine that reboots. Afterwards the agent restores the node.
func (s *stage) runReboot(ctx context.Context, a *stepOutput) (outcome string, err error) {
	pods, agent := s.podsOn(rebooted), s.agents[rebooted.node()]
	before := agent.PID()
	r, err := s.announce(ctx, a, reboot, rebooted, "It runs %d pods", len(pods))
	if err != nil {
		return "", err
	}
	cordoned, err := s.awaitCordon(ctx, rebooted, r)
	if err != nil {
		return "", err
	}
	a.print(cordoned, "node cordoned; draining")
	pods, err = s.awaitPods(ctx, pods, len(pods), "ended", hasEnded)
	if err != nil {
		return "", err
	}
	a.print(latestTime(pods, endTime), "all %d pods have stopped", len(pods))
	if r, err = s.reportDrained(ctx, a, rebooted, r); err != nil {
		return "", err
	}
	return s.followReboot(ctx, a, r, agent, before)
}

// followReboot waits until the machine is down and up again, and checks that the agent restores the node.
func (s *stage) followReboot(ctx context.Context, a *stepOutput, r azure.EventRecord, agent *testbed.Agent, oldPID int) (outcome string, err error) {
	down, err := s.awaitPowerChange(ctx, r, false)
	if err != nil {
		return "", err
	}
	a.print(down, "the machine is down, and its agent too")
	up, err := s.awaitPowerChange(ctx, r, true)
	if err != nil {
		return "", err
	}
	a.print(up, "the machine is up with a new agent, which reads the cordon claim on the Node")
	if r, err = s.awaitEventVanished(ctx, r); err != nil {
		return "", err
	}
	at, err := s.awaitNodeRestored(ctx, rebooted)
	if err != nil {
		return "", err
	}
	a.print(at, "%s's event has ended (at %.1f s), and the node is uncordoned", s.cloud.title(), r.VanishedAt.Sub(r.VisibleAt).Seconds())
	return "8 pods moved, 0 cut short, 0 lost; the node is schedulable and has no marks of Slipway", firstError(
		checkExpectation(r.StartedBy == azure.ByApproval || s.cloud.approval(r) == "", "the reboot to start by the agent's approval", "started by %s", r.StartedBy),
		checkExpectation(agent.PID() != oldPID && agent.IsAlive(), "a new agent process", "process %d, alive: %v", agent.PID(), agent.IsAlive()),
		s.awaitReplacements(ctx, rebooted, int(accounts.Replicas), accounts),
		s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: int(accounts.Replicas), azure.OutcomeStayed: 1}),
	)
}
