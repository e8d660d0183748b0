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

// largeEvent is a Reboot that names 5,000 machines of 80 bytes each, own among them, and has a long description.
func largeEvent(own string) notice.Notice {
	n := announced(notice.Reboot, "E", 15*time.Minute)
	for i := range 4999 {
		n.Resources = append(n.Resources, fmt.Sprintf("%s_%04d", strings.Repeat("x", 75), i))
	}
	n.Resources = append(n.Resources, own)
	n.Description = strings.Repeat("Host server is undergoing maintenance. ", 3000)
	return n
}

func TestEventOfThousandsOfMachinesIsActedOn(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
		var told approvals
		options := func(o *Options) {
			o.Approver = &told
			o.Machine = func(id string) (string, error) { return id, nil }
		}
		n := largeEvent("n")
		m.source.say(n)
		m.start(t, 0, options)
		time.Sleep(time.Second)
		if node := m.see(); !node.Spec.Unschedulable || m.asked().IsZero() {
			t.Fatalf("1 s after the notice: cordoned %t, pod asked at %v, Events %v", node.Spec.Unschedulable, m.asked(), m.events)
		}
		time.Sleep(time.Minute)
		node := m.see()
		records, problems := cordon.List(&node)
		if len(records) != 1 || len(problems) > 0 {
			t.Fatalf("records %v, problems %v", records, problems)
		}
		if size := len(node.Annotations[cordon.AnnotationKey("azure-E")]); size > 2048 {
			t.Errorf("the record has %d bytes", size)
		}
		var h noticeState
		if err := json.Unmarshal(records[0].State, &h); err != nil || len(h.Notice.Resources) != 1 || h.Notice.Machines != 5000 {
			t.Errorf("recorded %+v, %v", h.Notice, err)
		}
		if len(told.at) > 0 {
			t.Fatal("acknowledged though nothing is known of 4,999 machines")
		}

		// A restarted agent knows from its record alone that there are others.
		m.crash()
		m.source = &teller{name: "azure"} // it is never read
		m.start(t, 0, options)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(told.at) > 0 {
			t.Fatal("acknowledged before the source was read")
		}
		m.crash()
		for _, name := range n.Resources[:4999] {
			m.peerDrained(name)
		}
		m.source = &teller{name: "azure", news: make(chan struct{}, 1), notices: []notice.Notice{n}}
		m.start(t, 0, options)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		check.Is(t, 1, len(told.at))
	})
}

func TestEventWithoutIDIsNeverAcknowledged(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
		var told approvals
		n := announced(notice.Preempt, "unnamed-preempt", time.Minute)
		n.Resources, n.Unnamed = []string{"n"}, true
		m.source.say(n)
		m.start(t, 0, func(o *Options) { o.Approver = &told })
		time.Sleep(30 * time.Second)
		if !m.empty() || len(told.at) > 0 {
			t.Errorf("drained %t, acknowledged %d times", m.empty(), len(told.at))
		}
	})
}

// refusing is a service that refuses every acknowledgement.
type refusing struct{}

func (refusing) Approve(context.Context, ...string) error {
	return errors.New("answered 400 Bad Request")
}

func TestExitAfterDrainIgnoresARefusedAcknowledgement(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
		n := announced(notice.Reboot, "E", 15*time.Minute)
		n.Resources = []string{"n"}
		m.source.say(n)
		m.start(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = refusing{}, true })
		select {
		case <-m.gone:
		case <-time.After(time.Minute):
			t.Error("still running 1 minute after the notice")
		}
		if !m.empty() {
			t.Error("it ended before the node was drained")
		}
	})
}

func TestExitAfterDrainSurvivesAnEarlyNoticeEnd(t *testing.T) {
	onMachine(t, 5*time.Second, func(t *testing.T, m *machine) {
		m.faults.set(fault{takes: 3 * time.Second}, "create events")
		service := &slowApprover{}
		freeze := announced(notice.Freeze, "E", time.Minute)
		freeze.Resources = []string{"n"}
		m.start(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = service, true })
		m.source.say(freeze)
		for service.approvals() == 0 {
			time.Sleep(time.Millisecond)
		}
		m.source.say()
		select {
		case <-m.gone:
		case <-time.After(time.Minute):
			t.Error("still running 1 minute after the notice ended")
		}
	})
}

func TestExitAfterDrainWaitsForAPreemptDrain(t *testing.T) {
	onMachine(t, 5*time.Second, func(t *testing.T, m *machine) {
		m.faults.set(fault{takes: 500 * time.Millisecond}, "create events")
		reboot := announced(notice.Reboot, "E", 15*time.Minute)
		reboot.Resources = []string{"n"}
		m.start(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = refusing{}, true })
		m.source.say(reboot)
		for !m.empty() {
			time.Sleep(time.Millisecond)
		}
		m.replace()
		m.tellPods()
		m.source.say(announced(notice.Preempt, "P", 30*time.Second))
		<-m.gone
		if !m.empty() {
			t.Error("it ended before the node was drained for the Preempt")
		}
	})
}

// slowApprover answers after a while.
type slowApprover struct {
	takes time.Duration

	mu   sync.Mutex
	done int
}

func (s *slowApprover) Approve(ctx context.Context, _ ...string) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.takes):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	return nil
}

// approvals is how many acknowledgements it has accepted.
func (s *slowApprover) approvals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func TestAnInterruptedAcknowledgementIsNotRefused(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		service := &slowApprover{takes: 3 * time.Second}
		reboot := announced(notice.Reboot, "e", 15*time.Minute)
		reboot.Resources = []string{"n"}
		m.start(t, 0, func(o *Options) { o.Approver, o.ExitAfterDrain = service, true })
		m.source.say(reboot)
		time.Sleep(3 * time.Second)
		m.source.say(reboot, announced(notice.Freeze, "f", time.Hour))
		select {
		case <-m.gone:
		case <-time.After(time.Minute):
		}
		if service.approvals() == 0 {
			t.Error("it ended without an acknowledgement")
		}
	})
}
