package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const (
	memoryPods = 110 // the kubelet's default limit; no DaemonSet pod fits
	// annotationBytes is the size of each pod's annotations in bytes. It makes the pod as large as a pod with a few containers
	// and a sidecar.
	annotationBytes = 4 << 10
)

// measurePeakMemory measures the peak memory of an agent while it drains a node with many pods.
func (b *agentBench) measurePeakMemory(ctx context.Context) ([]result.Result, error) {
	pods, err := b.runMemoryPods(ctx, "memory", b.place(memoryMachine))
	if err != nil {
		return nil, err
	}
	agent, err := b.startAgent(ctx, memoryMachine)
	if err != nil {
		return nil, err
	}
	event, err := b.announceAndAwaitApproval(ctx, memoryMachine, azure.Preempt)
	if err != nil {
		return nil, err
	}
	results, err := newPeakResults("", agent, b.describeSetup("%s", describeMemoryPods(pods)))
	if err != nil {
		return nil, err
	}
	ledger, err := b.awaitLedger(ctx, event.EventID)
	if err != nil {
		return nil, err
	}
	return results, checkAllFinished(ledger, memoryPods)
}

// runMemoryPods runs memoryPods large pods on a node. A PDB limits half of them.
func (b *agentBench) runMemoryPods(ctx context.Context, name string, p place) ([]corev1.Pod, error) {
	app := func(app, maxUnavailable string) workload.App {
		return workload.App{
			Namespace: name, Name: app, Replicas: memoryPods / 2, NodeSelector: podSelector(name), MaxUnavailable: maxUnavailable,
			Annotations: map[string]string{"bench.slipway.dev/weight": strings.Repeat("slipway ", annotationBytes/8)},
		}
	}
	guarded, free := app("guarded", "25%"), app("free", "100%")
	return b.runWorkload(ctx, name, p, memoryPods, workload.NewNamespace(name),
		guarded.Deployment(), guarded.PodDisruptionBudget(), free.Deployment(), free.PodDisruptionBudget())
}

// describeMemoryPods describes a measurement with the pods of runMemoryPods.
func describeMemoryPods(pods []corev1.Pod) string {
	return fmt.Sprintf("VmHWM from the start of the process to the end of its drain after a Spot notice; pods of %.1f KiB of JSON, half of "+
		"them with a PDB of 25%%", float64(averagePodSize(pods))/(1<<10))
}

// newPeakResults reads the peak memory of an agent that has drained its node.
func newPeakResults(prefix string, agent *testbed.Agent, setup string) ([]result.Result, error) {
	_, peak, err := agent.ResidentMemory()
	if err != nil {
		return nil, fmt.Errorf("memory of the agent after the drain: %w", err)
	}
	return []result.Result{{Name: prefix + peakMemoryName, Value: toMebibytes(peak), Unit: "MiB", Target: result.AtMost(30), Setup: setup}}, nil
}

// averagePodSize returns the average size of a pod's JSON in bytes.
func averagePodSize(pods []corev1.Pod) int {
	total := 0
	for _, p := range pods {
		raw, err := json.Marshal(p)
		if err != nil {
			panic(err) // a pod that was read can be written
		}
		total += len(raw)
	}
	return total / len(pods)
}
