package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// unreadableSource emits the same snapshot with an unreadable part every second.
type unreadableSource struct{ snapshot notice.Snapshot }

func (unreadableSource) Name() string        { return "azure" }
func (unreadableSource) LastRead() time.Time { return time.Now() }

func (g *unreadableSource) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for ctx.Err() == nil {
		s := g.snapshot
		s.At = time.Now()
		emit(s)
		time.Sleep(time.Second)
	}
}

func TestUnreadableEntryIsReportedOnceOnTheNode(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = []Source{&unreadableSource{notice.Snapshot{Unreadable: []notice.Problem{
				{ID: "E1", NamesInstance: true, Err: errors.New(`Events[0].EventType: "HostRepair": want Freeze or another`)},
			}}}}
		})
		time.Sleep(time.Minute)
		if n := m.countEvents("NoticeUnreadable"); n != 1 || m.isEmpty() || m.currentNode().Spec.Unschedulable {
			t.Errorf("%d Events NoticeUnreadable, all Events %v; the node is empty: %t", n, m.eventReasons, m.isEmpty())
		}
	})
}

// The entry moves in the list, and other entries come and go.
func TestOtherEventsRepeatNoReportOfUnreadableEntries(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		problem := func(id string, at int, named bool) notice.Problem {
			return notice.Problem{ID: id, NamesInstance: named, Err: fmt.Errorf(`Events[%d].EventType: "HostRepair": want Freeze or another`, at)}
		}
		var all atomic.Pointer[[]notice.Problem]
		m.startAgent(t, 0, func(o *Options) { o.Sources = []Source{&changingSource{problems: &all}} })
		for _, tt := range []struct {
			problems []notice.Problem
			said     int
		}{
			{[]notice.Problem{problem("E0", 0, false), problem("", 1, false)}, 0}, // they may be for other instances
			{[]notice.Problem{problem("E1", 0, true)}, 1},
			{[]notice.Problem{problem("E1", 3, true), problem("E0", 4, false)}, 1},
			{[]notice.Problem{problem("E2", 0, true), problem("E1", 1, true)}, 2},
			{[]notice.Problem{problem("E1", 0, true), problem("E2", 1, true)}, 2},
			{[]notice.Problem{problem("E2", 0, true)}, 2},
			{nil, 2},
			{[]notice.Problem{problem("E1", 2, true)}, 3},
		} {
			all.Store(&tt.problems)
			time.Sleep(10 * time.Second)
			if n := m.countEvents("NoticeUnreadable"); n != tt.said {
				t.Errorf("%v: %d Events, want %d", tt.problems, n, tt.said)
			}
		}
	})
}

// changingSource is a source with problems that change.
type changingSource struct {
	unreadableSource
	problems *atomic.Pointer[[]notice.Problem]
}

func (c *changingSource) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for ctx.Err() == nil {
		s := notice.Snapshot{At: time.Now()}
		if all := c.problems.Load(); all != nil {
			s.Unreadable = *all
		}
		emit(s)
		time.Sleep(time.Second)
	}
}

// fixedFetcher always returns the same document.
type fixedFetcher struct{ document azure.Document }

func (f fixedFetcher) Fetch(context.Context) (azure.Document, error) { return f.document, nil }

// The test runs every combination of missing or malformed optional fields.
func TestMissingDetailNeverPreventsAPreemptDrain(t *testing.T) {
	fields := map[string]any{
		"EventId": "E", "EventStatus": "Scheduled", "EventSource": "Platform", "NotBefore": "Mon, 03 Jan 2000 00:00:00 GMT",
		"Description": "", "DurationInSeconds": -1,
	}
	names := slices.Sorted(maps.Keys(fields))
	for _, wrong := range []any{"missing", "", nil, 7, map[string]any{"a": 1}, []string{"Scheduled"}} {
		for combination := range 1 << len(names) {
			event := map[string]any{"EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": []string{"n"}}
			for i, name := range names {
				switch {
				case combination&(1<<i) == 0:
					event[name] = fields[name]
				case wrong != "missing":
					event[name] = wrong
				}
			}
			raw, err := json.Marshal(map[string]any{"DocumentIncarnation": 1, "Events": []any{event}})
			must.NoError(t, err)
			synctest.Test(t, func(t *testing.T) {
				source, err := azure.NewSource(azure.SourceOptions{Fetcher: fixedFetcher{raw}, Resource: "n"})
				must.NoError(t, err)
				m := newTestNode(newFakeCluster(), "n", time.Second)
				m.startAgent(t, 0, func(o *Options) { o.Sources = []Source{source} })
				time.Sleep(time.Second)
				if m.evictionTime().IsZero() || !m.currentNode().Spec.Unschedulable {
					t.Errorf("no action for %s: Events %v", raw, m.eventReasons)
				}
				m.crashAgent()
			})
		}
	}
}

func TestMissingStatusDoesNotUndoStarted(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		grace := int64(1)
		m.pod.Spec.TerminationGracePeriodSeconds = &grace
		m.denyEvictions("web")
		n := newNotice(notice.Reboot, "e", 15*time.Minute)
		m.startAgent(t, 0, nil)
		m.source.setNotices(n)
		time.Sleep(time.Minute)
		n.Status, n.NotBefore = notice.Started, time.Time{}
		m.source.setNotices(n)
		time.Sleep(time.Second)
		n.Status = notice.Scheduled // the default for a missing status
		m.source.setNotices(n)
		time.Sleep(15 * time.Second)
		check.Not(t, !m.isEmpty(), "the pod was not evicted before the deadline")
	})
}

// NotBefore is the last second that .NET supports, and the instance's clock is ahead. No record can hold the sum.
func TestPlaceholderTimePreventsNoDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		document := azure.Document(`{"DocumentIncarnation": 1, "Events": [{"EventId": "E", "EventType": "Preempt", "EventStatus": "Scheduled",
			"EventSource": "Platform", "Resources": ["n"], "NotBefore": "Fri, 31 Dec 9999 23:59:59 GMT"}]}`)
		source, err := azure.NewSource(azure.SourceOptions{
			Fetcher: fixedFetcher{document}, Resource: "n", ClockAhead: func() time.Duration { return 5 * time.Second },
		})
		must.NoError(t, err)
		m := newTestNode(newFakeCluster(), "n", time.Second)
		m.startAgent(t, 0, func(o *Options) { o.Sources = []Source{source} })
		time.Sleep(time.Second)
		if m.evictionTime().IsZero() || !m.currentNode().Spec.Unschedulable {
			t.Errorf("no action: Events %v", m.eventReasons)
		}
		m.crashAgent()
	})
}

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
		must.Not(t, len(records) != 1 || len(problems) > 0, "records %v, problems %v", records, problems)
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
		check.Not(t, !m.isEmpty() || len(told.at) > 0, "drained %t, approved %d times", m.isEmpty(), len(told.at))
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
		check.Not(t, !m.isEmpty(), "it ended before the node was drained")
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
		check.Not(t, !m.isEmpty(), "it ended before the node was drained for the Preempt")
	})
}

// lateApprover does not await an approval before a time.
type lateApprover struct {
	fakeApprover

	awaits time.Time
}

func (l *lateApprover) Approve(ctx context.Context, ids ...string) error {
	if err := l.fakeApprover.Approve(ctx, ids...); err != nil || !time.Now().Before(l.awaits) {
		return err
	}
	return fmt.Errorf("%w: no action waits", notice.ErrApprovedTooEarly)
}

func TestEarlyApprovalIsRepeatedAndNotRecorded(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		r := observe.NewRegistry()
		metrics := NewMetrics(r)
		service := &lateApprover{awaits: time.Now().Add(5 * time.Minute)}
		n := newNotice(notice.Terminate, "E", time.Hour)
		n.Resources = []string{"n"}
		m.startAgent(t, 0, func(o *Options) { o.Approver, o.Metrics = service, metrics })
		m.source.setNotices(n)
		time.Sleep(4 * time.Minute)
		check.Is(t, Drained, recordedPhase(m))
		check.Is(t, 0, m.countEvents(NoticeApproved))
		m.crashAgent() // the next one repeats it, too
		m.startAgent(t, 0, func(o *Options) { o.Approver, o.Metrics = service, metrics })
		time.Sleep(2 * time.Minute)
		check.Is(t, Acknowledged, recordedPhase(m))
		if tries := service.count(); tries > 50 {
			t.Errorf("%d approvals in 5 minutes", tries)
		}
		check.Contains(t, scrape(t, r), "slipway_agent_failed_steps_total 0\n") // an alert tells of failures
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
		check.Not(t, service.approvals() == 0, "it ended without an approval")
	})
}
