package orphans

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// retireDueNodes creates a NodeRetirement for each orphaned Node of this manager's groups that was found for the whole
// grace period. A Node without a group is only reported, because Slipway does not manage it.
func (s *Controller) retireDueNodes(ctx context.Context, seen *snapshot, findings []Finding) error {
	var errs []error
	for _, f := range findings {
		n, g := seen.nodeByName[f.Name], s.findOwnGroup(seen, f.Name)
		if f.Kind != OrphanedNode || !f.IsDue || n == nil || g == nil || seen.retiringNodes[f.Name] {
			continue
		}
		rt := request.New(request.Request{
			Name: request.NewName(n.Name, "ghost", n.UID, f.FirstFoundAt.Unix()), Labels: g.Labels,
			Spec: v1alpha1.NodeRetirementSpec{
				NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.InstanceGone, RequestedBy: requestedBy, Group: g.Name,
			},
		})
		switch err := s.options.Client.Create(ctx, rt); {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err))
		default:
			s.options.Metrics.removed.WithLabelValues(s.cloudName, string(OrphanedNode)).Inc()
		}
	}
	return errors.Join(errs...)
}
