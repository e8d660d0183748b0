package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
)

// lifecycleConditions returns the node lifecycle conditions (KEP-5683) for the notice h. While the drain is blocked,
// the message of DrainInProgress contains the notice, a colon, and the text of drain.Progress.
func lifecycleConditions(h *noticeState) []cordon.Condition {
	message := fmt.Sprintf("%s %s (%s)", h.Notice.Source, h.Notice.Type, h.Notice.ID)
	var set []cordon.Condition
	switch {
	case !h.Notice.Type.HasDeadline(): // a node condition or a hint is not maintenance
	case h.Notice.Status == notice.Started:
		set = append(set, cordon.Condition{Type: cordon.MaintenanceInProgress, Reason: conditionReason, Message: message})
	default:
		set = append(set, cordon.Condition{Type: cordon.MaintenancePlanned, Reason: conditionReason, Message: message})
	}
	switch h.Phase {
	case Draining:
		if h.shownProgress != "" {
			message += ": " + h.shownProgress
		}
		set = append(set, cordon.Condition{Type: cordon.DrainInProgress, Reason: conditionReason, Message: message})
	case Drained, Acknowledged:
		set = append(set, cordon.Condition{Type: cordon.DrainedCondition, Reason: conditionReason, Message: message})
	}
	return set
}

// minConditionRetry and maxConditionRetry limit the pause before the agent writes the node's conditions again after a
// failure.
const (
	minConditionRetry = 5 * time.Second
	maxConditionRetry = 10 * time.Minute
)

// conditionBackoff delays writes of the node's conditions after a failed write. Nothing waits for the conditions,
// because they only inform.
type conditionBackoff struct {
	delay    time.Duration // zero after a success
	next     time.Time     // time of the next try
	timedOut bool          // the last write had no answer in time: none is made before next
}

// backOffAfterConditionFailure counts a failed write of the node's conditions, logs the first failure, and delays the
// next write.
func (a *Agent) backOffAfterConditionFailure(err error) {
	a.options.Metrics.ConditionsFailed.Inc()
	if a.conditionBackoff.delay == 0 {
		a.log.Error("cannot write the node's conditions, will retry; nothing else waits for them", "err", err)
	}
	a.conditionBackoff.delay = min(max(2*a.conditionBackoff.delay, minConditionRetry), maxConditionRetry)
	a.conditionBackoff.timedOut = errors.Is(err, context.DeadlineExceeded)
	a.conditionBackoff.next = time.Now().Add(a.conditionBackoff.delay) // from now, because the write may have taken long
}

func (a *Agent) resetConditionBackoff() {
	if a.conditionBackoff.delay > 0 {
		a.log.Info("the node's conditions can be written again")
	}
	a.conditionBackoff = conditionBackoff{}
}
