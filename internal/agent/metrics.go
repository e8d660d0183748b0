package agent

import (
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Metrics are the agent's. Every child of a counter exists from the start, so that a rate over the first event is not lost, and
// a machine that is taken away right after its drain has told of drains at all.
type Metrics struct {
	Notices, Over, Cordoned, Acknowledged *observe.Vec[observe.Counter]
	StepsFailed, EventsFailed, Unreadable *observe.Counter
	ConditionsFailed                      *observe.Counter
	Polls                                 *observe.Vec[observe.Counter]
	pollSeconds                           *observe.Histogram
	live                                  *observe.Vec[observe.Gauge]
	deadline, lastRead                    *observe.Gauge
	left, waiting                         *observe.Gauge
	pods                                  *observe.Vec[observe.Gauge]
	obstructed                            *observe.Vec[observe.Gauge]
	drains                                *observe.Vec[observe.Counter]
	drainSeconds                          *observe.Histogram
	ends                                  *observe.Vec[observe.Counter]
	forced, cutShort                      *observe.Counter
}

// obstacles are the label values of the pods that something keeps from leaving.
var obstacles = []drain.Obstacle{
	drain.Budget, drain.SeveralBudgets, drain.Busy, drain.NoRight, drain.Webhook, drain.Failing, drain.ByPolicy,
}

// pollOK is the result label of a poll that was read and understood; the others are azure.Class.
const pollOK = "ok"

// NewMetrics registers the agent's metrics.
func NewMetrics(r *observe.Registry) *Metrics {
	m := &Metrics{
		Notices:          r.Counter("slipway_agent_notices_total", "Notices that named this machine, by type and by what was decided.", "type", "action"),
		Over:             r.Counter("slipway_agent_notices_ended_total", "Notices that were finished or cancelled while the machine lived.", "type"),
		Cordoned:         r.Counter("slipway_agent_cordons_total", "Times that a notice cordoned the node.", "type"),
		Acknowledged:     r.Counter("slipway_agent_acknowledgements_total", "Notices that were told to begin early.", "type"),
		StepsFailed:      r.Counter("slipway_agent_failed_steps_total", "Steps towards what a notice asks for that failed and are tried again.").With(),
		EventsFailed:     r.Counter("slipway_agent_failed_kubernetes_events_total", "Kubernetes Events that could not be written.").With(),
		ConditionsFailed: r.Counter("slipway_agent_failed_conditions_total", "Times that the node's conditions could not be written; nothing else waits for them.").With(),
		left:             r.Gauge("slipway_agent_notices_left_to_other_tools", "Live notices that are left to another tool that is taking the node out of service.").With(),
		waiting:          r.Gauge("slipway_agent_notices_waiting_for_drain_slot", "Live notices that wait until fewer nodes are being drained.").With(),
		Unreadable:       r.Counter("slipway_agent_unreadable_notices_total", "Parts of the notices that could not be understood; what was known before stands.").With(),
		Polls:            r.Counter("slipway_agent_polls_total", "Looks at the cloud's notices, by result.", "result"),
		pollSeconds: r.Histogram("slipway_agent_poll_seconds", "How long the cloud took to answer.",
			[]float64{.005, .02, .1, .5, 1, 2, 5, 30, 120}).With(),
		live:       r.Gauge("slipway_agent_active_notices", "Notices that name this machine now.", "type"),
		lastRead:   r.Gauge("slipway_agent_last_read_timestamp_seconds", "When the notices were last read and understood, in seconds since the epoch; 0 is never.").With(),
		deadline:   r.Gauge("slipway_agent_deadline_timestamp_seconds", "When the machine is due, in seconds since the epoch; 0 is not at all.").With(),
		pods:       r.Gauge("slipway_drain_pods", "Pods of the drain under way, by state.", "state"),
		obstructed: r.Gauge("slipway_drain_blocked_pods", "Pods that something keeps from leaving, by what it is.", "reason"),
		drains:     r.Counter("slipway_drains_total", "Drains that ended, by outcome.", "outcome"),
		drainSeconds: r.Histogram("slipway_drain_seconds", "How long drains took.",
			[]float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 3600}).With(),
		ends:     r.Counter("slipway_drain_pod_ends_total", "Pods that had to leave, by how they ended.", "end"),
		forced:   r.Counter("slipway_drain_forced_pods_total", "Pods deleted past what blocked their eviction, since a deadline left no more time.").With(),
		cutShort: r.Counter("slipway_drain_shortened_grace_pods_total", "Pods killed with less time to stop than they wanted.").With(),
	}
	for _, t := range notice.Types() {
		m.Over.With(string(t))
		m.Cordoned.With(string(t))
		m.Acknowledged.With(string(t))
		m.live.With(string(t))
		for _, a := range Actions() {
			m.Notices.With(string(t), string(a))
		}
	}
	m.Polls.With(pollOK)
	for _, c := range azure.Classes() {
		m.Polls.With(string(c))
	}
	for _, o := range drain.Outcomes() {
		m.drains.With(string(o))
	}
	for _, e := range []drain.End{drain.Stopped, drain.Killed, drain.Vanished} {
		m.ends.With(string(e))
	}
	return m
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// FetchOK makes Metrics an azure.Observer.
func (m *Metrics) FetchOK(took time.Duration) {
	m.Polls.With(pollOK).Inc()
	m.pollSeconds.Observe(took.Seconds())
	m.lastRead.Set(seconds(time.Now()))
}

// FetchFailed makes Metrics an azure.Observer.
func (m *Metrics) FetchFailed(_ error, class azure.Class) { m.Polls.With(string(class)).Inc() }

// progress shows how far a drain is.
func (m *Metrics) progress(p drain.Progress) {
	m.pods.With("gone").Set(float64(p.Gone))
	m.pods.With("stopping").Set(float64(p.Asked))
	m.pods.With("waiting").Set(float64(p.Waiting))
	m.pods.With("stayed").Set(float64(p.Stayed))
	count := map[drain.Obstacle]int{}
	for _, b := range p.Obstructed() {
		count[b.Reason]++
	}
	for _, o := range obstacles {
		m.obstructed.With(string(o)).Set(float64(count[o]))
	}
}

// receipt counts what a drain did.
func (m *Metrics) receipt(r drain.Receipt) {
	m.drains.With(string(r.Outcome)).Inc()
	m.drainSeconds.Observe(r.Ended.Sub(r.Began).Seconds())
	for _, p := range r.Pods {
		if p.Action == podrules.Leave {
			continue
		}
		if p.End != drain.StillThere {
			m.ends.With(string(p.End)).Inc()
		}
		if p.Asked == drain.Forced {
			m.forced.Inc()
		}
		if p.CutShort() {
			m.cutShort.Inc()
		}
	}
}

// count shows the notices that are live.
func (a *Agent) count() {
	live := map[notice.Type]int{}
	var due time.Time
	now := time.Now()
	left, waiting := 0, 0
	for _, h := range a.inOrder() {
		live[h.Notice.Type]++
		switch {
		case h.Phase == Yielded:
			left++
		case h.wantsDrain() && a.waitsForSlot(h, now):
			waiting++
		}
		if h.Decision.Action != Ignore && due.IsZero() {
			due = h.Decision.Deadline
		}
	}
	for _, t := range notice.Types() {
		a.o.Metrics.live.With(string(t)).Set(float64(live[t]))
	}
	a.o.Metrics.deadline.Set(seconds(due))
	a.o.Metrics.left.Set(float64(left))
	a.o.Metrics.waiting.Set(float64(waiting))
}
