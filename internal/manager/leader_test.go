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

// leadsAfter is how long a manager with a lease duration of 15 s waits until it leads, at most a time, and what it logs.
func leadsAfter(t *testing.T, held coordinationv1.LeaseSpec, most time.Duration) (after time.Duration, logged string) {
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

func lasting(holder string, seconds int32) coordinationv1.LeaseSpec {
	now := metav1.NowMicro()
	return coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now}
}

func TestALeaseOf68YearsDoesNotKeepManagersFromLeading(t *testing.T) {
	after, logged := leadsAfter(t, lasting("thief", math.MaxInt32), time.Hour)
	if after == 0 || after > time.Minute {
		t.Errorf("it leads after %s, want 15 s to 1 min", after)
	}
	if strings.Count(logged, "claims to last longer") != 1 || !strings.Contains(logged, "slipway/slipway-manager") || !strings.Contains(logged, "thief") {
		t.Errorf("it says:\n%s", logged)
	}
}

// A leader that did not renew for less than the duration it claims may still work.
func TestALeaseWithinBoundsIsBelieved(t *testing.T) {
	after, logged := leadsAfter(t, lasting("another", int32(maxLeaseDuration/time.Second)), time.Hour)
	if after < maxLeaseDuration {
		t.Errorf("it leads after %s, want %s at least", after, maxLeaseDuration)
	}
	if strings.Contains(logged, "claims") {
		t.Errorf("it says:\n%s", logged)
	}
}

func TestALeaseOf68YearsThatIsReleasedIsFree(t *testing.T) {
	if after, _ := leadsAfter(t, lasting("", math.MaxInt32), time.Hour); after > time.Second {
		t.Errorf("it leads after %s, want at once", after)
	}
}
