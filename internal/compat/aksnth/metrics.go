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
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/observe"
)

// metricPrefix is the prefix of the tool's metric names.
const metricPrefix = "aks_node_termination_handler_"

// durationBuckets are the upper bounds of the buckets in seconds. They are the defaults of Prometheus' client library,
// which the tool used.
var durationBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Metrics holds the tool's metrics with their original names and labels. Its methods are safe for concurrent use.
type Metrics struct {
	node     string
	resource atomic.Pointer[string]

	errors, events    *observe.Vec[observe.Counter]
	apiTotal          *observe.Vec[observe.Counter]
	apiSeconds        *observe.Vec[observe.Histogram]
	metadata, webhook clientMetrics
}

// clientMetrics holds the tool's metrics for one HTTP client.
type clientMetrics struct {
	inFlight *observe.Gauge
	total    *observe.Vec[observe.Counter]
	seconds  *observe.Vec[observe.Histogram]
}

// NewMetrics registers the tool's metrics for a node. The label resource is empty until SetResource is called.
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

// SetResource sets the value of the label resource.
func (m *Metrics) SetResource(resource string) { m.resource.Store(&resource) }

func (m *Metrics) countError() { m.errors.With(m.node, *m.resource.Load()).Inc() }

// CountNoticesAndFailures increases the tool's counters for a notice or a failed drain.
func (m *Metrics) CountNoticesAndFailures(o agent.EventTrigger) {
	switch {
	case o.Reason == agent.NoticeReceived && o.Notice.Source == azure.SourceName:
		m.events.With(m.node, *m.resource.Load(), string(o.Notice.Type)).Inc()
	case o.Reason == agent.DrainFailed:
		m.countError()
	}
}

// CountFetchFailure increases the tool's error counter after a failed read of Scheduled Events.
func (m *Metrics) CountFetchFailure(error, poll.Class) { m.countError() }

// WrapAPIServerTransport returns a transport that measures the requests to the API server.
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

// WrapMetadata returns a transport that measures the requests to Scheduled Events.
func (m *Metrics) WrapMetadata(next http.RoundTripper) http.RoundTripper {
	return m.metadata.wrapTransport(next, func(r *http.Request) string { return r.URL.Path })
}

// WrapWebhookTransport returns a transport that measures the requests to the webhook. The tool used the path of the
// webhook's URL as the label endpoint, which is a secret for many receivers. Here the label is the receiver's name. As
// in the tool, requests to Telegram are not measured.
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
