// Package queue reads notices of EC2 and Auto Scaling from an SQS queue. EventBridge, or an Auto Scaling group itself,
// sends them there. The notices are of all instances of the account, and the package assigns them to Nodes.
package queue

import "time"

// Kind is the kind of a message.
type Kind string

// The kinds of messages that name instances.
const (
	SpotInterruption    Kind = "spot-interruption"
	Rebalance           Kind = "rebalance-recommendation"
	StateChange         Kind = "state-change"
	CapacityReservation Kind = "capacity-reservation-interruption"
	ScheduledEvent      Kind = "scheduled-event"
	ASGTerminate        Kind = "asg-terminate"
	ASGLaunch           Kind = "asg-launch"
)

// The kinds of messages that require no action.
const (
	// ASGTest is the test message of a new lifecycle hook.
	ASGTest Kind = "asg-test"
	// Other is a well-formed message about something else, such as a health event of another service.
	Other Kind = "other"
)

// Kinds returns the kinds of messages that name instances.
func Kinds() []Kind {
	return []Kind{SpotInterruption, Rebalance, StateChange, CapacityReservation, ScheduledEvent, ASGTerminate, ASGLaunch}
}

func kindNames() []string {
	var all []string
	for _, k := range Kinds() {
		all = append(all, string(k))
	}
	return all
}

// Message is one received SQS message.
type Message struct {
	// ID is the MessageId. It stays the same when SQS delivers the message again.
	ID            string
	ReceiptHandle string
	Body          string
	// Sent is when the message was sent to the queue, or first received if SQS does not tell. It is a time of SQS's clock.
	Sent time.Time
	// Receives is how often SQS has delivered it; 0 is unknown.
	Receives int
}

// Event is the content of a message.
type Event struct {
	Kind Kind
	// ID identifies the event at its sender. It is empty if the message has none.
	ID string
	// Time is when the event happened; zero is unknown.
	Time time.Time
	// Instances are the IDs of the affected instances. Only a ScheduledEvent has more than one.
	Instances []string

	// Action is what happens to the instance of a SpotInterruption or CapacityReservation: terminate, stop or hibernate.
	Action string
	// State is the new state of a StateChange, such as stopping.
	State string
	// Code is the eventTypeCode of a ScheduledEvent, such as AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED. Starts and Ends limit
	// its interruption; zero is unknown.
	Code         string
	Starts, Ends time.Time
	// Closed is true for a ScheduledEvent that is over or cancelled. Resolved are the IDs of the instances that it does not affect
	// any more.
	Closed   bool
	Resolved []string
	// Hook is the lifecycle hook of an ASGTerminate or ASGLaunch.
	Hook Hook
	// Reason says why a message of the kind Other requires no action.
	Reason string
}

// Hook identifies one waiting lifecycle hook.
type Hook struct {
	Group, Name, Token string
	// Transition is autoscaling:EC2_INSTANCE_TERMINATING or autoscaling:EC2_INSTANCE_LAUNCHING.
	Transition string
}
