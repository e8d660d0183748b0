package start

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

// TracingOpener creates the exporter of an agent's spans for an endpoint. If the endpoint is empty, the exporter uses the standard
// environment variables. It is nil in a binary without tracing.
type TracingOpener func(ctx context.Context, endpoint, version string) (SpanExporter, error)

// SpanExporter records spans. Close sends the remaining ones.
type SpanExporter interface {
	observe.Tracer
	Close(ctx context.Context) error
}

// spanFlushTimeout limits the sending of the remaining spans when the agent ends.
const spanFlushTimeout = 2 * time.Second

// traceVariables enable traces without a flag (OpenTelemetry's specification of OTLP exporters).
var traceVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// startTracing returns a tracer and a function that closes it. Without traces the tracer is nil and the function does
// nothing.
func (t TracingOpener) startTracing(ctx context.Context, endpoint string, log *slog.Logger) (tracer observe.Tracer, closeTracer func(), err error) {
	wanted := endpoint != ""
	for _, variable := range traceVariables {
		wanted = wanted || os.Getenv(variable) != ""
	}
	switch {
	case !wanted:
		return nil, func() {}, nil
	case t == nil && endpoint != "":
		return nil, nil, errors.New("--trace-endpoint: slipway-agent has no tracing, to save memory: run `slipway agent` instead")
	case t == nil:
		log.Warn("OTEL_EXPORTER_OTLP_ENDPOINT is set, but slipway-agent has no tracing: run `slipway agent` instead")
		return nil, func() {}, nil
	}
	spans, err := t(ctx, endpoint, Version())
	if err != nil {
		return nil, nil, err
	}
	return spans, func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), spanFlushTimeout)
		defer cancel()
		if err := spans.Close(bounded); err != nil {
			log.Warn("cannot send the remaining spans", "err", err)
		}
	}, nil
}
