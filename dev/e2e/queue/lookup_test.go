package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

func TestDNSNameFindsNodeAndMissingTagExcludesIt(t *testing.T) {
	testbed.UseOneThread(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "workers")
		w.cloud.SetFaults(1, aws.FaultRates{Throttled: 0.1, Lost: 0.1})
		w.adjust = func(q *queue.Config) { q.CheckTag, q.UseNodeNameByDNS = true, true }
		managed, byName, other := w.newInstance(), w.newInstance(), w.newInstance()
		byName.hasNoProviderID = true
		tags := map[string]string{queue.DefaultManagedTag: ""}
		for _, i := range []*instance{managed, byName} {
			w.cloud.EC2.Put(aws.EC2Instance{ID: i.id, Zone: zone, PrivateDNSName: i.node, State: "running", Tags: tags})
		}
		w.cloud.EC2.Put(aws.EC2Instance{ID: other.id, Zone: zone, PrivateDNSName: other.node, State: "running"})
		var messages []string
		for _, i := range []*instance{managed, byName, other} {
			w.join(i, 1)
			messages = append(messages, w.cloud.SQS.Send(queueName, aws.NewSpotMessage(i.id, zone, "terminate", time.Now())))
		}
		w.startProcess()
		time.Sleep(90 * time.Second)
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		for _, i := range []*instance{managed, byName} {
			if n, p := w.ledger.node(i.node), w.ledger.pod(i.pods[0]); n.cordons != 1 || n.drains != 1 || p.evictions != 1 {
				t.Errorf("node %s: %+v, pod %+v; want one drain", i.node, *n, *p)
			}
		}
		if n, p := w.ledger.node(other.node), w.ledger.pod(other.pods[0]); n.cordons != 0 || p.evictions != 0 {
			t.Errorf("the node without the tag: %+v, pod %+v", *n, *p)
		}
		if got := w.cloud.SQS.Depth(queueName); got != 0 {
			t.Errorf("%d of the messages %v are left", got, messages)
		}
	})
}
