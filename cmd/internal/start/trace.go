package start

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

// Tracing makes what sends an agent's spans to an endpoint; an empty one leaves it to the standard environment. Nil is
// for a binary that has no such thing.
type Tracing func(ctx context.Context, endpoint, version string) (Spans, error)

// Spans keeps spans, and sends what is left of them when it is closed.
type Spans interface {
	observe.Tracer
	Close(ctx context.Context) error
}

// lastSpans is how long an agent that ends may take to send the spans that are left.
const lastSpans = 2 * time.Second

// traceVariables ask for traces where no flag does (OpenTelemetry's specification of the OTLP exporters).
var traceVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// begin returns a tracer, and what ends it. Both are there even when no traces are asked for.
func (t Tracing) begin(ctx context.Context, endpoint string, log *slog.Logger) (observe.Tracer, func(), error) {
	wanted := endpoint != ""
	for _, variable := range traceVariables {
		wanted = wanted || os.Getenv(variable) != ""
	}
	switch {
	case !wanted:
		return nil, func() {}, nil
	case t == nil && endpoint != "":
		return nil, nil, errors.New("--trace-endpoint: this is slipway-agent, which has no traces for the sake of its memory: " +
			"run `slipway agent` instead")
	case t == nil:
		log.Warn("OTEL_EXPORTER_OTLP_ENDPOINT is set, and slipway-agent has no traces: run `slipway agent` instead")
		return nil, func() {}, nil
	}
	spans, err := t(ctx, endpoint, Version())
	if err != nil {
		return nil, nil, err
	}
	return spans, func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := spans.Close(bounded); err != nil {
			log.Warn("not all spans could be sent", "err", err)
		}
	}, nil
}
