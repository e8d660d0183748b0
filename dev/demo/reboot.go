package demo

import (
	"context"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// announcedReboot is the step with a machine that reboots, and a node that is restored.
func (s *stage) announcedReboot(ctx context.Context, a *account) (string, error) {
	pods, agent := s.on(rebooted), s.agents[rebooted.node()]
	before := agent.PID()
	r, err := s.announce(ctx, a, azure.Announcement{Type: azure.Reboot, Resources: []string{rebooted.resource()}},
		"Azure: %s will reboot in 15 minutes, or as soon as approved. It runs %d pods", rebooted.resource(), len(pods))
	if err != nil {
		return "", err
	}
	cordoned, err := s.cordoned(ctx, rebooted, r)
	if err != nil {
		return "", err
	}
	a.say(cordoned, "node cordoned; draining")
	if r, err = s.approved(ctx, r); err != nil {
		return "", err
	}
	pods = s.now(pods)
	a.say(last(pods, endedAt), "all %d pods have stopped", count(pods, ended))
	a.say(r.Approvals[0].At, "the agent approves the event %s early", early(r))
	return s.throughReboot(ctx, a, r, agent, before)
}

// throughReboot follows the machine down and up again.
func (s *stage) throughReboot(ctx context.Context, a *account, r azure.Record, agent *testbed.Agent, before int) (string, error) {
	down, err := s.switched(ctx, r, false)
	if err != nil {
		return "", err
	}
	a.say(down, "the machine is down, and its agent too")
	up, err := s.switched(ctx, r, true)
	if err != nil {
		return "", err
	}
	a.say(up, "the machine is up with a new agent, which reads the cordon claim on the Node")
	if r, err = s.over(ctx, r); err != nil {
		return "", err
	}
	at, err := s.givenBack(ctx, rebooted)
	if err != nil {
		return "", err
	}
	a.say(at, "Azure's event has ended (at %.1f s), and the node is uncordoned", r.VanishedAt.Sub(r.VisibleAt).Seconds())
	return "8 pods moved, 0 cut short, 0 lost; the node is schedulable and has no marks of Slipway", all(
		expect(r.StartedBy == azure.ByApproval, "the reboot to start by the agent's approval", "started by %s", r.StartedBy),
		expect(agent.PID() != before && agent.Alive(), "a new agent process", "process %d, alive: %v", agent.PID(), agent.Alive()),
		s.replaced(ctx, rebooted, int(accounts.Replicas), accounts),
		s.fates(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: int(accounts.Replicas), azure.OutcomeStayed: 1}),
	)
}
