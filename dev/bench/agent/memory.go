package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
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
	app := func(name, maxUnavailable string) workload.App {
		return workload.App{
			Namespace: "memory", Name: name, Replicas: memoryPods / 2, NodeSelector: podSelector("memory"), MaxUnavailable: maxUnavailable,
			Annotations: map[string]string{"bench.slipway.dev/weight": strings.Repeat("slipway ", annotationBytes/8)},
		}
	}
	guarded, free := app("guarded", "25%"), app("free", "100%")
	pods, err := b.runWorkload(ctx, "memory", memoryMachine, memoryPods, workload.NewNamespace("memory"),
		guarded.Deployment(), guarded.PodDisruptionBudget(), free.Deployment(), free.PodDisruptionBudget())
	if err != nil {
		return nil, err
	}
	size, err := averagePodSize(pods)
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
	_, peak, err := agent.ResidentMemory()
	if err != nil {
		return nil, fmt.Errorf("memory of the agent after the drain: %w", err)
	}
	ledger, err := b.awaitLedger(ctx, event.EventID)
	if err != nil {
		return nil, err
	}
	if err := checkAllFinished(ledger, memoryPods); err != nil {
		return nil, err
	}
	return []result.Result{{
		Name:  fmt.Sprintf("agent memory while draining %d pods, peak resident", memoryPods),
		Value: toMebibytes(peak), Unit: "MiB", Target: result.AtMost(30),
		Setup: b.describeSetup("VmHWM from the start of the process to its approval of a Spot notice; pods of %.1f KiB of JSON, "+
			"half of them with a PDB of 25%%", float64(size)/(1<<10)),
	}}, nil
}

// averagePodSize returns the average size of a pod's JSON in bytes.
func averagePodSize(pods []corev1.Pod) (int, error) {
	total := 0
	for _, p := range pods {
		raw, err := json.Marshal(p)
		if err != nil {
			return 0, err
		}
		total += len(raw)
	}
	return total / len(pods), nil
}
