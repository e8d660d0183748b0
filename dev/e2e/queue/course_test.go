package queue_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// courseResult is what one course has shown.
type courseResult struct {
	Messages, Deliveries, Instances, Kills, Stops, Refused int
	// LostNodes are nodes with a pod that still ran when their instance ended. LostMessages are messages that were not deleted,
	// without the poison. LostHooks did not end with CONTINUE.
	LostNodes, LostMessages, LostHooks int
	// DoubleEvictions are pods that were evicted or deleted more than once. DoubleDrains are nodes that were cordoned more
	// than once, or drained more often than once for each notice.
	DoubleEvictions, DoubleDrains int
	// EarlyHooks are hooks that were completed before the last pod ended.
	EarlyHooks int
	Hours      float64 // of virtual time
}

// The variables of the benchmark: the number of messages, and the file for the result.
const (
	messagesVariable = "SLIPWAY_QUEUE_MESSAGES"
	resultVariable   = "SLIPWAY_QUEUE_RESULT"
	defaultMessages  = 400
)

// TestNoMessageIsLostAndNoNodeDrainedTwice runs a course of messages of all forms in virtual time. The queue duplicates and
// reorders them, requests fail or lose their responses, and the process is killed or stopped again and again.
func TestNoMessageIsLostAndNoNodeDrainedTwice(t *testing.T) {
	testbed.UseOneThread(t)
	messages := defaultMessages
	if text := os.Getenv(messagesVariable); text != "" {
		var err error
		if messages, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	var r courseResult
	synctest.Test(t, func(t *testing.T) { r = runCourse(t, 1, messages) })
	t.Logf("%+v", r)
	if r.Messages < messages || r.Deliveries <= r.Messages || r.Kills+r.Stops < messages/200 || r.Kills*r.Stops == 0 || r.Refused == 0 {
		t.Errorf("%d messages, %d deliveries, %d kills, %d stops, %d refused requests: the course was too easy", r.Messages, r.Deliveries, r.Kills, r.Stops, r.Refused)
	}
	if r.LostNodes+r.LostMessages+r.LostHooks != 0 {
		t.Errorf("lost: %d nodes, %d messages, %d hooks", r.LostNodes, r.LostMessages, r.LostHooks)
	}
	if r.DoubleEvictions+r.DoubleDrains+r.EarlyHooks != 0 {
		t.Errorf("%d double evictions, %d double drains, %d early completions", r.DoubleEvictions, r.DoubleDrains, r.EarlyHooks)
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("queue: %d messages, %d deliveries, %d kills, %d stops in virtual time", r.Messages, r.Deliveries, r.Kills, r.Stops))
	if file := os.Getenv(resultVariable); file != "" {
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	terminateHook = "drain"
	launchHook    = "ready"
	// hookTimeoutOfCourse is some visibility timeouts long. A kill or a lost response hides a message for one of them, and no
	// heartbeat is sent in that time. AWS has a default of 1 h.
	hookTimeoutOfCourse = 10 * time.Minute
	// concurrentInstances limits how many instances have a story at one time.
	concurrentInstances = 60
	podsPerNode         = 2
)

// runCourse sends at least this many messages, and returns what the ledgers say at the end.
func runCourse(t *testing.T, seed uint64, messages int) (r courseResult) {
	t.Helper()
	began := time.Now()
	w := newWorld(t, seed, "workers", aws.LifecycleHook{Name: terminateHook, Timeout: hookTimeoutOfCourse},
		aws.LifecycleHook{Name: launchHook, Timeout: 10 * time.Minute, Transition: aws.Launching})
	w.cloud.SQS.SetDelivery(seed, aws.DeliveryRates{Duplicate: 0.05, Undelete: 0.02, Reorder: 0.5})
	w.cloud.SetFaults(seed, aws.FaultRates{Throttled: 0.02, Unavailable: 0.02, Lost: 0.02, Slow: 0.1, MaxDelay: 2 * time.Second})
	c := &course{world: w, poison: map[string]bool{}}

	over := make(chan struct{})
	w.running.Go(func() { // kills or stops the process again and again, while there are stories
		for p := w.startProcess(); ; p = w.startProcess() {
			select {
			case <-over:
				return
			case <-w.ctx.Done():
				return
			case <-time.After(w.between(20*time.Second, 3*time.Minute)):
			}
			if (r.Kills+r.Stops)%3 == 1 {
				p.stop()
				r.Stops++
			} else {
				p.kill()
				r.Kills++
			}
			time.Sleep(w.between(0, 10*time.Second))
		}
	})
	c.tellStories(messages)
	w.sending.Wait()
	close(over)
	c.awaitEmptyQueue()

	r.Refused = w.cloud.Requests("sqs:refused") + w.cloud.Requests("autoscaling:refused")
	c.judge(&r)
	r.Hours = time.Since(began).Hours()
	return r
}

// course is a set of instances with their stories.
type course struct {
	*world

	instances []*instance
	hooks     []string // instances that waited for a hook
	poison    map[string]bool
	sent      int
	reported  int
}

// send sends a message once or twice, after a delay.
func (c *course) send(body string) {
	copies := 1
	if c.chance(0.3) {
		copies = 2
	}
	for k := range copies {
		c.mu.Lock()
		c.sent++
		c.mu.Unlock()
		delay := c.between(0, 5*time.Second)
		if k > 0 {
			delay = c.between(0, 2*time.Minute)
		}
		c.sending.Go(func() {
			time.Sleep(delay)
			c.cloud.SQS.Send(queueName, body)
		})
	}
}

func (c *course) sentSoFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// tellStories starts stories until enough messages are sent, and waits for their ends.
func (c *course) tellStories(messages int) {
	free := make(chan struct{}, concurrentInstances)
	stories := []func(){
		c.interruptSpot, c.interruptSpot, c.interruptSpot, c.scaleIn, c.scaleIn, c.scaleIn, c.stopByUser, c.endReservation, c.retireHosts, c.launch, c.launch,
		c.announceForeign, c.announceForeign, c.sendOthers,
	}
	for k := 0; c.sentSoFar() < messages; k++ {
		free <- struct{}{}
		story := stories[int(c.between(0, time.Duration(len(stories))))]
		c.sending.Go(func() {
			story()
			<-free
		})
		time.Sleep(c.between(500*time.Millisecond, 4*time.Second))
	}
	for range concurrentInstances {
		free <- struct{}{}
	}
}

func (c *course) joinNew() *instance {
	i := c.newInstance()
	i.notices = 1
	c.join(i, podsPerNode)
	c.mu.Lock()
	c.instances = append(c.instances, i)
	c.mu.Unlock()
	time.Sleep(time.Second) // its pods start
	return i
}

// stop ends an instance, with the messages that AWS sends then.
func (c *course) stop(i *instance) {
	c.send(aws.NewStateMessage(i.id, "shutting-down", time.Now()))
	c.remove(i)
	c.send(aws.NewStateMessage(i.id, "terminated", time.Now().Add(20*time.Second)))
}

func (c *course) interruptSpot() {
	i := c.joinNew()
	if c.chance(0.4) {
		i.notices++
		c.send(aws.NewRebalanceMessage(i.id, time.Now()))
		time.Sleep(c.between(0, time.Minute))
	}
	c.send(aws.NewSpotMessage(i.id, zone, "terminate", time.Now()))
	time.Sleep(2 * time.Minute)
	c.stop(i)
}

func (c *course) endReservation() {
	i := c.joinNew()
	c.send(aws.NewCapacityReservationMessage(i.id, "terminate", time.Now()))
	time.Sleep(2 * time.Minute)
	c.stop(i)
}

func (c *course) scaleIn() {
	i := c.joinNew()
	form := []aws.LifecycleForm{aws.ThroughEventBridge, aws.DirectToQueue, aws.ThroughTopic}[int(c.between(0, 3))]
	for _, action := range c.cloud.AutoScaling.StartAction(i.id, aws.Terminating) {
		c.send(aws.NewLifecycleMessage(action, form, time.Now()))
	}
	c.mu.Lock()
	c.hooks = append(c.hooks, i.id)
	c.mu.Unlock()
	for c.cloud.AutoScaling.Result(i.id) == "" {
		time.Sleep(time.Second)
	}
	c.stop(i)
}

// stopByUser stops an instance without a warning. Its Node stays for two minutes, which is generous. Both states are one
// notice.
func (c *course) stopByUser() {
	i := c.joinNew()
	c.send(aws.NewStateMessage(i.id, "stopping", time.Now()))
	time.Sleep(time.Minute)
	c.send(aws.NewStateMessage(i.id, "stopped", time.Now()))
	time.Sleep(time.Minute)
	c.remove(i)
}

// retireHosts retires several instances with one message, early enough that they are drained at once.
func (c *course) retireHosts() {
	all := []*instance{c.joinNew(), c.joinNew(), c.joinNew()}
	e := aws.HealthEvent{Code: "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", Start: time.Now().Add(10 * time.Minute)}
	for _, i := range all {
		e.Instances = append(e.Instances, i.id)
	}
	e.Instances = append(e.Instances, c.newInstance().id) // of another cluster
	c.send(aws.NewHealthMessage(e, time.Now()))
	time.Sleep(10 * time.Minute)
	for _, i := range all {
		c.stop(i)
	}
}

// launch starts an instance. Its node joins later than its message.
func (c *course) launch() {
	i := c.newInstance()
	for _, action := range c.cloud.AutoScaling.StartAction(i.id, aws.Launching) {
		c.send(aws.NewLifecycleMessage(action, aws.ThroughEventBridge, time.Now()))
	}
	c.mu.Lock()
	c.hooks = append(c.hooks, i.id)
	c.mu.Unlock()
	time.Sleep(c.between(10*time.Second, 3*time.Minute))
	c.join(i, 0)
	for c.cloud.AutoScaling.Result(i.id) == "" {
		time.Sleep(time.Second)
	}
	c.remove(i)
}

// announceForeign announces interruptions of an instance of another cluster.
func (c *course) announceForeign() {
	i := c.newInstance()
	c.send(aws.NewSpotMessage(i.id, zone, "stop", time.Now()))
	c.send(aws.NewStateMessage(i.id, "stopping", time.Now().Add(2*time.Minute)))
}

// sendOthers sends messages that require nothing, and rarely poison.
func (c *course) sendOthers() {
	c.send(aws.NewTestMessage("workers", time.Now()))
	c.send(aws.NewHealthMessage(aws.HealthEvent{Code: "AWS_RDS_MAINTENANCE_SCHEDULED", Service: "RDS", Instances: []string{"db-1"}}, time.Now()))
	c.send(aws.NewStateMessage(c.newInstance().id, "running", time.Now()))
	if c.chance(0.2) {
		body := aws.PoisonMessages()[int(c.between(0, poisonForms))]
		c.mu.Lock()
		c.poison[body] = true
		c.mu.Unlock()
		c.send(body)
	}
}

// awaitEmptyQueue waits until the queue is empty, at most a day.
func (c *course) awaitEmptyQueue() {
	for range 24 * 60 {
		if c.cloud.SQS.Depth(queueName) == 0 {
			return
		}
		time.Sleep(time.Minute)
	}
}

// messagesOf returns the records of the messages that name an instance.
func (c *course) messagesOf(instance string) []aws.MessageRecord {
	return slices.DeleteFunc(c.cloud.SQS.Messages(queueName), func(m aws.MessageRecord) bool { return !strings.Contains(m.Body, instance) })
}

// report logs a fault of the first few.
func (c *course) report(format string, values ...any) {
	if c.reported++; c.reported <= 20 {
		c.t.Logf(format, values...)
	}
}

// judge compares the ledgers.
func (c *course) judge(r *courseResult) {
	for _, m := range c.cloud.SQS.Messages(queueName) {
		r.Messages++
		r.Deliveries += len(m.Receives)
		isPoison := c.poison[m.Body]
		if isPoison != !m.DeadLettered.IsZero() || isPoison != m.Deleted.IsZero() || !m.Expired.IsZero() {
			r.LostMessages++
			c.report("message %s (poison %t): received %d times, deleted %s, dead-lettered %s: %s", m.ID, isPoison, len(m.Receives), m.Deleted, m.DeadLettered, m.Body)
		}
	}
	l := c.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Instances = len(c.instances)
	for _, i := range c.instances {
		n := l.node(i.node)
		if len(n.lost) > 0 || n.cordons == 0 {
			r.LostNodes++
			c.report("node %s of %s ended at %s with pods %v: %+v, its messages: %+v", i.node, i.id, n.removed, n.lost, *n, c.messagesOf(i.id))
		}
		if n.cordons > 1 || n.drains > i.notices {
			r.DoubleDrains++
			c.report("node %s: %+v", i.node, *n)
		}
		for _, p := range i.pods {
			if got := l.pod(p); got.evictions+got.deletions > 1 {
				r.DoubleEvictions++
				c.report("pod %s on %s: %+v", p, i.node, *got)
			}
		}
	}
	byID := map[string]*instance{}
	for _, i := range c.instances {
		byID[i.id] = i
	}
	completed := map[string]time.Time{}
	for _, call := range c.cloud.AutoScaling.Calls("CompleteLifecycleAction") {
		if call.Code == "" {
			completed[call.Form.Get("InstanceId")] = call.At
		}
	}
	for _, id := range c.hooks {
		if got := c.cloud.AutoScaling.Result(id); got != "CONTINUE" {
			r.LostHooks++
			c.report("the hook of %s ended with %q, its messages: %+v", id, got, c.messagesOf(id))
		}
		if i := byID[id]; i != nil {
			for _, p := range i.pods {
				if ended, at := l.pod(p).ended, completed[id]; !at.IsZero() && (ended.IsZero() || ended.After(at)) {
					r.EarlyHooks++
				}
			}
		}
	}
}
