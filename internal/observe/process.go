package observe

import (
	"runtime"
	"runtime/metrics"
)

// Build holds the version and revision of the Slipway build that a process runs.
type Build struct {
	Version  string // such as "v1.2.3"
	Revision string // of the source
}

// AddStandardMetrics defines slipway_build_info and the metrics that every process has. They have the names of the
// Prometheus client libraries. Metrics that the operating system does not provide are omitted. Outside of Linux these
// are all process_* metrics.
func (r *Registry) AddStandardMetrics(b Build) {
	r.Gauge("slipway_build_info", "Which build of Slipway this is. The value is always 1.",
		"version", "revision", "goversion").With(b.Version, b.Revision, runtime.Version()).Set(1)
	r.Gauge("go_info", "Which Go this was built with. The value is always 1.", "version").With(runtime.Version()).Set(1)
	r.addRuntimeGauge("go_goroutines", "Number of goroutines that exist.", "/sched/goroutines:goroutines")
	r.addRuntimeGauge("go_memstats_heap_alloc_bytes", "Bytes of heap that live and not yet swept objects take.",
		"/memory/classes/heap/objects:bytes")
	r.addProcessMetrics()
}

// addRuntimeGauge defines a gauge that reads package runtime/metrics. Unlike runtime.ReadMemStats, that package stops
// no goroutine.
func (r *Registry) addRuntimeGauge(name, help, source string) {
	r.addFuncMetric("gauge", name, help, func() (float64, bool) {
		s := []metrics.Sample{{Name: source}}
		metrics.Read(s)
		if s[0].Value.Kind() != metrics.KindUint64 {
			return 0, false
		}
		return float64(s[0].Value.Uint64()), true
	})
}
