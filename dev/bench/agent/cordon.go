package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cordon"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
)

const (
	noticeCount = 50
	// waitTimeout is the timeout of waits that take about a second.
	waitTimeout = 30 * time.Second
)

// measureCordons measures the time from a visible notice to the cordon at the API server. It uses several machines
// in turn. Its events are Freezes of unknown duration. An agent only cordons the node for them, so the event can be
// cancelled and the node used again.
func (b *agentBench) measureCordons(ctx context.Context) ([]result.Result, error) {
	for i := range noticedMachines {
		if _, err := b.startAgent(ctx, firstNoticed+i); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	records := make([]azure.EventRecord, 0, noticeCount)
	for i := range noticeCount {
		record, err := b.announceUntilCordoned(ctx, firstNoticed+i%noticedMachines)
		if err != nil {
			return nil, fmt.Errorf("notice %d of %d: %w", i+1, noticeCount, err)
		}
		records = append(records, record)
	}
	took, err := b.cordonTimes(ctx, records, began)
	if err != nil {
		return nil, err
	}
	patch, err := b.timePatches(ctx)
	if err != nil {
		return nil, err
	}
	setup := b.describeSetup(cordonSetup, "Freeze", noticedMachines, b.opts.Seed)
	return append(newCordonResults("", took, setup), newBoundResults("", patchName, percentile(took, 99), source.DefaultInterval, patch,
		b.describeSetup(patchSetup, noticeCount))...), nil
}

// cordonSetup describes measureCordons; its arguments are the type of the notices, the number of nodes, and the seed. patchName
// and patchSetup describe timePatches; the argument is the number of patches.
const (
	patchName   = "a bare patch"
	cordonSetup = "%s notices on %d nodes in turn, at a random phase to the polls (seed %d); the end is the audit log's time of the answered patch"
	patchSetup  = "p99 of %d patches of a Node over an open connection"
)

// newCordonResults returns the median and p99 of the times from a notice to the cordon.
func newCordonResults(prefix string, took []time.Duration, setup string) []result.Result {
	return []result.Result{
		{Name: prefix + cordonName, Value: percentile(took, 99).Seconds(), Unit: "s", Setup: setup},
		{Name: prefix + medianName, Value: percentile(took, 50).Seconds(), Unit: "s", Setup: setup},
	}
}

// timePatches returns the p99 of patches of a Node, one after another. It measures once.
func (b *agentBench) timePatches(ctx context.Context) (time.Duration, error) {
	if b.patches > 0 {
		return b.patches, nil
	}
	took := make([]time.Duration, 0, noticeCount)
	for i := range noticeCount {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"bench.slipway.dev/patch":"%d"}}}`, i)
		began := time.Now()
		if _, err := b.Client().CoreV1().Nodes().Patch(ctx, b.pool.NodeName(floorMachine), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	b.patches = percentile(took, 99)
	return b.patches, nil
}

// announceUntilCordoned announces an event for a machine at a random time. It waits until the agent has cordoned the
// node for this event, and then cancels the event.
func (b *agentBench) announceUntilCordoned(ctx context.Context, instance int) (azure.EventRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	node := b.pool.NodeName(instance)
	if err := b.awaitNode(ctx, node, func(n *corev1.Node) bool { return !n.Spec.Unschedulable }); err != nil {
		return azure.EventRecord{}, fmt.Errorf("node %s is not restored: %w", node, err)
	}
	if err := testbed.Sleep(ctx, time.Duration(b.random.Int64N(int64(source.DefaultInterval)))); err != nil {
		return azure.EventRecord{}, err
	}
	unknown := azure.UnknownDuration
	record, err := b.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives its announcer
		Type: azure.Freeze, Resources: []string{b.pool.ResourceName(instance)}, DurationSeconds: &unknown,
	})
	if err != nil {
		return azure.EventRecord{}, err
	}
	if err := b.awaitNode(ctx, node, func(n *corev1.Node) bool { return isCordonedFor(n, record) }); err != nil {
		return azure.EventRecord{}, fmt.Errorf("node %s is not cordoned for event %s: %w", node, record.EventID, err)
	}
	return record, b.Azure.CancelEvent(record.EventID)
}

// isCordonedFor reports whether the node is unschedulable and has the agent's cordon claim for the event.
func isCordonedFor(n *corev1.Node, event azure.EventRecord) bool {
	var record cordon.Record
	err := json.Unmarshal([]byte(n.Annotations[claimAnnotation(event)]), &record)
	return err == nil && n.Spec.Unschedulable && record.Cordon == cordon.OwnCordon
}

// claimAnnotation returns the key of the annotation that holds the agent's cordon claim for an event.
func claimAnnotation(event azure.EventRecord) string {
	return cordon.AnnotationKey(source.SourceName + "-" + event.EventID)
}

// awaitNode waits until matches returns true for the named node.
func (b *agentBench) awaitNode(ctx context.Context, name string, matches func(*corev1.Node) bool) error {
	lw := cache.NewListWatchFromClient(b.Client().CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, b.Client()), &corev1.Node{}, nil,
		func(e watch.Event) (bool, error) {
			n, ok := e.Object.(*corev1.Node)
			return ok && e.Type != watch.Deleted && matches(n), nil
		})
	return err
}

// cordonTimes returns, for each event, the time from the visible notice to the cordon. The times of the cordons come
// from the audit log.
func (b *agentBench) cordonTimes(ctx context.Context, events []azure.EventRecord, since time.Time) ([]time.Duration, error) {
	cordoned := map[string]time.Time{} // by annotation
	// The API server writes the audit log after its answer: the last cordon may be missing for a moment.
	for attempt := 0; attempt < 50 && len(cordoned) < len(events); attempt++ {
		if err := testbed.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		byNode, err := audit.AgentRequestsByNode(b.Cluster, since)
		if err != nil {
			return nil, err
		}
		for i := range noticedMachines {
			maps.Copy(cordoned, audit.CordonTimes(byNode[b.pool.NodeName(firstNoticed+i)]))
		}
	}
	took := make([]time.Duration, 0, len(events))
	for _, event := range events {
		at, ok := cordoned[claimAnnotation(event)]
		if !ok {
			return nil, fmt.Errorf("audit log: no patch cordons the node for event %s", event.EventID)
		}
		if at.Before(event.VisibleAt) {
			return nil, fmt.Errorf("audit log: the cordon for event %s precedes the event", event.EventID)
		}
		took = append(took, at.Sub(event.VisibleAt))
	}
	if len(took) == 0 {
		return nil, errors.New("no notice was measured")
	}
	return took, nil
}

// percentile returns the smallest value that at most (100-p) percent of the values exceed. For 50 values, p99 is the
// largest value.
func percentile(values []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(1, int(math.Ceil(p/100*float64(len(sorted)))))-1]
}
