package compat_test

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const queueName = "notices"

// queueMode is locked while a process runs in queue mode. Each process continues the notices of all nodes, so another one
// with other options would take the taint away.
var queueMode sync.Mutex

// startQueueMode starts the compatibility mode for a queue, as in the scripts of the tool. Its process handles all nodes, so
// it has more rights than an agent.
func (f *nthFixture) startQueueMode(hook aws.LifecycleHook, settings ...string) *aws.Cloud {
	f.t.Helper()
	cloud := aws.StartCloud("nth-integ-test", hook)
	f.t.Cleanup(cloud.Close)
	queueMode.Lock()
	f.t.Cleanup(queueMode.Unlock) // after the process has ended
	cloud.EC2.Put(aws.EC2Instance{
		ID: f.ID, Zone: "eu-west-1a", State: "running", PrivateDNSName: f.node(),
		Tags: map[string]string{nth + "/managed": "true", "aws:autoscaling:groupName": "nth-integ-test"},
	})
	url := cloud.SQS.CreateQueue(queueName, aws.QueueOptions{Retention: 5 * time.Minute})
	f.asAdmin = true
	f.startNTH("/readyz", append(append(aws.Credentials(), "ENABLE_SQS_TERMINATION_DRAINING=true", "QUEUE_URL="+url, "AWS_ENDPOINT="+cloud.URL(),
		"CHECK_TAG_BEFORE_DRAINING=false"), settings...)...)
	return cloud
}

// awaitEmptyQueue waits until every message is deleted, and checks that the pods had left before.
func (f *nthFixture) awaitEmptyQueue(cloud *aws.Cloud) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the queue is empty", func() bool { return cloud.SQS.Depth(queueName) == 0 }))
}

// interruptFromQueue sends a message, and waits until the node is drained and the message deleted.
func (f *nthFixture) interruptFromQueue(cloud *aws.Cloud, body string) *corev1.Node {
	f.t.Helper()
	cloud.SQS.Send(queueName, body)
	n := f.awaitDrained()
	f.awaitEmptyQueue(cloud)
	return n
}

func testSpotFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{}, "TAINT_NODE=true", "CHECK_TAG_BEFORE_DRAINING=true", "EMIT_KUBERNETES_EVENTS=true")
	f.interruptFromQueue(cloud, aws.NewSpotMessage(f.ID, "eu-west-1a", "terminate", time.Now()))
	f.awaitTaint("spot-itn", "spot-itn-event-")
	for reason, message := range map[string]string{"SQSTermination": "Spot Interruption notice for instance " + f.ID, "PostDrain": "Post-drain task successfully executed"} {
		if e := f.awaitEvent(reason); !strings.HasPrefix(e.Message, message) || e.Annotations["instance-id"] != f.ID || e.Annotations["local-hostname"] != f.node() {
			f.t.Errorf("%s: %+v", reason, e)
		}
	}
}

func testRebalanceFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{}, "TAINT_NODE=true")
	f.interruptFromQueue(cloud, aws.NewRebalanceMessage(f.ID, time.Now()))
	f.awaitTaint("rebalance-recommendation", "rebalance-recommendation-event-")
}

func testUnknownNodeFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{}, "TAINT_NODE=true", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND=true")
	cloud.EC2.Put(aws.EC2Instance{ID: "i-0000000000000dead", Zone: "eu-west-1a", State: "running", PrivateDNSName: "ip-10-9-9-9.ec2.internal"})
	cloud.SQS.Send(queueName, aws.NewRebalanceMessage("i-0000000000000dead", time.Now()))
	f.awaitEmptyQueue(cloud)
	f.checkUntouched()
}

func testStateChangeFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{})
	f.interruptFromQueue(cloud, aws.NewStateMessage(f.ID, "stopping", time.Now()))
}

func testScheduledChangeFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{}, "TAINT_NODE=true")
	f.interruptFromQueue(cloud, aws.NewHealthMessage(aws.HealthEvent{
		Code: "AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED", Instances: []string{f.ID}, Start: time.Now().Add(5 * time.Minute),
	}, time.Now()))
	f.awaitTaint("scheduled-maintenance", "aws-health-scheduled-change-event-")
}

// terminate begins to terminate the instance by its Auto Scaling group.
func (f *nthFixture) startLifecycleAction(cloud *aws.Cloud, transition string) {
	cloud.AutoScaling.AddInstance(f.ID)
	for _, action := range cloud.AutoScaling.StartAction(f.ID, transition) {
		cloud.SQS.Send(queueName, aws.NewLifecycleMessage(action, aws.ThroughEventBridge, time.Now()))
	}
}

func (f *nthFixture) awaitContinued(cloud *aws.Cloud) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the lifecycle hook is completed", func() bool { return cloud.AutoScaling.Result(f.ID) == "CONTINUE" }))
	f.awaitEmptyQueue(cloud)
}

func testASGLifecycleFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{Name: "cluster-termination-handler", Timeout: time.Hour}, "TAINT_NODE=true",
		"COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS=2")
	f.startLifecycleAction(cloud, aws.Terminating)
	f.awaitTaint("asg-lifecycle-termination", "asg-lifecycle-term-")
	f.awaitDrained()
	f.awaitContinued(cloud)
}

// testASGHeartbeatsFromQueue drains a pod that takes longer to stop than the shortest interval of heartbeats.
func testASGHeartbeatsFromQueue(f *nthFixture) {
	slow := f.app("slow", 1)
	slow.GracePeriod, slow.StopSeconds = 2*time.Minute, "36"
	f.run(slow.Deployment())
	cloud := f.startQueueMode(aws.LifecycleHook{Name: "cluster-termination-handler", Timeout: time.Hour}, "HEARTBEAT_INTERVAL=30", "HEARTBEAT_UNTIL=100")
	f.startLifecycleAction(cloud, aws.Terminating)
	f.awaitNode("cordoned", isCordoned)
	f.check(testbed.PollUntil(f.ctx, "a heartbeat is sent", func() bool { return len(cloud.AutoScaling.Calls("RecordLifecycleActionHeartbeat")) > 0 }))
	if result := cloud.AutoScaling.Result(f.ID); result != "" {
		f.t.Errorf("the hook had ended with %s before the heartbeat", result)
	}
	f.awaitDrained()
	f.awaitContinued(cloud)
	if calls := cloud.AutoScaling.Calls("RecordLifecycleActionHeartbeat"); len(calls) > 2 {
		f.t.Errorf("%d heartbeats in about 40 s, want one for 30 s", len(calls))
	}
}

func testASGLaunchFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{Name: "cluster-launch-handler", Timeout: time.Hour, Transition: aws.Launching})
	f.startLifecycleAction(cloud, aws.Launching)
	f.awaitContinued(cloud)
	f.checkUntouched()
}

func testMetricsFromQueue(f *nthFixture) {
	cloud := f.startQueueMode(aws.LifecycleHook{})
	f.interruptFromQueue(cloud, aws.NewStateMessage(f.ID, "stopping", time.Now()))
	for _, action := range []string{"cordon-and-drain", "post-drain"} {
		f.awaitMetric(f.agent, `actions_total{node_action="`+action+`",node_status="success",`+scope+`}`, 1)
	}
	f.awaitMetric(f.agent, `nth_tagged_instances{`+scope+`}`, 1)
	f.awaitMetric(f.agent, `nth_tagged_nodes{`+scope+`}`, 1)
	for _, want := range []string{"runtime_go_gc", "runtime_go_goroutines", "runtime_go_mem"} {
		if !strings.Contains(f.agent.ReadMetrics(f.ctx), want) {
			f.t.Errorf("the metrics lack %s", want)
		}
	}
}
