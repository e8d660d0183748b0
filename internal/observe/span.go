package observe

import (
	"log/slog"
	"time"
)

// Tracer records spans that have ended. It may drop a span, and does not block.
type Tracer interface {
	// Record records a span and returns its traceparent header (https://www.w3.org/TR/trace-context/), or "" if it
	// dropped the span.
	Record(s Span) (traceparent string)
}

// Span is one step of the handling of a notice. All spans of a notice belong to one trace, also after a restart of
// the agent: the traceparent of the first span is recorded on the node.
type Span struct {
	// Parent is the traceparent of the parent span; empty starts a trace.
	Parent       string
	Name         string
	Began, Ended time.Time
	Err          error
	Attributes   []slog.Attr
	// Events are the events of the span, in order. A drain has one event for the eviction and the end of each pod,
	// for a limited number of pods.
	Events []SpanEvent
}

// SpanEvent is an event of a span.
type SpanEvent struct {
	Name       string
	At         time.Time
	Attributes []slog.Attr
}
