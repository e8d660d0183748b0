package notify

import "github.com/slipway-dev/slipway/internal/observe"

// families holds the metrics of all receivers.
type families struct {
	results *observe.Vec[observe.Counter]
	waiting *observe.Vec[observe.Gauge]
	seconds *observe.Vec[observe.Histogram]
}

// metrics holds the metrics of one receiver.
type metrics struct {
	sent, failed, refused, dropped *observe.Counter
	waiting                        *observe.Gauge
	seconds                        *observe.Histogram
}

func newFamilies(r *observe.Registry) families {
	return families{
		results: r.Counter("slipway_notifications_total",
			"Tries to tell a receiver by result: sent; failed, and tried again; refused or dropped, and lost.", "receiver", "result"),
		waiting: r.Gauge("slipway_notifications_waiting", "Messages that wait for a receiver.", "receiver"),
		seconds: r.Histogram("slipway_notification_seconds", "How long a request to a receiver took.",
			[]float64{.05, .1, .5, 1, 5, 10, 30, 60}, "receiver"),
	}
}

func (f families) forReceiver(receiver string) *metrics {
	return &metrics{
		sent: f.results.With(receiver, "sent"), failed: f.results.With(receiver, "failed"),
		refused: f.results.With(receiver, "refused"), dropped: f.results.With(receiver, "dropped"),
		waiting: f.waiting.With(receiver), seconds: f.seconds.With(receiver),
	}
}
