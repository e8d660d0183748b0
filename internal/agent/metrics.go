package agent

import (
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Metrics holds the agent's metrics. Every label combination of a counter exists from the start with the value 0. So a
// rate includes the first increment, even if the instance is removed right after its drain.
type Metrics struct {
	Notices, Ended, Cordoned, Acknowledged *observe.Vec[observe.Counter]
	StepsFailed, EventsFailed, Unreadable  *observe.Counter
	ConditionsFailed                       *observe.Counter
	Polls                                  *observe.Vec[observe.Counter]
	pollSeconds                            *observe.Histogram
	liveNotices, planned                   *observe.Vec[observe.Gauge]
	deadline                               *observe.Gauge
	lastRead                               *observe.Vec[observe.Gauge]
	yielded, waitingForSlot                *observe.Gauge
	drainPods                              *observe.Vec[observe.Gauge]
	obstructedPods                         *obstructedPods
	drains                                 *observe.Vec[observe.Counter]
	drainSeconds                           *observe.Histogram
	podEnds                                *observe.Vec[observe.Counter]
	forcedPods, cutShortPods               *observe.Counter
	surges, surgeRefusals                  *observe.Vec[observe.Counter]
	surgeSeconds                           *observe.Counter
	surgesNotRestored, surgesRestored      *observe.Counter
}

// obstacleLabels are the values of the label reason for pods that cannot be evicted.
var obstacleLabels = []drain.ObstacleKind{
	drain.ObstaclePDB, drain.ObstacleMultiplePDBs, drain.ObstacleAPIServerBusy, drain.ObstacleForbidden, drain.ObstacleWebhook, drain.ObstacleError, drain.ObstaclePolicy,
	drain.ObstacleGroup,
}

// surgeSucceeded is the result label of a surge after which the pod left. The other labels are reasons of package surge.
const surgeSucceeded = "succeeded"

// pollOK is the result label of a successful poll; the other labels are poll.Class values.
const pollOK = "ok"

// NewMetrics defines the agent's metrics in r. It panics if r has one of them already. Counters with known label values
// start at 0.
func NewMetrics(r *observe.Registry) *Metrics {
	m := &Metrics{
		Notices:          r.Counter("slipway_agent_notices_total", "Notices for this instance, by type and action.", "type", "action"),
		Ended:            r.Counter("slipway_agent_notices_ended_total", "Notices that ended or were cancelled while the instance ran.", "type"),
		Cordoned:         r.Counter("slipway_agent_cordons_total", "Cordons of the node for a notice.", "type"),
		Acknowledged:     r.Counter("slipway_agent_acknowledgements_total", "Notices that the agent approved to begin early.", "type"),
		StepsFailed:      r.Counter("slipway_agent_failed_steps_total", "Failed steps for a notice; they are retried.").With(),
		EventsFailed:     r.Counter("slipway_agent_failed_kubernetes_events_total", "Kubernetes Events that could not be written or queued.").With(),
		ConditionsFailed: r.Counter("slipway_agent_failed_conditions_total", "Failed writes of the node's conditions; nothing else waits for them.").With(),
		yielded:          r.Gauge("slipway_agent_notices_left_to_other_tools", "Current notices left to another tool that is taking the node out of service.").With(),
		waitingForSlot:   r.Gauge("slipway_agent_notices_waiting_for_drain_slot", "Current notices that wait for a drain slot.").With(),
		Unreadable:       r.Counter("slipway_agent_unreadable_notices_total", "Unreadable parts of the notices; the last readable state stays valid.").With(),
		Polls:            r.Counter("slipway_agent_polls_total", "Polls of the cloud's notices, by result.", "result"),
		pollSeconds: r.Histogram("slipway_agent_poll_seconds", "Response time of a poll of the cloud's notices, in seconds.",
			[]float64{.005, .02, .1, .5, 1, 2, 5, 30, 120}).With(),
		liveNotices:    r.Gauge("slipway_agent_active_notices", "Current notices for this instance.", "type"),
		planned:        r.Gauge("slipway_agent_planned_notices", "Notices for this instance that are not due yet.", "type"),
		lastRead:       r.Gauge("slipway_agent_last_read_timestamp_seconds", "When a source of notices was last read successfully, in seconds since the epoch; 0 is never.", "source"),
		deadline:       r.Gauge("slipway_agent_deadline_timestamp_seconds", "When the next interruption is due, in seconds since the epoch; 0 is none.").With(),
		drainPods:      r.Gauge("slipway_drain_pods", "Pods of the running drain, by state. After a drain, gone and stayed keep their values.", "state"),
		obstructedPods: &obstructedPods{total: r.Gauge("slipway_drain_blocked_pods", "Pods that cannot be evicted, by reason.", "reason")},
		drains:         r.Counter("slipway_drains_total", "Finished drains, by outcome.", "outcome"),
		drainSeconds: r.Histogram("slipway_drain_seconds", "Duration of drains, in seconds.",
			[]float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 3600}).With(),
		podEnds:      r.Counter("slipway_drain_pod_ends_total", "Pods that had to be removed, by how they ended.", "end"),
		forcedPods:   r.Counter("slipway_drain_forced_pods_total", "Forced deletions: pods deleted without eviction, because a deadline left no more time.").With(),
		cutShortPods: r.Counter("slipway_drain_shortened_grace_pods_total", "Pods killed with less than their grace period.").With(),

		surges:            r.Counter("slipway_surges_total", "Surges that ended, by result: succeeded, or why the pod has not left by the surge.", "result"),
		surgeRefusals:     r.Counter("slipway_surge_refusals_total", "Refused surges, by reason. A pod that waits counts at each decision.", "reason"),
		surgeSeconds:      r.Counter("slipway_surge_gained_seconds_total", "Time that pods kept running while their successors started, in seconds.").With(),
		surgesNotRestored: r.Counter("slipway_surges_not_restored_total", "Surges whose drain could not restore the size of the owner. Another process does.").With(),
		surgesRestored:    r.Counter("slipway_surges_restored_total", "Surges of ended processes whose size this process has restored.").With(),
	}
	for _, t := range notice.Types() {
		m.Ended.With(string(t))
		m.Cordoned.With(string(t))
		m.Acknowledged.With(string(t))
		m.liveNotices.With(string(t))
		m.planned.With(string(t))
		for _, a := range Actions() {
			m.Notices.With(string(t), string(a))
		}
	}
	m.Polls.With(pollOK)
	for _, c := range poll.Classes() {
		m.Polls.With(string(c))
	}
	for _, o := range drain.Outcomes() {
		m.drains.With(string(o))
	}
	for _, result := range append([]string{surgeSucceeded}, surge.FailureReasons...) {
		m.surges.With(result)
	}
	for _, reason := range surge.RefusalReasons {
		m.surgeRefusals.With(reason)
	}
	for _, e := range []drain.PodEnd{drain.Stopped, drain.Killed, drain.Vanished} {
		m.podEnds.With(string(e))
	}
	return m
}

// obstructedPods counts the pods of one agent that cannot be evicted, as its part of a total.
type obstructedPods struct {
	total *observe.Vec[observe.Gauge]

	mu  sync.Mutex
	own map[drain.ObstacleKind]int
}

func (o *obstructedPods) set(count map[drain.ObstacleKind]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, kind := range obstacleLabels {
		o.total.With(string(kind)).Add(float64(count[kind] - o.own[kind]))
	}
	o.own = count
}

// ForOneNode returns the metrics of one of several agents that share m. They count like m, and add the agent's obstructed pods to
// those of the other agents. The other gauges are not shown, because the agents would replace each other's values.
func (m *Metrics) ForOneNode() *Metrics {
	hidden, shared := NewMetrics(observe.NewRegistry()), *m
	shared.liveNotices, shared.planned = hidden.liveNotices, hidden.planned
	shared.deadline, shared.lastRead = hidden.deadline, hidden.lastRead
	shared.yielded, shared.waitingForSlot = hidden.yielded, hidden.waitingForSlot
	shared.drainPods, shared.obstructedPods = hidden.drainPods, &obstructedPods{total: m.obstructedPods.total}
	return &shared
}

func toUnixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// FetchSucceeded implements poll.Observer.
func (m *Metrics) FetchSucceeded(source string, took time.Duration) {
	m.Polls.With(pollOK).Inc()
	m.pollSeconds.Observe(took.Seconds())
	m.lastRead.With(source).Set(toUnixSeconds(time.Now()))
}

// FetchFailed implements poll.Observer.
func (m *Metrics) FetchFailed(source string, _ error, class poll.Class) {
	m.Polls.With(string(class)).Inc()
	m.lastRead.With(source) // 0 if it was never read
}

func (m *Metrics) setDrainProgress(p drain.Progress) {
	m.drainPods.With("gone").Set(float64(p.Gone))
	m.drainPods.With("stopping").Set(float64(p.Stopping))
	m.drainPods.With("waiting").Set(float64(p.Waiting))
	m.drainPods.With("stayed").Set(float64(p.Skipped))
	count := map[drain.ObstacleKind]int{}
	for _, b := range p.BlockedPods() {
		count[b.Reason]++
	}
	m.obstructedPods.set(count)
}

// clearRemainingPods sets the pods that a drain waits for to 0, because an ended drain waits for none. Alerts would
// fire otherwise until the next drain.
func (m *Metrics) clearRemainingPods() {
	m.drainPods.With("stopping").Set(0)
	m.drainPods.With("waiting").Set(0)
	m.obstructedPods.set(nil)
}

func (m *Metrics) recordDrain(r drain.Report) {
	m.drains.With(string(r.Outcome)).Inc()
	m.drainSeconds.Observe(r.EndedAt.Sub(r.StartedAt).Seconds())
	for _, p := range r.Pods {
		if p.Action == podrules.Skip {
			continue
		}
		if p.End != drain.StillPresent {
			m.podEnds.With(string(p.End)).Inc()
		}
		if p.Removal == drain.ForceDeleted {
			m.forcedPods.Inc()
		}
		if p.WasCutShort() {
			m.cutShortPods.Inc()
		}
		if p.Surge != nil && p.Surge.Result.RestoreErr != nil {
			m.surgesNotRestored.Inc()
		}
	}
}

// SurgeStarted implements surge.Metrics.
func (*Metrics) SurgeStarted() {}

// SurgeSucceeded implements surge.Metrics.
func (m *Metrics) SurgeSucceeded(gained time.Duration) {
	m.surges.With(surgeSucceeded).Inc()
	m.surgeSeconds.Add(gained.Seconds())
}

// SurgeFailed implements surge.Metrics.
func (m *Metrics) SurgeFailed(reason string) { m.surges.With(reason).Inc() }

// SurgeRefused implements surge.Metrics.
func (m *Metrics) SurgeRefused(reason string) { m.surgeRefusals.With(reason).Inc() }

// RecordRestored implements surge.Metrics.
func (m *Metrics) RecordRestored() { m.surgesRestored.Inc() }

// updateNoticeMetrics sets the gauges that count the notices that have not ended. Without a drain it also clears the gauges
// of the last drain.
func (a *Agent) updateNoticeMetrics() {
	live, planned := map[notice.Type]int{}, map[notice.Type]int{}
	for _, s := range a.snapshots {
		for _, n := range s.Planned {
			planned[n.Type]++
		}
	}
	var due time.Time
	now := time.Now()
	left, waiting := 0, 0
	for _, h := range a.activeNoticesByUrgency() {
		live[h.Notice.Type]++
		switch {
		case h.Phase == Yielded:
			left++
		case h.needsDrain() && a.isWaitingForSlot(h, now):
			waiting++
		}
		if h.Decision.Action != Ignore && due.IsZero() {
			due = h.Decision.Deadline
		}
	}
	for _, t := range notice.Types() {
		a.options.Metrics.liveNotices.With(string(t)).Set(float64(live[t]))
		a.options.Metrics.planned.With(string(t)).Set(float64(planned[t]))
	}
	a.options.Metrics.deadline.Set(toUnixSeconds(due))
	a.options.Metrics.yielded.Set(float64(left))
	a.options.Metrics.waitingForSlot.Set(float64(waiting))
	if a.drain == nil {
		a.options.Metrics.clearRemainingPods()
	}
}
