package manager

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

func TestNudgesAreCountedByOutcomeAndReason(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m, err := newCASSyncMetrics(r)
	if err != nil {
		t.Fatal(err)
	}
	told := m.newObserver("empty")
	told.MaximumChanged(true)
	refused := &cloud.RefusedError{Reason: cloud.NoRight, Err: errors.New("no")}
	for _, err := range []error{
		nil, nil, refused, fmt.Errorf("changing: %w", refused), &cloud.ThrottledError{}, &cloud.NotFoundError{}, errors.New("whatever"),
	} {
		told.RestartFinished(err)
	}
	want := `
# HELP slipway_cas_sync_max_size_changed 1 while the maximum of the pool is changed and waits to be put back, as far as is known; 0 when it is not.
# TYPE slipway_cas_sync_max_size_changed gauge
slipway_cas_sync_max_size_changed{pool="empty"} 1
# HELP slipway_cas_sync_nudges_total Changes of a pool's maximum by which AKS's cluster autoscaler looks again, put back when done; failed ones with a reason, and tried again.
# TYPE slipway_cas_sync_nudges_total counter
`
	counts := map[string]int{"NoRight": 2, "Throttled": 1, "NotFound": 1, "Unclear": 1}
	lines := []string{`slipway_cas_sync_nudges_total{outcome="done",pool="empty",reason=""} 2`}
	for _, reason := range []string{"AtLimit", "Invalid", "NoCapacity", "NoQuota", "NoRight", "NotFound", "Protected", "Throttled", "Unclear"} {
		lines = append(lines, fmt.Sprintf(`slipway_cas_sync_nudges_total{outcome="failed",pool="empty",reason=%q} %d`, reason, counts[reason]))
	}
	if err := testutil.GatherAndCompare(r, strings.NewReader(want+strings.Join(lines, "\n")+"\n")); err != nil {
		t.Error(err)
	}
	told.MaximumChanged(false)
	if got := testutil.ToFloat64(m.changed.WithLabelValues("empty")); got != 0 {
		t.Errorf("the maximum is put back, and the gauge is %v", got)
	}
}

func TestCASSyncIsFoundOnlyIfConfigured(t *testing.T) {
	config := AzureCloud{Config: azure.Config{Subscription: "00000000-0000-0000-0000-000000000001", ResourceGroup: "mc_demo"}}
	for _, sync := range []*azure.CASSyncConfig{nil, {ResourceGroup: "demo_rg", Cluster: "demo", AgentPool: "empty"}} {
		config.CASSync = sync
		p, err := config.newProvider(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		found := findCASSync(map[string]cloud.Provider{p.Name(): p})
		if (found != nil) != (sync != nil) || found != nil && found.Pool() != "empty" {
			t.Errorf("with %+v there is %+v", sync, found)
		}
	}
}

// TestEveryNudgeFailureReasonStartsAtZero: increase() does not count the first event of a new series.
func TestEveryNudgeFailureReasonStartsAtZero(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m, err := newCASSyncMetrics(r)
	if err != nil {
		t.Fatal(err)
	}
	told := m.newObserver("empty")
	before := testutil.CollectAndCount(m.nudges)
	for _, refusal := range []cloud.Refusal{
		cloud.NoRight, cloud.NoQuota, cloud.NoCapacity, cloud.AtLimit, cloud.Protected, cloud.Invalid,
	} {
		told.RestartFinished(&cloud.RefusedError{Reason: refusal, Err: errors.New("no")})
	}
	for _, err := range []error{nil, &cloud.ThrottledError{}, &cloud.NotFoundError{}, errors.New("whatever")} {
		told.RestartFinished(err)
	}
	if after := testutil.CollectAndCount(m.nudges); after != before {
		t.Errorf("%d series at the beginning, %d after one of each", before, after)
	}
}
