package compat

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
)

// NewMetricsPage returns the handler for the path /metrics of a replaced tool. It serves the given metrics. It also serves the
// metrics of Go, the process and the handler, which the tool got from Prometheus' client library. As in the tool, any
// HTTP method is accepted.
func NewMetricsPage(metrics http.Handler) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.InstrumentMetricHandler(registry, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := &bufferedResponse{header: http.Header{}}
		metrics.ServeHTTP(own, r)
		for name, values := range own.header {
			w.Header()[name] = values
		}
		names := parseFamilyNames(own.String())
		families, err := registry.Gather()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		for _, f := range families {
			if names[f.GetName()] {
				continue
			}
			if _, err := expfmt.MetricFamilyToText(own, f); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		_, _ = own.WriteTo(w)
	}))
}

// bufferedResponse is an http.ResponseWriter that stores the response in memory.
type bufferedResponse struct {
	bytes.Buffer

	header http.Header
}

// Header implements http.ResponseWriter.
func (c *bufferedResponse) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter.
func (*bufferedResponse) WriteHeader(int) {}

// parseFamilyNames returns the names of the metrics in a text of Prometheus' format.
func parseFamilyNames(text string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(text) {
		if about, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(about, " ")
			names[name] = true
		}
	}
	return names
}
