package queueagents

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/smithy-go"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

// bridge returns an event of EventBridge that happens now.
func bridge(source, detailType, detail string) string {
	return fmt.Sprintf(`{"id":"event","detail-type":%q,"source":%q,"time":%q,"detail":%s}`, detailType, source, time.Now().UTC().Format(time.RFC3339), detail)
}

func spot(instance string) string {
	return bridge("aws.ec2", "EC2 Spot Instance Interruption Warning", fmt.Sprintf(`{"instance-id":%q,"instance-action":"terminate"}`, instance))
}

func stateChange(instance, state string) string {
	return bridge("aws.ec2", "EC2 Instance State-change Notification", fmt.Sprintf(`{"instance-id":%q,"state":%q}`, instance, state))
}

// hook returns a message of a lifecycle hook that waits in w.
func (w *world) hook(instance, transition, token string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hooks[token] = true
	return fmt.Sprintf(`{"LifecycleActionToken":%q,"AutoScalingGroupName":"workers","LifecycleHookName":"drain","EC2InstanceId":%q,"LifecycleTransition":"autoscaling:EC2_INSTANCE_%s"}`,
		token, instance, transition)
}

// timedHook returns a message as hook, with the current time.
func (w *world) timedHook(instance, transition, token string) string {
	return fmt.Sprintf(`{"Time":%q,%s`, time.Now().UTC().Format(time.RFC3339), w.hook(instance, transition, token)[1:])
}

// terminateHook returns the event of hook with the transition TERMINATING and the token "token".
func terminateHook() *queue.Event {
	return &queue.Event{Kind: queue.ASGTerminate, Hook: queue.Hook{Group: "workers", Name: "drain", Token: "token"}}
}

func (w *world) waitingHooks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.hooks)
}

func TestMessageIsDeletedOnlyOnceItsNodeIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = 5 * time.Minute // longer than the visibility
		w.addNode("a", "i-0a")
		w.send(spot("i-0a"))
		defer w.start()()
		time.Sleep(4 * time.Minute)
		if w.countMessages() != 1 || w.drainsOf("a") != 1 {
			t.Fatalf("%d messages, %d drains", w.countMessages(), w.drainsOf("a"))
		}
		w.mu.Lock()
		receives := w.messages["message-1"].receives
		w.mu.Unlock()
		if receives != 1 {
			t.Errorf("the message was delivered %d times", receives)
		}
		await(t, "the message is still there", 2*time.Minute, func() bool { return w.countMessages() == 0 })
		w.send(spot("i-0a")) // a duplicate after the drain
		await(t, "the duplicate is still there", time.Minute, func() bool { return w.countMessages() == 0 })
		if w.drainsOf("a") != 1 {
			t.Errorf("%d drains", w.drainsOf("a"))
		}
	})
}

// A process that has lost its Lease goes on without the queue.
func TestProcessWithoutTheQueueHasNoAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = 5 * time.Minute
		w.addNode("a", "i-0a")
		w.send(spot("i-0a"))
		stop := w.start()
		time.Sleep(time.Minute)
		gauges := []string{
			"slipway_queue_oldest_unhandled_message_age_seconds", "slipway_queue_unhandled_messages", "slipway_queue_unhandled_nodes", "slipway_queue_agents",
		}
		read := func() string {
			answer := httptest.NewRecorder()
			w.metrics.ServeHTTP(answer, nil)
			return answer.Body.String()
		}
		for _, g := range gauges {
			if strings.Contains(read(), "\n"+g+" 0\n") {
				t.Errorf("%s is 0 while a node drains", g)
			}
		}
		stop()
		for _, g := range gauges {
			if !strings.Contains(read(), "\n"+g+" 0\n") {
				t.Errorf("%s is not 0 after the end", g)
			}
		}
	})
}

func TestKillsLoseNoMessageAndRepeatNoDrain(t *testing.T) {
	for seed := range 2 {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 0))
			w := newWorld(t)
			const nodes = 12
			for i := range nodes {
				w.addNode(fmt.Sprintf("n%d", i), fmt.Sprintf("i-%04x", i))
			}
			for i := range 120 {
				instance := fmt.Sprintf("i-%04x", r.IntN(nodes))
				switch r.IntN(4) {
				case 0:
					w.send(w.hook(instance, "TERMINATING", "token-"+instance))
				case 1:
					w.send(stateChange(instance, "shutting-down"))
				default:
					w.send(spot(instance))
				}
				if i%24 == 0 {
					w.send("poison")
				}
			}
			for range 15 {
				w.setClockAhead(randomClock(r)) // of another machine
				kill := w.start()
				for _, request := range []string{"receive", "delete", "delete answer", "complete", "heartbeat", "hooks", "visibility", "list"} {
					w.fail(request, nil)
					if r.IntN(3) == 0 {
						w.fail(request, errors.New("lost"))
					}
				}
				time.Sleep(time.Duration(r.IntN(int(20 * time.Second))))
				w.setClockAhead(randomClock(r))
				time.Sleep(time.Duration(r.IntN(int(20 * time.Second))))
				kill()
			}
			clear(w.fails)
			defer w.start()()
			await(t, "messages are left", 10*time.Minute, func() bool { return w.countMessages() == 5 }) // the unreadable ones
			for i := range nodes {
				if n := w.drainsOf(fmt.Sprintf("n%d", i)); n != 1 {
					t.Errorf("node %d: %d drains", i, n)
				}
			}
			if w.waitingHooks() != 0 {
				t.Errorf("%d hooks wait", w.waitingHooks())
			}
		})
	}
}

// randomClock returns how far a clock may be ahead.
func randomClock(r *rand.Rand) time.Duration {
	return []time.Duration{0, 2 * time.Hour, -2 * time.Hour, 26 * time.Hour}[r.IntN(4)]
}

// AWS refuses the completions for hours, while clocks are set, drains run and processes come and go on machines with other clocks.
func TestNodesStayDrainedWhileAWSRefusesTheirHooks(t *testing.T) {
	for seed := range 3 {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			w := newWorld(t)
			w.drainTime = time.Duration(r.IntN(int(40 * time.Minute)))
			w.fail("complete", &smithy.GenericAPIError{Code: []string{"AccessDenied", "ValidationError"}[r.IntN(2)]})
			const nodes = 6
			var ids []string
			for i := range nodes {
				name, instance := fmt.Sprintf("n%d", i), fmt.Sprintf("i-%04x", i)
				w.addNode(name, instance)
				w.send(w.timedHook(instance, "TERMINATING", "token-"+instance))
				if r.IntN(2) == 0 {
					w.send(spot(instance))
				}
				hook := queue.Event{Kind: queue.ASGTerminate, Hook: queue.Hook{Group: "workers", Name: "drain", Token: "token-" + instance}}
				ids = append(ids, hook.NoticeID())
			}
			w.setClockAhead(randomClock(r))
			kill := w.start()
			defer func() { kill() }()
			for step := range 30 {
				time.Sleep(time.Minute + time.Duration(r.IntN(int(12*time.Minute))))
				for i, id := range ids {
					if phase := w.phaseOf(fmt.Sprintf("n%d", i), id); phase != "draining" && phase != "drained" {
						t.Fatalf("seed %d, step %d: node %d has the phase %q while its hook waits", seed, step, i, phase)
					}
				}
				switch r.IntN(3) {
				case 0:
					w.setClockAhead(randomClock(r))
				case 1:
					kill()
					w.setClockAhead(randomClock(r))
					kill = w.start()
				case 2:
					i := r.IntN(nodes)
					w.setNode(fmt.Sprintf("n%d", i), func(n *kubeapi.Node) { n.Status.Conditions[0].LastTransitionTime = time.Now() })
				}
			}
			w.fail("complete", nil)
			await(t, "messages are left", time.Hour, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
			for i := range nodes {
				if n := w.drainsOf(fmt.Sprintf("n%d", i)); n != 1 {
					t.Errorf("seed %d: %d drains of node %d", seed, n, i)
				}
			}
		})
	}
}

func TestMessageOfNoNodeIsDeletedAfterTheGrace(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.setClockAhead(ahead)
			w.send(spot("i-0a"))
			w.send(spot("i-0b"))
			defer w.start()()
			time.Sleep(time.Minute)
			w.mu.Lock()
			watch := w.watch
			w.watch = nil // the watch is behind
			w.mu.Unlock()
			w.addNode("b", "i-0b")
			time.Sleep(8 * time.Minute)
			if w.countMessages() != 2 {
				t.Fatalf("clock %v ahead: %d messages before the grace has passed", ahead, w.countMessages())
			}
			await(t, "the message of no node is left", 2*time.Minute, func() bool { return w.countMessages() == 1 })
			time.Sleep(time.Minute)
			if w.countMessages() != 1 {
				t.Fatal("deleted the message of a node that the watch does not show yet")
			}
			w.mu.Lock()
			w.watch = watch
			w.mu.Unlock()
			w.addNode("b", "i-0b")
			await(t, "the late node is not drained", time.Minute, func() bool { return w.drainsOf("b") == 1 && w.countMessages() == 0 })
		})
	}
}

func TestLateNodeIsDrainedAfterItsMessageIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.DeleteIfNodeNotFound = true
		w.send(spot("i-0a"))
		defer w.start()()
		time.Sleep(20 * time.Second)
		if w.countMessages() != 0 {
			t.Fatalf("%d messages are left without a node", w.countMessages())
		}
		w.addNode("a", "i-0a")
		w.setNode("a", func(n *kubeapi.Node) { n.Status.Conditions[0].LastTransitionTime = time.Now() })
		await(t, "the late node is not drained", 10*time.Second, func() bool {
			return w.drainsOf("a") == 1 && w.phaseOf("a", string(queue.SpotInterruption)) == "drained"
		})
	})
}

func TestUnreadableMessageIsReportedOnceAndParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addNode("a", "i-0a")
		w.send("{")
		w.send(`{"Event":"autoscaling:TEST_NOTIFICATION"}`)
		w.send(spot("i-0a"))
		defer w.start()()
		time.Sleep(2 * time.Hour)
		w.mu.Lock()
		defer w.mu.Unlock()
		m := w.messages["message-1"]
		if len(w.messages) != 1 || m == nil || w.unreadable != 1 || m.receives < 5 || m.receives > 15 {
			t.Errorf("%d messages, reported %d times, %+v", len(w.messages), w.unreadable, m)
		}
	})
}

func TestLaunchHookIsCompletedOnceTheNodeIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.send(w.hook("i-0a", "LAUNCHING", "launch"))
		defer w.start()()
		time.Sleep(30 * time.Second)
		w.setNode("a", func(n *kubeapi.Node) {
			n.Spec.ProviderID = "aws:///eu-west-1a/i-0a"
			n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "False", LastTransitionTime: time.Now()}}
		})
		time.Sleep(30 * time.Second)
		if w.waitingHooks() != 1 || w.countMessages() != 1 {
			t.Fatal("the hook is completed before the node is Ready")
		}
		w.setNode("a", func(n *kubeapi.Node) { n.Status.Conditions[0].Status = "True" })
		await(t, "the hook waits", time.Minute, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
		if w.drainsOf("a") != 0 {
			t.Error("a launched node is drained")
		}
	})
}

func TestTerminateHookIsKeptWaitingWhileTheNodeDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.CompletionDelay = 10 * time.Second
		w.drainTime = 5 * time.Minute
		w.addNode("a", "i-0a")
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		defer w.start()()
		time.Sleep(5 * time.Minute)
		w.mu.Lock()
		heartbeats := w.heartbeats
		w.mu.Unlock()
		if heartbeats < 5 || heartbeats > 6 || w.waitingHooks() != 1 {
			t.Errorf("%d heartbeats in 5m with a timeout of 2m, %d hooks wait", heartbeats, w.waitingHooks())
		}
		await(t, "the hook waits", time.Minute, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
		time.Sleep(5 * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.heartbeats > heartbeats+1 {
			t.Errorf("%d heartbeats after the completion", w.heartbeats-heartbeats)
		}
	})
}

func TestHookIsKeptWaitingAfterItsNodeWasRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = time.Hour
		w.addNode("a", "i-0a")
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		defer w.start()()
		await(t, "no heartbeat is sent", time.Minute, func() bool { return w.countHeartbeats() > 0 })
		w.deleteNode("a")
		time.Sleep(5 * time.Second)
		before := w.countHeartbeats()
		w.addNode("a", "i-0a")
		time.Sleep(5 * time.Minute)
		if n := w.countHeartbeats() - before; n < 5 || n > 6 {
			t.Errorf("%d heartbeats in 5m with a timeout of 2m, want 5 or 6", n)
		}
	})
}

func TestHookOfCordonedNodeIsCompletedAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.policy.ActionByType[notice.Terminate] = agent.Cordon
		w.config.CompletionDelay = 5 * time.Minute // longer than the timeout of the hook, 2 minutes
		w.addNode("a", "i-0a")
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		defer w.start()()
		time.Sleep(290 * time.Second)
		if heartbeats := w.countHeartbeats(); w.waitingHooks() != 1 || heartbeats != 5 {
			t.Errorf("10 s before the end of the delay: %d hooks wait after %d heartbeats, want 1 after 5", w.waitingHooks(), heartbeats)
		}
		await(t, "the hook waits", time.Minute, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
		before := w.countHeartbeats()
		time.Sleep(5 * time.Minute)
		if after := w.countHeartbeats() - before; after != 0 {
			t.Errorf("%d heartbeats after the completion", after)
		}
	})
}

func TestRenamedNodeIsDrainedAndReusedNameIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = time.Minute
		w.addNode("a", "i-0a")
		w.send(spot("i-0a"))
		defer w.start()()
		await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf("a") == 1 })
		w.deleteNode("a")
		w.addNode("a", "i-0b") // another instance with the name
		w.addNode("c", "i-0a") // the instance with another name
		await(t, "the renamed node is not drained", time.Minute, func() bool { return w.drainsOf("c") == 1 })
		await(t, "the message is left", 3*time.Minute, func() bool { return w.countMessages() == 0 })
		if w.drainsOf("a") != 1 || w.phaseOf("a", string(queue.SpotInterruption)) != "" {
			t.Errorf("the new node with the name: %d drains, phase %q", w.drainsOf("a"), w.phaseOf("a", string(queue.SpotInterruption)))
		}
	})
}

func TestNoticesOfTwoKindsAreOneDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addNode("a", "i-0a")
		w.send(spot("i-0a"))
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		w.send(bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0a"}`))
		defer w.start()()
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 0 })
		w.send(stateChange("i-0a", "shutting-down"))
		await(t, "the last message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		if w.drainsOf("a") != 1 || w.waitingHooks() != 0 || w.phaseOf("a", string(queue.StateChange)) != "drained" || w.phaseOf("a", string(queue.Rebalance)) != "cordoned" {
			t.Errorf("%d drains, %d hooks, state change %q, rebalance %q", w.drainsOf("a"), w.waitingHooks(), w.phaseOf("a", string(queue.StateChange)), w.phaseOf("a", string(queue.Rebalance)))
		}
	})
}

func health(status string, starts time.Time) string {
	return healthOf(`{"entityValue":"i-0a","status":"PENDING"},{"entityValue":"i-0ff"}`, status, starts)
}

// healthOf returns a scheduled event with these entities.
func healthOf(entities, status string, starts time.Time) string {
	return bridge("aws.health", "AWS Health Event", fmt.Sprintf(`{"eventArn":"arn:aws:health:eu-west-1::event/EC2/X/1","service":"EC2","eventTypeCategory":"scheduledChange",`+
		`"eventTypeCode":"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED","statusCode":%q,"startTime":%q,"affectedEntities":[%s]}`,
		status, starts.UTC().Format(time.RFC1123), entities))
}

func TestScheduledEventWaitsOnTheNodeUntilItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.DeleteIfNodeNotFound = true // of the other instance
		w.addNode("a", "i-0a")
		event := queue.Event{Kind: queue.ScheduledEvent, ID: "arn:aws:health:eu-west-1::event/EC2/X/1"}
		w.send(health("upcoming", time.Now().Add(48*time.Hour)))
		kill := w.start()
		defer func() { kill() }()
		await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		time.Sleep(time.Hour)
		kill()
		kill = w.start()
		w.send(health("upcoming", time.Now().Add(4*time.Hour))) // earlier than announced
		await(t, "the second message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		time.Sleep(4*time.Hour - 20*time.Minute)
		if w.drainsOf("a") != 0 {
			t.Fatal("drained 20 minutes before the event")
		}
		time.Sleep(10 * time.Minute)
		if w.drainsOf("a") != 1 || w.phaseOf("a", event.NoticeID()) != "drained" {
			t.Fatalf("%d drains 10 minutes before the event, phase %q", w.drainsOf("a"), w.phaseOf("a", event.NoticeID()))
		}
		time.Sleep(15 * time.Minute)
		w.setNode("a", func(n *kubeapi.Node) { n.Status.Conditions[0].LastTransitionTime = time.Now() }) // rebooted
		await(t, "the node is not restored", time.Minute, func() bool { return w.phaseOf("a", event.NoticeID()) == "" })
		w.mu.Lock()
		defer w.mu.Unlock()
		if annotation, has := w.nodes["a"].Annotations[PlannedAnnotation]; has {
			t.Errorf("annotation %s is left: %s", PlannedAnnotation, annotation)
		}
	})
}

func TestClosedEventRestoresTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.DeleteIfNodeNotFound = true
		w.addNode("a", "i-0a")
		event := queue.Event{Kind: queue.ScheduledEvent, ID: "arn:aws:health:eu-west-1::event/EC2/X/1"}
		w.send(health("upcoming", time.Now().Add(5*time.Minute)))
		defer w.start()()
		await(t, "the node is not drained", time.Minute, func() bool { return w.phaseOf("a", event.NoticeID()) == "drained" && w.countMessages() == 0 })
		w.send(health("closed", time.Now().Add(5*time.Minute)))
		await(t, "the node is not restored", time.Minute, func() bool { return w.phaseOf("a", event.NoticeID()) == "" && w.countMessages() == 0 })
		time.Sleep(time.Hour)
		if w.drainsOf("a") != 1 {
			t.Errorf("%d drains", w.drainsOf("a"))
		}
	})
}

func TestOlderEndOfAnEventIsIgnored(t *testing.T) {
	for _, isTogether := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.config.DeleteIfNodeNotFound = true // of the other instance
			w.drainTime = 10 * time.Minute
			w.addNode("a", "i-0a")
			starts := time.Now().Add(10 * time.Minute)
			closed := health("closed", starts)
			time.Sleep(5 * time.Second)
			w.send(health("upcoming", starts))
			if isTogether {
				w.send(closed)
			}
			defer w.start()()
			time.Sleep(5 * time.Second)
			if !isTogether {
				w.send(closed)
			}
			id := (&queue.Event{Kind: queue.ScheduledEvent, ID: "arn:aws:health:eu-west-1::event/EC2/X/1"}).NoticeID()
			for range 60 {
				time.Sleep(time.Second)
				if phase := w.phaseOf("a", id); phase != "draining" {
					t.Fatalf("delivered together %v: the phase is %q, want draining", isTogether, phase)
				}
			}
			if n := w.countMessages(); n != 1 {
				t.Errorf("delivered together %v: %d messages are left, want the newer one", isTogether, n)
			}
		})
	}
}

func TestInstanceWithoutManagedTagIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.CheckTag = true
		w.addNode("a", "i-0a")
		w.addNode("b", "i-0b")
		w.tags["i-0a"], w.tags["i-0b"] = []string{w.config.ManagedTag}, []string{"other"}
		w.fail("describe", errors.New("throttled"))
		w.send(spot("i-0a"))
		w.send(spot("i-0b"))
		w.send(spot("i-0c"))
		defer w.start()()
		time.Sleep(time.Minute)
		if w.drainsOf("a")+w.drainsOf("b") != 0 || w.countMessages() != 3 {
			t.Fatal("acted on an instance with unknown tags")
		}
		w.fail("describe", nil)
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 1 })
		if w.drainsOf("a") != 1 || w.drainsOf("b") != 0 {
			t.Errorf("drains: %d with the tag, %d without", w.drainsOf("a"), w.drainsOf("b"))
		}
		time.Sleep(7 * time.Minute)
		if w.countMessages() != 1 {
			t.Error("the message of an instance that EC2 does not list is deleted before the grace has passed")
		}
		await(t, "the message of an instance that EC2 does not list is left", 3*time.Minute, func() bool { return w.countMessages() == 0 })
	})
}

// EC2 is eventually consistent.
func TestInstanceThatEC2ListsLaterIsHandled(t *testing.T) {
	for name, adjust := range map[string]func(*queue.Config){
		"tag": func(c *queue.Config) { c.CheckTag = true }, "DNS name": func(c *queue.Config) { c.UseNodeNameByDNS = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			const node = "ip-10-0-0-1.ec2.internal"
			w := newWorld(t)
			adjust(&w.config)
			w.setNode(node, func(n *kubeapi.Node) {
				n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True", LastTransitionTime: time.Now()}}
				if w.config.CheckTag {
					n.Spec.ProviderID = "aws:///eu-west-1a/i-0a"
				}
			})
			w.send(w.hook("i-0a", "LAUNCHING", "launch"))
			defer w.start()()
			time.Sleep(30 * time.Second)
			if w.waitingHooks() != 1 || w.countMessages() != 1 {
				t.Fatalf("%s: %d hooks wait and %d messages are left before EC2 lists the instance", name, w.waitingHooks(), w.countMessages())
			}
			w.mu.Lock()
			w.tags["i-0a"], w.dnsNames["i-0a"] = []string{w.config.ManagedTag}, node
			w.mu.Unlock()
			await(t, name+": the hook waits", 10*time.Second, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
		})
	}
}

func TestNodeWithoutProviderIDIsFoundByDNSName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.UseNodeNameByDNS = true
		w.setNode("ip-10-0-0-1.ec2.internal", func(n *kubeapi.Node) { n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}} })
		w.dnsNames["i-0a"] = "IP-10-0-0-1.ec2.internal"
		w.send(spot("i-0a"))
		defer w.start()()
		await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		if w.drainsOf("ip-10-0-0-1.ec2.internal") != 1 {
			t.Error("the node is not drained")
		}
	})
}

func TestInstanceThatRunsAgainIsRestored(t *testing.T) {
	for _, ahead := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.setClockAhead(ahead)
			w.addNode("a", "i-0a")
			w.send(stateChange("i-0a", "stopping"))
			kill := w.start()
			defer func() { kill() }()
			await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
			time.Sleep(time.Minute)
			old := stateChange("i-0a", "stopped") // delivered late
			time.Sleep(time.Minute)
			w.send(stateChange("i-0a", "running"))
			w.send(old)
			await(t, fmt.Sprintf("the node is not restored by a clock that is %v ahead", ahead), time.Minute, func() bool {
				return w.phaseOf("a", string(queue.StateChange)) == "" && w.countMessages() == 0
			})
		})
	}
}

func TestWrongClockEndsNoNotice(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		for _, nodeAhead := range []time.Duration{0, ahead} { // the node has the clock of AWS, or that of the process
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.setClockAhead(ahead)
				w.addNode("a", "i-0a")
				w.setNode("a", func(n *kubeapi.Node) { n.Status.Conditions[0].LastTransitionTime = time.Now().Add(nodeAhead) })
				launched := stateChange("i-0a", "running") // delivered late
				time.Sleep(4 * time.Minute)
				w.send(spot("i-0a"))
				defer w.start()()
				await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
				w.send(launched)
				await(t, "the late message is left", time.Minute, func() bool { return w.countMessages() == 0 })
				time.Sleep(10 * time.Second)
				if phase := w.phaseOf("a", string(queue.SpotInterruption)); w.drainsOf("a") != 1 || phase != "drained" {
					t.Errorf("clock %v ahead, clock of the node %v ahead: %d drains, phase %q", ahead, nodeAhead, w.drainsOf("a"), phase)
				}
			})
		}
	}
}

func TestClockThatIsSetDuringADrainEndsNoNotice(t *testing.T) {
	for _, set := range [][2]time.Duration{{2 * time.Hour, 0}, {-2 * time.Hour, 0}, {0, 49 * time.Hour}, {25 * time.Hour, 25 * time.Hour}, {49 * time.Hour, 49 * time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.setClockAhead(set[0])
			w.drainTime = 10 * time.Minute
			w.addNode("a", "i-0a")
			w.addNode("b", "i-0b")
			w.send(spot("i-0a"))
			w.send(w.timedHook("i-0b", "TERMINATING", "token"))
			defer w.start()()
			time.Sleep(time.Minute)
			w.setClockAhead(set[1])
			await(t, fmt.Sprintf("clock %v ahead: the messages are left", set), 10*time.Minute, func() bool { return w.countMessages() == 0 })
			if w.drainsOf("a") != 1 || w.drainsOf("b") != 1 || w.waitingHooks() != 0 || w.phaseOf("a", string(queue.SpotInterruption)) != "drained" {
				t.Errorf("clock %v ahead: %d and %d drains, %d hooks wait, phase %q", set, w.drainsOf("a"), w.drainsOf("b"), w.waitingHooks(), w.phaseOf("a", string(queue.SpotInterruption)))
			}
		})
	}
}

func TestClockOfEarlierProcessIsCorrected(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.setClockAhead(ahead)
			w.drainTime = 30 * time.Second
			w.addNode("a", "i-0a")
			w.send(spot("i-0a"))
			kill := w.start()
			await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf("a") == 1 })
			kill()
			recorded := w.clockAheadOf("a")
			w.setClockAhead(0) // the next process runs elsewhere
			defer w.start()()
			await(t, "the drain does not end", time.Minute, func() bool { return w.phaseOf("a", string(queue.SpotInterruption)) == "drained" })
			if now := w.clockAheadOf("a"); (recorded-ahead).Abs() > 2*time.Second || now != 0 {
				t.Errorf("clock %v ahead: the first process has recorded %v, the second %v", ahead, recorded, now)
			}
			reboot := func() (isRestored bool) {
				w.setNode("a", func(n *kubeapi.Node) { n.Status.Conditions[0].LastTransitionTime = time.Now() })
				time.Sleep(10 * time.Second)
				return w.phaseOf("a", string(queue.SpotInterruption)) == ""
			}
			if reboot() {
				t.Errorf("clock %v ahead: the node is restored before the interruption is due", ahead)
			}
			time.Sleep(3 * time.Minute)
			if !reboot() {
				t.Errorf("clock %v ahead: the node is not restored after the interruption", ahead)
			}
		})
	}
}

func TestNextProcessWithAWrongClockWaitsForTheClockOfAWS(t *testing.T) {
	for _, ahead := range [][3]time.Duration{{2 * time.Hour, 2 * time.Hour, 2 * time.Hour}, {0, 2 * time.Hour, 2 * time.Hour}, {0, 0, 0}} {
		for _, answers := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.config.DeleteIfNodeNotFound = true // of the other instance
				w.setClockAhead(ahead[0])
				w.addNode("a", "i-0a")
				w.send(health("upcoming", time.Now().Add(time.Hour)))
				kill := w.start()
				await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
				w.setClockAhead(ahead[1])
				time.Sleep(2 * time.Minute)
				kill()
				w.setClockAhead(ahead[2])
				w.fail("receive", errors.New("throttled"))
				defer w.start()()
				time.Sleep(2 * time.Minute)
				if answers {
					w.fail("receive", nil)
				}
				time.Sleep(35 * time.Minute)
				if w.drainsOf("a") != 0 {
					t.Errorf("clocks %v ahead, SQS answers %v: drained 20 minutes before the event", ahead, answers)
				}
				await(t, "the node is not drained before the event", 15*time.Minute, func() bool { return w.drainsOf("a") == 1 })
			})
		}
	}
}

func TestNextProcessEndsNoNoticeBeforeItKnowsTheClockOfAWS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = 10 * time.Minute
		w.addNode("a", "i-0a")
		w.send(spot("i-0a"))
		kill := w.start()
		await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf("a") == 1 })
		kill()
		w.setClockAhead(2 * time.Hour) // on another machine
		w.fail("receive", errors.New("throttled"))
		defer w.start()()
		time.Sleep(time.Minute)
		if phase := w.phaseOf("a", string(queue.SpotInterruption)); phase != "draining" {
			t.Errorf("phase %q before SQS has answered", phase)
		}
		w.fail("receive", nil)
		await(t, "the message is left", 15*time.Minute, func() bool { return w.countMessages() == 0 })
		if phase := w.phaseOf("a", string(queue.SpotInterruption)); phase != "drained" || w.drainsOf("a") != 1 {
			t.Errorf("phase %q, %d drains", phase, w.drainsOf("a"))
		}
	})
}

// clockAheadOf returns how far the process's clock is ahead, as the only record of a node says.
func (w *world) clockAheadOf(node string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	reports, _ := report.ReadReports(w.nodes[node].Annotations)
	return reports[0].ClockAhead
}

func TestStartOfAnInstanceNeedsNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.send(stateChange("i-0a", "pending"))
		w.send(stateChange("i-0a", "running"))
		defer w.start()()
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 0 })
	})
}

func TestIgnoredTypeIsDeletedWithoutAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.policy.ActionByType[notice.Preempt] = agent.Ignore
		w.config.IgnoredKinds = []string{string(queue.StateChange)}
		w.addNode("a", "i-0a")
		w.send(spot("i-0a"))
		w.send(stateChange("i-0a", "stopping"))
		defer w.start()()
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 0 })
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.nodes["a"].Annotations) != 0 {
			t.Errorf("annotations %v", w.nodes["a"].Annotations)
		}
	})
}

func TestSlotsGoToTheMostUrgent(t *testing.T) {
	p := newSlotPool(1)
	a, b, c := p.newSlot("a"), p.newSlot("b"), p.newSlot("c")
	now := time.Now()
	a.SetWanted(true, time.Time{})
	b.SetWanted(true, time.Time{})
	c.SetWanted(true, now)
	if !a.IsHeld() || b.IsHeld() || c.IsHeld() || strings.Join(b.Holders(), " ") != "a" {
		t.Fatalf("a %v, b %v, c %v", a.IsHeld(), b.IsHeld(), c.IsHeld())
	}
	a.SetWanted(false, time.Time{})
	if a.IsHeld() || b.IsHeld() || !c.IsHeld() || !a.IsReleased() {
		t.Errorf("a %v, b %v, c %v", a.IsHeld(), b.IsHeld(), c.IsHeld())
	}
}

func TestHookWithoutItsMessageIsNotApproved(t *testing.T) {
	c := New(Options{Config: queue.NewDefaultConfig()})
	c.ctx = t.Context()
	c.addInstance("i-0a").notices["asg-terminate-1"] = &instanceNotice{} // of a record
	go func() {
		for range 2 {
			(<-c.updates)()
		}
	}()
	if c.approve(t.Context(), "i-0a", "asg-terminate-1") == nil {
		t.Error("approved a hook that is not known")
	}
	if err := c.approve(t.Context(), "i-0a", "asg-terminate-2"); err != nil {
		t.Errorf("a notice that has ended: %v", err)
	}
}

func TestScheduledEventWithoutStartKeepsTheKnownOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.DeleteIfNodeNotFound = true // of the other instance
		w.addNode("a", "i-0a")
		starts := time.Now().Add(48 * time.Hour)
		w.send(health("upcoming", starts))
		defer w.start()()
		await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		w.send(strings.Replace(health("upcoming", starts), "startTime", "begins", 1))
		await(t, "the second message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		time.Sleep(time.Hour)
		if w.drainsOf("a") != 0 {
			t.Error("drained 47 hours before the event")
		}
	})
}

func TestInstanceOfWarmPoolThatRunsAgainIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addNode("a", "i-0a")
		started := stateChange("i-0a", "running") // delivered late
		time.Sleep(time.Minute)
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		w.send(bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0a"}`))
		kill := w.start()
		defer func() { kill() }()
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 0 && w.waitingHooks() == 0 })
		w.send(started)
		await(t, "the late message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		hook := terminateHook()
		if w.phaseOf("a", hook.NoticeID()) != "acknowledged" || w.phaseOf("a", string(queue.Rebalance)) != "cordoned" {
			t.Fatal("an older state has ended the notices")
		}
		kill()
		time.Sleep(5 * time.Minute)
		w.send(stateChange("i-0a", "running"))
		kill = w.start()
		await(t, "the node is not restored", time.Minute, func() bool {
			return w.phaseOf("a", hook.NoticeID()) == "" && w.phaseOf("a", string(queue.Rebalance)) == "" && w.countMessages() == 0
		})
	})
}

// AWS announces the end only once, so its message outlives a process that could not remove the records.
func TestEndOfANoticeStaysInTheQueueUntilItsRecordIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addNode("a", "i-0a")
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		w.send(bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0a"}`))
		kill := w.start()
		defer func() { kill() }()
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 0 && w.waitingHooks() == 0 })
		time.Sleep(5 * time.Minute)
		w.fail("record", errors.New("the API server is down"))
		w.send(stateChange("i-0a", "running"))
		time.Sleep(2 * time.Minute)
		if n, phase := w.countMessages(), w.phaseOf("a", string(queue.Rebalance)); n != 1 || phase == "" {
			t.Fatalf("%d messages are left, and the record is %q", n, phase)
		}
		kill()
		w.fail("record", nil)
		kill = w.start()
		hook := terminateHook()
		await(t, "the node is not restored", 2*time.Minute, func() bool {
			return w.phaseOf("a", hook.NoticeID()) == "" && w.phaseOf("a", string(queue.Rebalance)) == "" && w.countMessages() == 0
		})
		if n := w.drainsOf("a"); n != 1 {
			t.Errorf("%d drains, want 1", n)
		}
	})
}

func TestHookOfDaysAgoDrainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		old := w.timedHook("i-0a", "TERMINATING", "token")
		time.Sleep(49 * time.Hour)
		w.addNode("a", "i-0a") // back from a warm pool
		w.send(old)
		defer w.start()()
		await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		if w.drainsOf("a") != 0 || w.waitingHooks() != 1 {
			t.Errorf("%d drains, %d hooks wait", w.drainsOf("a"), w.waitingHooks())
		}
	})
}

func TestPlannedEventOfNodeWithoutProviderIDOutlivesTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "ip-10-0-0-1.ec2.internal"
		w := newWorld(t)
		w.config.UseNodeNameByDNS, w.config.DeleteIfNodeNotFound = true, true
		w.setNode(name, func(n *kubeapi.Node) { n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}} })
		w.dnsNames["i-0a"] = name
		w.send(health("upcoming", time.Now().Add(4*time.Hour)))
		kill := w.start()
		defer func() { kill() }()
		await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		kill()
		kill = w.start()
		time.Sleep(4*time.Hour - 10*time.Minute)
		if w.drainsOf(name) != 1 {
			t.Fatalf("%d drains 10 minutes before the event", w.drainsOf(name))
		}
		// Another instance gets the name, and then its provider ID.
		w.setNode(name, func(n *kubeapi.Node) { n.Spec.ProviderID = "aws:///eu-west-1a/i-0b" })
		event := queue.Event{Kind: queue.ScheduledEvent, ID: "arn:aws:health:eu-west-1::event/EC2/X/1"}
		await(t, "the record of the other instance is left", time.Minute, func() bool { return w.phaseOf(name, event.NoticeID()) == "" })
	})
}

func TestPlannedEventIsDrainedWhileEC2DoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.CheckTag = true
		w.tags["i-0a"] = []string{w.config.ManagedTag}
		w.tags["i-0ff"] = []string{"other"}
		w.addNode("a", "i-0a")
		w.send(health("upcoming", time.Now().Add(4*time.Hour)))
		kill := w.start()
		defer func() { kill() }()
		await(t, "the message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		kill()
		w.fail("describe", errors.New("throttled"))
		w.send(bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0a"}`))
		kill = w.start()
		time.Sleep(4*time.Hour - 10*time.Minute)
		if w.drainsOf("a") != 1 {
			t.Fatalf("%d drains 10 minutes before the event", w.drainsOf("a"))
		}
	})
}

func TestMessagesOfOtherInstancesListTheNodesRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.DeleteIfNodeNotFound = true
		defer w.start()()
		for i := range 60 {
			w.send(spot(fmt.Sprintf("i-%04x", i)))
			time.Sleep(time.Second)
		}
		await(t, "messages are left", time.Minute, func() bool { return w.countMessages() == 0 })
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.lists > 9 {
			t.Errorf("%d lists of all Nodes in about a minute", w.lists)
		}
	})
}

func TestManyInstancesAreLookedUpWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.CheckTag = true
		const nodes = 500
		for i := range nodes {
			id := fmt.Sprintf("i-%04x", i)
			w.addNode(fmt.Sprint("n", i), id)
			w.tags[id] = []string{w.config.ManagedTag}
			w.send(spot(id))
		}
		defer w.start()()
		await(t, "nodes are not drained", 3*time.Second, func() bool {
			for i := range nodes {
				if w.drainsOf(fmt.Sprint("n", i)) == 0 {
					return false
				}
			}
			return true
		})
	})
}

func TestDrainWithoutHeartbeatsEndsWithTheHook(t *testing.T) {
	for keeps, want := range map[bool]time.Duration{true: 0, false: 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.config.NoHeartbeats = !keeps
			w.drainTime = time.Hour
			w.addNode("a", "i-0a")
			began := time.Now()
			w.send(w.timedHook("i-0a", "TERMINATING", "token"))
			time.Sleep(30 * time.Second) // the message waits in the queue
			defer w.start()()
			await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf("a") == 1 })
			w.mu.Lock()
			defer w.mu.Unlock()
			reports, _ := report.ReadReports(w.nodes["a"].Annotations)
			var got time.Duration
			if at := reports[0].NotBefore; !at.IsZero() {
				got = at.Sub(began)
			}
			if got != want {
				t.Errorf("with heartbeats %v: the drain ends %v after the message, want %v", keeps, got, want)
			}
		})
	}
}

// A deadline after the assumed timeout of 1 hour does not exist. The agent would delete the pods in spite of their
// PodDisruptionBudgets.
func TestAssumedHookTimeoutReplacesNoRecordedOne(t *testing.T) {
	for _, delay := range []time.Duration{0, 20 * time.Second} { // the message is received first, or the Nodes
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.hookTimeout, w.drainTime = 2*time.Hour, 3*time.Hour
			w.addNode("a", "i-0a")
			w.send(w.timedHook("i-0a", "TERMINATING", "token"))
			kill := w.start()
			defer func() { kill() }()
			time.Sleep(70 * time.Minute)
			kill()
			time.Sleep(time.Minute) // until SQS delivers the message again
			w.fail("hooks", errors.New("throttled"))
			w.nodesDelay = delay
			clear(w.notices)
			kill = w.start()
			id := terminateHook().NoticeID()
			for range 60 {
				time.Sleep(time.Second)
				if n := w.noticeOf("a", id); n.ID != "" && n.NoticePeriod != 2*time.Hour {
					t.Fatalf("with a delay of %v: the notice period is %v, want the recorded one of 2h", delay, n.NoticePeriod)
				}
			}
			if n := w.noticeOf("a", id); n.ID == "" || n.NotApprovable {
				t.Fatalf("with a delay of %v: the agent has not the hook of its notice: %+v", delay, n)
			}
			w.hookTimeout = 3 * time.Hour // a person has changed the hook
			w.fail("hooks", nil)
			await(t, "the real timeout does not replace the recorded one", time.Minute, func() bool { return w.noticeOf("a", id).NoticePeriod == 3*time.Hour })
		})
	}
}

func TestAssumedHookTimeoutIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.NoHeartbeats = true
		w.hookTimeout, w.drainTime = 5*time.Minute, time.Hour
		w.addNode("a", "i-0a")
		sent := time.Now()
		w.fail("hooks", errors.New("throttled"))
		w.send(w.timedHook("i-0a", "TERMINATING", "token"))
		defer w.start()()
		time.Sleep(5 * time.Second)
		id := terminateHook().NoticeID()
		if n := w.noticeOf("a", id); !n.NotBefore.Equal(sent.Add(time.Hour)) {
			t.Fatalf("the agent has the time %v, want the one of the default timeout", n.NotBefore)
		}
		w.fail("hooks", nil)
		await(t, "the agent does not get the deadline of the hook", 20*time.Second, func() bool {
			n := w.noticeOf("a", id)
			return n.NotBefore.Equal(sent.Add(5*time.Minute)) && n.NoticePeriod == 5*time.Minute
		})
	})
}

func TestHookOfDeletedNodeIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = time.Hour
		w.addNode("a", "i-0a")
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		w.send(w.hook("i-0b", "TERMINATING", "foreign"))
		defer w.start()()
		await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf("a") == 1 })
		w.deleteNode("a")
		time.Sleep(9 * time.Minute)
		if w.waitingHooks() != 2 {
			t.Fatal("a hook is completed before the grace has passed")
		}
		await(t, "the messages are left", 3*time.Minute, func() bool { return w.countMessages() == 0 })
		if w.waitingHooks() != 1 {
			t.Errorf("%d hooks wait, want the one of the instance that had no node", w.waitingHooks())
		}
	})
}

func TestHookOfDeletedNodeAndGroupIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.drainTime = time.Hour
		w.config.CompletionDelay = time.Minute
		w.addNode("a", "i-0a")
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		defer w.start()()
		await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf("a") == 1 })
		w.fail("complete", &smithy.GenericAPIError{Code: "ValidationError", Message: "AutoScalingGroup name not found - AutoScalingGroup workers not found"})
		w.deleteNode("a")
		time.Sleep(12*time.Minute + 50*time.Second) // the grace is 10 minutes, and the timeout of the hook 2 minutes
		w.mu.Lock()
		refused := w.refused
		w.mu.Unlock()
		if w.countMessages() != 1 || refused == 0 {
			t.Errorf("%d messages and %d refused completions while the hook may wait", w.countMessages(), refused)
		}
		await(t, "the message is left", 30*time.Second, func() bool { return w.countMessages() == 0 })
	})
}

func TestMessageWaitsForTheNameOfItsInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "ip-10-0-0-1.ec2.internal"
		w := newWorld(t)
		w.config.UseNodeNameByDNS = true
		w.setNode(name, func(n *kubeapi.Node) { n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}} })
		w.dnsNames["i-0a"] = name
		w.fail("describe", errors.New("throttled"))
		w.send(spot("i-0a"))
		defer w.start()()
		time.Sleep(30 * time.Minute)
		if w.countMessages() != 1 {
			t.Fatal("deleted the message of an instance with an unknown name")
		}
		w.fail("describe", nil)
		await(t, "the node is not drained", time.Minute, func() bool { return w.drainsOf(name) == 1 && w.countMessages() == 0 })
	})
}

func TestResolvedEntityRestoresOnlyItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"a", "b", "c"} {
			w.addNode(name, "i-0"+name)
		}
		event := queue.Event{Kind: queue.ScheduledEvent, ID: "arn:aws:health:eu-west-1::event/EC2/X/1"}
		starts := time.Now().Add(5 * time.Minute)
		w.send(healthOf(`{"entityValue":"i-0a"},{"entityValue":"i-0b","status":"PENDING"},{"entityValue":"i-0c","status":"RESOLVED"}`, "upcoming", starts))
		defer w.start()()
		await(t, "the nodes are not drained", time.Minute, func() bool { return w.drainsOf("a")+w.drainsOf("b") == 2 && w.countMessages() == 0 })
		w.send(healthOf(`{"entityValue":"i-0a","status":"Resolved"},{"entityValue":"i-0b","status":"PENDING"},{"entityValue":"i-0c","status":"RESOLVED"}`, "upcoming", starts))
		await(t, "the node is not restored", time.Minute, func() bool { return w.phaseOf("a", event.NoticeID()) == "" && w.countMessages() == 0 })
		if w.phaseOf("b", event.NoticeID()) != "drained" || w.drainsOf("c") != 0 {
			t.Errorf("the affected node: phase %q; the resolved one: %d drains", w.phaseOf("b", event.NoticeID()), w.drainsOf("c"))
		}
	})
}

// sendFlood sends messages of 10000 other instances, as many as the inbox takes.
func (w *world) sendFlood() {
	for k := range 10 {
		var entities []string
		for i := range 1000 {
			entities = append(entities, fmt.Sprintf(`{"entityValue":"i-%x%04x"}`, k+1, i))
		}
		w.send(healthOf(strings.Join(entities, ","), "upcoming", time.Now().Add(time.Hour)))
	}
}

func TestFloodOfOtherInstancesDelaysNoNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addNode("a", "i-0a")
		w.config.UnknownNodeGrace = 2 * time.Minute
		w.sendFlood()
		defer w.start()()
		for range 8 { // until the flood is older than the grace
			time.Sleep(30 * time.Second)
			w.send(spot("i-0a"))
			left := w.countMessages()
			await(t, "the notice waits for the flood", 15*time.Second, func() bool { return w.countMessages() < left })
		}
		if w.drainsOf("a") != 1 || w.countMessages() != 0 {
			t.Errorf("%d drains; %d messages are left", w.drainsOf("a"), w.countMessages())
		}
	})
}

func TestFloodOfOtherInstancesEndsNoLaunchHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hookTimeout = 5 * time.Minute
		w.send(w.hook("i-0a", "LAUNCHING", "launch"))
		w.sendFlood()
		defer w.start()()
		time.Sleep(230 * time.Second) // the flood comes again after 30 s, 90 s and 210 s
		w.addNode("a", "i-0a")
		await(t, "the hook waits", time.Minute, func() bool { return w.waitingHooks() == 0 })
	})
}

func TestPlannedEventOutlivesItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.DeleteIfNodeNotFound = true // of the other instance
		w.addNode("a", "i-0a")
		w.send(health("upcoming", time.Now().Add(3*time.Hour)))
		w.send(bridge("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0a"}`))
		w.send(w.hook("i-0a", "TERMINATING", "token"))
		defer w.start()()
		await(t, "a message is left", time.Minute, func() bool { return w.countMessages() == 0 })
		w.deleteNode("a")
		time.Sleep(11 * time.Minute) // longer than the grace
		w.addNode("a", "i-0a")
		time.Sleep(49 * time.Minute)
		w.mu.Lock()
		reports, _ := report.ReadReports(w.nodes["a"].Annotations)
		w.mu.Unlock()
		if len(reports) != 0 || w.drainsOf("a") != 1 {
			t.Errorf("%d drains; the new node has the records %v", w.drainsOf("a"), reports)
		}
		w.mu.Lock()
		w.drains["a"] = 0
		w.mu.Unlock()
		time.Sleep(2*time.Hour - 10*time.Minute)
		if w.drainsOf("a") != 1 {
			t.Errorf("%d drains 10 minutes before the event", w.drainsOf("a"))
		}
	})
}

func TestRefusedCompletionIsRetriedAndReported(t *testing.T) {
	for name, policy := range map[string]agent.Action{"drained": agent.Drain, "cordoned": agent.Cordon} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.policy.ActionByType[notice.Terminate] = policy
			w.addNode("a", "i-0a")
			w.fail("complete", &smithy.GenericAPIError{Code: "ValidationError", Message: "AutoScalingGroup name not found - AutoScalingGroup workers not found"})
			w.send(w.hook("i-0a", "TERMINATING", "token"))
			defer w.start()()
			time.Sleep(10 * time.Minute)
			w.mu.Lock()
			refused := w.refused
			w.mu.Unlock()
			if w.countMessages() != 1 || refused == 0 {
				t.Errorf("%s: %d messages while the group is unknown, %d reports", name, w.countMessages(), refused)
			}
			w.fail("complete", nil)
			await(t, name+": the hook waits", time.Minute, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
			w.send(w.hook("i-0a", "TERMINATING", "token"))
			w.mu.Lock()
			delete(w.hooks, "token") // by an agent on the node
			w.mu.Unlock()
			await(t, name+": the message of a completed hook is left", time.Minute, func() bool { return w.countMessages() == 0 })
		})
	}
}

func TestNodeIsNotRestoredWhileItsHookWaits(t *testing.T) {
	refusals := map[string]error{
		"no right":      &smithy.GenericAPIError{Code: "AccessDenied"},
		"unknown group": &smithy.GenericAPIError{Code: "ValidationError", Message: "AutoScalingGroup name not found - AutoScalingGroup workers not found"},
	}
	for name, refusal := range refusals {
		for _, restarts := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				hook := terminateHook()
				w := newWorld(t)
				w.addNode("a", "i-0a")
				w.fail("complete", refusal)
				w.send(w.timedHook("i-0a", "TERMINATING", "token"))
				kill := w.start()
				defer func() { kill() }()
				time.Sleep(3 * time.Hour) // the node survives the timeout of the hook by more than an hour; heartbeats end after 200 minutes
				// The kubelet has restarted.
				w.setNode("a", func(n *kubeapi.Node) { n.Status.Conditions[0].LastTransitionTime = time.Now() })
				time.Sleep(time.Minute)
				if restarts {
					kill()
					w.fail("receive", errors.New("throttled"))
					kill = w.start()
					time.Sleep(time.Minute)
					w.fail("receive", nil)
					time.Sleep(time.Minute)
				}
				before := w.countHeartbeats()
				time.Sleep(5 * time.Minute)
				if phase := w.phaseOf("a", hook.NoticeID()); phase != "drained" || w.countMessages() != 1 || w.countHeartbeats() == before {
					t.Errorf("%s, restarts %v: phase %q, %d messages, %d heartbeats in 5 minutes", name, restarts, phase, w.countMessages(), w.countHeartbeats()-before)
				}
				w.fail("complete", nil)
				await(t, name+": the hook waits", time.Minute, func() bool { return w.waitingHooks() == 0 && w.countMessages() == 0 })
				if w.drainsOf("a") != 1 {
					t.Errorf("%s, restarts %v: %d drains", name, restarts, w.drainsOf("a"))
				}
			})
		}
	}
}

func TestHookThatIsRefusedForGoodIsDroppedOnceItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addNode("a", "i-0a")
		w.fail("complete", &smithy.GenericAPIError{Code: "AccessDenied"})
		began := time.Now().Add(10*time.Minute - 48*time.Hour) // the limit of AWS is 48 hours
		w.send(fmt.Sprintf(`{"Time":%q,%s`, began.UTC().Format(time.RFC3339), w.hook("i-0a", "TERMINATING", "token")[1:]))
		defer w.start()()
		time.Sleep(9 * time.Minute)
		if w.countMessages() != 1 || w.drainsOf("a") != 1 {
			t.Errorf("%d messages and %d drains while the hook may wait, want 1 and 1", w.countMessages(), w.drainsOf("a"))
		}
		await(t, "the message is left", 2*time.Minute, func() bool { return w.countMessages() == 0 })
	})
}
