package orphans

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// requester is who asks for the retirement of orphaned Nodes.
const requester = "slipway manager, strays"

// retireNodes asks for the retirement of the Nodes that are due, of groups that are this manager's. A Node of no group is
// reported only: nobody has said that Slipway may take it.
func (s *Controller) retireNodes(ctx context.Context, seen *snapshot, findings []Finding) error {
	var errs []error
	for _, f := range findings {
		n, g := seen.uid[f.Name], seen.byName[seen.owner[f.Name]]
		if f.Kind != OrphanedNode || !f.Due || n == nil || g == nil || seen.leaving[f.Name] || !s.mine(g) {
			continue
		}
		rt := request.New(request.Request{
			Name: request.Name(n.Name, "ghost", n.UID, f.Since.Unix()), Labels: g.Labels,
			Spec: v1alpha1.NodeRetirementSpec{
				NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.MachineGone, RequestedBy: requester, Group: g.Name,
			},
		})
		switch err := s.o.Client.Create(ctx, rt); {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err))
		default:
			s.o.Metrics.collected.WithLabelValues(s.name, string(OrphanedNode)).Inc()
		}
	}
	return errors.Join(errs...)
}
