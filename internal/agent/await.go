package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// awaitPollInterval is the pause between two checks of a notice's drain.
const awaitPollInterval = 100 * time.Millisecond

// AwaitDrained waits until the node is drained for a notice, and then returns nil. The agent may read the notice after
// the call. If an earlier drain for the notice gave up, AwaitDrained retries it once. If the retry gives up too, or the
// notice needs no drain, it returns an error. It also returns an error if the node is left to another tool without a
// deadline. In a dry run it returns nil once the agent has read the notice. If ctx ends, AwaitDrained returns its error,
// and the drain continues. It may be called from any goroutine while Run runs.
func (a *Agent) AwaitDrained(ctx context.Context, source, id string) error {
	ticker := time.NewTicker(awaitPollInterval)
	defer ticker.Stop()
	again := true
	for {
		answer := make(chan drainStatus, 1)
		a.enqueueUpdate(ctx, func(context.Context) { answer <- a.checkOrRetryDrain(source, id, again) })
		select {
		case <-ctx.Done():
			return ctx.Err()
		case o := <-answer:
			if o.ended {
				return o.err
			}
			again = again && !o.known
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// drainStatus is the state of a notice's drain. It is known once the agent has read the notice, and ended once there is
// a result.
type drainStatus struct {
	known, ended bool
	err          error
}

// checkOrRetryDrain returns the drain status of a notice. If again is true and the drain gave up, it starts the drain
// again.
func (a *Agent) checkOrRetryDrain(source, id string, retryFailed bool) drainStatus {
	h := a.notices[notice.ClaimOwner(source, id)]
	if h == nil || h.Notice.Source != source || h.Decision.Reason == "" {
		return drainStatus{}
	}
	switch {
	case h.Phase.isDrained() && h.claim.isCurrent():
		return drainStatus{known: true, ended: true}
	case a.options.DryRun:
		return drainStatus{known: true, ended: true}
	case h.Phase == NotDrained && retryFailed:
		a.handleInput(h, inputAwaited, time.Now())
	case h.Phase == NotDrained:
		err := errors.New("the drain timed out")
		if h.drainResult.report != nil {
			err = errors.New(h.drainResult.report.Summary())
		}
		return drainStatus{known: true, ended: true, err: fmt.Errorf("node %s is not drained: %w", a.options.Node, err)}
	case h.Phase == Yielded && !h.Decision.Forced && len(a.otherTools) > 0: // nothing limits how long the taint stays
		return drainStatus{known: true, ended: true, err: fmt.Errorf("node %s is not drained: another tool is removing it: %s; the drain starts once "+
			"the taint is removed", a.options.Node, strings.Join(a.otherTools, ", "))}
	case !h.Decision.Action.includesDrain():
		return drainStatus{known: true, ended: true, err: fmt.Errorf("node %s is not drained: %s", a.options.Node, h.Decision.Reason)}
	}
	return drainStatus{known: true}
}
