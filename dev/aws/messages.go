package aws

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// The functions below return bodies of the messages that AWS sends to a queue. They have the forms in the user guides of
// Amazon EC2, AWS Health, Amazon EC2 Auto Scaling and Amazon SNS.

// envelope is an event of EventBridge.
type envelope struct {
	Version    string   `json:"version"`
	ID         string   `json:"id"`
	DetailType string   `json:"detail-type"`
	Source     string   `json:"source"`
	Account    string   `json:"account"`
	Time       string   `json:"time"`
	Region     string   `json:"region"`
	Resources  []string `json:"resources"`
	Detail     any      `json:"detail"`
}

func newEvent(source, detailType string, at time.Time, detail any, resources ...string) string {
	return encode(envelope{"0", uuid.NewString(), detailType, source, AccountID, at.UTC().Format(time.RFC3339), Region, resources, detail})
}

type instanceDetail struct {
	InstanceID string `json:"instance-id"`
	Action     string `json:"instance-action,omitempty"`
	State      string `json:"state,omitempty"`
}

func instanceARN(id string) string {
	return "arn:aws:ec2:" + Region + ":" + AccountID + ":instance/" + id
}

// NewSpotMessage returns a Spot interruption warning. Action is terminate, stop or hibernate. The interruption comes two
// minutes after the time. Its ARN has a zone and no account.
func NewSpotMessage(instance, zone, action string, at time.Time) string {
	return newEvent("aws.ec2", "EC2 Spot Instance Interruption Warning", at, instanceDetail{instance, action, ""}, "arn:aws:ec2:"+zone+":instance/"+instance)
}

// NewRebalanceMessage returns a recommendation to replace a Spot instance.
func NewRebalanceMessage(instance string, at time.Time) string {
	return newEvent("aws.ec2", "EC2 Instance Rebalance Recommendation", at, instanceDetail{instance, "", ""}, instanceARN(instance))
}

// NewStateMessage returns a change of an instance's state.
func NewStateMessage(instance, state string, at time.Time) string {
	return newEvent("aws.ec2", "EC2 Instance State-change Notification", at, instanceDetail{instance, "", state}, instanceARN(instance))
}

// NewCapacityReservationMessage returns a warning that the instance of a capacity reservation will be interrupted.
func NewCapacityReservationMessage(instance, action string, at time.Time) string {
	return newEvent("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", at, instanceDetail{instance, action, ""}, instanceARN(instance))
}

// HealthEvent is a scheduled change of one or several instances.
type HealthEvent struct {
	// Code is for example AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED.
	Code      string
	Instances []string
	// Start is zero for an event that has no time.
	Start time.Time
	// Service and Category are EC2 and scheduledChange if empty.
	Service, Category string
}

// NewHealthMessage returns a message of AWS Health.
func NewHealthMessage(e HealthEvent, at time.Time) string {
	if e.Service == "" {
		e.Service = "EC2"
	}
	if e.Category == "" {
		e.Category = "scheduledChange"
	}
	entities := []map[string]any{}
	for _, id := range e.Instances {
		entities = append(entities, map[string]any{"entityValue": id, "tags": map[string]string{"stage": "prod"}})
	}
	detail := map[string]any{
		"eventArn": "arn:aws:health:" + Region + "::event/EC2/" + e.Code + "/" + e.Code + "_" + uuid.NewString(), "service": e.Service,
		"eventTypeCode": e.Code, "eventTypeCategory": e.Category, "affectedEntities": entities,
		"eventDescription": []map[string]string{{"language": "en_US", "latestDescription": "EC2 has scheduled a change of the instances."}},
	}
	if !e.Start.IsZero() {
		detail["startTime"] = e.Start.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	return newEvent("aws.health", "AWS Health Event", at, detail, e.Instances...)
}

// LifecycleForm says how the message of a lifecycle action reaches a queue.
type LifecycleForm string

// The forms of messages of lifecycle actions.
const (
	ThroughEventBridge LifecycleForm = "EventBridge"
	DirectToQueue      LifecycleForm = "SQS"
	ThroughTopic       LifecycleForm = "SNS"
)

// NewLifecycleMessage returns the message of a lifecycle action.
func NewLifecycleMessage(a LifecycleAction, form LifecycleForm, at time.Time) string {
	origin, destination, detailType := "AutoScalingGroup", "EC2", "EC2 Instance-terminate Lifecycle Action"
	if a.Transition == Launching {
		origin, destination, detailType = destination, origin, "EC2 Instance-launch Lifecycle Action"
	}
	detail := map[string]string{
		"LifecycleActionToken": a.Token, "AutoScalingGroupName": a.Group, "LifecycleHookName": a.Hook, "EC2InstanceId": a.Instance,
		"LifecycleTransition": a.Transition, "Origin": origin, "Destination": destination,
	}
	if form == ThroughEventBridge {
		detail["NotificationMetadata"] = "additional-info"
		return newEvent("aws.autoscaling", detailType, at, detail,
			"arn:aws:autoscaling:"+Region+":"+AccountID+":autoScalingGroup:"+uuid.NewString()+":autoScalingGroupName/"+a.Group)
	}
	detail["Service"], detail["AccountId"], detail["RequestId"] = "AWS Auto Scaling", AccountID, uuid.NewString()
	detail["Time"] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	if form == ThroughTopic {
		return wrapInTopic("Auto Scaling:  Lifecycle action for instance "+a.Instance+" in progress.", encode(detail), at)
	}
	return encode(detail)
}

// NewTestMessage returns the message that a queue gets when a lifecycle hook is created.
func NewTestMessage(group string, at time.Time) string {
	return encode(map[string]string{
		"AccountId": AccountID, "RequestId": uuid.NewString(), "AutoScalingGroupName": group, "Service": "AWS Auto Scaling",
		"AutoScalingGroupARN": "arn:aws:autoscaling:" + Region + ":" + AccountID + ":autoScalingGroup:" + uuid.NewString() + ":autoScalingGroupName/" + group,
		"Event":               "autoscaling:TEST_NOTIFICATION", "Time": at.UTC().Format("2006-01-02T15:04:05.000Z"),
	})
}

// wrapInTopic returns the notification of an SNS topic with a message.
func wrapInTopic(subject, text string, at time.Time) string {
	return encode(map[string]string{
		"Type": "Notification", "MessageId": uuid.NewString(), "TopicArn": "arn:aws:sns:" + Region + ":" + AccountID + ":lifecycle", "Subject": subject,
		"Message": text, "Timestamp": at.UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "1", "Signature": "EXAMPLE==",
		"SigningCertURL": "https://sns." + Region + ".amazonaws.com/SimpleNotificationService-0.pem",
		"UnsubscribeURL": "https://sns." + Region + ".amazonaws.com/?Action=Unsubscribe",
	})
}

// PoisonMessages returns bodies that no program can handle, each in another way.
func PoisonMessages() []string {
	unknown, _ := json.Marshal(envelope{Version: "0", Source: "aws.s3", DetailType: "Object Created", Detail: map[string]string{}}) // strings only
	return []string{
		"not JSON", `{"version":"0","detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","detail":"text"}`,
		`[]`, `{"Message":"{\"EC2InstanceId\":42}"}`, "\ufeff", `{"version":"0"}`, string(unknown),
	}
}
