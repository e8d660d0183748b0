package queue_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/aws"
)

func TestEachMessageDrainsOnlyItsNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "each")
	f.addNode("each-other")
	type row struct {
		name    string
		message func(id string) string
	}
	lifecycle := func(form aws.LifecycleForm) func(string) string {
		return func(id string) string {
			return aws.NewLifecycleMessage(f.cloud.AutoScaling.StartAction(id, aws.Terminating)[0], form, time.Now())
		}
	}
	rows := []row{
		{"each-spot", func(id string) string { return aws.NewSpotMessage(id, zone, "terminate", time.Now()) }},
		{"each-rebalance", func(id string) string { return aws.NewRebalanceMessage(id, time.Now()) }},
		{"each-state", func(id string) string { return aws.NewStateMessage(id, "stopping", time.Now()) }},
		{"each-reservation", func(id string) string { return aws.NewCapacityReservationMessage(id, "terminate", time.Now()) }},
		{"each-health", func(id string) string {
			return aws.NewHealthMessage(aws.HealthEvent{
				Code: "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", Instances: []string{newID("each-foreign"), id}, Start: time.Now().Add(20 * time.Second), // it acts at half of that
			}, time.Now())
		}},
		{"each-eventbridge", lifecycle(aws.ThroughEventBridge)},
		{"each-direct", lifecycle(aws.DirectToQueue)},
		{"each-topic", lifecycle(aws.ThroughTopic)},
	}
	ids, messages := map[string]string{}, map[string]string{}
	for _, r := range rows {
		ids[r.name] = f.addNode(r.name)
		f.runPods(r.name, 2, "1")
	}
	for _, r := range rows {
		body := r.message(ids[r.name])
		messages[r.name] = f.send(body)
		f.send(body) // a duplicate with another ID
	}
	for _, r := range rows {
		f.awaitDrained(r.name)
		f.awaitDeleted(messages[r.name])
	}
	for _, name := range []string{"each-eventbridge", "each-direct", "each-topic"} {
		f.await("the hook of "+name+" is completed", func() bool { return f.cloud.AutoScaling.Result(ids[name]) == "CONTINUE" })
	}
	if n := f.getNode("each-other"); n.Spec.Unschedulable || strings.Contains(n.Annotations["slipway.dev/cordon"], "aws") {
		t.Errorf("the other node was touched: %+v", n.Annotations)
	}
}

func TestMessageOfUnknownInstanceWaitsForItsNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "unknown")
	foreign := f.send(aws.NewSpotMessage(newID("unknown-foreign"), zone, "terminate", time.Now()))
	late := f.send(aws.NewStateMessage(newID("unknown-late"), "stopping", time.Now()))
	f.await("the message is received", func() bool { return len(f.record(late).Receives) > 0 })
	f.addNode("unknown-late") // joins within the grace time
	f.awaitDrained("unknown-late")
	f.awaitDeleted(late)
	m := f.awaitDeleted(foreign)
	if waited := m.Deleted.Sub(m.Receives[0]); waited < unknownTime {
		t.Errorf("the message of another cluster was deleted after %s, want at least %s", waited, unknownTime)
	}
}

func TestPoisonIsParkedAndOthersAreHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "poison")
	var ids []string
	for _, body := range aws.PoisonMessages()[:poisonForms] {
		ids = append(ids, f.send(body))
	}
	test := f.send(aws.NewTestMessage("workers", time.Now()))
	id := f.addNode("poison-good")
	good := f.send(aws.NewStateMessage(id, "shutting-down", time.Now()))
	f.awaitDrained("poison-good")
	f.awaitDeleted(good)
	f.awaitDeleted(test)
	for _, id := range ids {
		f.await("message "+id+" is a dead letter", func() bool { return !f.record(id).DeadLettered.IsZero() })
		if m := f.record(id); len(m.Receives) != 4 || !m.Deleted.IsZero() {
			t.Errorf("poison %q: %d receives, deleted %s; want 4 receives, as the redrive policy says", m.Body, len(m.Receives), m.Deleted)
		}
	}
	if got := f.readMetric("slipway_queue_messages_parked_total"); got < float64(len(ids)) {
		t.Errorf("%v messages are parked, want at least %d", got, len(ids))
	}
	if !shared.process.IsAlive() {
		t.Error("the manager has ended")
	}
}

func TestHookIsHeldDuringDrainAndThenCompleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hook")
	const node = "hook-node"
	id := f.addNode(node)
	f.runPods(node, 2, "9")
	action := f.cloud.AutoScaling.StartAction(id, aws.Terminating)[0]
	message := f.send(aws.NewLifecycleMessage(action, aws.DirectToQueue, time.Now()))
	f.await("the hook has ended", func() bool { return f.cloud.AutoScaling.Result(id) != "" })
	ended := time.Now()
	if got := f.cloud.AutoScaling.Result(id); got != "CONTINUE" {
		t.Errorf("the hook ended with %s", got)
	}
	beats := 0
	for _, c := range f.cloud.AutoScaling.Calls("RecordLifecycleActionHeartbeat") {
		if c.Form.Get("LifecycleActionToken") == action.Token || c.Form.Get("InstanceId") == id {
			beats++
		}
	}
	if beats < 2 {
		t.Errorf("%d heartbeats in a drain of 9 s with a timeout of %s", beats, hookTimeout)
	}
	pods, err := f.AwaitPods(f.ctx, node, "read", func([]corev1.Pod) bool { return true })
	f.check(err)
	for _, p := range pods {
		if p.Namespace == f.ns {
			t.Errorf("pod %s still runs after the hook was completed", p.Name)
		}
	}
	if m := f.awaitDeleted(message); m.Deleted.Before(ended.Add(-5 * time.Second)) {
		t.Errorf("the message was deleted %s before the hook ended", ended.Sub(m.Deleted))
	}
}

func TestLaunchHookContinuesWhenNodeIsReady(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "launch")
	const node = "launch-node"
	id := newID(node)
	f.cloud.EC2.Put(aws.EC2Instance{ID: id, Zone: zone, PrivateDNSName: node, State: "running"})
	action := f.cloud.AutoScaling.StartAction(id, aws.Launching)[0]
	message := f.send(aws.NewLifecycleMessage(action, aws.ThroughEventBridge, time.Now()))
	f.await("the message is received", func() bool { return len(f.record(message).Receives) > 0 })
	if got := f.cloud.AutoScaling.Result(id); got != "" {
		t.Errorf("the hook ended with %s before the node joined", got)
	}
	f.addNode(node)
	f.await("the hook is completed", func() bool { return f.cloud.AutoScaling.Result(id) == "CONTINUE" })
	f.awaitDeleted(message)
	if f.getNode(node).Spec.Unschedulable {
		t.Error("the new node is cordoned")
	}
}
