package awsnth

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// The monitors of the tool, which read the interruptions.
const (
	sqsMonitor       = "SQS_MONITOR"
	rebalanceMonitor = "REBALANCE_RECOMMENDATION_MONITOR"
	spotMonitor      = "SPOT_ITN_MONITOR"
	asgMonitor       = "ASG_LIFECYCLE_MONITOR"
	scheduledMonitor = "SCHEDULED_EVENT_MONITOR"
)

// InterruptionEvent is a notice in the tool's words. Webhook templates use its fields, so they keep the tool's names.
type InterruptionEvent struct {
	EventID              string
	Kind                 string // a Kind
	Monitor, Description string
	// State is the state of a scheduled event.
	State                string
	AutoScalingGroupName string
	NodeName             string
	NodeLabels           map[string]string
	Pods                 []string
	InstanceID           string
	ProviderID           string
	InstanceType         string
	IsManaged            bool
	StartTime, EndTime   time.Time
	NodeProcessed        bool
	InProgress           bool
}

// TimeUntilEvent returns the time until the interruption.
func (e InterruptionEvent) TimeUntilEvent() time.Duration { return time.Until(e.StartTime) }

// IsRebalanceRecommendation reports whether the event is a recommendation to replace the instance.
func (e InterruptionEvent) IsRebalanceRecommendation() bool {
	return Kind(e.Kind) == RebalanceRecommendation
}

// queueText is how the tool described the interruptions of one kind of message.
type queueText struct{ idPrefix, description string } // the description has the instance and the time

// queueTexts are by the kind of message. The tool did not read messages about capacity reservations.
var queueTexts = map[queue.Kind]queueText{
	queue.SpotInterruption:    {"spot-itn-event-", "Spot Interruption notice for instance %s was sent at %s"},
	queue.Rebalance:           {"rebalance-recommendation-event-", "Rebalance recommendation event received. Instance %s will be cordoned at %s"},
	queue.StateChange:         {"ec2-state-change-event-", "EC2 State Change event received. Instance %s was interrupted at %s"},
	queue.ASGTerminate:        {"asg-lifecycle-term-", "ASG Lifecycle Termination event received. Instance %s will be interrupted at %s"},
	queue.ScheduledEvent:      {"aws-health-scheduled-change-event-", "AWS Health scheduled change event received. Instance %s will be interrupted at %s"},
	queue.CapacityReservation: {"capacity-reservation-event-", "Capacity reservation interruption of instance %s was sent at %s"},
}

// toInterruptionEvent returns a notice in the tool's words. It lacks what the notice does not say, such as the node.
func toInterruptionEvent(n notice.Notice) InterruptionEvent {
	e := InterruptionEvent{Kind: string(KindOf(n)), EventID: n.ID, Description: n.Description, StartTime: n.NotBefore, EndTime: n.NotBefore, IsManaged: true}
	if len(n.Resources) > 0 {
		e.InstanceID = n.Resources[0]
	}
	at := n.NotBefore.UTC().Format(time.RFC3339)
	if n.NotBefore.IsZero() {
		at = "a time that is not known"
	}
	if n.Source == notice.AWSQueue {
		e.Monitor = sqsMonitor
		for kind, text := range queueTexts {
			if id, found := strings.CutPrefix(n.ID, string(kind)); found && (id == "" || id[0] == '-') {
				e.EventID = text.idPrefix + cmp.Or(strings.TrimPrefix(id, "-"), e.InstanceID)
				e.Description = fmt.Sprintf(text.description, cmp.Or(e.InstanceID, "of this node"), at)
			}
		}
		return e
	}
	switch Kind(e.Kind) {
	case SpotITN:
		e.Monitor, e.EventID = spotMonitor, "spot-itn-"+strings.TrimPrefix(n.ID, "spot-")
		e.Description = "Spot ITN received. Instance will be interrupted at " + at
	case RebalanceRecommendation:
		e.Monitor, e.EventID = rebalanceMonitor, "rebalance-recommendation-"+strings.TrimPrefix(n.ID, "rebalance-")
		e.Description = "Rebalance recommendation received. Instance will be cordoned at " + at
	case ASGLifecycle:
		e.Monitor, e.EventID = asgMonitor, "target-lifecycle-state-terminated-"+strings.TrimPrefix(n.ID, asgNoticePrefix)
		e.Description = "AST target lifecycle state received. Instance will be terminated"
	case ScheduledEvent:
		e.Monitor, e.State = scheduledMonitor, "active"
		code, reason, _ := strings.Cut(n.Description, ": ")
		e.Description = fmt.Sprintf("%s will occur at %s because %s", code, n.NotBefore.UTC().Format("2 Jan 2006 15:04:05 GMT"), reason)
	}
	return e
}

// isRestart reports whether a notice is a scheduled event that restarts or stops the instance. The tool uncordoned the
// node after the restart.
func isRestart(n notice.Notice) bool {
	return n.Source != notice.AWSQueue && KindOf(n) == ScheduledEvent && (n.Type == notice.Reboot || n.Type == notice.Terminate)
}
