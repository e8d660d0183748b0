package agent

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/request"
)

// A condition would keep the pod on the node, because it is unmanaged and protected by an annotation.
func TestRequestedPreemptDrainEmptiesTheNode(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		m.pod.OwnerReferences = nil
		m.pod.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
		asked, to := request.NewSource(notice.Preempt), &fakeNotifier{}
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, asked)
			o.Policy.ActionByCondition = map[string]Action{request.NoticeID: Drain}
			o.ConditionDrainTimeout = 2 * time.Minute
			o.Notifier = to
		})
		asked.RequestDrain()
		if err := m.agent.AwaitDrained(t.Context(), request.SourceName, request.NoticeID); err != nil || !m.isEmpty() {
			t.Errorf("error %v, node empty: %t", err, m.isEmpty())
		}
		asked.CancelDrain()
		time.Sleep(time.Minute)
		if n := m.currentNode(); n.Spec.Unschedulable {
			t.Errorf("after the cancellation the node is %+v", n.Spec)
		}
		m.crashAgent()
		for _, message := range to.all {
			if message.Event.EventType != "Preempt" {
				t.Errorf("sent %s: %s", message.Event.EventType, message.Summary)
			}
		}
	})
}

func TestRequestsOfAnEarlierAgentContinue(t *testing.T) {
	for name, tt := range map[string]struct {
		say  func(*request.Source) // to the restarted agent
		want bool
	}{
		"no new request":  {func(*request.Source) {}, true},
		"requested again": {(*request.Source).RequestDrain, true},
		"cancelled":       {(*request.Source).CancelDrain, false},
	} {
		t.Run(name, testNodeTest(10*time.Second, func(t *testing.T, m *testNode) {
			begin := func() *request.Source {
				asked := request.NewSource(notice.Preempt)
				m.startAgent(t, 0, func(o *Options) {
					o.Sources = append(o.Sources, asked)
					o.Policy.ActionByCondition = map[string]Action{request.NoticeID: Drain}
				})
				return asked
			}
			m.denyEvictions("web")
			begin().RequestDrain()
			time.Sleep(10 * time.Second)
			m.crashAgent()
			m.denyEvictions("")
			asked := begin()
			tt.say(asked)
			time.Sleep(time.Minute)
			if m.isEmpty() != tt.want || m.isRestored() == tt.want {
				t.Errorf("empty: %t, want %t; the node is %+v", m.isEmpty(), tt.want, m.currentNode().Spec)
			}
			asked.CancelDrain()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("after the cancellation the node is %+v", m.currentNode())
			}
		}))
	}
}
