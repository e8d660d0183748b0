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

// metricPrefix is the prefix of the tool's metrics.
const metricPrefix = "aks_node_termination_handler_"

// durationBuckets are the default buckets of Prometheus' client library, as in the tool.
var durationBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Metrics are the tool's metrics with their original names and labels. All methods are safe for concurrent use.
type Metrics struct {
	node     string
	resource atomic.Pointer[string]

	errors, events    *observe.Vec[observe.Counter]
	apiTotal          *observe.Vec[observe.Counter]
	apiSeconds        *observe.Vec[observe.Histogram]
	metadata, webhook clientMetrics
}

// clientMetrics are the tool's metrics of one HTTP client.
type clientMetrics struct {
	inFlight *observe.Gauge
	total    *observe.Vec[observe.Counter]
	seconds  *observe.Vec[observe.Histogram]
}

// NewMetrics registers the metrics for a node. The label resource is empty until Known is called.
func NewMetrics(r *observe.Registry, node string) *Metrics {
	m := &Metrics{
		node:       node,
		errors:     r.Counter(metricPrefix+"error_reading_endpoint_total", "Failed reads of Scheduled Events, failed writes of Kubernetes Events, and failed drains.", "node", "resource"),
		events:     r.Counter(metricPrefix+"scheduled_events_total", "Scheduled events that named this machine.", "node", "resource", "type"),
		apiTotal:   r.Counter(metricPrefix+"apiserver_request_total", "Requests to the API server.", "cluster", "code"),
		apiSeconds: r.Histogram(metricPrefix+"apiserver_request_duration", "Time until the API server started its answer, in seconds.", durationBuckets, "cluster"),
		metadata:   newClientMetrics(r, "http_events", "Scheduled Events"),
		webhook:    newClientMetrics(r, "http_webhook", "the webhook"),
	}
	m.SetResource("")
	return m
}

func newClientMetrics(r *observe.Registry, name, to string) clientMetrics {
	name = metricPrefix + name
	return clientMetrics{
		inFlight: r.Gauge(name+"_in_flight_requests", "Running requests to "+to+".").With(),
		total:    r.Counter(name+"_requests_total", "Answered requests to "+to+".", "code", "method", "endpoint"),
		seconds:  r.Histogram(name+"_request_duration_seconds", "Duration of requests to "+to+" in seconds.", durationBuckets, "method"),
	}
}

// SetResource sets the label resource.
func (m *Metrics) SetResource(resource string) { m.resource.Store(&resource) }

func (m *Metrics) countError() { m.errors.With(m.node, *m.resource.Load()).Inc() }

// CountNoticesAndFailures counts notices and failed drains.
func (m *Metrics) CountNoticesAndFailures(o agent.EventTrigger) {
	switch {
	case o.Reason == agent.NoticeReceived && o.Notice.Source == azure.SourceName:
		m.events.With(m.node, *m.resource.Load(), string(o.Notice.Type)).Inc()
	case o.Reason == agent.DrainFailed:
		m.countError()
	}
}

// CountFetchFailure counts a failed read of Scheduled Events.
func (m *Metrics) CountFetchFailure(error, azure.Class) { m.countError() }

// WrapAPIServerTransport wraps a transport to measure the requests to the API server.
func (m *Metrics) WrapAPIServerTransport(next http.RoundTripper) http.RoundTripper {
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
			m.countError()
		}
		return resp, err
	})
}

// WrapMetadata wraps a transport to measure the requests to Scheduled Events.
func (m *Metrics) WrapMetadata(next http.RoundTripper) http.RoundTripper {
	return m.metadata.wrapTransport(next, func(r *http.Request) string { return r.URL.Path })
}

// WrapWebhookTransport wraps a transport to measure the requests to the webhook. The tool used the path of the webhook's URL as the label
// endpoint, which is a secret for many receivers. Here the label is the receiver's name. Like the tool, it does not measure
// requests to Telegram.
func (m *Metrics) WrapWebhookTransport(next http.RoundTripper, telegramHost string) http.RoundTripper {
	measured := m.webhook.wrapTransport(next, func(*http.Request) string { return webhookReceiver })
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Host == telegramHost {
			return next.RoundTrip(r)
		}
		return measured.RoundTrip(r)
	})
}

func (t clientMetrics) wrapTransport(next http.RoundTripper, endpoint func(*http.Request) string) http.RoundTripper {
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
