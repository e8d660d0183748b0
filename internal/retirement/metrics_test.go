package retirement

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
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

// Another manager selects the first retirement, and does not run.
func TestRetirementWithoutStatusCountsAsPending(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, v1alpha1.AddToScheme(scheme))
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
		&v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "waiting"}, Status: v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Pending}},
		&v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "draining"}, Status: v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Draining}},
	).Build()
	want := `
# HELP slipway_retirements Unfinished retirements, by group and phase.
# TYPE slipway_retirements gauge
slipway_retirements{group="",phase="Draining"} 1
slipway_retirements{group="",phase="Pending"} 2
`
	must.NoError(t, testutil.CollectAndCompare(StateCollector{Reader: reader}, strings.NewReader(want), "slipway_retirements"))
}
