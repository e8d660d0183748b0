package otlp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// receiver is a collector that takes OTLP over HTTP.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []*tracev1.Span
	service string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var request collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || q.URL.Path != "/v1/traces" || q.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s with %s: %v", q.URL.Path, q.Header.Get("Content-Type"), err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.take(&request)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(request *collector.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				r.service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
}

// send records spans in an exporter of its own, as each start of an agent has one, and closes it.
func send(t *testing.T, endpoint string, spans ...observe.Span) (places []string) {
	t.Helper()
	e, err := NewExporter(t.Context(), endpoint, "1.2.3")
	must.NoError(t, err)
	for _, s := range spans {
		places = append(places, e.Record(s))
	}
	must.NoError(t, e.Close(t.Context()))
	return places
}

var epoch = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func TestRestartedAgentContinuesTheTrace(t *testing.T) {
	r := newReceiver(t)
	first := send(t, r.URL+"/v1/traces", observe.Span{
		Name: "notice", Began: epoch, Ended: epoch.Add(time.Second),
		Attributes: []slog.Attr{slog.String("id", "1"), slog.Int("pods", 3), slog.Time("deadline", epoch)},
	})
	send(t, r.URL+"/v1/traces", observe.Span{
		Parent: first[0], Name: "drain", Began: epoch.Add(2 * time.Second), Ended: epoch.Add(9 * time.Second),
		Err:    errors.New("not drained"),
		Events: []observe.SpanEvent{{Name: "pod evicted", At: epoch.Add(3 * time.Second), Attributes: []slog.Attr{slog.String("pod", "a")}}},
	})
	if len(r.spans) != 2 || r.service != "slipway-agent" {
		t.Fatalf("%d spans of %q", len(r.spans), r.service)
	}
	notice, drain := r.spans[0], r.spans[1]
	if string(notice.TraceId) != string(drain.TraceId) || string(drain.ParentSpanId) != string(notice.SpanId) || len(notice.ParentSpanId) != 0 {
		t.Errorf("the drain is of trace %x under %x, the notice of %x as %x under %x", drain.TraceId, drain.ParentSpanId,
			notice.TraceId, notice.SpanId, notice.ParentSpanId)
	}
	var attributes []string
	for _, a := range notice.Attributes {
		attributes = append(attributes, a.Key+"="+a.Value.String())
	}
	if got := strings.Join(attributes, " "); len(attributes) != 3 || !strings.Contains(got, `"1"`) || !strings.Contains(got, "int_value:3") ||
		!strings.Contains(got, "2026-09-01T12:00:00Z") {
		t.Errorf("attributes %s", got)
	}
	if notice.StartTimeUnixNano != uint64(epoch.UnixNano()) || notice.EndTimeUnixNano != uint64(epoch.Add(time.Second).UnixNano()) {
		t.Errorf("the notice lasts from %d to %d", notice.StartTimeUnixNano, notice.EndTimeUnixNano)
	}
	if drain.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR || drain.Status.Message != "not drained" {
		t.Errorf("status %v", drain.Status)
	}
	check.Equal(t, []string{"pod evicted", "exception"}, names(drain.Events))
}

func names(events []*tracev1.Span_Event) []string {
	all := make([]string, 0, len(events))
	for _, e := range events {
		all = append(all, e.Name)
	}
	return all
}

// What is on the node may be anybody's: a parent that cannot be read begins a trace.
func TestUnreadableParentStartsATrace(t *testing.T) {
	r := newReceiver(t)
	places := send(t, r.URL+"/v1/traces", observe.Span{Parent: "nonsense", Name: "drain", Began: epoch, Ended: epoch})
	if len(r.spans) != 1 || len(r.spans[0].ParentSpanId) != 0 || len(places[0]) != len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") {
		t.Errorf("spans %v, place %q", r.spans, places[0])
	}
}

// The drain must not wait for the collector.
func TestHangingCollectorDoesNotDelayRecording(t *testing.T) {
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	e, err := NewExporter(t.Context(), server.URL, "")
	must.NoError(t, err)
	began := time.Now()
	for range 30 * maxWaitingSpans { // a Record that blocks takes 2 min
		e.Record(observe.Span{Name: "drain", Began: epoch, Ended: epoch})
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); err == nil {
		t.Error("closing with spans left unsent is no error")
	}
}
