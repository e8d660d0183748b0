package awsnth

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/observe"
)

// meter is the value of the label otel_scope_name, which the tool's library added to each metric.
const meter = "aws.node.termination.handler"

// The actions that the tool counted.
const (
	actionPreDrain       = "pre-drain"
	actionCordon         = "cordon"
	actionCordonAndDrain = "cordon-and-drain"
	actionPostDrain      = "post-drain"
	actionUncordon       = "uncordon"
)

// maxNodeSeries limits the metric with a series for each event. In the tool it grew without limit.
const maxNodeSeries = 1000

// Metrics holds the tool's metrics with their original names and labels. Its methods are safe for concurrent use.
type Metrics struct {
	actions, nodeActions, errors *observe.Vec[observe.Counter]
	taggedNodes, taggedInstances *observe.Gauge

	mu     sync.Mutex
	series map[[4]string]bool // of nodeActions
}

// NewMetrics registers the tool's metrics.
func NewMetrics(r *observe.Registry) *Metrics {
	scope := []string{"otel_scope_name", "otel_scope_version"}
	m := &Metrics{
		actions:     r.Counter("actions_total", "Actions on nodes, by action and result.", append([]string{"node_action", "node_status"}, scope...)...),
		nodeActions: r.Counter("actions_node_total", "Actions on nodes, by node and event.", append([]string{"node_action", "node_event_id", "node_name", "node_status"}, scope...)...),
		errors:      r.Counter("events_error_total", "Failed reads of notices, by monitor.", append([]string{"event_error_where"}, scope...)...),
		series:      map[[4]string]bool{},

		taggedNodes:     r.Gauge("nth_tagged_nodes", "In queue mode, nodes of instances with the tag of managed instances.", scope...).With(meter, ""),
		taggedInstances: r.Gauge("nth_tagged_instances", "In queue mode, instances with the tag of managed instances.", scope...).With(meter, ""),
	}
	// The tool exported a sample without labels before the first action. An empty label is the same as none.
	m.actions.With("", "", meter, "")
	m.nodeActions.With("", "", "", "", meter, "")
	m.errors.With("", meter, "")
	addRuntimeMetrics(r)
	return m
}

// taggedInterval is the time between two counts of the managed nodes and instances, as in the tool.
const taggedInterval = 30 * time.Second

// Inventory lists the nodes of the cluster, and the instances with a tag.
type Inventory struct {
	ListNodes      func(ctx context.Context) ([]kubeapi.Node, error)
	DescribeTagged func(ctx context.Context, key string) ([]queue.Instance, error)
}

// CountTagged keeps the gauges of the queue mode current until ctx ends: how many instances have the tag, and how many
// nodes are of such instances. After a failure the gauges keep their values.
func (m *Metrics) CountTagged(ctx context.Context, in Inventory, tag string, log *slog.Logger) {
	for {
		limited, cancel := context.WithTimeout(ctx, taggedInterval) // a hanging answer must not end the counts
		instances, err := in.DescribeTagged(limited, tag)
		cancel()
		if err == nil {
			var nodes []kubeapi.Node
			if nodes, err = in.ListNodes(ctx); err == nil {
				m.taggedInstances.Set(float64(len(instances)))
				m.taggedNodes.Set(float64(countNodesOf(nodes, instances)))
			}
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("cannot count the instances with the tag", "tag", tag, "err", err)
		}
		if !elapsed.Sleep(ctx, taggedInterval) {
			return
		}
	}
}

// countNodesOf returns how many nodes are of the instances, by their provider IDs.
func countNodesOf(nodes []kubeapi.Node, instances []queue.Instance) (n int) {
	ids := map[string]bool{}
	for _, i := range instances {
		ids[i.ID] = true
	}
	for _, node := range nodes {
		if id := node.Spec.ProviderID; ids[id[strings.LastIndex(id, "/")+1:]] {
			n++
		}
	}
	return n
}

// countAction counts an action for a node and its event.
func (m *Metrics) countAction(action, node, event string, failed bool) {
	status := "success"
	if failed {
		status = "error"
	}
	m.actions.With(action, status, meter, "").Inc()
	key := [4]string{action, event, node, status}
	m.mu.Lock()
	count := m.series[key] || len(m.series) < maxNodeSeries
	if count {
		m.series[key] = true
	}
	m.mu.Unlock()
	if count {
		m.nodeActions.With(action, event, node, status, meter, "").Inc()
	}
}

// FetchSucceeded implements poll.Observer.
func (*Metrics) FetchSucceeded(time.Duration) {}

// FetchFailed implements poll.Observer. It counts a failed read of the metadata service for the monitor that read its path.
func (m *Metrics) FetchFailed(err error, _ poll.Class) {
	where := spotMonitor // it reads most often
	for path, monitor := range map[string]string{
		"/events/recommendations/": rebalanceMonitor, "/events/maintenance/": scheduledMonitor, "/autoscaling/": asgMonitor, "/spot/": spotMonitor,
	} {
		if strings.Contains(err.Error(), path) {
			where = monitor
		}
	}
	m.errors.With(where, meter, "").Inc()
}

// addRuntimeMetrics adds the metrics of Go that the tool's library exported, as far as package runtime/metrics has them.
func addRuntimeMetrics(r *observe.Registry) {
	const prefix = "process_runtime_go_"
	for _, g := range []struct{ name, help, source string }{
		{prefix + "goroutines", "Goroutines that exist.", "/sched/goroutines:goroutines"},
		{prefix + "gc_count_total", "Finished garbage collections.", "/gc/cycles/total:gc-cycles"},
		{prefix + "mem_heap_alloc_bytes", "Bytes of allocated heap objects.", "/memory/classes/heap/objects:bytes"},
		{prefix + "mem_heap_released_bytes", "Bytes returned to the operating system.", "/memory/classes/heap/released:bytes"},
		{prefix + "mem_heap_objects", "Allocated heap objects.", "/gc/heap/objects:objects"},
	} {
		r.GaugeFunc(g.name, g.help, func() float64 { return readRuntimeMetric(g.source) })
	}
	r.GaugeFunc(prefix+"cgo_calls", "Calls from Go to C.", func() float64 { return float64(runtime.NumCgoCall()) })
	began := time.Now()
	r.GaugeFunc("runtime_uptime_milliseconds_total", "Milliseconds since the start of the process.", func() float64 { return float64(time.Since(began).Milliseconds()) })
}

func readRuntimeMetric(name string) float64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return float64(s[0].Value.Uint64())
}
