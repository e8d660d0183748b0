package observe

import (
	"runtime"
	"runtime/metrics"
)

// Build is which build of Slipway a process runs.
type Build struct {
	Version  string // such as "v1.2.3"
	Revision string // of the source
}

// Standard defines the metrics that every process has, under the names that the Prometheus client libraries gave
// them, and slipway_build_info. What the operating system does not tell is left out; outside of Linux that is all of
// process_*.
func (r *Registry) Standard(b Build) {
	r.Gauge("slipway_build_info", "Which build of Slipway this is. The value is always 1.",
		"version", "revision", "goversion").With(b.Version, b.Revision, runtime.Version()).Set(1)
	r.Gauge("go_info", "Which Go this was built with. The value is always 1.", "version").With(runtime.Version()).Set(1)
	r.fromRuntime("go_goroutines", "Number of goroutines that exist.", "/sched/goroutines:goroutines")
	r.fromRuntime("go_memstats_heap_alloc_bytes", "Bytes of heap that live and not yet swept objects take.",
		"/memory/classes/heap/objects:bytes")
	r.ofProcess()
}

// fromRuntime defines a gauge that package runtime/metrics has, which unlike runtime.ReadMemStats stops no goroutine.
func (r *Registry) fromRuntime(name, help, source string) {
	r.readFrom("gauge", name, help, func() (float64, bool) {
		s := []metrics.Sample{{Name: source}}
		metrics.Read(s)
		if s[0].Value.Kind() != metrics.KindUint64 {
			return 0, false
		}
		return float64(s[0].Value.Uint64()), true
	})
}
