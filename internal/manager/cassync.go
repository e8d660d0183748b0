package manager

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

// synchronisation runs a CASSync while its manager leads.
type synchronisation struct {
	sync    *azure.CASSync
	records client.Reader
	log     *slog.Logger
}

// recently is how old a deletion may be that no nudge is known to have followed, when a manager begins to lead: the one
// before may have ended while it gathered deletions.
const recently = 10 * time.Minute

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s synchronisation) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (s synchronisation) Start(ctx context.Context) error {
	deleted, err := s.deletedRecently(ctx)
	if err != nil {
		s.log.Warn("whether machines were deleted of which the cluster autoscaler does not know is not known", "err", err)
	}
	if deleted || err != nil {
		s.sync.Deleted()
	}
	s.sync.Run(ctx)
	return nil
}

func (s synchronisation) deletedRecently(ctx context.Context) (bool, error) {
	var all v1alpha1.NodeRetirementList
	if err := s.records.List(ctx, &all); err != nil {
		return false, fmt.Errorf("NodeRetirements: %w", err)
	}
	for i := range all.Items {
		rt := &all.Items[i]
		at := rt.Status.Times.InstanceDeleted
		if at != nil && rt.Status.Captured != nil && rt.Status.Captured.Provider == azure.Name && time.Since(at.Time) < recently {
			return true, nil
		}
	}
	return false, nil
}
