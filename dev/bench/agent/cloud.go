package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/metadata"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/gcp"
)

// The names of the results that all clouds have. For clouds other than Azure, a prefix precedes them.
var (
	cordonName     = fmt.Sprintf("notice visible to node cordoned, p99 of %d", noticeCount)
	medianName     = fmt.Sprintf("notice visible to node cordoned, p50 of %d", noticeCount)
	evictionName   = fmt.Sprintf("notice visible to last of %d evictions accepted", evictedPods)
	peakMemoryName = fmt.Sprintf("agent memory while draining %d pods, peak resident", memoryPods)
)

const (
	idleMemoryName   = "agent memory, idle, resident"
	idleRequestsName = "API requests by an idle agent in 10 minutes, without one watch"
)

// The instance numbers of a cloud's machines, by their use.
const (
	cloudIdleMachine  = 0
	cloudFirstNoticed = 1
	cloudEvicted      = cloudFirstNoticed + noticedMachines
	cloudMemory       = cloudEvicted + evictionRounds
	cloudFirstRefuge  = cloudMemory + 1
	cloudRefuges      = 3
	cloudMachines     = cloudFirstRefuge + cloudRefuges
)

// cloudBench repeats measurements with another cloud than Azure.
type cloudBench struct {
	*agentBench
	metadata.Cloud

	pool controlplane.AKSPool // it only names the nodes
	// interval is the longest time that a notice waits for the agent to read it.
	interval time.Duration
	reads    string // describes how the agent reads the notices
	added    bool
}

func (b *agentBench) listClouds() []*cloudBench {
	return []*cloudBench{
		{
			agentBench: b, Cloud: metadata.EC2, pool: controlplane.AKSPool{Name: "aws"},
			interval: aws.DefaultInterval, reads: "poll interval " + aws.DefaultInterval.String(),
		},
		{
			agentBench: b, Cloud: metadata.ComputeEngine, pool: controlplane.AKSPool{Name: "google"},
			interval: gcp.DefaultInterval, reads: "a request that waits for a change, at most one every " + gcp.DefaultInterval.String(),
		},
	}
}

// prefix begins the names of the measurements and of their results.
func (c *cloudBench) prefix() string { return c.Name + ": " }

func (c *cloudBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf(format, args...) + fmt.Sprintf("; %s, %s; %d nodes, %s", c.Service, c.reads, cloudMachines, c.describeMachine())
}

// start starts the metadata service and the agent of a machine.
func (c *cloudBench) start(ctx context.Context, instance int) (*testbed.Agent, *metadata.Machine, error) {
	if err := c.addNodes(ctx); err != nil {
		return nil, nil, err
	}
	machine := c.Start(c.pool.NodeName(instance))
	c.closers = append(c.closers, machine.Close)
	agent, err := c.StartAgent(ctx, c.pool, instance, "--endpoint", machine.Endpoint)
	return agent, machine, err
}

// addNodes adds the nodes of the cloud before its first measurement.
func (c *cloudBench) addNodes(ctx context.Context) error {
	if c.added {
		return nil
	}
	specs := c.pool.Nodes(cloudMachines)
	for i := range specs {
		specs[i].ProviderID = c.ProviderID(specs[i].Name)
	}
	c.added = true
	return c.AddNodes(ctx, specs...)
}

func (c *cloudBench) place(machine int) place {
	return newPlace(c.pool, machine, cloudFirstRefuge, cloudRefuges)
}

// measureCordons measures the time from a visible Spot notice to the cordon at the API server. It uses several machines
// without pods in turn. Each notice is withdrawn after the drain, so that the node can be used again.
func (c *cloudBench) measureCordons(ctx context.Context) ([]result.Result, error) {
	var services []*metadata.Machine
	for i := range noticedMachines {
		_, machine, err := c.start(ctx, cloudFirstNoticed+i)
		if err != nil {
			return nil, err
		}
		services = append(services, machine)
	}
	began := time.Now()
	var visible []time.Time
	for i := range noticeCount {
		at, err := c.announceOnEmptyNode(ctx, c.pool.NodeName(cloudFirstNoticed+i%noticedMachines), services[i%noticedMachines])
		if err != nil {
			return nil, fmt.Errorf("notice %d of %d: %w", i+1, noticeCount, err)
		}
		visible = append(visible, at)
	}
	took, err := c.cordonTimes(ctx, visible, began)
	if err != nil {
		return nil, err
	}
	patch, err := c.timePatches(ctx)
	if err != nil {
		return nil, err
	}
	bound := newBoundResults(c.prefix(), patchName, percentile(took, 99), c.interval, patch,
		c.describeSetup(patchSetup, noticeCount))
	return append(newCordonResults(c.prefix(), took, c.describeSetup(cordonSetup, "Spot", noticedMachines, c.opts.Seed)), bound...), nil
}

// announceOnEmptyNode announces a Spot notice at a random time, and withdraws it when the agent reports the node as drained. A
// notice that is withdrawn earlier could end the request of the cordon. It returns when the notice became visible.
func (c *cloudBench) announceOnEmptyNode(ctx context.Context, node string, machine *metadata.Machine) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := c.awaitNode(ctx, node, func(n *corev1.Node) bool { return !n.Spec.Unschedulable }); err != nil {
		return time.Time{}, fmt.Errorf("node %s is not restored: %w", node, err)
	}
	if err := testbed.Sleep(ctx, time.Duration(c.random.Int64N(int64(c.interval)))); err != nil {
		return time.Time{}, err
	}
	at := machine.Announce()
	defer machine.Withdraw()
	if err := c.awaitNode(ctx, node, isDrained); err != nil {
		return time.Time{}, fmt.Errorf("node %s is not drained: %w", node, err)
	}
	return at, nil
}

// isDrained reports whether a node is cordoned, and its agent has drained it.
func isDrained(n *corev1.Node) bool {
	return n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == "Drained" && c.Status == corev1.ConditionTrue
	})
}

// cordonTimes returns, for each notice of measureCordons, the time until the agent of its node cordoned the node. The times
// of the cordons come from the audit log.
func (c *cloudBench) cordonTimes(ctx context.Context, visible []time.Time, since time.Time) (took []time.Duration, err error) {
	// The API server writes the audit log after its answer: the last cordon may be missing for a moment.
	for attempt := 0; attempt < 50 && len(took) < len(visible); attempt++ {
		if err := testbed.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		byNode, err := audit.AgentRequestsByNode(c.Cluster, since)
		if err != nil {
			return nil, err
		}
		took = nil
		for i, at := range visible {
			requests := byNode[c.pool.NodeName(cloudFirstNoticed+i%noticedMachines)]
			cordoned, found := audit.FirstCordon(requests, at)
			if found && (i+noticedMachines >= len(visible) || cordoned.Before(visible[i+noticedMachines])) {
				took = append(took, cordoned.Sub(at))
			}
		}
	}
	if len(took) < len(visible) {
		return nil, fmt.Errorf("audit log: %d of %d notices were followed by a cordon", len(took), len(visible))
	}
	return took, nil
}

// measureEvictions measures the time to evict the pods of a node with several apps that each have their own PDB, as the median
// of several nodes.
func (c *cloudBench) measureEvictions(ctx context.Context) ([]result.Result, error) {
	floor, err := c.timeBareClient(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.addNodes(ctx); err != nil {
		return nil, err
	}
	t, err := takeMedian(func(round int) (evictionTiming, error) {
		return c.timeEvictions(ctx, fmt.Sprintf("evictions-%s-%d", c.pool.Name, round), cloudEvicted+round)
	})
	if err != nil {
		return nil, err
	}
	results := []result.Result{{Name: c.prefix() + evictionName, Value: t.took.Seconds(), Unit: "s", Setup: t.setup}}
	return append(results, newBoundResults(c.prefix(), bareClientName, t.took, c.interval, floor,
		c.describeSetup(bareClientSetup, floor.Seconds()))...), nil
}

// timeEvictions measures the time from a visible notice to the last accepted eviction of the pods of runApps.
func (c *cloudBench) timeEvictions(ctx context.Context, name string, instance int) (evictionTiming, error) {
	pods, err := c.runApps(ctx, name, c.place(instance), appsPerNode)
	if err != nil {
		return evictionTiming{}, err
	}
	agent, machine, err := c.start(ctx, instance)
	if err != nil {
		return evictionTiming{}, err
	}
	if err := testbed.Sleep(ctx, time.Second+time.Duration(c.random.Int64N(int64(time.Second)))); err != nil {
		return evictionTiming{}, err
	}
	at, err := c.announceUntilDrained(ctx, instance, machine)
	if err != nil {
		return evictionTiming{}, err
	}
	byNode, err := audit.AgentRequestsByNode(c.Cluster, at)
	if err != nil {
		return evictionTiming{}, err
	}
	requests := byNode[agent.Node]
	if deleted := audit.DeletionTimes(requests); len(deleted) > 0 {
		return evictionTiming{}, fmt.Errorf("audit log: %d pods were deleted without eviction, want 0", len(deleted))
	}
	last, err := lastEvictionTime(requests, pods, at)
	if err != nil {
		return evictionTiming{}, err
	}
	setup := c.describeSetup(evictionSetup, "Spot", c.opts.Seed, appsPerNode, evictedPods/appsPerNode, cloudRefuges)
	return evictionTiming{last.Sub(at), len(requests), setup}, c.deleteWorkload(ctx, name)
}

// announceUntilDrained announces a Spot notice, and waits until the agent reports the node as drained and no pod is left. It
// returns when the notice became visible.
func (c *cloudBench) announceUntilDrained(ctx context.Context, instance int, machine *metadata.Machine) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	node := c.pool.NodeName(instance)
	at := machine.Announce()
	if _, err := c.AwaitNode(ctx, node, "drained", isDrained); err != nil {
		return at, err
	}
	_, err := c.AwaitPods(ctx, node, "gone", func(pods []corev1.Pod) bool { return len(pods) == 0 })
	return at, err
}

// measurePeakMemory measures the peak memory of an agent while it drains a node with many pods.
func (c *cloudBench) measurePeakMemory(ctx context.Context) ([]result.Result, error) {
	if err := c.addNodes(ctx); err != nil {
		return nil, err
	}
	pods, err := c.runMemoryPods(ctx, "memory-"+c.pool.Name, c.place(cloudMemory))
	if err != nil {
		return nil, err
	}
	agent, machine, err := c.start(ctx, cloudMemory)
	if err != nil {
		return nil, err
	}
	if _, err := c.announceUntilDrained(ctx, cloudMemory, machine); err != nil {
		return nil, err
	}
	return newPeakResults(c.prefix(), agent, c.describeSetup("%s", describeMemoryPods(pods)))
}

// startIdleAgent starts an agent without a notice for its machine.
func (c *cloudBench) startIdleAgent(ctx context.Context) (*testbed.Agent, *metadata.Server, string, error) {
	agent, machine, err := c.start(ctx, cloudIdleMachine)
	if err != nil {
		return nil, nil, "", err
	}
	return agent, machine.Server, c.describeSetup("no notice"), nil
}

// maxAzureRatio is the target of results of the other clouds as a multiple of Azure's. It allows for the variation between
// two agents.
const maxAzureRatio = 1.1

// compareClouds returns results of the other clouds as multiples of Azure's results of the same run.
func compareClouds(results []result.Result) []result.Result {
	azure := map[string]float64{}
	for _, r := range results {
		azure[r.Name] = r.Value
	}
	var ratios []result.Result
	for _, r := range results {
		prefix, name, _ := strings.Cut(r.Name, ": ")
		base := azure[name]
		switch name {
		case cordonName, evictionName, idleMemoryName, peakMemoryName, idleRequestsName:
			if base > 0 {
				ratios = append(ratios, result.Result{
					Name: prefix + ": as a multiple of Azure's, " + name, Value: r.Value / base, Unit: "times", Target: result.AtMost(maxAzureRatio), Setup: r.Setup,
				})
			}
		}
	}
	return ratios
}
