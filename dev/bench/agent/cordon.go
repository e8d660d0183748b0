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
	notices = 50
	// patience bounds the wait for what takes a second.
	patience = 30 * time.Second
)

// cordoning times notices from being visible to the API server's having carried out the cordon. The machines take
// turns. A Freeze of unknown duration cordons and no more, so that each can be called off and the node be used again.
func (b *bench) cordoning(ctx context.Context) ([]result.Result, error) {
	for i := range noticedMachines {
		if _, err := b.guard(ctx, firstNoticed+i); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	records := make([]azure.Record, 0, notices)
	for i := range notices {
		record, err := b.notice(ctx, firstNoticed+i%noticedMachines)
		if err != nil {
			return nil, fmt.Errorf("notice %d of %d: %w", i+1, notices, err)
		}
		records = append(records, record)
	}
	took, err := b.cordonTimes(records, began)
	if err != nil {
		return nil, err
	}
	setup := b.setup("Freeze notices on %d nodes in turn, at a random phase to the polls (seed %d), median %.2f s; the end is "+
		"the audit log's time of the answered patch", noticedMachines, b.o.Seed, percentile(took, 50).Seconds())
	return []result.Result{{
		Name:  fmt.Sprintf("notice visible to node cordoned, 1 s poll, p99 of %d", notices),
		Value: percentile(took, 99).Seconds(), Unit: "s", Reach: result.AtMost(1.2), Setup: setup,
	}}, nil
}

// notice announces an event for a machine at a moment that the agent cannot foresee, sees the node cordoned on its
// account, and calls it off.
func (b *bench) notice(ctx context.Context, instance int) (azure.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node := b.pool.NodeName(instance)
	if err := b.awaitNode(ctx, node, func(n *corev1.Node) bool { return !n.Spec.Unschedulable }); err != nil {
		return azure.Record{}, fmt.Errorf("node %s is not given back: %w", node, err)
	}
	if err := testbed.Pause(ctx, time.Duration(b.random.Int64N(int64(source.DefaultInterval)))); err != nil {
		return azure.Record{}, err
	}
	unknown := azure.UnknownDuration
	record, err := b.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives who announces it
		Type: azure.Freeze, Resources: []string{b.pool.Resource(instance)}, DurationSeconds: &unknown,
	})
	if err != nil {
		return azure.Record{}, err
	}
	if err := b.awaitNode(ctx, node, func(n *corev1.Node) bool { return cordonedFor(n, record) }); err != nil {
		return azure.Record{}, fmt.Errorf("node %s is not cordoned for event %s: %w", node, record.EventID, err)
	}
	return record, b.Azure.Cancel(record.EventID)
}

// cordonedFor reports that the node takes no pods, and that its record says that it is the agent's doing, for that event.
func cordonedFor(n *corev1.Node, event azure.Record) bool {
	var record cordon.Record
	err := json.Unmarshal([]byte(n.Annotations[annotation(event)]), &record)
	return err == nil && n.Spec.Unschedulable && record.Cordon == cordon.Own
}

// annotation is the key of the agent's record for an event on its node.
func annotation(event azure.Record) string {
	return cordon.AnnotationKey(source.Name + "-" + event.EventID)
}

// awaitNode waits until the node is as wanted.
func (b *bench) awaitNode(ctx context.Context, name string, wanted func(*corev1.Node) bool) error {
	lw := cache.NewListWatchFromClient(b.Client().CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, b.Client()), &corev1.Node{}, nil,
		func(e watch.Event) (bool, error) {
			n, ok := e.Object.(*corev1.Node)
			return ok && e.Type != watch.Deleted && wanted(n), nil
		})
	return err
}

// cordonTimes reads from the audit log how long after each event's becoming visible its node was cordoned.
func (b *bench) cordonTimes(events []azure.Record, since time.Time) ([]time.Duration, error) {
	byNode, err := audit.Requests(b.Cluster, since)
	if err != nil {
		return nil, err
	}
	cordoned := map[string]time.Time{} // by annotation
	for i := range noticedMachines {
		maps.Copy(cordoned, audit.Cordons(byNode[b.pool.NodeName(firstNoticed+i)]))
	}
	took := make([]time.Duration, 0, len(events))
	for _, event := range events {
		at, ok := cordoned[annotation(event)]
		if !ok {
			return nil, fmt.Errorf("audit log: no patch cordons the node for event %s", event.EventID)
		}
		if at.Before(event.VisibleAt) {
			return nil, fmt.Errorf("audit log: the cordon for event %s is older than the event", event.EventID)
		}
		took = append(took, at.Sub(event.VisibleAt))
	}
	if len(took) == 0 {
		return nil, errors.New("no notice was measured")
	}
	return took, nil
}

// percentile is the smallest of the values that is not exceeded by p percent of them: of 50, the 99th is the largest.
func percentile(values []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(1, int(math.Ceil(p/100*float64(len(sorted)))))-1]
}
