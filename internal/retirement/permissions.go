package retirement

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// notKept waits while the cloud keeps the machine: its node would be drained and deleted, and the machine would stay. It is
// waited for and not given up, since who has had it let go may have asked for this, and the cloud may say so a while later.
func (p *passage) notKept(ctx context.Context) error {
	if _, may := p.cloud.(cloud.Keeper); !may {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	instance, err := p.asRead(ctx, id)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		p.log.Debug("whether the cloud keeps the machine is not known", "machine", id, "err", err)
		return nil
	case !instance.Kept:
		return nil
	}
	keeps := reason(CloudRefused, "machine "+id, "its cloud would refuse to delete it%s: have it let go there, or delete the NodeRetirement",
		because(instance.KeptReason))
	p.condition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, keeps.Code, keeps.Message)
	return blocked(p.c.o.Pace.Poll, keeps)
}

// asRead gives the machine as this walk has captured it, or else as it is now.
func (p *passage) asRead(ctx context.Context, id string) (cloud.Instance, error) {
	if p.captured != nil {
		return *p.captured, nil
	}
	return p.confirmed(ctx, id)
}

func because(clause string) string {
	if clause == "" {
		return ""
	}
	return ", since " + clause
}

// permitted waits until the credential may delete the machine, as far as its cloud can tell: a node that was drained, and
// whose machine then stays, would have been given up for nothing. What cannot be told holds nothing up (I7); the cloud may
// still refuse the deletion, which is then asked for again and again.
func (p *passage) permitted(ctx context.Context) error {
	if err := p.notKept(ctx); err != nil {
		return err
	}
	checker, can := p.cloud.(cloud.RightsChecker)
	if !can {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	missing, err := checker.MissingToDelete(within, id)
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
