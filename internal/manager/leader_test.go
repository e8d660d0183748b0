package manager

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// timeUntilLeading returns how long a manager with a lease duration of 15 s waits until it leads, at most the given
// time, and its log.
func timeUntilLeading(t *testing.T, held coordinationv1.LeaseSpec, most time.Duration) (after time.Duration, logged string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const duration = 15 * time.Second
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName, Namespace: "slipway"}, Spec: held}
		var log bytes.Buffer
		lock := &leaderLock{
			LeaseLock: &resourcelock.LeaseLock{
				LeaseMeta: lease.ObjectMeta, Client: fake.NewClientset(lease).CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: "manager"},
			},
			duration: int(duration / time.Second), log: slog.New(slog.NewTextHandler(&log, nil)),
		}
		ctx, cancel := context.WithTimeout(t.Context(), most)
		defer cancel()
		began := time.Now()
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: duration, RenewDeadline: duration * 2 / 3, RetryPeriod: duration / 6,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { after = time.Since(began); cancel() },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		elector.Run(ctx)
		logged = log.String()
	})
	return after, logged
}

func newLease(holder string, seconds int32) coordinationv1.LeaseSpec {
	now := metav1.NowMicro()
	return coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now}
}

func TestLeaseOf68YearsDoesNotBlockManagers(t *testing.T) {
	after, logged := timeUntilLeading(t, newLease("thief", math.MaxInt32), time.Hour)
	if after == 0 || after > time.Minute {
		t.Errorf("it leads after %s, want 15 s to 1 min", after)
	}
	if strings.Count(logged, "claims a longer duration than allowed") != 1 || !strings.Contains(logged, "slipway/slipway-manager") || !strings.Contains(logged, "thief") {
		t.Errorf("it says:\n%s", logged)
	}
}

// A leader that did not renew for less than its claimed duration may still run.
func TestValidLeaseIsRespected(t *testing.T) {
	after, logged := timeUntilLeading(t, newLease("another", int32(maxLeaseDuration/time.Second)), time.Hour)
	if after < maxLeaseDuration {
		t.Errorf("it leads after %s, want %s at least", after, maxLeaseDuration)
	}
	if strings.Contains(logged, "claims") {
		t.Errorf("it says:\n%s", logged)
	}
}

func TestReleasedLeaseOf68YearsIsFree(t *testing.T) {
	if after, _ := timeUntilLeading(t, newLease("", math.MaxInt32), time.Hour); after > time.Second {
		t.Errorf("it leads after %s, want at once", after)
	}
}
