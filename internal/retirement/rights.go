package retirement

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// permitted waits until the credential may delete the machine, as far as its cloud can tell: a node that was drained, and
// whose machine then stays, would have been given up for nothing. What cannot be told holds nothing up (I7); the cloud may
// still refuse the deletion, which is then asked for again and again.
func (p *passage) permitted(ctx context.Context) error {
	checker, can := p.cloud.(cloud.RightsChecker)
	if !can {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	missing, err := checker.MissingToDelete(ctx, id)
	p.c.o.Metrics.Cloud(p.cloud.Name(), "MissingToDelete", err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		p.log.Debug("which rights the credential has is not known", "machine", id, "err", err)
		return nil
	case len(missing) == 0:
		return nil
	}
	lacks := reason(CloudRights, "", "the credential lacks %s", missing)
	p.condition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, lacks.Code, lacks.Message)
	return blocked(p.c.o.Pace.Poll, lacks)
}
