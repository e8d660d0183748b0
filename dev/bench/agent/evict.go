package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const evictedPods = 96

// appsOfANode is the number of apps on a full node.
const appsOfANode = 12

// evicting measures a node with several apps, each with its own PDB.
func (b *bench) evicting(ctx context.Context) ([]result.Result, error) {
	t, err := b.timeEvictions(ctx, "evictions", evictedMachine, appsOfANode, azure.Preempt)
	if err != nil {
		return nil, err
	}
	return []result.Result{
		{
			Name:  fmt.Sprintf("notice visible to last of %d evictions accepted", evictedPods),
			Value: t.seconds, Unit: "s", Reach: result.AtMost(2), Setup: t.setup,
		},
		{Name: "API requests per drained pod", Value: float64(t.requests) / evictedPods, Setup: t.setup},
	}, nil
}

// evictingCrowd measures the same with one PDB for all pods of the node. Each eviction writes the PDB's status, and so
// does the disruption controller afterwards. An eviction with a conflict sleeps for half a second in the API server. So
// no order of requests makes this as fast. The notice is long, so that no pod is deleted despite the PDB.
func (b *bench) evictingCrowd(ctx context.Context) ([]result.Result, error) {
	t, err := b.timeEvictions(ctx, "crowd", crowdedMachine, 1, azure.Terminate)
	if err != nil {
		return nil, err
	}
	return []result.Result{{
		Name:  fmt.Sprintf("the same, one PDB for all %d pods", evictedPods),
		Value: t.seconds, Unit: "s", Setup: t.setup,
	}}, nil
}

// timing is the result of timeEvictions.
type timing struct {
	seconds  float64
	requests int
	setup    string
}

// timeEvictions measures the time from a visible notice to the last accepted eviction. The PDBs cover all pods and allow
// all evictions, but the API server still counts each eviction.
func (b *bench) timeEvictions(ctx context.Context, name string, machine, apps int, eventType azure.EventType) (timing, error) {
	objects := []runtime.Object{workload.Namespace(name)}
	for i := range apps {
		app := workload.App{
			Namespace: name, Name: fmt.Sprintf("app-%d", i), Replicas: int32(evictedPods / apps), NodeSelector: place(name),
			MaxUnavailable: "100%",
		}
		objects = append(objects, app.Deployment(), app.Budget())
	}
	pods, err := b.settle(ctx, name, machine, evictedPods, objects...)
	if err != nil {
		return timing{}, err
	}
	agent, err := b.guard(ctx, machine)
	if err != nil {
		return timing{}, err
	}
	if err := testbed.Pause(ctx, time.Second+time.Duration(b.random.Int64N(int64(time.Second)))); err != nil {
		return timing{}, err
	}
	event, err := b.takeAway(ctx, machine, eventType)
	if err != nil {
		return timing{}, err
	}
	requests, err := audit.Requests(b.Cluster, event.VisibleAt)
	if err != nil {
		return timing{}, err
	}
	its := requests[agent.Node]
	last, err := lastEviction(its, pods, event.VisibleAt)
	if err != nil {
		return timing{}, err
	}
	ledger, err := b.gone(ctx, event.EventID)
	if err != nil {
		return timing{}, err
	}
	setup := b.setup("one %s notice (seed %d); %d Deployments of %d pods on one node, each with a PDB of maxUnavailable "+
		"100%%, replaced on %d others; the end is the audit log's time of the last response", eventType, b.o.Seed, apps, evictedPods/apps,
		refugeMachines)
	return timing{last.Sub(event.VisibleAt).Seconds(), len(its), setup}, allFinished(ledger, evictedPods)
}

// lastEviction returns when the last eviction of the pods was accepted. It returns an error if a pod was not evicted.
func lastEviction(requests []auditv1.Event, pods []corev1.Pod, last time.Time) (time.Time, error) {
	evicted, err := audit.Evictions(requests)
	if err != nil {
		return last, err
	}
	for _, p := range pods {
		at, ok := evicted[p.UID]
		if !ok {
			return last, fmt.Errorf("audit log: %d of %d pods were evicted with their UID as precondition; %s (%s) was not",
				len(evicted), len(pods), p.Name, p.UID)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}
