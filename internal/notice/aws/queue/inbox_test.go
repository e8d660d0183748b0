package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/slipway-dev/slipway/internal/observe"
)

func TestTrackedMessagesAreCountedByInstanceAndKeepNoBody(t *testing.T) {
	b := NewInbox(InboxOptions{Config: NewDefaultConfig(), Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.DiscardHandler)})
	var entities []string
	for i := range maxEntities {
		entities = append(entities, fmt.Sprintf(`{"entityValue":"i-%04x"}`, i))
	}
	event := bridge("aws.health", "AWS Health Event", `{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[`+strings.Join(entities, ",")+`]}`)
	for i := range 3 {
		b.track(Message{ID: fmt.Sprint(i), Body: event}, time.Now())
	}
	b.track(Message{ID: "unreadable", Body: "{"}, time.Now())
	if n := b.countInstances(); n != 3*maxEntities+1 {
		t.Errorf("counts %d instances", n)
	}
	for id, m := range b.tracked {
		if m.Body != "" {
			t.Errorf("message %s: the body stays in memory", id)
		}
	}
}

// slowQueue is a queue that fails at first, then has one message, and hangs at each request that writes.
type slowQueue struct {
	SQS

	receives int
	waits    []int32
}

func (q *slowQueue) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	q.waits = append(q.waits, in.WaitTimeSeconds)
	switch q.receives++; q.receives {
	case 1, 2:
		return nil, errors.New("reset")
	case 3:
		body := bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0a"}`)
		return &sqs.ReceiveMessageOutput{Messages: []types.Message{{MessageId: aws.String("1"), ReceiptHandle: aws.String("handle"), Body: &body}}}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (*slowQueue) ChangeMessageVisibilityBatch(ctx context.Context, _ *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestInboxReportsAnswersAndEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q slowQueue
		var requests, answers, messages int
		b := NewInbox(InboxOptions{
			SQS: &q, Config: NewDefaultConfig(), Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.DiscardHandler),
			Beat: func() { requests++ }, OnReceive: func() {
				if answers++; q.receives != 3 {
					t.Errorf("an answer to the request %d", q.receives)
				}
			},
		})
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		began := time.Now()
		b.Run(ctx, func(Message, Event) { messages++ })
		if took := time.Since(began); took > 20*time.Second+releaseTimeout {
			t.Errorf("ended after %v", took)
		}
		if requests != 4 || answers != 1 || messages != 1 || fmt.Sprint(q.waits) != "[1 1 1 20]" {
			t.Errorf("%d requests that wait for %v, %d answers, %d messages", requests, q.waits, answers, messages)
		}
	})
}
