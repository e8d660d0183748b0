package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// largeEvent returns a Reboot with a long description and 5,000 instance names of 80 bytes, including own.
func largeEvent(own string) notice.Notice {
	n := newNotice(notice.Reboot, "E", 15*time.Minute)
	for i := range 4999 {
		n.Resources = append(n.Resources, fmt.Sprintf("%s_%04d", strings.Repeat("x", 75), i))
	}
	n.Resources = append(n.Resources, own)
	n.Description = strings.Repeat("Host server is undergoing maintenance. ", 3000)
	return n
}

func TestEventWithThousandsOfInstancesIsHandled(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		var told approvalRecorder
		options := func(o *Options) {
			o.Approver = &told
			o.InstanceName = func(id string) (string, error) { return id, nil }
		}
		n := largeEvent("n")
		m.source.setNotices(n)
		m.startAgent(t, 0, options)
		time.Sleep(time.Second)
		if node := m.currentNode(); !node.Spec.Unschedulable || m.evictionTime().IsZero() {
			t.Fatalf("1 s after the notice: cordoned %t, pod evicted at %v, Events %v", node.Spec.Unschedulable, m.evictionTime(), m.eventReasons)
		}
		time.Sleep(time.Minute)
		node := m.currentNode()
		records, problems := cordon.ListRecords(&node)
		if len(records) != 1 || len(problems) > 0 {
			t.Fatalf("records %v, problems %v", records, problems)
		}
		if size := len(node.Annotations[cordon.AnnotationKey("azure-E")]); size > 2048 {
			t.Errorf("the record has %d bytes", size)
		}
		var h noticeState
		if err := json.Unmarshal(records[0].State, &h); err != nil || len(h.Notice.Resources) != 1 || h.Notice.InstanceCount != 5000 {
			t.Errorf("recorded %+v, %v", h.Notice, err)
		}
		if len(told.at) > 0 {
			t.Fatal("approved though the state of 4,999 instances is unknown")
		}

		// A restarted agent knows only from its record that there are other instances.
		m.crashAgent()
		m.source = &fakeSource{name: "azure"} // it is never read
		m.startAgent(t, 0, options)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(told.at) > 0 {
			t.Fatal("approved before the source was read")
		}
		m.crashAgent()
		for _, name := range n.Resources[:4999] {
			m.addDrainedPeer(name)
		}
		m.source = &fakeSource{name: "azure", changed: make(chan struct{}, 1), notices: []notice.Notice{n}}
		m.startAgent(t, 0, options)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		check.Is(t, 1, len(told.at))
	})
}

func TestEventWithoutIDIsNeverApproved(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		var told approvalRecorder
		n := newNotice(notice.Preempt, "unnamed-preempt", time.Minute)
		n.Resources, n.HasGeneratedID = []string{"n"}, true
		m.source.setNotices(n)
		m.startAgent(t, 0, func(o *Options) { o.Approver = &told })
		time.Sleep(30 * time.Second)
		if !m.isEmpty() || len(told.at) > 0 {
			t.Errorf("drained %t, approved %d times", m.isEmpty(), len(told.at))
		}
	})
}

// refusingApprover refuses every approval.
type refusingApprover struct{}

func (refusingApprover) Approve(context.Context, ...string) error {
	return errors.New("answered 400 Bad Request")
}

func TestExitAfterDrainIgnoresRefusedApproval(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		n := newNotice(notice.Reboot, "E", 15*time.Minute)
		n.Resources = []string{"n"}
		m.source.setNotices(n)
		m.startAgent(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = refusingApprover{}, true })
		select {
		case <-m.agentDone:
		case <-time.After(time.Minute):
			t.Error("still running 1 minute after the notice")
		}
		if !m.isEmpty() {
			t.Error("it ended before the node was drained")
		}
	})
}

func TestExitAfterDrainSurvivesAnEarlyNoticeEnd(t *testing.T) {
	withTestNode(t, 5*time.Second, func(t *testing.T, m *testNode) {
		m.faults.set(fault{delay: 3 * time.Second}, "create events")
		service := &slowApprover{}
		freeze := newNotice(notice.Freeze, "E", time.Minute)
		freeze.Resources = []string{"n"}
		m.startAgent(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = service, true })
		m.source.setNotices(freeze)
		for service.approvals() == 0 {
			time.Sleep(time.Millisecond)
		}
		m.source.setNotices()
		select {
		case <-m.agentDone:
		case <-time.After(time.Minute):
			t.Error("still running 1 minute after the notice ended")
		}
	})
}

func TestExitAfterDrainWaitsForAPreemptDrain(t *testing.T) {
	withTestNode(t, 5*time.Second, func(t *testing.T, m *testNode) {
		m.faults.set(fault{delay: 500 * time.Millisecond}, "create events")
		reboot := newNotice(notice.Reboot, "E", 15*time.Minute)
		reboot.Resources = []string{"n"}
		m.startAgent(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = refusingApprover{}, true })
		m.source.setNotices(reboot)
		for !m.isEmpty() {
			time.Sleep(time.Millisecond)
		}
		m.replacePod()
		m.notifyPodHandlers()
		m.source.setNotices(newNotice(notice.Preempt, "P", 30*time.Second))
		<-m.agentDone
		if !m.isEmpty() {
			t.Error("it ended before the node was drained for the Preempt")
		}
	})
}

// slowApprover approves after a delay.
type slowApprover struct {
	delay time.Duration

	mu   sync.Mutex
	done int
}

func (s *slowApprover) Approve(ctx context.Context, _ ...string) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.delay):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	return nil
}

// approvals returns the number of accepted approvals.
func (s *slowApprover) approvals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func TestInterruptedApprovalIsRetried(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		service := &slowApprover{delay: 3 * time.Second}
		reboot := newNotice(notice.Reboot, "e", 15*time.Minute)
		reboot.Resources = []string{"n"}
		m.startAgent(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = service, true })
		m.source.setNotices(reboot)
		time.Sleep(3 * time.Second)
		m.source.setNotices(reboot, newNotice(notice.Freeze, "f", time.Hour))
		select {
		case <-m.agentDone:
		case <-time.After(time.Minute):
		}
		if service.approvals() == 0 {
			t.Error("it ended without an approval")
		}
	})
}
