package retirement

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// checkDeletionProtection waits while the cloud protects the instance from deletion. Without this check, the node would
// be drained and deleted, and the instance would stay. The retirement waits and does not end, because a user may have
// just removed the protection, and the cloud may report that later.
func (p *retirementScope) checkDeletionProtection(ctx context.Context) error {
	if _, canProtect := p.provider.(cloud.DeletionProtectionReporter); !canProtect {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	instance, err := p.readCapturedInstance(ctx, id)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		p.log.Debug("cannot read whether the instance is protected from deletion", "instance", id, "err", err)
		return nil
	case !instance.DeletionProtected:
		return nil
	}
	protectedReason := newReason(CloudRefused, "instance "+id, "its cloud protects it from deletion%s: remove the protection there, or delete the NodeRetirement",
		formatSinceClause(instance.DeletionProtectionReason))
	p.setCondition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, protectedReason.Code, protectedReason.Message)
	return newBlocked(p.controller.options.Intervals.Poll, protectedReason)
}

// readCapturedInstance returns the captured instance. It reads the instance from the cloud unless this reconcile has
// captured it.
func (p *retirementScope) readCapturedInstance(ctx context.Context, id string) (cloud.Instance, error) {
	if p.capturedInstance != nil {
		return *p.capturedInstance, nil
	}
	return p.readAndConfirmInstance(ctx, id)
}

func formatSinceClause(clause string) string {
	if clause == "" {
		return ""
	}
	return ", since " + clause
}

// checkDeletePermissions waits while the cloud says that the credential may not delete the instance. Without this check, the
// node would be drained for nothing. If the cloud does not know the permissions, checkDeletePermissions does not wait (I7).
// The cloud may then refuse the deletion, which is retried.
func (p *retirementScope) checkDeletePermissions(ctx context.Context) error {
	if err := p.checkDeletionProtection(ctx); err != nil {
		return err
	}
	checker, canCheck := p.provider.(cloud.PermissionChecker)
	if !canCheck {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	readCtx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	missing, err := checker.MissingDeletePermissions(readCtx, id)
	p.controller.options.Metrics.RecordCloudRequest(p.provider.Name(), "MissingToDelete", err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		p.log.Debug("cannot check the permissions of the credential", "instance", id, "err", err)
		return nil
	case len(missing) == 0:
		return nil
	}
	missingReason := newReason(CloudRights, "", "the credential lacks %s", missing)
	p.setCondition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, missingReason.Code, missingReason.Message)
	return newBlocked(p.controller.options.Intervals.Poll, missingReason)
}
