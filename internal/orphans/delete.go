package orphans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
)

// DeleteInstances deletes the orphaned instances that are due and not kept, each after another read of the instance and of the
// Nodes. OrphanedNodes are left to a NodeRetirement. It returns the findings whose deletion has begun.
func DeleteInstances(ctx context.Context, c instances.Deleter, nodes func(context.Context) ([]cloud.Host, error), findings []Finding,
	log *slog.Logger,
) ([]Finding, error) {
	var begun []Finding
	var errs []error
	for _, f := range findings {
		if f.Kind != OrphanedInstance || !f.Due || f.Kept != "" {
			continue
		}
		asked, err := instances.DeleteWithoutNode(ctx, c, nodes, f.ProviderID, func(i cloud.Instance) bool {
			return i.Name == f.Name && i.Group == f.Group && i.State != cloud.Deleting
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("orphan %s: %w", f.Name, err))
		}
		if asked {
			log.Warn("an orphaned instance is deleted", "machine", f.ProviderID, "name", f.Name, "proofs", f.Proofs)
			begun = append(begun, f)
		}
	}
	return begun, errors.Join(errs...)
}

// deleteInstances deletes the orphaned instances that are due (I4, I7). A cloud without marks has none.
func (s *Controller) deleteInstances(ctx context.Context, seen *snapshot, findings []Finding) error {
	if s.marking == nil {
		return nil
	}
	begun, err := DeleteInstances(ctx, s.marking, s.nodes.Read, findings, s.o.Log)
	for _, f := range begun {
		s.o.Metrics.collected.WithLabelValues(s.name, string(OrphanedInstance)).Inc()
		s.onGroup(seen, f.Group, eventOrphanDeleted, f.Name, f.String())
	}
	return err
}
