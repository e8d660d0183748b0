package aksnth

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
)

// prefix is of all the tool's metrics.
const prefix = "aks_node_termination_handler_"

// buckets are those of Prometheus' client library, which the tool left as they are.
var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Metrics are the tool's, under its names and labels. All methods are safe for concurrent use.
type Metrics struct {
	node     string
	resource atomic.Pointer[string]

	errors, events *observe.Vec[observe.Counter]
	apiTotal       *observe.Vec[observe.Counter]
	apiSeconds     *observe.Vec[observe.Histogram]
	metadata, hook traffic
}

// traffic is what the tool measured of one HTTP client.
type traffic struct {
	inFlight *observe.Gauge
	total    *observe.Vec[observe.Counter]
	seconds  *observe.Vec[observe.Histogram]
}

// NewMetrics defines the metrics for a node. Where resource is a label, it is empty until Known.
func NewMetrics(r *observe.Registry, node string) *Metrics {
	m := &Metrics{
		node:       node,
		errors:     r.Counter(prefix+"error_reading_endpoint_total", "Looks at Scheduled Events that failed, Kubernetes Events that could not be written, and drains that failed.", "node", "resource"),
		events:     r.Counter(prefix+"scheduled_events_total", "Scheduled events that named this machine.", "node", "resource", "type"),
		apiTotal:   r.Counter(prefix+"apiserver_request_total", "Requests to the API server.", "cluster", "code"),
		apiSeconds: r.Histogram(prefix+"apiserver_request_duration", "How long the API server took to begin its answer, in seconds.", buckets, "cluster"),
		metadata:   newTraffic(r, "http_events", "Scheduled Events"),
		hook:       newTraffic(r, "http_webhook", "the webhook"),
	}
	m.Known("")
	return m
}

func newTraffic(r *observe.Registry, name, to string) traffic {
	name = prefix + name
	return traffic{
		inFlight: r.Gauge(name+"_in_flight_requests", "Requests to "+to+" that are under way.").With(),
		total:    r.Counter(name+"_requests_total", "Requests to "+to+" that were answered.", "code", "method", "endpoint"),
		seconds:  r.Histogram(name+"_request_duration_seconds", "How long requests to "+to+" took.", buckets, "method"),
	}
}

// Known sets the label resource.
func (m *Metrics) Known(resource string) { m.resource.Store(&resource) }

func (m *Metrics) failed() { m.errors.With(m.node, *m.resource.Load()).Inc() }

// Hear counts what is said.
func (m *Metrics) Hear(o agent.Occasion) {
	switch {
	case o.Reason == agent.NoticeReceived && o.Notice.Source == azure.Name:
		m.events.With(m.node, *m.resource.Load(), string(o.Notice.Type)).Inc()
	case o.Reason == agent.DrainFailed:
		m.failed()
	}
}

// FetchFailed counts a look at Scheduled Events that told nothing.
func (m *Metrics) FetchFailed(error, azure.Class) { m.failed() }

// APIServer measures the requests to the API server.
func (m *Metrics) APIServer(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		began := time.Now()
		resp, err := next.RoundTrip(r)
		m.apiSeconds.With(r.URL.Host).Observe(time.Since(began).Seconds())
		code := "<error>"
		if err == nil {
			code = strconv.Itoa(resp.StatusCode)
		}
		m.apiTotal.With(r.URL.Host, code).Inc()
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events") && (err != nil || resp.StatusCode/100 != 2) {
			m.failed()
		}
		return resp, err
	})
}

// Metadata measures the requests to Scheduled Events.
func (m *Metrics) Metadata(next http.RoundTripper) http.RoundTripper {
	return m.metadata.measure(next, func(r *http.Request) string { return r.URL.Path })
}

// Webhook measures the requests to the webhook. The tool's label endpoint was the path of its URL, which is a secret
// with many receivers: here it names the receiver. Requests to Telegram were not measured, and are not.
func (m *Metrics) Webhook(next http.RoundTripper, telegram string) http.RoundTripper {
	measured := m.hook.measure(next, func(*http.Request) string { return webhookReceiver })
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Host == telegram {
			return next.RoundTrip(r)
		}
		return measured.RoundTrip(r)
	})
}

func (t traffic) measure(next http.RoundTripper, endpoint func(*http.Request) string) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		t.inFlight.Add(1)
		defer t.inFlight.Add(-1)
		began := time.Now()
		resp, err := next.RoundTrip(r)
		if err != nil {
			return resp, err
		}
		method := strings.ToLower(r.Method)
		t.total.With(strconv.Itoa(resp.StatusCode), method, endpoint(r)).Inc()
		t.seconds.With(method).Observe(time.Since(began).Seconds())
		return resp, nil
	})
}
