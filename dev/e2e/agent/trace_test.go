package agent_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// collected stores the spans that a collector received, by trace and name.
type collected struct {
	mu     sync.Mutex
	traces map[string]map[string]*tracev1.Span
}

func (c *collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request collector.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				id := string(s.TraceId)
				if c.traces[id] == nil {
					c.traces[id] = map[string]*tracev1.Span{}
				}
				c.traces[id][s.Name] = s
			}
		}
	}
}

// only returns the single trace. If there is not exactly one, it returns nil.
func (c *collected) only() map[string]*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.traces) != 1 {
		return nil
	}
	for _, spans := range c.traces {
		return maps.Clone(spans)
	}
	return nil
}

func TestNoticeIsOneTraceAcrossARestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "traced", 1)
	web := f.app("web", 3)
	web.StopSeconds = "10" // the test kills the agent before the pods have stopped
	f.run(web.Deployment())
	spans := &collected{traces: map[string]map[string]*tracev1.Span{}}
	server := httptest.NewServer(spans)
	t.Cleanup(server.Close)
	a, err := f.StartSlipwayAgent(f.ctx, f.pool, 0, shortPolls, "--trace-endpoint", server.URL+"/v1/traces")
	f.check(err)
	testbed.KillAgentAfterTest(t, a)

	f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Outage: time.Second})
	f.awaitEvent(0, "Draining")
	f.check(testbed.PollUntil(f.ctx, "the first spans are sent", func() bool { return spans.only()["cordon"] != nil }))
	f.check(a.KillIfAlive())
	f.check(a.RestartIfDead(f.ctx))
	f.awaitEvent(0, "Uncordoned")
	f.check(testbed.PollUntil(f.ctx, "the last span is sent", func() bool { return spans.only()["uncordon"] != nil }))

	trace := spans.only()
	want := []string{"acknowledge", "cordon", "drain", "notice", "uncordon"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(trace))); diff != "" {
		t.Fatalf("spans (-want +got):\n%s", diff)
	}
	first := trace["notice"]
	for name, s := range trace {
		if name != "notice" && string(s.ParentSpanId) != string(first.SpanId) {
			t.Errorf("the parent of %s is %x, want the notice, %x", name, s.ParentSpanId, first.SpanId)
		}
		if s.StartTimeUnixNano < first.StartTimeUnixNano || s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%s lasts from %d to %d, and the notice was seen at %d", name, s.StartTimeUnixNano, s.EndTimeUnixNano,
				first.StartTimeUnixNano)
		}
	}
	if stopped := slices.ContainsFunc(trace["drain"].Events, func(e *tracev1.Span_Event) bool { return e.Name == "pod stopped" }); !stopped {
		t.Errorf("the drain has no event of a stopped pod: %v", trace["drain"].Events)
	}
}
