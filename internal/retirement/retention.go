package retirement

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// maxReplacementRetention is how long a finished NodeRetirement stays while its replacement has not joined. A shortage
// of capacity may last for days. After a week, a person has to act.
const maxReplacementRetention = 7 * 24 * time.Hour

// replacementRetention reports whether a finished NodeRetirement still waits for its replacement, and how much longer
// it must not be deleted for that. Only the NodeRetirement records that a replacement has to be launched or is
// provisioning (see package replacement). Without the group, nothing is launched.
func (c *Controller) replacementRetention(ctx context.Context, rt *v1alpha1.NodeRetirement) (left time.Duration, isAwaited bool, err error) {
	if !isAwaitingReplacement(rt) || rt.Status.Times.Finished == nil {
		return 0, false, nil
	}
	g, err := c.findGroupByName(ctx, rt.Spec.Group)
	if g == nil || err != nil {
		return 0, false, err
	}
	return maxReplacementRetention - time.Since(rt.Status.Times.Finished.Time), true, nil
}

// findGroupByName returns the NodeGroup with the name, or nil if it does not exist.
func (c *Controller) findGroupByName(ctx context.Context, name string) (*v1alpha1.NodeGroup, error) {
	groups, err := c.options.Groups.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding NodeGroup %s: %w", name, err)
	}
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	if i < 0 {
		return nil, nil //nolint:nilnil // that there is none is an answer
	}
	return &groups[i], nil
}

// cooldownRetention returns how much longer a NodeRetirement that ended early must not be deleted. As long as it
// exists, no rule retires its node again.
func (c *Controller) cooldownRetention(ctx context.Context, rt *v1alpha1.NodeRetirement) (left time.Duration, err error) {
	group := rt.Spec.Group
	if rt.Status.Captured != nil {
		group = rt.Status.Captured.Group
	}
	if rt.Status.Phase == v1alpha1.Succeeded || rt.Status.Times.Finished == nil || group == "" {
		return 0, nil
	}
	g, err := c.findGroupByName(ctx, group)
	if g == nil || err != nil {
		return 0, err
	}
	return FailureCooldown(g) - time.Since(rt.Status.Times.Finished.Time), nil
}

// defaultFailureCooldown is the default in the CustomResourceDefinition.
const defaultFailureCooldown = 5 * time.Minute

// FailureCooldown returns how long no rule of a group retires a node after its retirement ended early.
func FailureCooldown(g *v1alpha1.NodeGroup) time.Duration {
	if d := g.Spec.Cooldowns.AfterFailure; d != nil {
		return d.Duration
	}
	return defaultFailureCooldown
}

// ReplacementInstanceIDs returns the provider IDs of the group's instances that were launched as replacements and have
// become ready. Such an instance must not be counted for another launch.
func ReplacementInstanceIDs(all []v1alpha1.NodeRetirement, group string) map[string]bool {
	ids := map[string]bool{}
	for i := range all {
		if r := all[i].Status.Replacement; r != nil && r.State == v1alpha1.ReplacementReady && all[i].Spec.Group == group {
			ids[r.Instance] = true
		}
	}
	return ids
}

// isAwaitingReplacement reports whether the retirement is finished and its replacement is not. If the instance still
// existed when the retirement ended, no replacement is launched any more; only a replacement that was launched before
// counts.
func isAwaitingReplacement(rt *v1alpha1.NodeRetirement) bool {
	if rt.Spec.Notice == nil || rt.Spec.Group == "" || !rt.Status.Phase.IsFinal() {
		return false
	}
	if r := rt.Status.Replacement; r != nil && r.State != v1alpha1.ReplacementWaiting {
		return !r.State.IsFinal()
	}
	return rt.Status.InstanceGone || rt.Status.Phase == v1alpha1.Succeeded
}

// IsReplacementPending reports whether the decision to launch a replacement is still open.
func IsReplacementPending(rt *v1alpha1.NodeRetirement) bool {
	r := rt.Status.Replacement
	return r == nil || r.State == "" || r.State == v1alpha1.ReplacementWaiting
}

// CanLaunchReplacement reports whether a replacement may still be launched for the notice of rt. all has all
// retirements: if another notice of the same Node has a replacement, no further one may be launched.
func CanLaunchReplacement(rt *v1alpha1.NodeRetirement, all []v1alpha1.NodeRetirement) bool {
	if rt.Spec.Notice == nil || !rt.DeletionTimestamp.IsZero() || !IsReplacementPending(rt) {
		return false
	}
	return !slices.ContainsFunc(all, func(o v1alpha1.NodeRetirement) bool {
		return o.Spec.NodeUID == rt.Spec.NodeUID && o.Spec.Notice != nil && !IsReplacementPending(&o) &&
			o.Status.Replacement.State != v1alpha1.ReplacementNotNeeded
	})
}
