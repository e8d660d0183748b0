package retirement

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// owedFor is for how long the record of a retirement that is over is kept at the most because the machine in the place of its
// own has not come: a shortage may last for days, and one that has not ended by then is for people.
const owedFor = 7 * 24 * time.Hour

// owed says for how much longer a record that would be deleted now is to be kept: it is all that says that a machine is to be
// ordered, or is on its way (see package replacement). Waits reports one for which that is so, be it for too long. What a
// group that was deleted is owed nobody waits for.
func (c *Controller) owed(ctx context.Context, rt *v1alpha1.NodeRetirement) (left time.Duration, waits bool, err error) {
	if !awaitsReplacement(rt) || rt.Status.Times.Finished == nil {
		return 0, false, nil
	}
	g, err := c.groupNamed(ctx, rt.Spec.Group)
	if g == nil || err != nil {
		return 0, false, err
	}
	return owedFor - time.Since(rt.Status.Times.Finished.Time), true, nil
}

// groupNamed is nil when there is no such group.
func (c *Controller) groupNamed(ctx context.Context, name string) (*v1alpha1.NodeGroup, error) {
	groups, err := c.o.Groups.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("whether NodeGroup %s is there: %w", name, err)
	}
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	if i < 0 {
		return nil, nil //nolint:nilnil // that there is none is an answer
	}
	return &groups[i], nil
}

// cooling says for how much longer the record of a retirement that ended early is kept: it is all that says that its node's
// retirement is not to be asked for again yet.
func (c *Controller) cooling(ctx context.Context, rt *v1alpha1.NodeRetirement) (time.Duration, error) {
	group := rt.Spec.Group
	if rt.Status.Captured != nil {
		group = rt.Status.Captured.Group
	}
	if rt.Status.Phase == v1alpha1.Succeeded || rt.Status.Times.Finished == nil || group == "" {
		return 0, nil
	}
	g, err := c.groupNamed(ctx, group)
	if g == nil || err != nil {
		return 0, err
	}
	return AfterFailure(g) - time.Since(rt.Status.Times.Finished.Time), nil
}

// defaultAfterFailure is that of the CRD.
const defaultAfterFailure = 5 * time.Minute

// AfterFailure is for how long nobody asks by a rule of a group for the retirement of one of its nodes since one ended early.
func AfterFailure(g *v1alpha1.NodeGroup) time.Duration {
	if d := g.Spec.Cooldowns.AfterFailure; d != nil {
		return d.Duration
	}
	return defaultAfterFailure
}

// Replacements returns the provider IDs of the instances of a group that have replaced others: they are of no other launch.
func Replacements(all []v1alpha1.NodeRetirement, group string) map[string]bool {
	ids := map[string]bool{}
	for i := range all {
		if r := all[i].Status.Replacement; r != nil && r.State == v1alpha1.ReplacementReady && all[i].Spec.Group == group {
			ids[r.Instance] = true
		}
	}
	return ids
}

// awaitsReplacement reports a retirement that is over, and the replacement of whose instance is not. One that ended while its instance was
// there awaits none, unless it was launched.
func awaitsReplacement(rt *v1alpha1.NodeRetirement) bool {
	if rt.Spec.Notice == nil || rt.Spec.Group == "" || !rt.Status.Phase.Finished() {
		return false
	}
	if r := rt.Status.Replacement; r != nil && r.State != v1alpha1.ReplacementWaiting {
		return !r.State.Final()
	}
	return rt.Status.MachineGone || rt.Status.Phase == v1alpha1.Succeeded
}

// ReplacementWaits reports a retirement for which no replacement is launched yet, and of which it is not decided that there will be none.
func ReplacementWaits(rt *v1alpha1.NodeRetirement) bool {
	r := rt.Status.Replacement
	return r == nil || r.State == "" || r.State == v1alpha1.ReplacementWaiting
}

// IsUnreplaced reports a retirement after a notice for which a replacement may still be launched: no other retirement of the same Node has
// one.
func IsUnreplaced(rt *v1alpha1.NodeRetirement, all []v1alpha1.NodeRetirement) bool {
	if rt.Spec.Notice == nil || !rt.DeletionTimestamp.IsZero() || !ReplacementWaits(rt) {
		return false
	}
	return !slices.ContainsFunc(all, func(o v1alpha1.NodeRetirement) bool {
		return o.Spec.NodeUID == rt.Spec.NodeUID && o.Spec.Notice != nil && !ReplacementWaits(&o) &&
			o.Status.Replacement.State != v1alpha1.ReplacementNotNeeded
	})
}
