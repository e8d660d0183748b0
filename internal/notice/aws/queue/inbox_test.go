package queue

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

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
