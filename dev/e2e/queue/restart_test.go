package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

func TestRestartsDoNotProlongGraceOfUnknownInstance(t *testing.T) {
	testbed.UseOneThread(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "workers")
		w.join(w.newInstance(), 0) // of this cluster
		w.cloud.SQS.Send(queueName, aws.NewSpotMessage(w.newInstance().id, zone, "terminate", time.Now()))
		for range 6 {
			p := w.startProcess()
			time.Sleep(3 * time.Minute)
			p.kill()
		}
		m := w.cloud.SQS.Messages(queueName)[0]
		if waited := m.Deleted.Sub(m.Sent); m.Deleted.IsZero() || waited < 10*time.Minute || waited > 15*time.Minute {
			t.Errorf("deleted %s after %s, with a restart every 3 min; want 10 min, and a little more", m.Deleted, waited)
		}
	})
}

func TestStoppedProcessHidesNoMessage(t *testing.T) {
	testbed.UseOneThread(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "workers")
		i := w.newInstance()
		w.join(i, 8) // the last pod takes 22 s to stop
		w.cloud.SQS.Send(queueName, aws.NewSpotMessage(i.id, zone, "terminate", time.Now()))
		for range 40 {
			w.cloud.SQS.Send(queueName, aws.NewSpotMessage(w.newInstance().id, zone, "terminate", time.Now()))
		}
		p := w.startProcess()
		time.Sleep(5 * time.Second)
		stopping := time.Now()
		p.stop()
		if took := time.Since(stopping); took > 2*time.Second {
			t.Errorf("the process ended after %s", took)
		}
		w.startProcess()
		time.Sleep(5 * time.Second)
		for _, m := range w.cloud.SQS.Messages(queueName) {
			if len(m.Receives) != 2 || m.Receives[1].Before(stopping) || !m.Deleted.IsZero() {
				t.Errorf("%s: received at %v, deleted %s; want two receives, one by each process", m.Body, m.Receives, m.Deleted)
			}
		}
		time.Sleep(30 * time.Second)
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		if n := w.ledger.node(i.node); n.cordons != 1 || n.drains != 1 || w.ledger.pod(i.pods[7]).evictions != 1 {
			t.Errorf("node %+v, last pod %+v; want one drain", *n, *w.ledger.pod(i.pods[7]))
		}
	})
}

func TestDeadlineIsCorrectedByTheClockOfAWS(t *testing.T) {
	testbed.UseOneThread(t)
	for _, ahead := range []time.Duration{-2 * time.Minute, 0, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, "workers")
			w.cloud.SQS.SetClockAhead(ahead)
			i := w.newInstance()
			w.join(i, 1)
			sent := time.Now()
			w.cloud.SQS.Send(queueName, aws.NewSpotMessage(i.id, zone, "terminate", sent.Add(ahead)))
			w.startProcess()
			time.Sleep(5 * time.Second)
			n, err := w.client.CoreV1().Nodes().Get(w.ctx, i.node, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			reports, _ := report.ReadReports(n.Annotations)
			if len(reports) != 1 {
				t.Fatalf("annotations %v: want one record", n.Annotations)
			}
			if left := reports[0].Deadline.Sub(sent); left < 2*time.Minute-2*time.Second || left > 2*time.Minute+2*time.Second {
				t.Errorf("AWS is ahead by %s: the deadline is %s after the message, want 2 min", ahead, left)
			}
		})
	}
}
