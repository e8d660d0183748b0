// Package otlp sends the agent's spans to an OpenTelemetry collector, over OTLP/HTTP. It is a package of its own for the
// sake of those who do not link it: its libraries cost more memory than the rest of slipway-agent.
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
	// sendEvery is how long a span waits for others to be sent with. A machine may be gone seconds after it was let go.
	sendEvery = 500 * time.Millisecond
	// sendTimeout bounds one try to send.
	sendTimeout = 5 * time.Second
	// spansWaiting bounds the spans that wait for a collector that is away; more are dropped.
	spansWaiting = 256
)

// Exporter sends spans in the background, and drops them when the collector is away for long. It is an observe.Tracer.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns an exporter to the collector at a URL such as http://collector:4318/v1/traces. With an empty one the
// standard environment decides (OTEL_EXPORTER_OTLP_ENDPOINT and its like). No connection is made before the first span.
func New(ctx context.Context, endpoint, version string) (*Exporter, error) {
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
		sdktrace.WithBatcher(sender, sdktrace.WithBatchTimeout(sendEvery), sdktrace.WithMaxQueueSize(spansWaiting),
			sdktrace.WithExportTimeout(sendTimeout)),
	)
	return &Exporter{provider: provider, tracer: provider.Tracer("github.com/slipway-dev/slipway")}, nil
}

// Close sends what is left, for as long as ctx lasts.
func (e *Exporter) Close(ctx context.Context) error { return e.provider.Shutdown(ctx) }

// traceparent is where a carrier of propagation.TraceContext keeps a span's place in its trace.
const traceparent = "traceparent"

// Record implements observe.Tracer. A parent that cannot be read begins a trace.
func (e *Exporter) Record(s observe.Span) string {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: s.Parent})
	ctx, span := e.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Began), trace.WithAttributes(attributes(s.Attributes)...))
	for _, event := range s.Events {
		span.AddEvent(event.Name, trace.WithTimestamp(event.At), trace.WithAttributes(attributes(event.Attributes)...))
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

func attributes(attrs []slog.Attr) []attribute.KeyValue {
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
