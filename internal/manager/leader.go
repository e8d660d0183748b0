package manager

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// leaderLock is the Lease of the leader election. It accepts no duration in the Lease that is longer than
// maxLeaseDuration. Otherwise one Lease could block every manager for up to 68 years.
type leaderLock struct {
	*resourcelock.LeaseLock
	// duration is this manager's own, in seconds.
	duration int
	log      *slog.Logger

	mu         sync.Mutex
	lastLogged string // the Lease that was last logged
}

// newLeaderLock returns the lock, or nil if leader election is disabled. It records no Events until
// LockConfig.EventRecorder is set.
func newLeaderLock(c Config, kube *rest.Config, renew time.Duration, log *slog.Logger) (*leaderLock, error) {
	lock, err := leaderelection.NewResourceLock(kube, noEvents{}, leaderelection.Options{
		LeaderElection: c.LeaderElect, LeaderElectionID: cmp.Or(c.LeaseName, leaseName),
		LeaderElectionNamespace: c.LeaderElectionNamespace, RenewDeadline: renew,
	})
	if err != nil || lock == nil {
		return nil, err
	}
	lease, ok := lock.(*resourcelock.LeaseLock)
	if !ok {
		return nil, fmt.Errorf("leader election: lock %s: it is a %T: want a Lease", lock.Describe(), lock)
	}
	return &leaderLock{LeaseLock: lease, duration: int(c.LeaseDuration / time.Second), log: log}, nil
}

// Get implements resourcelock.Interface. If the Lease has a duration that is too long, Get returns this manager's own
// duration instead. A working leader renews its Lease within that time.
func (l *leaderLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil || record.LeaseDurationSeconds <= int(maxLeaseDuration/time.Second) {
		return record, raw, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastLogged != string(raw) {
		l.lastLogged = string(raw)
		l.log.Warn("the leader's Lease claims a longer duration than allowed; it expires after this manager's duration",
			"lease", l.Describe(), "holder", record.HolderIdentity, "leaseDurationSeconds", record.LeaseDurationSeconds,
			"maxSeconds", int(maxLeaseDuration/time.Second), "expiresAfterSeconds", l.duration)
	}
	record.LeaseDurationSeconds = l.duration
	return record, raw, nil
}

// noEvents is a recorder provider that provides no recorder. The lock is created before the manager, and the manager
// provides the recorder later.
type noEvents struct{ recorder.Provider }

func (noEvents) GetEventRecorderFor(string) record.EventRecorder { return nil }
