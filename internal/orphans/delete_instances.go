package orphans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
)

// DeleteDueOrphanedInstances deletes the orphaned instances with IsDue true and no KeptReason. Before each deletion it
// reads the instance and the Nodes again. It does not handle orphaned Nodes: a NodeRetirement deletes them. It returns
// the findings with a started deletion.
func DeleteDueOrphanedInstances(ctx context.Context, c instances.Deleter, nodes func(context.Context) ([]cloud.NodeIdentity, error), findings []Finding,
	log *slog.Logger,
) (started []Finding, err error) {
	var begun []Finding
	var errs []error
	for _, f := range findings {
		if f.Kind != OrphanedInstance || !f.IsDue || f.KeptReason != "" {
			continue
		}
		asked, err := instances.DeleteIfStillWithoutNode(ctx, c, nodes, f.ProviderID, func(i cloud.Instance) bool {
			return i.Name == f.Name && i.Group == f.Group && i.State != cloud.Deleting
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("orphan %s: %w", f.Name, err))
		}
		if asked {
			log.Warn("deleting an orphaned instance", "instance", f.ProviderID, "name", f.Name, "proofs", f.Proofs)
			begun = append(begun, f)
		}
	}
	return begun, errors.Join(errs...)
}

// deleteDueInstances deletes the orphaned instances that were found for the whole grace period. Each is checked again
// before its deletion (invariants I4 and I7). In a cloud that does not mark instances, it does nothing.
func (s *Controller) deleteDueInstances(ctx context.Context, seen *snapshot, findings []Finding) error {
	if s.marking == nil {
		return nil
	}
	begun, err := DeleteDueOrphanedInstances(ctx, s.marking, s.nodes.Read, findings, s.options.Log)
	for _, f := range begun {
		s.options.Metrics.removed.WithLabelValues(s.cloudName, string(OrphanedInstance)).Inc()
		s.recordGroupEvent(seen, f.Group, eventOrphanDeleted, f.Name, f.String())
	}
	return err
}
