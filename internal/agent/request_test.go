package agent

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/request"
)

// TestRequestedPreemptDrainEmptiesTheNode has a pod on the node that a condition would leave there: nothing would
// replace it, and an annotation protects it.
func TestRequestedPreemptDrainEmptiesTheNode(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
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

func TestRequestsOfAnEarlierAgentContinue(t *testing.T) {
	for name, tt := range map[string]struct {
		say  func(*request.Source) // to the agent that was started anew
		want bool
	}{
		"nothing is said":  {func(*request.Source) {}, true},
		"it is said again": {(*request.Source).Ask, true},
		"it is taken back": {(*request.Source).Withdraw, false},
	} {
		t.Run(name, machineTest(10*time.Second, func(t *testing.T, m *machine) {
			begin := func() *request.Source {
				asked := request.New(notice.Preempt)
				m.start(t, 0, func(o *Options) {
					o.Sources = append(o.Sources, asked)
					o.Impact.Conditions = map[string]Action{request.ID: Drain}
				})
				return asked
			}
			m.denied("web")
			begin().Ask()
			time.Sleep(10 * time.Second)
			m.crash()
			m.denied("")
			asked := begin()
			tt.say(asked)
			time.Sleep(time.Minute)
			if m.empty() != tt.want || m.isRestored() == tt.want {
				t.Errorf("empty: %t, want %t; the node is %+v", m.empty(), tt.want, m.see().Spec)
			}
			asked.Withdraw()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("taken back, the node is %+v", m.see())
			}
		}))
	}
}
