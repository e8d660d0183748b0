package queue

import (
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

// Metrics holds the metrics of the queue mode.
type Metrics struct {
	Received, Deleted, Parked *observe.Vec[observe.Counter]
	ReceiveFailed             *observe.Counter
	Heartbeats, Completed     *observe.Counter
	HookFailures              *observe.Vec[observe.Counter]
	LastReceive               *observe.Gauge
	OldestUnhandled           *observe.Gauge
	Unhandled                 *observe.Gauge
	UnhandledNodes            *observe.Gauge
	Agents                    *observe.Gauge
}

// The values of the label request.
const (
	heartbeatRequest  = "heartbeat"
	completionRequest = "completion"
)

// Unreadable is the value of the label kind for a message that cannot be parsed.
const Unreadable = "unreadable"

// NewMetrics registers the metrics of the queue mode.
func NewMetrics(r *observe.Registry) *Metrics {
	m := &Metrics{
		Received:      r.Counter("slipway_queue_messages_received_total", "Messages received from the queue, without repeated deliveries, by kind.", "kind"),
		Deleted:       r.Counter("slipway_queue_messages_deleted_total", "Messages deleted from the queue, by kind.", "kind"),
		Parked:        r.Counter("slipway_queue_messages_parked_total", "Deliveries of messages that were put back into the queue, because they cannot be read or too many wait for their Nodes, by kind.", "kind"),
		ReceiveFailed: r.Counter("slipway_queue_receive_failures_total", "Failed requests for messages.").With(),
		Heartbeats:    r.Counter("slipway_queue_heartbeats_total", "Heartbeats of lifecycle hooks that Auto Scaling accepted.").With(),
		Completed:     r.Counter("slipway_queue_hooks_completed_total", "Lifecycle hooks that were completed.").With(),
		HookFailures:  r.Counter("slipway_queue_hook_failures_total", "Failed requests about lifecycle hooks, by request.", "request"),
		LastReceive:   r.Gauge("slipway_queue_last_receive_timestamp_seconds", "When the queue last answered a request for messages, in seconds since the epoch; 0 is never.").With(),
		OldestUnhandled: r.Gauge("slipway_queue_oldest_unhandled_message_age_seconds",
			"Age of the oldest message that is not handled yet, in seconds; 0 is none.").With(),
		Unhandled:      r.Gauge("slipway_queue_unhandled_messages", "Messages that were received and are not handled yet.").With(),
		UnhandledNodes: r.Gauge("slipway_queue_unhandled_nodes", "Nodes with a message that is not handled yet.").With(),
		Agents:         r.Gauge("slipway_queue_agents", "Nodes that an agent of the queue mode handles now.").With(),
	}
	for _, request := range []string{heartbeatRequest, completionRequest} {
		m.HookFailures.With(request)
	}
	for _, kind := range append(kindNames(), string(ASGTest), string(Other), Unreadable) {
		m.Received.With(kind)
		m.Deleted.With(kind)
		m.Parked.With(kind)
	}
	return m
}

func toUnixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
