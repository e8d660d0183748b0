package queue_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

const (
	zone = "eu-west-1a"
	// poisonForms is how many of aws.PoisonMessages the queue mode has to park. The last one is an event of another service.
	poisonForms = 6
)

func TestParserReadsEachFormAndSurvivesDamage(t *testing.T) {
	t.Parallel()
	const id, other = "i-0123456789abcdef0", "i-0123456789abcdef1"
	at := time.Date(2026, 11, 27, 5, 0, 0, 0, time.UTC)
	action := aws.LifecycleAction{Group: "workers & co", Hook: "drain", Instance: id, Token: "71514b9d", Transition: aws.Terminating}
	launch := action
	launch.Transition = aws.Launching
	health := aws.HealthEvent{Code: "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", Instances: []string{id, other}, Start: at.Add(time.Hour)}
	foreign := health
	foreign.Service = "RDS"
	damaged := 0
	for name, tt := range map[string]struct {
		body      string
		kind      queue.Kind
		instances int
	}{
		"spot":        {aws.NewSpotMessage(id, zone, "hibernate", at), queue.SpotInterruption, 1},
		"rebalance":   {aws.NewRebalanceMessage(id, at), queue.Rebalance, 1},
		"state":       {aws.NewStateMessage(id, "stopping", at), queue.StateChange, 1},
		"reservation": {aws.NewCapacityReservationMessage(id, "terminate", at), queue.CapacityReservation, 1},
		"health":      {aws.NewHealthMessage(health, at), queue.ScheduledEvent, 2},
		"RDS":         {aws.NewHealthMessage(foreign, at), queue.Other, 0},
		"eventbridge": {aws.NewLifecycleMessage(action, aws.ThroughEventBridge, at), queue.ASGTerminate, 1},
		"direct":      {aws.NewLifecycleMessage(action, aws.DirectToQueue, at), queue.ASGTerminate, 1},
		"topic":       {aws.NewLifecycleMessage(action, aws.ThroughTopic, at), queue.ASGTerminate, 1},
		"launch":      {aws.NewLifecycleMessage(launch, aws.DirectToQueue, at), queue.ASGLaunch, 1},
		"test":        {aws.NewTestMessage("workers", at), queue.ASGTest, 0},
	} {
		e, err := queue.Parse(tt.body)
		if err != nil || e.Kind != tt.kind || len(e.Instances) != tt.instances {
			t.Errorf("%s: %+v, %v; want %s of %d instances", name, e, err, tt.kind, tt.instances)
		}
		if e.Hook.Name != "" && (e.Hook.Group != action.Group || e.Hook.Token != action.Token || e.Hook.Name != action.Hook) {
			t.Errorf("%s: hook %+v", name, e.Hook)
		}
		for _, body := range damage(t, tt.body) {
			damaged++
			e, err := queue.Parse(body) // must not panic
			if err == nil && e.Kind == tt.kind && len(e.Instances) == 0 && tt.instances > 0 {
				t.Errorf("%s: %s: is read as %s without an instance", name, body, e.Kind)
			}
		}
	}
	for _, body := range aws.PoisonMessages()[:poisonForms] {
		if e, err := queue.Parse(body); err == nil {
			t.Errorf("poison %q is read as %+v", body, e)
		}
	}
	t.Logf("%d damaged bodies", damaged)
}

// damage returns the body with each field in turn removed or replaced by another value.
func damage(t *testing.T, body string) (all []string) {
	t.Helper()
	var document map[string]any
	if err := json.Unmarshal([]byte(body), &document); err != nil {
		t.Fatal(err)
	}
	encode := func() {
		raw, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(raw))
	}
	var visit func(in map[string]any)
	visit = func(in map[string]any) {
		for _, key := range slices.Sorted(maps.Keys(in)) {
			was := in[key]
			delete(in, key)
			encode()
			for _, v := range []any{nil, 42, "", "x", []any{}, []any{nil}, map[string]any{}, fmt.Sprintf("%01000d", 0)} {
				in[key] = v
				encode()
			}
			in[key] = was
			if inner, ok := was.(map[string]any); ok {
				visit(inner)
			}
		}
	}
	visit(document)
	return all
}
