package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
)

// yield leaves the node to another tool that is taking it out of service (I6): AKS's node auto-drain, cluster-autoscaler
// or Karpenter. What is voluntary is left to it altogether. Where the machine's processes end anyway and there is no
// time to see whether the other gets it done, the pods are moved off all the same, as an eviction that two ask for does
// no harm; but the cordon is left to the other.
func (a *Agent) yield(ctx context.Context, h *handling, now time.Time) (time.Duration, error) {
	if !h.Decision.Action.cordons() {
		h.left = false
		return 0, nil
	}
	urgent := h.Decision.Forced && h.pressing(now)
	if err := a.lookAtNode(ctx); err != nil {
		if !urgent {
			return 0, err
		}
		a.log.Warn("whether another tool is at work on the node is not known", "err", err)
	}
	h.left = len(a.others) > 0 && !urgent && !h.drained()
	a.sayOthers(h)
	if !h.left {
		return 0, nil
	}
	if h.held && h.dirty { // it was held before the other came, and the record says more than is so
		if _, err := a.hold(ctx, h, now); err != nil {
			return 0, err
		}
	}
	if h.Decision.Forced {
		return h.patienceLeft(now), nil
	}
	return whenAsked, nil
}

// lookAtNode reads the node once where it is not followed yet.
func (a *Agent) lookAtNode(ctx context.Context) error {
	if a.looked {
		return nil
	}
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
func (a *Agent) sayOthers(h *handling) {
	who := strings.Join(a.others, ", ")
	what := ""
	switch {
	case who == "":
	case h.drained():
		what = "its pods have gone already"
	case h.left && h.Decision.Forced:
		what = "left to it, until " + h.patience().UTC().Format(time.RFC3339) + " at the latest"
	case h.left:
		what = "left to it"
	default:
		what = "the pods are moved off all the same, the cordon is left to it"
	}
	said := who + what
	if said == h.saidOthers {
		return
	}
	if h.saidOthers = said; who == "" {
		return
	}
	a.log.Warn("others are taking this node out of service too", "others", a.others, "id", h.Notice.ID,
		"type", h.Notice.Type, "so", what)
	a.events.emit(othersAtWork(a.others, h.Notice, what))
}

// othersNow takes in who is at work on the node. When nobody is any more, a cordon that was left to them is ours to make.
func (a *Agent) othersNow(others []string) {
	a.looked = true
	if slices.Equal(others, a.others) {
		return
	}
	a.others = others
	if len(others) > 0 {
		return
	}
	for _, h := range a.handled {
		h.dirty = h.dirty || h.held && !h.cordoned && h.Decision.Action.cordons()
	}
}
