package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestI8KillAtAnyRequestDrainsOnceAndCompletesHook kills the process at each request of one drain for a lifecycle hook: once
// before the request, and for a write once after the answer.
func TestI8KillAtAnyRequestDrainsOnceAndCompletesHook(t *testing.T) {
	testbed.UseOneThread(t)
	run := func(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request) {
		synctest.Test(t, func(t *testing.T) { seen = runKilled(t, at, moment) })
		return seen
	}
	seen := run(t, faultproxy.RequestID{}, "")
	t.Logf("one drain takes %d requests: %s", len(seen), faultproxy.FormatKinds(seen))
	chosen := dropPolls(seen)
	faultproxy.RunAtEachRequest(t, chosen, t.Errorf, func(t *testing.T, _ int, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
		return run(t, at, moment)
	})
	testbed.AddSummaryNote(t, fmt.Sprintf("queue: %d kill points of one drain in virtual time", faultproxy.CountKillPoints(chosen)))
}

// dropPolls drops all but three requests of each kind of polling, which change nothing.
func dropPolls(seen []faultproxy.Request) []faultproxy.Request {
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		isPoll := strings.HasSuffix(r.Kind, "/ReceiveMessage") || strings.HasSuffix(r.Kind, "Heartbeat") || strings.HasPrefix(r.Kind, "GET ") ||
			strings.HasSuffix(r.Kind, "VisibilityBatch")
		return isPoll && r.Nth > 3
	})
}

// runKilled drains one node for a lifecycle hook, and kills the process at the request, if one is given. It returns the
// requests of all processes.
func runKilled(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
	t.Helper()
	w := newWorld(t, 1, "workers", aws.LifecycleHook{Name: terminateHook, Timeout: 2 * time.Minute})
	started := make(chan func(), 1)
	w.proxy.InterruptAt(at, moment, func(faultproxy.Request) {
		kill := <-started
		kill()
		started <- w.startProcess().kill
	})
	i := w.newInstance()
	w.join(i, 2)
	time.Sleep(time.Second) // the pods start
	action := w.cloud.AutoScaling.StartAction(i.id, aws.Terminating)[0]
	w.cloud.SQS.Send(queueName, aws.NewLifecycleMessage(action, aws.DirectToQueue, time.Now()))
	started <- w.startProcess().kill
	await := func(what string, within time.Duration, is func() bool) {
		for end := time.Now().Add(within); !is(); time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Errorf("%s after %s: not so", what, within)
				return
			}
		}
	}
	await("the hook has ended", 5*time.Minute, func() bool { return w.cloud.AutoScaling.Result(i.id) != "" })
	w.ledger.mu.Lock()
	pods := []podRecord{*w.ledger.pod(i.pods[0]), *w.ledger.pod(i.pods[1])}
	node := *w.ledger.node(i.node)
	w.ledger.mu.Unlock()
	for k, p := range pods {
		if p.evictions != 1 || p.deletions != 0 || p.ended.IsZero() {
			t.Errorf("pod %d when the hook ended: %+v, want one eviction, and its end", k, p)
		}
	}
	if got := w.cloud.AutoScaling.Result(i.id); got != "CONTINUE" || node.cordons != 1 || !node.unschedulable {
		t.Errorf("result %s, node %+v", got, node)
	}
	await("the queue is empty", 5*time.Minute, func() bool { return w.cloud.SQS.Depth(queueName) == 0 })
	w.remove(i)
	time.Sleep(time.Minute) // the process sees that the Node is gone
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	if n := w.ledger.node(i.node); n.cordons != 1 || n.drains > 1 {
		t.Errorf("node at the end: %+v", n)
	}
	if dead := w.cloud.SQS.Depth(deadName); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
	return w.proxy.Requests()
}
