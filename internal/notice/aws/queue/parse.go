package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// envelope holds the fields of all forms: an event of EventBridge, a notification of SNS with another form in Message,
// and the flat message of an Auto Scaling group.
type envelope struct {
	// EventBridge
	DetailType json.RawMessage `json:"detail-type"`
	Source     json.RawMessage `json:"source"`
	ID         json.RawMessage `json:"id"`
	Time       json.RawMessage `json:"time"`
	Resources  json.RawMessage `json:"resources"`
	Detail     json.RawMessage `json:"detail"`
	// SNS
	Message json.RawMessage `json:"Message"`
	// Auto Scaling
	RequestID           json.RawMessage `json:"RequestId"`
	Event               json.RawMessage `json:"Event"`
	LifecycleTransition json.RawMessage `json:"LifecycleTransition"`
}

const (
	launching        = "autoscaling:EC2_INSTANCE_LAUNCHING"
	terminating      = "autoscaling:EC2_INSTANCE_TERMINATING"
	testNotification = "autoscaling:TEST_NOTIFICATION"
)

// maxNesting is how many messages may be in one another: the message of SNS, in it another form.
const maxNesting = 3

// Parse reads the body of a message. It returns an error if the message is malformed, or if its form is unknown. The
// error names the field, its value and what is allowed.
func Parse(body string) (Event, error) { return parse(body, maxNesting) }

func parse(body string, nesting int) (Event, error) {
	var in envelope
	if err := unmarshalObject("body", []byte(body), &in); err != nil {
		return Event{}, err
	}
	switch {
	case in.DetailType != nil:
		return in.parseEventBridge()
	case in.LifecycleTransition != nil, in.Event != nil:
		return in.parseAutoScaling(json.RawMessage(body))
	case in.Message != nil && nesting > 1:
		var text string
		if err := json.Unmarshal(in.Message, &text); err != nil {
			text = string(in.Message) // raw, not escaped
		}
		e, err := parse(text, nesting-1)
		if err != nil {
			err = fmt.Errorf("Message: %w", err)
		}
		return e, err
	}
	return Event{}, fmt.Errorf("body: %s: want an event of EventBridge with detail-type, or a message of Auto Scaling with LifecycleTransition", poll.Quote(body))
}

func unmarshalObject(path string, raw []byte, into any) error {
	if !json.Valid(raw) {
		return fmt.Errorf("%s: %s: is not JSON", path, poll.Quote(raw))
	}
	if err := json.Unmarshal(raw, into); err != nil || strings.TrimSpace(string(raw))[0] != '{' {
		return fmt.Errorf("%s: %s: want an object", path, poll.Compact(raw))
	}
	return nil
}

// fieldReader reads the fields of one message and collects the errors.
type fieldReader struct{ errs []error }

func (r *fieldReader) text(path string, raw json.RawMessage) string {
	s, err := poll.ParseOptionalText(path, raw)
	r.errs = append(r.errs, err)
	return strings.TrimSpace(s)
}

func (r *fieldReader) required(path string, raw json.RawMessage) string {
	s, err := poll.ParseRequiredText(path, raw)
	r.errs = append(r.errs, err)
	return strings.TrimSpace(s)
}

func (r *fieldReader) instance(path string, raw json.RawMessage) []string {
	id := r.required(path, raw)
	if r.errs[len(r.errs)-1] == nil && !isInstanceID(id) {
		r.errs = append(r.errs, fmt.Errorf("%s: %s: want an instance such as i-0123456789abcdef0", path, poll.Quote(id)))
	}
	return []string{id}
}

// lenientText returns a text, or nothing if it is missing or malformed. A notice must not be lost because of a detail.
func lenientText(raw json.RawMessage) string {
	text, _ := poll.ParseOptionalText("", raw)
	return strings.TrimSpace(text)
}

// lenientTime returns a time, or zero if it is missing or malformed. A notice must not be lost because of its time.
func lenientTime(raw json.RawMessage) time.Time {
	text := lenientText(raw)
	for _, layout := range []string{time.RFC3339, "Mon, 2 Jan 2006 15:04:05 MST", "2 Jan 2006 15:04:05 MST", "2006-01-02T15:04:05.999999999-0700"} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() > 1970 && t.Year() < 9999 {
			return t.UTC()
		}
	}
	return time.Time{}
}

// maxInstanceID is the longest ID of an instance in bytes. A real one has 19.
const maxInstanceID = 64

func isInstanceID(id string) bool {
	digits, found := strings.CutPrefix(id, "i-")
	return found && digits != "" && len(id) <= maxInstanceID && strings.Trim(digits, "0123456789abcdef") == ""
}

func (in *envelope) parseEventBridge() (Event, error) {
	var r fieldReader
	detailType, source := r.required("detail-type", in.DetailType), r.required("source", in.Source)
	e := Event{ID: lenientText(in.ID), Time: lenientTime(in.Time)}
	if err := errors.Join(r.errs...); err != nil {
		return Event{}, err
	}
	switch e.Kind = kindOf(source, detailType); e.Kind {
	case ASGTerminate:
		return parseHook(e, "detail", in.Detail)
	case Other:
		e.Reason = fmt.Sprintf("source %s with detail-type %s announces no interruption of an instance", poll.Quote(source), poll.Quote(detailType))
		return e, nil
	}
	var d detail
	if err := unmarshalObject("detail", in.Detail, &d); err != nil {
		return Event{}, err
	}
	if e.Kind == ScheduledEvent {
		return d.parseHealth(e, in.Resources)
	}
	return d.parseEC2(e)
}

// detail holds the fields of the detail of an event of EC2 or AWS Health.
type detail struct {
	// EC2
	Instance        json.RawMessage `json:"instance-id"`
	Action          json.RawMessage `json:"instance-action"`
	State           json.RawMessage `json:"state"`
	TerminationTime json.RawMessage `json:"instance-termination-time"`
	// AWS Health
	ARN      json.RawMessage `json:"eventArn"`
	Service  json.RawMessage `json:"service"`
	Category json.RawMessage `json:"eventTypeCategory"`
	Code     json.RawMessage `json:"eventTypeCode"`
	Status   json.RawMessage `json:"statusCode"`
	Starts   json.RawMessage `json:"startTime"`
	Ends     json.RawMessage `json:"endTime"`
	Entities json.RawMessage `json:"affectedEntities"`
}

// kindOf returns the kind of an event of EventBridge, where ASGTerminate stands for all lifecycle hooks.
func kindOf(source, detailType string) Kind {
	switch source {
	case "aws.ec2":
		switch detailType {
		case "EC2 Spot Instance Interruption Warning":
			return SpotInterruption
		case "EC2 Instance Rebalance Recommendation":
			return Rebalance
		case "EC2 Instance State-change Notification":
			return StateChange
		case "EC2 Capacity Reservation Instance Interruption Warning":
			return CapacityReservation
		}
	case "aws.health":
		if detailType == "AWS Health Event" {
			return ScheduledEvent
		}
	case "aws.autoscaling":
		if strings.HasSuffix(detailType, "Lifecycle Action") {
			return ASGTerminate
		}
	}
	return Other
}

func (d *detail) parseEC2(e Event) (Event, error) {
	var r fieldReader
	e.Instances = r.instance("detail.instance-id", d.Instance)
	// A malformed action must not lose the notice: the instance is interrupted in any case.
	e.Action, e.Starts = strings.ToLower(lenientText(d.Action)), lenientTime(d.TerminationTime)
	if e.Kind == StateChange {
		e.State = strings.ToLower(r.required("detail.state", d.State))
	}
	return e, errors.Join(r.errs...)
}

// parseHook reads a waiting lifecycle hook, or the test message of a new one.
func parseHook(e Event, path string, raw json.RawMessage) (Event, error) {
	var detail struct {
		Token      json.RawMessage `json:"LifecycleActionToken"`
		Group      json.RawMessage `json:"AutoScalingGroupName"`
		Name       json.RawMessage `json:"LifecycleHookName"`
		Instance   json.RawMessage `json:"EC2InstanceId"`
		Transition json.RawMessage `json:"LifecycleTransition"`
		Event      json.RawMessage `json:"Event"`
	}
	if err := unmarshalObject(path, raw, &detail); err != nil {
		return Event{}, err
	}
	var r fieldReader
	transition := r.text(path+".LifecycleTransition", detail.Transition)
	if r.text(path+".Event", detail.Event) == testNotification || transition == testNotification {
		e.Kind, e.Reason = ASGTest, "it is the test message of a lifecycle hook"
		return e, nil
	}
	switch transition {
	case terminating:
		e.Kind = ASGTerminate
	case launching:
		e.Kind = ASGLaunch
	default:
		r.errs = append(r.errs, fmt.Errorf("%s.LifecycleTransition: %s: want %s or %s", path, poll.Quote(transition), terminating, launching))
	}
	e.Hook = Hook{
		Group: r.required(path+".AutoScalingGroupName", detail.Group), Name: r.required(path+".LifecycleHookName", detail.Name),
		Token: r.text(path+".LifecycleActionToken", detail.Token), Transition: transition,
	}
	e.Instances = r.instance(path+".EC2InstanceId", detail.Instance)
	return e, errors.Join(r.errs...)
}

func (in *envelope) parseAutoScaling(body json.RawMessage) (Event, error) {
	return parseHook(Event{ID: lenientText(in.RequestID), Time: lenientTime(in.Time)}, "body", body)
}

// maxEntities is the largest number of instances in one event.
const maxEntities = 1000

func (d *detail) parseHealth(e Event, resources json.RawMessage) (Event, error) {
	var r fieldReader
	service, category := r.required("detail.service", d.Service), r.required("detail.eventTypeCategory", d.Category)
	e.Code = strings.ToUpper(lenientText(d.Code))
	if arn := lenientText(d.ARN); arn != "" {
		e.ID = arn // it stays the same when the event changes
	}
	if err := errors.Join(r.errs...); err != nil {
		return Event{}, err
	}
	e.Starts, e.Ends, e.Closed = lenientTime(d.Starts), lenientTime(d.Ends), strings.EqualFold(lenientText(d.Status), "closed")
	if service != "EC2" || category != "scheduledChange" {
		e.Kind, e.Reason = Other, fmt.Sprintf("it is of service %s and category %s; only EC2 and scheduledChange matter", poll.Quote(service), poll.Quote(category))
		return e, nil
	}
	affected, err := parseEntities(d.Entities)
	if err != nil {
		return Event{}, err
	}
	if len(affected) == 0 {
		var ids []string
		_ = json.Unmarshal(resources, &ids) // the entities are enough
		for _, id := range ids {
			if isInstanceID(id) {
				affected[id] = true
			}
		}
	}
	e.Instances = slices.Sorted(maps.Keys(affected))
	e.Resolved = slices.DeleteFunc(slices.Clone(e.Instances), func(id string) bool { return affected[id] })
	if len(e.Instances) == 0 {
		e.Kind, e.Reason = Other, "it names no instance"
	}
	if len(e.Instances) > maxEntities {
		return Event{}, fmt.Errorf("detail.affectedEntities: has %d instances: want at most %d", len(e.Instances), maxEntities)
	}
	return e, nil
}

// parseEntities returns the instances of an event, and whether each is still affected. Other entities, such as volumes, are
// left out.
func parseEntities(raw json.RawMessage) (affected map[string]bool, err error) {
	affected = map[string]bool{}
	if raw == nil || string(raw) == "null" {
		return affected, nil
	}
	var entities []struct {
		Value  json.RawMessage `json:"entityValue"`
		Status json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(raw, &entities); err != nil {
		return nil, fmt.Errorf("detail.affectedEntities: %s: want a list of objects with entityValue", poll.Compact(raw))
	}
	for i, entity := range entities {
		id, err := poll.ParseRequiredText(fmt.Sprintf("detail.affectedEntities[%d].entityValue", i), entity.Value)
		if err != nil {
			return nil, err
		}
		if id = id[strings.LastIndex(id, "/")+1:]; isInstanceID(id) { // some events give an ARN
			affected[id] = affected[id] || !strings.EqualFold(lenientText(entity.Status), "resolved")
		}
	}
	return affected, nil
}
