package agent

import (
	"log/slog"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// maxTracedPods limits the number of pods in a drain's span. It is slightly more than the kubelet's default limit of
// pods.
const maxTracedPods = 128

// recordSpan adds a span to the trace of the notice h.
func (a *Agent) recordSpan(h *noticeState, s observe.Span) {
	if a.options.Tracer == nil || h.TraceParent == "" {
		return
	}
	s.Parent = h.TraceParent
	a.options.Tracer.Record(s)
}

// startNoticeTrace starts the trace of a notice. Its first span lasts from the first read of the notice to the
// decision.
func (a *Agent) startNoticeTrace(h *noticeState) {
	if a.options.Tracer == nil || h.TraceParent != "" {
		return
	}
	n, d := h.Notice, h.Decision
	h.TraceParent = a.options.Tracer.Record(observe.Span{
		Name: "notice", Began: h.Seen.First, Ended: time.Now(),
		Attributes: []slog.Attr{
			slog.String("k8s.node.name", a.options.Node), slog.String("slipway.notice.source", n.Source),
			slog.String("slipway.notice.id", n.ID), slog.String("slipway.notice.type", string(n.Type)),
			slog.String("slipway.notice.action", string(d.Action)), slog.String("slipway.notice.reason", d.Reason),
			slog.Time("slipway.notice.deadline", d.Deadline),
		},
	})
}

// newDrainSpan returns the span of a drain that has ended. Its events are the eviction and the end of each pod.
func newDrainSpan(kind notice.Type, r drain.Report, err error) observe.Span {
	s := observe.Span{
		Name: "drain", Began: r.StartedAt, Ended: r.EndedAt, Err: err,
		Attributes: []slog.Attr{
			slog.String("slipway.drain.kind", string(kind)), slog.String("slipway.drain.outcome", string(r.Outcome)),
			slog.Int("slipway.drain.pods", len(r.Pods)),
		},
	}
	for _, p := range r.Pods[:min(len(r.Pods), maxTracedPods)] {
		pod := []slog.Attr{slog.String("k8s.namespace.name", p.Namespace), slog.String("k8s.pod.name", p.Name)}
		if !p.RemovalRequestedAt.IsZero() {
			s.Events = append(s.Events, observe.SpanEvent{Name: "pod " + string(p.Removal), At: p.RemovalRequestedAt, Attributes: pod})
		}
		if !p.EndedAt.IsZero() {
			s.Events = append(s.Events, observe.SpanEvent{Name: "pod " + string(p.End), At: p.EndedAt, Attributes: pod})
		}
	}
	slices.SortStableFunc(s.Events, func(a, b observe.SpanEvent) int { return a.At.Compare(b.At) })
	return s
}
