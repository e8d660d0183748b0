package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestRestartsDoNotProlongGraceOfUnknownInstance(t *testing.T) {
	testbed.UseOneThread(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "workers")
		w.join(w.newInstance(), 0) // of this cluster
		w.cloud.SQS.Send(queueName, aws.NewSpotMessage(w.newInstance().id, zone, "terminate", time.Now()))
		for range 6 {
			kill := w.startProcess()
			time.Sleep(3 * time.Minute)
			kill()
		}
		m := w.cloud.SQS.Messages(queueName)[0]
		if waited := m.Deleted.Sub(m.Sent); m.Deleted.IsZero() || waited < 10*time.Minute || waited > 15*time.Minute {
			t.Errorf("deleted %s after %s, with a restart every 3 min; want 10 min, and a little more", m.Deleted, waited)
		}
	})
}
