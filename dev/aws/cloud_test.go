package aws_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	emulator "github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// sdkConfig returns a configuration of the AWS SDK for an emulated cloud in this process.
func sdkConfig(c *emulator.Cloud) aws.Config {
	values := map[string]string{}
	for _, v := range emulator.Credentials() {
		key, value, _ := strings.Cut(v, "=")
		values[key] = value
	}
	return aws.Config{
		Region: values["AWS_REGION"], BaseEndpoint: aws.String("http://aws.test"), HTTPClient: &http.Client{Transport: faultproxy.NewDirectTransport(c)},
		Credentials: credentials.NewStaticCredentialsProvider(values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"], values["AWS_SESSION_TOKEN"]),
	}
}

func errorCode(err error) string {
	if refused := smithy.APIError(nil); errors.As(err, &refused) {
		return refused.ErrorCode()
	}
	return fmt.Sprint(err)
}

func TestSDKReceivesExtendsAndDeletesMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := emulator.NewCloud("workers")
		client, ctx := sqs.NewFromConfig(sdkConfig(cloud)), t.Context()
		queueURL := cloud.SQS.CreateQueue("notices", emulator.QueueOptions{Visibility: 20 * time.Second})
		receive := func(count int32, wait int32) []sqstypes.Message {
			t.Helper()
			out, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
				QueueUrl: &queueURL, MaxNumberOfMessages: count, WaitTimeSeconds: wait,
				MessageSystemAttributeNames: []sqstypes.MessageSystemAttributeName{"ApproximateReceiveCount", "SentTimestamp"},
			})
			if err != nil {
				t.Fatal(err)
			}
			return out.Messages
		}
		began := time.Now()
		if got := receive(10, 20); len(got) != 0 || time.Since(began) != 20*time.Second {
			t.Errorf("an empty queue: %d messages after %s, want none after 20 s", len(got), time.Since(began))
		}
		began = time.Now()
		time.AfterFunc(3*time.Second, func() { cloud.SQS.Send("notices", "late <&>") })
		got := receive(10, 20)
		if len(got) != 1 || time.Since(began) != 3*time.Second || *got[0].Body != "late <&>" || got[0].Attributes["ApproximateReceiveCount"] != "1" {
			t.Fatalf("the long poll: %+v after %s", got, time.Since(began))
		}
		extend := func(handle *string, seconds int32) string {
			t.Helper()
			out, err := client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
				QueueUrl: &queueURL, Entries: []sqstypes.ChangeMessageVisibilityBatchRequestEntry{{Id: aws.String("a"), ReceiptHandle: handle, VisibilityTimeout: seconds}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Failed) > 0 {
				return *out.Failed[0].Code
			}
			return ""
		}
		time.Sleep(15 * time.Second)
		if code := extend(got[0].ReceiptHandle, 20); code != "" {
			t.Errorf("extension: %s", code)
		}
		time.Sleep(15 * time.Second) // 30 s after the receive
		if again := receive(1, 0); len(again) != 0 {
			t.Error("the message became visible although its time was extended")
		}
		time.Sleep(6 * time.Second)
		if code := extend(got[0].ReceiptHandle, 20); code != "AWS.SimpleQueueService.MessageNotInflight" {
			t.Errorf("extension of a visible message: %q", code)
		}
		again := receive(1, 0)
		if len(again) != 1 || *again[0].MessageId != *got[0].MessageId || again[0].Attributes["ApproximateReceiveCount"] != "2" {
			t.Fatalf("after the timeout: %+v", again)
		}
		for _, handle := range []*string{got[0].ReceiptHandle, again[0].ReceiptHandle} { // the old handle deletes nothing
			if cloud.SQS.Depth("notices") != 1 {
				t.Error("the message is deleted by an old handle")
			}
			out, err := client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
				QueueUrl: &queueURL, Entries: []sqstypes.DeleteMessageBatchRequestEntry{{Id: aws.String("a"), ReceiptHandle: handle}, {Id: aws.String("b"), ReceiptHandle: aws.String("nonsense")}},
			})
			if err != nil || len(out.Successful) != 1 || len(out.Failed) != 1 || *out.Failed[0].Code != "ReceiptHandleIsInvalid" {
				t.Errorf("deletion: %+v, %v", out, err)
			}
		}
		if r := cloud.SQS.Messages("notices"); cloud.SQS.Depth("notices") != 0 || len(r) != 1 || len(r[0].Receives) != 2 || r[0].Deleted.IsZero() {
			t.Errorf("the record: %+v", r)
		}
		_, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: aws.String(queueURL + "x")})
		if missing := (*sqstypes.QueueDoesNotExist)(nil); !errors.As(err, &missing) {
			t.Errorf("a missing queue: %v", err)
		}
		if _, err = client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &queueURL, MaxNumberOfMessages: 11}); errorCode(err) != "InvalidParameterValue" {
			t.Errorf("eleven messages: %v", err)
		}
	})
}

func TestRedrivePolicyMovesPoisonToDeadLetterQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := emulator.NewCloud("workers")
		client := sqs.NewFromConfig(sdkConfig(cloud))
		cloud.SQS.CreateQueue("dead", emulator.QueueOptions{})
		queueURL := cloud.SQS.CreateQueue("notices", emulator.QueueOptions{Visibility: time.Second, DeadLetter: "dead", MaxReceives: 3})
		id := cloud.SQS.Send("notices", "poison")
		for receives := 1; ; receives++ {
			out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &queueURL, WaitTimeSeconds: 5})
			if err != nil || receives > 4 {
				t.Fatalf("receive %d: %v", receives, err)
			}
			if len(out.Messages) == 0 {
				break
			}
		}
		r := cloud.SQS.Messages("dead")
		if cloud.SQS.Depth("notices") != 0 || cloud.SQS.Depth("dead") != 1 || len(r) != 1 || r[0].ID != id || len(r[0].Receives) != 3 || r[0].DeadLettered.IsZero() {
			t.Errorf("dead letters: %+v", r)
		}
	})
}

func TestStandardQueueDuplicatesAndReorders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := emulator.NewCloud("workers")
		client := sqs.NewFromConfig(sdkConfig(cloud))
		queueURL := cloud.SQS.CreateQueue("notices", emulator.QueueOptions{Visibility: time.Second})
		cloud.SQS.SetDelivery(1, emulator.DeliveryRates{Duplicate: 0.1, Undelete: 0.1, Reorder: 1})
		cloud.SetFaults(1, emulator.FaultRates{Throttled: 0.05, Unavailable: 0.05, Lost: 0.05, Slow: 0.1, MaxDelay: 3 * time.Second})
		const total = 200
		for i := range total {
			cloud.SQS.Send("notices", fmt.Sprintf("%03d", i))
		}
		var order []string
		for cloud.SQS.Depth("notices") > 0 {
			out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &queueURL, MaxNumberOfMessages: 10, WaitTimeSeconds: 1})
			if err != nil {
				continue // the SDK has tried three times
			}
			for _, m := range out.Messages {
				order = append(order, *m.Body)
				_, _ = client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: &queueURL, ReceiptHandle: m.ReceiptHandle}) // or it comes again
			}
		}
		distinct := map[string]bool{}
		for _, body := range order {
			distinct[body] = true
		}
		if len(distinct) != total || len(order) < total*11/10 || slices.IsSorted(order[:20]) {
			t.Errorf("%d deliveries of %d of %d messages, first %v: want more, all and unordered", len(order), len(distinct), total, order[:20])
		}
		if cloud.Requests("sqs:refused") == 0 {
			t.Error("no request was refused")
		}
	})
}

func TestSDKCompletesLaunchAndTerminateHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := emulator.NewCloud("workers & co", emulator.LifecycleHook{Name: "drain", Timeout: time.Minute},
			emulator.LifecycleHook{Name: "backup", Timeout: time.Hour}, emulator.LifecycleHook{Name: "ready", Timeout: time.Minute, Transition: emulator.Launching})
		client, ctx := autoscaling.NewFromConfig(sdkConfig(cloud)), t.Context()
		const id = "i-0123456789abcdef0"
		complete := func(a emulator.LifecycleAction, byToken bool, result string) string {
			in := &autoscaling.CompleteLifecycleActionInput{AutoScalingGroupName: &a.Group, LifecycleHookName: &a.Hook, LifecycleActionResult: &result}
			if in.InstanceId = &a.Instance; byToken {
				in.InstanceId, in.LifecycleActionToken = nil, &a.Token
			}
			if _, err := client.CompleteLifecycleAction(ctx, in); err != nil {
				return errorCode(err)
			}
			return ""
		}
		launch := cloud.AutoScaling.StartAction(id, emulator.Launching)
		if len(launch) != 1 || cloud.AutoScaling.Result(id) != "" {
			t.Fatalf("launch: %v", launch)
		}
		if code := complete(launch[0], true, "CONTINUE"); code != "" || cloud.AutoScaling.Result(id) != "CONTINUE" {
			t.Errorf("launch: %s, result %q", code, cloud.AutoScaling.Result(id))
		}
		actions := cloud.AutoScaling.StartAction(id, emulator.Terminating)
		time.Sleep(50 * time.Second)
		if _, err := client.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
			AutoScalingGroupName: &actions[0].Group, LifecycleHookName: &actions[0].Hook, LifecycleActionToken: &actions[0].Token,
		}); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Second)
		if code := complete(actions[0], false, "CONTINUE"); code != "" || cloud.AutoScaling.Result(id) != "" {
			t.Errorf("one of two hooks: %s, result %q", code, cloud.AutoScaling.Result(id))
		}
		if code := complete(actions[0], true, "CONTINUE"); code != "ValidationError" {
			t.Errorf("a completed hook: %q", code)
		}
		if code := complete(actions[1], true, "ABANDON"); code != "" || cloud.AutoScaling.Result(id) != "ABANDON" {
			t.Errorf("the other hook: %s, result %q", code, cloud.AutoScaling.Result(id))
		}
		out, err := client.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String("workers & co")})
		if err != nil || len(out.LifecycleHooks) != 3 || *out.LifecycleHooks[2].LifecycleTransition != emulator.Launching || *out.LifecycleHooks[0].HeartbeatTimeout != 60 {
			t.Errorf("hooks %+v, %v", out, err)
		}
		cloud.AutoScaling.StartAction(id, emulator.Terminating)
		time.Sleep(time.Hour)
		if got := cloud.AutoScaling.Result(id); got != "TIMEOUT" {
			t.Errorf("without heartbeats: %q", got)
		}
	})
}

func TestMessagesHaveTheFormsOfTheDocumentation(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 27, 5, 0, 0, 0, time.UTC)
	const id = "i-0123456789abcdef0"
	action := emulator.LifecycleAction{Group: "workers", Hook: "drain", Instance: id, Token: "t", Transition: emulator.Terminating}
	launch := action
	launch.Transition = emulator.Launching
	for name, tt := range map[string]struct {
		body string
		want map[string]string // by path
	}{
		"spot": {emulator.NewSpotMessage(id, "eu-west-1a", "stop", at), map[string]string{
			"source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning", "time": "2026-11-27T05:00:00Z", "detail.instance-id": id,
			"detail.instance-action": "stop", "resources.0": "arn:aws:ec2:eu-west-1a:instance/" + id,
		}},
		"rebalance": {emulator.NewRebalanceMessage(id, at), map[string]string{"detail-type": "EC2 Instance Rebalance Recommendation", "detail.instance-id": id}},
		"state":     {emulator.NewStateMessage(id, "stopping", at), map[string]string{"detail-type": "EC2 Instance State-change Notification", "detail.state": "stopping"}},
		"reservation": {emulator.NewCapacityReservationMessage(id, "terminate", at), map[string]string{
			"detail-type": "EC2 Capacity Reservation Instance Interruption Warning", "detail.instance-action": "terminate",
		}},
		"health": {emulator.NewHealthMessage(emulator.HealthEvent{Code: "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", Instances: []string{"i-1", id}, Start: at}, at), map[string]string{
			"source": "aws.health", "detail.service": "EC2", "detail.eventTypeCategory": "scheduledChange", "detail.startTime": "Fri, 27 Nov 2026 05:00:00 GMT",
			"detail.affectedEntities.1.entityValue": id,
		}},
		"lifecycle": {emulator.NewLifecycleMessage(action, emulator.ThroughEventBridge, at), map[string]string{
			"source": "aws.autoscaling", "detail-type": "EC2 Instance-terminate Lifecycle Action", "detail.EC2InstanceId": id, "detail.LifecycleActionToken": "t",
			"detail.LifecycleHookName": "drain", "detail.AutoScalingGroupName": "workers", "detail.LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
		}},
		"launch": {emulator.NewLifecycleMessage(launch, emulator.ThroughEventBridge, at), map[string]string{
			"detail-type": "EC2 Instance-launch Lifecycle Action", "detail.LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING", "detail.Destination": "AutoScalingGroup",
		}},
		"direct": {emulator.NewLifecycleMessage(action, emulator.DirectToQueue, at), map[string]string{
			"Service": "AWS Auto Scaling", "EC2InstanceId": id, "Time": "2026-11-27T05:00:00.000Z", "LifecycleActionToken": "t",
		}},
		"test": {emulator.NewTestMessage("workers", at), map[string]string{"Event": "autoscaling:TEST_NOTIFICATION", "AutoScalingGroupName": "workers"}},
	} {
		for path, want := range tt.want {
			if got := readPath(t, tt.body, path); got != want {
				t.Errorf("%s: %s is %q, want %q", name, path, got, want)
			}
		}
	}
	inner := readPath(t, emulator.NewLifecycleMessage(action, emulator.ThroughTopic, at), "Message")
	if readPath(t, inner, "EC2InstanceId") != id {
		t.Errorf("the message of the topic: %s", inner)
	}
}

// readPath returns the text at a path, such as resources.0, of a JSON document.
func readPath(t *testing.T, body, path string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for _, key := range strings.Split(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[key]
		case []any:
			v = at[key[0]-'0']
		}
	}
	text, _ := v.(string)
	return text
}
