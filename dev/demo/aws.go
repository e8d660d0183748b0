package demo

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// The machines of the steps that only AWS has.
var (
	recommended = redeployed[0] // AWS recommends to replace it
	scaledIn    = redeployed[1] // its Auto Scaling group terminates it
)

// The times of the emulated AWS. Most are shorter than at AWS, so that the demo is short.
const (
	spotNoticeAWS   = 40 * time.Second // 2 minutes at AWS
	rebootNoticeAWS = 20 * time.Second // days at AWS
	// hookTimeout is the heartbeat timeout of the lifecycle hook. It is less than any drain takes.
	hookTimeout = 6 * time.Second
	// hookDrainTime is how long the agents may hold an instance with heartbeats.
	hookDrainTime = 2 * time.Minute
)

// asgOwner is the beginning of the owner's name in the agent's cordon claim for the end of an Auto Scaling instance.
const asgOwner = "aws-asg"

// awsCloud is the emulated AWS: the metadata service of each instance, and an Auto Scaling group.
type awsCloud struct {
	*noticeLog

	instances map[machine]*aws.Instance
	group     *aws.AutoScaling
}

func startAWS(t *testbed.Testbed) *awsCloud {
	c := &awsCloud{
		noticeLog: newNoticeLog(t, instanceID), instances: map[machine]*aws.Instance{},
		group: aws.StartAutoScaling("workers", aws.LifecycleHook{Name: "drain", Timeout: hookTimeout}),
	}
	for _, m := range allMachines() {
		c.instances[m] = aws.StartInstance(instanceID(m))
	}
	return c
}

// instanceID returns the ID of a machine's instance. The same machine always has the same ID.
func instanceID(m machine) string {
	sum := fnv.New64a()
	sum.Write([]byte(m.node()))
	return fmt.Sprintf("i-0%016x", sum.Sum64())
}

func (c *awsCloud) close() {
	c.noticeLog.close()
	c.group.Close()
	for _, i := range c.instances {
		i.Close()
	}
}

func (*awsCloud) title() string { return "AWS" }

func (*awsCloud) describe(s *stage) string {
	return fmt.Sprintf("AWS is emulated too: the instance metadata service (IMDSv2) and the Auto Scaling API. A real slipway-agent guards each of "+
		"%d nodes. It polls 5 times as often as by default. ", len(s.agents)) + noLaunches
}

func (*awsCloud) newNode(m machine) controlplane.NodeSpec {
	return controlplane.NodeSpec{
		Name: m.node(), ProviderID: "aws:///eu-west-1a/" + instanceID(m),
		Labels: map[string]string{
			"node.kubernetes.io/instance-type": "m5.4xlarge", "topology.kubernetes.io/region": aws.Region,
			"topology.kubernetes.io/zone": "eu-west-1a",
		},
	}
}

func (c *awsCloud) agentFlags(m machine) []string {
	return []string{
		"--endpoint", c.instances[m].URL(), "--poll-interval=200ms", "--asg-endpoint", c.group.URL(), "--asg-hook-timeout", hookDrainTime.String(),
	}
}

func (c *awsCloud) prepare(context.Context, *stage) error {
	c.group.Join(c.instances[crashed])
	c.group.Join(c.instances[scaledIn])
	return nil
}

func (c *awsCloud) announce(what interruption, m machine) (azure.EventRecord, string, error) {
	i, now := c.instances[m], time.Now()
	switch what {
	case spotLoss:
		due := now.Add(spotNoticeAWS).Truncate(time.Second)
		i.SetSpotAction("terminate", due)
		r := c.add("aws-spot", i.ID, azure.Preempt, now, due)
		c.follow(func(ctx context.Context) error {
			if err := testbed.Sleep(ctx, time.Until(due)); err != nil {
				return err
			}
			c.start(r, azure.ByNotBefore)
			return c.PowerOff(ctx, i.ID)
		})
		return r, fmt.Sprintf("AWS: the Spot instance %s will be terminated in %.0f s (really: 2 minutes)", i.ID, spotNoticeAWS.Seconds()), nil
	case reboot:
		r := c.schedule(i, azure.Reboot, rebootNoticeAWS)
		c.follow(func(ctx context.Context) error {
			if err := testbed.Sleep(ctx, time.Until(r.NotBefore)); err != nil {
				return err
			}
			c.start(r, azure.ByNotBefore)
			if err := c.restartMachine(ctx, i.ID); err != nil {
				return err
			}
			i.SetEvents()
			c.vanish(r, azure.Finished)
			return nil
		})
		return r, fmt.Sprintf("AWS: %s will reboot in %.0f s (system-reboot; really: some days)", i.ID, rebootNoticeAWS.Seconds()), nil
	case laterReboot:
		return c.schedule(i, azure.Reboot, 10*time.Minute), "AWS: " + i.ID + " will reboot in 10 minutes (system-reboot)", nil
	case distantEvent:
		return c.schedule(i, azure.Terminate, distantNotice), "AWS: " + i.ID + " will be retired in 2 weeks (instance-retirement)", nil
	}
	c.group.Terminate(i)
	r := c.add(asgOwner, i.ID, azure.Terminate, now, now.Add(hookDrainTime))
	c.follow(func(ctx context.Context) error { return c.terminateAfterHook(ctx, r) })
	return r, fmt.Sprintf("AWS: the Auto Scaling group terminates %s. Its lifecycle hook waits %.0f s for each heartbeat (really: 30 s or more)",
		i.ID, hookTimeout.Seconds()), nil
}

// scheduledEvent returns the scheduled event of an instance. An instance has one at a time.
func scheduledEvent(i *aws.Instance, kind azure.EventType, due time.Time) aws.Event {
	code := map[azure.EventType]string{azure.Reboot: "system-reboot", azure.Terminate: "instance-retirement"}[kind]
	return aws.Event{
		EventID: "instance-event-" + i.ID[len("i-"):], Code: code, State: "active", Description: "scheduled " + code, NotBefore: aws.EventTime(due),
	}
}

// schedule schedules an event of an instance.
func (c *awsCloud) schedule(i *aws.Instance, kind azure.EventType, notice time.Duration) azure.EventRecord {
	now := time.Now()
	due := now.Add(notice).Truncate(time.Second)
	e := scheduledEvent(i, kind, due)
	i.SetEvents(e)
	return c.add("aws-"+e.EventID, i.ID, kind, now, due)
}

func (c *awsCloud) cancel(r azure.EventRecord) error {
	for _, i := range c.instances {
		if i.ID == r.Resources[0] {
			i.Cancel(scheduledEvent(i, r.Type, r.NotBefore))
		}
	}
	c.vanish(r, azure.Cancelled)
	return nil
}

// terminateAfterHook switches an instance off when its lifecycle hook has ended.
func (c *awsCloud) terminateAfterHook(ctx context.Context, r azure.EventRecord) error {
	instance := r.Resources[0]
	if err := testbed.PollUntil(ctx, "the lifecycle hook ends", func() bool { return c.group.Result(instance) != "" }); err != nil {
		return err
	}
	if result := c.group.Result(instance); result != "CONTINUE" {
		return fmt.Errorf("instance %s: the lifecycle hook ended with %s, want CONTINUE", instance, result)
	}
	c.approve(r)
	return c.PowerOff(ctx, instance)
}

func (*awsCloud) approval(r azure.EventRecord) string {
	if r.EventID == asgOwner {
		return "completes the lifecycle hook"
	}
	return ""
}

func (c *awsCloud) steps(s *stage) []*step {
	distant := &step{title: "A retirement is planned in two weeks", run: s.runDistantEvent}
	return []*step{
		{title: "A Spot instance is interrupted", run: s.runSpotNotice},
		{title: "An instance reboots", run: s.runReboot},
		{title: "A reboot is announced and cancelled", run: s.runCancelledReboot},
		distant,
		{title: "An agent is killed during a drain", runAfter: distant, run: s.runKilledAgent},
		{title: "An Auto Scaling group waits for the end of a drain", run: func(ctx context.Context, a *stepOutput) (string, error) {
			return c.runScaleIn(ctx, s, a)
		}},
		{title: "AWS recommends to replace a Spot instance", run: func(ctx context.Context, a *stepOutput) (string, error) {
			return c.runRecommendation(ctx, s, a)
		}},
	}
}

// runScaleIn runs the step with an instance that its Auto Scaling group terminates. Without heartbeats, the hook would end
// before the drain.
func (c *awsCloud) runScaleIn(ctx context.Context, s *stage, a *stepOutput) (string, error) {
	pods := s.podsOn(scaledIn)
	r, err := s.announce(ctx, a, deletion, scaledIn, "It runs %d pods, which take 8 s to stop", len(pods))
	if err != nil {
		return "", err
	}
	at, err := s.awaitCordon(ctx, scaledIn, r)
	if err != nil {
		return "", err
	}
	a.print(at, "node cordoned; draining. The agent holds the instance with heartbeats")
	if r, err = s.reportDrained(ctx, a, scaledIn, r); err != nil {
		return "", err
	}
	died, err := s.awaitPowerChange(ctx, r, false)
	if err != nil {
		return "", err
	}
	a.print(died, "the group terminates the instance at once")
	heartbeats, completions := c.callsOf("RecordLifecycleActionHeartbeat", r), c.callsOf("CompleteLifecycleAction", r)
	inOrder := len(heartbeats) > 1 && len(completions) == 1 && completions[0].At.After(heartbeats[len(heartbeats)-1].At)
	return fmt.Sprintf("%d heartbeats, then one completion; %d pods moved, 0 cut short, 0 lost", len(heartbeats), len(pods)), firstError(
		checkExpectation(inOrder, "2 heartbeats or more, then one completion", "heartbeats %v, completions %v", heartbeats, completions),
		s.awaitReplacements(ctx, scaledIn, len(pods), renderer),
		s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeFinished: len(pods), azure.OutcomeStayed: 1}),
	)
}

// callsOf returns the successful calls of an action for the instance of a notice.
func (c *awsCloud) callsOf(action string, r azure.EventRecord) (calls []aws.Call) {
	for _, call := range c.group.Calls(action) {
		if call.Code == "" && call.Form.Get("InstanceId") == r.Resources[0] {
			calls = append(calls, call)
		}
	}
	return calls
}

// runRecommendation runs the step with a rebalance recommendation. The agent cordons the node and evicts no pod.
func (c *awsCloud) runRecommendation(ctx context.Context, s *stage, a *stepOutput) (string, error) {
	pods, instance := s.podsOn(recommended), c.instances[recommended]
	a.startTime = time.Now()
	instance.Recommend(a.startTime)
	a.print(a.startTime, "AWS: %s has a higher risk of interruption (rebalance recommendation). It runs %d pods", instance.ID, len(pods))
	r := c.add("aws-rebalance", instance.ID, azure.Preempt, a.startTime, time.Time{})
	at, err := s.awaitCordon(ctx, recommended, r)
	if err != nil {
		return "", err
	}
	a.print(at, "the node is cordoned: it takes no new pods, and its pods keep running until AWS interrupts it")
	const cordoned = `slipway_agent_notices_total{type="Rebalance",action="cordon"}`
	err = testbed.PollUntil(ctx, cordoned+" is 1", func() bool {
		value, _ := s.agents[recommended.node()].ReadMetric(ctx, cordoned)
		return value == 1
	})
	if err != nil {
		return "", err
	}
	// A renewed recommendation is the same notice. Reading it shows that the agent had time to act on the first.
	instance.Recommend(time.Now())
	before := instance.Requests("GET", aws.RebalancePath)
	err = testbed.PollUntil(ctx, "the recommendation is read again", func() bool { return instance.Requests("GET", aws.RebalancePath) >= before+2 })
	if err != nil {
		return "", err
	}
	a.print(time.Now(), "AWS renews the recommendation, and the agent does nothing more")
	return fmt.Sprintf("cordoned once; the same %d pods keep running", len(pods)), firstError(
		checkExpectation(countPods(s.currentPods(pods), func(p azure.Pod) bool { return wasDeleted(p) || hasEnded(p) }) == 0, "no eviction", "some"),
		s.checkOutcomes(ctx, r, map[azure.Outcome]int{azure.OutcomeRunning: len(pods), azure.OutcomeStayed: 1}),
	)
}
