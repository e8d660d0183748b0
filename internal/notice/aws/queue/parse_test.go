package queue

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// bridge returns an event of EventBridge.
func bridge(source, detailType, detail string) string {
	return fmt.Sprintf(`{"version":"0","id":"7bf73129","detail-type":%q,"source":%q,"account":"123456789012",`+
		`"time":"2026-11-11T21:29:54Z","region":"us-east-1","resources":["arn:aws:ec2:us-east-1b:instance/i-0b662ef9931388ba0"],"detail":%s}`,
		detailType, source, detail)
}

const hookFields = `"LifecycleActionToken":"0befcbdb","AutoScalingGroupName":"workers","LifecycleHookName":"drain",` +
	`"EC2InstanceId":"i-0633ac2b0d9769723","LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING"`

var at = time.Date(2026, 11, 11, 21, 29, 54, 0, time.UTC)

func TestParseReadsEveryFormOfMessage(t *testing.T) {
	flat := `{"Service":"AWS Auto Scaling","Time":"2026-11-11T21:29:54.123Z","RequestId":"r-1","AccountId":"123456789012",` + hookFields + `}`
	escaped, _ := json.Marshal(flat)
	capacity := bridge("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning",
		`{"instance-id":"i-0abc","instance-action":"terminate","instance-termination-time":"2026-11-11T21:31:00Z"}`)
	capacity = strings.Replace(capacity, `["arn:aws:ec2:us-east-1b:instance/i-0b662ef9931388ba0"]`, `"arn"`, 1) // documented as a string
	health := `{"eventArn":"arn:aws:health:us-east-1::event/EC2/X/1","service":"EC2","eventTypeCategory":"scheduledChange",` +
		`"eventTypeCode":"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED","startTime":"Sat, 05 Dec 2026 15:10:09 GMT","endTime":"Sat, 5 Dec 2026 17:10:09 GMT",` +
		`"affectedEntities":[{"entityValue":"i-0b"},{"entityValue":"vol-1"},{"entityValue":"arn:aws:ec2:us-east-1:1:instance/i-0a"},{"entityValue":"i-0b"}]}`
	for name, c := range map[string]struct {
		body      string
		kind      Kind
		instances []string
		check     func(Event) bool
	}{
		"spot": {
			bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0b66","instance-action":"Terminate"}`), SpotInterruption, []string{"i-0b66"},
			func(e Event) bool {
				return e.Action == "terminate" && e.NewNotice("i-0b66").NotBefore.Equal(at.Add(2*time.Minute)) && e.ID == "7bf73129"
			},
		},
		"spot hibernation begins at once": {
			bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0b66","instance-action":"hibernate"}`), SpotInterruption, []string{"i-0b66"},
			func(e Event) bool {
				n := e.NewNotice("i-0b66")
				return n.Status == notice.Started && n.NotBefore.Equal(at) // an old message is then of an instance that has resumed
			},
		},
		"rebalance": {
			bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0b66"}`), Rebalance, []string{"i-0b66"},
			func(e Event) bool { return e.NewNotice("i-0b66").Type == notice.Rebalance },
		},
		"state change": {
			bridge("aws.ec2", "EC2 Instance State-change Notification", `{"instance-id":"i-0b66","state":"shutting-down"}`), StateChange, []string{"i-0b66"},
			func(e Event) bool {
				return e.IsInterruption("i-0b66") && e.NewNotice("i-0b66").Status == notice.Started
			},
		},
		"state running": {
			bridge("aws.ec2", "EC2 Instance State-change Notification", `{"instance-id":"i-0b66","state":"running"}`), StateChange, []string{"i-0b66"},
			func(e Event) bool { return !e.IsInterruption(e.Instances[0]) },
		},
		"capacity reservation": {
			capacity, CapacityReservation, []string{"i-0abc"},
			func(e Event) bool { return e.NewNotice("i-0abc").NotBefore.Equal(at.Add(66 * time.Second)) },
		},
		"health": {
			bridge("aws.health", "AWS Health Event", health), ScheduledEvent, []string{"i-0a", "i-0b"},
			func(e Event) bool {
				n := e.NewNotice("i-0a")
				return n.Type == notice.Reboot && n.Duration == 2*time.Hour && n.NotBefore.Equal(time.Date(2026, 12, 5, 15, 10, 9, 0, time.UTC))
			},
		},
		"health about the power": {
			bridge("aws.health", "AWS Health Event", strings.Replace(health, "_REBOOT_", "_POWER_", 1)), ScheduledEvent, []string{"i-0a", "i-0b"},
			func(e Event) bool { return e.NewNotice("i-0a").Type == notice.Reboot },
		},
		"health about the network": {
			bridge("aws.health", "AWS Health Event", strings.Replace(health, "_REBOOT_", "_NETWORK_", 1)), ScheduledEvent, []string{"i-0a", "i-0b"},
			func(e Event) bool { return e.NewNotice("i-0a").Type == notice.Freeze },
		},
		"health with a resolved instance": {
			bridge("aws.health", "AWS Health Event", strings.Replace(health, `{"entityValue":"i-0b"}`, `{"entityValue":"i-0c","status":"RESOLVED"},{"entityValue":"i-0b","status":" Resolved"}`, 1)),
			ScheduledEvent, []string{"i-0a", "i-0b", "i-0c"},
			func(e Event) bool { // i-0b stands twice, and is still affected once
				return e.IsInterruption("i-0a") && e.IsInterruption("i-0b") && !e.IsInterruption("i-0c")
			},
		},
		"health of another service": {
			bridge("aws.health", "AWS Health Event", strings.Replace(health, `"EC2"`, `"EBS"`, 1)), Other, nil, nil,
		},
		"terminate by EventBridge": {
			bridge("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", `{`+hookFields+`,"Origin":"AutoScalingGroup","Destination":"EC2"}`), ASGTerminate, []string{"i-0633ac2b0d9769723"},
			func(e Event) bool {
				return e.Hook == Hook{"workers", "drain", "0befcbdb", terminating} && !e.NewNotice("i").NotApprovable
			},
		},
		"launch": {
			bridge("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", `{`+strings.Replace(hookFields, "TERMINATING", "LAUNCHING", 1)+`}`), ASGLaunch, []string{"i-0633ac2b0d9769723"},
			func(e Event) bool { return !e.IsInterruption(e.Instances[0]) },
		},
		"terminate by Auto Scaling": {flat, ASGTerminate, []string{"i-0633ac2b0d9769723"}, func(e Event) bool { return e.ID == "r-1" }},
		"terminate by SNS":          {`{"Type":"Notification","Message":` + string(escaped) + `}`, ASGTerminate, []string{"i-0633ac2b0d9769723"}, nil},
		"spot by SNS": {
			`{"Type":"Notification","Message":` + bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0b66","instance-action":"stop"}`) + `}`, SpotInterruption, []string{"i-0b66"}, nil,
		},
		"test of a hook":    {`{"AutoScalingGroupName":"workers","Service":"AWS Auto Scaling","Event":"autoscaling:TEST_NOTIFICATION","RequestId":"r-1"}`, ASGTest, nil, nil},
		"another event":     {bridge("aws.ec2", "EBS Volume Notification", `{}`), Other, nil, nil},
		"an unknown source": {bridge("custom", "EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0b66"}`), Other, nil, nil},
		"a malformed time":  {strings.Replace(bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0b66"}`), `"2026-11-11T21:29:54Z"`, `17`, 1), Rebalance, []string{"i-0b66"}, nil},
		"malformed details of an event": {
			`{"id":7,"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","account":123456789012,"region":{},"detail":{"instance-id":"i-0b66"}}`,
			SpotInterruption, []string{"i-0b66"}, nil,
		},
		"malformed details of a hook": {
			`{"RequestId":7,"AccountId":123456789012,"Origin":1,"Destination":[],` + hookFields + `}`, ASGTerminate, []string{"i-0633ac2b0d9769723"},
			func(e Event) bool { return e.ID == "" },
		},
		"malformed details of a health event": {
			bridge("aws.health", "AWS Health Event", `{"eventArn":7,"eventTypeCode":[],"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{"entityValue":"i-0b"}]}`),
			ScheduledEvent, []string{"i-0b"}, func(e Event) bool { return e.NewNotice("i-0b").Type == notice.Reboot },
		},
		"a malformed action": {bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0b66","instance-action":5}`), SpotInterruption, []string{"i-0b66"}, nil},
	} {
		e, err := Parse(c.body)
		if err != nil || e.Kind != c.kind || !slices.Equal(e.Instances, c.instances) || c.check != nil && !c.check(e) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

func TestParseErrorsNameFieldAndValue(t *testing.T) {
	for body, want := range map[string][]string{
		``:                   {"body", "not JSON"},
		`[1]`:                {"body", "[1]", "object"},
		`null`:               {"body", "null", "object"},
		`{"foo":1}`:          {"foo", "detail-type", "LifecycleTransition"},
		`{"Message":"{}"}`:   {"Message", "detail-type"},
		`{"Message":"text"}`: {"Message", `"text"`, "not JSON"},
		bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"web-1"}`):                                    {"detail.instance-id", `"web-1"`, "i-0123456789abcdef0"},
		bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{}`):                                                         {"detail.instance-id is missing"},
		bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `"x"`):                                                        {"detail", `"x"`, "object"},
		bridge("aws.ec2", "EC2 Instance State-change Notification", `{"instance-id":"i-0b66","state":7}`):                         {"detail.state", "7", "string"},
		bridge("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", `{"EC2InstanceId":"i-0b66"}`):                        {"LifecycleTransition", "AutoScalingGroupName is missing"},
		`{"LifecycleActionToken":7,` + hookFields[strings.Index(hookFields, `"Auto`):] + `}`:                                      {"LifecycleActionToken", "7", "string"},
		bridge("aws.health", "AWS Health Event", `{"service":"EC2"}`):                                                             {"eventTypeCategory is missing"},
		`{"detail-type":7,"source":"aws.ec2"}`:                                                                                    {"detail-type", "7"},
		bridge("aws.health", "AWS Health Event", `{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":{}}`): {"affectedEntities", "list"},
	} {
		e, err := Parse(body)
		if err == nil {
			t.Errorf("%s: %+v", body, e)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want %q", body, err, w)
			}
		}
	}
}

func FuzzParseNamesOnlyValidInstances(f *testing.F) {
	f.Add(bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0b66","instance-action":"terminate"}`))
	f.Add(`{"Message":"{\"Message\":\"{}\"}"}`)
	f.Add(`{"LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING",` + hookFields + `}`)
	f.Add(bridge("aws.health", "AWS Health Event", `{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{"entityValue":"i-0a"}]}`))
	f.Fuzz(func(t *testing.T, body string) {
		e, err := Parse(body)
		if err != nil {
			if len(err.Error()) > 4000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if needsAction := e.Kind != Other && e.Kind != ASGTest; needsAction != (len(e.Instances) > 0) {
			t.Errorf("%s: %d instances", e.Kind, len(e.Instances))
		}
		for _, id := range e.Instances {
			if !isInstanceID(id) {
				t.Errorf("instance %q", id)
			}
			if e.IsInterruption(id) {
				if n := e.NewNotice(id); KindOfNotice(n.ID) != e.Kind || n.Type == "" {
					t.Errorf("%s: notice %+v", e.Kind, n)
				}
			}
		}
	})
}

func TestEventWithAFarEndHasNotEnded(t *testing.T) {
	e := Event{Kind: ScheduledEvent, Code: "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", Starts: at, Ends: time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC)}
	n := e.NewNotice("i-0a")
	for _, now := range []time.Duration{-time.Hour, time.Hour} {
		if HasEnded(n, n.NotBefore, at.Add(-time.Hour), at.Add(now)) {
			t.Errorf("ended %v after its start, with a length of %v", now, n.Duration)
		}
	}
}

func TestNoticeEndsOnlyOnceItsNodeOutlivedIt(t *testing.T) {
	spot := notice.Notice{ID: string(SpotInterruption), Type: notice.Preempt, Duration: -time.Second}
	retirement := notice.Notice{ID: newID(ScheduledEvent, "arn"), Type: notice.Terminate}
	for _, c := range []struct {
		n               notice.Notice
		readySince, now time.Duration // after the time when it is due
		want            bool
	}{
		{spot, -time.Hour, time.Minute, false},
		{spot, -time.Minute, 59 * time.Minute, false},
		{spot, -time.Hour, 61 * time.Minute, true},
		{spot, 5 * time.Minute, 6 * time.Minute, true},
		{spot, 10 * time.Second, 20 * time.Second, false},
		{spot, 2 * time.Hour, time.Minute, false}, // the clock of the node is ahead
		{retirement, -time.Hour, 23 * time.Hour, false},
		{retirement, -time.Hour, 25 * time.Hour, true},
		{retirement, 10 * time.Minute, 11 * time.Minute, true},
		{notice.Notice{ID: string(Rebalance), Type: notice.Rebalance}, time.Hour, 1000 * time.Hour, false},
	} {
		if got := HasEnded(c.n, at, at.Add(c.readySince), at.Add(c.now)); got != c.want {
			t.Errorf("%s, Ready since %v, %v after it was due: %v", c.n.ID, c.readySince, c.now, got)
		}
	}
	if HasEnded(spot, at, time.Time{}, at.Add(1000*time.Hour)) {
		t.Error("the notice of a node that is not Ready has ended")
	}
}
