package demo

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// runKilledAgent runs the step with an agent that is killed during a drain.
func (s *stage) runKilledAgent(ctx context.Context, a *stepOutput) (string, error) {
	pods, agent := s.podsOn(crashed), s.agents[crashed.node()]
	r, err := s.announce(ctx, a, deletion, crashed, "The PDB allows 1 of its %d pods to be evicted at a time", len(pods))
	if err != nil {
		return "", err
	}
	pods, err = s.awaitPods(ctx, pods, 2, "ended", hasEnded)
	if err != nil {
		return "", err
	}
	// While a pod is stopping, the PDB denies the next eviction. If the agent ended during a granted eviction, the PDB could
	// deny all others for 2 minutes.
	pods, err = s.awaitPods(ctx, pods, 1, "stopping", func(p azure.Pod) bool { return wasDeleted(p) && !hasEnded(p) })
	if err != nil {
		return "", err
	}
	if err := agent.KillIfAlive(); err != nil {
		return "", err
	}
	a.print(time.Now(), "%d pods have stopped, then the agent is killed (SIGKILL)", countPods(s.currentPods(pods), hasEnded))
	if err := agent.RestartIfDead(ctx); err != nil {
		return "", err
	}
	const resumed = "continuing a notice of an earlier agent"
	if err := testbed.PollUntil(ctx, "the new agent resumes", func() bool { return agent.HasLogged(resumed) }); err != nil {
		return "", err
	}
	left := s.currentPods(pods)
	a.print(time.Now(), "a new agent has read the state on the Node and resumes; %d pods remain", len(left)-countPods(left, hasEnded))
	if err := checkExpectation(countPods(left, hasEnded) < len(left), "remaining pods when the new agent resumes", "none"); err != nil {
		return "", err
	}
	return s.followDrainToMachineEnd(ctx, a, r, pods)
}

// followDrainToMachineEnd waits until the restarted agent has finished the drain and the machine has ended. It
// checks that no pod was evicted twice or lost.
func (s *stage) followDrainToMachineEnd(ctx context.Context, a *stepOutput, r azure.EventRecord, pods []azure.Pod) (string, error) {
	r, err := s.reportDrained(ctx, a, crashed, r)
	if err != nil {
		return "", err
	}
	if _, err := s.awaitPowerChange(ctx, r, false); err != nil {
		return "", err
	}
	evictions, err := s.countEvictions(r)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods moved, 0 cut short, 0 lost, and none was evicted twice", len(pods)), firstError(
		checkExpectation(evictions == len(pods), fmt.Sprintf("%d evictions in the API server's audit log", len(pods)), "%d", evictions),
		s.awaitReplacements(ctx, crashed, len(pods), payments),
		s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: len(pods), azure.OutcomeStayed: 1}),
	)
}

// countEvictions returns the number of successful evictions of the app payments since an event was announced.
func (s *stage) countEvictions(r azure.EventRecord) (int, error) {
	log, err := s.ReadAuditLog(controlplane.AuditFilter{
		Verb: "create", Resource: "pods/eviction", Namespace: shop, Since: r.VisibleAt,
		User: "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount,
	})
	if err != nil {
		return 0, err
	}
	granted := 0
	for _, e := range log {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusCreated && e.ObjectRef != nil &&
			isPodOfApp(payments, e.ObjectRef.Name) {
			granted++
		}
	}
	return granted, nil
}
