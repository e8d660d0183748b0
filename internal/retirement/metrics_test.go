package retirement

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestSurgeCountersExistFromTheStart(t *testing.T) {
	r := prometheus.NewRegistry()
	_, err := NewMetrics(r)
	must.NoError(t, err)
	for name, want := range map[string]int{
		"slipway_surges_total": 1 + len(surge.FailureReasons), "slipway_surge_refusals_total": len(surge.RefusalReasons), "slipway_surge_gained_seconds_total": 1,
		"slipway_surges_not_restored_total": 1, "slipway_surges_restored_total": 1,
	} {
		got, err := testutil.GatherAndCount(r, name)
		must.NoError(t, err)
		check.Is(t, want, got, name)
	}
}
