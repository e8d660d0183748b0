package agent

import (
	"log/slog"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/notice"
)

// Tracer keeps spans. It is told of one when it is over, may drop it, and does not wait for anything.
type Tracer interface {
	// Record takes in a span, and returns its place in its trace as the header traceparent spells it
	// (https://www.w3.org/TR/trace-context/), or nothing when it is not kept.
	Record(s Span) (traceparent string)
}

// Span is one stretch of what was done about a notice. All of a notice's are of one trace, also those of the agent that
// goes on after a restart: the first one's place is on the node, with the rest of the handling.
type Span struct {
	// Parent is the place of the span that it is a part of; empty begins a trace.
	Parent       string
	Name         string
	Began, Ended time.Time
	Err          error
	Attributes   []slog.Attr
	// Events happened on the way, in their order. Of a drain they are the pods', tracedPods at most.
	Events []SpanEvent
}

// SpanEvent is a moment of a span.
type SpanEvent struct {
	Name       string
	At         time.Time
	Attributes []slog.Attr
}

// tracedPods bounds the pods that a drain's span tells of: the kubelet's default limit, and some.
const tracedPods = 128

// trace records a span of what is done about h.
func (a *Agent) trace(h *handling, s Span) {
	if a.o.Tracer == nil || h.Trace == "" {
		return
	}
	s.Parent = h.Trace
	a.o.Tracer.Record(s)
}

// traceNotice begins the trace of a notice, from the first sight of it to the decision.
func (a *Agent) traceNotice(h *handling) {
	if a.o.Tracer == nil || h.Trace != "" {
		return
	}
	n, d := h.Notice, h.Decision
	h.Trace = a.o.Tracer.Record(Span{
		Name: "notice", Began: h.Seen.First, Ended: time.Now(),
		Attributes: []slog.Attr{
			slog.String("k8s.node.name", a.o.Node), slog.String("slipway.notice.source", n.Source),
			slog.String("slipway.notice.id", n.ID), slog.String("slipway.notice.type", string(n.Type)),
			slog.String("slipway.notice.action", string(d.Action)), slog.String("slipway.notice.reason", d.Reason),
			slog.Time("slipway.notice.deadline", d.Deadline),
		},
	})
}

// drainSpan tells of a drain that has ended, and how each pod fared.
func drainSpan(kind notice.Type, r drain.Receipt, err error) Span {
	s := Span{
		Name: "drain", Began: r.Began, Ended: r.Ended, Err: err,
		Attributes: []slog.Attr{
			slog.String("slipway.drain.kind", string(kind)), slog.String("slipway.drain.outcome", string(r.Outcome)),
			slog.Int("slipway.drain.pods", len(r.Pods)),
		},
	}
	for _, p := range r.Pods[:min(len(r.Pods), tracedPods)] {
		pod := []slog.Attr{slog.String("k8s.namespace.name", p.Namespace), slog.String("k8s.pod.name", p.Name)}
		if !p.AskedAt.IsZero() {
			s.Events = append(s.Events, SpanEvent{"pod " + string(p.Asked), p.AskedAt, pod})
		}
		if !p.EndedAt.IsZero() {
			s.Events = append(s.Events, SpanEvent{"pod " + string(p.End), p.EndedAt, pod})
		}
	}
	slices.SortStableFunc(s.Events, func(a, b SpanEvent) int { return a.At.Compare(b.At) })
	return s
}
