package observe

import (
	"log/slog"
	"time"
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
