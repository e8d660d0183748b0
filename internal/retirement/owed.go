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
	groups, err := c.o.Groups.List(ctx)
	if err != nil {
		return 0, false, fmt.Errorf("whether NodeGroup %s is there: %w", rt.Spec.Group, err)
	}
	if !slices.ContainsFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == rt.Spec.Group }) {
		return 0, false, nil
	}
	return owedFor - time.Since(rt.Status.Times.Finished.Time), true, nil
}

// awaitsReplacement reports a retirement that is over, and the replacement of whose machine is not. One that ended while its
// machine was there owes none, unless an order was made.
func awaitsReplacement(rt *v1alpha1.NodeRetirement) bool {
	if rt.Spec.Notice == nil || rt.Spec.Group == "" || !rt.Status.Phase.Finished() {
		return false
	}
	state := v1alpha1.ReplacementWaiting
	if r := rt.Status.Replacement; r != nil {
		state = r.State
	}
	switch state {
	case v1alpha1.ReplacementWaiting:
		return rt.Status.MachineGone || rt.Status.Phase == v1alpha1.Succeeded
	case v1alpha1.ReplacementLeftToCloud:
		return false // nothing is ordered for it, and one that never comes would count as coming
	}
	return !state.Final()
}
