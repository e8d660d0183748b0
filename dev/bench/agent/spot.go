package agent

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// measureSpotNotice runs the first step of the demo. It counts the pods that were cut short although their machine
// had time left.
func (b *agentBench) measureSpotNotice(ctx context.Context) ([]result.Result, error) {
	const namespace, pods = "spot", workload.SpotPods
	objects := append([]runtime.Object{workload.NewNamespace(namespace)}, workload.NewSpotApps(namespace, podSelector("spot")).Objects()...)
	if _, err := b.runWorkload(ctx, "spot", b.place(spotMachine), pods, objects...); err != nil {
		return nil, err
	}
	if _, err := b.startAgent(ctx, spotMachine); err != nil {
		return nil, err
	}
	event, err := b.announceAndAwaitApproval(ctx, spotMachine, azure.Preempt)
	if err != nil {
		return nil, err
	}
	ledger, err := b.awaitLedger(ctx, event.EventID)
	if err != nil {
		return nil, err
	}
	if len(ledger.Pods) != pods {
		return nil, fmt.Errorf("the ledger has %d pods, want %d: %s", len(ledger.Pods), pods,
			ledger.Summary(testbed.CutTolerance))
	}
	setup := b.describeSetup("Spot notice of %s on the demo's apps: 30 pods with a PDB for 6 at a time, 7 without a PDB, 1 of a "+
		"StatefulSet, 1 with a PDB that denies eviction, 1 that takes 20 s to stop; drained after %.1f s", azure.MinimumNotice(azure.Preempt),
		event.Approvals[0].At.Sub(event.VisibleAt).Seconds())
	return []result.Result{
		{
			Name:  fmt.Sprintf("pods cut short with time left, Spot notice on %d pods", pods),
			Value: float64(len(ledger.PodsKilledWithTimeLeft(testbed.CutTolerance))), Unit: "pods", Target: result.AtMost(0),
			Setup: setup + fmt.Sprintf("; the last %s do not count as time left", testbed.CutTolerance),
		},
		{
			Name:  fmt.Sprintf("pods lost with their machine, Spot notice on %d pods", pods),
			Value: float64(ledger.CountOutcome(azure.OutcomeLost)), Unit: "pods", Target: result.AtMost(0),
			Setup: setup,
		},
	}, nil
}
