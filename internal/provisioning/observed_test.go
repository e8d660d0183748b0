package provisioning

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// hasObserved has this process have observed nodes for a day.
func (f *fixture) hasObserved(names ...string) {
	f.t.Helper()
	m := f.memory["web"]
	if m == nil {
		m = remember(&v1alpha1.NodeGroupStatus{}, f.o.Settle)
		f.memory["web"] = m
	}
	if m.observed == nil {
		m.observed = map[string]observation{}
	}
	for _, name := range names {
		m.observed[name] = observation{types.UID("uid-" + name), time.Now().Add(-24 * time.Hour)}
	}
}

func TestUnreachableNodesBrakeLaunchesWithAMetric(t *testing.T) {
	f := newFixture(t, nil)
	f.o.Unreadiness = plan.Unreadiness{Percent: 45, AtLeast: 1}
	f.wait("a")
	for _, name := range []string{"x", "y", "z"} {
		n := idle(name, "")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		f.setNode(n)
	}
	f.look()
	if got := f.pool.ordered(); len(got) != 0 {
		t.Fatalf("launches are %v while all nodes are unreachable", got)
	}
	if unready, braked := testutil.ToFloat64(f.o.Metrics.unready), testutil.ToFloat64(f.o.Metrics.braked); unready != 3 || braked != 1 {
		t.Errorf("unready is %v, braked %v; want 3 and 1", unready, braked)
	}
	for _, name := range []string{"x", "y", "z"} { // their removal is under way
		n := idle(name, "")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
		f.setNode(n)
	}
	f.until("the watch tells of the taints", func() bool {
		n, err := f.sources.nodes.Get("z")
		return err == nil && len(n.Spec.Taints) == 1
	})
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || testutil.ToFloat64(f.o.Metrics.braked) != 0 {
		t.Errorf("launches are %v once the nodes are being removed, want one", got)
	}
}
