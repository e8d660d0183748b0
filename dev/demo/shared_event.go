package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cordon"
)

// runSharedEvent runs the step with one event for two machines. The event may start early only after both nodes are
// drained.
func (s *stage) runSharedEvent(ctx context.Context, a *stepOutput) (string, error) {
	quick, slow := s.podsOn(redeployed[0]), s.podsOn(redeployed[1])
	resources := []string{redeployed[0].resource(), redeployed[1].resource()}
	r, err := s.announceEvent(ctx, a, azure.Announcement{Type: azure.Redeploy, Resources: resources},
		"Azure: %s and %s will be redeployed in 10 minutes, as one event", resources[0], resources[1])
	if err != nil {
		return "", err
	}
	_, err = s.AwaitNode(ctx, redeployed[0].node(), "marked as drained", func(n *corev1.Node) bool {
		return n.Labels[cordon.LabelKey(cordonOwner(r))] == string(cordon.Drained)
	})
	if err != nil {
		return "", err
	}
	alone, _ := s.Azure.State().Event(r.EventID)
	if quick, err = s.awaitPods(ctx, quick, len(quick), "ended", hasEnded); err != nil {
		return "", err
	}
	a.print(latestTime(quick, endTime), "the first node is drained. An approval would start both, so the agent waits for the other")
	if r, err = s.awaitApproval(ctx, r); err != nil {
		return "", err
	}
	if slow, err = s.awaitPods(ctx, slow, len(slow), "ended", hasEnded); err != nil { // the watch may lag behind the agent's
		return "", err
	}
	a.print(latestTime(slow, endTime), "the second node is drained; its pods needed 8 s to stop")
	a.print(r.Approvals[0].At, "now the event is approved, %s early", formatEarliness(r, r.Approvals[0].At))
	up, err := s.awaitPowerChange(ctx, r, true)
	if err != nil {
		return "", err
	}
	a.print(up, "both machines are redeployed and running")
	if err := s.awaitBothRestored(ctx, a); err != nil {
		return "", err
	}
	pods := slices.Concat(quick, slow)
	finished := latestTime(pods, func(p azure.Pod) time.Time { return p.FinishedAt })
	return fmt.Sprintf("%d pods moved, 0 cut short, 0 lost; both nodes are schedulable", len(pods)), firstError(
		checkExpectation(len(alone.Approvals) == 0, "no approval before the second node was drained", "%v", alone.Approvals),
		// The times of containers have whole seconds.
		checkExpectation(!finished.After(r.Approvals[0].At), "all pods stopped before the approval", "the last one stopped at %s, approved at %s", finished, r.Approvals[0].At),
		s.awaitReplacements(ctx, redeployed[0], int(catalog.Replicas+renderer.Replicas), catalog, renderer),
		s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: len(pods), azure.OutcomeStayed: 2}),
	)
}

func (s *stage) awaitBothRestored(ctx context.Context, a *stepOutput) error {
	for i, m := range redeployed {
		at, err := s.awaitNodeRestored(ctx, m)
		if err != nil {
			return err
		}
		if i == len(redeployed)-1 {
			a.print(at, "the event has ended, and both nodes are uncordoned")
		}
	}
	return nil
}
