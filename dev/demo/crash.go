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

// killedAgent is the step with an agent that is killed during a drain.
func (s *stage) killedAgent(ctx context.Context, a *account) (string, error) {
	pods, agent := s.on(crashed), s.agents[crashed.node()]
	r, err := s.announce(ctx, a, azure.Announcement{Type: azure.Terminate, Resources: []string{crashed.resource()}},
		"Azure: %s will be deleted in 5 minutes. The PDB allows 1 of its %d pods to be evicted at a time", crashed.resource(), len(pods))
	if err != nil {
		return "", err
	}
	pods, err = s.await(ctx, pods, 2, "ended", ended)
	if err != nil {
		return "", err
	}
	if err := agent.Crash(); err != nil {
		return "", err
	}
	a.say(time.Now(), "%d pods have stopped, then the agent is killed (SIGKILL)", count(s.now(pods), ended))
	if err := agent.Revive(ctx); err != nil {
		return "", err
	}
	const resumed = "going on where an earlier agent stopped"
	if err := testbed.Poll(ctx, "the new agent resumes", func() bool { return agent.Logged(resumed) }); err != nil {
		return "", err
	}
	left := s.now(pods)
	a.say(time.Now(), "a new agent has read the state on the Node and resumes; %d pods remain", len(left)-count(left, ended))
	if err := expect(count(left, ended) < len(left), "remaining pods when the new agent resumes", "none"); err != nil {
		return "", err
	}
	return s.finished(ctx, a, r, pods)
}

// finished follows a drain of an earlier agent to the machine's end.
func (s *stage) finished(ctx context.Context, a *account, r azure.Record, pods []azure.Pod) (string, error) {
	r, err := s.approved(ctx, r)
	if err != nil {
		return "", err
	}
	a.say(r.Approvals[0].At, "the node is drained, and the agent approves the event %s early", early(r))
	if _, err := s.switched(ctx, r, false); err != nil {
		return "", err
	}
	evictions, err := s.evictions(r)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods moved, 0 cut short, 0 lost, and none was evicted twice", len(pods)), all(
		expect(evictions == len(pods), fmt.Sprintf("%d evictions in the API server's audit log", len(pods)), "%d", evictions),
		s.replaced(ctx, crashed, len(pods), payments),
		s.fates(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: len(pods), azure.OutcomeStayed: 1}),
	)
}

// evictions counts the granted evictions of payments' pods since the announcement.
func (s *stage) evictions(r azure.Record) (int, error) {
	log, err := s.Audit(controlplane.AuditFilter{
		Verb: "create", Resource: "pods/eviction", Namespace: shop, Since: r.VisibleAt,
		User: "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount,
	})
	if err != nil {
		return 0, err
	}
	granted := 0
	for _, e := range log {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusCreated && e.ObjectRef != nil &&
			isOf(payments, e.ObjectRef.Name) {
			granted++
		}
	}
	return granted, nil
}
