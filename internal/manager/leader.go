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

// leaderLock is the Lease that managers compete for. It does not believe a Lease that claims to last longer than
// maxLeaseDuration. Such a Lease would keep every manager from leading for as long as it claims, up to 68 years.
type leaderLock struct {
	*resourcelock.LeaseLock
	// duration is this manager's own, in seconds.
	duration int
	log      *slog.Logger

	mu   sync.Mutex
	said string // the Lease that was last logged
}

// newLeaderLock returns the lock; nil without leader election. Events are not recorded until LockConfig.EventRecorder is set.
func newLeaderLock(c Config, kube *rest.Config, renew time.Duration, log *slog.Logger) (*leaderLock, error) {
	lock, err := leaderelection.NewResourceLock(kube, withoutEvents{}, leaderelection.Options{
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

// Get implements resourcelock.Interface. A Lease that claims too much counts as held for this manager's own duration since
// this manager saw it change last: a leader that works renews it within that time.
func (l *leaderLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil || record.LeaseDurationSeconds <= int(maxLeaseDuration/time.Second) {
		return record, raw, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said != string(raw) {
		l.said = string(raw)
		l.log.Warn("the Lease of the leader claims to last longer than any manager's does; it expires as if it were this manager's",
			"lease", l.Describe(), "holder", record.HolderIdentity, "leaseDurationSeconds", record.LeaseDurationSeconds,
			"most", int(maxLeaseDuration/time.Second), "expiresAfterSeconds", l.duration)
	}
	record.LeaseDurationSeconds = l.duration
	return record, raw, nil
}

// withoutEvents provides no recorder: the lock exists before the manager, which provides it later.
type withoutEvents struct{ recorder.Provider }

// GetEventRecorderFor implements recorder.Provider.
func (withoutEvents) GetEventRecorderFor(string) record.EventRecorder { return nil }
