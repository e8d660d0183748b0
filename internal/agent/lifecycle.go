package agent

import (
	"time"
)

// firstConditionRetry and lastConditionRetry bound the pause after the node's conditions could not be written.
const (
	firstConditionRetry = 5 * time.Second
	lastConditionRetry  = 10 * time.Minute
)

// conditionTrouble is what is known of failures to write the node's conditions. They inform, and nothing waits for them.
type conditionTrouble struct {
	pause time.Duration // zero while all is well
	next  time.Time     // when to try again
}

// conditionsFailed counts a failure, says so when it is the first, and puts the next try off.
func (a *Agent) conditionsFailed(err error, now time.Time) {
	a.o.Metrics.ConditionsFailed.Inc()
	if a.conditions.pause == 0 {
		a.log.Error("the node's conditions cannot be written; everything else goes on", "err", err)
	}
	a.conditions.pause = min(max(2*a.conditions.pause, firstConditionRetry), lastConditionRetry)
	a.conditions.next = now.Add(a.conditions.pause)
}

// conditionsWritten ends the trouble.
func (a *Agent) conditionsWritten() {
	if a.conditions.pause > 0 {
		a.log.Info("the node's conditions can be written again")
	}
	a.conditions = conditionTrouble{}
}

// lacksConditions reports that the node lacks conditions of a notice, and that it is time to try again.
func (a *Agent) lacksConditions(h *handling, now time.Time) bool {
	return h.bare && !now.Before(a.conditions.next)
}
