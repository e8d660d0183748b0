package demo

import (
	"context"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// announcedReboot is the step in which a machine goes for a while and is given back.
func (s *stage) announcedReboot(ctx context.Context, a *account) (string, error) {
	pods, agent := s.on(rebooted), s.agents[rebooted.node()]
	before := agent.PID()
	r, err := s.announce(ctx, a, azure.Announcement{Type: azure.Reboot, Resources: []string{rebooted.resource()}},
		"Azure: %s will reboot in 15 minutes, or sooner if nobody objects. It runs %d pods", rebooted.resource(), len(pods))
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
	a.say(r.Approvals[0].At, "the agent tells Azure to go ahead, %s early", early(r))
	return s.throughReboot(ctx, a, r, agent, before)
}

// throughReboot follows the machine down and up again.
func (s *stage) throughReboot(ctx context.Context, a *account, r azure.Record, agent *testbed.Agent, before int) (string, error) {
	down, err := s.switched(ctx, r, false)
	if err != nil {
		return "", err
	}
	a.say(down, "the machine goes down, the agent on it too")
	up, err := s.switched(ctx, r, true)
	if err != nil {
		return "", err
	}
	a.say(up, "the machine is back, with a new agent, which finds on the Node why that is cordoned")
	if r, err = s.over(ctx, r); err != nil {
		return "", err
	}
	at, err := s.givenBack(ctx, rebooted)
	if err != nil {
		return "", err
	}
	a.say(at, "Azure's event is over (since %.1f s), and the node is uncordoned", r.VanishedAt.Sub(r.VisibleAt).Seconds())
	return "8 pods moved, 0 cut short, 0 lost; the node takes pods again and nothing of Slipway's is left on it", all(
		expect(r.StartedBy == azure.ByApproval, "the reboot to begin since the agent said so", "begun by %s", r.StartedBy),
		expect(agent.PID() != before && agent.Alive(), "another agent process than before", "process %d, alive: %v", agent.PID(), agent.Alive()),
		s.replaced(ctx, rebooted, int(accounts.Replicas), accounts),
		s.fates(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: int(accounts.Replicas), azure.OutcomeStayed: 1}),
	)
}
