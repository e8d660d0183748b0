package manager_test

import (
	"math"
	"net/http"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestManagerTakesOverALeaseOf68Years covers Leases from before the admission policy. At that time, a stolen token
// of an agent could create such a Lease.
func TestManagerTakesOverALeaseOf68Years(t *testing.T) {
	t.Parallel()
	b := ready(t)
	now := metav1.NowMicro()
	_, err := b.Client().CoordinationV1().Leases(namespace).Create(b.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "slipway-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("stolen-token"), LeaseDurationSeconds: new(int32(math.MaxInt32)), AcquireTime: &now, RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	b.check(err)
	// A manager exits if it does not renew its Lease within two thirds of this time, and a busy host may be slow.
	p := b.start("leads", "--kubeconfig", b.credentials(), "--selector", shard+"=leads", "--leader-election-lease-duration=15s")
	p.await("/metrics", "shows the leader", func(status int, body string) bool {
		return status == http.StatusOK && strings.Contains(body, `leader_election_master_status{name="slipway-manager"} 1`)
	})
	if log := p.log(); !strings.Contains(log, "claims a longer duration than allowed") {
		t.Errorf("the log does not report the Lease:\n%s", log)
	}
}
