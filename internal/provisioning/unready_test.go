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

// observeSince makes the process have observed the nodes for a day.
func (f *fixture) observeSince(names ...string) {
	f.t.Helper()
	m := f.states["web"]
	if m == nil {
		m = newGroupState(&v1alpha1.NodeGroupStatus{}, f.options.SettleTime)
		f.states["web"] = m
	}
	if m.observedNodes == nil {
		m.observedNodes = map[string]nodeObservation{}
	}
	for _, name := range names {
		m.observedNodes[name] = nodeObservation{types.UID("uid-" + name), time.Now().Add(-24 * time.Hour)}
	}
}

func TestManyUnreadyNodesPauseLaunchesAndSetTheMetric(t *testing.T) {
	f := newFixture(t, nil)
	f.options.UnreadyLimit = plan.UnreadyLimit{Percent: 45, AtLeast: 1}
	f.addUnschedulable("a")
	for _, name := range []string{"x", "y", "z"} {
		n := newIdleNode(name, "")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		f.setNode(n)
	}
	f.reconcile()
	if got := f.pool.launches(); len(got) != 0 {
		t.Fatalf("launches are %v while all nodes are unreachable", got)
	}
	if unready, braked := testutil.ToFloat64(f.options.Metrics.unready), testutil.ToFloat64(f.options.Metrics.paused); unready != 3 || braked != 1 {
		t.Errorf("unready is %v, paused %v; want 3 and 1", unready, braked)
	}
	for _, name := range []string{"x", "y", "z"} { // their removal is in progress
		n := newIdleNode(name, "")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
		f.setNode(n)
	}
	f.waitUntil("the watch tells of the taints", func() bool {
		n, err := f.sources.nodes.Get("z")
		return err == nil && len(n.Spec.Taints) == 1
	})
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || testutil.ToFloat64(f.options.Metrics.paused) != 0 {
		t.Errorf("launches are %v once the nodes are being removed, want one", got)
	}
}
