package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/request"
)

// TestWhoAsksForADrainAsForAPreemptGetsAnEmptyNode has a pod on the node that a condition would leave there: nothing would
// replace it, and an annotation protects it.
func TestWhoAsksForADrainAsForAPreemptGetsAnEmptyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", 10*time.Second)
		m.pod.OwnerReferences = nil
		m.pod.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
		asked, to := request.New(notice.Preempt), &told{}
		m.start(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, asked)
			o.Impact.Conditions = map[string]Action{request.ID: Drain}
			o.ConditionDrain = 2 * time.Minute
			o.Notifier = to
		})
		asked.Ask()
		if err := m.agent.Await(t.Context(), request.Name, request.ID); err != nil || !m.empty() {
			t.Errorf("answered %v, and the node is empty: %t", err, m.empty())
		}
		asked.Withdraw()
		time.Sleep(time.Minute)
		if n := m.see(); n.Spec.Unschedulable {
			t.Errorf("taken back, the node is %+v", n.Spec)
		}
		m.crash()
		for _, message := range to.all {
			if message.Event.EventType != "Preempt" {
				t.Errorf("told %s: %s", message.Event.EventType, message.Summary)
			}
		}
	})
}
