package demo

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cordon"
)

// oneEventForTwo is the step with one event for two machines, which may start only when both are drained.
func (s *stage) oneEventForTwo(ctx context.Context, a *account) (string, error) {
	quick, slow := s.on(redeployed[0]), s.on(redeployed[1])
	resources := []string{redeployed[0].resource(), redeployed[1].resource()}
	r, err := s.announce(ctx, a, azure.Announcement{Type: azure.Redeploy, Resources: resources},
		"Azure: %s and %s will be redeployed in 10 minutes, as one event", resources[0], resources[1])
	if err != nil {
		return "", err
	}
	_, err = s.AwaitNode(ctx, redeployed[0].node(), "marked as drained", func(n *corev1.Node) bool {
		return n.Labels[cordon.LabelKey(owner(r))] == string(cordon.Drained)
	})
	if err != nil {
		return "", err
	}
	quick = s.now(quick)
	alone, _ := s.Azure.State().Event(r.EventID)
	a.say(last(quick, endedAt), "the first node is drained. An approval would start both, so the agent waits for the other")
	if r, err = s.approved(ctx, r); err != nil {
		return "", err
	}
	quick, slow = s.now(quick), s.now(slow)
	a.say(last(slow, endedAt), "the second node is drained; its pods needed 8 s to stop")
	a.say(r.Approvals[0].At, "now the event is approved, %s early", early(r))
	up, err := s.switched(ctx, r, true)
	if err != nil {
		return "", err
	}
	a.say(up, "both machines are redeployed and running")
	if err := s.bothBack(ctx, a); err != nil {
		return "", err
	}
	gone := count(quick, ended) + count(slow, ended)
	return fmt.Sprintf("%d pods moved, 0 cut short, 0 lost; both nodes are schedulable", gone), all(
		expect(len(alone.Approvals) == 0, "no approval before the second node was drained", "%v", alone.Approvals),
		expect(gone == len(quick)+len(slow), fmt.Sprintf("all %d pods stopped before the approval", len(quick)+len(slow)), "%d", gone),
		s.replaced(ctx, redeployed[0], int(catalog.Replicas+renderer.Replicas), catalog, renderer),
		s.fates(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: gone, azure.OutcomeStayed: 2}),
	)
}

func (s *stage) bothBack(ctx context.Context, a *account) error {
	for i, m := range redeployed {
		at, err := s.givenBack(ctx, m)
		if err != nil {
			return err
		}
		if i == len(redeployed)-1 {
			a.say(at, "the event has ended, and both nodes are uncordoned")
		}
	}
	return nil
}
