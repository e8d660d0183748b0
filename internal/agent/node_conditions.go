package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
)

// conditions are the lifecycle conditions (KEP-5683) that hold while h does. While something blocks its drain,
// DrainInProgress says how far the drain is and what it waits for, after the notice and a colon; see drain.Progress.
func conditions(h *noticeState) []cordon.Condition {
	message := fmt.Sprintf("%s %s (%s)", h.Notice.Source, h.Notice.Type, h.Notice.ID)
	var set []cordon.Condition
	switch {
	case h.Notice.Type == notice.Condition: // a problem of the node's is no maintenance
	case h.Notice.Status == notice.Started:
		set = append(set, cordon.Condition{Type: cordon.MaintenanceInProgress, Reason: conditionReason, Message: message})
	default:
		set = append(set, cordon.Condition{Type: cordon.MaintenancePlanned, Reason: conditionReason, Message: message})
	}
	switch h.Phase {
	case Draining:
		if h.shown != "" {
			message += ": " + h.shown
		}
		set = append(set, cordon.Condition{Type: cordon.DrainInProgress, Reason: conditionReason, Message: message})
	case Drained, Acknowledged:
		set = append(set, cordon.Condition{Type: cordon.DrainedCondition, Reason: conditionReason, Message: message})
	}
	return set
}

// firstConditionRetry and lastConditionRetry bound the pause after the node's conditions could not be written.
const (
	firstConditionRetry = 5 * time.Second
	lastConditionRetry  = 10 * time.Minute
)

// conditionTrouble is what is known of failures to write the node's conditions. They inform, and nothing waits for them.
type conditionTrouble struct {
	pause time.Duration // zero while all is well
	next  time.Time     // when to try again
	hung  bool          // the last write was not answered in time: none is made before next
}

// conditionsFailed counts a failure, says so when it is the first, and puts the next try off.
func (a *Agent) conditionsFailed(err error) {
	a.o.Metrics.ConditionsFailed.Inc()
	if a.conditions.pause == 0 {
		a.log.Error("the node's conditions cannot be written; everything else goes on", "err", err)
	}
	a.conditions.pause = min(max(2*a.conditions.pause, firstConditionRetry), lastConditionRetry)
	a.conditions.hung = errors.Is(err, context.DeadlineExceeded)
	a.conditions.next = time.Now().Add(a.conditions.pause) // the write may have taken long
}

// conditionsWritten ends the trouble.
func (a *Agent) conditionsWritten() {
	if a.conditions.pause > 0 {
		a.log.Info("the node's conditions can be written again")
	}
	a.conditions = conditionTrouble{}
}
