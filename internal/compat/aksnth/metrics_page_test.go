package aksnth

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/slipway-dev/slipway/internal/observe"
)

// libraryMetrics are the metrics that the tool got from its libraries.
const libraryMetrics = `go_gc_duration_seconds go_gc_gogc_percent go_gc_gomemlimit_bytes go_goroutines go_info go_memstats_alloc_bytes
go_memstats_alloc_bytes_total go_memstats_buck_hash_sys_bytes go_memstats_frees_total go_memstats_gc_sys_bytes
go_memstats_heap_alloc_bytes go_memstats_heap_idle_bytes go_memstats_heap_inuse_bytes go_memstats_heap_objects
go_memstats_heap_released_bytes go_memstats_heap_sys_bytes go_memstats_last_gc_time_seconds go_memstats_mallocs_total
go_memstats_mcache_inuse_bytes go_memstats_mcache_sys_bytes go_memstats_mspan_inuse_bytes go_memstats_mspan_sys_bytes
go_memstats_next_gc_bytes go_memstats_other_sys_bytes go_memstats_stack_inuse_bytes go_memstats_stack_sys_bytes
go_memstats_sys_bytes go_sched_gomaxprocs_threads go_threads promhttp_metric_handler_requests_in_flight
promhttp_metric_handler_requests_total`

const linuxLibraryMetrics = `process_cpu_seconds_total process_max_fds process_network_receive_bytes_total
process_network_transmit_bytes_total process_open_fds process_resident_memory_bytes process_start_time_seconds
process_virtual_memory_bytes process_virtual_memory_max_bytes`

func TestMetricsPageHasLibraryMetrics(t *testing.T) {
	r := observe.NewRegistry()
	r.AddStandardMetrics(observe.Build{Version: "v1"})
	NewMetrics(r, "n")
	page := NewMetricsPage(r)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		answer := httptest.NewRecorder()
		page.ServeHTTP(answer, httptest.NewRequest(method, "/metrics", strings.NewReader("anything")))
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(answer.Body) // it refuses duplicate metrics
		if err != nil || answer.Code != http.StatusOK || !strings.HasPrefix(answer.Header().Get("Content-Type"), "text/plain") {
			t.Fatalf("%s: %d %v %v", method, answer.Code, answer.Header(), err)
		}
		want := strings.Fields(libraryMetrics + " slipway_build_info")
		if runtime.GOOS == "linux" {
			want = append(want, strings.Fields(linuxLibraryMetrics)...)
		}
		for _, name := range want {
			if f := families[name]; f == nil || len(f.Metric) == 0 {
				t.Errorf("%s: no %s", method, name)
			}
		}
		codes := families["promhttp_metric_handler_requests_total"].GetMetric()
		if len(codes) != 3 {
			t.Errorf("requests by code: %v", codes)
		}
	}
}
