package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
)

// awaitNode goes on when the node is this notice's to change.
//
// It leaves the node to another tool that is taking it out of service (I6): AKS's node auto-drain, cluster-autoscaler
// or Karpenter. What is voluntary is left to it altogether. Where the machine's processes end anyway and there is no
// time to see whether the other gets it done, the pods are moved off all the same, as an eviction that two ask for does
// no harm; but the cordon is left to the other.
//
// It leaves a node with nothing but a condition as it is until it may be drained: a detector that errs does so on all nodes at
// once, and they must not be cordoned all at once. For an interruption the node is cordoned at once, so that the pods of
// other machines do not come to a machine that is due too.
func (a *Agent) awaitNode(ctx context.Context, h *noticeState, now time.Time) (time.Duration, error) {
	if h.Decision.Action.cordons() {
		if err := a.lookAtNode(ctx); err != nil {
			if !h.Decision.Forced || !h.isUrgent(now) || interrupted(ctx) {
				return 0, err
			}
			a.log.Warn("whether another tool is at work on the node is not known", "err", err)
		}
		a.sayOthers(h, now)
	}
	a.take(h, inputChecked, now)
	switch {
	case h.Phase == Waiting:
		a.sayWaitingForTurn(h)
		return h.untilLatestWait(now), nil
	case h.Phase != Yielded:
		return 0, nil
	case h.claim.state == claimOutdated, a.endedCordons():
		// The record was written before the other came, and says more than is so; or the node is cordoned for a notice that is over.
		if _, err := a.writeClaim(ctx, h, now); err != nil {
			return 0, err
		}
	}
	if h.Decision.Forced {
		return h.untilLatestWait(now), nil
	}
	return whenAsked, nil
}

// canYield reports that the node is left to the other tools that are known to be at work on it.
func (a *Agent) canYield(h *noticeState, now time.Time) bool {
	urgent := h.Decision.Forced && h.isUrgent(now)
	return h.Decision.Action.cordons() && len(a.others) > 0 && !urgent && !h.Phase.isDrained()
}

// lookAtNode reads the node once where it is not followed yet.
func (a *Agent) lookAtNode(ctx context.Context) error {
	if a.looked {
		return nil
	}
	ctx, cancel := half(ctx)
	defer cancel()
	node, err := a.o.API.GetNode(ctx, a.o.Node)
	if err != nil {
		return fmt.Errorf("node %s: %w", a.o.Node, err)
	}
	a.others, a.looked = cordon.Others(node), true
	a.since = node.ResourceVersion
	a.keeper.See(node)
	return nil
}

// sayOthers says once for each notice, and again when it changes, who else is at work and what follows.
func (a *Agent) sayOthers(h *noticeState, now time.Time) {
	who := strings.Join(a.others, ", ")
	what := ""
	switch {
	case h.Phase.isDrained():
		what = "its pods have gone already"
	case a.canYield(h, now) && h.Decision.Forced:
		what = "left to it, until " + h.latestWait().UTC().Format(time.RFC3339) + " at the latest"
	case a.canYield(h, now):
		what = "left to it"
	default:
		what = "the pods are moved off all the same, the cordon is left to it"
	}
	if who == "" {
		delete(h.said, OthersAtWork)
		return
	}
	if !h.isNews(OthersAtWork, who+what) {
		return
	}
	a.log.Warn("others are taking this node out of service too", "others", a.others, "id", h.Notice.ID,
		"type", h.Notice.Type, "so", what)
	a.events.emit(othersAtWork(a.others, h.Notice, what))
}
