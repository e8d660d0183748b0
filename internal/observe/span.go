package observe

import (
	"log/slog"
	"time"
)

// Tracer records spans that have ended. It does not block, and may drop a span.
type Tracer interface {
	// Record records a span and returns its traceparent header (https://www.w3.org/TR/trace-context/), or "" if it
	// dropped the span.
	Record(s Span) (traceparent string)
}

// Span is one step in the handling of a notice. All spans of a notice belong to one trace, even after a restart of the
// agent. For this, the node has a record of the first span's traceparent.
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

// SpanEvent is an event within a span.
type SpanEvent struct {
	Name       string
	At         time.Time
	Attributes []slog.Attr
}
