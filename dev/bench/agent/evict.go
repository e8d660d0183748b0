package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/bareclient"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
)

const evictedPods = 96

const appsPerNode = 12

// evictionRounds is how many equal nodes are drained to measure their evictions. The result is the median: a conflict of two
// writes of a PDB makes the API server sleep for half a second, so that one drain varies by more than a target allows.
const evictionRounds = 3

// takeMedian calls measure for each round, and returns the timing in the middle.
func takeMedian(measure func(round int) (evictionTiming, error)) (evictionTiming, error) {
	timings := make([]evictionTiming, 0, evictionRounds)
	for round := range evictionRounds {
		t, err := measure(round)
		if err != nil {
			return evictionTiming{}, fmt.Errorf("round %d of %d: %w", round+1, evictionRounds, err)
		}
		timings = append(timings, t)
	}
	slices.SortFunc(timings, func(a, b evictionTiming) int { return cmp.Compare(a.took, b.took) })
	median := timings[evictionRounds/2]
	median.setup = fmt.Sprintf("median of %d drains: %s", evictionRounds, median.setup)
	return median, nil
}

// measureEvictionsPerApp measures the time to evict the pods of a node with several apps that each have their own
// PDB, as the median of several nodes.
func (b *agentBench) measureEvictionsPerApp(ctx context.Context) ([]result.Result, error) {
	floor, err := b.timeBareClient(ctx)
	if err != nil {
		return nil, err
	}
	t, err := takeMedian(func(round int) (evictionTiming, error) {
		return b.timeEvictions(ctx, fmt.Sprintf("evictions-%d", round), evictedMachine+round, appsPerNode, azure.Preempt)
	})
	if err != nil {
		return nil, err
	}
	results := []result.Result{{
		Name:  evictionName,
		Value: t.took.Seconds(), Unit: "s", Setup: t.setup,
	}}
	results = append(results, newBoundResults("", bareClientName, t.took, source.DefaultInterval, floor,
		b.describeSetup(bareClientSetup, floor.Seconds()))...)
	return append(results, result.Result{Name: "API requests per drained pod", Value: float64(t.requests) / evictedPods, Setup: t.setup}), nil
}

// measureEvictionsOnePDB measures the time to evict the pods of a node with one PDB for all pods. It takes longer
// than with one PDB per app. Each eviction writes the PDB's status, and so does the disruption controller
// afterwards. After a conflict of these writes, the API server sleeps for half a second. The event has a long
// notice, so that the agent deletes no pod in spite of the PDB.
func (b *agentBench) measureEvictionsOnePDB(ctx context.Context) ([]result.Result, error) {
	t, err := b.timeEvictions(ctx, "crowd", crowdedMachine, 1, azure.Terminate)
	if err != nil {
		return nil, err
	}
	return []result.Result{{
		Name:  fmt.Sprintf("the same, one PDB for all %d pods", evictedPods),
		Value: t.took.Seconds(), Unit: "s", Setup: t.setup,
	}}, nil
}

type evictionTiming struct {
	took     time.Duration
	requests int
	setup    string
}

// bareClientName and bareClientSetup describe timeBareClient. The argument is the time in seconds.
const (
	bareClientName  = "a bare client"
	bareClientSetup = "%.2f s for one patch of the node, and one eviction at a time for each PDB, from the first request to the last " +
		"response, on equal nodes (median of 3)"
)

// timeBareClient measures the same evictions by a bare client: from its first request, without a notice, to the last
// accepted eviction. Later calls return the same time.
func (b *agentBench) timeBareClient(ctx context.Context) (time.Duration, error) {
	if b.floor == 0 {
		t, err := takeMedian(func(round int) (evictionTiming, error) {
			return b.drainWithBareClient(ctx, fmt.Sprintf("floor-%d", round), floorMachine+round)
		})
		if err != nil {
			return 0, fmt.Errorf("bare client: %w", err)
		}
		b.floor = t.took
	}
	return b.floor, nil
}

func (b *agentBench) drainWithBareClient(ctx context.Context, name string, machine int) (evictionTiming, error) {
	node := b.pool.NodeName(machine)
	if _, err := b.runApps(ctx, name, b.place(machine), appsPerNode); err != nil {
		return evictionTiming{}, err
	}
	kubeconfig, err := b.WriteAgentKubeconfig(ctx, node)
	if err != nil {
		return evictionTiming{}, err
	}
	client, err := bareclient.Connect(ctx, kubeconfig, node)
	if err != nil {
		return evictionTiming{}, err
	}
	evicting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	began := time.Now()
	if err := client.CordonAndEvictInQueues(evicting, workload.AppLabel); err != nil {
		return evictionTiming{}, err
	}
	return evictionTiming{took: time.Since(began)}, b.deleteWorkload(ctx, name)
}

// runApps runs evictedPods pods of several apps on a node. PDBs cover all pods and allow all evictions, so that
// only the API server's work for the PDBs takes time.
func (b *agentBench) runApps(ctx context.Context, name string, p place, apps int) ([]corev1.Pod, error) {
	objects := []runtime.Object{workload.NewNamespace(name)}
	for i := range apps {
		app := workload.App{
			Namespace: name, Name: fmt.Sprintf("app-%d", i), Replicas: int32(evictedPods / apps), NodeSelector: podSelector(name),
			MaxUnavailable: "100%",
		}
		objects = append(objects, app.Deployment(), app.PodDisruptionBudget())
	}
	return b.runWorkload(ctx, name, p, evictedPods, objects...)
}

// timeEvictions measures the time from a visible notice to the last accepted eviction of the pods of runApps.
func (b *agentBench) timeEvictions(ctx context.Context, name string, machine, apps int, eventType azure.EventType) (evictionTiming, error) {
	pods, err := b.runApps(ctx, name, b.place(machine), apps)
	if err != nil {
		return evictionTiming{}, err
	}
	agent, err := b.startAgent(ctx, machine)
	if err != nil {
		return evictionTiming{}, err
	}
	if err := testbed.Sleep(ctx, time.Second+time.Duration(b.random.Int64N(int64(time.Second)))); err != nil {
		return evictionTiming{}, err
	}
	event, err := b.announceAndAwaitApproval(ctx, machine, eventType)
	if err != nil {
		return evictionTiming{}, err
	}
	requests, err := audit.AgentRequestsByNode(b.Cluster, event.VisibleAt)
	if err != nil {
		return evictionTiming{}, err
	}
	its := requests[agent.Node]
	last, err := lastEvictionTime(its, pods, event.VisibleAt)
	if err != nil {
		return evictionTiming{}, err
	}
	ledger, err := b.awaitLedger(ctx, event.EventID)
	if err != nil {
		return evictionTiming{}, err
	}
	setup := b.describeSetup(evictionSetup, eventType, b.opts.Seed, apps, evictedPods/apps, refugeMachines)
	if err := checkAllFinished(ledger, evictedPods); err != nil {
		return evictionTiming{}, err
	}
	return evictionTiming{last.Sub(event.VisibleAt), len(its), setup}, b.deleteWorkload(ctx, name)
}

// evictionSetup describes a drain of the pods of runApps. Its arguments are the type of the notice, the seed, and the numbers of
// Deployments, pods of each, and nodes for the replacements.
const evictionSetup = "one %s notice (seed %d); %d Deployments of %d pods on one node, each with a PDB of maxUnavailable 100%%, replaced on %d " +
	"others; the end is the audit log's time of the last response"

// lastEvictionTime returns when the last eviction of the pods was accepted. If a pod was not evicted, it returns an
// error.
func lastEvictionTime(requests []auditv1.Event, pods []corev1.Pod, last time.Time) (time.Time, error) {
	evicted, err := audit.EvictionTimes(requests)
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
