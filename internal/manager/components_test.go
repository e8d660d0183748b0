package manager

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestOnlyTheLeaderExportsStateMetrics(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, v1alpha1.AddToScheme(scheme))
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.NodeRetirementStatus{
		Phase: v1alpha1.Draining, Replacement: &v1alpha1.Replacement{State: v1alpha1.ReplacementWaiting},
	}}
	r, elected := prometheus.NewRegistry(), make(chan struct{})
	must.NoError(t, registerStateMetrics(r, fake.NewClientBuilder().WithScheme(scheme).WithObjects(rt).Build(), elected))
	count := func() int {
		n, err := testutil.GatherAndCount(r)
		must.NoError(t, err)
		return n
	}
	check.Is(t, 0, count())
	close(elected)
	check.Is(t, 4, count()) // number and age, of retirements and replacements
}
