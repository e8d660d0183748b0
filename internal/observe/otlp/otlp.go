// Package otlp sends the agent's spans to an OpenTelemetry collector, over OTLP/HTTP. It is a separate package,
// because its libraries use more memory than the rest of slipway-agent, which does not link them.
package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// sendInterval is how long a span waits for others of its batch. An instance may be gone seconds after its notice
	// was approved.
	sendInterval = 500 * time.Millisecond
	// sendTimeout limits one try to send.
	sendTimeout = 5 * time.Second
	// maxWaitingSpans limits the spans that wait for a collector; more are dropped.
	maxWaitingSpans = 256
)

// Exporter sends spans in the background, and drops them if the collector is away for long. It implements
// observe.Tracer.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// NewExporter returns an exporter to the collector at a URL such as http://collector:4318/v1/traces. If it is empty, the
// standard environment variables decide (OTEL_EXPORTER_OTLP_ENDPOINT and others). It makes no connection before the
// first span.
func NewExporter(ctx context.Context, endpoint, version string) (*Exporter, error) {
	o := []otlptracehttp.Option{otlptracehttp.WithTimeout(sendTimeout)}
	if endpoint != "" {
		o = append(o, otlptracehttp.WithEndpointURL(endpoint))
	}
	sender, err := otlptracehttp.New(ctx, o...)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", "slipway-agent"), attribute.String("service.version", version))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(about),
		sdktrace.WithBatcher(sender, sdktrace.WithBatchTimeout(sendInterval), sdktrace.WithMaxQueueSize(maxWaitingSpans),
			sdktrace.WithExportTimeout(sendTimeout)),
	)
	return &Exporter{provider: provider, tracer: provider.Tracer("github.com/slipway-dev/slipway")}, nil
}

// Close sends the remaining spans until ctx ends.
func (e *Exporter) Close(ctx context.Context) error { return e.provider.Shutdown(ctx) }

// traceparent is the key of a span's traceparent in a carrier of propagation.TraceContext.
const traceparent = "traceparent"

// Record implements observe.Tracer. An invalid parent starts a new trace.
func (e *Exporter) Record(s observe.Span) (parent string) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: s.Parent})
	ctx, span := e.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Began), trace.WithAttributes(toAttributes(s.Attributes)...))
	for _, event := range s.Events {
		span.AddEvent(event.Name, trace.WithTimestamp(event.At), trace.WithAttributes(toAttributes(event.Attributes)...))
	}
	if s.Err != nil {
		span.RecordError(s.Err, trace.WithTimestamp(s.Ended))
		span.SetStatus(codes.Error, s.Err.Error())
	}
	span.End(trace.WithTimestamp(s.Ended))
	place := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, place)
	return place[traceparent]
}

func toAttributes(attrs []slog.Attr) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, len(attrs))
	for _, a := range attrs {
		switch v := a.Value.Resolve(); v.Kind() {
		case slog.KindInt64:
			all = append(all, attribute.Int64(a.Key, v.Int64()))
		case slog.KindBool:
			all = append(all, attribute.Bool(a.Key, v.Bool()))
		case slog.KindTime:
			all = append(all, attribute.String(a.Key, v.Time().UTC().Format(time.RFC3339Nano)))
		default:
			all = append(all, attribute.String(a.Key, v.String()))
		}
	}
	return all
}
