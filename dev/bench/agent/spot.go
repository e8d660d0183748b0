package agent

import (
	"context"
	"fmt"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// spotNotice counts the pods that were cut short in the story that the demo tells first, although their machine had
// time left.
func (b *bench) spotNotice(ctx context.Context) ([]result.Result, error) {
	pods := workload.SpotNodePods
	if _, err := b.settle(ctx, "spot", spotMachine, pods, workload.SpotNode(place("spot"))...); err != nil {
		return nil, err
	}
	if _, err := b.guard(ctx, spotMachine); err != nil {
		return nil, err
	}
	event, err := b.takeAway(ctx, spotMachine)
	if err != nil {
		return nil, err
	}
	ledger, err := b.gone(ctx, event.EventID)
	if err != nil {
		return nil, err
	}
	if len(ledger.Pods) != pods {
		return nil, fmt.Errorf("the ledger has %d pods, want %d: %s", len(ledger.Pods), pods,
			ledger.Summary(testbed.CutTolerance))
	}
	setup := b.setup("Spot notice of %s; a web server behind a budget of 25%%, a StatefulSet of which 1 may be away, a pod "+
		"that ignores SIGTERM, one that takes 12 s to stop; drained after %.1f s", azure.MinimumNotice(azure.Preempt),
		event.Approvals[0].At.Sub(event.VisibleAt).Seconds())
	return []result.Result{
		{
			Name:  fmt.Sprintf("pods cut short while time remained, Spot notice on %d pods", pods),
			Value: float64(len(ledger.CutWithTimeLeft(testbed.CutTolerance))), Unit: "pods", Reach: result.AtMost(0),
			Setup: setup + fmt.Sprintf("; within %s of the end counts as no time", testbed.CutTolerance),
		},
		{
			Name:  fmt.Sprintf("pods lost with their machine, Spot notice on %d pods", pods),
			Value: float64(ledger.Count(azure.OutcomeLost)), Unit: "pods", Reach: result.AtMost(0),
			Setup: setup,
		},
	}, nil
}
