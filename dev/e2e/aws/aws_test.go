package aws_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestSpotNoticeCordonsAndDrainsOverIMDSv2(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "spot")
	f.runPods(3, "1")
	a := f.agent()
	f.SetSpotAction("terminate", time.Now().Add(2*time.Minute))
	f.awaitNode("cordoned", cordoned)
	f.awaitNode("drained", drained)
	f.awaitPods(0)
	f.awaitMetric(a, `slipway_agent_notices_total{type="Preempt",action="drain"}`, 1)
	if f.Requests(http.MethodPut, aws.TokenPath) != 1 || f.WasForwarded() {
		t.Errorf("%d tokens, forwarded: %t; want one token", f.Requests(http.MethodPut, aws.TokenPath), f.WasForwarded())
	}
	f.Set(aws.SpotPath, "") // the instance survives
	f.awaitNode("restored", untouched)
}

func TestHibernationDrainsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hibernate")
	f.runPods(2, "1")
	f.agent()
	f.SetSpotAction("hibernate", time.Now())
	f.awaitNode("drained", drained)
	f.awaitPods(0)
}

func TestPassedTimeOnLivingMachineStillDrains(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "passed")
	f.runPods(2, "1")
	f.SetSpotAction("stop", time.Now().Add(-time.Hour))
	f.agent()
	f.awaitNode("drained", drained)
	f.awaitPods(0)
}

func TestRebalanceCordonsOrDrainsByOption(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rebalance")
	f.runPods(2, "1")
	a := f.agent()
	f.Recommend(time.Now())
	f.awaitNode("cordoned", cordoned)
	f.awaitMetric(a, `slipway_agent_notices_total{type="Rebalance",action="cordon"}`, 1)
	f.Recommend(time.Now().Add(time.Minute)) // renewed: the same notice for an hour
	f.awaitPolls(20)
	f.awaitPods(2)
	f.awaitMetric(a, `slipway_agent_notices_total{type="Rebalance",action="cordon"}`, 1)
	f.check(a.KillIfAlive())
	f.agent("--on-rebalance=drain")
	f.awaitNode("drained", drained)
	f.awaitPods(0)
}

func TestScheduledEventWeeksAheadWaitsAndCancelsCleanly(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "event")
	f.runPods(2, "1")
	a := f.agent()
	e := aws.Event{
		EventID: "instance-event-0d59937288b749b32", Code: "instance-retirement", State: "active", Description: "the host is degraded",
		NotBefore: aws.EventTime(time.Now().Add(2 * week)),
	}
	f.SetEvents(e)
	f.awaitMetric(a, `slipway_agent_planned_notices{type="Terminate"}`, 1)
	f.awaitNode("untouched", untouched)
	f.awaitPods(2)
	if !a.HasLogged("planned interruption, not due yet") {
		t.Error("the planned event is not logged")
	}
	e.NotBefore = aws.EventTime(time.Now().Add(20 * time.Hour)) // moved by the user, with ModifyInstanceEventStartTime
	f.check(a.KillIfAlive())
	f.SetEvents(e)
	a = f.agent("--retirement-lead=720h", "--maintenance-lead=720h") // due at once
	f.awaitNode("drained", drained)
	f.awaitPods(0)
	f.check(a.KillIfAlive())
	a = f.agent() // with the default lead it would be planned, but the node's record says that it is given
	f.awaitPolls(30)
	f.awaitNode("still drained", drained)
	f.Cancel(e)
	f.awaitNode("restored", untouched)
	f.check(testbed.PollUntil(f.ctx, "the end is logged", func() bool { return a.HasLogged("scheduled event is not listed any more") }))
}

func TestRebootEventDrainsShortlyBefore(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "reboot")
	f.runPods(2, "1")
	a := f.agent("--maintenance-lead=1m")
	f.SetEvents(aws.Event{EventID: "instance-event-1", Code: "system-reboot", State: "active", NotBefore: aws.EventTime(time.Now().Add(66 * time.Second))})
	f.awaitMetric(a, `slipway_agent_planned_notices{type="Reboot"}`, 1)
	f.awaitNode("untouched", untouched)
	f.awaitNode("drained", drained) // after 6 s
	f.awaitPods(0)
	f.SetEvents()
	f.awaitNode("restored", untouched)
}

func TestHookIsCompletedAfterTheDrainAndHeldBefore(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "asg")
	f.runPods(2, "5")
	group := aws.StartAutoScaling("workers", aws.LifecycleHook{Name: "drain", Timeout: 4 * time.Second})
	t.Cleanup(group.Close)
	group.Join(f.Instance)
	f.agent("--asg-endpoint="+group.URL(), "--asg-hook-timeout=60s")
	group.Terminate(f.Instance)
	f.awaitEvent("Draining")
	f.awaitEvent("Drained")
	f.check(testbed.PollUntil(f.ctx, "the hook is completed", func() bool { return group.Result(f.Instance.ID) != "" }))
	if got := group.Result(f.Instance.ID); got != "CONTINUE" {
		t.Errorf("the hook ended with %s, want CONTINUE", got)
	}
	beats, ends := group.Calls("RecordLifecycleActionHeartbeat"), group.Calls("CompleteLifecycleAction")
	if len(beats) < 2 || len(ends) != 1 || !ends[0].At.After(beats[len(beats)-1].At) {
		t.Errorf("%d heartbeats and %d completions, want some heartbeats before one completion", len(beats), len(ends))
	}
	f.awaitPods(0)
	f.awaitEvent("Acknowledged")
	for _, c := range append(beats, ends...) {
		if c.Code != "" {
			t.Errorf("%s was refused: %s", c.Action, c.Code)
		}
	}
}

func TestI8RestartedAgentCompletesTheHook(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "asg-restart")
	f.runPods(2, "5")
	group := aws.StartAutoScaling("workers", aws.LifecycleHook{Name: "drain", Timeout: 30 * time.Second})
	t.Cleanup(group.Close)
	group.Join(f.Instance)
	flags := []string{"--asg-endpoint=" + group.URL(), "--asg-hook-timeout=60s"}
	a := f.agent(flags...)
	group.Terminate(f.Instance)
	f.awaitEvent("Draining")
	f.check(a.KillIfAlive())
	f.agent(flags...)
	f.check(testbed.PollUntil(f.ctx, "the hook is completed", func() bool { return group.Result(f.Instance.ID) != "" }))
	f.awaitPods(0)
	if got := group.Result(f.Instance.ID); got != "CONTINUE" || len(group.Calls("CompleteLifecycleAction")) != 1 {
		t.Errorf("the hook ended with %s after %d completions, want one CONTINUE", got, len(group.Calls("CompleteLifecycleAction")))
	}
}
